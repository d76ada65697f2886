"""Which gang gets which of the free nodes? So that no two gangs are released onto the same GPUs, and none starves.

A gang whose quota is reserved needs nodes. Those that were released keep their nodes until all of their pods are
scheduled: Kueue creates the pods seconds later, and until then nothing else shows that the nodes are taken. What is
left goes to those that wait, in the order in which their quota was reserved.

Laws:

* No GPU is reserved twice. A gang gets nodes for all of its pods, or for none.
* A gang that gets nodes fits wherever the scheduler puts its pods, and those of others that are not scheduled yet
  (`worst_case`), or is pinned. One that can never be sure of that takes the risk when no other pods are coming, and
  unpinned: what is pinned to one place has no other when other pods have taken it. A gang that was released keeps
  what it is sure of, now or once pods have terminated.
* A gang that fits once the terminating pods have ended is not delayed by a later one. Later ones may use what it does
  not need (conservative backfilling).
* Pods that are not scheduled yet are counted, where that is possible, on nodes that the first in line does not need:
  else it would lack nodes, keep none, and a later gang would get those that it fits.
* A pod that is stuck in termination is not waited for: it may never end.
* A gang for which a ProvisioningRequest has booked capacity comes before those that have only waited longer: it is its
  booking. One for which nodes are being provisioned keeps what it has found of the rest, until they are late.
* The order in which gangs are listed changes nothing.

| fits now                                     | once pods have ended | result                     | keeps nodes   |
|----------------------------------------------|----------------------|----------------------------|---------------|
| for sure, and delays none before it          | –                    | Fits                       | yes, reserved |
| for sure, but delays one before it           | –                    | ReservedForEarlierWorkload | yes           |
| not for sure while pods of others are coming | –                    | PodsComing                 | yes           |
| not for sure, even alone                     | –                    | PlacementNotGuaranteed     | no            |
| no                                           | fits                 | PodsEnding                 | yes           |
| no                                           | does not fit         | Insufficient               | if nodes come |

PlacementNotGuaranteed is a gang whose pods all fit in only one arrangement: it waits for more free capacity and keeps
no nodes, so that these are used meanwhile. One that could not be sure of its nodes in an empty cluster either is
released as soon as it fits.

Worked example: 8 free GPUs on node a, and 8 on b whose pods are terminating. X (16 GPUs, first) and Y (8) wait. X fits
once b is free, and keeps a and b; Y is not released although it fits a now, or X would wait for Y's end. If X needed a
node of 16, which there is not, it would lack nodes, keep nothing, and Y would start.

The tempting alternative, to release every gang that fits, starves every large gang for as long as small ones keep
coming.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from scaler.placement.capacity import Capacity, PodPlacement
from scaler.placement.fit import Placement, fits, missing_pods, place, place_as_many, upper_bound
from scaler.placement.node_index import NodeDemand, PodNeeds, PodShape, pod_counts, union
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
from scaler.placement.shortage import Misfit
from scaler.placement.worst_case import WorstCasePlacement, fits_in_any_order, leaves_room

MAX_RELEASES = 100
"""Gangs that are released in one round. Each takes two calls to the API, and the next round follows at once."""
_QUESTIONS = 400
"""How often it is asked in one round whether one gang may take another's nodes: some 0.4 s. After that no gang is
released."""
_NAMED = 4
"""Gangs that a result names, of all that are waited for."""


def place_in_order(queue: ReservationQueue, *, most: int = MAX_RELEASES) -> dict[str, PlacementResult]:
    """The placements by key.

    Pods from before an eviction only delay gangs: nodes are not requested because of them. What may be theirs is left
    to the gang itself, where nothing else is uncertain.
    """
    found = _placed_in_order(queue, most)
    if not queue.evicted:
        return found
    sure = _placed_in_order(replace(queue, held=queue.held + queue.evicted), most)
    released = {key for key, each in sure.items() if isinstance(each, Fits)}
    evicted = tuple(each.key for each in queue.evicted)
    if not released and len(evicted) == 1:
        released, sure = set(evicted), found
    return {key: sure[key] if key in released else _delayed(each, evicted) for key, each in found.items()}


def _delayed(result: PlacementResult, others: tuple[str, ...]) -> PlacementResult:
    """The result of a gang that is not released while pods of these may be scheduled."""
    if not isinstance(result, Fits):
        return result
    return Blocked(why=BlockedReason.PODS_COMING, placements=result.placements, others=others)


def _placed_in_order(queue: ReservationQueue, most: int) -> dict[str, PlacementResult]:
    reservations = NodeReservations.of(queue, most)
    return {each.key: reservations.place(each) for each in queue.in_order}


# ------------------------------------------------------------------------------------------------------------ one round


@dataclass(frozen=True, slots=True)
class _Kept:
    key: str
    placements: tuple[PodPlacement, ...]
    shapes: Mapping[str, PodShape]
    """The shapes by PodSet."""


class NodeReservations:
    """What is free while gangs are placed one after the other: first `reserve`, then `place`, each in their order."""

    @classmethod
    def of(cls, queue: ReservationQueue, most: int = MAX_RELEASES) -> "NodeReservations":
        """The reservations of the queue, with the nodes of those that were released."""
        reservations = cls(queue.capacity, queue.overdue, most)
        held = sorted(queue.held, key=lambda request: request.turn)
        first = queue.in_order[0] if queue.waiting else None
        now = _placed_beside(first, held, reservations._now)
        later = _placed_beside(first, held, reservations._later) if reservations._ends else now
        for each, placements_now, placements_later in zip(held, now, later, strict=True):
            reservations._reserve(each, placements_now, placements_later)
        return reservations

    def __init__(self, capacity: Capacity, overdue: Sequence[PodPlacement], most: int) -> None:
        self._free = capacity
        """Now, whatever was reserved."""
        self._ends = bool(capacity.allocations.ending)
        self._ended = capacity.once_ended().after(overdue) if self._ends else capacity
        """What is free once pods have terminated, whatever was reserved."""
        self._now, self._later = self._free, self._ended
        """What is free without what was reserved; later also without what waiting gangs keep."""
        self._spare = self._now
        """The lesser of now and later on every node: what may be reserved."""
        self._coming: dict[str, Counter[PodShape]] = {}
        """Pods of released gangs that are not scheduled yet, by gang."""
        self._worst_cases = [
            WorstCasePlacement(each) for each in ((capacity, self._ended) if self._ends else (capacity,))
        ]
        """All of these pods, now and once pods have terminated: one that lacks its node only for now keeps it, too."""
        self._kept: list[_Kept] = []
        self._left = most
        self._questions = _QUESTIONS

    @property
    def is_spent(self) -> bool:
        """Whether the round is over: a gang that fits now waits for the next one, with an outcome that is not known."""
        return self._left <= 0 or self._questions <= 0

    # ------------------------------------------------------------------------------------------- what would be free

    @property
    def left(self) -> Capacity:
        return self._later

    def once_gone(self, workloads: Collection[str]) -> "NodeReservations":
        """The round anew for those that wait, with no pod left of these workloads, and no terminating one.

        What was reserved is reserved. Nothing is kept yet.
        """
        found = NodeReservations(self._ended.without(workloads), (), MAX_RELEASES)
        found._ends = False
        given_back = (each._replace(pods=-each.pods) for kept in self._kept for each in kept.placements)
        found._now = found._later = found._spare = self._later.without(workloads).after(given_back)
        for key, pods in self._coming.items():
            found._add_coming(key, pods)
        return found

    # ----------------------------------------------------------------------------------------------- released gangs

    def _reserve(self, request: PlacementRequest, now: Sequence[PodPlacement], later: Sequence[PodPlacement]) -> None:
        """Count these nodes of a released gang as taken."""
        self._now, self._spare = self._now.after(now), self._spare.after(now)
        self._keep_from(later)
        # A pod that fits on no node, now or soon, takes no room from others.
        pods = pod_counts(request.demands, self._free.index)
        self._add_coming(request.key, Counter({each: n for each, n in pods.items() if any(self._ended.slots(each))}))

    def _add_coming(self, key: str, pods: Counter[PodShape]) -> None:
        if pods:
            self._coming[key] = pods
            for each in self._worst_cases:
                each.add(pods)

    def _keep_from(self, placements: Sequence[PodPlacement]) -> None:
        """Take nodes from what will be free, and from what may be reserved as far as they are free already."""
        self._later = self._later.after(placements)
        short: dict[PodNeeds, list[tuple[int, int]]] = {}
        for node in {self._free.index.position[each.node] for each in placements}:
            have, leave = self._spare.free[node], self._later.free[node]
            needs = tuple((each, have[each] - leave[each]) for each in range(len(have)) if have[each] > leave[each])
            if needs:
                short.setdefault(needs, []).append((node, 1))
        for needs, nodes in short.items():
            self._spare = self._spare.filled(PodShape(eligible=0, needs=needs), nodes)

    # ------------------------------------------------------------------------------------------------- waiting gangs

    def place(self, request: PlacementRequest) -> PlacementResult:
        found = place(request.demands, self._spare)
        if isinstance(found, Placement):
            return self._place_now(request, found)
        later = self._place_later(request)
        if later is None:
            return self._insufficient(request, found)
        is_there = fits(request.demands, self._now)
        others = self._kept_for(pod_counts(request.demands, self._free.index)) if is_there else ()
        self._keep(request, later.placements)
        return Blocked(
            why=BlockedReason.RESERVED_FOR_EARLIER if is_there else BlockedReason.PODS_ENDING,
            placements=later.placements,
            others=others,
        )

    def _place_now(self, request: PlacementRequest, found: Placement) -> PlacementResult:
        """It fits what may be reserved. Is that certain, and do those before it keep their nodes for certain?"""
        if request.waits_for_pods:
            self._keep(request, found.placements)
            return Blocked(why=BlockedReason.PODS_ENDING, placements=found.placements)
        reason: BlockedReason = BlockedReason.NOT_GUARANTEED
        others: tuple[str, ...] = ()
        for pins in _pinnings(found, request.pin_label, self._free):
            pinned = [_pinned(each, pins.get(each.pod_set)) for each in request.demands]
            pods = pod_counts(pinned, self._free.index)
            why, others = self._why_blocked(request, pods, may_risk=not pins)
            if why is None:
                return self._reserve_for(request, found, pins, pods)
            reason = why
        if reason is not BlockedReason.NOT_GUARANTEED:
            self._keep(request, found.placements)
        return Blocked(why=reason, placements=found.placements, others=others)

    def _reserve_for(
        self, request: PlacementRequest, found: Placement, pins: Mapping[str, NodePin], pods: Counter[PodShape]
    ) -> Fits:
        self._left -= 1
        self._now, self._later = self._now.after(found.placements), self._later.after(found.placements)
        self._spare = self._spare.after(found.placements)
        self._add_coming(request.key, pods)
        return Fits(placements=found.placements, pins=pins)

    def _why_blocked(
        self, request: PlacementRequest, pods: Counter[PodShape], *, may_risk: bool
    ) -> tuple[BlockedReason | None, tuple[str, ...]]:
        """Why it is not released although it fits, and for which gangs; None where it is."""
        coming = self._coming_with(pods)
        if not self._may_ask():
            return BlockedReason.PODS_COMING, coming
        if displaced := self._displaced(pods):
            return BlockedReason.RESERVED_FOR_EARLIER, displaced
        if self._worst_cases[0].admits(pods) and all(each.keeps_certain(pods) for each in self._worst_cases[1:]):
            return None, ()
        if fits_in_any_order(pods, self._free):
            return BlockedReason.PODS_COMING, coming
        empty = self._free.emptied()
        if fits_in_any_order(pod_counts(request.demands, empty.index), empty):
            return BlockedReason.NOT_GUARANTEED, ()
        # Even empty nodes would not make it certain, so waiting does not help: the gang may risk it, or never starts.
        return (None, ()) if may_risk and not coming else (BlockedReason.PODS_COMING, coming)

    def _may_ask(self) -> bool:
        """Whether more gangs may be released in this round, and questions are left."""
        self._questions -= 1
        return self._left > 0 and self._questions > 0

    def _displaced(self, pods: Counter[PodShape]) -> tuple[str, ...]:
        """Keys of those that wait longer and might lose the nodes that they keep if these pods come."""
        return tuple(each.key for each in self._kept if not self._keeps_nodes(each, pods))[:_NAMED]

    def _keeps_nodes(self, kept: _Kept, pods: Counter[PodShape]) -> bool:
        for shape in dict.fromkeys(kept.shapes.values()):
            if not any(each.eligible & shape.eligible for each in pods):
                continue
            if not self._may_ask():
                return False
            own = [each for each in kept.placements if kept.shapes[each.pod_set] == shape]
            given_back = self._later.after(each._replace(pods=-each.pods) for each in own)
            if not leaves_room(shape, sum(each.pods for each in own), given_back, pods):
                return False
        return True

    def _kept_for(self, pods: Counter[PodShape]) -> tuple[str, ...]:
        found = (each.key for each in self._kept if _share_nodes(each.shapes.values(), pods))
        return tuple(found)[:_NAMED]

    def _coming_with(self, pods: Counter[PodShape]) -> tuple[str, ...]:
        return tuple(key for key, coming in self._coming.items() if _share_nodes(coming, pods))[:_NAMED]

    def _place_later(self, request: PlacementRequest) -> Placement | None:
        """The nodes on which it fits once pods have terminated; None where none do."""
        if not self._ends or any(upper_bound(each, self._later) < each.count for each in request.demands):
            return None
        found = place(request.demands, self._later) if fits(request.demands, self._later) else None
        return found if isinstance(found, Placement) else None

    def _keep(self, request: PlacementRequest, placements: tuple[PodPlacement, ...]) -> None:
        index = self._free.index
        shapes = {each.pod_set: index.shape(each.requests, each.nodes) for each in request.demands}
        self._keep_from(placements)
        self._kept.append(_Kept(request.key, placements, shapes))

    def _insufficient(self, request: PlacementRequest, found: Misfit) -> Insufficient:
        if not (request.may_ask or request.awaits_nodes):
            return Insufficient(because=found)
        placements = place_as_many(request.demands, self._later)
        if request.awaits_nodes:
            self._keep(request, placements)
        return Insufficient(because=found, missing=missing_pods(request.demands, placements))


def _share_nodes(one: Iterable[PodShape], other: Iterable[PodShape]) -> bool:
    """Whether any pods of both may go to the same node."""
    return bool(union(each.eligible for each in one) & union(each.eligible for each in other))


def _placed_beside(
    first: PlacementRequest | None, held: Sequence[PlacementRequest], capacity: Capacity
) -> list[tuple[PodPlacement, ...]]:
    """Nodes for as many pods of each released gang as fit and, if there are such, other ones than the first in line
    needs: kube-scheduler may choose these, and then the first one keeps the others."""
    found: list[tuple[PodPlacement, ...]] = []
    left = capacity
    for each in held:
        found.append(place_as_many(each.demands, left))
        left = left.after(found[-1])
    if first is None or not held or fits(first.demands, left):
        return found
    coming = [
        replace(each, pod_set=f"{gang} {each.pod_set}", count=sum(p.pods for p in placed if p.pod_set == each.pod_set))
        for gang, (request, placed) in enumerate(zip(held, found, strict=True))
        for each in request.demands
    ]
    together = (*first.demands, *coming)
    both = place(together, capacity) if fits(together, capacity) else None
    if not isinstance(both, Placement):
        return found
    return [
        tuple(
            each._replace(pod_set=each.pod_set.removeprefix(f"{gang} "))
            for each in both.placements
            if each.pod_set.startswith(f"{gang} ")
        )
        for gang in range(len(held))
    ]


# ----------------------------------------------------------------------------------------------------------------- pins


def _pinnings(found: Placement, label: str, capacity: Capacity) -> list[Mapping[str, NodePin]]:
    """How PodSets may be pinned: all that can be, or, where others may take just these nodes from them, none.

    A PodSet can be where its places all have the same value of the label.
    """
    values: dict[str, set[str | None]] = {}
    for each in found.placements if label else ():
        node = capacity.index.nodes[capacity.index.position[each.node]]
        values.setdefault(each.pod_set, set()).add(node.labels.get(label))
    pins = {name: NodePin(label, value) for name, (value, *others) in values.items() if value and not others}
    return [pins, {}] if pins else [{}]


def _pinned(demand: NodeDemand, pin: NodePin | None) -> NodeDemand:
    labels = {**demand.nodes.labels, pin.label: pin.value} if pin else demand.nodes.labels
    return replace(demand, nodes=replace(demand.nodes, labels=labels))


# ------------------------------------------------------------------------------------ with some workloads gone


class WhatIf:
    """Would the gang of that key fit, were some workloads gone? Asked before any is suspended for it.

    The same gangs are placed in the same order, as they would be if idle workloads had ended.

    * All earlier gangs have been placed before: those that were released keep their nodes, those that fit get theirs,
      and all others that reserved quota earlier take of what gets free whatever lets them start.
    * Pods that are terminating have ended, but for those that are stuck.
    * A gang fits only if its AdmissionCheck would become Ready: whole, and wherever the scheduler puts its pods. Where
      so many are before it that this was not computed, it does not.

    Worked example: nodes a and b of 8 GPUs, idle workloads x on a and y on b, each with 8. P (16, first) and Q (8)
    wait. With x gone Q fits on a. With x and y gone it does not: P fits then, and is before it.
    Raises: KeyError where the gang does not wait.
    """

    def __init__(self, queue: ReservationQueue, key: str) -> None:
        self.queue = queue
        self._reservations = NodeReservations.of(queue)
        self._before: list[PlacementRequest] = []
        """The requests that reserved quota earlier and do not fit, in their order."""
        for each in queue.in_order:
            if each.key == key:
                self.request = each
                return
            if not isinstance(self._reservations.place(each), Fits):
                self._before.append(each)
        raise KeyError(key)

    @property
    def turns(self) -> int:
        return len(self._before) + 1

    @property
    def left(self) -> Capacity:
        return self._reservations.once_gone(()).left

    def result(self, gone: Set[str]) -> PlacementResult:
        """What its AdmissionCheck would find with these workloads gone."""
        reservations = self._once_gone(gone)
        # Its terminating pods and its requests have come to their end in this forecast.
        found = reservations.place(replace(self.request, awaits_nodes=False, waits_for_pods=False, may_ask=False))
        if reservations.is_spent and isinstance(found, Blocked) and found.why is BlockedReason.PODS_COMING:
            others = tuple(each.key for each in self._before)
            return replace(found, why=BlockedReason.RESERVED_FOR_EARLIER, others=others)
        return found

    def placed_first(self, gone: Set[str]) -> frozenset[str]:
        """The requests that reserved quota earlier, do not fit now, and do with these workloads gone. By key."""
        found, placed = self._reservations.once_gone(gone), set()
        for each in self._before:
            if is_placed(found.place(replace(each, awaits_nodes=False, waits_for_pods=False, may_ask=False))):
                placed.add(each.key)
        return frozenset(placed)

    def most(self, gone: Set[str]) -> tuple[PodPlacement, ...]:
        """Nodes for as many of its pods as fit with these workloads gone, as provisioning counts them."""
        return place_as_many(self.request.demands, self._once_gone(gone).left)

    def has_room(self, demands: Iterable[NodeDemand], gone: Set[str]) -> bool:
        """Whether these pods fit together with these workloads gone."""
        return fits(tuple(demands), self._once_gone(gone).left)

    def _once_gone(self, gone: Set[str]) -> NodeReservations:
        found = self._reservations.once_gone(gone)
        for each in self._before:
            may_fit = all(upper_bound(pods, found.left) >= pods.count for pods in each.demands)
            if each.awaits_nodes or (may_fit and fits(each.demands, found.left)):
                found.place(each)
        return found


def is_placed(result: PlacementResult) -> bool:
    """Whether it fits, or does as soon as pods of others have found their nodes."""
    return isinstance(result, Fits) or (isinstance(result, Blocked) and result.why is BlockedReason.PODS_COMING)
