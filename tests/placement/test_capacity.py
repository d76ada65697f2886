from hypothesis import given, settings
from hypothesis import strategies as st
from placement.placement_builders import clusters, node, occupant, occupants_of

from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeInfo

SITUATIONS = clusters().flatmap(lambda nodes: st.tuples(st.just(nodes), occupants_of(nodes)))
WORKLOADS = st.sets(st.sampled_from(["x", "y", "z", "unheard-of"]))


def same(one: Capacity, other: Capacity) -> bool:
    """Whether the free amounts are equal, and what is found by level is what is free."""
    for capacity in (one, other):
        for resource, levels in capacity.levels.items():
            for place_, vector in enumerate(capacity.free):
                assert [level for level, nodes in levels.items() if nodes >> place_ & 1] == [
                    capacity.index.level(resource, vector[resource])
                ]
    return one.free == other.free


@settings(max_examples=40, deadline=None)
@given(SITUATIONS, WORKLOADS)
def test_without_is_as_if_the_pods_had_never_been(
    situation: tuple[list[NodeInfo], list[BoundPod]], gone: set[str]
) -> None:
    nodes, occupants = situation
    rest = [pod for pod in occupants if pod.workload not in gone]
    assert same(capacity_of(nodes, occupants).without(gone), capacity_of(nodes, rest))


@settings(max_examples=40, deadline=None)
@given(SITUATIONS, WORKLOADS, WORKLOADS)
def test_what_is_gone_is_freed_once_in_whatever_order(
    situation: tuple[list[NodeInfo], list[BoundPod]], first: set[str], second: set[str]
) -> None:
    nodes, occupants = situation
    capacity = capacity_of(nodes, occupants)
    rest = [pod for pod in occupants if pod.workload not in first | second and not pod.terminating]
    expected = capacity_of(nodes, rest)
    assert same(capacity.without(first).once_ended().without(second), expected)
    assert same(capacity.without(second).without(first | second).once_ended().once_ended(), expected)


def test_workloads_that_can_replace_another_gain_the_same() -> None:
    pods = [occupant(name, 2, workload=workload) for workload in "xy" for name in "ab"]
    capacity = capacity_of([node("a"), node("b")], [*pods, occupant("a", 4, workload="z")])
    assert capacity.gain("x") == capacity.gain("y")
    assert capacity.gain("x") != capacity.gain("z")
    assert capacity.without(["x"]).gain("x") == ()
