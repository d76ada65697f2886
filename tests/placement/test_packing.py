from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.placement.packing import Bin, Counts, ItemKind, PackingLimitError, Steps, pack


def spaces(*free: int, kinds: int = 2) -> list[Bin]:
    return [Bin((amount,), (True,) * kinds) for amount in free]


def kinds(*sizes_and_counts: tuple[int, int]) -> list[ItemKind]:
    return [ItemKind((size,), count) for size, count in sizes_and_counts]


CASES = [
    pytest.param(kinds((5, 2), (3, 2)), spaces(8, 8), True, id="two of 5 and two of 3 into 8 and 8"),
    pytest.param(kinds((5, 2), (4, 1)), spaces(8, 8), False, id="two of 5 leave 3 and 3, which 4 does not fit"),
    pytest.param(kinds((4, 1), (3, 3)), spaces(7, 6), True, id="4 + 3 into 7, 3 + 3 into 6"),
    pytest.param(kinds((4, 1), (3, 4)), spaces(7, 9), True, id="4 + 3 into 7, 3 + 3 + 3 into 9"),
    pytest.param(kinds((4, 2), (3, 3)), spaces(7, 9), False, id="17 do not go into 16"),
    pytest.param(kinds((2, 1), (2, 1)), spaces(), False, id="no space"),
    pytest.param(kinds((2, 1), (3, 1)), spaces(1, 1), False, id="spaces too small for any"),
    pytest.param(kinds((3, 1), (2, 4)), spaces(5, 6), True, id="3 + 2 into 5 and three of 2 into 6, not two and 3 + 2"),
    pytest.param(kinds((6, 20), (2, 20)), spaces(*[8] * 20), True, id="20 times 6 + 2 into 8"),
    pytest.param(kinds((6, 20), (3, 1)), spaces(*[8] * 20), False, id="20 times 6 leave 2 everywhere"),
]


def check(found: dict[int, Counts], wanted: Sequence[ItemKind], into: Sequence[Bin]) -> None:
    for place, kind in enumerate(wanted):
        assert sum(counts[place] for counts in found.values()) == kind.wanted
    for space, counts in found.items():
        assert any(counts)
        assert all(into[space].allowed[place] for place, count in enumerate(counts) if count)
        for resource, free in enumerate(into[space].free):
            taken = sum(count * kind.needs[resource] for count, kind in zip(counts, wanted, strict=True))
            assert taken == 0 or taken <= free


@pytest.mark.parametrize(("wanted", "into", "fits"), CASES)
def test_all_is_packed_or_proven_impossible(wanted: list[ItemKind], into: list[Bin], fits: bool) -> None:
    found = pack(wanted, into, Steps(20_000))
    assert (found is not None) is fits
    if found is not None:
        check(found, wanted, into)


def test_steps_that_run_out_are_no_answer() -> None:
    with pytest.raises(PackingLimitError):
        pack(kinds((4, 1), (3, 3)), spaces(7, 6), Steps(1))


def test_of_thousands_of_spaces_that_are_alike_no_more_are_looked_at_than_there_are_things() -> None:
    """Into 4 goes one thing of 4 and none of 5: of these spaces three are of use, one for each of the things of 4."""
    into = [Bin((4, 10**9 + number), (True, True)) for number in range(5_000)]
    into.append(Bin((8, 10**9), (True, True)))
    assert pack([ItemKind((4, 1), 3), ItemKind((5, 1), 1)], into, Steps(100))


def test_things_that_fill_the_spaces_to_the_last_bit_are_packed() -> None:
    """12 · 8 = 96 = 4 · (7 + 1) + 4 · (5 + 3) + 4 · (4 + 4): any gap is one too many."""
    wanted = kinds((7, 4), (1, 4), (5, 4), (3, 4), (4, 8))
    into = spaces(*[8] * 12, kinds=5)
    found = pack(wanted, into, Steps(20_000))
    assert found is not None
    check(found, wanted, into)


SMALL_KINDS = st.lists(
    st.tuples(st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(1, 3)), min_size=1, max_size=3
)


@settings(max_examples=300, deadline=None)
@given(SMALL_KINDS, st.data(), st.integers(0, 300))
def test_packing_is_that_of_trying_every_way(
    described: list[tuple[tuple[int, int], int]], data: st.DataObject, steps: int
) -> None:
    wanted = [ItemKind(needs, count) for needs, count in described]
    allowed = st.tuples(*[st.booleans()] * len(wanted))
    space = st.builds(Bin, st.tuples(st.integers(-2, 9), st.integers(-2, 6)), allowed)
    into = data.draw(st.lists(space, max_size=4))
    try:
        found = pack(wanted, into, Steps(steps))
    except PackingLimitError:
        return
    if found is not None:
        check(found, wanted, into)
    else:
        assert not _goes([place for place, kind in enumerate(wanted) for _ in range(kind.wanted)], wanted, into)


def _goes(things: list[int], wanted: list[ItemKind], into: list[Bin]) -> bool:
    if not things:
        return True
    needs = wanted[things[0]].needs
    for position, space in enumerate(into):
        suits = all(need <= free for need, free in zip(needs, space.free, strict=True) if need)
        if space.allowed[things[0]] and suits:
            less = Bin(tuple(free - need for free, need in zip(space.free, needs, strict=True)), space.allowed)
            if _goes(things[1:], wanted, [*into[:position], less, *into[position + 1 :]]):
                return True
    return False
