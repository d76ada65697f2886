"""A gang that is sure of its places finds them whatever the scheduler does; every way of it is tried."""

from collections import Counter

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from placement.placement_builders import MARKS, clusters, demand, gangs, node, occupants_of, on

from scaler.placement.capacity import Capacity, capacity_of
from scaler.placement.fit import fits
from scaler.placement.node_index import NodeDemand, PodShape, pod_counts
from scaler.placement.worst_case import PodCounts, WorstCasePlacement, fits_in_any_order, leaves_room


def pods(capacity: Capacity, *demands: NodeDemand) -> Counter[PodShape]:
    return pod_counts(demands, capacity.index)


def test_the_worked_example():
    """A pod of 4 and a pod of 1 on nodes with 4 and 1 free, and with 5 and 1."""
    tight = capacity_of([node("a", 4), node("b", 1)], [])
    roomy = capacity_of([node("a", 5), node("b", 1)], [])
    both = demand(1, 4), demand(1, 1, pod_set="small")
    assert fits(both, tight)
    assert not fits_in_any_order(pods(tight, *both), tight)
    assert fits_in_any_order(pods(roomy, *both), roomy)


def test_a_pod_without_gpus_takes_no_slot_for_gpus_while_there_are_cores():
    """The head takes 4 of 96 cores; a worker needs all 8 GPUs and 64 cores: 32 may go before a place does."""
    free = capacity_of([node("a", 8), node("b", 8)], [])
    head, workers = demand(1, 0, pod_set="head", cores=4), demand(2, 8, cores=64)
    assert fits_in_any_order(pods(free, head, workers), free)
    greedy = demand(1, 0, pod_set="head", cores=33)
    assert not fits_in_any_order(pods(free, greedy, workers), free)


def test_on_the_only_node_of_a_shape_it_is_enough_that_all_fit_together():
    """Each resource for itself leaves room for one head less, and one is not to spare for both."""
    free = capacity_of([node("a", 8, cores=51, labels={"host": "a"}), node("b")], [])
    head = demand(1, 2, pod_set="head", cores=20, nodes=on({"host": "a"}))
    worker = demand(1, 5, cores=30, nodes=on({"host": "a"}))
    assert fits_in_any_order(pods(free, head, worker), free)
    assert not fits_in_any_order(pods(free, head, demand(1, 5, cores=32, nodes=on({"host": "a"}))), free)
    assert not fits_in_any_order(pods(free, head, worker, demand(1, 2, pod_set="other")), free), (
        "who may come there, too"
    )


def test_a_pod_that_shares_its_node_with_none_of_its_kind_takes_a_slot_by_being_there():
    free = capacity_of([node("a", labels={"host": "a"}), node("b")], [])
    picky, free_to_choose = (
        demand(1, gpus, nodes=on(labels, apart=MARKS[:1])) for gpus, labels in ((1, {"host": "a"}), (2, {}))
    )
    assert fits((picky, free_to_choose), free)
    assert not fits_in_any_order(pods(free, picky, free_to_choose), free), "however many GPUs are left on a"


def test_one_that_joins_takes_no_slot_from_those_that_were_certain():
    free = capacity_of([node("a", 8), node("b", 8)], [])
    coming = WorstCasePlacement(free)
    coming.add(pods(free, demand(1, 8)))
    one = pods(free, demand(1, 1))
    assert coming.admits(one), "on whichever node it goes, the other one is left for the pod of 8"
    coming.add(one)
    assert not coming.admits(one), "it could take the one node, and the other small pod the other"


def test_those_who_took_a_risk_hold_nobody_up_either_whoever_was_asked_before():
    """The pods of 4 and of 1 are released although one may take the other's node; in another zone there is plenty."""
    free = capacity_of(
        [node("a", 4, labels={"zone": "a"}), node("b", 1, labels={"zone": "a"}), node("c", labels={"zone": "c"})], []
    )
    near, far = on({"zone": "a"}), on({"zone": "c"})
    coming, later = WorstCasePlacement(free), pods(free, demand(1, 2, nodes=far))
    coming.add(pods(free, demand(1, 1, nodes=far)))
    assert coming.admits(later)
    coming.add(pods(free, demand(1, 4, nodes=near), demand(1, 1, pod_set="small", nodes=near)))
    assert coming.admits(later)


