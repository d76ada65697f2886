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
* Where quota or nodes are not known nothing is planned.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from scaler.admission.plan import AdmissionPlan, CheckedWorkload
from scaler.admission.reclaim_answers import ReclaimAnswers
from scaler.kube.objects.core import is_true
from scaler.placement.capacity import Capacity
from scaler.placement.requests import Blocked, Insufficient, ReservationQueue
from scaler.placement.requests import BlockedReason as Waiting
from scaler.placement.what_if import WhatIf
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.active_plans import ActivePlan, split_key
from scaler.reclaim.planner import Planner, PlanningSnapshot
from scaler.reclaim.search.node_problem import NodePlanRequest, plan_nodes, revalidate_nodes
from scaler.reclaim.search.problem import SearchLimits
from scaler.reclaim.search.quota_problem import revalidate
from scaler.reclaim.search.values import BudgetCheck, Candidate, NoPlan, NoPlanReason, ReclaimPlan


class PlanTarget(Protocol):
    """How plans for such gangs are made, and revalidated before they are executed."""

    def gangs(self, sight: PlanningSnapshot, /) -> Sequence[QuotaWorkload]:
        """Those that lack it, in the order in which plans are made for them."""

    def plan_scope(self, sight: PlanningSnapshot, gang: str, /) -> str:
        """Where no second plan is made while one for the gang of that key is active."""

    def inputs(self, sight: PlanningSnapshot, gang: QuotaWorkload, /) -> object:
        """What an answer for the gang rests on, beside the candidates: equal only while it is to be the same."""

    async def plan(
        self, sight: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate], /
    ) -> ReclaimPlan | NoPlan:
        """The cheapest sufficient set of these, or why there is none."""

    def is_foreseeable(self, sight: PlanningSnapshot, gang: QuotaWorkload, /) -> bool:
        """Whether enough is known to predict what becomes of it. Where it is not, what was begun stays as it is."""

    async def why_not(
        self, plan: ActivePlan, sight: PlanningSnapshot, gang: QuotaWorkload, victims: Sequence[Candidate], /
    ) -> str:
        """Why not to suspend exactly these in the current state; empty where they are to be suspended."""

    async def is_lost(self, plan: ActivePlan, sight: PlanningSnapshot, /) -> bool:
        """Whether the gang does not fit any more although all victims are suspended: other Workloads came between."""

    def skip(self, gang: QuotaWorkload, /) -> None:
        """No plan is made for the gang at present."""

    def is_being_served(self, plan: ActivePlan, sight: PlanningSnapshot, /) -> bool:
        """Whether the gang has all that the plan can give it, and only what passes keeps it waiting."""


@dataclass(kw_only=True, eq=False)
class QuotaShortage:
    """A `PlanTarget`. One plan per quota tree."""

    planning: Planner

    def gangs(self, sight: PlanningSnapshot) -> Sequence[QuotaWorkload]:
        """All that are pending and request GPUs, those with highest priority first."""
        return sight.gangs

    def plan_scope(self, sight: PlanningSnapshot, gang: str) -> str:
        """The root of its tree."""
        workload = sight.snapshot.workload(gang)
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(workload)) if workload is not None else None
        return tree.root.name if tree is not None else ""

    def inputs(self, sight: PlanningSnapshot, gang: QuotaWorkload) -> object:
        """Everything in its tree."""
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang))
        return sight.snapshot.version(tree) if tree is not None else 0

    async def plan(
        self, sight: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate]
    ) -> ReclaimPlan | NoPlan:
        """By which Kueue admits it."""
        return await self.planning.plan(sight, gang, candidates)

    def is_foreseeable(self, sight: PlanningSnapshot, gang: QuotaWorkload) -> bool:
        """Whether quota is known, and nodes where they matter."""
        found = self.planning.request(sight, gang, ())
        return not isinstance(found, NoPlan) or found.why is not NoPlanReason.UNFORESEEABLE

    async def why_not(
        self, _plan: ActivePlan, sight: PlanningSnapshot, gang: QuotaWorkload, victims: Sequence[Candidate]
    ) -> str:
        """What the simulation of Kueue says."""
        request = self.planning.request(sight, gang, ())
        if isinstance(request, NoPlan):
            return request.message
        return await asyncio.to_thread(revalidate, request, victims)

    async def is_lost(self, plan: ActivePlan, sight: PlanningSnapshot) -> bool:
        """Whether Kueue does not admit the gang as things stand, once the pods of the victims are gone."""
        gang = sight.snapshot.workload(plan.grant.gang)
        if gang is None:
            return False
        found = await self.planning.plan(_without_pods(sight, plan), gang, ())
        is_known = not isinstance(found, NoPlan) or found.why is not NoPlanReason.UNFORESEEABLE
        return is_known and not (isinstance(found, NoPlan) and found.why is NoPlanReason.FITS_ALREADY)

    def skip(self, gang: QuotaWorkload) -> None:
        """Kueue waits for no plan."""

    def is_being_served(self, _plan: ActivePlan, _sight: PlanningSnapshot) -> bool:
        """Kueue reserves quota at once: a gang without it after the time is up does not get it."""
        return False


