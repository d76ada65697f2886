"""What `pending`, `queues` and `plan` show: why a gang waits, what queues hold, which victims a plan takes and why."""

import asyncio
from dataclasses import replace
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
from views_builders import QuotaCluster, reasons

from scaler.admission.remote_copies import NominatedCopies
from scaler.decision.decision import Active, Inactive
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation
from scaler.decision.reasons import DecisionReason
from scaler.errors import QueryError
from scaler.kube.objects.core import decode
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.quota.model import PreemptionPolicy, QueueingStrategy, QuotaPodSet, QuotaWorkload, StopPolicy
from scaler.quota.watch import NotSynced
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.reclaim.search.values import NoPlanReason
from scaler.reporting.views.pending import pending_view
from scaler.reporting.views.plans import _HELP
from scaler.reporting.views.queues import queues_view

STRICT = QueueingStrategy.STRICT_FIFO
BUSY = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")


async def pending(cluster: QuotaCluster, name: str = "gang", **filters: str) -> dict[str, Any]:
    """What is shown of one gang."""
    view = await cluster.queries.pending(**filters)
    return next(each for each in view["gangs"] if each["name"] == name)


async def plan(cluster: QuotaCluster, name: str = "gang", **query: Any) -> dict[str, Any]:
    return dict(await cluster.queries.plan("team", name, **query))


def with_gang(json: WorkloadJson, gang: QuotaWorkload | None = None) -> QuotaCluster:
    """Of 4 GPUs, with a gang that is so in the API."""
    cluster = QuotaCluster([cluster_queue(gpus=4)], [])
    cluster.put(gang or workload(may_queue=False), json)
    return cluster


# -------------------------------------------------------------------------------------------------------- why it waits


def a_remote_copy() -> QuotaCluster:
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding(gpus=4)])
    json = WorkloadJson()
    json.json["metadata"]["labels"] = {MULTIKUEUE_ORIGIN: "multikueue"}
    cluster.put(workload(gpus=4), json)
    return cluster


def short_of_one_flavor() -> QuotaCluster:
    # 4 − 3 = 1 is left, and 2 are wanted.
    return QuotaCluster([cluster_queue(gpus=4)], [holding(gpus=3), workload(gpus=2)])


def while_its_checks_are_not_ready() -> QuotaCluster:
    states = [{"name": "nodes", "state": "Pending", "message": "2 of 4 are there"}, {"name": "paid", "state": "Ready"}]
    gang = replace(holding("gang", gpus=2), admitted=False)
    return with_gang(WorkloadJson().with_status(admissionChecks=states), gang)


def while_a_plan_is_under_way() -> QuotaCluster:
    gang = workload(gpus=4)
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding(gpus=2), gang])
    cluster.granted(gang, "runs")
    return cluster


def although_its_quota_is_there() -> QuotaCluster:
    # 8 are free, 4 on each node, and the pod needs 8 on one.
    other = holding("other", gpus=4, queue="b")
    capacity = nodes_with({"n1": 4, "n2": 8}, {"n2": {other: 4}})
    queues = [cluster_queue("a", gpus=8), cluster_queue("b", gpus=8)]
    return QuotaCluster(queues, [other, workload(gpus=8)], capacity=lambda: capacity)


def while_kueue_keeps_quota_for_a_head_before_it() -> QuotaCluster:
    # 3 − 2 = 1 is free, and kept for the older head of another queue, which wants 2. Both would borrow.
    lower = preempting(within=PreemptionPolicy.LOWER_PRIORITY)
    queues = [
        cluster_queue("a", gpus=0, cohort="team"),
        cluster_queue("b", gpus=3, cohort="team", preemption=lower),
        # Its head has its turn before all others, and nothing is kept for it.
        cluster_queue("c", gpus=0, cohort="team"),
    ]
    heads = [workload("head", gpus=2, queue="b"), workload("never", gpus=9, queue="c")]
    return QuotaCluster(queues, [holding(gpus=2, queue="b"), *heads, workload(gpus=1)])


