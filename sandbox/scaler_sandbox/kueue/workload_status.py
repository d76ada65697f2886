"""The states of a Workload as Kueue writes them: each function returns the status after one transition.

| from → to                | QuotaReserved | Admitted | Evicted       | Preempted     | Requeued              |
|--------------------------|---------------|----------|---------------|---------------|-----------------------|
| waiting → reserved       | True          | –        | False, if set | False, if set | –                     |
| reserved → admitted      | True          | True     | –             | –             | –                     |
| any → evicted            | –             | –        | True, reason  | –             | –                     |
| any → preempted          | –             | –        | True, reason  | True, reason  | –                     |
| evicted → released       | False         | False    | –             | –             | False, same reason    |
| preempted → released     | False         | False    | –             | –             | True, Preempted       |
| released → reactivated   | –             | –        | –             | –             | True, Reactivated     |

An evicted Workload keeps its reservation until its job is inactive. That Kueue's scheduler counts a deactivated one as
free long before is not in the status at all: see `holds_quota`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from scaler_sandbox.conditions import has, make, message_of, reason_of, timestamp, with_conditions
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.jobs import JobOutcome

PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"
EVICTED_ON_MANAGER = "EvictedOnManagerCluster"
PREEMPTED, DEACTIVATED, PENDING_EVALUATION = "Preempted", "Deactivated", "PendingEvaluation"


def is_active(workload: Json) -> bool:
    """Whether `spec.active` is true."""
    return bool(workload["spec"].get("active", True))


def holds_quota(workload: Json) -> bool:
    """Whether the scheduler counts the Workload's reservation.

    **A deactivated Workload holds nothing**, from the moment on at which `spec.active` is false, although its status
    says that quota is reserved and its pods still run. So a gang can be admitted onto GPUs that are not free yet.
    """
    return has(workload, "QuotaReserved") and is_active(workload) and not has(workload, "Finished")


def is_pending(workload: Json) -> bool:
    """Whether the Workload waits for quota, queued or not."""
    is_done = has(workload, "Finished") or bool(workload["metadata"].get("deletionTimestamp"))
    return is_active(workload) and not is_done and not has(workload, "QuotaReserved")


def has_failed_check(workload: Json) -> bool:
    """Whether one of its checks is Rejected or Retry."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    return any(check["state"] in (RETRY, REJECTED) for check in checks)


