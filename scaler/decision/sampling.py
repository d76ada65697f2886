"""Keeps the history of every GPU's signals in step with the metrics source, with one read per signal and tick.

Laws:

* A read that failed, or a part of which cannot be read, leaves a doubt about all that it should have brought.
* A read reaches back to the newest sample that the ones before have brought, so an outage leaves no hole that the
  source could fill: neither one in which it did not answer, nor one in which it answered with nothing.
* Nor does the delay of one host: a read reaches back to the newest sample of the one that is furthest behind, so that
  its late samples are read when they arrive. A host that is behind by more than five overlaps is given up.
* A sample that is later than now is refused, and its GPU doubted as long as there is one: in a ring it would leave no
  room for the present. It says nothing of other GPUs.
* No read is longer than an hour, nor than some two million samples take, because its answer must fit the source's
  limits whatever window a tenant asks for. The first tick reads back one hour, a part at a time. Of a longer window
  each tick reads one older part more until it is whole; until then its verdict is Unknown for want of samples, and
  those of shorter windows do not wait for it.
* How many reads a tick makes depends on the number of signals and the units of their metrics, never on the number of
  workloads; but for the first.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

import numpy as np
import structlog
from numpy.typing import NDArray

from scaler.clock import Turns
from scaler.errors import SourceError
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import BOARD_POWER, ENERGY, GpuSeries, Signal, identify_device
from scaler.idleness.history import DeviceHistory, History
from scaler.idleness.policy import Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.relabel import RelabelRules, relabel
from scaler.idleness.verdict import Unknown
from scaler.samples.source import SeriesBatch, SignalReading, SignalSource

log = structlog.get_logger(__name__)

_LONGEST_READ = timedelta(hours=1)
_FIRST_READ = timedelta(minutes=5)
"""How much of a signal is read at first that may have any number of series."""
_OVERLAPS_BEHIND = 5
"""How far a host may be behind: 10 min by default, as much as a remote write is late after a restart."""
_MOST_SAMPLES = 2_000_000
"""The most of one read: some 50 MB beside the labels, and a twentieth of what Prometheus refuses by default."""
_DATE_RESOLUTION = timedelta(seconds=1)
"""A server's clock is known from a header that counts whole seconds."""


@dataclass(slots=True)
class RefreshResult:
    doubt: Unknown | None = None
    """Why the samples cannot be trusted to be complete up to now; None where they can."""
    series: int = 0
    samples: int = 0
    blanks: int = 0
    """Samples that were no measurements."""
    unattributed: int = 0
    """Series that were dropped by relabelling, or name no GPU or no pod."""


@dataclass(frozen=True, slots=True)
class _Part:
    signal: Signal
    start: datetime
    end: datetime
    is_newest: bool
    """Whether it brings what is new; else it goes back into the window."""


