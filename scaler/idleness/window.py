"""What one signal of each GPU showed over a span of time: a row of compact columns for each, computed together.

Laws of this file:

* A slot is one collection interval. However often an exporter is scraped a slot counts once, so scraping twice per
  collection does not look like twice the evidence.
* A slot keeps its highest sample. Idleness is judged by the peak; a mean hides work.
* A slot without a sample stays empty. It is never filled from its neighbours.
* Holes are measured between the samples around them, not in empty slots: samples that fall now just before and now
  just after a slot boundary leave slots empty though nothing is missing. That holds at the window's edges as well,
  with the sample just before it and with its end.

Worked example: interval 30 s, the window of 2 min that ends at 12:02:00 spans the four slots that begin at 12:00:00,
12:00:30, 12:01:00 and 12:01:30. Samples 0 at 12:00:10, 0 at 12:00:25 and 0.4 at 12:01:40 give: peak 0.4; between the
last two lie 75 s = 2.5 intervals, so one whole interval is missing; covered 3 of 4, longest gap 1.

A slot is in the same column of every row, and a row holds the newest slots up to its own head, so that a GPU whose
exporter is late loses nothing because of others.

| array       | type    | of each slot of each row                                   |
|-------------|---------|------------------------------------------------------------|
| `_peaks`    | float32 | the highest sample as a ratio; -1 without one              |
| `_earliest` | uint8   | where in the slot its first sample lies, in 1/256          |
| `_latest`   | uint8   | where its last one lies                                    |

Six bytes a slot: 100,000 GPUs × 62 slots are 37 MB a signal. Rounding to 32 bits is monotone, so comparing with a floor
that was rounded the same way (`as_stored`) never turns a sample at the floor into one below it.
"""

from array import array
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
_T = TypeVar("_T", np.float32, np.bool_)

EMPTY = -1.0
EARLIEST_SLOT = -(2**62)
STEPS = 256
"""Resolution at which a sample's place within its slot is remembered."""
JITTER = 0.25
"""Share of an interval by which samples may come late before an interval counts as missed."""
BLOCK = 2_048
"""Rows that are looked at together: some milliseconds."""
_FEWEST_ROWS = 64
_NO_SAMPLE_YET = 255
_LATEST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    slots: int
    """Collection intervals that the window spans."""
    covered: int
    """Intervals in which the exporter's collection was seen."""
    longest_gap: int
    """Length in intervals of the longest run of missed collections, the window's edges included."""
    peak_ratio: float | None
    """Highest sample, or None where there is none."""
    last_sample_at: datetime | None
    """Time of the newest sample that is held, or of one that was refused as too late."""

    @property
    def coverage_ratio(self) -> float:
        return self.covered / self.slots if self.slots else 0.0


NO_WINDOW = Window(slots=0, covered=0, longest_gap=0, peak_ratio=None, last_sample_at=None)
"""The window of a signal that never reported."""


@lru_cache(maxsize=1024)
def as_stored(ratio: float) -> float:
    """The ratio as it is kept (32-bit), for comparisons with a window's peak."""
    return array("f", [ratio])[0]


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
        """Unix seconds of the newest sample of each row that was not refused."""
        self.has_reported = np.zeros(0, np.bool_)
        """Whether the signal ever reported for the row, blanks included."""
        self.is_percent = np.zeros(0, np.bool_)
        """Whether a metric in percent did."""

    def __len__(self) -> int:
        return len(self._heads)

    def resize(self, rows: int) -> None:
        """Make place for so many rows; new ones are empty."""
        if rows <= len(self):
            return
        before, count = len(self), max(rows, _FEWEST_ROWS, 17 * len(self) // 16)
        # Arrays that can grow in place are not copied.
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
        self._empty(rows)
        self._heads[rows] = EARLIEST_SLOT
        self.last_samples[rows] = self.newest[rows] = -np.inf
        self.has_reported[rows] = self.is_percent[rows] = False

    # -------------------------------------------------------------------------------------------------------- samples

    def extend(self, rows: Rows, at_s: Floats, ratios: Floats) -> None:
        """Record samples, in any order; those older than their row's ring are dropped.

        Shapes: three arrays of one length, an element a sample. Units: Unix seconds, ratio 0..1.
        """
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
        np.maximum.at(self.last_samples, rows, np.minimum(at_s, _LATEST_S))

    def forget_refused(self) -> None:
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

    def unbroken_since(self, row: int, longest_gap: int) -> datetime | None:
        """The begin of the row's oldest interval since which no more than so many collections are missing in a row.

        None where it holds no sample. One more interval may be empty between two samples that jitter.
        """
        if self.last_samples[row] == -np.inf:
            return None
        head = self._heads.item(row)
        oldest = head - self._size + 1
        empty = np.sort(head - (head - np.flatnonzero(self._peaks[row] == EMPTY)) % self._size)
        ends = np.flatnonzero(np.concatenate((empty[1:], [head + 1])) - empty > 1)
        lengths = ends - np.concatenate(([-1], ends[:-1]))
        holes = ends[(lengths > longest_gap + 1) | (empty[ends - lengths + 1] == oldest)]
        begin = empty.item(holes[-1]) + 1 if len(holes) else oldest
        return datetime.fromtimestamp(begin * self._interval_s, UTC)

    def peaks(self, rows: Rows, begin: datetime, end: datetime) -> tuple[Floats, NDArray[np.float32]]:
        """When each collection interval between these instants begins, and the highest sample of each row in it.

        Shapes: (intervals,), (rows, intervals). Units: Unix seconds; a ratio, -1 without a sample. No older intervals
        than a row can hold.
        """
        last = int(end.timestamp() // self._interval_s)
        first = max(int(begin.timestamp() // self._interval_s), last - self._size + 1)
        return np.arange(first, last + 1, dtype=np.float64) * self._interval_s, self._between(rows, first, last)

    def windows(self, end: datetime, length: timedelta, rows: Rows | slice = slice(None)) -> WindowColumns:
        """The window of these rows that reaches from `end - length`, rounded down to a slot, to `end`.

        The interval in which `end` falls is still being collected: it belongs to the window when it already holds a
        sample and is not missed when it does not. The window of a row for which the signal never reported is
        `NO_WINDOW`.
        """
        end_s = end.timestamp()
        first = int((end_s - length.total_seconds()) // self._interval_s)
        newest = int(end_s // self._interval_s)
        peaks = self._between(rows, first, newest)
        last = np.where(peaks[:, -1] != EMPTY, newest, max(first, newest - 1))
        slots = (last - first + 1) * self.has_reported[rows]
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
            has_sample & (before >= 0) & (slots - before > 1), whole_collections(slots - before + places), 0
        )
        sampled_first, sampled_last = has_sample.argmax(axis=1), newest[:, -1]
        holes_before = self._missed_before(rows, first, sampled_first, earliest[np.arange(len(rows)), sampled_first])
        waited = end - (first + sampled_last) - latest[np.arange(len(rows)), sampled_last] / STEPS
        holes_after = np.minimum(last - first - sampled_last, whole_collections(waited))
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
        between = np.where(sampled == 0, 0, whole_collections(sampled + 1 + places))
        return np.where(has_sample, np.minimum(sampled, between), sampled)


def whole_collections(apart: Floats | float) -> Counts:
    """How many collections fit between two samples that lie this many intervals apart."""
    return np.asarray(np.maximum(0, apart - 1 + JITTER)).astype(np.int64)
