"""The kinds of jobs that are queued, each as what Kueue needs of it: is it suspended, what does it run, is it done?

All kinds have `spec.suspend`. They differ in where their pod templates are, and in when they count as active, which
decides when Kueue considers an evicted job stopped. The labels by which jobs and Workloads find each other are here.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from scaler.kube.objects.resources import JOB, RAY_CLUSTER, RAY_JOB, Resource
from scaler_sandbox.conditions import has, message_of
from scaler_sandbox.kinds import Json

GROUP = "kueue.x-k8s.io"
QUEUE_NAME = f"{GROUP}/queue-name"
PRIORITY_CLASS = f"{GROUP}/priority-class"
JOB_UID = f"{GROUP}/job-uid"
POD_SET = f"{GROUP}/podset"
CLUSTER_QUEUE_NAME = f"{GROUP}/cluster-queue-name"
LOCAL_QUEUE_NAME = f"{GROUP}/local-queue-name"
WORKLOAD_NAME = f"{GROUP}/workload"
PREBUILT_WORKLOAD = f"{GROUP}/prebuilt-workload-name"
"""Annotation of a job whose Workload was there first: MultiKueue makes both on a worker, the Workload first."""
MULTIKUEUE_ORIGIN = f"{GROUP}/multikueue-origin"
WORKER_POD = f"{GROUP}/multikueue-worker-workload-pod"
MULTIKUEUE = f"{GROUP}/multikueue"
"""The controller of MultiKueue's AdmissionChecks, and of jobs that run on a worker (`spec.managedBy`)."""
REQUEST_PARAMETER = f"provreq.{GROUP}/"
"""What annotations begin with that set a parameter of a ProvisioningRequest. A job hands them to its Workload."""

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


def prebuilt_workload(job: Json) -> str:
    """The name of the Workload that was made for the job before it; empty where Kueue makes its Workload."""
    annotations = job["metadata"].get("annotations") or {}
    return str(annotations.get(PREBUILT_WORKLOAD, ""))


def owner_uid(workload: Json) -> str:
    """The uid of the job that the Workload stands for."""
    owners = workload["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Pods of one job that are alike."""

    name: str
    count: int
    template: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended, as the Finished condition says it."""

    reason: str
    message: str


def is_suspended(job: Json) -> bool:
    """Whether `spec.suspend` is true."""
    return bool(job["spec"].get("suspend"))


def with_suspend(job: Json, suspend: bool) -> Json:
    """The job with another `spec.suspend`."""
    return {**job, "spec": {**job["spec"], "suspend": suspend}}


class BatchJob:
    """batch/v1 Job: one pod set; active as long as pods run that are not yet marked for deletion."""

    resource = JOB

    def pod_sets(self, job: Json) -> list[PodSet]:
        """What the job runs."""
        spec = job["spec"]
        parallelism = spec.get("parallelism", 1)
        count = min(parallelism, spec.get("completions", parallelism))
        return [PodSet(name="main", count=count, template=spec["template"])]

    def with_templates(self, job: Json, templates: Mapping[str, Json]) -> Json:
        """The job with other pod templates, by pod set name."""
        return {**job, "spec": {**job["spec"], "template": templates["main"]}}

    def is_active(self, job: Json) -> bool:
        """Whether Kueue takes it to be still running something."""
        return bool((job.get("status") or {}).get("active"))

    def are_pods_ready(self, job: Json) -> bool:
        status = job.get("status") or {}
        return bool(status.get("ready", 0) + status.get("succeeded", 0) >= self.pod_sets(job)[0].count)

    def outcome(self, job: Json) -> JobOutcome | None:
        """How it ended; None as long as it has not."""
        if has(job, "Complete"):
            return JobOutcome(reason="Succeeded", message=message_of(job, "Complete") or "Job finished successfully")
        if has(job, "Failed"):
            return JobOutcome(reason="Failed", message=message_of(job, "Failed") or "Job failed")
        return None


class RayCluster:
    """ray.io/v1 RayCluster: a head and worker groups; active only in state `ready`. It never ends by itself."""

    resource = RAY_CLUSTER

    def pod_sets(self, job: Json) -> list[PodSet]:
        head = PodSet(name="head", count=1, template=job["spec"]["headGroupSpec"]["template"])
        return [head, *(_worker_pod_set(group) for group in job["spec"].get("workerGroupSpecs") or ())]

    def with_templates(self, job: Json, templates: Mapping[str, Json]) -> Json:
        spec = dict(job["spec"])
        spec["headGroupSpec"] = {**spec["headGroupSpec"], "template": templates["head"]}
        if "workerGroupSpecs" in spec:
            spec["workerGroupSpecs"] = [
                {**group, "template": templates[group["groupName"]]} for group in spec["workerGroupSpecs"]
            ]
        return {**job, "spec": spec}

    def is_active(self, job: Json) -> bool:
        return self.are_pods_ready(job)

    def are_pods_ready(self, job: Json) -> bool:
        return bool((job.get("status") or {}).get("state") == "ready")

    def outcome(self, job: Json) -> JobOutcome | None:
        status = job.get("status") or {}
        if status.get("state") == "failed":
            return JobOutcome(reason="Failed", message=str(status.get("reason", "RayCluster failed")))
        return None


def _worker_pod_set(group: Json) -> PodSet:
    count = group.get("replicas", 0) * group.get("numOfHosts", 1)
    return PodSet(name=group["groupName"], count=count, template=group["template"])


class RayJob:
    """ray.io/v1 RayJob: the pod sets of its RayCluster; active until that is deleted. Without a pod that submits it."""

    resource = RAY_JOB

    def pod_sets(self, job: Json) -> list[PodSet]:
        return RayCluster().pod_sets({"spec": job["spec"]["rayClusterSpec"]})

    def with_templates(self, job: Json, templates: Mapping[str, Json]) -> Json:
        cluster = RayCluster().with_templates({"spec": job["spec"]["rayClusterSpec"]}, templates)
        return {**job, "spec": {**job["spec"], "rayClusterSpec": cluster["spec"]}}

    def is_active(self, job: Json) -> bool:
        return (job.get("status") or {}).get("jobDeploymentStatus", "") not in ("", "Suspended")

    def are_pods_ready(self, job: Json) -> bool:
        cluster = (job.get("status") or {}).get("rayClusterStatus") or {}
        return bool(cluster.get("state") == "ready")

    def outcome(self, job: Json) -> JobOutcome | None:
        status = job.get("status") or {}
        if status.get("jobDeploymentStatus") not in ("Complete", "Failed"):
            return None
        reason = "Succeeded" if status.get("jobStatus") == "SUCCEEDED" else "Failed"
        return JobOutcome(reason=reason, message=str(status.get("message", "")))


JobKind = RayCluster | RayJob | BatchJob
JOB_KINDS: tuple[JobKind, ...] = (RayCluster(), RayJob(), BatchJob())
