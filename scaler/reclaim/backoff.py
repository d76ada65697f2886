"""Plans for single gangs, asked for as often as one likes: neither computed twice on the same state, nor too soon.

What was given up in vain is not asked for again at once. A victim that woke is left alone for a while, and so is one
that KEDA does not bring to 0; a gang whose plan failed waits before others are asked in its stead, and ever longer
where plans for it were carried out in vain: else idle workloads would be suspended for it again and again.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.decision.target_state import Seeks
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.config import ReclaimConfig, Unprotected
from scaler.reclaim.planner import PlanningSnapshot
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.targets import PlanTarget
from scaler.reclaim.transitions import PlanEndReason, PlanTransition

_LONGEST_REST = timedelta(hours=6)
_DOUBLINGS = 10


@dataclass
class PlanBackoff:
    """Proposes plans, and remembers what has failed. In memory only: after a restart all is tried anew."""

    policy: ReclaimConfig
    _not_before: dict[str, datetime] = field(default_factory=dict, init=False)
    """By gang and aim, or name of a victim: when it may be part of a plan again."""
    _in_vain: Counter[str] = field(default_factory=Counter, init=False)
    """By gang and aim, how often victims were suspended and woken again without any use."""
    _refused: dict[str, tuple[object, NoPlan]] = field(default_factory=dict, init=False)
    """By uid of a gang, what was found for it, and on what: most ticks find the same things again."""

    async def propose(
        self, target: PlanTarget, sight: PlanningSnapshot, gang: QuotaWorkload, given: Sequence[Candidate]
    ) -> ReclaimPlan | NoPlan:
        """The plan for the gang, of these candidates but for those that are left alone for a while."""
        candidates = [each for each in given if self.is_due(each.name, sight.now)]
        seen = target, target.inputs(sight, gang), _fingerprint(sight, candidates)
        known = self._refused.get(gang.uid)
        if known is not None and known[0] == seen:
            return known[1]
        found = await target.plan(sight, gang, candidates)
        if isinstance(found, NoPlan):
            self._refused[gang.uid] = (seen, found)
        elif self.policy.unprotected is Unprotected.REFUSE:
            exposed = next((each for each in found.cautions if each.reason == NoPlanReason.UNPROTECTED), None)
            if exposed is not None:
                return NoPlan(gang=gang.key, why=NoPlanReason.UNPROTECTED, message=exposed.message)
        return found

    def is_due(self, name: str, now: datetime) -> bool:
        """Whether the victim of that name may be part of a plan."""
        return self._not_before.get(name, now) <= now

    def may_plan_for(self, gang_uid: str, seeks: Seeks, now: datetime) -> bool:
        """Whether a plan may be made for the gang. One that got its quota by a plan may get nodes by another."""
        return self.is_due(_turn(gang_uid, seeks), now)

    def back_off(self, gang_uid: str, seeks: Seeks, now: datetime) -> None:
        """Make no other such plan for the gang for a while."""
        self._put_off([_turn(gang_uid, seeks)], now + self.policy.replan_backoff, now)

    def back_off_longer(self, gang_uid: str, seeks: Seeks, now: datetime) -> None:
        """The same after a plan that was carried out in vain: for as long as a plan has, then twice that, and so on."""
        turn = _turn(gang_uid, seeks)
        pause = min(self.policy.grant_for * 2 ** min(self._in_vain[turn], _DOUBLINGS), _LONGEST_REST)
        self._in_vain[turn] += 1
        self._put_off([turn], now + max(pause, self.policy.replan_backoff), now)

    def back_off_victims(self, step: PlanTransition, now: datetime) -> None:
        """Leave those alone for a while on whose account a plan failed."""
        policy = self.policy
        # What KEDA did not scale to 0 (paused, another trigger, a long cooldown) it will not scale to 0 the next time.
        is_stubborn = step.ending in {PlanEndReason.GRANT_EXPIRED, PlanEndReason.NOT_RESERVED}
        self._put_off(step.about, now + (policy.grant_for if is_stubborn else policy.replan_backoff), now)

    def _put_off(self, names: Collection[str], until: datetime, now: datetime) -> None:
        self._not_before = {name: due for name, due in self._not_before.items() if due > now}
        self._not_before |= dict.fromkeys(names, until)

    def forget_others(self, uids: Collection[str]) -> None:
        """Forget what was found for gangs that do not wait any more."""
        self._refused = {uid: known for uid, known in self._refused.items() if uid in uids}
        turns = {_turn(uid, seeks) for uid in uids for seeks in Seeks}
        self._in_vain = Counter({turn: times for turn, times in self._in_vain.items() if turn in turns})


def _turn(gang_uid: str, seeks: Seeks) -> str:
    return f"{gang_uid}/{seeks}"


def _fingerprint(sight: PlanningSnapshot, candidates: Sequence[Candidate]) -> object:
    """Equal only while the same answer is to be expected: budgets change with time, and by the minute is enough."""
    idle = frozenset(each.name for each in candidates)
    return idle, sight.leaving, sight.now.replace(second=0, microsecond=0)
