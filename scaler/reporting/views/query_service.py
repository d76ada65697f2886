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
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from scaler.admission.planner import AdmissionPlanner
from scaler.errors import QueryError
from scaler.kube.objects.core import is_true
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.placement.requests import listed
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.planner import Planner, PlanningSnapshot, Unprotected
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, PlanRequest, PlanWarning, ReclaimPlan
from scaler.reclaim.targets import NodeShortage, PlanTarget, QuotaShortage
from scaler.reclaim.wake_planner import WakePlanner
from scaler.reporting.views.admission_checks import CheckViews
from scaler.reporting.views.dispatch import DispatchReader
from scaler.reporting.views.non_candidates import non_candidates_in, scalable_of, why_ineligible
from scaler.reporting.views.pending import PlannerAnswers, gang_page, pending_view, selected
from scaler.reporting.views.plans import PlanReport, plan_view
from scaler.reporting.views.queues import queues_view
from scaler.reporting.views.snapshot import ViewSnapshot, take_view_snapshot
from scaler.targets.target_state import Seeks

_IN_LINE = 8
"""Queries that wait; a page that many clients reload must not keep this process busy all the time."""


class QueryService:
    """`admission` plans for Workloads with our AdmissionChecks, and `nodes` for those of them that lack nodes.
    `dispatch` reads the workers of a hub of MultiKueue."""

    _patience_s = 1.0
    """How long `pending` may ask the planner about one gang after the other."""

    def __init__(
        self,
        planner: Planner,
        *,
        admission: AdmissionPlanner | None = None,
        nodes: NodeShortage | None = None,
        dispatch: DispatchReader | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._planner = planner
        self._admission = admission
        self._nodes = nodes or NodeShortage(planning=planner)
        self._dispatch = dispatch
        self._quota = QuotaShortage(planning=planner)
        self._clock = clock
        self._turn = asyncio.Lock()
        self._queries = 0

    async def queues(self, *, all_resources: bool = False) -> Mapping[str, Any]:
        """The quota trees. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot()
            return await asyncio.to_thread(queues_view, snapshot, all_resources=all_resources)

    async def pending(self, *, namespace: str = "", queue: str = "") -> Mapping[str, Any]:
        """Every gang that waits, and why. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot(with_checks=True)
            chosen = [each for each, _ in selected(snapshot, namespace=namespace, queue=queue)]
            answers = await self._planner_answers(snapshot, chosen)
            shown = await asyncio.to_thread(pending_view, snapshot, answers, namespace=namespace, queue=queue)
            return await self._with_clusters(shown, snapshot.at)

    async def gang(self, namespace: str, name: str) -> Mapping[str, Any]:
        """One Workload, whether it waits or not, and how it stands with our AdmissionChecks. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot(with_checks=True)
            observed = self._find(namespace, name)
            waiting = [each for each, _ in snapshot.waiting if each.key == "/".join(observed.metadata.key)]
            answers = await self._planner_answers(snapshot, waiting)
            shown = await asyncio.to_thread(gang_page, snapshot, observed, answers)
            if shown["gang"] is not None:
                of_gang = await self._with_clusters({"gangs": [shown["gang"]]}, snapshot.at)
                shown = {**shown, "gang": of_gang["gangs"][0]}
            return {**shown, "staysSuspended": await self._stays_suspended(observed, snapshot.at)}

    async def _with_clusters(self, shown: Mapping[str, Any], at: datetime) -> Mapping[str, Any]:
        """What is shown, with the answer of each cluster to those that wait for one."""
        waiting = await self._dispatch.waiting(at) if self._dispatch is not None else {}
        gangs = [{**each, "dispatch": waiting.get((each["namespace"], each["name"]))} for each in shown["gangs"]]
        return {**shown, "gangs": gangs}

    @property
    def is_hub(self) -> bool:
        """Whether clusters are nominated here."""
        return self._dispatch is not None

    async def clusters(self) -> Mapping[str, Any]:
        """What the workers of a hub have. Raises: QueryError where this is no hub."""
        if self._dispatch is None:
            raise QueryError("this is no hub of MultiKueue: dispatcher is not one of its components", status=409)
        return self._dispatch.clusters(self._clock())

    async def _stays_suspended(self, observed: KueueWorkload, at: datetime) -> str | None:
        """Why a Workload that comes back when there is room does not yet; None for any other."""
        cluster = self._planner.cluster
        scalable = cluster.scaler_of(observed) if not observed.spec.active else None
        if scalable is None:
            return None
        target = scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name)
        plan = await WakePlanner(self._planner).plan(at)
        keys = [each.metadata.key for each in cluster.scaled_objects.by_index("target", target)]
        return next((plan.suspended[key] for key in keys if key in plan.suspended), None)

    async def plan(self, namespace: str, name: str, *, idle: Sequence[str] | None = None) -> Mapping[str, Any]:
        """What would be suspended for the gang; `idle` as in `PlanReport.what_if`. Raises: QueryError."""
        async with self._in_turn():
            snapshot = await self._snapshot(with_checks=True)
            observed = self._find(namespace, name)
            dispatch = await self._clusters_of(observed, snapshot.at)
            gang = self._gang(observed, snapshot, is_dispatched=dispatch is not None)
            if dispatch is not None or snapshot.plan_for(gang) is not None:
                shown = plan_view(snapshot, PlanReport(gang=gang, observed=observed, what_if=idle))
            else:
                shown = plan_view(snapshot, await self._report(snapshot, gang, observed, idle))
            return {**shown, "dispatch": dispatch}

    async def _clusters_of(self, observed: KueueWorkload, at: datetime) -> Mapping[str, Any] | None:
        """What each cluster answers, of a Workload that waits for one; None for any other."""
        return (await self._dispatch.waiting(at)).get(observed.metadata.key) if self._dispatch is not None else None

    # --------------------------------------------------------------------------------------------------------- turns

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._queries > _IN_LINE:
            raise QueryError("too many queries are being answered; try again in a moment", status=503)
        self._queries += 1
        try:
            async with self._turn:
                yield
        finally:
            self._queries -= 1

    async def _snapshot(self, *, with_checks: bool = False) -> ViewSnapshot:
        now = self._clock()
        snapshot = await take_view_snapshot(self._planner, now)
        if isinstance(snapshot, NotSynced):
            raise _not_known(snapshot)
        if self._admission is None or not with_checks:
            return snapshot
        plan = await self._admission.plan(now)
        return replace(snapshot, checks=CheckViews(plan.workloads, plan.unknown_requests))

    # ---------------------------------------------------------------------------------------------------------- pending

    async def _planner_answers(self, snapshot: ViewSnapshot, chosen: Sequence[QuotaWorkload]) -> PlannerAnswers:
        """Answers for gangs in the selected ones' trees, in the reclaim controller's order, as far as time allows.

        In each scope of plans the first gang that gets one is the last that is looked at.
        """
        answers = PlannerAnswers(lacking=self._nodes.lacking(snapshot.at))
        planning, ends = snapshot.planning, monotonic() + self._patience_s
        if planning is None:
            return answers
        scopes = {(Seeks.QUOTA, snapshot.root_of(each)) for each in chosen}
        scopes |= {(Seeks.NODES, "") for each in chosen if each.uid in answers.lacking}
        targets: Mapping[Seeks, PlanTarget] = {Seeks.QUOTA: self._quota, Seeks.NODES: self._nodes}
        for seeks, target in targets.items():
            closed = {tree.root.name for tree in snapshot.trees} - {name for kind, name in scopes if kind is seeks}
            for gang in target.gangs(planning, closed):
                scope = seeks, target.plan_scope(planning, gang.key)
                is_open = scope in scopes - answers.first.keys() and self._is_open(snapshot, planning, seeks, gang)
                if is_open and monotonic() <= ends:
                    await self._add_answer(answers, scope, planning, gang)
                if scope in answers.first:
                    closed.add(scope[1])
        return answers

    def _is_open(self, snapshot: ViewSnapshot, planning: PlanningSnapshot, seeks: Seeks, gang: QuotaWorkload) -> bool:
        """Whether a plan could be made for it, and it is still as it was."""
        if snapshot.plan_beside(gang) is not None or planning.snapshot.workload(gang.key) is not gang:
            return False
        # A plan for nodes may be made although the plan that got its quota is still active.
        return seeks is Seeks.NODES or (gang.may_queue and snapshot.plan_for(gang) is None)

    async def _add_answer(
        self, answers: PlannerAnswers, scope: tuple[Seeks, str], planning: PlanningSnapshot, gang: QuotaWorkload
    ) -> None:
        answer, request = await self._answer(planning, gang, planning.candidates)
        if request is not None and scope[1] not in answers.heads:
            answers.heads[scope[1]] = await asyncio.to_thread(
                lambda: request.planning_tree.simulation.fork().step().considered
            )
        answers.found[gang.uid] = self._refusal(answer) or answer
        if isinstance(answers.found[gang.uid], ReclaimPlan):
            answers.first[scope] = gang.key

    async def _answer(
        self, planning: PlanningSnapshot, gang: QuotaWorkload, candidates: Sequence[Candidate]
    ) -> tuple[ReclaimPlan | NoPlan, PlanRequest | None]:
        """The plan for the gang, or why there is none; and for quota what it was made from."""
        if gang.reservation is not None:
            return await self._nodes.plan(planning, gang, candidates), None
        request = self._planner.request(planning, gang, candidates)
        if isinstance(request, NoPlan):
            return request, None
        return await asyncio.to_thread(plan_reclaim, request), request

    # ------------------------------------------------------------------------------------------------------------- plan

    def _find(self, namespace: str, name: str) -> KueueWorkload:
        """The Workload of that name, or that of a job: `name` or `Kind/name`. Raises: QueryError."""
        workloads = self._planner.cluster.workloads
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
        scalable = self._planner.cluster.scalable_workloads.get(namespace, name)
        found = self._planner.cluster.workload_of(scalable) if scalable is not None else None
        if found is None:
            raise QueryError(f"ScalableWorkload {namespace}/{name} is not there, or has no Workload", status=404)
        return found

    def _gang(self, observed: KueueWorkload, snapshot: ViewSnapshot, *, is_dispatched: bool) -> QuotaWorkload:
        """The Workload of the quota engine. Raises: QueryError for one that waits for no quota."""
        key = "/".join(observed.metadata.key)
        quota = self._planner.view.look()
        if isinstance(quota, NotSynced):
            raise _not_known(quota)
        gang = quota.workload(key)
        if gang is None:
            why = "it is finished" if observed.spec.active else "it is deactivated (spec.active is false)"
            raise QueryError(f"Workload {key} waits for nothing: {why}", status=409)
        if (
            is_dispatched
            or gang.reservation is None
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
        planning = snapshot.planning or await self._unjudged(snapshot, idle)
        candidates, barred = self._candidates(planning, gang, idle)
        answer, request = await self._answer(planning, gang, candidates)
        useful = request.candidates if request is not None else candidates if gang.reservation is not None else ()
        holders, more = self._holders(snapshot, planning, gang, candidates, answer)
        return PlanReport(
            gang=gang,
            observed=observed,
            answer=answer,
            candidates=useful,
            assumed={each.workload for each in candidates} - {each.workload for each in planning.candidates},
            what_if=idle,
            cautions=[*barred, *(self._cautions(snapshot, gang) if isinstance(answer, ReclaimPlan) else ())],
            refusal=self._refusal(answer),
            holders=holders,
            more_holders=more,
        )

    async def _unjudged(self, snapshot: ViewSnapshot, idle: Sequence[str] | None) -> PlanningSnapshot:
        """What plans are made from where verdicts are not known. Raises: QueryError where they are needed."""
        if idle is None:
            ask = "--what-if-idle assumes that the workloads which hold GPUs are idle"
            raise QueryError(f"it is not known which workloads are idle: {snapshot.unjudged}; {ask}", status=503)
        assumed = await self._planner.look(snapshot.at, judged=False)
        if isinstance(assumed, NotSynced):
            raise _not_known(assumed)
        return assumed

    def _candidates(
        self, planning: PlanningSnapshot, gang: QuotaWorkload, idle: Sequence[str] | None
    ) -> tuple[Sequence[Candidate], Sequence[PlanWarning]]:
        """The idle workloads, and those assumed to be; and what of these no plan may take even then.

        Raises: QueryError for an unknown name, or one that no plan may take.
        """
        if idle is None:
            return planning.candidates, ()
        known = {each.workload for each in planning.candidates}
        holders = [self._named(each) for each in self._planner.all_candidates(planning, gang)]
        unknown = (each.workload for each in holders if each.workload not in known)
        cluster, quota = self._planner.cluster, planning.snapshot
        barred = {key: why for key in unknown if (why := why_ineligible(key, quota, cluster))}
        self._check_names(idle, holders, barred, gang)
        chosen = [each for each in holders if not idle or each.workload in known or _is_named(each, idle)]
        return [each for each in chosen if each.workload not in barred], _left_out(barred) if not idle else ()

    def _check_names(
        self, idle: Sequence[str], holders: Sequence[Candidate], barred: Mapping[str, str], gang: QuotaWorkload
    ) -> None:
        """Raises: QueryError for an unknown name, or one that no plan may take."""
        unknown = set(idle) - {name for each in holders for name in (each.name, each.workload)}
        if unknown:
            where = f" in the quota tree of {gang.key}" if gang.reservation is None else ""
            what = "no Workload or ScalableWorkload of that name (NAMESPACE/NAME) holds GPUs"
            raise QueryError(f"{', '.join(sorted(unknown))}: {what}{where}", status=404)
        for each in holders:
            if each.workload in barred and _is_named(each, idle):
                why = barred[each.workload]
                raise QueryError(f"{each.name}: no plan may take it, idle or not: {why}", status=409)

    def _named(self, candidate: Candidate) -> Candidate:
        scalable = scalable_of(candidate.workload, self._planner.cluster)
        return replace(candidate, name="/".join(scalable.metadata.key)) if scalable is not None else candidate

    def _holders(
        self,
        snapshot: ViewSnapshot,
        planning: PlanningSnapshot,
        gang: QuotaWorkload,
        candidates: Sequence[Candidate],
        answer: ReclaimPlan | NoPlan,
    ) -> tuple[Sequence[Mapping[str, Any]], int]:
        own = snapshot.tree_by_queue.get(snapshot.cluster_queue_of(gang))
        if own is None or not isinstance(answer, NoPlan) or answer.why not in _HELD_BY_OTHERS:
            return (), 0
        spared = planning.leaving | {gang.key} | {each.workload for each in candidates}
        trees = [own] if gang.reservation is None else snapshot.trees
        return non_candidates_in(trees, spared, self._planner.cluster, snapshot.evaluation)

    def _refusal(self, answer: ReclaimPlan | NoPlan) -> NoPlan | None:
        """Why settings do not let the plan be carried out."""
        if not isinstance(answer, ReclaimPlan) or self._planner.policy.unprotected is not Unprotected.REFUSE:
            return None
        exposed = next((each for each in answer.cautions if each.reason == NoPlanReason.UNPROTECTED), None)
        if exposed is None:
            return None
        return NoPlan(gang=answer.gang, why=NoPlanReason.UNPROTECTED, message=exposed.message)

    def _cautions(self, snapshot: ViewSnapshot, gang: QuotaWorkload) -> list[PlanWarning]:
        """What keeps the plan from being carried out now."""
        found, beside = [], snapshot.plan_beside(gang)
        if not self._planner.policy.pressure:
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


def _is_named(candidate: Candidate, names: Sequence[str]) -> bool:
    return candidate.name in names or candidate.workload in names


def _left_out(barred: Mapping[str, str]) -> list[PlanWarning]:
    """What was not assumed to be idle although all were to be."""
    by_reason: dict[str, list[str]] = {}
    for key, why in sorted(barred.items()):
        by_reason.setdefault(why, []).append(key)
    return [
        PlanWarning(reason="LeftOut", message=f"no plan may take {listed(keys)}: {why}")
        for why, keys in by_reason.items()
    ]


def _not_known(why: NotSynced) -> QueryError:
    return QueryError(f"quota is not known: {why.reason}", status=503)


def _is_of_job(workload: KueueWorkload, kind: str, name: str) -> bool:
    owner = workload.metadata.controller_owner
    return owner is not None and owner.name == name and kind.lower() in ("", owner.kind.lower())
