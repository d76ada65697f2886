"""Of one Workload: its table, and what holds however its clusters answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from builders import NOON, minutes
from hypothesis import given
from hypothesis import strategies as st
from multikueue.hub.dispatch.dispatch_builders import PATIENCE, answer, nominated, ranking

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.nomination import (
    AddCluster,
    KeepNomination,
    MoveReclaim,
    NominateCluster,
    NominationState,
    NominationStep,
    RemoveClusters,
    may_reclaim,
    next_step,
    nominated_after,
    reclaims_at,
)
from scaler.multikueue.hub.dispatch.ranking import Ranking

NEW = NominationState()
AWAITED = answer("Unknown", is_awaited=True)
GIVEN_AWAY = answer("Free", is_given_away=True)


def step(state: NominationState, found: Ranking) -> NominationStep:
    return next_step(state, found, NOON, patience=PATIENCE)


def told(found: NominationStep) -> str:
    match found:
        case KeepNomination():
            return f"keep {found.reason}"
        case NominateCluster():
            return f"nominate {found.cluster.name}{'' if found.with_reclaim else ' without reclaim'}"
        case AddCluster():
            return f"add {found.cluster.name}"
        case MoveReclaim():
            return f"move {found.source} -> {found.cluster.name}"
        case RemoveClusters():
            return f"remove {', '.join(sorted(found.names))}"


TABLE: Mapping[str, tuple[NominationState, Mapping[str, Any], str]] = {
    "the best is nominated": (NEW, {"a": "Wait", "b": "Free"}, "nominate b"),
    "also where no answer is known": (NEW, {"a": "Unknown", "b": "Unknown"}, "nominate a"),
    "without a candidate nothing is": (NEW, {"a": "Never"}, "keep NoCandidate"),
    "answers are waited for, also where there is a good one": (NEW, {"a": "Free", "b": AWAITED}, "keep AwaitsAnswers"),
    "others are asked first": (replace(NEW, is_asked=False), {"a": "Unknown"}, "keep NotAsked"),
    "room that was given away is waited for": (NEW, {"a": "Wait", "b": GIVEN_AWAY}, "keep AwaitsStatus"),
    "unless another has the like": (NEW, {"a": GIVEN_AWAY, "b": "Free"}, "nominate b"),
    "what was begun is ended, whatever is answered now": (
        replace(NEW, nominated_at={"a": NOON - minutes(1)}),
        {"a": "Wait", "b": "Free"},
        "nominate a",
    ),
    "what was begun long ago is begun anew": (
        replace(NEW, nominated_at={"a": NOON - minutes(6)}),
        {"a": "Wait", "b": "Free"},
        "nominate b",
    ),
    "what was begun where it can go no more is begun anew": (
        replace(NEW, nominated_at={"c": NOON}),
        {"a": "Wait", "b": "Free"},
        "nominate b",
    ),
    "a nomination that is not ours is chosen anew": (
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
    "afterwards it moves to where there is room": (
        nominated("a", ago=minutes(5)),
        {"a": "Wait", "b": "Free"},
        "move a -> b",
    ),
    "also to a cluster that is nominated": (
        nominated("a", "b", ago=minutes(5)),
        {"a": "Nodes", "b": "Reclaim"},
        "move a -> b",
    ),
    "not to room that was given away": (
        nominated("a", ago=minutes(5)),
        {"a": "Wait", "b": GIVEN_AWAY},
        "keep AwaitsStatus",
    ),
    "it stays first where it fits": (nominated("a", ago=minutes(5)), {"a": "Reclaim", "b": "Free"}, "add b"),
    "it stays first where nothing is known": (nominated("a", ago=minutes(5)), {"a": "Unknown", "b": "Free"}, "add b"),
    "nowhere better: the next is added": (
        nominated("a", ago=minutes(5)),
        {"a": "Wait", "b": "Wait", "c": "Nodes"},
        "add c",
    ),
    "a cluster that is no candidate any more is left": (nominated("z", ago=minutes(5)), {"a": "Wait"}, "move z -> a"),
    "but not within the patience": (nominated("z", ago=minutes(4)), {"a": "Free"}, "keep Patience"),
    "there is no other": (nominated("a", ago=minutes(60)), {"a": "Wait"}, "keep AllNominated"),
    "all are nominated": (nominated("a", "b", ago=minutes(60)), {"a": "Wait", "b": "Wait"}, "keep AllNominated"),
    "others are asked about first, also later": (
        nominated("a", ago=minutes(60), is_asked=False),
        {"a": "Unknown", "b": "Unknown"},
        "keep NotAsked",
    ),
    "the time of the last of them counts": (
        nominated("a", "b", ago=minutes(4)),
        {"a": "Wait", "b": "Wait", "c": "Free"},
        "keep Patience",
    ),
    "where it never fits it is nominated no longer": (
        nominated("a", "b", ago=minutes(5)),
        {"a": "Never", "b": "Never"},
        "remove a, b",
    ),
    "also where others have nominated it": (replace(NEW, nominated=("a",)), {"a": "Never"}, "remove a"),
    "but not within the patience, either": (nominated("a"), {"a": "Never"}, "keep NoCandidate"),
    "it leaves those alone where it never fits": (
        nominated("a", "b", ago=minutes(5)),
        {"a": "Wait", "b": "Never", "c": "Wait"},
        "remove b",
    ),
    "from the first of them it moves": (nominated("a", ago=minutes(5)), {"a": "Never", "b": "Wait"}, "move a -> b"),
    "what was removed has patience, too": (
        replace(NEW, removed_at=NOON - minutes(4)),
        {"a": "Free"},
        "keep Patience",
    ),
    "and is nominated after that": (replace(NEW, removed_at=NOON - minutes(5)), {"a": "Free"}, "nominate a"),
    "an inactive one is nominated for its quota, and nothing is reclaimed": (
        replace(NEW, is_active=False),
        {"a": AWAITED, "b": "Free"},
        "nominate b without reclaim",
    ),
    "an inactive one that is nominated stays so": (nominated("a", is_active=False), {"a": "Wait"}, "keep Inactive"),
    "an inactive one is nominated elsewhere where its cluster is lost": (
        nominated("z", is_active=False),
        {"a": "Wait"},
        "nominate a without reclaim",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_nomination_follows_its_table(case: str) -> None:
    state, answers, expected = TABLE[case]
    assert told(step(state, ranking(**answers))) == expected


def test_at_most_twenty_clusters_are_nominated() -> None:
    many = nominated(*(f"c{number}" for number in range(20)), ago=minutes(5))
    answers = dict.fromkeys([*many.nominated, "another"], "Wait")
    assert told(step(many, ranking(**answers))) == "keep AllNominated"


@pytest.mark.parametrize(
    ("state", "answers", "names", "reclaims"),
    [
        pytest.param(NEW, {"a": "Free"}, ("a",), "a", id="the one that is nominated may reclaim"),
        pytest.param(
            nominated("a", ago=minutes(5)), {"a": "Free", "b": "Free"}, ("a", "b"), "a", id="the first keeps it"
        ),
        pytest.param(nominated("a", "b", ago=minutes(5)), {"a": "Wait", "b": "Free"}, ("b",), "b", id="it moves"),
        pytest.param(
            nominated("a", "b", "c", ago=minutes(5)), {"b": "Wait", "c": "Free"}, ("c", "b"), "c", id="others stay"
        ),
        pytest.param(replace(NEW, is_active=False), {"a": "Free"}, ("a",), "", id="not for one that is inactive"),
        pytest.param(nominated("a", is_active=False), {"a": "Free"}, ("a",), "", id="nor where it was active before"),
        pytest.param(replace(NEW, nominated=("a",)), {"a": AWAITED}, ("a",), "", id="not where others have nominated"),
    ],
)
def test_the_first_of_the_names_may_reclaim(state: Any, answers: Any, names: Any, reclaims: str) -> None:
    found = step(state, ranking(**answers))
    assert (nominated_after(found, state.nominated), reclaims_at(found, state)) == (names, reclaims)


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


def taken(found: NominationStep, state: NominationState, at: Any) -> NominationState:
    """The state once the step is taken."""
    names = nominated_after(found, state.nominated)
    if isinstance(found, KeepNomination):
        return state
    if isinstance(found, RemoveClusters):
        return replace(state, nominated=names, removed_at=at)
    return replace(state, nominated=names, nominated_at={**state.nominated_at, found.cluster.name: at})


@given(st.lists(answers_of_a_round | never_or_not, min_size=30, max_size=80))
def test_however_the_answers_flip_a_nomination_changes_once_per_patience(rounds: Sequence[Mapping[str, Any]]) -> None:
    state, changes = NEW, []
    for number, answers in enumerate(rounds):
        now = NOON + number * ROUND
        found = next_step(state, ranking(**answers), now, patience=PATIENCE)
        after = taken(found, state, now)
        changes += [now] if after.nominated != state.nominated else []
        state = after
    assert all(later - earlier >= PATIENCE for earlier, later in pairwise(changes))


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
        now = NOON + number * ROUND
        given_answers = {**answers, **({free: Fit.FREE} if number >= since else {})}
        found = next_step(state, ranking(**given_answers), now, patience=PATIENCE)
        state = taken(found, state, now)
        if number * ROUND >= since * ROUND + PATIENCE:
            assert free in state.nominated


@given(st.lists(answers_of_a_round, min_size=1, max_size=60))
def test_the_one_that_may_reclaim_is_the_first_of_the_names(rounds: Sequence[Mapping[str, Any]]) -> None:
    state = NEW
    for number, answers in enumerate(rounds):
        now = NOON + number * ROUND
        found = next_step(state, ranking(**answers), now, patience=PATIENCE)
        holder = reclaims_at(found, state)
        state = taken(found, state, now)
        assert holder == next(iter(state.nominated), "")


def test_the_clusters_of_a_nomination_that_is_not_ours_stay_where_the_first_does() -> None:
    state = replace(NEW, nominated=("b", "c"))
    found = step(state, ranking(a="Free", b="Free", c="Wait"))
    assert nominated_after(found, state.nominated) == ("b", "c")
    assert reclaims_at(found, state) == "b"
