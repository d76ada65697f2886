"""May these victims be suspended now? How many workloads at once, how many per period, and at which hours.

Laws:

* Every budget that covers a victim must have room for all victims that it covers: a plan is whole or nothing.
* What was spent is read off what is observed (since when which workload is suspended), so it outlives this process.
  Grants that still stand count as suspended: whoever they name is about to be.
* Workloads are counted, not suspensions. One that was suspended, woken and suspended again within a period is one:
  more is not to be seen on it, and a number that is sometimes too small is no limit.
* In doubt it is closed: an unreadable time zone or selector, a victim of which nobody knows whether it is covered, a
  share of nobody knows how many refuse. A suspension that might be covered counts, one without a time counts as recent.
* A share is rounded down, to none if need be: 10 % of 9 workloads is nobody. A limit that lets one go "at least" is no
  limit where it matters most, in small namespaces; whoever wants that one to go writes a count.

Worked example: at most 3 and at most 25 % an hour, of 10 GPU workloads, is min(3, ⌊2.5⌋) = 2 an hour. One was suspended
50 minutes ago, another 20: a plan with one victim has to wait 10 minutes, one with two victims 40, and one with three
is never admitted.

The tempting alternative, to take as many victims as there is room for, suspends work for a gang that then does not fit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import floor
from types import MappingProxyType
from typing import NamedTuple

from scaler.core.durations import format_duration
from scaler.core.hours import Hours, is_open, next_change
from scaler.core.scopes import EVERYTHING, Labels, Member, Place, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """One that was suspended, or to whose suspension a grant still stands."""

    member: Member
    at: datetime | None
    """When; None: not known."""
    is_over: bool = False
    """Whether it has come back since. It still counts within its period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What was suspended, and out of how many."""

    suspensions: tuple[Suspension, ...] = ()
    population: Mapping[Place, int] | None = None
    """GPU workloads by place, suspended ones included. None: not known."""
    namespace_labels: Mapping[str, Labels] = field(default_factory=lambda: MappingProxyType({}))
    """Labels by namespace; those of a namespace that is not in it are not known."""
    doubt: str = ""
    """Why it is not known what was suspended; empty where it is."""

    def after(self, victims: Iterable[Member], now: datetime) -> "Spending":
        """The same once these were suspended, too: for the next plan of the same tick."""
        new = tuple(Suspension(member=victim, at=now) for victim in sorted(victims, key=_key))
        return replace(self, suspensions=self.suspensions + new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A count, a share of the covered GPU workloads, or both: then the smaller one holds."""

    count: int | None = None
    share_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.count is None and self.share_ratio is None:
            raise ValueError("a limit needs a count or a share")

    def of(self, population: int | None) -> int | None:
        """The most workloads; None where it is a share of nobody knows how many."""
        if self.share_ratio is None:
            return self.count
        if population is None:
            return None
        # Rounded first: 0.29 × 100 is 28.999999999999996 in floating point, and 29 were allowed.
        share = floor(round(population * self.share_ratio, 9))
        return share if self.count is None else min(self.count, share)


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
    """How many may be suspended at the same time."""
    rate: Rate | None = None
    """How many may be suspended per period."""
    applies_during: tuple[Hours, ...] = ()
    """When the limits hold; empty: always."""
    allowed_during: tuple[Hours, ...] = ()
    """When anything that it covers may be suspended at all; empty: at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Every budget has room for all of the victims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """A budget has no room for all of the victims, and so none of them may be suspended."""

    budget: str
    message: str
    until: datetime | None
    """Not before then will these victims be admitted, if nothing else happens; None where time alone does not help."""


def admits(
    budgets: Sequence[Budget], spending: Spending, victims: Collection[Member], now: datetime
) -> Granted | Exhausted:
    """Whether all budgets have room for all victims. Of several that have not, the one that takes longest is named."""
    refusals = [refusal for budget in budgets if (refusal := _refusal(budget, spending, victims, now))]
    return max(refusals, key=lambda refusal: _last(refusal.until), default=Granted())


_NEVER = datetime.max.replace(tzinfo=UTC)


def _last(until: datetime | None) -> datetime:
    return until or _NEVER


def _refusal(budget: Budget, spending: Spending, victims: Collection[Member], now: datetime) -> Exhausted | None:
    try:
        obstacles = list(_obstacles(budget, spending, victims, now))
    except ValueError as unreadable:
        obstacles = [_Obstacle(str(unreadable), None)]
    if not obstacles:
        return None
    worst = max(obstacles, key=lambda obstacle: _last(obstacle.until))
    return Exhausted(budget=budget.name, message=f"budget {budget.name!r}: {worst.message}", until=worst.until)


class _Obstacle(NamedTuple):
    message: str
    until: datetime | None
    """When it is gone, and not before; None where time alone does not remove it."""


def _obstacles(budget: Budget, spending: Spending, victims: Collection[Member], now: datetime) -> Iterator[_Obstacle]:
    """What stands against it. Raises: ValueError for a time zone or a selector that cannot be read."""
    answers = {victim: budget.scope.covers(victim.place, spending.namespace_labels) for victim in victims}
    covered = sorted((victim for victim, answer in answers.items() if answer is not False), key=_key)
    unsure = [victim for victim in covered if answers[victim] is None]
    if not covered:
        return
    if unsure:
        yield _Obstacle(f"nobody knows whether {unsure[0].namespace}/{unsure[0].name} is in {budget.scope}", None)
    elif spending.doubt:
        yield _Obstacle(spending.doubt, None)
    else:
        yield from _closed(budget, now)
        yield from _overdrawn(budget, spending, covered, now)


def _closed(budget: Budget, now: datetime) -> Iterator[_Obstacle]:
    if budget.allowed_during and not is_open(budget.allowed_during, now):
        hours = ", ".join(str(hours) for hours in budget.allowed_during)
        yield _Obstacle(f"in {budget.scope} it is allowed only {hours}", next_change(budget.allowed_during, now))


def _overdrawn(budget: Budget, spending: Spending, covered: Sequence[Member], now: datetime) -> Iterator[_Obstacle]:
    """The limits that these would overdraw. The end of the hours in which they hold removes them as well."""
    if budget.applies_during and not is_open(budget.applies_during, now):
        return
    end = next_change(budget.applies_during, now) if budget.applies_during else None
    parts = dict.fromkeys(budget.scope.part_of(victim.place) for victim in covered)
    for part in parts:
        account = _Account.of(part, spending, covered)
        for obstacle in (_too_many_at_once(budget, account), _too_many_per_period(budget, account, now)):
            if obstacle:
                yield obstacle._replace(until=min(_last(obstacle.until), end) if end else obstacle.until)


class _Account(NamedTuple):
    """What is counted together."""

    scope: Scope
    suspensions: Sequence[Suspension]
    victims: frozenset[tuple[str, str]]
    population: int | None

    @classmethod
    def of(cls, scope: Scope, spending: Spending, victims: Iterable[Member]) -> "_Account":
        """A suspension that might be covered counts, a workload that might be does not: both are the strict side."""
        labels = spending.namespace_labels
        population = spending.population
        return cls(
            scope=scope,
            suspensions=[each for each in spending.suspensions if scope.covers(each.member.place, labels) is not False],
            victims=frozenset(victim.key for victim in victims if scope.covers(victim.place, labels)),
            population=None
            if population is None
            else sum(count for place, count in population.items() if scope.covers(place, labels)),
        )

    def refusal(self, limit: Limit, others: int, when: str) -> str:
        """What to tell of a limit that the victims and `others` overdraw together; empty where they do not."""
        most = limit.of(self.population)
        share = "" if limit.share_ratio is None else f"{100 * limit.share_ratio:g} % of "
        if most is None:
            return f"at most {share}the GPU workloads {when} in {self.scope}, and nobody knows how many there are"
        if others + len(self.victims) <= most:
            return ""
        allowed = f"at most {most}{f' ({share}{self.population})' if share else ''} {when} in {self.scope}"
        return f"{allowed}; {others} count already, and {len(self.victims)} would follow"


def _too_many_at_once(budget: Budget, account: _Account) -> _Obstacle | None:
    if budget.at_once is None:
        return None
    suspended = {each.member.key for each in account.suspensions if not each.is_over}
    message = account.refusal(budget.at_once, len(suspended - account.victims), "suspended at once")
    return _Obstacle(message, None) if message else None


def _too_many_per_period(budget: Budget, account: _Account, now: datetime) -> _Obstacle | None:
    if budget.rate is None:
        return None
    limit, period = budget.rate.limit, budget.rate.period
    expiries = sorted(_expiries(account, period, now))
    message = account.refusal(limit, len(expiries), f"suspended within {format_duration(period)}")
    if not message:
        return None
    most = limit.of(account.population)
    if most is None or len(account.victims) > most:
        return _Obstacle(message, None)
    surplus = len(expiries) + len(account.victims) - most
    last_to_go = expiries[surplus - 1]
    return _Obstacle(message, None if last_to_go == _NEVER else last_to_go)


def _expiries(account: _Account, period: timedelta, now: datetime) -> Iterable[datetime]:
    """When each of the others that were suspended within the period stops counting."""
    latest: dict[tuple[str, str], datetime] = {}
    for each in account.suspensions:
        expiry = _NEVER if each.at is None else each.at + period
        if expiry > now and each.member.key not in account.victims:
            latest[each.member.key] = max(expiry, latest.get(each.member.key, expiry))
    return latest.values()


def _key(member: Member) -> tuple[str, str]:
    return member.key
