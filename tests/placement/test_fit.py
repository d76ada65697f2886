from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement.placement_builders import (
    DEDICATED,
    GIB,
    GPU,
    MEMORY,
    NIC,
    TOLERATION,
    amounts,
    clusters,
    demand,
    fits_by_trying,
    free_by_node,
    free_on,
    gangs,
    node,
    occupant,
    occupants_of,
    on,
    open_to,
)

from scaler.idleness.pods import PodPhase
from scaler.kube.scheduling import Taint
from scaler.placement.capacity import BoundPod, capacity_of
from scaler.placement.fit import Placement, fits, place, upper_bound
from scaler.placement.node_index import NodeDemand, NodeInfo, demand_of
from scaler.placement.shortage import Misfit, Shortage
from scaler.quota.model import Flavor, QuotaPodSet

TWO_HALF_FREE = [node("a"), node("b")], [occupant("a", 4, workload="x"), occupant("b", 4, workload="y")]
"""4 + 4 GPUs free; x and y hold the others."""


def misfit(found: Placement | Misfit) -> Misfit:
    assert isinstance(found, Misfit)
    return found


def by_node(found: Placement | Misfit) -> dict[str, dict[str, int]]:
    """How many pods of which PodSet each node takes."""
    assert isinstance(found, Placement), found.message
    nodes: dict[str, dict[str, int]] = {}
    for seat in found.placements:
        nodes.setdefault(seat.node, {})[seat.pod_set] = seat.pods
    return nodes


# ---------------------------------------------------------------------------------------------- free nodes and victims


def test_a_pod_of_8_does_not_fit_into_4_and_4() -> None:
    found = misfit(place([demand(1, 8)], capacity_of(*TWO_HALF_FREE)))
    assert found.why is Shortage.SCATTERED
    assert (found.resource, found.needed, found.free, found.largest, found.missing) == (GPU, 8, 8, 4, 1)
    assert found.message == (
        "PodSet workers: 1 of 1 pods does not fit: 8 nvidia.com/gpu are free in total, "
        "but no node has 8 free: the most on one node is 4"
    )


def test_what_cannot_even_fit_empty_nodes_never_fits() -> None:
    capacity = capacity_of(*TWO_HALF_FREE)
    assert not misfit(place([demand(1, 8)], capacity)).never
    found = misfit(place([demand(1, 16)], capacity))
    assert found.never
    assert found.message.endswith("the gang would not fit on empty nodes either")


@pytest.mark.parametrize(
    "away",
    [
        pytest.param({"unschedulable": True}, id="cordoned"),
        pytest.param({"ready": False}, id="not ready"),
        pytest.param({"taints": (Taint(key="node.kubernetes.io/disk-pressure"),)}, id="under pressure"),
    ],
)
def test_a_node_that_is_away_for_a_while_does_not_count_and_may_come_back(away: dict[str, Any]) -> None:
    found = misfit(place([demand(1, 8)], capacity_of([node("a", **away)], [])))
    assert found.why is Shortage.NO_NODE_MATCHES
    assert not found.never


# ------------------------------------------------------------------------------------------------------------ occupants


@pytest.mark.parametrize(
    ("pod", "is_free"),
    [
        pytest.param(occupant("a", 8), False, id="a running pod occupies"),
        pytest.param(occupant("a", 8, phase=PodPhase.PENDING), False, id="a pod that is bound and starts occupies"),
        pytest.param(occupant("a", 8, terminating=True), False, id="a terminating pod occupies"),
        pytest.param(occupant("a", 8, phase=PodPhase.SUCCEEDED), True, id="a pod that has succeeded does not"),
        pytest.param(
            occupant("a", 8, phase=PodPhase.FAILED, terminating=True), True, id="nor a failed one with a finalizer"
        ),
        pytest.param(occupant("elsewhere", 8), True, id="nor one on a node that is not there"),
    ],
)
def test_a_pod_occupies_until_it_is_really_gone(pod: BoundPod, is_free: bool) -> None:
    assert fits([demand(1, 8)], capacity_of([node("a")], [pod])) is is_free


# -------------------------------------------------------------------------------------------------- where a pod may run


def test_nodes_that_are_not_open_are_counted_by_cause() -> None:
    nodes = [node("a", labels={"gpu": "h100"}, ready=False), node("b"), node("c"), node("d", labels={"gpu": "h100"})]
    nodes[3] = replace(nodes[3], taints=(DEDICATED,))
    found = misfit(place([demand(1, 8, nodes=on({"gpu": "h100"}))], capacity_of(nodes, [])))
    assert found.excluded == (1, 2, 1)
    assert found.message == (
        "PodSet workers: 1 of 1 pods does not fit: no node is available to them: 1 node cordoned or not ready, "
        "2 nodes without the labels that they select, 1 node with a taint that they do not tolerate"
    )


