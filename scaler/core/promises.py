"""Who is promised which of the free GPUs? So that no two gangs are let go onto the same ones, and nobody starves.

A gang that has quota asks for nodes. Those that were let go keep their places until all of their pods are on nodes:
Kueue makes the pods seconds later, and until then nothing else shows that the places are taken. What is left goes to
those that wait, in the order in which they got their quota.

Laws:

* GPUs are never promised twice. A gang is promised places for all of its pods, or for none.
* Whoever is promised places finds them wherever the scheduler puts its pods, and those of others that are on their way
  (`assurance`), or is tied to them. One that is never sure takes a risk when nobody else is on the way, and untied:
  what is tied to one place has no other when those of its pods that are not have taken it.
* Nobody starves: a gang that fits once the pods have ended that end now is not delayed by a later one. Later ones may
  use what it does not need (conservative backfilling).
* A pod that should have ended long ago is not waited for: it may never end.
* A gang for which a ProvisioningRequest has booked capacity comes before those that have only waited longer: it is its
  booking. One for which nodes are on their way keeps what it has found of the rest, until they are late.
* The order in which gangs are listed changes nothing.

| fits now                                     | once pods have ended | verdict     | keeps places               |
|----------------------------------------------|----------------------|-------------|----------------------------|
| for sure, and delays nobody before it        | –                    | Seated      | yes: they are promised     |
| for sure, but delays one before it           | –                    | GangsBefore | yes                        |
| not for sure while pods of others are coming | –                    | PodsComing  | yes                        |
| not for sure, even alone                     | –                    | Scattered   | no                         |
| no                                           | fits                 | PodsEnding  | yes                        |
| no                                           | does not fit         | Lacks       | if nodes come for the rest |

Scattered is a gang that fits, but only if every pod goes where it must: it waits for more room, without places, so that
these are used meanwhile. One that would not be sure of its places on empty nodes either is let go as soon as it fits.

Worked example: 8 free GPUs on node a, and 8 on b that still end. X (16 GPUs, first) and Y (8) wait. X fits once b has
ended, and keeps a and b; Y is not let go although it fits a now, or X would wait for Y's end. If X needed a node of 16,
which there is not, it would lack nodes, keep nothing, and Y would start.

The tempting alternative, to let go whoever fits, starves every large gang for as long as small ones keep coming.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scaler.core.assurance import Crowd, is_assured, keeps_room, pods_of
from scaler.core.claims import Claim, Lacks, Pin, Seated, Verdict, Waits, Why
from scaler.core.placement import Capacity, Demand, Misfit, Placement, Seat, Unproven, beside, fits, place, upper_bound
from scaler.core.placement.index import Needs, Shape, union

MOST_AT_ONCE = 100
"""Gangs that are let go in one round. Each takes two calls to the API, and the next round follows at once."""
_QUESTIONS = 400
"""Of whether one gang spoils another's places, in one round: some 0.4 s. Who is not asked about is not let go."""
_NAMED = 4
"""Gangs that a verdict names, of all that are waited for."""


def promise(
    capacity: Capacity,
    held: Iterable[Claim],
    waiting: Iterable[Claim],
    *,
    overdue: Sequence[Seat] = (),
    most: int = MOST_AT_ONCE,
) -> dict[str, Verdict]:
    """The verdict on each that waits, by key.

    `held` are those that were let go, with pods that are not on nodes yet. `overdue` is what pods hold that should have
    ended long ago: they are not expected to.
    """
    round_ = Round(capacity, overdue, most)
    for claim in sorted(held, key=lambda claim: claim.turn):
        round_.hold(claim)
    return {claim.key: round_.judge(claim) for claim in sorted(waiting, key=lambda claim: claim.turn)}


# ------------------------------------------------------------------------------------------------------------ one round


@dataclass(frozen=True, slots=True)
class _Kept:
    """Places that one who waits keeps."""

    key: str
    seats: tuple[Seat, ...]
    shapes: Mapping[str, Shape]
    """By PodSet."""