SPOT = QuotaCluster(
    [cluster_queue(gpus={"spot": 8, "default": 4})],
    [holding(gpus=4), workload(gpus=2)],
    flavors=[flavor("spot", taints=(taint(),))],
)
# 3 + 3 are free; each PodSet of 2 fits somewhere, and a third one nowhere.
THREE_POD_SETS = workload(pod_sets=tuple(pod_set(name, gpus=2) for name in ("one", "two", "three")))
BORROWS = cluster_queue("a", gpus=quota(4, borrowing=2), cohort="team")
LENDS = cluster_queue("b", gpus=8, cohort="team")
FPGA = pod_set(requests={GPU: 1, "example.com/fpga": 1})
STRICT_QUEUE = cluster_queue(gpus=4, strategy=STRICT)
BACKS_OFF = {"count": 2, "requeueAt": "2026-12-01T12:05:00Z"}
GATED = {"kueue.x-k8s.io/admission-gated-by": "example.com/budget"}
LOSING = replace(holding("gang", gpus=2, evicted=True), admitted=False)
QUEUE, ONE = [cluster_queue()], [workload()]
WAITS = {
    "short of one flavor": (
        short_of_one_flavor(),
        "WaitingForQuota: flavor default lacks 1 of 2 nvidia.com/gpu (1 available)",
    ),
    "not tolerating the taint of another": (
        SPOT,
        "WaitingForQuota: flavor spot has the taint spot=true:NoSchedule, which the pods do not tolerate; "
        "flavor default lacks 2 of 2 nvidia.com/gpu (0 available)",
    ),
    "short of all PodSets together": (
        QuotaCluster([cluster_queue(gpus={"a100": 3, "h100": 3})], [THREE_POD_SETS]),
        "NeverFits: but a PodSet takes each resource from one flavor",
    ),
    "too large for ever": (
        QuotaCluster([BORROWS, LENDS], [workload(gpus=7)]),
        "NeverFits: flavor default could give 6 of 7 nvidia.com/gpu at most, borrowing included",
    ),
    "for a resource without quota": (
        QuotaCluster(QUEUE, [workload(pod_sets=(FPGA,))]),
        "NeverFits: ClusterQueue a has no quota for example.com/fpga",
    ),
    "behind a StrictFIFO head": (
        QuotaCluster([STRICT_QUEUE], [workload("head", gpus=5), workload(gpus=1)]),
        "HeadOfLineBlocked: ClusterQueue a is StrictFIFO; Workload team/head (priority 0) is its head",
    ),
    "behind a BestEffortFIFO head": (
        QuotaCluster([cluster_queue(gpus=4)], [holding(gpus=4), workload("head", gpus=2), workload(gpus=1)]),
        "WaitingForQuota: lacks 1 of 1",
    ),
    "without a LocalQueue": (QuotaCluster(QUEUE, ONE, local_queues=[]), "QueueStopped: there is no LocalQueue team/a"),
    "with a stopped LocalQueue": (
        QuotaCluster(QUEUE, ONE, local_queues=[local_queue("a", stop_policy=StopPolicy.HOLD)]),
        "QueueStopped: LocalQueue a is stopped (Hold)",
    ),
    "with a LocalQueue that leads nowhere": (
        QuotaCluster(QUEUE, ONE, local_queues=[local_queue("a", "gone")]),
        "QueueStopped: LocalQueue a leads to ClusterQueue gone",
    ),
    "in a stopped ClusterQueue": (
        QuotaCluster([cluster_queue(stop_policy=StopPolicy.HOLD)], ONE),
        "QueueStopped: ClusterQueue a admits nothing: stopPolicy is Hold",
    ),
    "in an inactive ClusterQueue": (
        QuotaCluster([cluster_queue(checks=frozenset({"provisioning"}))], ONE),
        "QueueStopped: ClusterQueue a admits nothing: AdmissionCheckNotFound",
    ),
    "in a namespace that is not selected": (
        QuotaCluster([cluster_queue(namespace_selector=None)], ONE),
        "QueueStopped: ClusterQueue a does not select namespace team",
    ),
    "while it backs off": (
        with_gang(WorkloadJson().with_status(requeueState=BACKS_OFF)),
        "NotQueued: it backs off until 2026-12-01T12:05:00Z",
    ),
    "while it is not requeued": (
        with_gang(WorkloadJson().condition("Requeued", False, "PodsReadyTimeout", "not ready")),
        "NotQueued: Requeued is False (PodsReadyTimeout): not ready",
    ),
    "behind an admission gate": (with_gang(WorkloadJson().with_annotations(GATED)), "NotQueued: example.com/budget"),
    "for its hub to nominate this cluster": (
        a_remote_copy(),
        "RemoteCopy: it is a remote copy of MultiKueue, and the hub has not nominated this cluster for it",
    ),
    "while its checks are not Ready": (
        while_its_checks_are_not_ready(),
        "WaitingForAdmissionChecks: check nodes is Pending: 2 of 4 are there",
    ),
    "while it loses its quota": (
        with_gang(WorkloadJson().condition("Evicted", True, "AdmissionCheck", "the check says Retry"), LOSING),
        "Evicted: the check says Retry",
    ),
    "while a plan is under way": (while_a_plan_is_under_way(), "PlanUnderWay: plan 0123456789 suspends team/runs"),
    "although its quota is there": (
        although_its_quota_is_there(),
        "PlacementImpossible: PodSet main: 1 of 1 pods does not fit",
    ),
    "while Kueue keeps quota for a head before it": (
        while_kueue_keeps_quota_for_a_head_before_it(),
        "QuotaReservedForOther: but Kueue keeps it for team/head",
    ),
    "until Kueue comes to it": (
        QuotaCluster([cluster_queue(gpus=4)], [workload(gpus=4)]),
        "Queued: what it needs is available; it is number 1 in a",
    ),
}


