"""The budgets of IdlePolicies: what counts, and who is warned."""

from datetime import datetime
from typing import Any

import pytest
from builders import NOON, a_target, at, decision, minutes, policy
from hypothesis import given
from hypothesis import strategies as st

from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.reasons import DecisionReason
from scaler.idleness.policy import Limit, Overrides, PerPeriod, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.reclaim.budget import BudgetedWorkload, BudgetExhausted, budget_check
from scaler.reclaim.policy_budgets import PolicyBudgets, budgets_of, names_of
from scaler.targets.target_state import Phase

OF_CLUSTER = {
    "sources": {"suspended_at_once": "ClusterIdlePolicy/all", "suspended_per_period": "ClusterIdlePolicy/all"}
}
ONE: dict[str, Any] = {"suspended_at_once": Limit(count=1), "warning": minutes(0), **OF_CLUSTER}
DAILY: dict[str, Any] = {
    "suspended_per_period": PerPeriod(limit=Limit(count=1), period=minutes(60)),
    "warning": minutes(0),
} | OF_CLUSTER
WAITS = Active(reason=DecisionReason.WARNED, message="no room yet")
STALE = Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message="stale")


HALF_AN_HOUR_AGO = at(-1800)


def idle(since: datetime = HALF_AN_HOUR_AGO, *, of: dict[str, Any] | None = None, **target: Any) -> Decision:
    return decision(WAITS, idle_since=since, policy=policy(**(of or ONE)), target=a_target(**target))


def busy(of: dict[str, Any] | None = None, **target: Any) -> Decision:
    return decision(policy=policy(**(of or ONE)), target=a_target(**target))


def down(of: dict[str, Any] | None = None, **target: Any) -> Decision:
    state = a_target(**{"desired_replicas": 0, "phase": Phase.SUSPENDED, "running_since": None, **target})
    answer = Inactive(reason=DecisionReason.SUSPENDED, message="suspended")
    return decision(answer, policy=policy(**(of or ONE)), target=state, verdict=None)


class World:
    """ScaledObjects of Deployments, by `namespace/name`."""

    def __init__(self, **decisions: Decision) -> None:
        self.now = NOON
        self.cache = DecisionCache(max_age=minutes(10))
        self.budgets = PolicyBudgets(self.cache, clock=lambda: self.now)
        self.entries: dict[tuple[str, str], EvaluatedScaledObject] = {}
        self.shows(**decisions)

    def shows(self, **decisions: Decision) -> None:
        for name, each in decisions.items():
            target = ScaleTargetRef(name=name)
            self.entries["demo", name] = EvaluatedScaledObject(target=target, triggers={Overrides(): each})
        self.cache.publish(Evaluation.of(dict(self.entries), at=self.now))

    def permits(self, name: str) -> bool:
        return self.budgets.permits_warning(("demo", name))

    def refuses_plan(self, name: str) -> BudgetExhausted | None:
        member = BudgetedWorkload(
            namespace="demo", name=f"Deployment/{name}", budgets=names(*self.entries["demo", name].triggers.values())
        )
        return self.budgets.refuses_plan([member])

    @property
    def line(self) -> list[str]:
        return [name for _, name in self.budgets.next_in_line()]


@pytest.mark.parametrize(
    ("other", "of", "has_room"),
    [
        pytest.param(busy(), ONE, True, id="works"),
        pytest.param(idle(), ONE, True, id="idle, and not warned"),
        pytest.param(idle(warned_at=at(-60)), ONE, False, id="warned"),
        pytest.param(idle(warned_at=at(-1900)), ONE, True, id="warned before its last work"),
        pytest.param(
            idle(of=ONE | {"reclaim": Reclaim.ON_PRESSURE}, warned_at=at(-60)), ONE, True, id="warned, for plans"
        ),
        pytest.param(idle(grant="plan p1"), ONE, False, id="victim of a plan"),
        pytest.param(down(), ONE, False, id="at 0"),
        pytest.param(down(doubt=STALE), ONE, False, id="not seen"),
        pytest.param(busy(doubt=STALE), ONE, False, id="not seen, as it was at 1"),
        pytest.param(busy(suspended_at=at(-60)), ONE, True, id="came back"),
        pytest.param(busy(DAILY, suspended_at=at(-60)), DAILY, False, id="came back, a minute ago"),
        pytest.param(busy(DAILY, suspended_at=at(-3600)), DAILY, True, id="came back, an hour ago"),
        pytest.param(down(DAILY, suspended_at=at(-3600)), DAILY, True, id="at 0 since an hour"),
        pytest.param(down(DAILY), DAILY, False, id="at 0, nobody knows since when"),
        pytest.param(
            down(DAILY, suspended_at=at(-3600), phase=Phase.SUSPENDING), DAILY, False, id="on its way to 0 once more"
        ),
        pytest.param(idle(of={"warning": minutes(0)}, warned_at=at(-60)), ONE, True, id="has no budget"),
        pytest.param(idle(of=ONE | {"sources": {}}, warned_at=at(-60)), ONE, True, id="has it from elsewhere"),
    ],
)
def test_what_counts_of_another_workload(other: Decision, of: dict[str, Any], has_room: bool) -> None:
    world = World(other=other, train=idle(of=of))
    assert world.permits("train") is has_room


