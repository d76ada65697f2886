"""A hub and two workers over HTTP: connected by Secrets, with no more permissions than documented; and placement."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import yaml
from scaler_sandbox.conditions import has, message_of, reason_of
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, manifest, namespace
from scaler_sandbox.kinds import MANAGED_CLUSTER, PLACEMENT, Json
from scaler_sandbox.multikueue.clusters import CHECK, SandboxClusters
from scaler_sandbox.sandbox import Sandbox, SandboxConfig

from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    ADD_ON_PLACEMENT_SCORE,
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    JOB,
    MULTIKUEUE_CLUSTER,
    PLACEMENT_DECISION,
    SECRET,
    WORKLOAD,
)
from scaler.kube.transport import KubeTransport


def queues(gpus: int, *checks: str) -> list[Json]:
    return [
        namespace("ml"),
        flavor("gpus"),
        cluster_queue("all", gpus, flavor="gpus", checks=checks),
        local_queue("training", "ml", "all"),
    ]


@pytest.fixture
async def clusters() -> AsyncIterator[SandboxClusters]:
    workers = {"a": SandboxConfig.fast({"a1": 2}), "b": SandboxConfig.fast({"b1": 2})}
    async with SandboxClusters(workers) as clusters:
        for worker in clusters.workers.values():
            await worker.apply(queues(2))
        await clusters.hub.apply(queues(4, CHECK))
        await clusters.hub.wait_for(
            lambda: clusters.hub.condition(ADMISSION_CHECK, "", CHECK, "Active"), "both workers to be connected"
        )
        yield clusters


def workload(cluster: Sandbox, name: str = "gang") -> Json | None:
    found = [each for each in cluster.all(WORKLOAD, "ml") if each["metadata"]["name"].startswith(f"job-{name}-")]
    return found[0] if found else None


async def reserved(clusters: SandboxClusters) -> Json:
    """The hub's Workload of the gang, which has its quota."""
    hub = clusters.hub
    await hub.apply(job("gang", "ml", "training", gpus=1, pods=2))
    return await hub.wait_for(
        lambda: (found := workload(hub)) and has(found, "QuotaReserved") and has(found, "Admitted", "False") and found,
        "its quota",
    )


async def status_patch(cluster: Sandbox, body: Json, status: Json, *, dry_run: bool = False) -> Any:
    metadata = body["metadata"]
    path = WORKLOAD.path(metadata["namespace"], metadata["name"], "status")
    return await cluster._transport.patch(path, {"status": status}, dry_run=dry_run)


async def test_a_nominated_gang_runs_on_that_worker_and_the_hub_shows_it(clusters: SandboxClusters) -> None:
    gang = await reserved(clusters)
    a, b = clusters.workers["a"], clusters.workers["b"]
    await status_patch(clusters.hub, gang, {"nominatedClusterNames": ["b"]})

    def is_running() -> bool:
        found = clusters.hub.find(JOB, "ml", "gang")
        return found is not None and found.get("status", {}).get("ready") == 2

    await clusters.hub.wait_for(is_running, "its pods")
    found = workload(clusters.hub)
    assert found is not None
    assert (found["status"]["clusterName"], found["status"]["nominatedClusterNames"]) == ("b", [])
    assert workload(a) is None
    copy = workload(b)
    assert copy is not None
    assert copy["metadata"]["labels"]["kueue.x-k8s.io/multikueue-origin"] == "multikueue"


