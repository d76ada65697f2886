"""Whom would Kueue preempt so that a Workload fits, and what would it gain by it?

`find_targets` answers for a whole Workload, `foresee` for one flavor resource, so that flavors can be compared before
one is chosen. Neither changes the tree. How targets are found is in `classical` and `fair_preemption`, whom the
policies allow in `candidates`.

Source: Kueue, pkg/scheduler/preemption (preemption.go, preemption_oracle.go, policy.go).
"""

from collections.abc import Sequence
from enum import IntEnum

from scaler.core.quota import classical, fair_preemption
from scaler.core.quota.amounts import FlavorResource, Usage
from scaler.core.quota.candidates import Claim, Reason, Target
from scaler.core.quota.fair_preemption import DEFAULT_STRATEGIES, Strategy
from scaler.core.quota.model import ClusterQueue, PreemptionPolicy, Workload
from scaler.core.quota.node import QueueNode
from scaler.core.quota.tree import Tree

__all__ = ["Possibility", "Reason", "Strategy", "Target", "can_always_reclaim", "find_targets", "foresee"]


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
    preemptor: Workload,
    usage: Usage,
    contested: frozenset[FlavorResource],
    *,
    fair_sharing: bool,
    strategies: Sequence[Strategy] = DEFAULT_STRATEGIES,
) -> tuple[Target, ...]:
    """The Workloads that have to go so that the usage fits, in Kueue's order; none where no choice is enough.

    `contested` holds what of the usage does not fit as things are.
    """
    claim = Claim(queue=queue, workload=preemptor, usage=usage, contested=contested)
    return fair_preemption.find(tree, claim, strategies) if fair_sharing else classical.find(tree, claim)


def foresee(
    tree: Tree,
    queue: QueueNode,
    preemptor: Workload,
    key: FlavorResource,
    amount: int,
    *,
    fair_sharing: bool,
    strategies: Sequence[Strategy] = DEFAULT_STRATEGIES,
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


def can_always_reclaim(spec: ClusterQueue) -> bool:
    """Whether the queue can be sure to get its lent quota back, so that nothing need be kept for a waiting Workload."""
    return spec.preemption.reclaim_within_cohort is PreemptionPolicy.ANY
