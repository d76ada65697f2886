"""Which workloads of a case run, and which are suspended until they are at work again.

Laws of this file:

* What is suspended is not judged until its first sample at or above the floor, on any of its GPUs: its return. There
  it has started anew.
* Without a return a suspension ends with the last sample.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from scaler_analysis.simulation.feed import FedSamples
from scaler_analysis.simulation.outcome import CaseOutcome, SimulatedSuspension
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload


class SuspendedWorkloads:
    def __init__(self, workloads: Sequence[RecordedWorkload], series: int, outcome: CaseOutcome) -> None:
        self._workloads, self._outcome = workloads, outcome
        self._workload_of = np.full(series, -1, np.intp)
        for position, workload in enumerate(workloads):
            self._workload_of[list(workload.series)] = position
        self._is_suspended: dict[float, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
        """Whether each series is of a suspended workload, by floor."""
        self._series = series
        self._since: dict[int, tuple[float, float]] = {}
        """When each suspended workload was suspended, and since when it had run."""

    def __contains__(self, position: int) -> bool:
        return position in self._since

    def workload_of(self, series: int) -> int:
        return int(self._workload_of[series])

    def suspend(self, position: int, floor: float, *, at_s: float, ran_since_s: float) -> None:
        self._since[position] = at_s, ran_since_s
        self._mark(position, floor, is_suspended=True)

    def _mark(self, position: int, floor: float, *, is_suspended: bool) -> None:
        marks = self._is_suspended.get(floor)
        if marks is None:
            marks = self._is_suspended[floor] = np.zeros(self._series, np.bool_)
        marks[list(self._workloads[position].series)] = is_suspended

    def returned(self, fed: Sequence[FedSamples]) -> Iterator[tuple[int, float]]:
        """The workloads that these samples show at work again, and when; they are not suspended any more."""
        if not self._since:
            return
        for floor, marks in self._is_suspended.items():
            first: dict[int, float] = {}
            for each in fed:
                hits = np.flatnonzero(each.is_active[floor] & marks[each.series])
                for series, at_s in zip(each.series[hits].tolist(), each.at_s[hits].tolist(), strict=True):
                    position = self.workload_of(series)
                    first[position] = min(at_s, first.get(position, at_s))
            for position, at_s in first.items():
                self.end(position, floor, at_s=at_s, has_returned=True)
                yield position, at_s

    def end(self, position: int, floor: float, *, at_s: float, has_returned: bool) -> None:
        since_s, ran_since_s = self._since.pop(position)
        self._mark(position, floor, is_suspended=False)
        self._count(position, since_s, at_s, ran_since_s, has_returned=has_returned)

    def finish(self) -> None:
        """What is suspended stays so until its last sample."""
        for position, (since_s, ran_since_s) in sorted(self._since.items()):
            self._count(position, since_s, self._workloads[position].end_s, ran_since_s, has_returned=False)
        self._since.clear()

    def _count(self, position: int, since_s: float, until_s: float, ran_since_s: float, *, has_returned: bool) -> None:
        suspension = SimulatedSuspension(
            workload=self._workloads[position],
            at_s=since_s,
            until_s=until_s,
            ran_since_s=ran_since_s,
            has_returned=has_returned,
        )
        self._outcome.suspended(position, suspension)