def test_of_several_that_are_due_at_once_only_as_many_are_warned_as_there_is_room_for() -> None:
    """Before any evaluation has shown a warning."""
    world = World(**{name: idle(of=ONE | {"suspended_at_once": Limit(count=2)}) for name in "abcd"})
    assert [world.permits(name) for name in "abcd"] == [True, True, False, False]
    assert world.permits("a"), "it has its place already"
    assert world.line == []
    world.now = at(60)
    world.shows(a=idle(of=ONE | {"suspended_at_once": Limit(count=2)}, warned_at=NOON))
    assert not world.permits("c")


def test_the_longest_idle_is_next_as_soon_as_there_is_room() -> None:
    world = World(first=idle(warned_at=at(-60)), a=idle(at(-2000)), b=idle(at(-3000)), c=idle(at(-2500)))
    assert [world.permits(name) for name in "abc"] == [False, False, False]
    world.shows(first=busy())
    assert world.line == ["b"]
    assert world.permits("b")
    assert world.line == []
    world.shows(c=busy(), b=busy())
    world.now = at(121)
    assert world.line == ["a"], "c works"
    del world.entries["demo", "a"]
    world.shows()
    assert world.line == [], "a is gone"


def test_a_new_leader_warns_only_once_it_has_seen_what_the_one_before_did() -> None:
    """The last evaluation is of a moment before that one warned `a`."""
    world = World(a=idle(), b=idle(at(-3000)))
    world.budgets.lead()
    assert [world.permits(name) for name in "ab"] == [False, False]
    world.now = at(4)
    world.shows(a=idle(), b=idle(at(-3000)))
    assert world.line == [], "the warning may not have been heard of"
    world.now = at(15)
    world.shows(a=idle(warned_at=at(-1)))
    assert not world.permits("b")
    world.shows(a=busy())
    assert world.line == ["b"]
    assert world.permits("b")


def test_plans_spend_budgets_themselves_so_that_warnings_before_them_do_not() -> None:
    for_plans = ONE | {"reclaim": Reclaim.ON_PRESSURE}
    world = World(a=idle(of=for_plans), b=idle(of=for_plans))
    assert [world.permits(name) for name in "ab"] == [True, True]


def test_a_warning_that_was_never_written_gives_its_place_back() -> None:
    world = World(a=idle(), b=idle())
    assert world.permits("a")
    world.now = at(119)
    assert not world.permits("b")
    world.now = at(121)
    assert world.permits("b")


def test_a_budget_is_of_the_policy_that_says_it_and_without_one_of_the_namespace() -> None:
    own = policy(suspended_at_once=Limit(count=1), sources={"suspended_at_once": "IdlePolicy/a"})
    assert names(decision(policy=own)) == ("suspendedAtOnce of IdlePolicy/a in demo",)
    assert names(decision(policy=policy(**ONE))) == ("suspendedAtOnce of ClusterIdlePolicy/all",)
    by_hand = policy(suspended_at_once=Limit(count=1), sources={"suspended_at_once": "trigger metadata"})
    assert names(decision(policy=by_hand)) == ("suspendedAtOnce of trigger metadata in demo",)
    assert names(decision(policy=own), decision(policy=policy(**DAILY))) == (
        "suspendedAtOnce of IdlePolicy/a in demo",
        "suspendedPerPeriod of ClusterIdlePolicy/all",
    )
    assert names(decision()) == ()


def names(*decisions: Decision) -> tuple[str, ...]:
    """The budgets that a workload of two triggers has: both count."""
    return names_of(budgets_of("demo", decisions))


def test_plans_find_what_is_spent() -> None:
    world = World(a=down(), b=idle(of=ONE | {"reclaim": Reclaim.ON_PRESSURE}))
    spending = world.budgets.spending(NOON)
    refused = budget_check(spending, NOON)([BudgetedWorkload(namespace="demo", name="b", budgets=names(idle()))])
    assert refused is not None
    assert refused.message == (
        "budget 'suspendedAtOnce of ClusterIdlePolicy/all': at most 1 suspended at once; 1 count already, and 1 more "
        "would be suspended"
    )
    assert budget_check(spending, NOON)([BudgetedWorkload(namespace="demo", name="c")]) is None


