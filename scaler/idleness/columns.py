"""What one signal of all GPUs showed over a span of time: the rings of `window`, a row for each, computed together.

The laws are those of `window.Ring` and `window.Window`, to the bit; that file says them, and is what this one is
tested against. A slot is in the same column of every row, and a row holds the newest slots up to its own head, so that
a GPU whose exporter is late loses nothing because of others.

| array       | type    | of each slot of each row                                   |
|-------------|---------|------------------------------------------------------------|
| `_peaks`    | float32 | the highest sample as a ratio; -1 without one              |
| `_earliest` | uint8   | where in the slot its first sample lies, in 1/256          |
| `_latest`   | uint8   | where its last one lies                                    |

Six bytes a slot: 100,000 GPUs × 62 slots are 37 MB a signal.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.policy import Trust
from scaler.idleness.window import EARLIEST_SLOT, EMPTY, JITTER, NO_WINDOW, STEPS, Ring, Window, as_stored

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
_T = TypeVar("_T", np.float32, np.bool_)

_FEWEST_ROWS = 64
_NO_SAMPLE_YET = 255
_MICROSECOND = timedelta(microseconds=1)
_LATEST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
BLOCK = 2_048
"""Rows that are looked at together: some milliseconds."""
_ROWS_FOR_ONE = 20
"""Rows whose windows are computed together in the time that one takes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowColumns:
    """One window of several rows: arrays of the fields of `Window`, one element a row."""

    slots: Counts
    covered: Counts
    longest_gap: Counts
    peaks: NDArray[np.float32]
    """-1 where there is no sample."""
    last_samples: Floats
    """Unix seconds of the newest sample that the row holds, -inf without one."""
    _answers: dict[Hashable, NDArray[np.bool_]] = field(default_factory=dict, compare=False)

    def is_active(self, row: int, above_ratio: float) -> bool:
        """Whether the row's peak reaches the floor."""
        found = self._answers.get(above_ratio)
        if found is None:
            found = self._answers[above_ratio] = self.peaks >= as_stored(above_ratio)
        return bool(found[row])

    def is_fraction(self, row: int, *, or_one: bool) -> bool:
        found = self._answers.get(("fraction", or_one))
        if found is None:
            found = self._answers["fraction", or_one] = are_fractions(self.peaks, or_one=or_one)
        return bool(found[row])

    def is_trusted(self, row: int, trust: Trust, end: datetime) -> bool:
        """Whether nothing speaks against a quiet peak."""
        found = self._answers.get((trust, end))
        if found is None:
            _, found = self.shown(0.0, trust, end)
            self._answers[trust, end] = found
        return bool(found[row])

    def shown(self, above_ratio: float, trust: Trust, end: datetime) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows are active, and of which a quiet peak is to be trusted."""
        age_us = as_microseconds(end.timestamp()) - as_microseconds(self.last_samples)
        is_trusted = (
            (self.covered > 0)
            & (age_us <= trust.max_age // _MICROSECOND)
            & (age_us >= -trust.max_clock_skew // _MICROSECOND)
            & (self.longest_gap <= trust.max_gap_intervals)
            & (self.covered / np.maximum(self.slots, 1) >= trust.min_coverage_ratio)
        )
        return self.peaks >= as_stored(above_ratio), is_trusted

    def row(self, row: int) -> Window:
        peak, last = self.peaks.item(row), self.last_samples.item(row)
        return Window(
            slots=self.slots.item(row),
            covered=self.covered.item(row),
            longest_gap=self.longest_gap.item(row),
            peak_ratio=None if peak == EMPTY else peak,
            last_sample_at=None if last == -np.inf else datetime.fromtimestamp(last, UTC),
        )


def are_fractions(peaks: NDArray[np.float32] | np.float32, *, or_one: NDArray[np.bool_] | bool) -> NDArray[np.bool_]:
    """Which peaks are more than nothing and less than 1 %, or that where it counts."""
    return np.asarray((peaks > 0) & ((peaks < as_stored(0.01)) | (or_one & (peaks == as_stored(0.01)))))


def as_microseconds(at_s: Floats | float) -> Floats:
    """Unix seconds in whole microseconds, rounded as `datetime.fromtimestamp` does."""
    fraction, whole = np.modf(at_s)
    return np.asarray(whole * 1e6 + np.rint(fraction * 1e6))


class DeviceWindows(Mapping[str, Window]):
    """Windows of one GPU by signal, each made when it is read."""

    __slots__ = ("_found", "_row")

    def __init__(self, row: int, found: Mapping[str, Window | WindowColumns]) -> None:
        self._row = row % BLOCK
        self._found = found

    def __getitem__(self, signal: str) -> Window:
        found = self._found[signal]
        return found if isinstance(found, Window) else found.row(self._row)

    def is_fraction(self, signal: str, *, or_one: bool) -> bool:
        """Whether the signal's peak is more than nothing and less than 1 %, or that where it counts."""
        found = self._found[signal]
        if isinstance(found, WindowColumns):
            return found.is_fraction(self._row, or_one=or_one)
        return bool(are_fractions(np.float32(found.peak_ratio or 0.0), or_one=or_one))

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def is_all(self, *, active: bool, above_ratio: float, trust: Trust, end: datetime) -> bool:
        """Whether all signals are active, or all are quiet and trusted, as far as that is known without a look at one.

        No where any is not computed with those of other GPUs: then `gpu_verdict` has to look.
        """
        row = self._row
        return bool(self._found) and all(
            isinstance(each, WindowColumns)
            and each.is_active(row, above_ratio) is active
            and (active or each.is_trusted(row, trust, end))
            for each in self._found.values()
        )


