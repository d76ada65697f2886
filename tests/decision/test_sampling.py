"""The sampler's windows are those of the source, however and whenever it was read."""

import gc
import math
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import pytest
from builders import NOON, TRUST, at, minutes
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_metrics import GPU_UTIL, Metrics, Point, ScriptedSource, Series, during, gpu, of_metric, reads, vanish

from scaler.decision.sampling import RefreshResult, Sampler
from scaler.errors import SourceError
from scaler.idleness.gpu import DEFAULT_SIGNALS, ENERGY, GpuSeries, Signal
from scaler.idleness.history import History
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.relabel import DEFAULT_RULES, RelabelRules, parse_rules
from scaler.idleness.window import Window
from scaler.samples.source import RawSeries, SignalReading

SPAN = minutes(10)
OVERLAP = minutes(2)
EDGE = 2 * TRUST.interval
"""By which a backfill is longer than the span: the slot in which it begins, and one for rounding."""
DOWN = SourceError("connection refused", transient=True)


FIRST = minutes(5)
"""As much is read of a signal that may have any number of series."""


@dataclass
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Bench:
    """A sampler on a scripted source."""

    metrics: Metrics
    rules: RelabelRules = DEFAULT_RULES
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.source = ScriptedSource(metrics=self.metrics, clock=self.clock)
        self.sampler = self.another()

    def another(self) -> Sampler:
        return Sampler(
            self.source, signals=DEFAULT_SIGNALS, rules=self.rules, trust=TRUST, overlap=OVERLAP, clock=self.clock
        )

    async def refresh(self, end: datetime, *, span: timedelta = SPAN, sampler: Sampler | None = None) -> RefreshResult:
        self.clock.now = end
        self.source.asked.clear()
        return await (sampler or self.sampler).refresh(end=end, span=span)

    def starts(self) -> set[datetime]:
        """Where the reads of the last refresh began, those of energy counters apart."""
        return {start for name, start, _ in self.source.asked if name != ENERGY.name}


def busy_in(begin: datetime, end: datetime) -> Callable[[float], float]:
    return lambda at_s: 0.9 if begin.timestamp() <= at_s < end.timestamp() else 0.0


def windows(history: History, end: datetime, length: timedelta = SPAN) -> dict[tuple[str, str, str], Window]:
    """Everything that a verdict could rest on: by pod, device and signal."""
    devices = [*history]
    rows = np.array([each.row for each in devices], np.intp)
    found = history.verdicts(rows, above_ratio=0.01, length=length, trust=TRUST, end=end)
    return {
        (device.series.pod, str(device.series.gpu), name): window
        for place, device in enumerate(devices)
        for name, window in found.windows_at(place).items()
    }


def peak(sampler: Sampler, end: datetime, length: timedelta = SPAN) -> float | None:
    """The highest sample of all GPUs and signals in the window."""
    peaks = [window.peak_ratio for window in windows(sampler.history, end, length).values()]
    return max((each for each in peaks if each is not None), default=None)


# ---- what is read


async def test_the_first_read_is_the_whole_window_and_the_next_only_what_is_new_with_overlap() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    assert not bench.sampler.is_backfilled
    first = await bench.refresh(NOON)
    assert bench.starts() == {NOON - SPAN - EDGE, NOON - FIRST}
    assert bench.sampler.is_backfilled
    assert (first.doubt, first.series, first.samples) == (None, 2, 2 * 22)

    second = await bench.refresh(at(30))
    newest = at(-23)  # the exporter collects 7 s after each half minute
    assert bench.starts() == {newest - OVERLAP}
    assert second.samples == 2 * 5
    assert [name for name, _, _ in bench.source.asked] == [*(signal.name for signal in DEFAULT_SIGNALS), ENERGY.name]


async def test_two_replicas_that_read_at_different_times_end_with_the_same_windows() -> None:
    """One was started an hour ago, reads every 15 s and had an outage; the other was started a minute ago."""
    series = [*gpu("GPU-0", pod="train", ratio=busy_in(at(-500), at(-450))), *gpu("GPU-1", pod="serve", phase_s=29.9)]
    old, new = Bench(Metrics(series=series)), Bench(Metrics(series=series))
    for tick in range(-240, 1):
        old.source.failing = {signal.name: DOWN for signal in DEFAULT_SIGNALS} if -40 < tick < -10 else {}
        await old.refresh(at(15 * tick))
    for seconds in (-60, -45, 0):
        await new.refresh(at(seconds))
    found = windows(old.sampler.history, NOON)
    assert found == windows(new.sampler.history, NOON)
    assert {window.coverage_ratio for window in found.values()} == {1.0}
    assert peak(new.sampler, NOON) == pytest.approx(0.9)


