"""batch/v1 Job → pods, as far as parallelism, completions and suspension go. No indexes, deadlines or TTL.

A pod that is marked for deletion is not active any more, although it may run on for its grace period: from this number
Kueue concludes that a suspended Job has stopped.
"""

from datetime import datetime

from scaler.kube.objects.resources import JOB
from scaler_sandbox.actions import Action, RecordEvent, status_patch
from scaler_sandbox.conditions import has, make, timestamp, with_conditions
from scaler_sandbox.kinds import Json
from scaler_sandbox.operators.pods import create_pod, delete_pod, is_alive, is_ending, is_ready, phase

_DEFAULT_BACKOFF_LIMIT = 6


def plan_job(job: Json, pods: list[Json], *, now: datetime) -> list[Action]:
    """What the Job needs next. `pods` are its own."""
    alive = [pod for pod in pods if is_alive(pod)]
    if has(job, "Complete") or has(job, "Failed"):
        return [delete_pod(job, pod) for pod in alive]
    succeeded = sum(1 for pod in pods if phase(pod) == "Succeeded")
    failed = sum(1 for pod in pods if phase(pod) == "Failed" and not is_ending(pod))
    actions = _size(job, alive, succeeded=succeeded, failed=failed)
    status = {
        **(job.get("status") or {}),
        "active": 0 if job["spec"].get("suspend") else len(alive),
        "ready": sum(1 for pod in alive if is_ready(pod)),
        "succeeded": succeeded,
        "failed": failed,
        "terminating": sum(1 for pod in pods if is_ending(pod)),
    }
    patch = status_patch(JOB, job, *_judged(job, status, now=now))
    return [*actions, *([patch] if patch else [])]


def _completions(job: Json) -> int:
    return int(job["spec"].get("completions") or job["spec"].get("parallelism", 1))


def _backoff_limit(job: Json) -> int:
    return int(job["spec"].get("backoffLimit", _DEFAULT_BACKOFF_LIMIT))


def _size(job: Json, alive: list[Json], *, succeeded: int, failed: int) -> list[Action]:
    """Pods to be made or stopped."""
    if job["spec"].get("suspend") or failed > _backoff_limit(job):
        return [delete_pod(job, pod) for pod in alive]
    wanted = min(job["spec"].get("parallelism", 1), max(0, _completions(job) - succeeded))
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    labels = {
        "batch.kubernetes.io/job-name": name,
        "batch.kubernetes.io/controller-uid": uid,
        "job-name": name,
        "controller-uid": uid,
    }
    surplus: list[Action] = [delete_pod(job, pod) for pod in alive[wanted:]]
    missing = range(wanted - len(alive))
    return [*surplus, *[create_pod(job, name, job["spec"]["template"], labels=labels) for _ in missing]]


def _judged(job: Json, status: Json, *, now: datetime) -> tuple[Json, *tuple[RecordEvent, ...]]:
    """The status with its times and conditions, and the Events about them."""
    if status["succeeded"] >= _completions(job):
        message = "Reached expected number of succeeded pods"
        end = [_made(kind, "CompletionsReached", message, now) for kind in ("SuccessCriteriaMet", "Complete")]
        done = {"completionTime": timestamp(now), "conditions": with_conditions(status.get("conditions"), *end)}
        return status | done, RecordEvent(reason="Completed", message="Job completed")
    if status["failed"] > _backoff_limit(job):
        message = "Job has reached the specified backoff limit"
        end = [_made(kind, "BackoffLimitExceeded", message, now) for kind in ("FailureTarget", "Failed")]
        conditions = with_conditions(status.get("conditions"), *end)
        return status | {"conditions": conditions}, RecordEvent(
            reason="BackoffLimitExceeded", message=message, type="Warning"
        )
    return _suspension(job, status, now=now)


def _suspension(job: Json, status: Json, *, now: datetime) -> tuple[Json, *tuple[RecordEvent, ...]]:
    if job["spec"].get("suspend"):
        if has(job, "Suspended"):
            return (status,)
        suspended = _made("Suspended", "JobSuspended", "Job suspended", now)
        conditions = with_conditions(status.get("conditions"), suspended)
        return status | {"conditions": conditions}, RecordEvent(reason="Suspended", message="Job suspended")
    if has(job, "Suspended"):
        resumed = make("Suspended", "False", "JobResumed", "Job resumed", now=now)
        again = {"startTime": timestamp(now), "conditions": with_conditions(status.get("conditions"), resumed)}
        return status | again, RecordEvent(reason="Resumed", message="Job resumed")
    return ({"startTime": timestamp(now)} | status,)


def _made(kind: str, reason: str, message: str, now: datetime) -> Json:
    return make(kind, "True", reason, message, now=now)
