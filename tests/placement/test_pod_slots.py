from hypothesis import given, settings
from hypothesis import strategies as st
from placement.placement_builders import clusters, demand, gangs, node, occupant, occupants_of

from scaler.placement.capacity import BoundPod, capacity_of
from scaler.placement.fit import fits
from scaler.placement.node_index import NodeDemand, NodeInfo
from scaler.placement.pod_slots import PodSlots

SITUATIONS = clusters().flatmap(lambda nodes: st.tuples(st.just(nodes), occupants_of(nodes)))
MOVES = st.lists(st.sampled_from(["x", "y", "z"]), max_size=6)


@settings(max_examples=60, deadline=None)
@given(SITUATIONS, gangs(), MOVES)
def test_the_count_is_that_of_the_capacity_without_those_who_have_left(
    situation: tuple[list[NodeInfo], list[BoundPod]], gang: list[NodeDemand], moves: list[str]
) -> None:
    capacity = capacity_of(*situation)
    slots, gone = PodSlots(gang, capacity), set[str]()
    for workload in moves:
        (slots.restore_workload if workload in gone else slots.remove_workload)(workload)
        gone ^= {workload}
        after = capacity.without(gone)
        counted = [each for each in gang if each.count]
        for each in counted:
            shape = capacity.index.shape(each.requests, each.nodes)
            assert slots.room(each) == sum(room for _, room in after.slots(shape))
        if fits(gang, after):
            assert slots.could_fit
        elif len(counted) == 1:
            assert not slots.could_fit


def test_sets_that_need_more_devices_together_than_there_are_are_not_possible() -> None:
    capacity = capacity_of([node("a"), node("b")], [occupant("b", 8, workload="x")])
    slots = PodSlots([demand(1, 5, pod_set="big"), demand(1, 4, pod_set="small")], capacity)
    assert not slots.could_fit  # 5 + 4 of 8, though each fits alone
    slots.remove_workload("x")
    assert slots.could_fit
    slots.restore_workload("x")
    assert not slots.could_fit


def test_devices_that_a_node_has_lost_do_not_count_as_gained() -> None:
    """a has 4 of 8 left and uses 6: x gives it 0 free, which adds nothing to the 8 of b. 5 + 4 need 9."""
    pods = [occupant("a", 2, workload=workload) for workload in "xyz"]
    slots = PodSlots(
        [demand(1, 5, pod_set="big"), demand(1, 4, pod_set="small")], capacity_of([node("a", 4), node("b")], pods)
    )
    slots.remove_workload("x")
    assert not slots.could_fit
    slots.remove_workload("y")
    slots.remove_workload("z")
    assert slots.could_fit  # 4 + 8
