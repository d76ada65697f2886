"""Evidence → a small picture (PNG): a row of bars for each signal, its floor, the end of the samples and the deadline.

A card of its own colours, so that it reads the same on a light and on a dark background. Heights are of the square root
of the share: work of a few percent is seen, and the floor is a line above the ground.

Source: Pillow.
"""

import io
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from scaler.notifications.evidence import Evidence, SignalPicture

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

log = structlog.get_logger(__name__)

WIDTH = 600
"""Pixels as shown; there are `_SCALE` times as many."""
_SCALE = 2
_ROW, _HEAD, _FOOT, _SIDE = 84, 28, 26, 16
_CARD, _EDGE = "#f7f8fa", "#c9ced6"
_INK, _FAINT = "#1f2733", "#5b6675"
_QUIET, _WORK, _HOLE = "#aeb7c4", "#2563c9", "#e9dcc3"
_FLOOR, _DEADLINE, _AHEAD = "#8a5a00", "#b3261e", "#fbeedd"


def drawn(evidence: Evidence) -> bytes | None:
    """None where it cannot be drawn, which is logged: a message goes out without it."""
    try:
        return draw(evidence)
    except Exception:  # of a library; the text says the same
        log.exception("a picture could not be drawn", workload=evidence.workload)
        return None


def draw(evidence: Evidence) -> bytes:
    """A PNG."""
    # Imported when the first picture is drawn: it takes 20 MB.
    from PIL import Image, ImageDraw

    height = len(evidence.signals) * (_HEAD + _ROW) + _FOOT
    image = Image.new("RGBA", (WIDTH * _SCALE, height * _SCALE), (0, 0, 0, 0))
    card = _Card(ImageDraw.Draw(image), evidence, height)
    card.background()
    for number, signal in enumerate(evidence.signals):
        card.row(signal, top=number * (_HEAD + _ROW))
    card.times()
    out = io.BytesIO()
    image.quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()


class _Card:
    def __init__(self, canvas: "ImageDraw", evidence: Evidence, height: int) -> None:
        self._canvas = canvas
        self._evidence = evidence
        self._height = height
        first = evidence.signals[0]
        self._begin, self._now = first.begin, first.end
        is_ahead = evidence.suspend_at is not None and evidence.suspend_at > first.end
        self._due = evidence.suspend_at if is_ahead else None
        self._end = _end(first, self._due)

    def background(self) -> None:
        size = (0, 0, WIDTH * _SCALE - 1, self._height * _SCALE - 1)
        self._canvas.rounded_rectangle(size, radius=8 * _SCALE, fill=_CARD, outline=_EDGE, width=_SCALE)

    def row(self, signal: SignalPicture, *, top: float) -> None:
        base = top + _HEAD + _ROW - 8
        holes = "; pale: no sample" if None in signal.peaks else ""
        self._write(_SIDE, top + 9, str(signal).partition("  ")[2] + holes)
        if self._end > self._now:
            self._box(self._x(self._now), top + _HEAD, self._x(self._end), base, _AHEAD)
        part = (signal.end - signal.begin) / len(signal.peaks)
        for number, peak in enumerate(signal.peaks):
            left, right = (self._x(signal.begin + part * each) for each in (number, number + 1))
            self._bar(left + 1, right - 1, base, peak, signal.floor_ratio)
        floor = base - _rise(signal.floor_ratio)
        self._dashes(floor, self._x(self._now))
        self._line(self._x(self._begin), base, self._x(self._end), base, _EDGE)
        if self._due is not None and self._due <= self._end:
            at = self._x(self._due)
            self._line(at, top + _HEAD - 4, at, base, _DEADLINE, width=2)

    def _bar(self, left: float, right: float, base: float, peak: float | None, floor: float) -> None:
        if peak is None:
            self._box(left, base - _rise(1.0), right, base, _HOLE)
        else:
            self._box(left, base - max(2.0, _rise(peak)), right, base, _WORK if peak >= floor else _QUIET)

    def times(self) -> None:
        """Below the rows: the begin, the end of the samples, and the deadline, where they have room."""
        y, right = self._height - _FOOT + 4, WIDTH - _SIDE
        self._write(_SIDE, y, _clock(self._begin), colour=_FAINT)
        due = self._due
        if due is not None:
            day = "" if due.date() == self._now.date() else f"{due:%d %b} "
            words = f"suspended {day}{_clock(due)} UTC"
            self._write(right, y, words, colour=_DEADLINE, anchor="ra")
        if due is None or self._x(self._now) < right - 190:
            self._write(self._x(self._now), y, _clock(self._now) + ("" if due else " UTC"), colour=_FAINT, anchor="ra")

    # ---- in pixels as shown

    def _x(self, at: datetime) -> float:
        return _SIDE + (WIDTH - 2 * _SIDE) * ((at - self._begin) / (self._end - self._begin))

    def _box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        self._canvas.rectangle([_SCALE * each for each in (left, top, right, bottom)], fill=colour)

    def _line(self, x: float, y: float, to_x: float, to_y: float, colour: str, *, width: int = 1) -> None:
        self._canvas.line([_SCALE * each for each in (x, y, to_x, to_y)], fill=colour, width=width * _SCALE)

    def _dashes(self, y: float, right: float) -> None:
        x = float(_SIDE)
        while x < right:
            self._line(x, y, min(x + 5, right), y, _FLOOR)
            x += 9

    def _write(self, x: float, y: float, words: str, *, colour: str = _INK, anchor: str = "la") -> None:
        from PIL import ImageFont

        font = ImageFont.load_default(size=12 * _SCALE)
        self._canvas.text((x * _SCALE, y * _SCALE), words, fill=colour, font=font, anchor=anchor)


def _end(first: SignalPicture, suspend_at: datetime | None) -> datetime:
    """Of the time that is shown: the deadline, where that is no farther than the samples go back."""
    if suspend_at is None:
        return first.end
    return min(suspend_at + (suspend_at - first.begin) / 50, first.end + (first.end - first.begin))


def _rise(ratio: float) -> float:
    """Above the ground."""
    return float((_ROW - 16) * min(1.0, max(0.0, ratio)) ** 0.5)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"
