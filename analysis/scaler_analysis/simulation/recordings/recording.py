"""Samples of days and weeks, kept in files and given back in the order of time, whatever order they came in.

Laws of this file:

* A file is a run of samples in the order of time. Runs are merged when they are read, a step of some hours at a time,
  so memory holds a run while it is written and a step while it is read, never the recording.
* What is kept of a sample is its ratio, as a ring keeps it. What is no measurement is counted and not kept.
* A pod of which nothing was recorded for long while others were recorded was gone, and what follows is another pod that
  was made under its name (`tell_remade_pods_apart`): `notebook-0`, `notebook-0#2`. It has the same owner.

Sixteen bytes a sample: 1,000 GPUs × 30 days × 2 signals every 30 s are 2.8 GB.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.gpu import GpuId, GpuSeries, Signal, Unit, utilisation_ratios
from scaler.idleness.history import PodKey
from scaler_analysis.simulation.recordings.recorded import NO_FACTS, PodFacts, SeriesSpan
from scaler_analysis.simulation.recordings.silences import (
    FirstAndLast,
    first_and_last,
    outages_in,
    silences_while_others_were_recorded,
)

SAMPLE = np.dtype([("at_s", np.float64), ("ratio", np.float32), ("series", np.uint32)])
RUN_SAMPLES = 2_000_000
"""The samples of one file: 32 MB."""
_STEP_SAMPLES = 500_000
_BLOCK = 1024
"""The least number of samples that are read to find an instant."""


class RecordedSamples(NamedTuple):
    """Samples of one signal in the order of time: arrays of one length."""

    series: NDArray[np.intp]
    """Positions in the recording."""
    at_s: NDArray[np.float64]
    ratios: NDArray[np.float32]

    def split(self, at_s: float) -> "tuple[RecordedSamples, RecordedSamples]":
        """The samples up to that instant, which is included, and those after it."""
        end = int(self.at_s.searchsorted(at_s, "right"))
        return (
            RecordedSamples(self.series[:end], self.at_s[:end], self.ratios[:end]),
            RecordedSamples(self.series[end:], self.at_s[end:], self.ratios[end:]),
        )


class _Run:
    """A file of samples in the order of time. It is opened for each read: there may be thousands."""

    def __init__(self, path: Path, positions: Sequence[int] | NDArray[np.int64] | None) -> None:
        self._path = path
        self._positions = None if positions is None else np.array(positions, np.int64)
        """The positions of its series in the recording, -1 of those that are not in it; None where it has those."""
        self.samples = path.stat().st_size // SAMPLE.itemsize
        self._times = np.zeros(0)
        """The times of the first sample of each block."""

    def as_written(self) -> NDArray[np.void]:
        """All samples, with the series as the file numbers them."""
        return self._read(0, self.samples)

    def whole(self) -> NDArray[np.void]:
        found = self.as_written()
        self._times = found["at_s"][::_BLOCK].copy()
        return self._of_recording(found)

    def until(self, at_s: float, begin: int) -> tuple[NDArray[np.void], int]:
        """The samples from that place on up to that instant, and the place behind them."""
        blocks = int(self._times.searchsorted(at_s, "right"))
        found = self._read(begin, max(begin, min(blocks * _BLOCK, self.samples)))
        count = int(found["at_s"].searchsorted(at_s, "right"))
        return self._of_recording(found[:count]), begin + count

    def _read(self, begin: int, end: int) -> NDArray[np.void]:
        return np.fromfile(self._path, SAMPLE, count=end - begin, offset=begin * SAMPLE.itemsize)

    def _of_recording(self, found: NDArray[np.void]) -> NDArray[np.void]:
        if self._positions is None:
            return found
        positions = self._positions[found["series"]]
        found["series"] = np.maximum(positions, 0)
        return found if (positions >= 0).all() else found[positions >= 0]


@dataclass(kw_only=True)
class Recording:
    folder: Path
    facts: dict[PodKey, PodFacts] = field(default_factory=dict)
    blanks: int = 0
    """Samples that were no measurements."""
    samples: int = 0
    outages: list[tuple[float, float]] = field(default_factory=list)
    """The times in which nothing at all was recorded, in Unix seconds; none where nobody has asked for silences."""
    _series: dict[tuple[str, PodKey, GpuId], GpuSeries] = field(default_factory=dict)
    """The series in the order of their positions. As in a history, one for a signal of a GPU of a pod, whatever model
    and node its labels name."""
    _positions: dict[tuple[str, PodKey, GpuId], int] = field(default_factory=dict)
    _percent: set[int] = field(default_factory=set)
    """Positions of those that a metric in percent was recorded for."""
    _firsts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _lasts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _waiting: list[NDArray[np.void]] = field(default_factory=list)
    _runs: "list[_Run]" = field(default_factory=list)
    _remade: dict[int, tuple[NDArray[np.float64], NDArray[np.intp]]] = field(default_factory=dict)
    """When the pod of a series was made anew, and its positions before and after, by position in the files."""

    # ------------------------------------------------------------------------------------------------------- written

    def position(self, signal: str, series: GpuSeries, unit: Unit = Unit.RATIO) -> int:
        """The position of the series, recorded in that unit; a new one where it was not met before."""
        key = signal, (series.namespace, series.pod), series.gpu
        if key not in self._series or (series.model and not self._series[key].model):
            self._series[key] = series
        found = self._positions.setdefault(key, len(self._positions))
        if unit is Unit.PERCENT:
            self._percent.add(found)
        return found

    def add(
        self, signal: Signal, series: NDArray[np.intp], at_s: NDArray[np.float64], values: NDArray[np.float64]
    ) -> None:
        """Samples of the signal, in its own unit. Times that are no number make no sample."""
        ratios = utilisation_ratios(values, signal.unit)
        is_measured = ~np.isnan(ratios) & np.isfinite(at_s)
        found = np.empty(int(is_measured.sum()), SAMPLE)
        found["at_s"], found["ratio"] = at_s[is_measured], ratios[is_measured]
        found["series"] = series[is_measured]
        self.blanks += len(at_s) - len(found)
        self._waiting.append(found)
        if sum(map(len, self._waiting)) >= RUN_SAMPLES:
            self.flush()

    def flush(self) -> None:
        """Write what is not in a file yet; nothing can be read before."""
        found = np.concatenate(self._waiting) if self._waiting else np.empty(0, SAMPLE)
        self._waiting.clear()
        if len(found):
            path = self.folder / f"run-{len(self._runs)}.samples"
            found[np.argsort(found["at_s"], kind="stable")].tofile(path)
            self.include(path)

    def include(self, path: Path, positions: Sequence[int] | None = None) -> None:
        """Take in a file with samples. `positions`: those here of the series that it numbers, -1 to leave one out."""
        run = _Run(path, positions)
        self._runs.append(run)
        self._spread()
        found = run.whole()
        self.samples += len(found)
        np.minimum.at(self._firsts, found["series"], found["at_s"])
        np.maximum.at(self._lasts, found["series"], found["at_s"])

    def _spread(self) -> None:
        missing = len(self._series) - len(self._firsts)
        if missing > 0:
            self._firsts = np.append(self._firsts, np.full(missing, np.inf))
            self._lasts = np.append(self._lasts, np.full(missing, -np.inf))

    def tell_remade_pods_apart(self, silence: timedelta) -> int:
        """When all is read. How many pods were made anew under the name of one that had been silent for longer.

        Also finds outages: where all were silent for longer.
        """
        self._spread()
        longest_s = silence.total_seconds()
        known = FirstAndLast.joined(self._first_and_last(longest_s))
        self.outages = outages_in(known, longest_s)
        remade = self._remade_at(known, longest_s)
        for (signal, pod, _), series in list(self._series.items()):
            if times := remade.get(pod):
                position = self.position(signal, series)
                unit = Unit.PERCENT if position in self._percent else Unit.RATIO
                again = [replace(series, pod=_numbered(pod, n)) for n in range(len(times))]
                others = [self.position(signal, each, unit) for each in again]
                self._remade[position] = np.array(times), np.array([position, *others])
        for (namespace, name), times in remade.items():
            facts = self.facts.get((namespace, name), NO_FACTS)
            owned = replace(facts, owner=facts.owner or f"Pod/{name}")
            self.facts |= {(namespace, _numbered((namespace, name), n)): owned for n in range(len(times))}
        if remade:
            self._measure(known)
        return sum(map(len, remade.values()))

    def _first_and_last(self, longest_s: float) -> Iterator[FirstAndLast]:
        for run in self._runs:
            found = run.whole()
            yield first_and_last(found["series"], found["at_s"], len(self._series), longest_s)

    def _remade_at(self, known: FirstAndLast, longest_s: float) -> dict[PodKey, list[float]]:
        pods = list(dict.fromkeys(pod for _, pod, _ in self._series))
        numbers = {pod: number for number, pod in enumerate(pods)}
        pod_of = np.array([numbers[pod] for _, pod, _ in self._series], np.intp)
        found: dict[PodKey, list[float]] = {}
        for number, end_s in silences_while_others_were_recorded(pod_of[known.series], known, longest_s):
            found.setdefault(pods[number], []).append(end_s)
        return found

    def _measure(self, known: FirstAndLast) -> None:
        """Find from when to when each series was recorded."""
        series = self._told_apart(known.series, known.first_s)
        self._firsts, self._lasts = np.full(len(self._series), np.inf), np.full(len(self._series), -np.inf)
        np.minimum.at(self._firsts, series, known.first_s)
        np.maximum.at(self._lasts, series, known.last_s)

    def _told_apart(self, series: NDArray[Any], at_s: NDArray[np.float64]) -> NDArray[Any]:
        """The positions of series that files number, where some pods were made anew."""
        is_remade = np.zeros(len(self._series), np.bool_)
        is_remade[[*self._remade]] = True
        its = np.flatnonzero(is_remade[series])
        its = its[np.argsort(series[its], kind="stable")]
        edges = np.append(np.flatnonzero(np.diff(series[its], prepend=-1)), len(its)).tolist()
        found = series.copy()
        for begin, end in pairwise(edges):
            of_one = its[begin:end]
            times, positions = self._remade[int(series[of_one[0]])]
            found[of_one] = positions[times.searchsorted(at_s[of_one], "right")]
        return found

    # ---------------------------------------------------------------------------------------------------------- read

    @property
    def series(self) -> list[SeriesSpan]:
        """All series, by position."""
        self._spread()
        spans = zip(self._series.items(), self._firsts.tolist(), self._lasts.tolist(), strict=True)
        return [
            SeriesSpan(signal, gpu, first_s, last_s, position in self._percent)
            for position, (((signal, _, _), gpu), first_s, last_s) in enumerate(spans)
        ]

    @property
    def begin_s(self) -> float:
        return float(self._firsts.min(initial=np.inf))

    @property
    def end_s(self) -> float:
        return float(self._lasts.max(initial=-np.inf))

    def interval_s(self) -> float:
        """The time between two samples of a series: the median, of the samples of one file."""
        if not self._runs:
            return 0.0
        run = max(self._runs, key=lambda each: each.samples).as_written()
        order = np.lexsort((run["at_s"], run["series"]))
        apart = np.diff(run["at_s"][order])[np.diff(run["series"][order].astype(np.int64)) == 0]
        apart = apart[apart > 0]
        return float(np.median(apart)) if len(apart) else 0.0

    def steps(self) -> Iterator[tuple[float, Mapping[str, RecordedSamples]]]:
        """All samples in the order of time: the end of each step, and the samples up to it by signal."""
        signals = [signal for signal, _, _ in self._series]
        names = {name: number for number, name in enumerate(dict.fromkeys(signals))}
        signal_of = np.array([names[each] for each in signals], np.intp)
        cursors, at_s = [0] * len(self._runs), self.begin_s
        length_s = max(1.0, (self.end_s - at_s) * _STEP_SAMPLES / max(1, self.samples))
        while self.samples:
            at_s = min(at_s + length_s, self.end_s)
            found = self._until(at_s, cursors)
            which = signal_of[found["series"]]
            yield at_s, {name: _as_samples(found[which == number]) for name, number in names.items()}
            if at_s >= self.end_s:
                return

    def _until(self, at_s: float, cursors: list[int]) -> NDArray[np.void]:
        """What follows in every run, up to that instant, merged."""
        parts = []
        for number, run in enumerate(self._runs):
            part, cursors[number] = run.until(at_s, cursors[number])
            parts.append(part)
        found = np.concatenate(parts) if parts else np.empty(0, SAMPLE)
        found = found[np.argsort(found["at_s"], kind="stable")]
        if self._remade:
            found["series"] = self._told_apart(found["series"], found["at_s"])
        return found


def _as_samples(found: NDArray[np.void]) -> RecordedSamples:
    return RecordedSamples(
        found["series"].astype(np.intp), np.ascontiguousarray(found["at_s"]), np.ascontiguousarray(found["ratio"])
    )


def _numbered(pod: PodKey, times_before: int) -> str:
    return f"{pod[1]}#{times_before + 2}"


def in_order(numbers: NDArray[np.intp], at_s: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The arrays sorted by number, and then by time."""
    order = np.lexsort((at_s, numbers))
    return numbers[order], at_s[order]


def time_before(
    numbers: NDArray[np.intp], at_s: NDArray[np.float64], newest: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The instant before each one of its number, where they are in order; for its first one that in `newest`, which is
    by number, and is moved on."""
    before = np.roll(at_s, 1)
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = numbers[1:] != numbers[:-1]
    before[is_first] = newest[numbers[is_first]]
    newest[numbers] = at_s  # of several the last one stays, which is the newest
    return before
