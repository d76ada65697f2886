"""Writes what becomes of plans: grants and the ledger, in the status of victims.

Laws:

* Grants are written before anything is done about them, and removed after it.
* Whoever is let go keeps its grant for a moment, withdrawn (`settling.py`): the answers turn active at once, and a 0
  that KEDA still writes on account of an earlier answer suspends nobody.
* The ledger moves by what is observed, one write per stage. What a plan asked for in vain is Cancelled.
* Every hand-over is told of once, when it is over. What was taken may be the gang's after all, as long as its plan, or
  the one that takes its place, goes on.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import structlog

from scaler.core.durations import format_duration
from scaler.core.grants import Course, Ending, Grant, Move
from scaler.core.ledger import Entry, Stage, advance, reopened
from scaler.core.reclaim import Candidate, Plan
from scaler.errors import KubeError
from scaler.kube.objects import ScalableWorkload
from scaler.loops.grant_writer import FindScalable, GrantWriter
from scaler.loops.granted import entry_status, grant_by, grant_of, grant_status, times_reclaimed
from scaler.loops.leadership import Api
from scaler.loops.plan_events import PlanEvents
from scaler.loops.reconciliation import Announcer
from scaler.loops.standing_plans import Member, StandingPlan, key_of

log = structlog.get_logger(__name__)


class Reallocation:
    """Everything that plans write. `finished` is told of every entry of the ledger that comes to an end."""

    def __init__(
        self,
        api: Api,
        find: FindScalable,
        announcer: Announcer,
        *,
        finished: Callable[[Entry], None] = lambda _: None,
        patience_seconds: float = 1.0,
    ) -> None:
        """`patience_seconds` is how long a tick waits to see what was written by the one before."""
        self._find = find
        self._finished = finished
        self.writer = GrantWriter(api, find, patience_seconds=patience_seconds)
        self.events = PlanEvents(announcer)

    # --------------------------------------------------------------------------------------------------------- grants

    async def grant(self, grant: Grant, plan: Plan) -> None:
        """Offer the plan to all its victims."""
        for victim in plan.victims:
            await self._offer(grant, victim)
        self.events.planned(grant, plan)

    async def _offer(self, grant: Grant, victim: Candidate) -> None:
        scalable = self._find(*key_of(victim.name))
        if scalable is None:
            return  # its grant is missing, and the next look at the plan calls it off
        entry = Entry(plan=grant.plan, gang=grant.gang, gpus=victim.gpus, reclaimable_at=grant.granted_at)
        status = {
            "grant": grant_status(grant),
            "reallocation": entry_status(entry, times=times_reclaimed(scalable)),
        }
        if await self.writer.write(scalable, status):
            self.events.granted(scalable, grant, victim.gpus)

    async def extend(self, plan: StandingPlan, *, until: datetime) -> StandingPlan:
        """The plan with more time."""
        grant = replace(plan.grant, expires_at=until)
        await self._rewrite(plan.holders, grant)
        return replace(plan, grant=grant)

    async def _rewrite(self, members: Sequence[Member], grant: Grant) -> None:
        async def rewrite(_: Member, scalable: ScalableWorkload) -> None:
            await self.writer.write(scalable, {"grant": grant_status(grant)})

        await self._each(members, rewrite)

    async def replace(self, plan: StandingPlan, found: Plan, step: Move, *, now: datetime, until: datetime) -> None:
        """Go on with another plan: who is suspended already stays so, and the new victims are asked."""
        keeps = [member for member in plan.members if member.victim.stays]
        victims = (*(member.name for member in keeps), *(victim.name for victim in found.victims))
        grant = replace(grant_by(found, at=now, until=until), victims=tuple(dict.fromkeys(victims)))

        await self._take_over(keeps, grant)
        for victim in found.victims:
            await self._offer(grant, victim)
        self.events.replanned(grant, plan.grant, step)
        await self._let_go([member for member in plan.holders if member.name not in grant.victims], step, now)

    async def hand_over(self, plan: StandingPlan, heir: Grant, now: datetime) -> None:
        """End a plan in whose place another was made: whom that names it keeps, as they are."""
        await self._take_over([member for member in plan.holders if member.name in heir.victims], heir)
        step = Move(course=Course.RELEASE, ending=Ending.NO_LONGER_HOLDS)
        await self._let_go([member for member in plan.holders if member.name not in heir.victims], step, now)

    async def _take_over(self, members: Sequence[Member], grant: Grant) -> None:
        async def take_over(member: Member, scalable: ScalableWorkload) -> None:
            status: dict[str, Any] = {"grant": grant_status(grant)}
            if member.entry is not None:
                status["reallocation"] = entry_status(reopened(member.entry, plan=grant.plan), times=member.times)
            await self.writer.write(scalable, status)

        await self._each(members, take_over)

    async def drop(self, plan: StandingPlan, names: Collection[str], step: Move, now: datetime) -> None:
        """Go on without these victims: they are wanted again, or not needed."""
        rest = [member for member in plan.holders if member.name not in names]
        grant = replace(plan.grant, victims=tuple(member.name for member in rest))
        await self._rewrite(rest, grant)
        await self._let_go([member for member in plan.holders if member.name in names], step, now)

    async def release(self, plan: StandingPlan, step: Move, now: datetime) -> None:
        """Call the plan off."""
        log.info("plan called off", plan=plan.grant.plan, gang=plan.grant.gang, because=str(step.ending))
        await self._let_go(plan.holders, step, now)
        self.events.called_off(plan.grant, step)

    async def _let_go(self, members: Sequence[Member], step: Move, now: datetime) -> None:
        async def let_go(member: Member, scalable: ScalableWorkload) -> None:
            entry = member.entry
            if entry is not None and not entry.stage.is_final:
                entry = replace(entry, stage=Stage.CANCELLED, ended_at=now)
            if await self._withdraw(member, scalable, entry):
                self.events.let_go(scalable, step)
                if entry is not None and entry.stage is Stage.TAKEN:
                    self._finished(entry)

        await self._each(members, let_go)

    async def _withdraw(self, member: Member, scalable: ScalableWorkload, entry: Entry | None) -> bool:
        """End the grant, and then ask for the workload where it was at 0. False for one that is gone."""
        own = grant_of(scalable)
        if own is None:
            return False
        status: dict[str, Any] = {"grant": grant_status(replace(own, expires_at=own.granted_at))}
        version = await self._settle(member, scalable, entry, status)
        if version and scalable.spec.replicas == 0:
            await self.writer.ask_for_one(scalable, version)
        return bool(version)

    # --------------------------------------------------------------------------------------------------------- ledger

    async def follow(self, plan: StandingPlan, *, taken_by: str = "", now: datetime) -> StandingPlan:
        """Write down where the GPUs are now; the plan with its ledger as it is then."""
        members = [await self._advanced(plan, member, taken_by=taken_by, now=now) for member in plan.members]
        return replace(plan, members=tuple(members))

    async def _advanced(self, plan: StandingPlan, member: Member, *, taken_by: str, now: datetime) -> Member:
        entry, scalable = member.entry, member.scalable
        if entry is None or scalable is None or not (member.has_grant and member.victim.has_given):
            return member
        # A thief may have gone again before its plan was made anew: what it took is the gang's after all.
        still = reopened(entry, plan=entry.plan) if entry.stage is Stage.TAKEN and not taken_by else entry
        moved = advance(still, plan.sight(member, taken_by=taken_by), now=now)
        if moved == entry:
            return member
        is_first = entry.releasing_at is None and moved.releasing_at is not None
        member = replace(member, times=member.times + is_first)
        await self._settle(member, scalable, moved)
        return replace(member, entry=moved)

    async def finish(self, plan: StandingPlan, step: Move, now: datetime) -> None:
        """The gang is admitted and has what was freed for it: the grants have done their work."""
        await self._let_go([member for member in plan.holders if member.name in step.about], step, now)
        givers = [member for member in plan.holders if member.victim.has_given]
        closed = {each.name: _closed(plan, each, now) for each in givers}

        async def end(member: Member, scalable: ScalableWorkload) -> None:
            entry = closed[member.name]
            if member.victim.stays:
                await self._settle(member, scalable, entry, {"grant": None})
            else:
                await self._withdraw(member, scalable, entry)

        await self._each(givers, end)
        entries = [entry for entry in closed.values() if entry is not None]
        took = max((each.took for each in entries if each.took), default=None)
        after = format_duration(timedelta(seconds=round(took.total_seconds()))) if took else ""
        self.events.admitted(plan.grant, list(closed), sum(each.gpus for each in entries), after)

    async def _settle(
        self,
        member: Member,
        scalable: ScalableWorkload,
        entry: Entry | None,
        status: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Write the member's status, with the entry where it is new; the version then, empty for one that is gone."""
        if entry is None or entry == member.entry:
            return await self.writer.write(scalable, status)
        ledger = {"reallocation": entry_status(entry, times=member.times)}
        version = await self.writer.write(scalable, {**status, **ledger})
        if version and entry.stage.is_final and entry.stage is not Stage.TAKEN:
            self._finished(entry)
        return version

    async def _each(
        self, members: Iterable[Member], act: Callable[[Member, ScalableWorkload], Awaitable[object]]
    ) -> None:
        """Do it for all of them, whether or not it fails for one. Raises: KubeError, the first one, in the end."""
        failure: KubeError | None = None
        for member in members:
            try:
                if member.scalable is not None:
                    await act(member, member.scalable)
            except KubeError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _closed(plan: StandingPlan, member: Member, now: datetime) -> Entry | None:
    """The member's entry at the end, even where pods of it still hold out."""
    if member.entry is None:
        return None
    return advance(member.entry, replace(plan.sight(member), gang_admitted=True), now=now)
