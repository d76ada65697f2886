"""ProvisioningRequests are answered as a scenario says: all pods get nodes, at once or by new ones, or none does."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from scaler_sandbox.autoscaler import (
    BEST_EFFORT_ATOMIC,
    CHECK_CAPACITY,
    Autoscaler,
    AutoscalerConfig,
    Cloud,
    Scenario,
    Shape,
)
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has, message_of, reason_of
from scaler_sandbox.fleet import Fleet, FleetConfig
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import Kubelets, KubeletTiming
from sim.client import SimClient

from scaler.kube.objects.resources import NODE, POD, POD_TEMPLATE, PROVISIONING_REQUEST

NS = "team"
AT_ONCE = timedelta(0)
QUICK = Scenario(accepted_after=AT_ONCE, provisioned_after=AT_ONCE, booked_for=None, shape=Shape(gpus=8))


class Cluster:
    """One node with 8 GPUs, and an autoscaler."""

    def __init__(self, *scenarios: Scenario, **config: Any) -> None:
        self.client = SimClient()
        self.fleet = Fleet(FleetConfig(nodes={"node-a": 8}))
        self.cloud = Cloud(self.fleet)
        timing = KubeletTiming(start_delay=AT_ONCE, termination=timedelta(seconds=5))
        self.kubelets = Kubelets(cast(Client, self.client), self.fleet, timing)
        self.config = AutoscalerConfig(scenarios=scenarios, **config)
        self.start()

    def start(self) -> None:
        self.autoscaler = Autoscaler(cast(Client, self.client), self.cloud, self.config)

    async def settle(self, seconds: float = 0.0) -> None:
        # Machines are no objects: only kubelets that come after the autoscaler show what it has ordered.
        await self.client.settle(self.autoscaler, self.kubelets, after=timedelta(seconds=seconds))

    def ask(self, name: str, *pods: tuple[int, int], of: str = BEST_EFFORT_ATOMIC, **spec: Any) -> None:
        """Asks for nodes: `pods` are how many of how many GPUs each, one pair for each PodSet."""
        pod_sets = []
        for number, (count, gpus) in enumerate(pods):
            template = f"ppt-{name}-{number}"
            metadata = {"name": template, "namespace": NS}
            self.client.add(POD_TEMPLATE, {"metadata": metadata, "template": {"spec": {**pod_spec(gpus), **spec}}})
            pod_sets.append({"count": count, "podTemplateRef": {"name": template}})
        body = {
            "metadata": {"name": name, "namespace": NS},
            "spec": {"provisioningClassName": of, "podSets": pod_sets},
        }
        self.client.add(PROVISIONING_REQUEST, body)

    def run(self, name: str, gpus: int, *, consumes: str = "") -> None:
        annotations = {"autoscaling.x-k8s.io/consume-provisioning-request": consumes} if consumes else {}
        metadata = {"name": name, "namespace": NS, "annotations": annotations}
        self.client.add(POD, {"metadata": metadata, "spec": pod_spec(gpus)})

    def request(self, name: str) -> Json:
        found = self.client.find(PROVISIONING_REQUEST, NS, name)
        assert found is not None
        return found

    def says(self, name: str) -> list[str]:
        """The conditions that are true, in the order in which they came."""
        return [each["type"] for each in self.request(name)["status"].get("conditions", []) if each["status"] == "True"]

    @property
    def nodes(self) -> int:
        """How many there are beside the first."""
        return len(self.client.all(NODE)) - 1

    def node_of(self, pod: str) -> str:
        found = self.client.find(POD, NS, pod)
        assert found is not None
        return str(found["spec"].get("nodeName", ""))


def pod_spec(gpus: int) -> Json:
    return {"containers": [{"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]}


async def test_a_request_is_accepted_and_then_provisioned_each_in_its_time() -> None:
    scenario = replace(QUICK, accepted_after=timedelta(seconds=2), provisioned_after=timedelta(seconds=30))
    cluster = Cluster(replace(scenario, tells_eta=True, details={"NodePoolName": "a"}))
    cluster.ask("gang", (2, 8))
    await cluster.settle()
    await cluster.settle(1.9)
    assert cluster.says("gang") == []
    await cluster.settle(0.1)
    assert cluster.says("gang") == ["Accepted"]
    # Asked at 12:00:00, accepted 2 s and provisioned another 30 s later.
    assert message_of(cluster.request("gang"), "Provisioned") == "Waiting for resources. ETA: 2026-11-20T12:00:32Z"
    await cluster.settle(29)
    assert (cluster.says("gang"), cluster.nodes) == (["Accepted"], 0)
    await cluster.settle(1)
    assert cluster.says("gang") == ["Accepted", "Provisioned"]
    assert cluster.request("gang")["status"]["provisioningClassDetails"] == {"NodePoolName": "a"}


PODS: dict[str, tuple[list[tuple[int, int]], int, int]] = {
    # asked for, GPUs that are taken on the one node of 8, nodes of 8 that have to be added
    "what fits is given what is free": ([(2, 4)], 0, 0),
    "only the rest needs a node": ([(4, 4)], 0, 1),
    "what is taken is not free": ([(4, 4)], 4, 2),
    "every PodSet counts": ([(1, 8), (2, 8)], 0, 2),
    "leftovers too small for a pod are no room": ([(3, 3)], 4, 1),
}


@pytest.mark.parametrize(("pods", "taken", "added"), PODS.values(), ids=PODS)
async def test_nodes_are_added_until_all_pods_fit_and_not_one_more(
    pods: list[tuple[int, int]], taken: int, added: int
) -> None:
    cluster = Cluster(QUICK)
    if taken:
        cluster.run("other", taken)
    await cluster.settle()
    cluster.ask("gang", *pods)
    await cluster.settle()
    assert cluster.says("gang") == ["Accepted", "Provisioned"]
    assert cluster.nodes == added
    assert reason_of(cluster.request("gang"), "Provisioned") == (
        "CapacityIsProvisioned" if added else "CapacityIsFound"
    )
    for number, (count, gpus) in enumerate(pods):
        for index in range(count):
            cluster.run(f"pod-{number}-{index}", gpus, consumes="gang")
    await cluster.settle()
    assert all(cluster.node_of(pod["metadata"]["name"]) for pod in cluster.client.all(POD))


async def test_a_class_that_adds_no_nodes_waits_until_the_pods_fit() -> None:
    cluster = Cluster(replace(QUICK, shape=None))
    cluster.run("other", 4)
    await cluster.settle()
    cluster.ask("gang", (2, 4), of=CHECK_CAPACITY)
    await cluster.settle()
    assert cluster.says("gang") == ["Accepted"]
    assert has(cluster.request("gang"), "Provisioned", "False", "CapacityIsNotFound")
    cluster.client.remove(POD, NS, "other")
    await cluster.settle()
    assert (cluster.says("gang"), cluster.nodes) == (["Accepted", "Provisioned"], 0)


async def test_nodes_carry_the_identifier_of_the_request_that_they_were_added_for() -> None:
    shape = Shape(labels={"request": "{id}"})
    cluster = Cluster(replace(QUICK, counts_free=False, shape=shape, details={"ResizeRequestName": "{id}"}))
    cluster.ask("one", (1, 8))
    cluster.ask("two", (1, 8))
    await cluster.settle()
    found = {
        node["metadata"]["annotations"]["demo.idlegpu.io/provisioning-request"]: node["metadata"]["labels"]["request"]
        for node in cluster.client.all(NODE)
        if node["metadata"]["name"] != "node-a"
    }
    details = {
        f"{NS}/{name}": cluster.request(name)["status"]["provisioningClassDetails"]["ResizeRequestName"]
        for name in ("one", "two")
    }
    assert len(set(found.values())) == 2
    assert found == details


async def test_so_many_requests_fail_first_as_the_scenario_says_and_a_restart_counts_on() -> None:
    cluster = Cluster(replace(QUICK, failures=2))
    for attempt in (1, 2, 3):
        cluster.ask(f"gang-{attempt}", (2, 8))
        await cluster.settle()
        cluster.client.remove(POD_TEMPLATE, NS, f"ppt-gang-{attempt}-0")
        cluster.start()
        await cluster.settle()
    assert [cluster.says(f"gang-{attempt}")[-1] for attempt in (1, 2, 3)] == ["Failed", "Failed", "Provisioned"]
    assert message_of(cluster.request("gang-1"), "Failed") == "the cloud has no such nodes left"


async def test_what_is_booked_for_one_request_is_not_free_for_another_until_the_booking_ends() -> None:
    cluster = Cluster(replace(QUICK, shape=None, booked_for=timedelta(minutes=10)))
    cluster.ask("first", (1, 8))
    await cluster.settle()
    cluster.ask("second", (1, 8))
    await cluster.settle()
    assert (cluster.says("first"), cluster.says("second")) == (["Accepted", "Provisioned"], ["Accepted"])
    await cluster.settle(600)
    assert cluster.says("first") == ["Accepted", "Provisioned", "BookingExpired"]
    assert reason_of(cluster.request("first"), "BookingExpired") == "CapacityReservationTimeExpired"
    assert cluster.says("second") == ["Accepted", "Provisioned"]


async def test_a_booking_ends_when_all_pods_are_there() -> None:
    cluster = Cluster(replace(QUICK, booked_for=timedelta(minutes=10)))
    cluster.ask("gang", (2, 4))
    await cluster.settle()
    cluster.run("one", 4, consumes="gang")
    await cluster.settle()
    assert cluster.says("gang") == ["Accepted", "Provisioned"]
    cluster.run("two", 4, consumes="gang")
    await cluster.settle()
    assert reason_of(cluster.request("gang"), "BookingExpired") == "CapacityBookingConsumed"


async def test_revoked_capacity_takes_its_nodes_and_their_pods_with_it() -> None:
    cluster = Cluster(QUICK)
    cluster.run("other", 8)
    await cluster.settle()
    cluster.ask("gang", (1, 8))
    await cluster.settle()
    cluster.run("gang-0", 8, consumes="gang")
    await cluster.settle()
    assert cluster.node_of("gang-0").startswith("gpu-pool-")
    conditions = cluster.request("gang")["status"]["conditions"]
    lost = {"type": "CapacityRevoked", "status": "True", "reason": "Any", "message": ""}
    cluster.client.change(PROVISIONING_REQUEST, NS, "gang", {"status": {"conditions": [*conditions, lost]}}, "status")
    await cluster.settle()
    assert cluster.nodes == 0
    assert [pod["metadata"]["name"] for pod in cluster.client.all(POD)] == ["other"]


async def test_two_requests_of_the_same_moment_get_nodes_of_their_own() -> None:
    cluster = Cluster(QUICK)
    cluster.run("other", 8)
    await cluster.settle()
    cluster.ask("first", (1, 8))
    cluster.ask("second", (1, 8))
    await cluster.settle()
    assert (cluster.says("first")[-1], cluster.says("second")[-1], cluster.nodes) == ("Provisioned", "Provisioned", 2)
    # Neither takes the node that is on its way for the other for one that is free.
    for name in ("first", "second"):
        assert reason_of(cluster.request(name), "Provisioned") == "CapacityIsProvisioned"


async def test_a_restart_at_any_moment_orders_nothing_twice() -> None:
    scenario = replace(QUICK, accepted_after=timedelta(seconds=1), provisioned_after=timedelta(seconds=2))
    cluster = Cluster(scenario)
    cluster.ask("gang", (3, 8))
    for _ in range(20):
        await cluster.autoscaler.tick(cluster.client.now)
        await cluster.settle(3)
        cluster.start()
        await cluster.autoscaler.tick(cluster.client.now)
        cluster.start()
    assert (cluster.says("gang"), cluster.nodes) == (["Accepted", "Provisioned"], 2)
