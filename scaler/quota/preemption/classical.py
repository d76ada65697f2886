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

    def places(self, claim: PreemptionRequest) -> Iterator[tuple[_Place, "_Line", QuotaWorkload]]:
        for rank, workload in claim.candidates(self.queue):
            yield (rank[0], self.group, rank), self, workload

    def reason(self, claim: PreemptionRequest, candidate: QuotaWorkload) -> tuple[PreemptionReason, bool]:
        """Why the candidate would go, and whether it may while the preemptor's queue borrows."""
        if self.group == _OWN:
            return PreemptionReason.IN_CLUSTER_QUEUE, True
        if self.group == _ADVANTAGE:
            return PreemptionReason.IN_COHORT_RECLAMATION, True
        if _yields_to_borrower(claim, candidate):
            return PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING, True
        return PreemptionReason.IN_COHORT_RECLAMATION, False


def find(tree: Tree, claim: PreemptionRequest) -> tuple[PreemptionTarget, ...]:
    """The Workloads that have to go for the claim to fit; none where no choice of them is enough."""
    lines = [line for line in _lines(claim) if any(True for _ in claim.candidates(line.queue))]
    for borrowing in _attempts(claim, {line.group for line in lines}):
        if targets := _attempt(tree, claim, lines, borrowing=borrowing):
            return targets
    return ()


def _attempts(claim: PreemptionRequest, groups: set[int]) -> tuple[bool, ...]:
    """Whether the preemptor's queue may end up borrowing, in the order in which both are tried.

    Without borrowing more candidates may go, with it more quota can be had.
    """
    forbidden = not _may_borrow(claim.queue.spec.preemption)
    if groups <= {_OWN} or (forbidden and not _is_under_nominal(claim)):
        return (True,)
    return (False, True) if forbidden and _ADVANTAGE not in groups else (True, False)


def _attempt(
    tree: Tree, claim: PreemptionRequest, lines: list[_Line], *, borrowing: bool
) -> tuple[PreemptionTarget, ...]:
    removal = Removal(tree, claim)
    for _, line, candidate in merge(*(line.places(claim) for line in lines), key=itemgetter(0)):
        reason, may_borrow = line.reason(claim, candidate)
        if (borrowing and not may_borrow) or any(node.is_within_quota(claim.contested) for node in line.borrowers):
            continue
        removal.take(candidate, reason)
        if claim.fits(borrowing=borrowing):
            return removal.conclude(borrowing=borrowing)
    removal.give_up()
    return ()


def _lines(claim: PreemptionRequest) -> Iterator[_Line]:
    """All queues with quota that may be taken back, by group; the nearest subtrees of the preemptor first."""
    yield _Line(claim.queue, _OWN)
    if claim.queue.spec.preemption.reclaim_within_cohort is PreemptionPolicy.NEVER:
        return
    advantage, remaining = claim.queue.remainder(claim.usage)
    before: TreeNode = claim.queue
    for cohort in claim.queue.ancestors():
        group = _ADVANTAGE if advantage else _NO_ADVANTAGE
        for queue, borrowers in _borrowing_queues(cohort, claim, before):
            yield _Line(queue, group, borrowers)
        fits, remaining = cohort.remainder(remaining)
        advantage = advantage or fits
        before = cohort


def _borrowing_queues(
    cohort: CohortNode, claim: PreemptionRequest, apart_from: TreeNode, above: tuple[TreeNode, ...] = ()
) -> Iterator[tuple[QueueNode, tuple[TreeNode, ...]]]:
    """The queues below that exceed their quota, each with the exceeding cohorts on the way to it."""
    for below in _exceeding(cohort.cohorts, claim.contested):
        if below is not apart_from:
            yield from _borrowing_queues(below, claim, apart_from, (below, *above))
    for queue in _exceeding(cohort.queues, claim.contested):
        if queue.spec.schedules and queue is not claim.queue:
            yield queue, (queue, *above)


def _exceeding(nodes: Sequence[N], keys: frozenset[FlavorResource]) -> Sequence[N]:
    """Those that exceed their quota in any of it: mostly none, and asked about every queue for every head."""
    if len(keys) == 1:
        (key,) = keys
        return [node for node in nodes if node.usage.get(key, 0) > node.subtree.get(key, 0)]
    return [node for node in nodes if not node.is_within_quota(keys)]


def _is_under_nominal(claim: PreemptionRequest) -> bool:
    """Whether the preemptor's queue has nominal quota left of all that is contested."""
    return all(claim.queue.nominal(key) > claim.queue.usage.get(key, 0) for key in claim.contested)


def _may_borrow(policies: Preemption) -> bool:
    return policies.borrow_within_cohort is not PreemptionPolicy.NEVER


def _yields_to_borrower(claim: PreemptionRequest, candidate: QuotaWorkload) -> bool:
    """Whether `borrowWithinCohort` lets the preemptor take the candidate's quota and borrow."""
    policies = claim.queue.spec.preemption
    if not _may_borrow(policies) or candidate.priority >= claim.workload.priority:
        return False
    return policies.max_priority_threshold is None or candidate.priority <= policies.max_priority_threshold
