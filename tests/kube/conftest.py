from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from kube.faulty_api import FaultyApi, write_kubeconfig
from scaler_sandbox.kubeapi import KubeApi

from scaler.kube.api_requests import ApiRequest
from scaler.kube.transport import KubeTransport


@pytest.fixture
async def faulty() -> AsyncIterator[FaultyApi]:
    async with FaultyApi().serving() as api:
        yield api


@pytest.fixture
def calls() -> list[ApiRequest]:
    """What the transport has reported to its observer."""
    return []


@pytest.fixture
async def transport(faulty: FaultyApi, tmp_path: Path, calls: list[ApiRequest]) -> AsyncIterator[KubeTransport]:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", faulty.url)
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
