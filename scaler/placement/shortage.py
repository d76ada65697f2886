"""Why does a gang not fit? What is short, with the numbers that show it.

Worked example: one pod of 8 GPUs, two nodes with 4 free each. 8 are free in total, so it is not `NotEnoughFree`;
no node has 8, so it is `Scattered`: needed 8, free 8, largest 4.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scaler.kube.quantity import as_text
from scaler.placement.capacity import Capacity, slots_by, total
from scaler.placement.demand import NodeDemand
from scaler.placement.node_index import Exclusions, NodeSet, PodShape, members, union


class Shortage(StrEnum):
    """What keeps a gang off the nodes."""

    NO_NODE_MATCHES = "NoNodeMatches"
    """No open node has the labels that are selected and only taints that are tolerated."""
    NOT_OFFERED = "ResourceNotOffered"
    """No node declares a resource that is requested."""
    NOT_ENOUGH_FREE = "NotEnoughFree"
    """Less is free in total than all pods of the PodSet request."""
    SCATTERED = "Scattered"
    """Enough is free in total, but too little on each node."""
    NOT_ON_ONE_NODE = "NotOnOneNode"
    """Of each resource enough is free on nodes, but not on the same ones."""
    NOT_APART = "OnePodPerNode"
    """What is free would do, but a node takes one of the pods at most."""
    NOT_TOGETHER = "NotTogether"
    """Every PodSet fits alone; they compete for the same nodes."""


_NONE = Exclusions(closed=0, unlike=0, tainted=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The gang does not fit. The numbers are those of one resource on the nodes where the pods may run."""

    why: Shortage
    pod_set: str
    count: int
    """Pods of the PodSet."""
    missing: int
    """Those of them that have no place; where PodSets compete, after the big pods have taken theirs."""
    resource: str = ""
    """The one that is short; empty where no node matches."""
    needed: int = 0
    """Of one pod; of all pods of the gang where PodSets compete."""
    free: int = 0
    """In total."""
    largest: int = 0
    """On one node."""
    nodes: int = 0
    """Where the pods may run."""
    excluded: Exclusions = _NONE
    """Nodes where they may not."""
    never: bool = False
    """Whether they would not even fit if all nodes were empty, ready and uncordoned."""

    @property
    def message(self) -> str:
        """`PodSet workers: 1 of 1 pods does not fit: 8 nvidia.com/gpu are free in total, but …`"""
        verb = "does" if self.missing == 1 else "do"
        never = "; the gang would not fit on empty nodes either" if self.never else ""
        return f"PodSet {self.pod_set}: {self.missing} of {self.count} pods {verb} not fit: {self._cause()}{never}"

    def _cause(self) -> str:
        needed, free, largest = (
            as_text(self.resource, max(0, each)) for each in (self.needed, self.free, self.largest)
        )
        of_it = self.resource
        scattered = (
            f"no node has {needed} free: the most on one node is {largest}"
            if self.largest < self.needed
            else f"on nodes with room for {self.count - self.missing} pods of {needed}"
        )
        on = f"on {_nodes(self.nodes)} open to them"
        causes = {
            Shortage.NO_NODE_MATCHES: f"no node is available to them: {_described(self.excluded)}",
            Shortage.NOT_OFFERED: f"no node offers {of_it}",
            Shortage.NOT_ENOUGH_FREE: f"each needs {needed} {of_it}, and {free} are free {on}",
            Shortage.SCATTERED: f"{free} {of_it} are free in total, but {scattered}",
            Shortage.NOT_ON_ONE_NODE: f"each needs {needed} {of_it}, which is short on nodes that have the rest",
            Shortage.NOT_APART: f"each needs a node of its own with {needed} {of_it}, {on}",
            Shortage.NOT_TOGETHER: (
                f"all PodSets together need {needed} {of_it} and {free} are free, but no packing fits them all at once"
            ),
        }
        return causes[self.why]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproven:
    """It is not known whether the gang fits: the search ended before all packings were tried."""

    pod_set: str
    count: int
    missing: int
    """Pods of it that greedy packing left over."""
    steps: int
    """After which the search ended."""

    @property
    def message(self) -> str:
        return (
            f"PodSet {self.pod_set}: {self.missing} of {self.count} pods are left over when big pods go first, "
            f"and no better packing was found in {self.steps} steps"
        )


def _described(excluded: Exclusions) -> str:
    causes = {
        "cordoned or not ready": excluded.closed,
        "without the labels that they select": excluded.unlike,
        "with a taint that they do not tolerate": excluded.tainted,
    }
    found = ", ".join(f"{_nodes(count)} {cause}" for cause, count in causes.items() if count)
    return found or "there are no nodes"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


