"""When a set of victims is accepted: the gang is admitted, stays, fits the nodes, and no other gang is delayed."""

from dataclasses import replace
from typing import Any

import pytest
from quota_builders import cluster_queue, holding, pod_set, preempting, workload
from reclaim_builders import candidate, names, nodes_with, planned, refused, request

from scaler.kube.scheduling import ANYWHERE
from scaler.quota.model import PreemptionPolicy
from scaler.reclaim.search.quota_problem import revalidate
from scaler.reclaim.search.values import NoPlanReason

LOWER = preempting(within=PreemptionPolicy.LOWER_PRIORITY)


# --------------------------------------------------------------------------------------------- what happens in any case


def test_what_kueue_frees_in_any_case_is_free_on_its_nodes_too() -> None:
    low, idle = holding("low", gpus=6, priority=-5), holding("idle", gpus=2)
    high, gang = workload("high", gpus=4, priority=5), workload(gpus=4)
    queue = cluster_queue("a", gpus=8, preemption=LOWER)
    nodes = nodes_with({"n1": 8}, {"n1": {low: 6, idle: 2}})
    assert names(planned(request(gang, [queue], [low, high], [idle], capacity=nodes))) == {"idle"}


def test_quota_whose_eviction_is_under_way_counts_as_free() -> None:
    evicted, idle = holding("evicted", gpus=2, evicted=True, priority=-1), holding("idle", gpus=2)
    nodes = nodes_with({"n1": 4}, {"n1": {evicted: 2, idle: 2}})
    given = request(workload(gpus=4), [cluster_queue("a", gpus=4)], [evicted], [idle], capacity=nodes)
    assert names(planned(given)) == {"idle"}


def test_pods_that_are_ending_leave_room() -> None:
    idle, gone = holding("idle", gpus=4), holding("gone", gpus=4)
    nodes = nodes_with({"n1": 8}, {"n1": {idle: 4, gone: 4}}, terminating={gone})
    given = request(workload(gpus=8), [cluster_queue("a", gpus=8)], [], [idle], capacity=nodes)
    assert names(planned(given)) == {"idle"}


# --------------------------------------------------------------------------------------------------------- who is first


def test_one_that_gets_in_first_and_has_no_room_itself_takes_none_from_the_gang() -> None:
    idle, busy = [holding(f"idle-{i}", gpus=2) for i in range(2)], [holding(f"busy-{i}", gpus=2) for i in range(2)]
    nodes = nodes_with({"n0": 4, "n1": 4}, {f"n{i}": {idle[i]: 2, busy[i]: 2} for i in range(2)})
    # A pod of 4 has no room on two nodes with 2 free each, but Kueue admits it.
    first = workload("first", pod_sets=(pod_set(gpus=4),), priority=5)
    # 2 free + 2 + 2 idle are just enough quota for both.
    plan = planned(request(workload(gpus=2), [cluster_queue("a", gpus=10)], [*busy, first], idle, capacity=nodes))
    assert names(plan) == {"idle-0", "idle-1"}
    assert plan.placement is not None
    assert plan.others == (first.key,)


def test_one_that_gets_in_first_and_takes_the_nodes_is_seen() -> None:
    idle = holding("idle", gpus=4)
    first, gang = workload("first", gpus=4, priority=5), workload(gpus=4)
    nodes = nodes_with({"n0": 4}, {"n0": {idle: 4}})
    found = refused(request(gang, [cluster_queue("a", gpus=8)], [first], [idle], capacity=nodes))
    assert found.why is NoPlanReason.PLACEMENT_IMPOSSIBLE
    assert "beside team/first, which are admitted first" in found.message


# ------------------------------------------------------------------------------------------------- pods that keep apart

APART = replace(ANYWHERE, apart=("port TCP/29500",))


def test_pods_that_keep_apart_need_a_node_each() -> None:
    """With big gone quota and n0 have room for both pods of 2, but not for one beside the other."""
    big, small = holding("big", gpus=4), holding("small", gpus=2)
    nodes = nodes_with({"n0": 4, "n1": 2}, {"n0": {big: 4}, "n1": {small: 2}})
    queue, idle = cluster_queue("a", gpus=6), [candidate(big, cost=1), candidate(small, cost=5)]
    together = workload(pod_sets=(pod_set(pods=2, gpus=2),))
    assert names(planned(request(together, [queue], [big, small], idle, capacity=nodes))) == {"big"}
    apart = workload(pod_sets=(pod_set(pods=2, gpus=2, nodes=APART),))
    assert names(planned(request(apart, [queue], [big, small], idle, capacity=nodes))) == {"big", "small"}


