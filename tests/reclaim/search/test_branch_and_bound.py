"""The search for the cheapest set: exact on everything small, bounded on everything large."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from reclaim_builders import forbids

from scaler.reclaim.budget import BudgetedWorkload
from scaler.reclaim.search.branch_and_bound import LowerBound, cheapest
from scaler.reclaim.search.problem import BudgetAnswers, Incumbent, Item, Problem, SearchLimits, SearchResult


class FreeGpus:
    """GPUs of those that are gone add up."""

    def __init__(self, options: list[Item], need: int) -> None:
        self._gains = {option.key: option.gains[0] for option in options}
        self._missing = need

    def remove_workload(self, key: str) -> None:
        self._missing -= self._gains[key]

    def restore_workload(self, key: str) -> None:
        self._missing += self._gains[key]

    @property
    def could_fit(self) -> bool:
        return self._missing <= 0


@dataclass
class Sums:
    """`also` is what else a set must be to be accepted, `most` how many may be taken together, and `patience` how many
    answers there are before they have taken long enough."""

    options: list[Item]
    need: int
    also: Callable[[frozenset[str]], bool] = lambda _: True
    most: int = 99
    patience: int = 10_000
    asked: list[frozenset[str]] = field(default_factory=list)

    @property
    def are_spent(self) -> bool:
        return len(self.asked) >= self.patience

    def accept(self, keys: frozenset[str]) -> bool:
        self.asked.append(keys)
        gained = sum(option.gains[0] for option in self.options if option.key in keys)
        return gained >= self.need and self.also(keys)

    @property
    def problem(self) -> Problem:
        keys = [option.key for option in self.options]
        members = {key: BudgetedWorkload(namespace="team", name=key, budgets=(key,)) for key in keys}
        budgets = BudgetAnswers(members, lambda chosen: forbids("too many" if len(chosen) > self.most else ""))
        return Problem(lambda: FreeGpus(self.options, self.need), keys, self, budgets)


def option(key: str, gpus: int, cost: int) -> Item:
    return Item(key=key, cost=cost, gains=(gpus,), equivalence=(gpus, key))


def search(world: Sums, **limits: int) -> SearchResult:
    incumbent = Incumbent(problem=world.problem, limits=SearchLimits(**limits))
    return cheapest(world.options, (world.need,), incumbent)


def exhaustive(world: Sums) -> int | None:
    """The least cost of all sets that are accepted."""
    costs = [
        sum(each.cost for each in chosen)
        for size in range(min(world.most, len(world.options)) + 1)
        for chosen in combinations(world.options, size)
        if world.accept(frozenset(each.key for each in chosen))
    ]
    return min(costs, default=None)


def test_two_small_ones_are_taken_where_one_large_one_costs_more() -> None:
    world = Sums([option("a", 2, 3), option("b", 2, 3), option("c", 8, 10)], need=4)
    found = search(world)
    assert (found.keys, found.cost, found.is_exact) == (frozenset("ab"), 6, True)


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


def test_no_more_is_asked_of_a_world_that_is_spent_than_what_a_found_set_does_without() -> None:
    options = [option(f"o{i:02}", 1, 5 + i) for i in range(12)]
    world = Sums(options, need=3, also=lambda _: False, patience=4)
    assert not search(world).is_exact
    assert len(world.asked) == 4
    # The fourth question is about all twelve: with o11 among them, of which only three are needed.
    found = search(Sums(options, need=3, also=lambda keys: "o11" in keys, patience=4))
    assert found.keys is not None
    assert ("o11" in found.keys, len(found.keys), found.is_exact) == (True, 3, False)


def test_a_set_with_too_many_members_is_not_looked_at_and_the_answer_not_called_exact() -> None:
    options = [option(f"o{i:02}", 1, 5) for i in range(6)]
    found = search(Sums(options, need=5), members=4)
    assert (found.keys, found.is_exact) == (None, False)
    # One of 5 GPUs would do alone, and costs more than five of one.
    found = search(Sums([*options, option("big", 5, 90)], need=5), members=4)
    assert (found.keys, found.is_exact) == (frozenset({"big"}), False)


def test_dearer_options_that_gain_more_are_seen_behind_many_cheap_ones() -> None:
    # 70 of the cheap ones would cover it for 70, but no set has more than 4 members: 60 + 10 × 1 do not.
    options = [option(f"o{i:02}", 1, 1) for i in range(80)]
    found = search(Sums([*options, option("big", 70, 500)], need=70), members=4, steps=2_000)
    assert found.keys == frozenset({"big"})


def test_twins_are_not_searched_twice() -> None:
    twins = [Item(key=f"t{i:02}", cost=5, gains=(1,), equivalence="t") for i in range(60)]
    found = search(Sums([*twins, option("big", 16, 81)], need=16))
    assert (found.cost, found.is_exact) == (80, True)
    assert found.steps < 200


amounts = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12), st.integers(0, 2)), min_size=0, max_size=7)


def arbitrary(options: list[Item], seed: int, harshness: int) -> Callable[[frozenset[str]], bool]:
    """Accepts sets by chance, equivalent ones alike: larger ones are as likely to be refused as smaller ones."""
    kinds = {each.key: repr(each.equivalence) for each in options}
    return lambda keys: random.Random(f"{sorted(kinds[key] for key in keys)}{seed}").randrange(4) >= harshness


def drawn_options(drawn: list[tuple[int, int, int]]) -> list[Item]:
    return [
        Item(key=f"o{i}", cost=cost, gains=(gpus,), equivalence=(gpus, kind))
        for i, (gpus, cost, kind) in enumerate(drawn)
    ]


@given(amounts, st.integers(0, 12), st.sampled_from((0, 1, 2, 3, 4, 99)), st.integers(0, 3), st.integers(0, 2**16))
def test_the_cost_equals_that_of_the_best_of_all_sets_that_may_be_taken_together(
    drawn: list[tuple[int, int, int]], need: int, most: int, harshness: int, seed: int
) -> None:
    options = drawn_options(drawn)
    world = Sums(options, need, arbitrary(options, seed, harshness), most)
    found, best = search(world, questions=10_000), exhaustive(world)
    assert found.is_exact
    assert (found.cost if found.keys is not None else None) == best


@given(amounts, st.integers(1, 12), st.integers(0, 3), st.integers(0, 2**16), st.integers(0, 30), st.integers(0, 20))
def test_whatever_ends_the_search_its_set_was_accepted_and_does_without_nobody(
    drawn: list[tuple[int, int, int]], need: int, harshness: int, seed: int, steps: int, questions: int
) -> None:
    options = drawn_options(drawn)
    found = search(Sums(options, need, arbitrary(options, seed, harshness)), steps=steps, questions=questions)
    if found.keys is not None:
        judge = Sums(options, need, arbitrary(options, seed, harshness))
        assert judge.accept(found.keys)
        assert not any(judge.accept(found.keys - {key}) for key in found.keys if len(found.keys) > 1)


# -------------------------------------------------------------------------------------------------- the lower bound

covers = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), max_size=7)


def cheapest_cover(given: list[tuple[int, int]], need: int) -> float:
    """The least cost of all sets that cover the need."""
    sets = (chosen for size in range(len(given) + 1) for chosen in combinations(given, size))
    costs = (sum(cost for _, cost in each) for each in sets if sum(gain for gain, _ in each) >= need)
    return min(costs, default=float("inf"))


def test_the_docstrings_example() -> None:
    cover = LowerBound(4, [(2, 3), (2, 3), (8, 10)])
    # All gains are even, so that a unit is 2: 4 are 2 units.
    assert (cover.need, cover.gains) == (2, [1, 1, 4])
    assert [cover.least(start, 2) for start in range(4)] == [6, 10, 10, float("inf")]
    assert [cover.least(start, 1) for start in range(3)] == [3, 3, 10]


@given(covers, st.integers(1, 30), st.sampled_from((1, 700)), st.sets(st.integers(0, 6)))
def test_a_need_is_never_said_to_cost_more_than_it_does_and_a_small_one_just_that(
    drawn: list[tuple[int, int]], need: int, scale: int, chosen: set[int]
) -> None:
    scaled = [(gain * scale + (gain // 2 if scale > 1 else 0), cost) for gain, cost in drawn]
    cover = LowerBound(need * scale, scaled)
    assert cover.need < 1_024
    for start in range(len(drawn) + 1):
        least, exact = cover.least(start, cover.need), cheapest_cover(scaled[start:], need * scale)
        assert least == exact if scale == 1 else least <= exact
    taken = [i for i in chosen if i < len(drawn)]
    if sum(scaled[i][0] for i in taken) >= need * scale:
        assert sum(cover.gains[i] for i in taken) >= cover.need, "what covers a need covers it in units, too"


def test_nothing_needed_costs_nothing() -> None:
    assert LowerBound(3, [(1, 5)]).least(0, 0) == 0
    assert LowerBound(3, [(1, 5)]).least(0, -2) == 0
    assert LowerBound(3, []).least(0, 3) == float("inf")
