import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kube.faulty_api import FaultyApi, write_kubeconfig
from scaler_sandbox.kubeapi import KubeApi
from virtual_clock import VirtualClock, until

from scaler.kube.api_requests import ApiRequest
from scaler.kube.objects.core import Pod
from scaler.kube.objects.resources import POD, Resource
from scaler.kube.reflector import Reflector
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
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def reflecting(api: Any, clock: VirtualClock) -> Any:
    """Starts a reflector on the test's `api`; one of all namespaces is waited for, unless that is said not to be."""

    @asynccontextmanager
    async def start(*namespaces: str, resource: Resource = POD, synced: bool = True, **options: Any) -> Any:
        reflector = Reflector(api, resource, Pod, namespaces=namespaces, clock=clock, **options)
        running = asyncio.create_task(reflector.run())
        try:
            if synced and not namespaces:
                await until(clock, lambda: reflector.is_synced)
            yield reflector
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return start


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
