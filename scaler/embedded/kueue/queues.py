"""May this queue admit anything, and what does its status say? ClusterQueues, LocalQueues and Cohorts as shown.

`flavorsReservation` is what the scheduler counts, `flavorsUsage` what of it is admitted; both lag behind by up to a
second, and neither says that pods have ended. `borrowed` is what a ClusterQueue uses beyond its nominal quota.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import ceil

from scaler.core.quota.amounts import FlavorResource, Usage, added
from scaler.core.quota.model import ClusterQueue, StopPolicy, Workload
from scaler.core.quota.node import Node
from scaler.core.quota.shares import dominant_resource_share
from scaler.core.quota.snapshot import Snapshot
from scaler.embedded.conditions import has, make, with_conditions
from scaler.embedded.kinds import Json
from scaler.embedded.kueue.amounts import as_quantity
from scaler.embedded.kueue.lifecycle import CLUSTER_QUEUE_STOPPED, LOCAL_QUEUE_STOPPED, Place
from scaler.embedded.kueue.messages import NAMESPACE_MISMATCH, Wait

_GREATEST_SHARE = 2**63 - 1


def checks_of(queue: ClusterQueue, workload: Json) -> tuple[str, ...]:
    """Names of the AdmissionChecks that the Workload has to pass here.

    One that has not been given flavors yet is known to have to pass those that are for all of them. Checks that are for
    some flavors only are added once it has quota, and taken away with it.
    """
    admission = (workload.get("status") or {}).get("admission")
    if admission is not None:
        assignments = admission.get("podSetAssignments") or ()
        return tuple(sorted(queue.checks_on({name for each in assignments for name in each["flavors"].values()})))
    offered = {flavor for group in queue.groups for flavor in group.flavors}
    return tuple(sorted(name for name in queue.checks if queue.check_flavors.get(name, offered) >= offered))


class Queues:
    """The queues of a snapshot, and what keeps them from admitting anything."""

    def __init__(self, snapshot: Snapshot, checks: Iterable[Json]) -> None:
        self._snapshot = snapshot
        self._checks = {each["metadata"]["name"]: each for each in checks}

    def _queue(self, name: str) -> ClusterQueue | None:
        """The ClusterQueue, with the reason why it is inactive where it is; None where it does not exist."""
        tree = self._snapshot.tree_of(name)
        return tree.queues[name].spec if tree is not None else self._snapshot.cluster_queue(name)

    # ------------------------------------------------------------------------------------------------- for a Workload

    def place(self, workload: Json) -> Place | None:
        """Where the Workload queues; None where it is nowhere."""
        local = self._snapshot.local_queue(workload["metadata"]["namespace"], workload["spec"].get("queueName", ""))
        queue = self._queue(local.cluster_queue) if local is not None else None
        if local is None or queue is None:
            return None
        checks = checks_of(queue, workload)
        for reason, policy in ((LOCAL_QUEUE_STOPPED, local.stop_policy), (CLUSTER_QUEUE_STOPPED, queue.stop_policy)):
            if policy is not StopPolicy.NONE:
                return Place(checks=checks, stopped=reason, drains=policy is StopPolicy.HOLD_AND_DRAIN)
        return Place(checks=checks)

    def blocked(self, workload: Json) -> Wait | None:
        """Why no queue can take the Workload; None where one can."""
        namespace, name = workload["metadata"]["namespace"], workload["spec"].get("queueName", "")
        local = self._snapshot.local_queue(namespace, name)
        if local is None:
            return Wait(reason="Misconfigured", message=f"LocalQueue {name} doesn't exist")
        if local.stop_policy is not StopPolicy.NONE:
            return Wait(reason="Suspended", message=f"LocalQueue {name} is inactive")
        queue = self._queue(local.cluster_queue)
        if queue is None:
            return Wait(reason="Misconfigured", message=f"ClusterQueue {local.cluster_queue} doesn't exist")
        if not queue.schedules:
            return Wait(reason="Suspended", message=f"ClusterQueue {queue.name} is inactive")
        labels = self._snapshot.namespaces.get(namespace, {})
        if queue.namespace_selector is None or not queue.namespace_selector.matches(labels):
            return Wait(reason="Misconfigured", message=NAMESPACE_MISMATCH)
        return None

    # ---------------------------------------------------------------------------------------------------- as shown

    def cluster_queue_status(self, body: Json, *, pending: int, now: datetime) -> Json:
        """The status that the ClusterQueue should show."""
        name = body["metadata"]["name"]
        queue, tree = self._queue(name), self._snapshot.tree_of(name)
        node = tree.queues[name] if tree is not None else None
        holders = tuple(node.workloads.values()) if node is not None else ()
        status = _counted(body, queue, holders, pending=pending, borrows=True)
        status["conditions"] = with_conditions(status.get("conditions"), self._active(queue, now=now))
        if self._snapshot.fair_sharing and node is not None:
            status["fairSharing"] = share_of(node)
        return status

    def local_queue_status(self, body: Json, *, pending: int, now: datetime) -> Json:
        """The status that the LocalQueue should show."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        queue = self._queue(body["spec"].get("clusterQueue", ""))
        tree = self._snapshot.tree_of(queue.name) if queue is not None else None
        holders = tree.queues[queue.name].workloads.values() if tree is not None and queue is not None else ()
        own = [each for each in holders if (each.namespace, each.queue) == (namespace, name)]
        status = _counted(body, queue, own, pending=pending, borrows=False)
        status["conditions"] = with_conditions(status.get("conditions"), _local_queue_active(body, queue, now=now))
        return status

    def cohort_status(self, body: Json) -> Json:
        """The status that the Cohort should show: nothing without fair sharing."""
        status, name = dict(body.get("status") or {}), body["metadata"]["name"]
        nodes = (tree.cohorts[name] for tree in self._snapshot.trees if name in tree.cohorts)
        node = next(nodes, None)
        if self._snapshot.fair_sharing and node is not None:
            status["fairSharing"] = share_of(node)
        return status

    def _active(self, queue: ClusterQueue | None, *, now: datetime) -> Json:
        if queue is None or queue.schedules:
            return make("Active", "True", "Ready", "Can admit new workloads", now=now)
        reason = "Stopped" if queue.stop_policy is not StopPolicy.NONE else queue.inactive_because
        message = f"Can't admit new workloads: {self._why_inactive(queue, reason)}."
        return make("Active", "False", reason, message, now=now)

    def _why_inactive(self, queue: ClusterQueue, reason: str) -> str:
        flavors = {flavor for group in queue.groups for flavor in group.flavors}
        checks = {name: self._checks.get(name) for name in queue.checks}
        match reason:
            case "FlavorNotFound":
                return _references("missing ResourceFlavor", flavors - self._snapshot.flavors.keys())
            case "AdmissionCheckNotFound":
                return _references("missing AdmissionCheck", {name for name, each in checks.items() if each is None})
            case "AdmissionCheckInactive":
                inactive = {name for name, each in checks.items() if each is not None and not has(each, "Active")}
                return _references("inactive AdmissionCheck", inactive)
            case _:
                return "is stopped" if reason == "Stopped" else reason


