"""The contract suite: what the project relies on in a Kubernetes API, as tests over plain HTTP.

By default they run against the embedded API; `pytest tests/contract --kubeconfig FILE` runs the same tests against a
real kube-apiserver (with kube-controller-manager, for garbage collection). Each test works in a namespace of its own;
the custom resources of a run are in an API group with a random suffix, and go when the run ends.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from contract.contract_client import Access, Client
from contract.contract_widgets import DEFINITIONS, Widgets, definition, install
from scaler_sandbox.kubeapi import KubeApi


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> str | None:
    """The kubeconfig of a real cluster; None for the embedded API."""
    path = request.config.getoption("kubeconfig", default=None)
    return str(path) if path else None


@pytest.fixture(scope="session")
def suffix() -> str:
    """What tells the API groups of this run from those of others."""
    return secrets.token_hex(3)


@pytest.fixture(scope="session")
def installed(kubeconfig: str | None) -> Iterator[set[str]]:
    """The names of the definitions that this run created; they are deleted when it ends."""
    names: set[str] = set()
    yield names
    if kubeconfig is not None:
        asyncio.run(_delete_definitions(Access.from_file(kubeconfig), names))


async def _delete_definitions(access: Access, names: set[str]) -> None:
    client = Client(access)
    try:
        for name in names:
            await client.delete(f"{DEFINITIONS}/{name}")
    finally:
        await client.close()


@pytest.fixture
async def seen_by_controllers(kubeconfig: str | None) -> Callable[[], Awaitable[None]]:
    """Gives a real cluster's garbage collector the time to see what was just made; it cannot be asked."""
    return lambda: asyncio.sleep(0 if kubeconfig is None else 1)


@pytest.fixture
async def client(kubeconfig: str | None) -> AsyncIterator[Client]:
    """Requests to the API under test."""
    api = None
    if kubeconfig is None:
        api = KubeApi()
        await api.start()
        access = Access.from_kubeconfig(api.kubeconfig())
    else:
        access = Access.from_file(kubeconfig)
    client = Client(access)
    try:
        yield client
    finally:
        await client.close()
        if api is not None:
            await api.stop()


@pytest.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    """A namespace that only this test uses."""
    name = f"contract-{secrets.token_hex(4)}"
    (await client.post("/api/v1/namespaces", {"metadata": {"name": name}})).ok()
    yield name
    await client.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def service_account(client: Client, namespace: str) -> None:
    """Waits for the namespace's service account; before, no pod can be created there."""
    for _ in range(200):
        if (await client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")).status == 200:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the namespace has no default service account after 10 s")


@pytest.fixture
async def widgets(client: Client, namespace: str, suffix: str, installed: set[str]) -> Widgets:
    """A custom resource with everything in its schema that the tests need."""
    group = f"contract-{suffix}.example.com"
    await install(client, definition(group), installed)
    return Widgets(client, group, namespace)
