"""What is decided again before the next evaluation, by what is heard from the API."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from builders import GPUS
from small_cluster import NAME, NAMESPACE_NAME, WORKLOAD_NAME, SmallCluster, small_cluster, until

from scaler.app.reflectors import ReEvaluation, Reflectors
from scaler.decision.decision_cache import Key
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kube.transport import KubeTransport

OURS: Key = (NAMESPACE_NAME, NAME)


class FollowedCluster:
    """Copies of a small cluster in which a gang is scaled, and which ScaledObjects they have touched."""

    def __init__(self, cluster: SmallCluster, reflectors: Reflectors) -> None:
        self.cluster = cluster
        self.reflectors = reflectors
        self.touched: list[Key] = []
        ReEvaluation(reflectors=reflectors, cluster=reflectors.cluster(GPUS), touch=self.touched.append).subscribe()

    async def is_current(self) -> bool:
        for copy in self.reflectors.all:
            there = {each["metadata"]["resourceVersion"] for each in await self.cluster.all(copy.resource)}
            if there != {each.metadata.resource_version for each in copy.items()}:
                return False
        return True


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[FollowedCluster]:
    async with small_cluster(tmp_path) as cluster, await KubeTransport.connect(cluster.kubeconfig) as transport:
        await cluster.wants(1)
        await cluster.submit()
        await cluster.admit()
        await cluster.is_scaled_by({})
        found = FollowedCluster(cluster, Reflectors(transport, GPUS, ()))
        tasks = [asyncio.create_task(work) for work in found.reflectors.tasks()]
        try:
            await found.reflectors.wait_synced()
            await until(found.is_current)
            found.touched.clear()
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def patched(resource: object, name: str, patch: dict[str, object], subresource: str = "") -> Callable[..., Awaitable]:
    return lambda cluster: cluster.change(resource, name, patch, subresource)


GRANT = {
    "plan": "p",
    "workload": "demo/gang",
    "workloadUID": "u",
    "victims": [f"{NAMESPACE_NAME}/{NAME}"],
    "grantedAt": "2026-12-01T12:00:00Z",
    "expiresAt": "2026-12-01T12:05:00Z",
}
ASKED = {
    "a user scales it by hand": lambda cluster: cluster.scale(0),
    "its ScaledObject is annotated": patched(SCALED_OBJECT, NAME, {"metadata": {"annotations": {"a": "b"}}}),
    "its ScaledObject's trigger is another one": patched(SCALED_OBJECT, NAME, {"spec": {"cooldownPeriod": 7}}),
    "a plan has come that may take it": patched(SCALABLE_WORKLOAD, NAME, {"status": {"grant": GRANT}}, "status"),
    "its Workload is inactive": patched(WORKLOAD, WORKLOAD_NAME, {"spec": {"active": False}}),
}
OBSERVED = {
    "its status": patched(SCALABLE_WORKLOAD, NAME, {"status": {"phase": "Running"}}, "status"),
    "its ScaledObject's status": patched(SCALED_OBJECT, NAME, {"status": {"hpaName": "x"}}, "status"),
    "its Workload's status": patched(WORKLOAD, WORKLOAD_NAME, {"status": {"requeueState": {"count": 1}}}, "status"),
}


@pytest.mark.parametrize("what", ASKED)
async def test_what_is_asked_for_anew_is_decided_again(followed: FollowedCluster, what: str) -> None:
    await ASKED[what](followed.cluster)
    await until(lambda: OURS in followed.touched)
    assert set(followed.touched) == {OURS}


@pytest.mark.parametrize("what", OBSERVED)
async def test_what_is_only_observed_waits_for_the_next_evaluation(followed: FollowedCluster, what: str) -> None:
    await OBSERVED[what](followed.cluster)
    await until(followed.is_current)
    assert followed.touched == []
