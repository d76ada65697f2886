"""A gang that is sure of its places finds them whatever the scheduler does; every way of it is tried."""

from collections import Counter

from core.placement.placement_builders import clusters, demand, gangs, node, occupant, occupants_of, on
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scaler.core.assurance import Crowd, Pods, is_assured, keeps_room, pods_of
from scaler.core.placement import Capacity, Demand, capacity_of, fits
from scaler.core.placement.index import Shape


def pods(capacity: Capacity, *demands: Demand) -> Counter[Shape]:
    return pods_of(demands, capacity.index)


def test_the_worked_example():
    """A pod of 4 and a pod of 1 on nodes with 4 and 1 free, and with 5 and 1."""
    tight = capacity_of([node("a", 4), node("b", 1)], [])
    roomy = capacity_of([node("a", 5), node("b", 1)], [])
    both = demand(1, 4), demand(1, 1, pod_set="small")
    assert fits(both, tight)
    assert not is_assured(pods(tight, *both), tight)
    assert is_assured(pods(roomy, *both), roomy)


def test_pods_that_are_alike_are_sure_as_soon_as_they_fit():
    free = capacity_of([node("a", 8), node("b", 4), node("c", 2)], [])
    assert is_assured(pods(free, demand(3, 4)), free)
    assert not is_assured(pods(free, demand(4, 4)), free)


def test_a_pod_without_gpus_spoils_no_gpu_place_while_there_are_cores():
    """The head takes 4 of 96 cores; a worker needs all 8 GPUs and 64 cores: 32 may go before a place does."""
    free = capacity_of([node("a", 8), node("b", 8)], [])
    head, workers = demand(1, 0, pod_set="head", cores=4), demand(2, 8, cores=64)
    assert is_assured(pods(free, head, workers), free)
    greedy = demand(1, 0, pod_set="head", cores=33)
    assert not is_assured(pods(free, greedy, workers), free)


def test_on_the_only_node_of_a_shape_it_is_enough_that_all_fit_together():
    """Each resource for itself leaves room for one head less, and one is not to spare for both."""
    free = capacity_of([node("a", 8, cores=51, labels={"host": "a"}), node("b")], [])
    head = demand(1, 2, pod_set="head", cores=20, nodes=on({"host": "a"}))
    worker = demand(1, 5, cores=30, nodes=on({"host": "a"}))
    assert is_assured(pods(free, head, worker), free)
    assert not is_assured(pods(free, head, demand(1, 5, cores=32, nodes=on({"host": "a"}))), free)
    assert not is_assured(pods(free, head, worker, demand(1, 2, pod_set="other")), free), "who may come there, too"


def test_eight_small_pods_spoil_no_more_places_of_eight_than_nodes_they_could_take():
    free = capacity_of([node(f"node-{n}", 8) for n in range(10)], [])
    small, large = demand(8, 1, pod_set="small"), demand(2, 8)
    assert is_assured(pods(free, small, large), free)
    assert not is_assured(pods(free, demand(9, 1, pod_set="small"), large), free)


def test_whoever_joins_spoils_nothing_for_those_who_were_sure():
    free = capacity_of([node("a", 8), node("b", 8)], [])
    crowd = Crowd(free)
    crowd.join(pods(free, demand(1, 8)))
    one = pods(free, demand(1, 1))
    assert crowd.admits(one), "on whichever node it goes, the other one is left for the pod of 8"
    crowd.join(one)
    assert not crowd.admits(one), "it could take the one node, and the other small pod the other"


def test_those_who_are_not_sure_hold_nobody_up():
    free = capacity_of([node("a", 8), node("b", 8, labels={"zone": "b"})], [occupant("a", 8)])
    crowd = Crowd(free)
    crowd.join(pods(free, demand(2, 8)))
    assert crowd.admits(pods(free, demand(1, 0, cores=1)))


