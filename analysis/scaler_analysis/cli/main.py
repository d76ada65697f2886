"""The verbs that this distribution brings, and their flags. The work of each is in a module of its own."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scaler.app.cli.flags import AsJson, Config, PrometheusUrl, command_of, option
from scaler.errors import ConfigurationError
from scaler_analysis.report.grouping import GroupBy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFlags:
    """The flags of `report`."""

    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="How long a time, such as 24h or 30d.")] = (
        "7d"
    )
    until: Annotated[
        str, option("--until", metavar="TIME", about="Until when, such as 2026-12-01T00:00:00Z; default: now.")
    ] = ""
    by: Annotated[GroupBy, typer.Option("--by", help="What the rows are.")] = GroupBy.TEAM
    html: Annotated[
        Path | None, option("--html", metavar="FILE", about="Write a page for people to this file, to open or print.")
    ] = None
    focus: Annotated[
        Path | None,
        option("--focus", metavar="FILE", about="Write charges for cost tools to this file (CSV, FOCUS 1.2)."),
    ] = None
    notify: Annotated[
        str, option("--notify", metavar="TARGET", about="Also send it to this target of the settings' notifications.")
    ] = ""
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")] = False
    as_json: AsJson = False
    config: Config = None
    prometheus_url: PrometheusUrl = None


def _report(flags: ReportFlags) -> None:
    """Show what GPUs did over days.

    Who held how much idle, what was reclaimed and who got it, regretted suspensions, how long gangs waited, money and
    energy: from the scaler's own metrics in Prometheus, which has to scrape it. What is not known is said.
    """
    from scaler_analysis.cli.report import run_report

    sys.exit(run_report(flags))


report = command_of(_report, ReportFlags)


def _refuse(flags: Mapping[str, object], why: str) -> None:
    """Raises: ConfigurationError where one of them is given."""
    if given := [name for name, value in flags.items() if value]:
        raise ConfigurationError(f"{', '.join(given)}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """The flags of `simulate`."""

    trace: Annotated[
        Path | None,
        option(
            "--trace",
            metavar="FILE",
            about="Samples of the past: CSV, gzip of it, or Parquet; see choose-your-window.md.",
        ),
    ] = None
    since: Annotated[
        str,
        option(
            "--since",
            metavar="DURATION",
            about="Samples of Prometheus or Thanos, so far back, such as 30d; instead of --trace.",
        ),
    ] = ""
    config: Config = None
    prometheus_url: PrometheusUrl = None
    cache: Annotated[
        Path | None,
        option("--cache", metavar="FOLDER", about="Where samples of --since are kept. Default: in your cache folder."),
    ] = None
    idle_after: Annotated[
        str,
        option(
            "--idle-after",
            metavar="DURATIONS",
            about="Values of idleAfter to compare, such as 30m,60m. Default: the settings'.",
        ),
    ] = ""
    warm_up: Annotated[
        str, option("--warm-up", metavar="DURATION", about="warmUp of them, such as 10m. Default: the settings'.")
    ] = ""
    active_above: Annotated[
        str,
        option("--active-above", metavar="PERCENT", about="activeAbove of them, such as 5%. Default: the settings'."),
    ] = ""
    files: Annotated[
        list[Path] | None,
        option("--filename", "-f", metavar="FILE", about="IdlePolicies (YAML) to compare as well; repeatable."),
    ] = None
    accept_regret: Annotated[
        str,
        option(
            "--accept-regret",
            metavar="PERCENT",
            about="Recommend the idleAfter that frees most while at most this share of suspensions has a return within "
            "15 minutes, such as 5%.",
        ),
    ] = ""
    has_curve: Annotated[bool, typer.Option("--curve/--no-curve", help="Also try other values of idleAfter.")] = True
    floors: Annotated[
        str,
        option(
            "--floors",
            metavar="PERCENTS",
            about="Values of activeAbove of the curve, such as 1%,5%. Default: that of the policy.",
        ),
    ] = ""
    html: Annotated[
        Path | None, option("--html", metavar="FILE", about="Also write a report that any browser shows.")
    ] = None
    csv: Annotated[
        Path | None, option("--csv", metavar="FILE", about="Also write the numbers, by team, queue and workload.")
    ] = None
    workloads: Annotated[
        Path | None,
        option("--workloads", metavar="FILE", about="Workloads of the past: JSON of kubectl, or CSV."),
    ] = None
    gpus: Annotated[
        str,
        option(
            "--gpus", metavar="GPUS", about="Of Workloads: GPUs of the quota; by ClusterQueue: team-a=64,team-b=32."
        ),
    ] = ""
    compare: Annotated[
        str,
        option("--compare", metavar="POLICIES", about="Of Workloads: some of none,always,on-pressure. Default: all."),
    ] = ""
    idle_share: Annotated[
        float,
        typer.Option(
            "--idle-share",
            metavar="SHARE",
            help="Share of the Workloads up to 8 GPUs that are sessions, if there are no samples.",
            min=0,
            max=1,
        ),
    ] = 0.3
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Another number draws other sessions and pauses.")
    ] = 0
    price: Annotated[
        float | None, option("--price", metavar="PRICE", about="Of Workloads: price of one GPU for one hour.", min=0)
    ] = None
    as_json: AsJson = False


def _simulate(flags: SimulateFlags) -> None:
    """Show what policies would have done in the past.

    With --trace or --since: replays samples through the same decisions as in production, and tells what would have been
    freed, and how soon owners would have come back. With --gpus: how long gangs would have waited, and how well GPUs
    would have been used, with nothing suspended, with idle workloads always suspended, and with reclaim plans. Their
    Workloads are those of --workloads, or with --since those that kube-state-metrics has shown, or else the workloads
    that samples show; pauses are those of samples, if there are any, and else drawn. Changes nothing.
    """
    from scaler_analysis.cli.gangs import run_gangs
    from scaler_analysis.cli.simulate import run_simulate

    if flags.trace is not None and not flags.since:
        _refuse({"--cache": flags.cache, "--prometheus-url": flags.prometheus_url}, "only with --since")
    if flags.workloads is None and not flags.gpus and not flags.compare:
        _refuse({"--price": flags.price}, "only with --gpus")
        sys.exit(run_simulate(flags))
    of_replays = {
        "--idle-after": flags.idle_after, "--warm-up": flags.warm_up, "--active-above": flags.active_above,
        "--filename": flags.files, "--accept-regret": flags.accept_regret, "--floors": flags.floors,
        "--html": flags.html, "--csv": flags.csv,
    }  # fmt: skip
    _refuse(
        of_replays,
        "only without --workloads and --gpus; windows and activeAbove of simulated Workloads are those of --config",
    )
    sys.exit(run_gangs(flags))


simulate = command_of(_simulate, SimulateFlags)
