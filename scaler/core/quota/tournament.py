"""Whose turn is it next within one scheduling cycle, with fair sharing?

The heads of the queues meet in a tournament. At every cohort the best of its children's heads goes on to the next
level, until one is left at the root; each head stands for the child of the cohort that it came through, with the share
that this child would have with the head admitted. Better is, in this order:

1. whose child borrows nothing of what the head asks for;
2. the lower share;
3. the higher priority;
4. who waits longer.

After every winner the rest play again, since an admission has changed the shares.

Source: Kueue, pkg/scheduler/fair_sharing_iterator.go.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from scaler.core.quota.amounts import Usage
from scaler.core.quota.model import Workload
from scaler.core.quota.node import CohortNode, Node, QueueNode
from scaler.core.quota.shares import Share, dominant_resource_share


class Contender(Protocol):
    """The head of a queue, with the quota that its assignment would take."""

    @property
    def workload(self) -> Workload: ...

    @property
    def queue(self) -> QueueNode: ...

    @property
    def usage(self) -> Usage: ...


E = TypeVar("E", bound=Contender)

_Standing = tuple[bool, Share, int, datetime]
"""Of two contenders at a cohort, the lower one wins."""


class Tournament(Generic[E]):
    """Contenders of any trees, one for a queue. Those of different trees never meet: any of them may be next.

    What was found before a turn is kept after it, except above the nodes whose usage has changed.
    """

    def __init__(self, entries: Iterable[E]) -> None:
        self._entries = {entry.queue: entry for entry in entries}
        self._seen: dict[Node, Usage] = {}
        """The usage with which standings were found. That of a root counts for nobody."""
        self._standings: dict[Node, dict[QueueNode, _Standing]] = {}
        """By the child through which contenders come to their cohort, and the contenders' queues."""
        self._winners: dict[CohortNode, E | None] = {}
        for queue in self._entries:
            self._seen |= {node: node.usage.copy() for node in _way(queue) if node not in self._seen}

    def pop(self) -> E | None:
        """The contender whose turn it is, as the tree stands now; None where all have had theirs."""
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

    def _forget(self, node: Node) -> None:
        """Find anew what depends on the node."""
        self._standings.pop(node, None)
        for cohort in node.ancestors():
            self._standings.pop(cohort, None)
            self._winners.pop(cohort, None)

    def _winner(self, cohort: CohortNode) -> E | None:
        """The cohort's best; the first child's where equals meet, which Kueue leaves to chance."""
        if cohort not in self._winners:
            contenders: list[tuple[Node, E]] = [
                (below, winner) for below in cohort.cohorts if (winner := self._winner(below))
            ]
            contenders += [(queue, self._entries[queue]) for queue in cohort.queues if queue in self._entries]
            best = min(contenders, key=lambda contender: self._standing(*contender), default=None)
            self._winners[cohort] = best[1] if best else None
        return self._winners[cohort]

    def _standing(self, child: Node, entry: E) -> _Standing:
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


def _way(queue: QueueNode) -> Iterable[Node]:
    """From the queue upwards, without the root."""
    *way, _ = (queue, *queue.ancestors())
    return way
