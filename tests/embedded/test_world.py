"""The simulated cluster plays the story of the demo by the rules of the real programs that it stands in for."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from scaler.embedded.conditions import has, reason_of
from scaler.embedded.config import WorldConfig
from scaler.embedded.kinds import RAY_CLUSTER, WORKLOAD, Json
from scaler.embedded.world import World

QUEUES = """
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default-flavor}
spec: {}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cluster-queue}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors:
        - name: default-flavor
          resources: [{name: nvidia.com/gpu, nominalQuota: 2}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: user-queue, namespace: demo}
spec: {clusterQueue: cluster-queue}
"""


def ray_cluster(name: str) -> Json:
    container = {"name": "ray", "image": "ray:2", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": "demo", "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [{"groupName": "workers", "replicas": 1, "template": template}],
        },
    }


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(WorldConfig.fast()) as world:
        await world.apply(QUEUES)
        yield world


def workload(world: World, name: str) -> Json:
    found = world.workload_of(RAY_CLUSTER, "demo", name)
    assert found is not None
    return found


def is_admitted(world: World, name: str) -> bool:
    found = world.workload_of(RAY_CLUSTER, "demo", name)
    return found is not None and has(found, "Admitted")


def is_ready(world: World, name: str) -> bool:
    found = world.find(RAY_CLUSTER, "demo", name)
    return found is not None and (found.get("status") or {}).get("state") == "ready"


async def set_active(world: World, name: str, active: bool) -> None:
    found = workload(world, name)
    await world.patch(WORKLOAD, "demo", found["metadata"]["name"], {"spec": {"active": active}})


async def two_gangs(world: World) -> None:
    """The first runs, the second waits."""
    await world.apply(ray_cluster("first"))
    await world.wait_for(lambda: is_ready(world, "first"), "the first gang to run")
    await world.apply(ray_cluster("second"))
    await world.wait_for(lambda: world.workload_of(RAY_CLUSTER, "demo", "second"), "the second Workload")
    await world.wait_for(
        lambda: reason_of(workload(world, "second"), "QuotaReserved") == "WaitingForQuota", "the second gang to wait"
    )


async def test_a_deactivated_gang_makes_way_and_comes_back(world: World) -> None:
    await two_gangs(world)
    started = datetime.now(UTC)
    await set_active(world, "first", False)
    await world.wait_for(lambda: is_admitted(world, "second"), "the second gang's admission")
    waited = (datetime.now(UTC) - started).total_seconds()
    # Kueue looks at waiting gangs once a second after quota was freed.
    assert 0.9 < waited < 2.0
    await world.wait_for(lambda: is_ready(world, "second"), "the second gang to run")
    await world.wait_for(lambda: has(workload(world, "first"), "QuotaReserved", "False", "Deactivated"))
    await set_active(world, "first", True)
    await world.wait_for(lambda: has(workload(world, "first"), "QuotaReserved", "False", "WaitingForQuota"))
    await world.delete(RAY_CLUSTER, "demo", "second")
    await world.wait_for(lambda: is_ready(world, "first"), "the first gang to run again")
