from datetime import UTC, datetime, timedelta
from math import inf

import numpy as np
import pytest
from builders import INTERVAL, NOON, at, minutes
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.window import SampleColumns, Window, as_stored

INTERVAL_S = INTERVAL.total_seconds()


class Row:
    """One row of columns, with samples one by one."""

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        self._columns = SampleColumns(slots=slots, interval=interval)
        self._columns.resize(1)
        self._columns.has_reported[0] = True

    def add(self, offset_s: float, ratio: float) -> None:
        self._columns.extend(np.zeros(1, np.intp), np.array([NOON.timestamp() + offset_s]), np.array([ratio]))

    def window(self, end: datetime, length: timedelta) -> Window:
        return self._columns.windows(end, length).row(0)

    def last_active_at(self, above_ratio: float) -> datetime | None:
        at_s = self._columns.last_active(above_ratio).item(0)
        return None if at_s == -inf else datetime.fromtimestamp(at_s, UTC)


def row(*offsets_s: float, slots: int = 62, interval: timedelta = INTERVAL, ratio: float = 0.0) -> Row:
    """A row with quiet samples at these seconds after noon."""
    made = Row(slots=slots, interval=interval)
    for offset_s in offsets_s:
        made.add(offset_s, ratio)
    return made


def coverage(shown: Window) -> tuple[int, int, int]:
    return shown.covered, shown.slots, shown.longest_gap


# ------------------------------------------------------------------------------------------------------------ coverage


def test_what_a_slot_held_before_its_turn_came_again_says_nothing_about_its_holes() -> None:
    """Neither the place of its last sample, nor that of its first one."""
    assert coverage(row(29, 60, 120, 180, slots=4).window(at(209), timedelta(seconds=119))) == (2, 4, 1)
    assert coverage(row(0, 60, 149, slots=4).window(at(149), timedelta(seconds=119))) == (1, 4, 2)


def test_a_window_counts_collection_intervals_and_its_highest_sample() -> None:
    made = row(10, 25)
    made.add(100, 0.4)
    shown = made.window(at(120), minutes(2))
    # Between 12:00:25 and 12:01:40 lie 75 s = 2.5 intervals: one collection is missing, that of about 12:01.
    assert coverage(shown) == (3, 4, 1)
    assert shown.peak_ratio == pytest.approx(0.4)
    assert shown.last_sample_at == at(100)
    assert shown.coverage_ratio == 3 / 4


@pytest.mark.parametrize("scrape_s", [30, 15, 10, 7.5, 5])
def test_scraping_more_often_than_the_exporter_collects_is_no_more_evidence(scrape_s: float) -> None:
    often = row(*(n * scrape_s for n in range(int(120 / scrape_s))))
    assert coverage(often.window(at(120), minutes(2))) == (4, 4, 0)


def test_one_sample_in_an_otherwise_empty_window_is_a_quarter_of_it_and_not_all() -> None:
    """`max_over_time` would say 0 of the same samples."""
    assert coverage(row(5).window(at(120), minutes(2))) == (1, 4, 3)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        pytest.param([0, 30, 60, 90, 120, 150], (6, 6, 0), id="none lost"),
        pytest.param([0, 30, 90, 120, 150], (5, 6, 1), id="one lost"),
        pytest.param([0, 60, 120], (3, 6, 1), id="every other lost, and the newest"),
        pytest.param([0, 120, 150], (3, 6, 3), id="three in a row lost"),
        pytest.param([90, 120, 150], (3, 6, 3), id="the first three lost"),
        pytest.param([0, 30, 60], (3, 6, 3), id="the last three lost"),
        pytest.param([], (0, 6, 6), id="all lost"),
    ],
)
def test_lost_samples_are_counted_and_the_longest_hole_is_known(present: list[int], expected: tuple[int, ...]) -> None:
    assert coverage(row(*present).window(at(180), minutes(3))) == expected


def test_the_interval_in_progress_is_not_missed_before_it_is_over() -> None:
    made = row(*(n * 30 + 20 for n in range(4)))
    assert coverage(made.window(at(125), minutes(2))) == (4, 4, 0), "12:02:05: the sample of 12:02:20 is not due"
    made.add(121, 0.0)
    assert coverage(made.window(at(125), minutes(2))) == (5, 5, 0), "and counts when it came early"


def test_a_window_shorter_than_an_interval_is_one_interval() -> None:
    assert coverage(row(0, 30).window(at(59), timedelta(seconds=5))) == (1, 1, 0)


# ------------------------------------------------------------------------------------------------------------- jitter

phases = st.floats(min_value=0, max_value=0.999)
jitters = st.lists(st.floats(min_value=-0.2, max_value=0.2), min_size=40, max_size=40)
ends = st.floats(min_value=35, max_value=36)
lengths = st.floats(min_value=2, max_value=30)


