"""Victims whose pods end late, never, or without their Workload; and entries that the API does not take."""

import json
from datetime import timedelta
from typing import Any

import pytest
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from sim.cluster import GPU, SimCluster
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.errors import KubeError
from scaler.kube.objects.resources import CLUSTER_QUEUE, JOB, POD, SCALABLE_WORKLOAD, WORKLOAD

NEVER = 1e9
PREEMPTS: dict[str, Any] = {"preemption": {"withinClusterQueue": "LowerPriority"}}


async def town_with_a_victim(nodes: int, ends_after: float, *, by_plan: bool = True, **more: Any) -> SimCluster:
    """8 GPUs on each node, and quota for 8: a gang has taken it, and the pod of the victim still ends on `a`."""
    town = SimCluster(dict.fromkeys("abc"[:nodes], 8), quota=8, **PREEMPTS, **more)
    await lose(town, ends_after, by_plan=by_plan)
    return town


async def lose(town: SimCluster, ends_after: float, *, by_plan: bool = True) -> None:
    town.add(WORKLOAD_PRIORITY_CLASS, "high")
    town.client.change(WORKLOAD_PRIORITY_CLASS, "", "high", {"value": 1000})
    town.termination["victim"] = ends_after
    town.submit("victim", gpus=8)
    await town.passes(2)
    labels: dict[str, Any] = {} if by_plan else {"kueue.x-k8s.io/priority-class": "high"}
    town.submit("gang", gpus=8, **labels)
    await town.passes(1)
    if by_plan:
        town.deactivate("victim", for_gang="gang")
    await town.passes(5)
    assert town.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim"), town.says("gang")


async def later(town: SimCluster, minutes: int) -> None:
    town.client.now += timedelta(minutes=minutes)
    await town.passes(1)


BY = pytest.mark.parametrize("by_plan", [True, False], ids=["by our plan", "by Kueue"])


# ---------------------------------------------------------------------------------------------------- that end never


@BY
async def test_a_pod_that_never_ends_is_not_waited_for_where_there_is_room_beside_it(by_plan: bool) -> None:
    town = await town_with_a_victim(2, NEVER, by_plan=by_plan)
    await later(town, 4)
    assert not town.is_admitted("gang"), "it is not overdue yet"
    await later(town, 2)
    assert town.says("gang") == "Ready: fits whole: 1 pod on 1 node (b)"
    await town.passes(1)
    assert town.is_running("gang")


@BY
async def test_without_room_beside_it_the_gang_lacks_nodes_and_keeps_none_from_others(by_plan: bool) -> None:
    town = await town_with_a_victim(1, NEVER, by_plan=by_plan)
    await later(town, 6)
    assert town.report.reasons == {"NodesLacking": 1}
    assert "does not wait for 1 pod of ns/job-victim" in town.says("gang")
    assert town.says("gang").endswith("long past the termination deadline")
    town.add_node("small", 4)
    town.change(CLUSTER_QUEUE, "cq", {"spec": town.queue_spec(100)})
    town.submit("later", gpus=4)
    await town.passes(2)
    assert town.is_running("later")


async def test_nodes_are_asked_for_once_it_is_clear_that_the_pod_may_never_end() -> None:
    town = ProvisioningCluster({"a": 8}, quota=8, scenarios=NOBODY, **PREEMPTS)
    await lose(town, NEVER)
    await later(town, 4)
    assert town.requests("gang") == []
    await later(town, 2)
    assert town.requests("gang") == ["1: New"]


@BY
async def test_where_nothing_else_stands_for_the_pod_it_is_waited_for_and_said_to_be_overdue(by_plan: bool) -> None:
    town = await town_with_a_victim(2, NEVER, by_plan=by_plan, policy={"requireFit": False})
    await later(town, 60)
    assert not town.is_admitted("gang")
    assert town.says("gang").endswith(" UTC), long past the termination deadline")


# ------------------------------------------------------------------------------------------- without their Workload


@BY
@pytest.mark.parametrize("kinds", [(JOB, WORKLOAD), (WORKLOAD,)], ids=["with its job", "alone"])
async def test_a_victim_whose_workload_is_deleted_still_has_its_pods(kinds: tuple[Any, ...], by_plan: bool) -> None:
    town = await town_with_a_victim(2, 60.0, by_plan=by_plan, policy={"requireFit": False})
    for kind in kinds:
        name = "victim" if kind is JOB else town.workload("victim")["metadata"]["name"]
        town.client.remove(kind, "ns", name)
    await town.passes(20)
    assert not town.is_admitted("gang"), town.says("gang")
    assert "1 pod of ns/job-victim" in town.says("gang")
    await town.passes(40)
    assert town.is_running("gang")


