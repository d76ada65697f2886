"""Could a gang fit by the sums alone? The quick count that narrows the search for victims.

What Kueue really does depends on who else waits, on preemption and on the order of flavors. But whatever it does, a
Workload is only admitted into quota that is there once nobody has to be preempted who may not. So where this count says
no, nothing else needs to be asked; where it says yes, the cycles are simulated.

Some stand before the gang for certain, and what they take has to be there too: in a StrictFIFO queue all who are before
it in line, in a BestEffortFIFO queue those of them that are just like it. Whoever is alike fits where the gang would.

Worked example: two PodSets, 1 × 2 GPUs and 3 × 2 GPUs; flavors a (4 available) and b (4 available). 2 in a, then 6 in
neither; 2 in b, then 6 in neither: no. With 6 in b: 2 in a and 6 in b.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from scaler.core.quota.amounts import FlavorResource, Usage, as_text
from scaler.core.quota.demands import Market
from scaler.core.quota.model import PodSet, Reservation, Strategy, Workload
from scaler.core.quota.tree import QueueNode, Tree

_Amounts = tuple[tuple[FlavorResource, int], ...]

_CHOICES = 8
"""PodSets with a choice of flavors for which every combination is tried; of further ones any would do."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """What one gang needs of its queue, and those who are before it for certain, flavor by flavor."""

    queue: str
    needs: tuple[tuple[_Amounts, ...], ...]
    """One entry per PodSet and resource group: the amounts in each flavor that its pods may use."""
    is_possible: bool
    """False where a PodSet may use no flavor at all, or needs what the queue has no quota for."""

    @classmethod
    def of(cls, gang: Workload, queue: QueueNode, market: Market, ahead: Sequence[Workload] = ()) -> "Count":
        """The count of a gang in its queue. With partial admission, of the fewest pods that it starts with."""
        needs: list[tuple[_Amounts, ...]] = []
        is_possible = True
        for each in (gang, *ahead):
            demand = market.demand(fewest(each), queue.spec, opaque=bool(each.opaque_because))
            steps = [step for pods in demand.pod_sets for step in pods.steps]
            found = [tuple(option.amounts for option in step.options if not option.refusal) for step in steps]
            is_possible = is_possible and all(found) and not any(step.undeclared for step in steps)
            needs += found
        return cls(queue=queue.name, needs=tuple(needs), is_possible=is_possible)

    @property
    def keys(self) -> frozenset[FlavorResource]:
        """Every flavor resource that it might take."""
        return frozenset(key for options in self.needs for amounts in options for key, _ in amounts)

    @property
    def total(self) -> dict[str, int]:
        """Of all PodSets together, by resource."""
        total: dict[str, int] = {}
        for options in self.needs:
            for key, amount in options[0] if options else ():
                total[key.resource] = total.get(key.resource, 0) + amount
        return total

    def fits(self, tree: Tree) -> bool:
        """Whether the tree has room for it now."""
        queue = tree.queues[self.queue]
        return self.is_possible and self._fits({key: queue.available(key) for key in self.keys})

    def could_ever_fit(self, tree: Tree) -> bool:
        """Whether it would fit if nothing at all were used."""
        queue = tree.queues[self.queue]
        return self.is_possible and self._fits({key: queue.potential(key) for key in self.keys})

    def _fits(self, left: dict[FlavorResource, int]) -> bool:
        """First those without a choice, then every combination of the others."""
        for options in self.needs:
            if len(options) == 1:
                for key, amount in options[0]:
                    left[key] -= amount
        if any(amount < 0 for amount in left.values()):
            return False
        return _combines([options for options in self.needs if len(options) > 1][:_CHOICES], left)

    def missing(self, tree: Tree) -> dict[str, int]:
        """What would have to be freed at least, by resource: what it needs beyond all that its flavors have."""
        queue = tree.queues[self.queue]
        available: dict[str, int] = {}
        for key in self.keys:
            available[key.resource] = available.get(key.resource, 0) + queue.available(key)
        return {r: lack for r, amount in self.total.items() if (lack := amount - available.get(r, 0)) > 0}

    def gain(self, held: Reservation, tree: Tree, resource: str) -> int:
        """The most that the end of a reservation can add to what the gang's queue has of a resource.

        Quota that lending limits keep in another queue is not seen here, however much of it is freed.
        """
        return sum(
            min([amount, *_passed_on(held, tree, key, self.queue)])
            for key, amount in held.usage.items()
            if key.resource == resource and key in self.keys
        )


def _combines(places: Sequence[tuple[_Amounts, ...]], left: dict[FlavorResource, int]) -> bool:
    """Whether there is a choice of flavors with which all of them fit."""
    if not places:
        return True
    for amounts in places[0]:
        if all(left[key] >= amount for key, amount in amounts):
            for key, amount in amounts:
                left[key] -= amount
            if _combines(places[1:], left):
                return True
            for key, amount in amounts:
                left[key] += amount
    return False


def fewest(workload: Workload) -> list[PodSet]:
    """Its PodSets with the fewest pods that it may start with."""
    return [replace(each, count=each.count if each.min_count is None else each.min_count) for each in workload.pod_sets]


def certainly_before(
    gang: Workload, before: Sequence[Workload], strategy: Strategy, preempted: Collection[str]
) -> Iterator[Workload]:
    """Those of the ones before the gang in line that will hold quota when it gets in, whatever happens.

    `preempted` are those that Kueue may preempt again meanwhile.
    """
    for each in before:
        if each.key not in preempted and (strategy is Strategy.STRICT_FIFO or _is_like(each, gang)):
            yield each


def _is_like(one: Workload, other: Workload) -> bool:
    """Whether Kueue sees no difference between them but their age."""
    return (
        one.priority == other.priority
        and one.pod_sets == other.pod_sets
        and one.opaque_because == other.opaque_because
        and one.extra_shape == other.extra_shape
    )


def _passed_on(held: Reservation, tree: Tree, key: FlavorResource, queue: str) -> list[int]:
    """How much of the holder's usage counts above it, node by node, up to where the gang's queue begins to see it."""
    holder = tree.queues[held.cluster_queue]
    if holder.name == queue:
        return []
    seen = set(map(id, tree.queues[queue].ancestors()))
    amounts = [holder.stored_above(key)]
    for node in holder.ancestors():
        if id(node) in seen:
            break
        amounts.append(node.stored_above(key))
    return amounts


def usage_text(usage: Usage) -> str:
    """`8 nvidia.com/gpu of a100`, in a stable order."""
    return ", ".join(
        f"{as_text(key.resource, amount)} {key.resource} of {key.flavor}"
        for key, amount in sorted(usage.items())
        if amount
    )
