"""The quota trees and their usage, as JSON. Pure.

Of a Cohort all amounts are those of everything below it, too; what depends on verdicts is null where there are none.
A Workload may often choose among flavors, so `pending` is by resource: what the Workloads in the queue request.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaler.decision.describe import timestamp
from scaler.kube.objects.quantity import as_number
from scaler.quota.model import FlavorResource, QuotaWorkload
from scaler.quota.node import CohortNode, QueueNode
from scaler.quota.tree import Tree
from scaler.reporting.views import Json
from scaler.reporting.views.snapshot import ViewSnapshot

Wanted = Callable[[str], bool]
"""Whether a resource is shown."""


def queues_view(snapshot: ViewSnapshot, *, all_resources: bool = False) -> Json:
    """All trees. Without `all_resources` only GPUs are counted."""

    view = _View(snapshot, lambda resource: all_resources or snapshot.gpus.matches(resource))
    trees = sorted(snapshot.trees, key=lambda tree: (isinstance(tree.root, QueueNode), tree.root.name))
    return {
        "at": timestamp(snapshot.at),
        "unjudged": snapshot.unjudged or None,
        "trees": [view.tree(tree) for tree in trees],
    }


@dataclass
class _Sums:
    """What a node and everything below it have together."""

    amounts: Mapping[str, Counter[FlavorResource]]
    """Nominal, used, idle, reclaimable."""
    pending: Counter[str] = field(default_factory=Counter)
    waiting: int = 0

    def add(self, other: "_Sums") -> None:
        for name, amounts in other.amounts.items():
            self.amounts[name].update(amounts)
        self.pending.update(other.pending)
        self.waiting += other.waiting


def _nominal(node: CohortNode | QueueNode) -> Counter[FlavorResource]:
    return Counter({key: quota.nominal for key, quota in node.quotas.items()})


class _View:
    """One answer, with what all its nodes need."""

    def __init__(self, snapshot: ViewSnapshot, is_wanted: Wanted) -> None:
        self._snapshot = snapshot
        self._is_wanted = is_wanted
        self._candidates = {each.workload for each in snapshot.candidates}
        self._waiting: dict[str, list[QuotaWorkload]] = {}
        for workload, _ in snapshot.waiting:
            if workload.reservation is None:
                self._waiting.setdefault(snapshot.cluster_queue_of(workload), []).append(workload)

    def tree(self, tree: Tree) -> Json:
        shown, _ = self._cohort(tree.root) if isinstance(tree.root, CohortNode) else self._queue(tree.root)
        return shown | {"doubts": list(self._snapshot.doubts.get(tree.root.name, ()))}

    def _cohort(self, node: CohortNode) -> tuple[Json, _Sums]:
        below = [self._cohort(each) for each in sorted(node.cohorts, key=lambda each: each.name)]
        below += [self._queue(each) for each in sorted(node.queues, key=lambda each: each.name)]
        sums = _Sums({"nominal": _nominal(node), "used": Counter(), "idle": Counter(), "reclaimable": Counter()})
        for _, each in below:
            sums.add(each)
        shown = {"kind": "Cohort", "name": node.name, "parent": node.spec.parent or None}
        return self._node(node, shown, sums) | {"children": [each for each, _ in below]}, sums

    def _queue(self, node: QueueNode) -> tuple[Json, _Sums]:
        spec, waiting = node.spec, self._waiting.get(node.name, [])
        amounts = {
            "nominal": _nominal(node),
            "used": Counter(node.usage),
            "idle": _held(node, self._snapshot.idle),
            "reclaimable": _held(node, self._candidates),
        }
        pending = sum((Counter(requests) for each in waiting for requests in each.requests), Counter[str]())
        sums = _Sums(amounts, pending=pending, waiting=len(waiting))
        shown = {
            "kind": "ClusterQueue",
            "name": node.name,
            "parent": spec.cohort or None,
            "queueingStrategy": str(spec.strategy),
            "stopPolicy": str(spec.stop_policy),
            "inactiveBecause": spec.inactive_because or None,
        }
        return self._node(node, shown, sums) | {"children": []}, sums

    def _node(self, node: CohortNode | QueueNode, shown: Json, sums: _Sums) -> Json:
        keys = [
            key
            for key in dict.fromkeys([*_declared(node), *sorted({*sums.amounts["nominal"], *sums.amounts["used"]})])
            if self._is_wanted(key.resource)
        ]
        return shown | {
            "waitingGangs": sums.waiting,
            "pending": {
                resource: as_number(resource, amount)
                for resource, amount in sorted(sums.pending.items())
                if self._is_wanted(resource)
            },
            "flavors": [self._flavor(node, key, sums) for key in keys],
        }

    def _flavor(self, node: CohortNode | QueueNode, key: FlavorResource, sums: _Sums) -> Json:
        quota, resource = node.quotas.get(key), key.resource
        is_judged = not self._snapshot.unjudged
        borrowed = max(0, node.usage.get(key, 0) - node.subtree.get(key, 0)) if node.parent is not None else 0
        return {
            "flavor": key.flavor,
            "resource": resource,
            **{
                name: as_number(resource, amounts[key]) if is_judged or name in ("nominal", "used") else None
                for name, amounts in sums.amounts.items()
            },
            "available": as_number(resource, node.available(key)),
            "borrowed": as_number(resource, borrowed),
            "borrowingLimit": _limit(resource, quota.borrowing_limit if quota else None),
            "lendingLimit": _limit(resource, quota.lending_limit if quota else None),
        }


def _declared(node: CohortNode | QueueNode) -> Sequence[FlavorResource]:
    """The flavor resources of its own quota, those of a queue in the order in which they are tried."""
    if isinstance(node, CohortNode):
        return sorted(node.quotas)
    order = {name: place for place, name in enumerate(name for group in node.spec.groups for name in group.flavors)}
    return sorted(node.quotas, key=lambda key: (order.get(key.flavor, len(order)), key))


def _held(node: QueueNode, keys: Iterable[str]) -> Counter[FlavorResource]:
    """What these of its Workloads hold."""
    held: Counter[FlavorResource] = Counter()
    for key in node.workloads.keys() & set(keys):
        held.update(node.workloads[key].held.usage)
    return held


def _limit(resource: str, amount: int | None) -> int | float | None:
    return None if amount is None else as_number(resource, amount)
