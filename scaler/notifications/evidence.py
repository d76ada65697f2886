"""What the GPUs of a workload have shown, for its owner to see: as text, and as what a picture is drawn from. Pure.

Of each signal there is a line of bars, one for each part of the judged window, the newest on the right:

    GR_ENGINE_ACTIVE ▅▃▁▁▁▁▁▁▁▁··▁▁  peak 62 %, since 10:05 below the floor of 5 %

`▁` is below the floor, whatever it is exactly; higher ones are parts of the way from the floor to 100 %; `·` is no
sample. So a bar that rises is work, and a hole is no idleness.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.decision.describe import timestamp
from scaler.idleness.gpu import Signal
from scaler.idleness.history import DeviceHistory

BUCKETS = 32
_BARS = "▂▃▄▅▆▇█"
_FLAT, _HOLE = "▁", "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPicture:
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


def pictures(
    devices: Sequence[DeviceHistory],
    signals: Iterable[Signal],
    *,
    floor_ratio: float,
    end: datetime,
    length: timedelta,
) -> tuple[SignalPicture, ...]:
    """Of every signal that has a sample in the time before `end`. Shape: `BUCKETS` parts of it, the oldest first."""
    part = length / BUCKETS
    ends = [end - part * (BUCKETS - 1 - number) for number in range(BUCKETS)]
    found = []
    for signal in signals:
        peaks = tuple(
            max(
                (
                    peak
                    for device in devices
                    if not device.is_forgotten
                    and (peak := device.windows([signal], end=at, length=part)[signal.name].peak_ratio) is not None
                ),
                default=None,
            )
            for at in ends
        )
        if any(each is not None for each in peaks):
            found.append(
                SignalPicture(name=signal.name, begin=end - length, end=end, floor_ratio=floor_ratio, peaks=peaks)
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The signals of one workload."""

    workload: str
    signals: tuple[SignalPicture, ...]
    suspend_at: datetime | None = None

    @property
    def text(self) -> str:
        """The lines of a message that a picture may stand in place of."""
        first = self.signals[0]
        span = f"from {timestamp(first.begin)} to {timestamp(first.end)}; {_FLAT} is below the floor, {_HOLE} no sample"
        return "\n".join(f"  {each}" for each in (*self.signals, span))

    @property
    def description(self) -> str:
        """For who does not see the picture."""
        return f"{self.workload}: " + "; ".join(str(each).partition("  ")[2] for each in self.signals)
