"""Makes plans for gangs that wait, and sees them through. Leader only.

Laws:

* Read → plan (pure) → re-check → act → observe. Every write carries the resourceVersion that it was decided upon.
* Before the first victim is deactivated the plan is put on trial again, with everything as it is then. If it does not
  hold any more, or is not needed any more, everybody is released.
* One plan per quota tree at a time: two would each count on what the other frees.
* What was given up in vain is not asked for again at once: victims that woke and gangs whose plan failed have to wait.
* Where quota or verdicts cannot be seen, nothing new is begun, and what is begun is seen through.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from scaler.core.grants import Course, Ending, GangState, Grant, Move, move
from scaler.core.quota.model import Workload
from scaler.core.reclaim import Candidate, NoPlan, Plan, Why, still_holds
from scaler.core.reclaim_policy import Unprotected
from scaler.errors import KubeError
from scaler.loops.board import Board
from scaler.loops.planning import Planning, Sight
from scaler.loops.quota_view import Blind
from scaler.loops.reallocation import Reallocation
from scaler.loops.reconciliation import Reconciler, is_conflict
from scaler.loops.standing_plans import StandingPlan, standing_plans, victims_of

log = structlog.get_logger(__name__)

_GANGS_PER_TREE = 4
"""Gangs of one tree that are planned for in one tick: those that wait longest at the highest priority come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What one tick found, for telemetry and the status pages."""

    at: datetime
    blind: str = ""
    """Why nothing could be planned; empty where it could."""
    standing: tuple[StandingPlan, ...] = ()
    made: tuple[Plan, ...] = ()
    refused: tuple[NoPlan, ...] = ()
    reclaimable_gpus: int = 0
    """Of all candidates."""


@dataclass
class Pressure:
    """The loop's parts. `observe` is told of every tick."""

    planning: Planning
    board: Board
    reconciler: Reconciler
    reallocation: Reallocation
    interval: timedelta = timedelta(seconds=5)
    observe: Callable[[Outlook], None] = lambda _: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    outlook: Outlook | None = field(default=None, init=False)
    """Of the latest tick."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _not_before: dict[str, datetime] = field(default_factory=dict, init=False)
    """By uid of a gang, or name of a victim: when it may be part of a plan again."""
    _refused: dict[str, tuple[Hashable, NoPlan]] = field(default_factory=dict, init=False)
    """By uid of a gang, what was found for it, and on what: most ticks find the same things again."""

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and as soon as something is heard that a plan waits for."""
        while True:
            self._wake.clear()
            try:
                await self.tick(self.clock())
            except KubeError as error:
                tell = log.debug if is_conflict(error) else log.warning
                tell("a plan could not be carried on", error=str(error))
            except Exception:
                log.exception("planning broke")
            try:
                async with asyncio.timeout(self.interval.total_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """Something has changed that a plan may wait for."""
        self._wake.set()

    async def tick(self, now: datetime) -> Outlook:
        """See the standing plans through, then make new ones."""
        standing = standing_plans(self.planning.cluster, self.board.evaluation)
        sight = self.planning.look(now)
        for plan in standing:
            await self._follow(plan, sight, now)
        found = await self._new_plans(sight, standing) if isinstance(sight, Sight) else []
        self.outlook = Outlook(
            at=now,
            blind=sight.reason if isinstance(sight, Blind) else "",
            standing=tuple(standing),
            made=tuple(each for each in found if isinstance(each, Plan)),
            refused=tuple(each for each in found if isinstance(each, NoPlan)),
            reclaimable_gpus=sum(each.gpus for each in sight.idlers.candidates) if isinstance(sight, Sight) else 0,
        )
        self.observe(self.outlook)
        return self.outlook

    # ------------------------------------------------------------------------------------------------------ new plans

    async def _new_plans(self, sight: Sight, standing: Sequence[StandingPlan]) -> list[Plan | NoPlan]:
        """For every tree without a plan, one for the first gang that has one; and what was found for those before."""
        if not self.planning.policy.pressure:
            return []
        waiting = frozenset(gang.uid for gang in sight.gangs)
        self.reallocation.forget_others(waiting)
        self._refused = {uid: known for uid, known in self._refused.items() if uid in waiting}
        busy = {self._root(sight, plan.grant.gang) for plan in standing}
        answers: list[Plan | NoPlan] = []
        looked_at: Counter[str] = Counter()
        for gang in sight.gangs:
            root = self._root(sight, gang.key)
            if root in busy or looked_at[root] >= _GANGS_PER_TREE or not self._is_due(gang.uid, sight.now):
                continue
            looked_at[root] += 1
            found = await self._plan(sight, gang, victims_of(standing))
            answers.append(found)
            if isinstance(found, Plan):
                busy.add(root)
                await self._grant(found, sight.now)
            else:
                self.reallocation.tell_refusal(gang, found)
        return answers

    def _is_due(self, name: str, now: datetime) -> bool:
        return self._not_before.get(name, now) <= now

    def _root(self, sight: Sight, gang: str) -> str:
        workload = sight.snapshot.workload(gang)
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(workload)) if workload is not None else None
        return tree.root.name if tree is not None else ""

    async def _plan(self, sight: Sight, gang: Workload, taken: frozenset[str]) -> Plan | NoPlan:
        candidates = [
            each for each in sight.idlers.candidates if each.name not in taken and self._is_due(each.name, sight.now)
        ]
        seen = self._fingerprint(sight, gang, candidates)
        known = self._refused.get(gang.uid)
        if known is not None and known[0] == seen:
            return known[1]
        found = await self.planning.plan(sight, gang, candidates)
        if isinstance(found, NoPlan):
            self._refused[gang.uid] = (seen, found)
        if isinstance(found, Plan) and self.planning.policy.unprotected is Unprotected.REFUSE:
            exposed = next((each for each in found.cautions if each.reason == Why.UNPROTECTED), None)
            if exposed is not None:
                return NoPlan(gang=gang.key, why=Why.UNPROTECTED, message=exposed.message)
        return found

    def _fingerprint(self, sight: Sight, gang: Workload, candidates: Sequence[Candidate]) -> Hashable:
        """Equal only while the same answer is to be expected: budgets change with time, and by the minute is enough."""
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang))
        version = sight.snapshot.version(tree) if tree is not None else 0
        idle = frozenset(each.name for each in candidates)
        return version, idle, sight.idlers.leaving, sight.now.replace(second=0, microsecond=0)

    async def _grant(self, plan: Plan, now: datetime) -> None:
        """Offer the plan to its victims. Where one of them has changed meanwhile, the next tick calls it off."""
        grant = Grant(
            plan=plan.id,
            gang=plan.gang,
            gang_uid=plan.gang_uid,
            victims=tuple(victim.name for victim in plan.victims),
            granted_at=now,
            expires_at=now + self.planning.policy.grant_for,
        )
        self._not_before[plan.gang_uid] = now + self.planning.policy.replan_backoff
        await self.reallocation.grant(grant, plan)

    # ------------------------------------------------------------------------------------------------- standing plans

    async def _follow(self, plan: StandingPlan, sight: Sight | Blind, now: datetime) -> None:
        step = move(plan.grant, plan.gang_state, plan.victims, now=now)
        thief = await self._thief(plan, step, sight)
        await self.reallocation.follow(plan, taken_by=thief, now=now)
        if thief:
            self.reallocation.tell_theft(plan, thief)
            step = Move(course=Course.RECONSIDER, ending=Ending.WAS_TAKEN, about=(thief,))
        match step.course:
            case Course.WAIT | Course.WATCH:
                return
            case Course.FINISH:
                await self.reallocation.finish(plan, now)
            case Course.COMMIT:
                await self._commit(plan, sight, now)
            case Course.RECONSIDER:
                await self._reconsider(plan, step, sight, now)
            case Course.RELEASE:
                await self._release(plan, step, now)

    async def _commit(self, plan: StandingPlan, sight: Sight | Blind, now: datetime) -> None:
        """Deactivate every victim that is still active, all at once."""
        if not plan.is_begun:
            if isinstance(sight, Blind):
                return
            why = await self._why_not(plan, sight)
            if why:
                log.info("plan called off", plan=plan.grant.plan, because=why)
                await self._release(plan, Move(course=Course.RELEASE, ending=Ending.NO_LONGER_HOLDS), now)
                return
        pending = [member.scalable for member in plan.members if member.scalable and not member.is_deactivated]
        if not all(await asyncio.gather(*(self.reconciler.is_wanted_at_zero(each) for each in pending))):
            return  # somebody has asked for it a moment ago: the next tick sees that, too
        await asyncio.gather(*(self.reconciler.suspend(each.metadata.key) for each in pending))
        await self.reallocation.extend(plan, until=now + self.planning.policy.grant_for)

    async def _why_not(self, plan: StandingPlan, sight: Sight) -> str:
        """Why the plan is not to be carried out, with everything as it is now; empty where it is."""
        gang = sight.snapshot.workload(plan.grant.gang)
        if gang is None:
            return "the gang is not known any more"
        request = self.planning.request(sight, gang, ())
        if isinstance(request, NoPlan):
            return request.message
        victims = [
            victim
            for member in plan.members
            if (victim := self.planning.victim(sight, member.workload_key, "/".join(member.key))) is not None
        ]
        return await asyncio.to_thread(still_holds, request, victims)

    async def _reconsider(self, plan: StandingPlan, step: Move, sight: Sight | Blind, now: datetime) -> None:
        """After victims were deactivated: is the gang served without the one that woke, or what else would do?"""
        if isinstance(sight, Blind):
            return
        gang = sight.snapshot.workload(plan.grant.gang)
        found = await self._plan(sight, gang, victims_of([plan])) if gang is not None else None
        if isinstance(found, Plan):
            await self.reallocation.replace(plan, found, step, now=now, until=now + self.planning.policy.grant_for)
        elif found is not None and found.why is Why.FITS_ALREADY and step.ending is Ending.VICTIM_WOKE:
            await self.reallocation.drop(plan, step, now)
        else:
            await self._release(plan, step, now)

    async def _release(self, plan: StandingPlan, step: Move, now: datetime) -> None:
        """Let everybody go who is held for the plan, and wake who was suspended for it."""
        policy = self.planning.policy
        # Whoever KEDA did not bring to 0 (paused, another trigger, a long cooldown) it will not bring there next time.
        stubborn = policy.grant_for if step.ending is Ending.GRANT_EXPIRED else policy.replan_backoff
        self._not_before[plan.grant.gang_uid] = now + policy.replan_backoff
        self._not_before |= dict.fromkeys(step.about, now + stubborn)
        await self.reallocation.release(plan, step, now)

    async def _thief(self, plan: StandingPlan, step: Move, sight: Sight | Blind) -> str:
        """A third Workload that got a piece of what the plan has freed, so that the gang does not fit any more."""
        if isinstance(sight, Blind) or step.course is not Course.WATCH or plan.gang_state is not GangState.WAITING:
            return ""
        newcomers = self.reallocation.newcomers(plan, sight.snapshot)
        gang = sight.snapshot.workload(plan.grant.gang)
        if not newcomers or gang is None:
            return ""
        found = await self.planning.plan(sight, gang, ())
        return "" if isinstance(found, NoPlan) and found.why is Why.FITS_ALREADY else newcomers[0]
