"""Deactivation and its traps, checks, and edits of jobs: the embedded Kueue in virtual time, held to recordings."""

import pytest
from sim.kueue_cluster import KueueCluster, cluster_queue, job, ray_cluster

from scaler.kube.objects.resources import ADMISSION_CHECK, CLUSTER_QUEUE, JOB, LOCAL_QUEUE, POD, RAY_CLUSTER, WORKLOAD

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


async def test_a_gang_that_never_had_quota_is_deactivated_without_a_requeued_condition(world: KueueCluster) -> None:
    await world.submit(job("holder"))
    await world.submit(job("waiting"))
    await world.set_active("waiting", False)
    assert world.state("waiting") == (
        "inactive",
        "QuotaReserved=False/Deactivated",
        "Evicted=True/Deactivated",
        "Admitted=False/NoReservation",
    )
    await world.set_active("waiting", True)
    assert "QuotaReserved=False/WaitingForQuota" in world.state("waiting")


async def test_toggling_back_within_a_second_costs_the_pods_and_gives_the_waiting_gang_nothing(
    world: KueueCluster,
) -> None:
    await world.submit_and_run(job("victim"))
    first_pods = {pod["metadata"]["uid"] for pod in world.client.all(POD)}
    await world.submit(job("gang"))
    await world.settle(5)
    await world.set_active("victim", False)
    await world.settle(0.3)
    await world.set_active("victim", True)
    await world.settle(0.7)
    assert not world.is_admitted("gang")
    await world.run()
    await world.run(1)
    assert world.is_admitted("victim")
    assert not world.is_admitted("gang")
    assert first_pods.isdisjoint(pod["metadata"]["uid"] for pod in world.client.all(POD))


async def test_toggling_back_after_a_second_finds_the_quota_taken(world: KueueCluster) -> None:
    await world.submit_and_run(ray_cluster("victim"), RAY_CLUSTER)
    await world.submit(job("gang"))
    await world.settle(5)
    await world.set_active("victim", False)
    await world.settle(1.1)
    await world.set_active("victim", True)
    assert world.is_admitted("gang")
    # For a moment both show a reservation, as on a real Kueue.
    assert ADMITTED[1] in world.state("victim")
    await world.run()
    assert "QuotaReserved=False/WaitingForQuota" in world.state("victim")


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


async def test_a_local_queue_that_is_stopped_and_started_lets_a_stuck_gang_in() -> None:
    world = gated_world()
    await world.submit(job("gang"))
    await world.answer("gang", "Rejected", "no capacity")
    await world.set_active("gang", True)
    world.client.change(LOCAL_QUEUE, "ns", "lq", {"spec": {"stopPolicy": "Hold"}})
    await world.settle()
    assert "QuotaReserved=False/Suspended" in world.state("gang")
    world.client.change(LOCAL_QUEUE, "ns", "lq", {"spec": {"stopPolicy": "None"}})
    await world.settle()
    assert ADMITTED[1] in world.state("gang")
    assert "Requeued=False/DeactivatedDueToAdmissionCheck" in world.state("gang")


async def test_a_gang_whose_check_fails_before_it_has_quota_is_not_looked_at() -> None:
    world = KueueCluster(cluster_queue(checks=("gate",)))
    world.add_check()
    await world.submit(job("holder"))
    await world.submit(job("gang"))
    await world.answer("gang", "Retry", "too early")
    await world.set_active("holder", False)
    await world.run(2)
    assert "QuotaReserved=False/PendingEvaluation" in world.state("gang")
    assert world.why_waiting("gang") == "The workload has failed admission checks"


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


async def test_a_check_added_to_a_live_queue_leaves_running_gangs_alone_and_its_removal_admits_held_ones(
    world: KueueCluster,
) -> None:
    await world.submit_and_run(job("running", pods=1))
    world.add_check()
    checks = {"admissionChecks": [{"name": "gate"}]}
    world.client.change(CLUSTER_QUEUE, "", "cq", {"spec": {"admissionChecksStrategy": checks}})
    await world.submit(job("held", pods=1))
    assert world.is_admitted("running")
    assert world.check("running")["state"] == "Pending"
    assert not world.is_admitted("held")
    world.client.change(CLUSTER_QUEUE, "", "cq", {"spec": {"admissionChecksStrategy": None}})
    await world.settle()
    assert world.is_admitted("held")


async def test_an_edit_of_a_waiting_job_updates_its_workload_in_place(world: KueueCluster) -> None:
    await world.submit_and_run(job("train"))
    await world.set_active("train", False)
    await world.run()
    before = world.workload("train")["metadata"]["uid"]
    world.client.change(JOB, "ns", "train", {"spec": {"parallelism": 1, "completions": 1}})
    await world.settle()
    after = world.workload("train")
    assert after["metadata"]["uid"] == before
    assert after["spec"]["podSets"][0]["count"] == 1
    assert after["spec"]["active"] is False


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


async def test_a_workload_that_was_deleted_while_inactive_comes_back_active(world: KueueCluster) -> None:
    await world.submit_and_run(job("train"))
    await world.set_active("train", False)
    await world.run()
    world.client.remove(WORKLOAD, "ns", world.workload("train")["metadata"]["name"])
    await world.settle()
    assert world.is_admitted("train")


async def test_a_deleted_job_is_left_to_end(world: KueueCluster) -> None:
    await world.submit_and_run(job("train"))
    gone = {"metadata": {"deletionTimestamp": "2026-11-20T12:00:00Z"}}
    world.client.change(JOB, "ns", "train", gone)
    world.client.remove(WORKLOAD, "ns", world.workload("train")["metadata"]["name"])
    await world.settle()
    assert world.client.all(WORKLOAD) == []


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
