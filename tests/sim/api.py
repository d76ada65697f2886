"""The API of a SimCluster as the product reaches it: by paths, with preconditions, over the same objects; with copies
that lag as a test says, and with calls that fail where a test or a die says so.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Self

import msgspec
from scaler_sandbox.conditions import timestamp
from scaler_sandbox.kinds import Json
from sim.client import SimClient

from scaler.admission.provisioning.requests import MANAGED_LABEL, workload_uid_of
from scaler.errors import KubeError
from scaler.kube.events import ObjectReference
from scaler.kube.object_cache import Index, ObjectCache, T
from scaler.kube.objects.nodes import ProvisioningRequest
from scaler.kube.objects.resources import PROVISIONING_REQUEST, Resource
from scaler.kube.reflector import Reflecting, State

# ------------------------------------------------------------------------------------------------------------ the calls


class SimApi:
    """Implements the `MakingApi` of the product's writers. What hooks raise, the caller gets."""

    def __init__(self, client: SimClient, resources: Collection[Resource]) -> None:
        self._client = client
        self._resources = resources
        self.patches: list[tuple[str, Json]] = []
        self.writes: list[str] = []
        """As `create provisioningrequests/job-gang-gate-1`."""
        self.before_patch: Callable[[str], None] = lambda _: None
        """Called before each patch; it may change the object."""
        self.after_write: Callable[[str], None] = lambda _: None
        """Called after each write, which stays written whatever this raises."""

    async def get(self, path: str) -> bytes:
        return msgspec.json.encode(self.object_at(path)[1])

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        self.before_patch(path)
        subresource, base = ("status" if path.endswith("/status") else ""), path.removesuffix("/status")
        resource, found = self.object_at(base)
        self._check("patch", path, found, body.get("metadata", {}))
        metadata = {key: value for key, value in body.get("metadata", {}).items() if key not in _PRECONDITIONS}
        change = {key: value for key, value in body.items() if key != "metadata"}
        change |= {"metadata": metadata} if metadata else {}
        self._client.change(resource, *_key(found), _copied(change), subresource, dry_run=dry_run)
        if dry_run:
            return msgspec.json.encode(found)
        self.patches.append((path, _copied(body)))
        self._wrote("patch", path)
        return msgspec.json.encode(self.object_at(base)[1])

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        namespace, name = body["metadata"].get("namespace", ""), body["metadata"]["name"]
        resource = next(each for each in self._resources if each.path(namespace) == path)
        if self._client.find(resource, namespace, name) is not None:
            raise KubeError(f"create {path}/{name}: it is there", status=409, reason="AlreadyExists")
        created = self._client.add(resource, _copied(body))
        self._wrote("create", f"{path}/{name}")
        return msgspec.json.encode(created)

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        resource, found = self.object_at(path)
        self._check("delete", path, found, {"uid": uid} if uid else {})
        if found["metadata"].get("finalizers"):
            going = {"metadata": {"deletionTimestamp": timestamp(self._client.now)}}
            self._client.change(resource, *_key(found), going)
        else:
            self._client.remove(resource, *_key(found))
        self._wrote("delete", path)
        return msgspec.json.encode(found)

    def object_at(self, path: str) -> tuple[Resource, Json]:
        """Raises: KubeError 404."""
        parts = path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-2] else ""
        for resource in self._resources:
            if resource.namespaced == bool(namespace) and resource.path(namespace, parts[-1]) == path:
                found = self._client.find(resource, namespace, parts[-1])
                if found is not None:
                    return resource, found
        raise KubeError(f"get {path}: not found", status=404, reason="NotFound")

    def _check(self, verb: str, path: str, found: Json, wanted: Json) -> None:
        for name in _PRECONDITIONS:
            if wanted.get(name, found["metadata"][name]) != found["metadata"][name]:
                raise KubeError(f"{verb} {path}: another {name}", status=409, reason="Conflict")

    def _wrote(self, verb: str, path: str) -> None:
        plural, name = path.removesuffix("/status").split("/")[-2:]
        self.writes.append(f"{verb} {plural}/{name}")
        self.after_write(self.writes[-1])


_PRECONDITIONS = ("uid", "resourceVersion")


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _copied(body: Mapping[str, Any]) -> Json:
    copied: Json = json.loads(json.dumps(body))
    return copied


