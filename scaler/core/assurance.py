"""Does a gang fit wherever the scheduler puts it, and whatever else it puts there first?

`placement` proves that there is a way to seat a gang. The scheduler does not know that way: it takes pods one by one,
in an order of its own, and puts each of them on any node that has room. A gang that fits only if every pod goes where
it must may find itself half started, with GPUs that nobody uses.

Laws:

* Yes is a proof: in whatever order all the pods come, and whichever nodes they take, every one of them finds a node.
* No is none. What pods may spoil for others is estimated from above.
* Pods that are alike do not stand in each other's way: a gang of one PodSet that fits, and is alone, is sure to.
* Whoever joins a crowd spoils nothing for those in it who were sure of their places.

How it is found: the room for pods of one shape, less the most of it that all other pods could spoil. One place on a
node is gone when so much of some resource is taken that not even one pod less would leave enough: its slack, and one
more. A shape with one node only, which has enough for everybody who may come there, is not spoiled at all.

Worked example: node a has 4 GPUs free and node b 1; a pod of 4 GPUs and a pod of 1. Both fit, but not for sure: there
is one place for the pod of 4, with no slack, so that the pod of 1 spoils it by going to a. With 5 free on a both are
sure: the slack of 1 has to be taken, and one more, and the pod of 1 takes no more than 1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaler.core.placement import Capacity, Demand, NodeIndex
from scaler.core.placement.index import NodeSet, Shape, union

Pods = Mapping[Shape, int]
"""How many there are of which shape."""
_COUNTS = 1_500
"""Answers of one crowd that have to be counted node by node, or resource by resource: some 0.2 s."""


def pods_of(demands: Iterable[Demand], index: NodeIndex) -> Counter[Shape]:
    """The demands' pods by shape."""
    pods: Counter[Shape] = Counter()
    for demand in demands:
        if demand.count > 0:
            pods[index.shape(demand.requests, demand.nodes)] += demand.count
    return pods


def is_assured(pods: Pods, capacity: Capacity) -> bool:
    """Whether each of these pods finds a node for sure, were they the only ones that come."""
    return Crowd(capacity).admits(pods)


def keeps_room(shape: Shape, count: int, capacity: Capacity, others: Pods) -> bool:
    """Whether room for so many pods of the shape is left for sure when those others have come."""
    pods = Counter(others)
    pods[shape] += count
    return Crowd(capacity).has_room_for(shape, pods)


class Crowd:
    """Pods that are on their way to nodes, all at the same time.

    It is asked hundreds of times about hundreds of shapes. What one pod can spoil for another is remembered, and most
    answers follow from the sum of that, without a look at nodes. The others are counted; when there were too many of
    them the answer is no.
    """

    def __init__(self, capacity: Capacity, *, counts: int = _COUNTS) -> None:
        self._capacity = capacity
        self._counts = counts
        self._numbers: dict[Shape, int] = {}
        self._shapes: list[Shape] = []
        self._rooms: dict[int, _Room] = {}
        self._harms: dict[tuple[int, int], int] = {}
        self._coming: Counter[int] = Counter()
        """Pods by the number of their shape."""
        self._loss: Counter[int] = Counter()
        """By number of a shape that comes, the most places that all others can spoil, pod by pod."""
        self._sure: dict[int, bool] = {}
        """Of those in it, as far as it was asked since they joined."""

    def admits(self, pods: Pods) -> bool:
        """Whether these would be sure of their places among those in it, and the sure ones of theirs among these."""
        new = self._numbered(pods)
        return all(self._holds(shape, new) for shape in new) and all(
            self._holds(shape, new) for shape in self._coming if shape not in new and self._is_sure_now(shape)
        )

    def join(self, pods: Pods) -> None:
        """These come, too, sure of their places or not."""
        new = self._numbered(pods)
        for shape in self._coming:
            self._loss[shape] += self._spoiled_by(new, shape)
        for shape in new.keys() - self._coming.keys():
            self._loss[shape] = self._spoiled_by(self._coming, shape) + self._spoiled_by(new, shape)
        self._sure = {shape: is_sure for shape, is_sure in self._sure.items() if shape not in new}
        self._coming.update(new)

    def has_room_for(self, shape: Shape, pods: Pods) -> bool:
        """Whether all of these that are of the shape have room for sure, were these the only ones."""
        return self._holds(self._number(shape), self._numbered(pods))

    # -------------------------------------------------------------------------------------------------------- by number

    def _numbered(self, pods: Pods) -> dict[int, int]:
        return {self._number(shape): count for shape, count in pods.items() if count}

    def _number(self, shape: Shape) -> int:
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self._shapes)
            self._shapes.append(shape)
        return number

    def _is_sure_now(self, shape: int) -> bool:
        if shape not in self._sure:
            self._sure[shape] = self._holds(shape, {})
        return self._sure[shape]

    def _holds(self, shape: int, new: Mapping[int, int]) -> bool:
        """Whether the pods of the shape, those in it and new ones, have room for sure when all of them come."""
        room = self._room(shape)
        spare = room.total - self._coming[shape] - new.get(shape, 0)
        if spare < 0:
            return False
        known = self._loss[shape] if shape in self._coming else self._spoiled_by(self._coming, shape)
        if known + self._spoiled_by(new, shape) <= spare:
            return True
        self._counts -= 1
        return self._counts > 0 and (self._all_fit(shape, room, new) or self._counted(shape, room, new) <= spare)

    def _room(self, shape: int) -> "_Room":
        room = self._rooms.get(shape)
        if room is None:
            room = self._rooms[shape] = _room(self._shapes[shape], self._capacity)
        return room

    def _spoiled_by(self, pods: Mapping[int, int], shape: int) -> int:
        """Most places for the shape that these spoil, each pod for itself."""
        harms, spoiled = self._harms, 0
        for rival, number in pods.items():
            harm = harms.get((rival, shape))
            if harm is None:
                harm = harms[rival, shape] = self._harm(rival, shape)
            spoiled += number * harm
        return spoiled

    def _harm(self, rival: int, shape: int) -> int:
        """Most places for the shape that one pod of the rival spoils. Those that are alike spoil nothing."""
        room = self._room(shape)
        if rival == shape or not self._shapes[rival].eligible & room.nodes:
            return 0
        return min(room.largest, _most(self._shapes[rival], room.needs))

    def _all_fit(self, shape: int, room: "_Room", new: Mapping[int, int]) -> bool:
        """Whether the one node that the shape may go to has enough for its pods and all that may come there, too."""
        if len(room.rooms) != 1 or room.apart:
            return False
        [(node, _)] = room.rooms
        pods = self._coming + Counter(new)
        taken = _sum_of(
            (self._shapes[each], n) for each, n in pods.items() if each == shape or self._harms.get((each, shape))
        )
        return all(taken[resource] <= self._capacity.free[node][resource] for resource in room.needs)

    def _counted(self, shape: int, room: "_Room", new: Mapping[int, int]) -> int:
        """Most places that all rivals together can spoil: by what they take of each resource, and pod by pod."""
        pods = self._coming + Counter(new)
        rivals = [(self._shapes[each], count) for each, count in pods.items() if self._harms.get((each, shape))]
        taken = _sum_of(rivals)
        by_resource = {
            resource: _affordable(room.costs(resource, self._capacity), taken[resource]) for resource in room.needs
        }
        scarce = {resource: amount for resource, amount in room.needs.items() if by_resource[resource]}
        by_pods = sum(number * min(room.largest, _most(rival, scarce)) for rival, number in rivals)
        # One that must not share its node spoils a place by being there, however much is free.
        marked = sum(number for rival, number in rivals if not room.apart.isdisjoint(rival.apart))
        return min(by_pods, sum(by_resource.values())) + marked


