"""Nodes come and go while the world runs, with GPUs, metrics and pods; and pods may take long to end."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import condition
from scaler_sandbox.fleet import Fleet, FleetConfig, Machine
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import Kubelets, KubeletTiming
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig
from sim.client import SimClient

from scaler.kube.objects.resources import NODE, POD
from scaler.kube.scheduling import Taint

NS = "team"


def pod(name: str, gpus: int, annotations: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    metadata = {"name": name, "namespace": NS, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


class Cluster:
    """One node with two GPUs, in virtual time."""

    def __init__(self, **timing: Any) -> None:
        self.client = SimClient()
        self.fleet = Fleet(FleetConfig(nodes={"node-a": 2}, collect_seconds=0.001))
        quick = {"start_delay": timedelta(0), "termination": timedelta(seconds=5), **timing}
        self.kubelets = Kubelets(cast(Client, self.client), self.fleet, KubeletTiming(**quick))

    async def settle(self, seconds: float = 0.0) -> None:
        await self.client.settle(self.kubelets, after=timedelta(seconds=seconds))

    async def add(self, name: str, gpus: int, annotations: Json | None = None, **spec: Any) -> None:
        self.client.add(POD, pod(name, gpus, annotations, **spec))
        await self.settle()

    async def delete(self, name: str) -> None:
        deleted = {"deletionTimestamp": "2026-11-20T12:00:30Z", "deletionGracePeriodSeconds": 30}
        self.client.change(POD, NS, name, {"metadata": deleted})
        await self.settle()

    def node_of(self, name: str) -> str:
        return str((self.client.find(POD, NS, name) or {"spec": {}})["spec"].get("nodeName", ""))

    @property
    def nodes(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.client.all(NODE)]


# ------------------------------------------------------------------------------------------------------ nodes that come


async def test_a_taint_keeps_away_who_does_not_tolerate_it_and_says_so() -> None:
    cluster = Cluster()
    cluster.fleet.add(Machine(name="node-b", gpus=4, taints=(Taint(key="dedicated", value="ml"),)))
    await cluster.settle()
    await cluster.add("other", 4)
    await cluster.add("ours", 4, tolerations=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}])
    assert (cluster.node_of("other"), cluster.node_of("ours")) == ("", "node-b")
    said = condition(cluster.client.find(POD, NS, "other") or {}, "PodScheduled")
    assert said is not None
    assert said["message"] == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {dedicated: ml}."
    )


async def test_a_cordoned_node_takes_no_new_pods_and_keeps_those_it_has() -> None:
    cluster = Cluster()
    await cluster.settle()
    await cluster.add("here", 1)
    cluster.client.change(NODE, "", "node-a", {"spec": {"unschedulable": True}})
    await cluster.add("next", 1)
    assert (cluster.node_of("here"), cluster.node_of("next")) == ("node-a", "")


# -------------------------------------------------------------------------------------------------------- nodes that go


async def test_a_machine_takes_its_node_its_pods_and_its_metrics_with_it() -> None:
    cluster = Cluster()
    cluster.fleet.add(Machine(name="node-b", gpus=2))
    await cluster.settle()
    for name in ("one", "two"):
        await cluster.add(name, 2)
    assert (cluster.node_of("one"), cluster.node_of("two")) == ("node-a", "node-b")
    lost = [gpu.uuid for gpu in cluster.fleet.on("node-b")]
    cluster.fleet.remove("node-b")
    await cluster.settle()
    assert cluster.nodes == ["node-a"]
    assert [cluster.fleet.holder(uuid) for uuid in lost] == [None, None]
    assert [each["metadata"]["name"] for each in cluster.client.all(POD)] == ["one"]
    assert {gpu.node for gpu in cluster.fleet.gpus} == {"node-a"}
    assert cluster.fleet.readings("node-b") == []


async def test_pods_that_had_ended_stay_and_those_that_were_ending_are_over() -> None:
    cluster = Cluster()
    await cluster.settle()
    await cluster.add("done", 1, {"demo.idlegpu.io/runtime": "1s"})
    await cluster.settle(1)
    await cluster.add("ending", 1)
    await cluster.delete("ending")
    cluster.fleet.remove("node-a")
    await cluster.settle()
    assert [each["metadata"]["name"] for each in cluster.client.all(POD)] == ["done"]


# ------------------------------------------------------------------------------------------------- pods that end slowly


async def test_pods_that_no_kill_reaches_hold_their_gpus_as_long_as_the_pattern_says() -> None:
    cluster = Cluster(stuck={f"{NS}/victim-*": timedelta(seconds=90)})
    await cluster.settle()
    await cluster.add("victim-1", 1)
    await cluster.add("other-1", 1)
    await cluster.delete("victim-1")
    await cluster.delete("other-1")
    await cluster.settle(5)
    assert cluster.client.find(POD, NS, "other-1") is None
    await cluster.settle(84.9)
    assert sum(1 for gpu in cluster.fleet.gpus if cluster.fleet.holder(gpu.uuid)) == 1
    await cluster.settle(0.1)
    assert cluster.client.all(POD) == []


# ----------------------------------------------------------------------------------------------------- the whole world


@pytest.fixture
async def world() -> AsyncIterator[Sandbox]:
    base = SandboxConfig.fast({"node-a": 2}, collect=timedelta(seconds=0.1))
    config = dataclasses.replace(
        base,
        kubelet=KubeletTiming(start_delay=timedelta(seconds=0.05), termination=timedelta(seconds=0.1)),
        parts=frozenset({Component.KUBELETS, Component.AUTOSCALER}),
    )
    async with Sandbox(config) as world:
        await world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS}})
        yield world


def runs_on(world: Sandbox, name: str) -> str:
    found = world.find(POD, NS, name)
    return found["spec"]["nodeName"] if found and found["status"]["phase"] == "Running" else ""


async def test_a_world_gains_a_node_and_loses_it_again(world: Sandbox) -> None:
    await world.apply(pod("big", 4))
    await world.wait_for(lambda: world.condition(POD, NS, "big", "PodScheduled", "False"), "the pod to find no node")
    await asyncio.sleep(0.3)  # Nothing but the new machine wakes anybody now.
    world.add_node("node-b", 4, labels={"pool": "new"})
    await world.wait_for(lambda: runs_on(world, "big") == "node-b", "the pod to run there")
    assert set(world.exporter_urls) == {"node-a", "node-b"}
    world.remove_node("node-b")
    await world.wait_for(lambda: world.find(POD, NS, "big") is None, "its pod to be lost")
    await world.wait_for(lambda: world.find(NODE, "", "node-b") is None, "its Node to go")
