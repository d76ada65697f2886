"""What follows from a job and its Workload? Pure: objects in, actions out. Called until nothing follows any more.

The order of a deactivation, as it was recorded from a running Kueue:

    spec.active=false → Evicted=True → job suspended → (job inactive) → templates restored → quota released

and of a reactivation: spec.active=true → Requeued=True → (fits) QuotaReserved → checks → Admitted → job started.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from scaler.embedded.actions import Action, Create, Delete, Note, Patch, merge_patch, status_patch
from scaler.embedded.conditions import has, message_of, parse_time, reason_of, timestamp
from scaler.embedded.kinds import WORKLOAD, Json
from scaler.embedded.kueue import states, templates
from scaler.embedded.kueue.jobs import JobKind, Outcome, PodSet, is_suspended, with_suspend
from scaler.embedded.kueue.names import JOB_UID, queue_name, workload_name
from scaler.embedded.kueue.quota import is_active


def _changes(action: Patch | None) -> list[Action]:
    return [action] if action else []


def _update(kind: JobKind, job: Json, new: Json, *notes: Note) -> list[Action]:
    change = merge_patch(job, new)
    return [Patch(resource=kind.resource, observed=job, body=change, notes=notes)] if change else []


# ---------------------------------------------------------------------------------------------------------------- jobs


def plan_job(
    kind: JobKind, job: Json, workload: Json | None, *, priority: int, node_labels: Mapping[str, Json], now: datetime
) -> list[Action]:
    """What the job needs next."""
    if job["metadata"].get("deletionTimestamp"):
        return []
    outcome = kind.outcome(job)
    if workload is None:
        return [] if outcome else _begin(kind, job, priority=priority)
    if outcome or has(workload, "Finished"):
        return _finish(job, workload, outcome, now=now)
    pod_sets = kind.pod_sets(job)
    if not templates.same_demand(pod_sets, workload):
        return _follow_demand(kind, job, workload, pod_sets)
    return _follow_workload(kind, job, workload, pod_sets, node_labels=node_labels, now=now)


def _finish(job: Json, workload: Json, outcome: Outcome | None, *, now: datetime) -> list[Action]:
    if outcome is None or has(workload, "Finished"):
        return []
    note = Note(reason="FinishedWorkload", message=f"Workload '{_key(workload)}' is declared finished", about=job)
    return _changes(status_patch(WORKLOAD, workload, states.finished(workload, outcome, now=now), note))


def _follow_workload(
    kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet], *, node_labels: Mapping[str, Json], now: datetime
) -> list[Action]:
    if has(workload, "Evicted") and not _is_requeued(workload):
        return _stop(kind, job, workload, pod_sets, now=now)
    if has(workload, "Admitted") and is_active(workload):
        return _run(kind, job, workload, pod_sets, node_labels=node_labels, now=now)
    return _hold(kind, job, workload, pod_sets)


def _key(workload: Json) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def _is_requeued(workload: Json) -> bool:
    """Whether the eviction is over and done with: nothing reserved, and waiting in the queue again."""
    return not has(workload, "QuotaReserved") and not has(workload, "Requeued", "False")


def _begin(kind: JobKind, job: Json, *, priority: int) -> list[Action]:
    """Suspended first, which a webhook does on a real cluster; then its Workload."""
    if not is_suspended(job):
        return _update(
            kind, job, with_suspend(job, True), Note(reason="Suspended", message="Kueue managed child job suspended")
        )
    body = workload_of(kind, job, priority=priority)
    message = f"Created Workload: {body['metadata']['namespace']}/{body['metadata']['name']}"
    return [Create(resource=WORKLOAD, body=body, notes=(Note(reason="CreatedWorkload", message=message, about=job),))]


def workload_of(kind: JobKind, job: Json, *, priority: int) -> Json:
    """The Workload that stands for the job, active."""
    metadata, resource = job["metadata"], kind.resource
    owner = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.kind,
        "metadata": {
            "name": workload_name(resource, metadata["name"], metadata["uid"]),
            "namespace": metadata["namespace"],
            "labels": {JOB_UID: metadata["uid"]},
            "ownerReferences": [owner],
        },
        "spec": {
            "active": True,
            "queueName": queue_name(job),
            "priority": priority,
            "podSets": templates.as_workload_pod_sets(kind.pod_sets(job)),
        },
    }


def _follow_demand(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet]) -> list[Action]:
    """A job that was edited: while it has quota the Workload is made anew (and active), otherwise it is updated."""
    if has(workload, "QuotaReserved"):
        note = Note(reason="DeletedWorkload", message=f"Deleted not matching Workload: {_key(workload)}", about=job)
        return [*_suspend(kind, job), Delete(resource=WORKLOAD, observed=workload, notes=(note,))]
    wanted = {"spec": {"podSets": templates.as_workload_pod_sets(pod_sets)}}
    note = Note(
        reason="UpdatedWorkload", message=f"Updated not matching Workload for suspend job: {_key(workload)}", about=job
    )
    return [Patch(resource=WORKLOAD, observed=workload, body=wanted, notes=(note,))]


def _suspend(kind: JobKind, job: Json, *notes: Note) -> list[Action]:
    return [] if is_suspended(job) else _update(kind, job, with_suspend(job, True), *notes)


def _stop(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet], *, now: datetime) -> list[Action]:
    """An evicted job: suspended, awaited, cleaned, and only then without quota."""
    if not is_suspended(job):
        return _suspend(kind, job, Note(reason="Stopped", message=message_of(workload, "Evicted")))
    if kind.is_active(job):
        return []
    if templates.is_injected(pod_sets):
        return _restore(kind, job, workload, pod_sets)
    if has(workload, "QuotaReserved"):
        return _changes(status_patch(WORKLOAD, workload, states.released(workload, now=now)))
    return []


def _restore(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet]) -> list[Action]:
    if "startTime" in (job.get("status") or {}):
        # Templates of a Job are immutable from its start on, and it counts as started until this is gone.
        return [Patch(resource=kind.resource, observed=job, body={"status": {"startTime": None}}, subresource="status")]
    originals = {each["name"]: each["template"] for each in workload["spec"]["podSets"]}
    clean = {each.name: templates.restored(each.template, originals[each.name]) for each in pod_sets}
    return _update(kind, job, kind.with_templates(job, clean))


def _hold(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet]) -> list[Action]:
    """A job that is not admitted: suspended, whoever may have told it to run."""
    if not is_suspended(job):
        return _suspend(kind, job, Note(reason="Stopped", message="Not admitted by cluster queue"))
    if templates.is_injected(pod_sets) and not kind.is_active(job):
        return _restore(kind, job, workload, pod_sets)
    return []


def _run(
    kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet], *, node_labels: Mapping[str, Json], now: datetime
) -> list[Action]:
    """An admitted job: started with what its pods shall carry, and observed until its pods run."""
    if is_suspended(job):
        injections = templates.injections(workload, node_labels)
        ready = {each.name: templates.injected(each.template, injections[each.name]) for each in pod_sets}
        message = f"Admitted by clusterQueue {workload['status']['admission']['clusterQueue']}"
        started = with_suspend(kind.with_templates(job, ready), False)
        return _update(kind, job, started, Note(reason="Started", message=message))
    ready_now = kind.are_pods_ready(job)
    if ready_now == has(workload, "PodsReady") and has(workload, "PodsReady", "True" if ready_now else "False"):
        return []
    return _changes(status_patch(WORKLOAD, workload, states.pods_ready(workload, ready=ready_now, now=now)))


# ----------------------------------------------------------------------------------------------------------- Workloads


def plan_workload(workload: Json, *, checks: tuple[str, ...] | None, now: datetime) -> list[Action]:
    """What the Workload needs next. `checks` are its ClusterQueue's; None where that is not known."""
    if has(workload, "Finished") or workload["metadata"].get("deletionTimestamp"):
        return []
    if has(workload, "DeactivationTarget") and is_active(workload):
        # Also of one that somebody else has set. Nothing ever removes that, so activating it again is turned back.
        return [Patch(resource=WORKLOAD, observed=workload, body={"spec": {"active": False}})]
    if not is_active(workload):
        return _deactivate(workload, now=now)
    if not has(workload, "QuotaReserved") and has(workload, "Requeued", "False"):
        return _requeue(workload, now=now)
    if has(workload, "QuotaReserved", "False", "Deactivated"):
        return _changes(status_patch(WORKLOAD, workload, states.pending(workload, now=now)))
    return [] if checks is None else _check(workload, checks, now=now)


