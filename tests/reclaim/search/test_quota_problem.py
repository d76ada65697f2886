"""What is said of a plan and its victims, and of every gang without one; with the numbers that an owner needs."""

import gc
import weakref
from collections.abc import Collection
from dataclasses import replace

import pytest
from quota_builders import (
    NOW,
    cluster_queue,
    cohort,
    holding,
    local_queue,
    pod_set,
    preempting,
    quota,
    requiring,
    selecting,
    workload,
)
from reclaim_builders import candidate, forbids, names, nodes_with, planned, reasons, refused, request

from scaler.quota.model import PreemptionPolicy, QueueingStrategy, QuotaWorkload, Reservation, StopPolicy
from scaler.reclaim.budget import BudgetedWorkload, BudgetExhausted
from scaler.reclaim.search.context import SearchContext
from scaler.reclaim.search.problem import SearchLimits
from scaler.reclaim.search.values import NoPlanReason, PlanRequest, ReclaimPlan

FOUR, EIGHT = cluster_queue("a", gpus=4), cluster_queue("a", gpus=8)
STRICT = QueueingStrategy.STRICT_FIFO


# ------------------------------------------------------------------------------------------------------ without a plan


def head_without_room() -> PlanRequest:
    """The head fits its quota with everybody gone, and then a neighbour takes it."""
    queues = [cluster_queue("a", gpus=4, cohort="co", strategy=STRICT), cluster_queue("b", gpus=0, cohort="co")]
    ahead = [
        workload("head", gpus=4, priority=1),
        workload("taker", gpus=1, queue="b", priority=5),
        workload("rival", gpus=3, queue="b", priority=4),
    ]
    return request(workload(gpus=1), queues, ahead, [holding("idle", gpus=4)])


def scattered() -> PlanRequest:
    small, busy = [holding(f"s{i}", gpus=1) for i in range(2)], [holding(f"b{i}", gpus=3) for i in range(2)]
    capacity = nodes_with({"n0": 4, "n1": 4}, {f"n{i}": {small[i]: 1, busy[i]: 3} for i in range(2)})
    return request(workload(gpus=2), [EIGHT], busy, small, capacity=capacity)


def one_like_it_first() -> PlanRequest:
    older = workload("older", gpus=4)
    return request(workload(gpus=4), [FOUR], [older], [holding("idle", gpus=4)])


def reclaimed_at_once(low: Collection[QuotaWorkload] = ()) -> PlanRequest:
    """The gang borrows what b's idle workload frees, and b's owner takes it back; from `low`, where it is there: that
    has borrowed elsewhere and has the lowest priority."""
    reclaiming = preempting(reclaim=PreemptionPolicy.ANY)
    queues = [cluster_queue("a", gpus=0, cohort="co"), cluster_queue("b", gpus=4, cohort="co", preemption=reclaiming)]
    owner = workload("owner", gpus=2, queue="b", priority=-5)
    first = workload("first", gpus=5, queue="b", priority=9)
    others = [cluster_queue(each.queue, gpus=0, cohort="co") for each in low]
    return request(
        workload(gpus=4, priority=20),
        [*queues, *others],
        [*low, owner, first],
        [holding("idle", gpus=4, queue="b")],
        cohorts=[cohort("co", gpus=2 if low else None)],
    )


def stopped_local_queue() -> PlanRequest:
    given = request(workload(gpus=4), [FOUR])
    stopped = local_queue("a", stop_policy=StopPolicy.HOLD)
    world = replace(given.planning_tree.world, local_queue=lambda *_: stopped)
    return replace(given, planning_tree=replace(given.planning_tree, world=world))


