"""How much more than its own does a queue or cohort hold, and which Workloads would Kueue preempt by that?

    ratio(node, resource) = 1000 · Σ over flavors of max(0, usage − subtree) / Σ over flavors of potential(parent)
    share(node)           = the greatest ratio / weight

The root cannot borrow: its share is 0. With weight 0 any borrowing is an infinite share; of two such, the greater ratio
is the greater share. A cohort can lend 8 GPUs in all, a queue of weight 2 owns 1 and uses 5: 1000 · 4 / 8 / 2 = 250.
Floating point on purpose: Kueue compares shares as 64-bit floats, in this order of operations, and a tie there has to
be a tie here.

The queue to take from is looked for from the root downwards: at every level the child with the greatest share, cohorts
before queues where both are equal, until a queue is reached. Queues and cohorts that no longer borrow are left out,
except those on the preemptor's own way. Shares are compared just below the cohort that both queues have in common:

* in the preemptor's own queue candidates go by priority, whatever the shares;
* a preemptor that stays within its nominal quota takes back what is its own, whatever the shares (InCohortReclamation);
* else a candidate goes if the preemptor's share with its usage is at most the candidate's share without it
  (LessThanOrEqualToFinalShare);
* where that is not enough, one more candidate of each queue may go if the preemptor's share stays below the share that
  the queue had with it (LessThanInitialShare).

Worked example: c lends 8 GPUs, b uses all in 4 Workloads of 2, a wants 4. With them a has the share 500. b is at 1000;
without one Workload it is at 750, without two at 500, and 500 <= 500: both go. Had a wanted 6 (750), one would have
gone by the first rule, and none of the rest by either: 750 <= 500 is false, and so is 750 < 750. Then none goes.

Source: Kueue, pkg/scheduler/preemption/preemption.go (fairPreemptions) and fairsharing/;
pkg/cache/scheduler/fair_sharing.go; KEP-1714.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import inf

from scaler.quota.model import FlavorResource, QuotaWorkload, Usage
from scaler.quota.node import CohortNode, QueueNode, Rank, Ranked, TreeNode
from scaler.quota.preemption.candidates import PreemptionReason, PreemptionRequest, PreemptionTarget, Removal
from scaler.quota.tree import Tree


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """A share, ordered as in Kueue: the lower one is served first, the higher one preempted first."""

    is_infinite: bool = False
    amount: float = 0.0
    """The share divided by the weight, unless that is 0."""
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
"""The share of a node that borrows nothing."""
LOWEST = Share(amount=-1.0)
"""A share below that of any node."""


def dominant_resource_share(node: TreeNode) -> Share:
    if node.parent is None:
        return NO_SHARE
    excess = {key: above for key, quota in node.subtree.items() if (above := node.usage.get(key, 0) - quota) > 0}
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


# --------------------------------------------------------------------------------------------------------- preemption


class PreemptionStrategy(StrEnum):
    """Kueue's `fairSharing.preemptionStrategies`."""

    FINAL_SHARE = "LessThanOrEqualToFinalShare"
    INITIAL_SHARE = "LessThanInitialShare"


DEFAULT_STRATEGIES = (PreemptionStrategy.FINAL_SHARE, PreemptionStrategy.INITIAL_SHARE)


def find(
    tree: Tree, request: PreemptionRequest, strategies: Sequence[PreemptionStrategy]
) -> tuple[PreemptionTarget, ...]:
    """The Workloads that have to go for the request to fit; none where no choice of them is enough.

    Without `strategies` both apply, as in Kueue.
    """
    search = _Search(tree, request)
    first, *second = strategies or DEFAULT_STRATEGIES
    request.queue.add(request.usage)  # Kueue compares shares as if the preemptor ran already
    fits = search.by(first) or (bool(second) and search.one_more_of_each_queue())
    request.queue.remove(request.usage)
    if fits:
        return search.removal.conclude(borrowing=True)
    search.removal.give_up()
    return ()


class _Line:
    """The candidates of one queue that are left, in order."""

    def __init__(self, queue: QueueNode, candidates: Iterable[Ranked]) -> None:
        self.queue = queue
        self._rest = iter(candidates)
        self.head = [*islice(self._rest, 1)]
        """The first one; empty where none is left."""

    def pop(self) -> Ranked:
        """Take the first candidate off. Raises: ValueError where none is left."""
        [first], self.head = self.head, [*islice(self._rest, 1)]
        return first