def _deactivate(workload: Json, *, now: datetime) -> list[Action]:
    if not has(workload, "Evicted"):
        reason, message = "Deactivated", "The workload is deactivated"
        if has(workload, "DeactivationTarget"):
            reason += f"DueTo{reason_of(workload, 'DeactivationTarget')}"
            message += f" due to {message_of(workload, 'DeactivationTarget')}"
        return _evict(workload, reason, message, now=now)
    if not has(workload, "QuotaReserved") and reason_of(workload, "QuotaReserved") != "Deactivated":
        return _changes(status_patch(WORKLOAD, workload, states.deactivated(workload, now=now)))
    return []


def _evict(workload: Json, reason: str, message: str, *, now: datetime) -> list[Action]:
    note = Note(reason=f"EvictedDueTo{reason}", message=message)
    return _changes(status_patch(WORKLOAD, workload, states.evicted(workload, reason, message, now=now), note))


_COMEBACKS = {
    "Deactivated": ("Reactivated", "The workload was reactivated"),
    "AdmissionCheck": ("BackoffFinished", "The workload backoff was finished"),
}
"""Why a Workload that is active is requeued, by why it was evicted. `DeactivatedDueTo…` is missing, as in Kueue: such a
Workload stays out of the queue although it is active."""


def _requeue(workload: Json, *, now: datetime) -> list[Action]:
    comeback = _COMEBACKS.get(reason_of(workload, "Requeued"))
    if comeback is None:
        return []
    return _changes(status_patch(WORKLOAD, workload, states.requeued(workload, *comeback, now=now)))


