"""What becomes of a nominated head, after what the heads before it have taken?

| the head's assignment                   | what happens to it                                                      |
|-----------------------------------------|-------------------------------------------------------------------------|
| does not fit                            | goes back                                                               |
| needs preemption, there is no candidate | goes back; quota is kept for it, unless its queue can always reclaim    |
| needs preemption, the victims are free  | they are preempted and their quota is taken; goes back and comes first  |
| needs a victim that another has taken   | is assigned anew as if all victims so far were gone: it finds others,   |
|                                         | or waits for these too                                                  |
| fits no longer, after those before it   | is skipped, and goes on with the next flavor                            |
| fits                                    | is admitted                                                             |

Laws:

* No Workload is preempted twice in one cycle.
* A head that waits for preemptions considers all flavors again in the next cycle; one that is skipped goes on where it
  stopped.
* An admission ends an eviction: where age counts among victims, it is that of the Workload again.

Worked example: a and b own 2 each, and one Workload of c has borrowed all 4. The head of a preempts it. The head of b
would have, too; assigned anew as if it were gone, it fits, so it waits for the same eviction.

Source: Kueue, pkg/scheduler/scheduler.go (processEntry, getInitialAssignments, updateAssignmentIfNeeded).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from scaler.quota.demands import NOTHING_TRIED, Assignment, AssignmentMode, PendingReason, QuotaDemand, Tried
from scaler.quota.flavors import FlavorVerdict, assign_flavors, largest_that_fits, never_preempts
from scaler.quota.model import FlavorResource, PreemptionPolicy, QuotaWorkload, Reservation, Usage
from scaler.quota.node import QueueNode, TreeNode
from scaler.quota.preemption import classical, fair_sharing
from scaler.quota.preemption.candidates import PreemptionReason, PreemptionRequest, PreemptionTarget
from scaler.quota.preemption.fair_sharing import PreemptionStrategy
from scaler.quota.queues import CycleOutcome, PendingQueue
from scaler.quota.tree import Tree


def find_targets(
    tree: Tree, request: PreemptionRequest, strategies: Sequence[PreemptionStrategy] | None
) -> tuple[PreemptionTarget, ...]:
    """The Workloads that have to go so that the request fits, in Kueue's order; none where no choice is enough.

    `strategies` are those of fair sharing; None without it. The tree is left as it was.
    """
    if strategies is None:
        return classical.find(tree, request)
    return fair_sharing.find(tree, request, strategies)


def foresee(
    tree: Tree, request: PreemptionRequest, strategies: Sequence[PreemptionStrategy] | None
) -> tuple[FlavorVerdict, int]:
    """What preemption could do for one flavor resource alone, and the borrow level after it.

    The borrow level is the height of the lowest subtree whose own quota would hold the amount.
    Source: Kueue, pkg/scheduler/preemption/preemption_oracle.go.
    """
    [(key, amount)] = request.usage.items()
    held = [target.workload.held for target in find_targets(tree, request, strategies)]
    for each in held:
        tree.queues[each.cluster_queue].remove(each.usage)
    level, _ = request.queue.lowest_fit(key, amount)
    for each in held:
        tree.queues[each.cluster_queue].add(each.usage)
    if not held:
        return FlavorVerdict.NO_CANDIDATES, level
    own = any(each.cluster_queue == request.queue.name for each in held)
    return FlavorVerdict.PREEMPT if own else FlavorVerdict.RECLAIM, level


class Preempted(NamedTuple):
    workload: QuotaWorkload
    """The Workload as it still holds its quota."""
    reason: PreemptionReason
    by: str
    """Key of the Workload for which it goes."""


@dataclass(slots=True, eq=False)
class NominatedHead:
    number: int
    workload: QuotaWorkload
    queue: QueueNode
    line: PendingQueue
    demand: QuotaDemand
    tried: Tried
    assignment: Assignment
    targets: tuple[PreemptionTarget, ...]
    outcome: CycleOutcome = CycleOutcome.NO_FIT
    obstacle: PendingReason | None = None

    @property
    def usage(self) -> Usage:
        return self.assignment.usage

    @property
    def progress(self) -> Tried:
        """The begin of its next search for flavors.

        After preemptions it looks at all flavors again: with the victims gone, another may be better.
        """
        return NOTHING_TRIED if self.outcome is CycleOutcome.PENDING_PREEMPTION else self.assignment.tried


class Nominations:
    def __init__(
        self, tree: Tree, number: int, at: datetime, strategies: Sequence[PreemptionStrategy] | None = None
    ) -> None:
        self._tree = tree
        self.number = number
        self._at = at
        self._strategies = strategies
        self._victims: dict[str, QuotaWorkload] = {}
        self._before: dict[TreeNode, dict[FlavorResource, int]] = {}
        self.done: list[NominatedHead] = []
        self.assigned: dict[Hashable, tuple[Assignment, tuple[PreemptionTarget, ...]]] = {}
        """Assignments by what makes heads alike; as long as none was processed."""
        self.admitted: list[QuotaWorkload] = []
        self.preempted: list[Preempted] = []

    # ---------------------------------------------------------------------------------------------------- assignment

    def assign(
        self,
        queue: QueueNode,
        workload: QuotaWorkload,
        demand: QuotaDemand,
        tried: Tried = NOTHING_TRIED,
        pins: tuple[Mapping[str, str], ...] | None = None,
    ) -> tuple[Assignment, tuple[PreemptionTarget, ...]]:
        """The flavors for the Workload, or for fewer of its pods, and its preemption targets.

        Without victims an assignment that needs some is one that has to wait.
        """

        def look_ahead(key: FlavorResource, amount: int) -> tuple[FlavorVerdict, int]:
            request = PreemptionRequest(queue, workload, {key: amount}, frozenset({key}))
            return foresee(self._tree, request, self._strategies)

        def attempt(demand: QuotaDemand) -> tuple[Assignment, tuple[PreemptionTarget, ...]]:
            found = assign_flavors(
                queue, demand, look_ahead, tried=tried, pins=pins, fair_sharing=self._strategies is not None
            )
            if found.mode is not AssignmentMode.PREEMPT or never_preempts(queue.spec):
                return found, ()
            request = PreemptionRequest(queue, workload, found.claim, found.contested)
            return found, find_targets(self._tree, request, self._strategies)

        whole = attempt(demand)
        if _helps(whole) or not demand.dispensable:
            return whole
        return largest_that_fits(demand, attempt, _helps) or whole

    def _assign_without_victims(self, head: NominatedHead) -> None:
        """Assign the head anew as if all victims of this cycle were gone, in the flavors that it was nominated with."""
        for victim in self._victims.values():
            self._holder(victim).release(victim)
        pins = tuple(choice.flavors for choice in head.assignment.choices)
        assignment, head.targets = self.assign(head.queue, head.workload, head.demand, pins=pins)
        for victim in self._victims.values():
            self._holder(victim).reserve(victim)
        if assignment.mode is AssignmentMode.FIT:
            assignment = replace(assignment, mode=AssignmentMode.DEFERRED_FIT)
        head.assignment = assignment

    # ----------------------------------------------------------------------------------------------------- processing

    def process(self, head: NominatedHead) -> None:
        if self._victims and any(target.workload.key in self._victims for target in head.targets):
            self._assign_without_victims(head)
        match head.assignment.mode:
            case AssignmentMode.NO_FIT:
                head.outcome, head.obstacle = CycleOutcome.NO_FIT, head.assignment.obstacle
            case AssignmentMode.PREEMPT if not head.targets:
                head.outcome, head.obstacle = CycleOutcome.NO_CANDIDATES, PendingReason.WAITING_FOR_QUOTA
                # A queue that may reclaim from any is sure to get what it has lent back.
                if head.queue.spec.preemption.reclaim_within_cohort is not PreemptionPolicy.ANY:
                    self._reserve(head.queue, _kept_for(head))
            case AssignmentMode.DEFERRED_FIT:
                self._wait_for_preempted(head)
            case _ if not self._fits(head):
                head.outcome, head.obstacle = CycleOutcome.SKIPPED, PendingReason.WAITING_FOR_QUOTA
            case AssignmentMode.PREEMPT:
                self._preempt(head)
            case _:
                self._admit(head)
        self.done.append(head)

    def _fits(self, head: NominatedHead) -> bool:
        if not (self._victims or head.targets):
            return head.queue.fits(head.usage)
        gone = self._victims | {target.workload.key: target.workload for target in head.targets}
        for workload in gone.values():
            self._holder(workload).remove(workload.held.usage)
        fits = head.queue.fits(head.usage)
        for workload in gone.values():
            self._holder(workload).add(workload.held.usage)
        return fits

    def _preempt(self, head: NominatedHead) -> None:
        for target in head.targets:
            self._victims[target.workload.key] = target.workload
            if not target.workload.evicted:
                self.preempted.append(Preempted(target.workload, target.reason, head.workload.key))
        self._wait_for_preempted(head)

    def _wait_for_preempted(self, head: NominatedHead) -> None:
        self._reserve(head.queue, head.usage)
        head.outcome, head.obstacle = CycleOutcome.PENDING_PREEMPTION, PendingReason.WAITING_FOR_PREEMPTED_WORKLOADS

    def _admit(self, head: NominatedHead) -> None:
        self._reserve(head.queue, head.usage)
        head.outcome = CycleOutcome.ADMITTED
        reservation = Reservation(
            cluster_queue=head.queue.name, at=self._at, assignments=head.assignment.pod_sets, usage=head.usage
        )
        workload = head.workload
        flavors = {flavor for each in reservation.assignments for flavor in each.flavors.values()}
        self.admitted.append(
            replace(
                workload,
                reservation=reservation,
                admitted=not head.queue.spec.checks_on(flavors),
                queued_at=workload.created_at or workload.queued_at,
            )
        )

    # ------------------------------------------------------------------------------------------------------ the tree

    def _holder(self, workload: QuotaWorkload) -> QueueNode:
        return self._tree.queues[workload.held.cluster_queue]

    def _reserve(self, queue: QueueNode, usage: Usage) -> None:
        for node in (queue, *queue.ancestors()):
            if node not in self._before:
                self._before[node] = node.usage
                node.usage = node.usage.copy()
        queue.add(usage)

    def forget_reserved(self) -> None:
        for node, usage in self._before.items():
            node.usage = usage
        for workload in self.admitted:
            self._holder(workload).reserve(workload)


def _helps(attempt: tuple[Assignment, tuple[PreemptionTarget, ...]]) -> bool:
    assignment, targets = attempt
    return assignment.mode is AssignmentMode.FIT or bool(targets)


def _kept_for(head: NominatedHead) -> dict[FlavorResource, int]:
    """The quota that is kept for a head that waits, so that no head of lower rank takes it meanwhile.

    Source: Kueue, quotaResourcesToReserve.
    """
    kept: dict[FlavorResource, int] = {}
    for key, amount in head.usage.items():
        own, used = head.queue.nominal(key), head.queue.usage.get(key, 0)
        if not head.assignment.borrows:
            kept[key] = max(0, min(amount, own - used))
            continue
        quota = head.queue.quotas.get(key)
        limit = quota.borrowing_limit if quota is not None else None
        kept[key] = amount if limit is None else min(amount, own + limit - used)
    return kept
