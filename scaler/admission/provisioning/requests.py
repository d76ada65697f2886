"""ProvisioningRequests, and the Workloads that they are for, as values of `lifecycle.py`. Pure.

Laws:

* Nothing is parsed out of a name. The Workload, the attempt and the reservation of a request are in its labels and
  annotations. A request whose annotations cannot be read is one for something else, and is replaced.
* Updates of pods never contradict what the pods have already: Kueue fails a Workload for good if they do.

Why requests are not owned by their Workload, as Kueue's own are: Kueue's provisioning controller, which runs wherever
the API serves ProvisioningRequests, deletes every request that names a Workload with quota as an owner and is not of
one of its own checks. So the Workload owns the PodTemplates and these own the request (`manifests.py`).

Source: Kueue, pkg/controller/admissionchecks/provisioning (controller.go, provisioning.go, indexer.go).
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from scaler.admission.check import ReservedWorkload
from scaler.admission.policy import ProvisioningPolicy
from scaler.admission.provisioning.lifecycle import (
    ObservedRequest,
    PodSetPatch,
    ProvisioningInputs,
    RequestSpec,
    RequestState,
)
from scaler.kube.objects.core import Condition, condition, is_true
from scaler.kube.objects.kueue_queues import ResourceFlavor
from scaler.kube.objects.kueue_workloads import PodSet, PodSetAssignment, Workload
from scaler.kube.objects.kueue_workloads import PodSetUpdate as GivenUpdate
from scaler.kube.objects.nodes import ProvisioningRequest

MANAGED_LABEL = "idlegpu.io/managed"
WORKLOAD_UID_LABEL = "idlegpu.io/workload-uid"
WORKLOAD_ANNOTATION = "idlegpu.io/workload"
"""The name of the Workload."""
CHECK_ANNOTATION = "idlegpu.io/check"
ATTEMPT_ANNOTATION = "idlegpu.io/attempt"
RESERVED_AT_ANNOTATION = "idlegpu.io/reserved-at"
ASSIGNMENT_ANNOTATION = "idlegpu.io/assignment"
"""A digest of the flavors and counts that were reserved."""
POD_SETS_ANNOTATION = "idlegpu.io/pod-sets"
"""The PodSets that a request is for, with commas between."""

PARAMETER_PREFIX = "provreq.kueue.x-k8s.io/"
"""Annotations of Workloads that set a parameter, whatever the policy says of it."""
CONSUME_ANNOTATION = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS_ANNOTATION = "autoscaling.x-k8s.io/provisioning-class-name"

Flavors = Callable[[str], ResourceFlavor | None]
"""ResourceFlavors by name."""

_ATTEMPT = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_ETA = re.compile(r"\bETA:?\s+(\d{4}-\d\d-\d\dT\S+)", re.ASCII)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


# ------------------------------------------------------------------------------------------------------- the Workload


def provisioning_inputs_of(
    workload: Workload, reserved: ReservedWorkload, policy: ProvisioningPolicy | None
) -> ProvisioningInputs:
    """The Workload as far as its requests depend on it. `reserved` is the same, with one check."""
    updates = reserved.entry.updates if reserved.entry is not None else ()
    return ProvisioningInputs(
        stage=reserved.stage,
        spec=request_spec_of(workload, policy) if policy else None,
        covered=covered_by(workload, policy) if policy else (),
        consumes=next(filter(None, (each.annotations.get(CONSUME_ANNOTATION) for each in updates)), ""),
    )


def holds_quota(workload: Workload) -> bool:
    """Whether it has quota and may start, or has started."""
    conditions = workload.status.conditions
    is_over = is_true(conditions, "Finished") or is_true(conditions, "Evicted")
    is_there = workload.spec.active and workload.metadata.deletion_timestamp is None
    return is_there and not is_over and reserved_at(workload) is not None


def reserved_at(workload: Workload) -> datetime | None:
    """When its quota was reserved, which tells one reservation from another; None while it has none."""
    found = condition(workload.status.conditions, "QuotaReserved")
    if found is None or found.status != "True" or workload.status.admission is None:
        return None
    return _seconds(found.last_transition_time or workload.metadata.creation_timestamp)


def request_spec_of(workload: Workload, policy: ProvisioningPolicy) -> RequestSpec:
    """What would be requested now."""
    own = {
        key.removeprefix(PARAMETER_PREFIX): value
        for key, value in workload.metadata.annotations.items()
        if key.startswith(PARAMETER_PREFIX)
    }
    return RequestSpec(
        reserved_at=reserved_at(workload),
        assignment=_assignment_of(workload),
        provisioning_class=policy.provisioning_class,
        parameters={**policy.parameters, **own},
    )


def _assignment_of(workload: Workload) -> str:
    reserved = sorted((each.name, each.count, sorted(each.flavors.items())) for each in assignments_of(workload))
    return hashlib.sha256(repr(reserved).encode()).hexdigest()[:16] if reserved else ""


def covered_by(workload: Workload, policy: ProvisioningPolicy) -> tuple[str, ...]:
    """The PodSets that nodes are requested for: those whose pods request a resource that the policy manages."""
    counts = counts_of(workload)
    return tuple(each.name for each in workload.spec.pod_sets if counts[each.name] > 0 and _is_managed(each, policy))


def counts_of(workload: Workload) -> Mapping[str, int]:
    """Pods by PodSet, as they were admitted."""
    admitted = {each.name: each.count for each in assignments_of(workload) if each.count is not None}
    return {each.name: admitted.get(each.name, each.count) for each in workload.spec.pod_sets}


def assignments_of(workload: Workload) -> tuple[PodSetAssignment, ...]:
    return workload.status.admission.pod_set_assignments if workload.status.admission else ()


def _is_managed(pod_set: PodSet, policy: ProvisioningPolicy) -> bool:
    spec = pod_set.template.spec
    resources = [container.resources for container in (*spec.init_containers, *spec.containers)]
    resources += [spec.resources] if spec.resources else []
    return not policy.managed_resources or any(
        policy.managed_resources & (each.requests.keys() | each.limits.keys()) for each in resources
    )


# -------------------------------------------------------------------------------------------------------- the request


def workload_uid_of(found: ProvisioningRequest) -> Iterator[str]:
    """The uid of the Workload that the request is for: the index by which requests are found."""
    uid = found.metadata.labels.get(WORKLOAD_UID_LABEL)
    if uid and found.metadata.labels.get(MANAGED_LABEL) == "true":
        yield uid


def check_of(found: ProvisioningRequest) -> str:
    """The AdmissionCheck that the request was made for."""
    return found.metadata.annotations.get(CHECK_ANNOTATION, "")


def request_of(found: ProvisioningRequest) -> ObservedRequest:
    """The request as observed."""
    metadata, spec = found.metadata, found.spec
    state, latest = _state_of(found.status.conditions)
    attempt = metadata.annotations.get(ATTEMPT_ANNOTATION, "")
    since = latest.last_transition_time if latest else None
    message = _message_of(found.status.conditions, state, latest)
    return ObservedRequest(
        name=metadata.name,
        uid=metadata.uid,
        attempt=int(attempt) if _ATTEMPT.fullmatch(attempt) else 0,
        spec=RequestSpec(
            reserved_at=read_stamp(metadata.annotations.get(RESERVED_AT_ANNOTATION, "")),
            assignment=metadata.annotations.get(ASSIGNMENT_ANNOTATION, ""),
            provisioning_class=spec.provisioning_class_name,
            parameters=spec.parameters,
        ),
        state=state,
        since=_seconds(since or metadata.creation_timestamp),
        message=message,
        reason=latest.reason if latest else "",
        eta=_eta(message) if state is RequestState.ACCEPTED else None,
        created_at=metadata.creation_timestamp,
        is_ending=metadata.deletion_timestamp is not None,
    )


def _state_of(conditions: tuple[Condition, ...]) -> tuple[RequestState, Condition | None]:
    """The most final of the conditions that are true."""
    true = {each.type: each for each in conditions if each.status == "True"}
    state = next((each for each in RequestState if each in true), RequestState.NEW)
    return state, true.get(state)


def _message_of(conditions: tuple[Condition, ...], state: RequestState, latest: Condition | None) -> str:
    """The autoscaler's message. For an accepted request it is that of the condition `Provisioned`, with the ETA."""
    progress = condition(conditions, "Provisioned") if state is RequestState.ACCEPTED else None
    return (progress.message if progress else "") or (latest.message if latest else "")


