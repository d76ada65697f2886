"""What one signal of one GPU showed over a span of time, kept in a compact ring.

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
"""

from array import array
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

EMPTY = -1.0
EARLIEST_SLOT = -(2**62)
STEPS = 256
"""Resolution at which a sample's place within its slot is remembered."""
JITTER = 0.25
"""Share of an interval by which samples may come late before an interval counts as missed."""


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
    """Time of the newest sample the ring holds, or of one that was refused as too late."""

    @property
    def coverage_ratio(self) -> float:
        return self.covered / self.slots if self.slots else 0.0


NO_WINDOW = Window(slots=0, covered=0, longest_gap=0, peak_ratio=None, last_sample_at=None)
"""The window of a signal that never reported."""


class Ring:
    """A ring buffer over the newest collection intervals of one signal of one GPU, six bytes an interval.

    Values are 32-bit floats. Rounding is monotone, so comparing with a floor that was rounded the same way
    (`as_stored`) never turns a sample at the floor into one below it.
    """

    __slots__ = ("_earliest", "_head", "_interval_s", "_latest", "_values", "last_sample_s")

    def __init__(
        self, values: bytes, earliest: bytes, latest: bytes, *, head: int, last_sample_s: float, interval: timedelta
    ) -> None:
        """`values` are 32-bit floats, of slots of which `head` is the newest."""
        self._interval_s = interval.total_seconds()
        self._values = array("f")
        self._values.frombytes(values)
        self._earliest, self._latest = earliest, latest
        self._head = head
        self.last_sample_s = last_sample_s
        """Unix time of the newest sample, -inf where there is none."""

    @property
    def last_sample_at(self) -> datetime | None:
        return None if self._head == EARLIEST_SLOT else datetime.fromtimestamp(self.last_sample_s, UTC)

    def window(self, end: datetime, length: timedelta) -> Window:
        """The window that reaches from `end - length`, rounded down to a slot, to `end`.

        The interval in which `end` falls is still being collected: it belongs to the window when it already holds a
        sample and is not missed when it does not.
        """
        end_s = end.timestamp()
        first = int((end_s - length.total_seconds()) // self._interval_s)
        last = int(end_s // self._interval_s)
        if self._value(last) == EMPTY:
            last = max(first, last - 1)
        values = self._between(first, last)
        missed, longest = self._missed(values, first, end_s / self._interval_s) if EMPTY in values else (0, 0)
        peak = max(values)
        return Window(
            slots=len(values),
            covered=len(values) - missed,
            longest_gap=longest,
            peak_ratio=None if peak == EMPTY else peak,
            last_sample_at=self.last_sample_at,
        )

    def last_active_at(self, above_ratio: float) -> datetime | None:
        """The end of the newest interval whose peak reached the floor, or None where the ring holds none."""
        floor, size = as_stored(above_ratio), len(self._values)
        if max(self._values) < floor:
            return None
        slot = next(s for s in range(self._head, self._head - size, -1) if self._values[s % size] >= floor)
        return datetime.fromtimestamp((slot + 1) * self._interval_s, UTC)

    def _value(self, slot: int) -> float:
        size = len(self._values)
        return self._values[slot % size] if self._head - size < slot <= self._head else EMPTY

    def _between(self, first: int, last: int) -> "array[float]":
        """The values of slots first..last, oldest first; slots that the ring does not hold are empty."""
        size = len(self._values)
        held_first, held_last = max(first, self._head - size + 1), min(last, self._head)
        if held_last < held_first:
            return array("f", [EMPTY]) * (last - first + 1)
        start, count = held_first % size, held_last - held_first + 1
        held = self._values[start : start + count]
        held.extend(self._values[: count - len(held)])
        if count == last - first + 1:
            return held
        return array("f", [EMPTY]) * (held_first - first) + held + array("f", [EMPTY]) * (last - held_last)

    def _missed(self, values: "array[float]", first: int, end: float) -> tuple[int, int]:
        """Collections missed in the window of these slots: all of them, and the most in a row.

        Units: `end` in intervals since the epoch, like slots but not whole.
        """
        sampled = [first + offset for offset, value in enumerate(values) if value != EMPTY]
        if not sampled:
            return len(values), len(values)
        last = first + len(values) - 1
        holes = [self._missed_between(before, after) for before, after in pairwise(sampled)]
        holes += [self._missed_before(sampled[0], first), self._missed_after(sampled[-1], last, end)]
        return sum(holes), max(holes)

    def _missed_between(self, before: int, after: int) -> int:
        """Collections missed between two slots that hold samples and have none in between."""
        if after == before + 1:
            return 0
        size = len(self._values)
        places = (self._earliest[after % size] - self._latest[before % size]) / STEPS
        return whole_collections(after - before + places)

    def _missed_before(self, sampled: int, first: int) -> int:
        """Collections missed between the window's first slot and the first that holds a sample."""
        if self._value(first - 1) == EMPTY:
            return sampled - first
        return min(sampled - first, self._missed_between(first - 1, sampled))

    def _missed_after(self, sampled: int, last: int, end: float) -> int:
        """Collections missed between the last slot that holds a sample and the window's last slot."""
        waited = end - sampled - self._latest[sampled % len(self._values)] / STEPS
        return min(last - sampled, whole_collections(waited))


def whole_collections(apart: float) -> int:
    """How many collections fit between two samples that lie this many intervals apart."""
    return max(0, int(apart - 1 + JITTER))


@lru_cache(maxsize=1024)
def as_stored(ratio: float) -> float:
    """The ratio as a ring keeps it (32-bit), for comparisons with a window's peak."""
    return array("f", [ratio])[0]