async def test_samples_that_arrive_late_are_taken_up_within_the_overlap() -> None:
    """Sent on by remote write, the work at −60 s can be read a minute and a half after it was measured."""
    metrics = Metrics(series=gpu("GPU-0", pod="train", ratio=busy_in(at(-60), at(-30))))
    metrics.arrives_at_s = lambda point: point.at_s + (90 if at(-60).timestamp() <= point.at_s else 0)
    bench = Bench(metrics)
    await bench.refresh(NOON)
    assert peak(bench.sampler, NOON) == 0.0
    await bench.refresh(at(30))
    assert peak(bench.sampler, at(30)) == 0.0
    await bench.refresh(at(60))
    assert peak(bench.sampler, at(60)) == pytest.approx(0.9)


async def test_a_read_after_failed_ones_reaches_back_to_what_was_read_before() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train", ratio=busy_in(at(100), at(130)))))
    await bench.refresh(NOON)
    bench.source.failing = {"gpu_util": DOWN}
    for seconds in (30, 60, 90, 120, 150, 180, 210, 240):
        intake = await bench.refresh(at(seconds))
        assert intake.doubt
        assert intake.doubt.reason is UnknownReason.SOURCE_UNAVAILABLE
        assert intake.doubt.message == "gpu_util: connection refused"
    bench.source.failing = {}
    intake = await bench.refresh(at(270))
    assert intake.doubt is None
    # The signal whose reads went well goes on from its newest sample, the other from the outage's begin.
    assert bench.starts() == {at(217) - OVERLAP, at(-23) - OVERLAP}
    for window in windows(bench.sampler.history, at(270)).values():
        assert window.peak_ratio == pytest.approx(0.9)
        assert window.coverage_ratio == 1.0


async def test_a_read_after_empty_ones_reaches_back_too() -> None:
    """Success without a series, as from a Thanos that has lost its stores: the samples come back with them."""
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    await bench.refresh(NOON)
    series, bench.metrics.series = bench.metrics.series, []
    for tick in range(1, 14):
        assert (await bench.refresh(at(30 * tick))).series == 0
    bench.metrics.series = series
    await bench.refresh(at(420))
    assert bench.starts() == {at(-23) - OVERLAP}
    assert {window.coverage_ratio for window in windows(bench.sampler.history, at(420)).values()} == {1.0}


@settings(max_examples=8)
@given(st.floats(0, 240), st.floats(0, 240), st.sampled_from([15, 30, 60]))
async def test_late_samples_of_one_host_are_read_when_they_arrive(
    delay_s: float, buffered_s: float, tick_s: int
) -> None:
    """All come that late, or from a buffer that is emptied so often, or both. What the source has is known after each
    tick."""
    series = [
        *gpu("GPU-0", pod="train", ratio=busy_in(at(-500), at(-450))),
        *gpu("GPU-1", pod="serve", node="node-b", phase_s=29.9, ratio=busy_in(at(100), at(130))),
    ]

    def arrives_at_s(point: Point) -> float:
        sent_s = point.at_s if buffered_s < 1 else math.ceil(point.at_s / buffered_s) * buffered_s
        return sent_s + delay_s if point.labels["Hostname"] == "node-b" else point.at_s

    bench = Bench(Metrics(series=series, arrives_at_s=arrives_at_s))
    for end in (at(each) for each in range(0, 600, tick_s)):
        await bench.refresh(end)
        fresh = bench.another()
        await bench.refresh(end, sampler=fresh)
        assert windows(bench.sampler.history, end) == windows(fresh.history, end)


async def test_pods_that_end_and_hosts_that_go_cost_long_reads_for_a_while_at_most() -> None:
    """A pod's last sample stays where it is; its host goes on, and one that went is given up after five overlaps."""
    series = [*gpu("GPU-0", pod="train"), *gpu("GPU-1", pod="serve"), *gpu("GPU-2", pod="last", node="node-b")]
    gone = during(NOON, at(7200), vanish, of=lambda point: point.labels["UUID"] != "GPU-0")
    bench = Bench(Metrics(series=series, distortions=[gone]))
    await bench.refresh(NOON, span=minutes(30))
    spans = {}
    for tick in range(1, 30):
        await bench.refresh(at(30 * tick), span=minutes(30))
        (spans[tick],) = {at(30 * tick) - start for start in bench.starts()}
    # The newest sample of before is 23 s older than the tick of before, that of node-b than noon.
    usual = OVERLAP + TRUST.interval + timedelta(seconds=23)
    assert {spans[tick] for tick in (1, *range(20, 30))} == {usual}
    assert [spans[tick] - usual for tick in (2, 10, 19)] == [(tick - 1) * TRUST.interval for tick in (2, 10, 19)]


