from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from crooked_api import CrookedApi, write_kubeconfig

from scaler.embedded.kubeapi import KubeApi
from scaler.kube.calls import Call
from scaler.kube.transport import KubeTransport


@pytest.fixture
async def crooked() -> AsyncIterator[CrookedApi]:
    async with CrookedApi().serving() as api:
        yield api


@pytest.fixture
def calls() -> list[Call]:
    """What the transport has reported to its observer."""
    return []


@pytest.fixture
async def transport(crooked: CrookedApi, tmp_path: Path, calls: list[Call]) -> AsyncIterator[KubeTransport]:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", crooked.url)
    async with await KubeTransport.connect(kubeconfig, call_seconds=30, observe=calls.append) as connected:
        yield connected


@pytest.fixture
async def kube_api() -> AsyncIterator[KubeApi]:
    api = KubeApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
async def connect(kube_api: KubeApi, tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[KubeTransport]]]:
    """Each call is another client of `kube_api`."""
    kube_api.write_kubeconfig(tmp_path / "kubeapi.kubeconfig")
    async with AsyncExitStack() as exits:

        async def another() -> KubeTransport:
            client = await KubeTransport.connect(tmp_path / "kubeapi.kubeconfig", call_seconds=30)
            return await exits.enter_async_context(client)

        yield another


@pytest.fixture
async def client(connect: Callable[[], Awaitable[KubeTransport]]) -> KubeTransport:
    return await connect()
