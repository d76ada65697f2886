"""What is free on every node now, and what would be, were some workloads gone or some pods placed?

Laws:

* A Capacity never changes; `without`, `once_ended` and `after` return another one, which shares what is the same. Each
  costs what it touches and a copy of one list, so that a planner may ask for hundreds of sets of victims.
* A pod occupies until it is really gone: deleted, or in phase Succeeded or Failed. One that is terminating still holds
  its GPUs, for as long as it takes.
* What is gone is freed once, whichever way it was asked to go: a pod that is terminating and whose workload is a victim
  counts once.
* Amounts may be negative, where a node has lost devices that are still in use: the first ones to be freed only fill
  that gap.

Worked example: node a has 8 GPUs, of which x holds 4 and a terminating pod of y holds 4. Free are 0; without x 4;
once y has ended 4; both 8.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from scaler.idleness.pods import TERMINAL, PodPhase
from scaler.kube.objects.quantity import UNLIMITED, Requests
from scaler.placement.node_index import PODS, NodeIndex, NodeInfo, NodeSet, PodNeeds, PodShape, members, union

Vector = tuple[int, ...]
"""Amounts in the order of the index's resources."""
Levels = Mapping[int, NodeSet]
"""Which nodes have so much of a resource free, devices by their number and all else by its grade."""

_SIZES_KEPT = 64


# ------------------------------------------------------------------------------------------------- what pods hold


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """A pod that is bound to a node."""

    pod: str
    """`namespace/name`."""
    node: str
    requests: Requests
    workload: str = ""
    """Key of its Workload; empty where it has none, so that nothing frees what it holds."""
    phase: PodPhase = PodPhase.RUNNING
    terminating: bool = False

    @property
    def holds_resources(self) -> bool:
        return self.phase not in TERMINAL


@dataclass(slots=True)
class Allocation:
    node: int
    amounts: PodNeeds
    workload: str
    ends: bool


class Removed(NamedTuple):
    workloads: frozenset[str] = frozenset()
    ended: bool = False

    def includes(self, held: Allocation) -> bool:
        return (self.ended and held.ends) or held.workload in self.workloads


NONE_REMOVED = Removed()


@dataclass(frozen=True, slots=True)
class Allocations:
    """The pods that may go. Those without a workload go only when they are terminating."""

    of_workload: Mapping[str, list[Allocation]] = field(default_factory=dict)
    ending: list[Allocation] = field(default_factory=list)

    def leaving(self, workloads: Iterable[str], gone: Removed) -> Iterator[Allocation]:
        held = (each for workload in set(workloads) for each in self.of_workload.get(workload, ()))
        return (each for each in held if not gone.includes(each))

    def exchanged(self, leaving: Sequence[Allocation], coming: Sequence[Allocation]) -> "Allocations":
        """The allocations without some of these very pods and with others. They share what has not changed."""
        left, arrived = {id(held) for held in leaving}, allocations_by_workload(coming)
        of_workload = dict(self.of_workload)
        for workload in {held.workload for held in leaving} | arrived.of_workload.keys():
            staying = [held for held in of_workload.pop(workload, ()) if id(held) not in left]
            if present := staying + arrived.of_workload.get(workload, []):
                of_workload[workload] = present
        ending = [held for held in self.ending if id(held) not in left]
        return Allocations(of_workload, ending + arrived.ending)


def allocations_by_workload(holding: Iterable[Allocation]) -> Allocations:
    of_workload: dict[str, list[Allocation]] = {}
    ending: list[Allocation] = []
    for held in holding:
        if held.workload:
            of_workload.setdefault(held.workload, []).append(held)
        if held.ends:
            ending.append(held)
    return Allocations(of_workload, ending)


def allocations_of(index: NodeIndex, occupants: Iterable[BoundPod]) -> Iterator[Allocation]:
    """What each pod holds. Pods that are over, and pods on nodes that are not there, hold nothing."""
    known: dict[int, tuple[Requests, PodNeeds]] = {}
    for each in occupants:
        node = index.position.get(each.node)
        if node is not None and each.holds_resources:
            requests = each.requests
            found = known.get(id(requests))
            if found is None:
                found = known[id(requests)] = (requests, needs_of(index, requests))
            yield Allocation(node, found[1], each.workload, each.terminating)


