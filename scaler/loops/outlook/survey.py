"""Everything that the pages about quota are made from, as it was at one instant.

Pages are computed in a thread, while watches go on and KEDA gets its answers. So what changes is copied first: the
trees, and of live stores what the pages will ask of them.

Quota is shown even where nobody knows who is idle. What depends on that says then why it is not known.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from scaler.core.grants import Seeks
from scaler.core.idleness import Idle
from scaler.core.quota.demands import Market
from scaler.core.quota.model import Workload
from scaler.core.quota.roster import World
from scaler.core.quota.snapshot import Snapshot
from scaler.core.quota.tree import QueueNode, Tree
from scaler.core.reasons import Because
from scaler.core.reclaim import Candidate
from scaler.core.replicas import Active, Decision
from scaler.kube.accelerators import GpuResources
from scaler.kube.kueue_objects import Workload as KueueWorkload
from scaler.kube.objects import ScalableWorkload
from scaler.kube.resources import SCALABLE_WORKLOAD
from scaler.loops.board import Board, Evaluation
from scaler.loops.candidates import gpus_of
from scaler.loops.cluster import Cluster
from scaler.loops.outlook.gates import Gates
from scaler.loops.planning import Planning, Sight
from scaler.loops.quota_view import Blind
from scaler.loops.standing_plans import StandingPlan, standing_plans


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Copies and values; but for `sight` nothing in it changes any more."""

    at: datetime
    trees: Sequence[Tree]
    doubts: Mapping[str, Sequence[str]]
    """What of a tree could not be read, by the name of its root."""
    world: World
    gpus: GpuResources
    pending: Mapping[str, Sequence[Workload]]
    """All that queue, whatever they ask for, by ClusterQueue and in no particular order."""
    waiting: Sequence[tuple[Workload, KueueWorkload | None]]
    """Who waits for GPUs and is not admitted, with what stands in the API about it; those with highest priority first.
    """
    sight: Sight | None = None
    """What plans are made from, for whoever makes one at once: unlike all else it goes on to change. None where nobody
    knows who is idle."""
    candidates: Sequence[Candidate] = ()
    idle: Collection[str] = frozenset()
    """Keys of the Workloads that hold quota and are idle by their verdict, whether a plan may take them or not."""
    leaving: frozenset[str] = frozenset()
    """Keys of those that are being suspended anyway."""
    unjudged: str = ""
    """Why nobody knows who is idle; empty where it is known."""
    standing: Sequence[StandingPlan] = ()
    evaluation: Evaluation | None = None
    """The latest one, however old."""
    cluster_queues: Collection[str] = frozenset()
    local_queues: Collection[tuple[str, str]] = frozenset()
    """(namespace, name)."""
    gates: Gates = field(default_factory=dict)
    """How Workloads stand with our AdmissionChecks, by key; empty where nobody has looked."""

    @cached_property
    def tree_by_queue(self) -> Mapping[str, Tree]:
        return {name: tree for tree in self.trees for name in tree.queues}

    @cached_property
    def lines(self) -> Mapping[str, Sequence[Workload]]:
        """Who waits in each ClusterQueue, in the queue's order."""
        return {
            name: sorted((each for each in waiting if each.may_queue), key=place_in_line)
            for name, waiting in self.pending.items()
        }

    def cluster_queue_of(self, workload: Workload) -> str:
        """Where it holds quota or waits; empty where its LocalQueue leads nowhere or is not known."""
        if workload.reservation is not None:
            return workload.reservation.cluster_queue
        local = self.world.local_queue(workload.namespace, workload.queue)
        return local.cluster_queue if local else ""

    def queue(self, name: str) -> QueueNode | None:
        tree = self.tree_by_queue.get(name)
        return tree.queues[name] if tree is not None else None

    def root_of(self, workload: Workload) -> str:
        """Name of the root of the Workload's tree; empty where it is in none."""
        tree = self.tree_by_queue.get(self.cluster_queue_of(workload))
        return tree.root.name if tree is not None else ""

    def plan_for(self, workload: Workload) -> StandingPlan | None:
        return next((each for each in self.standing if each.grant.gang_uid == workload.uid), None)

    def plan_beside(self, workload: Workload) -> StandingPlan | None:
        """A plan for another gang that has to end first: one of the same tree for quota, and any for nodes."""
        if workload.reservation is not None:
            return next((each for each in self.standing if each.grant.seeks is Seeks.NODES), None)
        root, roots = self.root_of(workload), self._roots_of_plans
        return next((each for each in self.standing if root and roots.get(each.grant.plan) == root), None)

    @cached_property
    def _roots_of_plans(self) -> Mapping[str, str]:
        roots = {each.key: self.root_of(each) for each, _ in self.waiting}
        return {
            each.grant.plan: roots.get(each.grant.gang, "") for each in self.standing if each.grant.seeks is Seeks.QUOTA
        }


