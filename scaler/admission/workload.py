"""A Workload and one of our checks: the state of the check, and what the Workload's pods need of the nodes. Pure.

Laws:

* What counts is what was admitted: so many pods of each PodSet on such flavors, less those that are done.
* Pods demand what their template says, what their flavors add, and what admission checks give them beside it.
* Unreadable is an error and never nothing: a gang whose demands are not known stays Pending.

Check states, how they are read, and the patches that write them:

* Patches are made of the raw JSON that was just read: JSON merge patches replace the whole list, and the entries of
  other controllers are written back unchanged.
* Our entry is written anew. Kueue carries `podSetUpdates` and `requeueAfterSeconds` over every eviction, and
  copied again they would reach the next pods. Only `retryCount` is Kueue's own, and copied.
* `lastTransitionTime` changes with the state, and only with it.
* Every patch names the uid and the resourceVersion that was decided upon: what another client writes meanwhile wins.
* No entry is added and none removed: Kueue does that.

Source: kueue.x-k8s.io/v1beta2, AdmissionCheckState (message up to 32,768 characters, and never absent).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from scaler.admission.check import CheckChange, CheckEntry, ReservedWorkload, Yielded
from scaler.admission.provisioning.lifecycle import PodSetPatch
from scaler.admission.provisioning.requests import (
    CONSUME_ANNOTATION,
    Flavors,
    assignments_of,
    counts_of,
    reserved_at,
)
from scaler.documents import UNREADABLE
from scaler.kube import scheduling as core
from scaler.kube.objects import kueue_workloads as kube
from scaler.kube.objects.core import condition, guard, is_true, stamp
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.kueue_workloads import AdmissionCheckState, Workload
from scaler.kube.scheduling import NodeSelection
from scaler.placement.node_index import NodeDemand, on_flavors, tolerating_devices
from scaler.quota.from_objects.pod_nodes import selection_of, unsupported_constraints, unsupported_message
from scaler.quota.from_objects.pod_requests import pod_requests
from scaler.quota.from_objects.queues import flavor_of
from scaler.quota.model import Flavor

Json = Mapping[str, Any]

CONTROLLER = "idlegpu.io/reclaim"
"""The `controllerName` of our AdmissionChecks."""
POLICY_GROUP, POLICY_KIND = "idlegpu.io", "ReclaimPolicy"
"""What their parameters are."""
YIELDED_ANNOTATION = "idlegpu.io/yielded"
"""An annotation of a Workload: for which Workload it released its quota because of our check, when, and how often."""
ACTIVE = "Active"
_NEVER_AGAIN = datetime(9000, 1, 1, tzinfo=UTC)


def is_ours(check: AdmissionCheck) -> bool:
    """Whether we are the controller of the check."""
    return check.spec.controller_name == CONTROLLER


# ------------------------------------------------------------------------------------------------------------- reading


def entry_of(state: AdmissionCheckState) -> CheckEntry:
    """The entry as observed."""
    return CheckEntry(
        state=state.state,
        message=state.message,
        since=state.last_transition_time,
        updates=tuple(
            PodSetPatch(name=each.name, annotations=each.annotations, node_selector=each.node_selector)
            for each in state.pod_set_updates
            if each.annotations or each.node_selector
        ),
    )


class _Note(msgspec.Struct):
    to: str
    at: datetime
    times: int = 1
    of: datetime | None = None
    """When the quota was reserved."""


def yielded_of(workload: Workload) -> Yielded | None:
    """When it last released its quota because of our check; None where it never has.

    An annotation that cannot be read counts as now: the Workload does not yield again.
    """
    note = workload.metadata.annotations.get(YIELDED_ANNOTATION)
    if note is None:
        return None
    try:
        found = msgspec.json.decode(note, type=_Note)
        of = _aware(found.of) if found.of else None
        return Yielded(to=found.to, at=_aware(found.at), times=max(1, found.times), reserved_at=of)
    except (*UNREADABLE, OverflowError):
        return Yielded(to="unknown (the annotation cannot be read)", at=_NEVER_AGAIN)


def _aware(instant: datetime) -> datetime:
    return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)


# ------------------------------------------------------------------------------------------------------------- writing


def entry_patch(workload: Json, check: str, answer: CheckChange, now: datetime) -> Json | None:
    """The patch of the Workload's status with the check's new state; None where it has no entry."""
    entries = (workload.get("status") or {}).get("admissionChecks") or []
    if not any(each.get("name") == check for each in entries):
        return None
    written = [_entry(each, answer, now) if each.get("name") == check else each for each in entries]
    return {"metadata": guard(workload), "status": {"admissionChecks": written}}


def _entry(before: Json, answer: CheckChange, now: datetime) -> Json:
    is_same_state = before.get("state") == answer.state and before.get("lastTransitionTime")
    entry: dict[str, Any] = {
        "name": before["name"],
        "state": str(answer.state),
        "message": answer.message,
        "lastTransitionTime": before["lastTransitionTime"] if is_same_state else stamp(now),
    }
    if before.get("retryCount") is not None:
        entry["retryCount"] = before["retryCount"]
    if answer.updates:
        entry["podSetUpdates"] = [_update(each) for each in answer.updates]
    return entry


def _update(update: PodSetPatch) -> Json:
    fields = {"annotations": dict(update.annotations), "nodeSelector": dict(update.node_selector)}
    return {"name": update.name, **{name: value for name, value in fields.items() if value}}


def yield_patch(workload: Json, yielded: Yielded) -> Json:
    """The patch of the Workload with the annotation that it releases its quota."""
    note = {"to": yielded.to, "at": stamp(yielded.at), "times": yielded.times}
    note |= {"of": stamp(yielded.reserved_at)} if yielded.reserved_at else {}
    annotations = {YIELDED_ANNOTATION: msgspec.json.encode(note).decode()}
    return {"metadata": {**guard(workload), "annotations": annotations}}


_PREEMPTOR = re.compile(r"\(UID: ([0-9A-Za-z-]{1,64})[,)]", re.ASCII)
_SENT_BACK = frozenset({"Retry", "Rejected"})
_ANY_TAINT = core.Toleration(operator="Exists")


def reserved_workload_of(workload: kube.Workload, check: str) -> ReservedWorkload:
    """The Workload, as far as the check depends on it."""
    conditions, checks = workload.status.conditions, workload.status.admission_checks
    entry = next((each for each in checks if each.name == check), None)
    return ReservedWorkload(
        key="/".join(workload.metadata.key),
        uid=workload.metadata.uid,
        reserved_at=reserved_at(workload),
        admitted=is_true(conditions, "Admitted"),
        evicted=is_true(conditions, "Evicted"),
        active=workload.spec.active and workload.metadata.deletion_timestamp is None,
        finished=is_true(conditions, "Finished"),
        is_sent_back=any(each.state in _SENT_BACK for each in checks if each.name != check),
        entry=entry_of(entry) if entry is not None else None,
        yielded=yielded_of(workload),
    )


def preemptor_of(workload: kube.Workload) -> str:
    """The uid of the Workload for which Kueue has preempted this one; empty where it has not.

    Source: Kueue, pkg/scheduler/preemption: "Preempted to accommodate a workload (UID: …, JobUID: …) due to …".
    """
    evicted = condition(workload.status.conditions, "Evicted")
    if evicted is None or evicted.status != "True" or evicted.reason != "Preempted":
        return ""
    found = _PREEMPTOR.search(evicted.message)
    return found[1] if found else ""


# ------------------------------------------------------------------------------------------------------- what it needs


@dataclass(frozen=True, slots=True)
class PodDemands:
    """What a gang's pods need, all of them."""

    demands: tuple[NodeDemand, ...]
    selected: frozenset[str]
    """Node labels that its pods or any of its flavors demand: these must not be used to pin pods."""
    note: str = ""
    """What of their demands is not counted, in words; empty where everything is."""

    @property
    def is_exclusive(self) -> bool:
        """Whether its pods have anti-affinity to others, or to each other."""
        return any(each.nodes.apart for each in self.demands)

    def without(self, bound: Mapping[str, int]) -> tuple[NodeDemand, ...]:
        """What is needed for the pods that are not on nodes yet, where so many of each PodSet are."""
        return tuple(
            replace(each, count=max(0, each.count - bound.get(each.pod_set, 0))) if each.pod_set in bound else each
            for each in self.demands
        )