def test_pods_of_a_flavor_run_only_on_its_nodes() -> None:
    flavor = Flavor(name="h100", node_labels={"gpu": "h100"}, tolerations=(TOLERATION,))
    nodes = [node("a", labels={"gpu": "a100"}), node("b", labels={"gpu": "h100"}, taints=(DEDICATED,))]
    pods = QuotaPodSet(name="workers", count=1, requests=amounts(8))
    assert by_node(place([demand_of(pods, [flavor])], capacity_of(nodes, []))) == {"b": {"workers": 1}}
    assert by_node(place([demand_of(pods)], capacity_of(nodes, []))) == {"a": {"workers": 1}}


def test_a_pod_that_contradicts_its_flavor_runs_nowhere() -> None:
    flavor = Flavor(name="h100", node_labels={"gpu": "h100"})
    nodes = [node("a", labels={"gpu": "a100"}), node("b", labels={"gpu": "h100"})]
    pods = QuotaPodSet(name="workers", count=1, requests=amounts(8), nodes=on({"gpu": "a100"}))
    assert misfit(place([demand_of(pods, [flavor])], capacity_of(nodes, []))).why is Shortage.NO_NODE_MATCHES


# ------------------------------------------------------------------------------------------------------------ resources


def test_every_pod_takes_one_of_the_places_for_pods() -> None:
    small = NodeInfo(name="a", allocatable=amounts(8, pods=2))
    assert fits([demand(1, 1)], capacity_of([small], [occupant("a", requests={"cpu": 1})]))
    found = misfit(place([demand(2, 1)], capacity_of([small], [occupant("a", requests={"cpu": 1})])))
    assert (found.why, found.resource, found.missing) == (Shortage.NOT_ENOUGH_FREE, "pods", 1)


def test_a_node_that_declares_no_places_for_pods_has_no_limit_on_them() -> None:
    assert fits([demand(8, 1)], capacity_of([NodeInfo(name="a", allocatable=amounts(8))], []))


def test_two_resources_must_be_free_on_the_same_node() -> None:
    nodes = [node("a", 8, gib=64), node("b", 0, gib=1024), node("c", 8, gib=64)]
    found = misfit(place([demand(1, 8, gib=512)], capacity_of(nodes, [])))
    assert (found.why, found.resource) == (Shortage.NOT_ON_ONE_NODE, MEMORY)
    assert found.needed == 512 * GIB
    assert "each needs 512Gi memory, which is short on nodes that have the rest" in found.message


def test_devices_that_a_node_has_lost_are_made_up_first() -> None:
    """4 left of 8, of which pods hold 6: -2 are free, 0 without one pod of 2, 2 without two."""
    pods = [occupant("a", 2, workload=name) for name in "xyz"]
    capacity = capacity_of([node("a", 4)], pods)
    assert [free_by_node(capacity.without(gone))["a"] for gone in ("", "x", "xy")] == [-2, 0, 2]
    assert not fits([demand(1, 1)], capacity.without("x"))


# --------------------------------------------------------------------------------------------------------- several sets


def test_sets_that_fit_one_by_one_may_not_fit_together() -> None:
    capacity = capacity_of([node("a"), node("b")], [])
    gang = [demand(2, 5, pod_set="big"), demand(1, 4, pod_set="small")]
    found = misfit(place(gang, capacity))
    assert (found.why, found.pod_set, found.missing) == (Shortage.NOT_TOGETHER, "small", 1)
    assert (found.needed, found.free) == (14, 16)  # 2 · 5 + 4 of 2 · 8: each node has 3 left, and none has 4
    assert not found.never, "only of pods that are alike it is certain"


def test_a_set_that_is_left_over_is_placed_first_the_next_time() -> None:
    """The head of 4 on the fuller node (6) leaves room for two of the workers only; the workers leave 4 of 7."""
    capacity = capacity_of([node("a", 7), node("b", 6)], [])
    assert fits([demand(1, 4, pod_set="head"), demand(3, 3)], capacity)


def test_sets_that_compete_through_a_third_are_searched_together() -> None:
    """Where `middle` has b and c, `big` must have a (6 free, of which it leaves 1), and `small` finds nothing."""
    labels = [{"small": "yes", "big": "yes"}, {"big": "yes", "middle": "yes"}, {"middle": "yes"}]
    nodes = [node(name, gpus, labels=each) for name, gpus, each in zip("abc", (6, 8, 4), labels, strict=True)]
    gang = [
        demand(count, gpus, pod_set=pod_set, nodes=on({pod_set: "yes"}))
        for pod_set, count, gpus in [("big", 1, 5), ("middle", 2, 4), ("small", 1, 3)]
    ]
    assert misfit(place(gang, capacity_of(nodes, []))).why is Shortage.NOT_TOGETHER
    assert fits(gang[:2], capacity_of(nodes, []))
    assert fits(gang[::2], capacity_of(nodes, []))


