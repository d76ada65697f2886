"""How a range of time is cut, and what of it is known."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaler_analysis.report.periods import DAY, HOUR, MINUTE, Period, gaps_in, joined, periods_of, range_until

NOON = datetime(2026, 11, 9, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(
    ("since", "begins"),
    [
        (3 * HOUR, ["09:34", "10:00", "11:00", "12:00"]),
        (DAY, ["12:34", "18:00", "00:00", "06:00", "12:00"]),
        (4 * DAY, ["12:34", "00:00", "00:00", "00:00", "00:00"]),
    ],
)
def test_periods_begin_at_round_times_and_where_the_range_does(since: timedelta, begins: list[str]) -> None:
    assert [f"{each.begin:%H:%M}" for each in periods_of(range_until(NOON, since))] == begins


@given(st.integers(60, 400 * 1440), st.integers(0, 10**7))
def test_periods_follow_each_other_and_make_up_the_range(minutes: int, offset: int) -> None:
    whole = range_until(NOON + offset * MINUTE, minutes * MINUTE)
    periods = periods_of(whole)
    assert [periods[0].begin, periods[-1].end] == [whole.begin, whole.end]
    assert all(one.end == other.begin for one, other in pairwise(periods))
    assert all(timedelta(0) < each.length <= DAY for each in periods)


def test_only_whole_days_and_the_like_are_round() -> None:
    assert [each.is_round for each in periods_of(range_until(NOON, 3 * DAY + MINUTE))] == [False, True, True, False]


@pytest.mark.parametrize("since", [59 * MINUTE, 401 * DAY])
def test_too_short_and_too_long_ranges_are_refused(since: timedelta) -> None:
    with pytest.raises(ValueError, match="at least 1h and at most 400d"):
        range_until(NOON, since)


def minute(number: int) -> datetime:
    return datetime(2026, 11, 9, tzinfo=UTC) + number * MINUTE


@pytest.mark.parametrize(
    ("known", "gaps"),
    [
        (range(60), []),
        ([], [(0, 60)]),
        (range(10, 60), [(0, 10)]),
        ([*range(10), *range(20, 50)], [(10, 20), (50, 60)]),
    ],
)
def test_gaps_are_what_no_instant_stands_for(known: list[int], gaps: list[tuple[int, int]]) -> None:
    found = gaps_in(Period(minute(0), minute(60)), map(minute, known))
    assert found == [Period(minute(begin), minute(end)) for begin, end in gaps]


def test_gaps_that_follow_each_other_are_one() -> None:
    parts = [Period(minute(5), minute(9)), Period(minute(0), minute(5)), Period(minute(20), minute(21))]
    assert joined(parts) == [Period(minute(0), minute(9)), Period(minute(20), minute(21))]
