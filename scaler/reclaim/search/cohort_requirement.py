"""Which Workloads of other ClusterQueues take quota of the cohort before the gang does, whatever is suspended for it?

A plan that frees just what the gang needs fails where an earlier Workload of a sibling queue takes it first. The
simulated cycles find that out, set by set. For the common case it follows from the counts: queues of one cohort whose
earlier Workloads need no more than the gang does. The quick count then asks for enough for all of them.

Laws: a Workload w that waits first in another queue of the same parent is counted only if, in every set of victims with
which the gang is admitted, w is admitted before it or in the same cycle. That is certain where

* nothing is preempted and the tree is not shared fairly, so that heads are sorted by how far they borrow, then by
  priority and age; the gang borrows whatever is suspended, and w comes before it;
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaler.quota.demands import FlavorOptions
from scaler.quota.model import FlavorResource, QuotaWorkload, Reservation, Usage
from scaler.quota.node import QueueNode
from scaler.quota.tree import Tree
from scaler.reclaim.search.quota_requirement import QuotaRequirement, passed_on

IsBefore = Callable[[QuotaWorkload], bool]
"""Whether the Workload comes before the gang by priority and age."""


@dataclass(frozen=True, kw_only=True)
class CohortRequirement:
    """What the parent of the gang's queue has to have for the gang and those that are admitted before it."""

    queue: str
    needs: Usage
    """Empty where nothing is certain: then it always fits."""
    earlier: tuple[QuotaWorkload, ...] = ()

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
        return {resource: amount for resource, amount in missing.items() if amount}

    def gain(self, held: Reservation, tree: Tree, resource: str) -> int:
        """The most that the end of a reservation can add to what the parent has of a resource."""
        return sum(
            min([amount, *passed_on(held, tree, key, self.queue)])
            for key, amount in held.usage.items()
            if key.resource == resource and key in self.needs
        )


def cohort_requirement(
    wanted: QuotaRequirement,
    gang: QuotaRequirement,
    tree: Tree,
    heads: Mapping[str, QuotaWorkload],
    is_before: IsBefore,
    *,
    least_usage: Usage,
    flavor_options: FlavorOptions,
) -> CohortRequirement:
    """The requirement of a gang in a tree where nothing is preempted and nothing shared fairly.

    `wanted` are the needs of the gang and of those before it in its own queue, `heads` who waits first in each queue,
    `least_usage` what is used in the gang's queue with all candidates gone.
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
