"""Gives the samples of a recording to the history that decisions look at, up to an instant at a time.

Beside the history it knows when the last work of every series was seen: while that is in the window of all signals of a
GPU, nobody has to look.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.gpu import Signal, Unit
from scaler.idleness.history import DeviceHistory, History
from scaler.idleness.policy import Trust
from scaler.idleness.window import as_stored
from scaler_analysis.simulation.recordings.recorded import SeriesSpan
from scaler_analysis.simulation.recordings.recording import RecordedSamples

_FORGET_EVERY_S = 3600.0


class FedSamples(NamedTuple):
    """Some samples of one signal that were given to the history: arrays of one length, in the order of time."""

    series: NDArray[np.intp]
    at_s: NDArray[np.float64]
    is_active: Mapping[float, NDArray[np.bool_]]
    """Whether each is work, by floor."""


class SampleFeed:
    def __init__(
        self,
        steps: Iterator[tuple[float, Mapping[str, RecordedSamples]]],
        series: Sequence[SeriesSpan],
        *,
        signals: Sequence[Signal],
        trust: Trust,
        span: timedelta,
        floors: Iterable[float],
    ) -> None:
        # What is recorded are ratios, also of metrics in percent.
        self._signals = {each.name: replace(each, unit=Unit.RATIO, units=()) for each in signals}
        self._is_percent = np.array([each.is_percent for each in series], np.bool_)
        self.history = History(signals=[*self._signals.values()], interval=trust.interval, span=span)
        self._steps, self.series = steps, series
        self._interval_s = trust.interval.total_seconds()
        self._kept = span + 2 * trust.interval
        self._parts: dict[str, RecordedSamples] = {}
        """What is left of a step, by signal."""
        self._read_until_s = -np.inf
        self._forgotten_at_s = -np.inf
        self._devices: list[DeviceHistory | None] = [None] * len(series)
        self.rows = np.full(len(series), -1, np.intp)
        """The row of each series' GPU in the history; -1 where that holds nothing of it."""
        self._floors = {each: np.float32(as_stored(each)) for each in floors}
        self.work_ends: dict[float, NDArray[np.float64]] = {
            floor: np.full(len(series), -np.inf) for floor in self._floors
        }
        """The end of the newest interval with work of each series, in Unix seconds, by floor."""
        self.firsts = np.array([each.first_s for each in series])
        """The first sample of each series, also of those to come."""
        self.finals = np.array([each.last_s for each in series])
        """The last sample of all, of each series."""

    def advance(self, until_s: float) -> Iterator[FedSamples]:
        """Give it all samples up to that instant, which is included."""
        self._forget(until_s)
        while True:
            for name, part in self._parts.items():
                given, self._parts[name] = part.split(until_s)
                if len(given.series):
                    yield self._give(self._signals[name], given)
            if until_s <= self._read_until_s or not self._read():
                return

    def _read(self) -> bool:
        """Whether there was one step more."""
        found = next(self._steps, None)
        if found is None:
            self._read_until_s = np.inf
            return False
        self._read_until_s, samples = found
        self._parts = {name: each for name, each in samples.items() if name in self._signals}
        return True

    def _give(self, signal: Signal, given: RecordedSamples) -> FedSamples:
        series, at_s, ratios = given
        rows = self.rows[series]
        if rows.min() < 0:
            for position in np.unique(series[rows < 0]).tolist():
                unit = Unit.PERCENT if self._is_percent[position] else Unit.RATIO
                self._devices[position] = device = self.history.device(
                    replace(signal, unit=unit), self.series[position].gpu
                )
                self.rows[position] = device.row
            rows = self.rows[series]
        self.history.extend(signal, rows, at_s, ratios.astype(np.float64))
        is_active = {floor: ratios >= stored for floor, stored in self._floors.items()}
        ends = (np.floor(at_s / self._interval_s) + 1) * self._interval_s
        # Of several samples of a series the last one stays, and they are in the order of time.
        for floor, active in is_active.items():
            self.work_ends[floor][series[active]] = ends[active]
        return FedSamples(series, at_s, is_active)

    def _forget(self, now_s: float) -> None:
        if now_s < self._forgotten_at_s + _FORGET_EVERY_S:
            return
        self._forgotten_at_s = now_s
        self.history.forget_before(datetime.fromtimestamp(now_s, UTC) - self._kept)
        for position in np.flatnonzero(self.rows >= 0).tolist():
            device = self._devices[position]
            if device is not None and device.is_forgotten:
                self.rows[position], self._devices[position] = -1, None