def _eta(message: str) -> datetime | None:
    """When nodes are expected, as GKE writes it: `ETA: 2026-11-20T17:30:00Z`."""
    found = _ETA.search(message)
    return read_stamp(found[1].rstrip(".,;)")) if found else None


def read_stamp(text: str) -> datetime | None:
    """The instant that was written; None for what is none."""
    try:
        return _seconds(datetime.fromisoformat(text)) if text else None
    except (ValueError, OverflowError):
        return None


def _seconds(instant: datetime | None) -> datetime:
    """The instant in UTC and whole seconds, in which the API keeps it; one without zone is taken for UTC."""
    if instant is None:
        return datetime.fromtimestamp(0, UTC)
    aware = instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    return aware.replace(microsecond=0)


# --------------------------------------------------------------------------------------------------- when it is ready


def ready_updates(
    found: ProvisioningRequest, workload: Workload, policy: ProvisioningPolicy, flavors: Flavors
) -> tuple[tuple[PodSetPatch, ...], tuple[str, ...]]:
    """The request to consume and the labels of its nodes, for every PodSet of the request; and what could not be given
    to the pods, and why."""
    names = [name for name in found.metadata.annotations.get(POD_SETS_ANNOTATION, "").split(",") if name]
    labels, left_out = _labels(found, policy)
    annotations = {CONSUME_ANNOTATION: found.metadata.name, CLASS_ANNOTATION: found.spec.provisioning_class_name}
    updates = []
    for pod_set in workload.spec.pod_sets:
        if pod_set.name not in names:
            continue
        others = _given_by_others(workload, pod_set, check_of(found))
        selected = _labels_taken(workload, pod_set, flavors) | _merged(each.node_selector for each in others)
        annotated = _merged(each.annotations for each in others)
        for wanted, taken in ((labels, selected), (annotations, annotated)):
            left_out += [
                f"{key}={value} for PodSet {pod_set.name}, which has {key}={taken[key]} already"
                for key, value in wanted.items()
                if taken.get(key, value) != value
            ]
        updates.append(
            PodSetPatch(
                name=pod_set.name,
                annotations={key: value for key, value in annotations.items() if key not in annotated},
                node_selector={key: value for key, value in labels.items() if key not in selected},
            )
        )
    return tuple(updates), tuple(left_out)


