"""GPUs by state over time, as stacked areas. Pure.

Each state is one shape: from the sum of the states below it to that sum and its own. Where nothing was seen for several
intervals there is a gap: what was in between is not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.reporting.page.axes import TimeAxis, TimeTick, round_ticks
from scaler.reporting.usage.gpu_states import GpuState

SUSPENDED = "Suspended"
"""GPUs that suspended workloads would hold."""
STACK = (
    *map(str, (GpuState.BUSY, GpuState.STARTING, GpuState.ENDING, GpuState.UNKNOWN, GpuState.WITHOUT_METRICS)),
    *map(str, (GpuState.HELD_IDLE, GpuState.IDLE)),
    SUSPENDED,
)
"""The states from the bottom up."""
MEANINGS = {
    GpuState.BUSY: "work was seen",
    GpuState.STARTING: "pods start, or are too young to be judged",
    GpuState.ENDING: "pods terminate",
    GpuState.UNKNOWN: "cannot be judged",
    GpuState.WITHOUT_METRICS: "no samples",
    GpuState.HELD_IDLE: "their workloads are kept, observed, or needed by no gang",
    GpuState.IDLE: "their workloads are suspended when their time has come",
    SUSPENDED: "free; suspended workloads would hold them",
}
LABELS = {GpuState.HELD_IDLE: "Idle, left alone", GpuState.IDLE: "Idle", GpuState.WITHOUT_METRICS: "Without metrics"}
"""How states are called whose names are not words."""
HEIGHT = 220
_LONGEST_GAP = 4
_ROWS = 12
"""Rows of the table that accompanies it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSample:
    at: datetime
    gpus: Mapping[str, float]
    """GPUs by state; what is missing is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetArea:
    state: str
    meaning: str
    path: str
    """Its coordinates are those of a square of the size 1."""
    now: float

    @property
    def label(self) -> str:
        return LABELS.get(GpuState(self.state), self.state) if self.is_held else self.state

    @property
    def is_held(self) -> bool:
        """Whether pods hold these GPUs."""
        return self.state != SUSPENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChart:
    axis: TimeAxis
    areas: Sequence[FleetArea]
    ticks: Sequence[TimeTick]
    levels: Sequence[tuple[int, float]]
    """GPUs, and how many pixels from above."""
    rows: Sequence[FleetSample]
    total: float
    """GPUs that pods hold now."""
    height: int = HEIGHT

    @property
    def idle(self) -> float:
        """GPUs that are idle now."""
        return sum(each.now for each in self.areas if each.state in (GpuState.IDLE, GpuState.HELD_IDLE))

    @property
    def suspended(self) -> float:
        """GPUs that suspended workloads would hold now."""
        return sum(each.now for each in self.areas if not each.is_held)


def draw_fleet(
    samples: Sequence[FleetSample],
    *,
    step: timedelta,
    begin: datetime,
    axis: TimeAxis | None = None,
    longest_gap: int = _LONGEST_GAP,
) -> FleetChart | None:
    """The chart from `begin`, or from the first sample where that is later, to the last one; None without any.

    `axis`, where it is about another time. `longest_gap`: steps without a sample that are drawn as if nothing changed.
    """
    shown = [each for each in samples if each.at >= begin]
    if not shown:
        return None
    axis = axis or TimeAxis(begin=min(shown[0].at, shown[-1].at - step), end=shown[-1].at)
    levels = round_ticks(max(sum(each.gpus.values()) for each in shown))
    present = [state for state in STACK if any(each.gpus.get(state) for each in shown)]
    runs = [*_runs(shown, longest_gap * step)]
    newest, plane = shown[-1].gpus, _Plane(axis=axis, highest=levels[-1], step=step)
    return FleetChart(
        axis=axis,
        areas=[
            FleetArea(
                state=state,
                meaning=MEANINGS[state],
                path=" ".join(plane.path(run, present[:number], state) for run in runs),
                now=newest.get(state, 0.0),
            )
            for number, state in enumerate(present)
        ],
        ticks=axis.ticks,
        levels=[(each, HEIGHT * (1 - each / levels[-1])) for each in levels],
        rows=_some(shown),
        total=sum(count for state, count in newest.items() if state != SUSPENDED),
    )


def _runs(samples: Sequence[FleetSample], longest_gap: timedelta) -> Iterator[Sequence[FleetSample]]:
    """The samples, parted where there are none for longer than that."""
    begin = 0
    for number in range(1, len(samples)):
        if samples[number].at - samples[number - 1].at > longest_gap:
            yield samples[begin:number]
            begin = number
    yield samples[begin:]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """The positions of amounts over time, in a square of the size 1."""

    axis: TimeAxis
    highest: int
    step: timedelta

    def path(self, run: Sequence[FleetSample], below: Sequence[str], state: str) -> str:
        lower = [sum(each.gpus.get(name, 0.0) for name in below) for each in run]
        upper = [base + each.gpus.get(state, 0.0) for each, base in zip(run, lower, strict=True)]
        points = [*self._edge(run, upper), *reversed(self._edge(run, lower))]
        return "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in points) + "Z"

    def _edge(self, run: Sequence[FleetSample], amounts: Sequence[float]) -> list[tuple[float, float]]:
        """A sample holds until the next one, the last one for one step."""
        ends = [*(each.at for each in run[1:]), min(self.axis.end, run[-1].at + self.step)]
        points = [
            (self.axis.percent(at) / 100, round(1 - amount / self.highest, 4))
            for each, end, amount in zip(run, ends, amounts, strict=True)
            for at in (each.at, end)
        ]
        return _without_repeats(points)


def _without_repeats(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line where its height changes."""
    return [
        point
        for number, point in enumerate(points)
        if not 0 < number < len(points) - 1 or not points[number - 1][1] == point[1] == points[number + 1][1]
    ]


def _some(samples: Sequence[FleetSample]) -> list[FleetSample]:
    """The newest first, evenly spread."""
    every = -(-len(samples) // _ROWS)
    return [*samples[::-1][::every]]
