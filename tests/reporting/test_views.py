"""What operators are told of quota and plans: why a gang waits, what queues hold, whom a plan takes, why not less."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from builders import WorkloadJson
from loops_builders import SCALABLE_WORKLOAD_KIND, scalable_workload, scaled_object
from quota_builders import (
    GPU,
    NOW,
    cluster_queue,
    cohort,
    flavor,
    holding,
    local_queue,
    pod_set,
    preempting,
    quota,
    taint,
    workload,
)
from reclaim_builders import nodes_with
from views_builders import Town, reasons, stopped

from scaler.decision.decision import Active, Inactive
from scaler.decision.decision_cache import DecisionCache
from scaler.errors import QueryError
from scaler.idleness.reasons import DecisionReason
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.quantity import as_number
from scaler.quota.model import PreemptionPolicy, QueueingStrategy, QuotaPodSet, QuotaWorkload, StopPolicy
from scaler.quota.watch import NotSynced
from scaler.reclaim.config import ReclaimConfig, Unprotected
from scaler.reclaim.search.values import NoPlanReason
from scaler.reporting.views.pending import pending_view
from scaler.reporting.views.plans import _HELP
from scaler.reporting.views.query_service import QueryService
from scaler.reporting.views.queues import queues_view

STRICT = QueueingStrategy.STRICT_FIFO
BUSY = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")


async def pending(town: Town, name: str = "gang", **filters: str) -> dict[str, Any]:
    """What is said of one gang."""
    view = await town.queries.pending(**filters)
    return next(each for each in view["gangs"] if each["name"] == name)


async def plan(town: Town, name: str = "gang", **asked: Any) -> dict[str, Any]:
    return dict(await town.queries.plan("team", name, **asked))


# -------------------------------------------------------------------------------------------------------- why it waits


def short_of_one_flavor() -> Town:
    # 4 − 3 = 1 is left, and 2 are wanted.
    return Town([cluster_queue(gpus=4)], [holding(gpus=3), workload(gpus=2)])


def shut_out_of_one_flavor() -> Town:
    queue = cluster_queue(gpus={"spot": 8, "default": 4})
    return Town([queue], [holding(gpus=4), workload(gpus=2)], flavors=[flavor("spot", taints=(taint(),))])


def short_of_all_pod_sets_together() -> Town:
    # 3 + 3 are free; each PodSet of 2 fits somewhere, and a third one nowhere.
    pods = [pod_set(name, gpus=2) for name in ("one", "two", "three")]
    return Town([cluster_queue(gpus={"a100": 3, "h100": 3})], [workload(pod_sets=tuple(pods))])


def too_large_for_ever() -> Town:
    queues = [cluster_queue("a", gpus=quota(4, borrowing=2), cohort="team"), cluster_queue("b", gpus=8, cohort="team")]
    return Town(queues, [workload(gpus=7)])


def for_a_resource_without_quota() -> Town:
    return Town([cluster_queue()], [workload(pod_sets=(pod_set(requests={GPU: 1, "example.com/fpga": 1}),))])


def behind_a_strict_head() -> Town:
    return Town([cluster_queue(gpus=4, strategy=STRICT)], [workload("head", gpus=5), workload(gpus=1)])


def behind_a_head_that_need_not_wait() -> Town:
    return Town([cluster_queue(gpus=4)], [holding(gpus=4), workload("head", gpus=2), workload(gpus=1)])


def without_a_local_queue() -> Town:
    return Town([cluster_queue()], [workload()], local_queues=[])


def with_a_stopped_local_queue() -> Town:
    return Town([cluster_queue()], [workload()], local_queues=[stopped("a")])


def with_a_local_queue_that_leads_nowhere() -> Town:
    return Town([cluster_queue()], [workload()], local_queues=[local_queue("a", "gone")])


def in_a_stopped_cluster_queue() -> Town:
    return Town([cluster_queue(stop_policy=StopPolicy.HOLD)], [workload()])


def in_an_inactive_cluster_queue() -> Town:
    return Town([cluster_queue(checks=frozenset({"provisioning"}))], [workload()])


def in_a_namespace_that_is_not_selected() -> Town:
    return Town([cluster_queue(namespace_selector=None)], [workload()])


def while_it_backs_off() -> Town:
    town = Town([cluster_queue()], [])
    json = WorkloadJson().with_status(requeueState={"count": 2, "requeueAt": "2026-12-01T12:05:00Z"})
    town.put(workload(may_queue=False), json)
    return town


def while_it_is_not_requeued() -> Town:
    town = Town([cluster_queue()], [])
    town.put(workload(may_queue=False), WorkloadJson().condition("Requeued", False, "PodsReadyTimeout", "not ready"))
    return town


def behind_a_gate() -> Town:
    town = Town([cluster_queue()], [])
    json = WorkloadJson().with_annotations({"kueue.x-k8s.io/admission-gated-by": "example.com/budget"})
    town.put(workload(may_queue=False), json)
    return town


def while_its_checks_are_not_ready() -> Town:
    town = Town([cluster_queue(gpus=4)], [])
    states = [{"name": "nodes", "state": "Pending", "message": "2 of 4 are there"}, {"name": "paid", "state": "Ready"}]
    town.put(replace(holding("gang", gpus=2), admitted=False), WorkloadJson().with_status(admissionChecks=states))
    return town


def while_it_loses_its_quota() -> Town:
    town = Town([cluster_queue(gpus=4)], [])
    json = WorkloadJson().condition("Evicted", True, "AdmissionCheck", "the check says Retry")
    town.put(replace(holding("gang", gpus=2, evicted=True), admitted=False), json)
    return town


def while_a_plan_is_under_way() -> Town:
    gang = workload(gpus=4)
    town = Town([cluster_queue(gpus=4)], [holding(gpus=2), gang])
    town.granted(gang, "runs")
    return town


def although_its_quota_is_there() -> Town:
    # 8 are free, 4 on each node, and the pod needs 8 on one.
    other = holding("other", gpus=4, queue="b")
    capacity = nodes_with({"n1": 4, "n2": 8}, {"n2": {other: 4}})
    queues = [cluster_queue("a", gpus=8), cluster_queue("b", gpus=8)]
    return Town(queues, [other, workload(gpus=8)], capacity=lambda: capacity)


def while_kueue_keeps_quota_for_a_head_before_it() -> Town:
    # 3 − 2 = 1 is free, and kept for the older head of another queue, which wants 2. Both would borrow.
    lower = preempting(within=PreemptionPolicy.LOWER_PRIORITY)
    queues = [
        cluster_queue("a", gpus=0, cohort="team"),
        cluster_queue("b", gpus=3, cohort="team", preemption=lower),
        # Its head has its turn before all others, and nothing is kept for it.
        cluster_queue("c", gpus=0, cohort="team"),
    ]
    return Town(
        queues,
        [
            holding(gpus=2, queue="b"),
            workload("head", gpus=2, queue="b"),
            workload("never", gpus=9, queue="c"),
            workload(gpus=1),
        ],
    )


def until_kueue_comes_to_it() -> Town:
    return Town([cluster_queue(gpus=4)], [workload(gpus=4)])


@pytest.mark.parametrize(
    ("town", "reason", "message"),
    [
        (short_of_one_flavor, "WaitingForQuota", "flavor default lacks 1 of 2 nvidia.com/gpu (1 available)"),
        (
            shut_out_of_one_flavor,
            "WaitingForQuota",
            "flavor spot has the taint spot=true:NoSchedule, which the pods do not tolerate; "
            "flavor default lacks 2 of 2 nvidia.com/gpu (0 available)",
        ),
        (short_of_all_pod_sets_together, "NeverFits", "but a PodSet takes each resource from one flavor"),
        (
            too_large_for_ever,
            "NeverFits",
            "flavor default could give 6 of 7 nvidia.com/gpu at most, borrowing included",
        ),
        (for_a_resource_without_quota, "NeverFits", "ClusterQueue a has no quota for example.com/fpga"),
        (
            behind_a_strict_head,
            "HeadOfLineBlocked",
            "ClusterQueue a is StrictFIFO; Workload team/head (priority 0) is its head",
        ),
        (behind_a_head_that_need_not_wait, "WaitingForQuota", "lacks 1 of 1"),
        (without_a_local_queue, "QueueStopped", "there is no LocalQueue team/a"),
        (with_a_stopped_local_queue, "QueueStopped", "LocalQueue a is stopped (Hold)"),
        (with_a_local_queue_that_leads_nowhere, "QueueStopped", "LocalQueue a leads to ClusterQueue gone"),
        (in_a_stopped_cluster_queue, "QueueStopped", "ClusterQueue a admits nothing: stopPolicy is Hold"),
        (in_an_inactive_cluster_queue, "QueueStopped", "ClusterQueue a admits nothing: AdmissionCheckNotFound"),
        (in_a_namespace_that_is_not_selected, "QueueStopped", "ClusterQueue a does not select namespace team"),
        (while_it_backs_off, "NotQueued", "it backs off until 2026-12-01T12:05:00Z"),
        (while_it_is_not_requeued, "NotQueued", "Requeued is False (PodsReadyTimeout): not ready"),
        (behind_a_gate, "NotQueued", "example.com/budget"),
        (while_its_checks_are_not_ready, "WaitingForAdmissionChecks", "check nodes is Pending: 2 of 4 are there"),
        (while_it_loses_its_quota, "Evicted", "the check says Retry"),
        (while_a_plan_is_under_way, "PlanUnderWay", "plan 0123456789 suspends team/runs"),
        (although_its_quota_is_there, "PlacementImpossible", "PodSet main: 1 of 1 pods does not fit"),
        (while_kueue_keeps_quota_for_a_head_before_it, "QuotaReservedForOther", "but Kueue keeps it for team/head"),
        (until_kueue_comes_to_it, "Queued", "what it needs is available; it is number 1 in a"),
    ],
)
async def test_a_gang_waits(town: Callable[[], Town], reason: str, message: str) -> None:
    told = await pending(town())
    assert told["reason"] == reason
    assert message in told["message"]
    assert told["reasons"][0] == {"reason": reason, "message": told["message"]}


async def test_checks_that_are_ready_are_not_waited_for() -> None:
    told = await pending(while_its_checks_are_not_ready())
    assert "paid" not in told["message"]
    assert [(each["name"], each["state"]) for each in told["checks"]] == [("nodes", "Pending"), ("paid", "Ready")]


async def test_every_reason_that_holds_is_told() -> None:
    """Behind a head, and short of quota as well: with the head gone it would still wait."""
    told = await pending(
        Town([cluster_queue(gpus=4, strategy=STRICT)], [holding(gpus=3), workload("head", gpus=2), workload(gpus=2)])
    )
    assert [each["reason"] for each in told["reasons"]] == ["HeadOfLineBlocked", "WaitingForQuota"]


async def test_the_numbers_are_told_flavor_by_flavor() -> None:
    told = await pending(
        Town([cluster_queue(gpus={"a100": 4, "h100": 2})], [holding(gpus=3, flavor="a100"), workload(gpus=2)])
    )
    assert told["quota"] == [
        {"flavor": "a100", "resource": GPU, "wanted": 2, "available": 1, "lacking": 1, "most": 4, "refusal": None},
        {"flavor": "h100", "resource": GPU, "wanted": 2, "available": 2, "lacking": 0, "most": 2, "refusal": None},
    ]


async def test_its_place_in_line_is_that_of_priority_and_age() -> None:
    town = Town(
        [cluster_queue(gpus=1)],
        [holding(), workload("old", priority=1), workload("gang"), workload("young"), workload("urgent", priority=9)],
    )
    told = await pending(town)
    assert (told["position"], told["inLine"]) == (3, 4)
    assert told["before"] == ["team/urgent", "team/old"]
    # Plans are made in the same order.
    assert [each["name"] for each in (await town.queries.pending())["gangs"]] == ["urgent", "old", "gang", "young"]


async def test_kueues_own_words_stand_beside_ours() -> None:
    town = Town([cluster_queue(gpus=1)], [])
    town.put(workload(gpus=2), WorkloadJson().waiting("couldn't assign flavors to pod set main"))
    told = await pending(town)
    assert told["kueue"] == {
        "condition": "QuotaReserved=False",
        "reason": "WaitingForQuota",
        "message": "couldn't assign flavors to pod set main",
        "since": "2026-12-01T09:00:01Z",
    }
    assert told["job"] == "Job/gang-job"


async def test_who_asks_for_no_gpu_or_is_admitted_does_not_wait_for_gpus() -> None:
    cpu = QuotaPodSet(name="main", count=1, requests={"cpu": 1000})
    town = Town([cluster_queue(gpus=1)], [holding(), workload("cpus", pod_sets=(cpu,)), workload()])
    assert reasons(await town.queries.pending()) == {"gang": "WaitingForQuota"}


async def test_filters_choose_by_namespace_local_queue_and_cluster_queue() -> None:
    queues = [cluster_queue("a", gpus=0), cluster_queue("b", gpus=0)]
    town = Town(
        queues,
        [workload("one", queue="mine"), workload("two", queue="b")],
        local_queues=[local_queue("mine", "a"), local_queue("b")],
    )
    town.snapshot.put_namespace("others", {})
    chosen = [{"queue": "mine"}, {"queue": "a"}, {"queue": "b"}, {"namespace": "team"}, {"namespace": "others"}]
    names = [[each["name"] for each in (await town.queries.pending(**each))["gangs"]] for each in chosen]
    assert names == [["one"], ["one"], ["two"], ["one", "two"], []]


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ({"queue": "typo"}, "there is no ClusterQueue typo, and no LocalQueue typo"),
        ({"queue": "b", "namespace": "other"}, "there is no ClusterQueue b, and no LocalQueue b in namespace other"),
        ({"namespace": "typo"}, "there is no namespace typo"),
    ],
)
async def test_who_asks_about_what_is_not_there_is_told_so(filters: dict[str, str], problem: str) -> None:
    town = Town([cluster_queue("a")], [workload(queue="gone")], local_queues=[local_queue("b", "a")])
    town.snapshot.put_namespace("other", {})
    with pytest.raises(QueryError, match=problem) as refused:
        await town.queries.pending(**filters)
    assert refused.value.status == 404


async def test_a_local_queue_that_is_not_there_shows_those_who_wait_for_it() -> None:
    town = Town([cluster_queue("a")], [workload(queue="gone")], local_queues=[])
    assert reasons(await town.queries.pending(queue="gone")) == {"gang": "QueueStopped"}


async def test_an_answer_that_leaves_some_out_says_how_many() -> None:
    town = Town([cluster_queue(gpus=0)], [workload(f"gang-{n}") for n in range(5)])
    view = pending_view(await town.view_snapshot(), most=2)
    assert ([each["name"] for each in view["gangs"]], view["omitted"]) == (["gang-0", "gang-1"], 3)


# --------------------------------------------------------------------------------------------- what a plan could do


async def test_only_the_first_gang_of_a_tree_gets_the_next_plan() -> None:
    town = Town(
        [cluster_queue(gpus=4)],
        [holding("x", gpus=2), holding("y", gpus=2), workload("gang", gpus=2), workload("later", gpus=1)],
    )
    town.idle("x", "y")
    first, second = await pending(town), await pending(town, "later")
    assert first["reclaim"]["outcome"] == "Planned"
    assert "team/x (2 GPUs)" in first["reclaim"]["message"]
    assert second["reclaim"] == {"outcome": "NotNext", "message": "the next plan in its quota tree is for team/gang"}


async def test_a_gang_that_no_plan_serves_leaves_the_next_one_its_turn() -> None:
    town = Town(
        [cluster_queue(gpus=4)],
        [holding("x", gpus=2), holding("y", gpus=2), workload("gang", gpus=4), workload("later", gpus=2)],
    )
    town.idle("x")
    assert (await pending(town))["reclaim"]["outcome"] == "NotEnoughIdle"
    assert (await pending(town, "later"))["reclaim"]["outcome"] == "Planned"


async def test_while_a_plan_is_carried_out_the_others_of_its_tree_wait_for_its_end() -> None:
    gang = workload(gpus=4)
    town = Town(
        [cluster_queue(gpus=4), cluster_queue("b", gpus=0)],
        [holding(gpus=2), gang, workload("later", gpus=1), workload("far", queue="b")],
    )
    town.granted(gang, "runs")
    first, second, third = [await pending(town, name) for name in ("gang", "later", "far")]
    assert first["plan"]["stage"] == "Reclaimable"
    assert first["reclaim"]["outcome"] == "UnderWay"
    assert second["reclaim"]["outcome"] == "AfterAnother"
    assert "plan 0123456789 for team/gang" in second["reclaim"]["message"]
    # Another tree shares no quota with it.
    assert third["reclaim"]["outcome"] == "NeverFits"


async def test_where_nobody_knows_who_is_idle_quota_is_shown_all_the_same() -> None:
    town = short_of_one_flavor()
    town.board = town.planning._board = type(town.board)(max_age=timedelta(minutes=1), clock=lambda: 0.0)
    town.queries._board = town.board
    view = await town.queries.pending()
    assert "no workload has been evaluated yet" in view["unjudged"]
    assert reasons(view) == {"gang": "WaitingForQuota"}
    [tree] = (await town.queries.queues())["trees"]
    assert (tree["flavors"][0]["used"], tree["flavors"][0]["idle"], tree["flavors"][0]["reclaimable"]) == (
        3,
        None,
        None,
    )
    with pytest.raises(QueryError, match="it is not known which workloads are idle") as refused:
        await plan(town)
    assert refused.value.status == 503


async def test_what_the_planner_was_not_asked_for_want_of_time_is_said() -> None:
    town = short_of_one_flavor()
    town.queries._patience_s = -1.0
    assert (await pending(town))["reclaim"]["outcome"] == "NotAsked"


# --------------------------------------------------------------------------------------------------------------- queues


def three_teams() -> Town:
    """A cohort with 2 of its own; a borrows 1, b lends at most 1, c is below a cohort of its own."""
    queues = [
        cluster_queue("a", gpus=quota(4, borrowing=2), cohort="team"),
        cluster_queue("b", gpus=quota(4, lending=1), cohort="team"),
        cluster_queue("c", gpus=2, cohort="inner"),
        cluster_queue("alone", gpus=1),
    ]
    workloads = [
        holding("x", gpus=3),
        holding("y", gpus=2),
        holding("z", gpus=1, queue="b"),
        workload("gang", gpus=3),
        workload("other", gpus=2),
        workload("head", gpus=1, queue="c"),
    ]
    town = Town(queues, workloads, cohorts=[cohort("team", gpus=2), cohort("inner", parent="team")])
    town.idle("x")
    # Idle, and not to be taken by a plan: its time is up anyway.
    town.judged(y=Inactive(reason=DecisionReason.GPUS_IDLE, message="quiet"), z=BUSY)
    return town


def flat(nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every node by its name."""
    found = {each["name"]: each for each in nodes}
    for each in nodes:
        found |= flat(each["children"])
    return found


