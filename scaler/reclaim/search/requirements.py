"""Could a gang fit by the sums alone? The quick count that narrows the search for victims.

What Kueue really does depends on who else waits, on preemption and on the order of flavors. But whatever it does, a
Workload is only admitted into quota that is available without preempting Workloads that must not be. So where this
count says no, nothing else needs to be asked; where it says yes, the cycles are simulated.

Some are certain to be admitted before the gang, and what they take has to be there too: in a StrictFIFO queue all that
are queued before it, in a BestEffortFIFO queue those of them that are just like it: they fit where the gang would.

Worked example: two PodSets, 1 × 2 GPUs and 3 × 2 GPUs; flavors a (4 available) and b (4 available). 2 in a, then 6 in
neither; 2 in b, then 6 in neither: no. With 6 in b: 2 in a and 6 in b.

Some wait first in other ClusterQueues of the gang's cohort, and take quota of the parent before it. A Workload w is
counted (`CohortRequirement`) only if, in every set of victims with which the gang is admitted, w is admitted before it
or in the same cycle. That is certain where

* nothing is preempted, no eviction is under way and the tree is not shared fairly, so that heads stay what they are and
  are sorted by how far they borrow, then by priority and age; the gang borrows whatever is suspended, and w comes
  before it;
* w and the gang have one choice of flavors, of everything w needs no more than the gang, and their queues keep nothing
  of it from the parent by lending limits. So w fits whenever the gang does, as far as the parent is concerned;
* the borrowing limit of w's own queue leaves room for w.

Then w waits in line for as long as the gang does: it is aside only while the parent has less than w needs, so less than
the gang needs. In the cycle that admits the gang w has its turn first, and fits.

Worked example: queues a, b of one cohort, quota 4 each, all of it in use; w (4, queue b) has waited longer than the
gang (4, queue a). A victim of 4 is not enough, as w takes it: 8 have to be freed.

Source: Kueue, pkg/scheduler/scheduler.go (makeClassicalIterator), pkg/scheduler/flavorassigner.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scaler.kube.objects.quantity import as_text
from scaler.quota.demands import FlavorOptions
from scaler.quota.model import FlavorResource, QueueingStrategy, QuotaPodSet, QuotaWorkload, Reservation, Usage
from scaler.quota.node import CohortNode, QueueNode
from scaler.quota.tree import Tree

_Amounts = tuple[tuple[FlavorResource, int], ...]

_CHOICES = 8
"""PodSets with a choice of flavors for which every combination is tried; of further ones any would do."""


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

    @cached_property
    def single_choice(self) -> dict[FlavorResource, int] | None:
        """What is taken in any case; None where there is a choice of flavors."""
        if not self.is_possible or any(len(options) != 1 for options in self.needs):
            return None
        taken = Counter[FlavorResource]()
        for (amounts,) in self.needs:
            taken.update(dict(amounts))
        return taken

    @cached_property
    def keys(self) -> frozenset[FlavorResource]:
        """Every flavor resource that it might take."""
        return frozenset(key for options in self.needs for amounts in options for key, _ in amounts)

    @cached_property
    def total(self) -> dict[str, int]:
        total = Counter[str]()
        for options in self.needs:
            for key, amount in options[0] if options else ():
                total[key.resource] += amount
        return total

    def fits(self, tree: Tree) -> bool:
        queue = tree.queues[self.queue]
        return self.is_possible and self._fits({key: queue.available(key) for key in self.keys})

    def could_ever_fit(self, tree: Tree) -> bool:
        """Whether it would fit if nothing at all were used."""
        queue = tree.queues[self.queue]
        return self.is_possible and self._fits({key: queue.potential(key) for key in self.keys})

    def _fits(self, left: dict[FlavorResource, int]) -> bool:
        """Whether it fits: those without a choice first, then every combination of the others."""
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
        available = Counter[str]()
        for key in self.keys:
            available[key.resource] += queue.available(key)
        return {r: lack for r, amount in self.total.items() if (lack := amount - available[r]) > 0}


@dataclass(frozen=True, kw_only=True)
class CohortRequirement:
    """What the parent of the gang's queue has to have for the gang and those that are admitted before it."""

    queue: str
    needs: Usage
    """Empty where nothing is certain: then it always fits."""
    earlier: tuple[QuotaWorkload, ...] = ()

    @cached_property
    def keys(self) -> frozenset[FlavorResource]:
        return frozenset(self.needs)

    def fits(self, tree: Tree) -> bool:
        parent = tree.queues[self.queue].parent
        return parent is None or all(parent.raw_available(key) >= amount for key, amount in self.needs.items())

    def missing(self, tree: Tree) -> dict[str, int]:
        """What would have to be freed at least, by resource."""
        parent = tree.queues[self.queue].parent
        missing = Counter[str]()
        if parent is not None:
            for key, amount in self.needs.items():
                missing[key.resource] += max(0, amount - parent.raw_available(key))
        return +missing