class Round:
    """What is free, while promises are made one after the other: first `hold`, then `judge`, each in their turn."""

    def __init__(self, capacity: Capacity, overdue: Sequence[Seat], most: int) -> None:
        self._free = capacity
        """Now, whatever was promised."""
        self._ends = bool(capacity.occupancy.ending)
        self._ended = capacity.once_ended().after(overdue) if self._ends else capacity
        """Once pods have ended, whatever was promised."""
        self._now, self._later = self._free, self._ended
        """The same without what was promised; later also without what is kept for those that wait."""
        self._spare = self._now
        """On every node the lesser of now and later: what may be promised."""
        self._coming: dict[str, Counter[Shape]] = {}
        """Pods that were let go and are not on nodes yet, by gang."""
        self._crowd = Crowd(capacity)
        """All of them."""
        self._kept: list[_Kept] = []
        self._left = most
        self._questions = _QUESTIONS

    @property
    def is_spent(self) -> bool:
        """Whether it has come to its end: who fits now waits for the next one, and nobody knows what that will say."""
        return self._left <= 0 or self._questions <= 0

    # ------------------------------------------------------------------------------------------- what would be free

    @property
    def left(self) -> Capacity:
        """What is free once pods have ended, without what was promised and what is kept."""
        return self._later

    def once_gone(self, workloads: Collection[str]) -> "Round":
        """The round anew for those that wait, with no pod left of these workloads, nor of those that end.

        What was promised is promised. Nothing is kept yet.
        """
        found = Round(self._ended.without(workloads), (), MOST_AT_ONCE)
        found._ends = False
        given_back = (seat._replace(pods=-seat.pods) for kept in self._kept for seat in kept.seats)
        found._now = found._later = found._spare = self._later.without(workloads).after(given_back)
        for key, pods in self._coming.items():
            found._let_come(key, pods)
        return found

    # ------------------------------------------------------------------------------------------------ who was let go

    def hold(self, claim: Claim) -> None:
        """Count the places of one that was let go as taken; where it does not fit whole, as many as it could take."""
        now = most_seats(claim.demands, self._now)
        later = most_seats(claim.demands, self._later) if self._ends else now
        self._now, self._spare = self._now.after(now), self._spare.after(now)
        self._keep_from(later)
        # A pod that no node has room for, now or soon, takes nobody's place.
        pods = pods_of(claim.demands, self._free.index)
        self._let_come(claim.key, Counter({each: n for each, n in pods.items() if any(self._ended.rooms(each))}))

    def _let_come(self, key: str, pods: Counter[Shape]) -> None:
        if pods:
            self._coming[key] = pods
            self._crowd.join(pods)

    def _keep_from(self, seats: Sequence[Seat]) -> None:
        """Take places from what will be free, and from what may be promised as far as they are there already."""
        self._later = self._later.after(seats)
        short: dict[Needs, list[tuple[int, int]]] = {}
        for node in {self._free.index.position[seat.node] for seat in seats}:
            have, leave = self._spare.free[node], self._later.free[node]
            needs = tuple((each, have[each] - leave[each]) for each in range(len(have)) if have[each] > leave[each])
            if needs:
                short.setdefault(needs, []).append((node, 1))
        for needs, nodes in short.items():
            self._spare = self._spare.filled(Shape(eligible=0, needs=needs), nodes)

    # ----------------------------------------------------------------------------------------------------- who waits

    def judge(self, claim: Claim) -> Verdict:
        found = place(claim.demands, self._spare)
        if isinstance(found, Placement):
            return self._offer(claim, found)
        later = self._place_later(claim)
        if later is None:
            return self._lacking(claim, found)
        is_there = fits(claim.demands, self._now)
        others = self._in_the_way(pods_of(claim.demands, self._free.index)) if is_there else ()
        self._keep(claim, later.seats)
        return Waits(why=Why.GANGS_BEFORE if is_there else Why.PODS_ENDING, seats=later.seats, others=others)

    def _offer(self, claim: Claim, found: Placement) -> Verdict:
        """It fits what may be promised. Is it sure of that, and do those before it keep their places for sure?"""
        if claim.waits_for_pods:
            self._keep(claim, found.seats)
            return Waits(why=Why.PODS_ENDING, seats=found.seats)
        doubt: Why = Why.SCATTERED
        others: tuple[str, ...] = ()
        for pins in _ways(found, claim.pin_label, self._free):
            pods = pods_of(_pinned(claim.demands, pins), self._free.index)
            why, others = self._doubt(claim, pods, may_risk=not pins)
            if why is None:
                return self._seat(claim, found, pins, pods)
            doubt = why
        if doubt is not Why.SCATTERED:
            self._keep(claim, found.seats)
        return Waits(why=doubt, seats=found.seats, others=others)

    def _seat(self, claim: Claim, found: Placement, pins: Mapping[str, Pin], pods: Counter[Shape]) -> Seated:
        self._left -= 1
        self._now, self._later = self._now.after(found.seats), self._later.after(found.seats)
        self._spare = self._spare.after(found.seats)
        self._let_come(claim.key, pods)
        return Seated(seats=found.seats, pins=pins)

    def _doubt(self, claim: Claim, pods: Counter[Shape], *, may_risk: bool) -> tuple[Why | None, tuple[str, ...]]:
        """Why it is not let go although it fits, and for whom; None where it is."""
        on_their_way = self._on_their_way(pods)
        if not self._may_ask():
            return Why.PODS_COMING, on_their_way
        if spoiled := self._spoiled(pods):
            return Why.GANGS_BEFORE, spoiled
        if self._crowd.admits(pods):
            return None, ()
        if is_assured(pods, self._free):
            return Why.PODS_COMING, on_their_way
        empty = self._free.emptied()
        if is_assured(pods_of(claim.demands, empty.index), empty):
            return Why.SCATTERED, ()
        # Waiting would not help it: it is never sure. Better a risk than a gang that never starts.
        return (None, ()) if may_risk and not on_their_way else (Why.PODS_COMING, on_their_way)

    def _may_ask(self) -> bool:
        """Whether anybody may still be let go in this round, and questions are left."""
        self._questions -= 1
        return self._left > 0 and self._questions > 0

    def _spoiled(self, pods: Counter[Shape]) -> tuple[str, ...]:
        """Keys of those that keep places, wait longer, and might lose them if these pods come."""
        return tuple(each.key for each in self._kept if not self._stays_whole(each, pods))[:_NAMED]

    def _stays_whole(self, kept: _Kept, pods: Counter[Shape]) -> bool:
        for shape in dict.fromkeys(kept.shapes.values()):
            if not any(each.eligible & shape.eligible for each in pods):
                continue
            if not self._may_ask():
                return False
            own = [seat for seat in kept.seats if kept.shapes[seat.pod_set] == shape]
            given_back = self._later.after(seat._replace(pods=-seat.pods) for seat in own)
            if not keeps_room(shape, sum(seat.pods for seat in own), given_back, pods):
                return False
        return True

    def _in_the_way(self, pods: Counter[Shape]) -> tuple[str, ...]:
        found = (each.key for each in self._kept if _meet(each.shapes.values(), pods))
        return tuple(found)[:_NAMED]

    def _on_their_way(self, pods: Counter[Shape]) -> tuple[str, ...]:
        return tuple(key for key, coming in self._coming.items() if _meet(coming, pods))[:_NAMED]

    def _place_later(self, claim: Claim) -> Placement | None:
        """Where it fits once pods have ended; nothing new where none end."""
        if not self._ends or any(upper_bound(each, self._later) < each.count for each in claim.demands):
            return None
        found = place(claim.demands, self._later) if fits(claim.demands, self._later) else None
        return found if isinstance(found, Placement) else None

    def _keep(self, claim: Claim, seats: tuple[Seat, ...]) -> None:
        index = self._free.index
        shapes = {each.pod_set: index.shape(each.requests, each.nodes) for each in claim.demands}
        self._keep_from(seats)
        self._kept.append(_Kept(claim.key, seats, shapes))

    def _lacking(self, claim: Claim, found: Misfit | Unproven) -> Lacks:
        if not (claim.may_ask or claim.awaits_nodes):
            return Lacks(because=found)
        seats = most_seats(claim.demands, self._later)
        if claim.awaits_nodes:
            self._keep(claim, seats)
        seated = Counter[str]()
        for seat in seats:
            seated[seat.pod_set] += seat.pods
        missing = {each.pod_set: each.count - seated[each.pod_set] for each in claim.demands}
        return Lacks(because=found, missing={name: count for name, count in missing.items() if count})


