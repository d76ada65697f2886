"""What a worker has of a Workload of the hub, and how it is made and removed: the Workload, and its Job.

The copy of a Workload has the hub's name, labels, annotations and spec, no owner, and the label of its hub. A Job is
made once a copy is admitted, and names the copy as its prebuilt Workload. Only Jobs are dispatched here; of other kinds
that Kueue dispatches, none.

Source: Kueue, pkg/controller/admissionchecks/multikueue/workload.go and jobs/job/job_multikueue_adapter.go.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.kube.objects.resources import JOB, WORKLOAD
from scaler_sandbox.actions import Action, Delete, status_patch
from scaler_sandbox.conditions import has, make, with_conditions
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import templates
from scaler_sandbox.kueue.jobs import JOB_UID, MULTIKUEUE_ORIGIN, PREBUILT_WORKLOAD, BatchJob, is_suspended


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCopy:
    """What a worker has."""

    workload: Json | None = None
    job: Json | None = None

    def removal(self, origin: str) -> list[Action]:
        """The Job first, so that nothing of it starts anew; only where the hub has made it."""
        actions: list[Action] = []
        if self.job is not None and is_of(self.job, origin):
            actions.append(Delete(resource=JOB, observed=self.job))
        if self.workload is not None:
            actions.append(Delete(resource=WORKLOAD, observed=self.workload))
        return actions


NOTHING = RemoteCopy()


def is_of(body: Json, origin: str) -> bool:
    """Whether a hub of that origin has made the object."""
    return (body["metadata"].get("labels") or {}).get(MULTIKUEUE_ORIGIN) == origin


def is_out_of_sync(workload: Json, copy: Json) -> bool:
    """Whether the copy's spec is another than the hub's. Preemption gates are each cluster's own."""
    ours, theirs = ({**each["spec"], "preemptionGates": None} for each in (workload, copy))
    return ours != theirs


def copied_workload(workload: Json, origin: str) -> Json:
    """The copy as it is created on a worker."""
    metadata = _cloned(workload)
    labels = {key: value for key, value in metadata["labels"].items() if key != JOB_UID}
    metadata["labels"] = {**labels, MULTIKUEUE_ORIGIN: origin}
    return {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind, "metadata": metadata, "spec": workload["spec"]}


def copied_job(job: Json, workload: str, origin: str) -> Json:
    """The Job as it is created on a worker, suspended as it is on the hub."""
    metadata = _cloned(job)
    metadata["labels"] = {**metadata["labels"], MULTIKUEUE_ORIGIN: origin}
    metadata["annotations"] = {**metadata["annotations"], PREBUILT_WORKLOAD: workload}
    spec = {key: value for key, value in job["spec"].items() if key not in ("managedBy", "selector")}
    (pods,) = BatchJob().pod_sets(job)
    spec["template"] = templates.as_workload_pod_sets([pods])[0]["template"]
    return {"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": metadata, "spec": spec}


def _cloned(body: Json) -> Json:
    kept: dict[str, Any] = {key: body["metadata"][key] for key in ("name", "namespace")}
    return kept | {key: dict(body["metadata"].get(key) or {}) for key in ("labels", "annotations")}


# ------------------------------------------------------------------------------------------------ the status of the Job


def synced(job: Json, remote: Json, *, now: datetime) -> tuple[list[Action], bool]:
    """The hub's Job with the status of the remote one, and whether that has to wait.

    It waits while the hub's Job is still suspended and the remote one runs: a start time would make the hub's pod
    template immutable. The condition that it gets instead is what Kubernetes 1.36 asks for.
    """
    if is_suspended(job) and not is_suspended(remote) and BatchJob().outcome(remote) is None:
        status = dict(job.get("status") or {})
        if not has(job, "Suspended"):
            suspended = make("Suspended", "True", "MultiKueueAdapter", "Set by MultiKueue adapter", now=now)
            status["conditions"] = with_conditions(status.get("conditions"), suspended)
        return _written(job, status), True
    return _written(job, remote.get("status") or {}), False


def _written(job: Json, status: Json) -> list[Action]:
    patch = status_patch(JOB, job, status)
    return [patch] if patch else []
