"""What the GPUs of a workload have shown, for its owner to see: a line of text that every target can show. Pure.

Of each signal there is a line of bars, one for each part of the judged window, the newest on the right:

    ▅▃▁▁▁▁▁▁▁▁··▁▁  gr_engine_active: peak 62 %, floor 5 %

`▁` is below the floor, whatever it is exactly; higher ones are parts of the way from the floor to 100 %; `·` is no
sample. So a bar that rises is work, and a hole is no idleness.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from scaler.decision.describe import timestamp
from scaler.idleness.history import History

BUCKETS = 32
_BARS = "▂▃▄▅▆▇█"
_FLAT, _HOLE = "▁", "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """One signal over the judged window, of all GPUs of a workload: the highest sample of each part of it."""

    name: str
    begin: datetime
    end: datetime
    floor_ratio: float
    peaks: tuple[float | None, ...]

    @property
    def bars(self) -> str:
        return "".join(_bar(each, self.floor_ratio) for each in self.peaks)

    def __str__(self) -> str:
        known = [each for each in self.peaks if each is not None]
        peak = f"peak {100 * max(known):.3g} %" if known else "no samples"
        return f"{self.bars}  {self.name}: {peak}, floor {100 * self.floor_ratio:.3g} %"


def _bar(ratio: float | None, floor: float) -> str:
    if ratio is None:
        return _HOLE
    if ratio < floor:
        return _FLAT
    above = (ratio - floor) / (1 - floor) if floor < 1 else 1.0
    return _BARS[min(len(_BARS) - 1, int(above * len(_BARS)))]


def sparklines(
    history: History, rows: Sequence[int], *, floor_ratio: float, end: datetime, length: timedelta
) -> tuple[Sparkline, ...]:
    """A line for every signal that has a sample in the time before `end`. Shape: `BUCKETS` parts of it, the oldest
    first."""
    part = length / BUCKETS
    found: dict[str, list[float | None]] = {each.name: [] for each in history.signals}
    for number in range(BUCKETS):
        at = end - part * (BUCKETS - 1 - number)
        for name, (peaks, _, _) in history.windows(np.array(rows, np.intp), length=part, end=at):
            found[name].append(peak if (peak := peaks.max(initial=-1).item()) >= 0 else None)
    return tuple(
        Sparkline(name=name, begin=end - length, end=end, floor_ratio=floor_ratio, peaks=tuple(peaks))
        for name, peaks in found.items()
        if any(each is not None for each in peaks)
    )


def evidence_lines(signals: Sequence[Sparkline]) -> Iterator[str]:
    """The lines of a message; none without signals."""
    yield from map(str, signals)
    for first in signals[:1]:
        span = f"from {timestamp(first.begin)} to {timestamp(first.end)}"
        yield f"{span}; {_FLAT} is below the floor, {_HOLE} no sample"
