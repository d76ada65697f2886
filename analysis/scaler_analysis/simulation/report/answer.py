"""What a simulation says, as JSON: what `--json` prints, and what tables, CSV and the report are made of. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Policy
from scaler_analysis.simulation.outcome import CaseOutcome, Totals
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload

Json = dict[str, Any]


def totals_json(totals: Totals) -> Json:
    """Hours are GPU-hours."""
    found: Json = {
        "suspensions": totals.suspensions,
        "freedGpuHours": round(totals.freed_gpu_hours, 4),
        "gpuHours": round(totals.gpu_hours, 4),
        "returnsWithin15m": totals.returns_soon,
        "returnsWithin60m": totals.returns_within_an_hour,
        "unknownGpuHours": round(totals.unknown, 4),
        "freedShare": round(totals.freed_ratio, 6),
        "regretShare": round(totals.regret_ratio, 6),
        "interruptedGpuHours": round(totals.interrupted_gpu_hours, 4),
        "unknownReasons": {
            reason: round(hours, 4)
            for reason, hours in sorted(totals.unknown_gpu_hours.items(), key=lambda each: -each[1])
        },
    }
    if totals.freed_cost is not None:
        found["freedCost"] = round(totals.freed_cost, 2)
    return found


def outcome_json(outcome: CaseOutcome, workloads: Sequence[RecordedWorkload], policy: Policy | None = None) -> Json:
    """What came of one case: in all, and by team, queue and workload."""
    by = {
        "teams": outcome.by(workloads, lambda each: each.team),
        "queues": outcome.by(workloads, lambda each: each.queue),
    }
    return {
        "name": outcome.name,
        **(policy_json(policy) if policy is not None else {}),
        **totals_json(outcome.total(workloads)),
        **{kind: _parts(found) for kind, found in by.items()},
        "workloads": _workloads(outcome, workloads),
    }


def policy_json(policy: Policy) -> Json:
    return {
        "idleAfter": format_duration(policy.idle_after),
        "warmUp": format_duration(policy.warm_up),
        "activeAbove": f"{100 * policy.active_above_ratio:g}%",
    }


def _parts(found: Mapping[str, Totals]) -> list[Json]:
    """The largest first. Nothing where all of it is one part without a name."""
    if [*found] == [""]:
        return []
    parts = sorted(found.items(), key=lambda each: (-each[1].freed_gpu_hours, -each[1].gpu_hours, each[0]))
    return [{"name": name, **totals_json(totals)} for name, totals in parts]


def _workloads(outcome: CaseOutcome, workloads: Sequence[RecordedWorkload]) -> list[Json]:
    """The workloads that were suspended or unknown, most freed first."""
    found = sorted(outcome.by_workload.items(), key=lambda each: (-each[1].freed_gpu_hours, each[0]))
    rows = []
    for position, part in found:
        workload, totals = workloads[position], Totals(gpu_hours=0.0)
        totals.add(part)
        totals.gpu_hours = workload.gpu_hours(workload.start_s, workload.end_s)
        rows.append(
            {
                "namespace": workload.namespace,
                "kind": workload.kind,
                "name": workload.name,
                "team": workload.team,
                "queue": workload.queue,
                **totals_json(totals),
            }
        )
    return rows


def span_json(begin_s: float, end_s: float) -> Json:
    begin, end = (datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for each in (begin_s, end_s))
    return {"begin": begin, "end": end}
