"""Does a gang fit the nodes' free GPUs, whole?

Laws:

* All or nothing: either every pod of every PodSet has a node, or the answer is no Placement.
* A Placement is a proof: it exceeds no node, and every pod is where its selectors, affinity and tolerations allow.
* Of pods that are all alike a Misfit is a proof, too. It says what is short, with the numbers, and whether empty nodes
  would not do (`never`).
* Where PodSets that differ compete for the same nodes, those that are hardest to place go first, on the fullest nodes;
  one that is left over goes first the next time. A gang that fits in none of these ways counts as one that does not:
  kube-scheduler places pod by pod and would hardly find another.
* The order of nodes, pods and PodSets changes nothing.

Counted are the resources that nodes declare, among them `pods`, and marks of which a node takes one pod each (host
ports, pods that keep away from their like). Not counted are volumes, spread constraints and any other affinity between
pods: a gang that uses them may wait for the scheduler although it fits here.

Worked example: two nodes with 4 free GPUs each. One pod of 8: 8 are free in total, but no node has 8, the most on one
node is 4, so it misfits by one pod. Two pods of 4 fit. With both nodes empty (8 each) so does the pod of 8: not
`never`.

The tempting alternative, comparing sums of free GPUs with the demand, lets 8 scattered GPUs pass for a pod of 8.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from scaler.placement.capacity import Capacity, PodPlacement
from scaler.placement.node_index import NodeDemand, NodeIndex, NodeSet, PodShape, union
from scaler.placement.shortage import Misfit, explain_alone, explain_together

_Share = tuple[int, int]
"""Position of a node, and how many pods it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every pod has a node. This is one way of it: the scheduler may find another."""

    placements: tuple[PodPlacement, ...]


def place(demands: Sequence[NodeDemand], capacity: Capacity) -> Placement | Misfit:
    """A node for every pod, or why there is none."""
    groups = _grouped(demands, capacity.index)
    found = _packing(groups, capacity)
    if isinstance(found, _Packing):
        return Placement(placements=found.placements(capacity.index))
    demand, missing = found.group.most, min(found.missing, found.group.most.count)
    never = _never(demands, capacity)
    if found.is_alone:
        return explain_alone(
            demand, found.group.shape, capacity, wanted=found.group.count, missing=missing, never=never
        )
    gang = [(group.shape, group.count) for group in groups]
    return explain_together(demand, gang, capacity, missing=missing, never=never)


def fits(demands: Sequence[NodeDemand], capacity: Capacity) -> bool:
    """Whether every pod has a node: `place` without the reasons."""
    return isinstance(_packing(_grouped(demands, capacity.index), capacity), _Packing)


def place_as_many(demands: Sequence[NodeDemand], capacity: Capacity) -> tuple[PodPlacement, ...]:
    """Nodes for all pods, or for as many as fit one PodSet after the other."""
    index = capacity.index
    found = _packing(_grouped(demands, index), capacity)
    if not isinstance(found, _Packing):
        alone = [_Group(index.shape(each.requests, each.nodes), (each,)) for each in demands if each.count > 0]
        found = _Packing([(group, taken) for group, taken, _ in _one_by_one(alone, capacity)])
    return found.placements(index)


def missing_pods(demands: Iterable[NodeDemand], placements: Iterable[PodPlacement]) -> dict[str, int]:
    placed = Counter[str]()
    for each in placements:
        placed[each.pod_set] += each.pods
    return {each.pod_set: count for each in demands if (count := each.count - placed[each.pod_set]) > 0}


def upper_bound(demand: NodeDemand, capacity: Capacity) -> int:
    """Most of its pods that could have a node, judged by the devices they need and nothing else. Never too few."""
    bound = capacity.bound(capacity.index.shape(demand.requests, demand.nodes))
    return demand.count if bound is None else min(demand.count, bound)


def _never(demands: Sequence[NodeDemand], capacity: Capacity) -> bool:
    """Whether one of the PodSets does not fit on empty nodes."""
    empty = capacity.emptied()
    demands = [replace(each, nodes=replace(each.nodes, closed=frozenset())) for each in demands]
    found = _packing(_grouped(demands, empty.index), empty)
    return isinstance(found, _Remainder) and found.is_alone


# --------------------------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True, slots=True)
class _Group:
    """PodSets whose pods are interchangeable: the same needs, and the same nodes open to them."""

    shape: PodShape
    demands: tuple[NodeDemand, ...]
    """The demands with fewest pods first; they are placed first."""

    @property
    def count(self) -> int:
        return sum(demand.count for demand in self.demands)

    @property
    def most(self) -> NodeDemand:
        """The PodSet that is named when the group does not fit."""
        return self.demands[-1]

    def placements(self, shares: Iterable[_Share], index: NodeIndex) -> Iterator[PodPlacement]:
        """The nodes' shares, dealt out to the PodSets as far as they go."""
        left = iter(sorted(shares))
        node, room = 0, 0
        for demand in self.demands:
            waiting = demand.count
            while waiting:
                if not room:
                    node, room = next(left, (0, 0))
                if not room:
                    return
                taken = min(waiting, room)
                yield PodPlacement(demand.pod_set, index.nodes[node].name, taken, demand.requests)
                waiting, room = waiting - taken, room - taken


