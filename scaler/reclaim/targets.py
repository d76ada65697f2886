"""What can a plan free for a gang? Two targets; everything else about plans is the same for both.

| target          | the gang                                                         | one plan at a time |
|-----------------|------------------------------------------------------------------|--------------------|
| `QuotaShortage` | is pending, and Kueue admits it into freed quota                 | per quota tree     |
| `NodeShortage`  | has quota, and our AdmissionCheck becomes Ready when it fits     | in the cluster     |

Laws:

* Two plans at a time would each count on what the other frees.
* Freed quota is not reserved: a Workload created meanwhile may be admitted first.
* For a node shortage only nodes count, and any idle workload on them may be a victim, in whatever queue.
* No workload is suspended for a gang for which nodes have been requested. And no nodes are requested before it is known
  whether idle GPUs serve the gang, but not for longer than that takes (`ReclaimAnswers`).
* Nothing is planned for a remote copy of MultiKueue for which this cluster is not nominated (`remote_copies`).
* Where quota or nodes are not known nothing is planned.
"""

import asyncio
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Protocol

from scaler.admission.plan import CheckedWorkload
from scaler.admission.planner import AdmissionPlanner, ReclaimAnswers
from scaler.admission.remote_copies import words
from scaler.kube.objects.core import is_true
from scaler.placement.capacity import Capacity
from scaler.placement.requests import Blocked, Insufficient, ReservationQueue
from scaler.placement.requests import BlockedReason as Waiting
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.active_plans import ActivePlan, split_key
from scaler.reclaim.budget import budget_check
from scaler.reclaim.candidates import pending_gpu_workloads, waits_for_gpus
from scaler.reclaim.planner import Planner, PlanningSnapshot
from scaler.reclaim.search.node_problem import NodePlanRequest, lacks_nodes, plan_nodes, revalidate_nodes
from scaler.reclaim.search.quota_problem import revalidate
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, ReclaimPlan


class PlanTarget(Protocol):
    """How plans for such gangs are made, and revalidated before they are executed."""

    def gangs(self, state: PlanningSnapshot, closed: Container[str] = ()) -> Iterable[QuotaWorkload]:
        """The gangs that lack it, in the order in which plans are made for them.

        Those whose plan scope is closed, or comes to be while they are looked at, may be left out.
        """

    def waiting(self, state: PlanningSnapshot, uids: Collection[str]) -> Collection[str]:
        """Which of these are among them, whatever their scope."""

    def plan_scope(self, state: PlanningSnapshot, gang: str) -> str:
        """The scope in which no second plan is made while one for the gang of that key is active."""

    def inputs(self, state: PlanningSnapshot, gang: QuotaWorkload) -> object:
        """What an answer for the gang rests on, beside the candidates: equal only while it is to be the same."""

    async def plan(
        self, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate]
    ) -> ReclaimPlan | NoPlan:
        """The cheapest sufficient set of these, or why there is none."""

    def is_foreseeable(self, state: PlanningSnapshot, gang: QuotaWorkload) -> bool:
        """Whether enough is known to predict what becomes of it. Where it is not, what was begun stays as it is."""

    async def why_not(
        self, plan: ActivePlan, state: PlanningSnapshot, gang: QuotaWorkload, victims: Sequence[Candidate]
    ) -> str:
        """Why not to suspend exactly these in the current state; empty where they are to be suspended."""

    async def is_lost(self, plan: ActivePlan, state: PlanningSnapshot) -> bool:
        """Whether the gang does not fit any more although all victims are suspended: other Workloads came between."""

    def skip(self, gang: QuotaWorkload) -> None:
        """No plan is made for the gang at present."""

    def is_being_served(self, _plan: ActivePlan, _state: PlanningSnapshot) -> bool:
        """Whether the gang has all that the plan can give it, and only what passes keeps it waiting."""
        return False  # Kueue reserves quota at once: a gang that has none when the time is up does not get it


