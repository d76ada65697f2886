"""What was suspended, and out of how many? As observed, and as the budgets of one scope count it.

Laws:

* It is read from the API, so it outlives this process. Active grants count as suspensions: their workloads are about
  to be suspended.
* Workloads are counted, not suspensions. One that was suspended, woken and suspended again within a period is one:
  more is not to be seen on it, and a number that is sometimes too small is no limit.
* A suspension that might be covered counts, a workload that might be there does not. A suspension at an unknown
  time counts for ever.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType

from scaler.reclaim.budgets.scopes import BudgetedWorkload, BudgetLocation, Key, Labels, Scope

NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """One that was suspended, or to whose suspension a grant still stands."""

    member: BudgetedWorkload
    at: datetime | None
    """When; None: not known."""
    is_over: bool = False
    """Whether it has come back since. It still counts within its period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionHistory:
    """What was suspended, and out of how many."""

    suspensions: tuple[Suspension, ...] = ()
    population: Mapping[BudgetLocation, int] | None = None
    """GPU workloads by place, suspended ones included. None: not known."""
    namespace_labels: Mapping[str, Labels] = field(default_factory=lambda: MappingProxyType({}))
    """Labels by namespace; those of a namespace that is not in it are not known."""
    doubt: str = ""
    """Why it is not known what was suspended; empty where it is."""

    def after(self, victims: Iterable[BudgetedWorkload], now: datetime) -> "SuspensionHistory":
        """The same once these were suspended, too: for the next plan of the same tick."""
        new = tuple(Suspension(member=victim, at=now) for victim in sorted(victims, key=lambda victim: victim.key))
        return replace(self, suspensions=self.suspensions + new)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """What is counted together in one scope."""

    scope: Scope
    suspensions: Collection[Suspension]
    population: int | None
    asleep: frozenset[Key]
    """Suspended now."""

    def expiries(self, period: timedelta, now: datetime, *, but: Collection[Key]) -> list[datetime]:
        """When each that was suspended within the period stops counting, in order; those of `but` left out."""
        latest: dict[Key, datetime] = {}
        for each in self.suspensions:
            expiry = NEVER if each.at is None else each.at + period
            if expiry > now and each.member.key not in but:
                latest[each.member.key] = max(expiry, latest.get(each.member.key, expiry))
        return sorted(latest.values())


class ScopeUsage:
    """What a scope covers of the spending, group by group. Counted once, and only if asked for."""

    def __init__(self, scope: Scope, spending: SuspensionHistory) -> None:
        self.scope = scope
        self._spending = spending
        self._covered: dict[BudgetLocation, bool | None] = {}
        self._accounts: dict[str, GroupUsage] = {}

    def covers(self, place: BudgetLocation) -> bool | None:
        """None where that is unknown. Raises: ValueError for a selector that cannot be read."""
        if place not in self._covered:
            self._covered[place] = self.scope.covers(place, self._spending.namespace_labels)
        return self._covered[place]

    def of(self, group: str) -> GroupUsage:
        """What the group has used. A workload of an unknown group counts in each."""
        if group not in self._accounts:
            suspensions = self._suspensions.get(group, []) + self._suspensions.get(None, [])
            self._accounts[group] = GroupUsage(
                scope=self.scope.part(group),
                suspensions=suspensions,
                population=None if self._spending.population is None else self._population[group],
                asleep=frozenset(each.member.key for each in suspensions if not each.is_over),
            )
        return self._accounts[group]

    @cached_property
    def _suspensions(self) -> Mapping[str | None, list[Suspension]]:
        found: dict[str | None, list[Suspension]] = {}
        for each in self._spending.suspensions:
            if self.covers(each.member.place) is not False:
                found.setdefault(self.scope.group_of(each.member.place), []).append(each)
        return found

    @cached_property
    def _population(self) -> Counter[str | None]:
        found: Counter[str | None] = Counter()
        for place, count in (self._spending.population or {}).items():
            if self.covers(place):
                found[self.scope.group_of(place)] += count
        return found