async def test_a_tree_is_told_with_who_uses_what() -> None:
    nodes = flat(queues_view(await three_teams().view_snapshot())["trees"])
    numbers = {
        name: tuple(
            node["flavors"][0][field] for field in ("nominal", "used", "idle", "reclaimable", "available", "borrowed")
        )
        for name, node in nodes.items()
    }
    assert numbers == {
        # b keeps 3 of its 4, so the cohort sees 2 + 4 + 1 + 2 = 9. a uses 5 of them, b only what it keeps.
        "team": (12, 6, 5, 3, 4, 0),
        # It may borrow 2 in all, and 1 is borrowed.
        "a": (4, 5, 5, 3, 1, 1),
        # 2 of what it keeps, and the 4 of the cohort.
        "b": (4, 1, 0, 0, 6, 0),
        "inner": (2, 0, 0, 0, 4, 0),
        "c": (2, 0, 0, 0, 4, 0),
        "alone": (1, 0, 0, 0, 1, 0),
    }
    limits = {
        name: (each["flavors"][0]["borrowingLimit"], each["flavors"][0]["lendingLimit"]) for name, each in nodes.items()
    }
    assert (limits["a"], limits["b"], limits["c"]) == ((2, None), (None, 1), (None, None))
    assert {name: each["pending"].get(GPU, 0) for name, each in nodes.items()} == {
        "team": 6, "a": 5, "b": 0, "inner": 1, "c": 1, "alone": 0,
    }  # fmt: skip
    assert (nodes["a"]["waitingGangs"], nodes["team"]["waitingGangs"]) == (2, 3)