@dataclass(kw_only=True, eq=False)
class QuotaShortage(PlanTarget):
    planning: Planner

    def gangs(self, state: PlanningSnapshot, closed: Container[str] = ()) -> Iterable[QuotaWorkload]:
        lines = (_while_open(line, _root_of(line[0], state), closed) for line in state.waiting.values())
        return pending_gpu_workloads(lines, self.planning.cluster)

    def waiting(self, state: PlanningSnapshot, uids: Collection[str]) -> Collection[str]:
        found = ((uid, state.snapshot.by_uid.get(uid)) for uid in uids)
        return [uid for uid, each in found if each is not None and waits_for_gpus(each, self.planning.cluster)]

    def plan_scope(self, state: PlanningSnapshot, gang: str) -> str:
        workload = state.snapshot.workload(gang)
        return _root_of(workload, state) if workload is not None else ""

    def inputs(self, state: PlanningSnapshot, gang: QuotaWorkload) -> object:
        tree = state.tree_of(gang)
        return state.snapshot.version(tree) if tree is not None else 0

    async def plan(
        self, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate]
    ) -> ReclaimPlan | NoPlan:
        return await self.planning.plan(state, gang, candidates)

    def is_foreseeable(self, state: PlanningSnapshot, gang: QuotaWorkload) -> bool:
        return _is_foreseeable(self.planning.request(state, gang, ()))

    async def why_not(
        self, _plan: ActivePlan, state: PlanningSnapshot, gang: QuotaWorkload, victims: Sequence[Candidate]
    ) -> str:
        request = self.planning.request(state, gang, ())
        return request.message if isinstance(request, NoPlan) else await asyncio.to_thread(revalidate, request, victims)

    def skip(self, gang: QuotaWorkload) -> None:
        """Kueue waits for no plan."""

    async def is_lost(self, plan: ActivePlan, state: PlanningSnapshot) -> bool:
        """Whether Kueue does not admit it as things stand, once the pods of the victims are gone: Kueue may not have
        deleted them yet."""
        gang = state.snapshot.workload(plan.grant.gang)
        if gang is None:
            return False
        gone = frozenset(each.workload_key for each in plan.victims if each.is_deactivated)
        capacity = state.capacity.without(gone) if state.capacity is not None else None
        found = await self.planning.plan(replace(state, capacity=capacity), gang, ())
        return _is_foreseeable(found) and not fits_already(found)


def _root_of(workload: QuotaWorkload, state: PlanningSnapshot) -> str:
    tree = state.tree_of(workload)
    return tree.root.name if tree is not None else ""


def _while_open(line: Iterable[QuotaWorkload], scope: str, closed: Container[str]) -> Iterator[QuotaWorkload]:
    return takewhile(lambda _: scope not in closed, line)


def _is_foreseeable(found: object) -> bool:
    return not (isinstance(found, NoPlan) and found.why is NoPlanReason.UNFORESEEABLE)


def fits_already(found: object) -> bool:
    return isinstance(found, NoPlan) and found.why is NoPlanReason.FITS_ALREADY


_MAX_PLAN_AGE = timedelta(minutes=1)
"""The age from which on an admission plan is no basis for a plan."""
_NO_ADMISSION = "AdmissionChecks are not reconciled here"