IDLE, GANG = holding("idle", gpus=4), workload(gpus=4)
RESERVED = workload(gpus=4, reservation=Reservation(cluster_queue="a", at=NOW, assignments=(), usage={}))
B200 = workload(pod_sets=(pod_set(gpus=1, nodes=selecting([(requiring("flavor", "In", "b200"),)])),))
LARGE_HEAD = workload("head", gpus=8, priority=10)
BORROWING = [cluster_queue("a", gpus=4, cohort="co"), cluster_queue("b", gpus=0, cohort="co")]
OF_B = workload(gpus=4, queue="b")
NO_STEPS = SearchLimits(steps=0, questions=0, members=64)
CASES: dict[str, tuple[PlanRequest, NoPlanReason, str]] = {
    "free already": (request(GANG, [EIGHT], [], [IDLE]), NoPlanReason.FITS_ALREADY, "it fits into free quota"),
    "reserved already": (
        request(RESERVED, [EIGHT]),
        NoPlanReason.FITS_ALREADY,
        "it holds quota in ClusterQueue a already",
    ),
    "more than all quota": (
        request(workload(gpus=16), [cluster_queue("a", gpus=quota(8))]),
        NoPlanReason.NEVER_FITS,
        "it needs 16 nvidia.com/gpu of at most 8 that ClusterQueue a could ever get",
    ),
    "more than any flavor: 6 + 6 = 12 in all, but one PodSet takes its 8 from one flavor": (
        request(workload(gpus=8), [cluster_queue("a", gpus={"x": 6, "y": 6})]),
        NoPlanReason.NEVER_FITS,
        "it needs 8 nvidia.com/gpu of at most 12 that ClusterQueue a could ever get, borrowing included, and a PodSet "
        "takes each resource from one flavor",
    ),
    "no flavor for it": (
        request(B200, [EIGHT]),
        NoPlanReason.NEVER_FITS,
        "no flavor of ClusterQueue a is open to the pods of team/gang",
    ),
    "too little idle": (
        request(workload(gpus=8), [EIGHT], [holding("busy", gpus=5)], [holding("idle", gpus=2)]),
        NoPlanReason.NOT_ENOUGH_IDLE,
        "it needs 8 nvidia.com/gpu; available to ClusterQueue a: 1 nvidia.com/gpu of default; with every idle workload "
        "suspended: 3 nvidia.com/gpu of default",
    ),
    "none idle": (
        request(workload(gpus=8), [EIGHT], [holding("busy", gpus=5)]),
        NoPlanReason.NOT_ENOUGH_IDLE,
        "available to ClusterQueue a: 3 nvidia.com/gpu of default; no workload is idle",
    ),
    "head too large": (
        request(GANG, [cluster_queue("a", gpus=8, strategy=STRICT)], [holding("busy", gpus=4), LARGE_HEAD], [IDLE]),
        NoPlanReason.HEAD_OF_LINE_BLOCKED,
        "ClusterQueue a is StrictFIFO and Workload team/head is queued before the gang: together they need 12 "
        "nvidia.com/gpu; available with every idle workload suspended: 4 nvidia.com/gpu of default",
    ),
    "head without room": (
        head_without_room(),
        NoPlanReason.HEAD_OF_LINE_BLOCKED,
        "ClusterQueue a is StrictFIFO and Workload team/head is queued before",
    ),
    "scattered": (
        scattered(),
        NoPlanReason.PLACEMENT_IMPOSSIBLE,
        "PodSet main: 1 of 1 pods does not fit: 2 nvidia.com/gpu are free in total, but no node has 2 free: the "
        "most on one node is 1",
    ),
    "forbidden": (
        request(GANG, [FOUR], [], [IDLE], refuse=lambda _: forbids("2 of 2 an hour are spent")),
        NoPlanReason.BUDGET_EXHAUSTED,
        "2 of 2 an hour are spent",
    ),
    "taken by another": (
        request(OF_B, BORROWING, [workload("taker", gpus=4, priority=10)], [IDLE]),
        NoPlanReason.WOULD_BE_TAKEN_BY_OTHER,
        "what is freed would go to team/taker first",
    ),
    "one like it first": (
        one_like_it_first(),
        NoPlanReason.WOULD_BE_TAKEN_BY_OTHER,
        "equal Workloads are queued before it in ClusterQueue a: together they need 8 nvidia.com/gpu; available with "
        "every idle workload suspended: 4 nvidia.com/gpu of default",
    ),
    "reclaimed at once": (
        reclaimed_at_once(),
        NoPlanReason.WOULD_BE_TAKEN_BY_OTHER,
        "Kueue would take the quota back from the gang, for team/owner",
    ),
    "at the cost of a third": (
        reclaimed_at_once([holding("low", gpus=2, queue="d", priority=-9)]),
        NoPlanReason.WOULD_PREEMPT_OTHERS,
        "Kueue would preempt team/low for team/owner",
    ),
    "inactive": (
        request(GANG, [cluster_queue("a", gpus=4, inactive_because="AdmissionCheckNotFound")]),
        NoPlanReason.QUEUE_STOPPED,
        "ClusterQueue a admits nothing: AdmissionCheckNotFound",
    ),
    "on hold": (
        request(GANG, [cluster_queue("a", gpus=4, stop_policy=StopPolicy.HOLD)]),
        NoPlanReason.QUEUE_STOPPED,
        "ClusterQueue a admits nothing: stopPolicy is Hold",
    ),
    "another namespace": (
        request(GANG, [cluster_queue("a", gpus=4, namespace_selector=None)]),
        NoPlanReason.QUEUE_STOPPED,
        "ClusterQueue a does not select namespace team",
    ),
    "stopped LocalQueue": (
        stopped_local_queue(),
        NoPlanReason.QUEUE_STOPPED,
        "LocalQueue a is stopped, or its ClusterQueue does not exist",
    ),
    "opaque": (
        request(replace(GANG, opaque_because="it asks for a topology"), [FOUR]),
        NoPlanReason.UNFORESEEABLE,
        "cannot be foreseen: it asks for a topology",
    ),
    "in backoff": (
        request(replace(GANG, may_queue=False), [FOUR]),
        NoPlanReason.UNFORESEEABLE,
        "it is not queued: its requeue backoff",
    ),
    "gone meanwhile": (
        replace(request(GANG, [EIGHT]), gang=workload("other", gpus=4)),
        NoPlanReason.UNFORESEEABLE,
        "it does not wait in ClusterQueue a any more",
    ),
    "out of steps": (
        replace(request(GANG, [FOUR], [], [IDLE]), limits=NO_STEPS),
        NoPlanReason.NOT_FOUND,
        "the search reached its limit before it found a set of victims",
    ),
}


