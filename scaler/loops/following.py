"""Sees plans through, from their grants to their gang's admission. Leader only.

Laws:

* Before any victim is deactivated the plan is put on trial again, with everything as it is then. If it does not hold
  any more, or is not needed any more, everybody is released. The last look, at verdicts and at the API itself, is taken
  after all computing is done.
* All victims are deactivated at once, and nobody who is not idle.
* Where quota, nodes or verdicts cannot be seen, nobody is suspended; what was begun stays as it is and goes on
  afterwards, but not beyond its time.
* Of two plans for one gang, which a leader leaves behind that ends while it replaces one by the other, the younger
  stands, and takes over what the older had.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from scaler.core.grants import Course, Ending, GangState, Move, Seeks, move
from scaler.core.reclaim import Candidate, NoPlan, Plan, Why
from scaler.core.reclaim_policy import OnTheft
from scaler.loops.aims import Aim
from scaler.loops.board import Board
from scaler.loops.planning import Planning, Sight
from scaler.loops.proposals import Proposals
from scaler.loops.quota_view import Blind
from scaler.loops.reallocation import Reallocation
from scaler.loops.reconciliation import Reconciler
from scaler.loops.standing_plans import StandingPlan, standing_plans

log = structlog.get_logger(__name__)


StandBack = Callable[[str, str], Awaitable[str]]
"""(key of a Workload, plan) → empty where it was told to give its quota back, and otherwise why not."""

_REPLANS = 2
"""How often one plan is made anew with more victims. Where newcomers take whatever is freed, going on would suspend
everybody who is idle, one after the other, for a gang that never gets in; after this many all are released instead."""
_HEARD_WITHIN = timedelta(seconds=5)
"""How long news of what was written here may take. Until then a plan whose victims are all deactivated looks as if some
were not, and, tried on what the others have freed already, as if it did not hold any more."""
_YIELDS_WITHIN = timedelta(seconds=10)
"""How long Kueue has to evict who was told to stand back; after that it is a thief like any other."""


@dataclass(kw_only=True)
class Following:
    """What is known of the standing plans, and what is done about them."""

    planning: Planning
    aims: Mapping[Seeks, Aim]
    board: Board
    reconciler: Reconciler
    reallocation: Reallocation
    proposals: Proposals
    stand_back: StandBack | None = None
    """Where our AdmissionCheck guards queues: lets a newcomer yield once. None where nothing does."""
    _at_zero: frozenset[tuple[str, str]] = field(default=frozenset(), init=False)
    """(plan, victim) that have been seen at 0: whoever is at 1 again after that was asked for."""
    _replanned: Counter[str] = field(default_factory=Counter, init=False)
    """How often the plan of a gang was made anew, by the gang's uid."""
    _deactivated: dict[str, datetime] = field(default_factory=dict, init=False)
    """By plan, until when it may not have been heard of that its victims were deactivated here."""
    _standing_back: dict[tuple[str, str], datetime] = field(default_factory=dict, init=False)
    """By plan and thief, until when it has time to give back what it was told to."""

    def standing(self) -> list[StandingPlan]:
        """The plans as they stand now, by verdicts that may be believed."""
        evaluation = None if self.planning.unjudged else self.board.evaluation
        standing = standing_plans(self.planning.cluster, evaluation, seen_at_zero=self._at_zero)
        members = [(plan.grant.plan, member) for plan in standing for member in plan.members]
        self._at_zero = frozenset(
            (plan, member.name)
            for plan, member in members
            if member.victim.is_wanted_at_zero or (plan, member.name) in self._at_zero
        )
        self._forget_others(standing)
        return standing

    def _forget_others(self, standing: Sequence[StandingPlan]) -> None:
        """Forget what was noted of plans and gangs that are none any more."""
        plans, gangs = {each.grant.plan for each in standing}, {each.grant.gang_uid for each in standing}
        self._replanned = Counter({uid: count for uid, count in self._replanned.items() if uid in gangs})
        self._standing_back = {key: until for key, until in self._standing_back.items() if key[0] in plans}
        self._deactivated = {plan: until for plan, until in self._deactivated.items() if plan in plans}
        for aim in self.aims.values():
            aim.forget_others(plans)

    async def follow(
        self, plan: StandingPlan, standing: Sequence[StandingPlan], sight: Sight | Blind, now: datetime
    ) -> None:
        """Do what is to be done about one of the standing plans. Raises: KubeError; try again later."""
        heir = next((each for each in standing if _supersedes(each, plan)), None)
        if heir is not None:
            await self.reallocation.hand_over(plan, heir.grant, now)
        elif not any(_supersedes(plan, each) for each in standing):
            await self._carry_on(plan, sight, now)

    async def _carry_on(self, plan: StandingPlan, sight: Sight | Blind, now: datetime) -> None:
        plan = await self._with_its_time(plan)
        step = move(plan.grant, plan.gang_state, plan.victims, now=now)
        thief = await self._thief(plan, step, sight)
        if thief and await self._stands_back(thief, plan, now):
            thief = ""  # it gives its piece back, and the gang goes first
        plan = await self.reallocation.follow(plan, taken_by=thief, now=now)
        if thief:
            self.reallocation.events.taken(plan, thief)
            step = Move(course=Course.RECONSIDER, ending=Ending.WAS_TAKEN)
        elif await self._is_lost(plan, step, sight):
            step = Move(course=Course.RECONSIDER, ending=Ending.NODES_TAKEN)
        await self._take(step, plan, sight, now)

    async def _take(self, step: Move, plan: StandingPlan, sight: Sight | Blind, now: datetime) -> None:
        match step.course:
            case Course.WAIT:
                return
            case Course.FINISH if plan.is_handed_over or now >= plan.grant.expires_at:
                await self.reallocation.finish(plan, step, now)
            case Course.WATCH | Course.FINISH:
                if step.about:
                    await self.reallocation.drop(plan, step.about, step, now)
            case Course.COMMIT:
                await self._commit(plan, sight, now)
            case Course.RECONSIDER:
                await self._reconsider(plan, step, sight, now)
            case Course.RELEASE:
                await self._release(plan, step, now)

    async def _with_its_time(self, plan: StandingPlan) -> StandingPlan:
        """The plan with as much time for its gang as every plan has, from its last deactivation on."""
        last = max(plan.deactivated_at, default=None)
        if last is None:
            return plan
        until = _whole(last + self.planning.policy.grant_for)
        return await self.reallocation.extend(plan, until=until) if until > plan.grant.expires_at else plan

    async def _commit(self, plan: StandingPlan, sight: Sight | Blind, now: datetime) -> None:
        """Deactivate every victim that is still active, all at once."""
        seen = self._seen(plan, sight)
        if seen is None or now < self._deactivated.get(plan.grant.plan, now):
            return
        why = await self._why_not(plan, seen)
        if why:
            log.info("plan does not hold any more", plan=plan.grant.plan, because=why)
            step = Move(course=Course.RELEASE, ending=Ending.NO_LONGER_HOLDS)
            await (self._reconsider(plan, step, seen, now) if plan.is_begun else self._release(plan, step, now))
            return
        ready = [each.scalable for each in plan.holders if each.scalable is not None and not each.is_deactivated]
        is_so = await self.reallocation.writer.still_stands(ready, plan.grant.plan)
        if not is_so or not self._is_still_due(plan, now):
            return  # somebody has asked for one of them a moment ago: the next tick sees that, too
        await asyncio.gather(*(self.reconciler.suspend(each.metadata.key) for each in ready))
        self._deactivated[plan.grant.plan] = now + _HEARD_WITHIN

    def _seen(self, plan: StandingPlan, sight: Sight | Blind) -> Sight | None:
        """The sight, where it says enough to foresee what becomes of the gang; else what was begun stays as it is."""
        if isinstance(sight, Blind):
            return None
        gang = sight.snapshot.workload(plan.grant.gang)
        return sight if gang is None or self._aim(plan).is_foreseeable(sight, gang) else None

    def _aim(self, plan: StandingPlan) -> Aim:
        return self.aims[plan.grant.seeks]

    def _is_still_due(self, plan: StandingPlan, now: datetime) -> bool:
        """Whether it is to be carried out by what is known at this very moment."""
        found = next((each for each in self.standing() if each.grant.plan == plan.grant.plan), None)
        if found is None or {member.name for member in found.members} != {member.name for member in plan.members}:
            return False
        return move(found.grant, found.gang_state, found.victims, now=now).course is Course.COMMIT

    async def _why_not(self, plan: StandingPlan, sight: Sight) -> str:
        """Why the plan is not to be carried out, with everything as it is now; empty where it is."""
        gang = sight.snapshot.workload(plan.grant.gang)
        if gang is None:
            return "the gang is not known any more"
        return await self._aim(plan).why_not(plan, sight, gang, self._willing(plan, sight))

    def _willing(self, plan: StandingPlan, sight: Sight) -> list[Candidate]:
        """Those of its victims that still hold their quota, and may be taken."""
        willing = [each for each in plan.holders if each.is_idle and not (each.is_deactivated or each.was_set_back)]
        found = [self.planning.victim(sight, each.workload_key, each.name) for each in willing]
        return [each for each in found if each is not None]

    async def _reconsider(self, plan: StandingPlan, step: Move, sight: Sight | Blind, now: datetime) -> None:
        """After victims were deactivated: is the gang served without the others, or what else would do?"""
        seen = self._seen(plan, sight)
        if seen is None:
            if now >= plan.grant.expires_at:  # nobody stays suspended for a gang that has had its time
                await self._release(plan, step, now)
            return
        if step.ending is Ending.NOT_RESERVED and not step.about and self._aim(plan).is_being_served(plan, seen):
            await self.reallocation.extend(plan, until=_whole(now + self.planning.policy.grant_for))
            return
        self.proposals.learn(step, now)
        gang = seen.snapshot.workload(plan.grant.gang)
        candidates = [*seen.idlers.candidates, *self._willing(plan, seen)]
        aim = self._aim(plan)
        found = await self.proposals.propose(aim, seen, gang, candidates) if gang is not None else None
        if isinstance(found, Plan) and self._replanned[plan.grant.gang_uid] < _REPLANS:
            self._replanned[plan.grant.gang_uid] += 1
            await self.reallocation.replace(plan, found, step, now=now, until=now + self.planning.policy.grant_for)
        elif isinstance(found, NoPlan) and found.why is Why.FITS_ALREADY and step.ending is not Ending.NOT_RESERVED:
            others = [member.name for member in plan.holders if not member.victim.stays]
            await self.reallocation.drop(plan, others, step, now)
        else:
            await self._release(plan, step, now)

    async def _release(self, plan: StandingPlan, step: Move, now: datetime) -> None:
        """Let everybody go who is held for the plan, and wake who was suspended for it."""
        was_in_vain = plan.is_begun and step.ending in {Ending.NOT_RESERVED, Ending.NODES_TAKEN}
        rest = self.proposals.rest_long if was_in_vain else self.proposals.rest
        rest(plan.grant.gang_uid, plan.grant.seeks, now)
        self.proposals.learn(step, now)
        await self.reallocation.release(plan, step, now)

    async def _is_lost(self, plan: StandingPlan, step: Move, sight: Sight | Blind) -> bool:
        """Whether others have come between, so that the gang does not fit any more."""
        return _is_exposed(plan, step) and not isinstance(sight, Blind) and await self._aim(plan).is_lost(plan, sight)

    async def _thief(self, plan: StandingPlan, step: Move, sight: Sight | Blind) -> str:
        """A third Workload that got a piece of what the plan has freed, so that the gang does not fit any more."""
        if not _is_exposed(plan, step) or isinstance(sight, Blind):
            return ""
        return await self._aim(plan).thief(plan, sight)

    async def _stands_back(self, thief: str, plan: StandingPlan, now: datetime) -> bool:
        """Whether the thief gives back what it got, because operators want that and our check can have it done."""
        if self.planning.policy.on_theft is not OnTheft.YIELD or self.stand_back is None:
            return False
        key = plan.grant.plan, thief
        if key not in self._standing_back:
            why_not = await self.stand_back(thief, plan.grant.plan)
            if why_not:
                log.info("a thief does not stand back", plan=plan.grant.plan, thief=thief, because=why_not)
                return False
            self._standing_back[key] = now + _YIELDS_WITHIN
            self.reallocation.events.yields(plan, thief)
        return now < self._standing_back[key]


def _is_exposed(plan: StandingPlan, step: Move) -> bool:
    """Whether everything is freed, and the gang has not got it yet."""
    return step.course is Course.WATCH and plan.gang_state is GangState.WAITING


def _whole(at: datetime) -> datetime:
    """In whole seconds, which are all that the API keeps."""
    return at.replace(microsecond=0)


def _supersedes(one: StandingPlan, other: StandingPlan) -> bool:
    """Whether the one is for the same gang, and younger."""
    first, second = one.grant, other.grant
    return first.gang_uid == second.gang_uid and (first.granted_at, first.plan) > (second.granted_at, second.plan)
