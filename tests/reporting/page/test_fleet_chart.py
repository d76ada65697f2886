"""The states of the fleet as areas: what is above what, gaps, and the table beside it."""

import re
from datetime import timedelta

import pytest
from builders import at

from scaler.reporting.page.axes import TimeAxis
from scaler.reporting.page.fleet_chart import STACK, SUSPENDED, FleetSample, draw_fleet

MINUTE = timedelta(minutes=1)


def sample(minute: float, **gpus: float) -> FleetSample:
    return FleetSample(at=at(60 * minute), gpus=gpus)


def drawn(*samples: FleetSample, since: float = -60):
    chart = draw_fleet(samples, step=MINUTE, begin=at(60 * since))
    assert chart is not None
    return chart


def points(path: str) -> list[list[tuple[float, float]]]:
    """Of each shape in the path."""
    shapes = re.findall(r"M([^MZ]+)Z", path)
    return [[tuple(map(float, each.split())) for each in shape.split("L")] for shape in shapes]


def test_without_samples_there_is_no_chart() -> None:
    assert draw_fleet([], step=MINUTE, begin=at()) is None
    assert draw_fleet([sample(-61, Busy=1)], step=MINUTE, begin=at(-3600)) is None


def test_each_state_lies_on_those_below_it() -> None:
    chart = drawn(sample(-2, Busy=6, Idle=2), sample(0, Busy=6, Idle=2, Suspended=2))
    assert [each.state for each in chart.areas] == ["Busy", "Idle", SUSPENDED]
    # From above: 6 of 10 GPUs are at 0.4, and 8 at 0.2.
    busy, idle = points(chart.areas[0].path)[-1], points(chart.areas[1].path)[-1]
    assert chart.levels[-1] == (10, 0.0)
    assert {y for _, y in busy} == {0.4, 1.0}
    assert {y for _, y in idle} == {0.2, 0.4}


def test_the_order_of_states_is_always_the_same() -> None:
    chart = drawn(sample(0, **dict.fromkeys(reversed(STACK), 1)))
    assert [each.state for each in chart.areas] == list(STACK)


def test_a_time_in_which_nothing_was_seen_is_a_gap() -> None:
    chart = drawn(sample(-30, Busy=1), sample(-29, Busy=1), sample(-1, Busy=1), sample(0, Busy=1))
    first, second = points(chart.areas[0].path)
    # From 30 minutes ago to 28 minutes ago, as a sample holds for a step; and the last minute.
    assert max(x for x, _ in first) == pytest.approx(2 / 30, abs=1e-4)
    assert min(x for x, _ in second) == pytest.approx(29 / 30, abs=1e-4)


def test_what_is_told_of_now_is_the_newest_sample() -> None:
    chart = drawn(sample(-5, Idle=9), sample(0, Busy=6, Idle=2, HeldIdle=1, Suspended=4))
    assert (chart.total, chart.idle) == (9, 3)
    assert {each.state: each.now for each in chart.areas} == {"Busy": 6, "HeldIdle": 1, "Idle": 2, "Suspended": 4}


def test_the_table_begins_with_now_and_stays_short() -> None:
    chart = drawn(*(sample(minute, Busy=minute + 60) for minute in range(-59, 1)))
    assert [each.gpus["Busy"] for each in chart.rows] == [60, 55, 50, 45, 40, 35, 30, 25, 20, 15, 10, 5]


def test_a_line_that_does_not_change_takes_two_points() -> None:
    chart = drawn(*(sample(minute, Busy=8) for minute in range(-59, 1)))
    [shape] = points(chart.areas[0].path)
    assert len(shape) == 4


def test_a_chart_of_a_given_time_leaves_out_what_is_missing_of_it() -> None:
    axis, samples = TimeAxis(begin=at(0), end=at(600)), [sample(minute, Busy=1) for minute in (5, 6, 8, 9)]
    chart = draw_fleet(samples, step=MINUTE, begin=at(0), axis=axis, longest_gap=1)
    assert chart is not None
    assert chart.axis == axis
    ends = [(min(x for x, _ in shape), max(x for x, _ in shape)) for shape in points(chart.areas[0].path)]
    assert ends == [(0.5, 0.7), (0.8, 1.0)]