@pytest.mark.parametrize(("given", "why", "words"), CASES.values(), ids=CASES)
def test_a_refusal_says_why_with_the_numbers(given: PlanRequest, why: NoPlanReason, words: str) -> None:
    found = refused(given)
    assert found.why is why, found
    assert words in found.message
    assert found.is_exact == (why is not NoPlanReason.NOT_FOUND)


def test_every_reason_is_given_somewhere() -> None:
    """Elsewhere: that a plan cannot be protected depends on settings, and for a remote copy none is searched."""
    elsewhere = {NoPlanReason.UNPROTECTED, NoPlanReason.REMOTE_COPY}
    assert {why for _, why, _ in CASES.values()} == set(NoPlanReason) - elsewhere


# ----------------------------------------------------------------------------------------------------------- of a plan


def shown(plan: ReclaimPlan) -> list[tuple[tuple[str, ...], int, NoPlanReason | None]]:
    short = [tuple(name.removeprefix("team/scale-") for name in each.victims) for each in plan.alternatives]
    return [(who, each.cost, each.why_not) for who, each in zip(short, plan.alternatives, strict=True)]


def test_four_free_and_four_idle_serve_a_gang_of_eight() -> None:
    plan = planned(request(workload(gpus=8), [cluster_queue("a", gpus=8, strategy=STRICT)], [], [IDLE]))
    assert names(plan) == {"idle"}
    (key,) = plan.takes
    assert (plan.free_before[key], plan.free_after[key], plan.takes[key]) == (4, 8, 8)
    assert plan.is_exact
    assert plan.alternatives == ()


def test_a_plan_that_costs_just_what_is_missing_is_proven_however_many_are_idle() -> None:
    """Where Kueue preempts, age makes a difference, and 20 are too many for a search to tell them all apart."""
    lower = preempting(within=PreemptionPolicy.LOWER_PRIORITY)
    idle = [candidate(holding(f"h{i:02}", gpus=1), cost=1 + i) for i in range(20)]
    holders = [holding(f"h{i:02}", gpus=1) for i in range(20)]
    plan = planned(request(workload(gpus=2), [cluster_queue("a", gpus=20, preemption=lower)], holders, idle))
    assert (names(plan), plan.cost, plan.is_exact) == ({"h00", "h01"}, 3_000, True)


@pytest.mark.parametrize(
    ("strategy", "neighbour", "is_exposed"),
    [(STRICT, False, False), (QueueingStrategy.BEST_EFFORT_FIFO, False, True), (STRICT, True, True)],
)
def test_a_plan_says_where_a_newcomer_could_take_a_piece(
    strategy: QueueingStrategy, neighbour: bool, is_exposed: bool
) -> None:
    queues = [cluster_queue("a", gpus=4, strategy=strategy, cohort="co"), *BORROWING[1 : 1 + neighbour]]
    plan = planned(request(GANG, queues, [], [IDLE], cohorts=[cohort("co")]))
    assert ("Unprotected" in reasons(plan)) == is_exposed


def test_a_gang_that_would_start_with_fewer_pods_says_with_how_many() -> None:
    """Of 8 GPUs 3 are free, and 5 when idle is gone: two pods of 2, of three, and two are enough to start."""
    gang = workload(pod_sets=(pod_set("workers", pods=3, gpus=2, min_count=2),))
    plan = planned(request(gang, [EIGHT], [holding("busy", gpus=3)], [holding("idle", gpus=2)]))
    assert [each.count for each in plan.assignments] == [2]
    (caution,) = (each for each in plan.cautions if each.reason == "PartialAdmission")
    assert caution.message == "it starts with 2 of 3 pods of PodSet workers"


def test_the_same_plan_has_the_same_id_and_another_has_another() -> None:
    other = replace(IDLE, name="other")
    one, again, another = (request(GANG, [FOUR], [], [idle]) for idle in (IDLE, IDLE, other))
    assert planned(one).id == planned(again).id != planned(another).id