def test_nothing_fits_where_there_is_no_node() -> None:
    found = misfit(place([demand(1, 1)], capacity_of([], [])))
    assert "does not fit: no node offers nvidia.com/gpu" in found.message
    bare = misfit(place([NodeDemand(pod_set="a", count=1, requests={})], capacity_of([], [])))
    assert "no node is available to them: there are no nodes" in bare.message


# ----------------------------------------------------------------------------------------------------------------- laws

SITUATIONS = clusters().flatmap(lambda nodes: st.tuples(st.just(nodes), occupants_of(nodes)))


@settings(max_examples=80, deadline=None)
@given(SITUATIONS, gangs())
def test_a_yes_and_a_no_to_one_pod_set_are_those_of_trying_every_way(
    situation: tuple[list[NodeInfo], list[BoundPod]], gang: list[NodeDemand]
) -> None:
    nodes, occupants = situation
    found = place(gang, capacity_of(nodes, occupants))
    if isinstance(found, Placement) or len(gang) == 1:
        assert isinstance(found, Placement) is fits_by_trying(gang, nodes, occupants)


@settings(max_examples=60, deadline=None)
@given(SITUATIONS, gangs())
def test_a_placement_exceeds_no_node_and_seats_every_pod_where_it_may_run(
    situation: tuple[list[NodeInfo], list[BoundPod]], gang: list[NodeDemand]
) -> None:
    nodes, occupants = situation
    found = place(gang, capacity_of(nodes, occupants))
    if not isinstance(found, Placement):
        return
    by_name, wanted = {each.name: each for each in nodes}, {each.pod_set: each for each in gang}
    for pod_set, each in wanted.items():
        assert sum(seat.pods for seat in found.placements if seat.pod_set == pod_set) == each.count
    for seat in found.placements:
        assert seat.pods > 0
        assert open_to(wanted[seat.pod_set], by_name[seat.node])
    for name, host in by_name.items():
        for resource in (GPU, "cpu", MEMORY, NIC, "pods"):
            taken = sum(
                seat.pods * {**seat.requests, "pods": 1}.get(resource, 0)
                for seat in found.placements
                if seat.node == name
            )
            assert taken == 0 or taken <= free_on(host, occupants, resource)


@settings(max_examples=40, deadline=None)
@given(SITUATIONS, gangs(), st.data())
def test_the_order_of_nodes_pods_and_sets_is_irrelevant(
    situation: tuple[list[NodeInfo], list[BoundPod]], gang: list[NodeDemand], data: st.DataObject
) -> None:
    nodes, occupants = situation
    shuffled = capacity_of(data.draw(st.permutations(nodes)), data.draw(st.permutations(occupants)))
    assert place(data.draw(st.permutations(gang)), shuffled) == place(gang, capacity_of(nodes, occupants))


@settings(max_examples=40, deadline=None)
@given(SITUATIONS, gangs())
def test_never_means_not_on_empty_nodes_either(
    situation: tuple[list[NodeInfo], list[BoundPod]], gang: list[NodeDemand]
) -> None:
    nodes, occupants = situation
    found = place(gang, capacity_of(nodes, occupants))
    if isinstance(found, Misfit):
        best = [replace(each, ready=True, unschedulable=False) for each in nodes]
        assert not (found.never and fits_by_trying(gang, best, []))
        assert found.never or len(gang) > 1 or fits_by_trying(gang, best, [])
        assert 0 < found.missing <= found.count


@settings(max_examples=40, deadline=None)
@given(SITUATIONS, gangs())
def test_the_bound_is_never_below_what_fits(
    situation: tuple[list[NodeInfo], list[BoundPod]], gang: list[NodeDemand]
) -> None:
    capacity = capacity_of(*situation)
    for each in gang:
        fitting = max(count for count in range(each.count + 1) if fits([replace(each, count=count)], capacity))
        assert fitting <= upper_bound(each, capacity) <= each.count


def test_the_bound_counts_pods_by_hole() -> None:
    capacity = capacity_of([node("a"), node("b")], [occupant("b", 5)])
    assert upper_bound(demand(9, 2), capacity) == 5  # 8 // 2 + 3 // 2
    assert upper_bound(demand(9, 8), capacity) == 1
