from typing import Any

import pytest
from builders import NOON
from hypothesis import given
from hypothesis import strategies as st
from multikueue.hub.dispatch.dispatch_builders import answer, at, ranking

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.candidates import ClusterObstacle
from scaler.multikueue.hub.dispatch.ranking import GivenRoom, is_given_away


def order(**answers: Any) -> list[str]:
    return [each.name for each in ranking(**answers).candidates]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param(
            {"a": "Unknown", "b": "Wait", "c": "Nodes", "d": "Reclaim", "e": "Free"}, "edcba", id="by what they answer"
        ),
        pytest.param(
            {"a": answer("Reclaim", cost=2000), "b": answer("Reclaim", cost=1000)}, "ba", id="plans by their cost"
        ),
        pytest.param(
            {"a": answer("Reclaim"), "b": answer("Reclaim", cost=9000)},
            "ba",
            id="a plan of unknown cost is the dearest",
        ),
        pytest.param(
            {"a": answer("Free", free_after=8), "b": answer("Free", free_after=2)}, "ba", id="the smallest gap is left"
        ),
        pytest.param(
            {"a": answer("Free"), "b": answer("Free", free_after=9)}, "ba", id="an unknown gap is the largest"
        ),
        pytest.param({"b": "Wait", "a": "Wait"}, "ba", id="last the order of the config decides"),
        pytest.param(
            {"a": answer("Free", free_after=0, is_given_away=True), "b": answer("Free", free_after=9)},
            "ba",
            id="room that was given away comes after its equals",
        ),
        pytest.param({"a": "Reclaim", "b": answer("Free", is_given_away=True)}, "ba", id="and before what is worse"),
    ],
)
def test_the_best_cluster_comes_first(answers: Any, expected: str) -> None:
    assert "".join(order(**answers)) == expected


def test_where_it_never_fits_it_is_not_nominated_and_that_is_said() -> None:
    found = ranking(a=answer("Never", message="it needs 64 GPUs, the quota is 8"), b="Wait")
    assert [each.name for each in found.candidates] == ["b"]
    [other] = found.others
    assert (other.obstacle, other.words) == (
        ClusterObstacle.NEVER_FITS,
        "it never fits there: it needs 64 GPUs, the quota is 8",
    )


def test_the_answer_is_told_in_words() -> None:
    [found] = ranking(a=answer("Reclaim", cost=1500, victims=("ns/nb",), message="4 GPUs are idle")).candidates
    assert found.words == "Reclaim: cost 1.5, suspends 1, 4 GPUs are idle"
    assert ranking(a="Free").candidates[0].words == "Free"


fits = st.sampled_from(Fit)
answers = st.builds(
    answer,
    fits,
    cost=st.none() | st.integers(0, 5000),
    free_after=st.none() | st.integers(0, 16),
    is_given_away=st.booleans(),
)


@given(st.lists(answers, max_size=6))
def test_every_cluster_is_either_a_candidate_or_told_why_not(given_answers: list[Any]) -> None:
    found = ranking(**{f"c{number}": each for number, each in enumerate(given_answers)})
    assert sorted(each.name for each in found.all) == sorted(f"c{number}" for number in range(len(given_answers)))
    assert all(each.words for each in found.all)
    ranks = [list(Fit).index(each.answer.fit) for each in found.candidates]
    assert ranks == sorted(ranks)


# ------------------------------------------------------------------------------------------------ room is given once

GIVEN = [GivenRoom(uid="a", gpus=4, at=NOON), GivenRoom(uid="b", gpus=2, at=NOON)]


@pytest.mark.parametrize(
    ("fit", "free_after", "received_s", "expected"),
    [
        pytest.param("Free", 5, -1, True, id="what was given since does not fit beside it"),
        pytest.param("Free", 6, -1, False, id="what was given since fits beside it"),
        pytest.param("Free", None, -1, True, id="not known what remains"),
        pytest.param("Free", 0, 2, True, id="the worker may not have seen the copies yet"),
        pytest.param("Free", 0, 3, False, id="the worker has looked again"),
        pytest.param("Reclaim", 99, -1, True, id="a plan counts once"),
        pytest.param("Reclaim", 0, 4, False, id="a plan of afterwards counts"),
        pytest.param("Wait", 0, -1, False, id="no room, so none was given"),
    ],
)
def test_room_is_given_once(fit: str, free_after: int | None, received_s: float, expected: bool) -> None:
    found = is_given_away(Fit(fit), free_after, GIVEN, uid="c", received_at=at(received_s))
    assert found is expected


def test_what_was_given_to_the_workload_itself_is_its_own() -> None:
    assert not is_given_away(Fit.FREE, 0, GIVEN[:1], uid="a", received_at=at(-1))
    assert is_given_away(Fit.FREE, 1, GIVEN, uid="a", received_at=None)
