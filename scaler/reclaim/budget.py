"""May these victims be suspended now? How many workloads at once, and how many within a period. Pure.

Laws:

* Every budget of a victim must have room for all victims that have it: a plan is whole or nothing.
* A workload that is granted to a plan counts as suspended: it is about to be.
* Workloads are counted, not suspensions. One that was suspended, woken and suspended again within a period is one:
  more is not to be seen on it, and a number that is sometimes too small is no limit.
* A suspension at an unknown time counts for ever.

Worked example: at most 2 an hour. One was suspended 50 minutes ago, another 20: a plan with one victim has to wait 10
minutes, one with two victims 40, and one with three is never admitted.

The tempting alternative, to take as many victims as there is room for, suspends work for a gang that then does not fit.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Limit

Key = tuple[str, str]
"""Namespace and name of a workload."""
NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many of the workloads that have it may be suspended."""

    name: str
    limit: Limit
    period: timedelta | None = None
    """The stretch of time in which they are counted, those that have come back included; None: at one time."""
    population: int = 0
    """How many have it."""

    @property
    def most(self) -> int:
        return self.limit.of(self.population)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedWorkload:
    """A workload that is, or may be, suspended."""

    namespace: str
    name: str
    budgets: tuple[str, ...] = ()
    """Names of those that it has."""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """One that was suspended, or is about to be."""

    member: BudgetedWorkload
    at: datetime | None
    """When; None: not known."""
    is_over: bool = False
    """Whether it has come back since. It still counts within its period."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The budgets that there are, and the suspensions that spend them."""

    budgets: Sequence[Budget] = ()
    """All budgets. Workloads that share one may say different limits of it: each of these has to have room."""
    suspensions: tuple[Suspension, ...] = ()

    def after(self, victims: Iterable[BudgetedWorkload], now: datetime) -> "Spending":
        """What is spent once these are suspended, too."""
        more = (Suspension(member=each, at=now) for each in victims)
        return replace(self, suspensions=(*self.suspensions, *more))

    def used(self, budget: Budget, now: datetime) -> int:
        """How many workloads count in the budget."""
        return len(self.expiries(budget, now))

    def expiries(self, budget: Budget, now: datetime, *, but: Collection[Key] = ()) -> list[datetime]:
        """When each workload that counts will not count any more, in order; those of `but` left out."""
        latest: dict[Key, datetime] = {}
        for each in self._by_budget.get(budget.name, ()):
            expiry = _expiry(each, budget.period)
            if expiry > now and each.member.key not in but:
                latest[each.member.key] = max(expiry, latest.get(each.member.key, expiry))
        return sorted(latest.values())

    @cached_property
    def _by_budget(self) -> Mapping[str, list[Suspension]]:
        found: dict[str, list[Suspension]] = {}
        for each in self.suspensions:
            for name in each.member.budgets:
                found.setdefault(name, []).append(each)
        return found


def _expiry(suspension: Suspension, period: timedelta | None) -> datetime:
    """When it does not count any more, if nothing else happens; long ago where it does not count now."""
    if period is None:
        return _LONG_AGO if suspension.is_over else NEVER
    return NEVER if suspension.at is None else suspension.at + period


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """A budget has no room for all of the victims, and so none of them may be suspended."""

    budget: str
    message: str
    until: datetime | None
    """The first time at which these victims can be admitted; None where time alone does not help."""

    @property
    def words(self) -> str:
        """`budget 'few': 2 of 2 are suspended; not before 2026-12-01T12:00:00+00:00`."""
        return self.message + (f"; not before {self.until.isoformat(timespec='seconds')}" if self.until else "")


BudgetCheck = Callable[[Collection[BudgetedWorkload]], BudgetExhausted | None]
"""The budget that does not let all of these be suspended, and why; None where all do.

A set that is refused is refused with more members, too, and members with the same budgets can replace each other.
"""


def no_budgets(_: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
    return None


def budget_check(spending: Spending, now: datetime) -> BudgetCheck:
    """The answers of all budgets. Of several that refuse, the one that takes longest is named."""

    def refuse(victims: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        return max(_refusals(spending, victims, now), key=lambda refusal: refusal.until or NEVER, default=None)

    return refuse


def _refusals(spending: Spending, victims: Collection[BudgetedWorkload], now: datetime) -> Iterator[BudgetExhausted]:
    names = {name for each in victims for name in each.budgets}
    for budget in (each for each in spending.budgets if each.name in names):
        name, keys = budget.name, {each.key for each in victims if budget.name in each.budgets}
        expiries = spending.expiries(budget, now, but=keys)
        if len(expiries) + len(keys) > budget.most:
            when = "at once" if budget.period is None else f"within {format_duration(budget.period)}"
            counts = f"{len(expiries)} count already, and {len(keys)} more would be suspended"
            share = "" if budget.limit.share is None else f" ({budget.limit} of {budget.population})"
            message = f"budget {name!r}: at most {budget.most}{share} suspended {when}; {counts}"
            until = _room_at(expiries, len(keys), budget.most)
            yield BudgetExhausted(budget=name, message=message, until=until if until < NEVER else None)


def _room_at(expiries: list[datetime], victims: int, most: int) -> datetime:
    """When so many of the others have stopped counting that there is room for the victims."""
    return NEVER if victims > most else expiries[len(expiries) + victims - most - 1]