async def test_an_outage_longer_than_the_window_reads_one_window() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    await bench.refresh(NOON)
    await bench.refresh(at(3600))
    assert bench.starts() == {at(3600) - SPAN - EDGE}


async def test_gpus_that_no_pod_holds_are_not_read_from_the_beginning_again_and_again() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="")))
    bench.metrics.distortions.append(lambda point: point.labelled(exported_pod="", pod=""))
    intake = await bench.refresh(NOON)
    assert (intake.series, intake.unattributed, len(bench.sampler.history)) == (2, 2, 1)
    assert bench.sampler.history.devices_of("", "") == {}, "a witness for pods, and none itself"
    await bench.refresh(at(30))
    assert bench.starts() == {at(-23) - OVERLAP}


async def test_a_longer_window_is_read_as_a_whole_and_a_shorter_one_not_at_all() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train", ratio=busy_in(at(-1200), at(-1100)))))
    await bench.refresh(NOON)
    assert peak(bench.sampler, NOON) == 0.0
    await bench.refresh(at(30), span=minutes(30))
    assert bench.starts() == {at(30) - minutes(30) - EDGE, at(30) - FIRST}
    assert peak(bench.sampler, at(30), minutes(30)) == pytest.approx(0.9)
    await bench.refresh(at(60), span=SPAN)
    assert bench.starts() == {at(7) - OVERLAP}
    assert bench.sampler.history.span == minutes(30)


async def test_a_longer_window_that_cannot_be_read_is_a_doubt_and_no_shorter_one_in_its_place() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    await bench.refresh(NOON)
    bench.source.failing = {"gpu_util": DOWN}
    assert (await bench.refresh(at(30), span=minutes(30))).doubt
    assert not bench.sampler.is_backfilled
    bench.source.failing = {}
    assert (await bench.refresh(at(60), span=minutes(30))).doubt is None
    assert bench.starts() == {at(60) - minutes(30) - EDGE, at(60) - FIRST, at(7) - OVERLAP}
    assert {w.coverage_ratio for w in windows(bench.sampler.history, at(60), minutes(30)).values()} == {1.0}


async def test_a_clock_that_is_set_back_begins_anew() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    await bench.refresh(at(3600))
    intake = await bench.refresh(NOON)
    assert intake.doubt is None
    assert bench.starts() == {NOON - SPAN - EDGE, NOON - FIRST}
    assert {window.coverage_ratio for window in windows(bench.sampler.history, NOON).values()} == {1.0}


# ---- windows longer than one read

HOUR = minutes(60)


async def test_no_read_is_longer_than_an_hour_whatever_the_window() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train", ratio=busy_in(at(-8000), at(-7900)))))
    asked = []
    for tick in range(5):
        await bench.refresh(at(30 * tick), span=minutes(150))
        asked.append([(start, end) for name, start, end in bench.source.asked if name == "gpu_util"])
    begin = at(60) - minutes(150) - EDGE  # of the window, at the third tick
    assert asked == [
        [(NOON - FIRST, NOON), (NOON - HOUR, NOON - FIRST)],
        [(at(-23) - OVERLAP, at(30)), (NOON - 2 * HOUR, NOON - HOUR)],
        [(at(7) - OVERLAP, at(60)), (begin, NOON - 2 * HOUR)],
        [(at(37) - OVERLAP, at(90))],
        [(at(67) - OVERLAP, at(120))],
    ]
    assert {w.coverage_ratio for w in windows(bench.sampler.history, at(120), minutes(150)).values()} == {1.0}
    assert peak(bench.sampler, at(120), minutes(150)) == pytest.approx(0.9)


