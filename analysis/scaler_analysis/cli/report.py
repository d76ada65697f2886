"""`idle-gpu-scaler report`: what GPUs did over days, from the scaler's own metrics in Prometheus.

It asks Prometheus itself: neither a running scaler nor a cluster is needed.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scaler.app.cli.client import check_outputs, parse_time, write_output
from scaler.app.cli.layout import print_json, show, terminal
from scaler.app.metrics_source import prometheus_config
from scaler.app.settings.load import load
from scaler.app.settings.model import PrometheusSettings
from scaler.errors import ConfigurationError, ScalerError
from scaler.idleness.durations import parse_duration
from scaler.reporting.page.fleet_chart import FleetSample
from scaler.reporting.page.fleet_history import read_fleet
from scaler.samples.prometheus import PrometheusSource
from scaler_analysis.cli.main import ReportFlags
from scaler_analysis.cli.progress import progress_bar
from scaler_analysis.cli.report_message import message_of, sender_to
from scaler_analysis.cli.report_text import render
from scaler_analysis.document import document
from scaler_analysis.report.focus import focus_charges
from scaler_analysis.report.formats import as_csv, as_json
from scaler_analysis.report.measures import PeriodFacts
from scaler_analysis.report.own_metrics import OwnMetrics
from scaler_analysis.report.periods import Period, range_until
from scaler_analysis.report.reader import ReportReader
from scaler_analysis.report.summary import UsageReport, summarized
from scaler_analysis.report.view import TITLES, chart_step, view_of


def run_report(flags: ReportFlags) -> int:
    """Raises: ScalerError."""
    if flags.as_json and flags.as_csv:
        raise ConfigurationError("--json and --csv both print the report; choose one of them")
    check_outputs(html=flags.html, focus=flags.focus)
    loaded = load(flags.config, environ=os.environ, flags={"prometheus.url": flags.prometheus_url})
    settings, sender = loaded.prometheus, sender_to(flags.notify, loaded.notifications) if flags.notify else None
    if not settings.url:
        raise ConfigurationError("a report needs Prometheus: set prometheus.url (--prometheus-url)")
    now = datetime.now(UTC)
    whole = _range(flags.since, flags.until, now)
    facts, samples = asyncio.run(_read(settings, settings.url, whole, now, with_chart=flags.html is not None))
    report = summarized(facts, whole, flags.by)
    _print(report, settings.matchers, flags)
    if sender is not None:
        asyncio.run(sender.send(message_of(report, settings.matchers), now))
        terminal(is_error=True).print(f"sent: {flags.notify}", soft_wrap=True)
    # Last: a file that cannot be written takes nothing away.
    _write_html(flags.html, report, settings.matchers, samples, now)
    _write_focus(flags.focus, facts, settings.matchers)
    return 0


def _range(since: str, until: str, now: datetime) -> Period:
    """Raises: ConfigurationError."""
    end = parse_time("--until", until) if until else now
    try:
        return range_until(min(end, now), parse_duration(since))
    except ValueError as error:
        raise ConfigurationError(f"--since: {error}") from None
    except OverflowError:
        raise ConfigurationError(f"--since {since}: no calendar goes back so far; write for example '7d'") from None


async def _read(
    settings: PrometheusSettings, url: str, whole: Period, now: datetime, *, with_chart: bool
) -> tuple[Sequence[PeriodFacts], Sequence[FleetSample]]:
    source, own = PrometheusSource(prometheus_config(settings, url)), OwnMetrics(matchers=settings.matchers)
    samples: Sequence[FleetSample] = ()
    try:
        with progress_bar(f"read {url}") as progress:
            reader = ReportReader(source, own, at_once=4)
            facts = await reader.read(whole, now=now, read=lambda done, of: progress(done / of))
        if with_chart:
            samples = await read_fleet(source, own.matchers, end=whole.end, span=whole.length, step=chart_step(whole))
    finally:
        await source.close()
    return facts, samples


# ------------------------------------------------------------------------------------------------------------- printing


def _print(report: UsageReport, matchers: Mapping[str, str], flags: ReportFlags) -> None:
    if flags.as_json:
        print_json(as_json(report, matchers))
    elif flags.as_csv:
        print(as_csv(report), end="")  # noqa: T201
    else:
        show(lambda width: render(report, matchers, width))


# ---------------------------------------------------------------------------------------------------------------- files


def _write_html(
    path: Path | None, report: UsageReport, matchers: Mapping[str, str], samples: Sequence[FleetSample], now: datetime
) -> None:
    if path is None:
        return
    view = view_of(report, matchers, samples)
    cluster = ", ".join(f"{name} {value}" for name, value in matchers.items())
    context = {"view": view, "title": TITLES[report.by], "cluster": cluster, "at": report.whole.end}
    _write(path, document("document/report.html", context, at=now))


def _write_focus(path: Path | None, facts: Sequence[PeriodFacts], matchers: Mapping[str, str]) -> None:
    if path is None:
        return
    charges = focus_charges(facts, account="/".join(matchers.values()) or "idle-gpu-scaler")
    if not charges.rows:
        raise ScalerError(f"{path} is not written: there is no GPU time with a price in this time; set metrics.prices")
    left_out = (
        f"; {charges.unpriced_hours:,.1f} GPU-hours without a price are not in it" if charges.unpriced_hours else ""
    )
    _write(path, charges.csv, left_out)


def _write(path: Path, text: str, remark: str = "") -> None:
    """Raises: ScalerError."""
    write_output(path, text)
    terminal(is_error=True).print(f"written: {path}{remark}", soft_wrap=True)
