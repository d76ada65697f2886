"""What whole boards show beside their activity: does their exporter still measure, and how much do they draw?

Laws of this file:

* A GPU draws power whatever it does, so its energy counter grows from one collection to the next. Where fresh samples
  of the counter repeat one value for longer than a sample may be old, the exporter repeats its page, and all that
  stands there is as old.
* A counter that was never seen says nothing, and neither does one that is 0: the exporter cannot read it.
* MIG instances share the power of their board. While one of them shows work, that explains the power of all.

Source: NVML, nvmlDeviceGetTotalEnergyConsumption (millijoules since the driver was loaded).
"""

from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.columns import Floats, Rows, SampleColumns
from scaler.idleness.policy import Trust

_FEWEST = 64
_BLANKS = [float(base + more) for base in (2**63 - 16, 2**47, 2**31 - 16) for more in range(4)]
"""What DCGM writes where it has no measurement. Source: dcgm_structs.h, DCGM_INT64_BLANK, FP64_BLANK, INT32_BLANK."""
_HALF_OF_LIMIT_WATTS = (("A30", 80.0), ("B200", 500.0), ("H100", 175.0), ("H200", 300.0))
"""Half of what boards may draw, by a part of their model's name; the lowest of its variants."""
_HALF_OF_OTHERS_WATTS = 125.0
"""Of an A100 with 250 W. Idle boards draw 60 to 100 W."""


def unexplained_watts(model: str) -> float:
    """From how much on a board draws more than one that is idle, with contexts and weights in its memory."""
    return next((watts for part, watts in _HALF_OF_LIMIT_WATTS if part in model), _HALF_OF_OTHERS_WATTS)


class Boards:
    """By device: the state of its energy counter, and its power over the span of the history."""

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        self._index: dict[str, int] = {}
        self._power = SampleColumns(slots=slots, interval=interval)
        self._values = np.full(0, np.nan)
        self._first = np.zeros(0)
        """Unix time of the first sample of the counter, of its newest one, and of the newest that differs from the one
        before; without one inf, -inf and -inf."""
        self._seen = np.zeros(0)
        self._grown = np.zeros(0)

    @property
    def has_power(self) -> bool:
        return len(self._power) > 0

    def row(self, device: str) -> int:
        """The board's row, a new one where it is not known."""
        found = self._index.setdefault(device, len(self._index))
        if found >= len(self._values):
            more = max(_FEWEST, len(self._values) // 4)
            self._values = np.append(self._values, np.full(more, np.nan))
            self._first = np.append(self._first, np.full(more, np.inf))
            self._seen, self._grown = (np.append(each, np.full(more, -np.inf)) for each in (self._seen, self._grown))
        return found

    def take_energy(self, rows: Rows, at_s: Floats, values: Floats) -> None:
        """Take in samples of the counters, in any order; those not newer than what is known of a board are left out.

        Shapes: three arrays of one length, an element a sample. Units: Unix seconds, any unit of energy.
        """
        is_new = (at_s > self._seen[rows]) & (values > 0) & ~np.isin(values, _BLANKS)
        order = np.lexsort((at_s[is_new], rows[is_new]))
        rows, at_s, values = rows[is_new][order], at_s[is_new][order], values[is_new][order]
        if not len(rows):
            return
        is_first = np.append(True, rows[1:] != rows[:-1])
        before = np.where(is_first, self._values[rows], np.append(np.nan, values[:-1]))
        has_grown = ~np.isnan(before) & (values != before)
        np.maximum.at(self._grown, rows[has_grown], at_s[has_grown])
        np.minimum.at(self._first, rows, at_s)
        np.maximum.at(self._seen, rows, at_s)
        self._values[rows] = values  # in the order of time, so that of each board its newest one stays

    def take_power(self, rows: Rows, at_s: Floats, watts: Floats) -> None:
        """Take in samples of what boards draw. Shapes and times as above."""
        self._power.resize(len(self._index))
        self._power.extend(rows, at_s, watts)

    def has_counter(self, row: int) -> bool:
        """Whether a counter of the board was ever seen, be it once."""
        return bool(self._seen[row] > -np.inf)

    def counters(
        self, rows: Rows, trust: Trust, end: datetime, length: timedelta = timedelta.max
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of which boards the counter grows, and of which it stands still; of neither where it is not known.

        One that was seen for a whole window of that length, and has not grown, stands still, however short that is.
        """
        limit_s, seen, grown = trust.max_age.total_seconds(), self._seen[rows], self._grown[rows]
        span_s = min(limit_s, length.total_seconds())
        is_fresh = seen >= end.timestamp() - limit_s
        grows = is_fresh & (grown >= seen - limit_s)
        return grows, is_fresh & ~grows & (self._first[rows] <= seen - span_s)

    def peak_watts(self, rows: Rows, end: datetime, length: timedelta) -> NDArray[np.float32]:
        """The highest power of each board in the window; -1 where none is known."""
        self._power.resize(len(self._index))
        return self._power.windows(end, length, rows).peaks
