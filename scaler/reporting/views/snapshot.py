"""Everything that the pages about quota are made from, as it was at one instant.

Pages are computed in a thread, while watches go on and KEDA gets its answers. So what changes is copied first. Quota is
shown even where it is not known which workloads are idle; what depends on that says why.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from scaler.decision.decision_cache import Evaluation
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.quota.model import QuotaWorkload
from scaler.quota.node import QueueNode
from scaler.quota.tree import Tree
from scaler.quota.watch import NotSynced
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.active_plans import ActivePlan, active_plans
from scaler.reclaim.candidates import gpus_of, idle_workloads
from scaler.reclaim.planner import Planner, PlanningSnapshot
from scaler.reclaim.search.values import Candidate
from scaler.reporting.views.admission_checks import CheckViews
from scaler.targets.target_state import Seeks


@dataclass(frozen=True, kw_only=True)
class ViewSnapshot:
    """Copies and values; but for `planning` nothing in it changes any more."""

    at: datetime
    trees: Sequence[Tree]
    doubts: Mapping[str, Sequence[str]]
    """What of a tree could not be read, by the name of its root."""
    world: SchedulingContext
    gpus: GpuResources
    pending: Mapping[str, Sequence[QuotaWorkload]]
    """All that queue, whatever they ask for, by ClusterQueue and in no particular order."""
    waiting: Sequence[tuple[QuotaWorkload, KueueWorkload | None]]
    """Workloads that wait for GPUs, with their objects in the API; highest priority first."""
    planning: PlanningSnapshot | None = None
    """What plans are made from at once: unlike all else it goes on to change. None where it is not known which
    workloads are idle."""
    idle: Collection[str] = frozenset()
    """Keys of the Workloads that hold quota and are idle by their verdict, whether a plan may take them or not."""
    unjudged: str = ""
    """Why it is not known which workloads are idle; empty where it is."""
    plans: Sequence[ActivePlan] = ()
    evaluation: Evaluation | None = None
    """The latest one, however old."""
    cluster_queues: Collection[str] = frozenset()
    local_queues: Collection[tuple[str, str]] = frozenset()
    """(namespace, name)."""
    remote_copies: Mapping[str, str | Unknown] = field(default_factory=dict)
    """Why nothing may be suspended for a remote copy, or why that is not known, by its key."""
    checks: CheckViews = CheckViews()  # noqa: RUF009 - frozen
    """The views of our AdmissionChecks; none where they were not read."""

    @cached_property
    def tree_by_queue(self) -> Mapping[str, Tree]:
        return {name: tree for tree in self.trees for name in tree.queues}

    @cached_property
    def lines(self) -> Mapping[str, Sequence[QuotaWorkload]]:
        """The Workloads that wait in each ClusterQueue, in the queue's order."""
        return {
            name: sorted((each for each in waiting if each.may_queue), key=place_in_line)
            for name, waiting in self.pending.items()
        }

    def cluster_queue_of(self, workload: QuotaWorkload) -> str:
        """The ClusterQueue that it holds quota in or waits for; empty where its LocalQueue leads to none."""
        if workload.reservation is not None:
            return workload.reservation.cluster_queue
        local = self.world.local_queue(workload.namespace, workload.queue)
        return local.cluster_queue if local else ""

    def queue(self, name: str) -> QueueNode | None:
        tree = self.tree_by_queue.get(name)
        return tree.queues[name] if tree is not None else None

    def root_of(self, workload: QuotaWorkload) -> str:
        """Name of the root of the Workload's tree; empty where it is in none."""
        tree = self.tree_by_queue.get(self.cluster_queue_of(workload))
        return tree.root.name if tree is not None else ""

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.planning.candidates if self.planning is not None else ()

    def plan_for(self, workload: QuotaWorkload) -> ActivePlan | None:
        return next((each for each in self.plans if each.grant.gang_uid == workload.uid), None)

    def plan_beside(self, workload: QuotaWorkload) -> ActivePlan | None:
        """A plan for another gang that has to end first: one of the same tree for quota, and any for nodes."""
        if workload.reservation is not None:
            return next((each for each in self.plans if each.grant.seeks is Seeks.NODES), None)
        root, roots = self.root_of(workload), self._roots_of_plans
        return next((each for each in self.plans if root and roots.get(each.grant.plan) == root), None)

    @cached_property
    def _roots_of_plans(self) -> Mapping[str, str]:
        roots = {each.key: self.root_of(each) for each, _ in self.waiting}
        return {
            each.grant.plan: roots.get(each.grant.gang, "") for each in self.plans if each.grant.seeks is Seeks.QUOTA
        }


def place_in_line(workload: QuotaWorkload) -> tuple[int, datetime, str]:
    """Its place in the order of queues and of plans."""
    return -workload.priority, workload.queued_at, workload.uid


async def take_view_snapshot(planner: Planner, now: datetime) -> ViewSnapshot | NotSynced:
    """The snapshot at this instant, or why quota is not known. KEDA gets its answers between the steps."""
    quota, cluster, evaluation = planner.view.look(), planner.cluster, planner.decisions.evaluation
    if isinstance(quota, NotSynced):
        return quota
    look = await planner.look(now)
    await asyncio.sleep(0)
    planning = look if isinstance(look, PlanningSnapshot) else None
    idle = idle_workloads(planning.evaluation, cluster, quota) if planning is not None else frozenset()
    remote_copies = planner.remote_copies()
    plans = active_plans(cluster, evaluation if planning is not None else None, nominations=planner.nominations())
    await asyncio.sleep(0)
    asking = (each for each in quota.workloads.values() if not each.admitted and gpus_of(each, cluster))
    waiting = sorted(asking, key=place_in_line)
    return ViewSnapshot(
        at=now,
        trees=[tree.clone() for tree in quota.trees],
        doubts={tree.root.name: found for tree in quota.trees if (found := quota.doubts(tree))},
        world=SchedulingContext.of(quota),
        gpus=cluster.gpus,
        pending={name: found for tree in quota.trees for name, found in quota.pending_in(tree).items()},
        waiting=[(each, cluster.workloads.get(each.namespace, each.name)) for each in waiting],
        planning=planning,
        idle=idle,
        unjudged=look.reason if isinstance(look, NotSynced) else "",
        plans=plans,
        remote_copies=remote_copies,
        evaluation=evaluation,
        cluster_queues=frozenset(quota.cluster_queues),
        local_queues=frozenset(quota.local_queues),
    )
