"""One workload over time: its states, what happened, and what its GPUs showed, on one axis. Pure.

From above: a lane of states, a lane of marks (warnings, suspensions, wake-ups, keeps, the deadline), and one lane for
each signal with the highest sample of any GPU, the one of the quietest GPU, and the floor. Signals are drawn on a scale
of square roots: a floor of 1 % would else be no different from 0.

The state lane has what the history says, which is short: before its first line nothing is drawn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from math import sqrt

from scaler.decision.candidate import HistoryLine
from scaler.decision.reasons import CandidateState
from scaler.reporting.page.axes import TimeAxis
from scaler.reporting.page.signal_history import SignalBin, SignalTrack

_MARKS_TOP, _MARK_HEIGHT, _MARK_ROWS = 44, 24, 3
_MARK_WIDTH = 3.0
"""Percent of the width that a mark takes; nearer ones are below each other."""
_SIGNAL_HEIGHT, _SIGNAL_LABEL, _SIGNAL_GAP = 64, 18, 14
_AXIS_HEIGHT = 26
_CHARACTER = 0.75
"""Percent of the width that a character takes in a narrow window; what does not fit is left to tooltip and table."""


class MarkKind(StrEnum):
    WARNING = "Warning"
    GRANT = "Grant"
    SUSPENSION = "Suspension"
    WAKE = "Wake-up"
    KEEP = "Keep"
    KEPT_UNTIL = "Kept until"
    DEADLINE = "Deadline"


_LETTERS = {
    MarkKind.WARNING: ("W", "its owner is notified"),
    MarkKind.GRANT: ("G", "a plan takes it"),
    MarkKind.SUSPENSION: ("S", "its GPUs are free"),
    MarkKind.WAKE: ("A", "asked to run again"),
    MarkKind.KEEP: ("K", "kept or excluded"),
    MarkKind.KEPT_UNTIL: ("U", "until then it is kept"),
    MarkKind.DEADLINE: ("D", "suspended if its GPUs stay quiet"),
}
_ROWS = 24
"""Rows of the table that accompanies a signal."""

_MARKED = {
    CandidateState.WARNED: MarkKind.WARNING,
    CandidateState.GRANTED: MarkKind.GRANT,
    CandidateState.SUSPENDED: MarkKind.SUSPENSION,
    CandidateState.WAKING: MarkKind.WAKE,
    CandidateState.KEPT: MarkKind.KEEP,
    CandidateState.EXCLUDED: MarkKind.KEEP,
}
"""What the begin of a state is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBand:
    state: str
    begin: datetime
    end: datetime
    left: float
    width: float

    @property
    def has_room(self) -> bool:
        """Whether its name fits into it."""
        return self.width >= _CHARACTER * (len(self.state) + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    kind: MarkKind
    at: datetime
    percent: float
    text: str = ""
    row: int = 0

    @property
    def top(self) -> int:
        return _MARKS_TOP + self.row * _MARK_HEIGHT

    @property
    def letter(self) -> str:
        return _LETTERS[self.kind][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalLane:
    track: SignalTrack
    top: int
    height: int
    line: str
    """The highest sample, in a square of the size 100."""
    band: str
    """The band from the quietest GPU to the highest sample."""
    seen: str
    """The times of samples."""
    floor: float
    """Pixels from above."""

    @property
    def rows(self) -> Sequence[SignalBin]:
        """The newest first, evenly spread."""
        every = max(1, -(-len(self.track.bins) // _ROWS))
        return self.track.bins[::-1][::every]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    axis: TimeAxis
    now: float
    """Percent from the left."""
    bands: Sequence[StateBand]
    marks: Sequence[TimelineMark]
    lanes: Sequence[SignalLane]
    axis_top: int

    @property
    def height(self) -> int:
        return self.axis_top + _AXIS_HEIGHT

    @property
    def legend(self) -> list[tuple[MarkKind, str, str]]:
        """The kinds of marks that there are, each with its letter and its meaning."""
        present = {each.kind for each in self.marks}
        return [(kind, *said) for kind, said in _LETTERS.items() if kind in present]


def axis_of(now: datetime, span: timedelta, suspend_at: datetime | None) -> TimeAxis:
    """The span up to now, and on to the deadline where that is not farther away than half of it."""
    end = suspend_at if suspend_at is not None and now < suspend_at <= now + span / 2 else now
    return TimeAxis(begin=now - span, end=end + (end - now + span) / 50)


def draw_timeline(
    axis: TimeAxis,
    history: Sequence[HistoryLine],
    tracks: Sequence[SignalTrack],
    *,
    now: datetime,
    floor_ratio: float,
    suspend_at: datetime | None = None,
    keep_until: datetime | None = None,
) -> Timeline:
    marks = _in_rows([*_marks(history, axis), *_expected(axis, suspend_at, keep_until)])
    top = _MARKS_TOP + (1 + max((each.row for each in marks), default=0)) * _MARK_HEIGHT + _SIGNAL_GAP
    lanes = [_lane(track, number, axis, floor_ratio, top=top) for number, track in enumerate(tracks)]
    return Timeline(
        axis=axis,
        now=axis.percent(now),
        bands=[*_bands(history, axis, now)],
        marks=marks,
        lanes=lanes,
        axis_top=lanes[-1].top + _SIGNAL_HEIGHT if lanes else top,
    )


def _bands(history: Sequence[HistoryLine], axis: TimeAxis, now: datetime) -> Iterator[StateBand]:
    for line, after in zip(history, (*history[1:], None), strict=False):
        end = after.at if after is not None else now
        left, right = axis.percent(line.at), axis.percent(end)
        if end > axis.begin and line.at < axis.end and end > line.at:
            yield StateBand(state=line.state, begin=line.at, end=end, left=left, width=round(right - left, 3))


def _marks(history: Sequence[HistoryLine], axis: TimeAxis) -> Iterator[TimelineMark]:
    for line in history:
        kind = _MARKED.get(line.state)  # type: ignore[call-overload]
        if kind is not None and axis.contains(line.at):
            yield TimelineMark(kind=kind, at=line.at, percent=axis.percent(line.at), text=line.message)


def _expected(axis: TimeAxis, suspend_at: datetime | None, keep_until: datetime | None) -> Iterator[TimelineMark]:
    for kind, at in ((MarkKind.KEPT_UNTIL, keep_until), (MarkKind.DEADLINE, suspend_at)):
        if at is not None and axis.contains(at):
            yield TimelineMark(kind=kind, at=at, percent=axis.percent(at))


def _in_rows(marks: Sequence[TimelineMark]) -> list[TimelineMark]:
    """Marks in the order of time; those that would hide each other are in different rows, as far as there are any."""
    ends, found = [float("-inf")] * _MARK_ROWS, list[TimelineMark]()
    for mark in sorted(marks, key=lambda each: each.at):
        row = next((row for row, end in enumerate(ends) if mark.percent >= end), len(found) % _MARK_ROWS)
        ends[row] = mark.percent + _MARK_WIDTH
        found.append(replace(mark, row=row))
    return found


def _lane(track: SignalTrack, number: int, axis: TimeAxis, floor_ratio: float, *, top: int) -> SignalLane:
    top = top + number * (_SIGNAL_HEIGHT + _SIGNAL_LABEL + _SIGNAL_GAP) + _SIGNAL_LABEL
    runs = [*_runs(track.bins)]
    return SignalLane(
        track=track,
        top=top,
        height=_SIGNAL_HEIGHT,
        line=" ".join(_line(run, axis) for run in runs),
        band=" ".join(_area(run, axis) for run in runs),
        seen=" ".join(
            f"M{axis.percent(run[0].begin)} 0H{axis.percent(run[-1].end)}V100H{axis.percent(run[0].begin)}Z"
            for run in runs
        ),
        floor=round(_SIGNAL_HEIGHT * _y(floor_ratio) / 100, 1),
    )


def _runs(bins: Sequence[SignalBin]) -> Iterator[Sequence[SignalBin]]:
    """The bins that follow each other without a hole."""
    begin = 0
    for number in range(1, len(bins)):
        if bins[number].begin - bins[number - 1].end > timedelta(milliseconds=1):
            yield bins[begin:number]
            begin = number
    if bins:
        yield bins[begin:]


def _line(run: Sequence[SignalBin], axis: TimeAxis) -> str:
    return "M" + "L".join(f"{x:.5g} {y:.4g}" for x, y in _steps(run, axis, [each.high_ratio for each in run]))


def _area(run: Sequence[SignalBin], axis: TimeAxis) -> str:
    upper = _steps(run, axis, [each.high_ratio for each in run])
    lower = _steps(run, axis, [each.low_ratio for each in run])
    return "M" + "L".join(f"{x:.5g} {y:.4g}" for x, y in [*upper, *reversed(lower)]) + "Z"


def _steps(run: Sequence[SignalBin], axis: TimeAxis, ratios: Sequence[float]) -> list[tuple[float, float]]:
    return [
        (axis.percent(at), _y(ratio)) for each, ratio in zip(run, ratios, strict=True) for at in (each.begin, each.end)
    ]


def _y(ratio: float) -> float:
    """The distance from above, of 100."""
    return round(100 * (1 - sqrt(min(1.0, max(0.0, ratio)))), 2)
