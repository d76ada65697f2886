"""The samples of the whole cluster, found by pod: which GPUs reported for it, and what each signal showed.

Laws of this file:

* A series belongs to the pod that its labels name at the time of the sample. A GPU that changed hands has one history
  per pod, so that one pod's work is never another's.
* What several exporters or replicas say about the same GPU and pod is merged by the highest sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from scaler.idleness.columns import DeviceWindows, Floats, Rows, SampleColumns
from scaler.idleness.gpu import GpuId, GpuSeries, Signal, utilisation_ratios

PodKey = tuple[str, str]
"""(namespace, pod name)"""


class DeviceHistory:
    """One GPU as one pod held it: a row of the columns of every signal."""

    __slots__ = ("_columns", "row", "series")

    def __init__(self, series: GpuSeries, row: int, columns: Mapping[str, SampleColumns]) -> None:
        self.series = series
        self.row = row
        """-1 once it is forgotten."""
        self._columns = columns

    @property
    def is_forgotten(self) -> bool:
        return self.row < 0

    @property
    def last_sample_s(self) -> float:
        """Unix time of the newest sample of any signal, -inf where there is none."""
        return max(each.last_samples.item(self.row) for each in self._columns.values())

    def windows(self, signals: Iterable[Signal], *, end: datetime, length: timedelta) -> DeviceWindows:
        """Of these signals, by name."""
        found = {each.name: self._columns[each.name].window(self.row, end, length) for each in signals}
        return DeviceWindows(self.row, found)

    def last_active_at(self, above_ratio: float) -> datetime | None:
        found = [at for each in self._columns.values() if (at := each.last_active_at(self.row, above_ratio))]
        return max(found, default=None)


class History:
    """A row for every GPU of every pod, over `span`."""

    def __init__(self, *, signals: Sequence[Signal], interval: timedelta, span: timedelta) -> None:
        self.signals = tuple(signals)
        self.interval = interval
        self.span = span
        self._columns = {each.name: SampleColumns(slots=self.slots, interval=interval) for each in signals}
        self._by_pod: dict[PodKey, dict[GpuId, DeviceHistory]] = {}
        self._holders: dict[GpuId, set[PodKey]] = {}
        self._rows: dict[int, DeviceHistory] = {}
        self._free_rows: list[int] = []

    @property
    def slots(self) -> int:
        """Slots per row: the span in intervals, one for the interval in progress and one for rounding down."""
        return -int(-self.span // self.interval) + 2

    def record(self, signal: Signal, series: GpuSeries, samples: Iterable[tuple[float, float]]) -> int:
        """Add samples of one series; returns how many were no measurements (blanks, sentinels, another unit).

        Units: (Unix seconds, value in the signal's own unit).
        """
        taken, device = np.array([*samples], np.float64).reshape(-1, 2), self.device(signal, series)
        return self.extend(signal, np.full(len(taken), device.row), taken[:, 0], taken[:, 1])

    def extend(self, signal: Signal, rows: Rows, at_s: Floats, values: Floats) -> int:
        """Add samples of many devices; returns how many were no measurements.

        Shapes: three arrays of one length, an element a sample. Units as in `record`.
        """
        ratios = utilisation_ratios(values, signal.unit)
        measured = ~np.isnan(ratios)
        self._columns[signal.name].extend(rows[measured], at_s[measured], ratios[measured])
        return len(values) - int(measured.sum())

    def device(self, signal: Signal, series: GpuSeries) -> DeviceHistory:
        """The device of the series, for which the signal reports; a new one where there was none."""
        pod = (series.namespace, series.pod)
        devices = self._by_pod.setdefault(pod, {})
        device = devices.get(series.gpu)
        if device is None:
            row = self._free_rows.pop() if self._free_rows else len(self._rows)
            device = devices[series.gpu] = self._rows[row] = DeviceHistory(series, row, self._columns)
            self._holders.setdefault(series.gpu, set()).add(pod)
            for each in self._columns.values():
                each.resize(len(self._rows) + len(self._free_rows))
        self._columns[signal.name].has_reported[device.row] = True
        return device

    def devices_of(self, namespace: str, pod: str) -> Mapping[GpuId, DeviceHistory]:
        return self._by_pod.get((namespace, pod), {})

    def other_holders(self, gpu: GpuId, pod: PodKey, *, since_s: float) -> list[PodKey]:
        """Other pods for which the same device reported at or after `since_s` (Unix seconds)."""
        others = self._holders.get(gpu, set()) - {pod} if len(self._holders.get(gpu, ())) > 1 else ()
        return sorted(other for other in others if self._by_pod[other][gpu].last_sample_s >= since_s)

    def forget_before(self, at: datetime) -> None:
        """Free the rows of devices whose newest sample is older."""
        columns = list(self._columns.values())
        newest = np.maximum.reduce([each.last_samples for each in columns])
        is_held = np.logical_or.reduce([each.has_reported for each in columns])
        rows = np.flatnonzero(is_held & (newest < at.timestamp())).tolist()
        for device in [self._rows.pop(row) for row in rows]:
            device.row = -1
            pod, gpu = (device.series.namespace, device.series.pod), device.series.gpu
            del self._by_pod[pod][gpu]
            self._holders[gpu].discard(pod)
            if not self._holders[gpu]:
                del self._holders[gpu]
            if not self._by_pod[pod]:
                del self._by_pod[pod]
        self._free_rows += rows
        for each in self._columns.values() if rows else ():
            each.clear(np.array(rows, np.intp))

    def __len__(self) -> int:
        """How many (pod, GPU) pairs are held."""
        return len(self._rows)

    def __iter__(self) -> Iterator[DeviceHistory]:
        for devices in self._by_pod.values():
            yield from devices.values()
