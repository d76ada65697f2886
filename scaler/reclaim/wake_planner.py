"""Which suspended workloads come back because their quota and nodes are free? Reads and computes, and writes nothing.

For policies with `wake: WhenFree` and owners who asked for it. The one that was suspended first comes first, and each
that comes back is counted before the next one is looked at.

Laws:

* Where quota, nodes or decisions are not known, all stay suspended.
* What was suspended less than `replanBackoff` ago stays so: its gang may not be seen yet.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scaler.decision.decision import Decision
from scaler.decision.decision_cache import Evaluation
from scaler.decision.describe import prevailing
from scaler.decision.reasons import DecisionReason
from scaler.idleness.durations import format_duration
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, keeps_at_zero
from scaler.placement.capacity import Capacity
from scaler.quota.model import FlavorResource, QuotaWorkload
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree
from scaler.quota.watch import NotSynced
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.candidates import anti_affinity_nodes
from scaler.reclaim.planner import Planner
from scaler.reclaim.search.values import AntiAffinityNodes, PlanningTree
from scaler.reclaim.search.wake_problem import UnplacedWorkload, why_suspended
from scaler.targets.cluster_state import ClusterState
from scaler.targets.target_state import Phase
from scaler.targets.workloads import is_when_free

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedWorkload:
    """A suspended workload that shall come back when there is free."""

    scaled_object: ScaledObject
    scalable: ScalableWorkload
    decision: Decision

    @property
    def key(self) -> Key:
        """Key of the ScaledObject."""
        return self.scaled_object.metadata.key

    @property
    def suspended_at(self) -> datetime:
        return self.decision.target.suspended_at or datetime.min.replace(tzinfo=UTC)

    @property
    def by_owner(self) -> ScalableWorkload | ScaledObject | None:
        """The object by whose annotation its owner asks; None where its policy does."""
        objects = (self.scaled_object, self.scalable)
        return next((each for each in objects if is_when_free(each.metadata.annotations)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WakePlan:
    woken: Sequence[SuspendedWorkload] = ()
    """The workloads in the order in which they are to be woken."""
    suspended: Mapping[Key, str] = field(default_factory=dict)
    """Why the others stay suspended, by ScaledObject."""


@dataclass
class WakePlanner:
    planning: Planner

    async def plan(self, now: datetime, woken: Collection[Key] = ()) -> WakePlan:
        """`woken` are ScaledObjects whose wake-up was written and may not be seen yet."""
        evaluation, policy = self.planning.decisions.evaluation, self.planning.policy
        asked = list(_suspended_workloads(evaluation, self.planning.cluster, woken)) if evaluation is not None else []
        if not asked or evaluation is None:
            return WakePlan()
        snapshot = self.planning.view.look()
        capacity = self.planning.capacity() if policy.consider_nodes else None
        doubt = self.planning.unjudged or next(
            (each.reason for each in (snapshot, capacity) if isinstance(each, NotSynced)), ""
        )
        if doubt or isinstance(snapshot, NotSynced) or isinstance(capacity, NotSynced):
            return WakePlan(suspended={each.key: f"it is not known what is free: {doubt}" for each in asked})
        free = _FreeView(self.planning, snapshot, capacity, now)
        workloads = {each.key: free.if_active(each.scalable) for each in asked}
        free.look(filter(None, workloads.values()), _coming(evaluation, self.planning.cluster, woken))
        await asyncio.to_thread(free.find_unplaced)
        return await self._plan(asked, workloads, free, now)

    async def _plan(
        self,
        asked: Sequence[SuspendedWorkload],
        workloads: Mapping[Key, QuotaWorkload | None],
        free: "_FreeView",
        now: datetime,
    ) -> WakePlan:
        found, suspended = list[SuspendedWorkload](), dict[Key, str]()
        for each in sorted(asked, key=lambda found: (found.suspended_at, found.key)):
            workload = workloads[each.key]
            why = self._not_yet(each, now) or await free.why_suspended(workload)
            if why or workload is None:
                suspended[each.key] = why
            else:
                found.append(each)
                free.add(workload, "comes back first")
        return WakePlan(woken=tuple(found), suspended=suspended)

    def _not_yet(self, found: SuspendedWorkload, now: datetime) -> str:
        rest, annotations = self.planning.policy.replan_backoff, found.scaled_object.metadata.annotations
        if paused := keeps_at_zero(annotations):
            return f"KEDA does not scale it: annotation {paused} of its ScaledObject"
        if now - found.suspended_at < rest:
            return f"it was suspended less than {format_duration(rest)} ago"
        return ""


def _suspended_workloads(
    evaluation: Evaluation, cluster: ClusterState, woken: Collection[Key]
) -> Iterator[SuspendedWorkload]:
    for key, entry in evaluation.entries.items():
        decision = prevailing(list(entry.triggers.values()))
        if decision is None or key in woken or not decision.when_free:
            continue
        scaled_object, scalable = cluster.scaled_objects.get(*key), cluster.target_of(key[0], entry.target)
        if scaled_object is not None and scalable is not None and decision.target.is_plannable:
            yield SuspendedWorkload(scaled_object=scaled_object, scalable=scalable, decision=decision)


def _coming(evaluation: Evaluation, cluster: ClusterState, woken: Collection[Key]) -> Iterator[ScalableWorkload]:
    """What is about to be activated, whoever asked for it."""
    for key, entry in evaluation.entries.items():
        decision = prevailing(list(entry.triggers.values()))
        is_coming = decision is not None and (
            decision.answer.reason is DecisionReason.WAKING
            or (decision.target.desired_replicas > 0 and decision.target.phase in (Phase.RESUMING, Phase.SUSPENDING))
        )
        scalable = cluster.target_of(key[0], entry.target) if is_coming or key in woken else None
        if scalable is not None:
            yield scalable


class _FreeView:
    """What is free, and who waits for it, at one moment: nothing that is heard while it is used is in it."""

    def __init__(self, planning: Planner, snapshot: Snapshot, capacity: Capacity | None, now: datetime) -> None:
        self._planning = planning
        self._snapshot = snapshot
        self._capacity = capacity
        self._now = now
        self._world = SchedulingContext.of(snapshot, strategies=planning.policy.strategies)
        self._trees: dict[str, _Tree] = {}
        """The trees by ClusterQueue."""
        self._reserved: Sequence[QuotaWorkload] = ()
        self._unplaced: list[UnplacedWorkload] = []
        self._marked: AntiAffinityNodes = {}
        self._elsewhere = frozenset(name for name in snapshot.cluster_queues if snapshot.dispatches(name))
        """ClusterQueues whose Workloads MultiKueue runs on other clusters."""
        self._known: dict[object, str] = {}
        """Answers, which are the same for Workloads that are alike."""

    def look(self, wanted: Iterable[QuotaWorkload], coming: Iterable[ScalableWorkload]) -> None:
        """Find all that decides on the wanted ones, beside those that are about to be activated."""
        trees: dict[str, _Tree] = {}
        for name in {self._world.cluster_queue_of(each) for each in wanted}:
            if (tree := self._snapshot.tree_of(name)) is not None:
                copy = trees.setdefault(tree.root.name, _Tree(tree, self._snapshot))
                self._trees |= dict.fromkeys(tree.queues, copy)
        if self._capacity is not None:
            self._marked = anti_affinity_nodes(self._snapshot, self._planning.cluster)
        self._reserved = tuple(self._snapshot.reserved)
        for scalable in coming:
            workload = self.if_active(scalable)
            if workload is not None and workload.key not in self._snapshot.workloads:
                self.add(workload, "is about to come back")

    def find_unplaced(self) -> None:
        """The search among all Workloads with quota, whose values do not change: too long for the event loop."""
        for each in self._reserved:
            if why := self._why_unplaced(each):
                self._unplaced.append(UnplacedWorkload(key=each.key, takes=self._devices(each), why=why))

    def if_active(self, scalable: ScalableWorkload) -> QuotaWorkload | None:
        found = self._planning.cluster.workload_of(scalable)
        return self._planning.view.if_active(found) if found is not None else None

    def add(self, workload: QuotaWorkload, why: str) -> None:
        """It is about to wait for its quota, and to have pods."""
        self._known.clear()
        name = self._world.cluster_queue_of(workload)
        if name in self._trees:
            self._trees[name].pending.setdefault(name, []).append(workload)
        queue = self._snapshot.cluster_queues.get(name)
        flavors = queue.flavors if queue is not None else ()
        takes = [FlavorResource(flavor, resource) for resource in self._requested(workload) for flavor in flavors]
        self._unplaced.append(UnplacedWorkload(key=workload.key, takes=takes, why=why))

    async def why_suspended(self, workload: QuotaWorkload | None) -> str:
        if workload is None:
            return "its Workload has finished, or is not there"
        queue = self._world.cluster_queue_of(workload)
        alike = queue, workload.namespace, workload.shape
        if alike not in self._known:
            self._known[alike] = await self._found(workload, queue)
        return self._known[alike]

    async def _found(self, workload: QuotaWorkload, queue: str) -> str:
        tree = self._trees.get(queue)
        if tree is None:
            return f"LocalQueue {workload.namespace}/{workload.queue} leads to no ClusterQueue that can be scheduled"
        if tree.doubts:
            return f"quota cannot be read: {'; '.join(tree.doubts)}"
        planning_tree = PlanningTree(
            tree=tree.copy,
            pending=tree.pending | {queue: [*tree.pending.get(queue, ()), workload]},
            world=self._world,
            fair_sharing=self._planning.policy.fair_sharing,
            now=self._now,
            capacity=None if queue in self._elsewhere else self._capacity,
            marked=self._marked,
        )
        return await asyncio.to_thread(why_suspended, workload, planning_tree, tuple(self._unplaced))

    def _why_unplaced(self, workload: QuotaWorkload) -> str:
        """Why a Workload with quota may still take nodes, in words; empty where all of its pods have one."""
        if not self._devices(workload):
            return ""
        if not workload.admitted:
            return "has quota, and is not admitted yet"
        if self._capacity is None or workload.held.cluster_queue in self._elsewhere:
            return ""
        expected, bound = self._expected(workload), self._bound(workload, self._capacity)
        return f"is admitted, and {bound} of its {expected} pods with GPUs are on nodes" if bound < expected else ""

    def _devices(self, workload: QuotaWorkload) -> Collection[FlavorResource]:
        matches = self._planning.cluster.gpus.matches
        return [key for key, amount in workload.held.usage.items() if amount and matches(key.resource)]

    def _requested(self, workload: QuotaWorkload) -> set[str]:
        matches = self._planning.cluster.gpus.matches
        return {
            name for each in workload.pod_sets for name, amount in each.requests.items() if amount and matches(name)
        }

    def _expected(self, workload: QuotaWorkload) -> int:
        matches = self._planning.cluster.gpus.matches
        return sum(
            each.count
            for each in workload.held.assignments
            if any(amount and matches(name) for name, amount in each.usage.items())
        )

    def _bound(self, workload: QuotaWorkload, capacity: Capacity) -> int:
        resources, matches = capacity.index.resources, self._planning.cluster.gpus.matches
        held = capacity.allocations.of_workload.get(workload.key, ())
        return sum(any(amount and matches(resources[at]) for at, amount in each.amounts) for each in held)


class _Tree:
    """A quota tree as it was at one moment."""

    def __init__(self, tree: Tree, snapshot: Snapshot) -> None:
        self.copy = tree.clone()
        self.pending = {name: [*line] for name, line in snapshot.pending_in(tree).items()}
        self.doubts = snapshot.doubts(tree)
