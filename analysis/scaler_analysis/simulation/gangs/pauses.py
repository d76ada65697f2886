"""When was a recorded workload idle? Pauses of its GPUs, from the samples of a recording. Pure.

Laws:

* A workload is idle while every signal of every GPU of every pod that it has is known to be below the floor. All other
  time is work: what is not known is not idle.
* A sample at or above the floor is work from its instant to the end of its collection interval.
* A signal is known from one sample to the next. If more collections are missing in between than `trust` tolerates, it
  is known until the sample is too old, and from the next one on.
* A pod's start is work in its collection interval. Nothing is known of a pod while a GPU or a signal that is expected
  of it does not report, more GPUs do than it requests, or one of them reports for another pod.

Where it differs from a verdict it sees less idleness: all GPUs count, whatever share a policy asks for; a pod that has
gone has worked until then, where a verdict knows only pods that are there; and a hole is work to its end, where a
verdict tolerates the end of one with which its window begins. The coverage that `trust` asks of a window is not looked
at.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.gpu import Signal
from scaler.idleness.pods import expected
from scaler.idleness.policy import Trust
from scaler.idleness.window import JITTER, as_stored
from scaler_analysis.simulation.recordings.recorded import RecordedPod, RecordedWorkload
from scaler_analysis.simulation.recordings.recording import RecordedSamples, Recording, in_order, time_before

Span = tuple[float, float]
"""The begin and the end, in Unix seconds."""
Floats = NDArray[np.float64]
_Seconds = TypeVar("_Seconds", float, Floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRule:
    """What counts as a pause."""

    signals: Sequence[Signal]
    trust: Trust
    floor: float
    """A sample at or above it is work."""
    shortest: timedelta

    @property
    def max_age_s(self) -> float:
        return self.trust.max_age.total_seconds()

    @property
    def known_s(self) -> float:
        """How long a signal is known after the last sample before a hole."""
        return min(self.max_age_s, self.trust.max_gap_intervals * self.trust.interval.total_seconds())

    @property
    def hole_s(self) -> float:
        """The time between two samples from which on too many collections are missing."""
        return (self.trust.max_gap_intervals + 2 - JITTER) * self.trust.interval.total_seconds()

    def interval_end(self, at_s: _Seconds) -> _Seconds:
        """The end of the collection interval in which that instant is."""
        interval_s = self.trust.interval.total_seconds()
        return (at_s // interval_s + 1) * interval_s


class RecordedPauses:
    """One pass over a recording. Memory holds what may be long enough for a pause, and no sample."""

    def __init__(
        self,
        recording: Recording,
        workloads: Sequence[RecordedWorkload],
        rule: PauseRule,
        progress: Callable[[float], None],
    ) -> None:
        self._rule, self._workloads, self._series = rule, workloads, recording.series
        self._workload_of = np.zeros(len(self._series), np.intp)
        for position, workload in enumerate(workloads):
            self._workload_of[list(workload.series)] = position
        shortest_s = rule.shortest.total_seconds()
        self._quiet, self._known = _LongSpans(shortest_s), _LongSpans(shortest_s)
        """Times without work, by workload; times in which a series is known, by series."""
        self._work = np.array([each.start_s for each in workloads])
        """The newest work of each workload."""
        self._since = np.array([each.first_s for each in self._series])
        """The time since which each series is known; its newest sample."""
        self._newest = self._since.copy()
        for at_s, step in recording.steps():
            for samples in step.values():
                self._note_known(samples)
            self._note_work([*step.values()])
            progress((at_s - recording.begin_s) / max(1.0, recording.end_s - recording.begin_s))
        self._finish()

    def _note_known(self, samples: RecordedSamples) -> None:
        series, at_s = in_order(samples.series, samples.at_s)
        before = time_before(series, at_s, self._newest)
        is_after_hole = at_s - before >= self._rule.hole_s
        series, at_s, before = series[is_after_hole], at_s[is_after_hole], before[is_after_hole]
        since = time_before(series, at_s, self._since)
        self._known.add(series, since, before + self._rule.known_s)

    def _note_work(self, step: Sequence[RecordedSamples]) -> None:
        """All signals at once, because the newest work of a workload is on any of them."""
        floor = np.float32(as_stored(self._rule.floor))
        works = [each.ratios >= floor for each in step]
        series = np.concatenate([each.series[is_work] for each, is_work in zip(step, works, strict=True)])
        times = np.concatenate([each.at_s[is_work] for each, is_work in zip(step, works, strict=True)])
        workload, at_s = in_order(self._workload_of[series], times)
        before = time_before(workload, at_s, self._work)
        self._quiet.add(workload, self._rule.interval_end(before), at_s)

    def _finish(self) -> None:
        is_seen = np.isfinite(self._newest)
        series = np.flatnonzero(is_seen)
        self._known.add(series, self._since[is_seen], self._newest[is_seen] + self._rule.known_s)
        ends = np.array([each.end_s for each in self._workloads])
        is_seen = np.isfinite(ends)
        self._quiet.add(np.flatnonzero(is_seen), self._rule.interval_end(self._work[is_seen]), ends[is_seen])

    def of(self, position: int) -> Iterator[Span]:
        """The pauses of the workload at that position, in order."""
        workload = self._workloads[position]
        begin_s, end_s = workload.start_s, workload.end_s
        works = [*between(self._quiet.of(position), begin_s, end_s), *between(lives_of(workload), begin_s, end_s)]
        return between(chain(works, *map(self._doubts, workload.pods)), begin_s, end_s)

    def _doubts(self, pod: RecordedPod) -> Iterator[Span]:
        """When it is not known to be idle whatever its samples are."""
        known = [span for device in pod.devices for span in self._known_of(device)]
        yield pod.start_s, self._rule.interval_end(pod.start_s)
        yield from between(_while_there_are(pod.gpus, known), pod.start_s, pod.end_s)
        for other in (self._series[n] for n in pod.series_of_others):
            yield other.first_s, other.last_s + self._rule.max_age_s

    def _known_of(self, device: Sequence[int]) -> Iterator[Span]:
        signals = expected(self._rule.signals, self._series[device[0]].gpu.gpu)
        return _while_there_are(len(signals), chain.from_iterable(map(self._known.of, device)))


class _LongSpans:
    """Spans of time by a number, those that are long enough."""

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._spans: dict[int, list[Span]] = {}

    def add(self, numbers: NDArray[np.intp], since: Floats, until: Floats) -> None:
        is_long = until - since >= self._shortest_s
        for number, *span in zip(
            numbers[is_long].tolist(), since[is_long].tolist(), until[is_long].tolist(), strict=True
        ):
            self._spans.setdefault(number, []).append((span[0], span[1]))

    def of(self, number: int) -> Sequence[Span]:
        return self._spans.get(number, ())


# ------------------------------------------------------------------------------------------- spans without any sample


def lives_of(workload: RecordedWorkload) -> list[Span]:
    return [(each.start_s, each.end_s) for each in workload.pods]


def between(spans: Iterable[Span], begin_s: float, end_s: float) -> Iterator[Span]:
    """What of that time is in none of the spans."""
    for since_s, until_s in sorted(spans):
        if since_s >= end_s:
            break
        if since_s > begin_s:
            yield begin_s, since_s
        begin_s = max(begin_s, until_s)
    if begin_s < end_s:
        yield begin_s, end_s


def _while_there_are(number: int, spans: Iterable[Span]) -> Iterator[Span]:
    """The time in which just so many of the spans overlap."""
    turns = sorted(turn for since_s, until_s in spans for turn in ((until_s, -1), (since_s, 1)))
    now = 0
    for (at_s, turn), (next_s, _) in pairwise(turns):
        now += turn
        if now == number:
            yield at_s, next_s