@dataclass(kw_only=True, eq=False)
class NodeShortage(PlanTarget):
    """The gang has quota and lacks nodes. Without `admission` no Workload does."""

    planning: Planner
    admission: AdmissionPlanner | None = None
    answers: ReclaimAnswers | None = None
    _seen: tuple[datetime, ReservationQueue | NotSynced] | None = field(default=None, init=False)
    """The queue as it was at that instant: it is read several times a tick."""

    def waiting(self, state: PlanningSnapshot, uids: Collection[str]) -> Collection[str]:
        return {each.uid for each in self.gangs(state)}.intersection(uids)

    def gangs(self, state: PlanningSnapshot, _closed: Container[str] = ()) -> Iterable[QuotaWorkload]:
        """The gangs that lack nodes, in the order in which their quota was reserved."""
        pending = self._pending(state.now)
        lacking = [each for each in pending if each.lacks_nodes and each.may_reuse and not each.awaits_nodes]
        ordered = sorted(lacking, key=lambda each: (each.reserved_at is None, each.reserved_at, each.uid))
        found = {each.key: workload for each in ordered if (workload := _holder(each, state)) is not None}
        return list(found.values())

    def plan_scope(self, _state: PlanningSnapshot, _gang: str) -> str:
        return ""

    def inputs(self, state: PlanningSnapshot, _gang: QuotaWorkload) -> object:
        """What nodes have free, and all placement requests for them. A capacity is equal to itself only."""
        queue = self._queue(state.now)
        if isinstance(queue, NotSynced):
            return queue
        return id(queue.capacity), queue.capacity, queue.held, queue.waiting, queue.overdue

    async def plan(
        self, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate]
    ) -> ReclaimPlan | NoPlan:
        checks = [each.check for each in self._pending(state.now) if each.uid == gang.uid and each.may_reuse]
        request = self._request(state, gang, candidates, check=checks[0] if checks else "")
        found = request if isinstance(request, NoPlan) else await asyncio.to_thread(plan_nodes, request)
        if not fits_already(found):
            self.skip(gang)
        return found

    def is_foreseeable(self, state: PlanningSnapshot, gang: QuotaWorkload) -> bool:
        return isinstance(self._queue(state.now), ReservationQueue) and _is_foreseeable(state.why_not(gang))

    async def why_not(
        self, plan: ActivePlan, state: PlanningSnapshot, gang: QuotaWorkload, victims: Sequence[Candidate]
    ) -> str:
        request = self._request(state, gang, victims, check=plan.grant.check)
        return request.message if isinstance(request, NoPlan) else await asyncio.to_thread(revalidate_nodes, request)

    async def is_lost(self, plan: ActivePlan, state: PlanningSnapshot) -> bool:
        """Whether it would not fit with all leaving Workloads gone, and no nodes are requested for it."""
        gang = state.snapshot.workload(plan.grant.gang)
        if gang is None or gang.uid not in self.lacking(state.now):
            return False
        request = self._request(state, gang, (), check=plan.grant.check)
        return not isinstance(request, NoPlan) and await asyncio.to_thread(lacks_nodes, request)

    def is_being_served(self, plan: ActivePlan, state: PlanningSnapshot) -> bool:
        """Whether it starts once pods have ended or started, or requested nodes are there."""
        found = [each for each in self._pending(state.now) if each.uid == plan.grant.gang_uid]
        return bool(found) and all(map(_is_being_served, found))

    def lacking(self, now: datetime) -> frozenset[str]:
        """Uids of all that lack nodes, whether or not workloads may be suspended for them."""
        return frozenset(each.uid for each in self._pending(now) if each.lacks_nodes)

    def why_none(self, gang: QuotaWorkload, now: datetime) -> str:
        """Why no idle workload may be suspended for one that lacks nodes; empty where it may."""
        found = [each for each in self._pending(now) if each.uid == gang.uid]
        if remote := next((words(each.remote_copy) for each in found if each.remote_copy), ""):
            return remote
        if found and not any(each.may_reuse for each in found):
            return "its ReclaimPolicy does not reuse idle GPUs (spec.reuse.enabled: false)"
        return "nodes have been requested for it" if any(each.awaits_nodes for each in found) else ""

    def skip(self, gang: QuotaWorkload) -> None:
        if self.answers is not None:
            self.answers.decided(gang.uid)

    def _pending(self, now: datetime) -> Sequence[CheckedWorkload]:
        """Workloads that wait for our check, by the latest admission plan."""
        plan = self.admission.latest if self.admission is not None else None
        return plan.pending if plan is not None and now - plan.at <= _MAX_PLAN_AGE else ()

    def _queue(self, now: datetime) -> ReservationQueue | NotSynced:
        if self._seen is None or self._seen[0] != now:
            queue = self.admission.reservation_queue(now) if self.admission is not None else NotSynced(_NO_ADMISSION)
            self._seen = now, queue
        return self._seen[1]

    def _request(
        self, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate], *, check: str
    ) -> NodePlanRequest | NoPlan:
        """What is computed beside the event loop, independent of what changes meanwhile; or why nothing can be."""
        if (refused := state.why_not(gang)) is not None:
            return refused
        queue = self._queue(state.now)
        if isinstance(queue, NotSynced):
            return _unforeseeable(gang, f"it is not known where its pods fit: {queue.reason}")
        if gang.opaque_because:
            return _unforeseeable(gang, f"cannot be foreseen: {gang.opaque_because}")
        waiting = next((each for each in queue.waiting if each.key == gang.key), None)
        if not check or gang.reservation is None or waiting is None:
            return _unforeseeable(gang, self.why_none(gang, state.now) or "it does not wait for nodes any more")
        return NodePlanRequest(
            gang=gang,
            check=check,
            queue=queue,
            may_provision=waiting.may_ask,
            candidates=tuple(candidates),
            leaving=state.leaving | self._losing(state, queue.capacity),
            copies=frozenset(state.remote_copies),
            refuse=budget_check(state.spending, state.now),
            limits=self.planning.policy.limits,
        )

    def _losing(self, state: PlanningSnapshot, capacity: Capacity) -> frozenset[str]:
        """Keys of Workloads without quota that still have pods: these are terminating, or will be at once."""
        workloads = self.planning.cluster.workloads
        found = set()
        for key in capacity.allocations.of_workload:
            workload, held = workloads.get(*split_key(key)), state.snapshot.workload(key)
            is_out = workload is not None and (
                not workload.spec.active or is_true(workload.status.conditions, "Evicted")
            )
            if is_out and (held is None or held.reservation is None):
                found.add(key)
        return frozenset(found)


def _is_being_served(checked: CheckedWorkload) -> bool:
    if isinstance(checked.placement, Insufficient):
        return checked.awaits_nodes
    return not (isinstance(checked.placement, Blocked) and checked.placement.why is Waiting.NOT_GUARANTEED)


def _holder(checked: CheckedWorkload, state: PlanningSnapshot) -> QuotaWorkload | None:
    found = state.snapshot.workload(checked.key)
    return found if found is not None and found.uid == checked.uid and found.reservation is not None else None


def _unforeseeable(gang: QuotaWorkload, message: str) -> NoPlan:
    return NoPlan(gang=gang.key, why=NoPlanReason.UNFORESEEABLE, message=message)
