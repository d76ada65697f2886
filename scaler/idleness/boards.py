"""What whole boards show beside their activity: does their exporter still measure, and how much do they draw?

Laws of this file:

* A GPU draws power whatever it does, so its energy counter grows from one collection to the next. Where fresh samples
  of the counter repeat one value for longer than a sample may be old, the exporter repeats its page, and all that
  stands there is as old.
* A counter speaks for the exporter that shows it. That another exporter still measures the GPU says nothing about a
  page that stands still beside it.
* A counter that was never seen says nothing, and neither does one that is 0: the exporter cannot read it.
* MIG instances share the power of their board. While one of them shows work, that explains the power of all.

Source: NVML, nvmlDeviceGetTotalEnergyConsumption (millijoules since the driver was loaded).
"""

from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.policy import Trust
from scaler.idleness.window import Floats, Rows, SampleColumns

_FEWEST = 64
_BLANKS = [float(base + more) for base in (2**63 - 16, 2**47, 2**31 - 16) for more in range(4)]
"""What DCGM writes where it has no measurement. Source: dcgm_structs.h, DCGM_INT64_BLANK, FP64_BLANK, INT32_BLANK."""
_HALF_OF_LIMIT_WATTS = (("A30", 80.0), ("B200", 500.0), ("H100", 175.0), ("H200", 300.0))
"""Half of what boards may draw, by a part of their model's name; the lowest of its variants."""
_HALF_OF_OTHERS_WATTS = 125.0
"""What an A100 with 250 W has. Idle boards draw 60 to 100 W."""


def unexplained_watts(model: str) -> float:
    """The power from which a board draws more than one that is idle, with contexts and weights in its memory."""
    return next((watts for part, watts in _HALF_OF_LIMIT_WATTS if part in model), _HALF_OF_OTHERS_WATTS)


class Boards:
    """The power of each device over the span of the history, and its energy counter at each exporter."""

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        self._rows: dict[tuple[str, str], int] = {}
        """The rows of boards, and of their counters at exporters that are named."""
        self._keys: list[tuple[str, str]] = []
        self._free: list[int] = []
        self._power = SampleColumns(slots=slots, interval=interval)
        self._board = np.zeros(0, np.intp)
        """The board's own row, by row."""
        self._values = np.full(0, np.nan)
        self._first = np.zeros(0)
        """Unix time of the first sample of the counter, of its newest one, and of the newest that differs from the one
        before; without one inf, -inf and -inf."""
        self._seen = np.zeros(0)
        self._grown = np.zeros(0)

    @property
    def has_power(self) -> bool:
        return len(self._power) > 0

    def row(self, device: str, exporter: str = "") -> int:
        """The row of the board, or of its counter at an exporter; a new one where it is not known."""
        key = device, exporter
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self._free.pop() if self._free else len(self._keys)
            self._keys[found : found + 1] = [key]
            if found >= len(self._values):
                more = max(_FEWEST, len(self._values) // 4)
                self._board = np.append(self._board, np.zeros(more, np.intp))
                self._values = np.append(self._values, np.full(more, np.nan))
                self._first = np.append(self._first, np.full(more, np.inf))
                self._seen, self._grown = (np.append(x, np.full(more, -np.inf)) for x in (self._seen, self._grown))
            self._board[found] = self.row(device) if exporter else found
        return found

    def forget_others(self, held: Rows) -> None:
        """Forget all but these rows and their boards' own: Nodes that have gone would add to them for ever."""
        is_gone = np.ones(len(self._keys), np.bool_)
        is_gone[held] = is_gone[self._board[held]] = is_gone[self._free] = False
        gone = np.flatnonzero(is_gone)
        for row in gone.tolist():
            del self._rows[self._keys[row]]
        self._free += gone.tolist()
        self._values[gone], self._first[gone] = np.nan, np.inf
        self._seen[gone] = self._grown[gone] = -np.inf
        self._power.clear(gone[gone < len(self._power)])

    def take_energy(self, rows: Rows, at_s: Floats, values: Floats) -> None:
        """Take in samples of the counters, in any order; those not newer than what is known of one are left out.

        Where an exporter shows several of one moment, as of a board's tiles, the highest counts.

        Shapes: three arrays of one length, an element a sample. Units: Unix seconds, any unit of energy.
        """
        is_new = (at_s > self._seen[rows]) & (values > 0) & ~np.isin(values, _BLANKS)
        order = np.lexsort((values[is_new], at_s[is_new], rows[is_new]))
        rows, at_s, values = rows[is_new][order], at_s[is_new][order], values[is_new][order]
        if not len(rows):
            return
        is_highest = np.append((rows[1:] != rows[:-1]) | (at_s[1:] != at_s[:-1]), True)
        rows, at_s, values = rows[is_highest], at_s[is_highest], values[is_highest]
        is_first = np.append(True, rows[1:] != rows[:-1])
        before = np.where(is_first, self._values[rows], np.append(np.nan, values[:-1]))
        has_grown = ~np.isnan(before) & (values != before)
        np.maximum.at(self._grown, rows[has_grown], at_s[has_grown])
        np.minimum.at(self._first, rows, at_s)
        np.maximum.at(self._seen, rows, at_s)
        self._values[rows] = values  # in the order of time, so that of each board its newest one stays

    def take_power(self, rows: Rows, at_s: Floats, watts: Floats) -> None:
        """Take in samples of what boards draw. Shapes and times as above."""
        self._power.resize(len(self._keys))
        self._power.extend(rows, at_s, watts)

    def has_counter(self, counters: Rows) -> bool:
        """Whether any of these counters was ever seen, be it once."""
        return bool((self._seen[counters] > -np.inf).any())

    def counters(
        self, counters: Rows, trust: Trust, end: datetime, length: timedelta = timedelta.max
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of these counters grow, and which stand still; neither where that is not known.

        One that was seen for a whole window of that length, and has not grown, stands still, however short that is.
        """
        limit_s, seen, grown = trust.max_age.total_seconds(), self._seen[counters], self._grown[counters]
        span_s = min(limit_s, length.total_seconds())
        is_fresh = seen >= end.timestamp() - limit_s
        grows = is_fresh & (grown >= seen - limit_s)
        return grows, is_fresh & ~grows & (self._first[counters] <= seen - span_s)

    def are_frozen(
        self, boards: Rows, pairs: tuple[Rows, Rows], trust: Trust, end: datetime, length: timedelta
    ) -> NDArray[np.bool_]:
        """Which of these boards are shown by an exporter whose counter stands still.

        `pairs`: positions in `boards`, each with the counter of an exporter whose samples are believed there. Where
        none of these was ever seen, as where series do not say whose they are, those of all exporters count.
        """
        (positions, own), all_rows = pairs, np.arange(len(self._keys))
        _, stands_still = self.counters(all_rows, trust, end, length)
        of_all = np.bincount(self._board[all_rows], stands_still, len(all_rows)) > 0
        is_known, is_frozen = (
            np.bincount(positions, each[own], len(boards)) > 0 for each in (self._seen > -np.inf, stands_still)
        )
        return np.where(is_known, is_frozen, of_all[boards])

    def peak_watts(self, rows: Rows, end: datetime, length: timedelta) -> NDArray[np.float32]:
        """The highest power of each board in the window; -1 where none is known."""
        self._power.resize(len(self._keys))
        return self._power.windows(end, length, rows).peaks
