from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from builders import NOON, minutes
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.idleness.policy import Limit
from scaler.reclaim.budget import Budget, BudgetedWorkload, BudgetExhausted, Spending, Suspension, budget_check

HOUR = timedelta(hours=1)


def member(name: str, *budgets: str, namespace: str = "team-a") -> BudgetedWorkload:
    """It has the budget `few`, unless others are named."""
    return BudgetedWorkload(namespace=namespace, name=name, budgets=budgets or ("few",))


A, B, C = member("a"), member("b"), member("c")
OTHER = member("other", namespace="team-b")
ELSEWHERE = member("elsewhere", "more")


def gone(*members: BudgetedWorkload, minutes_ago: float | None = 30, over: bool = False) -> tuple[Suspension, ...]:
    """Suspended that long before noon; None: it is not known when."""
    at = None if minutes_ago is None else NOON - minutes(minutes_ago)
    return tuple(Suspension(member=each, at=at, is_over=over) for each in members)


def at_once(most: int, name: str = "few") -> Budget:
    return Budget(name=name, limit=Limit(count=most))


def hourly(most: int, name: str = "few") -> Budget:
    return Budget(name=name, limit=Limit(count=most), period=HOUR)


def spent(budgets: Sequence[Budget], suspensions: Sequence[Suspension]) -> Spending:
    return Spending(budgets=tuple(budgets), suspensions=tuple(suspensions))


def answer(
    budgets: Sequence[Budget],
    suspensions: Sequence[Suspension],
    victims: Sequence[BudgetedWorkload],
    now: datetime = NOON,
) -> BudgetExhausted | None:
    return budget_check(spent(budgets, suspensions), now)(victims)


def refused(budget: Budget, suspensions: Sequence[Suspension], *victims: BudgetedWorkload) -> BudgetExhausted:
    found = answer([budget], suspensions, victims)
    assert found is not None
    return found


def test_the_worked_example_holds() -> None:
    suspensions = [*gone(member("x"), minutes_ago=50), *gone(member("y"), minutes_ago=20)]
    assert refused(hourly(2), suspensions, A).until == NOON + minutes(10)
    assert refused(hourly(2), suspensions, A, B).until == NOON + minutes(40)
    assert refused(hourly(2), suspensions, A, B, C).until is None
    assert refused(hourly(2), suspensions, A).words.endswith("; not before 2026-12-01T12:10:00+00:00")
    assert refused(hourly(2), suspensions, A, B, C).words == refused(hourly(2), suspensions, A, B, C).message


@pytest.mark.parametrize(
    ("budget", "suspensions", "victims"),
    [
        pytest.param(at_once(2), gone(OTHER), [A], id="room for one more"),
        pytest.param(at_once(1), gone(OTHER, over=True), [A], id="who is back does not count at once"),
        pytest.param(at_once(1), gone(A), [A], id="who is suspended already takes no more room"),
        pytest.param(hourly(1), gone(OTHER, minutes_ago=60), [A], id="an hour ago to the second is over"),
        pytest.param(hourly(1), gone(A, minutes_ago=5, over=True), [A], id="the same workload twice is one"),
        pytest.param(at_once(1), gone(ELSEWHERE), [A], id="another budget's spending"),
        pytest.param(at_once(0), gone(), [], id="no victims cost nothing"),
    ],
)
def test_victims_for_whom_there_is_room_are_granted(
    budget: Budget, suspensions: Sequence[Suspension], victims: Sequence[BudgetedWorkload]
) -> None:
    assert answer([budget], suspensions, victims) is None


NO_ROOM = {
    "one of two would have room: none is granted": (at_once(2), gone(OTHER), [A, B], "2|at once|1|2"),
    "one that came back counts in its hour": (hourly(1), gone(OTHER, over=True), [A], "1|within 1h|1|1"),
    "a clock that is ahead": (hourly(1), gone(OTHER, minutes_ago=-5), [A], "1|within 1h|1|1"),
    "none at all": (at_once(0), gone(), [A], "0|at once|0|1"),
}


@pytest.mark.parametrize(("budget", "suspensions", "victims", "numbers"), NO_ROOM.values(), ids=NO_ROOM)
def test_victims_for_which_there_is_no_room_are_refused_with_the_numbers(
    budget: Budget, suspensions: Sequence[Suspension], victims: Sequence[BudgetedWorkload], numbers: str
) -> None:
    most, when, already, more = numbers.split("|")
    message = f"at most {most} suspended {when}; {already} count already, and {more} more would be suspended"
    assert refused(budget, suspensions, *victims).message == f"budget 'few': {message}"


@pytest.mark.parametrize(
    ("limit", "population", "most"),
    [
        pytest.param("3", 0, 3, id="a count needs no population"),
        pytest.param("25%", 10, 2, id="25 % of 10 = 2.5, rounded down"),
        pytest.param("10%", 9, 0, id="10 % of 9 is none"),
        pytest.param("29%", 100, 29, id="29, though floating point makes 28.999999999999996"),
        pytest.param("100 %", 7, 7, id="all"),
    ],
)
def test_a_limit_is_a_count_or_a_share_rounded_down(limit: str, population: int, most: int) -> None:
    assert Limit.parse(limit).of(population) == most
    assert Limit.parse(str(Limit.parse(limit))) == Limit.parse(limit)


def test_a_share_says_of_how_many_it_is() -> None:
    quarter = Budget(name="few", limit=Limit(share=0.25), population=8)
    assert answer([quarter], gone(OTHER), [A]) is None
    assert refused(quarter, gone(OTHER), A, B).message == (
        "budget 'few': at most 2 (25% of 8) suspended at once; 1 count already, and 2 more would be suspended"
    )


