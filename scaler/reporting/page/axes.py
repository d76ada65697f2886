"""What are the positions of instants and amounts in a drawing? Pure.

Drawings are as wide as the window, so positions along the time are in percent of the width, and text keeps its size;
heights are in pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor, log10

_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=each) for each in (1, 60, 3600, 86_400))
_STEPS = (
    *(each * _SECOND for each in (1, 2, 5, 10, 15, 30)),
    *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 7, 14, 28)),
)
_MOST_TICKS = 9
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTick:
    percent: float
    label: str
    is_minor: bool
    """Whether narrow windows leave its label out."""

    @property
    def anchor(self) -> str:
        """The side of its label on which it is, so that none is cut off at an edge."""
        return "start" if self.percent < 10 else "end" if self.percent > 90 else "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    begin: datetime
    end: datetime

    def percent(self, at: datetime) -> float:
        """How far from the left; what is outside is at the edge."""
        return round(100 * min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin))), 3)

    def contains(self, at: datetime) -> bool:
        return self.begin <= at <= self.end

    @property
    def ticks(self) -> list[TimeTick]:
        """Round times in UTC, at most nine."""
        length = self.end - self.begin
        step = next((each for each in _STEPS if length / each <= _MOST_TICKS), _STEPS[-1])
        instants = [*_multiples(self.begin, self.end, step)]
        return [
            TimeTick(percent=self.percent(at), label=_label(at, step), is_minor=bool(number % 2))
            for number, at in enumerate(instants)
        ]


def _multiples(begin: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
    at = _EPOCH + -(-(begin - _EPOCH) // step) * step
    while at <= end:
        yield at
        at += step


def _label(at: datetime, step: timedelta) -> str:
    if at - at.replace(hour=0, minute=0, second=0) == timedelta(0):
        return f"{at:%d %b}"
    return f"{at:%H:%M:%S}" if step < _MINUTE else f"{at:%H:%M}"


def round_ticks(highest: float, most: int = 4) -> list[int]:
    """Whole numbers from 0 on in equal steps, the last of which is not below the highest."""
    if highest <= most:
        return [0, *range(1, max(1, -int(-highest // 1)) + 1)]
    rough = highest / most
    scale = 10.0 ** floor(log10(rough))
    step = int(next(scale * each for each in (1, 2, 5, 10) if scale * each >= rough and scale * each >= 1))
    return list(range(0, -int(-highest // step) * step + 1, step))
