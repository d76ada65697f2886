"""The API of a BusyTown: in memory, with word of every change, and with calls that go wrong now and then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from embedded.memory_client import MemoryClient
from gate_town import LiveStore, MemoryApi

from scaler.embedded.kinds import POD, PROVISIONING_REQUEST, Json, Resource
from scaler.errors import KubeError
from scaler.kube.provisioning_objects import ProvisioningRequest
from scaler.kueue.provisioning_requests import workload_uid_of


class Died(BaseException):
    """The process of the gate is killed in the middle of what it does."""


class Board(MemoryClient):
    """The API's memory, which tells who watches it of every change, and names pods by number."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: dict[Resource, list[Json]] = {}
        self._listeners: dict[Resource, list[Callable[[], None]]] = {}
        self._pods = 0

    def listen(self, resources: Sequence[Resource], wake: Callable[[], None]) -> Callable[[], None]:
        for resource in resources:
            self._listeners.setdefault(resource, []).append(wake)
        return lambda: None

    def all(self, resource: Resource) -> list[Json]:
        found = self._sorted.get(resource)
        if found is None:
            found = self._sorted[resource] = super().all(resource)
        return found.copy()

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        super().remove(resource, namespace, name)
        self._changed(resource)

    def _create(self, resource: Resource, body: Json) -> bool:
        if resource is POD:
            # Random names would make another story of the same run.
            self._pods += 1
            name = body["metadata"]["name"].rsplit("-", 1)[0]
            body = {**body, "metadata": {**body["metadata"], "name": f"{name}-{self._pods}"}}
        return super()._create(resource, body)

    def _put(self, resource: Resource, body: Json) -> None:
        super()._put(resource, body)
        self.history.clear()
        self._changed(resource)

    def _delete(self, action: Any) -> bool:
        is_done = super()._delete(action)
        self._changed(action.resource)
        return is_done

    def _changed(self, resource: Resource) -> None:
        self._sorted.pop(resource, None)
        for wake in self._listeners.get(resource, ()):
            wake()


class Requests(LiveStore[ProvisioningRequest]):
    """Our ProvisioningRequests, as the gate's process sees them."""

    resource = PROVISIONING_REQUEST
    trouble = ""

    def __init__(self) -> None:
        super().__init__(ProvisioningRequest, {"workload": workload_uid_of})

    def of_workload(self, uid: str) -> list[ProvisioningRequest]:
        return self.by_index("workload", uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mischief:
    """How often an API call of the gate goes wrong, of a thousand."""

    refused: int = 0
    conflicts: int = 0
    """Somebody else changes the object just before."""
    unheard: int = 0
    """It is done, and the answer is lost."""
    deadly: int = 0
    """The process dies before it is sent, or just afterwards."""


class TroubledApi(MemoryApi):
    """The API as the gate reaches it."""

    chance: Random
    mischief: Mischief = Mischief()
    is_down = False
    touch: Callable[[str], None] = staticmethod(lambda _: None)
    watch: Callable[[str, Json], None] = staticmethod(lambda _path, _body: None)
    """Told of every patch before it is carried out."""

    async def get(self, path: str) -> bytes:
        if self.is_down:
            raise KubeError(f"get {path}: nobody answers", reason="Unreachable")
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
        if self._happens(self.mischief.deadly):
            raise Died
        if self._happens(self.mischief.refused):
            raise KubeError(f"{path}: the API server is busy", status=500, reason="InternalError")
        if self._happens(self.mischief.conflicts):
            self.touch(path)

    def _after(self, path: str, answer: bytes) -> bytes:
        if self._happens(self.mischief.deadly):
            raise Died
        if self._happens(self.mischief.unheard):
            raise KubeError(f"{path}: the connection was lost", status=0, reason="Disconnected")
        return answer

    def _happens(self, of_thousand: int) -> bool:
        return bool(of_thousand) and self.chance.randrange(1000) < of_thousand
