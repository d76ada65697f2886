import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_builders import clusters, demand, gangs, node, occupant, occupants_of

from scaler.core.placement import Demand, Node, Occupant, Rooms, capacity_of, fits

SITUATIONS = clusters().flatmap(lambda nodes: st.tuples(st.just(nodes), occupants_of(nodes)))
MOVES = st.lists(st.sampled_from(["x", "y", "z"]), max_size=6)


@settings(max_examples=150, deadline=None)
@given(SITUATIONS, gangs(), MOVES)
def test_the_count_is_that_of_the_capacity_without_those_who_have_left(
    situation: tuple[list[Node], list[Occupant]], gang: list[Demand], moves: list[str]
) -> None:
    capacity = capacity_of(*situation)
    rooms, gone = Rooms(gang, capacity), set[str]()
    for workload in moves:
        (rooms.come_back if workload in gone else rooms.leave)(workload)
        gone ^= {workload}
        after = capacity.without(gone)
        counted = [each for each in gang if each.count]
        for each in counted:
            shape = capacity.index.shape(each.requests, each.nodes)
            assert rooms.room(each) == sum(room for _, room in after.rooms(shape))
        if fits(gang, after):
            assert rooms.is_possible
        elif len(counted) == 1:
            assert not rooms.is_possible


def test_sets_that_need_more_devices_together_than_there_are_are_not_possible() -> None:
    capacity = capacity_of([node("a"), node("b")], [occupant("b", 8, workload="x")])
    rooms = Rooms([demand(1, 5, pod_set="big"), demand(1, 4, pod_set="small")], capacity)
    assert not rooms.is_possible  # 5 + 4 of 8, though each fits alone
    rooms.leave("x")
    assert rooms.is_possible
    rooms.come_back("x")
    assert not rooms.is_possible


def test_devices_that_a_node_has_lost_do_not_count_as_gained() -> None:
    """a has 4 of 8 left and uses 6: x gives it 0 free, which adds nothing to the 8 of b. 5 + 4 need 9."""
    pods = [occupant("a", 2, workload=workload) for workload in "xyz"]
    rooms = Rooms(
        [demand(1, 5, pod_set="big"), demand(1, 4, pod_set="small")], capacity_of([node("a", 4), node("b")], pods)
    )
    rooms.leave("x")
    assert not rooms.is_possible
    rooms.leave("y")
    rooms.leave("z")
    assert rooms.is_possible  # 4 + 8


def test_nobody_leaves_twice_or_comes_back_without_having_left() -> None:
    rooms = Rooms([demand(1, 8)], capacity_of([node("a")], []))
    rooms.leave("x")
    with pytest.raises(ValueError, match="x has left already"):
        rooms.leave("x")
    rooms.come_back("x")
    with pytest.raises(ValueError, match="x has not left"):
        rooms.come_back("x")


def test_only_the_gang_s_own_sets_are_counted() -> None:
    rooms = Rooms([demand(1, 8)], capacity_of([node("a")], []))
    with pytest.raises(ValueError, match="PodSet other"):
        rooms.room(demand(1, 4, pod_set="other"))
