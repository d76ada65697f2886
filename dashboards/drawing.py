"""Panels as SVG and HTML, drawn from series. Colours come from the panel; text and lines from the page's theme."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from typing import Any

from dashboards.answers import Series
from dashboards.numbers import ticks, written

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B5A900", "#8C8C8C")
_LEFT, _BOTTOM, _TOP, _RIGHT = 54, 20, 8, 8
_CHARACTER = 6.2
"""Width of one at the size of labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The picture's size in pixels, and the time that all pictures of a page show."""

    width: int
    height: int
    start: float
    end: float
    step: float

    def lower(self, by: int) -> "Frame":
        return replace(self, height=self.height - by)

    @property
    def times(self) -> list[float]:
        """All that there may be a value for."""
        count = round((self.end - self.start) / self.step)
        return [self.start + self.step * at for at in range(count + 1)]


def draw(panel: Mapping[str, Any], series: Sequence[Sequence[Series]], frame: Frame) -> str:  # noqa: PLR0911
    """The inside of the panel as HTML; `series` by query. What is empty says why."""
    defaults = panel["fieldConfig"]["defaults"]
    flat = [each for found in series for each in found if any(math.isfinite(value) for _, value in each.points)]
    if not flat:
        return f'<p class="empty">{escape(defaults.get("noValue", ""))}</p>'
    unit, colours = defaults.get("unit", "short"), _colours(panel, flat)
    match panel["type"]:
        case "stat":
            return _stat(flat, unit, defaults, frame)
        case "bargauge":
            return _bars(flat, unit, defaults)
        case "table":
            return _table(panel, series)
        case "status-history":
            return _cells(flat, unit, defaults, frame)
        case "state-timeline":
            return _timeline(flat, colours, frame)
        case _:
            return _graph(panel, flat, unit, colours, frame)


def _colours(panel: Mapping[str, Any], series: Sequence[Series]) -> dict[str, str]:
    fixed = {
        each["matcher"]["options"]: prop["value"]["fixedColor"]
        for each in panel["fieldConfig"].get("overrides", ())
        for prop in each["properties"]
        if prop["id"] == "color"
    }
    names = list(dict.fromkeys(each.name for each in series))
    return {name: fixed.get(name, PALETTE[at % len(PALETTE)]) for at, name in enumerate(names)}


def _by_threshold(value: float, defaults: Mapping[str, Any]) -> str:
    colour = "#8C8C8C"
    for step in defaults.get("thresholds", {}).get("steps", ()):
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    return colour


# ------------------------------------------------------------------------------------------------------------ over time


