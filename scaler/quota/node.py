"""What a queue or cohort of Kueue has, what it uses, and what it may take from the cohorts above it.

Mutable on purpose, and the only thing here that is: the scheduler asks "would it fit without these?" thousands of times
in one plan.

With localQuota = the part that lending limits keep from the parent, for one flavor resource:

    subtree(queue)  = nominal
    subtree(cohort) = own nominal + Σ (subtree(child) − localQuota(child))
    available(root) = subtree − usage                                          (negative when over-admitted)
    available(n)    = max(0, localQuota − usage) + min(available(parent), (subtree − localQuota)
                      − max(0, usage − localQuota) + borrowingLimit)

UNLIMITED quota less anything else is UNLIMITED: with a lending limit, none of it is lent.

Worked example: queues a and b of one cohort, nominal 4 each, b lends at most 1. localQuota(b) = 3, subtree(cohort) =
4 + 1 = 5, so an empty a may take 5; with b using 4 the cohort holds 1 of b's usage and a may take 4.

Source: Kueue, pkg/cache/scheduler/resource_node.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter

from scaler.kube.objects.quantity import UNLIMITED
from scaler.quota.model import FlavorResource, Quota, QuotaClusterQueue, QuotaCohort, QuotaWorkload, Usage

Rank = tuple[bool, int, timedelta, str]
"""Place in the order of preemption: whether it is not evicted yet, priority, how early it was reserved, uid."""
Ranked = tuple[Rank, QuotaWorkload]

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


def _rank(workload: QuotaWorkload) -> Rank:
    """The rank: those evicted already come first, then lower priorities, then later reservations."""
    return not workload.evicted, workload.priority, _END_OF_TIME - workload.held.at, workload.uid


def _kept(quota: int, limit: int) -> int:
    """What of the quota is not lent."""
    return UNLIMITED if quota >= UNLIMITED > limit else max(0, quota - limit)


def _holds(workload: QuotaWorkload, keys: frozenset[FlavorResource]) -> bool:
    if not keys.isdisjoint(workload.held.usage):
        return True
    return any(each.flavors.get(key.resource) == key.flavor for each in workload.held.assignments for key in keys)


class TreeNode:
    __slots__ = (
        "_lendable",
        "_local",
        "_potential",
        "fair_weight",
        "height",
        "name",
        "parent",
        "quotas",
        "subtree",
        "usage",
    )

    def __init__(self, name: str, quotas: Mapping[FlavorResource, Quota], fair_weight: float) -> None:
        self.name = name
        self.quotas = quotas
        self.fair_weight = fair_weight
        self.parent: CohortNode | None = None
        self.subtree: dict[FlavorResource, int] = {}
        self.usage: dict[FlavorResource, int] = {}
        self.height = 0
        """Distance to the farthest leaf; that of a ClusterQueue is 0."""
        self._local: dict[FlavorResource, int] = {}
        self._potential: dict[FlavorResource, int] = {}
        self._lendable: dict[str, int] = {}

    def ancestors(self) -> Iterator["CohortNode"]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def local_available(self, key: FlavorResource) -> int:
        local = self._local.get(key)
        return max(0, local - self.usage.get(key, 0)) if local else 0

    def stored_above(self, key: FlavorResource) -> int:
        """How much of the usage here counts in the parent too."""
        return max(0, self.usage.get(key, 0) - self._local.get(key, 0))

    def raw_available(self, key: FlavorResource) -> int:
        """What is left here, cohorts included; negative where more is used than there is."""
        parent = self.parent
        if parent is None:
            return self.subtree.get(key, 0) - self.usage.get(key, 0)
        from_parent = parent.raw_available(key)
        quota = self.quotas.get(key)
        if quota is not None and quota.borrowing_limit is not None:
            local = self._local.get(key, 0)
            stored = self.subtree.get(key, 0) - local - max(0, self.usage.get(key, 0) - local)
            from_parent = min(from_parent, stored + quota.borrowing_limit)
        return self.local_available(key) + from_parent

    def available(self, key: FlavorResource) -> int:
        return max(0, self.raw_available(key))

    def potential(self, key: FlavorResource) -> int:
        """The most that could ever be got here, were nothing used."""
        known = self._potential.get(key)
        if known is None:
            known = self.subtree.get(key, 0)
            if self.parent is not None:
                quota, own = self.quotas.get(key), known
                known = self._local.get(key, 0) + self.parent.potential(key)
                if quota is not None and quota.borrowing_limit is not None:
                    known = min(known, own + quota.borrowing_limit)
            self._potential[key] = known
        return known

    def lendable(self) -> Mapping[str, int]:
        """The most that could be got here of every resource that the tree has, whatever the flavor.

        Source: Kueue, calculateLendable.
        """
        if not self._lendable:
            *_, root = (self, *self.ancestors())
            for key in root.subtree:
                most = self._lendable.get(key.resource, 0) + self.potential(key)
                self._lendable[key.resource] = min(most, UNLIMITED)
        return self._lendable

    def borrows_with(self, key: FlavorResource, amount: int = 0) -> bool:
        return self.usage.get(key, 0) + amount > self.subtree.get(key, 0)

    def keeps_any(self, keys: Iterable[FlavorResource]) -> bool:
        """Whether lending limits keep any quota of these from the parent."""
        return any(key in self._local for key in keys)

    def is_within_borrowing_limit(self, key: FlavorResource, amount: int) -> bool:
        """Whether the node's own limit lets it use so much more, wherever that comes from."""
        quota = self.quotas.get(key)
        if quota is None or quota.borrowing_limit is None:
            return True
        return self.usage.get(key, 0) + amount <= self.subtree.get(key, 0) + quota.borrowing_limit

    def is_within_quota(self, keys: Iterable[FlavorResource]) -> bool:
        for key in keys:  # noqa: SIM110  # asked for every candidate of every search, where all() costs twice as much
            if self.usage.get(key, 0) > self.subtree.get(key, 0):
                return False
        return True

    def add(self, usage: Usage) -> None:
        """Count the usage here; what exceeds the local quota counts in the parent too."""
        for key, amount in usage.items():
            node: TreeNode | None = self
            passed_on = amount
            while node is not None:
                local = node.local_available(key)
                node.usage[key] = node.usage.get(key, 0) + passed_on
                if passed_on <= local:
                    break
                passed_on -= local
                node = node.parent

    def remove(self, usage: Usage) -> None:
        """Take the usage back from here and from wherever it was counted above."""
        for key, amount in usage.items():
            node: TreeNode | None = self
            passed_on = amount
            while node is not None:
                used = node.usage.get(key, 0)
                node.usage[key] = used - passed_on
                counted_above = used - node._local.get(key, 0)
                if counted_above <= 0:
                    break
                passed_on = min(passed_on, counted_above)
                node = node.parent

    def remainder(self, wanted: Usage) -> tuple[bool, dict[FlavorResource, int]]:
        """Whether the amounts fit the node's own quota, and what of them its parent would have to give."""
        fits = not any(self.borrows_with(key, amount) for key, amount in wanted.items())
        return fits, {key: max(0, amount - self.local_available(key)) for key, amount in wanted.items()}

    def _settle(self) -> None:
        self._potential = {}
        self._lendable = {}
        self._local = {
            key: local
            for key, quota in self.quotas.items()
            if quota.lending_limit is not None and (local := _kept(self.subtree.get(key, 0), quota.lending_limit))
        }

    def _copy_into(self, other: "TreeNode") -> None:
        other.name, other.quotas, other.fair_weight = self.name, self.quotas, self.fair_weight
        other.parent, other.subtree, other.usage = None, self.subtree, self.usage.copy()
        other.height, other._local = self.height, self._local
        other._potential, other._lendable = self._potential, self._lendable


