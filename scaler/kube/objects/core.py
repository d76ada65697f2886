"""The parts of Kubernetes objects that this program reads, as they stand in the API, and how they are decoded.

Laws:

* Only fields that are read are declared; whatever else an object holds is skipped unread.
* An absent field, a null and an empty list are one thing here, as they are to the API server.
* These are views for reading. An object is never written back from here: that would drop what is not declared.
* Sequences are tuples: immutable, and invisible to the cyclic garbage collector, which would otherwise stop the event
  loop for almost a tenth of a second when twenty thousand pods are listed.
* Decoding is strict at first, as that is fast. Any client may write custom resources, though (`null` where a list
  belongs, `1.0` for 1), so what does not decode is decoded again without its nulls and with numbers converted. Only
  then is it malformed, and then it is that one object that is, never the list around it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Json = Mapping[str, Any]

Quantity = str | int
"""A resource quantity as written: `"1500m"`, `"80Gi"`, or (in custom resources) a bare number."""


class Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The base of all: immutable, camelCase in JSON, and (being trees) not tracked by the cyclic garbage collector."""


class ListPage(msgspec.Struct, frozen=True, gc=False):
    """One page of a list, its objects not decoded yet."""

    class ListMeta(msgspec.Struct, frozen=True, rename="camel", gc=False):
        resource_version: str = ""
        continue_: str = msgspec.field(default="", name="continue")

    items: list[msgspec.Raw] | None = None
    metadata: ListMeta = ListMeta()


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch, its object not decoded yet."""

    type: str
    object: msgspec.Raw


def decode(kind: type[T], raw: bytes | msgspec.Raw) -> T:
    """The object in the bytes. Raises: one of UNREADABLE, with the path of the field that is wrong."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        plain = _without_nulls(msgspec.json.decode(raw))
        return msgspec.json.decode(msgspec.json.encode(plain), type=kind, strict=False)


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value if item is not None]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


# --------------------------------------------------------------------------------------------------------- metadata


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

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.namespace, self.name

    @property
    def controller_owner(self) -> OwnerReference | None:
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


def without_defaults(value: Any) -> Any:
    """A Struct as JSON without what it would have anyway: of equal meaning to those that read it by the same Struct."""
    match value:
        case msgspec.Struct():
            fields = ((name, getattr(value, attribute), default) for attribute, name, default in _fields(type(value)))
            return {name: without_defaults(given) for name, given, default in fields if given != default}
        case tuple() | list():
            return [without_defaults(each) for each in value]
        case dict():
            return {key: without_defaults(each) for key, each in value.items()}
        case datetime():
            return stamp(value)
        case _:
            return msgspec.to_builtins(value)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Attribute, name in JSON and default; a field without a default equals none."""
    return tuple(
        (
            each.name,
            each.encode_name,
            each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory(),
        )
        for each in msgspec.structs.fields(kind)
    )


def stamp(instant: datetime) -> str:
    """The instant as the API keeps times: whole seconds, UTC."""
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def guard(obj: Json) -> Json:
    """The metadata of a patch that is refused if another client has written to the object since it was read."""
    return {"uid": obj["metadata"]["uid"], "resourceVersion": obj["metadata"]["resourceVersion"]}


def condition_patch(obj: Json, kind: str, *, status: str, reason: str, message: str, now: datetime) -> Json | None:
    """The patch of the status that lets the object's condition say this; None where it says so already.

    Conditions of others go back into the list as they were read: a JSON merge patch replaces all of it.
    `lastTransitionTime` moves only when the status does.
    """
    conditions: Sequence[Json] = (obj.get("status") or {}).get("conditions") or []
    before: Json = next((each for each in conditions if each.get("type") == kind), {})
    is_same_status = before.get("status") == status and before.get("lastTransitionTime")
    wanted = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": before["lastTransitionTime"] if is_same_status else stamp(now),
        "observedGeneration": obj["metadata"].get("generation", 0),
    }
    if wanted == before:
        return None
    others = [each for each in conditions if each.get("type") != kind]
    return {"metadata": guard(obj), "status": {"conditions": [*others, wanted]}}


def last_writer(raw: bytes | msgspec.Raw, field: str) -> str:
    """The client that has written that field of the object's spec last; empty where that is not known."""
    writers = msgspec.json.decode(raw)["metadata"].get("managedFields") or ()
    found = [each for each in writers if f"f:{field}" in each.get("fieldsV1", {}).get("f:spec", {})]
    return max(((str(each.get("time")), str(each.get("manager"))) for each in found), default=("", ""))[1]


class NameRef(Struct, frozen=True):
    """A reference to what stands beside the object, or in its list: whatever needs no more than a name."""

    name: str = ""


class Secret(Struct, frozen=True):
    data: dict[str, bytes] = {}
    """msgspec reads the API's base64 as what it stands for."""


class SelectorRequirement(Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


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
    """The container's own policy. `Always` makes an init container a sidecar, which holds its GPUs beside the others.
    """
    restart_policy_rules: tuple[Any, ...] = ()
    """Exit codes with which it is started again, whatever its policy."""


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    restart_policy: str = ""
    """Empty: Always."""
    resource_claims: tuple[NameRef, ...] = ()
    """Devices by dynamic resource allocation."""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    """The resources of the pod as a whole; where given, these count instead of the sum over the containers."""
    overhead: dict[str, Quantity] = {}
    scheduling_gates: tuple[object, ...] = ()
    """No scheduler looks at the pod while there are any."""


class ContainerStateRunning(Struct, frozen=True):
    started_at: datetime | None = None


class ContainerStateWaiting(Struct, frozen=True):
    reason: str = ""


class ContainerStateTerminated(Struct, frozen=True):
    exit_code: int = 0
    reason: str = ""
    finished_at: datetime | None = None


class ContainerState(Struct, frozen=True):
    running: ContainerStateRunning | None = None
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True):
    phase: str = ""
    start_time: datetime | None = None
    """When the kubelet took the pod up."""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Struct, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
