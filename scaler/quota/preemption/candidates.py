"""Which Workloads may be preempted for another, in what order, and what is left when some of them are gone?

Laws:

* A search leaves the tree as it was: what it takes out, it counts again before it answers.
* No Workload is preempted in vain: one that need not go for the preemptor to fit is put back, the last taken first.

Order of candidates: those that are evicted already, since they go anyway; then Workloads of other queues before those
of the preemptor's own; then lower priorities, later reservations, and at last the uid, so that there is one answer.

Source: Kueue, pkg/scheduler/preemption (preemption.go, common/).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from scaler.quota.model import FlavorResource, PreemptionPolicy, QuotaWorkload, Usage
from scaler.quota.node import QueueNode, Ranked
from scaler.quota.tree import Tree


class PreemptionReason(StrEnum):
    """Reason of the Preempted condition."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"


@dataclass(frozen=True, slots=True)
class PreemptionTarget:
    workload: QuotaWorkload
    reason: PreemptionReason


def satisfies(policy: PreemptionPolicy, preemptor: QuotaWorkload, candidate: QuotaWorkload) -> bool:
    if candidate.priority < preemptor.priority:
        return policy is not PreemptionPolicy.NEVER
    if policy is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY:
        return candidate.priority == preemptor.priority and candidate.queued_at > preemptor.queued_at
    return policy is PreemptionPolicy.ANY


@dataclass(frozen=True, slots=True)
class PreemptionRequest:
    """A Workload that does not fit now, and what of its usage is contested: held by others that may have to go."""

    queue: QueueNode
    workload: QuotaWorkload
    usage: Usage
    contested: frozenset[FlavorResource]

    def fits(self, *, borrowing: bool = True) -> bool:
        if not borrowing and any(self.queue.borrows_with(key, amount) for key, amount in self.usage.items()):
            return False
        return self.queue.fits(self.usage)

    def candidates(self, queue: QueueNode) -> Iterator[Ranked]:
        """The Workloads of the queue that may be preempted as far as policy and flavors go, in order."""
        policies = self.queue.spec.preemption
        policy = policies.within_cluster_queue if queue is self.queue else policies.reclaim_within_cohort
        match policy:
            case PreemptionPolicy.NEVER:
                return iter(())
            case PreemptionPolicy.ANY:
                return iter(queue.holders_of(self.contested))
        holders = queue.holders_of(self.contested)
        return (ranked for ranked in holders if satisfies(policy, self.workload, ranked[1]))


@dataclass(slots=True)
class Removal:
    """Workloads that a search has taken out of the tree for as long as it lasts."""

    tree: Tree
    request: PreemptionRequest
    targets: list[PreemptionTarget] = field(default_factory=list)

    def take(self, workload: QuotaWorkload, reason: PreemptionReason) -> None:
        self._release(workload)
        self.targets.append(PreemptionTarget(workload, reason))

    def give_up(self) -> None:
        for target in self.targets:
            self._restore(target.workload)
        self.targets.clear()

    def conclude(self, *, borrowing: bool) -> tuple[PreemptionTarget, ...]:
        self._fill_back(borrowing=borrowing)
        targets = tuple(self.targets)
        self.give_up()
        return targets

    def _fill_back(self, *, borrowing: bool) -> None:
        """Drop the targets that need not go: the last one taken is needed, the others are tried backwards.

        The last target moves to the place of a dropped one, which gives the targets Kueue's order.
        """
        for place in range(len(self.targets) - 2, -1, -1):
            workload = self.targets[place].workload
            self._restore(workload)
            if self.request.fits(borrowing=borrowing):
                last = self.targets.pop()
                if place < len(self.targets):
                    self.targets[place] = last
            else:
                self._release(workload)

    def _release(self, workload: QuotaWorkload) -> None:
        """The set of Workloads stays as it is, so that the queue's order need not be found again."""
        self.tree.queues[workload.held.cluster_queue].remove(workload.held.usage)

    def _restore(self, workload: QuotaWorkload) -> None:
        self.tree.queues[workload.held.cluster_queue].add(workload.held.usage)