def _meet(one: Iterable[Shape], other: Iterable[Shape]) -> bool:
    """Whether any pods of both may go to the same node."""
    return bool(union(each.eligible for each in one) & union(each.eligible for each in other))


def most_seats(demands: Sequence[Demand], capacity: Capacity) -> tuple[Seat, ...]:
    """Places for all pods, or for as many as find some one after the other."""
    if fits(demands, capacity):
        found = place(demands, capacity)
        if isinstance(found, Placement):
            return found.seats
    seats: list[Seat] = []
    marked: dict[str, set[str]] = {}
    for demand in demands:
        closed = demand.nodes.closed.union(*(marked.get(mark, ()) for mark in demand.nodes.apart))
        of_pod_set = _one_by_one(beside(demand, closed), capacity)
        for mark in demand.nodes.apart:
            marked.setdefault(mark, set()).update(seat.node for seat in of_pod_set)
        seats += of_pod_set
        capacity = capacity.after(of_pod_set)
    return tuple(seats)


def _one_by_one(demand: Demand, capacity: Capacity) -> list[Seat]:
    """Places for as many of its pods as have one."""
    seats: list[Seat] = []
    left = demand.count
    for node, room in capacity.rooms(capacity.index.shape(demand.requests, demand.nodes)) if left else ():
        seats.append(Seat(demand.pod_set, capacity.index.nodes[node].name, min(room, left), demand.requests))
        left -= seats[-1].pods
        if not left:
            break
    return seats


# ----------------------------------------------------------------------------------------------------------------- pins


def _ways(found: Placement, label: str, capacity: Capacity) -> list[Mapping[str, Pin]]:
    """How PodSets may be tied: all that can be, or, where others may take just these places from them, none."""
    pins = _pins(found, label, capacity)
    return [pins, {}] if pins else [{}]


def _pins(found: Placement, label: str, capacity: Capacity) -> dict[str, Pin]:
    """For each PodSet whose places all have the same value of the label, that value."""
    values: dict[str, set[str | None]] = {}
    for seat in found.seats if label else ():
        node = capacity.index.nodes[capacity.index.position[seat.node]]
        values.setdefault(seat.pod_set, set()).add(node.labels.get(label))
    return {
        pod_set: Pin(label, value)
        for pod_set, found_values in values.items()
        if len(found_values) == 1 and (value := next(iter(found_values)))
    }


def _pinned(demands: Sequence[Demand], pins: Mapping[str, Pin]) -> tuple[Demand, ...]:
    return tuple(_tied(each, pins[each.pod_set]) if each.pod_set in pins else each for each in demands)


def _tied(demand: Demand, pin: Pin) -> Demand:
    nodes = demand.nodes
    return replace(demand, nodes=replace(nodes, labels={**nodes.labels, pin.label: pin.value}))
