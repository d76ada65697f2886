"""Every gang that waits for GPUs, and precisely why, as JSON. Pure.

Kueue's own words stand beside ours: where they differ, one of us has not seen the latest yet, or is wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from scaler.core.durations import format_duration
from scaler.core.quota.cycle import Considered
from scaler.core.quota.model import Workload
from scaler.core.reclaim import NoPlan, Plan, Why
from scaler.errors import InquiryError
from scaler.kube.kueue_objects import Workload as KueueWorkload
from scaler.kube.objects import condition, is_true
from scaler.loops.outlook.amounts import number
from scaler.loops.outlook.gates import gate_view
from scaler.loops.outlook.standing import standing_view
from scaler.loops.outlook.survey import Survey
from scaler.loops.outlook.waiting import Diagnosis, Line, diagnose, waits_since
from scaler.loops.projection import timestamp

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """What the planner says of gangs that no plan stands for, as far as it was asked."""

    found: Mapping[str, Plan | NoPlan] = field(default_factory=dict)
    """By uid of the gang."""
    first: Mapping[str, str] = field(default_factory=dict)
    """By root of a tree, the gang that gets the next plan there; the others come after it."""
    lacking: Collection[str] = frozenset()
    """Uids of the gangs that have quota and lack nodes."""
    first_for_nodes: str = ""
    """Key of the one of them that gets the next plan."""
    heads: Mapping[str, Sequence[Considered]] = field(default_factory=dict)
    """By root of a tree, what Kueue's next cycle does with its heads, in their turns."""


MOST = 1000
"""Gangs in one answer. Filters show the others."""


def pending_view(
    survey: Survey,
    prospects: Prospects = Prospects(),
    *,
    namespace: str = "",
    queue: str = "",
    most: int = MOST,
) -> Json:
    """Those of the namespace and of the queue (a LocalQueue or a ClusterQueue), where these are given."""
    chosen = selected(survey, namespace=namespace, queue=queue)
    return {
        "at": timestamp(survey.at),
        "unjudged": survey.unjudged or None,
        "gangs": [_gang(survey, *each, prospects) for each in chosen[:most]],
        "omitted": max(0, len(chosen) - most),
    }


def gang_page(survey: Survey, observed: KueueWorkload, prospects: Prospects) -> Json:
    """One Workload. `gang` is what `pending` says of it; null for one that does not wait."""
    key = "/".join(observed.metadata.key)
    gang = next((gang for gang, _ in survey.waiting if gang.key == key), None)
    owner = observed.metadata.controller_owner
    state, since = _state_of(observed)
    return {
        "at": timestamp(survey.at),
        "unjudged": survey.unjudged or None,
        "namespace": observed.metadata.namespace,
        "name": observed.metadata.name,
        "job": f"{owner.kind}/{owner.name}" if owner is not None else None,
        "state": state,
        "since": timestamp(since),
        "checks": _checks(observed),
        "gates": [gate_view(each, survey.at) for each in survey.gates.get(key, ())],
        "gang": _gang(survey, gang, observed, prospects) if gang is not None else None,
    }


def _state_of(observed: KueueWorkload) -> tuple[str, datetime | None]:
    """The most final thing that is true of it, and since when."""
    if is_true(observed.status.conditions, "Finished"):
        return "Finished", _since(observed, "Finished")
    if not observed.spec.active:
        return "Deactivated", _since(observed, "Evicted")
    true = [each for each in _STATES if is_true(observed.status.conditions, each)]
    if "QuotaReserved" not in true:
        return "Pending", observed.metadata.creation_timestamp
    return true[0], _since(observed, true[0])


_STATES = ("Evicted", "Admitted", "QuotaReserved")
"""Of one that holds quota, the most final one first."""


def _since(observed: KueueWorkload, kind: str) -> datetime | None:
    found = condition(observed.status.conditions, kind)
    return found.last_transition_time if found is not None else None


def selected(
    survey: Survey, *, namespace: str = "", queue: str = ""
) -> Sequence[tuple[Workload, KueueWorkload | None]]:
    """Who waits and is asked about, those with highest priority first. Raises: InquiryError for names of nothing."""
    _check_names(survey, namespace, queue)
    return [
        (gang, observed)
        for gang, observed in survey.waiting
        if namespace in ("", gang.namespace) and queue in ("", gang.queue, survey.cluster_queue_of(gang))
    ]


