"""Every gang that waits for GPUs, and precisely why, as JSON. Pure.

Kueue's own words stand beside ours: where they differ, one of us has not seen the latest yet, or is wrong.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from scaler.core.durations import format_duration
from scaler.core.quota.model import Workload
from scaler.core.reclaim import NoPlan, Plan
from scaler.kube.kueue_objects import Workload as KueueWorkload
from scaler.kube.objects import condition
from scaler.loops.outlook.amounts import number
from scaler.loops.outlook.standing import standing_view
from scaler.loops.outlook.survey import Survey
from scaler.loops.outlook.waiting import Diagnosis, Line, diagnose, waits_since
from scaler.loops.projection import timestamp

Json = dict[str, Any]
Prospects = Mapping[str, Plan | NoPlan]
"""What the planner says, by uid of the gang."""

MOST = 1000
"""Gangs in one answer. Filters show the others."""


def pending_view(
    survey: Survey, prospects: Prospects | None = None, *, namespace: str = "", queue: str = "", most: int = MOST
) -> Json:
    """Those of the namespace and of the queue (a LocalQueue or a ClusterQueue), where these are given."""
    chosen = selected(survey, namespace=namespace, queue=queue)
    return {
        "at": timestamp(survey.at),
        "unjudged": survey.unjudged or None,
        "gangs": [_gang(survey, *each, (prospects or {}).get(each[0].uid)) for each in chosen[:most]],
        "omitted": max(0, len(chosen) - most),
    }


def selected(
    survey: Survey, *, namespace: str = "", queue: str = ""
) -> Sequence[tuple[Workload, KueueWorkload | None]]:
    """Who waits and is asked about, those with highest priority first."""
    return [
        (gang, observed)
        for gang, observed in survey.waiting
        if namespace in ("", gang.namespace) and queue in ("", gang.queue, survey.cluster_queue_of(gang))
    ]


def _gang(survey: Survey, gang: Workload, observed: KueueWorkload | None, found: Plan | NoPlan | None) -> Json:
    diagnosis = diagnose(survey, gang, observed, found)
    first = diagnosis.reasons[0]
    plan = survey.plan_for(gang)
    return gang_view(survey, gang, observed, diagnosis) | {
        "reason": str(first.reason),
        "message": first.message,
        "reasons": [{"reason": str(each.reason), "message": each.message} for each in diagnosis.reasons],
        "quota": [_line(line) for line in diagnosis.lines],
        "before": [each.key for each in diagnosis.before[:_SHOWN]],
        "checks": _checks(observed),
        "plan": standing_view(plan, survey.at) if plan is not None else None,
        "reclaim": _reclaim(survey, gang, found),
    }


_SHOWN = 5


def gang_view(survey: Survey, gang: Workload, observed: KueueWorkload | None, diagnosis: Diagnosis) -> Json:
    """Who it is, what it wants, where it stands, and what Kueue says of it."""
    owner = observed.metadata.controller_owner if observed is not None else None
    since, spec = waits_since(gang), diagnosis.queue.spec if diagnosis.queue is not None else None
    return {
        "namespace": gang.namespace,
        "name": gang.name,
        "job": f"{owner.kind}/{owner.name}" if owner is not None else None,
        "gpus": sum(
            amount for each in gang.requests for resource, amount in each.items() if survey.gpus.matches(resource)
        ),
        "podSets": [
            {
                "name": each.name,
                "count": each.count,
                "minCount": each.min_count,
                "requests": {resource: number(resource, amount) for resource, amount in sorted(each.requests.items())},
            }
            for each in gang.pod_sets
        ],
        "priority": gang.priority,
        "since": timestamp(since),
        "waits": format_duration(_whole(survey.at - since)),
        "localQueue": gang.queue,
        "clusterQueue": survey.cluster_queue_of(gang) or None,
        "queueingStrategy": str(spec.strategy) if spec is not None else None,
        "position": diagnosis.position,
        "inLine": len(survey.lines.get(spec.name, ())) if spec is not None else 0,
        "kueue": kueue_view(observed),
    }


def _whole(duration: timedelta) -> timedelta:
    return timedelta(seconds=max(0, int(duration.total_seconds())))


def kueue_view(observed: KueueWorkload | None) -> Json | None:
    """The condition in which Kueue says why it waits; None where it has said nothing yet."""
    for kind in ("QuotaReserved", "Admitted"):
        found = condition(observed.status.conditions, kind) if observed is not None else None
        if found is not None and found.status == "False":
            return {
                "condition": f"{kind}={found.status}",
                "reason": found.reason,
                "message": found.message,
                "since": timestamp(found.last_transition_time),
            }
    return None


def _line(line: Line) -> Json:
    resource = line.key.resource
    return {
        "flavor": line.key.flavor,
        "resource": resource,
        "wanted": number(resource, line.wanted),
        "available": number(resource, line.available),
        "lacking": number(resource, line.lacking) if not line.refusal else None,
        "most": number(resource, line.most),
        "refusal": line.refusal or None,
    }


def _checks(observed: KueueWorkload | None) -> list[Json]:
    states = observed.status.admission_checks if observed is not None else ()
    return [{"name": each.name, "state": each.state, "message": each.message} for each in states]


def _reclaim(survey: Survey, gang: Workload, found: Plan | NoPlan | None) -> Json:
    """What a plan could do for it."""
    beside = survey.plan_beside(gang)
    match found:
        case Plan():
            who = ", ".join(f"{each.name} ({each.gpus} GPUs)" for each in found.victims)
            return _outcome("Planned", f"plan {found.id} would take {who}")
        case NoPlan():
            return _outcome(str(found.why), found.message)
    if survey.plan_for(gang) is not None:
        return _outcome("UnderWay", "a plan is under way for it")
    if beside is not None:
        return _outcome("AfterAnother", f"plan {beside.grant.plan} for {beside.grant.gang} has to end first")
    if survey.unjudged:
        return _outcome("NotJudged", survey.unjudged)
    return _outcome("NotAsked", f"'plan {gang.key}' tells what would be suspended for it")


def _outcome(outcome: str, message: str) -> Json:
    return {"outcome": outcome, "message": message}