@BY
async def test_pods_of_the_workload_that_follows_a_deleted_victim_are_not_waited_for(by_plan: bool) -> None:
    """Its job gets another Workload of the same name, and runs again elsewhere, before the old pod has ended."""
    town = await town_with_a_victim(2, 60.0, by_plan=by_plan, policy={"requireFit": False})
    [old] = town.pods("victim")
    town.client.remove(WORKLOAD, "ns", town.workload("victim")["metadata"]["name"])
    town.change(CLUSTER_QUEUE, "cq", {"spec": town.queue_spec(100, **PREEMPTS)})
    await town.passes(20)
    assert {pod["spec"]["nodeName"] for pod in town.pods("victim")} == {"a", "b"}
    assert town.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim"), town.says("gang")
    await town.passes(40)
    assert old["metadata"]["name"] not in {pod["metadata"]["name"] for pod in town.pods("victim")}
    assert town.is_running("gang"), town.says("gang")
    assert town.is_running("victim")


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_plan_is_told_of_while_it_stands_and_not_once_it_is_over_and_has_taken_nobody(is_granted: bool) -> None:
    town = SimCluster({"a": 8})
    town.submit("victim", gpus=8)
    await town.passes(2)
    town.submit("gang", gpus=8)
    await town.passes(1)
    name = town.workload("victim")["metadata"]["name"]
    town.client.add(SCALABLE_WORKLOAD, town._scalable("victim", name, "gang", is_granted=is_granted))
    await town.passes(31)
    assert ("plan plan-1 frees GPUs of ns/victim" in town.says("gang")) is is_granted


async def test_a_new_leader_finds_the_pods_of_a_deleted_victim_by_its_scalable_workload() -> None:
    town = await town_with_a_victim(2, 60.0, policy={"requireFit": False})
    town.client.remove(JOB, "ns", "victim")
    town.client.remove(WORKLOAD, "ns", town.workload("victim")["metadata"]["name"])
    town.restart()
    await town.passes(20)
    assert town.says("gang").startswith("Pending: waits for 1 pod of ns/victim")
    await town.passes(40)
    assert town.is_running("gang")


async def test_a_new_leader_waits_for_the_pods_of_a_deleted_victim_that_kueue_preempted_until_they_are_stuck() -> None:
    """Nothing in the API tells any more for which gang it was preempted."""
    for ends_after in (60.0, NEVER):
        town = await town_with_a_victim(2, ends_after, by_plan=False, policy={"requireFit": False})
        town.client.remove(JOB, "ns", "victim")
        town.client.remove(WORKLOAD, "ns", town.workload("victim")["metadata"]["name"])
        town.restart()
        await town.passes(20)
        assert not town.is_admitted("gang")
        assert town.says("gang").startswith("Pending: waits for 1 pod of ns/"), town.says("gang")
        if ends_after == NEVER:
            await later(town, 6)
        await town.passes(45)
        assert town.is_running("gang")


async def test_gated_pods_of_a_victim_are_none_that_end() -> None:
    """Its owner makes the next ones at once, and Kueue keeps them behind its gate: they hold nothing."""
    town = await town_with_a_victim(2, 20.0, by_plan=False, policy={"requireFit": False})
    owner = town.workload("victim")["metadata"]["ownerReferences"]
    town.controllers = town.controllers[:1]  # type: ignore[assignment]
    spec = {
        "nodeSelector": {"nowhere": "yes"},
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "containers": [{"name": "main", "image": "train:1", "resources": {"limits": {GPU: "8"}}}],
    }
    body = {"metadata": {"name": "next", "namespace": "ns", "ownerReferences": owner}, "spec": spec}
    town.client.add(POD, json.loads(json.dumps({**body, "status": {"phase": "Pending"}})))
    for pod in town.pods("victim"):
        if pod["metadata"]["name"] != "next":
            town.client.remove(POD, "ns", pod["metadata"]["name"])
    await town.passes(1)
    assert town.entry("gang")["state"] == "Ready", town.says("gang")


# -------------------------------------------------------------------------------------------- what the API refuses


def refusing(town: SimCluster, status: int) -> list[str]:
    """The statuses that were written from now on, and not taken."""
    refused: list[str] = []

    def refuse(path: str) -> None:
        if "/workloads/" in path and path.endswith("/status"):
            refused.append(path)
            raise KubeError("not taken", status=status, reason="Conflict" if status == 409 else "Refused")

    town.api.before_patch = refuse
    return refused


@pytest.mark.parametrize("status", [403, 422, 500, 409])
async def test_an_entry_that_is_not_taken_is_written_ever_more_rarely(status: int) -> None:
    """After 0, 1, 3, 7, 15, 31 s, and then once a minute; after a conflict once more at the start."""
    town = SimCluster({"a": 8})
    town.submit("gang", gpus=8)
    await town.passes(1, gate=False)
    refused = refusing(town, status)
    await town.passes(50)
    assert 6 <= len(refused) <= 7
    town.api.before_patch = lambda _: None
    await town.passes(60)
    assert town.is_running("gang")


async def test_after_the_first_conflict_and_only_then_an_entry_is_tried_again_at_once() -> None:
    for status, expected in ((409, 2), (422, 1)):
        town = SimCluster({"a": 8})
        await town.passes(1)
        town.submit("gang", gpus=8)
        await town.passes(1, gate=False)
        refused = refusing(town, status)
        for _ in range(3):
            await town.gate.tick(town.client.now)
        assert len(refused) == expected
