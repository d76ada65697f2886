"""Kueue's quota as it is seen through the watches of an API server, or the reason why it is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import NOON, WorkloadJson, at
from scaler_sandbox import crds
from scaler_sandbox.kubeapi import KubeApi
from small_cluster import embedded_api, until

from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)
from scaler.kube.reflector import Reflecting, Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import Backoff, WatchTiming
from scaler.quota.model import FlavorResource
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced, QuotaReflectors, QuotaWatch

GPU = "nvidia.com/gpu"
TIMING = WatchTiming(watch=(60, 60), lasting=0.5, absent=0.1, backoff=Backoff(base=0.02, cap=0.1))
COHORT_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "cohorts.kueue.x-k8s.io"},
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Cluster",
        "names": {"plural": "cohorts", "singular": "cohort", "kind": "Cohort", "listKind": "CohortList"},
        "versions": [
            {
                "name": "v1beta2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@dataclass
class Cluster:
    """An API server, a client of it, and the view that is looked at."""

    api: KubeApi
    client: KubeTransport
    now: datetime = NOON
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def view(self, **options: Any) -> QuotaWatch:
        reflectors = QuotaReflectors(self.client, timing=TIMING)
        workloads = Reflector(self.client, WORKLOAD, Workload, timing=TIMING)
        given: dict[str, Any] = {"clock": lambda: self.now, "max_age": timedelta(minutes=3)} | options
        view = QuotaWatch(reflectors, workloads, **given)
        self.tasks += [asyncio.create_task(each.run()) for each in (*reflectors.all, workloads)]
        return view

    def install(self, *definitions: dict[str, Any]) -> None:
        self.api.install_crds([*crds.load(), *definitions])

    async def create(self, resource: Resource, name: str, namespace: str = "", **fields: Any) -> None:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": namespace},
            **fields,
        }
        await self.client.create(resource.path(namespace), body)

    async def fill(self) -> None:
        """A queue of 4 GPUs in cohort `team`, with a LocalQueue in namespace `demo`."""
        quota = {"name": GPU, "nominalQuota": 4}
        group = {"coveredResources": [GPU], "flavors": [{"name": "a100", "resources": [quota]}]}
        await self.create(NAMESPACE, "demo", metadata={"name": "demo", "labels": {"team": "red"}})
        await self.create(RESOURCE_FLAVOR, "a100", spec={})
        spec = {"resourceGroups": [group], "namespaceSelector": {}, "cohortName": "team"}
        await self.create(CLUSTER_QUEUE, "cq", spec=spec)
        await self.create(LOCAL_QUEUE, "user-queue", "demo", spec={"clusterQueue": "cq"})

    async def submit(self, name: str, **status: Any) -> None:
        workload = WorkloadJson(name)
        for not_ours in ("uid", "resourceVersion", "creationTimestamp", "ownerReferences"):
            del workload.json["metadata"][not_ours]
        await self.client.create(WORKLOAD.path("demo"), workload.json)
        if status:
            await self.client.patch(WORKLOAD.path("demo", name, "status"), {"status": status})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with embedded_api(tmp_path) as (api, client):
        found = Cluster(api, client)
        yield found
        for task in found.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def seen(view: QuotaWatch) -> Snapshot:
    await until(lambda: isinstance(view.look(), Snapshot))
    found = view.look()
    assert isinstance(found, Snapshot)
    return found


def reason(view: QuotaWatch) -> str:
    found = view.look()
    return found.reason if isinstance(found, NotSynced) else ""


def pending(snapshot: Snapshot) -> list[str]:
    tree = snapshot.tree_of("cq")
    return sorted(each.name for each in snapshot.pending_in(tree).get("cq", ())) if tree else []


def used(snapshot: Snapshot) -> int:
    tree = snapshot.tree_of("cq")
    return tree.queues["cq"].usage.get(FlavorResource("a100", GPU), 0) if tree else 0


RESERVED = {
    "type": "QuotaReserved",
    "status": "True",
    "reason": "QuotaReserved",
    "message": "",
    "lastTransitionTime": "2026-12-01T12:00:00Z",
}
ASSIGNED = {"name": "main", "count": 2, "flavors": {GPU: "a100"}, "resourceUsage": {GPU: "2"}}
HELD: dict[str, Any] = {
    "admission": {"clusterQueue": "cq", "podSetAssignments": [ASSIGNED]},
    "conditions": [RESERVED],
}


async def test_what_is_there_is_seen(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    await cluster.fill()
    await cluster.create(COHORT, "team", spec={"parentName": "root"})
    await cluster.submit("waits")
    await cluster.submit("runs", **HELD)
    snapshot = await seen(cluster.view(fair_sharing=True))
    tree = snapshot.tree_of("cq")
    assert tree is not None
    assert (tree.root.name, pending(snapshot), used(snapshot)) == ("root", ["waits"], 2)
    assert (snapshot.namespaces["demo"]["team"], list(snapshot.flavors)) == ("red", ["a100"])
    assert snapshot.fair_sharing


async def test_what_changes_is_seen_soon(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    await cluster.fill()
    view = cluster.view()
    snapshot = await seen(view)
    await cluster.submit("one", **HELD)
    await until(lambda: used(snapshot) == 2)
    await cluster.client.patch(WORKLOAD.path("demo", "one"), {"spec": {"active": False}})
    await until(lambda: used(snapshot) == 0)
    assert pending(snapshot) == []
    await cluster.client.delete(WORKLOAD.path("demo", "one"))
    await cluster.submit("two")
    await until(lambda: pending(snapshot) == ["two"])
    await cluster.client.delete(RESOURCE_FLAVOR.path(name="a100"))
    await until(lambda: not (tree := snapshot.tree_of("cq")) or not tree.scheduling)
    assert view.look() is snapshot


async def test_a_backoff_that_ends_is_seen_without_any_change(cluster: Cluster) -> None:
    cluster.install()
    await cluster.fill()
    await cluster.submit("waits", requeueState={"requeueAt": at(60).isoformat().replace("+00:00", "Z")})
    view = cluster.view()
    snapshot = await seen(view)
    assert [tree.root.name for tree in snapshot.trees] == ["team"], "without the kind Cohort there are only names"
    assert not snapshot.workloads["demo/waits"].may_queue
    cluster.now = at(60)
    view.look()
    assert snapshot.workloads["demo/waits"].may_queue


async def test_before_everything_is_listed_nothing_is_seen(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    reflectors = QuotaReflectors(cluster.client, timing=TIMING)
    workloads = Reflector(cluster.client, WORKLOAD, Workload, timing=TIMING)
    view = QuotaWatch(reflectors, workloads, clock=lambda: NOON, max_age=timedelta(minutes=3))
    cluster.tasks += [asyncio.create_task(each.run()) for each in reflectors.all]
    await until(lambda: isinstance(reflectors.cluster_queues.state, Reflecting))
    await until(lambda: reason(view) == "not synced: Workloads (not listed yet)")
    assert view.age_s == float("inf")
    cluster.tasks.append(asyncio.create_task(workloads.run()))
    await seen(view)
    assert view.age_s < 60


async def test_without_kueue_there_is_nothing_to_see(cluster: Cluster) -> None:
    view = cluster.view()
    wanted = "Kueue (kueue.x-k8s.io/v1beta2) is not installed: the API does not serve ClusterQueues, LocalQueues"
    await until(lambda: reason(view).startswith(wanted))
    cluster.install(COHORT_CRD)
    await cluster.fill()
    await seen(view)


async def test_an_api_that_is_gone_is_not_taken_for_one_that_stands_still(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    await cluster.fill()
    view = cluster.view()
    await seen(view)
    await cluster.api.stop()
    await until(lambda: reason(view).startswith("not synced: "))
    await cluster.api.start()
    await seen(view)


async def test_what_may_not_be_read_is_named(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    cluster.api.faults.fail_next(1000, status=403, method="GET", path_part="clusterqueues")
    view = cluster.view()
    await until(lambda: "ClusterQueues (" in reason(view) and "Cohorts" not in reason(view))


async def test_a_silence_that_lasts_too_long_blinds(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    await cluster.fill()
    view = cluster.view(max_age=timedelta(0))
    await until(lambda: reason(view) == "last response of the API server 0 s ago; the limit is 0 s")


async def test_one_namespace_is_not_enough(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    view = cluster.view(confined_to=["demo"])
    assert reason(view).startswith("only namespace demo is watched")
    assert reason(cluster.view(confined_to=["a", "b"])).startswith("only namespaces a, b are watched, but quota is")


async def test_a_queue_that_cannot_be_decoded_blinds(cluster: Cluster) -> None:
    cluster.install(COHORT_CRD)
    await cluster.fill()
    view = cluster.view()
    await seen(view)
    await cluster.create(COHORT, "odd", spec={"resourceGroups": "none"})
    await until(lambda: reason(view).startswith("cannot be read: Cohorts odd: "))
    await cluster.client.delete(COHORT.path(name="odd"))
    await seen(view)
