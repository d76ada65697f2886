"""What the dashboards are made of: panels that answer a question each, in the same colours and words everywhere.

Laws: every panel has a unit, says in its description which question it answers, and says why where it is empty.
Whatever only the leader shows is summed over replicas, whatever all show alike is taken once (docs/metrics.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    MatcherConfig,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
CLUSTER = 'cluster=~"$cluster"'
"""Matches where nothing sets such a label, too: all clusters are `.*`."""
SCOPE = f'{CLUSTER},workload_namespace=~"$namespace",cluster_queue=~"$queue"'
TAG = "idle-gpu-scaler"

# Distinct with every colour vision, on white and on black (Okabe and Ito).
GREEN, ORANGE, PURPLE, BLUE, SKY, RED, GREY = (
    "#009E73", "#E69F00", "#CC79A7", "#0072B2", "#56B4E9", "#D55E00", "#8C8C8C",
)  # fmt: skip
STATES = {
    "Busy": GREEN,
    "Idle": RED,
    "HeldIdle": ORANGE,
    "Unknown": BLUE,
    "WithoutMetrics": SKY,
    "Starting": PURPLE,
    "Ending": GREY,
}
"""The colours of GPUs' states, as in docs/metrics.md."""
ANSWERS = {"active": GREEN, "inactive": RED, "error": BLUE}
"""What KEDA gets: in the colours of Busy, Idle and Unknown, which they follow from."""
NO_LEADER = "no replica leads"
"""Why panels of what only a leader shows may be empty. Without one it is not known that there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query and the name of what comes of it: a template such as `{{workload_namespace}}`."""

    expr: str
    legend: str = ""


def rate(counter: str, by: str = "") -> str:
    """What a counter gains per second, by labels."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({counter}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str = "") -> str:
    """What so large a share of what is observed stays below, by labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket{{{CLUSTER}}}', labels)})"


def gained(counter: str, by: str) -> str:
    """What a counter has gained within the selected time range, by labels; with what its new series began with.

    A series that comes to be by its first event begins at 1, and `increase` never sees that one. One that was there
    within the hour before is not new: it was not scraped when the range began.
    """
    increase = f"sum by ({by}) (increase({counter}[$__range]))"
    begun = f"sum by ({by}) (min_over_time({counter}[$__range]) unless last_over_time({counter}[1h] offset $__range))"
    return f"({increase} + ({begun} or 0 * {increase}))"


def _targets(panel: Any, queries: Sequence[Query], *, instant: bool, as_table: bool = False) -> None:
    for number, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto")
        target = target.ref_id(chr(ord("A") + number)).datasource(DATA_SOURCE)
        target = target.instant() if instant else target.range()
        panel.with_target(target.format(PromQueryFormat.TABLE) if as_table else target)


def _common(panel: Any, words: tuple[str, str, str], unit: str, size: tuple[int, int]) -> Any:
    """`words` are its title, its question, and why it may be empty."""
    (title, question, empty), (width, height) = words, size
    panel = panel.title(title).description(question).unit(unit).no_value(empty)
    return panel.datasource(DATA_SOURCE).span(width).height(height)


def _colours(panel: Any, colours: Mapping[str, str]) -> Any:
    for name, colour in colours.items():
        value = {"mode": FieldColorModeId.FIXED, "fixedColor": colour}
        panel.with_override(
            MatcherConfig(id_val="byName", options=name), [DynamicConfigValue(id_val="color", value=value)]
        )
    return panel


def _thresholds(steps: Mapping[float | None, str]) -> Any:
    found = [Threshold(value=value, color=colour) for value, colour in steps.items()]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


_PLAIN: Mapping[float | None, str] = {None: GREY}


def graph(
    title: str,
    question: str,
    *queries: Query,
    unit: str,
    empty: str,
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    bars: bool = False,
    size: tuple[int, int] = (12, 8),
) -> Any:
    """Values over time, as lines, areas on top of each other, or bars."""
    panel = _common(timeseries.Panel(), (title, question, empty), unit, size)
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
    panel = panel.legend(legend.placement(LegendPlacement.BOTTOM)).min(0)
    panel = panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    panel = panel.fill_opacity(60 if stacked else 8).line_width(1 if stacked else 2).show_points(VisibilityMode.NEVER)
    if stacked or bars:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if bars:
        panel = panel.draw_style(GraphDrawStyle.BARS).fill_opacity(80)
    _targets(panel, queries, instant=False)
    return _colours(panel, colours or {})


