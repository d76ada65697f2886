"""Kueue's fair sharing: how much more than its own does a queue or cohort hold, and which head is next therefore?

    ratio(node, resource) = 1000 · Σ over flavors of max(0, usage − subtree) / Σ over flavors of potential(parent)
    share(node)           = the greatest ratio / weight

The root cannot borrow: its share is 0. With weight 0 any borrowing is an infinite share; of two such, the
greater ratio is the greater share.

Worked example: a cohort can lend 8 GPUs in all, a queue of weight 2 owns 1 and uses 5: 1000 · 4 / 8 / 2 = 250.

Floating point on purpose: Kueue compares shares as 64-bit floats, in this order of operations, and a tie there has to
be a tie here.

Order of the heads within one cycle: they meet at every cohort, where the best of its children's heads goes on to the
next level, until one is left at the root. Each head stands for the child of the cohort through which it comes, with the
share that this child would have with the head admitted. Better is, in this order:

1. whose child borrows nothing of what the head asks for;
2. the lower share;
3. the higher priority;
4. the earlier one in the queue.

After every winner the others are compared again, since an admission has changed the shares.

Source: Kueue, pkg/cache/scheduler/fair_sharing.go, pkg/scheduler/fair_sharing_iterator.go; KEP-1714.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Generic, Protocol, TypeVar

from scaler.quota.model import NOTHING, FlavorResource, QuotaWorkload, Usage, added
from scaler.quota.node import CohortNode, QueueNode, TreeNode


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """Ordered as Kueue orders: the lower one is served first, the higher one preempted first."""

    is_infinite: bool = False
    amount: float = 0.0
    """Divided by the weight, unless that is 0."""
    borrowed: frozenset[FlavorResource] = field(default=frozenset(), compare=False)
    """What the node borrows of, even where the cohort has none of it to lend."""

    @property
    def weighted(self) -> float:
        """The share as Kueue reports it."""
        return inf if self.is_infinite else self.amount

    @property
    def borrows(self) -> bool:
        return bool(self.borrowed)

    def borrows_any_of(self, usage: Usage) -> bool:
        """Whether the node borrows of something that the usage holds."""
        return any(usage.get(key, 0) > 0 for key in self.borrowed)


NO_SHARE = Share()
"""Of a node that borrows nothing."""
LOWEST = Share(amount=-1.0)
"""Below the share of any node."""


def dominant_resource_share(node: TreeNode, extra: Usage = NOTHING) -> Share:
    """The node's share if it used so much more."""
    if node.parent is None:
        return NO_SHARE
    used = node.usage if not extra else added((node.usage, extra))
    excess = {key: above for key, quota in node.subtree.items() if (above := used.get(key, 0) - quota) > 0}
    if not excess:
        return NO_SHARE
    ratio = _greatest_ratio(excess, node.parent)
    if node.fair_weight == 0:
        return Share(ratio > 0, ratio, frozenset(excess))
    return Share(amount=ratio / node.fair_weight, borrowed=frozenset(excess))


def _greatest_ratio(excess: Usage, parent: TreeNode) -> float:
    by_resource: dict[str, int] = {}
    for key, above in excess.items():
        by_resource[key.resource] = by_resource.get(key.resource, 0) + above
    lendable = parent.lendable()
    ratios = [
        float(above) * 1000.0 / float(capacity)
        for resource, above in by_resource.items()
        if (capacity := lendable.get(resource, 0)) > 0
    ]
    return max(ratios, default=0.0)


# --------------------------------------------------------------------------------------------- order of the heads


class OrderedHead(Protocol):
    """The head of a queue, with the quota that its assignment would take."""

    @property
    def workload(self) -> QuotaWorkload: ...

    @property
    def queue(self) -> QueueNode: ...

    @property
    def usage(self) -> Usage: ...


E = TypeVar("E", bound=OrderedHead)

_Standing = tuple[bool, Share, int, datetime]
"""Of two contenders at a cohort, the lower one wins."""


class FairSharingOrder(Generic[E]):
    """Contenders of any trees, one for a queue. Those of different trees never meet: any of them may be next.

    What was found for one head is kept for the next, except above the nodes whose usage has changed.
    """

    def __init__(self, entries: Iterable[E]) -> None:
        self._entries = {entry.queue: entry for entry in entries}
        self._seen: dict[TreeNode, Usage] = {}
        """The usage with which standings were found. That of a root does not matter."""
        self._standings: dict[TreeNode, dict[QueueNode, _Standing]] = {}
        """By the child through which contenders come to their cohort, and the contenders' queues."""
        self._winners: dict[CohortNode, E | None] = {}
        for queue in self._entries:
            self._seen |= {node: node.usage.copy() for node in _way(queue) if node not in self._seen}

    def pop(self) -> E | None:
        """The head that is next, as the tree stands now; None where all were taken."""
        queue = next(iter(self._entries), None)
        if queue is None:
            return None
        self._forget_what_changed()
        *_, root = (queue, *queue.ancestors())
        winner = self._winner(root) if isinstance(root, CohortNode) else None
        entry = self._entries.pop(winner.queue if winner else queue)
        self._forget(entry.queue)
        return entry

    def _forget_what_changed(self) -> None:
        for node, before in self._seen.items():
            if node.usage != before:
                self._seen[node] = node.usage.copy()
                self._forget(node)

    def _forget(self, node: TreeNode) -> None:
        """Find anew what depends on the node."""
        self._standings.pop(node, None)
        for cohort in node.ancestors():
            self._standings.pop(cohort, None)
            self._winners.pop(cohort, None)

    def _winner(self, cohort: CohortNode) -> E | None:
        """The cohort's best; the first child's where equals meet, which Kueue leaves to chance."""
        if cohort not in self._winners:
            contenders: list[tuple[TreeNode, E]] = [
                (below, winner) for below in cohort.cohorts if (winner := self._winner(below))
            ]
            contenders += [(queue, self._entries[queue]) for queue in cohort.queues if queue in self._entries]
            best = min(contenders, key=lambda contender: self._standing(*contender), default=None)
            self._winners[cohort] = best[1] if best else None
        return self._winners[cohort]

    def _standing(self, child: TreeNode, entry: E) -> _Standing:
        """How good the contender is as the one that comes through this child."""
        known = self._standings.setdefault(child, {})
        standing = known.get(entry.queue)
        if standing is None:
            entry.queue.add(entry.usage)
            share = dominant_resource_share(child)
            entry.queue.remove(entry.usage)
            borrows = share.borrows_any_of(entry.usage)
            standing = known[entry.queue] = borrows, share, -entry.workload.priority, entry.workload.queued_at
        return standing


def _way(queue: QueueNode) -> Iterable[TreeNode]:
    """From the queue upwards, without the root."""
    *way, _ = (queue, *queue.ancestors())
    return way
