"""How many pods of each PodSet have room, counted along while a search lets workloads leave and come back.

For a search over victims that asks after every step: a step costs as much as the workload has nodes, and the question
nothing. `is_possible` is necessary for a gang to fit, and of a gang of one PodSet it is sufficient, too.

Laws:

* The counts are those of `capacity.without(the workloads that have left)`, in whatever order they left and came back.
* Several PodSets are counted each for itself, and all together by the devices that they need.

Worked example: a pod of 8; node a has 4 free and x holds its other 4, y holds 8 of node b. There is room for 0 pods;
when x leaves for 1; when y leaves too for 2; when x comes back for 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaler.core.placement.capacity import Capacity, total
from scaler.core.placement.demand import Demand
from scaler.core.placement.index import Needs, NodeSet, Shape


@dataclass(slots=True)
class _Count:
    """One PodSet's, or that of several whose pods are alike."""

    shape: Shape
    wanted: int
    room: int


@dataclass(slots=True)
class _Sum:
    """One device's, on all nodes that are open to any pod that needs it."""

    resource: int
    nodes: NodeSet
    wanted: int
    free: int


class Rooms:
    """The count. It changes; the capacity that it starts from does not."""

    def __init__(self, demands: Sequence[Demand], capacity: Capacity) -> None:
        self._capacity = capacity
        self._free: dict[int, list[int]] = {}
        self._gone: set[str] = set()
        self._held: dict[str, list[tuple[int, Needs]]] = {}
        self._counts = _counts(demands, capacity)
        self._sums = _sums(self._counts, capacity) if len(self._counts) > 1 else []
        self._open: NodeSet = 0
        for count in self._counts:
            self._open |= count.shape.eligible

    @property
    def is_possible(self) -> bool:
        """Whether the gang could fit. False is a proof that it does not."""
        return all(count.room >= count.wanted for count in self._counts) and all(
            each.free >= each.wanted for each in self._sums
        )

    def room(self, demand: Demand) -> int:
        """Pods like those of the PodSet for which there is room, were they the only ones.

        Raises: ValueError for a PodSet that is not of this gang.
        """
        shape = self._capacity.index.shape(demand.requests, demand.nodes)
        for count in self._counts:
            if count.shape == shape:
                return count.room
        raise ValueError(f"PodSet {demand.pod_set} is not among those that are counted")

    def leave(self, workload: str) -> None:
        """Count as if no pod of the workload were left. Raises: ValueError where it has left already."""
        if workload in self._gone:
            raise ValueError(f"{workload} has left already")
        self._gone.add(workload)
        for node, amounts in self._holdings(workload):
            self._change(node, amounts, 1)

    def come_back(self, workload: str) -> None:
        """Count as if the workload had never left. Raises: ValueError where it has not."""
        if workload not in self._gone:
            raise ValueError(f"{workload} has not left")
        self._gone.remove(workload)
        for node, amounts in self._holdings(workload):
            self._change(node, amounts, -1)

    def _holdings(self, workload: str) -> list[tuple[int, Needs]]:
        """What it holds on nodes that are open to the gang, node by node."""
        known = self._held.get(workload)
        if known is None:
            known = self._held[workload] = [
                (node, tuple(sorted(amounts.items())))
                for node, amounts in self._capacity.held_by((workload,)).items()
                if self._open >> node & 1
            ]
        return known

    def _change(self, node: int, amounts: Needs, sign: int) -> None:
        free = self._free.get(node)
        if free is None:
            free = self._free[node] = list(self._capacity.free[node])
        counts = [count for count in self._counts if count.shape.eligible >> node & 1]
        sums = [each for each in self._sums if each.nodes >> node & 1]
        for count in counts:
            count.room -= count.shape.room_in(free)
        for each in sums:
            each.free -= max(0, free[each.resource])
        for resource, amount in amounts:
            free[resource] += sign * amount
        for count in counts:
            count.room += count.shape.room_in(free)
        for each in sums:
            each.free += max(0, free[each.resource])


def _counts(demands: Iterable[Demand], capacity: Capacity) -> list[_Count]:
    wanted: dict[Shape, int] = {}
    for demand in demands:
        if demand.count > 0:
            shape = capacity.index.shape(demand.requests, demand.nodes)
            wanted[shape] = wanted.get(shape, 0) + demand.count
    return [_Count(shape, count, sum(room for _, room in capacity.rooms(shape))) for shape, count in wanted.items()]


def _sums(counts: Iterable[_Count], capacity: Capacity) -> list[_Sum]:
    sums: dict[int, _Sum] = {}
    for count in counts:
        for resource, amount in count.shape.needs:
            if resource in capacity.index.devices:
                each = sums.setdefault(resource, _Sum(resource, 0, 0, 0))
                each.nodes |= count.shape.eligible
                each.wanted += amount * count.wanted
    for each in sums.values():
        each.free = total(capacity.sizes(each.resource, each.nodes))
    return list(sums.values())