def number(
    title: str,
    question: str,
    expr: str,
    *,
    unit: str,
    empty: str,
    steps: Mapping[float | None, str] = _PLAIN,
    legend: str = "",
    lasts: bool = False,
    size: tuple[int, int] = (4, 4),
) -> Any:
    """One number now; of one that is always there (`lasts`) with its course behind it.

    Grafana shows the last value within the selected time range. Of a series that has ended that is an old one.
    """
    panel = _common(stat.Panel(), (title, question, empty), unit, size)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel = panel.color_mode(BigValueColorMode.VALUE).thresholds(_thresholds(steps))
    panel = panel.graph_mode(BigValueGraphMode.AREA if lasts else BigValueGraphMode.NONE)
    _targets(panel, [Query(expr=expr, legend=legend)], instant=not lasts)
    return panel


def bars(
    title: str,
    question: str,
    *queries: Query,
    unit: str,
    empty: str,
    steps: Mapping[float | None, str] = _PLAIN,
    size: tuple[int, int] = (8, 8),
) -> Any:
    """A bar for each of several numbers now."""
    panel = _common(bargauge.Panel(), (title, question, empty), unit, size)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).min(0)
    panel = panel.orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC)
    panel = panel.thresholds(_thresholds(steps))
    _targets(panel, queries, instant=True)
    return panel


def heat(
    title: str,
    question: str,
    query: Query,
    *,
    unit: str,
    empty: str,
    steps: Mapping[float | None, str],
    size: tuple[int, int] = (24, 8),
) -> Any:
    """A row of cells for each series, coloured by their values."""
    panel = _common(statushistory.Panel(), (title, question, empty), unit, size)
    panel = panel.show_value(VisibilityMode.NEVER).thresholds(_thresholds(steps)).max_data_points(60)
    panel = panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    _targets(panel, [query], instant=False)
    return panel


def timeline(
    title: str, question: str, *queries: Query, empty: str, colours: Mapping[str, str], size: tuple[int, int] = (24, 6)
) -> Any:
    """When something held: a row for each series, with a bar where it is 1."""
    panel = _common(statetimeline.Panel(), (title, question, empty), "short", size)
    panel = panel.show_value(VisibilityMode.NEVER).merge_values(True).thresholds(_thresholds({None: GREY}))
    _targets(panel, queries, instant=False)
    return _colours(panel, colours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: a label, or the value of a query (`Value #A`)."""

    field: str
    title: str
    unit: str = "short"
    link: str = ""
    """The link of its cells."""


def rows(
    title: str,
    question: str,
    *exprs: str,
    columns: Sequence[Column],
    empty: str,
    size: tuple[int, int] = (24, 9),
) -> Any:
    """A table of what queries say now; rows of several queries with the same labels are one."""
    panel = _common(table.Panel(), (title, question, empty), "short", size)
    _targets(panel, [Query(expr=each) for each in exprs], instant=True, as_table=True)
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    names = {each.field: each.title for each in columns}
    order = {each.field: at for at, each in enumerate(columns)}
    options = {"renameByName": names, "indexByName": order, "excludeByName": {"Time": True}}
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=options))
    for column in columns:
        wanted = [DynamicConfigValue(id_val="unit", value=column.unit)]
        if column.link:
            links = [{"title": "Look at it", "url": column.link}]
            wanted.append(DynamicConfigValue(id_val="links", value=links))
        panel.with_override(MatcherConfig(id_val="byName", options=column.title), wanted)
    return panel


# ------------------------------------------------------------------------------------------------------ one dashboard

ALL = VariableOption(selected=True, text="All", value="$__all")


def choice(name: str, label: str, query: str, *, multi: bool = True) -> Any:
    """A variable whose values come from a query."""
    found = dashboard.QueryVariable(name).label(label).query(query).datasource(DATA_SOURCE)
    found = found.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return found.include_all(True).all_value(".*").multi(True).current(ALL) if multi else found.include_all(False)


def cluster_choice() -> Any:
    return choice("cluster", "Cluster", "label_values(idle_gpu_scaler_build_info, cluster)")


def board(name: str, title: str, about: str, *, since: str = "now-6h") -> Any:
    """An empty dashboard with its links, and the variables that all of them have."""
    found = dashboard.Dashboard(f"Idle GPUs / {title}").uid(f"idle-gpu-scaler-{name}").description(about)
    found = found.tags([TAG, "gpu"]).time(since, "now").refresh("1m").tooltip(DashboardCursorSync.CROSSHAIR).readonly()
    link = dashboard.DashboardLink("Idle GPUs").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    found.link(link.as_dropdown(False).keep_time(True).include_vars(True))
    found.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    return found.with_variable(cluster_choice())


def row(title: str) -> Any:
    return dashboard.Row(title)


def fill(found: Any, *groups: Any) -> Any:
    """The dashboard with these rows and panels, from left to right and from top to bottom."""
    for panel in groups:
        (found.with_row if isinstance(panel, dashboard.Row) else found.with_panel)(panel)
    return found
