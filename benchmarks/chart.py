"""Small line charts as SVG: both axes logarithmic, light and dark."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 300, 240, 46, 34, 16, 40

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .grid { stroke: #d1d9e0 }
.line { stroke: #0969da; fill: none; stroke-width: 2 } .point { fill: #0969da } .limit { stroke: #d1242f }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .grid { stroke: #3d444d } .line { stroke: #4493f8 }
.point { fill: #4493f8 } .limit { stroke: #f85149 } }
"""


class Panel(NamedTuple):
    title: str
    x: Sequence[float]
    y: Sequence[float]
    limit: float | None = None
    """Drawn as a line of its own."""


class _Axis(NamedTuple):
    """An axis from a power of ten to a power of ten, and where these are drawn."""

    first: int
    last: int
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> "_Axis":
        first, last = floor(log10(min(values))), ceil(log10(max(values)))
        return cls(first, max(last, first + 1), begin, end)

    def at(self, value: float) -> float:
        return self.begin + (log10(value) - self.first) / (self.last - self.first) * (self.end - self.begin)

    def marks(self) -> Iterator[tuple[float, str]]:
        for power in range(self.first, self.last + 1):
            yield self.at(10**power), f"{10**power:,g}" if power < 3 else f"{10 ** (power - 3):,}k"


def chart(panels: Sequence[Panel], *, x_label: str) -> str:
    """The panels side by side, as the text of an SVG file."""
    inner = "".join(
        f'<g transform="translate({number * WIDTH} 0)">{"".join(_panel(panel, x_label))}</g>\n'
        for number, panel in enumerate(panels)
    )
    width = WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}">\n'
        f"<style>{STYLE}</style>\n{inner}</svg>\n"
    )


def _panel(panel: Panel, x_label: str) -> Iterator[str]:
    x = _Axis.over(panel.x, LEFT, WIDTH - RIGHT)
    y = _Axis.over([*panel.y, *([panel.limit] if panel.limit else [])], HEIGHT - BOTTOM, TOP)
    yield f'<text class="title" x="{LEFT}" y="18">{panel.title}</text>'
    for at, mark in x.marks():
        yield _line("grid", (at, TOP), (at, HEIGHT - BOTTOM))
        yield f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{mark}</text>'
    for at, mark in y.marks():
        yield _line("grid", (LEFT, at), (WIDTH - RIGHT, at))
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{mark}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{x_label}</text>'
    if panel.limit:
        yield _line("limit", (LEFT, y.at(panel.limit)), (WIDTH - RIGHT, y.at(panel.limit)))
    points = [(x.at(one), y.at(other)) for one, other in zip(panel.x, panel.y, strict=True)]
    for begin, end in pairwise(points):
        yield _line("line", begin, end)
    for one, other in points:
        yield f'<circle class="point" cx="{one:.1f}" cy="{other:.1f}" r="3"/>'


def _line(kind: str, begin: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{kind}" x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'
