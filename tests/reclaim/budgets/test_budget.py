from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta

import pytest
from builders import NOON, minutes
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.idleness.hours import Hours, is_open
from scaler.reclaim.budgets.budget import Budget, BudgetExhausted, Limit, Rate, budget_check
from scaler.reclaim.budgets.scopes import (
    BudgetedWorkload,
    BudgetLocation,
    Each,
    Scope,
    Suspension,
    SuspensionHistory,
)

HOUR = timedelta(hours=1)
TEAM_A, TEAM_B = frozenset({"team-a"}), frozenset({"team-b"})
POPULATION = {BudgetLocation("team-a", "gpus"): 8, BudgetLocation("team-b", "gpus"): 4}


def member(name: str, namespace: str = "team-a", cluster_queue: str | None = "gpus") -> BudgetedWorkload:
    return BudgetedWorkload(namespace=namespace, name=name, cluster_queue=cluster_queue)


A, B, C = member("a"), member("b"), member("c")
OTHER = member("other", "team-b")


def gone(*members: BudgetedWorkload, minutes_ago: float | None = 30, over: bool = False) -> tuple[Suspension, ...]:
    """Suspended that long before noon; None: it is not known when."""
    at = None if minutes_ago is None else NOON - minutes(minutes_ago)
    return tuple(Suspension(member=each, at=at, is_over=over) for each in members)


def spending(*suspensions: Suspension, population: Mapping[BudgetLocation, int] = POPULATION) -> SuspensionHistory:
    labels = {"team-a": {"team": "a"}, "team-b": {"team": "b"}}
    return SuspensionHistory(suspensions=suspensions, population=population, namespace_labels=labels)


def at_once(count: int | None = None, share: float | None = None, **more: object) -> Budget:
    return Budget(name="at-once", at_once=Limit(count=count, share_ratio=share), **more)  # type: ignore[arg-type]


def hourly(count: int | None = None, share: float | None = None, **more: object) -> Budget:
    rate = Rate(limit=Limit(count=count, share_ratio=share), period=HOUR)
    return Budget(name="hourly", rate=rate, **more)  # type: ignore[arg-type]


def answer(
    budgets: Sequence[Budget], spent: SuspensionHistory, victims: Sequence[BudgetedWorkload], now: datetime = NOON
) -> BudgetExhausted | None:
    return budget_check(budgets, spent, now)(victims)


def refused(budget: Budget, spent: SuspensionHistory, *victims: BudgetedWorkload) -> BudgetExhausted:
    found = answer([budget], spent, victims)
    assert found is not None
    return found


def granted(budget: Budget, spent: SuspensionHistory, *victims: BudgetedWorkload) -> bool:
    return answer([budget], spent, victims) is None


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("limit", "population", "most"),
    [
        pytest.param(Limit(count=3), 0, 3, id="a count needs no population"),
        pytest.param(Limit(share_ratio=0.25), 10, 2, id="25 % of 10 = 2.5, rounded down"),
        pytest.param(Limit(share_ratio=0.1), 9, 0, id="10 % of 9 is none"),
        pytest.param(Limit(share_ratio=0.29), 100, 29, id="29, though floating point makes 28.999999999999996"),
        pytest.param(Limit(share_ratio=1.0), 7, 7, id="all"),
        pytest.param(Limit(count=3, share_ratio=0.5), 4, 2, id="of both the smaller: the share"),
        pytest.param(Limit(count=3, share_ratio=0.5), 40, 3, id="of both the smaller: the count"),
    ],
)
def test_a_limit_is_a_count_or_a_share_rounded_down(limit: Limit, population: int, most: int) -> None:
    assert limit.of(population) == most


def test_a_limit_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="needs a count or a share"):
        Limit()


def test_the_worked_example_holds() -> None:
    budget = hourly(3, 0.25)
    spent = spending(
        *gone(member("x"), minutes_ago=50),
        *gone(member("y"), minutes_ago=20),
        population={BudgetLocation("team-a", "gpus"): 10},
    )
    assert refused(budget, spent, A).until == NOON + minutes(10)
    assert refused(budget, spent, A, B).until == NOON + minutes(40)
    assert refused(budget, spent, A, B, C).until is None
    assert refused(budget, spent, A).words.endswith("; not before 2026-12-01T12:10:00+00:00")
    assert refused(budget, spent, A, B, C).words == refused(budget, spent, A, B, C).message


# ---------------------------------------------------------------------------------------------------- at once, hourly