async def test_who_is_not_idle_for_long_enough_holds_no_idle_gpus() -> None:
    town = Town([cluster_queue(gpus=4)], [holding("quiet", gpus=2), holding("fresh", gpus=2)])
    town.idle("quiet")
    town.judged(fresh=Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="running for 2m"))
    [queue] = queues_view(await town.view_snapshot())["trees"]
    assert queue["flavors"][0]["idle"] == 2


async def test_who_holds_quota_and_waits_for_checks_is_not_pending() -> None:
    town = Town([cluster_queue(gpus=4)], [replace(holding("held", gpus=2), admitted=False), workload(gpus=3)])
    [queue] = queues_view(await town.view_snapshot())["trees"]
    assert (queue["pending"], queue["waitingGangs"], queue["flavors"][0]["used"]) == ({GPU: 3}, 1, 2)


async def test_trees_are_drawn_as_they_are_nested() -> None:
    trees = queues_view(await three_teams().view_snapshot())["trees"]
    assert [(each["kind"], each["name"]) for each in trees] == [("Cohort", "team"), ("ClusterQueue", "alone")]
    assert [each["name"] for each in trees[0]["children"]] == ["inner", "a", "b"]


async def test_flavors_keep_the_order_in_which_they_are_tried() -> None:
    town = Town([cluster_queue(gpus={"zeta": 1, "alpha": 2})], [])
    [queue] = queues_view(await town.view_snapshot())["trees"]
    assert [each["flavor"] for each in queue["flavors"]] == ["zeta", "alpha"]


