"""The free amounts of nodes, seen through the embedded API by the reflectors that follow it."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from builders import GPUS, WorkloadJson
from placement.placement_builders import free_by_node
from small_cluster import NAME, NAMESPACE_NAME, WORKLOAD_NAME, SmallCluster, small_cluster, until

from scaler.kube.objects.core import Pod
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import NODE, POD, WORKLOAD
from scaler.kube.reflector import Reflector
from scaler.placement.capacity import Capacity
from scaler.placement.node_watch import NodeWatch, node_reflector
from scaler.quota.watch import NotSynced
from scaler.targets.cluster_state import WORKLOAD_ANNOTATION, pod_indexes, workload_indexes

GPU = "nvidia.com/gpu"
KEY = f"{NAMESPACE_NAME}/{WORKLOAD_NAME}"
MINUTE = timedelta(minutes=1)


class WatchedNodes:
    """A view of a small cluster, and the copies that feed it."""

    def __init__(self, cluster: SmallCluster, **options: Any) -> None:
        self.cluster = cluster
        self.nodes = node_reflector(cluster.kube)
        self.pods = Reflector(cluster.kube, POD, Pod, indexes=pod_indexes(GPUS))
        self.workloads = Reflector(cluster.kube, WORKLOAD, Workload, indexes=workload_indexes())
        self.view = NodeWatch(self.nodes, self.pods, self.workloads, **({"max_age": MINUTE} | options))

    @property
    def capacity(self) -> Capacity:
        found = self.view.capacity()
        assert isinstance(found, Capacity), found.reason
        return found

    def free(self, resource: str = GPU, *, node: str = "node-a", without: str = "", ended: bool = False) -> int:
        """What is free on the node, were the pods of that Workload gone or were all ended that are about to."""
        capacity = self.capacity.without([without]) if without else self.capacity
        capacity = capacity.once_ended() if ended else capacity
        return capacity.free[capacity.index.position[node]][capacity.index.resource_position[resource]]

    async def becomes(self, gpus: int, **what: Any) -> None:
        """Waits until so many GPUs are free."""
        await until(self._is_current)
        assert self.free(**what) == gpus

    async def _is_current(self) -> bool:
        for copy in (self.nodes, self.pods, self.workloads):
            there = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in await self._all(copy)}
            if there != {each.metadata.name: each.metadata.resource_version for each in copy.items()}:
                return False
        return True

    async def _all(self, copy: Reflector[Any]) -> list[Any]:
        return await self.cluster.all(copy.resource)


@asynccontextmanager
async def seen(cluster: SmallCluster, **options: Any) -> AsyncIterator[WatchedNodes]:
    watched = WatchedNodes(cluster, **options)
    tasks = [asyncio.create_task(copy.run()) for copy in (watched.nodes, watched.pods, watched.workloads)]
    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def cluster(tmp_path):
    async with small_cluster(tmp_path) as started:
        await started.create(NODE, node_json("node-a"))
        yield started


@pytest.fixture
async def watched(cluster):
    async with seen(cluster) as started:
        await until(lambda: isinstance(started.view.capacity(), Capacity))
        yield started


def node_json(name: str, *, gpus: int = 8, ready: bool = True) -> dict[str, Any]:
    amounts = {"cpu": "32", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
    return {
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": str(ready), "reason": "KubeletReady"}],
        },
    }


def container(gpus: int = 0, name: str = "main", *, cpu: str = "", **more: Any) -> dict[str, Any]:
    amounts = {**({GPU: str(gpus)} if gpus else {}), **({"cpu": cpu} if cpu else {})}
    return {"name": name, "image": "train:1", "resources": {"requests": amounts, "limits": amounts}, **more}


def pod_json(
    name: str,
    gpus: int = 1,
    *,
    node: str = "node-a",
    workload: str = "",
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> dict[str, Any]:
    annotations = {WORKLOAD_ANNOTATION: workload} if workload else {}
    return {
        "metadata": {"name": name, "annotations": annotations, "labels": dict(labels or {})},
        "spec": {"containers": [container(gpus)], **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": phase},
    }


# -------------------------------------------------------------------------------------------------------- what is free


async def test_pods_take_from_their_node_and_their_workload_would_give_it_back(cluster, watched):
    await cluster.create(POD, pod_json("worker-0", 2, workload=WORKLOAD_NAME))
    await cluster.create(POD, pod_json("worker-1", 1, workload=WORKLOAD_NAME))
    await cluster.create(POD, pod_json("of-nobody", 1))
    await watched.becomes(8 - 2 - 1 - 1)
    assert watched.free(without=KEY) == 8 - 1


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_json("worker-0", node=""), id="no node was found for it"),
        pytest.param(pod_json("worker-0", phase="Succeeded"), id="it has succeeded"),
        pytest.param(pod_json("worker-0", phase="Failed"), id="it has failed"),
        pytest.param(pod_json("worker-0", node="elsewhere"), id="its node is not there"),
    ],
)
async def test_a_pod_holds_nothing_where(cluster, watched, pod):
    await cluster.create(POD, pod)
    await watched.becomes(8)


async def test_a_terminating_pod_holds_until_it_has_ended(cluster, watched):
    body = pod_json("worker-0", 3)
    body["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    await cluster.create(POD, body)
    await watched.becomes(8 - 3)
    await cluster.delete(POD, "worker-0")
    await watched.becomes(8 - 3)
    assert watched.free(ended=True) == 8
    await cluster.change(POD, "worker-0", {"status": {"phase": "Failed"}}, "status")
    await watched.becomes(8)
    await cluster.change(POD, "worker-0", {"metadata": {"finalizers": None}})
    await watched.becomes(8)


async def test_nodes_come_change_and_go(cluster, watched):
    await cluster.create(POD, pod_json("worker-0", 3, node="node-b"))
    await cluster.create(NODE, node_json("node-b", gpus=4))
    await watched.becomes(4 - 3, node="node-b")
    await cluster.change(NODE, "node-b", {"status": {"allocatable": {GPU: "2"}}}, "status")
    await watched.becomes(2 - 3, node="node-b")
    await cluster.delete(NODE, "node-b")
    await until(lambda: "node-b" not in watched.capacity.index.position)
    assert watched.free() == 8


async def test_nothing_is_put_on_a_node_that_is_cordoned_silent_or_being_deleted(cluster, watched):
    await cluster.create(NODE, node_json("cordoned") | {"spec": {"unschedulable": True}})
    await cluster.create(NODE, node_json("silent", ready=False))
    leaving = node_json("leaving")
    leaving["metadata"]["finalizers"] = ["example.com/drain"]
    await cluster.create(NODE, leaving)
    await cluster.delete(NODE, "leaving")
    await watched.becomes(8)
    assert free_by_node(watched.capacity).keys() == {"node-a"}


async def test_what_changes_nothing_gives_the_very_same_capacity(cluster, watched):
    await cluster.create(POD, pod_json("worker-0"))
    await watched.becomes(8 - 1)
    before = watched.capacity
    await cluster.change(POD, "worker-0", {"status": {"message": "still at it"}}, "status")
    await cluster.change(NODE, "node-a", {"metadata": {"annotations": {"heartbeat": "2"}}})
    await watched.becomes(8 - 1)
    assert watched.capacity is before


# ------------------------------------------------------------------------------------------------------- whose pods


async def test_pods_without_annotation_are_those_of_the_job_that_owns_the_workload(cluster, watched):
    """As where Kueue's gate TopologyAwareScheduling is off. The pods are seen before their Workload."""
    await cluster.run_pods(annotated=False)
    await watched.becomes(8 - 2, without=KEY)
    await cluster.submit()
    await watched.becomes(8, without=KEY)
    await cluster.delete(WORKLOAD, WORKLOAD_NAME)
    await watched.becomes(8 - 2, without=KEY)


