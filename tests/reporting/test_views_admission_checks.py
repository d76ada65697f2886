"""What any replica shows of gangs with our AdmissionCheck: what the leader finds, without a write."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from admission.checked_workloads import pending
from builders import NOON
from scaler_sandbox.autoscaler import Scenario
from sim.provisioning_cluster import NOBODY, QUICK, ProvisioningCluster, failing

from scaler.admission.check import Yielded
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.policy import CheckPolicy, Unusable
from scaler.reporting.views.admission_checks import CheckViews

Json = dict[str, Any]


def another_replica(cluster: ProvisioningCluster) -> AdmissionPlanner:
    """With the same watches, and none of the leader's state."""
    ours = cluster.planner
    return AdmissionPlanner(
        ours.watch,
        ours._terminating,
        ours._policies,
        ours.requests,
        ours.flavors,
        capacity=ours._capacity,
        quota=ours._quota,
    )


async def shown_of(cluster: ProvisioningCluster, job: str = "gang") -> Json:
    """What is shown of the job's only check."""
    meta = cluster.workload(job)["metadata"]
    plan = await another_replica(cluster).plan(cluster.client.now)
    [shown] = CheckViews(plan.workloads, plan.unknown_requests).of(f"ns/{meta['name']}", cluster.client.now)
    return shown


async def nodes(cluster: ProvisioningCluster, job: str = "gang") -> Json:
    shown = (await shown_of(cluster, job))["provisioning"]
    assert isinstance(shown, dict)
    return shown


# ------------------------------------------------------------------------------------------------ what the leader finds


SUBMITTED = {
    "provisioned at the second attempt": ([failing(1)], {"gang": (2, 8)}),
    "one behind the other": (NOBODY, {"train": (1, 8), "gang": (2, 8), "late": (1, 8)}),
    "after a victim that terminates": (NOBODY, {"victim": (1, 8), "gang": (1, 8)}),
}


@pytest.mark.parametrize(("scenarios", "jobs"), SUBMITTED.values(), ids=SUBMITTED)
async def test_any_replica_finds_at_every_moment_what_the_leader_finds(
    scenarios: list[Scenario], jobs: dict[str, tuple[int, int]]
) -> None:
    cluster = ProvisioningCluster({"a": 8}, scenarios=scenarios)
    cluster.termination["victim"] = 5.0
    for name, (pods, gpus) in jobs.items():
        cluster.submit(name, pods=pods, gpus=gpus)
        await cluster.passes(1)
    if "victim" in jobs:
        cluster.deactivate("victim", for_gang="gang")
    reasons = set()
    for _ in range(20):
        await cluster.passes(1)
        writes = list(cluster.api.writes)
        plan = await another_replica(cluster).plan(cluster.client.now)
        found = {each.name: change for each, change in plan.changes if each.is_pending}
        assert found == {each.name: change for each, change in cluster.report.plan.changes if each.is_pending}
        assert cluster.api.writes == writes
        reasons |= {answer.because for answer in found.values()}
    assert reasons, "none was pending"


def gang_of_16(**more: Any) -> ProvisioningCluster:
    """It lacks 8 GPUs."""
    cluster = ProvisioningCluster({"a": 8}, **{"scenarios": NOBODY} | more)
    cluster.submit("gang", pods=2, gpus=8)
    return cluster


# ------------------------------------------------------------------------------------------------------ how it is shown


async def test_a_gang_whose_nodes_are_on_their_way_is_shown_with_when_they_come() -> None:
    scenario = Scenario(accepted_after=timedelta(seconds=1), tells_eta=True, provisioned_after=timedelta(seconds=90))
    cluster = gang_of_16(scenarios=[scenario])
    await cluster.passes(5)
    shown = await shown_of(cluster)
    assert (shown["check"], shown["policy"], shown["state"], shown["reason"]) == (
        "gate", "policy", "Pending", "NodesComing"
    )  # fmt: skip
    assert shown["message"] == cluster.entry("gang")["message"]
    assert shown["since"] == cluster.entry("gang")["lastTransitionTime"]
    asked = shown["provisioning"]
    assert (asked["attempt"], asked["attemptsAllowed"], asked["nextAttemptAt"]) == (1, 3, None)
    [request] = asked["requests"]
    # Accepted one second after it was made, and 90 s from then on.
    assert (request["state"], request["pods"], request["eta"]) == ("Accepted", 2, asked["eta"])
    conditions = {each["type"]: each["status"] for each in request["conditions"]}
    assert conditions == {"Accepted": "True", "Provisioned": "False"}
    assert f"ETA: {asked['eta']}" in request["message"]


