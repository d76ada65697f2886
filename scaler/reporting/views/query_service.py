"""Answers queries about quota and plans: `queues`, `pending`, `plan`. Reads and computes, writes nothing.

Laws:

* KEDA comes first. What takes long is computed in a thread, on copies, one query at a time; the others wait, and
  too many that wait are refused.
* What is not known is said, and not guessed: QueryError with the reason.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from scaler.admission.planner import AdmissionPlanner
from scaler.decision.decision_cache import DecisionCache
from scaler.errors import QueryError
from scaler.kube.objects.core import is_true
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.placement.requests import listed
from scaler.quota.cycle import Considered
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.config import Unprotected
from scaler.reclaim.planner import Planner, PlanningSnapshot
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, PlanRequest, PlanWarning, ReclaimPlan
from scaler.reclaim.targets import NodeShortage
from scaler.reporting.views.admission_checks import checks_by_workload
from scaler.reporting.views.non_candidates import NonCandidate, non_candidates_in, scalable_of, why_ineligible
from scaler.reporting.views.pending import PlannerAnswers, gang_page, pending_view, selected
from scaler.reporting.views.plans import PlanReport, plan_view
from scaler.reporting.views.queues import queues_view
from scaler.reporting.views.snapshot import ViewSnapshot, take_view_snapshot

_LACKING = 4
"""Gangs that lack nodes for which `pending` asks the planner, as the leader does in one tick."""
_IN_LINE = 8
"""Queries that wait; a page that many clients reload must not keep this process busy all the time."""


class QueryService:
    """`admission` plans for Workloads with our AdmissionChecks, and `nodes` for those of them that lack nodes.

    `patience` is how long `pending` may ask the planner about one gang after the other.
    """

    def __init__(
        self,
        planning: Planner,
        board: DecisionCache,
        *,
        admission: AdmissionPlanner | None = None,
        nodes: NodeShortage | None = None,
        patience: timedelta = timedelta(seconds=1),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._planning = planning
        self._board = board
        self._admission = admission
        self._nodes = nodes or NodeShortage(planning=planning)
        self._patience_s = patience.total_seconds()
        self._clock = clock
        self._turn = asyncio.Lock()
        self._asked = 0

    async def queues(self, *, all_resources: bool = False) -> Mapping[str, Any]:
        """The quota trees. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot()
            return await asyncio.to_thread(queues_view, snapshot, all_resources=all_resources)

    async def pending(self, *, namespace: str = "", queue: str = "") -> Mapping[str, Any]:
        """Every gang that waits, and why. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot(with_gates=True)
            asked_about = [each for each, _ in selected(snapshot, namespace=namespace, queue=queue)]
            answers = await self._planner_answers(snapshot, asked_about)
            return await asyncio.to_thread(pending_view, snapshot, answers, namespace=namespace, queue=queue)

    async def gang(self, namespace: str, name: str) -> Mapping[str, Any]:
        """One Workload, whether it waits or not, and how it stands with our AdmissionChecks. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot(with_gates=True)
            observed = self._find(namespace, name)
            waiting = [each for each, _ in snapshot.waiting if each.key == "/".join(observed.metadata.key)]
            answers = await self._planner_answers(snapshot, waiting)
            return await asyncio.to_thread(gang_page, snapshot, observed, answers)

    async def plan(self, namespace: str, name: str, *, idle: Sequence[str] | None = None) -> Mapping[str, Any]:
        """What would be suspended for the gang; `idle` as in `PlanReport.what_if`. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot(with_gates=True)
            observed = self._find(namespace, name)
            gang = self._gang(observed, snapshot)
            if snapshot.plan_for(gang) is not None:
                return plan_view(snapshot, PlanReport(gang=gang, observed=observed, what_if=idle))
            return plan_view(snapshot, await self._report(snapshot, gang, observed, idle))

    # --------------------------------------------------------------------------------------------------------- turns

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._asked > _IN_LINE:
            raise QueryError("too many queries are being answered; try again in a moment", status=503)
        self._asked += 1
        try:
            async with self._turn:
                yield
        finally:
            self._asked -= 1

    async def _snapshot(self, *, with_gates: bool = False) -> ViewSnapshot:
        now = self._clock()
        snapshot = await take_view_snapshot(self._planning, self._board, now)
        if isinstance(snapshot, NotSynced):
            raise _unseen(snapshot)
        if self._admission is None or not with_gates:
            return snapshot
        return replace(snapshot, gates=checks_by_workload(await self._admission.plan(now)))

    # ---------------------------------------------------------------------------------------------------------- pending

    async def _planner_answers(self, snapshot: ViewSnapshot, asked_about: Sequence[QuotaWorkload]) -> PlannerAnswers:
        """What the planner says of gangs in the trees of these, as far as time allows, in the order of plans."""
        sight, roots = snapshot.sight, {snapshot.root_of(each) for each in asked_about}
        found: dict[str, ReclaimPlan | NoPlan] = {}
        first: dict[str, str] = {}
        heads: dict[str, Sequence[Considered]] = {}
        ends = monotonic() + self._patience_s
        for gang, _ in snapshot.waiting:
            root = snapshot.root_of(gang)
            if sight is None or monotonic() > ends:
                break
            if root not in roots - first.keys() or not self._is_planned_for(snapshot, sight, gang):
                continue
            request = self._planning.request(sight, gang)
            if isinstance(request, PlanRequest) and root not in heads:
                heads[root] = await asyncio.to_thread(_next_cycle, request)
            found[gang.uid] = await self._planner_answer(request)
            if isinstance(found[gang.uid], ReclaimPlan):
                first[root] = gang.key
        lacking, first_for_nodes = await self._answers_about_nodes(snapshot, asked_about, found)
        return PlannerAnswers(found=found, first=first, heads=heads, lacking=lacking, first_for_nodes=first_for_nodes)

    async def _answers_about_nodes(
        self, snapshot: ViewSnapshot, asked_about: Sequence[QuotaWorkload], found: dict[str, ReclaimPlan | NoPlan]
    ) -> tuple[frozenset[str], str]:
        """Uids of the gangs that have quota and lack nodes, and the one that the next plan is for. Adds to `found`.

        They are asked about as the leader does it: also those that got their quota by a plan which is still active.
        """
        sight, asked = snapshot.sight, {each.uid for each in asked_about}
        lacking = self._nodes.lacking(snapshot.at)
        gangs = self._nodes.gangs(sight) if sight is not None and lacking & asked else ()
        for gang in gangs[:_LACKING]:
            if sight is None or snapshot.plan_beside(gang) is not None:
                break
            found[gang.uid] = await self._nodes.plan(sight, gang, sight.candidates)
            if isinstance(found[gang.uid], ReclaimPlan):
                return lacking, gang.key
        return lacking, ""

    async def _planner_answer(self, request: PlanRequest | NoPlan) -> ReclaimPlan | NoPlan:
        found = request if isinstance(request, NoPlan) else await asyncio.to_thread(plan_reclaim, request)
        return self._refusal(found) or found

    def _is_planned_for(self, snapshot: ViewSnapshot, sight: PlanningSnapshot, gang: QuotaWorkload) -> bool:
        """Whether a plan could be made for it, and it is still as it was."""
        waits = gang.reservation is None and gang.may_queue and sight.snapshot.workload(gang.key) is gang
        return waits and snapshot.plan_for(gang) is None and snapshot.plan_beside(gang) is None

    # ------------------------------------------------------------------------------------------------------------- plan

    def _find(self, namespace: str, name: str) -> KueueWorkload:
        """The Workload of that name, or that of a job: `name` or `Kind/name`. Raises: QueryError."""
        workloads = self._planning.cluster.workloads
        found = workloads.get(namespace, name)
        if found is not None:
            return found
        kind, _, job = name.rpartition("/")
        if kind == SCALABLE_WORKLOAD.kind:
            return self._find_scaled(namespace, job)
        owned = [
            each
            for each in workloads.items()
            if each.metadata.namespace == namespace and _is_of_job(each, kind, job) and each.spec.active
        ]
        still_open = [each for each in owned if not is_true(each.status.conditions, "Finished")] or owned
        if not still_open:
            raise QueryError(f"there is no Workload {namespace}/{name}, nor one of a job of that name", status=404)
        if len(still_open) > 1:
            names = ", ".join(sorted(each.metadata.name for each in still_open))
            raise QueryError(f"several Workloads are of {namespace}/{name}: {names}; name one of them", status=409)
        return still_open[0]

    def _find_scaled(self, namespace: str, name: str) -> KueueWorkload:
        """The Workload that the ScalableWorkload acts for. Raises: QueryError."""
        scalable = self._planning.cluster.scalable_workloads.get(namespace, name)
        found = self._planning.cluster.workload_of(scalable) if scalable is not None else None
        if found is None:
            raise QueryError(f"ScalableWorkload {namespace}/{name} is not there, or has no Workload", status=404)
        return found

    def _gang(self, observed: KueueWorkload, snapshot: ViewSnapshot) -> QuotaWorkload:
        """The Workload as the quota engine sees it. Raises: QueryError for one that waits for no quota."""
        key = "/".join(observed.metadata.key)
        quota = self._planning.quota()
        if isinstance(quota, NotSynced):
            raise _unseen(quota)
        gang = quota.workload(key)
        if gang is None:
            why = "it is finished" if observed.spec.active else "it is deactivated (spec.active is false)"
            raise QueryError(f"Workload {key} waits for nothing: {why}", status=409)
        if (
            gang.reservation is None
            or snapshot.plan_for(gang) is not None
            or gang.uid in self._nodes.lacking(snapshot.at)
        ):
            return gang
        how = "is admitted by" if gang.admitted else "holds quota of"
        hint = "" if gang.admitted else "; 'pending' shows what it waits for"
        queue = f"ClusterQueue {gang.held.cluster_queue}"
        raise QueryError(f"Workload {key} {how} {queue}: there is nothing to plan{hint}", status=409)

    async def _report(
        self, snapshot: ViewSnapshot, gang: QuotaWorkload, observed: KueueWorkload, idle: Sequence[str] | None
    ) -> PlanReport:
        sight = self._sight(snapshot, idle)
        candidates, barred = self._candidates(sight, gang, idle)
        answer, asked = await self._answer(sight, gang, candidates)
        holders, more = self._holders(snapshot, gang, candidates, answer)
        return PlanReport(
            gang=gang,
            observed=observed,
            answer=answer,
            candidates=asked,
            assumed={each.workload for each in candidates} - {each.workload for each in sight.candidates},
            what_if=idle,
            cautions=[*barred, *(self._cautions(snapshot, gang) if isinstance(answer, ReclaimPlan) else ())],
            refusal=self._refusal(answer),
            holders=holders,
            more_holders=more,
        )

    async def _answer(
        self, sight: PlanningSnapshot, gang: QuotaWorkload, candidates: Sequence[Candidate]
    ) -> tuple[ReclaimPlan | NoPlan, Sequence[Candidate]]:
        """The plan for the gang, or why there is none; and the candidates that could be of use to it."""
        if gang.reservation is not None:
            return await self._nodes.plan(sight, gang, candidates), candidates
        request = self._planning.request(sight, gang, candidates)
        if isinstance(request, NoPlan):
            return request, ()
        return await asyncio.to_thread(plan_reclaim, request), request.candidates

    def _sight(self, snapshot: ViewSnapshot, idle: Sequence[str] | None) -> PlanningSnapshot:
        """What plans are made from. Raises: QueryError where that needs verdicts that are not known."""
        sight = snapshot.sight
        if sight is not None:
            return sight
        if idle is None:
            ask = "--what-if-idle assumes that the workloads which hold GPUs are idle"
            raise QueryError(f"it is not known which workloads are idle: {snapshot.unjudged}; {ask}", status=503)
        assumed = self._planning.look(snapshot.at, judged=False)
        if isinstance(assumed, NotSynced):
            raise _unseen(assumed)
        return assumed

    def _candidates(
        self, sight: PlanningSnapshot, gang: QuotaWorkload, idle: Sequence[str] | None
    ) -> tuple[Sequence[Candidate], Sequence[PlanWarning]]:
        """The idle workloads, and those assumed to be; and what of these no plan may take even then.

        Raises: QueryError for an unknown name, or one that no plan may take.
        """
        if idle is None:
            return sight.candidates, ()
        known = {each.workload for each in sight.candidates}
        everybody = self._planning.everybody(sight, gang)
        barred = {
            each.workload: why
            for each in everybody
            if each.workload not in known
            and (why := why_ineligible(each.workload, sight.snapshot, self._planning.cluster))
        }
        named = [each if each.workload in known else self._named(each) for each in everybody]
        self._check_names(idle, named, barred, gang)
        holders = [each for each in named if each.workload not in barred]
        chosen = [
            each for each in holders if not idle or each.workload in known or {each.name, each.workload} & set(idle)
        ]
        return chosen, _left_out(barred) if not idle else ()

    def _check_names(
        self, idle: Sequence[str], holders: Sequence[Candidate], barred: Mapping[str, str], gang: QuotaWorkload
    ) -> None:
        """Raises: QueryError for an unknown name, or one that no plan may take."""
        strangers = set(idle) - {name for each in holders for name in (each.name, each.workload)}
        if strangers:
            names = ", ".join(sorted(strangers))
            raise QueryError(
                f"{names}: no Workload or ScalableWorkload of that name (NAMESPACE/NAME) holds GPUs"
                + (f" in the quota tree of {gang.key}" if gang.reservation is None else ""),
                status=404,
            )
        for each in holders:
            if each.workload in barred and {each.name, each.workload} & set(idle):
                why = barred[each.workload]
                raise QueryError(f"{each.name}: no plan may take it, idle or not: {why}", status=409)

    def _named(self, candidate: Candidate) -> Candidate:
        """With the name of its ScalableWorkload, where it has one."""
        scalable = scalable_of(candidate.workload, self._planning.cluster)
        return replace(candidate, name="/".join(scalable.metadata.key)) if scalable is not None else candidate

    def _holders(
        self, snapshot: ViewSnapshot, gang: QuotaWorkload, candidates: Sequence[Candidate], answer: ReclaimPlan | NoPlan
    ) -> tuple[Sequence[NonCandidate], int]:
        own = snapshot.tree_by_queue.get(snapshot.cluster_queue_of(gang))
        if own is None or not isinstance(answer, NoPlan) or answer.why not in _HELD_BY_OTHERS:
            return (), 0
        spared = snapshot.leaving | {gang.key} | {each.workload for each in candidates}
        trees = [own] if gang.reservation is None else snapshot.trees
        return non_candidates_in(trees, spared, self._planning.cluster, snapshot.evaluation)

    def _refusal(self, answer: ReclaimPlan | NoPlan) -> NoPlan | None:
        """Why settings do not let the plan be carried out."""
        if not isinstance(answer, ReclaimPlan) or self._planning.policy.unprotected is not Unprotected.REFUSE:
            return None
        exposed = next((each for each in answer.cautions if each.reason == NoPlanReason.UNPROTECTED), None)
        return (
            NoPlan(gang=answer.gang, why=NoPlanReason.UNPROTECTED, message=exposed.message)
            if exposed is not None
            else None
        )

    def _cautions(self, snapshot: ViewSnapshot, gang: QuotaWorkload) -> list[PlanWarning]:
        """What keeps the plan from being carried out now."""
        found, beside = [], snapshot.plan_beside(gang)
        if not self._planning.policy.pressure:
            found.append(PlanWarning(reason="PressureOff", message="reclaim.pressure is off: no plan is carried out"))
        why_none = self._nodes.why_none(gang, snapshot.at) if gang.reservation is not None else ""
        if why_none:
            found.append(PlanWarning(reason="NotCarriedOut", message=f"no plan is carried out for it: {why_none}"))
        if beside is not None:
            message = f"plan {beside.grant.plan} for {beside.grant.gang} is under way, and only one at a time is"
            found.append(PlanWarning(reason="AnotherPlan", message=message))
        return found


_HELD_BY_OTHERS = frozenset(
    {
        NoPlanReason.NOT_ENOUGH_IDLE,
        NoPlanReason.PLACEMENT_IMPOSSIBLE,
        NoPlanReason.WOULD_PREEMPT_OTHERS,
        NoPlanReason.NOT_FOUND,
    }
)
"""Reasons that more idle workloads would change."""


def _left_out(barred: Mapping[str, str]) -> list[PlanWarning]:
    """What was not assumed to be idle although all were to be."""
    by_reason: dict[str, list[str]] = {}
    for key, why in sorted(barred.items()):
        by_reason.setdefault(why, []).append(key)
    return [
        PlanWarning(reason="LeftOut", message=f"no plan may take {listed(keys)}: {why}")
        for why, keys in by_reason.items()
    ]


def _next_cycle(request: PlanRequest) -> Sequence[Considered]:
    """What Kueue does next in the tree, head by head."""
    return request.planning_tree.simulation.fork().step().considered


def _unseen(blind: NotSynced) -> QueryError:
    return QueryError(f"quota is not known: {blind.reason}", status=503)


def _is_of_job(workload: KueueWorkload, kind: str, name: str) -> bool:
    owner = workload.metadata.controller_owner
    return owner is not None and owner.name == name and kind.lower() in ("", owner.kind.lower())