@dataclass(frozen=True, slots=True)
class _Packing:
    shares: Sequence[tuple[_Group, Sequence[_Share]]]

    def placements(self, index: NodeIndex) -> tuple[PodPlacement, ...]:
        """The placements by PodSet and node, both in the order of their names."""
        found = (each for group, shares in self.shares for each in group.placements(shares, index))
        return tuple(sorted(found, key=lambda each: (each.pod_set, each.node)))


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Pods of the group have no node."""

    group: _Group
    missing: int
    is_alone: bool = False
    """Whether they would have none even if the group were all there is."""


def _grouped(demands: Iterable[NodeDemand], index: NodeIndex) -> list[_Group]:
    """The groups, those that are hardest to place first."""
    by_shape: dict[PodShape, list[NodeDemand]] = {}
    for demand in demands:
        if demand.count > 0:
            by_shape.setdefault(index.shape(demand.requests, demand.nodes), []).append(demand)
    groups = [
        _Group(shape, tuple(sorted(alike, key=lambda each: (each.count, each.pod_set))))
        for shape, alike in by_shape.items()
    ]
    return sorted(groups, key=lambda group: _ease(group, index)) if len(groups) > 1 else groups


def _ease(group: _Group, index: NodeIndex) -> tuple[object, ...]:
    """Least for pods that take the largest part of a node and have the fewest nodes to choose from."""
    shape = group.shape
    part = max(amount / max(1, index.largest[resource]) for resource, amount in shape.needs)
    return -part, shape.eligible.bit_count(), shape


# --------------------------------------------------------------------------------------------------------------- search


def _packing(groups: Sequence[_Group], capacity: Capacity) -> _Packing | _Remainder:
    shares: list[tuple[_Group, Sequence[_Share]]] = []
    for group in groups:
        taken, missing = _filled(group, capacity)
        if missing:
            return _Remainder(group, missing, is_alone=True)
        shares.append((group, taken))
    if len(groups) < 2:
        return _Packing(shares)
    first = found = _greedy(groups, capacity)
    for _ in groups:
        if isinstance(found, _Packing):
            return found
        failed = found.group
        groups = [failed, *(group for group in groups if group is not failed)]
        found = _greedy(groups, capacity)
    return found if isinstance(found, _Packing) else first


def _filled(group: _Group, capacity: Capacity, closed: NodeSet = 0) -> tuple[list[_Share], int]:
    """The nodes of the group's pods, the fullest first, and how many are left over. Exact, as they are all alike.

    `closed` are nodes that take none of them.
    """
    waiting, taken = group.count, []
    shape = group.shape._replace(eligible=group.shape.eligible & ~closed) if closed else group.shape
    for node, room in capacity.slots(shape):
        taken.append((node, min(room, waiting)))
        waiting -= taken[-1][1]
        if not waiting:
            break
    return taken, waiting


def _greedy(groups: Iterable[_Group], capacity: Capacity) -> _Packing | _Remainder:
    """One group after the other. Its yes is right; its no means little."""
    shares: list[tuple[_Group, Sequence[_Share]]] = []
    for group, taken, missing in _one_by_one(groups, capacity):
        if missing:
            return _Remainder(group, missing)
        shares.append((group, taken))
    return _Packing(shares)


def _one_by_one(groups: Iterable[_Group], capacity: Capacity) -> Iterator[tuple[_Group, list[_Share], int]]:
    """The nodes of each group's pods with those before it placed, and how many are left over."""
    marked: dict[str, NodeSet] = {}
    for group in groups:
        taken, missing = _filled(group, capacity, union(marked.get(mark, 0) for mark in group.shape.apart))
        yield group, taken, missing
        capacity = capacity.filled(group.shape, taken)
        for mark in group.shape.apart:
            marked[mark] = marked.get(mark, 0) | union(1 << node for node, _ in taken)
