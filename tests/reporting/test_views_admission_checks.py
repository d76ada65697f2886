"""What any replica tells of gangs at the gate: the same as the leader finds, without a write; and how it is shown."""

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


def another_replica(town: ProvisioningCluster) -> AdmissionPlanner:
    """With the same watches, and none of the leader's state."""
    ours = town.planner
    return AdmissionPlanner(
        ours.watch,
        ours._terminating,
        ours._policies,
        ours.requests,
        ours.flavors,
        capacity=ours._capacity,
        quota=ours._quota,
    )


async def seen(town: ProvisioningCluster, job: str = "gang") -> Json:
    """What is shown of the job's only check."""
    meta = town.workload(job)["metadata"]
    plan = await another_replica(town).plan(town.client.now)
    [shown] = CheckViews(plan.workloads, plan.unknown_requests).of(f"ns/{meta['name']}", town.client.now)
    return shown


async def nodes(town: ProvisioningCluster, job: str = "gang") -> Json:
    shown = (await seen(town, job))["provisioning"]
    assert isinstance(shown, dict)
    return shown


# ------------------------------------------------------------------------------------------------ what the leader finds


def provisioned_at_the_second_attempt() -> ProvisioningCluster:
    town = ProvisioningCluster({"a": 8}, scenarios=[failing(1)])
    town.submit("gang", pods=2, gpus=8)
    return town


def one_behind_the_other() -> ProvisioningCluster:
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("train", gpus=8)
    town.submit("gang", pods=2, gpus=8)
    town.submit("late", gpus=8)
    return town


def taken_from_another() -> ProvisioningCluster:
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("victim", gpus=8)
    town.termination["victim"] = 5.0
    return town


@pytest.mark.parametrize("story", [provisioned_at_the_second_attempt, one_behind_the_other, taken_from_another])
async def test_any_replica_finds_at_every_moment_what_the_leader_finds(story: Any) -> None:
    town = story()
    if story is taken_from_another:
        await town.passes(1)
        town.submit("gang", gpus=8)
        await town.passes(1)
        town.deactivate("victim", for_gang="gang")
    reasons = set()
    for _ in range(20):
        await town.passes(1)
        writes = list(town.api.writes)
        plan = await another_replica(town).plan(town.client.now)
        found = {each.name: change for each, change in plan.changes if each.is_pending}
        assert found == {each.name: change for each, change in town.report.plan.changes if each.is_pending}
        assert town.api.writes == writes
        reasons |= {answer.because for answer in found.values()}
    assert reasons, "none was pending"


# ------------------------------------------------------------------------------------------------------ how it is shown


async def test_a_gang_whose_nodes_are_on_their_way_is_shown_with_when_they_come() -> None:
    scenario = Scenario(accepted_after=timedelta(seconds=1), tells_eta=True, provisioned_after=timedelta(seconds=90))
    town = ProvisioningCluster({"a": 8}, scenarios=[scenario])
    town.submit("gang", pods=2, gpus=8)
    await town.passes(5)
    shown = await seen(town)
    assert (shown["check"], shown["policy"], shown["state"], shown["reason"]) == (
        "gate", "policy", "Pending", "NodesComing"
    )  # fmt: skip
    assert shown["message"] == town.entry("gang")["message"]
    assert shown["since"] == town.entry("gang")["lastTransitionTime"]
    asked = shown["provisioning"]
    assert (asked["attempt"], asked["attemptsAllowed"], asked["nextAttemptAt"]) == (1, 3, None)
    [request] = asked["requests"]
    # Accepted one second after it was made, and 90 s from then on.
    assert (request["state"], request["pods"], request["eta"]) == ("Accepted", 2, asked["eta"])
    conditions = {each["type"]: each["status"] for each in request["conditions"]}
    assert conditions == {"Accepted": "True", "Provisioned": "False"}
    assert f"ETA: {asked['eta']}" in request["message"]


async def test_a_pause_after_a_failure_says_until_when_and_all_attempts_stay_in_sight() -> None:
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    town.answer(town.newest("gang"), "Failed", "no such nodes left")
    await town.passes(1)
    failed_at = town.client.now - timedelta(seconds=1)
    asked = await nodes(town)
    assert (asked["state"], asked["attempt"]) == ("BackOff", 1)
    assert asked["nextAttemptAt"] == f"{failed_at + timedelta(seconds=10):%Y-%m-%dT%H:%M:%SZ}"
    await town.passes(12)
    asked = await nodes(town)
    assert (asked["state"], asked["attempt"], asked["nextAttemptAt"]) == ("Wait", 2, None)
    assert [(each["attempt"], each["state"]) for each in asked["requests"]] == [(1, "Failed"), (2, "New")]
    assert asked["requests"][0]["message"] == "no such nodes left"


@pytest.mark.parametrize("at_limit", ["Hold", "Yield"])
async def test_at_the_limit_it_is_shown_that_no_more_are_made(at_limit: str) -> None:
    retry = {"limit": 0, "base": "1s", "max": "1s"}
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY, provisioning={"retry": retry, "atLimit": at_limit})
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    town.answer(town.newest("gang"), "Failed", "no such nodes left")
    await town.passes(3)
    asked = await nodes(town)
    assert (asked["state"], asked["atLimit"], asked["attempt"], asked["attemptsAllowed"]) == ("AtLimit", at_limit, 1, 1)
    assert asked["nextAttemptAt"] is None


async def test_time_that_is_left_to_reuse_is_shown_before_anybody_is_asked() -> None:
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY, provisioning={"after": "30s"})
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    asked = await nodes(town)
    reserved = next(each for each in town.workload("gang")["status"]["conditions"] if each["type"] == "QuotaReserved")
    until = datetime.fromisoformat(reserved["lastTransitionTime"]) + timedelta(seconds=30)
    assert (asked["attempt"], asked["requests"]) == (0, [])
    assert asked["nextAttemptAt"] == f"{until:%Y-%m-%dT%H:%M:%SZ}"
    assert "requests nodes at" in asked["message"]


async def test_gangs_that_wait_longer_for_nodes_come_before() -> None:
    """The first five are named."""
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("train", gpus=8)
    await town.passes(2)
    names = [f"gang-{place}" for place in range(8)]
    for name in names:
        town.submit(name, gpus=8)
        await town.passes(2)
    keys = [f"ns/{town.workload(name)['metadata']['name']}" for name in names]
    for place, name in enumerate(names):
        shown = await seen(town, name)
        assert (shown["before"], shown["beforeOmitted"]) == (keys[: min(place, 5)], max(0, place - 5))
    train = await seen(town, "train")
    assert (train["state"], train["reason"], train["before"]) == ("Ready", None, [])


async def test_one_that_was_let_go_shows_the_request_that_its_pods_consume() -> None:
    town = ProvisioningCluster({"a": 8}, scenarios=[QUICK])
    town.submit("gang", pods=2, gpus=8)
    await town.passes(10)
    shown = await seen(town)
    assert (shown["state"], shown["reason"], shown["finds"]) == ("Ready", None, None)
    [request] = shown["provisioning"]["requests"]
    assert {each["type"]: each["status"] for each in request["conditions"]}["Provisioned"] == "True"


async def test_where_requests_are_not_served_that_is_said() -> None:
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("gang", pods=2, gpus=8)
    town.request_copy.trouble = "the API server serves no ProvisioningRequests"
    await town.passes(2)
    asked = await nodes(town)
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
