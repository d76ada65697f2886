"""A ring that takes samples one by one: what the columns, which take many at once, are compared with."""

from array import array
from collections.abc import Iterable
from datetime import timedelta

from scaler.idleness.window import EARLIEST_SLOT, EMPTY, STEPS, Ring


class WrittenRing(Ring):
    __slots__ = ()
    _earliest: bytearray
    _latest: bytearray

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        values = (array("f", [EMPTY]) * slots).tobytes()
        never = float("-inf")
        super().__init__(values, bytes(slots), bytes(slots), head=EARLIEST_SLOT, last_sample_s=never, interval=interval)
        self._earliest, self._latest = bytearray(slots), bytearray(slots)

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
