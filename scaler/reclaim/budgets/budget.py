"""May these victims be suspended now? How many workloads at once, how many per period, and at which hours.

Laws:

* Every budget that covers a victim must have room for all victims that it covers: a plan is whole or nothing.
* Budgets fail closed: if the ClusterQueue, namespace labels, selector or time zone is unknown, nothing is suspended.
  What was suspended is counted on the strict side, see `scopes`.
* A share is rounded down, to 0 if need be: 10 % of 9 workloads is none. A limit of "at least one" is no limit where it
  matters most, in small namespaces; a count sets that.

Worked example: at most 3 and at most 25 % an hour, of 10 GPU workloads, is min(3, ⌊2.5⌋) = 2 an hour. One was suspended
50 minutes ago, another 20: a plan with one victim has to wait 10 minutes, one with two victims 40, and one with three
is never admitted.

The tempting alternative, to take as many victims as there is room for, suspends work for a gang that then does not fit.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from math import floor

from scaler.idleness.durations import format_duration
from scaler.idleness.hours import Hours, is_open, next_change
from scaler.reclaim.budgets.scopes import (
    EVERYTHING,
    NEVER,
    BudgetedWorkload,
    GroupUsage,
    Key,
    Scope,
    ScopeUsage,
    SuspensionHistory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A count, a share of the covered GPU workloads, or both: then the smaller one holds."""

    count: int | None = None
    share_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.count is None and self.share_ratio is None:
            raise ValueError("a limit needs a count or a share")

    def of(self, population: int) -> int:
        # Rounded first: 0.29 × 100 is 28.999999999999996 in floating point, and 29 were allowed.
        share = None if self.share_ratio is None else floor(round(population * self.share_ratio, 9))
        return min(each for each in (self.count, share) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A limit on how many are suspended within any stretch of this length."""

    limit: Limit
    period: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One limit on what reclaiming may do. All budgets must agree."""

    name: str
    scope: Scope = EVERYTHING
    at_once: Limit | None = None
    rate: Rate | None = None
    applies_during: tuple[Hours, ...] = ()
    """When the limits hold; empty: always."""
    allowed_during: tuple[Hours, ...] = ()
    """When anything that it covers may be suspended at all; empty: at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """A budget has no room for all of the victims, and so none of them may be suspended."""

    budget: str
    message: str
    until: datetime | None
    """Not before then will these victims be admitted, if nothing else happens; None where time alone does not help."""

    @property
    def words(self) -> str:
        """`budget 'few': 2 of 2 are suspended; not before 2026-12-01T12:00:00+00:00`."""
        return self.message + (f"; not before {self.until.isoformat(timespec='seconds')}" if self.until else "")


BudgetCheck = Callable[[Collection[BudgetedWorkload]], BudgetExhausted | None]
"""The budget that does not let all of these be suspended, and why; None where all do.

A set that is refused is refused with more members, too, and members of one place can replace each other.
"""


def no_budgets(_: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
    return None


def budget_check(budgets: Sequence[Budget], spending: SuspensionHistory, now: datetime) -> BudgetCheck:
    """What was spent is counted once, for a search that asks often. Of several budgets that refuse, the one that takes
    longest is named."""
    evaluations = [_BudgetEvaluation(budget, spending, now) for budget in budgets]

    def refuse(victims: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        return _longest(refusal for each in evaluations if (refusal := each.refusal(victims)))

    return refuse


def _longest(refusals: Iterable[BudgetExhausted]) -> BudgetExhausted | None:
    return max(refusals, key=lambda refusal: refusal.until or NEVER, default=None)


class _BudgetEvaluation:
    def __init__(self, budget: Budget, spending: SuspensionHistory, now: datetime) -> None:
        self.budget = budget
        self.now = now
        self._usage = ScopeUsage(budget.scope, spending)

    def refusal(self, victims: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        try:
            return _longest(self._obstacles(victims))
        except ValueError as unreadable:
            return self._obstacle(str(unreadable))

    def _obstacle(self, message: str, until: datetime | None = None) -> BudgetExhausted:
        name = self.budget.name
        return BudgetExhausted(budget=name, message=f"budget {name!r}: {message}", until=until)

    def _obstacles(self, victims: Collection[BudgetedWorkload]) -> Iterator[BudgetExhausted]:
        """What stands against it. Raises: ValueError for a time zone or a selector that cannot be read."""
        answers = {victim: self._usage.covers(victim.place) for victim in victims}
        covered = sorted((each for each, answer in answers.items() if answer is not False), key=lambda each: each.key)
        unsure = [f"{each.namespace}/{each.name}" for each in covered if answers[each] is None]
        if not covered:
            return
        if unsure:
            yield self._obstacle(f"it is unknown whether {unsure[0]} is in {self.budget.scope}")
        else:
            yield from self._hours
            yield from self._overdrawn(covered)

    @cached_property
    def _hours(self) -> Sequence[BudgetExhausted]:
        allowed = self.budget.allowed_during
        if not allowed or is_open(allowed, self.now):
            return ()
        message = f"in {self.budget.scope} it is allowed only {', '.join(map(str, allowed))}"
        return (self._obstacle(message, next_change(allowed, self.now)),)

    def _overdrawn(self, covered: Sequence[BudgetedWorkload]) -> Iterator[BudgetExhausted]:
        if not self._applies:
            return
        for group, victims in self._by_group(covered).items():
            yield from self._too_many(self._usage.of(group), victims)

    @cached_property
    def _applies(self) -> bool:
        return not self.budget.applies_during or is_open(self.budget.applies_during, self.now)

    def _by_group(self, members: Sequence[BudgetedWorkload]) -> Mapping[str, set[Key]]:
        groups: dict[str, set[Key]] = {}
        for member in members:
            groups.setdefault(self.budget.scope.group_of(member.place) or "", set()).add(member.key)
        return groups

    def _too_many(self, usage: GroupUsage, victims: set[Key]) -> Iterator[BudgetExhausted]:
        limit, others = self.budget.at_once, len(usage.asleep - victims)
        if limit and (message := _excess(limit, usage, others, victims, "suspended at once")):
            yield self._obstacle(message, self._end)
        if rate := self.budget.rate:
            expiries = usage.expiries(rate.period, self.now, but=victims)
            when = f"suspended within {format_duration(rate.period)}"
            if message := _excess(rate.limit, usage, len(expiries), victims, when):
                until = min(_room_at(expiries, len(victims), rate.limit.of(usage.population)), self._end or NEVER)
                yield self._obstacle(message, until if until < NEVER else None)

    @cached_property
    def _end(self) -> datetime | None:
        """When the limits stop to hold for this time; None where they hold at all hours."""
        return next_change(self.budget.applies_during, self.now) if self.budget.applies_during else None


def _room_at(expiries: Sequence[datetime], victims: int, most: int) -> datetime:
    """When so many of the others have stopped counting that there is room for the victims."""
    return NEVER if victims > most else expiries[len(expiries) + victims - most - 1]


def _excess(limit: Limit, usage: GroupUsage, others: int, victims: set[Key], when: str) -> str:
    """Why the victims and `others` are too many together; empty where they are not."""
    most = limit.of(usage.population)
    if others + len(victims) <= most:
        return ""
    shown = f"{most}" if limit.share_ratio is None else f"{most} ({100 * limit.share_ratio:g} % of {usage.population})"
    return f"at most {shown} {when} in {usage.scope}; {others} count already, and {len(victims)} would follow"
