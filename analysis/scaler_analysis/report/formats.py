"""A report as JSON and as CSV. Pure. What is not known is null, or an empty field."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from scaler.decision.describe import timestamp
from scaler.reporting.usage.gpu_states import GpuState
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.periods import Period
from scaler_analysis.report.summary import ReportRow, UsageReport
from scaler_analysis.report.sums import GpuTransfer, WaitingTime

Json = dict[str, Any]

NAMES: Mapping[GroupBy, Sequence[str]] = {
    GroupBy.TEAM: ("namespace",),
    GroupBy.QUEUE: ("clusterQueue",),
    GroupBy.MODEL: ("model",),
    GroupBy.WORKLOAD: ("namespace", "clusterQueue", "kind", "name"),
}
"""What the name of a row consists of."""


def as_json(report: UsageReport, matchers: Mapping[str, str]) -> Json:
    return {
        "since": timestamp(report.whole.begin),
        "until": timestamp(report.whole.end),
        "matchers": dict(matchers),
        "by": str(report.by),
        "known": {"seconds": _seconds(report.known), "ratio": round(report.known / report.whole.length, 4)},
        "gaps": [_period(each) for each in report.gaps],
        "regretWithinSeconds": _seconds(report.regret_within),
        "total": _amounts(report.total),
        "rows": [{**dict(zip(NAMES[report.by], each.name, strict=True)), **_amounts(each)} for each in report.rows],
        "transfers": [_transfer(each) for each in report.transfers],
        "waiting": [{"clusterQueue": queue, **waiting_json(each)} for queue, each in report.waiting.items()],
        "unpricedIdleGpuHours": {model: _rounded(hours) for model, hours in report.unpriced_hours.items()},
        "hiddenWorkloads": report.hidden_workloads,
    }


def _period(period: Period) -> Json:
    return {"from": timestamp(period.begin), "to": timestamp(period.end)}


def _amounts(row: ReportRow) -> Json:
    return {
        "heldGpuHours": _rounded(row.held_hours),
        "idleGpuHours": _rounded(row.idle_hours),
        "unknownGpuHours": _rounded(row.unknown_hours),
        "gpuHoursByState": {str(state): _rounded(row.hours.get(state, 0.0)) for state in GpuState},
        "idleCost": _costs(row.idle_cost),
        "suspendedGpuHours": _rounded(row.suspended_hours),
        "suspendedCost": _costs(row.suspended_cost),
        "givenGpuHours": _rounded(row.given_hours),
        "gotGpuHours": _rounded(row.got_hours),
        "suspensions": _count(row.suspensions),
        "resumptions": _count(row.resumptions),
        "regrets": _count(row.regrets),
        "waiting": None if row.waiting is None else waiting_json(row.waiting),
        "energyKwh": _rounded(row.energy_kwh),
        "longestIdleSeconds": _seconds(row.longest_idle),
    }


def waiting_json(waiting: WaitingTime) -> Json:
    return {
        "admitted": _count(waiting.count),
        "meanSeconds": _seconds(waiting.mean),
        "p90Seconds": _seconds(waiting.most),
    }


def _transfer(transfer: GpuTransfer) -> Json:
    return {
        "fromNamespace": transfer.from_namespace,
        "namespace": transfer.namespace,
        "clusterQueue": transfer.cluster_queue,
        "gpus": _count(transfer.gpus),
        "gpuHours": _rounded(transfer.hours),
    }


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 2)


def _costs(costs: Mapping[str, float] | None) -> Json | None:
    return None if costs is None else {currency: _rounded(cost) for currency, cost in costs.items()}


def _count(amount: float | None) -> int | None:
    """Whole numbers of what is counted one by one; `increase` gives parts of it."""
    return None if amount is None else round(amount)


def _seconds(duration: timedelta | None) -> int | None:
    return None if duration is None else round(duration.total_seconds())


# ------------------------------------------------------------------------------------------------------------------ CSV


def as_csv(report: UsageReport) -> str:
    """A line for each row. There is a column of costs for each currency."""
    currencies = sorted(
        {name for each in report.rows for name in (*(each.idle_cost or ()), *(each.suspended_cost or ()))}
    )
    lines = [_flat(each, report, currencies) for each in report.rows]
    return csv_of(lines, [*_flat(ReportRow(name=("",) * len(NAMES[report.by])), report, currencies)])


def _flat(row: ReportRow, report: UsageReport, currencies: Sequence[str]) -> Json:
    amounts = _amounts(row)
    waiting, states = amounts.pop("waiting") or {}, amounts.pop("gpuHoursByState")
    costs = {name: amounts.pop(name) or {} for name in ("idleCost", "suspendedCost")}
    return {
        "since": timestamp(report.whole.begin),
        "until": timestamp(report.whole.end),
        "knownSeconds": _seconds(report.known),
        **dict(zip(NAMES[report.by], row.name, strict=True)),
        **amounts,
        **{f"{state[:1].lower()}{state[1:]}GpuHours": hours for state, hours in states.items() if state not in _DOUBLE},
        **{f"{name}{each}": by_currency.get(each) for name, by_currency in costs.items() for each in currencies},
        **{f"waiting{name[:1].upper()}{name[1:]}": waiting.get(name) for name in _WAITING},
    }


_DOUBLE = frozenset({GpuState.IDLE, GpuState.UNKNOWN})
"""States whose names are those of sums of several."""
_WAITING = ("admitted", "meanSeconds", "p90Seconds")


def csv_of(lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in each.items()} for each in lines)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Names are others': one that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
