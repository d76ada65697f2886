"""The room that is left in budgets, and that it agrees with what budgets decide."""

from datetime import time, timedelta

import pytest
from builders import NOON, minutes
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.hours import Hours
from scaler.reclaim.budgets.budget import Budget, Limit, Rate, budget_check
from scaler.reclaim.budgets.scopes import BudgetedWorkload, BudgetLocation, Each, Scope, Suspension, SuspensionHistory
from scaler.reporting.usage.budget_headroom import BudgetHeadroom, LimitHeadroom, headroom

A, B = "team-a", "team-b"
POPULATION = {BudgetLocation(A, "gpus"): 8, BudgetLocation(B, "gpus"): 40}


def gone(namespace: str, count: int, *, ago: timedelta = minutes(30), over: bool = False) -> tuple[Suspension, ...]:  # noqa: B008
    members = (BudgetedWorkload(namespace=namespace, name=f"w{n}", cluster_queue="gpus") for n in range(count))
    return tuple(Suspension(member=member, at=NOON - ago, is_over=over) for member in members)


def spending(*suspensions: Suspension) -> SuspensionHistory:
    return SuspensionHistory(suspensions=suspensions, population=POPULATION)


def test_of_a_budget_for_each_namespace_the_tightest_is_shown() -> None:
    budget = Budget(name="quarter", at_once=Limit(share_ratio=0.25), scope=Scope(each=Each.NAMESPACE))
    found = headroom(budget, spending(*gone(A, 2), *gone(B, 3)), NOON)
    # ⌊0.25 × 8⌋ − 2 = 0 in team-a, ⌊0.25 × 40⌋ − 3 = 7 in team-b
    assert found == BudgetHeadroom(budget="quarter", is_open=True, limits={"AtOnce": LimitHeadroom(2, 2)})


def test_both_limits_of_a_budget_are_shown() -> None:
    budget = Budget(name="few", at_once=Limit(count=5), rate=Rate(limit=Limit(count=3), period=timedelta(hours=1)))
    spent = spending(*gone(A, 2, over=True), *gone(B, 1, ago=minutes(90)))
    # Asleep is the one of team-b; within the hour the two of team-a were suspended.
    assert headroom(budget, spent, NOON).limits == {"AtOnce": (5, 1), "PerPeriod": (3, 2)}


NIGHT = Hours(begin=time(22), end=time(6))


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        pytest.param(Budget(name="b", allowed_during=(NIGHT,)), (False, 0), id="closed at noon"),
        pytest.param(
            Budget(name="b", at_once=Limit(count=1), applies_during=(NIGHT,)), (True, 0), id="no limit holds at noon"
        ),
        pytest.param(
            Budget(name="b", at_once=Limit(count=1), scope=Scope(namespace_selector="a in (")),
            (False, 0),
            id="its selector cannot be read",
        ),
        pytest.param(Budget(name="b", at_once=Limit(count=1)), (True, 1), id="open"),
    ],
)
def test_a_budget_is_open_or_not_and_has_limits_or_not(budget: Budget, expected: tuple[bool, int]) -> None:
    found = headroom(budget, spending(*gone(A, 1)), NOON)
    assert (found.is_open, len(found.limits)) == expected


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 6))
def test_there_is_room_for_one_exactly_where_budgets_admit_one(limit: int, asleep: int, wanted: int) -> None:
    budget = Budget(name="b", at_once=Limit(count=limit))
    spent = spending(*gone(A, asleep))
    victims = [BudgetedWorkload(namespace=B, name=f"v{n}", cluster_queue="gpus") for n in range(wanted)]
    room = headroom(budget, spent, NOON).limits["AtOnce"]
    assert (wanted <= room.left) == (budget_check([budget], spent, NOON)(victims) is None)
