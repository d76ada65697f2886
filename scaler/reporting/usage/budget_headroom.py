"""How many more workloads each budget allows to be suspended. For dashboards; `reclaim.budgets` decides.

Of a budget that applies to each namespace or ClusterQueue the one is shown where least is left.

Worked example: at most 25 % at once of each namespace's GPU workloads. team-a has 8, of which 2 are suspended; team-b
has 40, of which 3 are suspended: ⌊2⌋ − 2 = 0 are left in team-a, ⌊10⌋ − 3 = 7 in team-b. The budget's headroom is 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scaler.reclaim.budgets.budget import Budget
from scaler.reclaim.budgets.hours import is_open
from scaler.reclaim.budgets.scopes import ScopeUsage, SuspensionHistory


class BudgetLimitKind(StrEnum):
    """Which of a budget's limits."""

    AT_ONCE = "AtOnce"
    PER_PERIOD = "PerPeriod"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHeadroom:
    """What one limit lets, and what it counts already."""

    kind: BudgetLimitKind
    most: int
    used: int

    @property
    def left(self) -> int:
        return max(0, self.most - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetHeadroom:
    """One budget at one instant."""

    budget: str
    is_open: bool
    """Whether it allows suspensions at this hour."""
    rooms: tuple[LimitHeadroom, ...] = ()
    """None while its limits do not apply."""


def headroom(budget: Budget, spending: SuspensionHistory, now: datetime) -> BudgetHeadroom:
    """A budget that cannot be read is closed."""
    try:
        allowed = not budget.allowed_during or is_open(budget.allowed_during, now)
        applies = not budget.applies_during or is_open(budget.applies_during, now)
        rooms = [*_rooms(budget, spending, now)] if applies else []
    except ValueError:
        return BudgetHeadroom(budget=budget.name, is_open=False)
    tightest = {each.kind: each for each in sorted(rooms, key=lambda room: room.left, reverse=True)}
    return BudgetHeadroom(budget=budget.name, is_open=allowed, rooms=tuple(tightest.values()))


def _rooms(budget: Budget, spending: SuspensionHistory, now: datetime) -> Iterator[LimitHeadroom]:
    """Those of every group. Raises: ValueError for a selector that cannot be read."""
    accounts = ScopeUsage(budget.scope, spending)
    for group in _groups(budget, spending, accounts):
        account = accounts.of(group)
        if budget.at_once is not None:
            most = budget.at_once.of(account.population)
            yield LimitHeadroom(kind=BudgetLimitKind.AT_ONCE, most=most, used=len(account.asleep))
        if budget.rate is not None:
            recent = account.expiries(budget.rate.period, now, but=())
            most = budget.rate.limit.of(account.population)
            yield LimitHeadroom(kind=BudgetLimitKind.PER_PERIOD, most=most, used=len(recent))


def _groups(budget: Budget, spending: SuspensionHistory, accounts: ScopeUsage) -> Sequence[str]:
    """What is counted together, by name; the empty name where all that is covered is."""
    if budget.scope.each is None:
        return ("",)
    places = [*spending.population, *(each.member.place for each in spending.suspensions)]
    covered = (place for place in places if accounts.covers(place))
    return sorted({group for place in covered if (group := budget.scope.group_of(place))})
