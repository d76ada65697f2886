"""How a report is shown, in words and numbers: the same on a terminal, on the page and in a file. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from scaler.idleness.durations import format_duration
from scaler.reporting.page.axes import TimeAxis
from scaler.reporting.page.fleet_chart import STACK, SUSPENDED, FleetChart, FleetSample, draw_fleet
from scaler_analysis.report.formats import NAMES
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.notes import notes_of
from scaler_analysis.report.periods import Period
from scaler_analysis.report.summary import ReportRow, UsageReport
from scaler_analysis.report.sums import ROUGH, GpuTransfer, WaitingTime

UNKNOWN = "–"
_MINUTE = timedelta(minutes=1)
_STEPS = tuple(each * _MINUTE for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))
_MOST_POINTS = 240
TITLES = {
    GroupBy.TEAM: "Team",
    GroupBy.QUEUE: "ClusterQueue",
    GroupBy.MODEL: "Model",
    GroupBy.WORKLOAD: "Workload",
}
_NAMELESS = {GroupBy.TEAM: "without a namespace", GroupBy.QUEUE: "without a ClusterQueue", GroupBy.MODEL: "not named"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, what it is, and what else is to be said of it."""

    title: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    title: str
    about: str
    cells: Sequence[str]
    bar: Sequence[tuple[str, float, float]]
    """State, position and width in percent of the longest bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    report: UsageReport
    notes: Sequence[str]
    figures: Sequence[Figure]
    columns: Sequence[str]
    rows: Sequence[ShownRow]
    transfers: Sequence[GpuTransfer]
    more_rows: int
    more_transfers: int
    """How many are not among them."""
    waiting: Sequence[tuple[str, str, str, str]]
    """ClusterQueue, admitted Workloads, mean and most of their waiting times."""
    chart: FleetChart | None
    chart_gaps: Sequence[tuple[float, float]]
    states: Sequence[tuple[str, str]]
    """GPU-hours by state, in the order of the chart."""


def view_of(
    report: UsageReport, matchers: Mapping[str, str], samples: Sequence[FleetSample], *, most_rows: int = 2000
) -> ReportView:
    """`samples`: of the fleet, as far apart as `chart_step` says."""
    whole, columns = report.whole, columns_of(report)
    axis = TimeAxis(begin=whole.begin, end=whole.end)
    most = max((each.held_hours for each in report.rows), default=0.0)
    return ReportView(
        report=report,
        notes=notes_of(report, matchers),
        figures=figures_of(report),
        columns=[name for name, _ in columns],
        rows=[
            ShownRow(
                title=title_of(report.by, each),
                about=" · ".join(filter(None, each.name[1:3])) if report.by is GroupBy.WORKLOAD else "",
                cells=[cell(each) for _, cell in columns],
                bar=_bar(each, most),
            )
            for each in report.rows[:most_rows]
        ],
        transfers=report.transfers[:most_rows],
        more_rows=max(0, len(report.rows) - most_rows),
        more_transfers=max(0, len(report.transfers) - most_rows),
        waiting=[
            (queue or UNKNOWN, number(each.count, 0), *waiting_words(each)) for queue, each in report.waiting.items()
        ],
        chart=draw_fleet(samples, step=chart_step(whole), begin=whole.begin, axis=axis, longest_gap=1),
        chart_gaps=[
            (axis.percent(each.begin), axis.percent(each.end) - axis.percent(each.begin)) for each in report.gaps
        ],
        states=_states(report.total),
    )


def chart_step(whole: Period) -> timedelta:
    """How far apart samples of the fleet are, so that there are some hundreds."""
    return next((each for each in _STEPS if whole.length / each <= _MOST_POINTS), _STEPS[-1])


def title_of(by: GroupBy, row: ReportRow) -> str:
    if by is GroupBy.WORKLOAD:
        named = dict(zip(NAMES[by], row.name, strict=True))
        return f"{named['namespace']}/{named['name']}"
    return row.name[0] or _NAMELESS[by]


def _bar(row: ReportRow, most: float) -> list[tuple[str, float, float]]:
    found, at = list[tuple[str, float, float]](), 0.0
    for state in STACK:
        width = 100 * row.hours.get(state, 0.0) / most if most else 0.0
        if width >= 0.05:
            found.append((state, round(at, 2), round(width, 2)))
        at += width
    return found


def _states(total: ReportRow) -> list[tuple[str, str]]:
    hours = {**total.hours, SUSPENDED: total.suspended_hours or 0.0}
    return [(state, number(hours.get(state, 0.0))) for state in STACK if hours.get(state, 0.0) >= ROUGH]


# ------------------------------------------------------------------------------------------------------------- numbers


def columns_of(report: UsageReport) -> list[tuple[str, Callable[[ReportRow], str]]]:
    """What there is of any row, and how it is written."""
    columns: list[tuple[str, Callable[[ReportRow], float | object | None], Callable[[ReportRow], str]]] = [
        ("Held", lambda row: row.held_hours, lambda row: number(row.held_hours)),
        ("Idle", lambda row: row.held_hours, lambda row: number(row.idle_hours)),
        ("Idle share", lambda row: row.idle_share, lambda row: share(row.idle_share)),
        ("Not judged", lambda row: row.unknown_hours >= ROUGH or None, lambda row: number(row.unknown_hours)),
        ("Idle cost", lambda row: row.idle_cost, lambda row: money(row.idle_cost)),
        ("Longest idle", lambda row: row.longest_idle, lambda row: duration(row.longest_idle)),
        ("Suspended", lambda row: row.suspended_hours, lambda row: number(row.suspended_hours)),
        ("Suspended cost", lambda row: row.suspended_cost, lambda row: money(row.suspended_cost)),
        ("Given", lambda row: row.given_hours, lambda row: number(row.given_hours)),
        ("Got", lambda row: row.got_hours, lambda row: number(row.got_hours)),
        ("Suspensions", lambda row: row.suspensions, lambda row: number(row.suspensions, 0)),
        ("Regrets", lambda row: row.regrets, lambda row: number(row.regrets, 0)),
        ("Admitted", lambda row: row.waiting, lambda row: number(row.waiting.count if row.waiting else None, 0)),
        ("Waited", lambda row: row.waiting, lambda row: waiting_words(row.waiting)[0]),
        ("Energy", lambda row: row.energy_kwh, lambda row: number(row.energy_kwh, unit=" kWh")),
    ]
    return [(name, cell) for name, of, cell in columns if any(of(row) is not None for row in report.rows)]


def figures_of(report: UsageReport) -> list[Figure]:
    total = report.total
    if not report.known:
        return []
    found = [
        Figure(
            title="GPU-hours held",
            value=number(total.held_hours),
            detail=f"{number(total.hours.get('Busy', 0.0))} of them busy",
        ),
        Figure(title="held idle", value=number(total.idle_hours), detail=f"{share(total.idle_share)} of what was held"),
    ]
    if total.idle_cost is not None:
        found.append(Figure(title="cost of idle GPUs", value=money(total.idle_cost), detail="by metrics.prices"))
    found += [
        Figure(
            title="GPU-hours while suspended",
            value=number(total.suspended_hours),
            detail=f"would have cost {money(total.suspended_cost)}"
            if total.suspended_cost
            else "that idle workloads did not hold",
        ),
        Figure(title="GPU-hours given to gangs", value=number(total.got_hours), detail="by reclaim plans"),
        Figure(title="suspensions", value=number(total.suspensions, 0), detail=_regrets(report)),
    ]
    if total.waiting is not None:
        mean, most = waiting_words(total.waiting)
        words = f"waited {mean} on average, nine of ten at most {most}"
        found.append(Figure(title="Workloads admitted", value=number(total.waiting.count, 0), detail=words))
    if total.energy_kwh is not None:
        found.append(Figure(title="energy", value=number(total.energy_kwh, unit=" kWh"), detail="of all GPUs"))
    return found


def _regrets(report: UsageReport) -> str:
    within = f" within {format_duration(report.regret_within)}" if report.regret_within else ""
    return f"{number(report.total.regrets, 0)} regretted{within}"


def number(amount: float | None, digits: int = 1, *, unit: str = "") -> str:
    """The amount, with a digit after the point as long as it is small."""
    if amount is None:
        return UNKNOWN
    return f"{amount:,.{digits if amount < 1000 else 0}f}{unit}"


def share(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f} %"


def money(costs: Mapping[str, float] | None) -> str:
    if not costs:
        return UNKNOWN
    return ", ".join(number(cost, 2, unit=f" {currency}") for currency, cost in sorted(costs.items()))


def duration(length: timedelta | None) -> str:
    if length is None:
        return UNKNOWN
    return format_duration(length - length % _MINUTE) if length >= _MINUTE else "less than 1m"


def waiting_words(waiting: WaitingTime | None) -> tuple[str, str]:
    """The mean, and what nine of ten waited at most."""
    if waiting is None:
        return UNKNOWN, UNKNOWN
    bound = max((each for each in waiting.below if each != float("inf")), default=0.0)
    most = (
        duration(waiting.most) if waiting.most is not None else f"more than {format_duration(timedelta(seconds=bound))}"
    )
    return duration(waiting.mean), most
