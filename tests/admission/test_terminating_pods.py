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


async def cluster_with_a_victim(nodes: int, ends_after: float, *, by_plan: bool = True, **more: Any) -> SimCluster:
    """8 GPUs on each node, and quota for 8: a gang has taken it, and the pod of the victim still ends on `a`."""
    cluster = SimCluster(dict.fromkeys("abc"[:nodes], 8), quota=8, **PREEMPTS, **more)
    await lose(cluster, ends_after, by_plan=by_plan)
    return cluster


async def lose(cluster: SimCluster, ends_after: float, *, by_plan: bool = True) -> None:
    cluster.add(WORKLOAD_PRIORITY_CLASS, "high")
    cluster.client.change(WORKLOAD_PRIORITY_CLASS, "", "high", {"value": 1000})
    cluster.termination["victim"] = ends_after
    cluster.submit("victim", gpus=8)
    await cluster.passes(2)
    labels: dict[str, Any] = {} if by_plan else {"kueue.x-k8s.io/priority-class": "high"}
    cluster.submit("gang", gpus=8, **labels)
    await cluster.passes(1)
    if by_plan:
        cluster.deactivate("victim", for_gang="gang")
    await cluster.passes(5)
    assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim"), cluster.says("gang")


async def later(cluster: SimCluster, minutes: int) -> None:
    cluster.client.now += timedelta(minutes=minutes)
    await cluster.passes(1)


BY = pytest.mark.parametrize("by_plan", [True, False], ids=["by our plan", "by Kueue"])


# ---------------------------------------------------------------------------------------------------- that end never


@BY
async def test_a_pod_that_never_ends_is_not_waited_for_where_there_is_room_beside_it(by_plan: bool) -> None:
    cluster = await cluster_with_a_victim(2, NEVER, by_plan=by_plan)
    await later(cluster, 4)
    assert not cluster.is_admitted("gang"), "it is not overdue yet"
    await later(cluster, 2)
    assert cluster.says("gang") == "Ready: fits whole: 1 pod on 1 node (b)"
    await cluster.passes(1)
    assert cluster.is_running("gang")


@BY
async def test_without_room_beside_it_the_gang_lacks_nodes_and_keeps_none_from_others(by_plan: bool) -> None:
    cluster = await cluster_with_a_victim(1, NEVER, by_plan=by_plan)
    await later(cluster, 6)
    assert cluster.report.plan.reasons == {"NodesLacking": 1}
    assert "does not wait for 1 pod of ns/job-victim" in cluster.says("gang")
    assert cluster.says("gang").endswith("long past the termination deadline")
    cluster.add_node("small", 4)
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": cluster.queue_spec(100)})
    cluster.submit("later", gpus=4)
    await cluster.passes(2)
    assert cluster.is_running("later")


async def test_nodes_are_asked_for_once_it_is_clear_that_the_pod_may_never_end() -> None:
    cluster = ProvisioningCluster({"a": 8}, quota=8, scenarios=NOBODY, **PREEMPTS)
    await lose(cluster, NEVER)
    await later(cluster, 4)
    assert cluster.requests("gang") == []
    await later(cluster, 2)
    assert cluster.requests("gang") == ["1: New"]


@BY
async def test_where_nothing_else_stands_for_the_pod_it_is_waited_for_and_said_to_be_overdue(by_plan: bool) -> None:
    cluster = await cluster_with_a_victim(2, NEVER, by_plan=by_plan, policy={"requireFit": False})
    await later(cluster, 60)
    assert not cluster.is_admitted("gang")
    assert cluster.says("gang").endswith(" UTC), long past the termination deadline")


# ------------------------------------------------------------------------------------------- without their Workload


@BY
@pytest.mark.parametrize("kinds", [(JOB, WORKLOAD), (WORKLOAD,)], ids=["with its job", "alone"])
async def test_a_victim_whose_workload_is_deleted_still_has_its_pods(kinds: tuple[Any, ...], by_plan: bool) -> None:
    cluster = await cluster_with_a_victim(2, 60.0, by_plan=by_plan, policy={"requireFit": False})
    for kind in kinds:
        name = "victim" if kind is JOB else cluster.workload("victim")["metadata"]["name"]
        cluster.client.remove(kind, "ns", name)
    await cluster.passes(20)
    assert not cluster.is_admitted("gang"), cluster.says("gang")
    assert "1 pod of ns/job-victim" in cluster.says("gang")
    await cluster.passes(40)
    assert cluster.is_running("gang")


