from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement.placement_builders import GPU, amounts, node, occupant

from scaler.idleness.pods import PodPhase
from scaler.placement.allocations import BoundPod
from scaler.placement.capacity import Capacity, capacity_of
from scaler.placement.capacity_cache import CapacityCache
from scaler.placement.node_index import NodeInfo

WORKLOADS = ("x", "y")


def seen(capacity: Capacity) -> Any:
    """Everything that can be asked of a Capacity, apart from the order in which pods were counted."""
    index, variants = capacity.index, [capacity, capacity.once_ended(), *(capacity.without([w]) for w in WORKLOADS)]
    return (
        index.nodes,
        index.resources,
        [(each.free, {name: each.by_free_amount(name, index.all) for name in index.resources}) for each in variants],
        [capacity.sizes(resource, index.all) for resource in range(len(index.resources))],
        [capacity.gain([w]) for w in WORKLOADS],
    )


def census_of(nodes: Sequence[NodeInfo], pods: Sequence[BoundPod]) -> CapacityCache:
    census = CapacityCache()
    for each in nodes:
        census.put_node(each)
    for pod in pods:
        census.put_pod(pod)
    return census


# ---------------------------------------------------------------------------------------------------------- the law

NAMES = st.sampled_from(("a", "b", "c"))
NODES = st.builds(
    NodeInfo,
    name=NAMES,
    labels=st.sampled_from(({}, {"zone": "a"})),
    unschedulable=st.booleans(),
    ready=st.booleans(),
    allocatable=st.builds(
        amounts, st.sampled_from((0, 4, 8)), cores=st.integers(0, 8), nics=st.sampled_from((0, 0, 2)), pods=st.just(10)
    ),
)
PODS = st.builds(
    BoundPod,
    pod=st.sampled_from(("p", "q", "r", "s")),
    node=st.sampled_from(("a", "b", "c", "elsewhere")),
    requests=st.builds(amounts, st.integers(0, 4), cores=st.integers(0, 3), nics=st.integers(0, 1)),
    workload=st.sampled_from(("", *WORKLOADS)),
    phase=st.sampled_from((PodPhase.PENDING, PodPhase.RUNNING, PodPhase.SUCCEEDED, PodPhase.FAILED)),
    terminating=st.booleans(),
)
CHANGES = st.one_of(
    st.tuples(st.just("put_node"), NODES),
    st.tuples(st.just("drop_node"), NAMES),
    st.tuples(st.just("put_pod"), PODS),
    st.tuples(st.just("drop_pod"), st.sampled_from(("p", "q", "r", "s"))),
    st.just(("ask", "")),
)


@given(st.lists(CHANGES, max_size=25))
def test_a_census_is_what_counting_anew_finds_and_what_it_gave_never_changes(changes: list[tuple[str, Any]]) -> None:
    census, given_out = CapacityCache(), list[tuple[Capacity, Any]]()
    nodes, pods = dict[str, NodeInfo](), dict[str, BoundPod]()
    for kind, what in (*changes, ("ask", "")):
        match what:
            case NodeInfo():
                nodes[what.name] = what
            case BoundPod():
                pods[what.pod] = what
            case name if kind == "drop_node":
                nodes.pop(name, None)
            case name:
                pods.pop(name, None)
        if kind == "ask":
            given_out.append((census.capacity(), seen(capacity_of(nodes.values(), pods.values()))))
            assert seen(given_out[-1][0]) == given_out[-1][1]
        else:
            getattr(census, kind)(what)
    assert all(seen(capacity) == expected for capacity, expected in given_out)


# ------------------------------------------------------------------------------------------------------------ examples


def free(census: CapacityCache) -> int:
    """GPUs on node a."""
    return free_in(census.capacity())


def free_in(capacity: Capacity) -> int:
    return capacity.free[capacity.index.position["a"]][capacity.index.resource_position[GPU]]


def test_a_pod_is_counted_once_its_node_is_known() -> None:
    census = census_of([], [occupant("a", 3)])
    assert len(census) == 0
    census.put_node(node("a"))
    assert free(census) == 8 - 3


def test_a_pod_that_ends_gives_back_what_it_held() -> None:
    census = census_of([node("a")], [occupant("a", 3, pod="p"), occupant("a", 2, pod="q")])
    assert free(census) == 8 - 3 - 2
    census.put_pod(occupant("a", 3, pod="p", phase=PodPhase.SUCCEEDED))
    assert free(census) == 8 - 2
    census.drop_pod("q")
    assert free(census) == 8


def test_a_terminating_pod_holds_what_it_held_and_goes_once_ended() -> None:
    census = census_of([node("a")], [occupant("a", 3, pod="p")])
    census.put_pod(occupant("a", 3, pod="p", terminating=True))
    assert free(census) == 8 - 3
    assert free_in(census.capacity().once_ended()) == 8


def test_a_node_that_loses_devices_in_use_is_below_zero_until_pods_end() -> None:
    census = census_of([node("a")], [occupant("a", 8, pod="p", workload="x")])
    assert free(census) == 0
    census.put_node(node("a", 6))
    assert free(census) == 6 - 8
    census.drop_pod("p")
    assert free(census) == 6


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda census: census.put_pod(occupant("a", 3, pod="p")), id="a pod of which nothing here differs"
        ),
        pytest.param(lambda census: census.put_node(node("a")), id="a node whose status was renewed"),
        pytest.param(lambda census: census.drop_pod("nobody"), id="a pod that was never there"),
        pytest.param(lambda census: census.drop_node("nowhere"), id="a node that was never there"),
        pytest.param(lambda census: census.put_pod(occupant("b", 1, pod="q")), id="a pod on a node that is not there"),
        pytest.param(
            lambda census: census.put_pod(occupant("a", 1, pod="q", phase=PodPhase.FAILED)), id="a pod that has failed"
        ),
    ],
)
def test_what_changes_nothing_makes_no_new_capacity(change: Any) -> None:
    census = census_of([node("a")], [occupant("a", 3, pod="p")])
    before = census.capacity()
    change(census)
    assert census.capacity() is before


def test_the_index_stays_while_only_pods_come_and_go() -> None:
    """Selections that were looked up once are remembered in it."""
    census = census_of([node("a"), node("b")], [])
    before = census.capacity()
    census.put_pod(occupant("a", 3))
    assert census.capacity().index is before.index


def test_amounts_that_no_node_has_any_more_are_forgotten() -> None:
    """Levels of a resource that is counted in thousands, such as shares of GPU memory, must not pile up for weeks."""
    of_memory = partial(amounts, **{"nvidia.com/gpumem": 80_000})
    census = census_of([replace(node("a"), allocatable=of_memory())], [])
    for pods in range(50):
        census.put_pod(BoundPod(pod="p", node="a", requests={"nvidia.com/gpumem": 100 + pods}))
        census.capacity()
    [position] = [p for p, name in enumerate(census.capacity().index.resources) if name == "nvidia.com/gpumem"]
    assert census.capacity().levels[position] == {80_000 - 149: 1}
