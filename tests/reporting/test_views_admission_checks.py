"""What any replica shows of gangs with our AdmissionCheck: what the leader finds, without a write."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from admission.checked_workloads import pending
from builders import NOON, at
from sim.provisioning_cluster import NOBODY, QUICK, ProvisioningCluster, failing

from scaler.admission.check import Yielded
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.policy import CheckPolicy, Unusable
from scaler.placement.requests import Insufficient
from scaler.placement.shortage import Misfit, Shortage
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


async def test_any_replica_finds_at_every_moment_what_the_leader_finds_and_writes_nothing() -> None:
    cluster = ProvisioningCluster({"a": 8}, scenarios=[failing(1)])
    cluster.termination["victim"] = 5.0
    for name, pods in {"victim": 1, "gang": 2, "late": 1}.items():
        cluster.submit(name, pods=pods, gpus=8)
        await cluster.passes(1)
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
    assert len(reasons) > 2


async def test_a_gang_shows_its_requests_for_nodes_from_the_first_pause_to_its_release() -> None:
    """It lacks 8 GPUs. The first request fails, the second is provisioned after 90 s."""
    comes = replace(QUICK, tells_eta=True, provisioned_after=timedelta(seconds=90))
    cluster = ProvisioningCluster({"a": 8}, scenarios=[comes], provisioning={"after": "30s"})
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    asked = await nodes(cluster)
    conditions = cluster.workload("gang")["status"]["conditions"]
    [reserved] = [each["lastTransitionTime"] for each in conditions if each["type"] == "QuotaReserved"]
    until = datetime.fromisoformat(reserved) + timedelta(seconds=30)
    assert (asked["attempt"], asked["requests"], asked["nextAttemptAt"]) == (0, [], f"{until:%Y-%m-%dT%H:%M:%SZ}")
    assert "requests nodes at" in asked["message"]

    await cluster.passes(30)
    cluster.answer(cluster.newest("gang"), "Failed", "no such nodes left")
    await cluster.passes(1)
    until = cluster.client.now - timedelta(seconds=1) + timedelta(seconds=10)
    asked = await nodes(cluster)
    assert (asked["state"], asked["attempt"], asked["attemptsAllowed"]) == ("BackOff", 1, 3)
    assert asked["nextAttemptAt"] == f"{until:%Y-%m-%dT%H:%M:%SZ}"

    await cluster.passes(14)
    shown = await shown_of(cluster)
    assert (shown["check"], shown["policy"], shown["state"], shown["reason"]) == (
        "gate", "policy", "Pending", "NodesComing"
    )  # fmt: skip
    assert (shown["message"], shown["since"]) == tuple(
        cluster.entry("gang")[each] for each in ("message", "lastTransitionTime")
    )
    asked = shown["provisioning"]
    assert (asked["state"], asked["attempt"], asked["nextAttemptAt"]) == ("Wait", 2, None)
    first, second = asked["requests"]
    assert (first["attempt"], first["state"], first["message"]) == (1, "Failed", "no such nodes left")
    # Accepted one second after it was made, and 90 s from then on.
    assert (second["state"], second["pods"], second["eta"]) == ("Accepted", 2, asked["eta"])
    assert f"ETA: {asked['eta']}" in second["message"]
    statuses = {each["type"]: each["status"] for each in second["conditions"]}
    assert statuses == {"Accepted": "True", "Provisioned": "False"}

    await cluster.passes(90)
    shown = await shown_of(cluster)
    assert (shown["state"], shown["reason"], shown["finds"]) == ("Ready", None, None)
    consumed = shown["provisioning"]["requests"][-1]
    assert {each["type"]: each["status"] for each in consumed["conditions"]}["Provisioned"] == "True"


async def test_where_no_more_requests_are_made_that_is_shown() -> None:
    retry = {"limit": 0, "base": "1s", "max": "1s"}
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY, provisioning={"retry": retry, "atLimit": "Yield"})
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "Failed", "no such nodes left")
    await cluster.passes(3)
    asked = await nodes(cluster)
    assert (asked["state"], asked["atLimit"], asked["attempt"], asked["attemptsAllowed"]) == ("AtLimit", "Yield", 1, 1)
    assert asked["nextAttemptAt"] is None
    cluster.request_copy.trouble = "the API server serves no ProvisioningRequests"
    await cluster.passes(2)
    asked = await nodes(cluster)
    assert (asked["state"], asked["message"]) == ("Stuck", "the API server serves no ProvisioningRequests")


# ---------------------------------------------------------------------------------------------------- the shape of it


def view(**fields: Any) -> Json:
    [shown] = CheckViews([pending("ns/gang", **fields)]).of("ns/gang", NOON)
    return shown


def test_gangs_that_wait_longer_for_nodes_come_before_and_the_first_five_are_named() -> None:
    lacking = Insufficient(because=Misfit(why=Shortage.NOT_TOGETHER, pod_set="main", count=1, missing=1))
    line = [pending(f"ns/gang-{n}", reserved_at=at(n), placement=lacking) for n in reversed(range(8))]
    views = CheckViews([*line, pending("ns/pods", reserved_at=at(-1))])
    keys = [f"ns/gang-{n}" for n in range(8)]
    for place, key in enumerate(keys):
        [shown] = views.of(key, NOON)
        assert (shown["before"], shown["beforeOmitted"]) == (keys[: min(place, 5)], max(0, place - 5))
    assert views.of("ns/pods", NOON)[0]["before"] == [], "it needs no nodes"


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
