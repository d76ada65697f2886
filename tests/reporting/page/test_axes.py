"""Round times and round numbers beside drawings."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from builders import NOON, at
from hypothesis import given
from hypothesis import strategies as st

from scaler.reporting.page.axes import TimeAxis, round_ticks


def axis(**length: float) -> TimeAxis:
    return TimeAxis(begin=NOON, end=NOON + timedelta(**length))


@pytest.mark.parametrize(
    ("length", "labels"),
    [
        ({"seconds": 40}, ["12:00:00", "12:00:05", "12:00:10"]),
        ({"minutes": 8}, ["12:00", "12:01", "12:02"]),
        ({"hours": 6}, ["12:00", "13:00", "14:00"]),
        ({"hours": 36}, ["12:00", "18:00", "02 Dec"]),  # a midnight is told by its date
        ({"days": 8}, ["02 Dec", "03 Dec", "04 Dec"]),
    ],
)
def test_times_are_round(length: dict[str, float], labels: list[str]) -> None:
    assert [each.label for each in axis(**length).ticks][:3] == labels


@given(st.integers(1, 10**7), st.integers(0, 10**9))
def test_there_are_some_ticks_and_never_more_than_labels_fit(seconds: int, begin: int) -> None:
    start = datetime.fromtimestamp(begin, UTC)
    ticks = TimeAxis(begin=start, end=start + timedelta(seconds=seconds)).ticks
    assert len(ticks) <= 10
    assert all(0 <= each.percent <= 100 for each in ticks)
    assert len(ticks) >= 2 or seconds < 3


def test_labels_at_an_edge_are_beside_their_tick() -> None:
    ticks = axis(hours=6).ticks
    assert (ticks[0].anchor, ticks[3].anchor, ticks[-1].anchor) == ("start", "middle", "end")


def test_what_is_outside_is_at_the_edge() -> None:
    shown = axis(hours=1)
    assert [shown.percent(at(each)) for each in (-60, 0, 900, 3600, 7200)] == [0, 0, 25, 100, 100]
    assert [shown.contains(at(each)) for each in (-1, 0, 3600, 3601)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (0, [0, 1]),
        (0.5, [0, 1]),
        (3, [0, 1, 2, 3]),
        (16, [0, 5, 10, 15, 20]),
        (100_000, [0, 50_000, 100_000]),
    ],
)
def test_amounts_are_round(highest: float, ticks: list[int]) -> None:
    assert round_ticks(highest) == ticks


@given(st.floats(0, 1e7))
def test_the_last_tick_is_not_below_the_highest_amount(highest: float) -> None:
    ticks = round_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest
    assert len(ticks) <= 7
    assert len({after - before for before, after in pairwise(ticks)}) == 1
