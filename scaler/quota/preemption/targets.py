"""Which Workloads would Kueue preempt so that another fits, and what would it gain by it?

`find_targets` answers for a whole Workload, `foresee` for one flavor resource, so that flavors can be compared before
one is chosen. Neither changes the tree. How targets are found is in `classical` and `fair_sharing`; which
Workloads the policies allow, in `candidates`.

Source: Kueue, pkg/scheduler/preemption (preemption.go, preemption_oracle.go, policy.go).
"""

from collections.abc import Sequence
from enum import IntEnum

from scaler.quota.model import FlavorResource, PreemptionPolicy, QuotaClusterQueue, QuotaWorkload, Usage
from scaler.quota.node import QueueNode
from scaler.quota.preemption import classical
from scaler.quota.preemption import fair_sharing as fair_preemption
from scaler.quota.preemption.candidates import PreemptionReason, PreemptionRequest, PreemptionTarget
from scaler.quota.preemption.fair_sharing import DEFAULT_STRATEGIES, PreemptionStrategy
from scaler.quota.tree import Tree

__all__ = [
    "Possibility",
    "PreemptionReason",
    "PreemptionStrategy",
    "PreemptionTarget",
    "can_always_reclaim",
    "find_targets",
    "foresee",
]


class Possibility(IntEnum):
    """What preemption could do for one flavor resource; more is better."""

    NO_CANDIDATES = 0
    PREEMPT = 1
    """Some of the queue's own Workloads would have to go."""
    RECLAIM = 2
    """Only Workloads of other queues would."""


def find_targets(
    tree: Tree,
    queue: QueueNode,
    preemptor: QuotaWorkload,
    usage: Usage,
    contested: frozenset[FlavorResource],
    *,
    fair_sharing: bool,
    strategies: Sequence[PreemptionStrategy] = DEFAULT_STRATEGIES,
) -> tuple[PreemptionTarget, ...]:
    """The Workloads that have to go so that the usage fits, in Kueue's order; none where no choice is enough.

    `contested` holds what of the usage does not fit as things are.
    """
    claim = PreemptionRequest(queue=queue, workload=preemptor, usage=usage, contested=contested)
    return fair_preemption.find(tree, claim, strategies) if fair_sharing else classical.find(tree, claim)


def foresee(
    tree: Tree,
    queue: QueueNode,
    preemptor: QuotaWorkload,
    key: FlavorResource,
    amount: int,
    *,
    fair_sharing: bool,
    strategies: Sequence[PreemptionStrategy] = DEFAULT_STRATEGIES,
) -> tuple[Possibility, int]:
    """What preemption could do for the amount alone, and the borrow level after it.

    The borrow level is the height of the lowest subtree whose own quota would hold the amount.
    """
    targets = find_targets(
        tree, queue, preemptor, {key: amount}, frozenset({key}), fair_sharing=fair_sharing, strategies=strategies
    )
    holders = [(tree.queues[target.workload.held.cluster_queue], target.workload.held.usage) for target in targets]
    for holder, usage in holders:
        holder.remove(usage)
    level, _ = queue.lowest_fit(key, amount)
    for holder, usage in holders:
        holder.add(usage)
    if not targets:
        return Possibility.NO_CANDIDATES, level
    own = any(holder is queue for holder, _ in holders)
    return Possibility.PREEMPT if own else Possibility.RECLAIM, level


def can_always_reclaim(spec: QuotaClusterQueue) -> bool:
    """Whether the queue can be sure to get its lent quota back, so that nothing need be kept for a waiting Workload."""
    return spec.preemption.reclaim_within_cohort is PreemptionPolicy.ANY
