"""Names that tenants invent, held to a limit."""

from hypothesis import given
from hypothesis import strategies as st

from scaler.core.bounded import OTHERS, BoundedNames


def test_the_first_names_keep_their_place() -> None:
    names = BoundedNames(2)
    assert [names.of(each) for each in ("a", "b", "c", "a", "d", "c")] == ["a", "b", OTHERS, "a", OTHERS, OTHERS]
    assert names.folded == 2


def test_those_without_a_place_are_not_counted_for_ever() -> None:
    names = BoundedNames(2)
    for number in range(50):
        names.of(f"name-{number}")
    assert names.folded == 20


def test_no_name_needs_no_place() -> None:
    names = BoundedNames(1)
    assert [names.of(""), names.of("a"), names.of("")] == ["", "a", ""]


@given(st.lists(st.text(max_size=3)), st.integers(1, 4))
def test_there_are_never_more_than_the_limit_and_others(given_names: list[str], limit: int) -> None:
    names = BoundedNames(limit)
    shown = [names.of(each) for each in given_names]
    assert len({each for each in shown if each} - {OTHERS}) <= limit
    assert all(got in (asked, OTHERS) for asked, got in zip(given_names, shown, strict=True))
