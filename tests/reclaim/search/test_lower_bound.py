"""What covering a need costs at least: exactly for small needs, never too much for large ones."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scaler.reclaim.search.lower_bound import LowerBound

options = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), max_size=7)


def cheapest(options: list[tuple[int, int]], need: int) -> float:
    """The least cost of all sets that cover the need."""
    sets = (chosen for size in range(len(options) + 1) for chosen in combinations(options, size))
    costs = (sum(cost for _, cost in each) for each in sets if sum(gain for gain, _ in each) >= need)
    return min(costs, default=float("inf"))


def test_the_docstrings_example() -> None:
    cover = LowerBound(4, [(2, 3), (2, 3), (8, 10)])
    # All gains are even, so that a unit is 2: 4 are 2 units.
    assert (cover.need, cover.gains) == (2, [1, 1, 4])
    assert [cover.least(start, 2) for start in range(4)] == [6, 10, 10, float("inf")]
    assert [cover.least(start, 1) for start in range(3)] == [3, 3, 10]


@given(options, st.integers(1, 30))
def test_a_small_need_is_covered_for_the_cost_of_the_cheapest_set(drawn: list[tuple[int, int]], need: int) -> None:
    cover = LowerBound(need, drawn)
    for start in range(len(drawn) + 1):
        assert cover.least(start, cover.need) == cheapest(drawn[start:], need)


@given(options, st.integers(1, 30), st.integers(500, 5_000))
def test_a_large_need_is_never_said_to_cost_more_than_it_does(
    drawn: list[tuple[int, int]], need: int, scale: int
) -> None:
    large = [(gain * scale + gain // 2, cost) for gain, cost in drawn]
    cover = LowerBound(need * scale, large)
    assert cover.need < 1_024
    for start in range(len(drawn) + 1):
        assert cover.least(start, cover.need) <= cheapest(large[start:], need * scale)


@given(options, st.integers(1, 30), st.sampled_from((1, 700)), st.sets(st.integers(0, 6)))
def test_what_covers_a_need_covers_it_in_units_too(
    drawn: list[tuple[int, int]], need: int, scale: int, chosen: set[int]
) -> None:
    cover = LowerBound(need * scale, [(gain * scale, cost) for gain, cost in drawn])
    taken = [i for i in chosen if i < len(drawn)]
    if sum(drawn[i][0] for i in taken) >= need:
        assert sum(cover.gains[i] for i in taken) >= cover.need


def test_nothing_needed_costs_nothing() -> None:
    assert LowerBound(3, [(1, 5)]).least(0, 0) == 0
    assert LowerBound(3, [(1, 5)]).least(0, -2) == 0
    assert LowerBound(3, []).least(0, 3) == float("inf")