def test_of_several_budgets_the_one_that_takes_longest_is_named() -> None:
    victim, before = member("a", "hourly", "none"), member("b", "hourly", "none")
    budgets = [hourly(1, "hourly"), at_once(0, "none")]
    found = answer(budgets, gone(before), [victim])
    assert found is not None
    assert (found.budget, found.until) == ("none", None)
    found = answer([hourly(1, "hourly"), at_once(2, "none")], gone(before), [victim])
    assert found is not None
    assert (found.budget, found.until) == ("hourly", NOON + minutes(30))
    assert answer([hourly(2, "hourly"), at_once(2, "none")], gone(before), [victim]) is None


def test_of_several_suspensions_of_one_workload_the_last_counts() -> None:
    for ages in ([50, 20], [20, 50]):
        twice = [each for age in ages for each in gone(OTHER, minutes_ago=age)]
        assert refused(hourly(1), twice, A).until == NOON + minutes(40), "an hour after the one 20 min ago"


def test_a_suspension_of_nobody_knows_when_is_recent_for_good() -> None:
    suspensions = gone(OTHER, minutes_ago=None, over=True)
    assert refused(hourly(1), suspensions, A).until is None
    assert answer([at_once(1)], suspensions, [A]) is None, "it has come back"


def test_what_counts_can_be_shown() -> None:
    suspensions = [*gone(A, over=True), *gone(OTHER, minutes_ago=90), *gone(ELSEWHERE)]
    found = spent([at_once(5), at_once(0, "more")], suspensions)
    assert [found.used(each, NOON) for each in found.budgets] == [1, 1]
    assert found.used(hourly(5), NOON) == 1, "the one that is back, of the last hour"


def test_victims_count_as_soon_as_a_plan_is_made() -> None:
    check = budget_check(spent([at_once(1)], ()).after([A], NOON), NOON)
    assert check([B]) is not None
    assert check([A]) is None


# ---------------------------------------------------------------------------------------------------------------- laws

NAMES = ("one", "two")
MEMBERS = [member(f"w{n}", *NAMES[: 1 + n % 2], namespace=f"team-{n % 3}") for n in range(8)]
LIMITS = st.builds(Limit, count=st.integers(0, 5)) | st.builds(Limit, share=st.floats(0.05, 1))
BUDGETS = st.tuples(
    *(
        st.builds(
            Budget,
            name=st.just(name),
            limit=LIMITS,
            population=st.just(len(MEMBERS)),
            period=st.none() | st.integers(1, 12).map(lambda n: n * HOUR),
        )
        for name in NAMES
    )
)
VICTIMS = st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=4, unique=True)
SUSPENSIONS = st.lists(
    st.builds(
        Suspension,
        member=st.sampled_from(MEMBERS),
        at=st.none() | st.integers(-12, 1).map(lambda n: NOON + n * HOUR),
        is_over=st.booleans(),
    ),
    max_size=6,
)


@given(budgets=BUDGETS, suspensions=SUSPENSIONS, more=SUSPENSIONS, victims=VICTIMS, data=st.data())
def test_order_is_irrelevant_and_more_is_never_admitted_where_less_is_not(
    budgets: Sequence[Budget],
    suspensions: list[Suspension],
    more: list[Suspension],
    victims: list[BudgetedWorkload],
    data: st.DataObject,
) -> None:
    check = budget_check(spent(budgets, suspensions), NOON)
    found = check(victims)
    assert answer(budgets, data.draw(st.permutations(suspensions)), data.draw(st.permutations(victims))) == found
    if found is None:
        assert check(victims[1:]) is None, "fewer victims; and what was asked before changes no answer"
    else:
        assert answer(budgets, [*suspensions, *more], victims) is not None, "more spending"


@given(budgets=BUDGETS, suspensions=SUSPENSIONS, victims=VICTIMS)
def test_before_the_time_that_is_named_nothing_is_admitted(
    budgets: Sequence[Budget], suspensions: list[Suspension], victims: list[BudgetedWorkload]
) -> None:
    found = answer(budgets, suspensions, victims)
    if found is None:
        return
    assert found.until is None or found.until > NOON
    for hours in range(48):
        then = NOON + hours * HOUR / 2
        assert (found.until and then >= found.until) or answer(budgets, suspensions, victims, then)


# A history: plans that are carried out if they are admitted, workloads that come back, and time that passes.
STEPS = st.lists(
    st.tuples(st.sampled_from(["plan", "plan", "wake"]), VICTIMS, st.integers(0, 90).map(minutes)), max_size=25
)


@given(budgets=BUDGETS, steps=STEPS)
@settings(max_examples=60)
def test_whatever_happens_no_budget_is_ever_exceeded(
    budgets: Sequence[Budget], steps: list[tuple[str, list[BudgetedWorkload], timedelta]]
) -> None:
    """Counted anew from everything that ever happened, though the check sees no more than each one's last
    suspension."""
    now, log, asleep = NOON, list[tuple[BudgetedWorkload, datetime]](), set[BudgetedWorkload]()
    for verb, members, pause in steps:
        now += pause
        if verb == "wake":
            asleep -= set(members)
            continue
        last = dict(log)
        seen = [Suspension(member=each, at=at, is_over=each not in asleep) for each, at in last.items()]
        if answer(budgets, seen, members, now) is None:
            log += [(each, now) for each in members]
            asleep |= set(members)
            for budget in budgets:
                recent = asleep if budget.period is None else {each for each, at in log if now - at < budget.period}
                count = sum(budget.name in each.budgets for each in recent)
                assert count <= budget.most or not any(budget.name in each.budgets for each in members)
