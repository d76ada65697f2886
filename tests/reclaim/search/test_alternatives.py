"""What an operator is told beside the plan: why each victim is needed, and what else was possible at what cost."""

from collections.abc import Collection

from quota_builders import cluster_queue, holding, workload
from reclaim_builders import candidate, forbids, names, nodes_with, planned, reasons, refused, request

from scaler.quota.model import QueueingStrategy
from scaler.reclaim.budgets.budget import BudgetExhausted
from scaler.reclaim.budgets.scopes import BudgetedWorkload
from scaler.reclaim.search.values import NoPlanReason, ReclaimPlan


def shown(plan: ReclaimPlan) -> list[tuple[tuple[str, ...], int, NoPlanReason | None]]:
    short = [tuple(name.removeprefix("team/scale-") for name in each.victims) for each in plan.alternatives]
    return [(who, each.cost, each.why_not) for who, each in zip(short, plan.alternatives, strict=True)]


def test_of_every_victim_it_is_said_what_would_be_missing_without_it() -> None:
    first, second = holding("first", gpus=3), holding("second", gpus=4)
    idle = [candidate(each) for each in (first, second)]
    plan = planned(request(workload(gpus=8), [cluster_queue("a", gpus=8)], [first, second], idle))
    assert [(each.victim, each.why, each.message) for each in plan.necessities] == [
        ("team/scale-first", NoPlanReason.NOT_ENOUGH_IDLE, "without it 3 nvidia.com/gpu would be missing"),
        ("team/scale-second", NoPlanReason.NOT_ENOUGH_IDLE, "without it 4 nvidia.com/gpu would be missing"),
    ]


def test_a_victim_that_is_needed_for_somebody_before_the_gang_says_for_whom() -> None:
    first, second = holding("first", gpus=4), holding("second", gpus=4)
    ahead = workload("ahead", gpus=4, priority=10)
    idle = [candidate(first, cost=3), candidate(second, cost=5)]
    plan = planned(request(workload(gpus=4), [cluster_queue("a", gpus=8)], [first, second, ahead], idle))
    assert names(plan) == {"first", "second"}
    assert plan.others == (ahead.key,)
    assert "OtherWorkloadsFirst" in reasons(plan)
    assert {each.why for each in plan.necessities} == {NoPlanReason.WOULD_BE_TAKEN_BY_OTHER}
    assert all("would go to team/ahead first" in each.message for each in plan.necessities)


def test_a_victim_that_is_needed_for_its_node_says_so() -> None:
    small, large = holding("small", gpus=4), holding("large", gpus=4)
    busy = holding("busy", gpus=4)
    nodes = nodes_with({"n0": 8, "n1": 8}, {"n0": {small: 4, large: 4}, "n1": {busy: 4}})
    idle = [candidate(each) for each in (small, large)]
    given = request(workload(gpus=8), [cluster_queue("a", gpus=16)], [small, large, busy], idle, capacity=nodes)
    # 4 of 16 are free and either would bring them to 8, but only together are the 8 on one node.
    found = planned(given).necessities
    assert {each.why for each in found} == {NoPlanReason.PLACEMENT_IMPOSSIBLE}
    assert "no node has 8 free: the most on one node is 4" in found[0].message


def test_the_cheaper_set_that_a_sum_would_take_is_shown_with_the_reason_against_it() -> None:
    small = [holding(f"small-{i}", gpus=4) for i in range(2)]
    large, busy = holding("large", gpus=8), [holding(f"busy-{i}", gpus=4) for i in range(2)]
    placements = {"n0": {small[0]: 4, busy[0]: 4}, "n1": {small[1]: 4, busy[1]: 4}, "n2": {large: 8}}
    idle = [candidate(large, cost=100), *(candidate(each, cost=1) for each in small)]
    given = request(
        workload(gpus=8),
        [cluster_queue("a", gpus=24)],
        [*small, *busy, large],
        idle,
        capacity=nodes_with({"n0": 8, "n1": 8, "n2": 8}, placements),
    )
    assert shown(planned(given)) == [(("small-0", "small-1"), 2_000, NoPlanReason.PLACEMENT_IMPOSSIBLE)]


def test_the_cheaper_set_that_a_budget_forbids_is_shown_with_the_budgets_words() -> None:
    cheap, dear = holding("cheap", gpus=4, queue="b"), holding("dear", gpus=4)

    def refuse(members: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        return forbids("not at night" if any(each.cluster_queue == "b" for each in members) else "")

    queues = [cluster_queue("a", gpus=4, cohort="co"), cluster_queue("b", gpus=4, cohort="co")]
    idle = [candidate(cheap, cost=1), candidate(dear, cost=9)]
    plan = planned(request(workload(gpus=4), queues, [cheap, dear], idle, refuse=refuse))
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


def test_nothing_else_is_shown_where_nothing_else_would_do() -> None:
    idle = holding("idle", gpus=4)
    strict = cluster_queue("a", gpus=4, strategy=QueueingStrategy.STRICT_FIFO)
    plan = planned(request(workload(gpus=4), [strict], [idle], [candidate(idle)]))
    assert plan.alternatives == ()