def test_of_every_victim_it_is_said_what_would_be_missing_without_it() -> None:
    idle = [holding("first", gpus=3), holding("second", gpus=4)]
    plan = planned(request(workload(gpus=8), [EIGHT], [], idle))
    assert [(each.victim, each.why, each.message) for each in plan.necessities] == [
        ("team/scale-first", NoPlanReason.NOT_ENOUGH_IDLE, "without it 3 nvidia.com/gpu would be missing"),
        ("team/scale-second", NoPlanReason.NOT_ENOUGH_IDLE, "without it 4 nvidia.com/gpu would be missing"),
    ]


def test_a_victim_that_is_needed_for_somebody_before_the_gang_says_for_whom() -> None:
    ahead = workload("ahead", gpus=4, priority=10)
    plan = planned(request(GANG, [EIGHT], [ahead], [holding("first", gpus=4), holding("second", gpus=4)]))
    assert names(plan) == {"first", "second"}
    assert plan.others == (ahead.key,)
    assert "OtherWorkloadsFirst" in reasons(plan)
    assert {each.why for each in plan.necessities} == {NoPlanReason.WOULD_BE_TAKEN_BY_OTHER}
    assert all("would go to team/ahead first" in each.message for each in plan.necessities)


def test_a_victim_that_is_needed_for_its_node_says_so() -> None:
    """4 of 16 are free and either would bring them to 8, but only together are the 8 on one node."""
    small, large, busy = (holding(name, gpus=4) for name in ("small", "large", "busy"))
    nodes = nodes_with({"n0": 8, "n1": 8}, {"n0": {small: 4, large: 4}, "n1": {busy: 4}})
    queues = [cluster_queue("a", gpus=16)]
    found = planned(request(workload(gpus=8), queues, [busy], [small, large], capacity=nodes)).necessities
    assert {each.why for each in found} == {NoPlanReason.PLACEMENT_IMPOSSIBLE}
    assert "no node has 8 free: the most on one node is 4" in found[0].message


def test_the_cheaper_set_that_a_sum_would_take_is_shown_with_the_reason_against_it() -> None:
    small, busy = ([holding(f"{name}-{i}", gpus=4) for i in range(2)] for name in ("small", "busy"))
    large = holding("large", gpus=8)
    placements = {"n0": {small[0]: 4, busy[0]: 4}, "n1": {small[1]: 4, busy[1]: 4}, "n2": {large: 8}}
    capacity = nodes_with({"n0": 8, "n1": 8, "n2": 8}, placements)
    idle = [candidate(large, cost=100), *(candidate(each, cost=1) for each in small)]
    holders = [*small, *busy, large]
    given = request(workload(gpus=8), [cluster_queue("a", gpus=24)], holders, idle, capacity=capacity)
    assert shown(planned(given)) == [(("small-0", "small-1"), 2_000, NoPlanReason.PLACEMENT_IMPOSSIBLE)]


def test_the_cheaper_set_that_a_budget_forbids_is_shown_with_the_budgets_words() -> None:
    cheap, dear = holding("cheap", gpus=4, queue="b"), holding("dear", gpus=4)

    def refuse(members: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        return forbids("not at night" if any("b" in each.budgets for each in members) else "")

    queues = [cluster_queue("a", gpus=4, cohort="co"), cluster_queue("b", gpus=4, cohort="co")]
    idle = [candidate(cheap, cost=1), candidate(dear, cost=9)]
    plan = planned(request(GANG, queues, [cheap, dear], idle, refuse=refuse))
    assert names(plan) == {"dear"}
    assert shown(plan) == [(("cheap",), 1_000, NoPlanReason.BUDGET_EXHAUSTED)]
    assert plan.alternatives[0].message == "not at night"
    both = refused(request(workload(gpus=8), queues, [cheap, dear], idle, refuse=refuse))
    assert (both.why, both.message, both.budget) == (NoPlanReason.BUDGET_EXHAUSTED, "not at night", "few")


def test_the_next_best_set_without_a_victim_is_shown_with_its_cost() -> None:
    holders = [holding(f"h{i}", gpus=4) for i in range(3)]
    idle = [candidate(each, cost=cost) for each, cost in zip(holders, (3, 5, 8), strict=True)]
    plan = planned(request(workload(gpus=8), [cluster_queue("a", gpus=12)], holders, idle))
    assert plan.cost == 8_000
    assert shown(plan) == [(("h0", "h2"), 11_000, None), (("h1", "h2"), 13_000, None)]


def test_nothing_that_was_simulated_outlives_its_plan() -> None:
    """Simulations of a large tree take megabytes, and cycles of references keep them until they are collected."""
    context = SearchContext(request(GANG, [FOUR], [], [IDLE]))
    assert context.cheapest().keys == {IDLE.key}
    assert context.cheapest_by_sums() == {IDLE.key}
    gc.disable()
    try:
        known = weakref.ref(context)
        del context
        assert known() is None
    finally:
        gc.enable()