def needs_of(index: NodeIndex, requests: Requests) -> PodNeeds:
    """What a pod takes of the resources that nodes declare; one of `pods` in any case."""
    positions = index.resource_position
    needs = [
        (positions[name], amount) for name, amount in requests.items() if amount and name in positions and name != PODS
    ]
    return (*needs, (positions[PODS], 1))


# ------------------------------------------------------------------------------------------------------ what is free


class PodPlacement(NamedTuple):
    pod_set: str
    node: str
    pods: int
    requests: Requests
    """What one pod requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Free amounts per node. Made by `capacity_of`."""

    index: NodeIndex
    free: list[Vector]
    """The free amounts per node. They are not to be written."""
    levels: Mapping[int, Levels]
    """The levels per resource. By them the nodes that may have enough are found without a look at the others."""
    allocations: Allocations
    gone: Removed = NONE_REMOVED
    _held: dict[str, Mapping[int, Mapping[int, int]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """What single workloads hold: a search asks for the same ones again and again."""
    _sizes: dict[tuple[int, NodeSet], Mapping[int, int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Answers that are needed again when one gang after the other does not fit."""

    def without(self, workloads: Iterable[str]) -> "Capacity":
        """The capacity when no pod of these workloads is left."""
        workloads = frozenset(workloads)
        gone = Removed(self.gone.workloads | workloads, self.gone.ended)
        return self._freed(self.allocations.leaving(workloads, self.gone), gone)

    def once_ended(self) -> "Capacity":
        """The capacity when the pods that are terminating now are gone."""
        ending = (held for held in self.allocations.ending if not self.gone.includes(held))
        return self._freed(ending, self.gone._replace(ended=True))

    def after(self, placements: Iterable[PodPlacement]) -> "Capacity":
        """The capacity when these pods run, too. Nothing frees again what they take."""
        index = self.index
        pods = ((index.position[each.node], needs_of(index, each.requests), -each.pods) for each in placements)
        return self._changed(pods, self.gone)

    def filled(self, shape: PodShape, pods: Iterable[tuple[int, int]]) -> "Capacity":
        """The capacity when each node, by its position, runs so many pods of the shape, too."""
        return self._changed(((node, shape.needs, -count) for node, count in pods), self.gone)

    def exchanged(self, leaving: Iterable[Allocation], coming: Iterable[Allocation]) -> "Capacity":
        """The capacity once some of the pods have ended and others have come; nothing may be counted out of it."""
        leaving, coming = tuple(leaving), tuple(coming)
        given = [(held.node, held.amounts, 1) for held in leaving] + [(held.node, held.amounts, -1) for held in coming]
        return replace(self._changed(given, self.gone), allocations=self.allocations.exchanged(leaving, coming))

    def emptied(self) -> "Capacity":
        return _emptied(self.index)

    def _freed(self, leaving: Iterable[Allocation], gone: Removed) -> "Capacity":
        return self._changed(((held.node, held.amounts, 1) for held in leaving), gone)

    def _changed(self, changes: Iterable[tuple[int, PodNeeds, int]], gone: Removed) -> "Capacity":
        vectors: dict[int, list[int]] = {}
        for node, amounts, times in changes:
            vector = vectors.get(node)
            if vector is None:
                vector = vectors[node] = list(self.free[node])
            for resource, amount in amounts:
                vector[resource] += amount * times
        free = self.free.copy()
        for node, vector in vectors.items():
            free[node] = tuple(vector)
        levels = {resource: self._moved(resource, vectors) for resource in self.levels}
        return Capacity(index=self.index, free=free, levels=levels, allocations=self.allocations, gone=gone)

    def _moved(self, resource: int, vectors: Mapping[int, list[int]]) -> Levels:
        level = self.index.level
        moved = [
            (node, old, new)
            for node, vector in vectors.items()
            if vector[resource] != self.free[node][resource]
            and (old := level(resource, self.free[node][resource])) != (new := level(resource, vector[resource]))
        ]
        if not moved:
            return self.levels[resource]
        levels = dict(self.levels[resource])
        for node, old, new in moved:
            levels[old] ^= 1 << node
            levels[new] = levels.get(new, 0) | 1 << node
        return {level: nodes for level, nodes in levels.items() if nodes}

    # ------------------------------------------------------------------------------------------------------- questions

    def gain(self, workload: str) -> Hashable:
        """What each node gains when no pod of it is left. Equal for workloads that can replace another."""
        held = self.held_by_workload(workload)
        return tuple((node, tuple(sorted(amounts.items()))) for node, amounts in sorted(held.items()))

    def held_by_workload(self, workload: str) -> Mapping[int, Mapping[int, int]]:
        """What its pods hold, by positions of nodes and resources."""
        known = self._held.get(workload)
        if known is None:
            held: dict[int, Counter[int]] = {}
            for pod in self.allocations.leaving((workload,), self.gone):
                of_node = held.setdefault(pod.node, Counter())
                for resource, amount in pod.amounts:
                    of_node[resource] += amount
            known = self._held[workload] = held
        return known

    def slots(self, shape: PodShape) -> Iterator[tuple[int, int]]:
        """The nodes that take pods of the shape and how many each: the fullest first, so that empty ones stay so."""
        for nodes in self._promising(shape):
            for node in members(nodes):
                room = shape.slots_in(self.free[node])
                if room:
                    yield node, room

    def _promising(self, shape: PodShape) -> Iterator[NodeSet]:
        """The eligible nodes that by their levels may take a pod, those with the least of what it needs first."""
        (first, least), *others = self.index.by_scarcity(shape.needs)
        nodes = shape.eligible
        for resource, amount in others:
            lowest = self.index.level(resource, amount)
            nodes &= union(found for level, found in self.levels[resource].items() if level >= lowest)
        levels, lowest = self.levels[first], self.index.level(first, least)
        yield from (nodes & levels[level] for level in sorted(level for level in levels if level >= lowest))

    def bound(self, shape: PodShape) -> int | None:
        """Most pods of the shape for which there are devices, in a few steps; None where it needs no device."""
        slots = (
            slots_by(amount, self.sizes(resource, shape.eligible), is_single=bool(shape.apart))
            for resource, amount in shape.needs
            if resource in self.index.devices
        )
        return min(slots, default=None)

    def sizes(self, resource: int, nodes: NodeSet) -> Mapping[int, int]:
        """How many of the nodes have how much of the resource free."""
        if resource in self.index.devices:
            levels = self.levels[resource]
            return {level: count for level, found in levels.items() if (count := (found & nodes).bit_count())}
        known = self._sizes.get((resource, nodes))
        if known is None:
            if len(self._sizes) >= _SIZES_KEPT:
                self._sizes.clear()
            known = self._sizes[resource, nodes] = Counter(self.free[node][resource] for node in members(nodes))
        return known


def capacity_of(nodes: NodeIndex | Iterable[NodeInfo], occupants: Iterable[BoundPod]) -> Capacity:
    index = nodes if isinstance(nodes, NodeIndex) else NodeIndex(nodes)
    return capacity_with(index, list(allocations_of(index, occupants)))


def capacity_with(index: NodeIndex, holding: Collection[Allocation]) -> Capacity:
    """What is left free by pods whose places and amounts are known in the terms of the index."""
    free = [list(index.allocatable(node)) for node in index.nodes]
    for held in holding:
        vector = free[held.node]
        for resource, amount in held.amounts:
            vector[resource] -= amount
    return _capacity(index, [tuple(vector) for vector in free], allocations_by_workload(holding))


@lru_cache(maxsize=2)
def _emptied(index: NodeIndex) -> Capacity:
    best = index.at_its_best
    return _capacity(best, [best.allocatable(node) for node in best.nodes], Allocations())


def _capacity(index: NodeIndex, free: list[Vector], allocations: Allocations) -> Capacity:
    levels = {resource: _levels(index, free, resource) for resource in range(len(index.resources))}
    return Capacity(index=index, free=free, levels=levels, allocations=allocations)


def _levels(index: NodeIndex, free: list[Vector], resource: int) -> Levels:
    levels: dict[int, NodeSet] = {}
    for node, vector in enumerate(free):
        level = index.level(resource, vector[resource])
        levels[level] = levels.get(level, 0) | 1 << node
    return levels


def slots_by(amount: int, sizes: Mapping[int, int], *, is_single: bool = False) -> int:
    """Pods that need this amount for which nodes with so much free (and how many there are of each) have slots.

    `is_single`: each node takes one of them at most.
    """
    most = 1 if is_single else UNLIMITED
    return sum(min(most, free // amount) * nodes for free, nodes in sizes.items() if free > 0)


def total(sizes: Mapping[int, int]) -> int:
    return sum(free * nodes for free, nodes in sizes.items() if free > 0)
