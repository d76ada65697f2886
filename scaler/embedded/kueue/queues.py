"""May this queue admit anything, and what does its status say? ClusterQueues and LocalQueues as read and as shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from scaler.embedded.conditions import has, make, with_conditions
from scaler.embedded.kinds import Json
from scaler.embedded.kueue.quota import Group, Shortage, Usage, groups_of, holds_quota, is_active, used
from scaler.embedded.quantities import as_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A ClusterQueue as the scheduler sees it."""

    name: str
    generation: int
    is_strict: bool
    """Whether a head that does not fit blocks those behind it (StrictFIFO) or is passed by (BestEffortFIFO)."""
    groups: tuple[Group, ...]
    checks: tuple[str, ...]
    closed: Shortage | None
    """Why it admits nothing at all; None where it does."""
    namespaces: Json | None
    """The namespaceSelector. None matches none."""


def queue_of(cluster_queue: Json, *, flavors: Mapping[str, Json], checks: Mapping[str, Json]) -> Queue:
    """The ClusterQueue, judged by the flavors and checks that there are."""
    spec = cluster_queue["spec"]
    groups = groups_of(cluster_queue)
    wanted = tuple(each["name"] for each in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ())
    return Queue(
        name=cluster_queue["metadata"]["name"],
        generation=cluster_queue["metadata"].get("generation", 1),
        is_strict=spec.get("queueingStrategy") == "StrictFIFO",
        groups=groups,
        checks=wanted,
        closed=_closed(spec, groups, wanted, flavors=flavors, checks=checks),
        namespaces=spec.get("namespaceSelector"),
    )


def _closed(
    spec: Json,
    groups: Sequence[Group],
    wanted: Sequence[str],
    *,
    flavors: Mapping[str, Json],
    checks: Mapping[str, Json],
) -> Shortage | None:
    no_flavor = sorted({f.name for group in groups for f in group.flavors if f.name not in flavors})
    no_check = [name for name in wanted if name not in checks]
    inactive = [name for name in wanted if name in checks and not has(checks[name], "Active")]
    if spec.get("stopPolicy", "None") != "None":
        return Shortage(reason="Stopped", message="Can't admit new workloads: is stopped.")
    if no_flavor:
        return _missing("FlavorNotFound", f"missing ResourceFlavor(s): {', '.join(no_flavor)}")
    if no_check:
        return _missing("AdmissionCheckNotFound", f"missing AdmissionCheck(s): {', '.join(no_check)}")
    if inactive:
        return _missing("AdmissionCheckInactive", f"inactive AdmissionCheck(s): {', '.join(inactive)}")
    return None


def _missing(reason: str, what: str) -> Shortage:
    return Shortage(reason=reason, message=f"Can't admit new workloads: references {what}.")


def is_pending(workload: Json) -> bool:
    """Whether the Workload waits for quota, in whatever mood."""
    is_done = has(workload, "Finished") or "deletionTimestamp" in _set_metadata(workload)
    return is_active(workload) and not is_done and not has(workload, "QuotaReserved")


def _set_metadata(workload: Json) -> dict[str, object]:
    return {key: value for key, value in workload["metadata"].items() if value}


def cluster_queue_status(cluster_queue: Json, queue: Queue, workloads: Sequence[Json], *, now: datetime) -> Json:
    """The status that the ClusterQueue should show, given the Workloads that were submitted to it."""
    closed = queue.closed
    active = (
        make("Active", "False", closed.reason, closed.message, now=now)
        if closed
        else make("Active", "True", "Ready", "Can admit new workloads", now=now)
    )
    return _status(cluster_queue, queue, workloads, active, borrows=True)


def local_queue_status(local_queue: Json, queue: Queue | None, workloads: Sequence[Json], *, now: datetime) -> Json:
    """The status that the LocalQueue should show, given the Workloads that were submitted to it."""
    return _status(local_queue, queue, workloads, _local_queue_active(local_queue, queue, now=now), borrows=False)


def _local_queue_active(local_queue: Json, queue: Queue | None, *, now: datetime) -> Json:
    if local_queue["spec"].get("stopPolicy", "None") != "None":
        return make("Active", "False", "Stopped", "LocalQueue is stopped", now=now)
    if queue is None:
        message = "Can't submit new workloads to clusterQueue"
        return make("Active", "False", "ClusterQueueDoesNotExist", message, now=now)
    if queue.closed:
        message = "Can't submit new workloads to clusterQueue"
        return make("Active", "False", "ClusterQueueIsInactive", message, now=now)
    return make("Active", "True", "Ready", "Can submit new workloads to localQueue", now=now)


def _status(owner: Json, queue: Queue | None, workloads: Sequence[Json], active: Json, *, borrows: bool) -> Json:
    status = dict(owner.get("status") or {})
    holding = [workload for workload in workloads if holds_quota(workload)]
    admitted = [workload for workload in holding if has(workload, "Admitted")]
    groups = queue.groups if queue else ()
    status["conditions"] = with_conditions(status.get("conditions"), active)
    status["pendingWorkloads"] = sum(1 for workload in workloads if is_pending(workload))
    status["reservingWorkloads"] = len(holding)
    status["admittedWorkloads"] = len(admitted)
    status["flavorsReservation"] = _amounts(groups, used(holding), borrows=borrows)
    status["flavorsUsage"] = _amounts(groups, used(admitted), borrows=borrows)
    return status


def _amounts(groups: Iterable[Group], usage: Usage, *, borrows: bool) -> list[Json]:
    borrowed = {"borrowed": "0"} if borrows else {}
    return [
        {
            "name": flavor.name,
            "resources": [
                {"name": resource, "total": as_quantity(usage.get((flavor.name, resource), 0)), **borrowed}
                for resource in sorted(flavor.nominal)
            ],
        }
        for group in groups
        for flavor in group.flavors
    ]