Requirement = QuotaRequirement | CohortRequirement


def gain(requirement: Requirement, held: Reservation, tree: Tree, resource: str) -> int:
    """The most that the end of a reservation can add to what the requirement may take of a resource.

    Quota that lending limits keep in another queue is not seen by the gang's, however much of it is freed.
    """
    return gains(requirement, {"": held}, tree, resource).get("", 0)


def gains(requirement: Requirement, held: Mapping[str, Reservation], tree: Tree, resource: str) -> dict[str, int]:
    """What many reservations add, by key; only those that add anything."""
    seen = frozenset(tree.queues[requirement.queue].ancestors())
    keys = [key for key in requirement.keys if key.resource == resource]
    found = {}
    for name, each in held.items():
        amounts = [(key, each.usage[key]) for key in keys if key in each.usage]
        holder = tree.queues[each.cluster_queue]
        total = sum(
            amount if holder.name == requirement.queue else _passed_on(holder, key, amount, seen)
            for key, amount in amounts
        )
        if total > 0:
            found[name] = total
    return found


def _combines(places: Sequence[tuple[_Amounts, ...]], left: dict[FlavorResource, int]) -> bool:
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
    return [replace(each, count=each.count if each.min_count is None else each.min_count) for each in workload.pod_sets]


def certainly_before(
    gang: QuotaWorkload, before: Sequence[QuotaWorkload], strategy: QueueingStrategy, preempted: Collection[str]
) -> Iterator[QuotaWorkload]:
    """The Workloads before the gang in line that will hold quota when it gets in, whatever happens.

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


def _passed_on(holder: QueueNode, key: FlavorResource, amount: int, seen: Collection[CohortNode]) -> int:
    """How much of the amount counts above the holder's queue, node by node, up to the first of the nodes that are seen
    from the gang's."""
    amount = min(amount, holder.stored_above(key))
    for node in holder.ancestors():
        if node in seen:
            break
        amount = min(amount, node.stored_above(key))
    return amount


def cohort_requirement(
    wanted: QuotaRequirement,
    gang: QuotaRequirement,
    tree: Tree,
    heads: Mapping[str, QuotaWorkload],
    is_before: Callable[[QuotaWorkload], bool],
    *,
    least_usage: Usage,
    flavor_options: FlavorOptions,
) -> CohortRequirement:
    """The requirement of a gang in a tree where nothing is preempted and nothing shared fairly.

    `wanted` are the needs of the gang and of those before it in its own queue, `heads` the first pending Workload of
    each queue, `is_before` says whether one comes before the gang by priority and age, `least_usage` is what is used in
    the gang's queue with all candidates gone.
    """
    queue = tree.queues[gang.queue]
    needs, total = gang.single_choice, wanted.single_choice
    if needs is None or total is None or queue.parent is None or queue.keeps_any(needs):
        return CohortRequirement(queue=queue.name, needs={})
    borrowed = {key for key, amount in needs.items() if least_usage.get(key, 0) + amount > queue.subtree.get(key, 0)}
    earlier = []
    taken = Counter(total)
    for other in queue.parent.queues:
        head = heads.get(other.name)
        if head is None or other is queue or not is_before(head):
            continue
        own = _certain_needs(head, other, flavor_options)
        if own is not None and all(own[key] <= needs.get(key, 0) for key in own) and _is_certain(other, own, borrowed):
            earlier.append(head)
            taken.update(own)
    return CohortRequirement(queue=queue.name, needs=taken if earlier else {}, earlier=tuple(earlier))


def _certain_needs(head: QuotaWorkload, queue: QueueNode, flavor_options: FlavorOptions) -> Usage | None:
    """What the head takes once it is admitted; None where that is not known beforehand."""
    if not queue.spec.schedules or head.opaque_because or head.invalid_because:
        return None
    return QuotaRequirement.of(head, queue, flavor_options, is_whole=True).single_choice


def _is_certain(queue: QueueNode, needs: Usage, borrowed: set[FlavorResource]) -> bool:
    """Whether the queue's own limits let its head have it, and the head borrows no farther than the gang does."""
    return not queue.keeps_any(needs) and all(
        queue.is_within_borrowing_limit(key, amount) and (key in borrowed or not queue.borrows_with(key, amount))
        for key, amount in needs.items()
    )


def usage_text(usage: Usage) -> str:
    """`8 nvidia.com/gpu of a100`, in a stable order."""
    return ", ".join(
        f"{as_text(key.resource, amount)} {key.resource} of {key.flavor}"
        for key, amount in sorted(usage.items())
        if amount
    )
