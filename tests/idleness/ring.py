"""What one signal of one GPU showed, slot by slot in plain Python: the oracle that holds the columns bit for bit."""

from array import array
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from scaler.idleness.window import EARLIEST_SLOT, EMPTY, Window, as_stored

JITTER, STEPS = 0.25, 256
"""As the code has them that is held to this oracle: written here once more, so that neither changes unseen."""


class Ring:
    """A ring of the newest collection intervals that takes samples one by one."""

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        self._interval_s = interval.total_seconds()
        self._values = array("f", [EMPTY]) * slots
        self._earliest, self._latest = bytearray(slots), bytearray(slots)
        self._head = EARLIEST_SLOT
        self.last_sample_s = float("-inf")
        """Unix time of the newest sample, -inf where there is none."""

    def extend(self, samples: Iterable[tuple[float, float]]) -> None:
        """Record samples. The order of arrival does not matter; a sample older than the ring is dropped.

        Units: (Unix seconds, ratio 0..1).
        """
        interval_s, size = self._interval_s, len(self._values)
        for at_s, ratio in samples:
            position = at_s / interval_s
            slot = int(position // 1)
            if slot > self._head:
                self._advance_to(slot)
            elif slot <= self._head - size:
                continue
            index, place = slot % size, int((position - slot) * STEPS)
            known = self._values[index]
            if known == EMPTY:
                self._earliest[index] = self._latest[index] = place
            elif place < self._earliest[index]:
                self._earliest[index] = place
            elif place > self._latest[index]:
                self._latest[index] = place
            if ratio > known:
                self._values[index] = ratio
            self.last_sample_s = max(self.last_sample_s, at_s)

    def _advance_to(self, slot: int) -> None:
        size = len(self._values)
        if slot - self._head >= size:
            self._values = array("f", [EMPTY]) * size
        else:
            for passed in range(self._head + 1, slot + 1):
                self._values[passed % size] = EMPTY
        self._head = slot

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
        return _whole_collections(after - before + places)

    def _missed_before(self, sampled: int, first: int) -> int:
        """Collections missed between the window's first slot and the first that holds a sample."""
        if self._value(first - 1) == EMPTY:
            return sampled - first
        return min(sampled - first, self._missed_between(first - 1, sampled))

    def _missed_after(self, sampled: int, last: int, end: float) -> int:
        """Collections missed between the last slot that holds a sample and the window's last slot."""
        waited = end - sampled - self._latest[sampled % len(self._values)] / STEPS
        return min(last - sampled, _whole_collections(waited))


def _whole_collections(apart: float) -> int:
    """How many collections fit between two samples that lie this many intervals apart."""
    return max(0, int(apart - 1 + JITTER))
