"""How many pods of each PodSet fit, counted along while a search removes workloads and restores them.

For a search over victims that asks after every step: a step costs as much as the workload has nodes, and the question
nothing. `could_fit` is necessary for a gang to fit, and of a gang of one PodSet it is sufficient, too.

Laws:

* The counts are those of `capacity.without(the removed workloads)`, in whatever order they were removed and restored.
* Several PodSets are counted each for itself, and all together by the devices that they need.

Worked example: a pod of 8; node a has 4 free and x holds its other 4, y holds 8 of node b. There are 0 slots;
with x removed 1; with y removed too 2; with x restored 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaler.placement.capacity import Capacity, total
from scaler.placement.node_index import NodeDemand, NodeSet, PodNeeds, PodShape, pod_counts


@dataclass(slots=True)
class _Count:
    """One PodSet's, or that of several whose pods are alike."""

    shape: PodShape
    wanted: int
    room: int


@dataclass(slots=True)
class _Sum:
    """One device's, on all nodes where any pod that needs it may run."""

    resource: int
    nodes: NodeSet
    wanted: int
    free: int


class PodSlots:
    """The count. It changes; the capacity that it starts from does not."""

    def __init__(self, demands: Sequence[NodeDemand], capacity: Capacity) -> None:
        self._capacity = capacity
        self._free: dict[int, list[int]] = {}
        self._gone: set[str] = set()
        self._held: dict[str, list[tuple[int, PodNeeds]]] = {}
        self._counts = _counts(demands, capacity)
        self._sums = _sums(self._counts, capacity) if len(self._counts) > 1 else []
        self._open: NodeSet = 0
        for count in self._counts:
            self._open |= count.shape.eligible

    @property
    def could_fit(self) -> bool:
        """Whether the gang could fit. False is a proof that it does not."""
        return all(count.room >= count.wanted for count in self._counts) and all(
            each.free >= each.wanted for each in self._sums
        )

    def room(self, demand: NodeDemand) -> int:
        """Pods like those of the PodSet, which is one of the gang's, that fit, were they the only ones."""
        shape = self._capacity.index.shape(demand.requests, demand.nodes)
        return next(count.room for count in self._counts if count.shape == shape)

    def remove_workload(self, workload: str) -> None:
        """Count as if no pod of the workload were left. Raises: ValueError where it is removed already."""
        if workload in self._gone:
            raise ValueError(f"{workload} is removed already")
        self._gone.add(workload)
        self._change(workload, 1)

    def restore_workload(self, workload: str) -> None:
        """Count as if the workload had never been removed. Raises: KeyError where it is not."""
        self._gone.remove(workload)
        self._change(workload, -1)

    def _holdings(self, workload: str) -> list[tuple[int, PodNeeds]]:
        """What it holds on nodes where the gang may run, node by node."""
        known = self._held.get(workload)
        if known is None:
            known = self._held[workload] = [
                (node, tuple(sorted(amounts.items())))
                for node, amounts in self._capacity.held_by_workload(workload).items()
                if self._open >> node & 1
            ]
        return known

    def _change(self, workload: str, sign: int) -> None:
        for node, amounts in self._holdings(workload):
            free = self._free.get(node)
            if free is None:
                free = self._free[node] = list(self._capacity.free[node])
            self._count_node(node, free, -1)
            for resource, amount in amounts:
                free[resource] += sign * amount
            self._count_node(node, free, 1)

    def _count_node(self, node: int, free: Sequence[int], sign: int) -> None:
        for count in self._counts:
            if count.shape.eligible >> node & 1:
                count.room += sign * count.shape.slots_in(free)
        for each in self._sums:
            if each.nodes >> node & 1:
                each.free += sign * max(0, free[each.resource])


def _counts(demands: Iterable[NodeDemand], capacity: Capacity) -> list[_Count]:
    pods = pod_counts(demands, capacity.index).items()
    return [_Count(shape, count, sum(room for _, room in capacity.slots(shape))) for shape, count in pods]


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