def test_those_who_took_a_risk_hold_nobody_up_either_whoever_was_asked_before():
    """The pods of 4 and of 1 are let go although one may take the other's node; in another zone there is plenty."""
    free = capacity_of(
        [node("a", 4, labels={"zone": "a"}), node("b", 1, labels={"zone": "a"}), node("c", labels={"zone": "c"})], []
    )
    near, far = on({"zone": "a"}), on({"zone": "c"})
    crowd, later = Crowd(free), pods(free, demand(1, 2, nodes=far))
    crowd.join(pods(free, demand(1, 1, nodes=far)))
    assert crowd.admits(later)
    crowd.join(pods(free, demand(1, 4, nodes=near), demand(1, 1, pod_set="small", nodes=near)))
    assert crowd.admits(later)


def test_after_too_many_counts_the_answer_is_no():
    tight = capacity_of([node("a", 5), node("b", 1)], [])
    both = pods(tight, demand(1, 4), demand(1, 1, pod_set="small"))
    assert Crowd(tight).admits(both)
    assert not Crowd(tight, counts=1).admits(both)


def test_room_is_kept_only_where_none_of_the_others_can_take_it():
    free = capacity_of([node("a", 8), node("b", 8)], [])
    [shape] = pods(free, demand(1, 8))
    assert keeps_room(shape, 1, free, pods(free, demand(1, 8)))
    assert not keeps_room(shape, 1, free, pods(free, demand(2, 8)))
    assert keeps_room(shape, 1, free, pods(free, demand(1, 1)))
    assert not keeps_room(shape, 2, free, pods(free, demand(1, 1)))


# ----------------------------------------------------------------------------------------------------------------- laws


@st.composite
def towns(draw: st.DrawFn) -> tuple[Capacity, list[Demand], list[Demand]]:
    nodes = draw(clusters())
    return capacity_of(nodes, draw(occupants_of(nodes))), draw(gangs()), draw(gangs())


LAWS = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@given(towns())
@LAWS
def test_yes_is_a_proof(town):
    capacity, one, _ = town
    asked = pods(capacity, *one)
    assume(is_assured(asked, capacity))
    assert not _can_be_stranded(capacity, asked)


@given(towns())
@LAWS
def test_after_a_join_everybody_who_was_sure_still_is(town):
    capacity, one, other = town
    crowd = Crowd(capacity)
    first, second = pods(capacity, *one), pods(capacity, *other)
    assume(crowd.admits(first))
    crowd.join(first)
    assume(crowd.admits(second))
    assert not _can_be_stranded(capacity, first + second)


@given(towns())
@LAWS
def test_room_that_is_kept_is_there_whatever_the_others_do(town):
    capacity, one, other = town
    others = pods(capacity, *other)
    for shape, count in pods(capacity, *one).items():
        if keeps_room(shape, count, capacity, others):
            assert _least_room(capacity, shape, others, {}) >= count


def _can_be_stranded(capacity: Capacity, left: Pods) -> bool:
    """Whether any order of pods and any choice of nodes leaves a pod without one."""
    return _tried(capacity, left, set())


def _tried(capacity: Capacity, left: Pods, seen: set[object]) -> bool:
    state = tuple(capacity.free), tuple(sorted((shape, count) for shape, count in left.items() if count))
    if state in seen:
        return False
    seen.add(state)
    for shape, count in left.items():
        if not count:
            continue
        rooms = list(capacity.rooms(shape)) if shape.eligible else []
        if not rooms:
            return True
        rest = {**left, shape: count - 1}
        if any(_tried(capacity.filled(shape, [(at, 1)]), rest, seen) for at, _ in rooms):
            return True
    return False


def _least_room(capacity: Capacity, wanted: Shape, left: Pods, known: dict[object, int]) -> int:
    """Room for pods of the shape after the worst that the others can do."""
    state = tuple(capacity.free), tuple(sorted((shape, count) for shape, count in left.items() if count))
    if state not in known:
        least = sum(room for _, room in capacity.rooms(wanted)) if wanted.eligible else 0
        for shape, count in left.items():
            for at, _ in list(capacity.rooms(shape)) if count and shape.eligible else ():
                rest = {**left, shape: count - 1}
                least = min(least, _least_room(capacity.filled(shape, [(at, 1)]), wanted, rest, known))
        known[state] = least
    return known[state]
