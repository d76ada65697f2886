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
more.

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
    return _is_sure(_room(shape, capacity), count + others.get(shape, 0), others, capacity)


class Crowd:
    """Pods that are on their way to nodes, all at the same time."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._pods: Counter[Shape] = Counter()
        self._rooms: dict[Shape, _Room] = {}
        self._sure: dict[Shape, bool] = {}
        """Of those in it; empty after somebody has joined without being asked."""

    def admits(self, pods: Pods) -> bool:
        """Whether these would be sure of their places among those in it, and the sure ones of theirs among these."""
        together = self._pods + Counter(pods)
        return all(self._has_room(shape, together) for shape in pods) and all(
            self._has_room(shape, together) for shape in self._pods if self._is_sure_now(shape) and shape not in pods
        )

    def join(self, pods: Pods) -> None:
        """These come, too. Asked before, or not to be asked, as they have been let go already."""
        self._sure = self._sure | dict.fromkeys(pods, True) if self._sure else {}
        self._pods.update(pods)

    def _is_sure_now(self, shape: Shape) -> bool:
        if shape not in self._sure:
            self._sure[shape] = self._has_room(shape, self._pods)
        return self._sure[shape]

    def _has_room(self, shape: Shape, pods: Counter[Shape]) -> bool:
        room = self._rooms.get(shape)
        if room is None:
            room = self._rooms[shape] = _room(shape, self._capacity)
        return _is_sure(room, pods[shape], pods, self._capacity)


# ---------------------------------------------------------------------------------------------------------- one shape


@dataclass(frozen=True, slots=True)
class _Room:
    """Where pods of a shape may go."""

    shape: Shape
    rooms: Sequence[tuple[int, int]]
    """Positions of nodes, and how many pods each takes."""
    nodes: NodeSet
    total: int
    largest: int
    costs: dict[int, Counter[int]] = field(default_factory=dict)
    """By resource, how much of it has to be taken to spoil one place, and how many such places there are."""


def _room(shape: Shape, capacity: Capacity) -> _Room:
    rooms = tuple(capacity.rooms(shape)) if shape.eligible else ()
    return _Room(
        shape=shape,
        rooms=rooms,
        nodes=union(1 << node for node, _ in rooms),
        total=sum(room for _, room in rooms),
        largest=max((room for _, room in rooms), default=0),
    )


def _is_sure(room: _Room, count: int, pods: Pods, capacity: Capacity) -> bool:
    """Whether so many pods of its shape have room for sure while all others of these come."""
    spare = room.total - count
    rivals = [(each, number) for each, number in pods.items() if each.eligible & room.nodes and each != room.shape]
    if spare < 0 or not rivals:
        return spare >= 0
    needs = dict(room.shape.needs)
    at_most = sum(number * min(room.largest, _most(rival, needs)) for rival, number in rivals)
    return at_most <= spare or _spoiled(room, rivals, capacity) <= spare


def _most(rival: Shape, needs: Mapping[int, int]) -> int:
    """Most places that one pod of the rival spoils, of pods that need so much of some resources."""
    return max((-(-amount // needs[each]) for each, amount in rival.needs if each in needs), default=0)


def _spoiled(room: _Room, rivals: Sequence[tuple[Shape, int]], capacity: Capacity) -> int:
    """Most places that all rivals together can spoil: by what they take of each resource, and pod by pod."""
    taken: Counter[int] = Counter()
    for rival, number in rivals:
        for resource, amount in rival.needs:
            taken[resource] += number * amount
    by_resource = {
        resource: _affordable(_costs(room, resource, amount, capacity), taken[resource])
        for resource, amount in room.shape.needs
    }
    scarce = {resource: amount for resource, amount in room.shape.needs if by_resource[resource]}
    by_pods = sum(number * min(room.largest, _most(rival, scarce)) for rival, number in rivals)
    return min(by_pods, sum(by_resource.values()))


def _costs(room: _Room, resource: int, amount: int, capacity: Capacity) -> Counter[int]:
    """What each place costs, where a pod needs that amount of the resource.

    Where the first place of a node is dearer than its next ones, all of them are counted with their average.
    """
    costs = room.costs.get(resource)
    if costs is None:
        costs = room.costs[resource] = Counter()
        for node, places in room.rooms:
            first = capacity.free[node][resource] - places * amount + 1
            if first <= amount:
                costs[first] += 1
                costs[amount] += places - 1
            else:
                costs[(first + (places - 1) * amount) // places] += places
    return costs


def _affordable(costs: Counter[int], budget: int) -> int:
    """Most places that can be had for the budget."""
    places = 0
    for cost in sorted(costs):
        bought = min(costs[cost], budget // cost)
        places, budget = places + bought, budget - bought * cost
        if bought < costs[cost]:
            break
    return places
