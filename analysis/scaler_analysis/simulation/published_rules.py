"""Rules that others publish for the same question, to compare with: what would they have suspended?

| rule                                | idle is …                                                         |
|-------------------------------------|-------------------------------------------------------------------|
| `avg_over_time(…[30m]) < 5 %`       | every GPU whose samples of the last 30 minutes are below 5 % on average |
| `rate(…[2m]) == 0`                  | every GPU of which the last 2 minutes show no increase            |

Both are of one signal, look at what samples there are, and know nothing of missing ones. They are evaluated once in a
collection interval, from the moment on from which a pod has been there for the rule's range, and for the warm-up of the
policies that they are compared with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.window import EMPTY
from scaler_analysis.simulation.feed import FedSamples, SampleFeed
from scaler_analysis.simulation.outcome import CaseOutcome
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload
from scaler_analysis.simulation.suspended import SuspendedWorkloads

Peaks = NDArray[np.float32]
"""The samples of the range of each GPU, oldest first; -1 where there is none. Shape: (GPUs, intervals)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRule:
    name: str
    length: timedelta
    is_idle: Callable[[Peaks], NDArray[np.bool_]]
    """Whether each GPU is idle."""


def _is_low_on_average(peaks: Peaks) -> NDArray[np.bool_]:
    has_sample = peaks != EMPTY
    counts = has_sample.sum(axis=1)
    sums = np.where(has_sample, peaks, 0.0).sum(axis=1)
    return np.asarray((counts > 0) & (sums < 0.05 * counts))


def _has_no_increase(peaks: Peaks) -> NDArray[np.bool_]:
    """Whether `rate` is 0, as it sees a gauge: a decrease is taken for a counter that began anew."""
    before = np.full(len(peaks), EMPTY, np.float32)
    has_increase, counts = np.zeros(len(peaks), np.bool_), np.zeros(len(peaks), np.int64)
    for now in peaks.T:
        has_sample = now != EMPTY
        has_increase |= has_sample & (before != EMPTY) & ((now > before) | ((now < before) & (now > 0)))
        before = np.where(has_sample, now, before)
        counts += has_sample
    return (counts > 1) & ~has_increase


RULES = (
    PublishedRule(name="avg < 5 % for 30m", length=timedelta(minutes=30), is_idle=_is_low_on_average),
    PublishedRule(name="rate() == 0 over 2m", length=timedelta(minutes=2), is_idle=_has_no_increase),
)


class RuleReplay:
    """One rule, looked at as a CaseReplay is."""

    def __init__(
        self,
        rule: PublishedRule,
        workloads: Sequence[RecordedWorkload],
        feed: SampleFeed,
        outcome: CaseOutcome,
        *,
        signal: str,
        floor: float,
        warm_up: timedelta,
        interval_s: float,
    ) -> None:
        self._rule, self._workloads, self._feed = rule, workloads, feed
        self._signal, self._floor, self._interval_s = signal, floor, interval_s
        self._suspended = SuspendedWorkloads(workloads, len(feed.firsts), outcome)
        series = [
            (n, position)
            for position, workload in enumerate(workloads)
            for n in workload.series
            if feed.series[n].signal == signal
        ]
        self._series, self._owners = np.array(series, np.intp).reshape(-1, 2).T
        """The series of the rule's signal, and the workloads that they belong to."""
        self._came_back = np.array([each.start_s for each in workloads])
        self._is_judged_after_s = max(warm_up, rule.length).total_seconds()
        self._ends = np.array([each.end_s for each in workloads])
        self._is_suspended = np.zeros(len(workloads), np.bool_)
        self.next_due_s = float(self._came_back.min(initial=inf))

    @property
    def shortest_s(self) -> float:
        return self._interval_s

    def take(self, fed: Sequence[FedSamples]) -> None:
        for position, at_s in self._suspended.returned(fed):
            self._came_back[position], self._is_suspended[position] = at_s, False

    def tick(self, now_s: float) -> None:
        if now_s < self.next_due_s:
            return
        # In step with the samples: counted from the last tick it would fall ever later behind them.
        self.next_due_s += self._interval_s * ((now_s - self.next_due_s) // self._interval_s + 1)
        is_ready = now_s - self._came_back >= self._is_judged_after_s
        judged = np.flatnonzero(is_ready & (self._ends >= now_s) & ~self._is_suspended)
        for position in judged[self._are_idle(judged, now_s)].tolist():
            self._is_suspended[position] = True
            ran_since_s = float(self._came_back[position])
            self._suspended.suspend(position, self._floor, at_s=now_s, ran_since_s=ran_since_s)

    def finish(self) -> None:
        self._suspended.finish()

    def _are_idle(self, positions: NDArray[np.intp], now_s: float) -> NDArray[np.bool_]:
        """Which of these workloads have GPUs that report, all of them idle."""
        places = np.full(len(self._workloads), -1, np.intp)
        places[positions] = np.arange(len(positions))
        rows = self._feed.rows[self._series]
        is_judged = (places[self._owners] >= 0) & (rows >= 0)
        owners, rows = places[self._owners[is_judged]], rows[is_judged]
        if not len(rows):
            return np.zeros(len(positions), np.bool_)
        end = datetime.fromtimestamp(now_s, UTC)
        begins, peaks = self._feed.history.peaks(rows, end - self._rule.length, end)[self._signal]
        # Those of which the greater part is in the range: on average as many as it has samples.
        peaks = peaks[:, begins + self._interval_s / 2 > now_s - self._rule.length.total_seconds()]
        reports = (peaks != EMPTY).any(axis=1)
        idle, count = self._rule.is_idle(peaks), len(positions)
        has_gpu = np.bincount(owners, reports, minlength=count) > 0
        return np.asarray(has_gpu & (np.bincount(owners, reports & ~idle, minlength=count) == 0))
