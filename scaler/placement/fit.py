"""Does a gang fit the nodes' free GPUs, whole?

Laws:

* All or nothing: either every pod of every PodSet has a node, or the answer is no Placement.
* A Placement is a proof: it exceeds no node, and every pod is where its selectors, affinity and tolerations allow.
* A Misfit is a proof, too. It says what is short, with the numbers, and whether empty nodes would not do (`never`).
* Where several PodSets compete for the same nodes the search may run out of steps. That is `Unproven`: greedy packing
  (big pods first, the fullest nodes first) has failed, and so has the search of `packing`. It is no yes.
* Free capacity added never turns a fit into a misfit. The order of nodes, pods and PodSets changes nothing.

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
from scaler.placement.node_index import NodeDemand, NodeIndex, NodeSet, PodShape, members, union
from scaler.placement.packing import Bin, ItemKind, PackingLimitError, Steps, pack
from scaler.placement.shortage import Misfit, Unproven, explain_alone, explain_together

STEPS = 20_000
"""Of search, for one gang: up to 0.1 s. Gangs of one PodSet need none, and those of several hardly ever any."""

_Share = tuple[int, int]
"""Position of a node, and how many pods it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every pod has a node. This is one way of it: the scheduler may find another."""

    placements: tuple[PodPlacement, ...]


def place(demands: Sequence[NodeDemand], capacity: Capacity, *, steps: int = STEPS) -> Placement | Misfit | Unproven:
    """A node for every pod, or why there is none."""
    groups = _grouped(demands, capacity.index)
    found = _packing(groups, capacity, Steps(steps))
    if isinstance(found, _Packing):
        return Placement(placements=found.placements(capacity.index))
    demand, missing = found.group.most, min(found.missing, found.group.most.count)
    if not found.is_proven:
        return Unproven(pod_set=demand.pod_set, count=demand.count, missing=missing, steps=steps)
    never = _never(demands, capacity, steps)
    if found.is_alone:
        return explain_alone(
            demand, found.group.shape, capacity, wanted=found.group.count, missing=missing, never=never
        )
    gang = [(group.shape, group.count) for group in groups]
    return explain_together(demand, gang, capacity, missing=missing, never=never)


def fits(demands: Sequence[NodeDemand], capacity: Capacity, *, steps: int = STEPS) -> bool:
    """Whether it is proven that every pod has a node: `place` without the reasons."""
    return isinstance(_packing(_grouped(demands, capacity.index), capacity, Steps(steps)), _Packing)


def place_as_many(demands: Sequence[NodeDemand], capacity: Capacity) -> tuple[PodPlacement, ...]:
    """Nodes for all pods, or for as many as fit one PodSet after the other."""
    index = capacity.index
    found = _packing(_grouped(demands, index), capacity, Steps(STEPS))
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


def _never(demands: Sequence[NodeDemand], capacity: Capacity, steps: int) -> bool:
    empty = capacity.emptied()
    demands = [replace(each, nodes=replace(each.nodes, closed=frozenset())) for each in demands]
    found = _packing(_grouped(demands, empty.index), empty, Steps(steps))
    return isinstance(found, _Remainder) and found.is_proven


# --------------------------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True, slots=True)
class _Group:
    """PodSets whose pods are interchangeable: the same needs, and the same nodes open to them."""

    shape: PodShape
    demands: tuple[NodeDemand, ...]
    """Those with fewest pods first; they are placed first."""

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
        """By PodSet and node, both in the order of their names."""
        found = (each for group, shares in self.shares for each in group.placements(shares, index))
        return tuple(sorted(found, key=lambda each: (each.pod_set, each.node)))


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Pods of the group have no node."""

    group: _Group
    missing: int
    is_alone: bool = False
    """Whether they would have none even if the group were all there is."""
    is_proven: bool = True


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


def _packing(groups: Sequence[_Group], capacity: Capacity, steps: Steps) -> _Packing | _Remainder:
    shares: list[tuple[_Group, Sequence[_Share]]] = []
    for group in groups:
        taken, missing = _filled(group, capacity)
        if missing:
            return _Remainder(group, missing, is_alone=True)
        shares.append((group, taken))
    if len(groups) < 2:
        return _Packing(shares)
    found = _greedy(groups, capacity)
    return found if isinstance(found, _Packing) else _exact(groups, capacity, steps)


def _filled(group: _Group, capacity: Capacity, closed: NodeSet = 0) -> tuple[list[_Share], int]:
    """Where the group's pods go, the fullest nodes first, and how many are left over. Exact, as they are all alike.

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
    """Where each group's pods go with those before it placed, and how many are left over."""
    marked: dict[str, NodeSet] = {}
    for group in groups:
        taken, missing = _filled(group, capacity, union(marked.get(mark, 0) for mark in group.shape.apart))
        yield group, taken, missing
        capacity = capacity.filled(group.shape, taken)
        for mark in group.shape.apart:
            marked[mark] = marked.get(mark, 0) | union(1 << node for node, _ in taken)


def _exact(groups: Sequence[_Group], capacity: Capacity, steps: Steps) -> _Packing | _Remainder:
    """Every part of the gang that shares no node with the rest, by itself."""
    open_to = {group.shape: union(1 << node for node, _ in capacity.slots(group.shape)) for group in groups}
    shares: list[tuple[_Group, Sequence[_Share]]] = []
    unproven: _Remainder | None = None
    for part in _parts(groups, open_to):
        found = _packed(part, open_to, capacity, steps)
        if isinstance(found, _Packing):
            shares += found.shares
        elif found.is_proven:
            return found
        else:
            unproven = unproven or found
    return unproven or _Packing(shares)


def _parts(groups: Iterable[_Group], open_to: dict[PodShape, NodeSet]) -> list[list[_Group]]:
    """The groups, together where they compete for a node."""
    parts: list[tuple[NodeSet, list[_Group]]] = []
    for group in groups:
        nodes, together = open_to[group.shape], [group]
        for others, competing in [part for part in parts if part[0] & nodes]:
            parts.remove((others, competing))
            nodes, together = nodes | others, [*competing, *together]
        parts.append((nodes, together))
    return [part for _, part in parts]


def _packed(
    part: Sequence[_Group], open_to: dict[PodShape, NodeSet], capacity: Capacity, steps: Steps
) -> _Packing | _Remainder:
    greedy = _greedy(part, capacity)
    if isinstance(greedy, _Packing):
        return greedy
    nodes = list(members(union(open_to[group.shape] for group in part)))
    resources = sorted({resource for group in part for resource, _ in group.shape.needs})
    marks = sorted({mark for group in part for mark in group.shape.apart})
    kinds = [ItemKind(_amounts(group.shape, resources, marks), group.count) for group in part]
    spaces = [
        Bin(
            (*(capacity.free[node][resource] for resource in resources), *(1 for _ in marks)),
            tuple(bool(open_to[group.shape] >> node & 1) for group in part),
        )
        for node in nodes
    ]
    try:
        packed = pack(kinds, spaces, steps)
    except PackingLimitError:
        return _Remainder(greedy.group, greedy.missing, is_proven=False)
    if packed is None:
        return greedy
    return _Packing(
        [
            (group, [(nodes[space], taken[kind]) for space, taken in packed.items() if taken[kind]])
            for kind, group in enumerate(part)
        ]
    )


def _amounts(shape: PodShape, resources: Iterable[int], marks: Iterable[str]) -> tuple[int, ...]:
    needs = dict(shape.needs)
    return (*(needs.get(resource, 0) for resource in resources), *(int(mark in shape.apart) for mark in marks))