class CohortNode(TreeNode):
    __slots__ = ("cohorts", "queues", "spec")

    def __init__(self, spec: QuotaCohort) -> None:
        super().__init__(spec.name, spec.quotas, spec.fair_weight)
        self.spec = spec
        self.cohorts: list[CohortNode] = []
        self.queues: list[QueueNode] = []

    def settle(self) -> None:
        """Add up what is below. Its ClusterQueues are settled already."""
        self.subtree = {key: quota.nominal for key, quota in self.quotas.items()}
        self.usage = {}
        for cohort in self.cohorts:
            cohort.settle()
        for child in (*self.cohorts, *self.queues):
            self._accumulate(child)
        # A queue that does not schedule is no leaf: the scheduler's snapshot has it in the sums only.
        leaf = any(queue.spec.schedules for queue in self.queues)
        self.height = max([cohort.height + 1 for cohort in self.cohorts] + [int(leaf)])
        self._settle()

    def _accumulate(self, child: TreeNode) -> None:
        local, subtree, usage = child._local, self.subtree, self.usage
        for key, quota in child.subtree.items():
            total = subtree.get(key, 0) + quota - (local.get(key, 0) if local else 0)
            subtree[key] = total if total < UNLIMITED else UNLIMITED
        for key, used in child.usage.items():
            stored = used - local.get(key, 0) if local else used
            if stored > 0:
                usage[key] = usage.get(key, 0) + stored

    def detached(self) -> "CohortNode":
        """A copy with quota and usage, in no tree."""
        copy = CohortNode.__new__(CohortNode)
        copy.spec, copy.cohorts, copy.queues = self.spec, [], []
        self._copy_into(copy)
        return copy


