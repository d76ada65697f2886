"""The AdmissionCheck in virtual time: which gangs wait, for what, and what a write, a watch or a new leader changes."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from scaler_sandbox.conditions import timestamp
from sim.cluster import CHECK, GPU, HOST, SimCluster
from sim.provisioning_cluster import ProvisioningCluster, failing

from scaler.admission.workload import YIELDED_ANNOTATION
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    NODE,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    WORKLOAD,
)
from scaler.kube.reflector import Absent, Disconnected

PROVISIONS = {"provisioning": {"className": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}}


RESERVED_ANEW: dict[str, Callable[[dict[str, Any]], object]] = {
    "a moment later": lambda status: status["conditions"][0].update(lastTransitionTime="2026-11-20T12:09:00Z"),
    "within the same second, on another flavor": lambda status: status["admission"]["podSetAssignments"][0].update(
        flavors={GPU: "other"}
    ),
}


@pytest.mark.parametrize("happens", RESERVED_ANEW.values(), ids=RESERVED_ANEW)
async def test_one_with_another_reservation_is_not_released_by_the_places_found_for_the_one_before(happens):
    """The copy does not show it yet. What was found for the earlier reservation says nothing of this one."""
    cluster = SimCluster({"a": 8})
    await cluster.passes(1)
    cluster.submit("gang", gpus=8)
    await cluster.passes(0, ticks=False)
    workload = cluster.workload("gang")
    status = json.loads(json.dumps(workload["status"]))
    assert status["conditions"][0]["type"] == "QuotaReserved"
    happens(status)
    cluster.change(WORKLOAD, workload["metadata"]["name"], {"status": status}, "status")
    await cluster.admission.tick(cluster.client.now)
    assert cluster.says("gang") == "Pending: "
    cluster.follow()
    await cluster.admission.tick(cluster.client.now)
    assert cluster.says("gang") != "Pending: "


# -------------------------------------------------------------------------------------------------------- pods that end


async def test_pods_are_waited_for_although_the_gang_would_fit_elsewhere_unless_the_policy_says_so():
    for waits, admitted in ((True, False), (False, True)):
        cluster = SimCluster({"a": 8, "b": 8}, quota=8, policy={"waitForPodsGone": waits})
        cluster.termination["victim"] = 90.0
        cluster.submit("victim", pods=1, gpus=8)
        await cluster.passes(2)
        cluster.submit("gang", pods=1, gpus=8)
        await cluster.passes(1)
        cluster.deactivate("victim", for_gang="gang")
        await cluster.passes(5)
        assert cluster.is_admitted("gang") is admitted


async def test_pods_are_waited_for_also_when_the_plan_is_over():
    """The grant is gone; the ledger still says who gave."""
    cluster = SimCluster({"a": 8, "b": 8}, quota=8)
    cluster.termination["victim"] = 90.0
    cluster.submit("victim", pods=1, gpus=8)
    await cluster.passes(2)
    cluster.submit("gang", pods=1, gpus=8)
    await cluster.passes(1)
    cluster.deactivate("victim", for_gang="gang", is_granted=False)
    await cluster.passes(5)
    assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/")


# ------------------------------------------------------------------------------------------------------- all or nothing


async def test_pods_are_not_tied_by_a_label_that_their_flavor_uses():
    cluster = SimCluster({"a": 8}, policy={"pin": {"enabled": True}})
    cluster.change(RESOURCE_FLAVOR, "flavor", {"spec": {"nodeLabels": {HOST: "a"}}})
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert cluster.is_running("gang")
    assert "podSetUpdates" not in cluster.entry("gang")


# ----------------------------------------------------------------------------------------------------- what is not seen


async def test_where_nodes_are_not_known_no_gang_is_released_unless_none_has_to_fit():
    for policy, admitted in (({}, False), ({"requireFit": False}, True)):
        cluster = SimCluster({"a": 8}, policy=policy or {"requireFit": True})
        cluster.blind = "not synced: Nodes (403)"
        cluster.submit("gang", gpus=8)
        await cluster.passes(3)
        assert cluster.is_admitted("gang") is admitted
        if not admitted:
            assert cluster.says("gang") == "Pending: node capacity not available: not synced: Nodes (403)"
            cluster.blind = ""
            await cluster.passes(1)
            assert cluster.is_admitted("gang")


async def test_where_workloads_are_not_watched_no_gang_is_released():
    cluster = SimCluster({"a": 8})
    cluster.copies[WORKLOAD].state = Disconnected("the watch broke")
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert cluster.says("gang").endswith("Workloads are not watched: the watch broke")


async def test_a_new_leader_says_nothing_before_everything_was_listed_and_then_what_is_missing():
    cluster = SimCluster({"a": 8})
    cluster.copies[NODE].age, cluster.copies[NODE].state = float("inf"), Disconnected("403")
    cluster.admission._patient_until = cluster.client.now + timedelta(seconds=30)
    cluster.submit("gang", gpus=8)
    await cluster.passes(10)
    assert cluster.says("gang") == "Pending: "
    assert cluster.report.plan.unknown == "not listed yet: Nodes"
    assert cluster.active() == "True", "checks are looked after all the same"
    await cluster.passes(25)
    assert cluster.says("gang").startswith("Pending: node capacity not available: not synced: Nodes (403)")


# -------------------------------------------------------------------------------------------------- checks and policies


async def test_the_check_is_active_at_once_and_stays_so_over_restarts():
    cluster = SimCluster({"a": 8})
    assert cluster.active() == "unset"
    await cluster.passes(1)
    assert cluster.active() == "True"
    written = len(cluster.api.patches)
    for _ in range(3):
        cluster.restart()
        await cluster.passes(1)
    assert len(cluster.api.patches) == written


async def test_a_check_whose_policy_is_missing_is_inactive_until_there_is_one():
    cluster = SimCluster({"a": 8}, policy={})
    await cluster.passes(1)
    assert cluster.active() == (
        "False: AdmissionCheck gate: spec.parameters: there is no ReclaimPolicy 'policy'; "
        "create it, or name another one"
    )
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert not cluster.holds_quota("gang")
    cluster.add(RECLAIM_POLICY, "policy", spec={"requireFit": True})
    await cluster.passes(3)
    assert cluster.active() == "True"
    assert cluster.is_running("gang")
    assert [event for event in cluster.recorded.reasons() if event.startswith("Check")] == [
        "CheckInactive",
        "CheckActive",
    ]


async def test_parameters_of_another_kind_are_refused():
    cluster = SimCluster({"a": 8})
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "x"}
    cluster.change(ADMISSION_CHECK, CHECK, {"spec": {"parameters": parameters}})
    await cluster.passes(1)
    assert cluster.active() == (
        "False: AdmissionCheck gate: spec.parameters: names ProvisioningRequestConfig of kueue.x-k8s.io; name a "
        "ReclaimPolicy of idlegpu.io"
    )


@pytest.mark.parametrize(
    ("state", "says"),
    [
        pytest.param(Disconnected("not listed yet"), "True", id="policies are not listed yet"),
        pytest.param(
            Absent("404"), "False: AdmissionCheck gate: spec.parameters: the API knows no", id="no definition"
        ),
    ],
)
async def test_only_what_is_known_makes_a_check_inactive(state, says):
    cluster = SimCluster({"a": 8}, policy={"requireFit": True})
    await cluster.passes(1)
    cluster.restart()
    cluster.copies[RECLAIM_POLICY].follow([])
    cluster.copies[RECLAIM_POLICY].state = state
    cluster.copies.pop(RECLAIM_POLICY)
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert cluster.active().startswith(says)
    assert not cluster.is_admitted("gang")


async def test_with_two_checks_of_ours_a_gang_has_its_places_once():
    cluster = SimCluster({"a": 8}, checks=("gate", "gate-2"))
    cluster.submit("gang", gpus=8)
    await cluster.passes(3)
    assert [cluster.entry("gang", name)["state"] for name in ("gate", "gate-2")] == ["Ready", "Ready"]
    assert cluster.is_running("gang")


# --------------------------------------------------------------------------------------------------- comings and goings


# -------------------------------------------------------------------------------------------------------- looking again


async def test_what_was_written_counts_before_the_copy_shows_it():
    """The copy of Workloads hangs: it shows one as waiting that was released. No other gang gets its GPUs."""
    cluster = SimCluster({"a": 8})
    cluster.submit("one", gpus=8)
    cluster.submit("two", gpus=8)
    await cluster.passes(0, ticks=False)
    assert cluster.active() == "unset"
    await cluster.admission.tick(cluster.client.now)
    cluster.follow()
    await cluster.client.settle(*cluster.controllers)
    cluster.follow()
    copy = cluster.copies.pop(WORKLOAD)
    await cluster.admission.tick(cluster.client.now)
    await cluster.admission.tick(cluster.client.now)
    assert sorted(cluster.entry(name)["state"] for name in ("one", "two")) == ["Pending", "Ready"]
    cluster.copies[WORKLOAD] = copy
    await cluster.passes(2)
    assert sorted([cluster.is_running("one"), cluster.is_running("two")]) == [False, True]


async def gang_with_quota() -> tuple[SimCluster, str]:
    """The name of its Workload, which the copy shows with quota and not yet checked."""
    cluster = SimCluster({"a": 8})
    await cluster.passes(1)
    cluster.submit("gang", gpus=8)
    await cluster.passes(0, ticks=False)
    cluster.follow()
    return cluster, cluster.workload("gang")["metadata"]["name"]


async def test_a_gang_that_was_evicted_a_moment_ago_is_not_released():
    """The copy does not show it yet; the API does."""
    cluster, workload = await gang_with_quota()
    conditions = cluster.workload("gang")["status"]["conditions"]
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": ""}
    cluster.change(WORKLOAD, workload, {"status": {"conditions": [*conditions, evicted]}}, "status")
    report = await cluster.admission.tick(cluster.client.now)
    assert cluster.entry("gang")["state"] == "Pending"
    assert report.released == ()


@pytest.mark.parametrize("was_seen_ready", [True, False])
async def test_an_eviction_that_a_response_shows_before_the_watch_does_leaves_the_nodes_reserved(was_seen_ready: bool):
    """Its job is not suspended yet, and creates its pods at any moment."""
    cluster, workload = await gang_with_quota()
    if was_seen_ready:
        await cluster.admission.tick(cluster.client.now)
    conditions = cluster.workload("gang")["status"]["conditions"]
    added = [{"type": each, "status": "True", "reason": each, "message": ""} for each in ("Admitted", "Evicted")]
    kept = [each for each in conditions if each["type"] != "Admitted"]
    cluster.change(WORKLOAD, workload, {"status": {"conditions": [*kept, *added]}}, "status")
    cluster.copies[WORKLOAD].file(await cluster.api.get(WORKLOAD.path("ns", workload)))
    assert [(each.key, each.demands[0].count) for each in cluster.view.released()] == [(f"ns/{workload}", 1)]
    cluster.follow()
    assert [each.key for each in cluster.view.released()] == [f"ns/{workload}"]


async def test_a_conflict_is_answered_by_looking_again():
    cluster = SimCluster({"a": 8})
    await cluster.passes(1)
    changes = [1]

    def change_it(path: str) -> None:
        if changes and "workloads" in path:
            changes.pop()
            name = path.removesuffix("/status").rpartition("/")[2]
            cluster.change(WORKLOAD, name, {"metadata": {"labels": {"touched": "yes"}}})

    cluster.api.before_patch = change_it
    cluster.submit("gang", gpus=8)
    await cluster.passes(1)
    assert cluster.is_running("gang")
    assert not changes


# ------------------------------------------------------------------------------------------------------ what is written


async def test_messages_of_the_same_reason_are_not_written_at_every_change():
    """Free GPUs change every second; the message counts them, and is written twice a minute."""
    cluster = SimCluster({"a": 4})
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    written = len(cluster.api.patches)
    for second in range(60):
        cluster.add_node(f"small-{second}", 1)
        await cluster.passes(1)
    assert len(cluster.api.patches) - written == 2
    assert cluster.recorded.reasons("gang") == ["AdmissionCheckPending"]


# --------------------------------------------------------------------------------------------------------- provisioning


async def test_the_minute_in_which_new_nodes_may_be_booked_begins_when_they_are_ready():
    """They register long before that: drivers are installed in between."""
    cluster = SimCluster({"a": 8}, policy=PROVISIONS)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(5)
    cluster.add_node("new", 8)
    set_ready(cluster, "new", status="False")
    await cluster.passes(300)
    set_ready(cluster, "new", status="True")
    await cluster.passes(59)
    assert cluster.report.plan.reasons == {"NodesComing": 1}
    await cluster.passes(1)
    assert cluster.is_running("gang")


def set_ready(cluster: SimCluster, node: str, *, status: str) -> None:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": timestamp(cluster.client.now)}
    cluster.change(NODE, node, {"status": {"conditions": [ready]}}, "status")


async def test_at_the_limit_a_gang_yields_to_one_that_waits_for_quota_and_ever_more_rarely():
    """It comes back, since the other one is quick; a minute lies between."""
    asks = {"atLimit": "Yield", "retry": {"limit": 0, "base": "1s", "max": "1s"}}
    cluster = ProvisioningCluster({"small": 4}, quota=8, scenarios=[failing(99)], provisioning=asks)
    cluster.submit("gang", gpus=8)
    await cluster.passes(30)
    assert cluster.holds_quota("gang"), "no other can use it"
    yields: list[dict[str, Any]] = []
    for second in range(110):
        quick = f"quick-{len(yields)}"
        if cluster.exists(quick) and cluster.is_running(quick):
            cluster.finish(quick)
        elif not cluster.exists(quick) and second % 10 == 0:
            cluster.submit(quick, gpus=4)
        await cluster.passes(1)
        note = cluster.workload("gang")["metadata"].get("annotations", {}).get(YIELDED_ANNOTATION)
        if note and json.loads(note) not in yields:
            yields.append(json.loads(note))
    assert [each["times"] for each in yields] == [1, 2]
    times = [datetime.fromisoformat(each["at"]) for each in yields]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    assert 60 <= gaps[0] < 90
    assert yields[0]["to"].startswith("ns/job-quick-0")
