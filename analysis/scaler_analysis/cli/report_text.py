"""A report for the terminal and for messages."""

from collections.abc import Mapping
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.layout import labelled_rows, table_or_list
from scaler.idleness.durations import format_duration
from scaler_analysis.report.notes import notes_of
from scaler_analysis.report.summary import UsageReport
from scaler_analysis.report.view import TITLES, columns_of, figures_of, title_of


def render(report: UsageReport, matchers: Mapping[str, str], width: int) -> RenderableType:
    columns, parts = columns_of(report), list[RenderableType]()
    parts.append(Text(f"{_time(report.whole.begin)} to {_time(report.whole.end)}{_share_known(report)}", style="dim"))
    parts += [Text(note, style="yellow") for note in notes_of(report, matchers)]
    if report.rows:
        headings = [TITLES[report.by].upper(), *(name.upper() for name, _ in columns)]
        rows = [[title_of(report.by, row), *(cell(row) for _, cell in columns)] for row in report.rows]
        parts += ["", table_or_list(headings, rows, width, words=(0,))]
    if figures := figures_of(report):
        words = [(each.title, f"{each.value}{f' ({each.detail})' if each.detail else ''}") for each in figures]
        parts += ["", labelled_rows(words)]
    if report.transfers:
        headings = ["FROM", "TO", "CLUSTERQUEUE", "GPUS", "GPU-HOURS"]
        given = [
            [each.from_namespace, each.namespace, each.cluster_queue, f"{each.gpus:.0f}", f"{each.hours:,.1f}"]
            for each in report.transfers
        ]
        parts += ["", table_or_list(headings, given, width, words=(0, 1, 2))]
    return Group(*parts)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}Z"


def _share_known(report: UsageReport) -> str:
    if not report.gaps:
        return ""
    return f", of which {format_duration(report.known)} are known" if report.known else ""
