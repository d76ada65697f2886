"""The samples of the whole cluster, found by pod: which GPUs reported for it, and what each signal showed.

Laws of this file:

* A series belongs to the pod that its labels name at the time of the sample. A GPU that changed hands has one history
  per pod, so that one pod's work is never another's.
* What several exporters or replicas say about the same GPU and pod is merged by the highest sample.
* A series that names no pod, or one that holds no GPU here (the exporter's own, or one that is gone), speaks of the
  device. It is a witness for every pod that holds the device: it may make them busier, never idle.
* Of a board with MIG instances, work that none of them shows is doubt about all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.boards import Boards, unexplained_watts
from scaler.idleness.gpu import BOARD_POWER, ENERGY, GpuId, GpuSeries, Signal, Unit, utilisation_ratios
from scaler.idleness.policy import Trust
from scaler.idleness.verdict import Code, Codes, GpuVerdicts, codes_of_signals, gpu_codes
from scaler.idleness.window import Floats, Rows, SampleColumns, as_microseconds, as_stored

PodKey = tuple[str, str]
"""(namespace, pod name)"""

_T = TypeVar("_T")


class DeviceHistory:
    """One GPU as one pod held it: a row of the columns of every signal."""

    __slots__ = ("_columns", "counters", "row", "series")

    def __init__(self, series: GpuSeries, row: int, columns: Mapping[str, SampleColumns]) -> None:
        self.series = series
        self.row = row
        """-1 once it is forgotten."""
        self.counters: tuple[int, ...] = ()
        """The energy counters of its board at the exporters that report for it."""
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

    def unbroken_since(self, signals: Iterable[Signal], longest_gap: int) -> datetime | None:
        """The time from which all of these signals have samples with no longer hole, in collection intervals."""
        begins = [self._columns[each.name].unbroken_since(self.row, longest_gap) for each in signals]
        return max((each for each in begins if each is not None), default=None)


class History:
    """A row for every GPU of every pod, over `span`."""

    def __init__(self, *, signals: Sequence[Signal], interval: timedelta, span: timedelta) -> None:
        self.signals = tuple(signals)
        self.interval = interval
        self.span = span
        self._columns = {each.name: SampleColumns(slots=self.slots, interval=interval) for each in signals}
        self._by_pod: dict[PodKey, tuple[DeviceHistory, ...]] = {}
        self._by_board: dict[str, tuple[DeviceHistory, ...]] = {}
        self._rows: list[DeviceHistory | None] = []
        self._free_rows: list[int] = []
        self._is_mig = np.zeros(0, np.bool_)
        self._board = np.zeros(0, np.intp)
        self._host = np.zeros(0, np.intp)
        self._is_holder = np.zeros(0, np.bool_)
        """Whether a row is of a MIG instance, its board, its host's hash, and whether its pod holds GPUs here."""
        self.boards = Boards(slots=self.slots, interval=interval)
        self._shared: set[str] = set()
        """Boards with more than one row."""
        self._moved: set[str] = set()
        self._by_host: dict[str, set[PodKey]] | None = None
        self._pairs: tuple[Rows, Rows] | None = None
        """Rows, each with one of its counters. Both are None after a change."""
        self._doubts: dict[tuple[object, ...], NDArray[Any]] = {}
        """The answers to questions about every row; forgotten when anything changes that they rest on."""

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
        """Add samples of many devices, of metrics of one unit; returns how many were no measurements.

        Shapes: three arrays of one length, an element a sample. Units as in `record`.
        """
        self._doubts.clear()
        ratios = utilisation_ratios(values, signal.unit)
        measured = ~np.isnan(ratios)
        self._columns[signal.name].extend(rows[measured], at_s[measured], ratios[measured])
        return len(values) - int(measured.sum())

    def refuse(self, signal: Signal, rows: Rows, at_s: Floats) -> None:
        """Doubt these devices, of which there are samples that cannot be of these times, until `forget_refused`."""
        self._columns[signal.name].refuse(rows, at_s)

    def forget_refused(self, signal: Signal) -> None:
        self._columns[signal.name].forget_refused()

    def board_row(self, signal: Signal, series: GpuSeries) -> int:
        """The row of samples of the whole board: power in its own, energy in that of its exporter's counter."""
        return self.boards.row(series.gpu.device, series.exporter if signal is ENERGY else "")

    def extend_boards(self, signal: Signal, rows: Rows, at_s: Floats, values: Floats) -> None:
        """Add samples of whole boards, of rows as by `board_row`. Shapes and units as in `extend`."""
        self._doubts.clear()
        if signal is ENERGY:
            self.boards.take_energy(rows, at_s, values)
        elif signal is BOARD_POWER:
            is_measured = ~np.isnan(utilisation_ratios(values, signal.unit))
            self.boards.take_power(rows[is_measured], at_s[is_measured], values[is_measured])

    def device(self, signal: Signal, series: GpuSeries) -> DeviceHistory:
        """The device of the series, for which the signal reports in this unit; a new one where there was none."""
        pod, gpu = (series.namespace, series.pod), series.gpu
        board = self._by_board.get(gpu.device, ())
        device = next((each for each in board if each.series.gpu == gpu and each.pod == pod), None)
        if device is None:
            device = DeviceHistory(series, self._row(), self._columns)
            self._rows[device.row], self._is_mig[device.row] = device, gpu.is_mig
            self._board[device.row], self._is_holder[device.row] = self.boards.row(gpu.device), bool(series.pod)
            self._host[device.row] = hash(series.node)
            if series.pod:
                self._by_pod[pod] = (*self._by_pod.get(pod, ()), device)
            self._by_board[gpu.device] = (*board, device)
            if board:
                self._shared.add(gpu.device)
            self._moved.update(each.series.namespace for each in (*board, device))
            self._doubts.clear()
            self._by_host = None
        counter = self.boards.row(gpu.device, series.exporter)
        if counter not in device.counters:
            device.counters += (counter,)
            self._doubts.clear()
            self._pairs = None
        columns = self._columns[signal.name]
        columns.has_reported[device.row] = True
        columns.is_percent[device.row] |= signal.unit is Unit.PERCENT
        return device

    def _row(self) -> int:
        """One that is free."""
        if self._free_rows:
            return self._free_rows.pop()
        self._rows.append(None)
        for each in self._columns.values():
            each.resize(len(self._rows))
        if len(self._rows) > len(self._is_mig):
            more = max(64, len(self._rows) // 4)
            self._is_mig, self._is_holder = (
                np.append(x, np.zeros(more, np.bool_)) for x in (self._is_mig, self._is_holder)
            )
            self._board, self._host = (np.append(x, np.zeros(more, np.intp)) for x in (self._board, self._host))
        return len(self._rows) - 1

    def devices_of(self, namespace: str, pod: str) -> Mapping[GpuId, DeviceHistory]:
        return {each.series.gpu: each for each in self._by_pod.get((namespace, pod), ())}

    def rows_of(self, namespace: str, pod: str) -> tuple[int, ...]:
        return tuple(each.row for each in self._by_pod.get((namespace, pod), ()))

    def others_of(self, gpu: GpuId, pod: PodKey) -> list[DeviceHistory]:
        """What else reports for the board of the GPU than this pod's series of it."""
        return [each for each in self._by_board.get(gpu.device, ()) if (each.series.gpu, each.pod) != (gpu, pod)]

    def is_holder(self, device: DeviceHistory) -> bool:
        """Whether its pod is known to hold GPUs here, as of `mark_holders`."""
        return bool(self._is_holder[device.row])

    def has_counter(self, device: DeviceHistory) -> bool:
        """Whether there is a counter of its board by which to see that."""
        return self.boards.has_counter(np.array(device.counters))

    def pods_of_host(self, host: str) -> Set[PodKey]:
        """The pods that series of that host name."""
        if self._by_host is None:
            found: dict[str, set[PodKey]] = {}
            for each in self:
                if each.series.pod:
                    found.setdefault(each.series.node, set()).add(each.pod)
            self._by_host = found
        return self._by_host.get(host, frozenset())

    def newest_of_hosts(self, signal: Signal) -> Floats:
        """When the newest sample of each row's host was taken, in Unix seconds; -inf without one. Shape: (rows,)."""
        rows = slice(len(self._rows))
        _, hosts = np.unique(self._host[rows], return_inverse=True)
        return _latest(hosts, self._columns[signal.name].newest[rows])

    def mark_holders(self, holds_gpus: Callable[[PodKey], bool]) -> None:
        """Say which pods hold GPUs here. Of pods that are alone on their board nothing depends on that."""
        rows = [each for board in self._shared for each in self._by_board[board]]
        holders = np.array([bool(each.series.pod) and holds_gpus(each.pod) for each in rows], np.bool_)
        places = np.array([each.row for each in rows], np.intp)
        if (self._is_holder[places] != holders).any():
            self._is_holder[places] = holders
            self._doubts.clear()

    @property
    def has_mig(self) -> bool:
        return bool(self._is_mig[: len(self._rows)].any())

    def take_moved(self) -> set[str]:
        """Namespaces whose pods got or lost a GPU since this was asked for the last time."""
        moved, self._moved = self._moved, set()
        return moved

    def verdicts(
        self, rows: Rows, *, above_ratio: float, length: timedelta, trust: Trust, end: datetime
    ) -> GpuVerdicts:
        """The verdicts on the GPUs of these rows, from the window of that length which ends at `end`."""
        columns, is_mig = self._columns, self._is_mig[rows]
        windows = {each.name: columns[each.name].windows(end, length, rows) for each in self.signals}
        last_active = np.maximum.reduce([each.last_active(above_ratio, rows) for each in columns.values()])
        is_expected = {each.name: ~(is_mig & each.absent_on_mig) for each in self.signals}
        is_percent = {each.name: columns[each.name].is_percent[rows] for each in self.signals}
        codes = codes_of_signals(windows, is_expected, is_percent, above_ratio=above_ratio, trust=trust, end=end)
        newest = np.maximum.reduce([each.last_samples for each in windows.values()])
        oldest = np.minimum.reduce([np.where(is_expected[n], x.last_samples, np.inf) for n, x in windows.items()])
        verdicts = gpu_codes([*codes.values()])
        doubts = self.doubts(above_ratio=above_ratio, length=length, trust=trust, end=end)[rows]
        is_doubted = (doubts == Code.SHARED) | (doubts > 0) & (verdicts == Code.IDLE)
        np.copyto(verdicts, doubts, where=is_doubted)
        verdicts[newest < (end - length - trust.interval).timestamp()] = Code.ABSENT
        return GpuVerdicts(
            rows=rows,
            trust=trust,
            end=end,
            codes=verdicts,
            signals=codes,
            windows=windows,
            last_active=last_active,
            is_quiet=(last_active == -np.inf) | (as_microseconds(oldest) >= as_microseconds(last_active)),
            unexplained=self.unexplained_until(above_ratio=above_ratio, length=length)[rows],
            is_lone_witness=self._are_alone(rows, codes, trust, end),
        )

    def _are_alone(self, rows: Rows, codes: Mapping[str, Codes], trust: Trust, end: datetime) -> NDArray[np.bool_]:
        """Whether one signal alone decides, and no counter shows that the exporters which report it still measure."""
        is_alone: NDArray[np.bool_] = np.sum([each != Code.ABSENT for each in codes.values()], axis=0) == 1
        if is_alone.any():
            is_alone &= ~self._are_alive(trust, end)[rows]
        return is_alone

    def _are_alive(self, trust: Trust, end: datetime) -> NDArray[np.bool_]:
        """Whether counters of their boards show that the exporters which report for them still measure, of all rows."""
        question = "alive", trust, end
        found = self._doubts.get(question)
        if found is None:
            (rows, counters), count = self._counters(), len(self._rows)
            grows, stands_still = self.boards.counters(counters, trust, end)
            found = (np.bincount(rows, grows, count) > 0) & (np.bincount(rows, stands_still, count) == 0)
            self._doubts[question] = found
        return found

    def windows(self, rows: Rows, *, length: timedelta, end: datetime) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """What these rows show, by signal: the peak as a ratio, -1 without one, the slots covered, and all slots.

        Shape: (3, rows). No slots where the signal is not expected, or has never reported.
        """
        for signal in self.signals:
            columns = self._columns[signal.name]
            found = columns.windows(end, length, rows)
            is_expected = ~(self._is_mig[rows] & signal.absent_on_mig)
            shown = np.stack([found.peaks, found.covered, found.slots])
            yield signal.name, np.where(is_expected, shown, [[-1], [0], [0]])

    def peaks(
        self, rows: Rows, begin: datetime, end: datetime
    ) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float32]]]:
        """What `SampleColumns.peaks` says of these rows, by signal."""
        return {signal.name: self._columns[signal.name].peaks(rows, begin, end) for signal in self.signals}

    def doubts(self, *, above_ratio: float, length: timedelta, trust: Trust, end: datetime) -> Codes:
        """What speaks against the quiet of each row beside its own samples, 0 where nothing does. Shape: (rows,).

        | the code     | is of                                                                               |
        |--------------|-------------------------------------------------------------------------------------|
        | POWER        | a board that draws more than an idle one, and none of its MIG instances shows work  |
        | FROZEN       | a board whose energy counter stands still                                           |
        | DEVICE_WORKS | a device which shows work that the series of no pod that holds it shows             |
        | SHARED       | a GPU for which another pod that holds GPUs reports: whatever its own samples show  |

        Of several the last one counts.
        """
        question = above_ratio, length, trust, end
        found = self._doubts.get(question)
        if found is None:
            found = np.zeros(len(self._rows), np.uint8)
            if self.boards.has_power:
                self._doubt_power(found, above_ratio, length, end)
            is_frozen = self.boards.are_frozen(self._board[: len(found)], self._counters(), trust, end, length)
            found[is_frozen] = Code.FROZEN
            if self._shared:
                self._doubt_shared(found, above_ratio, length, trust, end)
            self._doubts[question] = found
        return found

    def unexplained_until(self, *, above_ratio: float, length: timedelta) -> Floats:
        """The time until which a row's device, or its board of MIG instances, showed work that its own series, or one
        of an instance within `length` before, does not explain. Units: Unix seconds, -inf without any. Shape: (rows,).
        """
        question = above_ratio, length
        found = self._doubts.get(question)
        if found is None:
            found = self._doubts[question] = np.full(len(self._rows), -np.inf)
            rows, gpus = self._on_shared_boards()
            is_mig, boards = self._is_mig[rows], self._board[rows]
            own = np.maximum.reduce([each.last_active(above_ratio, rows) for each in self._columns.values()])
            of_parent, of_instances = (_latest(boards, np.where(x, own, -np.inf)) for x in (~is_mig, is_mig))
            of_parent[~is_mig | (of_instances >= of_parent - length.total_seconds())] = -np.inf
            until = np.maximum(_latest(gpus, own), of_parent)
            found[rows] = np.where(until > own + self.interval.total_seconds(), until, -np.inf)
        return found

    def _counters(self) -> tuple[Rows, Rows]:
        if self._pairs is None:
            rows = np.fromiter((each.row for each in self for _ in each.counters), np.intp)
            self._pairs = rows, np.fromiter(chain.from_iterable(each.counters for each in self), np.intp)
        return self._pairs

    def _on_shared_boards(self) -> tuple[Rows, Rows]:
        """The rows of boards that have several, and numbers of their GPUs."""
        on_boards, numbers = [each for board in self._shared for each in self._by_board[board]], dict[GpuId, int]()
        gpus = [numbers.setdefault(each.series.gpu, len(numbers)) for each in on_boards]
        return np.array([each.row for each in on_boards], np.intp), np.array(gpus, np.intp)

    def _doubt_shared(self, found: Codes, above_ratio: float, length: timedelta, trust: Trust, end: datetime) -> None:
        """What rows of one board say of each other."""
        rows, gpus = self._on_shared_boards()
        is_holder, is_mig, boards = self._is_holder[rows], self._is_mig[rows], self._board[rows]
        newest = np.maximum.reduce([each.last_samples[rows] for each in self._columns.values()])
        reports = is_holder & (newest >= (end - trust.max_age).timestamp())
        is_active = self._is_active(rows, above_ratio, end, length)
        device_works = np.bincount(gpus, is_active & ~is_holder)[gpus] > 0
        instances_work, parent_works = (
            np.bincount(boards, is_active & of_kind)[boards] > 0 for of_kind in (is_mig, ~is_mig)
        )
        found[rows[device_works | (is_mig & parent_works & ~instances_work)]] = Code.DEVICE_WORKS
        found[rows[np.bincount(gpus, reports)[gpus] - reports > 0]] = Code.SHARED

    def _doubt_power(self, found: Codes, above_ratio: float, length: timedelta, end: datetime) -> None:
        """Which boards draw more than their MIG instances explain."""
        rows = np.flatnonzero(self._is_mig[: len(found)])
        boards = self._board[rows]
        works = np.bincount(boards, self._is_active(rows, above_ratio, end, length))[boards] > 0
        limits = np.array([unexplained_watts(each.series.model if (each := self._rows[n]) else "") for n in rows])
        found[rows[~works & (self.boards.peak_watts(boards, end, length) >= limits)]] = Code.POWER

    def _is_active(self, rows: Rows, above_ratio: float, end: datetime, length: timedelta) -> NDArray[np.bool_]:
        peaks = [each.windows(end, length, rows).peaks for each in self._columns.values()]
        active: NDArray[np.bool_] = np.maximum.reduce(peaks) >= as_stored(above_ratio)
        return active

    def forget_before(self, at: datetime, *, boards: Iterable[int] = ()) -> None:
        """Free the rows of devices whose newest sample is older, and those of boards that are neither theirs nor among
        `boards`, in which -1 is none."""
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
        held = np.append(np.fromiter(boards, np.intp), self._counters()[1])
        self.boards.forget_others(held[held >= 0])

    def _forget(self, device: DeviceHistory) -> None:
        board = device.series.gpu.device
        _remove(self._by_board, board, device)
        if device.series.pod:
            _remove(self._by_pod, device.pod, device)
        if len(self._by_board.get(board, ())) < 2:
            self._shared.discard(board)
        self._moved.update(each.series.namespace for each in (*self._by_board.get(board, ()), device))
        self._doubts.clear()
        self._by_host = self._pairs = None
        self._is_mig[device.row] = False
        device.row = -1

    def __len__(self) -> int:
        """How many (pod, GPU) pairs are held."""
        return len(self._rows) - len(self._free_rows)

    def __iter__(self) -> Iterator[DeviceHistory]:
        return (each for each in self._rows if each is not None)


def _latest(groups: Rows, at_s: Floats) -> Floats:
    """The highest of each one's group."""
    found = np.full(groups.max(initial=-1) + 1, -np.inf)
    np.maximum.at(found, groups, at_s)
    return found[groups]


def _remove(found: dict[_T, tuple[DeviceHistory, ...]], key: _T, device: DeviceHistory) -> None:
    left = tuple(each for each in found[key] if each is not device)
    if left:
        found[key] = left
    else:
        del found[key]
