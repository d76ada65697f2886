"""Answers what operators ask about quota and plans: `queues`, `pending`, `plan`. Reads and computes, writes nothing.

Laws:

* KEDA comes first. What takes long is computed in a thread, on copies, one question at a time; the others wait in line,
  and a line that is too long is refused.
* What cannot be seen is said, and not guessed: InquiryError with the reason.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from scaler.core.claims import listed
from scaler.core.quota.cycle import Considered
from scaler.core.quota.model import Workload
from scaler.core.reclaim import Candidate, Caution, NoPlan, Plan, Request, Why, plan_reclaim
from scaler.core.reclaim_policy import Unprotected
from scaler.errors import InquiryError
from scaler.kube.kueue_objects import Workload as KueueWorkload
from scaler.kube.objects import is_true
from scaler.kube.resources import SCALABLE_WORKLOAD
from scaler.loops.board import Board
from scaler.loops.nodes_aim import NodesAim
from scaler.loops.outlook.gates import Gatekeepers
from scaler.loops.outlook.holders import Holder, others_in, scalable_of, why_barred
from scaler.loops.outlook.pending import Prospects, gang_page, pending_view, selected
from scaler.loops.outlook.plans import Inquired, plan_view
from scaler.loops.outlook.queues import queues_view
from scaler.loops.outlook.survey import Survey, take_survey
from scaler.loops.planning import Planning, Sight
from scaler.loops.quota_view import Blind

_LACKING = 4
"""Gangs that lack nodes for which `pending` asks the planner, as the leader does in one tick."""
_IN_LINE = 8
"""Questions that wait for their turn; a page that is reloaded by many must not keep this process busy for ever."""


class Inquiry:
    """`gates` tells how Workloads stand with our AdmissionChecks, and `nodes` makes plans for those that lack nodes, by
    the same gate. `patience` is how long `pending` may ask the planner about one gang after the other."""

    def __init__(
        self,
        planning: Planning,
        board: Board,
        *,
        gates: Gatekeepers | None = None,
        nodes: NodesAim | None = None,
        patience: timedelta = timedelta(seconds=1),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._planning = planning
        self._board = board
        self._gates = gates
        self._nodes = nodes or NodesAim(planning=planning)
        self._patience_s = patience.total_seconds()
        self._clock = clock
        self._turn = asyncio.Lock()
        self._asked = 0

    async def queues(self, *, all_resources: bool = False) -> Mapping[str, Any]:
        """The quota trees. Raises: InquiryError."""
        async with self._in_turn():
            survey = await self._survey()
            return await asyncio.to_thread(queues_view, survey, all_resources=all_resources)

    async def pending(self, *, namespace: str = "", queue: str = "") -> Mapping[str, Any]:
        """Every gang that waits, and why. Raises: InquiryError."""
        async with self._in_turn():
            survey = await self._survey(with_gates=True)
            asked_about = [each for each, _ in selected(survey, namespace=namespace, queue=queue)]
            prospects = await self._prospects(survey, asked_about)
            return await asyncio.to_thread(pending_view, survey, prospects, namespace=namespace, queue=queue)

    async def gang(self, namespace: str, name: str) -> Mapping[str, Any]:
        """One Workload, whether it waits or not, and how it stands with our AdmissionChecks. Raises: InquiryError."""
        async with self._in_turn():
            survey = await self._survey(with_gates=True)
            observed = self._find(namespace, name)
            waiting = [each for each, _ in survey.waiting if each.key == "/".join(observed.metadata.key)]
            prospects = await self._prospects(survey, waiting)
            return await asyncio.to_thread(gang_page, survey, observed, prospects)

    async def plan(self, namespace: str, name: str, *, idle: Sequence[str] | None = None) -> Mapping[str, Any]:
        """What would be suspended for the gang; `idle` as in `Inquired.what_if`. Raises: InquiryError."""
        async with self._in_turn():
            survey = await self._survey(with_gates=True)
            observed = self._find(namespace, name)
            gang = self._gang(observed, survey)
            if survey.plan_for(gang) is not None:
                return plan_view(survey, Inquired(gang=gang, observed=observed, what_if=idle))
            return plan_view(survey, await self._inquire(survey, gang, observed, idle))

    # --------------------------------------------------------------------------------------------------------- turns

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._asked > _IN_LINE:
            raise InquiryError("too many questions about plans are being answered; try again in a moment", status=503)
        self._asked += 1
        try:
            async with self._turn:
                yield
        finally:
            self._asked -= 1

    async def _survey(self, *, with_gates: bool = False) -> Survey:
        now = self._clock()
        survey = await take_survey(self._planning, self._board, now)
        if isinstance(survey, Blind):
            raise _unseen(survey)
        return replace(survey, gates=await self._gates.look(now)) if self._gates and with_gates else survey

    # ---------------------------------------------------------------------------------------------------------- pending

    async def _prospects(self, survey: Survey, asked_about: Sequence[Workload]) -> Prospects:
        """What the planner says of gangs in the trees of these, as far as time allows, in the order of plans."""
        sight, roots = survey.sight, {survey.root_of(each) for each in asked_about}
        found: dict[str, Plan | NoPlan] = {}
        first: dict[str, str] = {}
        heads: dict[str, Sequence[Considered]] = {}
        ends = monotonic() + self._patience_s
        for gang, _ in survey.waiting:
            root = survey.root_of(gang)
            if sight is None or monotonic() > ends:
                break
            if root not in roots - first.keys() or not self._is_planned_for(survey, sight, gang):
                continue
            request = self._planning.request(sight, gang)
            if isinstance(request, Request) and root not in heads:
                heads[root] = await asyncio.to_thread(_next_cycle, request)
            found[gang.uid] = await self._prospect(request)
            if isinstance(found[gang.uid], Plan):
                first[root] = gang.key
        lacking, first_for_nodes = await self._prospects_of_nodes(survey, asked_about, found)
        return Prospects(found=found, first=first, heads=heads, lacking=lacking, first_for_nodes=first_for_nodes)

    async def _prospects_of_nodes(
        self, survey: Survey, asked_about: Sequence[Workload], found: dict[str, Plan | NoPlan]
    ) -> tuple[frozenset[str], str]:
        """Who has quota and lacks nodes, by uid, and for whom the next plan is; what is found for them is added.

        They are asked about as the leader does it: also those that got their quota by a plan which still stands.
        """
        sight, asked = survey.sight, {each.uid for each in asked_about}
        lacking = self._nodes.lacking(survey.at)
        gangs = self._nodes.gangs(sight) if sight is not None and lacking & asked else ()
        for gang in gangs[:_LACKING]:
            if sight is None or survey.plan_beside(gang) is not None:
                break
            found[gang.uid] = await self._nodes.plan(sight, gang, sight.idlers.candidates)
            if isinstance(found[gang.uid], Plan):
                return lacking, gang.key
        return lacking, ""

    async def _prospect(self, request: Request | NoPlan) -> Plan | NoPlan:
        found = request if isinstance(request, NoPlan) else await asyncio.to_thread(plan_reclaim, request)
        return self._refusal(found) or found

    def _is_planned_for(self, survey: Survey, sight: Sight, gang: Workload) -> bool:
        """Whether a plan could be made for it, and it is still as it was."""
        waits = gang.reservation is None and gang.may_queue and sight.snapshot.workload(gang.key) is gang
        return waits and survey.plan_for(gang) is None and survey.plan_beside(gang) is None

    # ------------------------------------------------------------------------------------------------------------- plan

    def _find(self, namespace: str, name: str) -> KueueWorkload:
        """The Workload of that name, or that of a job: `name` or `Kind/name`. Raises: InquiryError."""
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
            raise InquiryError(f"there is no Workload {namespace}/{name}, nor one of a job of that name", status=404)
        if len(still_open) > 1:
            names = ", ".join(sorted(each.metadata.name for each in still_open))
            raise InquiryError(f"several Workloads are of {namespace}/{name}: {names}; name one of them", status=409)
        return still_open[0]

    def _find_scaled(self, namespace: str, name: str) -> KueueWorkload:
        """The Workload that the ScalableWorkload acts for. Raises: InquiryError."""
        scalable = self._planning.cluster.scalable_workloads.get(namespace, name)
        found = self._planning.cluster.workload_of(scalable) if scalable is not None else None
        if found is None:
            raise InquiryError(f"ScalableWorkload {namespace}/{name} is not there, or has no Workload", status=404)
        return found

    def _gang(self, observed: KueueWorkload, survey: Survey) -> Workload:
        """The Workload as the quota engine sees it. Raises: InquiryError for one that waits for no quota."""
        key = "/".join(observed.metadata.key)
        snapshot = self._planning.quota()
        if isinstance(snapshot, Blind):
            raise _unseen(snapshot)
        gang = snapshot.workload(key)
        if gang is None:
            why = "it is finished" if observed.spec.active else "it is deactivated (spec.active is false)"
            raise InquiryError(f"Workload {key} waits for nothing: {why}", status=409)
        if gang.reservation is None or survey.plan_for(gang) is not None or gang.uid in self._nodes.lacking(survey.at):
            return gang
        how = "is admitted by" if gang.admitted else "holds quota of"
        hint = "" if gang.admitted else "; 'pending' shows what it waits for"
        queue = f"ClusterQueue {gang.held.cluster_queue}"
        raise InquiryError(f"Workload {key} {how} {queue}: there is nothing to plan{hint}", status=409)

    async def _inquire(
        self, survey: Survey, gang: Workload, observed: KueueWorkload, idle: Sequence[str] | None
    ) -> Inquired:
        sight = self._sight(survey, idle)
        candidates, barred = self._candidates(sight, gang, idle)
        answer, asked = await self._answer(sight, gang, candidates)
        holders, more = self._holders(survey, gang, candidates, answer)
        return Inquired(
            gang=gang,
            observed=observed,
            answer=answer,
            candidates=asked,
            assumed={each.workload for each in candidates} - {each.workload for each in sight.idlers.candidates},
            what_if=idle,
            cautions=[*barred, *(self._cautions(survey, gang) if isinstance(answer, Plan) else ())],
            refusal=self._refusal(answer),
            holders=holders,
            more_holders=more,
        )

    async def _answer(
        self, sight: Sight, gang: Workload, candidates: Sequence[Candidate]
    ) -> tuple[Plan | NoPlan, Sequence[Candidate]]:
        """The plan for the gang, or why there is none; and those of the candidates who could be of use to it."""
        if gang.reservation is not None:
            return await self._nodes.plan(sight, gang, candidates), candidates
        request = self._planning.request(sight, gang, candidates)
        if isinstance(request, NoPlan):
            return request, ()
        return await asyncio.to_thread(plan_reclaim, request), request.candidates

    def _sight(self, survey: Survey, idle: Sequence[str] | None) -> Sight:
        """What plans are made from. Raises: InquiryError where that needs verdicts that nobody has."""
        sight = survey.sight
        if sight is not None:
            return sight
        if idle is None:
            ask = "--what-if-idle asks as if those who hold GPUs were idle"
            raise InquiryError(f"nobody knows who is idle: {survey.unjudged}; {ask}", status=503)
        assumed = self._planning.look(survey.at, judged=False)
        if isinstance(assumed, Blind):
            raise _unseen(assumed)
        return assumed

    def _candidates(
        self, sight: Sight, gang: Workload, idle: Sequence[str] | None
    ) -> tuple[Sequence[Candidate], Sequence[Caution]]:
        """Who is idle, and who is to be taken to be; and whom no plan may take even then.

        Raises: InquiryError for a name that nobody has, or that no plan may take.
        """
        if idle is None:
            return sight.idlers.candidates, ()
        known = {each.workload for each in sight.idlers.candidates}
        everybody = self._planning.everybody(sight, gang)
        barred = {
            each.workload: why
            for each in everybody
            if each.workload not in known and (why := why_barred(each.workload, sight.snapshot, self._planning.cluster))
        }
        named = [each if each.workload in known else self._named(each) for each in everybody]
        self._check_names(idle, named, barred, gang)
        holders = [each for each in named if each.workload not in barred]
        chosen = [
            each for each in holders if not idle or each.workload in known or {each.name, each.workload} & set(idle)
        ]
        return chosen, _left_out(barred) if not idle else ()

    def _check_names(
        self, idle: Sequence[str], holders: Sequence[Candidate], barred: Mapping[str, str], gang: Workload
    ) -> None:
        """Raises: InquiryError for a name that nobody has, or that no plan may take."""
        strangers = set(idle) - {name for each in holders for name in (each.name, each.workload)}
        if strangers:
            names = ", ".join(sorted(strangers))
            raise InquiryError(
                f"{names}: no Workload or ScalableWorkload of that name (NAMESPACE/NAME) holds GPUs"
                + (f" in the quota tree of {gang.key}" if gang.reservation is None else ""),
                status=404,
            )
        for each in holders:
            if each.workload in barred and {each.name, each.workload} & set(idle):
                why = barred[each.workload]
                raise InquiryError(f"{each.name}: no plan may take it, idle or not: {why}", status=409)

    def _named(self, candidate: Candidate) -> Candidate:
        """With the name of its ScalableWorkload, where it has one."""
        scalable = scalable_of(candidate.workload, self._planning.cluster)
        return replace(candidate, name="/".join(scalable.metadata.key)) if scalable is not None else candidate

    def _holders(
        self, survey: Survey, gang: Workload, candidates: Sequence[Candidate], answer: Plan | NoPlan
    ) -> tuple[Sequence[Holder], int]:
        own = survey.tree_by_queue.get(survey.cluster_queue_of(gang))
        if own is None or not isinstance(answer, NoPlan) or answer.why not in _HELD_BY_OTHERS:
            return (), 0
        spared = survey.leaving | {gang.key} | {each.workload for each in candidates}
        trees = [own] if gang.reservation is None else survey.trees
        return others_in(trees, spared, self._planning.cluster, survey.evaluation)

    def _refusal(self, answer: Plan | NoPlan) -> NoPlan | None:
        """Why settings do not let the plan be carried out."""
        if not isinstance(answer, Plan) or self._planning.policy.unprotected is not Unprotected.REFUSE:
            return None
        exposed = next((each for each in answer.cautions if each.reason == Why.UNPROTECTED), None)
        return NoPlan(gang=answer.gang, why=Why.UNPROTECTED, message=exposed.message) if exposed is not None else None

    def _cautions(self, survey: Survey, gang: Workload) -> list[Caution]:
        """What keeps the plan from being carried out now."""
        found, beside = [], survey.plan_beside(gang)
        if not self._planning.policy.pressure:
            found.append(Caution(reason="PressureOff", message="reclaim.pressure is off: no plan is carried out"))
        why_none = self._nodes.why_none(gang, survey.at) if gang.reservation is not None else ""
        if why_none:
            found.append(Caution(reason="NotCarriedOut", message=f"no plan is carried out for it: {why_none}"))
        if beside is not None:
            message = f"plan {beside.grant.plan} for {beside.grant.gang} is under way, and only one at a time is"
            found.append(Caution(reason="AnotherPlan", message=message))
        return found


_HELD_BY_OTHERS = frozenset({Why.NOT_ENOUGH_IDLE, Why.PLACEMENT_IMPOSSIBLE, Why.WOULD_PREEMPT_OTHERS, Why.NOT_FOUND})
"""Answers that would be others if more of those who hold GPUs were idle."""


def _left_out(barred: Mapping[str, str]) -> list[Caution]:
    """Who is not taken to be idle although everybody was to be."""
    by_reason: dict[str, list[str]] = {}
    for key, why in sorted(barred.items()):
        by_reason.setdefault(why, []).append(key)
    return [
        Caution(reason="LeftOut", message=f"no plan may take {listed(keys)}: {why}") for why, keys in by_reason.items()
    ]


def _next_cycle(request: Request) -> Sequence[Considered]:
    """What Kueue does next in the tree, head by head."""
    return request.scene.simulation.fork().step().considered


def _unseen(blind: Blind) -> InquiryError:
    return InquiryError(f"quota cannot be seen: {blind.reason}", status=503)


def _is_of_job(workload: KueueWorkload, kind: str, name: str) -> bool:
    owner = workload.metadata.controller_owner
    return owner is not None and owner.name == name and kind.lower() in ("", owner.kind.lower())