def test_a_share_is_of_all_that_have_the_budget_whatever_they_do() -> None:
    half = ONE | {"suspended_at_once": Limit(share=0.5)}
    world = World(a=idle(of=half), b=idle(of=half), c=busy(half), other=idle(of={"warning": minutes(0)}))
    assert [world.permits(name) for name in "ab"] == [True, False], "of three one, 1.5 rounded down"
    world.shows(d=down(half), e=busy(half))
    assert not world.permits("b"), "of five two: the one that was warned, and the one at 0"
    world.shows(f=busy(half))
    assert world.line == ["b"]
    assert world.permits("b")
    [budget] = world.budgets.spending(NOON).budgets
    assert (budget.most, budget.population) == (3, 6)


def test_a_grant_counts_before_any_evaluation_shows_it() -> None:
    """The one of a plan of this leader or the one before, which is written to the ScalableWorkload."""
    granted = set[tuple[str, str]]()
    world = World(a=idle(of=ONE | {"reclaim": Reclaim.ON_PRESSURE}), b=idle())
    world.budgets.is_granted = granted.__contains__
    [budget] = world.budgets.spending(NOON).budgets
    assert world.budgets.spending(NOON).used(budget, NOON) == 0
    granted.add(("demo", "Deployment/a"))
    assert world.budgets.spending(NOON).used(budget, NOON) == 1
    assert not world.permits("b")


def test_a_plan_counts_from_when_it_is_permitted_and_not_beside_a_warning() -> None:
    """Neither the copy of the ScalableWorkload nor an evaluation shows its grant yet."""
    world = World(a=idle(of=ONE | {"reclaim": Reclaim.ON_PRESSURE}), b=idle())
    assert world.refuses_plan("a") is None
    assert not world.permits("b")
    world = World(a=idle(of=ONE | {"reclaim": Reclaim.ON_PRESSURE}), b=idle())
    assert world.permits("b")
    assert world.refuses_plan("a") is not None


LIMITS = [{"suspended_at_once": Limit(count=most), "warning": minutes(0)} for most in (5, 1)]


@pytest.mark.parametrize("of", [LIMITS, LIMITS[::-1]], ids=["high and low", "low and high"])
def test_of_several_limits_of_one_namespace_all_have_to_have_room(of: list[dict[str, Any]]) -> None:
    world = World(a=idle(of=of[0]), b=idle(of=of[1]), c=down(of[0]))
    assert [world.permits(name) for name in "ab"] == [False, False]
    assert world.refuses_plan("a") is not None
    world.shows(c=busy(of[0]))
    assert world.permits("a")
    assert world.refuses_plan("b") is not None


@pytest.mark.parametrize("of", [LIMITS, LIMITS[::-1]], ids=["high and low", "low and high"])
def test_of_several_limits_of_its_triggers_all_have_to_have_room(of: list[dict[str, Any]]) -> None:
    world = World(a=down(LIMITS[0]))
    triggers = {Overrides(idle_after=minutes(5 + number)): idle(of=each) for number, each in enumerate(of)}
    world.entries["demo", "b"] = EvaluatedScaledObject(target=ScaleTargetRef(name="b"), triggers=triggers)
    world.shows()
    assert not world.permits("b")


def test_what_cannot_be_read_any_more_keeps_its_place() -> None:
    world = World(a=down(), b=idle())
    assert not world.permits("b")
    broken = EvaluatedScaledObject(target=ScaleTargetRef(name="a"), triggers={}, problems=("idleAfter: soon",))
    world.entries["demo", "a"] = broken
    world.shows()
    assert not world.permits("b")
    world.shows(a=busy())
    assert world.permits("b")


@given(
    events=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(["idle", "busy", "ask", "suspend", "wake", "seen"])),
        max_size=60,
    ),
    most=st.integers(0, 4),
)
def test_whatever_happens_never_more_are_warned_or_suspended_than_the_budget_allows(
    events: list[tuple[str, str]], most: int
) -> None:
    """Warnings are given as the leader gives them; evaluations show them when they like, within two minutes."""
    of = ONE | {"suspended_at_once": Limit(count=most)}
    world = World(**dict.fromkeys("abcdef", busy(of)))
    state, warned = dict.fromkeys("abcdef", "busy"), dict[str, datetime]()
    for number, (name, event) in enumerate(events):
        world.now = at(number)
        match event:
            case "idle" if state[name] == "busy":
                state[name] = "idle"
                world.shows(**{name: idle(at(number), of=of)})
            case "busy" | "wake" if state[name] != "busy" and (event == "wake") is (state[name] == "down"):
                state[name] = "busy"
                warned.pop(name, None)
                world.shows(**{name: busy(of)})
            case "ask" if state[name] == "idle" and name not in warned and world.permits(name):
                warned[name] = world.now
            case "seen" if name in warned and state[name] == "idle":
                world.shows(**{name: idle(at(number - 1), of=of, warned_at=world.now)})
            case "suspend" if name in warned and state[name] == "idle":
                state[name] = "down"
                world.shows(**{name: down(of)})
        assert len(warned.keys() | {each for each in state if state[each] == "down"}) <= most