@pytest.mark.parametrize(("cluster", "expected"), WAITS.values(), ids=WAITS)
async def test_a_gang_waits(cluster: QuotaCluster, expected: str) -> None:
    shown, (reason, _, message) = await pending(cluster), expected.partition(": ")
    assert shown["reason"] == reason
    assert message in shown["message"]
    assert shown["reasons"][0] == {"reason": reason, "message": shown["message"]}


async def test_of_a_remote_copy_it_is_said_why_nothing_is_suspended_and_what_else_it_lacks() -> None:
    cluster = a_remote_copy()
    shown = await pending(cluster)
    assert [each["reason"] for each in shown["reasons"]] == ["RemoteCopy", "WaitingForQuota"]
    assert shown["reclaim"]["outcome"] == "RemoteCopy"
    refusal = (await cluster.queries.plan("team", "gang"))["refusal"]
    assert (refusal["reason"], refusal["help"]) == ("RemoteCopy", _HELP[NoPlanReason.REMOTE_COPY])
    cluster.planning.nominations = lambda: NominatedCopies(always=True)
    assert "RemoteCopy" not in [each["reason"] for each in (await pending(cluster))["reasons"]]


async def test_checks_that_are_ready_are_not_waited_for() -> None:
    shown = await pending(while_its_checks_are_not_ready())
    assert "paid" not in shown["message"]
    assert [(each["name"], each["state"]) for each in shown["checks"]] == [("nodes", "Pending"), ("paid", "Ready")]


async def test_every_reason_that_holds_is_shown_and_the_numbers_flavor_by_flavor() -> None:
    """Behind a head, and short of quota as well: with the head gone it would still wait."""
    queue = cluster_queue(gpus={"a100": 4, "h100": 1}, strategy=STRICT)
    held = holding(gpus=3, flavor="a100")
    shown = await pending(QuotaCluster([queue], [held, workload("head", gpus=2), workload(gpus=2)]))
    assert [each["reason"] for each in shown["reasons"]] == ["HeadOfLineBlocked", "WaitingForQuota"]
    assert shown["quota"] == [
        {"flavor": "a100", "resource": GPU, "wanted": 2, "available": 1, "lacking": 1, "most": 4, "refusal": None},
        {"flavor": "h100", "resource": GPU, "wanted": 2, "available": 1, "lacking": 1, "most": 1, "refusal": None},
    ]


async def test_its_place_in_line_is_that_of_priority_and_age() -> None:
    cluster = QuotaCluster(
        [cluster_queue(gpus=1)],
        [holding(), workload("old", priority=1), workload("gang"), workload("young"), workload("urgent", priority=9)],
    )
    shown = await pending(cluster)
    assert (shown["position"], shown["inLine"]) == (3, 4)
    assert shown["before"] == ["team/urgent", "team/old"]
    # Plans are made in the same order.
    assert [each["name"] for each in (await cluster.queries.pending())["gangs"]] == ["urgent", "old", "gang", "young"]


async def test_kueues_own_message_stands_beside_ours() -> None:
    cluster = QuotaCluster([cluster_queue(gpus=1)], [])
    cluster.put(workload(gpus=2), WorkloadJson().waiting("couldn't assign flavors to pod set main"))
    shown = await pending(cluster)
    assert shown["kueue"] == {
        "condition": "QuotaReserved=False",
        "reason": "WaitingForQuota",
        "message": "couldn't assign flavors to pod set main",
        "since": "2026-12-01T09:00:01Z",
    }
    assert shown["job"] == "Job/gang-job"


async def test_a_workload_without_gpus_or_admitted_is_not_pending() -> None:
    cpu = QuotaPodSet(name="main", count=1, requests={"cpu": 1000})
    cluster = QuotaCluster([cluster_queue(gpus=1)], [holding(), workload("cpus", pod_sets=(cpu,)), workload()])
    assert reasons(await cluster.queries.pending()) == {"gang": "WaitingForQuota"}