# ------------------------------------------------------------------------------------------------------------- findings


def explain_alone(
    demand: NodeDemand, shape: PodShape, capacity: Capacity, *, wanted: int, missing: int, never: bool
) -> Misfit:
    """Why so many pods of this shape do not fit, were they the only ones; `demand` is the PodSet that lacks some."""
    lack = _lack(shape, capacity, wanted)
    return _misfit(demand, lack, capacity, shape.eligible, missing=missing, never=never)


def explain_together(
    demand: NodeDemand, gang: Sequence[tuple[PodShape, int]], capacity: Capacity, *, missing: int, never: bool
) -> Misfit:
    """Why PodSets that fit one by one do not fit together; `demand` is the one that was left over."""
    nodes = union(shape.eligible for shape, _ in gang)
    return _misfit(demand, _scarcest(gang, capacity, nodes), capacity, nodes, missing=missing, never=never)


def _misfit(
    demand: NodeDemand, lack: "_Lack", capacity: Capacity, nodes: NodeSet, *, missing: int, never: bool
) -> Misfit:
    return Misfit(
        why=lack.why,
        pod_set=demand.pod_set,
        count=demand.count,
        missing=missing,
        resource=lack.resource,
        needed=lack.needed,
        free=lack.free,
        largest=lack.largest,
        nodes=nodes.bit_count(),
        excluded=capacity.index.exclusions(demand.nodes),
        never=never,
    )


@dataclass(frozen=True, slots=True)
class _Lack:
    """One resource's part in a misfit."""

    why: Shortage
    resource: str = ""
    needed: int = 0
    free: int = 0
    largest: int = 0


def _lack(shape: PodShape, capacity: Capacity, count: int) -> _Lack:
    """The first resource of which too little is free on nodes, devices before others."""
    if shape.unknown:
        return _Lack(Shortage.NOT_OFFERED, shape.unknown[0])
    if not shape.eligible:
        return _Lack(Shortage.NO_NODE_MATCHES)
    needs = capacity.index.by_scarcity(shape.needs)
    for resource, amount in needs:
        sizes = capacity.sizes(resource, shape.eligible)
        if slots_by(amount, sizes) < count:
            why = Shortage.NOT_ENOUGH_FREE if total(sizes) < amount * count else Shortage.SCATTERED
            return _lack_of(why, resource, amount, capacity, shape.eligible)
    if shape.apart and sum(room for _, room in capacity.slots(shape._replace(apart=()))) >= count:
        return _lack_of(Shortage.NOT_APART, *needs[0], capacity, shape.eligible)
    return _lack_of(Shortage.NOT_ON_ONE_NODE, *_blocking(shape, needs, capacity), capacity, shape.eligible)


def _blocking(shape: PodShape, needs: Sequence[tuple[int, int]], capacity: Capacity) -> tuple[int, int]:
    """The resource whose lack wastes most room that there is by the first of the needs, and how much a pod needs."""
    wasted = dict.fromkeys(needs, 0)
    for node in members(shape.eligible):
        slots = [max(0, capacity.free[node][resource] // amount) for resource, amount in needs]
        wasted[needs[slots.index(min(slots))]] += slots[0] - min(slots)
    return max(needs, key=lambda need: wasted[need])


def _scarcest(gang: Sequence[tuple[PodShape, int]], capacity: Capacity, nodes: NodeSet) -> _Lack:
    """The resource of which all pods together need the largest part of what is free: a device, if they need one."""
    needed: dict[int, int] = {}
    for shape, count in gang:
        for resource, amount in shape.needs:
            needed[resource] = needed.get(resource, 0) + amount * count
    free = {each: total(capacity.sizes(each, nodes)) for each in _devices_or_all(needed, capacity)}
    scarcest = max(free, key=lambda each: (needed[each] / max(1, free[each]), -each))
    return _lack_of(Shortage.NOT_TOGETHER, scarcest, needed[scarcest], capacity, nodes)


def _lack_of(why: Shortage, resource: int, needed: int, capacity: Capacity, nodes: NodeSet) -> _Lack:
    sizes = capacity.sizes(resource, nodes)
    return _Lack(why, capacity.index.resources[resource], needed, total(sizes), max(sizes))


def _devices_or_all(needed: Iterable[int], capacity: Capacity) -> list[int]:
    needed = list(needed)
    return [resource for resource in needed if resource in capacity.index.devices] or needed