@pytest.mark.parametrize(
    ("budget", "suspensions", "victims"),
    [
        pytest.param(at_once(2), gone(OTHER), [A], id="room for one more"),
        pytest.param(at_once(1), gone(OTHER, over=True), [A], id="who is back does not count at once"),
        pytest.param(at_once(1), gone(A), [A], id="who is suspended already takes no more room"),
        pytest.param(hourly(1), gone(OTHER, minutes_ago=60), [A], id="an hour ago to the second is over"),
        pytest.param(hourly(1), gone(A, minutes_ago=5, over=True), [A], id="the same workload twice is one"),
        pytest.param(at_once(0, scope=Scope(namespaces=TEAM_B)), gone(), [A], id="not the victim's namespace"),
        pytest.param(at_once(1, scope=Scope(namespaces=TEAM_A)), gone(OTHER), [A], id="another namespace's spending"),
        pytest.param(at_once(1, scope=Scope(each=Each.NAMESPACE)), gone(), [A, OTHER], id="each namespace one"),
        pytest.param(at_once(0), gone(), [], id="no victims cost nothing"),
        pytest.param(at_once(share=0.25), gone(OTHER), [A, B], id="3 of 25 % of 12 = 3"),
        pytest.param(Budget(name="nothing"), gone(OTHER), [A, B, C], id="a budget without a limit"),
    ],
)
def test_victims_for_whom_there_is_room_are_granted(
    budget: Budget, suspensions: Sequence[Suspension], victims: Sequence[BudgetedWorkload]
) -> None:
    assert granted(budget, spending(*suspensions), *victims)


EACH_NAMESPACE, LABELLED = Scope(each=Each.NAMESPACE), Scope(namespace_selector="team=a")
NO_ROOM = {
    "one of two would have room: none is granted": (at_once(2), gone(OTHER), [A, B], "2|at once in the cluster|1|2"),
    "one namespace has room, the other has not": (
        at_once(share=0.25, scope=EACH_NAMESPACE),
        gone(B, C),
        [A, OTHER],
        "2 (25 % of 8)|at once in namespace team-a|2|1",
    ),
    "one that came back counts in its hour": (hourly(1), gone(OTHER, over=True), [A], "1|within 1h in the cluster|1|1"),
    "a clock that is ahead": (hourly(1), gone(OTHER, minutes_ago=-5), [A], "1|within 1h in the cluster|1|1"),
    "none at all": (at_once(0, scope=LABELLED), gone(), [A], "0|at once in namespaces with team=a|0|1"),
}


@pytest.mark.parametrize(("budget", "suspensions", "victims", "numbers"), NO_ROOM.values(), ids=NO_ROOM)
def test_victims_for_which_there_is_no_room_are_refused_with_the_numbers(
    budget: Budget, suspensions: Sequence[Suspension], victims: Sequence[BudgetedWorkload], numbers: str
) -> None:
    most, where, already, more = numbers.split("|")
    message = f"at most {most} suspended {where}; {already} count already, and {more} would follow"
    assert refused(budget, spending(*suspensions), *victims).message == f"budget '{budget.name}': {message}"


def test_of_several_budgets_the_one_that_takes_longest_is_named() -> None:
    spent = spending(*gone(OTHER))
    found = answer([hourly(1), at_once(1), at_once(0)], spent, [A])
    assert found is not None
    assert (found.budget, found.until) == ("at-once", None)
    assert "at most 1 " in found.message, "the first of those that time does not help"
    assert answer([hourly(5), at_once(5)], spent, [A]) is None


def test_of_several_suspensions_of_one_workload_the_last_counts() -> None:
    for ages in ([50, 20], [20, 50]):
        twice = [each for age in ages for each in gone(OTHER, minutes_ago=age)]
        assert refused(hourly(1), spending(*twice), A).until == NOON + minutes(40), "an hour after the one 20 min ago"


# ------------------------------------------------------------------------------------------------------------- hours

OFFICE = Hours(begin=time(9), end=time(17))
NIGHT = Hours(begin=time(22), end=time(6))


def test_outside_of_its_hours_a_limit_does_not_hold() -> None:
    assert granted(at_once(0, applies_during=(NIGHT,)), spending(), A)
    limited = refused(at_once(0, applies_during=(OFFICE,)), spending(), A)
    assert limited.until == NOON + timedelta(hours=5), "17:00: the limit itself would never let it pass"
    lunch = Hours(begin=time(11, 50), end=time(12, 10))
    limited = refused(hourly(1, applies_during=(lunch,)), spending(*gone(OTHER)), A)
    assert limited.until == NOON + minutes(10), "12:10: the limit itself would let it pass at 12:30"