async def test_only_gpus_are_counted_unless_all_is_asked_for() -> None:
    given = cluster_queue(gpus=4)
    cpus = {key._replace(resource="cpu"): quota(1500) for key in given.quotas}
    town = Town([cluster_queue(gpus=4, quotas={**given.quotas, **cpus})], [])
    snapshot = await town.view_snapshot()
    [only], [everything] = (queues_view(snapshot, all_resources=flag)["trees"] for flag in (False, True))
    assert [each["resource"] for each in only["flavors"]] == [GPU]
    assert {each["resource"]: each["nominal"] for each in everything["flavors"]} == {"cpu": 1.5, GPU: 4}


@pytest.mark.parametrize(
    ("resource", "amount", "shown"), [(GPU, 8, 8), ("cpu", 2000, 2), ("cpu", 250, 0.25), ("memory", 2**30, 2**30)]
)
def test_amounts_are_numbers_in_their_own_unit(resource: str, amount: int, shown: float) -> None:
    assert as_number(resource, amount) == shown


async def test_what_cannot_be_read_is_said_of_its_tree() -> None:
    town = Town([cluster_queue()], [])
    town.snapshot.put(cluster_queue("broken"), doubt="nominalQuota: 'many' is no quantity")
    doubts = {each["name"]: each["doubts"] for each in queues_view(await town.view_snapshot())["trees"]}
    assert doubts == {"a": [], "broken": ["ClusterQueue broken: nominalQuota: 'many' is no quantity"]}