async def test_filters_choose_by_namespace_local_queue_and_cluster_queue() -> None:
    queues = [cluster_queue("a", gpus=0), cluster_queue("b", gpus=0)]
    cluster = QuotaCluster(
        queues,
        [workload("one", queue="mine"), workload("two", queue="b"), workload("lost", queue="absent")],
        local_queues=[local_queue("mine", "a"), local_queue("b")],
    )
    cluster.snapshot.put_namespace("others", {})
    chosen = [{"queue": "mine"}, {"queue": "a"}, {"queue": "b"}, {"queue": "absent"}]
    chosen += [{"namespace": "team"}, {"namespace": "others"}]
    names = [[each["name"] for each in (await cluster.queries.pending(**each))["gangs"]] for each in chosen]
    assert names == [["one"], ["one"], ["two"], ["lost"], ["one", "two", "lost"], []]


async def test_an_answer_that_leaves_some_out_says_how_many() -> None:
    cluster = QuotaCluster([cluster_queue(gpus=0)], [workload(f"gang-{n}") for n in range(5)])
    view = pending_view(await cluster.view_snapshot(), most=2)
    assert ([each["name"] for each in view["gangs"]], view["omitted"]) == (["gang-0", "gang-1"], 3)


# --------------------------------------------------------------------------------------------- what a plan could do


def two_idle(*gangs: QuotaWorkload, idle: tuple[str, ...]) -> QuotaCluster:
    """Of 2 GPUs each, which is all that there is."""
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), *gangs])
    cluster.idle(*idle)
    return cluster


async def test_only_the_first_gang_of_a_tree_that_a_plan_serves_gets_the_next_one() -> None:
    cluster = two_idle(workload(gpus=2), workload("later", gpus=1), idle=("x", "y"))
    first, second = (await pending(cluster))["reclaim"], (await pending(cluster, "later"))["reclaim"]
    assert (first["outcome"], "team/x (2 GPUs)" in first["message"]) == ("Planned", True)
    assert second == {"outcome": "NotNext", "message": "the next plan in its quota tree is for team/gang"}
    cluster = two_idle(workload(gpus=4), workload("later", gpus=2), idle=("x",))
    assert (await pending(cluster))["reclaim"]["outcome"] == "NotEnoughIdle"
    assert (await pending(cluster, "later"))["reclaim"]["outcome"] == "Planned"


async def test_while_a_plan_is_active_the_others_of_its_tree_wait_for_its_end() -> None:
    gang, far = workload(gpus=4), workload("far", queue="b")
    queues = [cluster_queue(gpus=4), cluster_queue("b", gpus=0)]
    cluster = QuotaCluster(queues, [holding(gpus=2), gang, workload("later", gpus=1), far])
    cluster.granted(gang, "runs")
    shown = {each["name"]: each for each in (await cluster.queries.pending())["gangs"]}
    assert shown["gang"]["plan"]["stage"] == "Reclaimable"
    outcomes = {name: each["reclaim"]["outcome"] for name, each in shown.items()}
    # Another tree shares no quota with it.
    assert outcomes == {"gang": "UnderWay", "later": "AfterAnother", "far": "NeverFits"}
    assert "plan 0123456789 for team/gang" in shown["later"]["reclaim"]["message"]


async def test_while_it_is_not_known_which_workloads_are_idle_quota_is_shown_all_the_same() -> None:
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding(gpus=3), workload(gpus=2)], is_judged=False)
    cluster.scaled("runs")
    view = await cluster.queries.pending()
    assert "no workload has been evaluated yet" in view["unjudged"]
    assert reasons(view) == {"gang": "WaitingForQuota"}
    [tree] = (await cluster.queries.queues())["trees"]
    assert [tree["flavors"][0][each] for each in ("used", "idle", "reclaimable")] == [3, None, None]
    problem = r"it is not known which workloads are idle: no workload has been evaluated.*--what-if-idle"
    with pytest.raises(QueryError, match=problem) as refused:
        await plan(cluster)
    assert refused.value.status == 503
    for idle in ([], ["team/runs"]):
        assert [each["name"] for each in (await plan(cluster, idle=idle))["plan"]["victims"]] == ["team/runs"]


async def test_what_the_planner_was_not_asked_for_want_of_time_is_said() -> None:
    cluster = short_of_one_flavor()
    cluster.queries._patience_s = -1.0
    assert (await pending(cluster))["reclaim"]["outcome"] == "NotAsked"


# --------------------------------------------------------------------------------------------------------------- queues


def three_teams() -> QuotaCluster:
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
    cluster = QuotaCluster(queues, workloads, cohorts=[cohort("team", gpus=2), cohort("inner", parent="team")])
    cluster.idle("x")
    # Idle, and not to be taken by a plan: its time is up anyway.
    cluster.judged(y=Inactive(reason=DecisionReason.GPUS_IDLE, message="quiet"), z=BUSY)
    return cluster


