"""Deactivation and its traps, checks, and edits of jobs: the embedded Kueue in virtual time, held to recordings."""

import pytest
from sim.kueue_cluster import KueueCluster, cluster_queue, job, ray_cluster

from scaler.kube.objects.resources import ADMISSION_CHECK, CLUSTER_QUEUE, JOB, POD, RAY_CLUSTER, WORKLOAD

ADMITTED = ("active", "QuotaReserved=True/QuotaReserved", "Admitted=True/Admitted")


@pytest.fixture
def world() -> KueueCluster:
    return KueueCluster()


def gated_world() -> KueueCluster:
    world = KueueCluster(cluster_queue(checks=("gate",)))
    world.add_check()
    return world


async def test_a_deactivated_gang_is_evicted_suspended_and_only_then_without_quota(world: KueueCluster) -> None:
    await world.submit_and_run(ray_cluster("ray"), RAY_CLUSTER)
    await world.set_active("ray", False)
    assert world.state("ray") == ("inactive", *ADMITTED[1:2], "Evicted=True/Deactivated", *ADMITTED[2:])
    assert world.job("ray", RAY_CLUSTER)["spec"]["suspend"] is True
    assert world.job("ray", RAY_CLUSTER)["status"]["state"] == "ready"
    await world.run()
    assert world.job("ray", RAY_CLUSTER)["status"]["state"] == "suspended"
    assert world.state("ray") == (
        "inactive",
        "QuotaReserved=False/Deactivated",
        "Evicted=True/Deactivated",
        "Admitted=False/NoReservation",
        "Requeued=False/Deactivated",
    )
    assert "admission" not in world.workload("ray")["status"]


async def test_a_deactivation_target_set_by_others_turns_every_reactivation_back(world: KueueCluster) -> None:
    await world.submit_and_run(job("train"))
    name = world.workload("train")["metadata"]["name"]
    status = world.workload("train")["status"]
    target = {"type": "DeactivationTarget", "status": "True", "reason": "IdleGPU", "message": "idle"}
    changed = {"status": {"conditions": [*status["conditions"], target]}}
    world.client.change(WORKLOAD, "ns", name, changed, "status")
    await world.run()
    assert "Evicted=True/DeactivatedDueToIdleGPU" in world.state("train")
    await world.set_active("train", True)
    assert world.state("train")[0] == "inactive"


async def test_an_eviction_resets_the_check_and_keeps_what_its_controller_left_there() -> None:
    world = gated_world()
    await world.submit(job("gang"))
    updates = [{"name": "main", "labels": {"zone": "a"}, "nodeSelector": {"pool": "b"}}]
    await world.answer("gang", "Ready", podSetUpdates=updates)
    await world.run()
    pod = world.client.all(POD)[0]
    assert pod["metadata"]["labels"]["zone"] == "a"
    assert pod["spec"]["nodeSelector"] == {"pool": "b"}
    await world.set_active("gang", False)
    check = world.check("gang")
    assert (check["state"], check["message"]) == ("Pending", "Reset to Pending after eviction. Previously: Ready")
    assert check["podSetUpdates"] == updates


async def test_a_check_that_wants_a_retry_evicts_and_the_gang_is_requeued_behind_the_others() -> None:
    world = KueueCluster(cluster_queue(checks=("gate",), queueingStrategy="StrictFIFO"))
    world.add_check()
    await world.submit(job("gang"))
    await world.submit(job("other"))
    await world.settle(5)
    await world.answer("gang", "Retry", "no capacity")
    assert "Requeued=True/BackoffFinished" in world.state("gang")
    assert world.check("gang")["retryCount"] == 1
    assert ADMITTED[1] in world.state("other")
    assert ADMITTED[1] not in world.state("gang")


async def test_a_retry_with_a_delay_keeps_its_quota_until_then() -> None:
    world = gated_world()
    await world.submit(job("gang"))
    await world.answer("gang", "Retry", "later", requeueAfterSeconds=10)
    await world.settle(9)
    assert ADMITTED[1] in world.state("gang")
    assert "Requeued=True/BackoffFinished" not in world.state("gang")
    await world.settle(2)
    assert "Requeued=True/BackoffFinished" in world.state("gang")


async def test_a_rejecting_check_deactivates_and_reactivation_alone_does_not_help() -> None:
    world = gated_world()
    await world.submit(job("gang"))
    await world.answer("gang", "Rejected", "no capacity")
    assert world.state("gang")[0] == "inactive"
    assert "Evicted=True/DeactivatedDueToAdmissionCheck" in world.state("gang")
    await world.set_active("gang", True)
    await world.settle(5)
    assert world.state("gang")[0] == "active"
    assert "Requeued=False/DeactivatedDueToAdmissionCheck" in world.state("gang")


async def test_a_queue_is_inactive_until_its_check_is_active() -> None:
    world = KueueCluster(cluster_queue(checks=("gate",)))
    await world.submit(job("gang"))
    queue = world.client.find(CLUSTER_QUEUE, "", "cq")
    assert queue is not None
    assert queue["status"]["conditions"][0]["reason"] == "AdmissionCheckNotFound"
    world.add_check(active=False)
    await world.settle(1)
    queue = world.client.find(CLUSTER_QUEUE, "", "cq")
    assert queue is not None
    assert queue["status"]["conditions"][0]["reason"] == "AdmissionCheckInactive"
    active = {"conditions": [{"type": "Active", "status": "True", "reason": "Active", "message": ""}]}
    world.client.change(ADMISSION_CHECK, "", "gate", {"status": active}, "status")
    await world.settle(1)
    assert ADMITTED[1] in world.state("gang")


async def test_an_edit_of_a_running_job_makes_a_new_workload_which_is_active(world: KueueCluster) -> None:
    await world.submit_and_run(job("train"))
    before = world.workload("train")["metadata"]
    world.client.change(JOB, "ns", "train", {"spec": {"parallelism": 1, "completions": 1}})
    await world.run()
    await world.run(1)
    after = world.workload("train")
    assert after["metadata"]["name"] == before["name"]
    assert after["metadata"]["uid"] != before["uid"]
    assert world.is_admitted("train")
    assert after["spec"]["podSets"][0]["template"]["metadata"] == {}


@pytest.mark.parametrize("kill_after", range(8))
async def test_a_kueue_that_is_killed_at_any_step_of_a_deactivation_finishes_it(
    world: KueueCluster, kill_after: int
) -> None:
    await world.submit_and_run(job("victim"))
    await world.submit(job("gang"))
    name = world.workload("victim")["metadata"]["name"]
    world.client.change(WORKLOAD, "ns", name, {"spec": {"active": False}})
    for _ in range(kill_after):
        for controller in world.controllers:
            await controller.tick(world.client.now)
            world.start_controllers()
    await world.run(1)
    await world.run(1)
    assert world.is_admitted("gang")
    assert "QuotaReserved=False/Deactivated" in world.state("victim")