@given(phase=phases, jitter=jitters, end=ends, length=lengths)
def test_samples_that_jitter_by_a_fifth_of_the_interval_lose_nothing(
    phase: float, jitter: list[float], end: float, length: float
) -> None:
    """Whatever their phase: just before a slot's begin in one interval and just after it in the next is regular."""
    times = [(number + phase + off) * INTERVAL_S for number, off in enumerate(jitter)]
    end_s = end * INTERVAL_S
    made = row(*(time_s for time_s in times if time_s <= end_s))
    shown = made.window(at(end_s), timedelta(seconds=length * INTERVAL_S))
    assert shown.covered == shown.slots
    assert shown.longest_gap == 0


def test_a_window_of_one_interval_needs_a_sample_of_its_own() -> None:
    """12:01:58 and then 12:02:31 would be regular; of the interval from 12:02:00, which is judged, nothing is known."""
    assert coverage(row(58, 88, 118).window(at(150), INTERVAL)) == (0, 1, 1)


@given(phase=phases, jitter=jitters, lost=st.integers(min_value=8, max_value=30), run=st.integers(1, 5))
def test_lost_samples_are_missed_whatever_the_jitter_but_for_one_that_its_neighbours_hide(
    phase: float, jitter: list[float], lost: int, run: int
) -> None:
    """Samples at 7.0 and 8.95 lie in neighbouring slots, so the one of about 8 goes unmissed: one per hole at most."""
    times = [(number + phase + off / 2) * INTERVAL_S for number, off in enumerate(jitter)]
    kept = [time_s for number, time_s in enumerate(times) if not lost <= number < lost + run]
    shown = row(*(time_s for time_s in kept if time_s <= 36 * INTERVAL_S)).window(at(36 * INTERVAL_S), 30 * INTERVAL)
    assert run - 1 <= shown.slots - shown.covered <= run
    assert run - 1 <= shown.longest_gap <= run


@given(phase=st.floats(0.1, 0.9), lost=st.sets(st.integers(min_value=7, max_value=34), max_size=20))
def test_without_jitter_every_lost_sample_is_missed(phase: float, lost: set[int]) -> None:
    kept = [(number + phase) * INTERVAL_S for number in range(36) if number not in lost]
    shown = row(*kept).window(at(36 * INTERVAL_S), 30 * INTERVAL)
    assert shown.slots - shown.covered == len(lost)


def test_two_samples_in_one_slot_after_an_empty_one_are_regular() -> None:
    """29, 61 (interval in between without a sample) and 84: 32 s and 23 s apart."""
    assert coverage(row(-1, 29, 61, 84, 115).window(at(120), minutes(2))) == (4, 4, 0)


def test_a_sample_just_before_the_window_is_the_one_due_at_its_begin() -> None:
    assert coverage(row(-31, -1, 31, 61, 91).window(at(120), minutes(2))) == (4, 4, 0)
    assert coverage(row(31, 61, 91).window(at(120), minutes(2))) == (3, 4, 1), "without it, that one is missed"


def test_a_sample_before_the_window_excuses_no_more_than_the_window_lacks() -> None:
    """11:59:30 and 12:00:59 lie 89 s = 2.97 intervals apart, two collections are missed, one of them before noon."""
    assert coverage(row(-30, 59, 75, 105).window(at(120), minutes(2))) == (3, 4, 1)


def test_the_interval_before_the_window_is_not_read_where_the_row_does_not_reach_it() -> None:
    """A row as long as the window would find the newest interval in its place."""
    assert coverage(row(31, 61, 91, 119, slots=4).window(at(120), minutes(2))) == (3, 4, 1)


def test_samples_in_neighbouring_intervals_are_regular_however_far_apart() -> None:
    """12:00:00 and 12:00:59: each interval has its sample. 12:01:30 has none."""
    assert coverage(row(0, 59, 75).window(at(149), timedelta(seconds=149))) == (3, 4, 1)


def test_an_interval_in_progress_is_not_missed_even_where_another_one_is() -> None:
    """At 12:02:29 the sample of 12:01:30 is nearly two intervals old, and the one due by 12:02:30 not late."""
    assert coverage(row(0, 60, 90).window(at(149), timedelta(seconds=149))) == (3, 4, 1)


def test_a_sample_that_is_due_but_not_late_yet_is_not_missed() -> None:
    made = row(1, 31, 59)
    # The newest is of 12:00:59. At 12:01:31 the interval from 12:01:00 is over and empty, but only 32 s have passed.
    assert coverage(made.window(at(91), timedelta(seconds=90))) == (3, 3, 0)
    # At 12:02:01 62 s = 2.07 intervals have passed, so the sample of about 12:01:29 is missed; the next is just due.
    assert coverage(made.window(at(121), minutes(2))) == (3, 4, 1)


# ---------------------------------------------------------------------------------------------------- order and batches

