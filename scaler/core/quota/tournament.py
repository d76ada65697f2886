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

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from scaler.core.quota.amounts import Usage
from scaler.core.quota.model import Workload
from scaler.core.quota.shares import Share, dominant_resource_share
from scaler.core.quota.tree import CohortNode, Node, QueueNode


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
    """Contenders of any trees, one for a queue. Those of different trees never meet: any of them may be next."""

    def __init__(self, entries: Iterable[E]) -> None:
        self._entries = {entry.queue: entry for entry in entries}
        self._seen: dict[QueueNode, tuple[list[Usage], dict[Node, _Standing]]] = {}

    def pop(self) -> E | None:
        """The contender whose turn it is, as the tree stands now; None where all have had theirs."""
        queue = next(iter(self._entries), None)
        if queue is None:
            return None
        *_, root = (queue, *queue.ancestors())
        winner = self._best_below(root) if isinstance(root, CohortNode) else None
        return self._entries.pop(winner.queue if winner else queue)

    def _best_below(self, cohort: CohortNode) -> E | None:
        """The cohort's winner; the first child's where equals meet, which Kueue leaves to chance."""
        contenders = [winner for below in cohort.cohorts if (winner := self._best_below(below))]
        contenders += [self._entries[queue] for queue in cohort.queues if queue in self._entries]
        return min(contenders, key=lambda entry: self._standings(entry)[cohort], default=None)

    def _standings(self, entry: E) -> Mapping[Node, _Standing]:
        """The contender's standing at every cohort above it.

        Found again only if usage has changed on its way to the root: that of the root itself counts for nobody.
        """
        *way, _ = (entry.queue, *entry.queue.ancestors())
        known = self._seen.get(entry.queue)
        if known is None or any(node.usage != before for node, before in zip(way, known[0], strict=True)):
            known = self._seen[entry.queue] = [dict(node.usage) for node in way], self._find_standings(entry, way)
        return known[1]

    def _find_standings(self, entry: E, way: Sequence[Node]) -> dict[Node, _Standing]:
        entry.queue.add(entry.usage)
        shares = [(node.parent, dominant_resource_share(node)) for node in way]
        entry.queue.remove(entry.usage)
        workload = entry.workload
        return {
            cohort: (share.borrows_any_of(entry.usage), share, -workload.priority, workload.queued_at)
            for cohort, share in shares
            if cohort is not None
        }