def test_outside_of_the_hours_in_which_it_is_allowed_nothing_is_suspended() -> None:
    nightly = Budget(name="nights", allowed_during=(NIGHT,))
    closed = refused(nightly, spending(), A)
    assert closed.message == "budget 'nights': in the cluster it is allowed only 22:00-06:00 UTC"
    assert closed.until == NOON + timedelta(hours=10), "22:00"
    assert answer([nightly], spending(), [A], NOON + timedelta(hours=10)) is None


# ------------------------------------------------------------------------------------------------------------ in doubt

TYPO = Hours(zone="Europe/Berln")


ZONE = "time zone 'Europe/Berln' cannot be read; write an IANA name such as 'Europe/Berlin'"
SELECTOR = "'team in a' is not a label requirement; write 'key=value', 'key in (a,b)', 'key' or '!key'"
OF_QUEUE, OF_TEAM = Scope(cluster_queues=frozenset({"gpus"})), Scope(namespace_selector="team")
UNKNOWN = {
    "a time zone of the hours in which it applies": (at_once(9, applies_during=(TYPO,)), [A], ZONE),
    "a time zone of the hours in which it is allowed": (
        Budget(name="at-once", allowed_during=(Hours(), TYPO)),
        [A],
        ZONE,
    ),
    "a selector": (at_once(9, scope=Scope(namespace_selector="team in a")), [A], SELECTOR),
    "the ClusterQueue of a victim": (
        at_once(9, scope=OF_QUEUE),
        [A, member("b", cluster_queue=None)],
        "it is unknown whether team-a/b is in ClusterQueue gpus",
    ),
    "the labels of a victim's namespace": (
        at_once(9, scope=OF_TEAM),
        [member("a", "new")],
        "it is unknown whether new/a is in namespaces with team",
    ),
    "how many workloads there are": (
        at_once(share=1.0, scope=Scope(namespaces=frozenset({"new"}))),
        [member("a", "new")],
        "at most 0 (100 % of 0) suspended at once in namespace new; 0 count already, and 1 would follow",
    ),
}


