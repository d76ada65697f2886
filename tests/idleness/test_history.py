from dataclasses import replace
from datetime import timedelta
from math import inf, nan

import pytest
from builders import GPU_UTIL, GR_ENGINE, INTERVAL, NOON, at, every, found_of, history, minutes, record, series

from scaler.idleness.gpu import GpuId
from scaler.idleness.window import NO_WINDOW

BLANK = 9223372036854775794.0
GPU = GpuId(device="GPU-0")


def seconds(offset_s: float) -> float:
    return NOON.timestamp() + offset_s


def test_a_gpu_that_changed_hands_has_a_history_per_pod() -> None:
    made = history()
    record(made, series(pod="yesterdays"), every(30, start=-600, end=-300, ratio=1.0))
    record(made, series(pod="todays"), every(30, start=-270, end=0))
    found = found_of(made, "todays", length=minutes(4))
    assert found.windows_at(0)["gpu_util"].peak_ratio == 0.0
    assert found.last_active.item() == -inf, "one pod's work is never another's"


def test_each_signal_has_its_own_window_and_one_that_never_reported_has_none() -> None:
    made = history()
    record(made, series(), every(30, start=-120, end=0), signals=[GPU_UTIL])
    shown = found_of(made, length=minutes(2)).windows_at(0)
    assert shown["gpu_util"].covered == 5
    assert shown["gr_engine_active"] == NO_WINDOW


def test_blanks_are_counted_and_leave_their_interval_empty() -> None:
    made = history()
    given_samples = [
        (seconds(0), 0.0),
        (seconds(30), BLANK),
        (seconds(60), nan),
        (seconds(90), -1.0),
        (seconds(120), 0.0),
    ]
    assert made.record(GR_ENGINE, series(), given_samples) == 3
    shown = found_of(made, end=at(149), length=timedelta(seconds=149)).windows_at(0)["gr_engine_active"]
    assert (shown.covered, shown.slots, shown.longest_gap) == (2, 5, 3)


def test_a_device_that_only_ever_reported_blanks_has_no_sample() -> None:
    made = history()
    made.record(GR_ENGINE, series(), [(seconds(0), BLANK)])
    assert made.devices_of("demo", "worker-0")[GPU].last_sample_s == float("-inf")


def test_what_two_exporters_say_of_one_gpu_is_merged_by_the_highest() -> None:
    """Two Prometheus replicas, or an exporter of each generation beside the other."""
    made = history()
    record(made, series(), every(30, start=-120, end=0, ratio=0.0))
    record(made, series(), every(30, start=-115, end=0, ratio=0.2))
    shown = found_of(made, length=minutes(2)).windows_at(0)["gr_engine_active"]
    assert shown.peak_ratio == pytest.approx(0.2)
    assert (shown.covered, shown.slots) == (5, 5), "and is no more coverage"


def test_the_last_work_is_that_of_the_signal_that_saw_it_last() -> None:
    made = history()
    record(made, series(), every(30, start=-120, end=0))
    made.record(GPU_UTIL, series(), [(seconds(-95), 100.0)])
    made.record(GR_ENGINE, series(), [(seconds(-65), 1.0)])
    assert found_of(made, length=minutes(2)).last_active.item() == seconds(-60)


def test_a_device_is_heard_of_as_long_as_one_of_its_signals_is() -> None:
    made = history()
    record(made, series(), every(30, start=-600, end=-300), signals=[GR_ENGINE])
    record(made, series(), every(30, start=-600, end=0), signals=[GPU_UTIL])
    made.forget_before(at(-60))
    assert made.devices_of("demo", "worker-0")[GPU].last_sample_s == seconds(0)


def test_what_fell_silent_is_forgotten_whole() -> None:
    made = history()
    record(made, series(pod="a"), every(30, start=-120, end=0))
    record(made, series(pod="b"), every(30, start=-600, end=-300))
    made.forget_before(at(-300))
    assert made.devices_of("demo", "b"), "not before its time"
    made.forget_before(at(-299))
    assert made.devices_of("demo", "b") == {}
    assert made.others_of(GPU, ("demo", "a")) == []
    made.forget_before(at(600))
    assert len(made) == 0


def test_the_newest_sample_of_a_host_is_that_of_any_of_its_gpus() -> None:
    made = history()
    record(made, series("GPU-0"), every(30, start=-600, end=-300))
    record(made, series("GPU-1"), every(30, start=-600, end=-120))
    record(made, replace(series("GPU-2"), node="node-b"), every(30, start=-600, end=-330))
    record(made, replace(series("GPU-3"), node="node-b"), every(30, start=-600, end=0), signals=[GR_ENGINE])
    assert [*made.newest_of_hosts(GPU_UTIL)] == [seconds(-120), seconds(-120), seconds(-330), seconds(-330)]
    made.forget_before(at(-299))
    assert [*made.newest_of_hosts(GPU_UTIL)] == [seconds(-120), seconds(-120), -inf, -inf]


@pytest.mark.parametrize(
    ("span", "slots"),
    [
        pytest.param(minutes(30), 62, id="60 intervals, one in progress, one for rounding down"),
        pytest.param(timedelta(seconds=45), 4, id="1.5 intervals, rounded up to 2"),
        pytest.param(INTERVAL, 3, id="one"),
    ],
)
def test_a_ring_holds_the_span_and_two_intervals(span: timedelta, slots: int) -> None:
    assert history(span=span).slots == slots