@pytest.mark.parametrize(
    ("keeper", "victims"),
    [("busy", None), ("idle", {"idle"}), ("leaving", {"idle"})],
    ids=["of one that stays", "of the victim", "of one that goes anyway"],
)
def test_a_pod_that_keeps_others_away_does_so_until_it_is_gone(keeper: str, victims: set[str] | None) -> None:
    """idle holds 2 of the node's 6 GPUs, busy 2 and leaving 2; the gang needs 4, and is kept away by one of them."""
    held = {name: holding(name, gpus=2) for name in ("busy", "idle", "leaving")}
    given = request(
        workload(pod_sets=(pod_set(gpus=4, nodes=APART),)),
        [cluster_queue("a", gpus=6)],
        [held["busy"], held["leaving"]],
        [held["idle"]],
        leaving=[held["leaving"].key],
        capacity=nodes_with({"n0": 6}, {"n0": dict.fromkeys(held.values(), 2)}),
        marked={"port TCP/29500": {held[keeper].key: frozenset({"n0"})}},
    )
    if victims is not None:
        assert names(planned(given)) == victims
    else:
        assert refused(given).why is NoPlanReason.PLACEMENT_IMPOSSIBLE


# ------------------------------------------------------------------------------------------------------ the candidates


def test_two_names_of_one_workload_are_one_candidate() -> None:
    idle = holding("idle", gpus=4)
    cheap, dear = candidate(idle, cost=1), replace(candidate(idle, cost=9), name="team/another-name")
    plan = planned(request(workload(gpus=4), [cluster_queue("a", gpus=4)], [idle], [dear, cheap]))
    assert plan.victims == (cheap,)


def test_a_candidate_that_holds_nothing_here_any_more_is_passed_over() -> None:
    idle, gone = holding("idle", gpus=4), holding("gone", gpus=4)
    given = request(workload(gpus=4), [cluster_queue("a", gpus=4)], [idle], [candidate(gone, cost=1), candidate(idle)])
    assert names(planned(given)) == {"idle"}


# -------------------------------------------------------------------------------------------------- does it still hold?


@pytest.mark.parametrize(
    ("now", "left", "why"),
    [
        ({"gpus": 8}, ("idle", "other"), ""),
        ({"gpus": 16}, ("idle", "other"), "the gang fits without suspending any workload"),
        ({"gpus": 12}, ("idle", "other"), "the gang fits without team/scale-idle, too"),
        ({"gpus": 8}, ("idle",), ""),
        ({"gpus": 6}, (), "the gang fits without suspending any workload"),
        ({"gpus": 5}, (), "NotEnoughIdle"),
        (
            {"gpus": 8, "inactive_because": "FlavorNotFound"},
            ("idle",),
            "QueueStopped: ClusterQueue a admits nothing: F",
        ),
    ],
)
def test_a_plan_is_valid_while_it_is_enough_and_no_victim_is_needless(
    now: dict[str, Any], left: tuple[str, ...], why: str
) -> None:
    """The gang needs 6, each victim holds 4; `left` are those of them that still hold quota."""
    victims = [holding(name, gpus=4) for name in ("idle", "other")]
    there = [each for each in victims if each.name in left]
    found = revalidate(
        request(workload(gpus=6), [cluster_queue("a", **now)], there), [candidate(each) for each in victims]
    )
    assert found.startswith(why) if why else not found


def test_a_plan_whose_quota_would_go_to_another_is_not_valid() -> None:
    victims = [holding(name, gpus=4) for name in ("idle", "other")]
    taker = workload("taker", gpus=4, priority=7)
    now = request(workload(gpus=6), [cluster_queue("a", gpus=8)], [*victims, taker])
    assert "what is freed would go to team/taker first" in revalidate(now, [candidate(each) for each in victims])