class QueueNode(TreeNode):
    """A ClusterQueue and the Workloads that hold quota in it."""

    __slots__ = ("_ranked", "spec", "workloads")

    def __init__(self, spec: QuotaClusterQueue) -> None:
        super().__init__(spec.name, spec.quotas, spec.fair_weight)
        self.spec = spec
        self.workloads: dict[str, QuotaWorkload] = {}
        """The Workloads that hold quota here, by key. Change it by `reserve` and `release` only."""
        self._ranked: dict[frozenset[FlavorResource], tuple[Ranked, ...]] = {}

    def holders_of(self, keys: frozenset[FlavorResource]) -> tuple[Ranked, ...]:
        """The Workloads that any of it was assigned to, even an amount of none: the first to be preempted first.

        Found once for a given set of Workloads, and shared with clones: searches ask for it far more often than the set
        changes.
        """
        known = self._ranked.get(keys)
        if known is None:
            ranked = [(_rank(workload), workload) for workload in self.workloads.values() if _holds(workload, keys)]
            known = self._ranked[keys] = tuple(sorted(ranked, key=itemgetter(0)))
        return known

    def detached(self) -> "QueueNode":
        """A copy with quota, usage and Workloads, in no tree."""
        copy = QueueNode.__new__(QueueNode)
        copy.spec, copy.workloads, copy._ranked = self.spec, self.workloads.copy(), self._ranked
        self._copy_into(copy)
        return copy

    def settle(self) -> None:
        self._ranked = {}
        self.subtree = {key: quota.nominal for key, quota in self.quotas.items()}
        self.usage = {}
        for workload in self.workloads.values():
            for key, amount in workload.held.usage.items():
                self.usage[key] = self.usage.get(key, 0) + amount
        self._settle()

    def specify(self, spec: QuotaClusterQueue) -> bool:
        """Take another specification of the same name. Whether sums above may be others by that."""
        if spec is self.spec:
            return False
        before, self.spec = self.spec, spec
        self.fair_weight = spec.fair_weight
        if before.quotas is not spec.quotas and before.quotas != spec.quotas:
            self.quotas = spec.quotas
            self.settle()
            return True
        return before.schedules != spec.schedules

    def detach(self) -> None:
        """Take it out of its tree, for another one. What was found out about that is forgotten."""
        self.parent = None
        self._potential, self._lendable = {}, {}

    def nominal(self, key: FlavorResource) -> int:
        quota = self.quotas.get(key)
        return quota.nominal if quota is not None else 0

    def reserve(self, workload: QuotaWorkload) -> None:
        self.workloads[workload.key] = workload
        self._ranked = {}
        self.add(workload.held.usage)

    def release(self, workload: QuotaWorkload) -> None:
        released = self.workloads.pop(workload.key)
        self._ranked = {}
        self.remove(released.held.usage)

    def fits(self, usage: Usage) -> bool:
        for key, amount in usage.items():  # noqa: SIM110  # as above
            if amount > 0 and self.raw_available(key) < amount:
                return False
        return True

    def lowest_fit(self, key: FlavorResource, amount: int) -> tuple[int, bool]:
        """Height of the lowest subtree whose own quota holds so much more, and whether that is not the whole tree.

        Height 0 needs no borrowing. Where no subtree holds it, the height of the whole tree.
        Source: Kueue, FindHeightOfLowestSubtreeThatFits.
        """
        if self.parent is None or not self.borrows_with(key, amount):
            return 0, self.parent is not None
        remaining, node = amount - self.local_available(key), self.parent
        for node in self.ancestors():
            if not node.borrows_with(key, remaining):
                return node.height, node.parent is not None
            remaining -= node.local_available(key)
        return node.height, False
