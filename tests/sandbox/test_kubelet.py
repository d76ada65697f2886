"""Pods find GPUs on nodes that come and go, take their time to start and to stop, and keep their GPUs to the end."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import condition, has
from scaler_sandbox.fleet import Fleet, FleetConfig, Machine
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import Kubelets, KubeletTiming
from sim.client import SimClient

from scaler.kube.objects.resources import NODE, POD
from scaler.kube.scheduling import Taint

TIMING = KubeletTiming(start_delay=timedelta(seconds=3), termination=timedelta(seconds=5))


class Cluster:
    """Two nodes with two GPUs each."""

    def __init__(self) -> None:
        self.client = SimClient()
        self.fleet = Fleet(FleetConfig(nodes={"node-a": 2, "node-b": 2}, collect_seconds=0.001))
        self.start()

    def start(self, **options: Any) -> None:
        stuck = options.pop("stuck", {})
        self.kubelets = Kubelets(cast(Client, self.client), self.fleet, replace(TIMING, stuck=stuck), **options)

    async def settle(self, seconds: float = 0.0) -> None:
        await self.client.settle(self.kubelets, after=timedelta(seconds=seconds))

    async def add(self, name: str, gpus: int = 1, annotations: Json | None = None, **spec: Any) -> None:
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        metadata = {"name": name, "namespace": "ns", "annotations": annotations or {}}
        container = {"name": "main", "image": "train:1", "resources": {"limits": limits}}
        self.client.add(POD, {"metadata": metadata, "spec": {"containers": [container], **spec}})
        await self.settle()

    async def delete(self, name: str) -> None:
        deleted = {"deletionTimestamp": "2026-11-20T12:00:30Z", "deletionGracePeriodSeconds": 30}
        self.client.change(POD, "ns", name, {"metadata": deleted})
        await self.settle()

    def pod(self, name: str) -> Json:
        found = self.client.find(POD, "ns", name)
        assert found is not None
        return found

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"]["phase"])

    def node(self, name: str) -> str:
        return str(self.pod(name)["spec"].get("nodeName", ""))

    @property
    def names(self) -> list[str]:
        """Of the pods that are there."""
        return [each["metadata"]["name"] for each in self.client.all(POD)]

    def held_by(self, name: str) -> int:
        holders = [self.fleet.holder(gpu.uuid) for gpu in self.fleet.gpus]
        return sum(1 for holder in holders if holder and holder.pod == name)


@pytest.fixture
async def cluster() -> Cluster:
    cluster = Cluster()
    await cluster.settle()
    return cluster


async def test_a_pod_is_bound_at_once_and_runs_after_the_start_delay(cluster: Cluster) -> None:
    await cluster.add("train", gpus=2)
    assert (cluster.node("train"), cluster.phase("train")) == ("node-a", "Pending")
    await cluster.settle(2.9)
    assert cluster.phase("train") == "Pending"
    await cluster.settle(0.1)
    assert cluster.phase("train") == "Running"
    (status,) = cluster.pod("train")["status"]["containerStatuses"]
    assert status["state"] == {"running": {"startedAt": "2026-11-20T12:00:03Z"}}
    assert status["ready"] is True
    assert has(cluster.pod("train"), "Ready")


async def test_a_pod_is_placed_whole_or_waits_and_says_why(cluster: Cluster) -> None:
    await cluster.add("one")
    await cluster.add("two")
    await cluster.add("half", gpus=1)
    await cluster.add("pair", gpus=2)
    assert [cluster.node(name) for name in ("one", "two", "half", "pair")] == ["node-a", "node-a", "node-b", ""]
    scheduled = condition(cluster.pod("pair"), "PodScheduled")
    assert scheduled is not None
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert scheduled["message"] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


async def test_node_selectors_are_respected(cluster: Cluster) -> None:
    await cluster.add("there", nodeSelector={"kubernetes.io/hostname": "node-b"})
    await cluster.add("nowhere", nodeSelector={"pool": "h100"})
    assert (cluster.node("there"), cluster.node("nowhere")) == ("node-b", "")


async def test_gpus_stay_occupied_until_the_pod_is_really_gone(cluster: Cluster) -> None:
    await cluster.add("victim", gpus=2, nodeSelector={"kubernetes.io/hostname": "node-a"})
    await cluster.settle(3)
    await cluster.add("next", gpus=2, nodeSelector={"kubernetes.io/hostname": "node-a"})
    await cluster.delete("victim")
    await cluster.settle(4.9)
    assert cluster.phase("victim") == "Running"
    assert (cluster.node("next"), cluster.held_by("victim")) == ("", 2)
    await cluster.settle(0.1)
    assert cluster.client.find(POD, "ns", "victim") is None
    assert (cluster.node("next"), cluster.held_by("next")) == ("node-a", 2)


async def test_a_pod_may_say_how_long_it_takes_to_stop_but_not_beyond_its_grace(cluster: Cluster) -> None:
    await cluster.add("slow", annotations={"demo.idlegpu.io/termination": "8s"})
    await cluster.add("stubborn", annotations={"demo.idlegpu.io/termination": "10m"}, terminationGracePeriodSeconds=10)
    await cluster.settle(3)
    await cluster.delete("slow")
    await cluster.delete("stubborn")
    await cluster.settle(7.9)
    assert cluster.phase("slow") == "Running"
    await cluster.settle(0.1)
    assert cluster.client.find(POD, "ns", "slow") is None
    await cluster.settle(2)
    assert cluster.client.find(POD, "ns", "stubborn") is None


async def test_a_pod_with_a_runtime_succeeds_and_gives_its_gpus_back(cluster: Cluster) -> None:
    await cluster.add("short", annotations={"demo.idlegpu.io/runtime": "12s"})
    await cluster.settle(3)
    await cluster.settle(11.9)
    assert (cluster.phase("short"), cluster.held_by("short")) == ("Running", 1)
    await cluster.settle(0.1)
    assert (cluster.phase("short"), cluster.held_by("short")) == ("Succeeded", 0)
    (status,) = cluster.pod("short")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 0
    assert not has(cluster.pod("short"), "Ready")


async def test_a_restart_during_a_termination_delays_it_and_loses_nothing(cluster: Cluster) -> None:
    await cluster.add("victim")
    await cluster.settle(3)
    await cluster.delete("victim")
    await cluster.settle(4)
    cluster.start()
    await cluster.settle(0)
    await cluster.settle(4.9)
    assert cluster.held_by("victim") == 1
    await cluster.settle(0.1)
    assert cluster.client.find(POD, "ns", "victim") is None


async def test_a_pod_that_another_scheduler_has_placed_gets_devices_of_its_node(cluster: Cluster) -> None:
    cluster.start(schedules=False)
    await cluster.add("placed", gpus=2)
    assert cluster.node("placed") == ""
    cluster.client.change(POD, "ns", "placed", {"spec": {"nodeName": "node-b"}})
    await cluster.settle()
    await cluster.settle(3)
    assert (cluster.phase("placed"), cluster.held_by("placed")) == ("Running", 2)


async def test_pods_of_other_namespaces_are_left_to_others_and_their_gpus_count(cluster: Cluster) -> None:
    cluster.start(namespaces={"mine"})
    await cluster.add("theirs", gpus=1)
    assert "conditions" not in cluster.pod("theirs").get("status", {})
    cluster.client.change(POD, "ns", "theirs", {"spec": {"nodeName": "node-a"}})
    await cluster.settle()
    cluster.start(namespaces={"ns"})
    await cluster.add("mine", gpus=2)
    assert cluster.node("mine") == "node-b"


# ----------------------------------------------------------------------------------------------------- nodes, machines


async def test_a_taint_keeps_away_pods_that_do_not_tolerate_it_and_the_message_says_so(cluster: Cluster) -> None:
    cluster.fleet.add(Machine(name="node-c", gpus=4, taints=(Taint(key="dedicated", value="ml"),)))
    await cluster.settle()
    await cluster.add("other", gpus=4)
    await cluster.add("ours", gpus=4, tolerations=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}])
    assert (cluster.node("other"), cluster.node("ours")) == ("", "node-c")
    scheduled = condition(cluster.pod("other"), "PodScheduled")
    assert scheduled is not None
    assert scheduled["message"] == (
        "0/3 nodes are available: 2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {dedicated: ml}."
    )


async def test_a_cordoned_node_takes_no_new_pods_and_keeps_those_it_has(cluster: Cluster) -> None:
    await cluster.add("here")
    cluster.client.change(NODE, "", "node-a", {"spec": {"unschedulable": True}})
    await cluster.add("next")
    assert (cluster.node("here"), cluster.node("next")) == ("node-a", "node-b")


async def test_a_machine_takes_its_node_its_pods_and_its_metrics_with_it(cluster: Cluster) -> None:
    for name in ("one", "two"):
        await cluster.add(name, gpus=2)
    assert (cluster.node("one"), cluster.node("two")) == ("node-a", "node-b")
    lost = [gpu.uuid for gpu in cluster.fleet.on("node-b")]
    cluster.fleet.remove("node-b")
    await cluster.settle()
    assert [node["metadata"]["name"] for node in cluster.client.all(NODE)] == ["node-a"]
    assert [cluster.fleet.holder(uuid) for uuid in lost] == [None, None]
    assert cluster.names == ["one"]
    assert {gpu.node for gpu in cluster.fleet.gpus} == {"node-a"}
    assert cluster.fleet.readings("node-b") == []


async def test_pods_that_no_kill_reaches_hold_their_gpus_as_long_as_the_pattern_says(cluster: Cluster) -> None:
    cluster.start(stuck={"ns/victim-*": timedelta(seconds=90)})
    for name in ("victim-1", "other-1"):
        await cluster.add(name)
        await cluster.delete(name)
    await cluster.settle(5)
    assert cluster.names == ["victim-1"]
    await cluster.settle(84.9)
    assert cluster.held_by("victim-1") == 1
    await cluster.settle(0.1)
    assert cluster.names == []
