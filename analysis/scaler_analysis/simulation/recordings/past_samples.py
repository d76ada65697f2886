"""Weeks of samples from Prometheus or Thanos, read in parts and kept in files, so that no part is asked for twice.

Laws of this file:

* What is asked for is what the decisions read: range selectors, whose answer is every raw sample with its own time.
* A part spans so much time that its answer has about a million samples, and begins at a multiple of that since the
  epoch. Whoever asks an hour later has all parts but the newest already.
* A part without any sample is asked for again: its source may have been incomplete, as a Thanos without a store.
* A part is there when its `.series` file is, which is written last. Whatever ends the program, what is there is whole.
* At most four reads are under way, so the source has no more to do than for a scaler that starts.
* A part that the source refuses as too large is read in halves.
* A file that a killed program has left half-written is removed once no other can be writing it any more.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaler.documents import read_json, read_text
from scaler.errors import ConfigurationError
from scaler.idleness.gpu import GpuSeries, Signal, utilisation_ratios
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import ReadError, ReadOutcome, SignalReading
from scaler_analysis.simulation.recordings.recording import SAMPLE, Recording

READS_AT_ONCE = 4
_SAMPLES = 1_000_000
"""The samples of one part: 25 MB of JSON."""
_DAY_S = 86_400
_PART_LENGTHS_S = (_DAY_S, 43_200, 21_600, 10_800, 7_200, 3_600, 1_800, 600)
SHORTEST_PART = timedelta(seconds=_PART_LENGTHS_S[-1])
_TOO_MUCH = frozenset({ReadOutcome.TOO_LARGE, ReadOutcome.REFUSED, ReadOutcome.TIMEOUT})
_SMALLEST_READ = timedelta(minutes=2)
_UNFINISHED = ".part"
_LONGEST_WRITE = timedelta(hours=1)
"""Far more than any takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPart:
    """What one signal showed in (begin, end]."""

    signal: Signal
    begin: datetime
    end: datetime
    folder: Path

    @property
    def samples_path(self) -> Path:
        return self.folder / f"{self._begin_s}-{int(self.end.timestamp())}.samples"

    @property
    def series_path(self) -> Path:
        return self.samples_path.with_suffix(".series")

    @property
    def _begin_s(self) -> int:
        return int(self.begin.timestamp())

    @property
    def is_there(self) -> bool:
        with suppress(OSError):
            return self.series_path.exists() and self.samples_path.stat().st_size > 0
        return False

    def forget_shorter(self) -> None:
        """Remove what was kept of it while it was the newest part."""
        for path in self.folder.glob(f"{self._begin_s}-*"):
            if path.suffix in (".samples", ".series") and path.stem != self.series_path.stem:
                path.unlink(missing_ok=True)


class PastSamples:
    """The files of one source, by signal."""

    def __init__(
        self, source: PrometheusSource, folder: Path, signals: Sequence[Signal], *, interval: timedelta
    ) -> None:
        self._source, self._interval = source, interval
        self._signals = [each for signal in signals for each in signal.by_unit]
        self._folder = folder
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    async def parts(self, begin: datetime, end: datetime) -> list[PastPart]:
        """The parts from the one in which `begin` is to `end`, rounded down to ten minutes. Raises: SourceError."""
        found = []
        for signal in self._signals:
            folder = self._folder / signal_folder(signal)
            folder.mkdir(parents=True, exist_ok=True)
            length_s = await self._length_s(signal, folder, end)
            found += [
                PastPart(signal=signal, begin=start, end=until, folder=folder)
                for start, until in _spans(begin, end, length_s)
            ]
        return found

    async def _length_s(self, signal: Signal, folder: Path, at: datetime) -> int:
        """How long a part is; once it is known it stays, as the files are of that length."""
        path = folder / "length"
        with suppress(ConfigurationError, ValueError):
            if (known := int(read_text(path))) in _PART_LENGTHS_S:
                return known
        series = await self._count(signal, at)
        wanted_s = _SAMPLES / max(1.0, series) * self._interval.total_seconds()
        length_s = next((each for each in _PART_LENGTHS_S if each <= wanted_s), _PART_LENGTHS_S[-1])
        path.write_text(str(length_s), encoding="utf-8")
        return length_s

    async def _count(self, signal: Signal, at: datetime) -> float:
        """How many series it has about then."""
        reading = await self._source.read(signal, start=at - _SMALLEST_READ, end=at)
        return float(sum(len(each.keys) for each in reading.batches()))

    async def fetch(self, parts: Sequence[PastPart], *, progress: Callable[[float], None] = lambda _: None) -> None:
        """Read what is not there yet. Raises: SourceError; what was read by then is kept."""
        missing, done, failed = [each for each in parts if not each.is_there], 0, list[BaseException]()

        async def fetch_one(part: PastPart) -> None:
            nonlocal done
            async with self._turns:
                if failed:
                    return
                try:
                    await self._fetch(part)
                except Exception as error:
                    failed.append(error)
                    return
            done += 1
            progress((len(parts) - len(missing) + done) / len(parts))

        # Where one fails, those under way are read to their end, and kept.
        await asyncio.gather(*map(fetch_one, missing))
        if failed:
            raise failed[0]

    async def _fetch(self, part: PastPart) -> None:
        read = _ReadPart(part.signal)
        await self._read(read, part.begin, part.end)
        await asyncio.to_thread(read.write, part)

    async def _read(self, read: "_ReadPart", begin: datetime, end: datetime) -> None:
        """Add what the source has."""
        try:
            reading = await self._source.read(read.signal, start=begin, end=end)
        except ReadError as error:
            if error.outcome not in _TOO_MUCH or end - begin <= _SMALLEST_READ:
                raise
            middle = begin + (end - begin) / 2
            middle -= timedelta(microseconds=middle.microsecond)
            await self._read(read, begin, middle)
            await self._read(read, middle, end)
            return
        await asyncio.to_thread(read.add, reading, end)