# ---------------------------------------------------------------------------------------------------------- one shape


@dataclass(frozen=True, slots=True)
class _Room:
    """Where pods of a shape may go."""

    needs: Mapping[int, int]
    rooms: Sequence[tuple[int, int]]
    """Positions of nodes, and how many pods each takes."""
    nodes: NodeSet
    total: int
    largest: int
    apart: frozenset[str] = frozenset()
    """Marks of which a node takes one pod each."""
    _costs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def costs(self, resource: int, capacity: Capacity) -> list[tuple[int, int]]:
        """How much of the resource has to be taken to spoil one place, and how many such places there are, cheap first.

        Where the first place of a node is dearer than its next ones, all of them are counted with their average.
        """
        known = self._costs.get(resource)
        if known is None:
            known = self._costs[resource] = sorted(self._counted(resource, capacity).items())
        return known

    def _counted(self, resource: int, capacity: Capacity) -> Counter[int]:
        costs: Counter[int] = Counter()
        amount = self.needs[resource]
        for node, places in self.rooms:
            first = capacity.free[node][resource] - places * amount + 1
            if first <= amount:
                costs[first] += 1
                costs[amount] += places - 1
            else:
                costs[(first + (places - 1) * amount) // places] += places
        return costs


def _room(shape: Shape, capacity: Capacity) -> _Room:
    rooms = tuple(capacity.rooms(shape)) if shape.eligible else ()
    return _Room(
        needs=dict(shape.needs),
        rooms=rooms,
        nodes=union(1 << node for node, _ in rooms),
        total=sum(room for _, room in rooms),
        largest=max((room for _, room in rooms), default=0),
        apart=frozenset(shape.apart),
    )


def _sum_of(pods: Iterable[tuple[Shape, int]]) -> Counter[int]:
    """What they need together, by resource."""
    needed: Counter[int] = Counter()
    for shape, number in pods:
        for resource, amount in shape.needs:
            needed[resource] += number * amount
    return needed


def _most(rival: Shape, needs: Mapping[int, int]) -> int:
    """Most places that one pod of the rival spoils, of pods that need so much of some resources."""
    most = 0
    for resource, amount in rival.needs:
        needed = needs.get(resource)
        if needed is not None and amount > most * needed:
            most = -(-amount // needed)
    return most


def _affordable(costs: Sequence[tuple[int, int]], budget: int) -> int:
    """Most places that can be had for the budget."""
    places = 0
    for cost, number in costs:
        bought = min(number, budget // cost)
        places, budget = places + bought, budget - bought * cost
        if bought < number:
            break
    return places