def flat(nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every node by its name."""
    found = {each["name"]: each for each in nodes}
    for each in nodes:
        found |= flat(each["children"])
    return found


async def test_a_tree_is_shown_with_what_is_used() -> None:
    trees = queues_view(await three_teams().view_snapshot())["trees"]
    assert [(each["kind"], each["name"]) for each in trees] == [("Cohort", "team"), ("ClusterQueue", "alone")]
    assert [each["name"] for each in trees[0]["children"]] == ["inner", "a", "b"]
    nodes = flat(trees)
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
        "team": 6, "a": 5, "b": 0, "inner": 1, "c": 1, "alone": 0
    }  # fmt: skip
    assert (nodes["a"]["waitingGangs"], nodes["team"]["waitingGangs"]) == (2, 3)


async def test_what_counts_as_idle_and_as_pending() -> None:
    held = replace(holding("held", gpus=1), admitted=False)
    quiet = [holding(name, gpus=gpus, flavor="zeta") for name, gpus in (("quiet", 2), ("fresh", 3))]
    cluster = QuotaCluster([cluster_queue(gpus={"zeta": 8, "alpha": 2})], [*quiet, held, workload(gpus=3)])
    cluster.idle("quiet")
    cluster.judged(fresh=Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="running for 2m"))
    [queue] = queues_view(await cluster.view_snapshot())["trees"]
    assert [each["flavor"] for each in queue["flavors"]][:2] == ["zeta", "alpha"], "in the order of the ClusterQueue"
    assert (queue["flavors"][0]["idle"], queue["flavors"][0]["used"]) == (2, 5)
    # What holds quota and waits for its checks is not pending.
    assert (queue["pending"], queue["waitingGangs"]) == ({GPU: 3}, 1)
    unusable = EvaluatedScaledObject(target=scalable_workload_ref("quiet"), triggers={}, problems=("idleAfter: soon",))
    cluster.decision_cache.publish(Evaluation.of({("team", "quiet"): unusable}, at=NOW))
    [queue] = queues_view(await cluster.view_snapshot())["trees"]
    assert queue["flavors"][0]["idle"] == 0, "it is not judged"


async def test_only_gpus_are_counted_unless_all_resources_are_wanted() -> None:
    given = cluster_queue(gpus=4)
    cpus = {key._replace(resource="cpu"): quota(1500) for key in given.quotas}
    cluster = QuotaCluster([cluster_queue(gpus=4, quotas={**given.quotas, **cpus})], [])
    snapshot = await cluster.view_snapshot()
    [only], [everything] = (queues_view(snapshot, all_resources=flag)["trees"] for flag in (False, True))
    assert [each["resource"] for each in only["flavors"]] == [GPU]
    assert {each["resource"]: each["nominal"] for each in everything["flavors"]} == {"cpu": 1.5, GPU: 4}


async def test_what_cannot_be_read_is_said_of_its_tree() -> None:
    cluster = QuotaCluster([cluster_queue()], [])
    cluster.snapshot.put(cluster_queue("broken"), doubt="nominalQuota: 'many' is no quantity")
    doubts = {each["name"]: each["doubts"] for each in queues_view(await cluster.view_snapshot())["trees"]}
    assert doubts == {"a": [], "broken": ["ClusterQueue broken: nominalQuota: 'many' is no quantity"]}


# ---------------------------------------------------------------------------------------------------------------- plans


def four_free_four_idle() -> QuotaCluster:
    """For a gang of 8: 4 are free, 4 are idle in one workload, 8 in another, 1 in a third."""
    holders = [holding("four", gpus=4), holding("eight", gpus=8), holding("one", gpus=1)]
    cluster = QuotaCluster([cluster_queue(gpus=17, strategy=STRICT)], [*holders, workload(gpus=8)])
    cluster.idle("four", "eight", "one")
    return cluster


async def test_a_plan_is_shown_with_what_it_frees_its_cost_and_its_alternatives() -> None:
    shown = await plan(four_free_four_idle())
    assert shown["refusal"] is shown["active"] is shown["whatIfIdle"] is shown["plan"]["placement"] is None
    line = {"flavor": "default", "resource": GPU, "freeBefore": 4, "freed": 4, "freeAfter": 8, "takes": 8}
    assert shown["plan"]["quota"] == [line]
    assert shown["plan"]["assignments"] == [{"podSet": "main", "count": 1, "flavors": {GPU: "default"}}]
    # Running since two hours before noon, idle for 30 min: 1.5 h of work. (4 + 4 × 1.5 + 4 × 5/60) / 1.5 = 6.889
    parts = {"gpus": 4, "gpuHoursLost": 6, "priority": 0, "reclaimedBefore": 0, "timeToResume": 0.333}
    victim = {"name": "team/four", "workload": "team/four", "clusterQueue": "a", "gpus": 4, "cost": 6.889}
    idle = {"idleDivisor": 1.5, "idleSince": "2026-12-01T11:30:00Z", "idleFor": "30m", "isAssumed": False}
    idle |= {"idleAtLeast": False}
    assert shown["plan"]["victims"] == [{**victim, "costParts": parts, **idle, "savedAt": None}]
    message = "without it 4 nvidia.com/gpu would be missing"
    assert shown["plan"]["necessities"] == [{"victim": "team/four", "reason": "NotEnoughIdle", "message": message}]
    dearer = [each for each in shown["alternatives"] if each["whyNot"] is None]
    # Not also eight and one: what does it with one more besides is no other way.
    assert [(each["victims"], each["gpus"]) for each in dearer] == [(["team/eight"], 8)]
    assert shown["plan"]["cost"] < dearer[0]["cost"]


async def test_without_a_plan_idle_workloads_and_the_holders_of_the_rest_are_shown() -> None:
    other, bare, placed = workload("other", gpus=2), holding("bare", gpus=4), holding("placed", gpus=1)
    held = [holding("idle", gpus=1), holding("busy", gpus=3), holding("taken", gpus=2), holding("paused", gpus=2)]
    placed = replace(placed, opaque_because="it is placed by topology")
    cluster = QuotaCluster([cluster_queue(gpus=13)], [*held, bare, placed, other, workload(gpus=13)])
    cluster.granted(other, "taken")
    cluster.idle("idle", "paused", "placed")
    cluster.judged(busy=BUSY)
    paused = {"autoscaling.keda.sh/paused": "true"}
    cluster.cluster.scaled_objects.put(
        scaled_object("paused", kind=SCALABLE_WORKLOAD_KIND, namespace="team", annotations=paused)
    )
    shown = await plan(cluster)
    assert (shown["plan"], shown["refusal"]["reason"]) == (None, "NotEnoughIdle")
    assert shown["refusal"]["help"] == _HELP[NoPlanReason.NOT_ENOUGH_IDLE]
    assert [each["name"] for each in shown["candidates"]] == ["team/idle"]
    assert [(each["workload"], each["name"], each["gpus"], each["reason"]) for each in shown["holders"]] == [
        ("team/bare", None, 4, "NotScaled"),
        ("team/busy", "team/busy", 3, "GPUsBusy"),
        ("team/paused", "team/paused", 2, "LeftAlone"),
        ("team/taken", "team/taken", 2, "TakenByPlan"),
        ("team/placed", "team/placed", 1, "Unforeseeable"),
    ]


def test_every_refusal_says_what_would_help() -> None:
    assert _HELP.keys() == set(NoPlanReason)


CAUTIONS = {
    "no plan is carried out": (ReclaimConfig(pressure=False), "PressureOff", None),
    "others may take what is freed": (ReclaimConfig(), "Unprotected", None),
    "others may, and settings refuse that": (
        ReclaimConfig(unprotected=Unprotected.REFUSE),
        "Unprotected",
        "Unprotected",
    ),
}


@pytest.mark.parametrize(("policy", "caution", "refusal"), CAUTIONS.values(), ids=CAUTIONS)
async def test_a_plan_is_shown_with_what_may_go_wrong(policy: ReclaimConfig, caution: str, refusal: str | None) -> None:
    cluster = QuotaCluster([cluster_queue(gpus=2)], [holding(gpus=2), workload(gpus=2)], policy=policy)
    cluster.idle("runs")
    shown = await plan(cluster)
    assert caution in {each["reason"] for each in shown["cautions"]}
    assert (shown["plan"]["gpus"], (shown["refusal"] or {}).get("reason")) == (2, refusal)
    assert (await pending(cluster))["reclaim"]["outcome"] == (refusal or "Planned")


async def test_a_plan_shows_where_the_pods_go_and_what_is_admitted_before() -> None:
    holder, head = holding(gpus=8), workload("head", gpus=4)
    gang = workload(pod_sets=(pod_set("workers", pods=2, gpus=2),))
    capacity = nodes_with({"n1": 8}, {"n1": {holder: 8}})
    cluster = QuotaCluster([cluster_queue(gpus=8, strategy=STRICT)], [holder, head, gang], capacity=lambda: capacity)
    cluster.idle("runs")
    shown = (await plan(cluster))["plan"]
    assert shown["others"] == ["team/head"]
    assert {(each["workload"], each["podSet"], each["node"], each["pods"]) for each in shown["placement"]} == {
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
    cluster = QuotaCluster([cluster_queue(gpus=4)], [])
    json.json["metadata"] |= {"namespace": "team", "name": "gang"}
    cluster.cluster.workloads.put(decode(KueueWorkload, msgspec.json.encode(json.json)))
    shown = await cluster.queries.gang("team", "gang")
    assert (shown["state"], shown["gang"], shown["admissionChecks"]) == (state, None, [])


async def test_a_gang_that_waits_is_shown_as_among_all_that_do() -> None:
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding(gpus=3), workload(gpus=2)])
    assert (await cluster.queries.gang("team", "gang"))["gang"] == await pending(cluster)


# -------------------------------------------------------------------------------------------------------------- what if


async def test_as_if_all_were_idle() -> None:
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding("x", gpus=4), workload(gpus=4)])
    cluster.judged(x=BUSY)
    assert (await plan(cluster))["plan"] is None
    shown = await plan(cluster, idle=[])
    assert shown["whatIfIdle"] == []
    [victim] = shown["plan"]["victims"]
    assert (victim["name"], victim["isAssumed"]) == ("team/x", True)
    assert (victim["idleSince"], victim["idleAtLeast"], victim["idleFor"]) == (None, False, None)
    assert "LeftOut" not in [each["reason"] for each in shown["cautions"]]


async def test_what_no_plan_may_take_is_not_assumed_to_be_idle() -> None:
    # Of 8 GPUs 6 are held; only the 2 of x could be freed, and the gang wants 4.
    opaque = replace(holding("elastic", gpus=2), opaque_because="it is an elastic job")
    cluster = QuotaCluster(
        [cluster_queue(gpus=8)], [holding("bare", gpus=2), opaque, holding("x", gpus=2), workload(gpus=4)]
    )
    cluster.judged(x=BUSY, elastic=BUSY)
    shown = await plan(cluster, idle=[])
    assert [each["name"] for each in shown["plan"]["victims"]] == ["team/x"]
    assert [(each["reason"], each["message"]) for each in shown["cautions"] if each["reason"] == "LeftOut"] == [
        ("LeftOut", "no plan may take team/bare: no ScalableWorkload acts for it"),
        ("LeftOut", "no plan may take team/elastic: what Kueue does when it goes is not known (it is an elastic job)"),
    ]


async def test_as_if_some_were_idle_by_either_name() -> None:
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), workload(gpus=2)])
    cluster.cluster.scalable_workloads.put(scalable_workload("scale-y", workload="y", namespace="team"))
    cluster.cluster.scaled_objects.put(scaled_object("scale-y", namespace="team"))
    for name in ("team/y", "team/scale-y"):
        shown = await plan(cluster, idle=[name])
        assert [each["name"] for each in shown["plan"]["victims"]] == ["team/scale-y"]


# ------------------------------------------------------------------------------------------------------ an active plan-


STEPS = {
    "before KEDA has acted": (1, {}, "KEDA has asked 0 of 2 victims to be at 0; none is suspended until all are"),
    "when all victims are at 0": (0, {}, "all victims are idle and asked to be at 0"),
    "once one was taken back": (0, {"stage": "Cancelled"}, "all victims are idle"),
}


@pytest.mark.parametrize(("replicas", "entry", "step"), STEPS.values(), ids=STEPS)
async def test_an_active_plan_is_shown_with_its_progress(replicas: int, entry: dict[str, str], step: str) -> None:
    gang = workload(gpus=4)
    cluster = QuotaCluster([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), gang])
    cluster.granted(gang, "x", "y", replicas=replicas, **entry)
    shown = await plan(cluster)
    assert shown["plan"] is shown["refusal"] is None
    active = shown["active"]
    assert (active["id"], active["gangState"]) == ("0123456789", "Waiting")
    assert active["stage"] == entry.get("stage", "Reclaimable")
    assert step in active["next"]
    victims = [(each["name"], each["gpus"], each["isIdle"]) for each in active["victims"]]
    assert victims == [("team/x", 2, True), ("team/y", 2, True)]
    cluster.judged(x=BUSY)
    ended = (await plan(cluster))["active"]["next"]
    assert ended == "it is cancelled: a victim is not idle any more (team/x)"


# -------------------------------------------------------------------------------------------------------------- queries


@pytest.mark.parametrize("name", ["gang", "gang-job", "Job/gang-job", "job/gang-job", "ScalableWorkload/gang"])
async def test_a_gang_is_found_by_its_workload_or_what_owns_or_scales_it(name: str) -> None:
    cluster = short_of_one_flavor()
    cluster.scaled("gang")
    assert (await plan(cluster, name))["gang"]["name"] == "gang"


def refusing() -> QuotaCluster:
    """A gang, whose job has another Workload, too; one that is deactivated, and two that no plan may take."""
    opaque = replace(holding("elastic"), opaque_because="it is an elastic job")
    workloads = [holding(gpus=3), holding("bare"), opaque, workload(gpus=2)]
    cluster = QuotaCluster(
        [cluster_queue("a", gpus=8)], workloads, local_queues=[local_queue("a"), local_queue("b", "a")]
    )
    cluster.snapshot.put_namespace("other", {})
    cluster.scaled("elastic")
    cluster.put(workload("again", gpus=2), WorkloadJson().owned_by("batch/v1", "Job", "gang-job"))
    cluster.put(off := workload("off"), WorkloadJson().deactivated())
    cluster.snapshot.drop(QuotaWorkload, off.key)
    return cluster


NOT_TAKEN = "no plan may take it, idle or not"
REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "pending in a queue that does not exist": (
        *("pending", {"queue": "typo"}, 404),
        "there is no ClusterQueue typo, and no LocalQueue typo",
    ),
    "pending in a queue of another namespace": (
        *("pending", {"queue": "b", "namespace": "other"}, 404),
        "there is no ClusterQueue b, and no LocalQueue b in namespace other",
    ),
    "pending in a namespace that does not exist": ("pending", {"namespace": "typo"}, 404, "there is no namespace typo"),
    "a gang that does not exist": (
        "gang",
        {"name": "absent"},
        404,
        "there is no Workload team/absent, nor one of a job",
    ),
    "a ScalableWorkload that does not exist": ("gang", {"name": "ScalableWorkload/absent"}, 404, "is not there"),
    "another kind of job": ("plan", {"name": "Pod/gang-job"}, 404, "there is no Workload team/Pod/gang-job"),
    "one that is admitted": ("plan", {"name": "runs"}, 409, "is admitted by ClusterQueue a: there is nothing to plan"),
    "one that is deactivated": ("plan", {"name": "off"}, 409, "waits for nothing: it is deactivated"),
    "a job of several": ("plan", {"name": "gang-job"}, 409, "again, gang; name one of them"),
    "as if an unknown one were idle": (
        *("plan", {"name": "gang", "idle": ["team/absent", "team/runs"]}, 404),
        "team/absent: no Workload or ScalableWorkload of that name",
    ),
    "as if one without a ScalableWorkload were idle": ("plan", {"name": "gang", "idle": ["team/bare"]}, 409, NOT_TAKEN),
    "as if one that is opaque were idle": ("plan", {"name": "gang", "idle": ["team/elastic"]}, 409, NOT_TAKEN),
}


@pytest.mark.parametrize(("query", "asked", "status", "message"), REFUSED.values(), ids=REFUSED)
async def test_a_query_is_refused(query: str, asked: dict[str, Any], status: int, message: str) -> None:
    asked = asked if query == "pending" else {"namespace": "team"} | asked
    with pytest.raises(QueryError, match=message) as refused:
        await getattr(refusing().queries, query)(**asked)
    assert refused.value.status == status


async def test_while_quota_is_not_known_every_query_is_refused_with_the_reason() -> None:
    cluster = short_of_one_flavor()
    cluster.view.shown = NotSynced("Kueue (kueue.x-k8s.io/v1beta2) is not installed")
    for question in (cluster.queries.queues(), cluster.queries.pending(), cluster.queries.plan("team", "gang")):
        with pytest.raises(QueryError, match=r"quota is not known: Kueue .* is not installed") as refused:
            await question
        assert refused.value.status == 503


async def test_queries_are_answered_one_at_a_time_and_too_many_are_refused() -> None:
    cluster = four_free_four_idle()
    found = await asyncio.gather(*(cluster.queries.plan("team", "gang") for _ in range(12)), return_exceptions=True)
    refused = [each for each in found if isinstance(each, QueryError)]
    # One is answered, eight wait in line.
    assert len(found) - len(refused) == 9
    assert all(each.status == 503 for each in refused)
    assert (await plan(cluster))["plan"]["gpus"] == 4


async def test_a_query_changes_nothing() -> None:
    cluster = four_free_four_idle()
    versions = [cluster.snapshot.version(tree) for tree in cluster.snapshot.trees]
    first, again = [await cluster.queries.plan("team", "gang") for _ in range(2)]
    assert first == again
    assert [cluster.snapshot.version(tree) for tree in cluster.snapshot.trees] == versions