@BY
async def test_pods_of_the_workload_that_follows_a_deleted_victim_are_not_waited_for(by_plan: bool) -> None:
    """Its job gets another Workload of the same name, and runs again elsewhere, before the old pod has ended."""
    cluster = await cluster_with_a_victim(2, 60.0, by_plan=by_plan, policy={"requireFit": False})
    [old] = cluster.pods("victim")
    cluster.client.remove(WORKLOAD, "ns", cluster.workload("victim")["metadata"]["name"])
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": cluster.queue_spec(100, **PREEMPTS)})
    await cluster.passes(20)
    assert {pod["spec"]["nodeName"] for pod in cluster.pods("victim")} == {"a", "b"}
    assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim"), cluster.says("gang")
    await cluster.passes(40)
    assert old["metadata"]["name"] not in {pod["metadata"]["name"] for pod in cluster.pods("victim")}
    assert cluster.is_running("gang"), cluster.says("gang")
    assert cluster.is_running("victim")


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_plan_is_in_the_message_while_it_is_active_and_not_once_it_is_over(
    is_granted: bool,
) -> None:
    cluster = SimCluster({"a": 8})
    cluster.submit("victim", gpus=8)
    await cluster.passes(2)
    cluster.submit("gang", gpus=8)
    await cluster.passes(1)
    name = cluster.workload("victim")["metadata"]["name"]
    cluster.client.add(SCALABLE_WORKLOAD, cluster._scalable("victim", name, "gang", is_granted=is_granted))
    await cluster.passes(31)
    assert ("plan plan-1 frees GPUs of ns/victim" in cluster.says("gang")) is is_granted


async def test_a_new_leader_finds_the_pods_of_a_deleted_victim_by_its_scalable_workload() -> None:
    cluster = await cluster_with_a_victim(2, 60.0, policy={"requireFit": False})
    cluster.client.remove(JOB, "ns", "victim")
    cluster.client.remove(WORKLOAD, "ns", cluster.workload("victim")["metadata"]["name"])
    cluster.restart()
    await cluster.passes(20)
    assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/victim")
    await cluster.passes(40)
    assert cluster.is_running("gang")


async def test_a_new_leader_waits_for_the_pods_of_a_deleted_victim_that_kueue_preempted_until_they_are_stuck() -> None:
    """Nothing in the API tells any more for which gang it was preempted."""
    for ends_after in (60.0, NEVER):
        cluster = await cluster_with_a_victim(2, ends_after, by_plan=False, policy={"requireFit": False})
        cluster.client.remove(JOB, "ns", "victim")
        cluster.client.remove(WORKLOAD, "ns", cluster.workload("victim")["metadata"]["name"])
        cluster.restart()
        await cluster.passes(20)
        assert not cluster.is_admitted("gang")
        assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/"), cluster.says("gang")
        if ends_after == NEVER:
            await later(cluster, 6)
        await cluster.passes(45)
        assert cluster.is_running("gang")


async def test_gated_pods_of_a_victim_are_none_that_end() -> None:
    """Its owner makes the next ones at once, and Kueue keeps them behind its gate: they hold nothing."""
    cluster = await cluster_with_a_victim(2, 20.0, by_plan=False, policy={"requireFit": False})
    owner = cluster.workload("victim")["metadata"]["ownerReferences"]
    cluster.controllers = cluster.controllers[:1]  # type: ignore[assignment]
    spec = {
        "nodeSelector": {"nowhere": "yes"},
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "containers": [{"name": "main", "image": "train:1", "resources": {"limits": {GPU: "8"}}}],
    }
    body = {"metadata": {"name": "next", "namespace": "ns", "ownerReferences": owner}, "spec": spec}
    cluster.client.add(POD, json.loads(json.dumps({**body, "status": {"phase": "Pending"}})))
    for pod in cluster.pods("victim"):
        if pod["metadata"]["name"] != "next":
            cluster.client.remove(POD, "ns", pod["metadata"]["name"])
    await cluster.passes(1)
    assert cluster.entry("gang")["state"] == "Ready", cluster.says("gang")


# -------------------------------------------------------------------------------------------- what the API refuses


def refusing(cluster: SimCluster, status: int) -> list[str]:
    """The statuses that were written from now on, and not taken."""
    refused: list[str] = []

    def refuse(path: str) -> None:
        if "/workloads/" in path and path.endswith("/status"):
            refused.append(path)
            raise KubeError("not taken", status=status, reason="Conflict" if status == 409 else "Refused")

    cluster.api.before_patch = refuse
    return refused


@pytest.mark.parametrize("status", [403, 422, 500, 409])
async def test_an_entry_that_is_not_taken_is_written_ever_more_rarely(status: int) -> None:
    """After 0, 1, 3, 7, 15, 31 s, and then once a minute; after a conflict once more at the start."""
    cluster = SimCluster({"a": 8})
    cluster.submit("gang", gpus=8)
    await cluster.passes(1, ticks=False)
    refused = refusing(cluster, status)
    await cluster.passes(50)
    assert 6 <= len(refused) <= 7
    cluster.api.before_patch = lambda _: None
    await cluster.passes(60)
    assert cluster.is_running("gang")


async def test_after_the_first_conflict_and_only_then_an_entry_is_tried_again_at_once() -> None:
    for status, expected in ((409, 2), (422, 1)):
        cluster = SimCluster({"a": 8})
        await cluster.passes(1)
        cluster.submit("gang", gpus=8)
        await cluster.passes(1, ticks=False)
        refused = refusing(cluster, status)
        for _ in range(3):
            await cluster.admission.tick(cluster.client.now)
        assert len(refused) == expected
