"""One Lease in memory, and clients of it whose calls can fail, hang or lose their answers, in virtual time."""

import json
from typing import Any

from virtual_clock import VirtualClock

from scaler.errors import KubeError

CALL_SECONDS = 10.0


class LeaseApi:
    """What an API server does with the Lease `it`: it hands it out, and refuses writes to what has changed."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.lease: dict[str, Any] = {}
        self._version = 0

    @property
    def spec(self) -> dict[str, Any]:
        return self.lease.get("spec", {})

    def store(self, lease: dict[str, Any]) -> None:
        self._version += 1
        metadata = {"name": "it", "namespace": "default", **lease.get("metadata", {})}
        self.lease = {**lease, "metadata": {**metadata, "resourceVersion": str(self._version)}}

    def change(self, **spec: Any) -> None:
        """Writes to the Lease as another client."""
        self.store({**self.lease, "spec": {**self.spec, **spec}})

    def delete(self) -> None:
        self.lease = {}

    def client(self) -> "LeaseClient":
        return LeaseClient(self)


class LeaseClient:
    """As much of `KubeTransport` as an elector calls."""

    def __init__(self, api: LeaseApi) -> None:
        self._api = api
        self.state = "connected"
        """Or `hanging`, or `cut`."""
        self.loses_answers_of_writes = False
        self.fails_with: list[int] = []
        """HTTP statuses of the next calls."""
        self.refuses_writes_with = 0
        """HTTP status of all writes; 0: none is refused."""

    async def get(self, _path: str, *, within: float = CALL_SECONDS, attempts: int = 1) -> bytes:
        await self._reach(within)
        if not self._api.lease:
            raise KubeError("no such Lease", status=404, reason="NotFound")
        return self._answer()

    async def create(self, _path: str, body: dict[str, Any], *, within: float = CALL_SECONDS) -> bytes:
        await self._reach(within, writes=True)
        self._refuse(bool(self._api.lease))
        return await self._written(body, within)

    async def replace(self, _path: str, body: dict[str, Any], *, within: float = CALL_SECONDS) -> bytes:
        await self._reach(within, writes=True)
        if not self._api.lease:
            raise KubeError("no such Lease", status=404, reason="NotFound")
        self._refuse(body["metadata"]["resourceVersion"] != self._api.lease.get("metadata", {}).get("resourceVersion"))
        return await self._written(body, within)

    async def _reach(self, within: float, *, writes: bool = False) -> None:
        await self._api.clock.sleep(0)
        if self.state == "hanging":
            await self._time_out(within)
        if self.state == "cut":
            raise KubeError("connection refused", status=0, reason="Unreachable")
        if writes and self.refuses_writes_with:
            raise KubeError(f"HTTP status {self.refuses_writes_with}", status=self.refuses_writes_with)
        if self.fails_with:
            status = self.fails_with.pop(0)
            raise KubeError(f"HTTP status {status}", status=status)

    async def _time_out(self, within: float) -> None:
        await self._api.clock.sleep(within)
        raise KubeError("no answer in time", status=0, reason="Timeout")

    def _refuse(self, is_stale: bool) -> None:
        if is_stale:
            raise KubeError("the object has been modified", status=409, reason="Conflict")

    async def _written(self, body: dict[str, Any], within: float) -> bytes:
        self._api.store(body)
        answer = self._answer()
        if self.loses_answers_of_writes:
            await self._time_out(within)
        return answer

    def _answer(self) -> bytes:
        return json.dumps(self._api.lease).encode()
