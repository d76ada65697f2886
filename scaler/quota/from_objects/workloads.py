"""A Kueue Workload as the quota engine sees it: what it asks for, how it stands in its queue, what it holds. Pure.

Laws:

* A Workload that is finished or deactivated is none of the scheduler's: it holds nothing, whatever its status still
  says. Kueue frees the quota of a deactivated one at the watch event, before anything has stopped.
* A reservation is the condition QuotaReserved, counted as Kueue wrote it into `status.admission`, less the pods that
  need no quota any more.
* What Kueue counted itself (`status.resourceRequests`) wins over what the pods say, while the specification is still
  the one that was counted: only Kueue knows LimitRanges, excluded prefixes and transformations.
* What cannot be foreseen (topology, slices of elastic jobs, devices, quantities that are none) makes the Workload
  opaque, with the reason; it never raises and never makes the Workload disappear.
* One that MultiKueue dispatches holds the quota of the hub like any other: once it is deactivated, that is free a
  second later, whatever its status still says.

Source: Kueue, pkg/workload/workload.go (totalRequestsFromPodSets, totalRequestsFromAdmission, GetQueueOrderTimestamp,
IsAdmissible, computeSchedulingHash), pkg/cache/queue/cluster_queue.go (backoffWaitingTimeExpired),
pkg/controller/jobframework/reconciler.go (which evictions are followed by Requeued=True).
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from scaler.kube.objects import kueue_workloads as kube
from scaler.kube.objects.core import Condition, Quantity
from scaler.kube.objects.quantity import Requests, amount, canonical, shared
from scaler.kube.scheduling import ANYWHERE, NodeSelection
from scaler.quota import model
from scaler.quota.from_objects.pod_nodes import selection_of
from scaler.quota.from_objects.pod_requests import effective, over_limits, pod_requests

BOOST_ANNOTATION = "kueue.x-k8s.io/priority-boost"
ADMISSION_GATED_BY_ANNOTATION = "kueue.x-k8s.io/admission-gated-by"
ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
SLICE_ANNOTATION = "kueue.x-k8s.io/workload-slice-replacement-for"
FLAVORS_ANNOTATION = "kueue.x-k8s.io/workload-allowed-resource-flavors"

_REORDERING_EVICTIONS = ("PodsReadyTimeout", "AdmissionCheck")
"""The evictions after which a Workload queues by their time; after all others by its creation."""
_RETURNING_EVICTIONS = ("Preempted", "NodeFailures")
"""The evictions after which a Workload queues again once its pods are gone; others need something else to end first."""
_BOOST = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_INT32 = range(-(2**31), 2**31)
_LONG_AGO = datetime.fromtimestamp(0, UTC)
_encode = msgspec.json.Encoder(order="deterministic").encode

Conditions = Mapping[str, Condition]


def quota_workload_of(
    workload: kube.Workload, *, boosts: bool = False, excluded: tuple[str, ...] = (), now: datetime | None = None
) -> model.QuotaWorkload | None:
    """The Workload as far as it waits for quota or holds some; None where it does neither.

    `boosts`: whether Kueue's gate PriorityBoost is on. `excluded`: prefixes of resources that Kueue is configured not
    to count (`resources.excludeResourcePrefixes`). `now` is compared with the end of backoffs; without it all are over.
    """
    conditions = {each.type: each for each in workload.status.conditions}
    if not workload.spec.active or _is(conditions, "Finished"):
        return None
    counts = _counts(workload)
    doubts: list[str] = []
    invalid = _invalid(workload.spec.pod_sets, doubts)
    reservation = _reservation(workload, conditions, counts, doubts)
    metadata = workload.metadata
    return model.QuotaWorkload(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        queue=workload.spec.queue_name,
        priority=(workload.spec.priority or 0) + (_boost(workload) if boosts else 0),
        queued_at=_queued_at(workload, conditions),
        created_at=_aware(workload.metadata.creation_timestamp),
        pod_sets=_pod_sets(workload, conditions, counts, excluded, doubts),
        reservation=reservation,
        admitted=reservation is not None and _is(conditions, "Admitted"),
        evicted=reservation is not None and _is(conditions, "Evicted"),
        may_queue=_may_queue(workload, conditions, now),
        opaque_because=_unsupported_because(workload, conditions) or "; ".join(dict.fromkeys(doubts)),
        invalid_because=invalid,
        generation=metadata.generation or 1,
        extra_shape=_extra_shape(workload.spec.pod_sets),
    )


def _is(conditions: Conditions, kind: str, status: str = "True") -> bool:
    found = conditions.get(kind)
    return found is not None and found.status == status


# ------------------------------------------------------------------------------------------------------ what is opaque


def _unsupported_because(workload: kube.Workload, conditions: Conditions) -> str:
    """Why Kueue's decisions about the Workload cannot be foreseen; empty where they can.

    Every Job has a `topologyRequest` with a `podIndexLabel`; that alone asks for no topology.
    Source: Kueue, pkg/workload/workload.go (IsExplicitlyRequestingTAS), pkg/scheduler/scheduler.go (nominate).
    """
    annotations, status = workload.metadata.annotations, workload.status
    requests = [each.topology_request for each in workload.spec.pod_sets if each.topology_request]
    placed = status.admission.pod_set_assignments if status.admission else ()
    # A Workload without reservation is not nominated while one of its checks says Retry or Rejected.
    checks = () if _is(conditions, "QuotaReserved") else status.admission_checks
    failed = [f"its check {each.name} is {each.state}" for each in checks if each.state in ("Retry", "Rejected")]
    reasons = {
        "it is being deleted": workload.metadata.deletion_timestamp is not None,
        "it is a slice of an elastic job": annotations.get(ELASTIC_ANNOTATION) == "true"
        or SLICE_ANNOTATION in annotations,
        "it is one of several variants that are admitted concurrently": FLAVORS_ANNOTATION in annotations,
        "it claims devices": any(each.template.spec.resource_claims for each in workload.spec.pod_sets),
        "it asks for a topology": any(map(_asks_for_topology, requests)),
        "it is placed by topology": any(each.topology_assignment or each.delayed_topology_request for each in placed),
        "".join(failed[:1]): failed,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _asks_for_topology(request: kube.TopologyRequest) -> bool:
    return bool(
        request.required
        or request.preferred
        or request.unconstrained is not None
        or request.pod_set_group_name
        or request.pod_set_slice_required_topology
        or request.pod_set_slice_size
        or request.podset_slice_required_topology_constraints
    )


# ------------------------------------------------------------------------------------------------------- its place


def _boost(workload: kube.Workload) -> int:
    """The priority boost; 0 where it is absent or no number of 32 bits, which Kueue's webhook refuses."""
    text = workload.metadata.annotations.get(BOOST_ANNOTATION, "")
    boost = int(text) if _BOOST.fullmatch(text) else 0
    return boost if boost in _INT32 else 0