class ProcessKilled(BaseException):
    """The product's process is killed in the middle of what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often a call goes wrong, of a thousand."""

    refused: int = 0
    conflicts: int = 0
    """Another writer changes the object just before."""
    unheard: int = 0
    """It is done, and the answer is lost."""
    deadly: int = 0
    """The process dies before it is sent, or just afterwards."""


class FaultyApi(SimApi):
    """The API with failures at random."""

    chance: Random
    rates: FaultRates = FaultRates()
    is_down = False
    touch: Callable[[str], None] = staticmethod(lambda _: None)
    """How another writer changes the object of that path."""
    watch: Callable[[str, Json], None] = staticmethod(lambda _path, _body: None)
    """Called with every patch before it is carried out."""

    async def get(self, path: str) -> bytes:
        if self.is_down:
            raise KubeError(f"get {path}: connection refused", reason="Unreachable")
        return await super().get(path)

    async def patch(self, path: str, body: Any, *, dry_run: bool = False) -> bytes:
        self._before(path)
        self.watch(path, body)
        return self._after(path, await super().patch(path, body, dry_run=dry_run))

    async def create(self, path: str, body: Any) -> bytes:
        self._before(path)
        return self._after(path, await super().create(path, body))

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        self._before(path)
        return self._after(path, await super().delete(path, uid=uid))

    def _before(self, path: str) -> None:
        if self._happens(self.rates.deadly):
            raise ProcessKilled
        if self._happens(self.rates.refused):
            raise KubeError(f"{path}: the API server is busy", status=500, reason="InternalError")
        if self._happens(self.rates.conflicts):
            self.touch(path)

    def _after(self, path: str, answer: bytes) -> bytes:
        if self._happens(self.rates.deadly):
            raise ProcessKilled
        if self._happens(self.rates.unheard):
            raise KubeError(f"{path}: the connection was lost", status=0, reason="Disconnected")
        return answer

    def _happens(self, of_thousand: int) -> bool:
        return bool(of_thousand) and self.chance.randrange(1000) < of_thousand


# ----------------------------------------------------------------------------------------------------------- the copies


class SimStore(ObjectCache[T]):
    """The product's copy of one kind, in step with the objects whenever it `follow`s them."""

    def __init__(self, kind: type[T], indexes: Mapping[str, Index[T]] | None = None) -> None:
        super().__init__(kind, indexes or {})
        self.age = 0.0
        self.state: State = Reflecting()

    def within(self, _namespace: str) -> Self:
        return self

    def follow(self, bodies: Sequence[Json]) -> None:
        """Everything that is there, as a watch would bring it."""
        self._written.clear()
        for body in bodies:
            known = self.get(*_key(body))
            if known is None or known.metadata.resource_version != body["metadata"]["resourceVersion"]:
                self.put(msgspec.Raw(msgspec.json.encode(body)))
        there = {_key(body) for body in bodies}
        for namespace, name in {each.metadata.key for each in self.items()} | {*self.undecodable}:
            if (namespace, name) not in there:
                meta = {"name": name, "namespace": namespace}
                self.remove(msgspec.Raw(msgspec.json.encode({"metadata": meta})))


class RequestStore(SimStore[ProvisioningRequest]):
    """The product's copy of its own ProvisioningRequests."""

    resource: Resource | None = PROVISIONING_REQUEST
    trouble = ""

    def __init__(self) -> None:
        super().__init__(ProvisioningRequest, {"workload": workload_uid_of})

    def of_workload(self, uid: str) -> list[ProvisioningRequest]:
        return list(self.by_index("workload", uid))

    def follow(self, bodies: Sequence[Json]) -> None:
        super().follow([each for each in bodies if is_managed(each)])


def is_managed(body: Json) -> bool:
    """Whether the product has made the object."""
    return (body["metadata"].get("labels") or {}).get(MANAGED_LABEL) == "true"


# ----------------------------------------------------------------------------------------------------------- the Events


class SimEvents:
    """The Events that were recorded: (kind, name, reason, message)."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, str, str]] = []

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        self.all.append((about.kind, about.name, reason, message))

    @property
    def events(self) -> list[tuple[str, str, str]]:
        """(name, reason, message)."""
        return [each[1:] for each in self.all]

    def reasons(self, name: str = "") -> list[str]:
        return [reason for _, about, reason, _ in self.all if name in about]
