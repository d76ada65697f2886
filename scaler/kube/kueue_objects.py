"""The parts of Kueue's Workload (kueue.x-k8s.io/v1beta2) that this program reads, by the laws of `objects.py`."""

from datetime import datetime

from msgspec import field

from scaler.kube.objects import Condition, ObjectMeta, PodSpec, Quantity, Struct


class PodTemplate(Struct, frozen=True):
    """A PodSet's pods as far as their resources are concerned."""

    spec: PodSpec = PodSpec()


class PodSet(Struct, frozen=True):
    name: str = "main"
    count: int = 0
    min_count: int | None = None
    template: PodTemplate = PodTemplate()


class WorkloadSpec(Struct, frozen=True):
    active: bool = True
    queue_name: str = ""
    priority: int | None = None
    pod_sets: tuple[PodSet, ...] = ()


class PodSetAssignment(Struct, frozen=True):
    name: str = "main"
    count: int = 0
    flavors: dict[str, str] = field(default_factory=dict)
    resource_usage: dict[str, Quantity] = field(default_factory=dict)
    """Of the whole PodSet, not of one pod."""


class Admission(Struct, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class CheckState(Struct, frozen=True):
    """One entry of `status.admissionChecks`."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    requeue_after_seconds: int | None = None
    retry_count: int | None = None


class ReclaimablePods(Struct, frozen=True):
    name: str = ""
    count: int = 0


class WorkloadStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] = ()
    reclaimable_pods: tuple[ReclaimablePods, ...] = ()
    cluster_name: str = ""


class Workload(Struct, frozen=True):
    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()
