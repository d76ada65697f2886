"""Could a gang fit by the sums alone? The quick count that narrows the search for victims.

What Kueue really does depends on who else waits, on preemption and on the order of flavors. But whatever it does, a
Workload is only admitted into quota that is available without preempting Workloads that must not be. So where this
count says no, nothing else needs to be asked; where it says yes, the cycles are simulated.

Some are certain to be admitted before the gang, and what they take has to be there too: in a StrictFIFO queue all that
are queued before it, in a BestEffortFIFO queue those of them that are just like it: they fit where the gang would.

Worked example: two PodSets, 1 × 2 GPUs and 3 × 2 GPUs; flavors a (4 available) and b (4 available). 2 in a, then 6 in
neither; 2 in b, then 6 in neither: no. With 6 in b: 2 in a and 6 in b.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from scaler.kube.quantity import as_text
from scaler.quota.demands import FlavorOptions
from scaler.quota.model import FlavorResource, QueueingStrategy, QuotaPodSet, QuotaWorkload, Reservation, Usage
from scaler.quota.node import QueueNode
from scaler.quota.tree import Tree

_Amounts = tuple[tuple[FlavorResource, int], ...]

_CHOICES = 8
"""PodSets with a choice of flavors for which every combination is tried; of further ones any would do."""


class Requirement(Protocol):
    """Something that quota has to have room for."""

    def fits(self, tree: Tree) -> bool: ...

    def missing(self, tree: Tree) -> Mapping[str, int]:
        """What would have to be freed at least, by resource."""

    def gain(self, held: Reservation, tree: Tree, resource: str) -> int:
        """The most that the end of a reservation can add to it."""


@dataclass(frozen=True, kw_only=True)
class QuotaRequirement:
    """What one gang and those that are certain to be before it need of its queue, flavor by flavor."""

    queue: str
    needs: tuple[tuple[_Amounts, ...], ...]
    """One entry per PodSet and resource group: the amounts in each flavor that its pods may use."""
    is_possible: bool
    """False where a PodSet may use no flavor at all, or needs what the queue has no quota for."""

    @classmethod
    def of(
        cls,
        gang: QuotaWorkload,
        queue: QueueNode,
        flavor_options: FlavorOptions,
        ahead: Sequence[QuotaWorkload] = (),
        *,
        is_whole: bool = False,
    ) -> "QuotaRequirement":
        """What a gang requires of its queue. With partial admission, of the fewest pods, unless it `is_whole`."""
        needs: list[tuple[_Amounts, ...]] = []
        is_possible = True
        for each in (gang, *ahead):
            pod_sets = each.pod_sets if is_whole else fewest(each)
            demand = flavor_options.demand(pod_sets, queue.spec, opaque=bool(each.opaque_because))
            steps = [step for pods in demand.pod_sets for step in pods.steps]
            found = [tuple(option.amounts for option in step.options if not option.refusal) for step in steps]
            is_possible = is_possible and all(found) and not any(step.undeclared for step in steps)
            needs += found
        return cls(queue=queue.name, needs=tuple(needs), is_possible=is_possible)

    @property
    def single_choice(self) -> dict[FlavorResource, int] | None:
        """What is taken in any case; None where there is a choice of flavors."""
        if not self.is_possible or any(len(options) != 1 for options in self.needs):
            return None
        taken: dict[FlavorResource, int] = {}
        for (amounts,) in self.needs:
            for key, amount in amounts:
                taken[key] = taken.get(key, 0) + amount
        return taken

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
            min([amount, *passed_on(held, tree, key, self.queue)])
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


def fewest(workload: QuotaWorkload) -> list[QuotaPodSet]:
    """Its PodSets with the fewest pods that it may start with."""
    return [replace(each, count=each.count if each.min_count is None else each.min_count) for each in workload.pod_sets]


def certainly_before(
    gang: QuotaWorkload, before: Sequence[QuotaWorkload], strategy: QueueingStrategy, preempted: Collection[str]
) -> Iterator[QuotaWorkload]:
    """Those of the ones before the gang in line that will hold quota when it gets in, whatever happens.

    `preempted` are those that Kueue may preempt again meanwhile.
    """
    for each in before:
        if each.key not in preempted and (strategy is QueueingStrategy.STRICT_FIFO or _is_like(each, gang)):
            yield each


def _is_like(one: QuotaWorkload, other: QuotaWorkload) -> bool:
    """Whether Kueue sees no difference between them but their age."""
    return (
        one.priority == other.priority
        and one.pod_sets == other.pod_sets
        and one.opaque_because == other.opaque_because
        and one.extra_shape == other.extra_shape
    )


def passed_on(held: Reservation, tree: Tree, key: FlavorResource, queue: str) -> list[int]:
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