# ---------------------------------------------------------------------------------------------------------------- plans


def four_free_four_idle() -> Town:
    """The gang of 8 of the greedy peer's: 4 are free, 4 are idle in one workload, 8 in another, 1 in a third."""
    holders = [holding("four", gpus=4), holding("eight", gpus=8), holding("one", gpus=1)]
    town = Town([cluster_queue(gpus=17, strategy=STRICT)], [*holders, workload(gpus=8)])
    town.idle("four", "eight", "one")
    return town


async def test_what_was_free_and_what_is_freed_is_what_the_gang_takes() -> None:
    told = await plan(four_free_four_idle())
    assert told["refusal"] is told["standing"] is told["whatIfIdle"] is None
    assert [each["name"] for each in told["plan"]["victims"]] == ["team/four"]
    [quota_line] = told["plan"]["quota"]
    assert quota_line == {
        "flavor": "default", "resource": GPU, "freeBefore": 4, "freed": 4, "freeAfter": 8, "takes": 8,
    }  # fmt: skip
    assert told["plan"]["assignments"] == [{"podSet": "main", "count": 1, "flavors": {GPU: "default"}}]
    assert told["plan"]["placement"] is None


async def test_a_victim_is_told_with_its_cost_and_since_when_it_is_idle() -> None:
    [victim] = (await plan(four_free_four_idle()))["plan"]["victims"]
    # Running since two hours before noon, idle for 30 min: 1.5 h of work. (4 + 4 × 1.5 + 4 × 5/60) / 1.5 = 6.889
    assert victim == {
        "name": "team/four",
        "workload": "team/four",
        "clusterQueue": "a",
        "gpus": 4,
        "cost": 6.889,
        "costParts": {"gpus": 4, "gpuHoursLost": 6, "priority": 0, "reclaimedBefore": 0, "timeToResume": 0.333},
        "idleDivisor": 1.5,
        "idleSince": "2026-12-01T11:30:00Z",
        "idleFor": "30m",
        "isAssumed": False,
    }