def _references(what: str, names: Iterable[str]) -> str:
    return f"references {what}(s): {', '.join(sorted(names))}"


def _local_queue_active(body: Json, queue: ClusterQueue | None, *, now: datetime) -> Json:
    if body["spec"].get("stopPolicy", "None") != "None":
        return make("Active", "False", "Stopped", "LocalQueue is stopped", now=now)
    if queue is None or not queue.schedules:
        reason = "ClusterQueueDoesNotExist" if queue is None else "ClusterQueueIsInactive"
        return make("Active", "False", reason, "Can't submit new workloads to clusterQueue", now=now)
    return make("Active", "True", "Ready", "Can submit new workloads to localQueue", now=now)


def share_of(node: Node) -> Json:
    """The fair share as statuses show it, rounded up."""
    share = dominant_resource_share(node)
    return {"weightedShare": _GREATEST_SHARE if share.is_infinite else ceil(share.weighted)}


def _counted(
    body: Json, queue: ClusterQueue | None, holders: Iterable[Workload], *, pending: int, borrows: bool
) -> Json:
    holding = list(holders)
    admitted = [each for each in holding if each.admitted]
    status = dict(body.get("status") or {})
    status["pendingWorkloads"] = pending
    status["reservingWorkloads"] = len(holding)
    status["admittedWorkloads"] = len(admitted)
    status["flavorsReservation"] = list(_flavors(queue, _usage(holding), borrows=borrows))
    status["flavorsUsage"] = list(_flavors(queue, _usage(admitted), borrows=borrows))
    return status


def _usage(workloads: Iterable[Workload]) -> Mapping[FlavorResource, int]:
    return added(each.held.usage for each in workloads)


def _flavors(queue: ClusterQueue | None, usage: Usage, *, borrows: bool) -> Iterator[Json]:
    for group in queue.groups if queue is not None else ():
        for flavor in group.flavors:
            keys = [FlavorResource(flavor, resource) for resource in sorted(group.resources)]
            yield {"name": flavor, "resources": [_resource(queue, key, usage, borrows=borrows) for key in keys]}


def _resource(queue: ClusterQueue | None, key: FlavorResource, usage: Usage, *, borrows: bool) -> Json:
    used = usage.get(key, 0)
    shown = {"name": key.resource, "total": as_quantity(key.resource, used)}
    if not borrows or queue is None:
        return shown
    quota = queue.quotas.get(key)
    beyond = used - quota.nominal if quota is not None and queue.cohort else 0
    return shown | {"borrowed": as_quantity(key.resource, max(0, beyond))}
