"""The parts of Kubernetes objects that this program reads, as they stand in the API.

Laws:

* Only fields that are read are declared; whatever else an object holds is skipped unread.
* An absent field, a null and an empty list are one thing here, as they are to the API server.
* These are views for reading. An object is never written back from here: that would drop what is not declared.
* Sequences are tuples: immutable, and invisible to the cyclic garbage collector, which would otherwise stop the event
  loop for almost a tenth of a second when twenty thousand pods are listed.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

Quantity = str | int
"""A resource quantity as written: `"1500m"`, `"80Gi"`, or (in custom resources) a bare number."""


class Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The base of all: immutable, camelCase in JSON, and (being trees) not tracked by the cyclic garbage collector."""


class OwnerReference(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.namespace, self.name

    @property
    def controller_owner(self) -> OwnerReference | None:
        """The one owner that manages the object."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Condition(Struct, frozen=True):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


def condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of that type; None where it has not been set."""
    return next((each for each in conditions if each.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition of that type is set and True; neither absent nor Unknown is."""
    found = condition(conditions, kind)
    return found is not None and found.status == "True"


class Generic(Struct, frozen=True):
    """Any object, of which only the metadata is wanted."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# ------------------------------------------------------------------------------------------------------------- Pods


class Resources(Struct, frozen=True):
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Container(Struct, frozen=True):
    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    """`Always` on an init container makes it a sidecar, which runs (and holds its GPUs) beside the others."""


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources | None = None
    """Of the pod as a whole; where given, these count instead of the sum over the containers."""
    overhead: dict[str, Quantity] = {}
    scheduling_gates: tuple[object, ...] = ()
    """No scheduler looks at the pod while there are any."""


class Running(Struct, frozen=True):
    started_at: datetime | None = None


class ContainerState(Struct, frozen=True):
    running: Running | None = None


class ContainerStatus(Struct, frozen=True):
    name: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True):
    phase: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Struct, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# ------------------------------------------------------------------------------------------------------------- KEDA


class ScaleTargetRef(Struct, frozen=True):
    name: str = ""
    api_version: str = "apps/v1"
    kind: str = "Deployment"
    """KEDA's defaults. Source: KEDA, pkg/scaling/resolver, ResolveScaleTargetPodSpec."""


class AuthenticationRef(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    """Empty: TriggerAuthentication."""


class Trigger(Struct, frozen=True):
    type: str = ""
    name: str = ""
    metadata: dict[str, str] = {}
    authentication_ref: AuthenticationRef | None = None


class ScaledObjectSpec(Struct, frozen=True):
    scale_target_ref: ScaleTargetRef = ScaleTargetRef()
    triggers: tuple[Trigger, ...] = ()


class ConditionedStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class ScaledObject(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ScaledObjectSpec = ScaledObjectSpec()
    status: ConditionedStatus = ConditionedStatus()


# ------------------------------------------------------------------------------------------------- ScalableWorkload


class WorkloadRef(Struct, frozen=True):
    name: str = ""


class JobRef(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class ScalableWorkloadSpec(Struct, frozen=True):
    replicas: int = 1
    workload_ref: WorkloadRef | None = None
    job_ref: JobRef | None = None


class GrantStatus(Struct, frozen=True):
    """The plan that may take the workload for a gang that waits."""

    plan: str = ""
    workload: str = ""
    """`namespace/name` of the gang's Workload."""
    workload_uid: str = msgspec.field(default="", name="workloadUID")
    victims: tuple[str, ...] = ()
    granted_at: datetime | None = None
    expires_at: datetime | None = None
    seeks: str = "Quota"
    check: str = ""
    """Name of the AdmissionCheck that holds the gang back, of a plan for nodes."""


class ReallocationStatus(Struct, frozen=True):
    """Where the GPUs are that the workload gave up for a gang."""

    plan: str = ""
    workload: str = ""
    gpus: int = 0
    stage: str = ""
    reclaimable_at: datetime | None = None
    releasing_at: datetime | None = None
    available_at: datetime | None = None
    reserved_at: datetime | None = None
    admitted_at: datetime | None = None
    ended_at: datetime | None = None
    taken_by: str = ""
    wasted_gpu_seconds: int = 0
    times: int = 0
    """How often plans have suspended the workload, this one included."""


class ScalableWorkloadStatus(Struct, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    selector: str = ""
    workload_name: str = ""
    workload_uid: str = msgspec.field(default="", name="workloadUID")
    phase: str = ""
    verdict: str = ""
    reason: str = ""
    message: str = ""
    idle_since: datetime | None = None
    warned_at: datetime | None = None
    suspend_at: datetime | None = None
    suspended_at: datetime | None = None
    resumed_at: datetime | None = None
    keep_until: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    evidence: tuple[dict[str, Any], ...] = ()
    """As it stands in the API: only its writer reads it again, to see whether it has changed."""
    evidence_omitted: int = 0
    grant: GrantStatus | None = None
    reallocation: ReallocationStatus | None = None


class ScalableWorkload(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ScalableWorkloadSpec = ScalableWorkloadSpec()
    status: ScalableWorkloadStatus = ScalableWorkloadStatus()


# ------------------------------------------------------------------------------------------------------------ Lease


class LeaseSpec(Struct, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(Struct, frozen=True):
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
