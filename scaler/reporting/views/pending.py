"""Every gang that waits for GPUs, and precisely why, as JSON. Pure.

Kueue's own words stand beside ours: where they differ, one of us has not seen the latest yet, or is wrong.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.decision.describe import timestamp
from scaler.errors import QueryError
from scaler.idleness.durations import format_duration
from scaler.kube.objects.core import condition, is_true
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.quantity import as_number
from scaler.quota.cycle import Considered
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.search.values import NoPlan, NoPlanReason, ReclaimPlan
from scaler.reporting.views import Json
from scaler.reporting.views.active_plan import active_plan_view
from scaler.reporting.views.snapshot import ViewSnapshot
from scaler.reporting.waiting_reasons import Diagnosis, FlavorShortage, diagnose, pending_since
from scaler.targets.target_state import Seeks


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerAnswers:
    """What the planner answers for gangs without an active plan, as far as it was asked."""

    found: dict[str, ReclaimPlan | NoPlan] = field(default_factory=dict)
    """What was found for each gang, by uid."""
    first: dict[tuple[Seeks, str], str] = field(default_factory=dict)
    """The gang that gets the next plan in each scope of plans; the others come after it."""
    lacking: Collection[str] = frozenset()
    """Uids of the gangs that have quota and lack nodes."""
    heads: dict[str, Sequence[Considered]] = field(default_factory=dict)
    """What Kueue's next cycle does with the heads of a tree, in their turns, by the root of the tree."""


MOST = 1000
"""Gangs in one answer. Filters show the others."""


def pending_view(
    snapshot: ViewSnapshot,
    answers: PlannerAnswers = PlannerAnswers(),
    *,
    namespace: str = "",
    queue: str = "",
    most: int = MOST,
) -> Json:
    """The gangs of the namespace and of the queue (a LocalQueue or a ClusterQueue), where these are given."""
    chosen = selected(snapshot, namespace=namespace, queue=queue)
    return {
        "at": timestamp(snapshot.at),
        "unjudged": snapshot.unjudged or None,
        "gangs": [_gang(snapshot, *each, answers) for each in chosen[:most]],
        "omitted": max(0, len(chosen) - most),
    }


