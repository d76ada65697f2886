"""What follows from a job and its Workload? Pure: objects in, actions out. Called until nothing follows any more.

The order of an eviction, as it was recorded from a running Kueue:

    Evicted=True → job suspended → (job inactive) → templates restored → quota released

and of a start: QuotaReserved → checks → Admitted → templates injected and job unsuspended → pods ready.
"""

from collections.abc import Mapping
from datetime import datetime

from scaler.kube.objects.resources import WORKLOAD
from scaler_sandbox.actions import Action, Create, Delete, Patch, RecordEvent, merge_patch, status_patch
from scaler_sandbox.conditions import has, message_of
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import templates, workload_status
from scaler_sandbox.kueue.jobs import (
    JOB_UID,
    REQUEST_PARAMETER,
    JobKind,
    JobOutcome,
    PodSet,
    is_suspended,
    owner_uid,
    prebuilt_workload,
    queue_name,
    with_suspend,
    workload_name,
)
from scaler_sandbox.kueue.workload_status import is_active


def _changes(action: Patch | None) -> list[Action]:
    return [action] if action else []


def _update(kind: JobKind, job: Json, new: Json, *notes: RecordEvent) -> list[Action]:
    change = merge_patch(job, new)
    return [Patch(resource=kind.resource, observed=job, body=change, notes=notes)] if change else []


# ---------------------------------------------------------------------------------------------------------------- jobs


def plan_job(
    kind: JobKind,
    job: Json,
    workload: Json | None,
    *,
    priority: int,
    node_labels: Mapping[str, Json],
    now: datetime,
    managed_by: str = "",
) -> list[Action]:
    """What the job needs next. `managed_by`: what a new Job gets as `spec.managedBy`; empty for none."""
    if job["metadata"].get("deletionTimestamp"):
        return []
    outcome = kind.outcome(job)
    if workload is None:
        return [] if outcome else _begin(kind, job, priority=priority, managed_by=managed_by)
    if not owner_uid(workload):
        return [*_suspend(kind, job), _adopt(kind, job, workload)]
    if outcome or has(workload, "Finished"):
        return _finish(job, workload, outcome, now=now)
    pod_sets = kind.pod_sets(job)
    if not templates.same_demand(pod_sets, workload):
        return _follow_demand(kind, job, workload, pod_sets)
    return _follow_workload(kind, job, workload, pod_sets, node_labels=node_labels, now=now)


def _finish(job: Json, workload: Json, outcome: JobOutcome | None, *, now: datetime) -> list[Action]:
    if outcome is None or has(workload, "Finished"):
        return []
    note = RecordEvent(
        reason="FinishedWorkload", message=f"Workload '{_key(workload)}' is declared finished", about=job
    )
    return _changes(status_patch(WORKLOAD, workload, workload_status.finished(workload, outcome, now=now), note))


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


def _adopt(kind: JobKind, job: Json, workload: Json) -> Action:
    """The prebuilt Workload becomes the job's. The job is suspended before, which a webhook does on a real cluster."""
    owned = {"ownerReferences": [_owner(kind, job)], "labels": {JOB_UID: job["metadata"]["uid"]}}
    return Patch(resource=WORKLOAD, observed=workload, body={"metadata": owned})


def _begin(kind: JobKind, job: Json, *, priority: int, managed_by: str) -> list[Action]:
    """The job is suspended first, and given to its manager, as by a webhook on a real cluster; then its Workload comes.

    One with a prebuilt Workload waits for that.
    """
    if not is_suspended(job):
        note = RecordEvent(reason="Suspended", message="Kueue managed child job suspended")
        return _update(kind, job, _managed(with_suspend(job, True), managed_by), note)
    if prebuilt_workload(job):
        return []
    if given := _update(kind, job, _managed(job, managed_by)):
        return given
    body = workload_of(kind, job, priority=priority)
    message = f"Created Workload: {body['metadata']['namespace']}/{body['metadata']['name']}"
    return [
        Create(resource=WORKLOAD, body=body, notes=(RecordEvent(reason="CreatedWorkload", message=message, about=job),))
    ]


def _managed(job: Json, by: str) -> Json:
    return {**job, "spec": {**job["spec"], "managedBy": by}} if by and "managedBy" not in job["spec"] else job


def _owner(kind: JobKind, job: Json) -> Json:
    metadata = job["metadata"]
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def workload_of(kind: JobKind, job: Json, *, priority: int) -> Json:
    """The Workload that stands for the job, active."""
    metadata, resource = job["metadata"], kind.resource
    passed_on = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith(REQUEST_PARAMETER)
    }
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.kind,
        "metadata": {
            "name": workload_name(resource, metadata["name"], metadata["uid"]),
            "namespace": metadata["namespace"],
            "labels": {JOB_UID: metadata["uid"]},
            "ownerReferences": [_owner(kind, job)],
            **({"annotations": passed_on} if passed_on else {}),
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
        note = RecordEvent(
            reason="DeletedWorkload", message=f"Deleted not matching Workload: {_key(workload)}", about=job
        )
        return [*_suspend(kind, job), Delete(resource=WORKLOAD, observed=workload, notes=(note,))]
    wanted = {"spec": {"podSets": templates.as_workload_pod_sets(pod_sets)}}
    note = RecordEvent(
        reason="UpdatedWorkload", message=f"Updated not matching Workload for suspend job: {_key(workload)}", about=job
    )
    return [Patch(resource=WORKLOAD, observed=workload, body=wanted, notes=(note,))]


def _suspend(kind: JobKind, job: Json, *notes: RecordEvent) -> list[Action]:
    return [] if is_suspended(job) else _update(kind, job, with_suspend(job, True), *notes)


def _stop(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet], *, now: datetime) -> list[Action]:
    """An evicted job: suspended, awaited, cleaned, and only then without quota."""
    if not is_suspended(job):
        return _suspend(kind, job, RecordEvent(reason="Stopped", message=message_of(workload, "Evicted")))
    if kind.is_active(job):
        return []
    if templates.is_injected(pod_sets):
        return _restore(kind, job, workload, pod_sets)
    if has(workload, "QuotaReserved"):
        return _changes(status_patch(WORKLOAD, workload, workload_status.released(workload, now=now)))
    return []


def _restore(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet]) -> list[Action]:
    if "startTime" in (job.get("status") or {}):
        # A Job counts as started while it has a startTime, and its templates are immutable until that is gone.
        return [Patch(resource=kind.resource, observed=job, body={"status": {"startTime": None}}, subresource="status")]
    originals = {each["name"]: each["template"] for each in workload["spec"]["podSets"]}
    clean = {each.name: templates.restored(each.template, originals[each.name]) for each in pod_sets}
    return _update(kind, job, kind.with_templates(job, clean))


def _hold(kind: JobKind, job: Json, workload: Json, pod_sets: list[PodSet]) -> list[Action]:
    """A job that is not admitted: suspended, even where a user has unsuspended it."""
    if not is_suspended(job):
        return _suspend(kind, job, RecordEvent(reason="Stopped", message="Not admitted by cluster queue"))
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
        return _update(kind, job, started, RecordEvent(reason="Started", message=message))
    ready_now = kind.are_pods_ready(job)
    if ready_now == has(workload, "PodsReady") and has(workload, "PodsReady", "True" if ready_now else "False"):
        return []
    return _changes(status_patch(WORKLOAD, workload, workload_status.pods_ready(workload, ready=ready_now, now=now)))