def test_after_too_many_counts_the_answer_is_no():
    tight = capacity_of([node("a", 5), node("b", 1)], [])
    both = pods(tight, demand(1, 4), demand(1, 1, pod_set="small"))
    assert WorstCasePlacement(tight).admits(both)
    assert not WorstCasePlacement(tight, counts=1).admits(both)


def test_room_is_kept_only_where_none_of_the_others_can_take_it():
    free = capacity_of([node("a", 8), node("b", 8)], [])
    [shape] = pods(free, demand(1, 8))
    assert leaves_room(shape, 1, free, pods(free, demand(1, 8)))
    assert not leaves_room(shape, 1, free, pods(free, demand(2, 8)))
    assert leaves_room(shape, 1, free, pods(free, demand(1, 1)))
    assert not leaves_room(shape, 2, free, pods(free, demand(1, 1)))


# ----------------------------------------------------------------------------------------------------------------- laws


@st.composite
def situations(draw: st.DrawFn) -> tuple[Capacity, list[NodeDemand], list[NodeDemand]]:
    nodes = draw(clusters())
    return capacity_of(nodes, draw(occupants_of(nodes))), draw(gangs(5)), draw(gangs(4))


LAWS = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@given(situations())
@LAWS
def test_yes_is_a_proof(situation):
    capacity, one, _ = situation
    asked = pods(capacity, *one)
    assume(fits_in_any_order(asked, capacity))
    assert not _can_be_stranded(capacity, asked)


@given(situations())
@settings(LAWS, max_examples=60)
def test_after_a_join_all_that_were_certain_still_are(situation):
    """Gangs join one after the other, and of one that may not those of its pod sets that may."""
    capacity, *gangs = situation
    coming, joined = WorstCasePlacement(capacity), Counter[PodShape]()
    for gang in gangs:
        whole = pods(capacity, *gang)
        for asked in [whole] if coming.admits(whole) else [pods(capacity, each) for each in gang]:
            if coming.admits(asked):
                coming.add(asked)
                joined += asked
    assert not _can_be_stranded(capacity, joined)


@given(situations())
@LAWS
def test_room_that_is_kept_is_there_whatever_the_others_do(situation):
    capacity, one, other = situation
    others = pods(capacity, *other)
    for shape, count in pods(capacity, *one).items():
        if leaves_room(shape, count, capacity, others):
            assert _least_room(capacity, shape, others, {}) >= count


def _can_be_stranded(capacity: Capacity, left: PodCounts) -> bool:
    """Whether any order of pods and any choice of nodes leaves a pod without one."""
    return _tried(capacity, left, set())


def _tried(capacity: Capacity, left: PodCounts, seen: set[object]) -> bool:
    state = tuple(capacity.free), tuple(sorted((shape, count) for shape, count in left.items() if count))
    if state in seen:
        return False
    seen.add(state)
    for shape, count in left.items():
        if not count:
            continue
        slots = list(capacity.slots(shape)) if shape.eligible else []
        if not slots:
            return True
        rest = {**left, shape: count - 1}
        if any(_tried(capacity.filled(shape, [(at, 1)]), rest, seen) for at, _ in slots):
            return True
    return False


def _least_room(capacity: Capacity, wanted: PodShape, left: PodCounts, known: dict[object, int]) -> int:
    """Room for pods of the shape after the worst that the others can do."""
    state = tuple(capacity.free), tuple(sorted((shape, count) for shape, count in left.items() if count))
    if state not in known:
        least = sum(room for _, room in capacity.slots(wanted)) if wanted.eligible else 0
        for shape, count in left.items():
            for at, _ in list(capacity.slots(shape)) if count and shape.eligible else ():
                rest = {**left, shape: count - 1}
                least = min(least, _least_room(capacity.filled(shape, [(at, 1)]), wanted, rest, known))
        known[state] = least
    return known[state]
