"""The connections of a hub to its workers: by which kubeconfig, what is read and written, and what a bad one delays."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from scaler_sandbox.kubeapi import KubeApi
from small_cluster import definitions, embedded_api, until

from scaler.errors import ConfigurationError, KubeError
from scaler.kube.objects.core import decode
from scaler.kube.objects.multikueue import ClusterOffer, MultiKueueCluster, OfferedWorkload
from scaler.kube.objects.resources import CLUSTER_OFFER, NAMESPACE, SECRET
from scaler.kube.transport import KubeTransport
from scaler.multikueue.hub.worker_connections import WorkerConnection, WorkerConnections, kubeconfig_of

OFFERS = [each for each in msgspec.json.decode(definitions()) if each["spec"]["names"]["kind"] == CLUSTER_OFFER.kind]
GANG = OfferedWorkload(namespace="team", name="gang", uid="u", reclaim=True)


def multikueue_cluster(name: str, **source: Any) -> MultiKueueCluster:
    body = {"metadata": {"name": name}, "spec": {"clusterSource": source}}
    return decode(MultiKueueCluster, msgspec.json.encode(body))


def by_secret(name: str) -> MultiKueueCluster:
    return multikueue_cluster(name, kubeConfig={"location": f"multikueue-{name}", "locationType": "Secret"})


class Clusters:
    """The MultiKueueClusters of the hub, which do not change."""

    def __init__(self, *names: str) -> None:
        self._found = {name: by_secret(name) for name in names}

    def subscribe(self, _: object) -> None:
        pass

    async def wait_synced(self) -> None:
        pass

    def get(self, _: str, name: str) -> MultiKueueCluster | None:
        return self._found.get(name)

    def items(self) -> list[MultiKueueCluster]:
        return [*self._found.values()]


@asynccontextmanager
async def connected(
    folder: Path, **workers: list[Any]
) -> AsyncIterator[tuple[WorkerConnections, dict[str, tuple[KubeApi, KubeTransport]]]]:
    """A hub with Secrets of these workers, which have such CustomResourceDefinitions."""
    async with embedded_api(folder) as (_, hub):
        await hub.create(NAMESPACE.path(), {"metadata": {"name": "kueue-system"}})
        async with AsyncExitStack() as stack:
            found = {}
            for name, crds in workers.items():
                (folder / name).mkdir()
                found[name] = await stack.enter_async_context(embedded_api(folder / name, *crds))
                content = base64.b64encode(yaml.safe_dump(found[name][0].kubeconfig()).encode()).decode()
                secret = {"metadata": {"name": f"multikueue-{name}"}, "data": {"kubeconfig": content}}
                await hub.create(SECRET.path("kueue-system"), secret)
            connections = WorkerConnections(
                api=hub,
                clusters=Clusters(*workers),  # type: ignore[arg-type]
                namespace="kueue-system",
                offer_name="hub",
                is_leader=lambda: True,
            )
            running = asyncio.create_task(connections.run())
            try:
                yield connections, found
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def there(transport: KubeTransport) -> tuple[OfferedWorkload, ...]:
    """What the spec on the worker says by now."""
    try:
        return decode(ClusterOffer, await transport.get(CLUSTER_OFFER.path(name="hub"))).spec.workloads
    except KubeError:
        return ()


async def written(connection: WorkerConnection, transport: KubeTransport, *wanted: OfferedWorkload) -> None:
    connection.want(wanted)

    async def is_so() -> bool:
        return connection.offer.is_written and await there(transport) == wanted

    await until(is_so)


async def test_what_is_wanted_is_created_and_changed_there_and_what_is_there_is_known(tmp_path: Path) -> None:
    async with connected(tmp_path, w1=OFFERS) as (connections, workers):
        await until(lambda: connections.get("w1") and connections.get("w1").is_settled)
        w1, transport = connections.get("w1"), workers["w1"][1]
        assert w1 is not None
        await written(w1, transport, GANG)
        assert w1.offer.may_reclaim() == {"u"}
        await written(w1, transport)
        assert w1.offer.may_reclaim() == set()
        await transport.patch(
            CLUSTER_OFFER.path(name="hub"), {"spec": {"workloads": []}, "metadata": {"labels": {"a": "b"}}}
        )
        await until(lambda: w1.offer.offer.metadata.labels == {"a": "b"})


async def test_a_worker_without_the_definition_says_so_and_one_that_hangs_delays_no_other(tmp_path: Path) -> None:
    async with connected(tmp_path, bare=[], hangs=OFFERS, fine=OFFERS) as (connections, workers):
        await until(lambda: len(connections.connections) == 3)
        await until(lambda: all(each.is_settled for each in connections.connections.values()))
        bare, hangs, fine = (connections.connections[name] for name in ("bare", "hangs", "fine"))
        assert bare.problem == "it has no ClusterOffers: idle-gpu-scaler is not installed there"
        workers["hangs"][0].faults.latency_seconds = 60
        hangs.read_anew()
        hangs.want([GANG])
        await written(fine, workers["fine"][1], GANG)
        assert not hangs.offer.is_written


async def test_one_that_begins_to_lead_reads_what_the_one_before_wrote_last(tmp_path: Path) -> None:
    """A watch may be late, and two workers would have `reclaim` for the same gang."""
    async with connected(tmp_path, w1=OFFERS) as (connections, _):
        await until(lambda: connections.get("w1") and connections.get("w1").is_settled)
        w1 = connections.get("w1")
        assert w1 is not None
        w1.read_anew()
        assert not w1.is_settled
        await until(lambda: w1.is_settled)


class OneSecret:
    """An API with a Secret of this content."""

    def __init__(self, **data: str) -> None:
        self._body = msgspec.json.encode({"data": data})

    async def get(self, _: str) -> bytes:
        return self._body


BY_PATH = multikueue_cluster("w1", kubeConfig={"location": "/mnt/w1", "locationType": "Path"})
BY_PROFILE = multikueue_cluster("w1", clusterProfileRef={"name": "w1"})


@pytest.mark.parametrize(
    ("cluster", "secret", "why"),
    [
        (BY_PROFILE, {}, "it is reached by a ClusterProfile"),
        (BY_PATH, {}, "its kubeconfig /mnt/w1 is a file of Kueue's; keep it in a Secret"),
        (by_secret("w1"), {"other": "eA=="}, "Secret kueue-system/multikueue-w1 has no key kubeconfig"),
        (by_secret("w1"), {"kubeconfig": "!"}, "Secret kueue-system/multikueue-w1 cannot be read"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_had_says_why(
    cluster: MultiKueueCluster, secret: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        await kubeconfig_of(cluster, OneSecret(**secret), "kueue-system")