async def test_a_dry_run_and_managed_fields_tell_the_remedy(clusters: SandboxClusters) -> None:
    gang = await reserved(clusters)
    with pytest.raises(KubeError, match="must be one of the nominatedClusterNames") as caught:
        await status_patch(clusters.hub, gang, {"nominatedClusterNames": ["x"], "clusterName": "x"}, dry_run=True)
    assert caught.value.status == 403
    latest = await clusters.hub.read(WORKLOAD, "ml", gang["metadata"]["name"])
    assert "nominatedClusterNames" not in latest["status"]
    (owner,) = latest["metadata"]["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("kueue-admission", "Apply")
    assert "f:admission" in owner["fieldsV1"]["f:status"]


async def test_a_worker_that_stops_is_lost_and_comes_back(clusters: SandboxClusters) -> None:
    hub, b = clusters.hub, clusters.workers["b"]

    def active(reason: str) -> bool:
        found = hub.find(MULTIKUEUE_CLUSTER, "", "b")
        return found is not None and reason_of(found, "Active") == reason

    await b.api.stop()
    await hub.wait_for(lambda: active("ClientConnectionFailed"), "the loss of b")
    check = hub.find(ADMISSION_CHECK, "", CHECK)
    assert check is not None
    await hub.wait_for(
        lambda: message_of(hub.find(ADMISSION_CHECK, "", CHECK) or {}, "Active") == "Inactive clusters: [b]", "that"
    )
    await b.api.start()
    await hub.wait_for(lambda: active("Active"), "b again")


async def test_a_secret_without_a_kubeconfig_is_a_bad_one(clusters: SandboxClusters) -> None:
    await clusters.hub.delete(SECRET, "kueue-system", "multikueue-a")

    def is_bad() -> bool:
        found = clusters.hub.find(MULTIKUEUE_CLUSTER, "", "a")
        return found is not None and reason_of(found, "Active") == "BadKubeConfig"

    await clusters.hub.wait_for(is_bad, "the loss of its Secret")


async def test_the_kubeconfig_on_the_hub_may_write_offers_and_no_more_than_multikueue_needs(
    clusters: SandboxClusters, tmp_path: Any
) -> None:
    secret = await clusters.hub.read(SECRET, "kueue-system", "multikueue-a")
    text = base64.b64decode(secret["data"]["kubeconfig"]).decode()
    assert yaml.load(text, yaml.CSafeLoader)["users"][0]["user"]["token"]
    (tmp_path / "kubeconfig").write_text(text)
    async with await KubeTransport.connect(tmp_path / "kubeconfig") as transport:
        offer = manifest(CLUSTER_OFFER, "hub", spec={"workloads": []})
        created = msgspec.json.decode(await transport.create(CLUSTER_OFFER.path(), offer))
        assert created["metadata"]["name"] == "hub"
        with pytest.raises(KubeError) as caught:
            await transport.patch(CLUSTER_OFFER.path("", "hub", "status"), {"status": {"message": "x"}})
        assert caught.value.status == 403
        with pytest.raises(KubeError) as caught:
            await transport.get("/api/v1/pods")
        assert caught.value.status == 403


# ------------------------------------------------------------------------------------------------------------ placement


async def test_a_placement_selects_clusters_by_labels_and_scores(clusters: SandboxClusters) -> None:
    hub = clusters.hub
    for name, free in (("a", 10), ("b", 90)):
        await hub.patch(MANAGED_CLUSTER, "", name, {"metadata": {"labels": {"gpu": "a100"}}})
        await hub.apply(manifest(ADD_ON_PLACEMENT_SCORE, "idle-gpu-scaler", name))
        scores = {"status": {"scores": [{"name": "gpu-free", "value": free}]}}
        await hub.patch(ADD_ON_PLACEMENT_SCORE, name, "idle-gpu-scaler", scores, "status")
    coordinate = {"type": "AddOn", "addOn": {"resourceName": "idle-gpu-scaler", "scoreName": "gpu-free"}}
    policy = {"mode": "Exact", "configurations": [{"scoreCoordinate": coordinate, "weight": 1}]}
    selector = {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"gpu": "a100"}}}}
    placement = {"predicates": [selector], "numberOfClusters": 1, "prioritizerPolicy": policy}
    await hub.apply(manifest(PLACEMENT, "gpus", "ml", spec=placement))

    def decided() -> list[str]:
        found = hub.find(PLACEMENT_DECISION, "ml", "gpus-decision-1") or {}
        return [each["clusterName"] for each in (found.get("status") or {}).get("decisions") or ()]

    await hub.wait_for(lambda: decided() == ["b"], "the better cluster")
    decision = hub.find(PLACEMENT_DECISION, "ml", "gpus-decision-1")
    assert decision is not None
    assert decision["metadata"]["labels"] == {"cluster.open-cluster-management.io/placement": "gpus"}
    await hub.patch(PLACEMENT, "ml", "gpus", {"spec": {"numberOfClusters": None}})
    await hub.wait_for(lambda: decided() == ["a", "b"], "both, by name")
    await hub.patch(MANAGED_CLUSTER, "", "a", {"metadata": {"labels": {"gpu": None}}})
    await hub.wait_for(lambda: decided() == ["b"], "the one with the label")
