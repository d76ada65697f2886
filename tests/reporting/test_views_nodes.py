"""What `plan` and `pending` show of gangs that have quota and lack nodes, as JSON and on a terminal."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

import pytest
from admission.checked_workloads import pending
from app.cli.command import printed
from quota_builders import GPU, NOW, cluster_queue, holding, workload
from reclaim_builders import nodes_with
from views_builders import QuotaCluster

from scaler.admission.plan import AdmissionPlan
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.policy import CheckPolicy
from scaler.app.cli.plan import render
from scaler.errors import QueryError
from scaler.placement.capacity import Capacity
from scaler.placement.node_index import NodeDemand
from scaler.placement.requests import Insufficient, PlacementRequest, ReservationQueue
from scaler.placement.reservations import place_in_order
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.targets import NodeShortage
from scaler.reporting.views.query_service import QueryService

Json = dict[str, Any]


@dataclass
class Lacking:
    """An `AdmissionStatus`: one gang after the other waits, by name and in so many pods with so many GPUs."""

    capacity: Capacity
    gangs: dict[str, tuple[QuotaWorkload, int, int]] = field(default_factory=dict)
    may_reuse: bool = True
    may_ask: bool = False

    def reservation_queue(self, now: datetime) -> ReservationQueue | NotSynced:
        requests = [
            PlacementRequest(
                key=gang.key,
                uid=gang.uid,
                demands=(NodeDemand(pod_set="main", count=pods, requests={GPU: gpus}),),
                at=gang.held.at,
                may_ask=self.may_ask,
            )
            for gang, pods, gpus in self.gangs.values()
        ]
        return ReservationQueue(capacity=self.capacity, waiting=tuple(requests))

    @property
    def latest(self) -> AdmissionPlan:
        line = self.reservation_queue(NOW)
        assert isinstance(line, ReservationQueue)
        found = place_in_order(line)
        policy = CheckPolicy(reuse=self.may_reuse)
        waiting = [
            pending(each.key, uid=each.uid, reserved_at=each.at, placement=found[each.key], policy=policy)
            for each in line.waiting
            if isinstance(found[each.key], Insufficient)
        ]
        return AdmissionPlan(at=NOW, workloads=tuple(waiting))


def cluster_of(*gangs: tuple[int, int], **lacks: Any) -> tuple[QuotaCluster, QueryService]:
    """n1 is held by idle x and y with 4 GPUs each, n2 by a busy workload; quota is plenty. Each of the gangs holds
    its quota for so many pods with so many GPUs."""
    idle, busy = [holding(name, gpus=4) for name in ("x", "y")], holding("busy", gpus=8, queue="b")
    waiting = [replace(holding(f"gang-{n}", gpus=pods * gpus), admitted=False) for n, (pods, gpus) in enumerate(gangs)]
    made = QuotaCluster([cluster_queue("a", gpus=100), cluster_queue("b", gpus=100)], [*idle, busy, *waiting])
    made.idle("x", "y")
    capacity = nodes_with({"n1": 8, "n2": 8}, {"n1": {idle[0]: 4, idle[1]: 4}, "n2": {busy: 8}})
    seen = {gang.name: (gang, *shape) for gang, shape in zip(waiting, gangs, strict=True)}
    lacking = Lacking(capacity, seen, **lacks)
    nodes = NodeShortage(planning=made.planning, admission=cast(AdmissionPlanner, lacking))
    return made, QueryService(made.planning, nodes=nodes, clock=lambda: NOW)


async def plan(queries: QueryService, name: str = "gang-0", **asked: Any) -> Json:
    return dict(await queries.plan("team", name, **asked))


async def test_a_plan_for_nodes_shows_its_victims_and_where_the_pods_go() -> None:
    _, queries = cluster_of((1, 8))
    answer = await plan(queries)
    found = answer["plan"]
    assert (found["seeks"], found["check"], found["missing"], found["quota"]) == ("Nodes", "gate", {}, [])
    assert [each["name"] for each in found["victims"]] == ["team/x", "team/y"]
    assert found["placement"] == [{"workload": "team/gang-0", "podSet": "main", "node": "n1", "pods": 1}]
    assert [each["victim"] for each in found["necessities"]] == ["team/x", "team/y"]
    text = printed(render(answer, 120))
    assert "nodes: quota is reserved, and AdmissionCheck gate is Pending" in text
    assert "FREE NOW" not in text
    assert "n1" in text


async def test_where_nodes_are_provisioned_it_says_what_is_asked_for_beside_it() -> None:
    _, queries = cluster_of((2, 8), may_ask=True)
    answer = await plan(queries)
    assert answer["plan"]["missing"] == {"main": 1}
    assert "NodesMissing" in [each["reason"] for each in answer["cautions"]]
    assert "nodes for unplaced pods: 1 of main" in printed(render(answer, 120))


async def test_without_enough_idle_workloads_the_holders_of_the_rest_are_shown() -> None:
    _, queries = cluster_of((2, 8))
    answer = await plan(queries)
    assert (answer["plan"], answer["refusal"]["reason"]) == (None, "NotEnoughIdle")
    assert "spec.provisioning" in answer["refusal"]["help"]
    assert [each["workload"] for each in answer["holders"]] == ["team/busy"]
    assert "1 of 2 pods does not fit" in printed(render(answer, 120))


async def test_any_workload_may_be_assumed_to_be_idle_in_whatever_queue() -> None:
    made, queries = cluster_of((2, 8))
    made.scaled("busy")
    answer = await plan(queries, idle=["team/busy"])
    assert [each["name"] for each in answer["plan"]["victims"]] == ["team/busy", "team/x", "team/y"]
    with pytest.raises(QueryError, match=r"holds GPUs$"):
        await plan(queries, idle=["team/nobody"])


async def test_a_policy_without_reuse_is_the_reason_of_a_refusal() -> None:
    _, queries = cluster_of((1, 8), may_reuse=False)
    answer = await plan(queries)
    assert answer["plan"] is None
    assert "spec.reuse.enabled: false" in answer["refusal"]["message"]


async def test_pending_tells_of_each_gang_what_a_plan_would_do() -> None:
    """The first one gets the next plan; the second comes after it. One that waits for quota is not affected."""
    made, queries = cluster_of((1, 8), (1, 8))
    made.put(workload("poor", gpus=200))
    gangs = {each["name"]: each["reclaim"] for each in (await queries.pending())["gangs"]}
    assert gangs["gang-0"]["outcome"] == "Planned"
    assert "team/x (4 GPUs), team/y (4 GPUs)" in gangs["gang-0"]["message"]
    assert gangs["gang-1"] == {"outcome": "NotNext", "message": "the next plan for nodes is for team/gang-0"}
    assert gangs["poor"]["outcome"] == "NeverFits"


async def test_a_plan_that_gave_quota_to_one_gang_keeps_no_other_from_nodes() -> None:
    """x is taken for the quota of the first; the second fits where y is."""
    made, queries = cluster_of((1, 8), (1, 4))
    first = made.snapshot.workload("team/gang-0")
    assert first is not None
    made.granted(first, "x")
    gangs = {each["name"]: each["reclaim"]["outcome"] for each in (await queries.pending())["gangs"]}
    assert gangs == {"gang-0": "NotEnoughIdle", "gang-1": "Planned"}


async def test_while_a_plan_for_nodes_stands_the_others_come_after_it_and_quota_is_another_matter() -> None:
    made, queries = cluster_of((1, 8), (1, 8))
    first = made.snapshot.workload("team/gang-0")
    assert first is not None
    made.granted(first, "x", "y", seeks="Nodes", check="gate")
    made.put(workload("poor", gpus=200))
    made.put(workload("next", gpus=1))
    gangs = {each["name"]: each for each in (await queries.pending())["gangs"]}
    standing = gangs["gang-0"]["plan"]
    assert (standing["seeks"], standing["check"], standing["gangState"]) == ("Nodes", "gate", "Waiting")
    assert gangs["gang-0"]["reclaim"]["outcome"] == "UnderWay"
    assert gangs["gang-1"]["reclaim"]["outcome"] == "AfterAnother"
    assert gangs["next"]["reclaim"]["outcome"] == "FitsAlready"
    assert "frees" in printed(render(await plan(queries), 120))
