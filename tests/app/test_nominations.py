"""What every replica knows of its nominations: from the ClusterOffers of the API, or why it knows none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from scaler_sandbox.packaged import crds
from small_cluster import SmallCluster, embedded_api, small_cluster, until

from scaler.admission.remote_copies import NominatedCopies
from scaler.app.reflectors import ClusterReflectors
from scaler.kube.objects.resources import CLUSTER_OFFER
from scaler.kube.transport import KubeTransport

QUIET = timedelta(minutes=3)
MINE = NominatedCopies(reclaim=frozenset({("team", "gang")}))


@asynccontextmanager
async def watched(kube: KubeTransport, *, is_confined: bool = False) -> AsyncIterator[ClusterReflectors]:
    shared = ClusterReflectors(kube, is_confined=is_confined)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in shared.tasks()]
        yield shared
        for each in running:
            each.cancel()


async def offers(cluster: SmallCluster, *, reclaim: bool = True) -> None:
    workload = {"namespace": "team", "name": "gang", "uid": "of-the-hub", "reclaim": reclaim}
    spec = {"workloads": [workload]}
    await cluster.create(CLUSTER_OFFER, {"metadata": {"name": "hub"}, "spec": spec})


async def test_nominations_come_and_go_with_the_offer(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster, watched(cluster.kube) as shared:
        await until(lambda: shared.nominations(QUIET, always=False) == NominatedCopies())
        await offers(cluster)
        await until(lambda: shared.nominations(QUIET, always=False) == MINE)
        await cluster.kube.delete(CLUSTER_OFFER.path("", "hub"))
        await until(lambda: shared.nominations(QUIET, always=False) == NominatedCopies())
        assert shared.nominations(QUIET, always=True).always


async def test_without_the_kind_nothing_is_nominated_and_that_is_known(tmp_path: Path) -> None:
    async with embedded_api(tmp_path) as (_, kube), watched(kube) as shared:
        await until(lambda: shared.offers.is_synced)
        assert shared.nominations(QUIET, always=False) == NominatedCopies()


async def test_where_only_some_namespaces_are_watched_nothing_is_nominated(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster, watched(cluster.kube, is_confined=True) as shared:
        await offers(cluster)
        assert shared.nominations(QUIET, always=True) == NominatedCopies()


async def test_before_offers_are_listed_after_they_are_refused_and_when_nothing_is_heard_they_are_unknown(
    tmp_path: Path,
) -> None:
    async with small_cluster(tmp_path) as cluster:
        await offers(cluster)
        idle = ClusterReflectors(cluster.kube, is_confined=False)
        assert "not synced: ClusterOffers" in idle.nominations(QUIET, always=False).unknown
        with cluster.refusing("GET", "/clusteroffers", status=403):
            async with watched(cluster.kube) as shared:
                await until(lambda: "403" in shared.nominations(QUIET, always=False).unknown)
        async with watched(cluster.kube) as shared:
            await until(lambda: shared.nominations(QUIET, always=False) == MINE)
            unheard = shared.nominations(timedelta(seconds=-1), always=False)
            assert unheard.unknown.startswith("last response of the API server")


async def test_an_offer_that_cannot_be_read_may_say_anything(tmp_path: Path) -> None:
    [definition] = [each for each in crds() if each["spec"]["names"]["kind"] == CLUSTER_OFFER.kind]
    for version in definition["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    async with embedded_api(tmp_path, definition) as (api, kube), watched(kube) as shared:
        await offers(SmallCluster(api, kube, tmp_path))
        await until(lambda: shared.nominations(QUIET, always=False) == MINE)
        kind = {"apiVersion": CLUSTER_OFFER.api_version, "kind": CLUSTER_OFFER.kind}
        newer = {**kind, "metadata": {"name": "newer"}, "spec": {"workloads": [{"namespace": ["team"]}]}}
        await kube.create(CLUSTER_OFFER.path(), newer)
        await until(lambda: shared.nominations(QUIET, always=False).unknown.startswith("newer: "))
