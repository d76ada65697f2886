"""What the gate tells those who make plans for nodes: who stands in line, who lacks nodes, and who asks for some."""

from typing import Any

from builders import NOON, at
from sim.cluster import CHECK, SimCluster

from scaler.admission.checks import checks_with_provisioning
from scaler.admission.planner import ReclaimAnswers
from scaler.kube.objects.resources import ADMISSION_CHECK, PROVISIONING_REQUEST, RECLAIM_POLICY
from scaler.placement.requests import Insufficient, ReservationQueue
from scaler.placement.reservations import WhatIf
from scaler.quota.watch import NotSynced

ASKS: dict[str, Any] = {"provisioning": {"className": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}}


def line_of(cluster: SimCluster) -> ReservationQueue:
    found = cluster.planner.reservation_queue(cluster.client.now)
    assert isinstance(found, ReservationQueue)
    return found


def key_of(cluster: SimCluster, job: str) -> str:
    return f"ns/{cluster.workload(job)['metadata']['name']}"


async def lacking(**options: Any) -> SimCluster:
    """`gang` has quota for 16 GPUs and finds 8 of them; `holder` has the others."""
    cluster = SimCluster({"a": 8, "b": 8}, **options)
    cluster.submit("holder", gpus=8)
    await cluster.passes(2)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    return cluster


async def test_whoever_waits_stands_in_line_with_what_it_lacks() -> None:
    cluster = await lacking()
    line = line_of(cluster)
    assert [each.key for each in line.waiting] == [key_of(cluster, "gang")]
    assert not line.held
    what_if = WhatIf(line, key_of(cluster, "gang"))
    assert isinstance(what_if.result(frozenset()), Insufficient)
    assert not isinstance(what_if.result(frozenset({key_of(cluster, "holder")})), Insufficient)
    [standing] = cluster.report.plan.pending
    assert (standing.lacks_nodes, standing.may_reuse, standing.awaits_nodes) == (True, True, False)


async def test_looking_at_the_line_writes_nothing() -> None:
    cluster = await lacking()
    before = len(cluster.api.patches)
    line_of(cluster)
    await cluster.planner.plan(cluster.client.now)
    assert len(cluster.api.patches) == before


async def test_where_nodes_or_workloads_are_not_seen_there_is_no_line() -> None:
    cluster = await lacking()
    cluster.blind = "nodes are hidden"
    assert cluster.planner.reservation_queue(cluster.client.now) == NotSynced("nodes are hidden")


async def test_the_queue_shows_which_policies_reclaim_nothing() -> None:
    cluster = await lacking(policy={"reuse": {"enabled": False}})
    assert [each.may_reuse for each in cluster.report.plan.pending] == [False]


def asking(cluster: SimCluster) -> frozenset[str]:
    return checks_with_provisioning(cluster.copies[ADMISSION_CHECK].items(), cluster.copies[RECLAIM_POLICY])


async def test_those_who_ask_for_nodes_are_known_by_name() -> None:
    for policy, names in (
        (None, set()),
        (ASKS, {CHECK}),
        (ASKS | {"requireFit": False}, set()),
        ({"reuse": {"enabled": True}}, set()),
    ):
        assert asking(SimCluster({"a": 8}, policy=policy)) == names


async def test_nodes_are_not_requested_before_reclaim_has_decided() -> None:
    cluster = SimCluster({"a": 8, "b": 8}, policy=ASKS, with_reclaim=True)
    cluster.submit("gang", pods=2, gpus=8)
    cluster.submit("late", pods=1, gpus=8)
    await cluster.passes(3)
    assert cluster.client.all(PROVISIONING_REQUEST) == []
    assert "which is not decided yet" in cluster.says("late")
    uid = cluster.workload("late")["metadata"]["uid"]
    cluster.reclaim.decided(uid)
    await cluster.passes(1)
    [request] = cluster.client.all(PROVISIONING_REQUEST)
    assert request["metadata"]["labels"]["idlegpu.io/workload-uid"] == uid


# ------------------------------------------------------------------------------------------ how long reclaim is awaited


def test_a_decision_is_waited_for_from_when_nodes_are_lacking_and_not_for_long() -> None:
    answers = ReclaimAnswers()
    answers.lacking({"uid"}, NOON)
    answers.lacking({"uid"}, at(10))
    assert answers.is_pending("uid", at(14))
    assert not answers.is_pending("uid", at(15))


def test_a_decision_counts_until_the_workload_has_its_nodes_and_wakes_once() -> None:
    answers, woken = ReclaimAnswers(), []
    answers.subscribe(lambda: woken.append("woken"))
    answers.lacking({"uid"}, NOON)
    answers.decided("uid")
    answers.decided("uid")
    assert (answers.is_pending("uid", at(1)), woken) == (False, ["woken"])
    answers.lacking(set(), at(2))
    assert answers.is_pending("uid", at(3))


def test_nothing_is_waited_for_where_reclaim_makes_no_plans() -> None:
    answers = ReclaimAnswers(is_planning=False)
    answers.lacking({"uid"}, NOON)
    assert not answers.is_pending("uid", at(1))
