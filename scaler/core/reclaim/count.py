"""Could a gang fit by the sums alone? The quick count that narrows the search for victims.

What Kueue really does depends on who else waits, on preemption and on the order of flavors. But whatever it does, a
Workload is only admitted without preemption into quota that is there. So where this count says no, nothing else needs
to be asked; where it says yes, the cycles are simulated.

Worked example: two PodSets, 1 × 2 GPUs and 3 × 2 GPUs; flavors a (4 available) and b (4 available). 2 in a, then 6 in
neither; 2 in b, then 6 in neither: no. With 6 in b: 2 in a and 6 in b.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scaler.core.quota.amounts import FlavorResource, Usage, as_text
from scaler.core.quota.demands import Market
from scaler.core.quota.model import Workload
from scaler.core.quota.tree import QueueNode, Tree

_Amounts = tuple[tuple[FlavorResource, int], ...]


@dataclass(frozen=True, kw_only=True)
class Count:
    """What one gang needs of its queue, flavor by flavor: one entry per PodSet and resource group."""

    queue: str
    needs: tuple[tuple[_Amounts, ...], ...]
    """For every PodSet and group, the amounts in each flavor that its pods may use."""
    is_possible: bool
    """False where a PodSet may use no flavor at all, or needs what the queue has no quota for."""
    total: Mapping[str, int]
    """Of all PodSets together, by resource."""

    @classmethod
    def of(cls, gang: Workload, queue: QueueNode, market: Market) -> "Count":
        """The count of a gang in its queue. With partial admission, of the fewest pods that it starts with."""
        fewest = [replace(each, count=each.min_count or each.count) for each in gang.pod_sets]
        demand = market.demand(fewest, queue.spec)
        steps = [step for each in demand.pod_sets for step in each.steps]
        needs = tuple(tuple(o.amounts for o in step.options if not o.refusal) for step in steps)
        total: dict[str, int] = {}
        for options in (step.options for step in steps if step.options):
            for key, amount in options[0].amounts:
                total[key.resource] = total.get(key.resource, 0) + amount
        possible = all(needs) and not any(step.undeclared for step in steps)
        return cls(queue=queue.name, needs=needs, is_possible=possible, total=total)

    @property
    def keys(self) -> frozenset[FlavorResource]:
        """Every flavor resource that it might take."""
        return frozenset(key for options in self.needs for amounts in options for key, _ in amounts)

    def fits(self, tree: Tree) -> bool:
        """Whether the tree has room for it now."""
        queue = tree.queues[self.queue]
        return self.is_possible and self._fits(0, {key: queue.available(key) for key in self.keys})

    def could_ever_fit(self, tree: Tree) -> bool:
        """Whether it would fit if nothing at all were used."""
        queue = tree.queues[self.queue]
        return self.is_possible and self._fits(0, {key: queue.potential(key) for key in self.keys})

    def _fits(self, place: int, left: dict[FlavorResource, int]) -> bool:
        if place == len(self.needs):
            return True
        for amounts in self.needs[place]:
            if any(left[key] < amount for key, amount in amounts):
                continue
            for key, amount in amounts:
                left[key] -= amount
            if self._fits(place + 1, left):
                return True
            for key, amount in amounts:
                left[key] += amount
        return False

    def missing(self, tree: Tree) -> dict[str, int]:
        """What would have to be freed at least, by resource: what it needs beyond all that its flavors have."""
        queue = tree.queues[self.queue]
        available: dict[str, int] = {}
        for key in self.keys:
            available[key.resource] = available.get(key.resource, 0) + queue.available(key)
        return {r: lack for r, amount in self.total.items() if (lack := amount - available.get(r, 0)) > 0}

    def gain(self, workload: Workload, tree: Tree, resource: str) -> int:
        """The most that its end can add to what the gang's queue has of a resource.

        Quota that lending limits keep in another queue is not seen here, however much of it is freed.
        """
        return sum(
            min([amount, *_passed_on(workload, tree, key, self.queue)])
            for key, amount in workload.held.usage.items()
            if key.resource == resource and key in self.keys
        )


def _passed_on(workload: Workload, tree: Tree, key: FlavorResource, queue: str) -> list[int]:
    """How much of the holder's usage counts above it, node by node, up to where the gang's queue begins to see it."""
    holder = tree.queues[workload.held.cluster_queue]
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