def _queued_at(workload: kube.Workload, conditions: Conditions) -> datetime:
    if _eviction(conditions) in _REORDERING_EVICTIONS:
        return _aware(conditions["Evicted"].last_transition_time)
    return _aware(workload.metadata.creation_timestamp)


def _eviction(conditions: Conditions) -> str:
    """The reason for which it is evicted; empty where it is not."""
    return conditions["Evicted"].reason if _is(conditions, "Evicted") else ""


def _aware(time: datetime | None) -> datetime:
    """The time, comparable with all others; a time without zone, which no API server writes, is taken for UTC."""
    if time is None:
        return _LONG_AGO
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _may_queue(workload: kube.Workload, conditions: Conditions, now: datetime | None) -> bool:
    if _is(conditions, "Requeued", "False") or _is(conditions, "WaitingForReplacementPods"):
        return False
    if workload.metadata.annotations.get(ADMISSION_GATED_BY_ANNOTATION):
        return False
    if _is(conditions, "QuotaReserved", "False") and conditions["QuotaReserved"].reason == "OnHold":
        return False
    if _is(conditions, "QuotaReserved") and _eviction(conditions) not in ("", *_RETURNING_EVICTIONS):
        return False
    requeue_at = requeue_at_of(workload)
    return now is None or requeue_at is None or requeue_at <= now


def requeue_at_of(workload: kube.Workload) -> datetime | None:
    """When the backoff ends that keeps the Workload out of its queue."""
    state = workload.status.requeue_state
    return _aware(state.requeue_at) if state and state.requeue_at else None


# ---------------------------------------------------------------------------------------------------- what it wants


def _counts(workload: kube.Workload) -> dict[str, int]:
    """Pods of each PodSet that need quota: those that have succeeded do not."""
    counts = {each.name: each.count for each in workload.spec.pod_sets}
    for done in workload.status.reclaimable_pods:
        if done.name in counts:
            counts[done.name] = max(0, counts[done.name] - done.count)
    return counts


def _pod_sets(
    workload: kube.Workload,
    conditions: Conditions,
    counts: Mapping[str, int],
    excluded: tuple[str, ...],
    doubts: list[str],
) -> tuple[model.QuotaPodSet, ...]:
    counted = _counted_by_kueue(workload, conditions)
    return tuple(
        model.QuotaPodSet(
            name=each.name,
            count=counts[each.name],
            requests=_requests(each, counts[each.name], counted, excluded, doubts),
            min_count=each.min_count,
            nodes=_nodes(workload, each, doubts),
        )
        for each in workload.spec.pod_sets
    )


def _counted_by_kueue(workload: kube.Workload, conditions: Conditions) -> Mapping[str, kube.PodSetRequest]:
    """What Kueue counted when it last tried this specification, by PodSet; nothing where it has not yet."""
    reserved = conditions.get("QuotaReserved")
    if reserved is None or reserved.status != "False" or reserved.observed_generation != workload.metadata.generation:
        return {}
    return {each.name: each for each in workload.status.resource_requests}


