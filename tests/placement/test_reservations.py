"""Which gang gets which nodes: never the same twice, never a part, and none starves, whatever schedulers do."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from random import Random

import pytest
from builders import NOON
from decision.documented import rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placement.placement_builders import clusters, demand, gangs, node, occupant, occupants_of, on

from scaler.placement import reservations
from scaler.placement.capacity import Capacity, PodPlacement, capacity_of
from scaler.placement.fit import place
from scaler.placement.node_index import NodeDemand, pod_counts
from scaler.placement.requests import (
    Blocked,
    BlockedReason,
    Fits,
    Insufficient,
    NodePin,
    PlacementRequest,
    PlacementResult,
    ReservationQueue,
)
from scaler.placement.reservations import MAX_RELEASES, place_in_order
from scaler.placement.shortage import Shortage
from scaler.placement.worst_case import fits_in_any_order

HOST = "kubernetes.io/hostname"


def claim(name: str, *demands: NodeDemand, after: int = 0, **more: object) -> PlacementRequest:
    """A gang that got its quota so many seconds after noon."""
    at = NOON + timedelta(seconds=after)
    return PlacementRequest(key=f"team/{name}", uid=f"uid-{name}", demands=demands, at=at, **more)  # type: ignore[arg-type]


def placed(
    capacity: Capacity,
    held: Iterable[PlacementRequest],
    waiting: Iterable[PlacementRequest],
    *,
    overdue: Iterable[PodPlacement] = (),
    most: int = MAX_RELEASES,
) -> dict[str, PlacementResult]:
    queue = ReservationQueue(capacity=capacity, held=tuple(held), waiting=tuple(waiting), overdue=tuple(overdue))
    return place_in_order(queue, most=most)


def outcomes(verdicts: dict[str, PlacementResult]) -> dict[str, str]:
    """`Fits`, `Insufficient`, or what is waited for."""
    return {
        key.removeprefix("team/"): str(each.why) if isinstance(each, Blocked) else type(each).__name__
        for key, each in verdicts.items()
    }


# -------------------------------------------------------------------------------------------------- one after the other


def test_the_first_that_fits_is_placed_and_the_next_lacks_what_it_took():
    free = capacity_of([node("a")], [])
    verdicts = placed(free, [], [claim("late", demand(1, 8), after=1), claim("early", demand(1, 8))])
    assert outcomes(verdicts) == {"early": "Fits", "late": "Insufficient"}
    assert verdicts["team/early"].message == "fits whole: 1 pod on 1 node (a)"
    lacking = verdicts["team/late"]
    assert isinstance(lacking, Insufficient)
    assert lacking.because.why is Shortage.NOT_ENOUGH_FREE  # type: ignore[union-attr]


def test_what_was_released_keeps_its_places_until_its_pods_are_on_nodes():
    free = capacity_of([node("a"), node("b")], [])
    released = claim("before", demand(1, 8), after=5)
    verdicts = placed(free, [released], [claim("gang", demand(2, 8)), claim("small", demand(1, 8), after=9)])
    assert outcomes(verdicts) == {"gang": "Insufficient", "small": "Fits"}


def test_one_that_was_released_and_does_not_fit_any_more_keeps_what_its_pods_can_take():
    """One of its two nodes is gone: its one pod still goes to the other, and no other gang is released onto that."""
    free = capacity_of([node("a")], [])
    assert outcomes(placed(free, [claim("before", demand(2, 8))], [claim("gang", demand(1, 8))])) == {
        "gang": "Insufficient"
    }


def test_what_was_released_and_lacks_its_node_only_until_pods_have_ended_keeps_it():
    """Two pinned pods of 2 and 5 fit node a once one of 2 has ended; a third one fits b now, and might go to a."""
    free = capacity_of([node("a", labels={HOST: "a"}), node("b", 4)], [occupant("a", 2, terminating=True)])
    released = [claim(f"pinned-{gpus}", demand(1, gpus, nodes=on({HOST: "a"}))) for gpus in (2, 5)]
    assert outcomes(placed(free, released, [claim("gang", demand(1, 2), after=1)])) == {"gang": "PodsComing"}
    assert outcomes(placed(free, released, [claim("gang", demand(1, 1), after=1)])) == {"gang": "Fits"}


@pytest.mark.parametrize(
    ("nodes", "waiting", "expected"),
    [
        ("a", {"gang": 0}, {"gang": "Fits"}),
        ("a", {"other": 0, "gang": 1}, {"other": "PodsComing", "gang": "Insufficient"}),
        ("ab", {"other": 0, "gang": 1}, {"other": "Fits", "gang": "PodsComing"}),
        ("", {"other": 0, "gang": 1}, {"other": "Insufficient", "gang": "Insufficient"}),
    ],
    ids=["are its own", "are no other's", "are not free beside a release", "cost no nodes"],
)
def test_places_of_pods_from_before_an_eviction(nodes: str, waiting: dict[str, int], expected: dict[str, str]):
    """The gang waits once more, and its old pod of 8 GPUs may still be scheduled."""
    queue = ReservationQueue(
        capacity=capacity_of([node(name) for name in nodes], []),
        evicted=(claim("gang", demand(1, 8)),),
        waiting=tuple(claim(name, demand(1, 8), after=after) for name, after in waiting.items()),
    )
    assert outcomes(place_in_order(queue)) == expected


# -------------------------------------------------------------------------------------------------------- pods that end


def test_a_gang_waits_for_pods_that_end_and_says_where():
    ending = capacity_of([node("a"), node("b")], [occupant("b", 8, terminating=True)])
    verdicts = placed(ending, [], [claim("gang", demand(2, 8))])
    assert verdicts["team/gang"].message == "fits once pods have terminated on a, b"


def test_a_later_gang_takes_what_the_earlier_one_does_not_need():
    """8 end on b, 8 and 4 are free on a and c: x takes a and b, and y's pod of 4 fits no hole of x's but c."""
    ending = capacity_of([node("a"), node("b"), node("c", 4)], [occupant("b", 8, terminating=True)])
    x = claim("x", demand(2, 8))
    y = claim("y", demand(1, 4, nodes=on({})), after=1)
    assert outcomes(placed(ending, [], [x, y])) == {"x": "PodsEnding", "y": "ReservedForEarlierWorkload"}
    tied = claim("y", demand(1, 4), after=1, pin_label=HOST)
    hosts = [node(name, gpus, labels={HOST: name}) for name, gpus in (("a", 8), ("b", 8), ("c", 4))]
    ending = capacity_of(hosts, [occupant("b", 8, terminating=True)])
    verdicts = placed(ending, [], [x, tied])
    assert outcomes(verdicts) == {"x": "PodsEnding", "y": "Fits"}
    assert verdicts["team/y"].pins == {"workers": NodePin(HOST, "c")}  # type: ignore[union-attr]


def test_pods_that_should_have_ended_long_ago_are_not_waited_for():
    stuck = occupant("b", 8, terminating=True)
    ending = capacity_of([node("a"), node("b")], [stuck])
    x, y = claim("x", demand(2, 8)), claim("y", demand(1, 8), after=1)
    overdue = [PodPlacement("", "b", 1, stuck.requests)]
    assert outcomes(placed(ending, [], [x, y], overdue=overdue)) == {"x": "Insufficient", "y": "Fits"}


# ---------------------------------------------------------------------------------------------------- provisioned nodes


def test_a_booking_goes_first():
    free = capacity_of([node("a")], [])
    booked = claim("booked", demand(1, 8), after=9, is_booked=True)
    assert outcomes(placed(free, [], [claim("early", demand(1, 8)), booked])) == {
        "booked": "Fits",
        "early": "Insufficient",
    }


def test_pods_that_keep_apart_lack_a_node_each_of_whatever_pod_set_they_are():
    """Two nodes, and a head and two workers that share none: a third node is asked for, however much is free on two."""
    free = capacity_of([node("a"), node("b")], [])
    apart = on(apart=("apart ns app=ray",))
    ray = claim(
        "ray", demand(1, 1, pod_set="head", nodes=apart), demand(2, 2, pod_set="workers", nodes=apart), may_ask=True
    )
    lacking = placed(free, [], [ray])["team/ray"]
    assert isinstance(lacking, Insufficient)
    assert lacking.missing == {"workers": 1}


def test_what_is_missing_is_counted_by_pod_set_and_what_is_there_is_kept_for_it():
    """16 GPUs wanted, 8 free: 1 of 2 pods is missing. While its node comes, no other gang gets the 8."""
    free = capacity_of([node("a")], [])
    small = claim("small", demand(1, 8), after=1)
    asks = claim("gang", demand(2, 8), may_ask=True)
    verdicts = placed(free, [], [asks, small])
    assert outcomes(verdicts) == {"gang": "Insufficient", "small": "Fits"}
    assert verdicts["team/gang"].missing == {"workers": 1}  # type: ignore[union-attr]
    awaits = claim("gang", demand(2, 8), awaits_nodes=True)
    assert outcomes(placed(free, [], [awaits, small])) == {"gang": "Insufficient", "small": "Insufficient"}


# --------------------------------------------------------------------------------------- wherever the scheduler puts it


def test_a_gang_fits_where_there_is_room_for_its_large_pod_beside_the_small_one():
    """The scheduler may put the pod of 1 onto the node for the one of 4, too: with 4 GPUs there, and not 5, it waits
    (a row of the table)."""
    roomy = capacity_of([node("a", 5), node("b", 8)], [occupant("b", 7)])
    assert outcomes(placed(roomy, [], [TWO_SIZES])) == {"gang": "Fits"}


def test_a_gang_that_fits_only_one_way_is_released_where_pods_can_be_tied_to_nodes():
    hosts = [node("a", 4, labels={HOST: "host-a"}), node("b", 8, labels={HOST: "host-b"})]
    tight = capacity_of(hosts, [occupant("b", 7)])
    gang = claim("gang", demand(1, 1, pod_set="head"), demand(1, 4), pin_label=HOST)
    fitting = placed(tight, [], [gang])["team/gang"]
    assert isinstance(fitting, Fits)
    assert fitting.pins == {"head": NodePin(HOST, "host-b"), "workers": NodePin(HOST, "host-a")}


def test_one_that_empty_nodes_could_not_assure_either_is_released_rather_than_never():
    whole = capacity_of([node("a", 4), node("b", 1)], [])
    gang = claim("gang", demand(1, 1, pod_set="head"), demand(1, 4))
    assert outcomes(placed(whole, [], [gang])) == {"gang": "Fits"}


def test_a_risk_is_taken_untied():
    """Two workers may take all the room on the node that the head would be tied to; the other one has some then."""
    hosts = [node(name, 8, cores=50, labels={HOST: name}) for name in ("a", "b")]
    gang = claim("gang", demand(1, 2, pod_set="head", cores=20), demand(3, 4, cores=20), pin_label=HOST)
    fitting = placed(capacity_of(hosts, []), [], [gang])["team/gang"]
    assert isinstance(fitting, Fits)
    assert fitting.pins == {}


def test_pods_that_are_on_their_way_may_go_anywhere():
    """One of 4 was released and may take a or b. Only on the other are 8 free then, and it is not known which."""
    free = capacity_of([node("a"), node("b", 8)], [occupant("b", 4)])
    before = claim("before", demand(1, 4))
    verdicts = placed(free, [before], [claim("gang", demand(1, 8), after=1)])
    assert outcomes(verdicts) == {"gang": "PodsComing"}
    assert (
        verdicts["team/gang"].message
        == "fits, but pods of team/before are not scheduled yet and may take the same nodes"
    )
    bound = capacity_of([node("a"), node("b", 8)], [occupant("b", 4), occupant("b", 4, pod="before-0")])
    assert outcomes(placed(bound, [], [claim("gang", demand(1, 8), after=1)])) == {"gang": "Fits"}


def test_pods_that_may_come_do_not_cost_the_first_in_line_its_turn():
    """x takes half the cores of a node with each of 3 pods: it needs a and b, and leaves 4 GPUs on b. The pod of 4 that
    comes may go there, or to a, which has 4 left. y would fit b if x lacked a."""
    free = capacity_of([node("a", cores=8), node("b", cores=8)], [occupant("a", 4)])
    x, y = claim("x", demand(3, 1, cores=4), after=1), claim("y", demand(1, 4, cores=0), after=2)
    verdicts = placed(free, [claim("before", demand(1, 4, cores=0))], [x, y])
    assert outcomes(verdicts) == {"x": "PodsComing", "y": "Insufficient"}


def test_only_so_many_are_released_at_once_and_the_others_keep_their_places():
    free = capacity_of([node(f"node-{n}") for n in range(4)], [])
    waiting = [claim(f"gang-{n}", demand(1, 8), after=n) for n in range(4)]
    verdicts = placed(free, [], waiting, most=2)
    assert outcomes(verdicts) == {
        "gang-0": "Fits",
        "gang-1": "Fits",
        "gang-2": "PodsComing",
        "gang-3": "PodsComing",
    }


# ----------------------------------------------------------------------------------------------------------- the table

ENDING = occupant("b", 8, terminating=True)
BEFORE, WHOLE = claim("before", demand(1, 4)), claim("gang", demand(1, 8), after=1)
TWO_NODES, TWO_SIZES = claim("x", demand(2, 8)), claim("gang", demand(1, 1, pod_set="head"), demand(1, 4))
PLAYED: dict[tuple[str, str], tuple[Capacity, list[PlacementRequest], list[PlacementRequest], int]] = {
    # what is free, who was released and who waits, and the GPUs of one more, which fit what the gang could have
    ("for sure, and delays none before it", "–"): (capacity_of([node("a")], []), [], [WHOLE], 8),
    ("for sure, but delays one before it", "–"): (
        *(capacity_of([node("a"), node("b"), node("c", 4)], [ENDING]), []),
        *([TWO_NODES, claim("gang", demand(1, 4), after=1)], 4),
    ),
    ("not for sure while pods of others are coming", "–"): (
        *(capacity_of([node("a"), node("b")], [occupant("b", 4)]), [BEFORE], [WHOLE], 8),
    ),
    ("not for sure, even alone", "–"): (
        *(capacity_of([node("a", 4), node("b")], [occupant("b", 7)]), [], [TWO_SIZES], 4),
    ),
    ("no", "fits"): (*(capacity_of([node("a"), node("b")], [ENDING]), [], [claim("gang", demand(2, 8), after=1)], 8),),
    ("no", "does not fit"): (capacity_of([node("a", 4)], []), [], [WHOLE], 4),
}
VERDICTS = {(now, later): (verdict, keeps) for now, later, verdict, keeps in rows(reservations, "fits now")}


def test_every_row_of_the_table_is_played():
    assert PLAYED.keys() == VERDICTS.keys()


@pytest.mark.parametrize(("row", "situation"), PLAYED.items(), ids=[" / ".join(row) for row in PLAYED])
def test_the_result_and_who_keeps_nodes_are_those_of_the_table(row, situation):
    free, held, waiting, gpus = situation
    verdict, keeps = VERDICTS[row]
    found = outcomes(placed(free, held, [*waiting, claim("next", demand(1, gpus), after=9)]))
    assert found["gang"] == verdict
    assert (found["next"] != "Fits") is keeps.startswith("yes")


# ----------------------------------------------------------------------------------------------------------------- laws


@st.composite
def situations(draw: st.DrawFn) -> tuple[Capacity, list[PlacementRequest], list[PlacementRequest]]:
    """Nodes with pods on them, gangs that were released, and gangs that wait."""
    nodes = draw(clusters())
    capacity = capacity_of(nodes, draw(occupants_of(nodes)))
    claims = [
        claim(f"gang-{n}", *draw(gangs()), after=draw(st.integers(0, 2)), awaits_nodes=draw(st.booleans()))
        for n in range(draw(st.integers(1, 4)))
    ]
    held = draw(st.integers(0, 1))
    return capacity, claims[:held], claims[held:]


LAWS = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])


@given(situations())
@LAWS
def test_places_are_never_reserved_twice_and_always_for_whole_gangs(situation):
    capacity, held, waiting = situation
    verdicts = placed(capacity, held, waiting)
    fitting = {key: each for key, each in verdicts.items() if isinstance(each, Fits)}
    after = capacity.after(seat for each in fitting.values() for seat in each.placements)
    for before, now in zip(capacity.free, after.free, strict=True):
        assert all(left >= min(0, had) for had, left in zip(before, now, strict=True)), "more than is free"
    for each in waiting:
        if each.key in fitting:
            placements = fitting[each.key].placements
            got = {d.pod_set: sum(s.pods for s in placements if s.pod_set == d.pod_set) for d in each.demands}
            assert got == {d.pod_set: d.count for d in each.demands}


@given(situations(), st.randoms(use_true_random=False))
@LAWS
def test_every_pod_that_was_released_finds_a_node_whatever_the_scheduler_does(situation, chance):
    capacity, held, waiting = situation
    verdicts = placed(capacity, held, waiting)
    if _was_risked(capacity, verdicts, waiting):
        return
    released = [each for each in waiting if isinstance(verdicts[each.key], Fits)]
    left_over, _ = _scheduled(capacity, [*held, *released], chance)
    assert not {each.key for each in released} & left_over


@given(situations(), st.randoms(use_true_random=False))
@LAWS
def test_none_that_fits_once_pods_have_ended_is_delayed_by_one_that_came_later(situation, chance):
    capacity, held, waiting = situation
    waiting = [each for each in waiting if not each.awaits_nodes]
    verdicts = placed(capacity, held, waiting)
    if _was_risked(capacity, verdicts, waiting):
        return
    keeping = [each for each in waiting if _keeps(verdicts[each.key])]
    later = [each for each in waiting if isinstance(verdicts[each.key], Fits)]
    for one in keeping:
        before = [each for each in later if each.turn < one.turn]
        behind = [each for each in later if each.turn > one.turn]
        rest_before, after_before = _scheduled(capacity, [*held, *before], chance)
        if rest_before or not _fits(one, after_before.once_ended()):
            continue  # Those before it have delayed it, which they may.
        rest, after = _scheduled(after_before, behind, chance)
        assert not rest
        assert _fits(one, after.once_ended()), (one, behind)


@given(situations(), st.randoms(use_true_random=False))
@LAWS
def test_the_order_in_which_gangs_are_listed_changes_nothing(situation, chance):
    capacity, held, waiting = situation
    shuffled = list(waiting)
    chance.shuffle(shuffled)
    assert placed(capacity, held, shuffled) == placed(capacity, held, waiting)


@given(situations())
@LAWS
def test_one_gang_alone_that_fits_for_sure_is_released(situation):
    capacity, _, waiting = situation
    alone = waiting[:1]
    for each in alone:
        is_plain = len([d for d in each.demands if d.count]) == 1
        if is_plain and _fits(each, capacity):
            assert outcomes(placed(capacity, [], alone)) == {each.key.removeprefix("team/"): "Fits"}


def _keeps(verdict: PlacementResult) -> bool:
    return isinstance(verdict, Blocked) and verdict.why is not BlockedReason.NOT_GUARANTEED


def _fits(one: PlacementRequest, capacity: Capacity) -> bool:
    return type(place(one.demands, capacity)).__name__ == "Placement"


def _was_risked(capacity: Capacity, verdicts: dict[str, PlacementResult], waiting: Sequence[PlacementRequest]) -> bool:
    """Whether one was released that not even empty nodes could assure."""
    fitting = [each for each in waiting if isinstance(verdicts[each.key], Fits)]
    return not all(fits_in_any_order(pod_counts(each.demands, capacity.index), capacity) for each in fitting)


def _scheduled(capacity: Capacity, claims: Sequence[PlacementRequest], chance: Random) -> tuple[set[str], Capacity]:
    """Whose pods found no node, and what is left, when a scheduler takes pods in any order to any node with room."""
    pods = [(each.key, d) for each in claims for d in each.demands for _ in range(d.count)]
    chance.shuffle(pods)
    left_over = set()
    for key, each in pods:
        shape = capacity.index.shape(each.requests, each.nodes)
        slots = [position for position, _ in capacity.slots(shape)]
        if not slots:
            left_over.add(key)
            continue
        name = capacity.index.nodes[chance.choice(slots)].name
        capacity = capacity.after([PodPlacement(each.pod_set, name, 1, each.requests)])
    return left_over, capacity