def pod_demands_of(workload: kube.Workload, flavors: Flavors) -> PodDemands:
    """What the pods of an admitted Workload need. Raises: ValueError for what cannot be read, or is not known."""
    counts = counts_of(workload)
    done = {each.name: each.count for each in workload.status.reclaimable_pods}
    assigned = _flavors_by_pod_set(workload, flavors)
    given = _given_by_checks(workload)
    demands = []
    for each in workload.spec.pod_sets:
        requests = _requests(each)
        nodes = on_flavors(selection_of(workload, each), assigned.get(each.name, ()))
        demands.append(
            NodeDemand(
                pod_set=each.name,
                count=max(0, counts[each.name] - done.get(each.name, 0)),
                requests=requests,
                nodes=tolerating_devices(_with_updates(nodes, given.get(each.name, ())), requests),
            )
        )
    selected = {key for each in demands for key in each.nodes.labels}
    return PodDemands(
        demands=tuple(demands),
        selected=frozenset(selected),
        note=unsupported_message(unsupported_constraints(workload)),
    )


def _flavors_by_pod_set(workload: kube.Workload, flavors: Flavors) -> dict[str, list[Flavor]]:
    found: dict[str, list[Flavor]] = {}
    for assignment in assignments_of(workload):
        for name in dict.fromkeys(assignment.flavors.values()):
            flavor = flavors(name)
            if flavor is None:
                raise ValueError(f"ResourceFlavor {name}, which PodSet {assignment.name} was given, is not seen")
            found.setdefault(assignment.name, []).append(flavor_of(flavor))
    return found


