"""Executes plans, from their grants to the admission of their gang. Leader only.

Laws:

* Before any victim is deactivated the plan is revalidated against the current state. If it is not valid or not needed
  any more, all victims are released. Verdicts and the API itself are read once more after all computing is done.
* All victims are deactivated at once, and none that is not idle.
* Where quota, nodes or verdicts are not known, no workload is suspended; what was begun stays as it is and continues
  afterwards, but not beyond its time.
* Of two plans for one gang, which a leader leaves behind that ends while it replaces one by the other, the younger
  stands, and takes over what the older had.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.active_plans import ActivePlan, active_plans
from scaler.reclaim.planner import Planner, PlanningSnapshot, ReclaimConfig, Unprotected
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.targets import PlanTarget, fits_already
from scaler.reclaim.transitions import GangState, PlanAction, PlanEndReason, PlanTransition, next_transition
from scaler.reclaim.writer import PlanWriter
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets.target_state import Seeks

log = structlog.get_logger(__name__)


_REPLANS = 2
"""How often one plan is replaced by one with more victims. Where other Workloads are admitted into whatever is freed,
more replacements would suspend all idle workloads, one after the other, for a gang that is never admitted."""
_LOST = {Seeks.QUOTA: PlanEndReason.QUOTA_TAKEN, Seeks.NODES: PlanEndReason.NODES_TAKEN}


_LONGEST_REST = timedelta(hours=6)
_DOUBLINGS = 10
_Gang = tuple[str, Seeks]
"""Its uid and what it lacks: one that got its quota by a plan may get nodes by another."""


@dataclass
class PlanBackoff:
    """Plans for single gangs, neither computed twice on the same state, nor too soon. In memory only: after a restart
    all is tried anew.

    What was given up in vain is not asked for again at once. A victim that woke is left alone for a while, and so is
    one that KEDA does not bring to 0; a gang whose plan failed waits before others are asked in its stead, and ever
    longer where plans for it were carried out in vain: else idle workloads would be suspended for it again and again.
    """

    policy: ReclaimConfig
    _not_before: dict[str | _Gang, datetime] = field(default_factory=dict, init=False)
    """When each gang or victim may be part of a plan again."""
    _in_vain: Counter[_Gang] = field(default_factory=Counter, init=False)
    """How often victims were suspended and woken again without any use."""
    _refused: dict[str, tuple[object, NoPlan]] = field(default_factory=dict, init=False)
    """What was found for a gang, and on what, by its uid: most ticks find the same things again."""

    async def propose(
        self, target: PlanTarget, state: PlanningSnapshot, gang: QuotaWorkload, given: Sequence[Candidate]
    ) -> ReclaimPlan | NoPlan:
        """The plan for the gang, of these candidates but for those that are left alone for a while."""
        if (known := self.refusal(target, state, gang, given)) is not None:
            return known
        candidates = self._due(given, state)
        seen = self._seen(target, state, gang, candidates)
        found = await target.plan(state, gang, candidates)
        if isinstance(found, NoPlan):
            self._refused[gang.uid] = (seen, found)
        elif self.policy.unprotected is Unprotected.REFUSE:
            exposed = next((each for each in found.cautions if each.reason == NoPlanReason.UNPROTECTED), None)
            if exposed is not None:
                return NoPlan(gang=gang.key, why=NoPlanReason.UNPROTECTED, message=exposed.message)
        return found

    def refusal(
        self, target: PlanTarget, state: PlanningSnapshot, gang: QuotaWorkload, given: Sequence[Candidate]
    ) -> NoPlan | None:
        """What was found for the gang on the same state before; None where it has to be computed."""
        known = self._refused.get(gang.uid)
        is_same = known is not None and known[0] == self._seen(target, state, gang, self._due(given, state))
        return known[1] if known is not None and is_same else None

    def _due(self, given: Sequence[Candidate], state: PlanningSnapshot) -> list[Candidate]:
        return [each for each in given if self.is_due(each.name, state.now)]

    def _seen(
        self, target: PlanTarget, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Sequence[Candidate]
    ) -> object:
        return target, target.inputs(state, gang), fingerprint(state, candidates)

    def is_due(self, name: str | _Gang, now: datetime) -> bool:
        """Whether the victim of that name may be part of a plan, or a plan may be made for that gang."""
        return self._not_before.get(name, now) <= now

    def back_off(self, gang_uid: str, seeks: Seeks, now: datetime, *, was_in_vain: bool = False) -> None:
        """The next plan waits: as long as a plan has where one was carried out in vain, then twice that, and so on."""
        gang, pause = (gang_uid, seeks), self.policy.replan_backoff
        if was_in_vain:
            rest = self.policy.grant_for * 2 ** min(self._in_vain[gang], _DOUBLINGS)
            pause = max(pause, min(rest, _LONGEST_REST))
            self._in_vain[gang] += 1
        self._put_off([gang], now + pause, now)

    def back_off_victims(self, step: PlanTransition, now: datetime) -> None:
        policy = self.policy
        # What KEDA did not scale to 0 (paused, another trigger, a long cooldown) it will not scale to 0 the next time.
        is_stubborn = step.ending in {PlanEndReason.GRANT_EXPIRED, PlanEndReason.NOT_RESERVED}
        self._put_off(step.about, now + (policy.grant_for if is_stubborn else policy.replan_backoff), now)

    def _put_off(self, names: Collection[str | _Gang], until: datetime, now: datetime) -> None:
        self._not_before = {name: due for name, due in self._not_before.items() if due > now}
        self._not_before |= dict.fromkeys(names, until)

    @property
    def gangs(self) -> frozenset[str]:
        """Uids of those that anything is remembered of."""
        return frozenset(self._refused).union(uid for uid, _ in self._in_vain)

    def forget_others(self, uids: Collection[str]) -> None:
        self._refused = {uid: known for uid, known in self._refused.items() if uid in uids}
        self._in_vain = Counter({gang: times for gang, times in self._in_vain.items() if gang[0] in uids})


def fingerprint(state: PlanningSnapshot, candidates: Sequence[Candidate]) -> object:
    """Equal only while the same answer is to be expected: budgets change with time, and by the minute is enough."""
    idle = frozenset(each.name for each in candidates)
    return idle, state.leaving, state.now.replace(second=0, microsecond=0)


@dataclass(kw_only=True)
class PlanExecutor:
    planning: Planner
    targets: Mapping[Seeks, PlanTarget]
    reconciler: SuspensionReconciler
    writer: PlanWriter
    backoff: PlanBackoff = field(init=False)
    _at_zero: frozenset[tuple[str, str]] = field(default=frozenset(), init=False)
    """(plan, victim) that were seen at 0: one that is at 1 after that was scaled up for another reason."""
    _replanned: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.backoff = PlanBackoff(self.planning.policy)

    def active(self) -> list[ActivePlan]:
        evaluation = None if self.planning.unjudged else self.planning.decisions.evaluation
        active = active_plans(
            self.planning.cluster,
            evaluation,
            seen_at_zero=self._at_zero,
            nominations=self.planning.nominations(),
        )
        victims = [(plan.grant.plan, victim) for plan in active for victim in plan.victims]
        self._at_zero = frozenset(
            (plan, victim.name)
            for plan, victim in victims
            if victim.is_wanted_at_zero or (plan, victim.name) in self._at_zero
        )
        gangs = {each.grant.gang_uid for each in active}
        self._replanned = Counter({uid: count for uid, count in self._replanned.items() if uid in gangs})
        return active

    def permitted(self, found: ReclaimPlan | NoPlan) -> ReclaimPlan | NoPlan:
        """The plan, whose victims count in their budgets from now on; none where these have no room any more.

        Others may have spent them while the plan was found.
        """
        if isinstance(found, NoPlan):
            return found
        refused = self.planning.policy_budgets.refuses_plan([each.member for each in found.victims])
        if refused is None:
            return found
        return NoPlan(gang=found.gang, why=NoPlanReason.BUDGET_EXHAUSTED, message=refused.words, budget=refused.budget)

    async def carry_out(
        self, plan: ActivePlan, active: Sequence[ActivePlan], state: PlanningSnapshot | NotSynced, now: datetime
    ) -> ReclaimPlan | None:
        """Do what is to be done about one of the active plans; the plan by which it is replaced, if there is one.

        Raises: KubeError; try again later.
        """
        successor = next((each for each in active if _supersedes(each, plan)), None)
        if successor is not None:
            await self.writer.hand_over(plan, successor.grant, now)
        elif not any(_supersedes(plan, each) for each in active):
            return await self._carry_on(plan, state, now)
        return None

    async def _carry_on(
        self, plan: ActivePlan, state: PlanningSnapshot | NotSynced, now: datetime
    ) -> ReclaimPlan | None:
        plan = await self._with_its_time(plan)
        step = next_transition(plan.grant, plan.gang_state, plan.victims, now=now)
        plan = await self.writer.record(plan, now=now)
        if await self._is_lost(plan, step, state):
            step = PlanTransition(action=PlanAction.RECONSIDER, ending=_LOST[plan.grant.seeks])
        return await self._take(step, plan, state, now)

    async def _take(
        self, step: PlanTransition, plan: ActivePlan, state: PlanningSnapshot | NotSynced, now: datetime
    ) -> ReclaimPlan | None:
        match step.action:
            case PlanAction.WAIT:
                pass
            case PlanAction.FINISH if plan.is_handed_over or now >= plan.grant.expires_at:
                await self.writer.finish(plan, step, now)
            case PlanAction.WATCH | PlanAction.FINISH:
                if step.about:
                    await self.writer.drop(plan, step.about, step, now)
            case PlanAction.COMMIT:
                return await self._commit(plan, state, now)
            case PlanAction.RECONSIDER:
                return await self._reconsider(plan, step, state, now)
            case PlanAction.RELEASE:
                await self._release(plan, step, now)
        return None

    async def _with_its_time(self, plan: ActivePlan) -> ActivePlan:
        """The plan with as much time for its gang as every plan has, from its last deactivation on."""
        last = max(plan.deactivated_at, default=None)
        if last is None:
            return plan
        until = _whole(last + self.planning.policy.grant_for)
        return await self.writer.extend(plan, until=until) if until > plan.grant.expires_at else plan

    async def _commit(self, plan: ActivePlan, state: PlanningSnapshot | NotSynced, now: datetime) -> ReclaimPlan | None:
        seen = self._seen(plan, state)
        if seen is None:
            return None
        gang, why = seen.snapshot.workload(plan.grant.gang), "the gang is not known any more"
        if gang is not None:
            why = await self._target(plan).why_not(plan, seen, gang, self._willing(plan, seen))
        if why:
            log.info("plan is not valid any more", plan=plan.grant.plan, because=why)
            step = PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.NO_LONGER_HOLDS)
            if plan.is_begun:
                return await self._reconsider(plan, step, seen, now)
            await self._release(plan, step, now)
            return None
        ready = [each.scalable for each in plan.holders if each.scalable and not each.is_deactivated]
        is_so = await self.writer.grants.is_unchanged(ready, plan.grant.plan)
        if not is_so or not self._is_still_due(plan, now):
            return None  # one of them was scaled up or annotated a moment ago: the next tick sees that, too
        await asyncio.gather(*(self.reconciler.suspend(each.metadata.key) for each in ready))
        return None

    def _seen(self, plan: ActivePlan, state: PlanningSnapshot | NotSynced) -> PlanningSnapshot | None:
        """The state, where it says enough to foresee what becomes of the gang; else what was begun stays as it is."""
        if isinstance(state, NotSynced):
            return None
        gang = state.snapshot.workload(plan.grant.gang)
        return state if gang is None or self._target(plan).is_foreseeable(state, gang) else None

    def _target(self, plan: ActivePlan) -> PlanTarget:
        return self.targets[plan.grant.seeks]

    def _is_still_due(self, plan: ActivePlan, now: datetime) -> bool:
        found = next((each for each in self.active() if each.grant.plan == plan.grant.plan), None)
        if found is None or {victim.name for victim in found.victims} != {victim.name for victim in plan.victims}:
            return False
        return next_transition(found.grant, found.gang_state, found.victims, now=now).action is PlanAction.COMMIT

    def _willing(self, plan: ActivePlan, state: PlanningSnapshot) -> list[Candidate]:
        willing = [each for each in plan.holders if each.is_willing]
        found = [self.planning.victim(state, each.workload_key, each.name) for each in willing]
        return [each for each in found if each is not None]

    async def _reconsider(
        self, plan: ActivePlan, step: PlanTransition, state: PlanningSnapshot | NotSynced, now: datetime
    ) -> ReclaimPlan | None:
        """Whether the gang is served without the remaining victims, and which plan would do instead if not."""
        seen = self._seen(plan, state)
        if seen is None:
            if now >= plan.grant.expires_at:  # no workload stays suspended for a gang whose time is up
                await self._release(plan, step, now)
            return None
        if (
            step.ending is PlanEndReason.NOT_RESERVED
            and not step.about
            and self._target(plan).is_being_served(plan, seen)
        ):
            await self.writer.extend(plan, until=_whole(now + self.planning.policy.grant_for))
            return None
        self.backoff.back_off_victims(step, now)
        gang = seen.snapshot.workload(plan.grant.gang)
        candidates = [*seen.candidates, *self._willing(plan, seen)]
        found = await self.backoff.propose(self._target(plan), seen, gang, candidates) if gang is not None else None
        if found is not None and self._replanned[plan.grant.gang_uid] < _REPLANS:
            found = self.permitted(found)
        if isinstance(found, ReclaimPlan) and self._replanned[plan.grant.gang_uid] < _REPLANS:
            self._replanned[plan.grant.gang_uid] += 1
            until = now + found.hooks_take + self.planning.policy.grant_for
            await self.writer.replace(plan, found, step, now=now, until=until)
            return found
        if fits_already(found) and step.ending is not PlanEndReason.NOT_RESERVED:
            others = [victim.name for victim in plan.holders if not victim.stays]
            await self.writer.drop(plan, others, step, now)
        else:
            await self._release(plan, step, now)
        return None

    async def _release(self, plan: ActivePlan, step: PlanTransition, now: datetime) -> None:
        was_in_vain = plan.is_begun and step.ending in {PlanEndReason.NOT_RESERVED, PlanEndReason.NODES_TAKEN}
        self.backoff.back_off(plan.grant.gang_uid, plan.grant.seeks, now, was_in_vain=was_in_vain)
        self.backoff.back_off_victims(step, now)
        await self.writer.release(plan, step, now)

    async def _is_lost(self, plan: ActivePlan, step: PlanTransition, state: PlanningSnapshot | NotSynced) -> bool:
        """Whether everything is freed, and the gang does not fit any more, because other Workloads came between."""
        if step.action is not PlanAction.WATCH or plan.gang_state is not GangState.WAITING:
            return False
        return not isinstance(state, NotSynced) and await self._target(plan).is_lost(plan, state)


def _whole(at: datetime) -> datetime:
    """The time in whole seconds, which are all that the API keeps."""
    return at.replace(microsecond=0)


def _supersedes(one: ActivePlan, other: ActivePlan) -> bool:
    """Whether the one is for the same gang, and younger."""
    first, second = one.grant, other.grant
    return first.gang_uid == second.gang_uid and (first.granted_at, first.plan) > (second.granted_at, second.plan)