def _requests(
    pod_set: kube.PodSet,
    count: int,
    counted: Mapping[str, kube.PodSetRequest],
    excluded: tuple[str, ...],
    doubts: list[str],
) -> Requests:
    """What one pod requests. Nothing where that cannot be read, and a doubt."""
    try:
        total = counted.get(pod_set.name)
        requests = _of_one_pod(total, count) if total is not None and count > 0 else None
        if requests is None:
            requests = {
                name: value
                for name, value in pod_requests(pod_set.template.spec).items()
                if not name.startswith(excluded)
            }
    except ValueError as error:
        doubts.append(f"PodSet {pod_set.name}: {error}")
        return shared(())
    return shared(tuple(requests.items()))


def _of_one_pod(total: kube.PodSetRequest, count: int) -> dict[str, int] | None:
    """Kueue's count for the PodSet, divided by its pods; None where it was another number of pods that was counted."""
    amounts = {name: amount(name, quantity) for name, quantity in total.resources.items()}
    if any(value % count for value in amounts.values()):
        return None
    return {name: value // count for name, value in amounts.items()}


def _invalid(pod_sets: Iterable[kube.PodSet], doubts: list[str]) -> str:
    """Why Kueue refuses the pods. What LimitRanges forbid is not known here."""
    for each in pod_sets:
        try:
            if excess := over_limits(each.template.spec):
                return f"PodSet {each.name}: {excess}"
        except ValueError as error:
            doubts.append(f"PodSet {each.name}: {error}")
    return ""


def _nodes(workload: kube.Workload, pod_set: kube.PodSet, doubts: list[str]) -> NodeSelection:
    try:
        return selection_of(workload, pod_set)
    except ValueError as error:
        doubts.append(str(error))
        return ANYWHERE


# ---------------------------------------------------------------------------------------------------- what it holds


def _reservation(
    workload: kube.Workload, conditions: Conditions, counts: Mapping[str, int], doubts: list[str]
) -> model.Reservation | None:
    admission = workload.status.admission
    if not _is(conditions, "QuotaReserved"):
        return None
    if admission is None:
        doubts.append("QuotaReserved is True without an admission in its status")
        return None
    asked = {each.name: each.count for each in workload.spec.pod_sets}
    assignments = tuple(
        _assignment(each, asked.get(each.name, 0), counts.get(each.name, 0), doubts)
        for each in admission.pod_set_assignments
    )
    return model.Reservation(
        cluster_queue=admission.cluster_queue,
        at=_aware(conditions["QuotaReserved"].last_transition_time),
        assignments=assignments,
        usage=model.usage_of(assignments),
    )


def _assignment(
    assignment: kube.PodSetAssignment, asked: int, needed: int, doubts: list[str]
) -> model.QuotaPodSetAssignment:
    """What of the assignment is still held. With fewer pods left, so much of the total as these have of all pods."""
    count = asked if assignment.count is None else assignment.count
    usage = _usage(assignment, doubts)
    if needed < count:
        usage = {resource: value // count * needed for resource, value in usage.items()}
        count = needed
    return model.QuotaPodSetAssignment(
        name=assignment.name, count=count, flavors=assignment.flavors, usage=shared(tuple(usage.items()))
    )


def _usage(assignment: kube.PodSetAssignment, doubts: list[str]) -> dict[str, int]:
    usage = {}
    for resource, quantity in assignment.resource_usage.items():
        try:
            usage[resource] = amount(resource, quantity)
        except ValueError as error:
            doubts.append(f"admission of PodSet {assignment.name}: {error}")
    return usage


# ----------------------------------------------------------------------------------------------------------- its shape


def _extra_shape(pod_sets: Iterable[kube.PodSet]) -> Hashable:
    """A number for what Kueue compares beside requests, counts and demands on nodes: the same for equal shapes."""
    return hash(_encode([_shape(each) for each in pod_sets]))


def _shape(pod_set: kube.PodSet) -> list[object]:
    spec = pod_set.template.spec
    return [
        [[_spelled(effective(each.resources)), each.ports] for each in spec.init_containers],
        [[_spelled(effective(each.resources)), each.ports] for each in spec.containers],
        spec.affinity,
        spec.runtime_class_name,
        spec.priority,
        spec.topology_spread_constraints,
        _spelled(spec.overhead),
        spec.resource_claims,
        spec.resources and _spelled(effective(spec.resources)),
        pod_set.topology_request,
    ]


def _spelled(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """The quantities, equal ones alike; those that cannot be read, which makes a doubt, as they are."""
    try:
        return {resource: canonical(quantity) for resource, quantity in quantities.items()}
    except ValueError:
        return dict(quantities)
