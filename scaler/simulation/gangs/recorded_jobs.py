"""When did recorded workloads work, and when were they idle? Their jobs, from the samples of a recording. Pure.

Laws:

* A workload is idle while every signal of every GPU of every pod that it has is known to be below the floor. All other
  time is work: what is not known is not idle.
* A sample at or above the floor is work from its instant to the end of its collection interval.
* A signal is known from one sample to the next. If more collections are missing in between than `trust` tolerates, it
  is known until the sample is too old, and from the next one on.
* A pod's start is work in its collection interval. Nothing is known of a pod while a GPU or a signal that is expected
  of it does not report, more GPUs do than it requests, or one of them reports for another pod.
* A pause that is shorter than `shortest` is work.
* A job lasts from its first sample to its last one. If a workload has no pod for longer than samples may be old, what
  follows is another job. Its GPUs are the most that its pods had at once.

Where it differs from a verdict it sees less idleness: all GPUs count, whatever share a policy asks for; a pod that has
gone has worked until then, where a verdict knows only pods that are there; and a hole is work to its end, where a
verdict tolerates the end of one with which its window begins. The coverage that `trust` asks of a window is not looked
at.

Worked example: interval 30 s, work until 1:00:00, quiet until 3:00:00, then no sample until 3:30:00, and quiet until
4:00:00: spans 1:00:00 (work), 2:01:30 (idle: a sample may be 90 s old), 28:30 (work), 30:00 (idle).
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.gpu import Signal
from scaler.idleness.pods import expected
from scaler.idleness.policy import Trust
from scaler.idleness.window import JITTER, as_stored
from scaler.simulation.gangs.simulated_job import DEFAULT_QUEUE, SimulatedJob, with_names_of_their_own
from scaler.simulation.recordings.recorded import RecordedPod, RecordedWorkload, workloads_of
from scaler.simulation.recordings.recording import RecordedSamples, Recording, in_order, time_before

Span = tuple[float, float]
"""From and until, in Unix seconds."""
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
        """Of the collection interval."""
        interval_s = self.trust.interval.total_seconds()
        return (at_s // interval_s + 1) * interval_s


def recorded_jobs(
    recording: Recording, rule: PauseRule, *, progress: Callable[[float], None] = lambda _: None
) -> tuple[SimulatedJob, ...]:
    """In the order of their creation. What has a single sample is none."""
    workloads = workloads_of(recording.series, recording.facts, margin_s=rule.max_age_s)
    names = Counter(map(str, workloads))
    pauses = _Pauses(recording, workloads, rule, progress)
    jobs = [
        replace(job, owner=job.name if names[job.name] == 1 else "")
        for position, workload in enumerate(workloads)
        for job in _jobs(workload, pauses.of(position), rule)
    ]
    return tuple(with_names_of_their_own(sorted(jobs, key=lambda job: (job.created, job.name))))


def with_recorded_spans(
    jobs: Sequence[SimulatedJob], recorded: Sequence[SimulatedJob]
) -> tuple[tuple[SimulatedJob, ...], int]:
    """The jobs with the spans that are recorded of their owners, and how many there are of these.

    What is recorded belongs to the newest job of that owner that was created before it ended. A job of which less is
    recorded than it ran works for the rest of the time, and one that has several spans already stays as it is.
    """
    owners = [job.owner or job.name for job in jobs]
    created: dict[str, set[datetime]] = {}
    for job, owner in zip(jobs, owners, strict=True):
        created.setdefault(owner, set()).add(job.created)
    runs: dict[tuple[str, datetime], list[SimulatedJob]] = {}
    for run in recorded:
        before = [at for at in created.get(run.owner, ()) if at < run.created + run.duration]
        if before:
            runs.setdefault((run.owner, max(before)), []).append(run)
    found = [
        runs.get((owner, job.created), []) if len(job.spans) == 1 else []
        for job, owner in zip(jobs, owners, strict=True)
    ]
    joined = tuple(_joined(job, each) if each else job for job, each in zip(jobs, found, strict=True))
    return joined, sum(map(bool, found))


def _joined(job: SimulatedJob, runs: Sequence[SimulatedJob]) -> SimulatedJob:
    """What it did before an eviction and after; in between it held nothing."""
    missing = job.duration - sum((run.duration for run in runs), timedelta(0))
    spans = [missing] if missing > timedelta(0) else []
    for run in runs:
        first, *others = run.spans
        if len(spans) % 2:
            spans[-1] += first
        else:
            spans.append(first)
        spans += others
    return replace(job, spans=tuple(spans))


# ------------------------------------------------------------------------------------------------- jobs of a workload


def _jobs(workload: RecordedWorkload, pauses: Iterable[Span], rule: PauseRule) -> Iterator[SimulatedJob]:
    shortest_s, starts = rule.shortest.total_seconds(), [each.start_s for each in workload.pods]
    idle = [span for span in pauses if span[1] - span[0] >= shortest_s]
    without_pods = _between(_lives(workload), workload.start_s, workload.end_s)
    gone = [span for span in without_pods if span[1] - span[0] > rule.max_age_s]
    for begin_s, end_s in _between(gone, workload.start_s, workload.end_s):
        its_pauses = idle[bisect_left(idle, (begin_s,)) : bisect_left(idle, (end_s,))]
        yield SimulatedJob(
            name=str(workload),
            created=datetime.fromtimestamp(begin_s, UTC),
            gpus=_most_gpus(workload.pods[bisect_left(starts, begin_s) : bisect_right(starts, end_s)]),
            spans=_spans([begin_s, *chain.from_iterable(its_pauses), end_s]),
            queue=workload.queue or DEFAULT_QUEUE,
        )


def _spans(edges_s: Sequence[float]) -> tuple[timedelta, ...]:
    """In whole seconds, and at least one; without the last one if it ends with a pause."""
    edges = [round(each - edges_s[0]) for each in edges_s]
    if edges_s[-1] == edges_s[-2]:
        edges.pop()
    return tuple(timedelta(seconds=max(1, after - before)) for before, after in pairwise(edges))


def _most_gpus(pods: Iterable[RecordedPod]) -> int:
    turns = sorted(turn for each in pods for turn in ((each.start_s, 0, each.gpus), (each.end_s, 1, -each.gpus)))
    most = now = 0
    for *_, gpus in turns:  # one that starts at the very end of another is there with it
        now += gpus
        most = max(most, now)
    return most


# ------------------------------------------------------------------------------------------- spans without any sample


def _lives(workload: RecordedWorkload) -> list[Span]:
    return [(each.start_s, each.end_s) for each in workload.pods]


def _between(spans: Iterable[Span], begin_s: float, end_s: float) -> Iterator[Span]:
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


# ------------------------------------------------------------------------------------------------------------ samples


class _Pauses:
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
        """By workload, without work of it; by series, as long as it is known."""
        self._work = np.array([each.start_s for each in workloads])
        """Of every workload: its newest work."""
        self._since = np.array([each.first_s for each in self._series])
        """Of every series: since when it is known; its newest sample."""
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
        """Of all signals at once: the newest work of a workload is on any of them."""
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
        """Of the workload at that position, in order."""
        workload = self._workloads[position]
        begin_s, end_s = workload.start_s, workload.end_s
        works = [*_between(self._quiet.of(position), begin_s, end_s), *_between(_lives(workload), begin_s, end_s)]
        return _between(chain(works, *map(self._doubts, workload.pods)), begin_s, end_s)

    def _doubts(self, pod: RecordedPod) -> Iterator[Span]:
        """When it is not known to be idle whatever its samples are."""
        known = [span for device in pod.devices for span in self._known_of(device)]
        yield pod.start_s, self._rule.interval_end(pod.start_s)
        yield from _between(_while_there_are(pod.gpus, known), pod.start_s, pod.end_s)
        for rival in (self._series[n] for n in pod.rivals):
            yield rival.first_s, rival.last_s + self._rule.max_age_s

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
