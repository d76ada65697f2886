"""One workload over time: its states, marks and signals on one axis."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from builders import NOON, at

from scaler.decision.candidate import HistoryLine
from scaler.reporting.page.signal_history import SignalBin, SignalTrack
from scaler.reporting.page.timeline import MarkKind, Timeline, axis_of, draw_timeline

HOUR = timedelta(hours=1)


def line(minutes: float, state: str) -> HistoryLine:
    return HistoryLine(at=at(60 * minutes), state=state, message=f"because {state}")


def track(*bins: tuple[float, float, float, float]) -> SignalTrack:
    """Of bins (from, to in minutes; low, high)."""
    made = [
        SignalBin(begin=at(60 * begin), end=at(60 * end), low_ratio=low, high_ratio=high)
        for begin, end, low, high in bins
    ]
    return SignalTrack(name="gr_engine_active", gpus=2, bins=made)


def drawn(
    history: Sequence[HistoryLine] = (),
    tracks: Sequence[SignalTrack] = (),
    *,
    suspend_at: datetime | None = None,
    keep_until: datetime | None = None,
) -> Timeline:
    axis = axis_of(NOON, HOUR, suspend_at)
    return draw_timeline(
        axis, history, tracks, now=NOON, floor_ratio=0.01, suspend_at=suspend_at, keep_until=keep_until
    )


@pytest.mark.parametrize(
    ("suspend_at", "end", "why"),
    [
        (None, 0, "now is the end"),
        (10, 10, "a deadline that is near is on the picture"),
        (60, 0, "one that is far would leave no room for the past"),
        (-5, 0, "one that is over is in the past"),
    ],
)
def test_the_axis_reaches_to_a_deadline_that_is_near(suspend_at: float | None, end: float, why: str) -> None:
    axis = axis_of(NOON, HOUR, None if suspend_at is None else at(60 * suspend_at))
    assert axis.begin == NOON - HOUR
    # And a little farther, so that what is now is not at the edge.
    assert axis.end == at(60 * end) + (HOUR + timedelta(minutes=end)) / 50, why


def test_a_state_lasts_until_the_next_and_the_last_one_until_now() -> None:
    bands = drawn([line(-90, "Busy"), line(-30, "Idle"), line(-6, "Warned")]).bands
    assert [(each.state, each.begin, each.end) for each in bands] == [
        ("Busy", at(-5400), at(-1800)),
        ("Idle", at(-1800), at(-360)),
        ("Warned", at(-360), NOON),
    ]
    assert [each.left for each in bands] == [0, pytest.approx(49.02, abs=0.01), pytest.approx(88.24, abs=0.01)]


def test_states_before_the_picture_and_of_no_length_are_not_drawn() -> None:
    bands = drawn([line(-200, "Busy"), line(-100, "Idle"), line(-10, "Warned"), line(-10, "Kept")]).bands
    assert [each.state for each in bands] == ["Idle", "Kept"]


def test_without_a_history_no_state_is_claimed() -> None:
    assert drawn().bands == []


def test_what_happened_and_what_is_expected_are_marks_on_the_same_axis() -> None:
    states = ("Busy", "Warned", "Kept", "Granted", "Suspending", "Suspended", "Waking", "Excluded", "<b>")
    timeline = drawn(
        [line(-50 + 5 * number, state) for number, state in enumerate(states)], suspend_at=at(600), keep_until=at(300)
    )
    assert [(each.kind, each.text) for each in timeline.marks] == [
        (MarkKind.WARNING, "because Warned"),
        (MarkKind.KEEP, "because Kept"),
        (MarkKind.GRANT, "because Granted"),
        (MarkKind.SUSPENSION, "because Suspended"),
        (MarkKind.WAKE, "because Waking"),
        (MarkKind.KEEP, "because Excluded"),
        (MarkKind.KEPT_UNTIL, ""),
        (MarkKind.DEADLINE, ""),
    ]
    assert all(each.percent == timeline.axis.percent(each.at) for each in timeline.marks)
    assert [letter for _, letter, _ in timeline.legend] == ["W", "G", "S", "A", "K", "U", "D"]


def test_marks_that_would_hide_each_other_are_below_each_other() -> None:
    timeline = drawn([line(-30, "Warned"), line(-30, "Kept"), line(-29, "Granted"), line(-10, "Suspended")])
    assert [each.row for each in timeline.marks] == [0, 1, 2, 0]
    [lane] = drawn([line(-30, "Warned"), line(-30, "Kept")], [track()]).lanes
    assert lane.top > max(each.top for each in timeline.marks[:2]) + 24
    assert len({each.row for each in drawn([line(-30, "Kept")] * 16).marks}) == 3


def test_marks_before_the_picture_are_left_out_rather_than_moved_to_its_edge() -> None:
    assert drawn([line(-90, "Warned")]).marks == []


def test_a_hole_in_the_samples_is_a_hole_in_the_line() -> None:
    [lane] = drawn(tracks=[track((-40, -30, 0, 0.5), (-30, -20, 0, 0.5), (-10, 0, 0, 0.5))]).lanes
    assert (lane.line.count("M"), lane.band.count("M"), lane.seen.count("M")) == (2, 2, 2)


def test_signals_are_on_a_scale_of_square_roots() -> None:
    [lane] = drawn(tracks=[track((-10, 0, 0.04, 0.25))]).lanes
    heights = {float(each.split()[1]) for each in lane.line.strip("M").split("L")}
    assert heights == {50}  # 25 % is half of the height
    assert lane.floor == pytest.approx(0.9 * lane.height, abs=0.1)  # and 1 % a tenth


def test_more_than_all_is_drawn_as_all() -> None:
    [lane] = drawn(tracks=[track((-10, 0, 0, 57.0))]).lanes
    assert " 0L" in lane.line


def test_lanes_are_below_each_other_and_a_signal_without_samples_has_one() -> None:
    first, second = drawn(tracks=[track((-10, 0, 0, 0.5)), track()]).lanes
    assert second.top > first.top + first.height
    assert (second.line, second.band, second.seen) == ("", "", "")


def test_the_table_of_a_signal_begins_with_now_and_stays_short() -> None:
    [lane] = drawn(tracks=[track(*((n - 60, n - 59, 0, n / 100) for n in range(60)))]).lanes
    assert lane.rows[0].high_ratio == 0.59
    assert len(lane.rows) == 20
