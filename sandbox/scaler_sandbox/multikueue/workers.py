"""Which workers can be reached, and by what? Connections to the clusters of MultiKueueClusters.

In memory the clients are given. On embedded APIs a connection is made by the kubeconfig in the Secret of the
MultiKueueCluster, with the permissions of its user, and made anew when that Secret changes.
"""

import asyncio
import base64
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from scaler.errors import ConfigurationError, KubeError
from scaler.kube.objects.resources import JOB, SECRET, WORKLOAD
from scaler.kube.transport import KubeTransport
from scaler_sandbox.client import Client
from scaler_sandbox.kinds import Json

_log = structlog.get_logger(__name__)

REMOTE = (WORKLOAD, JOB)
"""What is followed on a worker."""


class Workers(Protocol):
    """The workers of a hub, by the name of their MultiKueueCluster."""

    def follow(self, clusters: Sequence[Json]) -> None:
        """Connects to these MultiKueueClusters, and to no others."""

    def client(self, name: str) -> Client | None:
        """The worker's objects; None where it is not connected."""

    def trouble(self, name: str) -> tuple[str, str]:
        """Reason and message of what keeps it from being connected."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Calls `wake` at every change on a worker, and when it is connected or lost."""


class GivenWorkers:
    """Clients that are there from the beginning. A test cuts a connection by `lost`."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients
        self.lost: dict[str, str] = {}
        """Why a worker cannot be reached, by name."""

    def follow(self, clusters: Sequence[Json]) -> None:
        """There is nothing to do: they are connected."""

    def client(self, name: str) -> Client | None:
        return None if name in self.lost else self._clients.get(name)

    def trouble(self, name: str) -> tuple[str, str]:
        return "ClientConnectionFailed", self.lost.get(name, "no such cluster")

    def listen(self, wake: Callable[[], None]) -> None:
        for client in self._clients.values():
            client.listen(REMOTE, wake)


class KubeconfigWorkers:
    """Connections by kubeconfig Secrets in Kueue's namespace. Use as an async context manager."""

    def __init__(self, hub: KubeTransport, namespace: str) -> None:
        self._hub = hub
        self._namespace = namespace
        self._connections: dict[str, _Connection] = {}
        self._wake: Callable[[], None] = lambda: None

    async def __aenter__(self) -> "KubeconfigWorkers":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(each.close() for each in self._connections.values()))

    def follow(self, clusters: Sequence[Json]) -> None:
        wanted = {each["metadata"]["name"]: each for each in clusters}
        for name in self._connections.keys() - wanted.keys():
            self._connections.pop(name).end()
        for name, cluster in wanted.items():
            secret = (cluster["spec"]["clusterSource"].get("kubeConfig") or {}).get("location", "")
            known = self._connections.get(name)
            if known is None or known.secret != secret:
                if known is not None:
                    known.end()
                path = SECRET.path(self._namespace, secret) if secret else ""
                self._connections[name] = _Connection(self._hub, secret, path, self._news)

    def _news(self) -> None:
        self._wake()

    def client(self, name: str) -> Client | None:
        connection = self._connections.get(name)
        return connection.client if connection is not None and not connection.trouble[0] else None

    def trouble(self, name: str) -> tuple[str, str]:
        connection = self._connections.get(name)
        return connection.trouble if connection is not None else ("BadClusterProfile", "no kubeconfig")

    def listen(self, wake: Callable[[], None]) -> None:
        self._wake = wake


_LOOK_SECONDS = 0.5
"""The time between two looks at the Secret and at the connection."""
_CONNECTS = "ClientConnectionFailed", "not connected yet"


class _Connection:
    """A connection to one worker, renewed with its Secret."""

    def __init__(self, hub: KubeTransport, secret: str, path: str, wake: Callable[[], None]) -> None:
        self.secret = secret
        self.client: Client | None = None
        self.trouble: tuple[str, str] = _CONNECTS
        self._hub, self._path, self._wake = hub, path, wake
        self._opened = ""
        self._exits = AsyncExitStack()
        self._task = asyncio.create_task(self._run(), name=f"worker-{secret}")

    def end(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        self.end()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                await self._look()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await self._exits.aclose()

    async def _look(self) -> None:
        before = self.trouble
        try:
            kubeconfig = await self._kubeconfig()
            if kubeconfig != self._opened:
                await self._open(kubeconfig)
            lost = self.client.trouble if self.client is not None else ""
            self.trouble = ("ClientConnectionFailed", lost) if lost else ("", "")
        except (KubeError, ConfigurationError, ValueError) as error:
            self.trouble = "BadKubeConfig", f"load client config failed: {error}"
        if self.trouble != before:
            self._wake()

    async def _kubeconfig(self) -> str:
        secret = msgspec.json.decode(await self._hub.get(self._path))
        return base64.b64decode((secret.get("data") or {}).get("kubeconfig", "")).decode()

    async def _open(self, kubeconfig: str) -> None:
        self.client, self._opened = None, ""
        await self._exits.aclose()
        folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-worker-")))
        (folder / "kubeconfig").write_text(kubeconfig)
        transport = await KubeTransport.connect(folder / "kubeconfig")
        await self._exits.enter_async_context(transport)
        self.client = await self._exits.enter_async_context(Client(transport, REMOTE))
        self.client.listen(REMOTE, self._wake)
        self._opened = kubeconfig
