"""The contract suite: what the project relies on in a Kubernetes API, as tests over plain HTTP.

By default they run against the embedded API; `pytest tests/contract --kubeconfig FILE` runs the same tests against a
real kube-apiserver (with kube-controller-manager, for garbage collection). Each test works in a namespace of its own;
the custom resources of a run are in an API group with a random suffix, and go when the run ends.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
from contract_client import Access, Client, Json
from contract_widgets import Widgets, definition

from scaler.embedded.kubeapi import KubeApi

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> str | None:
    """The kubeconfig of a real cluster; None for the embedded API."""
    return request.config.getoption("kubeconfig", default=None)


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


async def install(client: Client, crd: Json, installed: set[str]) -> None:
    """Create a definition, unless an earlier test of this run did, and wait until it is served."""
    name = crd["metadata"]["name"]
    answer = await client.post(DEFINITIONS, crd)
    if answer.status == 409 and name in installed:
        return
    answer.ok()
    installed.add(name)
    await until_served(client, crd)


async def until_served(client: Client, crd: Json) -> None:
    """Wait until a definition is established and its resource answers lists and watches."""
    spec = crd["spec"]
    paths = [f"/apis/{spec['group']}/{v['name']}/{spec['names']['plural']}" for v in spec["versions"] if v["served"]]
    for _ in range(100):
        found = (await client.get(f"{DEFINITIONS}/{crd['metadata']['name']}")).ok()
        conditions = {c["type"]: c["status"] for c in found.get("status", {}).get("conditions", [])}
        if conditions.get("Established") == "True":
            answers = [await client.get(path) for path in paths]
            if all(answer.status == 200 for answer in answers):
                return
        await asyncio.sleep(0.05)
    pytest.fail(f"{crd['metadata']['name']} is not served after 5 s")