def has_check_to_pass(workload: Json) -> bool:
    """Whether one of its checks is not Ready."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    return any(check["state"] != READY for check in checks)


def _status(workload: Json, *conditions: tuple[str, str, str, str], now: datetime) -> Json:
    status = dict(workload.get("status") or {})
    generation = workload["metadata"].get("generation", 1)
    made = [make(*condition, now=now, generation=generation) for condition in conditions]
    status["conditions"] = with_conditions(status.get("conditions"), *made)
    return status


def waiting(
    workload: Json, reason: str, message: str, *, requests: Mapping[str, Mapping[str, str]] | None = None, now: datetime
) -> Json:
    """The status of one that was not admitted. `requests` are its requests, by pod set, where that was counted."""
    status = dict(workload.get("status") or {})
    if not has(workload, "QuotaReserved", "False", reason) or message_of(workload, "QuotaReserved") != message:
        status = _status(workload, ("QuotaReserved", "False", reason, message), _NO_RESERVATION, now=now)
    if requests is not None:
        counted = [{"name": name, "resources": dict(resources)} for name, resources in requests.items()]
        status["resourceRequests"] = counted
    return status


_NO_RESERVATION = ("Admitted", "False", "NoReservation", "The workload has no reservation")
_ADMITTED = ("Admitted", "True", "Admitted", "The workload is admitted")


def reserved(workload: Json, cluster_queue: str, assignments: Sequence[Json], *, checks: bool, now: datetime) -> Json:
    """Given its quota; and admitted in the same moment where there is nothing to be checked."""
    conditions = [("QuotaReserved", "True", "QuotaReserved", f"Quota reserved in ClusterQueue {cluster_queue}")]
    conditions += [
        (kind, "False", "QuotaReserved", f"Previously: {message_of(workload, kind)}")
        for kind in ("Evicted", "Preempted")
        if has(workload, kind)
    ]
    if not checks:
        conditions.append(_ADMITTED)
    status = _status(workload, *conditions, now=now)
    status.pop("resourceRequests", None)
    status["admission"] = {"clusterQueue": cluster_queue, "podSetAssignments": list(assignments)}
    return status


def admitted(workload: Json, *, now: datetime) -> Json:
    """All its checks are ready."""
    return _status(workload, _ADMITTED, now=now)


def unsatisfied(workload: Json, *, now: datetime) -> Json:
    """It has its quota and waits for its checks."""
    if has(workload, "Admitted", "False", "UnsatisfiedAdmissionChecks"):
        return dict(workload["status"])
    why = ("Admitted", "False", "UnsatisfiedAdmissionChecks", "The workload has not all checks ready")
    return _status(workload, why, now=now)


def evicted(workload: Json, reason: str, message: str, *, now: datetime) -> Json:
    """Evicted. Its checks start again, and carry over what their controllers have left in them.

    Of MultiKueue nothing is left: neither the cluster nor nominations. What becomes of nominations that another writer
    has made is in `nominations.py`.
    """
    status = _status(workload, ("Evicted", "True", reason, message), now=now)
    if has(workload, "DeactivationTarget", "True", "AdmissionCheck", EVICTED_ON_MANAGER):
        # Kueue takes back the target that it has set itself. One that another writer has set stays.
        status["conditions"] = [each for each in status["conditions"] if each["type"] != "DeactivationTarget"]
    if status.get("admissionChecks"):
        status["admissionChecks"] = [_reset(check, now=now) for check in status["admissionChecks"]]
    for field in ("requeueState", "clusterName", "nominatedClusterNames"):
        status.pop(field, None)
    status["schedulingStats"] = {"evictions": _counted((status.get("schedulingStats") or {}), reason)}
    return status


def preempted(workload: Json, reason: str, message: str, *, now: datetime) -> Json:
    """The status of one that was preempted. `reason` is that of the condition Preempted."""
    status = evicted(workload, PREEMPTED, message, now=now)
    generation = workload["metadata"].get("generation", 1)
    condition = make("Preempted", "True", reason, message, now=now, generation=generation)
    status["conditions"] = with_conditions(status["conditions"], condition)
    return status


def _reset(check: Json, *, now: datetime) -> Json:
    if check["state"] == PENDING:
        return check
    message = f"Reset to Pending after eviction. Previously: {check['state']}"
    again = {**check, "state": PENDING, "message": message, "lastTransitionTime": timestamp(now)}
    return again | {"retryCount": check.get("retryCount", 0) + 1} if check["state"] == RETRY else again


def _counted(stats: Json, reason: str) -> list[Json]:
    evictions = {each["reason"]: each for each in stats.get("evictions") or ()}
    count = evictions.get(reason, {}).get("count", 0) + 1
    evictions[reason] = {"reason": reason, "underlyingCause": "", "count": count}
    return list(evictions.values())


def released(workload: Json, *, now: datetime) -> Json:
    """Evicted, and its job is inactive: without quota.

    One that was preempted queues again at once; all others are not looked at before they are requeued.
    """
    reason, message = reason_of(workload, "Evicted"), message_of(workload, "Evicted")
    status = _status(
        workload,
        ("QuotaReserved", "False", PENDING_EVALUATION, message),
        _NO_RESERVATION,
        ("Requeued", "True" if reason == PREEMPTED else "False", reason, message),
        now=now,
    )
    status.pop("admission", None)
    return status


def deactivated(workload: Json, *, now: datetime) -> Json:
    """The status without quota because it is not active."""
    return _status(workload, ("QuotaReserved", "False", DEACTIVATED, "The workload is deactivated"), now=now)


def requeued(workload: Json, reason: str, message: str, *, now: datetime) -> Json:
    """The status in the queue again."""
    return _status(workload, ("Requeued", "True", reason, message), now=now)


def pending(workload: Json, *, now: datetime) -> Json:
    """The status in the queue, not looked at yet."""
    message = "Workload is pending evaluation in the scheduling queue"
    return _status(workload, ("QuotaReserved", "False", PENDING_EVALUATION, message), _NO_RESERVATION, now=now)


def rejected(workload: Json, check: Json, *, now: datetime) -> Json:
    """The status that is to be deactivated because a check is Rejected."""
    message = f'AdmissionCheck in Rejected state: "{check["name"]}" ({check["message"]})'
    return _status(workload, ("DeactivationTarget", "True", "AdmissionCheck", message), now=now)


def evicted_on_manager(workload: Json, message: str, *, now: datetime) -> Json:
    """A remote copy, to be deactivated because its Workload on the hub is evicted."""
    target = ("DeactivationTarget", "True", EVICTED_ON_MANAGER, f"Evicted on manager: {message}")
    return _status(workload, target, now=now)


def finished(workload: Json, outcome: JobOutcome, *, now: datetime) -> Json:
    """Done."""
    return _status(workload, ("Finished", "True", outcome.reason, outcome.message), now=now)


def pods_ready(workload: Json, *, ready: bool, now: datetime) -> Json:
    """Whether its pods all run."""
    if ready:
        message = "All pods reached readiness and the workload is running"
        return _status(workload, ("PodsReady", "True", "Started", message), now=now)
    return _status(workload, ("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded"), now=now)


def with_checks(workload: Json, names: Sequence[str], *, now: datetime) -> Json:
    """The status with an entry for each of the ClusterQueue's checks, and none for others."""
    status = dict(workload.get("status") or {})
    known = {check["name"]: check for check in status.get("admissionChecks") or ()}
    entries = [known.get(name) or _new_check(name, now=now) for name in names]
    if entries:
        status["admissionChecks"] = entries
    else:
        status.pop("admissionChecks", None)
    return status


def _new_check(name: str, *, now: datetime) -> Json:
    return {"name": name, "state": PENDING, "message": "", "lastTransitionTime": timestamp(now)}
