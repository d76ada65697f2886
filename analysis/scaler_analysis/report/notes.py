"""What a report has to say of its own numbers: what is missing, since when, and why. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from scaler.idleness.durations import format_duration
from scaler.reporting.usage.fleet_metrics import OTHERS
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.periods import Period
from scaler_analysis.report.summary import UsageReport
from scaler_analysis.report.sums import ROUGH

_MOST_GAPS = 3
_WORTH_SAYING = timedelta(minutes=5)
"""Another leader takes a minute."""


def notes_of(report: UsageReport, matchers: Mapping[str, str]) -> list[str]:
    if not report.known:
        return [_nothing(matchers)]
    return [*_missing(report), *_unjudged(report), *_unpriced(report), *_left_out(report)]


def _nothing(matchers: Mapping[str, str]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in matchers.items())
    wanted = f" with the labels of prometheus.matchers ({labels})" if labels else ""
    return f"Prometheus has no metrics of this scaler{wanted} in this time. It has to scrape every replica."


def _missing(report: UsageReport) -> Iterator[str]:
    gaps = [each for each in report.gaps if each.length >= _WORTH_SAYING]
    if gaps and gaps[0].begin == report.whole.begin:
        yield (
            f"Nothing is known before {_time(gaps[0].end)}: the scaler was not scraped yet, or Prometheus keeps "
            "nothing that old."
        )
        gaps = gaps[1:]
    if gaps:
        length = sum((each.length for each in gaps), timedelta(0))
        yield (
            f"Nothing is known of {format_duration(length)}, in which no replica was scraped or none led: "
            f"{_list(gaps)}. What happened then is missing, or counted late."
        )


def _list(gaps: Sequence[Period]) -> str:
    longest = sorted(sorted(gaps, key=lambda each: each.length)[-_MOST_GAPS:])
    shown = [f"{_time(each.begin)} to {_time(each.end)}" for each in longest]
    more = len(gaps) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)


def _time(at: datetime) -> str:
    return f"{at:%d %b %Y %H:%M} UTC"


def _unjudged(report: UsageReport) -> Iterator[str]:
    total = report.total
    if total.held_hours and total.unknown_hours >= 0.01 * total.held_hours:
        share = total.unknown_hours / total.held_hours
        yield (
            f"{total.unknown_hours:,.1f} GPU-hours ({share:.0%}) could not be judged, for want of samples or because "
            "signals disagreed. They are neither idle nor a cost."
        )


def _unpriced(report: UsageReport) -> Iterator[str]:
    if report.unpriced_hours:
        models = ", ".join(model or "without a name" for model in report.unpriced_hours)
        hours = sum(report.unpriced_hours.values())
        yield f"{hours:,.1f} idle GPU-hours are missing in the cost: metrics.prices has no price for {models}."


def _left_out(report: UsageReport) -> Iterator[str]:
    if report.by is GroupBy.WORKLOAD:
        missing = report.total.held_hours - sum(each.held_hours for each in report.rows)
        if report.hidden_workloads and missing >= ROUGH:
            yield (
                f"Up to {report.hidden_workloads} workloads at a time are not shown one by one "
                f"(metrics.workloads); {missing:,.1f} GPU-hours are those of workloads that are not in the list."
            )
    if report.by is GroupBy.TEAM and any(each.name == (OTHERS,) for each in report.rows):
        yield f"{OTHERS} are the namespaces beyond metrics.namespaces."
