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


def line_of(town: SimCluster) -> ReservationQueue:
    found = town.planner.reservation_queue(town.client.now)
    assert isinstance(found, ReservationQueue)
    return found


def key_of(town: SimCluster, job: str) -> str:
    return f"ns/{town.workload(job)['metadata']['name']}"


async def lacking(**options: Any) -> SimCluster:
    """`gang` has quota for 16 GPUs and finds 8 of them; `holder` has the others."""
    town = SimCluster({"a": 8, "b": 8}, **options)
    town.submit("holder", gpus=8)
    await town.passes(2)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    return town


async def test_whoever_waits_stands_in_line_with_what_it_lacks() -> None:
    town = await lacking()
    line = line_of(town)
    assert [each.key for each in line.waiting] == [key_of(town, "gang")]
    assert not line.held
    what_if = WhatIf(line, key_of(town, "gang"))
    assert isinstance(what_if.result(frozenset()), Insufficient)
    assert not isinstance(what_if.result(frozenset({key_of(town, "holder")})), Insufficient)
    [standing] = town.report.plan.pending
    assert (standing.lacks_nodes, standing.may_reuse, standing.awaits_nodes) == (True, True, False)


async def test_looking_at_the_line_writes_nothing() -> None:
    town = await lacking()
    before = len(town.api.patches)
    line_of(town)
    await town.planner.plan(town.client.now)
    assert len(town.api.patches) == before


async def test_where_nodes_or_workloads_are_not_seen_there_is_no_line() -> None:
    town = await lacking()
    town.blind = "nodes are hidden"
    assert town.planner.reservation_queue(town.client.now) == NotSynced("nodes are hidden")


async def test_whose_policy_spares_the_idle_is_told() -> None:
    town = await lacking(policy={"reuse": {"enabled": False}})
    assert [each.may_reuse for each in town.report.plan.pending] == [False]


def asking(town: SimCluster) -> frozenset[str]:
    return checks_with_provisioning(town.copies[ADMISSION_CHECK].items(), town.copies[RECLAIM_POLICY])


async def test_those_who_ask_for_nodes_are_known_by_name() -> None:
    for policy, names in (
        (None, set()),
        (ASKS, {CHECK}),
        (ASKS | {"requireFit": False}, set()),
        ({"reuse": {"enabled": True}}, set()),
    ):
        assert asking(SimCluster({"a": 8}, policy=policy)) == names


async def test_nodes_are_not_requested_before_reclaim_has_decided() -> None:
    town = SimCluster({"a": 8, "b": 8}, policy=ASKS, with_reclaim=True)
    town.submit("gang", pods=2, gpus=8)
    town.submit("late", pods=1, gpus=8)
    await town.passes(3)
    assert town.client.all(PROVISIONING_REQUEST) == []
    assert "which is not decided yet" in town.says("late")
    uid = town.workload("late")["metadata"]["uid"]
    town.reclaim.decided(uid)
    await town.passes(1)
    [request] = town.client.all(PROVISIONING_REQUEST)
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
