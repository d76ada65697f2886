"""The samples of the whole cluster, found by pod: which GPUs reported for it, and what each signal showed.

Laws of this file:

* A series belongs to the pod that its labels name at the time of the sample. A GPU that changed hands has one history
  per pod, so that one pod's work is never another's.
* What several exporters or replicas say about the same GPU and pod is merged by the highest sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.columns import DeviceWindows, Floats, Rows, SampleColumns, as_microseconds
from scaler.idleness.gpu import GpuId, GpuSeries, Signal, utilisation_ratios
from scaler.idleness.policy import Trust

PodKey = tuple[str, str]
"""(namespace, pod name)"""

_T = TypeVar("_T")

_IDLE, _BUSY, _UNKNOWN, _OLD = range(4)
"""The verdict on a GPU; `_OLD` where it has not reported for so long that it does not count."""


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
    def pod(self) -> PodKey:
        return self.series.namespace, self.series.pod

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
        self._by_pod: dict[PodKey, tuple[DeviceHistory, ...]] = {}
        self._by_gpu: dict[GpuId, tuple[DeviceHistory, ...]] = {}
        self._rows: list[DeviceHistory | None] = []
        self._free_rows: list[int] = []
        self._is_mig = np.zeros(0, np.bool_)
        """By row."""
        self._shared: set[GpuId] = set()
        """GPUs that several pods are known to have, or to have had."""
        self._shared_rows: NDArray[np.intp] | None = None
        """Their rows, each with the number of the GPU; None after a change."""
        self._moved: set[str] = set()

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
        pod, gpu = (series.namespace, series.pod), series.gpu
        device = next((each for each in self._by_pod.get(pod, ()) if each.series.gpu == gpu), None)
        if device is None:
            device = DeviceHistory(series, self._row(), self._columns)
            self._rows[device.row], self._is_mig[device.row] = device, gpu.is_mig
            self._by_pod[pod] = (*self._by_pod.get(pod, ()), device)
            self._by_gpu[gpu] = (*self._by_gpu.get(gpu, ()), device)
            if len(self._by_gpu[gpu]) > 1:
                self._shared.add(gpu)
                self._shared_rows = None
            self._moved.add(series.namespace)
        self._columns[signal.name].has_reported[device.row] = True
        return device

    def _row(self) -> int:
        """One that is free."""
        if self._free_rows:
            return self._free_rows.pop()
        self._rows.append(None)
        for each in self._columns.values():
            each.resize(len(self._rows))
        if len(self._rows) > len(self._is_mig):
            self._is_mig = np.append(self._is_mig, np.zeros(max(64, len(self._rows) // 4), np.bool_))
        return len(self._rows) - 1

    def devices_of(self, namespace: str, pod: str) -> Mapping[GpuId, DeviceHistory]:
        return {each.series.gpu: each for each in self._by_pod.get((namespace, pod), ())}

    def rows_of(self, namespace: str, pod: str) -> tuple[int, ...]:
        return tuple(each.row for each in self._by_pod.get((namespace, pod), ()))

    def other_holders(self, gpu: GpuId, pod: PodKey, *, since_s: float) -> list[PodKey]:
        """Other pods for which the same device reported at or after `since_s` (Unix seconds)."""
        holders = self._by_gpu.get(gpu, ())
        others = [each for each in holders if each.pod != pod] if len(holders) > 1 else ()
        return sorted(each.pod for each in others if each.last_sample_s >= since_s)

    def take_moved(self) -> set[str]:
        """Namespaces whose pods got or lost a GPU since this was asked for the last time."""
        moved, self._moved = self._moved, set()
        return moved

    def shown(
        self, rows: Rows, *, above_ratio: float, length: timedelta, trust: Trust, end: datetime
    ) -> NDArray[np.float64]:
        """What of these rows a decision depends on, as long as no verdict on one of them is put into words.

        Shape: (rows, 2). The verdict on the GPU as a number; the Unix time in microseconds since when it is quiet, -inf
        where that is as far as is known and inf where it is not quiet, or will be only after `end`.
        """
        is_active, is_quiet, is_doubted = (np.zeros(len(rows), np.bool_) for _ in range(3))
        newest = np.full(len(rows), -np.inf)
        oldest, last_active = -newest, newest.copy()
        for signal in self.signals:
            columns = self._columns[signal.name]
            windows = columns.windows(end, length, rows)
            is_expected = ~(self._is_mig[rows] & signal.absent_on_mig)
            active, trusted = windows.shown(above_ratio, trust, end)
            is_active |= active & is_expected
            is_quiet |= ~active & trusted & is_expected
            is_doubted |= ~active & ~trusted & is_expected
            newest = np.maximum(newest, windows.last_samples)
            oldest = np.where(is_expected, np.minimum(oldest, windows.last_samples), oldest)
            last_active = np.maximum(last_active, columns.last_active(above_ratio, rows))
        is_idle, is_busy = is_quiet & ~is_active & ~is_doubted, is_active & ~is_quiet
        verdicts = np.where(is_idle, _IDLE, np.where(is_busy, _BUSY, _UNKNOWN))
        verdicts[self._is_shared(rows, since_s=(end - trust.max_age).timestamp())] = _UNKNOWN
        verdicts[newest < (end - length - trust.interval).timestamp()] = _OLD
        since = as_microseconds(last_active)
        is_quiet_since = (last_active == -np.inf) | (
            (as_microseconds(oldest) >= since) & (since < as_microseconds(end.timestamp()))
        )
        return np.column_stack([verdicts, np.where(is_quiet_since, since, np.inf)])

    def windows(self, rows: Rows, *, length: timedelta, end: datetime) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """By signal, of these rows: the peak as a ratio, -1 without one, the slots covered, and all slots.

        Shape: (3, rows). No slots where the signal is not expected, or has never reported.
        """
        for signal in self.signals:
            columns = self._columns[signal.name]
            found = columns.windows(end, length, rows)
            counts = columns.has_reported[rows] & ~(self._is_mig[rows] & signal.absent_on_mig)
            covered = np.minimum(found.covered, found.slots)
            yield signal.name, np.where(counts, np.stack([found.peaks, covered, found.slots]), [[-1], [0], [0]])

    def peaks(
        self, rows: Rows, begin: datetime, end: datetime
    ) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float32]]]:
        """What `SampleColumns.peaks` says of these rows, by signal."""
        return {signal.name: self._columns[signal.name].peaks(rows, begin, end) for signal in self.signals}

    def _is_shared(self, rows: Rows, *, since_s: float) -> NDArray[np.bool_]:
        """Of which rows another pod's device reported at or after `since_s`."""
        if self._shared_rows is None:
            found = [(each.row, n) for n, gpu in enumerate(self._shared) for each in self._by_gpu[gpu]]
            self._shared_rows = np.array(found, np.intp).reshape(-1, 2)
        shared, gpus = self._shared_rows.T
        newest = np.maximum.reduce([each.last_samples[shared] for each in self._columns.values()])
        reports = newest >= since_s
        others = np.bincount(gpus, reports)[gpus] - reports if len(gpus) else np.zeros(0)
        is_shared = np.zeros(len(self._rows), np.bool_)
        is_shared[shared[others > 0]] = True
        return is_shared[rows]

    def forget_before(self, at: datetime) -> None:
        """Free the rows of devices whose newest sample is older."""
        columns = list(self._columns.values())
        newest = np.maximum.reduce([each.last_samples for each in columns])
        is_held = np.logical_or.reduce([each.has_reported for each in columns])
        rows = np.flatnonzero(is_held & (newest < at.timestamp())).tolist()
        for device in [device for row in rows if (device := self._rows[row]) is not None]:
            self._rows[device.row] = None
            self._forget(device)
        self._free_rows += rows
        for each in columns if rows else ():
            each.clear(np.array(rows, np.intp))

    def _forget(self, device: DeviceHistory) -> None:
        pod, gpu = device.pod, device.series.gpu
        _remove(self._by_pod, pod, device)
        _remove(self._by_gpu, gpu, device)
        if gpu in self._shared:
            self._shared_rows = None
        if len(self._by_gpu.get(gpu, ())) < 2:
            self._shared.discard(gpu)
        self._moved.add(pod[0])
        device.row = -1

    def __len__(self) -> int:
        """How many (pod, GPU) pairs are held."""
        return len(self._rows) - len(self._free_rows)

    def __iter__(self) -> Iterator[DeviceHistory]:
        return (each for each in self._rows if each is not None)


def _remove(found: dict[_T, tuple[DeviceHistory, ...]], key: _T, device: DeviceHistory) -> None:
    left = tuple(each for each in found[key] if each is not device)
    if left:
        found[key] = left
    else:
        del found[key]
