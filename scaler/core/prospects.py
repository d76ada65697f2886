"""Would one who waits for nodes get places, were some workloads gone? Asked before anybody is suspended for it.

A gang has quota and lacks nodes. `promises` says who is promised what is free; here the same round is gone through as
it would be if idle workloads had ended.

Laws:

* Everybody has had a turn before: those that were let go keep their places, those that are promised some get them, and
  all others that wait longer take of what gets free whatever lets them go.
* Pods that end now have ended, but for those that should have long ago.
* A gang is seated only if the gate would let it go: whole, and sure of its places. Where so many are before it that
  this was not asked, it is not.

Worked example: nodes a and b of 8 GPUs, idle workloads x on a and y on b, each with 8. P (16, first) and Q (8) wait.
With x gone Q is seated on a. With x and y gone it is not: P fits then, and is before it.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from scaler.core.claims import Claim, Seated, Verdict, Waits, Why
from scaler.core.placement import Capacity, Demand, Seat, fits, upper_bound
from scaler.core.promises import MOST_AT_ONCE, Round, most_seats


@dataclass(frozen=True, kw_only=True)
class Line:
    """All who have a claim on nodes, and what nodes have free."""

    capacity: Capacity
    held: tuple[Claim, ...] = ()
    """Those that were let go, with pods that are not on nodes yet."""
    waiting: tuple[Claim, ...] = ()
    overdue: tuple[Seat, ...] = ()
    """What pods hold that should have ended long ago."""


class Prospect:
    """The question, for the one of that key. Raises: KeyError where it does not wait."""

    def __init__(self, line: Line, key: str) -> None:
        self.line = line
        self._round = Round(line.capacity, line.overdue, MOST_AT_ONCE)
        self._before: list[Claim] = []
        """Those that wait longer and are promised nothing, in their turns."""
        for each in sorted(line.held, key=lambda claim: claim.turn):
            self._round.hold(each)
        for each in sorted(line.waiting, key=lambda claim: claim.turn):
            if each.key == key:
                self.claim = each
                return
            if not isinstance(self._round.judge(each), Seated):
                self._before.append(each)
        raise KeyError(key)

    @property
    def turns(self) -> int:
        """How many have one before an answer is found, itself included."""
        return len(self._before) + 1

    @property
    def left(self) -> Capacity:
        """The most that is left for it, before others take of it that wait longer."""
        return self._round.once_gone(()).left

    def verdict(self, gone: Set[str]) -> Verdict:
        """What the gate would say of it with these workloads gone."""
        round_ = self._once_gone(gone)
        found = round_.judge(self.claim_alone)
        if round_.is_spent and isinstance(found, Waits) and found.why is Why.PODS_COMING:
            return replace(found, why=Why.GANGS_BEFORE, others=tuple(each.key for each in self._before))
        return found

    @property
    def claim_alone(self) -> Claim:
        """The claim without what is under way for it: that has come to its end here."""
        return Claim(
            key=self.claim.key,
            uid=self.claim.uid,
            demands=self.claim.demands,
            at=self.claim.at,
            is_booked=self.claim.is_booked,
            pin_label=self.claim.pin_label,
        )

    def most(self, gone: Set[str]) -> tuple[Seat, ...]:
        """Places for as many of its pods as get one with these workloads gone, as provisioning counts them."""
        return most_seats(self.claim.demands, self._once_gone(gone).left)

    def has_room(self, demands: Iterable[Demand], gone: Set[str]) -> bool:
        """Whether these pods find places together with these workloads gone."""
        return fits(tuple(demands), self._once_gone(gone).left)

    def _once_gone(self, gone: Set[str]) -> Round:
        """The round when its turn comes."""
        found = self._round.once_gone(gone)
        for each in self._before:
            may_fit = all(upper_bound(pods, found.left) >= pods.count for pods in each.demands)
            if each.awaits_nodes or (may_fit and fits(each.demands, found.left)):
                found.judge(each)
        return found


def is_seated(verdict: Verdict) -> bool:
    """Whether it has its places, or has them as soon as pods of others have found theirs."""
    return isinstance(verdict, Seated) or (isinstance(verdict, Waits) and verdict.why is Why.PODS_COMING)
