"""The simulated cluster plays the story of the demo by the rules of the real programs that it stands in for."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recordings import CRDS, needs_data, real_crd
from scaler_sandbox import crds
from scaler_sandbox.conditions import has, reason_of
from scaler_sandbox.job_manifests import cluster_queue, flavor, local_queue, manifest, namespace
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.sandbox import Sandbox, SandboxConfig
from sim.kueue_cluster import ray_cluster
from small_cluster import embedded_api

from scaler.errors import ConfigurationError, KubeError
from scaler.kube.objects.resources import POD, RAY_CLUSTER, WORKLOAD, Resource

QUEUES = [
    namespace("demo"),
    flavor("default-flavor"),
    cluster_queue("cluster-queue", 2, flavor="default-flavor", queueingStrategy="BestEffortFIFO"),
    local_queue("user-queue", "demo", "cluster-queue"),
]


def gang(name: str) -> Json:
    body = ray_cluster(name, queue="user-queue")
    return manifest(RAY_CLUSTER, name, "demo", labels=body["metadata"]["labels"], spec=body["spec"])


QUICK = dataclasses.replace(
    SandboxConfig.fast(collect=timedelta(seconds=0.2)),
    kubelet=KubeletTiming(start_delay=timedelta(seconds=0.1), termination=timedelta(seconds=0.3)),
)


@pytest.fixture
async def world() -> AsyncIterator[Sandbox]:
    async with Sandbox(QUICK) as world:
        await world.apply(QUEUES)
        yield world


def workload(world: Sandbox, name: str) -> Json:
    found = world.workload_of(RAY_CLUSTER, "demo", name)
    assert found is not None
    return found


def is_admitted(world: Sandbox, name: str, kind: Resource = RAY_CLUSTER) -> bool:
    found = world.workload_of(kind, "demo", name)
    return found is not None and has(found, "Admitted")


def is_ready(world: Sandbox, name: str) -> bool:
    found = world.find(RAY_CLUSTER, "demo", name)
    return found is not None and (found.get("status") or {}).get("state") == "ready"


async def set_active(world: Sandbox, name: str, active: bool) -> None:
    found = workload(world, name)
    await world.patch(WORKLOAD, "demo", found["metadata"]["name"], {"spec": {"active": active}})


async def two_gangs(world: Sandbox) -> None:
    """The first runs, the second waits."""
    await world.apply(gang("first"))
    await world.wait_for(lambda: is_ready(world, "first"), "the first gang to run")
    await world.apply(gang("second"))
    await world.wait_for(lambda: world.workload_of(RAY_CLUSTER, "demo", "second"), "the second Workload")
    await world.wait_for(
        lambda: reason_of(workload(world, "second"), "QuotaReserved") == "WaitingForQuota", "the second gang to wait"
    )


async def test_a_deactivated_gang_makes_way_and_comes_back(world: Sandbox) -> None:
    await two_gangs(world)
    started = datetime.now(UTC)
    await set_active(world, "first", False)
    await world.wait_for(lambda: is_admitted(world, "second"), "the second gang's admission")
    waited = (datetime.now(UTC) - started).total_seconds()
    # Kueue looks at waiting gangs once a second after quota was freed.
    assert waited > 0.5
    await world.wait_for(lambda: is_ready(world, "second"), "the second gang to run")
    await world.wait_for(lambda: has(workload(world, "first"), "QuotaReserved", "False", "Deactivated"))
    await set_active(world, "first", True)
    await world.wait_for(lambda: has(workload(world, "first"), "QuotaReserved", "False", "WaitingForQuota"))
    await world.delete(RAY_CLUSTER, "demo", "second")
    await world.wait_for(lambda: is_ready(world, "first"), "the first gang to run again")


async def test_a_pod_that_a_finalizer_keeps_is_terminal_and_has_given_its_gpu_back(world: Sandbox) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": "held", "namespace": "demo", "finalizers": ["example.com/mine"]}
    await world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})

    def phase() -> str:
        found = world.find(POD, "demo", "held")
        return found["status"]["phase"] if found else ""

    def holders() -> int:
        return sum(1 for gpu in world.fleet.gpus if world.fleet.holder(gpu.uuid))

    await world.wait_for(lambda: phase() == "Running", "the pod to run")
    assert holders() == 1
    await world.delete(POD, "demo", "held")
    await world.wait_for(lambda: phase() == "Failed", "the pod to end")
    await world.wait_for(lambda: holders() == 0, "its GPU")
    await asyncio.sleep(0.1)
    assert phase() == "Failed"
    await world.patch(POD, "demo", "held", {"metadata": {"finalizers": None}})
    await world.wait_for(lambda: phase() == "", "the pod to go")


@pytest.mark.parametrize(
    ("manifest", "error", "message"),
    [
        ("just text", ConfigurationError, "has no kind"),
        ({"apiVersion": "example.com/v1", "kind": "Nothing", "metadata": {"name": "x"}}, KubeError, "Nothing"),
    ],
)
async def test_a_manifest_that_cannot_be_applied_says_why(
    world: Sandbox, manifest: str | Json, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await world.apply(manifest)


needs_real_crds = needs_data(CRDS)


@needs_real_crds
async def test_the_story_passes_the_schemas_and_rules_of_the_real_kinds(tmp_path: Path) -> None:
    definitions = (real_crd(each["metadata"]["name"]) for each in crds.load())
    config = dataclasses.replace(QUICK, kubeconfig=tmp_path / "kubeconfig")
    async with embedded_api(tmp_path, *definitions) as (api, _), Sandbox(config) as world:
        assert world.api_url == api.url
        await world.apply(QUEUES)
        await test_a_deactivated_gang_makes_way_and_comes_back(world)


@needs_real_crds
@pytest.mark.parametrize("definition", crds.load(), ids=lambda each: each["metadata"]["name"])
def test_our_definitions_are_parts_of_the_real_ones(definition: Json) -> None:
    real = real_crd(definition["metadata"]["name"])["spec"]
    ours = definition["spec"]
    assert ours["group"] == real["group"]
    assert ours["scope"] == real["scope"]
    assert {**real["names"], **ours["names"]} == real["names"]
    for version in ours["versions"]:
        theirs = next(each for each in real["versions"] if each["name"] == version["name"])
        assert theirs["storage"]
        assert version.get("subresources", {}) == theirs.get("subresources", {})
        columns = {column["name"]: column["jsonPath"] for column in theirs.get("additionalPrinterColumns", [])}
        for column in version.get("additionalPrinterColumns", []):
            assert column["name"] == "Value" or columns[column["name"]] == column["jsonPath"]
        assert unknown_fields(version["schema"]["openAPIV3Schema"], theirs["schema"]["openAPIV3Schema"]) == []


def unknown_fields(ours: Json, theirs: Json, path: str = "") -> list[str]:
    """Fields of our schema that the real one does not have, or has with another type."""
    found = [] if ours.get("type", theirs.get("type")) == theirs.get("type") else [f"{path}: type {ours['type']}"]
    if "items" in ours:
        found += unknown_fields(ours["items"], theirs["items"], f"{path}[]")
    for name, schema in ours.get("properties", {}).items():
        if name in theirs.get("properties", {}):
            found += unknown_fields(schema, theirs["properties"][name], f"{path}.{name}")
        elif not theirs.get("x-kubernetes-preserve-unknown-fields"):
            found.append(f"{path}.{name}")
    return found
