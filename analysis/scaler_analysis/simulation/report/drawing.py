"""What are the places of the points, labels and ticks of the report's curve? Pure; in units of WIDTH × HEIGHT.

A label is placed beside its point where it hides neither another label nor a point; where there is no such place it is
left out: the table below has all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

WIDTH, HEIGHT = 920.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 24.0, 20.0, 52.0
_LETTER, _LINE, _RADIUS = 7.3, 16.0, 8.0
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)
_MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotPoint:
    """Freed against regret."""

    kind: str
    """`window`, `other` (a window with another floor than today's), `today`, `recommended` or `rule`."""
    text: str
    title: str
    floor: str = ""
    """Empty for a rule."""
    regret: float
    freed: float
    x: float = 0.0
    y: float = 0.0
    label_x: float | None = None
    """The begin of its label; None where there is no room for one."""
    label_y: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretPlot:
    points: Sequence[PlotPoint]
    lines: Sequence[tuple[str, bool]] = field(default_factory=list)
    """The line of each floor through its windows: the points of a polyline, and whether it is today's floor."""
    x_ticks: Sequence[tuple[float, str]] = ()
    """The place of each tick, and its label."""
    y_ticks: Sequence[tuple[float, str]] = ()
    accepted_x: float | None = None


def plot_of(answer: Mapping[str, Any]) -> RegretPlot | None:
    """The plot; None where there is no curve."""
    curve = [each for each in answer.get("curve", ()) if each["suspensions"]]
    if not curve:
        return None
    best = answer.get("recommendation", {})
    today = next((each["activeAbove"] for each in curve if each["isToday"]), curve[0]["activeAbove"])
    longest = {each["activeAbove"]: each["idleAfter"] for each in curve}
    points = [_window(each, best, today, is_last=longest[each["activeAbove"]] == each["idleAfter"]) for each in curve]
    rules = [_rule(each) for each in answer["published"] if each["suspensions"]]
    accepted = best.get("acceptedRegret")
    highest_x = max([each.regret for each in (*points, *rules)] + ([accepted] if accepted else []))
    x_scale, x_ticks = _axis(highest_x)
    y_scale, y_ticks = _axis(max(each.freed for each in (*points, *rules)))

    def x_of(regret: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * regret / x_scale, 1)

    def y_of(freed: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * freed / y_scale, 1)

    placed = [replace(each, x=x_of(each.regret), y=y_of(each.freed)) for each in (*points, *rules)]
    floors = dict.fromkeys(each["activeAbove"] for each in curve)
    lines = [
        (" ".join(f"{each.x},{each.y}" for each in placed if each.floor == floor), floor == today) for floor in floors
    ]
    return RegretPlot(
        points=_labelled(placed),
        lines=lines,
        x_ticks=[(x_of(each), f"{each:.0%}") for each in x_ticks],
        y_ticks=[(y_of(each), f"{each:.0%}") for each in y_ticks],
        accepted_x=None if accepted is None else x_of(accepted),
    )


def _window(point: Mapping[str, Any], best: Mapping[str, Any], today: str, *, is_last: bool) -> PlotPoint:
    """A point of the curve. Only the longest window of a floor other than today's has a label, for its whole line."""
    window, floor = point["idleAfter"], point["activeAbove"]
    is_best = (best.get("idleAfter"), best.get("activeAbove")) == (window, floor)
    kind = "today" if point["isToday"] else "recommended" if is_best else "window" if floor == today else "other"
    text = {
        "today": f"today: {window}",
        "recommended": f"recommended: {window}",
        "other": f"floor {floor}" if is_last else "",
    }
    return PlotPoint(
        kind=kind,
        text=text.get(kind, window) + (f" at {floor}" if is_best and floor != today else ""),
        title=f"idleAfter {window}, activeAbove {floor}: {_said(point)}",
        floor=floor,
        regret=point["regretShare"],
        freed=point["freedShare"],
    )


def _rule(rule: Mapping[str, Any]) -> PlotPoint:
    return PlotPoint(
        kind="rule",
        text=rule["name"],
        title=f"{rule['name']}: {_said(rule)}",
        regret=rule["regretShare"],
        freed=rule["freedShare"],
    )


def _said(point: Mapping[str, Any]) -> str:
    return (
        f"frees {point['freedShare']:.1%}, {point['regretShare']:.0%} of {point['suspensions']:,} suspensions regretted"
    )


def _axis(highest: float) -> tuple[float, list[float]]:
    """What the axis reaches, and round ticks on it."""
    highest = max(highest, 0.01)
    step = next((each for each in _STEPS if highest / each <= _MOST_TICKS), _STEPS[-1])
    count = ceil(round(highest / step, 6))
    return count * step, [round(n * step, 4) for n in range(count + 1)]


# ---- labels

_Box = tuple[float, float, float, float]
_FIRST = {"today": 0, "recommended": 1, "rule": 2, "window": 3, "other": 4}


def _labelled(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    taken = [(each.x - _RADIUS, each.y - _RADIUS, each.x + _RADIUS, each.y + _RADIUS) for each in points]
    placed: dict[int, PlotPoint] = {}
    for number in sorted(range(len(points)), key=lambda n: _FIRST[points[n].kind]):
        point = points[number]
        box = next((each for each in _places(point) if point.text and _is_free(each, taken)), None)
        if box is not None:
            taken.append(box)
            placed[number] = replace(point, label_x=round(box[0], 1), label_y=round(box[3] - 4, 1))
    # The last one is drawn on top.
    return sorted(
        (placed.get(number, point) for number, point in enumerate(points)), key=lambda each: -_FIRST[each.kind]
    )


def _places(point: PlotPoint) -> Iterable[_Box]:
    width, gap = _LETTER * len(point.text), _RADIUS + 5
    for x, y in (
        (point.x + gap, point.y - _LINE / 2),
        (point.x - gap - width, point.y - _LINE / 2),
        (point.x + gap - 2, point.y + gap - 4),
        (point.x - gap - width + 2, point.y - gap - _LINE + 4),
        (point.x - width / 2, point.y - gap - _LINE),
        (point.x - width / 2, point.y + gap),
    ):
        yield x, y, x + width, y + _LINE


def _is_free(box: _Box, taken: Iterable[_Box]) -> bool:
    left, top, right, bottom = box
    is_inside = left >= LEFT and right <= WIDTH and top >= 0 and bottom <= HEIGHT - BOTTOM
    return is_inside and all(right < x or left > far_x or bottom < y or top > far_y for x, y, far_x, far_y in taken)
