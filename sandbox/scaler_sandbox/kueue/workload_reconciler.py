"""What does a Workload need next, apart from quota? Pure: objects in, actions out. Called until nothing follows.

A Workload is evicted when it is deactivated, when its queue is drained, or when one of its checks wants it to retry; it
is requeued when that is over. Its job is reconciled in `jobs_reconciler`, preemption is decided in `scheduler`.

| evicted because of     | requeued when                 | as                                                          |
|------------------------|-------------------------------|-------------------------------------------------------------|
| Preempted              | its job is inactive           | Preempted, in the same write that takes its quota           |
| Deactivated            | it is active again            | Reactivated                                                 |
| DeactivatedDueTo…      | never by itself               |                                                             |
| AdmissionCheck         | its job is inactive           | BackoffFinished                                             |
| LocalQueueStopped      | its LocalQueue runs again     | LocalQueueRestarted                                         |
| ClusterQueueStopped    | its ClusterQueue runs again   | ClusterQueueRestarted                                       |

Source: Kueue, pkg/controller/core/workload_controller.go.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.kube.objects.resources import WORKLOAD
from scaler_sandbox.actions import Action, Patch, RecordEvent, status_patch
from scaler_sandbox.conditions import has, message_of, parse_time, reason_of, timestamp
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import messages, workload_status
from scaler_sandbox.kueue.messages import Wait
from scaler_sandbox.kueue.workload_status import is_active, is_pending

LOCAL_QUEUE_STOPPED, CLUSTER_QUEUE_STOPPED = "LocalQueueStopped", "ClusterQueueStopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlacement:
    """The queue of a Workload, as far as it decides on the Workload's life."""

    checks: tuple[str, ...] = ()
    """The checks of its ClusterQueue."""
    stopped: str = ""
    """The reason for which its queue is stopped. A LocalQueue that is stopped hides whether its ClusterQueue is."""
    drains: bool = False
    """Whether a stopped queue evicts what it has admitted."""


def _changes(action: Patch | None) -> list[Action]:
    return [action] if action else []


def plan_workload(workload: Json, place: QueuePlacement | None, *, now: datetime) -> list[Action]:
    """What the Workload needs next. `place` is None where its queue does not exist."""
    if has(workload, "Finished") or workload["metadata"].get("deletionTimestamp"):
        return []
    if has(workload, "DeactivationTarget") and is_active(workload):
        # Kueue does not remove a target that another writer has set, so it deactivates the Workload again.
        return [Patch(resource=WORKLOAD, observed=workload, body={"spec": {"active": False}})]
    comeback = _comeback(workload, place)
    if comeback is not None:
        return _changes(status_patch(WORKLOAD, workload, workload_status.requeued(workload, *comeback, now=now)))
    if not is_active(workload):
        return _deactivate(workload, now=now)
    return [] if place is None else _follow_queue(workload, place, now=now)


def _follow_queue(workload: Json, place: QueuePlacement, *, now: datetime) -> list[Action]:
    holds_on = has(workload, "Admitted") and not place.drains
    if place.stopped and not holds_on and has(workload, "QuotaReserved") and not has(workload, "Evicted"):
        return _evict(workload, place.stopped, _STOPS[place.stopped], now=now)
    return _check(workload, place.checks, now=now)


# -------------------------------------------------------------------------------------------------- going and coming


def _deactivate(workload: Json, *, now: datetime) -> list[Action]:
    if not has(workload, "Evicted"):
        reason, message = workload_status.DEACTIVATED, "The workload is deactivated"
        if has(workload, "DeactivationTarget"):
            reason += f"DueTo{reason_of(workload, 'DeactivationTarget')}"
            message += f" due to {message_of(workload, 'DeactivationTarget')}"
        return _evict(workload, reason, message, now=now)
    if not has(workload, "QuotaReserved") and reason_of(workload, "QuotaReserved") != workload_status.DEACTIVATED:
        return _changes(status_patch(WORKLOAD, workload, workload_status.deactivated(workload, now=now)))
    return []


def _evict(workload: Json, reason: str, message: str, *, now: datetime) -> list[Action]:
    note = RecordEvent(reason=f"EvictedDueTo{reason}", message=message)
    return _changes(status_patch(WORKLOAD, workload, workload_status.evicted(workload, reason, message, now=now), note))


_STOPS = {LOCAL_QUEUE_STOPPED: "The LocalQueue is stopped", CLUSTER_QUEUE_STOPPED: "The ClusterQueue is stopped"}
_RESTARTS = {
    LOCAL_QUEUE_STOPPED: ("LocalQueueRestarted", "The LocalQueue was restarted after being stopped"),
    CLUSTER_QUEUE_STOPPED: ("ClusterQueueRestarted", "The ClusterQueue was restarted after being stopped"),
}
_STILL_OUT = {
    LOCAL_QUEUE_STOPPED: {LOCAL_QUEUE_STOPPED},
    CLUSTER_QUEUE_STOPPED: {LOCAL_QUEUE_STOPPED, CLUSTER_QUEUE_STOPPED},
}
"""What must not be stopped for the restart to count: with a stopped LocalQueue the ClusterQueue is not checked."""
_COMEBACKS = {
    workload_status.DEACTIVATED: ("Reactivated", "The workload was reactivated"),
    "AdmissionCheck": ("BackoffFinished", "The workload backoff was finished"),
}
"""Why a Workload that is active is requeued, by why it was evicted. `DeactivatedDueTo…` is missing, as in Kueue: such a
Workload stays out of the queue although it is active."""