def _check_names(survey: Survey, namespace: str, queue: str) -> None:
    """Raises: InquiryError for a namespace or a queue that is not there. Nobody waiting there would be true, and wrong.

    Workloads may name a LocalQueue that does not exist: who asks for it finds them.
    """
    if namespace and namespace not in survey.world.namespaces:
        raise InquiryError(f"there is no namespace {namespace}", status=404)
    local = {name for where, name in survey.local_queues if namespace in ("", where)}
    named = {each.queue for each, _ in survey.waiting if namespace in ("", each.namespace)}
    if queue and queue not in local | named | set(survey.cluster_queues):
        where = f" in namespace {namespace}" if namespace else ""
        raise InquiryError(f"there is no ClusterQueue {queue}, and no LocalQueue {queue}{where}", status=404)


def _gang(survey: Survey, gang: Workload, observed: KueueWorkload | None, prospects: Prospects) -> Json:
    heads = prospects.heads.get(survey.root_of(gang), ())
    diagnosis = diagnose(survey, gang, observed, prospects.found.get(gang.uid), heads)
    plan = survey.plan_for(gang)
    return gang_view(survey, gang, observed, diagnosis) | {
        "quota": [_line(line) for line in diagnosis.lines],
        "before": [each.key for each in diagnosis.before[:_SHOWN]],
        "checks": _checks(observed),
        "gates": [gate_view(each, survey.at) for each in survey.gates.get(gang.key, ())],
        "plan": standing_view(plan, survey.at) if plan is not None else None,
        "reclaim": _reclaim(survey, gang, diagnosis, prospects),
    }


_SHOWN = 5


def gang_view(survey: Survey, gang: Workload, observed: KueueWorkload | None, diagnosis: Diagnosis) -> Json:
    """Who it is, what it wants, where it stands, and what Kueue says of it."""
    owner = observed.metadata.controller_owner if observed is not None else None
    first = diagnosis.reasons[0]
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
        "waits": format_duration(whole(survey.at - since)),
        "localQueue": gang.queue,
        "clusterQueue": survey.cluster_queue_of(gang) or None,
        "queueingStrategy": str(spec.strategy) if spec is not None else None,
        "position": diagnosis.position,
        "inLine": len(survey.lines.get(spec.name, ())) if spec is not None else 0,
        "kueue": kueue_view(observed),
        "reason": str(first.reason),
        "message": first.message,
        "reasons": [{"reason": str(each.reason), "message": each.message} for each in diagnosis.reasons],
    }


def whole(duration: timedelta) -> timedelta:
    """In whole seconds, and none below."""
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
    return [
        {
            "name": each.name,
            "state": each.state,
            "message": each.message,
            "since": timestamp(each.last_transition_time),
        }
        for each in states
    ]


def _reclaim(survey: Survey, gang: Workload, diagnosis: Diagnosis, prospects: Prospects) -> Json:
    """What a plan could do for it."""
    match prospects.found.get(gang.uid):
        case Plan() as found:
            who = ", ".join(f"{each.name} ({each.gpus} GPUs)" for each in found.victims)
            return _outcome("Planned", f"plan {found.id} would take {who}")
        case NoPlan() as found:
            return _outcome(str(found.why), found.message)
        case None:
            beyond = next((each for each in diagnosis.reasons if each.reason in _BEYOND_PLANS), None)
            return _outcome(*(beyond or _why_not_asked(survey, gang, prospects)))


_BEYOND_PLANS = frozenset({Why.NEVER_FITS, Why.QUEUE_STOPPED})


def _why_not_asked(survey: Survey, gang: Workload, prospects: Prospects) -> tuple[str, str]:
    beside, has_quota = survey.plan_beside(gang), gang.reservation is not None
    first = prospects.first_for_nodes if has_quota else prospects.first.get(survey.root_of(gang))
    where = "for nodes" if has_quota else "in its quota tree"
    reasons = {
        "UnderWay": "a plan is under way for it" if survey.plan_for(gang) is not None else "",
        "NotNeeded": "it holds its quota" if has_quota and gang.uid not in prospects.lacking else "",
        "AfterAnother": f"plan {beside.grant.plan} for {beside.grant.gang} has to end first" if beside else "",
        "NotNext": f"the next plan {where} is for {first}" if first else "",
        "NotJudged": survey.unjudged,
    }
    asks = f"'idle-gpu-scaler plan {gang.key}' tells what would be suspended for it"
    return next(((outcome, message) for outcome, message in reasons.items() if message), ("NotAsked", asks))


def _outcome(outcome: str, message: str) -> Json:
    return {"outcome": str(outcome), "message": message}
