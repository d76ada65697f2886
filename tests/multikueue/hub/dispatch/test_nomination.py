"""Of one Workload: its table, and what holds however its clusters answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from builders import NOON, minutes
from hypothesis import given
from hypothesis import strategies as st
from multikueue.hub.dispatch.dispatch_builders import PATIENCE, answer, nominated, ranking

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.nomination import (
    KeepNomination,
    NominateCluster,
    NominationState,
    NominationStep,
    WithdrawNomination,
    may_reclaim,
    next_step,
    nominated_after,
)

NEW = NominationState()
AWAITED = answer("Unknown", is_awaited=True)
GIVEN_AWAY = answer("Free", is_given_away=True)
UNDER_WAY = answer("Reclaim", cost=0)


def step(state: NominationState, answers: Mapping[str, Any], now: datetime = NOON) -> NominationStep:
    return next_step(state, ranking(state, **answers), now, patience=PATIENCE)


def told(found: NominationStep) -> str:
    match found:
        case KeepNomination():
            return f"keep {found.reason}"
        case NominateCluster():
            return f"nominate {found.cluster.name}"
        case WithdrawNomination():
            return "withdraw"


TABLE: Mapping[str, tuple[NominationState, Mapping[str, Any], str]] = {
    "the best is nominated": (NEW, {"a": "Wait", "b": "Free"}, "nominate b"),
    "also where no answer is known": (NEW, {"a": "Unknown", "b": "Unknown"}, "nominate a"),
    "without a candidate nothing is": (NEW, {"a": "Never"}, "keep NoCandidate"),
    "answers are waited for, also where there is a good one": (NEW, {"a": "Free", "b": AWAITED}, "keep AwaitsAnswers"),
    "others are asked first": (replace(NEW, is_asked=False), {"a": "Unknown"}, "keep NotAsked"),
    "room that was given away is waited for": (NEW, {"a": "Wait", "b": GIVEN_AWAY}, "keep AwaitsStatus"),
    "unless another has the like": (NEW, {"a": GIVEN_AWAY, "b": "Free"}, "nominate b"),
    "a nomination of unknown time is chosen anew": (
        replace(NEW, nominated=("a",)),
        {"a": "Wait", "b": "Free"},
        "nominate b",
    ),
    "also where another would suspend less": (
        replace(NEW, nominated=("b",)),
        {"a": "Free", "b": "Reclaim"},
        "nominate a",
    ),
    "unless a copy may have quota there": (replace(NEW, nominated=("b",)), {"a": "Free", "b": "Free"}, "nominate b"),
    "or it is not known whether one has": (replace(NEW, nominated=("b",)), {"a": "Free", "b": "Unknown"}, "nominate b"),
    "a copy that has quota is kept before one that waits": (
        replace(NEW, nominated=("b", "c")),
        {"a": "Free", "b": "Wait", "c": "Free"},
        "nominate c",
    ),
    "within the patience it stays": (nominated("a", ago=minutes(4)), {"a": "Wait", "b": "Free"}, "keep Patience"),
    "afterwards it goes to where there is room": (
        nominated("a", ago=minutes(5)),
        {"a": "Wait", "b": "Free"},
        "nominate b",
    ),
    "also from where nodes are added": (
        nominated("a", ago=minutes(5)),
        {"a": "Nodes", "b": "Reclaim"},
        "nominate b",
    ),
    "not to room that was given away": (
        nominated("a", ago=minutes(5)),
        {"a": "Wait", "b": GIVEN_AWAY},
        "keep AwaitsStatus",
    ),
    "not before its own cluster has answered": (
        nominated("a", ago=minutes(5)),
        {"a": AWAITED, "b": "Free"},
        "keep AwaitsAnswers",
    ),
    "where it was not admitted although it fits the next one is tried": (
        nominated("a", ago=minutes(5)),
        {"a": "Free", "b": "Wait"},
        "nominate b",
    ),
    "also where no plan was made for it": (
        nominated("a", ago=minutes(5)),
        {"a": "Reclaim", "b": "Wait"},
        "nominate b",
    ),
    "also where nothing is known": (nominated("a", ago=minutes(5)), {"a": "Unknown", "b": "Wait"}, "nominate b"),
    "what is suspended for it is not suspended in vain": (
        nominated("a", ago=minutes(60)),
        {"a": UNDER_WAY, "b": "Reclaim"},
        "keep Patience",
    ),
    "unless it fits elsewhere now": (nominated("a", ago=minutes(60)), {"a": UNDER_WAY, "b": "Free"}, "nominate b"),
    "nowhere better: the next is tried": (
        nominated("a", ago=minutes(5)),
        {"a": "Wait", "b": "Wait", "c": "Nodes"},
        "nominate c",
    ),
    "that was tried longest ago, or never": (
        nominated("a", "b", ago=minutes(120)),
        {"a": "Wait", "b": "Wait", "c": "Wait"},
        "nominate c",
    ),
    "of two that did not admit it the earlier one comes back first": (
        nominated("a", "b", "c", ago=minutes(120)),
        {"a": "Free", "b": "Free", "c": "Wait"},
        "nominate a",
    ),
    "in a queue it stays twice as long as in the one before": (
        nominated("a", "b", ago=minutes(119)),
        {"a": "Wait", "b": "Wait"},
        "keep Patience",
    ),
    "and no longer": (nominated("a", "b", ago=minutes(120)), {"a": "Wait", "b": "Wait"}, "nominate a"),
    "for nodes, too": (nominated("a", "b", ago=minutes(119)), {"a": "Nodes", "b": "Nodes"}, "keep Patience"),
    "where another has room after the patience": (
        nominated("a", "b", ago=minutes(5)),
        {"a": "Reclaim", "b": "Wait"},
        "nominate a",
    ),
    "a cluster that is no candidate any more is left": (
        nominated("z", ago=minutes(5)),
        {"a": "Wait"},
        "nominate a",
    ),
    "but not within the patience": (nominated("z", ago=minutes(4)), {"a": "Free"}, "keep Patience"),
    "there is no other": (nominated("a", ago=minutes(60)), {"a": "Wait"}, "keep NoOther"),
    "others are asked about first, also later": (
        nominated("a", ago=minutes(60), is_asked=False),
        {"a": "Unknown", "b": "Unknown"},
        "keep NotAsked",
    ),
    "where it never fits it is nominated no longer": (nominated("a", ago=minutes(5)), {"a": "Never"}, "withdraw"),
    "also where others have nominated it": (replace(NEW, nominated=("a",)), {"a": "Never"}, "withdraw"),
    "but not within the patience, either": (nominated("a"), {"a": "Never"}, "keep NoCandidate"),
    "nor where another may take it": (nominated("a", ago=minutes(5)), {"a": "Never", "b": "Wait"}, "nominate b"),
    "once it fits again it is nominated at once": (
        replace(NEW, nominated_at={"a": NOON - minutes(5)}),
        {"a": "Wait"},
        "nominate a",
    ),
    "an inactive one is nominated for its quota": (
        replace(NEW, is_active=False, is_asked=False),
        {"a": "Unknown", "b": "Unknown"},
        "nominate a",
    ),
    "an inactive one that is nominated stays so": (
        replace(NEW, is_active=False, nominated=("b",)),
        {"a": "Free", "b": "Wait"},
        "keep Inactive",
    ),
    "an inactive one is nominated elsewhere where its cluster is lost": (
        replace(NEW, is_active=False, nominated=("z",)),
        {"a": "Wait"},
        "nominate a",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_nomination_follows_its_table(case: str) -> None:
    state, answers, expected = TABLE[case]
    assert told(step(state, answers)) == expected


def test_reclaim_is_given_only_where_no_other_has_it() -> None:
    assert may_reclaim("a", {"a"})
    assert may_reclaim("a", ())
    assert not may_reclaim("a", {"a", "b"})


# ---------------------------------------------------------------------------------------------------------------- laws

NAMES = ("a", "b", "c", "d")
ROUND = timedelta(seconds=20)
fits = st.sampled_from([fit for fit in Fit if fit is not Fit.FREE])
never_or_not = st.fixed_dictionaries(
    dict.fromkeys(NAMES, st.sampled_from([Fit.NEVER, Fit.NEVER, Fit.WAIT, Fit.UNKNOWN]))
)
answers_of_a_round = st.fixed_dictionaries(dict.fromkeys(NAMES, fits))


def taken(found: NominationStep, state: NominationState, now: datetime) -> NominationState:
    """The state once the step is taken."""
    names = nominated_after(found, state.nominated)
    times = {found.cluster.name: now} if isinstance(found, NominateCluster) else {}
    return replace(state, nominated=names, nominated_at={**state.nominated_at, **times})


def at(number: int) -> datetime:
    """The time of that round."""
    return NOON + number * ROUND


def nominations(rounds: Iterable[Mapping[str, Any]]) -> list[tuple[datetime, str]]:
    """When it was nominated for which cluster, by the answers of each round."""
    state, found = NEW, []
    for number, answers in enumerate(rounds):
        after = taken(step(state, answers, at(number)), state, at(number))
        found += [(at(number), after.cluster)] if after.cluster not in ("", state.cluster) else []
        state = after
    return found


@given(st.lists(answers_of_a_round | never_or_not, min_size=30, max_size=80))
def test_however_the_answers_flip_a_workload_is_nominated_once_per_patience(
    rounds: Sequence[Mapping[str, Any]],
) -> None:
    assert all(later - earlier >= PATIENCE for (earlier, _), (later, _) in pairwise(nominations(rounds)))


@given(st.lists(answers_of_a_round | never_or_not, min_size=1, max_size=60))
def test_at_no_moment_is_it_nominated_for_two_clusters(rounds: Sequence[Mapping[str, Any]]) -> None:
    state = NEW
    for number, answers in enumerate(rounds):
        state = taken(step(state, answers, at(number)), state, at(number))
        assert len(state.nominated) <= 1


@given(
    st.lists(answers_of_a_round, min_size=40, max_size=60),
    st.sampled_from(NAMES),
    st.integers(0, 20),
)
def test_where_one_cluster_stays_the_only_one_with_room_it_is_nominated_within_one_patience(
    rounds: Sequence[Mapping[str, Any]], free: str, since: int
) -> None:
    state = NEW
    for number, answers in enumerate(rounds):
        has_room = number >= since
        state = taken(step(state, {**answers, **({free: Fit.FREE} if has_room else {})}, at(number)), state, at(number))
        if has_room and state.cluster == free:
            return  # where it is admitted
        assert at(number) < at(since) + PATIENCE


@pytest.mark.parametrize("fit", [Fit.UNKNOWN, Fit.FREE, Fit.RECLAIM, Fit.WAIT, Fit.NODES])
def test_where_no_cluster_admits_it_all_are_tried_and_none_again_at_once(fit: Fit) -> None:
    tried = [name for _, name in nominations([dict.fromkeys(NAMES, fit)] * 1000)]
    assert tried[:4] == [*NAMES]
    assert all(earlier != later for earlier, later in pairwise(tried))


def test_where_all_are_full_it_stays_at_each_twice_as_long_as_at_the_one_before() -> None:
    found = nominations([dict.fromkeys(NAMES, Fit.WAIT)] * 1000)
    times = [at for at, _ in found]
    assert [(later - earlier) / PATIENCE for earlier, later in pairwise(times)] == [1, 2, 4, 8, 16, 32]


def test_a_nomination_of_several_clusters_ends_with_one() -> None:
    state = replace(NEW, nominated=("b", "c"))
    found = step(state, {"a": "Free", "b": "Free", "c": "Wait"})
    assert nominated_after(found, state.nominated) == ("b",)