def _requests(pod_set: kube.PodSet) -> Mapping[str, int]:
    try:
        return pod_requests(pod_set.template.spec)
    except ValueError as error:
        raise ValueError(f"PodSet {pod_set.name}: {error}") from None


# ------------------------------------------------------------------------------------------------ what checks give them


def _given_by_checks(workload: kube.Workload) -> dict[str, list[kube.PodSetUpdate]]:
    """What Ready checks give to each PodSet. Updates of a check in another state do not count."""
    found: dict[str, list[kube.PodSetUpdate]] = {}
    for check in workload.status.admission_checks:
        for update in check.pod_set_updates if check.state == "Ready" else ():
            found.setdefault(update.name, []).append(update)
    return found


def _with_updates(selection: NodeSelection, updates: Sequence[kube.PodSetUpdate]) -> NodeSelection:
    if not updates:
        return selection
    labels, borne = dict(selection.labels), list(selection.tolerations)
    for each in updates:
        labels |= each.node_selector
        borne += each.tolerations
        borne += [_ANY_TAINT] if CONSUME_ANNOTATION in each.annotations else []
    return replace(selection, labels=labels, tolerations=tuple(borne))


def on_booked_nodes(demands: Sequence[NodeDemand], updates: Sequence[PodSetPatch]) -> tuple[NodeDemand, ...]:
    """What is needed of the nodes that a request has provisioned: with the labels that its pods will select.

    Taints do not count. The autoscaler has tried these pods on these nodes, and clouds let those through that
    consume a request (GKE taints the nodes of queued provisioning, and adds the toleration to pods by a webhook).
    """
    selected = {each.name: each.node_selector for each in updates}
    return tuple(
        replace(
            each,
            nodes=replace(
                each.nodes,
                labels={**selected[each.pod_set], **each.nodes.labels},
                tolerations=(*each.nodes.tolerations, _ANY_TAINT),
            ),
        )
        if each.pod_set in selected
        else each
        for each in demands
    )