@pytest.mark.parametrize(("budget", "victims", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_refuses(budget: Budget, victims: list[BudgetedWorkload], message: str) -> None:
    found = refused(budget, spending(), *victims)
    assert (found.message, found.until) == (f"budget 'at-once': {message}", None)


def test_what_might_be_covered_counts_and_what_might_be_there_does_not() -> None:
    queue = Scope(cluster_queues=frozenset({"gpus"}))
    lost = gone(member("lost", cluster_queue=None))
    assert not granted(at_once(1, scope=queue), spending(*lost), A)
    each = Scope(each=Each.CLUSTER_QUEUE)
    assert not granted(at_once(1, scope=each), spending(*lost), A), "it may be any queue's"
    assert granted(at_once(1, scope=queue), spending(*gone(member("deployment", cluster_queue=""))), A)
    unsure = spending(population={BudgetLocation("team-a", "gpus"): 2, BudgetLocation("team-a"): 8})
    assert not granted(at_once(share=0.25, scope=queue), unsure, A), "25 % of the 2 that are sure is none"


def test_a_suspension_of_nobody_knows_when_is_recent_for_good() -> None:
    spent = spending(*gone(OTHER, minutes_ago=None, over=True))
    assert refused(hourly(1), spent, A).until is None
    assert granted(at_once(1), spent, A), "it has come back"


# ---------------------------------------------------------------------------------------------------------------- laws

MEMBERS = [member(f"w{n}", f"team-{n % 2}", f"queue-{n % 3}") for n in range(8)]
ALL = {each.place: sum(other.place == each.place for other in MEMBERS) for each in MEMBERS}
WINDOWS = st.just(()) | st.tuples(
    st.builds(Hours, begin=st.integers(0, 23).map(time), end=st.integers(0, 23).map(time))
)
LIMITS = st.builds(Limit, count=st.integers(0, 5)) | st.builds(
    Limit, count=st.none() | st.integers(0, 5), share_ratio=st.floats(0.05, 1)
)
SCOPES = st.builds(
    Scope,
    namespaces=st.sampled_from([frozenset(), frozenset({"team-0"})]),
    cluster_queues=st.sampled_from([frozenset(), frozenset({"queue-0", "queue-1"})]),
    each=st.none() | st.sampled_from(Each),
)
BUDGETS = st.lists(
    st.builds(
        Budget,
        name=st.just("any"),
        scope=SCOPES,
        at_once=st.none() | LIMITS,
        rate=st.none() | st.builds(Rate, limit=LIMITS, period=st.integers(1, 12).map(lambda n: n * HOUR)),
        applies_during=WINDOWS,
        allowed_during=WINDOWS,
    ),
    max_size=3,
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


def spent_of(suspensions: Sequence[Suspension]) -> SuspensionHistory:
    return SuspensionHistory(suspensions=tuple(suspensions), population=ALL)


@given(budgets=BUDGETS, suspensions=SUSPENSIONS, more=SUSPENSIONS, victims=VICTIMS, data=st.data())
def test_order_is_irrelevant_and_more_is_never_admitted_where_less_is_not(
    budgets: list[Budget],
    suspensions: list[Suspension],
    more: list[Suspension],
    victims: list[BudgetedWorkload],
    data: st.DataObject,
) -> None:
    check = budget_check(budgets, spent_of(suspensions), NOON)
    found = check(victims)
    shuffled = spent_of(data.draw(st.permutations(suspensions)))
    assert answer(budgets, shuffled, data.draw(st.permutations(victims))) == found
    if found is None:
        assert check(victims[1:]) is None, "fewer victims; and what was asked before changes no answer"
    else:
        assert answer(budgets, spent_of([*suspensions, *more]), victims) is not None, "more spending"


@given(budgets=BUDGETS, suspensions=SUSPENSIONS, victims=VICTIMS)
def test_before_the_time_that_is_named_nothing_is_admitted(
    budgets: list[Budget], suspensions: list[Suspension], victims: list[BudgetedWorkload]
) -> None:
    found = answer(budgets, spent_of(suspensions), victims)
    if found is None:
        return
    assert found.until is None or found.until > NOON
    for hours in range(48):
        then = NOON + hours * HOUR / 2
        assert (found.until and then >= found.until) or answer(budgets, spent_of(suspensions), victims, then)


# A history: plans that are carried out if they are admitted, workloads that come back, and time that passes.
STEPS = st.lists(
    st.tuples(st.sampled_from(["plan", "plan", "wake"]), VICTIMS, st.integers(0, 90).map(minutes)), max_size=25
)


@given(budgets=BUDGETS, steps=STEPS)
@settings(max_examples=150)
def test_whatever_happens_no_budget_is_ever_exceeded(
    budgets: list[Budget], steps: list[tuple[str, list[BudgetedWorkload], timedelta]]
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
        if answer(budgets, spent_of(seen), members, now) is None:
            log += [(each, now) for each in members]
            asleep |= set(members)
            for budget in budgets:
                assert_kept(budget, log, asleep, members, now)


def assert_kept(
    budget: Budget,
    log: list[tuple[BudgetedWorkload, datetime]],
    asleep: set[BudgetedWorkload],
    victims: list[BudgetedWorkload],
    now: datetime,
) -> None:
    for group in groups(budget.scope):
        if not group.intersection(victims):
            continue
        assert not budget.allowed_during or is_open(budget.allowed_during, now)
        if budget.applies_during and not is_open(budget.applies_during, now):
            continue
        if budget.at_once:
            assert len(asleep & group) <= most(budget.at_once, group)
        if budget.rate:
            recent = {each for each, at in log if now - at < budget.rate.period}
            assert len(recent & group) <= most(budget.rate.limit, group)


def groups(scope: Scope) -> list[set[BudgetedWorkload]]:
    covered = {
        each
        for each in MEMBERS
        if each.namespace in (scope.namespaces or {each.namespace})
        and each.cluster_queue in (scope.cluster_queues or {each.cluster_queue})
    }
    match scope.each:
        case None:
            return [covered]
        case Each.NAMESPACE:
            return [{m for m in covered if m.namespace == name} for name in ("team-0", "team-1")]
        case Each.CLUSTER_QUEUE:
            return [{m for m in covered if m.cluster_queue == f"queue-{n}"} for n in range(3)]


def most(limit: Limit, group: set[BudgetedWorkload]) -> float:
    share = float("inf") if limit.share_ratio is None else limit.share_ratio * len(group) + 1e-9
    return share if limit.count is None else min(share, limit.count)