samples = st.lists(
    st.tuples(st.floats(min_value=0, max_value=3600), st.floats(min_value=0, max_value=1)), min_size=1, max_size=80
)
spans = st.integers(min_value=1, max_value=20)


@given(taken=samples, slots=spans, data=st.data())
def test_the_order_of_arrival_is_irrelevant(taken: list[tuple[float, float]], slots: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(taken))
    one, other = Row(slots=slots, interval=INTERVAL), Row(slots=slots, interval=INTERVAL)
    for offset_s, ratio in taken:
        one.add(offset_s, ratio)
    for offset_s, ratio in shuffled:
        other.add(offset_s, ratio)
        if data.draw(st.booleans()):
            other.add(offset_s, ratio)  # read twice, as an overlap does
    for end_s in (3600, 1800, 3700):
        assert one.window(at(end_s), minutes(5)) == other.window(at(end_s), minutes(5))
    assert one.last_active_at(0.01) == other.last_active_at(0.01)


def test_a_sample_older_than_the_row_is_dropped_and_changes_nothing() -> None:
    made = row(0, 30, 60, 90, slots=4)
    before = made.window(at(120), minutes(2))
    made.add(-30, 1.0)
    assert made.window(at(120), minutes(2)) == before


def test_what_went_round_once_leaves_no_trace() -> None:
    made = row(*range(0, 30 * 10, 30), slots=4, ratio=1.0)
    for offset_s in range(30 * 10, 30 * 14, 30):
        made.add(offset_s, 0.0)
    shown = made.window(at(30 * 14), minutes(2))
    assert (coverage(shown), shown.peak_ratio) == ((4, 4, 0), 0.0)
    assert made.last_active_at(0.01) is None


def test_a_long_silence_empties_the_row() -> None:
    made = row(*range(0, 120, 30), slots=4, ratio=1.0)
    made.add(3600, 0.0)
    shown = made.window(at(3629), minutes(2))
    assert (shown.covered, shown.peak_ratio) == (1, 0.0)


def test_a_short_silence_leaves_the_passed_intervals_empty_and_not_as_they_were_a_round_ago() -> None:
    made = row(*range(0, 120, 30), slots=4, ratio=1.0)
    made.add(180, 0.0)
    shown = made.window(at(209), timedelta(seconds=119))
    assert coverage(shown) == (2, 4, 2), "12:01:30 and 12:03:00 of the four intervals from 12:01:30"
    assert shown.peak_ratio == 1.0


def test_a_window_older_than_the_row_is_empty() -> None:
    made = row(*range(0, 3600, 30), slots=4)
    assert coverage(made.window(at(600), minutes(2))) == (0, 4, 4)


def test_a_window_longer_than_the_row_is_known_only_as_far_as_the_row_reaches() -> None:
    made = row(*range(0, 3600, 30), slots=10)
    assert coverage(made.window(at(3600), minutes(10))) == (10, 20, 10)


# ---------------------------------------------------------------------------------------------------- numbers and units


@pytest.mark.parametrize("floor", [0.01, 0.005, 0.1, 0.3, 1 / 3, 0.07, 1.0])
def test_a_sample_at_the_floor_is_active_and_one_just_below_is_not(floor: float) -> None:
    """32-bit storage rounds 0.01 down; the floor is rounded alike."""
    at_floor = row(0, ratio=floor).window(at(29), INTERVAL)
    assert at_floor.peak_ratio is not None
    assert at_floor.peak_ratio >= as_stored(floor)
    assert row(0, ratio=floor).last_active_at(floor) == at(30)
    assert row(0, ratio=floor * 0.999).last_active_at(floor) is None


@given(value=st.floats(0, 1.5), floor=st.floats(1e-6, 1))
def test_rounding_never_turns_work_into_quiet(value: float, floor: float) -> None:
    assert not value >= floor or as_stored(value) >= as_stored(floor)


def test_the_last_work_ended_with_the_interval_that_saw_it() -> None:
    made = row(*range(0, 300, 30))
    made.add(70, 0.02)
    assert made.last_active_at(0.01) == at(90)
    assert made.last_active_at(0.05) is None


@pytest.mark.parametrize("interval_s", [0.1, 0.25, 1, 10, 30, 3600])
def test_intervals_of_any_length_down_to_a_tenth_of_a_second_are_covered(interval_s: float) -> None:
    interval = timedelta(seconds=interval_s)
    made = row(*(n * interval_s for n in range(20)), interval=interval, slots=12)
    assert coverage(made.window(at(19.9 * interval_s), 10 * interval)) == (11, 11, 0)


def test_a_row_without_a_sample_is_empty() -> None:
    made = row()
    shown = made.window(NOON, minutes(1))
    assert (coverage(shown), shown.peak_ratio, shown.last_sample_at) == ((0, 2, 2), None, None)
    assert made.last_active_at(0.01) is None
