"""Why does a gang not fit? What is short, with the numbers that show it.

Worked example: one pod of 8 GPUs, two nodes with 4 free each. 8 are free in total, so it is not `NotEnoughFree`;
no node has 8, so it is `Scattered`: needed 8, free 8, largest 4.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from scaler.kube.objects.quantity import as_text
from scaler.placement.capacity import Capacity, slots_by, total
from scaler.placement.node_index import Exclusions, NodeDemand, NodeSet, PodShape, members, union


class Shortage(StrEnum):
    NO_NODE_MATCHES = "NoNodeMatches"
    """No open node has the labels that are selected and only taints that are tolerated."""
    NOT_OFFERED = "ResourceNotOffered"
    """No node declares a resource that is requested."""
    NOT_ENOUGH_FREE = "NotEnoughFree"
    """Less is free in total than all pods of the PodSet request."""
    SCATTERED = "Scattered"
    """Enough is free in total, but too little on each node."""
    NOT_ON_ONE_NODE = "NotOnOneNode"
    """Enough of each resource is free on nodes, but not on the same ones."""
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
    """The number of them without a place; where PodSets compete, after the big pods have taken theirs."""
    resource: str = ""
    """The one that is short; empty where no node matches."""
    needed: int = 0
    """What one pod needs; what all pods of the gang need where PodSets compete."""
    free: int = 0
    """The amount free in total."""
    largest: int = 0
    """The amount free on one node."""
    nodes: int = 0
    """The nodes on which the pods may run."""
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
                f"all PodSets together need {needed} {of_it} and {free} are free, but they do not fit all at once"
            ),
        }
        return causes[self.why]


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
    why, resource, needed = _lack(shape, capacity, wanted)
    misfit = _misfit(demand, capacity, shape.eligible, why, missing=missing, never=never)
    if why is Shortage.NOT_OFFERED:
        return replace(misfit, resource=shape.unknown[0])
    return (
        misfit if why is Shortage.NO_NODE_MATCHES else _with_numbers(misfit, resource, needed, capacity, shape.eligible)
    )


def explain_together(
    demand: NodeDemand, gang: Sequence[tuple[PodShape, int]], capacity: Capacity, *, missing: int, never: bool
) -> Misfit:
    """Why PodSets that fit one by one do not fit together; `demand` is the one that was left over."""
    nodes = union(shape.eligible for shape, _ in gang)
    misfit = _misfit(demand, capacity, nodes, Shortage.NOT_TOGETHER, missing=missing, never=never)
    return _with_numbers(misfit, *_scarcest(gang, capacity, nodes), capacity, nodes)


def _misfit(
    demand: NodeDemand, capacity: Capacity, nodes: NodeSet, why: Shortage, *, missing: int, never: bool
) -> Misfit:
    return Misfit(
        why=why,
        pod_set=demand.pod_set,
        count=demand.count,
        missing=missing,
        nodes=nodes.bit_count(),
        excluded=capacity.index.exclusions(demand.nodes),
        never=never,
    )


def _with_numbers(misfit: Misfit, resource: int, needed: int, capacity: Capacity, nodes: NodeSet) -> Misfit:
    sizes = capacity.sizes(resource, nodes)
    name = capacity.index.resources[resource]
    return replace(misfit, resource=name, needed=needed, free=total(sizes), largest=max(sizes))


def _lack(shape: PodShape, capacity: Capacity, count: int) -> tuple[Shortage, int, int]:
    """The first resource of which too little is free on nodes, devices before others, and how much a pod needs."""
    if shape.unknown or not shape.eligible:
        return Shortage.NOT_OFFERED if shape.unknown else Shortage.NO_NODE_MATCHES, -1, 0
    needs = capacity.index.by_scarcity(shape.needs)
    for resource, amount in needs:
        sizes = capacity.sizes(resource, shape.eligible)
        if slots_by(amount, sizes) < count:
            why = Shortage.NOT_ENOUGH_FREE if total(sizes) < amount * count else Shortage.SCATTERED
            return why, resource, amount
    if shape.apart and sum(room for _, room in capacity.slots(shape._replace(apart=()))) >= count:
        return Shortage.NOT_APART, *needs[0]
    return Shortage.NOT_ON_ONE_NODE, *_blocking(shape, needs, capacity)


def _blocking(shape: PodShape, needs: Sequence[tuple[int, int]], capacity: Capacity) -> tuple[int, int]:
    """The resource whose lack wastes most room that there is by the first of the needs, and how much a pod needs."""
    wasted = dict.fromkeys(needs, 0)
    for node in members(shape.eligible):
        slots = [max(0, capacity.free[node][resource] // amount) for resource, amount in needs]
        wasted[needs[slots.index(min(slots))]] += slots[0] - min(slots)
    return max(needs, key=lambda need: wasted[need])


def _scarcest(gang: Sequence[tuple[PodShape, int]], capacity: Capacity, nodes: NodeSet) -> tuple[int, int]:
    """The resource of which all pods together need the largest part of what is free: a device, if they need one."""
    needed: Counter[int] = Counter()
    for shape, count in gang:
        for resource, amount in shape.needs:
            needed[resource] += amount * count
    considered = [each for each in needed if each in capacity.index.devices] or list(needed)
    free = {each: total(capacity.sizes(each, nodes)) for each in considered}
    scarcest = max(free, key=lambda each: (needed[each] / max(1, free[each]), -each))
    return scarcest, needed[scarcest]
