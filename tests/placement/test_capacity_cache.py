from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement.placement_builders import amounts, node, occupant

from scaler.idleness.pods import PodPhase
from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeInfo
from scaler.placement.node_watch import CapacityCache

WORKLOADS = ("x", "y")


def seen(capacity: Capacity) -> Any:
    """Everything that can be asked of a Capacity, apart from the order in which pods were counted."""
    index, variants = capacity.index, [capacity, capacity.once_ended(), *(capacity.without([w]) for w in WORKLOADS)]
    return (
        index.nodes,
        index.resources,
        [each.free for each in variants],
        [capacity.sizes(resource, index.all) for resource in range(len(index.resources))],
        [capacity.gain(w) for w in WORKLOADS],
    )


def cache_of(nodes: Sequence[NodeInfo], pods: Sequence[BoundPod]) -> CapacityCache:
    cache = CapacityCache()
    for each in nodes:
        cache.put_node(each)
    for pod in pods:
        cache.put_pod(pod)
    return cache


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
def test_the_capacity_is_what_counting_anew_finds_and_what_was_given_never_changes(
    changes: list[tuple[str, Any]],
) -> None:
    cache, given_out = CapacityCache(), list[tuple[Capacity, Any]]()
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
            given_out.append((cache.capacity(), seen(capacity_of(nodes.values(), pods.values()))))
            assert seen(given_out[-1][0]) == given_out[-1][1]
        else:
            getattr(cache, kind)(what)
    assert all(seen(capacity) == expected for capacity, expected in given_out)


# ------------------------------------------------------------------------------------------------------------ examples


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda cache: cache.put_pod(occupant("a", 3, pod="p")), id="a pod of which nothing here differs"),
        pytest.param(lambda cache: cache.put_node(node("a")), id="a node whose status was renewed"),
        pytest.param(lambda cache: cache.drop_pod("nobody"), id="a pod that was never there"),
        pytest.param(lambda cache: cache.drop_node("nowhere"), id="a node that was never there"),
        pytest.param(lambda cache: cache.put_pod(occupant("b", 1, pod="q")), id="a pod on a node that is not there"),
        pytest.param(
            lambda cache: cache.put_pod(occupant("a", 1, pod="q", phase=PodPhase.FAILED)), id="a pod that has failed"
        ),
    ],
)
def test_what_changes_nothing_makes_no_new_capacity(change: Any) -> None:
    cache = cache_of([node("a")], [occupant("a", 3, pod="p")])
    before = cache.capacity()
    change(cache)
    assert cache.capacity() is before


def test_the_index_stays_while_only_pods_come_and_go() -> None:
    """Selections that were looked up once are remembered in it."""
    cache = cache_of([node("a"), node("b")], [])
    before = cache.capacity()
    cache.put_pod(occupant("a", 3))
    assert cache.capacity().index is before.index


def test_amounts_that_no_node_has_any_more_are_forgotten() -> None:
    """Levels of a resource that is counted in thousands, such as shares of GPU memory, must not pile up for weeks."""
    of_memory = partial(amounts, **{"nvidia.com/gpumem": 80_000})
    cache = cache_of([replace(node("a"), allocatable=of_memory())], [])
    for pods in range(50):
        cache.put_pod(BoundPod(pod="p", node="a", requests={"nvidia.com/gpumem": 100 + pods}))
        cache.capacity()
    [position] = [p for p, name in enumerate(cache.capacity().index.resources) if name == "nvidia.com/gpumem"]
    assert cache.capacity().levels[position] == {80_000 - 149: 1}