async def test_less_is_shown_not_to_do_and_more_to_cost_more() -> None:
    told = await plan(four_free_four_idle())
    [needed] = told["plan"]["necessities"]
    assert needed == {
        "victim": "team/four",
        "reason": "NotEnoughIdle",
        "message": "without it 4 nvidia.com/gpu would be missing",
    }
    dearer = [each for each in told["alternatives"] if each["whyNot"] is None]
    # Not also eight and one: what does it with one more besides is no other way.
    assert [(each["victims"], each["gpus"]) for each in dearer] == [(["team/eight"], 8)]
    assert told["plan"]["cost"] < dearer[0]["cost"]


async def test_a_plan_without_any_one_of_its_victims_is_too_little() -> None:
    town = Town(
        [cluster_queue(gpus=4, strategy=STRICT)], [holding("x", gpus=2), holding("y", gpus=2), workload(gpus=4)]
    )
    town.idle("x", "y")
    needed = (await plan(town))["plan"]["necessities"]
    assert [each["victim"] for each in needed] == ["team/x", "team/y"]
    assert {each["message"] for each in needed} == {"without it 2 nvidia.com/gpu would be missing"}


async def test_lending_limits_are_in_the_numbers() -> None:
    """b lends 1 of its 4: whatever is freed there, a sees no more."""
    queues = [
        cluster_queue("a", gpus=4, cohort="team", strategy=STRICT),
        cluster_queue("b", gpus=quota(4, lending=1), cohort="team"),
    ]
    town = Town(queues, [holding("x", gpus=4), holding("y", gpus=4, queue="b"), workload(gpus=4)])
    town.idle("x", "y")
    told = await plan(town)
    assert [each["name"] for each in told["plan"]["victims"]] == ["team/x"]
    town = Town(queues, [holding("x", gpus=4), holding("y", gpus=4, queue="b"), workload(gpus=4)])
    town.idle("y")
    refusal = (await plan(town))["refusal"]
    assert refusal["reason"] == "NotEnoughIdle"
    assert "1 nvidia.com/gpu" in refusal["message"]


async def test_who_gets_no_plan_is_told_who_is_idle_and_who_holds_the_rest_and_why() -> None:
    town = Town(
        [cluster_queue(gpus=8)],
        [holding("idle", gpus=1), holding("busy", gpus=3), holding("bare", gpus=4), workload(gpus=8)],
    )
    town.idle("idle")
    town.judged(busy=BUSY)
    told = await plan(town)
    assert told["plan"] is None
    assert told["refusal"]["reason"] == "NotEnoughIdle"
    assert told["refusal"]["help"] == _HELP[NoPlanReason.NOT_ENOUGH_IDLE]
    assert [each["name"] for each in told["candidates"]] == ["team/idle"]
    assert [(each["workload"], each["name"], each["gpus"], each["reason"]) for each in told["holders"]] == [
        ("team/bare", None, 4, "NotScaled"),
        ("team/busy", "team/busy", 3, "GPUsBusy"),
    ]


async def test_holders_that_another_plan_takes_or_keda_leaves_alone_are_told_apart() -> None:
    other = workload("other", gpus=2)
    town = Town([cluster_queue(gpus=4)], [holding("taken", gpus=2), holding("paused", gpus=2), other, workload(gpus=4)])
    town.granted(other, "taken")
    town.idle("paused")
    town.cluster.scaled_objects.put(
        scaled_object(
            "paused", kind=SCALABLE_WORKLOAD_KIND, namespace="team", annotations={"autoscaling.keda.sh/paused": "true"}
        )
    )
    told = await plan(town)
    assert {each["name"]: each["reason"] for each in told["holders"]} == {
        "team/taken": "TakenByPlan",
        "team/paused": "LeftAlone",
    }


async def test_nobody_is_planned_on_whose_end_cannot_be_foreseen() -> None:
    placed = holding("placed", gpus=2, opaque_because="it is placed by topology")
    town = Town([cluster_queue(gpus=2)], [placed, workload(gpus=2)])
    town.idle("placed")
    told = await plan(town)
    assert (told["plan"], told["candidates"], told["refusal"]["reason"]) == (None, [], "NotEnoughIdle")
    assert [(each["name"], each["reason"]) for each in told["holders"]] == [("team/placed", "Unforeseeable")]


def test_every_refusal_says_what_would_help() -> None:
    assert _HELP.keys() == set(NoPlanReason)


@pytest.mark.parametrize(
    ("policy", "caution"),
    [
        (ReclaimConfig(pressure=False), "PressureOff"),
        (ReclaimConfig(), "Unprotected"),
    ],
)
async def test_what_may_go_wrong_is_said(policy: ReclaimConfig, caution: str) -> None:
    town = Town([cluster_queue(gpus=2)], [holding(gpus=2), workload(gpus=2)], policy=policy)
    town.idle("runs")
    assert caution in {each["reason"] for each in (await plan(town))["cautions"]}


async def test_a_plan_that_settings_refuse_is_shown_with_the_refusal() -> None:
    town = Town(
        [cluster_queue(gpus=2)],
        [holding(gpus=2), workload(gpus=2)],
        policy=ReclaimConfig(unprotected=Unprotected.REFUSE),
    )
    town.idle("runs")
    told = await plan(town)
    assert told["plan"]["gpus"] == 2
    assert told["refusal"]["reason"] == "Unprotected"
    assert (await pending(town))["reclaim"]["outcome"] == "Unprotected"


