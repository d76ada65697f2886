"""The search for the cheapest set: exact on everything small, bounded on everything large."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scaler.reclaim.search.branch_and_bound import cheapest
from scaler.reclaim.search.problem import Item, SearchLimits, SearchResult


@dataclass
class Sums:
    """A world in which GPUs of the chosen add up.

    `also` is what else a set must be to be accepted, `most` how many may be taken together, and `patience` how many
    answers there are before the world is spent.
    """

    options: list[Item]
    need: int
    also: Callable[[frozenset[str]], bool] = lambda _: True
    most: int = 99
    patience: int = 10_000
    chosen: int = 0
    count: int = 0
    hopeful: int = 0
    asked: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hopeful = sum(option.gains[0] for option in self.options)

    def choose(self, option: Item) -> None:
        self.chosen += option.gains[0]
        self.count += 1

    def unchoose(self, option: Item) -> None:
        self.chosen -= option.gains[0]
        self.count -= 1

    def exclude(self, option: Item) -> None:
        self.hopeful -= option.gains[0]

    def readmit(self, option: Item) -> None:
        self.hopeful += option.gains[0]

    def permits(self) -> bool:
        return self.count <= self.most

    def fits(self) -> bool:
        return self.chosen >= self.need

    def could_fit(self) -> bool:
        return self.hopeful >= self.need

    def accepts(self, keys: frozenset[str]) -> bool:
        self.asked.append(keys)
        gained = sum(option.gains[0] for option in self.options if option.key in keys)
        return gained >= self.need and self.also(keys)

    def is_spent(self) -> bool:
        return len(self.asked) >= self.patience


def option(key: str, gpus: int, cost: int) -> Item:
    return Item(key=key, cost=cost, gains=(gpus,), equivalence=(gpus, key))


def search(world: Sums, **limits: int) -> SearchResult:
    return cheapest(world.options, (world.need,), world, limits=SearchLimits(**limits))


def exhaustive(world: Sums) -> int | None:
    """The least cost of all sets that are accepted."""
    costs = [
        sum(each.cost for each in chosen)
        for size in range(min(world.most, len(world.options)) + 1)
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


@given(amounts, st.integers(0, 12), st.integers(0, 3), st.integers(0, 2**16))
def test_the_cost_equals_that_of_the_best_of_all_sets(
    drawn: list[tuple[int, int, int]], need: int, harshness: int, seed: int
) -> None:
    """Also where acceptance is arbitrary: a hash decides about every set of its own, twins counting as equal."""
    options = [
        Item(key=f"o{i}", cost=cost, gains=(gpus,), equivalence=(gpus, kind))
        for i, (gpus, cost, kind) in enumerate(drawn)
    ]
    kinds = {each.key: each.equivalence for each in options}

    def also(keys: frozenset[str]) -> bool:
        shape = repr(sorted(repr(kinds[key]) for key in keys))
        return random.Random(f"{shape}{seed}").randrange(4) >= harshness

    best = exhaustive(Sums(options, need, also))
    found = search(Sums(options, need, also), questions=10_000)
    assert found.is_exact
    assert (found.cost if found.keys is not None else None) == best


def arbitrary(seed: int, harshness: int) -> Callable[[frozenset[str]], bool]:
    """Accepts sets by chance: larger ones are as likely to be refused as smaller ones."""
    return lambda keys: random.Random(f"{sorted(keys)}{seed}").randrange(4) >= harshness


@given(amounts, st.integers(0, 12), st.integers(0, 4), st.integers(0, 2**16))
def test_where_few_may_be_taken_together_the_best_of_those_few_is_found(
    drawn: list[tuple[int, int, int]], need: int, most: int, seed: int
) -> None:
    options = [option(f"o{i}", gpus, cost) for i, (gpus, cost, _) in enumerate(drawn)]
    best = exhaustive(Sums(options, need, arbitrary(seed, 1), most))
    found = search(Sums(options, need, arbitrary(seed, 1), most), questions=10_000)
    assert found.is_exact
    assert (found.cost if found.keys is not None else None) == best


@given(amounts, st.integers(1, 12), st.integers(0, 3), st.integers(0, 2**16), st.integers(0, 30), st.integers(0, 20))
def test_whatever_ends_the_search_its_set_was_accepted_and_does_without_nobody(
    drawn: list[tuple[int, int, int]], need: int, harshness: int, seed: int, steps: int, questions: int
) -> None:
    options = [option(f"o{i}", gpus, cost) for i, (gpus, cost, _) in enumerate(drawn)]
    found = search(Sums(options, need, arbitrary(seed, harshness)), steps=steps, questions=questions)
    if found.keys is not None:
        judge = Sums(options, need, arbitrary(seed, harshness))
        assert judge.accepts(found.keys)
        assert not any(judge.accepts(found.keys - {key}) for key in found.keys if len(found.keys) > 1)


@given(amounts, st.integers(1, 12))
def test_no_member_of_an_accepted_set_can_be_left_out(drawn: list[tuple[int, int, int]], need: int) -> None:
    options = [option(f"o{i}", gpus, cost) for i, (gpus, cost, _) in enumerate(drawn)]
    for steps in (1, 10_000):
        found = search(Sums(options, need), steps=steps)
        for left_out in found.keys or ():
            rest = sum(each.gains[0] for each in options if each.key in (found.keys or ()) and each.key != left_out)
            assert rest < need
