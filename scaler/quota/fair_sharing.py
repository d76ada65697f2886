"""Kueue's fair sharing: how much more than its own does a queue or cohort hold?

    ratio(node, resource) = 1000 · Σ over flavors of max(0, usage − subtree) / Σ over flavors of potential(parent)
    share(node)           = the greatest ratio / weight

The root cannot borrow: its share is 0. With weight 0 any borrowing is an infinite share; of two such, the
greater ratio is the greater share.

Worked example: a cohort can lend 8 GPUs in all, a queue of weight 2 owns 1 and uses 5: 1000 · 4 / 8 / 2 = 250.

Floating point on purpose: Kueue compares shares as 64-bit floats, in this order of operations, and a tie there has to
be a tie here.

Source: Kueue, pkg/cache/scheduler/fair_sharing.go; KEP-1714.
"""

from dataclasses import dataclass, field
from math import inf

from scaler.quota.model import FlavorResource, Usage
from scaler.quota.node import TreeNode


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
