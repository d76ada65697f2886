"""The kinds of jobs that are queued, each as what Kueue needs of it: is it suspended, what does it run, is it done?

Both kinds have `spec.suspend`. They differ in where their pod templates are, in whether they may start with fewer pods
than they ask for, and in when they count as active, which decides when Kueue believes that an evicted job has stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scaler.embedded.conditions import has, message_of
from scaler.embedded.kinds import JOB, RAY_CLUSTER, Json, Resource
from scaler.embedded.kueue.names import COMPLETIONS_FOLLOW, MIN_PARALLELISM


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Pods of one job that are alike."""

    name: str
    count: int
    template: Json
    min_count: int | None = None
    """The fewest pods with which the job may start (partial admission); None where it needs all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended, as the Finished condition says it."""

    reason: str
    message: str


class JobKind(Protocol):
    """One kind of job."""

    resource: Resource

    def pod_sets(self, job: Json) -> list[PodSet]:
        """What the job runs."""

    def with_templates(self, job: Json, templates: Mapping[str, Json]) -> Json:
        """The job with other pod templates, by pod set name."""

    def with_counts(self, job: Json, counts: Mapping[str, int]) -> Json:
        """The job with other numbers of pods, by pod set name, where it may start with fewer than it asks for."""

    def is_active(self, job: Json) -> bool:
        """Whether Kueue takes it to be still running something."""

    def are_pods_ready(self, job: Json) -> bool:
        """Whether all that it asks for runs."""

    def outcome(self, job: Json) -> Outcome | None:
        """How it ended; None as long as it has not."""


def is_suspended(job: Json) -> bool:
    """Whether the job is told not to run."""
    return bool(job["spec"].get("suspend"))


def with_suspend(job: Json, suspend: bool) -> Json:
    """The job told to run or not to."""
    return {**job, "spec": {**job["spec"], "suspend": suspend}}


class BatchJob:
    """batch/v1 Job: one pod set; active as long as pods run that are not yet marked for deletion."""

    resource = JOB

    def pod_sets(self, job: Json) -> list[PodSet]:
        spec = job["spec"]
        parallelism = spec.get("parallelism", 1)
        count = min(parallelism, spec.get("completions", parallelism))
        return [PodSet(name="main", count=count, template=spec["template"], min_count=_min_parallelism(job))]

    def with_templates(self, job: Json, templates: Mapping[str, Json]) -> Json:
        return {**job, "spec": {**job["spec"], "template": templates["main"]}}

    def with_counts(self, job: Json, counts: Mapping[str, int]) -> Json:
        if _min_parallelism(job) is None:
            return job
        size = {"parallelism": counts["main"]}
        if _annotations(job).get(COMPLETIONS_FOLLOW) == "true":
            size["completions"] = counts["main"]
        return {**job, "spec": {**job["spec"], **size}}

    def is_active(self, job: Json) -> bool:
        return bool((job.get("status") or {}).get("active"))

    def are_pods_ready(self, job: Json) -> bool:
        status = job.get("status") or {}
        return bool(status.get("ready", 0) + status.get("succeeded", 0) >= self.pod_sets(job)[0].count)

    def outcome(self, job: Json) -> Outcome | None:
        if has(job, "Complete"):
            return Outcome(reason="Succeeded", message=message_of(job, "Complete") or "Job finished successfully")
        if has(job, "Failed"):
            return Outcome(reason="Failed", message=message_of(job, "Failed") or "Job failed")
        return None


def _annotations(job: Json) -> Json:
    return job["metadata"].get("annotations") or {}


def _min_parallelism(job: Json) -> int | None:
    text = str(_annotations(job).get(MIN_PARALLELISM, ""))
    return int(text) if text.isascii() and text.isdigit() else None


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

    def with_counts(self, job: Json, counts: Mapping[str, int]) -> Json:
        del counts
        return job

    def is_active(self, job: Json) -> bool:
        return self.are_pods_ready(job)

    def are_pods_ready(self, job: Json) -> bool:
        return bool((job.get("status") or {}).get("state") == "ready")

    def outcome(self, job: Json) -> Outcome | None:
        status = job.get("status") or {}
        if status.get("state") == "failed":
            return Outcome(reason="Failed", message=str(status.get("reason", "RayCluster failed")))
        return None


def _worker_pod_set(group: Json) -> PodSet:
    count = group.get("replicas", 0) * group.get("numOfHosts", 1)
    return PodSet(name=group["groupName"], count=count, template=group["template"])


JOB_KINDS: tuple[JobKind, ...] = (RayCluster(), BatchJob())