async def test_no_read_brings_more_samples_than_a_source_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four series 10 minutes at a time; after an outage, too."""
    monkeypatch.setattr("scaler.decision.sampling._MOST_SAMPLES", 80)
    bench = Bench(Metrics(series=[each for n in range(4) for each in gpu(f"GPU-{n}", pod="train")]))
    for end in (NOON, at(30), at(2400)):
        intake = await bench.refresh(end, span=minutes(30))
        reads = [(end - start, until - start) for name, start, until in bench.source.asked if name == "gpu_util"]
        assert (
            reads
            == {
                NOON: [
                    (FIRST, FIRST),
                    (FIRST + minutes(10), minutes(10)),
                    (FIRST + minutes(20), minutes(10)),
                    (minutes(30) + EDGE, minutes(5) + EDGE),
                ],
                at(30): [(OVERLAP + timedelta(seconds=53), OVERLAP + timedelta(seconds=53))],
                at(2400): [
                    *((minutes(10 * n), minutes(10)) for n in (1, 2, 3)),
                    (minutes(30) + EDGE, EDGE),
                ],
            }[end]
        )
        assert (intake.doubt, bench.sampler.is_backfilled) == (None, True)
        found = windows(bench.sampler.history, end, minutes(30))
        assert {window.coverage_ratio for window in found.values()} == {1.0}


async def test_an_older_part_that_cannot_be_read_is_tried_again_and_doubts_nothing_newer() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    await bench.refresh(NOON, span=minutes(90))

    class OldIsGone(ScriptedSource):
        async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
            if end < NOON:
                raise DOWN
            return await super().read(signal, start=start, end=end)

    plain, bench.sampler._source = bench.source, OldIsGone(metrics=bench.metrics, clock=bench.clock)
    assert (await bench.refresh(at(30), span=minutes(90))).doubt is None
    [gap] = {w.longest_gap for w in windows(bench.sampler.history, at(30), minutes(90)).values()}
    assert gap == 59
    bench.sampler._source = plain
    assert (await bench.refresh(at(60), span=minutes(90))).doubt is None
    assert {w.coverage_ratio for w in windows(bench.sampler.history, at(60), minutes(90)).values()} == {1.0}


async def test_a_cluster_whose_gpus_come_later_has_its_long_window_too() -> None:
    bench = Bench(Metrics(series=[]))
    for tick in range(4):
        await bench.refresh(at(30 * tick), span=minutes(120))
    assert bench.sampler.is_backfilled
    bench.metrics.series = gpu("GPU-0", pod="train")
    await bench.refresh(at(120), span=minutes(120))
    assert {w.coverage_ratio for w in windows(bench.sampler.history, at(120), minutes(60)).values()} == {1.0}


# ---- what is made of it


@dataclass(frozen=True)
class GarbledSeries:
    """Its samples turn out to be no samples when they are looked at."""

    key: bytes = b"garbled"

    def labels(self) -> dict[str, str]:
        return {"UUID": "GPU-9", "namespace": "demo", "pod": "garbled"}

    def samples(self) -> Sequence[tuple[float, float]]:
        raise SourceError("the samples cannot be read", transient=False)


class EmptySeries(GarbledSeries):
    """All of its samples lie before what was read."""

    def samples(self) -> Sequence[tuple[float, float]]:
        return ()


class AndOneMore:
    """A source that adds one series to each reading of a signal."""

    def __init__(self, source: ScriptedSource, *, signal: str, series: RawSeries) -> None:
        self.source, self.signal, self.series = source, signal, series

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        reading = await self.source.read(signal, start=start, end=end)
        return reading._replace(series=[*reading.series, self.series]) if signal.name == self.signal else reading


async def test_a_series_that_cannot_be_read_is_a_doubt_and_not_a_crash() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    garbled = AndOneMore(bench.source, signal="gpu_util", series=GarbledSeries())
    sampler = Sampler(garbled, signals=DEFAULT_SIGNALS, rules=DEFAULT_RULES, trust=TRUST, overlap=OVERLAP)
    for seconds in (0, 30):
        intake = await bench.refresh(at(seconds), sampler=sampler)
        assert intake.doubt
        assert intake.doubt.reason is UnknownReason.SOURCE_UNAVAILABLE
        assert intake.doubt.message == "gpu_util: the samples cannot be read"
        assert not sampler.is_backfilled


async def test_a_series_without_samples_takes_nothing_from_the_others() -> None:
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    source = AndOneMore(bench.source, signal="gpu_util", series=EmptySeries())
    sampler = Sampler(source, signals=DEFAULT_SIGNALS, rules=DEFAULT_RULES, trust=TRUST, overlap=OVERLAP)
    assert (await bench.refresh(NOON, sampler=sampler)).doubt is None
    found = windows(sampler.history, NOON)
    assert {name: found["train", "GPU-0", name].coverage_ratio for name in ("gr_engine_active", "gpu_util")} == {
        "gr_engine_active": 1.0,
        "gpu_util": 1.0,
    }


@pytest.mark.parametrize(
    ("skew_s", "is_trusted"), [(0, True), (15, True), (16, True), (17, False), (-16, True), (-17, False), (60, False)]
)
async def test_a_source_whose_clock_differs_is_not_trusted(skew_s: int, is_trusted: bool) -> None:
    """15 s are tolerated, and one more for the Date header's whole seconds."""

    class Dated(ScriptedSource):
        async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
            reading = await super().read(signal, start=start, end=end)
            return reading._replace(server_time=self.clock() + timedelta(seconds=skew_s))

    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    source = Dated(metrics=bench.metrics, clock=bench.clock)
    sampler = Sampler(
        source, signals=DEFAULT_SIGNALS, rules=DEFAULT_RULES, trust=TRUST, overlap=OVERLAP, clock=bench.clock
    )
    intake = await bench.refresh(NOON, sampler=sampler)
    assert (intake.doubt is None) is is_trusted
    assert len(sampler.history) == int(is_trusted)
    if intake.doubt:
        assert intake.doubt.reason is UnknownReason.CLOCK_SKEW


