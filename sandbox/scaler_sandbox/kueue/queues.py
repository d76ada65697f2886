"""May this queue admit anything? The placement of Workloads in queues, and the condition Active of ClusterQueues.

Counts and usage are not shown in statuses, nor is any status of LocalQueues and Cohorts.
"""

from collections.abc import Iterable
from datetime import datetime

from scaler.quota.model import QuotaClusterQueue, StopPolicy
from scaler.quota.snapshot import Snapshot
from scaler_sandbox.conditions import has, make, with_conditions
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.messages import NAMESPACE_MISMATCH, Wait
from scaler_sandbox.kueue.workload_reconciler import CLUSTER_QUEUE_STOPPED, LOCAL_QUEUE_STOPPED, QueuePlacement


def checks_of(queue: QuotaClusterQueue, workload: Json) -> tuple[str, ...]:
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


class QueueStatuses:
    """The queues of a snapshot, and what keeps them from admitting anything."""

    def __init__(self, snapshot: Snapshot, checks: Iterable[Json]) -> None:
        self._snapshot = snapshot
        self._checks = {each["metadata"]["name"]: each for each in checks}

    def _queue(self, name: str) -> QuotaClusterQueue | None:
        """The ClusterQueue, with the reason why it is inactive where it is; None where it does not exist."""
        tree = self._snapshot.tree_of(name)
        return tree.queues[name].spec if tree is not None else self._snapshot.cluster_queues.get(name)

    # ------------------------------------------------------------------------------------------------- for a Workload

    def place(self, workload: Json) -> QueuePlacement | None:
        """The queue of the Workload; None where it is in none."""
        local = self._snapshot.local_queue(workload["metadata"]["namespace"], workload["spec"].get("queueName", ""))
        queue = self._queue(local.cluster_queue) if local is not None else None
        if local is None or queue is None:
            return None
        checks = checks_of(queue, workload)
        for reason, policy in ((LOCAL_QUEUE_STOPPED, local.stop_policy), (CLUSTER_QUEUE_STOPPED, queue.stop_policy)):
            if policy is not StopPolicy.NONE:
                return QueuePlacement(checks=checks, stopped=reason, drains=policy is StopPolicy.HOLD_AND_DRAIN)
        return QueuePlacement(checks=checks)

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

    def cluster_queue_status(self, body: Json, *, now: datetime) -> Json:
        """The status that the ClusterQueue should show: whether it is active."""
        active = self._active(self._queue(body["metadata"]["name"]), now=now)
        status = body.get("status") or {}
        return {**status, "conditions": with_conditions(status.get("conditions"), active)}

    def _active(self, queue: QuotaClusterQueue | None, *, now: datetime) -> Json:
        if queue is None or queue.schedules:
            return make("Active", "True", "Ready", "Can admit new workloads", now=now)
        reason = "Stopped" if queue.stop_policy is not StopPolicy.NONE else queue.inactive_because
        message = f"Can't admit new workloads: {self._why_inactive(queue, reason)}."
        return make("Active", "False", reason, message, now=now)

    def _why_inactive(self, queue: QuotaClusterQueue, reason: str) -> str:
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
