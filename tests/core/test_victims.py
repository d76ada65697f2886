"""The search for the cheapest set: exact on everything small, bounded on everything large."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scaler.core.victims import Found, Limits, Option, cheapest


@dataclass
class Sums:
    """A world in which GPUs of the chosen add up; `also` is what else a set must be to be accepted."""

    options: list[Option]
    need: int
    also: Callable[[frozenset[str]], bool] = lambda _: True
    chosen: int = 0
    hopeful: int = 0
    asked: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hopeful = sum(option.gains[0] for option in self.options)

    def choose(self, option: Option) -> None:
        self.chosen += option.gains[0]

    def unchoose(self, option: Option) -> None:
        self.chosen -= option.gains[0]

    def exclude(self, option: Option) -> None:
        self.hopeful -= option.gains[0]

    def readmit(self, option: Option) -> None:
        self.hopeful += option.gains[0]

    def permits(self) -> bool:
        return True

    def fits(self) -> bool:
        return self.chosen >= self.need

    def could_fit(self) -> bool:
        return self.hopeful >= self.need

    def accepts(self, keys: frozenset[str]) -> bool:
        self.asked.append(keys)
        gained = sum(option.gains[0] for option in self.options if option.key in keys)
        return gained >= self.need and self.also(keys)

    def is_spent(self) -> bool:
        return False


def option(key: str, gpus: int, cost: int) -> Option:
    return Option(key=key, cost=cost, gains=(gpus,), twin=(gpus, key))


def search(world: Sums, **limits: int) -> Found:
    return cheapest(world.options, (world.need,), world, limits=Limits(**limits))


def exhaustive(world: Sums) -> int | None:
    """The least cost of all sets that are accepted."""
    costs = [
        sum(each.cost for each in chosen)
        for size in range(len(world.options) + 1)
        for chosen in combinations(world.options, size)
        if world.accepts(frozenset(each.key for each in chosen))
    ]
    return min(costs, default=None)


def test_two_small_ones_are_taken_where_one_large_one_costs_more() -> None:
    world = Sums([option("a", 2, 3), option("b", 2, 3), option("c", 8, 10)], need=4)
    found = search(world)
    assert (found.keys, found.cost, found.is_exact) == (frozenset("ab"), 6, True)


def test_nothing_is_taken_where_all_together_are_not_enough() -> None:
    found = search(Sums([option("a", 2, 3), option("b", 1, 3)], need=4))
    assert found.keys is None
    assert found.is_exact


def test_a_set_that_only_a_larger_one_makes_acceptable_is_found() -> None:
    # 2 GPUs would do by the count, but not without c: somebody stands in front and has to be served too.
    world = Sums([option("a", 2, 1), option("b", 2, 2), option("c", 1, 9)], need=2, also=lambda keys: "c" in keys)
    found = search(world)
    assert (found.keys, found.cost) == (frozenset("ac"), 10)


def test_a_search_without_steps_left_still_says_what_greedy_found() -> None:
    options = [option(f"o{i:02}", 1 + i % 3, 5 + (i * 7) % 11) for i in range(40)]
    found = search(Sums(options, need=31, also=lambda keys: "o07" in keys), steps=1)
    assert found.keys is not None
    assert "o07" in found.keys
    assert not found.is_exact


def test_no_more_questions_are_asked_than_allowed() -> None:
    options = [option(f"o{i:02}", 1, 5 + i) for i in range(12)]
    world = Sums(options, need=3, also=lambda _: False)
    found = search(world, questions=7)
    assert len(world.asked) <= 7
    assert found.keys is None
    assert not found.is_exact


def test_twins_are_not_searched_twice() -> None:
    twins = [Option(key=f"t{i:02}", cost=5, gains=(1,), twin="t") for i in range(60)]
    found = search(Sums([*twins, option("big", 16, 81)], need=16))
    assert (found.cost, found.is_exact) == (80, True)
    assert found.steps < 200


amounts = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12), st.integers(0, 2)), min_size=0, max_size=7)


@given(amounts, st.integers(0, 12), st.integers(0, 3), st.integers(0, 2**16))
def test_the_cost_equals_that_of_the_best_of_all_sets(
    drawn: list[tuple[int, int, int]], need: int, harshness: int, seed: int
) -> None:
    """Also where acceptance is arbitrary: a hash decides about every set of its own, twins counting as equal."""
    options = [
        Option(key=f"o{i}", cost=cost, gains=(gpus,), twin=(gpus, kind)) for i, (gpus, cost, kind) in enumerate(drawn)
    ]
    kinds = {each.key: each.twin for each in options}

    def also(keys: frozenset[str]) -> bool:
        shape = repr(sorted(repr(kinds[key]) for key in keys))
        return random.Random(f"{shape}{seed}").randrange(4) >= harshness

    best = exhaustive(Sums(options, need, also))
    found = search(Sums(options, need, also), questions=10_000)
    assert found.is_exact
    assert (found.cost if found.keys is not None else None) == best


@given(amounts, st.integers(1, 12))
def test_no_member_of_an_accepted_set_can_be_left_out(drawn: list[tuple[int, int, int]], need: int) -> None:
    options = [option(f"o{i}", gpus, cost) for i, (gpus, cost, _) in enumerate(drawn)]
    for steps in (1, 10_000):
        found = search(Sums(options, need), steps=steps)
        for left_out in found.keys or ():
            rest = sum(each.gains[0] for each in options if each.key in (found.keys or ()) and each.key != left_out)
            assert rest < need