def _without_pods(sight: PlanningSnapshot, plan: ActivePlan) -> PlanningSnapshot:
    """The same with the pods of deactivated victims gone, which Kueue may not have deleted yet."""
    if sight.capacity is None:
        return sight
    gone = frozenset(each.workload_key for each in plan.members if each.is_deactivated)
    return replace(sight, capacity=sight.capacity.without(gone))


_MAX_PLAN_AGE = timedelta(minutes=1)
"""Nothing is planned by an admission plan that is older."""
_NO_ADMISSION = "AdmissionChecks are not reconciled here"


class AdmissionStatus(Protocol):
    """Which Workloads lack nodes. An AdmissionPlanner is one."""

    @property
    def latest(self) -> AdmissionPlan | None:
        """None before the first plan."""

    def reservation_queue(self, now: datetime) -> ReservationQueue | NotSynced:
        """All Workloads that need nodes at this moment, and what these have free."""


@dataclass(kw_only=True, eq=False)
class NodeShortage:
    """A `PlanTarget`. Without `admission` no Workload lacks nodes."""

    planning: Planner
    admission: AdmissionStatus | None = None
    answers: ReclaimAnswers | None = None
    """Where it is written that it is decided about a Workload."""
    _seen: tuple[datetime, ReservationQueue | NotSynced] | None = field(default=None, init=False)
    """The queue as it was at that instant: it is read several times a tick."""

    def gangs(self, sight: PlanningSnapshot) -> Sequence[QuotaWorkload]:
        """Those that lack nodes, in the order in which their quota was reserved."""
        lacking = [each for each in self._pending(sight.now) if _is_to_be_served(each)]
        ordered = sorted(lacking, key=lambda each: (each.reserved_at is None, each.reserved_at, each.uid))
        found = {each.key: workload for each in ordered if (workload := _holder(each, sight)) is not None}
        return list(found.values())

    def plan_scope(self, _sight: PlanningSnapshot, _gang: str) -> str:
        """All nodes together."""
        return ""

    def inputs(self, sight: PlanningSnapshot, _gang: QuotaWorkload) -> object:
        """What nodes have free, and all placement requests for them."""
        queue = self._queue(sight.now)
        return (
            queue if isinstance(queue, NotSynced) else (_Same(queue.capacity), queue.held, queue.waiting, queue.overdue)
        )

    async def plan(
        self, sight: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate]
    ) -> ReclaimPlan | NoPlan:
        """By which our check becomes Ready."""
        checks = [each.check for each in self._pending(sight.now) if each.uid == gang.uid and each.may_reuse]
        question = self._question(sight, gang, candidates, check=checks[0] if checks else "")
        found = question if isinstance(question, NoPlan) else await asyncio.to_thread(question.plan)
        if not (isinstance(found, NoPlan) and found.why is NoPlanReason.FITS_ALREADY):
            self.skip(gang)
        return found

    def is_foreseeable(self, sight: PlanningSnapshot, _gang: QuotaWorkload) -> bool:
        """Whether nodes and all placement requests for them are known."""
        return isinstance(self._queue(sight.now), ReservationQueue)

    async def why_not(
        self, plan: ActivePlan, sight: PlanningSnapshot, gang: QuotaWorkload, victims: Sequence[Candidate]
    ) -> str:
        """What the simulation says."""
        question = self._question(sight, gang, victims, check=plan.grant.check)
        return question.message if isinstance(question, NoPlan) else await asyncio.to_thread(question.why_not)

    async def is_lost(self, plan: ActivePlan, sight: PlanningSnapshot) -> bool:
        """Whether the gang would not fit with all leaving Workloads gone, and no nodes are requested for it."""
        gang = sight.snapshot.workload(plan.grant.gang)
        if gang is None or gang.uid not in self.lacking(sight.now):
            return False
        question = self._question(sight, gang, (), check=plan.grant.check)
        return not isinstance(question, NoPlan) and await asyncio.to_thread(question.is_lost)

    def is_being_served(self, plan: ActivePlan, sight: PlanningSnapshot) -> bool:
        """Whether it starts once pods have ended or started, or requested nodes are there."""
        found = [each for each in self._pending(sight.now) if each.uid == plan.grant.gang_uid]
        return bool(found) and all(map(_is_being_served, found))

    def lacking(self, now: datetime) -> frozenset[str]:
        """Uids of all that lack nodes, whether or not workloads may be suspended for them."""
        return frozenset(each.uid for each in self._pending(now) if each.lacks_nodes)

    def why_none(self, gang: QuotaWorkload, now: datetime) -> str:
        """Why no idle workload may be suspended for one that lacks nodes; empty where it may."""
        found = [each for each in self._pending(now) if each.uid == gang.uid]
        if found and not any(each.may_reuse for each in found):
            return "its ReclaimPolicy does not reuse idle GPUs (spec.reuse.enabled: false)"
        return "nodes have been requested for it" if any(each.awaits_nodes for each in found) else ""

    def skip(self, gang: QuotaWorkload) -> None:
        """Nodes may be requested for the gang: it is known, or not looked at now, whether idle GPUs serve it."""
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

    def _question(
        self, sight: PlanningSnapshot, gang: QuotaWorkload, candidates: Collection[Candidate], *, check: str
    ) -> "_Question | NoPlan":
        """What is to be computed beside the event loop, or why nothing can be."""
        queue = self._queue(sight.now)
        if isinstance(queue, NotSynced):
            return _unforeseeable(gang.key, f"it is not known where its pods fit: {queue.reason}")
        if gang.opaque_because:
            return _unforeseeable(gang.key, f"cannot be foreseen: {gang.opaque_because}")
        if not check or gang.reservation is None:
            return _unforeseeable(gang.key, self.why_none(gang, sight.now) or "it does not wait for nodes any more")
        return _Question(
            gang=gang,
            check=check,
            queue=queue,
            candidates=tuple(candidates),
            leaving=sight.leaving | self._losing(sight, queue.capacity),
            refuse=self.planning.refusal(sight),
            limits=self.planning.policy.limits,
        )

    def _losing(self, sight: PlanningSnapshot, capacity: Capacity) -> frozenset[str]:
        """Keys of Workloads without quota that still have pods: these are terminating, or will be at once."""
        workloads = self.planning.cluster.workloads
        found = set()
        for key in capacity.allocations.of_workload:
            workload, held = workloads.get(*split_key(key)), sight.snapshot.workload(key)
            is_out = workload is not None and (
                not workload.spec.active or is_true(workload.status.conditions, "Evicted")
            )
            if is_out and (held is None or held.reservation is None):
                found.add(key)
        return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What is computed beside the event loop for one gang, independent of what changes meanwhile."""

    gang: QuotaWorkload
    check: str
    queue: ReservationQueue
    candidates: tuple[Candidate, ...]
    leaving: frozenset[str]
    refuse: BudgetCheck
    limits: SearchLimits

    def plan(self) -> ReclaimPlan | NoPlan:
        """Which of the candidates to suspend."""
        request = self._request()
        return request if isinstance(request, NoPlan) else plan_nodes(request)

    def why_not(self) -> str:
        """Why not to suspend just these."""
        request = self._request()
        return request.message if isinstance(request, NoPlan) else revalidate_nodes(request, self.candidates)

    def is_lost(self) -> bool:
        """Whether it lacks nodes with all leaving Workloads gone, and none are requested."""
        request = self._request()
        if isinstance(request, NoPlan) or request.may_provision:
            return False
        return isinstance(request.what_if.result(self.leaving), Insufficient)

    def _request(self) -> NodePlanRequest | NoPlan:
        try:
            what_if = WhatIf(self.queue, self.gang.key)
        except KeyError:
            return _unforeseeable(self.gang.key, "it does not wait for nodes any more")
        return NodePlanRequest(
            gang=self.gang.key,
            gang_uid=self.gang.uid,
            cluster_queue=self.gang.held.cluster_queue,
            check=self.check,
            what_if=what_if,
            may_provision=what_if.request.may_ask,
            candidates=self.candidates,
            leaving=self.leaving,
            refuse=self.refuse,
            limits=self.limits,
        )


def _is_to_be_served(standing: CheckedWorkload) -> bool:
    return standing.lacks_nodes and standing.may_reuse and not standing.awaits_nodes


def _is_being_served(standing: CheckedWorkload) -> bool:
    if isinstance(standing.placement, Insufficient):
        return standing.awaits_nodes
    return not (isinstance(standing.placement, Blocked) and standing.placement.why is Waiting.NOT_GUARANTEED)


def _holder(standing: CheckedWorkload, sight: PlanningSnapshot) -> QuotaWorkload | None:
    """The same Workload as Kueue's quota has it."""
    found = sight.snapshot.workload(standing.key)
    return found if found is not None and found.uid == standing.uid and found.reservation is not None else None


def _unforeseeable(gang: str, message: str) -> NoPlan:
    return NoPlan(gang=gang, why=NoPlanReason.UNFORESEEABLE, message=message)


class _Same:
    """Equal only for the very same capacity."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._capacity is other._capacity

    __hash__ = None  # type: ignore[assignment]