def _same_checks(workload: Json, names: tuple[str, ...]) -> bool:
    present = (workload.get("status") or {}).get("admissionChecks") or ()
    return {check["name"] for check in present} == set(names)


def _check(workload: Json, names: tuple[str, ...], *, now: datetime) -> list[Action]:
    if not _same_checks(workload, names):
        return _changes(status_patch(WORKLOAD, workload, states.with_checks(workload, names, now=now)))
    if has(workload, "QuotaReserved") and not has(workload, "Evicted"):
        return _follow_checks(workload, now=now)
    return []


def _follow_checks(workload: Json, *, now: datetime) -> list[Action]:
    checks: list[Json] = workload["status"].get("admissionChecks") or []
    rejecting = next((check for check in checks if check["state"] == states.REJECTED), None)
    if rejecting:
        return _changes(status_patch(WORKLOAD, workload, states.rejected(workload, rejecting, now=now)))
    retrying = [check for check in checks if check["state"] == states.RETRY]
    if retrying:
        return _retry(workload, retrying, now=now)
    if has(workload, "Admitted"):
        return []
    if any(check["state"] != states.READY for check in checks):
        return _changes(status_patch(WORKLOAD, workload, states.unsatisfied(workload, now=now)))
    queue = workload["status"]["admission"]["clusterQueue"]
    note = Note(reason="Admitted", message=f"Admitted by ClusterQueue {queue}")
    return _changes(status_patch(WORKLOAD, workload, states.admitted(workload, now=now), note))


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
        if check["state"] == states.RETRY and check.get("requeueAfterSeconds") and since:
            at = since + timedelta(seconds=check["requeueAfterSeconds"])
            due = max(due, at) if due else at
    return due