async def test_blanks_are_counted_and_cover_nothing() -> None:
    blank = during(at(-300), at(-240), reads(float("nan")), of=of_metric(GPU_UTIL))
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train"), distortions=[blank]))
    intake = await bench.refresh(NOON)
    assert (intake.samples, intake.blanks) == (2 * 22, 2)
    found = windows(bench.sampler.history, NOON)
    assert [found["train", "GPU-0", name].covered for name in ("gr_engine_active", "gpu_util")] == [20, 18]


# ---- identities


async def test_a_series_is_relabelled_once_however_often_it_is_read_or_dropped() -> None:
    rules = parse_rules([{"source_labels": ["UUID"], "regex": "GPU-0", "action": "drop"}])
    bench = Bench(Metrics(series=[*gpu("GPU-0", pod="train"), *gpu("GPU-1", pod="serve")]), rules=rules)

    class Counting(Sampler):
        looks = 0

        def identify(self, labels: Mapping[str, str]) -> GpuSeries | None:
            self.looks += 1
            return super().identify(labels)

    sampler = Counting(bench.source, signals=DEFAULT_SIGNALS, rules=rules, trust=TRUST, overlap=OVERLAP)
    for tick in range(3):
        intake = await bench.refresh(at(30 * tick), sampler=sampler)
        assert (intake.series, intake.unattributed) == (4, 2)
    assert [str(device.series.gpu) for device in sampler.history] == ["GPU-1"]
    assert sampler.looks == 4


async def test_boards_of_nodes_that_come_and_go_leave_nothing_behind() -> None:
    """Every minute another Node, with another GPU and another exporter, takes the place of the last one."""
    labels = gpu("GPU-0", pod="train")[0].labels
    counter = Series(metric=ENERGY.metrics[0], labels=labels, value=lambda at_s: at_s)
    bench = Bench(Metrics(series=[*gpu("GPU-0", pod="train"), counter]))
    bench.metrics.distortions.append(
        lambda point: point.labelled(UUID=f"GPU-{point.at_s // 60:.0f}", instance=f"10.0.0.1:{point.at_s // 60:.0f}")
    )
    for tick in range(120):
        await bench.refresh(at(30 * tick))
        assert len({each.series.gpu for each in bench.sampler.history}) <= SPAN / minutes(1) + 2
    # A board and a counter of each GPU of the window, and of the one that came last.
    assert bench.sampler.history.boards.row("another") <= 2 * (SPAN / minutes(1) + 3)


async def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    """Every minute another pod holds the GPU. What is held is one window of them, at any time."""
    bench = Bench(Metrics(series=gpu("GPU-0", pod="train")))
    bench.metrics.distortions.append(lambda point: point.labelled(exported_pod=f"pod-{int(point.at_s // 60)}"))
    held = []
    with traced_memory() as bytes_held:
        for tick in range(120):
            await bench.refresh(at(30 * tick))
            assert len(bench.sampler.history) <= SPAN / minutes(1) + 2
            if tick in (59, 119):
                held.append(bytes_held())
    # Nothing but noise; the identities of what 30 pods showed would be 10 KB.
    assert held[1] - held[0] < 4096


async def test_a_gpu_takes_less_than_2_kib() -> None:
    """30 min of two signals are 2 × 62 slots of 6 bytes; the rest is labels and dictionaries."""
    gpus = 50
    series = [each for n in range(gpus) for each in gpu(f"GPU-{n:08}-0000-0000-0000-000000000000", pod=f"train-{n}")]
    bench = Bench(Metrics(series=series))
    with traced_memory() as bytes_held:
        await bench.refresh(NOON, span=minutes(30))
        per_gpu = bytes_held() / gpus
    assert len(bench.sampler.history) == gpus
    assert 0 < per_gpu < 2048


@contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """Gives the bytes that the program, not its tests, has allocated in the block and still holds."""
    ours = tracemalloc.Filter(inclusive=True, filename_pattern="*/scaler/*")

    def held() -> int:
        gc.collect()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)

    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()