def place_in_line(workload: Workload) -> tuple[int, datetime, str]:
    """Its place in the order of queues and of plans."""
    return -workload.priority, workload.queued_at, workload.uid


async def take_survey(planning: Planning, board: Board, now: datetime) -> Survey | Blind:
    """The survey at this instant, or why quota cannot be seen. KEDA gets its answers between the steps."""
    snapshot, cluster, evaluation = planning.quota(), planning.cluster, board.evaluation
    if isinstance(snapshot, Blind):
        return snapshot
    look = planning.look(now)
    await asyncio.sleep(0)
    sight = look if isinstance(look, Sight) else None
    idle = _idle(sight.evaluation, cluster, snapshot) if sight is not None else frozenset()
    standing = standing_plans(cluster, evaluation if sight is not None else None)
    await asyncio.sleep(0)
    return Survey(
        at=now,
        trees=[tree.clone() for tree in snapshot.trees],
        doubts={tree.root.name: found for tree in snapshot.trees if (found := snapshot.doubts(tree))},
        world=World(
            market=Market(flavors=dict(snapshot.flavors)),
            namespaces=dict(snapshot.namespaces),
            local_queue=snapshot.local_queue,
        ),
        gpus=cluster.gpus,
        pending={name: found for tree in snapshot.trees for name, found in snapshot.pending_in(tree).items()},
        waiting=_waiting(snapshot, cluster),
        sight=sight,
        candidates=sight.idlers.candidates if sight is not None else (),
        idle=idle,
        leaving=sight.idlers.leaving if sight is not None else frozenset(),
        unjudged=look.reason if isinstance(look, Blind) else "",
        standing=standing,
        evaluation=evaluation,
        cluster_queues=frozenset(snapshot.cluster_queues),
        local_queues=frozenset(snapshot.local_queues),
    )


def _waiting(snapshot: Snapshot, cluster: Cluster) -> list[tuple[Workload, KueueWorkload | None]]:
    found = [each for each in snapshot.workloads.values() if not each.admitted and gpus_of(each, cluster)]
    return [(each, cluster.workloads.get(each.namespace, each.name)) for each in sorted(found, key=place_in_line)]


def _idle(evaluation: Evaluation, cluster: Cluster, snapshot: Snapshot) -> frozenset[str]:
    """Keys of those who hold quota and whose every verdict is Idle."""
    found = set()
    for (namespace, target), decisions in evaluation.by_target.items():
        if target.kind != SCALABLE_WORKLOAD.kind or not is_quiet(decisions):
            continue
        scalable = cluster.scalable_workloads.get(namespace, target.name)
        workload = holder_of(scalable, cluster, snapshot) if scalable is not None else None
        if workload is not None:
            found.add(workload.key)
    return frozenset(found)


def is_quiet(decisions: Collection[Decision]) -> bool:
    """Whether all of them found it idle for as long as its policy asks, whatever follows from that."""
    return bool(decisions) and all(map(_is_quiet, decisions))


def _is_quiet(decision: Decision) -> bool:
    if decision.verdict is None or not isinstance(decision.verdict.verdict, Idle):
        return False
    return not isinstance(decision.answer, Active) or decision.answer.because not in _TOO_EARLY


_TOO_EARLY = frozenset({Because.STARTING, Because.WARMING_UP, Because.IDLE_NOT_LONG_ENOUGH})


def holder_of(scalable: ScalableWorkload, cluster: Cluster, snapshot: Snapshot) -> Workload | None:
    """The Workload that it acts for; None where that holds no quota."""
    observed = cluster.workload_of(scalable)
    workload = snapshot.workload("/".join(observed.metadata.key)) if observed is not None else None
    return workload if workload is not None and workload.reservation is not None else None
