"""The line of bars: what is work, what is quiet, and what nobody has seen."""

from datetime import timedelta

import pytest
from builders import NOON

from scaler.notifications.evidence import Sparkline, evidence_lines


def sparkline(*peaks: float | None, floor: float = 0.1) -> Sparkline:
    begin = NOON - timedelta(hours=2)
    return Sparkline(name="gr_engine_active", begin=begin, end=NOON, floor_ratio=floor, peaks=peaks)


@pytest.mark.parametrize(
    ("peaks", "bars"),
    [
        ((0.0, 0.05, 0.0999), "▁▁▁"),
        ((0.1, 0.5, 1.0), "▂▅█"),  # (0.5 - 0.1) / 0.9 is 3.1 sevenths of the way up
        ((None, 0.0, None), "·▁·"),
        ((1.2,), "█"),
    ],
)
def test_a_bar_that_rises_is_work_and_a_hole_is_no_idleness(peaks: tuple[float | None, ...], bars: str) -> None:
    assert sparkline(*peaks).bars == bars


def test_a_floor_of_all_is_reached_by_all_alone() -> None:
    assert sparkline(0.99, 1.0, floor=1.0).bars == "▁█"


def test_each_signal_has_a_line_and_the_time_is_said_once() -> None:
    assert [*evidence_lines([sparkline(0.5, 0.0), sparkline(None)])] == [
        "▅▁  gr_engine_active: peak 50 %, floor 10 %",
        "·  gr_engine_active: no samples, floor 10 %",
        "from 2026-12-01T10:00:00Z to 2026-12-01T12:00:00Z; ▁ is below the floor, · no sample",
    ]
    assert not [*evidence_lines([])]