async def test_a_workload_that_has_finished_has_no_pods_but_those_that_name_it(cluster, watched):
    await cluster.submit()
    await cluster.run_pods("worker-0", annotated=False)
    await cluster.run_pods("worker-1")
    await watched.becomes(8, without=KEY)
    await cluster.finish()
    await watched.becomes(8 - 1, without=KEY)


async def test_pods_of_a_job_with_two_workloads_are_freed_by_neither(cluster, watched):
    """Nobody is suspended for GPUs that may not become free."""
    await cluster.submit()
    await cluster.submit(WorkloadJson("second"))
    await cluster.run_pods(annotated=False)
    for name in (WORKLOAD_NAME, "second"):
        await watched.becomes(8 - 2, without=f"{NAMESPACE_NAME}/{name}")


async def test_pods_of_another_job_of_that_name_are_not_the_workloads(cluster, watched):
    """A job that was deleted and made anew: the old one's pods still end."""
    await cluster.submit()
    old = pod_json("worker-0", 2)
    old["metadata"]["ownerReferences"] = [
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME, "uid": "another", "controller": True}
    ]
    old["metadata"]["finalizers"] = ["example.com/keep"]
    await cluster.create(POD, old)
    await until(lambda: len(watched.pods) == 1 and len(watched.workloads) == 1)
    assert watched.free(without=KEY) == 8 - 2


# ---------------------------------------------------------------------------------------- why they are not synced


def reason(watched: WatchedNodes) -> str:
    found = watched.view.capacity()
    assert isinstance(found, NotSynced)
    return found.reason


async def test_nothing_is_said_before_everything_is_listed(cluster):
    assert reason(WatchedNodes(cluster)) == "not synced: Nodes (not listed yet), Pods (not listed yet)"


@pytest.mark.parametrize(
    ("status", "part", "words"),
    [
        pytest.param(403, "/nodes", "grant verb 'list' on 'nodes' in API group ''", id="no right to read nodes"),
        pytest.param(404, "/nodes", "Nodes (list /api/v1/nodes", id="an API without nodes"),
        pytest.param(500, "/pods", "Pods (list /api/v1/pods", id="pods cannot be listed"),
    ],
)
async def test_the_reason_is_given_where_they_are_not_synced(cluster, status, part, words):
    with cluster.refusing("GET", part, status=status):
        async with seen(cluster) as unsynced:
            await until(lambda: unsynced.pods.is_synced or unsynced.nodes.is_synced)
            await until(lambda: words in reason(unsynced))


async def test_old_news_are_no_news(cluster):
    async with seen(cluster, max_age=timedelta(0)) as impatient:
        assert impatient.view.age_s == math.inf
        await until(lambda: impatient.nodes.is_synced and impatient.pods.is_synced)
        assert reason(impatient).endswith(" s ago; the limit is 0 s")


async def test_what_cannot_be_read_is_not_guessed(watched):
    """No API server lets such a quantity in; one that did must not end the watch."""
    watched.pods.within("demo").put(
        b'{"metadata": {"namespace": "demo", "name": "odd", "resourceVersion": "1"}, "spec": {"nodeName": "node-a",'
        b'"containers": [{"name": "main", "resources": {"requests": {"cpu": "many"}}}]}}'
    )
    assert reason(watched).startswith("cannot be read: Pod demo/odd: 'many' is not a resource quantity")
    watched.pods.within("demo").remove(b'{"metadata": {"namespace": "demo", "name": "odd"}}')
    assert watched.free() == 8
