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


class ConditionedStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class PartialObjectMetadata(Struct, frozen=True):
    """Any object, of which only the metadata is wanted."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# ------------------------------------------------------------------------------------------------------------- Pods


class ResourceRequirements(Struct, frozen=True):
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Container(Struct, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""
    """`Always` on an init container makes it a sidecar, which runs (and holds its GPUs) beside the others."""


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    """Of the pod as a whole; where given, these count instead of the sum over the containers."""
    overhead: dict[str, Quantity] = {}
    scheduling_gates: tuple[object, ...] = ()
    """No scheduler looks at the pod while there are any."""


class ContainerStateRunning(Struct, frozen=True):
    started_at: datetime | None = None


class ContainerState(Struct, frozen=True):
    running: ContainerStateRunning | None = None


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