class SampleColumns:
    """Rings of the newest `slots` collection intervals of one signal."""

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        self._interval_s = interval.total_seconds()
        self._size = slots
        self._peaks = np.full((0, slots), EMPTY, np.float32)
        self._earliest = np.full((0, slots), _NO_SAMPLE_YET, np.uint8)
        self._latest = np.zeros((0, slots), np.uint8)
        self._heads = np.zeros(0, np.int64)
        """The newest slot of each row."""
        self.last_samples: Floats = np.zeros(0)
        """Unix seconds of the newest sample of each row, also of one that was refused as too late; -inf without one."""
        self.newest: Floats = np.zeros(0)
        """The same without those that were refused."""
        self.has_reported = np.zeros(0, np.bool_)
        """Whether the signal ever reported for the row, blanks included."""
        self.is_percent = np.zeros(0, np.bool_)
        """Whether a metric in percent did."""
        self._asked: Counter[object] = Counter()
        """How often rows were asked for one by one since samples came."""
        self._windows: dict[tuple[datetime, timedelta, int], WindowColumns] = {}
        self._last_active: dict[tuple[float, int], Floats] = {}
        """Both by block."""

    def __len__(self) -> int:
        return len(self._heads)

    def resize(self, rows: int) -> None:
        """Make place for so many rows; new ones are empty."""
        if rows <= len(self):
            return
        self._forget_answers()
        before, count = len(self), max(rows, _FEWEST_ROWS, 17 * len(self) // 16)
        # Where they can grow, nothing is copied.
        rings: tuple[NDArray[Any], ...] = self._peaks, self._earliest, self._latest
        for ring in rings:
            ring.resize((count, self._size), refcheck=False)
        of_rows: tuple[NDArray[Any], ...] = self._heads, self.last_samples, self.newest
        for each in (*of_rows, self.has_reported, self.is_percent):
            each.resize(count, refcheck=False)
        self._empty(slice(before, None))
        self._heads[before:], self.last_samples[before:], self.newest[before:] = EARLIEST_SLOT, -np.inf, -np.inf

    def clear(self, rows: Rows) -> None:
        """Forget what these rows hold, so that others can have them."""
        self._forget_answers()
        self._empty(rows)
        self._heads[rows] = EARLIEST_SLOT
        self.last_samples[rows] = self.newest[rows] = -np.inf
        self.has_reported[rows] = self.is_percent[rows] = False

    # -------------------------------------------------------------------------------------------------------- samples

    def extend(self, rows: Rows, at_s: Floats, ratios: Floats) -> None:
        """Record samples, in any order; those older than their row's ring are dropped.

        Shapes: three arrays of one length, an element a sample. Units: Unix seconds, ratio 0..1.
        """
        self._forget_answers()
        positions = at_s / self._interval_s
        slots = np.floor(positions).astype(np.int64)
        self._advance(rows, slots)
        is_held = slots > self._heads[rows] - self._size
        if not is_held.all():
            rows, at_s, ratios = rows[is_held], at_s[is_held], ratios[is_held]
            positions, slots = positions[is_held], slots[is_held]
        places = ((positions - slots) * STEPS).astype(np.uint8)
        cells = rows * self._size + slots % self._size
        np.maximum.at(self._peaks.reshape(-1), cells, ratios.astype(np.float32))
        np.minimum.at(self._earliest.reshape(-1), cells, places)
        np.maximum.at(self._latest.reshape(-1), cells, places)
        np.maximum.at(self.newest, rows, at_s)
        np.maximum.at(self.last_samples, rows, at_s)

    def refuse(self, rows: Rows, at_s: Floats) -> None:
        """Remember of samples no more than that their time cannot be right. Range: as late as a date can be."""
        self._forget_answers()
        np.maximum.at(self.last_samples, rows, np.minimum(at_s, _LATEST_S))

    def forget_refused(self) -> None:
        self._forget_answers()
        np.copyto(self.last_samples, self.newest)

    def _advance(self, rows: Rows, slots: Counts) -> None:
        """Move the heads of these rows up to these slots, and empty the slots that they pass."""
        before = self._heads[rows]
        np.maximum.at(self._heads, rows, slots)
        passed = self._heads[rows] - before
        self._empty(np.unique(rows[passed >= self._size]))
        moved = np.flatnonzero((passed > 0) & (passed < self._size))
        for step in range(1, int(passed[moved].max(initial=0)) + 1):
            moved = moved[passed[moved] >= step]
            columns = (before[moved] + step) % self._size
            self._peaks[rows[moved], columns] = EMPTY
            self._earliest[rows[moved], columns] = _NO_SAMPLE_YET
            self._latest[rows[moved], columns] = 0

    def _empty(self, rows: Rows | slice) -> None:
        self._peaks[rows] = EMPTY
        self._earliest[rows] = _NO_SAMPLE_YET
        self._latest[rows] = 0

    # -------------------------------------------------------------------------------------------------------- one row

    def window(self, row: int, end: datetime, length: timedelta) -> Window | WindowColumns:
        """The window of one row; or those of its block, which cost no more than the ones that were asked for by then.

        In the latter it is the element `row % BLOCK`.
        """
        if not self.has_reported[row]:
            return NO_WINDOW
        question = end, length, row // BLOCK
        found = self._windows.get(question)
        if found is None:
            if not self._is_worth_all(question):
                return self._ring(row).window(end, length)
            found = self._windows[question] = self.windows(end, length, self._block(row))
        return found

    def last_active_at(self, row: int, above_ratio: float) -> datetime | None:
        """The end of the row's newest interval whose peak reached the floor; None where it holds none."""
        question = above_ratio, row // BLOCK
        found = self._last_active.get(question)
        if found is None:
            if not self._is_worth_all(question):
                return self._ring(row).last_active_at(above_ratio)
            found = self._last_active[question] = self.last_active(above_ratio, self._block(row))
        at_s = found.item(row % BLOCK)
        return None if at_s == -np.inf else datetime.fromtimestamp(at_s, UTC)

    def unbroken_since(self, row: int, longest_gap: int) -> datetime | None:
        """The begin of the row's oldest interval since which no more than so many collections are missing in a row.

        None where it holds no sample. One more interval may be empty between two samples that jitter.
        """
        if self.last_samples[row] == -np.inf:
            return None
        head = self._heads.item(row)
        oldest = head - self._size + 1
        empty = np.sort(head - (head - np.flatnonzero(self._peaks[row] == EMPTY)) % self._size)
        ends = np.flatnonzero(np.diff(empty, append=head + 1) > 1)
        lengths = np.diff(ends, prepend=-1)
        holes = ends[(lengths > longest_gap + 1) | (empty[ends - lengths + 1] == oldest)]
        begin = empty.item(holes[-1]) + 1 if len(holes) else oldest
        return datetime.fromtimestamp(begin * self._interval_s, UTC)

    def _block(self, row: int) -> slice:
        begin = row // BLOCK * BLOCK
        return slice(begin, begin + BLOCK)

    def _is_worth_all(self, question: object) -> bool:
        """Whether so many rows of a block were asked for that all of them would have cost no more."""
        self._asked[question] += 1
        return self._asked[question] * _ROWS_FOR_ONE > min(BLOCK, len(self))

    def _forget_answers(self) -> None:
        self._asked.clear()
        self._windows.clear()
        self._last_active.clear()

    def _ring(self, row: int) -> Ring:
        return Ring(
            self._peaks[row].tobytes(),
            self._earliest[row].tobytes(),
            self._latest[row].tobytes(),
            head=self._heads.item(row),
            last_sample_s=self.last_samples.item(row),
            interval=timedelta(seconds=self._interval_s),
        )

    # -------------------------------------------------------------------------------------------------------- all rows

    def peaks(self, rows: Rows, begin: datetime, end: datetime) -> tuple[Floats, NDArray[np.float32]]:
        """When each collection interval between these instants begins, and the highest sample of each row in it.

        Shapes: (intervals,), (rows, intervals). Units: Unix seconds; a ratio, -1 without a sample. No older intervals
        than a row can hold.
        """
        last = int(end.timestamp() // self._interval_s)
        first = max(int(begin.timestamp() // self._interval_s), last - self._size + 1)
        return np.arange(first, last + 1, dtype=np.float64) * self._interval_s, self._between(rows, first, last)

    def windows(self, end: datetime, length: timedelta, rows: Rows | slice = slice(None)) -> WindowColumns:
        """The window of these rows that reaches from `end - length`, rounded down to a slot, to `end`."""
        end_s = end.timestamp()
        first = int((end_s - length.total_seconds()) // self._interval_s)
        newest = int(end_s // self._interval_s)
        peaks = self._between(rows, first, newest)
        last = np.where(peaks[:, -1] != EMPTY, newest, max(first, newest - 1))
        slots = last - first + 1
        missed, longest = np.zeros(len(peaks), np.int64), np.zeros(len(peaks), np.int64)
        has_holes = np.flatnonzero((peaks != EMPTY).sum(axis=1) < slots)
        if len(has_holes):
            missed[has_holes], longest[has_holes] = self._missed(
                np.arange(len(self))[rows][has_holes],
                peaks[has_holes],
                first,
                last[has_holes],
                end_s / self._interval_s,
            )
        return WindowColumns(
            slots=slots,
            covered=slots - missed,
            longest_gap=longest,
            peaks=peaks.max(axis=1),
            last_samples=self.last_samples[rows].copy(),
        )

    def last_active(self, above_ratio: float, rows: Rows | slice = slice(None)) -> Floats:
        """The end of each row's newest interval whose peak reached the floor, in Unix seconds; -inf without one."""
        heads, reached = self._heads[rows], self._peaks[rows] >= as_stored(above_ratio)
        ends = np.full(len(heads), -np.inf)
        for head in np.unique(heads):
            some = np.flatnonzero(heads == head)
            is_active = self._in_order(reached[some], head - self._size + 1, head)
            newest = is_active[:, ::-1].argmax(axis=1)
            was_active = is_active[np.arange(len(some)), self._size - 1 - newest]
            ends[some[was_active]] = (head - newest[was_active] + 1) * self._interval_s
        return ends

    def _between(self, rows: Rows | slice, first: int, last: int) -> NDArray[np.float32]:
        """The peaks of slots first..last of these rows, oldest first; slots that a row does not hold are empty."""
        found, heads = self._in_order(self._peaks[rows], first, last), self._heads[rows]
        too_new = range(max(first, heads.min(initial=last) + 1), last + 1)
        too_old = range(first, min(last, heads.max(initial=first) - self._size) + 1)
        for slot in (*too_new, *too_old):
            found[(heads < slot) | (heads - self._size >= slot), slot - first] = EMPTY
        return found

    def _in_order(self, peaks: NDArray[_T], first: int, last: int) -> NDArray[_T]:
        """A copy of the columns of slots first..last, oldest first."""
        begin, end = first % self._size, last % self._size + 1
        if last - first >= self._size:
            return peaks[:, np.arange(first, last + 1) % self._size]
        return peaks[:, begin:end].copy() if begin < end else np.concatenate([peaks[:, begin:], peaks[:, :end]], axis=1)

    def _missed(
        self, rows: Rows, peaks: NDArray[np.float32], first: int, last: Counts, end: float
    ) -> tuple[Counts, Counts]:
        """Collections missed in the windows of these rows: all of them, and the most in a row.

        Units: `end` in intervals since the epoch, like slots but not whole.
        """
        count = peaks.shape[1]
        slots = np.arange(count)
        columns = (first + slots) % self._size
        earliest = self._earliest[rows][:, columns].astype(np.float64)
        latest = self._latest[rows][:, columns].astype(np.float64)
        has_sample = peaks != EMPTY
        newest = np.maximum.accumulate(np.where(has_sample, slots, -1), axis=1)
        before = np.hstack([np.full((len(rows), 1), -1), newest[:, :-1]])
        places = (earliest - np.take_along_axis(latest, np.maximum(before, 0), axis=1)) / STEPS
        holes = np.where(
            has_sample & (before >= 0) & (slots - before > 1), _whole_collections(slots - before + places), 0
        )
        sampled_first, sampled_last = has_sample.argmax(axis=1), newest[:, -1]
        holes_before = self._missed_before(rows, first, sampled_first, earliest[np.arange(len(rows)), sampled_first])
        waited = end - (first + sampled_last) - latest[np.arange(len(rows)), sampled_last] / STEPS
        holes_after = np.minimum(last - first - sampled_last, _whole_collections(waited))
        missed = holes.sum(axis=1) + holes_before + holes_after
        longest = np.maximum(np.maximum(holes.max(axis=1), holes_before), holes_after)
        is_blank = sampled_last < 0
        return np.where(is_blank, last - first + 1, missed), np.where(is_blank, last - first + 1, longest)

    def _missed_before(self, rows: Rows, first: int, sampled: Counts, earliest: Floats) -> Counts:
        """Collections missed between the windows' first slot and the first that holds a sample, `sampled` after it."""
        column, heads = (first - 1) % self._size, self._heads[rows]
        is_held = (first - 1 > heads - self._size) & (first - 1 <= heads)
        has_sample = is_held & (self._peaks[rows, column] != EMPTY)
        places = (earliest - self._latest[rows, column]) / STEPS
        between = np.where(sampled == 0, 0, _whole_collections(sampled + 1 + places))
        return np.where(has_sample, np.minimum(sampled, between), sampled)


def _whole_collections(apart: Floats) -> Counts:
    """How many collections fit between two samples that lie this many intervals apart."""
    return np.maximum(0, apart - 1 + JITTER).astype(np.int64)
