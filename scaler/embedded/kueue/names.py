"""Names, labels and annotations by which Kueue's objects and the jobs find each other."""

import hashlib

from scaler.embedded.kinds import Json, Resource

GROUP = "kueue.x-k8s.io"
QUEUE_NAME = f"{GROUP}/queue-name"
PRIORITY_CLASS = f"{GROUP}/priority-class"
JOB_UID = f"{GROUP}/job-uid"
POD_SET = f"{GROUP}/podset"
CLUSTER_QUEUE_NAME = f"{GROUP}/cluster-queue-name"
LOCAL_QUEUE_NAME = f"{GROUP}/local-queue-name"
WORKLOAD_NAME = f"{GROUP}/workload"
MIN_PARALLELISM = f"{GROUP}/job-min-parallelism"
REQUEST_PARAMETER = f"provreq.{GROUP}/"
"""What annotations begin with that set a parameter of a ProvisioningRequest. A job hands them to its Workload."""
COMPLETIONS_FOLLOW = f"{GROUP}/job-completions-equal-parallelism"

_LONGEST_BASE = 253 - 1 - 5


def workload_name(resource: Resource, name: str, uid: str) -> str:
    """The name of the Workload of a job: `raycluster-first-raycluster-1f2e3`.

    Source: Kueue, pkg/controller/jobframework/workload_names.go: five digits of sha1 over kind, group, name and uid.
    """
    identity = f"{resource.kind}\n{resource.group}\n{name}\n{uid}"
    digest = hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest()
    return f"{f'{resource.kind.lower()}-{name}'[:_LONGEST_BASE]}-{digest[:5]}"


def queue_name(job: Json) -> str:
    """The LocalQueue that the job was submitted to; empty for a job that Kueue leaves alone."""
    labels = job["metadata"].get("labels") or {}
    return str(labels.get(QUEUE_NAME, ""))


def owner_uid(workload: Json) -> str:
    """The uid of the job that the Workload stands for."""
    owners = workload["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
