"""Plans for gangs that have their quota and are held back by our AdmissionCheck, as they lack nodes.

Laws:

* Only nodes count, and whoever is idle on them may be a victim, in whatever queue. Quota that is freed besides is
  anybody's: the gang has its own.
* Whom nodes are on their way for nobody is suspended for. And nobody is asked for nodes before it is known whether idle
  GPUs can serve the gang, but not for longer than that takes.
* Where nodes are not seen nothing is planned.
* One plan at a time in the cluster: two would each count on the nodes that the other frees.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from scaler.core.claims import Lacks, Waits
from scaler.core.claims import Why as Waiting
from scaler.core.placement import Capacity
from scaler.core.prospects import Line, Prospect
from scaler.core.quota.model import Workload
from scaler.core.reclaim import Candidate, NoPlan, Plan, SeatRequest, Why, plan_seats, still_seats
from scaler.core.reclaim.values import Refusal
from scaler.core.victims import Limits
from scaler.kube.objects import is_true
from scaler.loops.gate import GateReport
from scaler.loops.gate_cases import Standing
from scaler.loops.planning import Planning, Sight
from scaler.loops.quota_view import Blind
from scaler.loops.standing_plans import StandingPlan, key_of

_FOUND_OUT_WITHIN = timedelta(seconds=15)
"""How long nodes are not asked for because a plan may be made. Plans for all that lack nodes are made within one tick
or two, five seconds apart; where verdicts are missing, or another plan is being carried out, none may come for long."""
_REPORT_AGE = timedelta(minutes=1)
"""A gate that has reported nothing for so long is not believed."""
_NOWHERE = "nobody looks after AdmissionChecks here"


class Door(Protocol):
    """The gate, as far as plans look at it."""

    @property
    def report(self) -> GateReport | None:
        """Of its latest look; None before the first."""

    def line(self, now: datetime) -> Line | Blind:
        """All who have a claim on nodes, and what these have free."""

    def wake(self) -> None:
        """It may go on with what it has asked."""


@dataclass(kw_only=True, eq=False)
class NodesAim:
    """An `Aim`. Without a gate there are no such gangs."""

    planning: Planning
    gate: Door | None = None
    _seen: tuple[datetime, Line | Blind] | None = field(default=None, init=False)
    """The line as it was at that instant: it is asked for several times."""
    _asked: dict[str, datetime] = field(default_factory=dict, init=False)
    """By uid of a gang, since when the gate asks whether idle GPUs can serve it."""
    _answered: set[str] = field(default_factory=set, init=False)

    # ----------------------------------------------------------------------------------------------------- as an Aim

    def gangs(self, sight: Sight) -> Sequence[Workload]:
        """Those that lack nodes, in the order of the gate."""
        lacking = [each for each in self._standings(sight.now) if _is_to_be_served(each)]
        ordered = sorted(lacking, key=lambda each: (each.reserved_at is None, each.reserved_at, each.uid))
        found = {each.key: workload for each in ordered if (workload := _holder(each, sight)) is not None}
        return list(found.values())

    def arena(self, _sight: Sight, _gang: str) -> str:
        """All nodes together."""
        return ""

    def basis(self, sight: Sight, _gang: Workload) -> object:
        """What nodes have free, and who has a claim on them."""
        line = self._line(sight.now)
        return line if isinstance(line, Blind) else (_Same(line.capacity), line.held, line.waiting, line.overdue)

    async def plan(self, sight: Sight, gang: Workload, candidates: Collection[Candidate]) -> Plan | NoPlan:
        """By which our check lets it go."""
        checks = [each.check for each in self._standings(sight.now) if each.uid == gang.uid and each.may_reuse]
        question = self._question(sight, gang, candidates, check=checks[0] if checks else "")
        found = question if isinstance(question, NoPlan) else await asyncio.to_thread(question.plan)
        if not (isinstance(found, NoPlan) and found.why is Why.FITS_ALREADY):
            self._answer(gang.uid)
        return found

    def is_foreseeable(self, sight: Sight, _gang: Workload) -> bool:
        """Whether nodes are seen, and everybody who has a claim on them."""
        return isinstance(self._line(sight.now), Line)

    async def why_not(self, plan: StandingPlan, sight: Sight, gang: Workload, victims: Sequence[Candidate]) -> str:
        """What a trial says."""
        question = self._question(sight, gang, victims, check=plan.grant.check)
        return question.message if isinstance(question, NoPlan) else await asyncio.to_thread(question.why_not)

    async def thief(self, _plan: StandingPlan, _sight: Sight) -> str:
        """Nobody: the gate keeps places for who was first, and quota is not at stake."""
        return ""

    async def is_lost(self, plan: StandingPlan, sight: Sight) -> bool:
        """Whether somebody has come between: it would not fit even with all gone that go, and asks nobody for nodes."""
        gang = sight.snapshot.workload(plan.grant.gang)
        if gang is None or gang.uid not in self.lacking(sight.now):
            return False
        question = self._question(sight, gang, (), check=plan.grant.check)
        return not isinstance(question, NoPlan) and await asyncio.to_thread(question.is_lost)

    def is_being_served(self, plan: StandingPlan, sight: Sight) -> bool:
        """Whether pods end, or come, or nodes come, and then it starts."""
        found = [each for each in self._standings(sight.now) if each.uid == plan.grant.gang_uid]
        return bool(found) and all(map(_is_being_served, found))

    def forget_others(self, plans: Collection[str]) -> None:
        """Nothing is remembered of plans."""

    # --------------------------------------------------------------------------------------- for those who only ask

    def lacking(self, now: datetime) -> frozenset[str]:
        """Uids of all that lack nodes, whether or not anybody may be suspended for them."""
        return frozenset(each.uid for each in self._standings(now) if each.lacks_nodes)

    def why_none(self, gang: Workload, now: datetime) -> str:
        """Why nobody is suspended for one that lacks nodes, whoever is idle; empty where somebody may be."""
        found = [each for each in self._standings(now) if each.uid == gang.uid]
        if found and not any(each.may_reuse for each in found):
            return "its ReclaimPolicy says that nobody is suspended for it (spec.reuse.enabled: false)"
        return "nodes are on their way for it" if any(each.awaits_nodes for each in found) else ""

    # -------------------------------------------------------------------------------------------------- for the gate

    def considers(self, uid: str, now: datetime) -> str:
        """What the gate says while nobody knows yet whether idle GPUs can serve the gang; empty once that is known."""
        since = self._asked.setdefault(uid, now)
        if uid in self._answered or now - since >= _FOUND_OUT_WITHIN:
            return ""
        return "idle ones may serve it, which is being found out"

    def _answer(self, uid: str) -> None:
        if uid in self._asked and uid not in self._answered and self.gate is not None:
            self.gate.wake()
        self._answered.add(uid)

    def _forget_gangs(self, standings: Sequence[Standing]) -> None:
        """What was found for those that lack nodes no more is not true of the next time that they do."""
        uids = {each.uid for each in standings if each.lacks_nodes}
        self._asked = {uid: since for uid, since in self._asked.items() if uid in uids}
        self._answered &= uids

    # --------------------------------------------------------------------------------------------------- what is seen

    def _standings(self, now: datetime) -> Sequence[Standing]:
        """Those that wait at the gate, as it has seen them last."""
        report = self.gate.report if self.gate is not None else None
        if report is None or now - report.at > _REPORT_AGE:
            return ()
        self._forget_gangs(report.waiting)
        return report.waiting

    def _line(self, now: datetime) -> Line | Blind:
        if self._seen is None or self._seen[0] != now:
            self._seen = now, self.gate.line(now) if self.gate is not None else Blind(_NOWHERE)
        return self._seen[1]

    def _question(
        self, sight: Sight, gang: Workload, candidates: Collection[Candidate], *, check: str
    ) -> "_Question | NoPlan":
        """What is to be computed beside the event loop, or why nothing can be."""
        line = self._line(sight.now)
        if isinstance(line, Blind):
            return _unforeseeable(gang.key, f"nobody knows where its pods fit: {line.reason}")
        if gang.opaque_because:
            return _unforeseeable(gang.key, f"cannot be foreseen: {gang.opaque_because}")
        if not check or gang.reservation is None:
            return _unforeseeable(gang.key, self.why_none(gang, sight.now) or "it does not wait for nodes any more")
        return _Question(
            gang=gang,
            check=check,
            line=line,
            candidates=tuple(candidates),
            leaving=sight.idlers.leaving | self._losing(sight, line.capacity),
            refuse=self.planning.refusal(sight),
            limits=self.planning.policy.limits,
        )

    def _losing(self, sight: Sight, capacity: Capacity) -> frozenset[str]:
        """Keys of Workloads that have lost their quota and still have pods: these end, or will be told to at once."""
        workloads = self.planning.cluster.workloads
        found = set()
        for key in capacity.occupancy.of_workload:
            workload, held = workloads.get(*key_of(key)), sight.snapshot.workload(key)
            is_out = workload is not None and (
                not workload.spec.active or is_true(workload.status.conditions, "Evicted")
            )
            if is_out and (held is None or held.reservation is None):
                found.add(key)
        return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class _Question:
    """Whom to suspend for one gang, independent of what changes meanwhile."""

    gang: Workload
    check: str
    line: Line
    candidates: tuple[Candidate, ...]
    leaving: frozenset[str]
    refuse: Refusal
    limits: Limits

    def plan(self) -> Plan | NoPlan:
        """Whom to suspend, of the candidates."""
        request = self._request()
        return request if isinstance(request, NoPlan) else plan_seats(request)

    def why_not(self) -> str:
        """Why not to suspend just these."""
        request = self._request()
        return request.message if isinstance(request, NoPlan) else still_seats(request, self.candidates)

    def is_lost(self) -> bool:
        """Whether it lacks nodes with all gone that leave, and nobody is asked for any."""
        request = self._request()
        if isinstance(request, NoPlan) or request.may_lack:
            return False
        return isinstance(request.prospect.verdict(self.leaving), Lacks)

    def _request(self) -> SeatRequest | NoPlan:
        try:
            prospect = Prospect(self.line, self.gang.key)
        except KeyError:
            return _unforeseeable(self.gang.key, "it does not wait for nodes any more")
        return SeatRequest(
            gang=self.gang.key,
            gang_uid=self.gang.uid,
            cluster_queue=self.gang.held.cluster_queue,
            check=self.check,
            prospect=prospect,
            may_lack=prospect.claim.may_ask,
            candidates=self.candidates,
            leaving=self.leaving,
            refuse=self.refuse,
            limits=self.limits,
        )


def _is_to_be_served(standing: Standing) -> bool:
    return standing.lacks_nodes and standing.may_reuse and not standing.awaits_nodes


def _is_being_served(standing: Standing) -> bool:
    if isinstance(standing.verdict, Lacks):
        return standing.awaits_nodes
    return not (isinstance(standing.verdict, Waits) and standing.verdict.why is Waiting.SCATTERED)


def _holder(standing: Standing, sight: Sight) -> Workload | None:
    """The same Workload as Kueue's quota has it."""
    found = sight.snapshot.workload(standing.key)
    return found if found is not None and found.uid == standing.uid and found.reservation is not None else None


def _unforeseeable(gang: str, message: str) -> NoPlan:
    return NoPlan(gang=gang, why=Why.UNFORESEEABLE, message=message)


class _Same:
    """Equal only for the very same capacity."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._capacity is other._capacity

    __hash__ = None  # type: ignore[assignment]