async def test_a_plan_says_where_the_pods_go_and_who_gets_in_before() -> None:
    holder, head = holding(gpus=8), workload("head", gpus=4)
    gang = workload(pod_sets=(pod_set("workers", pods=2, gpus=2),))
    capacity = nodes_with({"n1": 8}, {"n1": {holder: 8}})
    town = Town([cluster_queue(gpus=8, strategy=STRICT)], [holder, head, gang], capacity=lambda: capacity)
    town.idle("runs")
    told = (await plan(town))["plan"]
    assert told["others"] == ["team/head"]
    assert {(each["workload"], each["podSet"], each["node"], each["pods"]) for each in told["placement"]} == {
        ("team/gang", "workers", "n1", 2),
        ("team/head", "main", "n1", 1),
    }


# ------------------------------------------------------------------------------------------------------------- one gang


@pytest.mark.parametrize(
    ("json", "state"),
    [
        (WorkloadJson(), "Pending"),
        (WorkloadJson().condition("Evicted", True, "Preempted"), "Pending"),
        (WorkloadJson().reserved(), "QuotaReserved"),
        (WorkloadJson().reserved().admitted(), "Admitted"),
        (WorkloadJson().reserved().admitted().condition("Evicted", True, "Deactivated"), "Evicted"),
        (WorkloadJson().reserved().deactivated(), "Deactivated"),
        (WorkloadJson().reserved().admitted().condition("Finished", True, "Succeeded"), "Finished"),
    ],
)
async def test_a_gang_is_shown_in_whatever_state_it_is(json: WorkloadJson, state: str) -> None:
    town = Town([cluster_queue(gpus=4)], [])
    json.json["metadata"] |= {"namespace": "team", "name": "gang"}
    town.cluster.workloads.put(decode(KueueWorkload, msgspec.json.encode(json.json)))
    told = await town.queries.gang("team", "gang")
    assert (told["state"], told["gang"], told["gates"]) == (state, None, [])


async def test_a_gang_that_waits_is_shown_as_among_all_that_do() -> None:
    town = Town([cluster_queue(gpus=4)], [holding(gpus=3), workload(gpus=2)])
    assert (await town.queries.gang("team", "gang"))["gang"] == await pending(town)


async def test_a_gang_is_found_by_the_scalable_workload_that_acts_for_it() -> None:
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=3)])
    town.scaled("x")
    assert (await town.queries.gang("team", "ScalableWorkload/x"))["name"] == "x"
    for name in ("ScalableWorkload/nobody", "nobody"):
        with pytest.raises(QueryError) as refused:
            await town.queries.gang("team", name)
        assert refused.value.status == 404


# -------------------------------------------------------------------------------------------------------------- what if


async def test_as_if_everybody_were_idle() -> None:
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=4), workload(gpus=4)])
    town.judged(x=BUSY)
    assert (await plan(town))["plan"] is None
    told = await plan(town, idle=[])
    assert told["whatIfIdle"] == []
    [victim] = told["plan"]["victims"]
    assert (victim["name"], victim["isAssumed"], victim["idleSince"]) == ("team/x", True, None)
    assert "LeftOut" not in [each["reason"] for each in told["cautions"]]


async def test_whom_no_plan_may_take_is_not_taken_to_be_idle() -> None:
    # Of 8 GPUs 6 are held; only the 2 of x could be freed, and the gang wants 4.
    opaque = replace(holding("elastic", gpus=2), opaque_because="it is an elastic job")
    town = Town([cluster_queue(gpus=8)], [holding("bare", gpus=2), opaque, holding("x", gpus=2), workload(gpus=4)])
    town.judged(x=BUSY, elastic=BUSY)
    told = await plan(town, idle=[])
    assert [each["name"] for each in told["plan"]["victims"]] == ["team/x"]
    assert [(each["reason"], each["message"]) for each in told["cautions"] if each["reason"] == "LeftOut"] == [
        ("LeftOut", "no plan may take team/bare: no ScalableWorkload acts for it"),
        (
            "LeftOut",
            "no plan may take team/elastic: what Kueue does when it goes is not known (it is an elastic job)",
        ),
    ]
    for name in ("team/bare", "team/elastic"):
        with pytest.raises(QueryError, match=f"{name}: no plan may take it, idle or not") as refused:
            await plan(town, idle=[name])
        assert refused.value.status == 409


async def test_what_if_needs_nobody_to_be_judged() -> None:
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=4), workload(gpus=4)])
    town.judged(x=BUSY)
    town.board = DecisionCache(max_age=timedelta(minutes=1))
    town.planning._board = town.board
    town.queries = QueryService(town.planning, town.board, clock=lambda: NOW)
    with pytest.raises(
        QueryError, match=r"it is not known which workloads are idle: no workload has been evaluated.*--what-if-idle"
    ):
        await plan(town)
    for idle in ([], ["team/x"]):
        told = await plan(town, idle=idle)
        assert [each["name"] for each in told["plan"]["victims"]] == ["team/x"]


async def test_since_when_somebody_is_idle_who_is_not_is_not_told() -> None:
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=4), workload(gpus=4)])
    town.judged(x=BUSY)
    [victim] = (await plan(town, idle=[]))["plan"]["victims"]
    assert (victim["name"], victim["idleSince"], victim["idleFor"]) == ("team/x", None, None)