def signal_folder(signal: Signal) -> str:
    """Another one where its metrics or unit are others."""
    said = json.dumps([signal.name, sorted(signal.metrics), str(signal.unit)])
    return f"{signal.name}-{hashlib.blake2b(said.encode(), digest_size=4).hexdigest()}"


def _spans(begin: datetime, end: datetime, length_s: int) -> Iterator[tuple[datetime, datetime]]:
    end_s = int(end.timestamp()) // _PART_LENGTHS_S[-1] * _PART_LENGTHS_S[-1]
    at_s = int(begin.timestamp()) // length_s * length_s
    while at_s < end_s:
        until_s = min(at_s + length_s, end_s)
        yield datetime.fromtimestamp(at_s, UTC), datetime.fromtimestamp(until_s, UTC)
        at_s = until_s


class _ReadPart:
    """What was read of a part so far."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self._positions: dict[bytes, int] = {}
        """The number of each series, by what tells it from others."""
        self._labels: list[Mapping[str, str]] = []
        self._samples: list[NDArray[np.void]] = []
        self._blanks = 0

    def add(self, reading: SignalReading, end: datetime) -> None:
        """Samples later than `end` are no measurements. Raises: SourceError where it cannot be read."""
        for batch in reading.batches():
            for n, key in enumerate(batch.keys):
                if key not in self._positions:
                    self._positions[key] = len(self._positions)
                    self._labels.append(batch.labels_of(n))
            ratios = utilisation_ratios(batch.values, self.signal.unit)
            is_measured = ~np.isnan(ratios) & (batch.at_s <= end.timestamp())
            found = np.empty(int(is_measured.sum()), SAMPLE)
            found["at_s"], found["ratio"] = batch.at_s[is_measured], ratios[is_measured]
            positions = np.array([self._positions[key] for key in batch.keys], np.uint32)
            found["series"] = np.repeat(positions, batch.counts)[is_measured]
            self._samples.append(found)
            self._blanks += len(ratios) - len(found)

    def write(self, part: PastPart) -> None:
        found = np.concatenate(self._samples) if self._samples else np.empty(0, SAMPLE)
        found = found[np.argsort(found["at_s"], kind="stable")]
        write_whole(part.samples_path, found.tobytes())
        write_whole(part.series_path, msgspec.json.encode(_Series(labels=self._labels, blanks=self._blanks)))
        part.forget_shorter()


def write_whole(path: Path, content: bytes) -> None:
    """All of it, or nothing."""
    written = path.with_name(f"{path.name}.{os.getpid()}{_UNFINISHED}")
    written.write_bytes(content)
    written.replace(path)


def remove_unfinished(folder: Path, now: datetime) -> None:
    """Remove what programs have left there that ended while they wrote."""
    for path in folder.rglob(f"*{_UNFINISHED}"):
        with suppress(FileNotFoundError):  # another one may remove it too
            if now.timestamp() - path.stat().st_mtime > _LONGEST_WRITE.total_seconds():
                path.unlink()


def include(
    parts: Sequence[PastPart], recording: Recording, identify: Callable[[Mapping[str, str]], GpuSeries | None]
) -> int:
    """Take the parts into the recording; how many series of them are of no pod or no GPU.

    `identify`: whose a series is, by the rules of the settings. Raises: ConfigurationError where a file cannot be read.
    """
    unidentified, exporters = 0, _exporters(parts, identify)
    for part in parts:
        said, size = _read_series(part)
        recording.blanks += said.blanks
        owners = [_holder(each, identify, exporters) for each in said.labels]
        unidentified += owners.count(None)
        positions = [
            -1 if each is None else recording.position(part.signal.name, each, part.signal.unit) for each in owners
        ]
        if size:
            recording.include(part.samples_path, positions)
    return unidentified


class _Series(msgspec.Struct):
    """What is said of a part's series: the labels of each, and how many samples were no measurements."""

    labels: Sequence[Mapping[str, str]]
    blanks: int


def _read_series(part: PastPart) -> tuple[_Series, int]:
    """What is said of its series, and the size of the file with their samples."""
    try:
        return read_json(part.series_path, _Series), part.samples_path.stat().st_size
    except OSError as error:
        raise ConfigurationError(f"{part.series_path}: its samples cannot be read ({error}); remove it") from None


Labels = Mapping[str, str]
Exporter = tuple[str, str]
"""(job, namespace) of a scrape's target."""


def _exporters(parts: Sequence[PastPart], identify: Callable[[Labels], GpuSeries | None]) -> set[Exporter]:
    """The exporters whose series name another pod than their own by the rules, as `exported_pod` does."""
    series = ((labels, identify(labels)) for part in parts for labels in _read_series(part)[0].labels)
    return {_exporter(labels) for labels, found in series if found is not None and not _is_own(labels, found)}


def _holder(
    labels: Labels, identify: Callable[[Labels], GpuSeries | None], exporters: Collection[Exporter]
) -> GpuSeries | None:
    """The holder of the GPU; None where no pod is: such series of an exporter have no other pod than its own."""
    found = identify(labels)
    return None if found is not None and _is_own(labels, found) and _exporter(labels) in exporters else found


def _is_own(labels: Labels, found: GpuSeries) -> bool:
    return (labels.get("namespace"), labels.get("pod")) == (found.namespace, found.pod)


def _exporter(labels: Labels) -> Exporter:
    return labels.get("job", ""), labels.get("namespace", "")