def gang_page(snapshot: ViewSnapshot, observed: KueueWorkload, answers: PlannerAnswers) -> Json:
    """One Workload. `gang` is what `pending` says of it; null for one that does not wait."""
    key = "/".join(observed.metadata.key)
    gang = next((gang for gang, _ in snapshot.waiting if gang.key == key), None)
    state, since = _state_of(observed)
    return {
        "at": timestamp(snapshot.at),
        "unjudged": snapshot.unjudged or None,
        "namespace": observed.metadata.namespace,
        "name": observed.metadata.name,
        "job": _job_of(observed),
        "state": state,
        "since": timestamp(since),
        "checks": _checks(observed),
        "admissionChecks": snapshot.checks.of(key, snapshot.at),
        "gang": _gang(snapshot, gang, observed, answers) if gang is not None else None,
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
"""States of one that holds quota, the most final one first."""


def _since(observed: KueueWorkload, kind: str) -> datetime | None:
    found = condition(observed.status.conditions, kind)
    return found.last_transition_time if found is not None else None


def selected(
    snapshot: ViewSnapshot, *, namespace: str = "", queue: str = ""
) -> Sequence[tuple[QuotaWorkload, KueueWorkload | None]]:
    """The pending Workloads of the query, those with highest priority first. Raises: QueryError for unknown names."""
    _check_names(snapshot, namespace, queue)
    return [
        (gang, observed)
        for gang, observed in snapshot.waiting
        if namespace in ("", gang.namespace) and queue in ("", gang.queue, snapshot.cluster_queue_of(gang))
    ]


def _check_names(snapshot: ViewSnapshot, namespace: str, queue: str) -> None:
    """Raises: QueryError for a namespace or a queue that does not exist. An empty answer would be misleading.

    Workloads may name a LocalQueue that does not exist: a query for it finds them.
    """
    if namespace and namespace not in snapshot.world.namespaces:
        raise QueryError(f"there is no namespace {namespace}", status=404)
    local = {name for where, name in snapshot.local_queues if namespace in ("", where)}
    named = {each.queue for each, _ in snapshot.waiting if namespace in ("", each.namespace)}
    if queue and queue not in local | named | set(snapshot.cluster_queues):
        where = f" in namespace {namespace}" if namespace else ""
        raise QueryError(f"there is no ClusterQueue {queue}, and no LocalQueue {queue}{where}", status=404)


def _gang(snapshot: ViewSnapshot, gang: QuotaWorkload, observed: KueueWorkload | None, answers: PlannerAnswers) -> Json:
    heads = answers.heads.get(snapshot.root_of(gang), ())
    diagnosis = diagnose(snapshot, gang, observed, answers.found.get(gang.uid), heads)
    plan = snapshot.plan_for(gang)
    return gang_view(snapshot, gang, observed, diagnosis) | {
        "quota": [_line(line) for line in diagnosis.lines],
        "before": [each.key for each in diagnosis.before[:_SHOWN]],
        "checks": _checks(observed),
        "admissionChecks": snapshot.checks.of(gang.key, snapshot.at),
        "plan": active_plan_view(plan, snapshot.at) if plan is not None else None,
        "reclaim": _reclaim(snapshot, gang, diagnosis, answers),
    }


_SHOWN = 5


def gang_view(
    snapshot: ViewSnapshot, gang: QuotaWorkload, observed: KueueWorkload | None, diagnosis: Diagnosis
) -> Json:
    first = diagnosis.reasons[0]
    since, spec = pending_since(gang), diagnosis.queue.spec if diagnosis.queue is not None else None
    return {
        "namespace": gang.namespace,
        "name": gang.name,
        "job": _job_of(observed),
        "gpus": sum(
            amount for each in gang.requests for resource, amount in each.items() if snapshot.gpus.matches(resource)
        ),
        "podSets": [
            {
                "name": each.name,
                "count": each.count,
                "minCount": each.min_count,
                "requests": {
                    resource: as_number(resource, amount) for resource, amount in sorted(each.requests.items())
                },
            }
            for each in gang.pod_sets
        ],
        "priority": gang.priority,
        "since": timestamp(since),
        "waits": format_duration(whole(snapshot.at - since)),
        "localQueue": gang.queue,
        "clusterQueue": snapshot.cluster_queue_of(gang) or None,
        "queueingStrategy": str(spec.strategy) if spec is not None else None,
        "position": diagnosis.position,
        "inLine": len(snapshot.lines.get(spec.name, ())) if spec is not None else 0,
        "kueue": kueue_view(observed),
        "reason": str(first.reason),
        "message": first.message,
        "reasons": [{"reason": str(each.reason), "message": each.message} for each in diagnosis.reasons],
    }


def _job_of(observed: KueueWorkload | None) -> str | None:
    owner = observed.metadata.controller_owner if observed is not None else None
    return f"{owner.kind}/{owner.name}" if owner is not None else None


def whole(duration: timedelta) -> timedelta:
    """The duration in whole seconds, and none below 0."""
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


def _line(line: FlavorShortage) -> Json:
    resource = line.key.resource
    return {
        "flavor": line.key.flavor,
        "resource": resource,
        "wanted": as_number(resource, line.wanted),
        "available": as_number(resource, line.available),
        "lacking": as_number(resource, line.lacking) if not line.refusal else None,
        "most": as_number(resource, line.most),
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


def _reclaim(snapshot: ViewSnapshot, gang: QuotaWorkload, diagnosis: Diagnosis, answers: PlannerAnswers) -> Json:
    match answers.found.get(gang.uid):
        case ReclaimPlan() as found:
            victims = ", ".join(f"{each.name} ({each.gpus} GPUs)" for each in found.victims)
            outcome, message = "Planned", f"plan {found.id} would suspend {victims}"
        case NoPlan() as found:
            outcome, message = str(found.why), found.message
        case None:
            beyond = next((each for each in diagnosis.reasons if each.reason in _BEYOND_PLANS), None)
            outcome, message = beyond or _why_not_asked(snapshot, gang, answers)
    return {"outcome": str(outcome), "message": message}


_BEYOND_PLANS = frozenset({NoPlanReason.NEVER_FITS, NoPlanReason.QUEUE_STOPPED})


def _why_not_asked(snapshot: ViewSnapshot, gang: QuotaWorkload, answers: PlannerAnswers) -> tuple[str, str]:
    beside, has_quota = snapshot.plan_beside(gang), gang.reservation is not None
    first = answers.first.get((Seeks.NODES, "") if has_quota else (Seeks.QUOTA, snapshot.root_of(gang)))
    where = "for nodes" if has_quota else "in its quota tree"
    reasons = {
        "UnderWay": "a plan is under way for it" if snapshot.plan_for(gang) is not None else "",
        "NotNeeded": "it holds its quota" if has_quota and gang.uid not in answers.lacking else "",
        "AfterAnother": f"plan {beside.grant.plan} for {beside.grant.gang} has to end first" if beside else "",
        "NotNext": f"the next plan {where} is for {first}" if first else "",
        "NotJudged": snapshot.unjudged,
    }
    asks = f"'idle-gpu-scaler plan {gang.key}' tells what would be suspended for it"
    return next(((outcome, message) for outcome, message in reasons.items() if message), ("NotAsked", asks))