async def test_as_if_some_were_idle_by_either_name() -> None:
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), workload(gpus=2)])
    town.cluster.scalable_workloads.put(scalable_workload("scale-y", workload="y", namespace="team"))
    town.cluster.scaled_objects.put(scaled_object("scale-y", namespace="team"))
    for name in ("team/y", "team/scale-y"):
        told = await plan(town, idle=[name])
        assert [each["name"] for each in told["plan"]["victims"]] == ["team/scale-y"]


async def test_as_if_a_stranger_were_idle_is_no_question() -> None:
    with pytest.raises(QueryError, match="team/nobody: no Workload or ScalableWorkload of that name") as refused:
        await plan(four_free_four_idle(), idle=["team/nobody", "team/four"])
    assert refused.value.status == 404


# ------------------------------------------------------------------------------------------------------ a standing plan


@pytest.mark.parametrize(
    ("town", "stage", "step"),
    [
        ({"replicas": 1}, "Reclaimable", "KEDA has asked 0 of 2 victims to be at 0; none is suspended until all are"),
        ({"replicas": 0}, "Reclaimable", "all victims are idle and asked to be at 0"),
        ({"replicas": 0, "stage": "Cancelled"}, "Cancelled", "all victims are idle"),
    ],
)
async def test_a_plan_that_stands_is_shown_with_how_far_it_is(town: dict[str, Any], stage: str, step: str) -> None:
    gang = workload(gpus=4)
    given = Town([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), gang])
    given.granted(gang, "x", "y", **town)
    told = await plan(given)
    assert told["plan"] is told["refusal"] is None
    standing = told["standing"]
    assert (standing["id"], standing["stage"], standing["gangState"]) == ("0123456789", stage, "Waiting")
    assert step in standing["next"]
    assert [(each["name"], each["gpus"], each["isIdle"]) for each in standing["victims"]] == [
        ("team/x", 2, True),
        ("team/y", 2, True),
    ]


async def test_a_victim_that_works_again_is_seen_to_end_the_plan() -> None:
    gang = workload(gpus=4)
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), gang])
    town.granted(gang, "x", "y")
    town.judged(x=BUSY)
    standing = (await plan(town))["standing"]
    assert standing["next"] == "it is cancelled: a victim is not idle any more (team/x)"


# ------------------------------------------------------------------------------------------------------------ questions


@pytest.mark.parametrize("name", ["gang", "gang-job", "Job/gang-job", "job/gang-job"])
async def test_a_gang_is_found_by_its_workload_or_its_job(name: str) -> None:
    assert (await plan(short_of_one_flavor(), name))["gang"]["name"] == "gang"


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("nobody", 404, "there is no Workload team/nobody, nor one of a job of that name"),
        ("Pod/gang-job", 404, "there is no Workload team/Pod/gang-job"),
        ("runs", 409, "Workload team/runs is admitted by ClusterQueue a: there is nothing to plan"),
    ],
)
async def test_who_does_not_wait_is_told_so(name: str, status: int, message: str) -> None:
    with pytest.raises(QueryError, match=message) as refused:
        await plan(short_of_one_flavor(), name)
    assert refused.value.status == status


async def test_a_deactivated_workload_waits_for_nothing() -> None:
    town = short_of_one_flavor()
    town.put(gang := workload("off"), WorkloadJson().deactivated())
    town.snapshot.drop(QuotaWorkload, gang.key)
    with pytest.raises(QueryError, match="waits for nothing: it is deactivated"):
        await plan(town, "off")


async def test_a_job_of_several_workloads_has_to_be_named_by_one_of_them() -> None:
    town = short_of_one_flavor()
    town.put(workload("again", gpus=2), WorkloadJson().owned_by("batch/v1", "Job", "gang-job"))
    with pytest.raises(QueryError, match="again, gang; name one of them") as refused:
        await plan(town, "gang-job")
    assert refused.value.status == 409


async def test_where_quota_cannot_be_seen_every_question_is_refused_with_the_reason() -> None:
    town = short_of_one_flavor()
    town.view.shown = NotSynced("Kueue (kueue.x-k8s.io/v1beta2) is not installed")
    for question in (town.queries.queues(), town.queries.pending(), town.queries.plan("team", "gang")):
        with pytest.raises(QueryError, match=r"quota is not known: Kueue .* is not installed") as refused:
            await question
        assert refused.value.status == 503


async def test_questions_are_answered_one_at_a_time_and_too_many_are_refused() -> None:
    town = four_free_four_idle()
    found = await asyncio.gather(*(town.queries.plan("team", "gang") for _ in range(12)), return_exceptions=True)
    refused = [each for each in found if isinstance(each, QueryError)]
    # One is answered, eight wait in line.
    assert len(found) - len(refused) == 9
    assert all(each.status == 503 for each in refused)
    assert (await plan(town))["plan"]["gpus"] == 4


async def test_asking_changes_nothing() -> None:
    town = four_free_four_idle()
    versions = [town.snapshot.version(tree) for tree in town.snapshot.trees]
    first, again = [await town.queries.plan("team", "gang") for _ in range(2)]
    assert first == again
    assert [town.snapshot.version(tree) for tree in town.snapshot.trees] == versions
