"""Which resources does the API serve, and by what traits do they differ? Data, looked up by group, version and plural.

A `Resource` is what is stored once; a `Version` is one way of serving it; a `View` is the pair that a request names.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scaler_sandbox.kubeapi.errors import Cause, Json, qualified
from scaler_sandbox.kubeapi.schema.structural import OPEN, Structural

Path = tuple[str, ...]
Validator = Callable[[Json, Json | None], Sequence[Cause]]
"""New object, old object (None on create) → what is wrong with it."""


def nothing_wrong(_new: Json, _old: Json | None) -> Sequence[Cause]:
    """The validator of a resource without a schema."""
    return ()


def unchanged(body: Json) -> Json:
    """The completion of a resource to which the server adds nothing."""
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


AGE = Column(name="Age", path=".metadata.creationTimestamp", type="date")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePaths:
    """The paths of the scale subresource's numbers."""

    spec: Path
    status: Path
    selector: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One served version of a resource."""

    name: str
    served: bool = True
    schema: Structural = OPEN
    validate: Validator = nothing_wrong
    has_status: bool = False
    scale: ScalePaths | None = None
    columns: tuple[Column, ...] = (AGE,)
    selectable: tuple[str, ...] = ()
    """Field paths that a fieldSelector may use, besides `metadata.name` and `metadata.namespace`."""
    unchecked_rules: tuple[str, ...] = ()
    """CEL rules that are not evaluated here, because they use functions that our CEL library does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One stored resource."""

    group: str
    plural: str
    kind: str
    versions: dict[str, Version]
    storage: str
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    custom: bool = False
    """Whether it is from a CRD. Custom resources answer some questions differently: see `lifecycle`."""
    generation: bool = True
    graceful: bool = False
    """Deleting waits for a kubelet while the object is bound to a node."""
    returns_deleted: bool = False
    """A finished delete answers with the object instead of a Status."""
    status_on_create: Literal["drop", "keep"] = "drop"
    initial_status: Json = field(default_factory=dict)
    completed: Callable[[Json], Json] = unchanged
    """What the server itself adds to a new object, apart from defaults."""
    unconditional_update: bool = True
    """Whether a PUT without resourceVersion overwrites whatever there is."""
    create_on_update: bool = False
    """Whether a PUT of an absent object creates it."""
    cleanup_finalizer: str = ""
    """Put on an object when it is deleted: something that depends on it has to be cleaned up first."""

    @property
    def key(self) -> tuple[str, str]:
        """What names the resource, whatever the version."""
        return self.group, self.plural

    @property
    def qualified(self) -> str:
        """`workloads.kueue.x-k8s.io`."""
        return qualified(self.group, self.plural)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A resource as one of its versions."""

    resource: Resource
    version: Version

    @property
    def api_version(self) -> str:
        """`kueue.x-k8s.io/v1beta2`, `v1`."""
        group = self.resource.group
        return f"{group}/{self.version.name}" if group else self.version.name

    @property
    def is_storage(self) -> bool:
        """Whether objects are stored in this very version."""
        return self.version.name == self.resource.storage


class Registry:
    """The resources that are served at the moment."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources: dict[tuple[str, str], Resource] = {resource.key: resource for resource in resources}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._resources.values())

    def put(self, resource: Resource) -> None:
        """Serve a resource, or serve it anew after its CRD changed."""
        self._resources[resource.key] = resource

    def remove(self, resource: Resource) -> None:
        """Stop serving a resource."""
        self._resources.pop(resource.key, None)

    def resource(self, group: str, plural: str) -> Resource | None:
        """The resource, if it is served."""
        return self._resources.get((group, plural))

    def view(self, group: str, version: str, plural: str) -> View | None:
        """The resource as the asked-for version, if that is served."""
        resource = self._resources.get((group, plural))
        found = resource.versions.get(version) if resource else None
        return View(resource=resource, version=found) if resource and found and found.served else None

    def by_kind(self, api_version: str, kind: str) -> View | None:
        """The view that serves a kind, as owner references name it."""
        group, _, version = api_version.rpartition("/")
        for resource in self._resources.values():
            if resource.group == group and resource.kind == kind:
                return self.view(group, version, resource.plural) or storage_view(resource)
        return None


def storage_view(resource: Resource) -> View:
    """The resource in the version in which it is stored."""
    return View(resource=resource, version=resource.versions[resource.storage])
