"""How many more workloads each budget allows to be suspended. For dashboards; `reclaim.budgets` decides.

Of a budget that applies to each namespace or ClusterQueue the one is shown where least is left.

Worked example: at most 25 % at once of each namespace's GPU workloads. team-a has 8, of which 2 are suspended; team-b
has 40, of which 3 are suspended: ⌊2⌋ − 2 = 0 are left in team-a, ⌊10⌋ − 3 = 7 in team-b. The budget's headroom is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from scaler.idleness.hours import is_open
from scaler.reclaim.budgets.budget import Budget
from scaler.reclaim.budgets.scopes import ScopeUsage, SuspensionHistory


class LimitHeadroom(NamedTuple):
    most: int
    used: int

    @property
    def left(self) -> int:
        return max(0, self.most - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetHeadroom:
    budget: str
    is_open: bool
    limits: Mapping[str, LimitHeadroom] = field(default_factory=dict)
    """`AtOnce` and `PerPeriod`; none while they do not apply."""


def headroom(budget: Budget, spending: SuspensionHistory, now: datetime) -> BudgetHeadroom:
    """A budget that cannot be read is closed."""
    try:
        allowed = not budget.allowed_during or is_open(budget.allowed_during, now)
        applies = not budget.applies_during or is_open(budget.applies_during, now)
        found = [*_limits(budget, spending, now)] if applies else []
    except ValueError:
        return BudgetHeadroom(budget=budget.name, is_open=False)
    tightest = dict(sorted(found, key=lambda each: each[1].left, reverse=True))
    return BudgetHeadroom(budget=budget.name, is_open=allowed, limits=tightest)


def _limits(budget: Budget, spending: SuspensionHistory, now: datetime) -> Iterator[tuple[str, LimitHeadroom]]:
    """Those of every group. Raises: ValueError for a selector that cannot be read."""
    accounts = ScopeUsage(budget.scope, spending)
    for group in _groups(budget, spending, accounts):
        account = accounts.of(group)
        if budget.at_once is not None:
            yield "AtOnce", LimitHeadroom(budget.at_once.of(account.population), len(account.asleep))
        if budget.rate is not None:
            recent = account.expiries(budget.rate.period, now, but=())
            yield "PerPeriod", LimitHeadroom(budget.rate.limit.of(account.population), len(recent))


def _groups(budget: Budget, spending: SuspensionHistory, accounts: ScopeUsage) -> Sequence[str]:
    """What is counted together, by name; the empty name where all that is covered is."""
    if budget.scope.each is None:
        return ("",)
    places = [*spending.population, *(each.member.place for each in spending.suspensions)]
    covered = (place for place in places if accounts.covers(place))
    return sorted({group for place in covered if (group := budget.scope.group_of(place))})
