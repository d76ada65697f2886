"""Which Workloads would Kueue preempt so that a Workload fits, without fair sharing?

Quota is reclaimed from where it is held beyond what is owned. Candidates fall into three groups:

1. of other queues, where the preemptor has the hierarchical advantage: some subtree with the preemptor and without the
   candidate owns enough for the request beside what it uses, so the candidate sits on the subtree's quota. Priority
   decides nothing that the policy `reclaimWithinCohort` does not;
2. of other queues, without that advantage: only while the preemptor's queue stays within its nominal quota, unless
   `borrowWithinCohort` lets it take from lower priorities while it borrows;
3. of the preemptor's own queue.

Workloads are taken in this order (those already evicted before all others) until the request fits. A candidate
is passed over once its queue, or a cohort between it and the preemptor, has come back to its own quota on the way.

Worked example: root owns nothing; cohort `left` holds queues a (4) and b (0), cohort `right` queue c (4); b and c use 4
each. A Workload of a wants 4: a owns them, so b's Workloads are in group 1; c is within its quota and never looked at.

Source: Kueue, pkg/scheduler/preemption/preemption.go (classicalPreemptions) and classical/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import TypeVar

from scaler.quota.model import FlavorResource, Preemption, PreemptionPolicy, QuotaWorkload
from scaler.quota.node import CohortNode, QueueNode, Rank, TreeNode
from scaler.quota.preemption.candidates import PreemptionReason, PreemptionRequest, PreemptionTarget, Removal
from scaler.quota.tree import Tree

N = TypeVar("N", bound=TreeNode)

_ADVANTAGE, _NO_ADVANTAGE, _OWN = range(3)

_Place = tuple[bool, int, Rank]


@dataclass(frozen=True, slots=True)
class _Line:
    queue: QueueNode
    group: int
    borrowers: tuple[TreeNode, ...] = ()
    """The queue and the cohorts above it that are not the preemptor's too: each must exceed its quota."""

    def places(self, request: PreemptionRequest) -> Iterator[tuple[_Place, "_Line", QuotaWorkload]]:
        for rank, workload in request.candidates(self.queue):
            yield (rank[0], self.group, rank), self, workload

    def reason(self, request: PreemptionRequest, candidate: QuotaWorkload) -> tuple[PreemptionReason, bool]:
        """Why the candidate would go, and whether it may while the preemptor's queue borrows."""
        if self.group == _OWN:
            return PreemptionReason.IN_CLUSTER_QUEUE, True
        if self.group == _ADVANTAGE:
            return PreemptionReason.IN_COHORT_RECLAMATION, True
        if _yields_to_borrower(request, candidate):
            return PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING, True
        return PreemptionReason.IN_COHORT_RECLAMATION, False


def find(tree: Tree, request: PreemptionRequest) -> tuple[PreemptionTarget, ...]:
    """The Workloads that have to go for the request to fit; none where no choice of them is enough."""
    lines = [line for line in _lines(request) if any(True for _ in request.candidates(line.queue))]
    for borrowing in _attempts(request, {line.group for line in lines}):
        if targets := _attempt(tree, request, lines, borrowing=borrowing):
            return targets
    return ()


def _attempts(request: PreemptionRequest, groups: set[int]) -> tuple[bool, ...]:
    """Whether the preemptor's queue may end up borrowing, in the order in which both are tried.

    Without borrowing more candidates may go, with it more quota can be had.
    """
    forbidden = not _may_borrow(request.queue.spec.preemption)
    if groups <= {_OWN} or (forbidden and not _is_under_nominal(request)):
        return (True,)
    return (False, True) if forbidden and _ADVANTAGE not in groups else (True, False)


def _attempt(
    tree: Tree, request: PreemptionRequest, lines: list[_Line], *, borrowing: bool
) -> tuple[PreemptionTarget, ...]:
    removal = Removal(tree, request)
    for _, line, candidate in merge(*(line.places(request) for line in lines), key=itemgetter(0)):
        reason, may_borrow = line.reason(request, candidate)
        if (borrowing and not may_borrow) or any(node.is_within_quota(request.contested) for node in line.borrowers):
            continue
        removal.take(candidate, reason)
        if request.fits(borrowing=borrowing):
            return removal.conclude(borrowing=borrowing)
    removal.give_up()
    return ()


def _lines(request: PreemptionRequest) -> Iterator[_Line]:
    """All queues with quota that may be taken back, by group; the nearest subtrees of the preemptor first."""
    yield _Line(request.queue, _OWN)
    if request.queue.spec.preemption.reclaim_within_cohort is PreemptionPolicy.NEVER:
        return
    advantage, remaining = request.queue.remainder(request.usage)
    before: TreeNode = request.queue
    for cohort in request.queue.ancestors():
        group = _ADVANTAGE if advantage else _NO_ADVANTAGE
        for queue, borrowers in _borrowing_queues(cohort, request, before):
            yield _Line(queue, group, borrowers)
        fits, remaining = cohort.remainder(remaining)
        advantage = advantage or fits
        before = cohort


def _borrowing_queues(
    cohort: CohortNode, request: PreemptionRequest, apart_from: TreeNode, above: tuple[TreeNode, ...] = ()
) -> Iterator[tuple[QueueNode, tuple[TreeNode, ...]]]:
    """The queues below that exceed their quota, each with the exceeding cohorts on the way to it."""
    for below in _exceeding(cohort.cohorts, request.contested):
        if below is not apart_from:
            yield from _borrowing_queues(below, request, apart_from, (below, *above))
    for queue in _exceeding(cohort.queues, request.contested):
        if queue.spec.schedules and queue is not request.queue:
            yield queue, (queue, *above)


def _exceeding(nodes: Sequence[N], keys: frozenset[FlavorResource]) -> Sequence[N]:
    """The nodes that exceed their quota in any of it: mostly none, and asked about every queue for every head."""
    if len(keys) == 1:
        (key,) = keys
        return [node for node in nodes if node.usage.get(key, 0) > node.subtree.get(key, 0)]
    return [node for node in nodes if not node.is_within_quota(keys)]


def _is_under_nominal(request: PreemptionRequest) -> bool:
    """Whether the preemptor's queue has nominal quota left of all that is contested."""
    return all(request.queue.nominal(key) > request.queue.usage.get(key, 0) for key in request.contested)


def _may_borrow(policies: Preemption) -> bool:
    return policies.borrow_within_cohort is not PreemptionPolicy.NEVER


def _yields_to_borrower(request: PreemptionRequest, candidate: QuotaWorkload) -> bool:
    """Whether `borrowWithinCohort` lets the preemptor take the candidate's quota and borrow."""
    policies = request.queue.spec.preemption
    if not _may_borrow(policies) or candidate.priority >= request.workload.priority:
        return False
    return policies.max_priority_threshold is None or candidate.priority <= policies.max_priority_threshold