async def test_a_pause_after_a_failure_is_shown_with_its_end_and_all_attempts() -> None:
    cluster = gang_of_16()
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "Failed", "no such nodes left")
    await cluster.passes(1)
    failed_at = cluster.client.now - timedelta(seconds=1)
    asked = await nodes(cluster)
    assert (asked["state"], asked["attempt"]) == ("BackOff", 1)
    assert asked["nextAttemptAt"] == f"{failed_at + timedelta(seconds=10):%Y-%m-%dT%H:%M:%SZ}"
    await cluster.passes(12)
    asked = await nodes(cluster)
    assert (asked["state"], asked["attempt"], asked["nextAttemptAt"]) == ("Wait", 2, None)
    assert [(each["attempt"], each["state"]) for each in asked["requests"]] == [(1, "Failed"), (2, "New")]
    assert asked["requests"][0]["message"] == "no such nodes left"


@pytest.mark.parametrize("at_limit", ["Hold", "Yield"])
async def test_at_the_limit_it_is_shown_that_no_more_are_made(at_limit: str) -> None:
    retry = {"limit": 0, "base": "1s", "max": "1s"}
    cluster = gang_of_16(provisioning={"retry": retry, "atLimit": at_limit})
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "Failed", "no such nodes left")
    await cluster.passes(3)
    asked = await nodes(cluster)
    assert (asked["state"], asked["atLimit"], asked["attempt"], asked["attemptsAllowed"]) == ("AtLimit", at_limit, 1, 1)
    assert asked["nextAttemptAt"] is None


async def test_time_that_is_left_to_reuse_is_shown_before_nodes_are_requested() -> None:
    cluster = gang_of_16(provisioning={"after": "30s"})
    await cluster.passes(2)
    asked = await nodes(cluster)
    reserved = next(
        each for each in cluster.workload("gang")["status"]["conditions"] if each["type"] == "QuotaReserved"
    )
    until = datetime.fromisoformat(reserved["lastTransitionTime"]) + timedelta(seconds=30)
    assert (asked["attempt"], asked["requests"]) == (0, [])
    assert asked["nextAttemptAt"] == f"{until:%Y-%m-%dT%H:%M:%SZ}"
    assert "requests nodes at" in asked["message"]


async def test_gangs_that_wait_longer_for_nodes_come_before() -> None:
    """The first five are named."""
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    cluster.submit("train", gpus=8)
    await cluster.passes(2)
    names = [f"gang-{place}" for place in range(8)]
    for name in names:
        cluster.submit(name, gpus=8)
        await cluster.passes(2)
    keys = [f"ns/{cluster.workload(name)['metadata']['name']}" for name in names]
    for place, name in enumerate(names):
        shown = await shown_of(cluster, name)
        assert (shown["before"], shown["beforeOmitted"]) == (keys[: min(place, 5)], max(0, place - 5))
    train = await shown_of(cluster, "train")
    assert (train["state"], train["reason"], train["before"]) == ("Ready", None, [])


async def test_a_released_gang_shows_the_request_that_its_pods_consume() -> None:
    cluster = gang_of_16(scenarios=[QUICK])
    await cluster.passes(10)
    shown = await shown_of(cluster)
    assert (shown["state"], shown["reason"], shown["finds"]) == ("Ready", None, None)
    [request] = shown["provisioning"]["requests"]
    assert {each["type"]: each["status"] for each in request["conditions"]}["Provisioned"] == "True"


async def test_where_requests_are_not_served_that_is_said() -> None:
    cluster = gang_of_16()
    cluster.request_copy.trouble = "the API server serves no ProvisioningRequests"
    await cluster.passes(2)
    asked = await nodes(cluster)
    assert (asked["state"], asked["message"]) == ("Stuck", "the API server serves no ProvisioningRequests")


# ---------------------------------------------------------------------------------------------------- the shape of it


def view(**fields: Any) -> Json:
    [shown] = CheckViews([pending("ns/gang", **fields)]).of("ns/gang", NOON)
    return shown


def test_a_check_without_provisioning_shows_none() -> None:
    for policy in (CheckPolicy(), Unusable("it is broken")):
        shown = view(policy=policy)
        assert (shown["provisioning"], shown["yielded"]) == (None, None)


def test_that_it_gave_its_quota_back_is_shown_with_when_it_may_again() -> None:
    yielded = Yielded(to="plan x", at=NOON, times=2)
    # 1 minute after the first time, 2 after the second.
    assert view(reserved=replace(pending("ns/gang").reserved, yielded=yielded))["yielded"] == {
        "to": "plan x",
        "at": "2026-12-01T12:00:00Z",
        "times": 2,
        "notAgainBefore": "2026-12-01T12:02:00Z",
    }
