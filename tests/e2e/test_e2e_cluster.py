"""The end-to-end suite refuses clusters that it cannot run in, and removes its objects; in the embedded cluster."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from e2e.e2e_cluster import (
    RealCluster,
    UnsuitableClusterError,
    check_hub,
    delete_labelled,
    items,
    real_cluster,
)
from e2e.e2e_manifests import RUN_LABEL, check, job, namespace, policy, queues
from scaler_sandbox.packaged import crds
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig
from small_cluster import embedded_api

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    WORKLOAD,
)
from scaler.kube.transport import KubeTransport


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """Kueue without webhooks, and Jobs and kubelets."""
    parts = frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS})
    async with Sandbox(replace(SandboxConfig.fast({"node-a": 8}), parts=parts, follows=(NODE,))) as sandbox:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")
        yield sandbox


async def refusal_of(kubeconfig: Path) -> str:
    with pytest.raises(UnsuitableClusterError) as why:
        async with real_cluster(kubeconfig):
            pass
    return str(why.value)


async def test_a_cluster_without_kueue_is_refused(tmp_path: Path) -> None:
    async with embedded_api(tmp_path):
        assert "has no clusterqueues.kueue.x-k8s.io/v1beta2: install Kueue" in await refusal_of(tmp_path / "kubeconfig")


async def test_a_kueue_without_webhooks_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    assert "Kueue's webhooks are not registered" in await refusal_of(tmp_path / "kubeconfig")


async def test_a_hub_without_kueues_policy_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    has = {"has_scheduler": True, "has_keda": True, "has_ray": True}
    hub = RealCluster(kubeconfig=tmp_path / "kubeconfig", kueue_namespace="kueue-system", **has)
    with pytest.raises(UnsuitableClusterError, match="clear-nominated-cluster-names: install Kueue's workload-map"):
        await check_hub(hub)


async def test_objects_of_the_suite_are_deleted_and_others_stay(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.apply(crds())
    for run, mine in (("e2e-mine", True), ("theirs", False)):
        for body in (
            namespace(run),
            policy(run, {}),
            check(run),
            *queues(run, gpus=8, checks=(), preempts=False, strategy="StrictFIFO"),
            job(run, "gang", pods=1, gpus=1),
        ):
            await sandbox.apply(body if mine else unlabelled(body))
    await sandbox.wait_for(lambda: len(sandbox.all(WORKLOAD)) == 2, "both Workloads")
    async with await KubeTransport.connect(tmp_path / "kubeconfig") as api:
        await delete_labelled(api)
        for kind in (JOB, WORKLOAD):
            assert [each["metadata"]["namespace"] for each in await items(api, kind)] == ["theirs"]
        for kind in (CLUSTER_QUEUE, RESOURCE_FLAVOR, ADMISSION_CHECK, RECLAIM_POLICY):
            assert [each["metadata"]["name"] for each in await items(api, kind)] == ["theirs"]
        assert {each["metadata"]["namespace"] for each in await items(api, POD)} <= {"theirs"}
        assert [each["metadata"]["name"] for each in await items(api, NODE)] == ["node-a"]
        assert await items(api, NAMESPACE, selector=RUN_LABEL) == []


def unlabelled(body: dict[str, Any]) -> dict[str, Any]:
    labels = {key: value for key, value in body["metadata"]["labels"].items() if key != RUN_LABEL}
    return {**body, "metadata": body["metadata"] | {"labels": labels}}