def _comeback(workload: Json, place: QueuePlacement | None) -> tuple[str, str] | None:
    """Reason and message with which the Workload is requeued now; None where it is not."""
    if has(workload, "QuotaReserved") or not has(workload, "Requeued", "False"):
        return None
    reason = reason_of(workload, "Requeued")
    if reason in _RESTARTS:
        # An inactive Workload only gets a note that its queue runs again.
        return _RESTARTS[reason] if place is not None and place.stopped not in _STILL_OUT[reason] else None
    return _COMEBACKS.get(reason) if is_active(workload) else None


# ------------------------------------------------------------------------------------------------------------- checks


def _same_checks(workload: Json, names: tuple[str, ...]) -> bool:
    present = (workload.get("status") or {}).get("admissionChecks") or ()
    return {check["name"] for check in present} == set(names)


def _check(workload: Json, names: tuple[str, ...], *, now: datetime) -> list[Action]:
    if not _same_checks(workload, names):
        return _changes(status_patch(WORKLOAD, workload, workload_status.with_checks(workload, names, now=now)))
    if has(workload, "QuotaReserved") and not has(workload, "Evicted"):
        return _follow_checks(workload, now=now)
    return []


def _follow_checks(workload: Json, *, now: datetime) -> list[Action]:
    checks: list[Json] = workload["status"].get("admissionChecks") or []
    rejecting = next((check for check in checks if check["state"] == workload_status.REJECTED), None)
    if rejecting:
        return _changes(status_patch(WORKLOAD, workload, workload_status.rejected(workload, rejecting, now=now)))
    retrying = [check for check in checks if check["state"] == workload_status.RETRY]
    if retrying:
        return _retry(workload, retrying, now=now)
    if has(workload, "Admitted"):
        return []
    if any(check["state"] != workload_status.READY for check in checks):
        return _changes(status_patch(WORKLOAD, workload, workload_status.unsatisfied(workload, now=now)))
    queue = workload["status"]["admission"]["clusterQueue"]
    note = RecordEvent(reason="Admitted", message=f"Admitted by ClusterQueue {queue}")
    return _changes(status_patch(WORKLOAD, workload, workload_status.admitted(workload, now=now), note))


def _retry(workload: Json, retrying: list[Json], *, now: datetime) -> list[Action]:
    """Evicted, though not before every delay that was asked for is over; until then the quota is kept."""
    due = retry_due(workload)
    if due is not None and due > now:
        later = {**workload["status"], "requeueState": {"requeueAt": timestamp(due)}}
        return _changes(status_patch(WORKLOAD, workload, later))
    why = ", ".join(f'"{check["name"]}" ({check["message"]})' for check in retrying)
    return _evict(workload, "AdmissionCheck", f"Evicted due to AdmissionCheck in Retry state: {why}", now=now)


def retry_due(workload: Json) -> datetime | None:
    """When the delay ends that checks in state Retry ask for; None where none does."""
    due = None
    for check in (workload.get("status") or {}).get("admissionChecks") or ():
        since = parse_time(check["lastTransitionTime"])
        if check["state"] == workload_status.RETRY and check.get("requeueAfterSeconds") and since:
            at = since + timedelta(seconds=check["requeueAfterSeconds"])
            due = max(due, at) if due else at
    return due


# -------------------------------------------------------------------------------------------------------- explanations

_STALE = (workload_status.DEACTIVATED, workload_status.PENDING_EVALUATION, "Suspended")
"""Reasons that hold no longer once the Workload can be looked at, if it is not."""


def explain(workload: Json, *, blocked: Wait | None, bypassed: str, now: datetime) -> list[Action]:
    """The condition of a pending Workload that no cycle has considered.

    `blocked` is why its queue cannot take it, `bypassed` the reason for which one that is alike was put aside.
    """
    if not is_pending(workload):
        return []
    reason = reason_of(workload, "QuotaReserved")
    if blocked is None and workload_status.has_failed_check(workload):
        blocked = Wait(reason=workload_status.PENDING_EVALUATION, message=messages.FAILED_CHECKS)
    if blocked is None and bypassed and reason in _STALE:
        blocked = Wait(reason=bypassed, message=messages.BYPASSED)
    if blocked is not None:
        status = workload_status.waiting(workload, blocked.reason, blocked.message, now=now)
    elif reason in (*_STALE, "Misconfigured") and reason != workload_status.PENDING_EVALUATION:
        status = workload_status.pending(workload, now=now)
    else:
        return []
    return _changes(status_patch(WORKLOAD, workload, status))
