"""The parts of Kueue's Workload (kueue.x-k8s.io/v1beta2) that this program reads, by the laws of `core.py`."""

from datetime import datetime
from typing import Any

from msgspec import field

from scaler.kube.objects.core import Condition, Container, NameRef, ObjectMeta, PodSpec, Quantity, Struct
from scaler.kube.objects.nodes import Affinity
from scaler.kube.scheduling import Toleration


class ContainerPort(Struct, frozen=True):
    """Read only to distinguish shapes of pods, as Kueue does."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    protocol: str = ""


class TemplateContainer(Container, frozen=True):
    ports: tuple[ContainerPort, ...] = ()


class Volume(Struct, frozen=True):
    """A volume of a pod; what is read is whether it may be bound to nodes."""

    persistent_volume_claim: Any = None
    ephemeral: Any = None


class TemplateSpec(PodSpec, frozen=True):
    containers: tuple[TemplateContainer, ...] = ()
    init_containers: tuple[TemplateContainer, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    runtime_class_name: str = ""
    priority: int | None = None
    topology_spread_constraints: tuple[Any, ...] = ()
    resource_claims: tuple[Any, ...] = ()
    volumes: tuple[Volume, ...] = ()


class TemplateMeta(Struct, frozen=True):
    labels: dict[str, str] = field(default_factory=dict)


class PodTemplate(Struct, frozen=True):
    metadata: TemplateMeta = TemplateMeta()
    spec: TemplateSpec = TemplateSpec()


class TopologyRequest(Struct, frozen=True):
    """Kueue writes one for every Job: `podIndexLabel` and the like alone ask for nothing."""

    required: str = ""
    preferred: str = ""
    unconstrained: bool | None = None
    pod_index_label: str = ""
    sub_group_index_label: str = ""
    sub_group_count: int | None = None
    pod_set_group_name: str = ""
    pod_set_slice_required_topology: str = ""
    pod_set_slice_size: int | None = None
    podset_slice_required_topology_constraints: tuple[Any, ...] = ()


class PodSet(Struct, frozen=True):
    name: str = "main"
    count: int = 1
    min_count: int | None = None
    template: PodTemplate = PodTemplate()
    topology_request: TopologyRequest | None = None


class PriorityClassRef(Struct, frozen=True):
    kind: str = ""
    """`WorkloadPriorityClass` or `PriorityClass`."""
    name: str = ""


class WorkloadSpec(Struct, frozen=True):
    active: bool = True
    preemption_gates: tuple[NameRef, ...] = ()
    queue_name: str = ""
    priority: int | None = None
    priority_class_ref: PriorityClassRef | None = None
    pod_sets: tuple[PodSet, ...] = ()


class TopologyAssignment(Struct, frozen=True):
    """The fact that there is a topology assignment; where it puts the pods is not read."""


class PodSetAssignment(Struct, frozen=True):
    name: str = "main"
    count: int | None = None
    """The number of pods; None, which no current Kueue writes, means all pods of the PodSet."""
    flavors: dict[str, str] = field(default_factory=dict)
    resource_usage: dict[str, Quantity] = field(default_factory=dict)
    """The usage of the whole PodSet, not of one pod."""
    topology_assignment: TopologyAssignment | None = None
    delayed_topology_request: str = ""


class Admission(Struct, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class PodSetUpdate(Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


class AdmissionCheckState(Struct, frozen=True):
    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class ReclaimablePods(Struct, frozen=True):
    name: str = ""
    count: int = 0


class RequeueState(Struct, frozen=True):
    count: int = 0
    requeue_at: datetime | None = None


class PodSetRequest(Struct, frozen=True):
    """What Kueue counted for a PodSet when it last tried to admit the Workload."""

    name: str = ""
    resources: dict[str, Quantity] = field(default_factory=dict)
    """What all its pods take together."""


class PreemptionGateState(Struct, frozen=True):
    name: str = ""
    position: str = ""
    """Open or Closed."""


class WorkloadStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    reclaimable_pods: tuple[ReclaimablePods, ...] = ()
    requeue_state: RequeueState | None = None
    resource_requests: tuple[PodSetRequest, ...] = ()
    cluster_name: str = ""
    nominated_cluster_names: tuple[str, ...] = ()
    preemption_gates: tuple[PreemptionGateState, ...] = ()


MULTIKUEUE_ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""Label of what a hub has copied to this cluster. Source: Kueue, MultiKueueOriginLabel."""
MULTIKUEUE_GATE = "kueue.x-k8s.io/multikueue"
"""Name of the preemption gate of such copies, with Kueue's gate MultiKueueOrchestratedPreemption."""


class Workload(Struct, frozen=True):
    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def is_remote_copy(self) -> bool:
        """Whether a MultiKueue hub has created it here, for a job of the hub."""
        return MULTIKUEUE_ORIGIN in self.metadata.labels