def _given_by_others(workload: Workload, pod_set: PodSet, check: str) -> list[GivenUpdate]:
    """What other checks give the PodSet, such as Kueue's own for ProvisioningRequests."""
    entries = (each for each in workload.status.admission_checks if each.name != check)
    return [update for each in entries for update in each.pod_set_updates if update.name == pod_set.name]


def _merged(given: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for each in given for key, value in each.items()}


def _labels(found: ProvisioningRequest, policy: ProvisioningPolicy) -> tuple[dict[str, str], list[str]]:
    """Node labels with values from the class details, and which there are none of."""
    labels: dict[str, str] = {}
    left_out: list[str] = []
    for label, detail in policy.node_selector.items():
        value = found.status.provisioning_class_details.get(detail)
        if value is None:
            left_out.append(f"node label {label}: the request has no class detail {detail!r}")
        elif not _LABEL_VALUE.fullmatch(value):
            left_out.append(f"node label {label}: class detail {detail!r} is no label value: {value[:80]!r}")
        else:
            labels[label] = value
    return labels, left_out


def _labels_taken(workload: Workload, pod_set: PodSet, flavors: Flavors) -> dict[str, str]:
    """Node labels that the PodSet's pods demand already, by themselves or by their flavors."""
    taken = dict(pod_set.template.spec.node_selector)
    for assignment in assignments_of(workload):
        for name in assignment.flavors.values() if assignment.name == pod_set.name else ():
            flavor = flavors(name)
            taken |= flavor.spec.node_labels if flavor else {}
    return taken