_Readings = Sequence[tuple[Signal, SignalReading]]
"""What was read of a part, each with the signal of its unit."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """The times between which a signal was read without a break, and that of the newest sample that was taken in."""

    since: datetime
    until: datetime
    newest: datetime


class Sampler:
    """The history and the reads that keep it current."""

    def __init__(
        self,
        source: SignalSource,
        *,
        signals: Sequence[Signal],
        rules: RelabelRules,
        trust: Trust,
        overlap: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._rules = rules
        self._trust = trust
        self._overlap = overlap
        self._clock = clock
        self._reaches: dict[str, _Reach] = {}
        """How far each signal reaches, by its name."""
        self._whole: set[str] = set()
        """Signals of which the last hour was read."""
        self._oldest = datetime.max.replace(tzinfo=UTC)
        """The begin of the slot in which the span begins, at the latest."""
        self._devices: dict[str, dict[int, DeviceHistory | None]] = {}
        """The owners of the series that were read last, by signal; None for those of no pod or no GPU. The hash of the
        key finds them: keys are long, there may be 100,000, and Python's hash has 64 bits that nobody can choose."""
        self._boards: dict[str, dict[int, int]] = {}
        """Rows of boards or of their exporters' counters, by signal, for the series that were read last; -1 where none
        is named."""
        self._boards_newest: dict[str, datetime] = {}
        """The time of the newest sample, by signal."""
        self.history = History(signals=signals, interval=trust.interval, span=trust.interval)

    @property
    def is_backfilled(self) -> bool:
        """Whether the last hour of every signal was read. Where a window is longer, it says so by what it lacks."""
        return len(self._whole) == len(self.history.signals)

    @property
    def since(self) -> datetime:
        """The time from which every signal was read without a break. What was before may have been work."""
        never = datetime.max.replace(tzinfo=UTC)
        is_read = len(self._reaches) == len(self.history.signals)
        return max((reach.since for reach in self._reaches.values()), default=never) if is_read else never

    @property
    def until(self) -> datetime:
        """The time up to which every signal was read."""
        never = datetime.min.replace(tzinfo=UTC)
        return min((reach.until for reach in self._reaches.values()), default=never)

    async def refresh(self, *, end: datetime, span: timedelta) -> RefreshResult:
        """Read what is new up to `end`, and hold at least `span` of it, or come nearer to that by an hour.

        A longer span than before is a new history, and so is an earlier end, as after a clock was set back: the whole
        window is read again.
        """
        if span > self.history.span or any(end < reach.until for reach in self._reaches.values()):
            self.history = History(
                signals=self.history.signals, interval=self._trust.interval, span=max(span, self.history.span)
            )
            self._reaches.clear()
            self._whole.clear()
            self._devices.clear()
            self._boards.clear()
            self._boards_newest.clear()
        self._oldest = end - self.history.span - 2 * self._trust.interval
        horizon, intake = max(self._oldest, end - _LONGEST_READ), RefreshResult()
        parts = [part for signal in self.history.signals for part in self._parts(signal, end, horizon)]
        is_read = await self._take_in_all(parts, intake)
        while is_read and (parts := [*self._missing(horizon)]):
            is_read = await self._take_in_all(parts, intake)
            log.info("SamplesReadBack", since=f"{max(part.start for part in parts):%H:%M:%S}", samples=intake.samples)
        # Whether there are MIG instances is known by now.
        await self._take_in_all([self._board_part(each, end) for each in self._board_signals], intake)
        self._whole |= {name for name, reach in self._reaches.items() if reach.since <= horizon}
        read = chain.from_iterable(each.values() for each in self._boards.values())
        self.history.forget_before(self._oldest, boards=read)
        return intake

    async def _take_in_all(self, parts: Sequence[_Part], intake: RefreshResult) -> bool:
        """Whether all that is older could be read."""
        readings, is_read = await asyncio.gather(*(self._read(part) for part in parts)), True
        for part, reading in zip(parts, readings, strict=True):
            doubt = reading if isinstance(reading, Unknown) else await self._use(part, reading, intake)
            if part.is_newest:
                intake.doubt = intake.doubt or doubt
            is_read &= part.is_newest or doubt is None
        return is_read

    def _parts(self, signal: Signal, end: datetime, horizon: datetime) -> Iterator[_Part]:
        """What is to be read of a signal: what is new, and where the window is not whole yet, an older part of it."""
        reach, start = self._reaches.get(signal.name), max(horizon, end - self._longest(signal))
        if reach is None:
            yield _Part(signal, start, end, is_newest=True)
            return
        # Samples that were scraped directly may be younger than the instant that is judged.
        newest = min(reach.newest, end, self._furthest_behind(signal, end))
        yield _Part(signal, max(start, newest - self._overlap), end, is_newest=True)
        if horizon >= reach.since > self._oldest:
            yield self._older(signal, reach.since, self._oldest)

    def _furthest_behind(self, signal: Signal, end: datetime) -> datetime:
        """The time up to which there are samples of every host that may yet send more."""
        newest = self.history.newest_of_hosts(signal)
        is_near = newest >= (end - _OVERLAPS_BEHIND * self._overlap).timestamp()
        return datetime.fromtimestamp(newest.min(initial=end.timestamp(), where=is_near), UTC)

    @property
    def _board_signals(self) -> Sequence[Signal]:
        """What is read of whole boards: power is shared by MIG instances only."""
        return (ENERGY, BOARD_POWER) if self.history.has_mig else (ENERGY,)

    def _board_part(self, signal: Signal, end: datetime) -> _Part:
        """What is new of it. Of counters no more matters than whether they grow; power explains nothing that is old."""
        first, overlap = end - _LONGEST_READ, self._overlap
        if signal is ENERGY:
            first, overlap = end - 2 * self._trust.max_age, min(overlap, self._trust.max_age)
        newest = self._boards_newest.get(signal.name, first)
        return _Part(signal, max(first, min(newest, end) - overlap), end, is_newest=True)

    def _missing(self, horizon: datetime) -> Iterator[_Part]:
        """The newest part of each signal that is missing of what must be there at once."""
        for signal in self.history.signals:
            if (reach := self._reaches.get(signal.name)) is not None and reach.since > horizon:
                yield self._older(signal, reach.since, horizon)

    def _older(self, signal: Signal, end: datetime, begin: datetime) -> _Part:
        return _Part(signal, max(begin, end - self._longest(signal)), end, is_newest=False)

    def _longest(self, signal: Signal) -> timedelta:
        """How much of the signal may be read at once, by how many series it has."""
        if signal.name not in self._devices:
            return _FIRST_READ
        intervals = _MOST_SAMPLES // max(1, len(self._devices[signal.name]))
        return min(_LONGEST_READ, max(_FIRST_READ, intervals * self._trust.interval))

    async def _read(self, part: _Part) -> _Readings | Unknown:
        signals = part.signal.by_unit
        found = await asyncio.gather(*(self._read_unit(each, part) for each in signals))
        doubt = next((each for each in found if isinstance(each, Unknown)), None)
        return doubt or [
            (signal, each) for signal, each in zip(signals, found, strict=True) if isinstance(each, SignalReading)
        ]

    async def _read_unit(self, signal: Signal, part: _Part) -> SignalReading | Unknown:
        try:
            reading = await self._source.read(signal, start=part.start, end=part.end)
        except SourceError as error:
            return _unavailable(signal, error)
        return self._skewed(reading) or reading

    def _skewed(self, reading: SignalReading) -> Unknown | None:
        if reading.server_time is None:
            return None
        skew = abs(self._clock() - reading.server_time)
        if skew <= self._trust.max_clock_skew + _DATE_RESOLUTION:
            return None
        return Unknown(
            reason=UnknownReason.CLOCK_SKEW,
            message=f"the metrics source's clock differs from the scaler's by {format_duration(skew)} "
            f"(limit {format_duration(self._trust.max_clock_skew)}); windows would be misplaced",
        )

    async def _use(self, part: _Part, readings: _Readings, intake: RefreshResult) -> Unknown | None:
        """Why what was read is not to be trusted to be complete, after it was taken in as far as it can be read."""
        try:
            if part.signal in (ENERGY, BOARD_POWER):
                await self._take_in_boards(part, readings)
                return None
            newest = await self._take_in(part, readings, intake)
        except SourceError as error:
            return _unavailable(part.signal, error)
        reach = self._reaches.get(part.signal.name, _Reach(part.start, part.start, part.start))
        if part.is_newest:
            # GPUs without a pod do not require their whole window to be read at every tick; no GPU at all does.
            newest = newest or (part.end if self._devices[part.signal.name] else reach.newest)
            since = reach.since if part.start <= reach.until else part.start
            self._reaches[part.signal.name] = _Reach(since, part.end, newest)
        elif reach.since == part.end:
            # If no read has had a sample yet, the next one reaches back as far as this one.
            newest = (newest or part.start) if reach.newest == reach.since else reach.newest
            self._reaches[part.signal.name] = replace(reach, since=part.start, newest=newest)
        return None

    async def _take_in(self, part: _Part, readings: _Readings, intake: RefreshResult) -> datetime | None:
        """The time of the newest sample, None where no pod has any. Raises: SourceError."""
        name = part.signal.name
        known, seen = self._devices.get(name, {}), dict[int, DeviceHistory | None]()
        newest_s, turns = 0.0, Turns()
        if part.is_newest:
            self.history.forget_refused(part.signal)
        for signal, batch in _batches(readings):
            keys, devices, rows = self._devices_of(batch, signal, known)
            seen.update(zip(keys, devices, strict=True))
            if part.is_newest:
                intake.series += len(batch.keys)
                intake.unattributed += [each.series.pod if each else "" for each in devices].count("")
            rows = np.repeat(rows, batch.counts)
            is_ours, is_late = rows >= 0, self._is_late(part, batch.at_s)
            self.history.refuse(signal, rows[is_ours & is_late], batch.at_s[is_ours & is_late])
            is_ours &= ~is_late
            rows, at_s, values = rows[is_ours], batch.at_s[is_ours], batch.values[is_ours]
            newest_s = max(newest_s, at_s.max(initial=0.0))
            intake.blanks += self.history.extend(signal, rows, at_s, values)
            intake.samples += len(rows)
            await turns.give_way()
        if part.is_newest:
            self._devices[name] = seen
        return datetime.fromtimestamp(newest_s, UTC) if newest_s else None

    def _is_late(self, part: _Part, at_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which samples are later than the read's end and than now, by more than clocks may differ."""
        return at_s > (max(part.end, self._clock()) + self._trust.max_clock_skew).timestamp()

    async def _take_in_boards(self, part: _Part, readings: _Readings) -> None:
        """Raises: SourceError."""
        name, turns = part.signal.name, Turns()
        known, seen, newest_s = self._boards.get(name, {}), dict[int, int](), 0.0
        for _, batch in _batches(readings):
            keys = [*map(hash, batch.keys)]
            boards = [*map(known.get, keys)]
            found = [
                self._board_of(part.signal, batch.labels_of(n)) if each is None else each
                for n, each in enumerate(boards)
            ]
            seen.update(zip(keys, found, strict=True))
            rows = np.repeat(np.fromiter(found, np.intp), batch.counts)
            is_ours = (rows >= 0) & ~self._is_late(part, batch.at_s)
            self.history.extend_boards(part.signal, rows[is_ours], batch.at_s[is_ours], batch.values[is_ours])
            newest_s = max(newest_s, batch.at_s[is_ours].max(initial=0.0))
            await turns.give_way()
        self._boards[name] = seen
        if newest_s:
            self._boards_newest[name] = datetime.fromtimestamp(newest_s, UTC)

    def _board_of(self, signal: Signal, labels: Mapping[str, str]) -> int:
        found = self.identify(labels)
        return -1 if found is None else self.history.board_row(signal, found)

    def _devices_of(
        self, batch: SeriesBatch, signal: Signal, known: Mapping[int, DeviceHistory | None]
    ) -> tuple[list[int], list[DeviceHistory | None], NDArray[np.intp]]:
        """The hashes of the keys, whose the series are, and their rows, -1 without one.

        Raises: SourceError where labels cannot be read.
        """
        keys = [*map(hash, batch.keys)]
        devices = [*map(known.get, keys)]
        rows = np.fromiter([-1 if each is None else each.row for each in devices], np.intp)
        for n in np.flatnonzero(rows < 0).tolist():
            device = devices[n]
            if device is None and keys[n] in known:
                continue
            series = self.identify(batch.labels_of(n))
            if series is not None:
                devices[n] = device = self.history.device(signal, series)
                rows[n] = device.row
        return keys, devices, rows

    def identify(self, labels: Mapping[str, str]) -> GpuSeries | None:
        """The GPU that a series speaks of, and its pod, by the rules of the settings; None where it names no GPU."""
        relabelled = relabel(labels, self._rules)
        return None if relabelled is None else identify_device(relabelled)


def _batches(readings: _Readings) -> Iterator[tuple[Signal, SeriesBatch]]:
    return ((signal, batch) for signal, reading in readings for batch in reading.batches())


def _unavailable(signal: Signal, error: SourceError) -> Unknown:
    return Unknown(reason=UnknownReason.SOURCE_UNAVAILABLE, message=f"{signal.name}: {error}")