class _Search:
    def __init__(self, tree: Tree, request: PreemptionRequest) -> None:
        self.request = request
        self.removal = Removal(tree, request)
        self._shares: dict[TreeNode, Share] = {}
        """The shares of now, found once until usage changes."""
        self.way: dict[CohortNode, TreeNode] = {}
        """The child of each cohort above the preemptor's queue through which the queue is reached."""
        child: TreeNode = request.queue
        for cohort in request.queue.ancestors():
            self.way[cohort] = child
            child = cohort
        self._passed_over: dict[QueueNode, list[Ranked]] = {}

    def by(self, strategy: PreemptionStrategy) -> bool:
        """Take candidates until the request fits; keep those that the strategy spares for `one_more_of_each_queue`."""
        reclaims = self.request.queue.is_within_quota(self.request.contested)
        for line in _Ordering(self, self._line):
            if line.queue is self.request.queue:
                fits = self._take(line, PreemptionReason.IN_CLUSTER_QUEUE)
            elif reclaims:
                fits = self._take(line, PreemptionReason.IN_COHORT_RECLAMATION)
            else:
                fits = self._take_first_allowed(line, strategy)
            if fits:
                return True
        return False

    def one_more_of_each_queue(self) -> bool:
        """Take one of the candidates passed over of every queue whose share is above the preemptor's."""
        ordering = _Ordering(self, lambda queue: _Line(queue, self._passed_over.get(queue, ())))
        for line in ordering:
            own, other = self._sides(line.queue)
            if self.share(own) < self.share(other) and self._take(line, PreemptionReason.IN_COHORT_FAIR_SHARING):
                return True
            ordering.pruned.add(line.queue)
        return False

    def _line(self, queue: QueueNode) -> _Line:
        is_source = queue is self.request.queue or not queue.is_within_quota(self.request.contested)
        return _Line(queue, self.request.candidates(queue) if is_source else ())

    def _take_first_allowed(self, line: _Line, strategy: PreemptionStrategy) -> bool:
        """Take the first candidate that the strategy allows. Whether the request fits then."""
        own, other = self._sides(line.queue)
        share, initial = self.share(own), self.share(other)
        while line.head:
            is_initial = strategy is PreemptionStrategy.INITIAL_SHARE
            if share < initial if is_initial else share <= _share_without(line.head[0][1], line.queue, other):
                return self._take(line, PreemptionReason.IN_COHORT_FAIR_SHARING)
            self._passed_over.setdefault(line.queue, []).append(line.pop())
        return False

    def share(self, node: TreeNode) -> Share:
        share = self._shares.get(node)
        if share is None:
            share = self._shares[node] = dominant_resource_share(node)
        return share

    def _sides(self, queue: QueueNode) -> tuple[TreeNode, TreeNode]:
        """Just below the lowest cohort that both queues are in: the preemptor's side and the candidates'."""
        below: TreeNode = queue
        for cohort in queue.ancestors():
            if cohort in self.way:
                return self.way[cohort], below
            below = cohort
        raise ValueError(f"ClusterQueues {queue.name} and {self.request.queue.name} have no cohort in common")

    def _take(self, line: _Line, reason: PreemptionReason) -> bool:
        """Take the line's head out. Whether the request fits then."""
        self.removal.take(line.pop()[1], reason)
        for node in (line.queue, *line.queue.ancestors()):
            self._shares.pop(node, None)
        queue, usage = self.request.queue, self.request.usage
        queue.remove(usage)
        fits = self.request.fits()
        queue.add(usage)
        return fits


def _share_without(candidate: QuotaWorkload, queue: QueueNode, node: TreeNode) -> Share:
    usage = candidate.held.usage
    queue.remove(usage)
    share = dominant_resource_share(node)
    queue.add(usage)
    return share


class _Ordering:
    """The queues to take from, the one with the greatest share first, chosen anew after every step.

    The caller takes a candidate off each line, or prunes its queue: otherwise the same line comes again for ever.
    """

    def __init__(self, search: _Search, line_of: Callable[[QueueNode], _Line]) -> None:
        self._search = search
        self._line_of = line_of
        self._lines: dict[QueueNode, _Line] = {}
        self.pruned: set[TreeNode] = set()

    def __iter__(self) -> Iterator[_Line]:
        own = self._search.request.queue
        root = next(reversed(self._search.way), None)
        if root is None:
            line = self._line(own)
            while own not in self.pruned and line.head:
                yield line
            return
        while root not in self.pruned:
            found = self._next(root)
            if found is not None:
                yield found

    def _line(self, queue: QueueNode) -> _Line:
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = self._line_of(queue)
        return line

    def _next(self, cohort: CohortNode) -> _Line | None:
        """The line to take from; None where the step has only found nodes that nothing can be taken from any more."""
        below, cohort_share = self._greatest_cohort(cohort)
        line, queue_share = self._greatest_queue(cohort)
        if below is not None and cohort_share >= queue_share:
            return self._next(below)
        if line is None:
            self.pruned.add(cohort)
        return line

    def _greatest_queue(self, cohort: CohortNode) -> tuple[_Line | None, Share]:
        best, greatest = None, LOWEST
        for queue in cohort.queues:
            if queue in self.pruned or not queue.spec.schedules:
                continue
            line, share = self._line(queue), self._search.share(queue)
            if not (line.head and (share.borrows or queue is self._search.request.queue)):
                self.pruned.add(queue)
            elif share > greatest or (best is not None and share == greatest and self._place(line) < self._place(best)):
                best, greatest = line, share
        return best, greatest

    def _greatest_cohort(self, cohort: CohortNode) -> tuple[CohortNode | None, Share]:
        best, greatest = None, LOWEST
        for below in cohort.cohorts:
            if below in self.pruned:
                continue
            share = self._search.share(below)
            if not share.borrows and below not in self._search.way:
                self.pruned.add(below)
            elif share >= greatest:
                best, greatest = below, share
        return best, greatest

    def _place(self, line: _Line) -> tuple[bool, bool, Rank]:
        """The lower one is the better candidate."""
        [(rank, _)] = line.head
        return rank[0], line.queue is self._search.request.queue, rank