class _Axes:
    """The positions of times and values in the picture."""

    def __init__(self, frame: Frame, top: float, left: int = _LEFT) -> None:
        self.frame = frame
        self.left = left
        self.ticks = ticks(top)

    def x(self, time: float) -> float:
        frame, inner = self.frame, self.frame.width - self.left - _RIGHT
        return round(self.left + inner * (time - frame.start) / (frame.end - frame.start), 1)

    def y(self, value: float) -> float:
        inner = self.frame.height - _TOP - _BOTTOM
        return round(_TOP + inner * (1 - value / self.ticks[-1]), 1)

    def drawn(self, unit: str) -> str:
        right = self.frame.width - _RIGHT
        lines = [
            f'<line class="grid" x1="{self.left}" y1="{self.y(each)}" x2="{right}" y2="{self.y(each)}"/>'
            f'<text x="{self.left - 6}" y="{self.y(each) + 4}" text-anchor="end">{escape(written(each, unit))}</text>'
            for each in self.ticks
        ]
        return "".join(lines) + self.times()

    def times(self) -> str:
        """Hours and minutes below, and seconds where all of it takes only minutes."""
        start, length = self.frame.start, self.frame.end - self.frame.start
        form = "%H:%M" if length > 600 else "%H:%M:%S"
        count = max(2, (self.frame.width - self.left) // 110)
        marks = [start + length * (at + 0.5) / count for at in range(count)]
        return "".join(
            f'<text x="{self.x(each)}" y="{self.frame.height - 5}" text-anchor="middle">'
            f"{datetime.fromtimestamp(each, UTC).strftime(form)}</text>"
            for each in marks
        )


def _finite(series: Sequence[Series]) -> list[Series]:
    kept = [
        Series(each.name, tuple((at, value) for at, value in each.points if math.isfinite(value)), each.labels)
        for each in series
    ]
    return [each for each in kept if each.points]


def _graph(
    panel: Mapping[str, Any], series: Sequence[Series], unit: str, colours: Mapping[str, str], frame: Frame
) -> str:
    series, custom = _finite(series), panel["fieldConfig"]["defaults"].get("custom", {})
    legend, lines = _legend(series, colours, frame.width)
    frame = frame.lower(16 * lines)
    if custom.get("drawStyle") == "bars":
        drawn = _stacked_bars(series, unit, colours, frame)
    elif custom.get("stacking", {}).get("mode") == "normal":
        drawn = _stacked(series, unit, colours, frame)
    else:
        drawn = _lines(series, unit, colours, frame)
    return f'<svg width="{frame.width}" height="{frame.height}">{drawn}</svg>{legend}'


def _lines(series: Sequence[Series], unit: str, colours: Mapping[str, str], frame: Frame) -> str:
    axes = _Axes(frame, max(value for each in series for _, value in each.points))
    return axes.drawn(unit) + "".join(
        f'<polyline fill="none" stroke="{colours[each.name]}" stroke-width="2" stroke-linecap="round" points="'
        + " ".join(f"{axes.x(at)},{axes.y(value)}" for at, value in piece)
        + '"/>'
        for each in series
        for piece in _pieces(each.points, frame.step)
    )


def _pieces(points: Sequence[tuple[float, float]], step: float) -> list[list[tuple[float, float]]]:
    """The points without the holes between them."""
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if pieces and point[0] - pieces[-1][-1][0] <= step * 1.5:
            pieces[-1].append(point)
        else:
            pieces.append([point, point])
    return pieces


def _values(series: Sequence[Series], frame: Frame) -> dict[str, list[float]]:
    """The values of every name at all times of the frame; 0 where it has none."""
    values: dict[str, list[float]] = {}
    for each in series:
        row = values.setdefault(each.name, [0.0] * len(frame.times))
        for at, value in each.points:
            row[min(len(row) - 1, round((at - frame.start) / frame.step))] += value
    return values


def _stacked(series: Sequence[Series], unit: str, colours: Mapping[str, str], frame: Frame) -> str:
    times, values = frame.times, _values(series, frame)
    axes = _Axes(frame, max(map(sum, zip(*values.values(), strict=True))))
    below = [0.0] * len(times)
    drawn = axes.drawn(unit)
    for name, row in values.items():
        above = [floor + value for floor, value in zip(below, row, strict=True)]
        edge = [f"{axes.x(at)},{axes.y(value)}" for at, value in zip(times, above, strict=True)]
        floor = [f"{axes.x(at)},{axes.y(value)}" for at, value in zip(times, below, strict=True)]
        points = " ".join(edge + floor[::-1])
        drawn += f'<polygon fill="{colours[name]}" fill-opacity="0.8" points="{points}"/>'
        below = above
    return drawn


def _stacked_bars(series: Sequence[Series], unit: str, colours: Mapping[str, str], frame: Frame) -> str:
    times, values = frame.times, _values(series, frame)
    axes = _Axes(frame, max(map(sum, zip(*values.values(), strict=True))))
    width = max(1.0, (axes.x(frame.end) - axes.x(frame.start)) / len(times) * 0.9)
    below = [0.0] * len(times)
    drawn = axes.drawn(unit)
    for name, row in values.items():
        for at, value in enumerate(row):
            if value:
                top, floor = axes.y(below[at] + value), axes.y(below[at])
                box = f'x="{axes.x(times[at])}" y="{top}" width="{width:.1f}" height="{floor - top:.1f}"'
                drawn += f'<rect {box} fill="{colours[name]}"/>'
                below[at] += value
    return drawn


def _legend(series: Sequence[Series], colours: Mapping[str, str], width: int) -> tuple[str, int]:
    """The legend, and how many lines it takes."""
    names = list(dict.fromkeys(each.name for each in series))
    length = sum(len(name) * _CHARACTER + 26 for name in names)
    marks = "".join(f'<span><i style="background:{colours[name]}"></i>{escape(name)}</span>' for name in names)
    lines = min(3, max(1, math.ceil(length / max(1, width))))
    return f'<div class="legend" style="max-height:{16 * lines}px">{marks}</div>', lines


def _rows(names: Sequence[str], frame: Frame) -> tuple[int, float]:
    """How much room names take on the left, and the height of a row."""
    left = round(min(frame.width * 0.3, max(len(name) for name in names) * _CHARACTER + 12))
    return left, min(40.0, (frame.height - _TOP - _BOTTOM) / len(names))


def _label(name: str, left: int, middle: float) -> str:
    most = max(4, int((left - 12) / _CHARACTER))
    text = name if len(name) <= most else f"{name[: most - 1]}…"
    return f'<text x="{left - 6}" y="{middle + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _cells(series: Sequence[Series], unit: str, defaults: Mapping[str, Any], frame: Frame) -> str:
    left, height = _rows([each.name for each in series], frame)
    axes = _Axes(frame, 1.0, left)
    drawn, every = axes.times(), max(1, len(frame.times) // 60)
    width = (frame.width - left - _RIGHT) * every / len(frame.times)
    for at, each in enumerate(series):
        top = _TOP + at * height
        drawn += _label(each.name, left, top + height / 2)
        for time, value in each.points[::every]:
            if math.isfinite(value):
                words = f"{each.name} {datetime.fromtimestamp(time, UTC):%H:%M:%S} {written(value, unit)}"
                drawn += (
                    f'<rect x="{axes.x(time)}" y="{top + 1:.1f}" width="{max(1.0, width - 1):.1f}" '
                    f'height="{max(1.0, height - 2):.1f}" rx="2" fill="{_by_threshold(value, defaults)}">'
                    f"<title>{escape(words)}</title></rect>"
                )
    return f'<svg width="{frame.width}" height="{frame.height}">{drawn}</svg>'


def _timeline(series: Sequence[Series], colours: Mapping[str, str], frame: Frame) -> str:
    left, height = _rows([each.name for each in series], frame)
    axes = _Axes(frame, 1.0, left)
    drawn = axes.times()
    for at, each in enumerate(series):
        top = _TOP + at * height
        drawn += _label(each.name, left, top + height / 2)
        for begin, end in _spells(each.points, frame.step):
            x, width = axes.x(begin), max(1.0, axes.x(min(end, frame.end)) - axes.x(begin))
            drawn += (
                f'<rect x="{x}" y="{top + 2:.1f}" width="{width:.1f}" height="{max(1.0, height - 4):.1f}" rx="2" '
                f'fill="{colours[each.name]}"/>'
            )
    return f'<svg width="{frame.width}" height="{frame.height}">{drawn}</svg>'


def _spells(points: Sequence[tuple[float, float]], step: float) -> list[tuple[float, float]]:
    """The spans in which the value was not 0."""
    spells: list[tuple[float, float]] = []
    for at, value in points:
        if not value:
            continue
        if spells and at - spells[-1][1] <= step * 1.5:
            spells[-1] = (spells[-1][0], at + step)
        else:
            spells.append((at, at + step))
    return spells


# ------------------------------------------------------------------------------------------------------------------ now


def _stat(series: Sequence[Series], unit: str, defaults: Mapping[str, Any], frame: Frame) -> str:
    """Numbers side by side, the course of the first behind them."""
    numbers = []
    for each in series[:3]:
        value = each.last if each.last is not None else math.nan
        colour, name = _by_threshold(value, defaults), f"<small>{escape(each.name)}</small>" if len(series) > 1 else ""
        numbers.append(f'<div style="color:{colour}">{escape(written(value, unit)) or "–"}{name}</div>')
    return f'<div class="stat">{"".join(numbers)}</div>{_spark(_finite(series[:1]), frame)}'


def _spark(series: Sequence[Series], frame: Frame) -> str:
    if not series or len(series[0].points) < 2:
        return ""
    width, height = frame.width + 18, 34
    highest = max(abs(value) for _, value in series[0].points) or 1.0
    points = series[0].points
    line = " ".join(
        f"{width * (at - frame.start) / (frame.end - frame.start):.1f},"
        f"{height - max(0.0, value) / highest * (height - 2):.1f}"
        for at, value in points
    )
    first, last = (width * (at - frame.start) / (frame.end - frame.start) for at in (points[0][0], points[-1][0]))
    area = f'<polyline points="{first:.1f},{height} {line} {last:.1f},{height}"/>'
    return f'<svg class="spark" width="{width}" height="{height}">{area}</svg>'


def _bars(series: Sequence[Series], unit: str, defaults: Mapping[str, Any]) -> str:
    values = [(each.name, each.last) for each in series if each.last is not None and math.isfinite(each.last)]
    highest = max((value for _, value in values), default=0.0) or 1.0
    return "".join(
        f'<div class="bar"><span>{escape(name)}</span><b><i style="width:{max(0.5, 100 * value / highest):.1f}%;'
        f'background:{_by_threshold(value, defaults)}"></i></b><em>{escape(written(value, unit))}</em></div>'
        for name, value in sorted(values, key=lambda each: -each[1])[:8]
    )


def _table(panel: Mapping[str, Any], series: Sequence[Sequence[Series]]) -> str:
    options = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")
    units = {
        each["matcher"]["options"]: prop["value"]
        for each in panel["fieldConfig"].get("overrides", ())
        for prop in each["properties"]
        if prop["id"] == "unit"
    }
    fields = sorted(options["renameByName"], key=options["indexByName"].__getitem__)
    titles = [options["renameByName"][each] for each in fields]
    rows = "".join(
        "<tr>" + "".join(_cell(row.get(field), units.get(title, "short")) for field, title in pairs) + "</tr>"
        for row in merged(series)
        for pairs in [list(zip(fields, titles, strict=True))]
    )
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def merged(series: Sequence[Sequence[Series]]) -> list[dict[str, Any]]:
    """Rows of several queries with the same labels as one; the largest of the first query first."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for number, found in enumerate(series):
        value_field = f"Value #{chr(ord('A') + number)}" if len(series) > 1 else "Value"
        for each in found:
            labels = {key: value for key, value in each.labels.items() if key != "__name__"}
            rows.setdefault(tuple(sorted(labels.items())), dict(labels))[value_field] = each.last
    first = "Value #A" if len(series) > 1 else "Value"
    return sorted(rows.values(), key=lambda row: -(row.get(first) or 0.0))


def _cell(value: Any, unit: str) -> str:
    if isinstance(value, float):
        return f'<td class="n">{escape(written(value, unit))}</td>'
    return f"<td>{escape(str(value or ''))}</td>"
