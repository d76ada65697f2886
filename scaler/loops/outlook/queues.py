"""The quota trees with who uses what, as JSON. Pure.

Per flavor resource of a ClusterQueue or Cohort:

| field          | meaning                                                                                        |
|----------------|------------------------------------------------------------------------------------------------|
| `nominal`      | its own quota; of a Cohort, that of everything below it too                                    |
| `used`         | what Workloads hold; of a Cohort, in all queues below it                                       |
| `idle`         | of that, by Workloads that are idle by their verdict                                           |
| `reclaimable`  | of that, by Workloads that a plan may take now                                                 |
| `available`    | what a Workload could still get there now, borrowing included                                  |
| `borrowed`     | used beyond its own quota (of a Cohort: beyond that of its subtree)                            |
| `borrowingLimit`, `lendingLimit` | as specified; null is no limit                                               |

What waits may often choose among flavors, so `pending` is told by resource: what those who wait in the queue ask for.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaler.core.quota.amounts import FlavorResource
from scaler.core.quota.model import Workload
from scaler.core.quota.tree import CohortNode, QueueNode, Tree
from scaler.loops.outlook.amounts import number, number_or_none
from scaler.loops.outlook.survey import Survey
from scaler.loops.projection import timestamp

Json = dict[str, Any]
Wanted = Callable[[str], bool]
"""Whether a resource is shown."""


def queues_view(survey: Survey, *, all_resources: bool = False) -> Json:
    """All trees. Without `all_resources` only GPUs are counted."""

    def is_wanted(resource: str) -> bool:
        return all_resources or survey.gpus.matches(resource)

    view = _View(survey, is_wanted)
    trees = sorted(survey.trees, key=lambda tree: (isinstance(tree.root, QueueNode), tree.root.name))
    return {
        "at": timestamp(survey.at),
        "unjudged": survey.unjudged or None,
        "trees": [view.tree(tree) for tree in trees],
    }


@dataclass
class _Sums:
    """What a node and everything below it have together."""

    nominal: Counter[FlavorResource] = field(default_factory=Counter)
    used: Counter[FlavorResource] = field(default_factory=Counter)
    idle: Counter[FlavorResource] = field(default_factory=Counter)
    reclaimable: Counter[FlavorResource] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)
    waiting: int = 0

    def add(self, other: "_Sums") -> None:
        for mine, theirs in (
            (self.nominal, other.nominal),
            (self.used, other.used),
            (self.idle, other.idle),
            (self.reclaimable, other.reclaimable),
        ):
            mine.update(theirs)
        self.pending.update(other.pending)
        self.waiting += other.waiting

    @property
    def keys(self) -> Iterator[FlavorResource]:
        yield from self.nominal
        yield from self.used


class _View:
    """One answer, with what all its nodes need."""

    def __init__(self, survey: Survey, is_wanted: Wanted) -> None:
        self._survey = survey
        self._is_wanted = is_wanted
        self._candidates = {each.workload for each in survey.candidates}
        self._waiting: dict[str, list[Workload]] = {}
        for workload, _ in survey.waiting:
            if workload.reservation is None:
                self._waiting.setdefault(survey.cluster_queue_of(workload), []).append(workload)

    def tree(self, tree: Tree) -> Json:
        shown, _ = self._cohort(tree.root) if isinstance(tree.root, CohortNode) else self._queue(tree.root)
        return shown | {"doubts": list(self._survey.doubts.get(tree.root.name, ()))}

    def _cohort(self, node: CohortNode) -> tuple[Json, _Sums]:
        below = [self._cohort(each) for each in sorted(node.cohorts, key=_by_name)]
        below += [self._queue(each) for each in sorted(node.queues, key=_by_name)]
        sums = _Sums(nominal=Counter({key: quota.nominal for key, quota in node.quotas.items()}))
        for _, each in below:
            sums.add(each)
        shown = {"kind": "Cohort", "name": node.name, "parent": node.spec.parent or None}
        return self._node(node, shown, sums) | {"children": [each for each, _ in below]}, sums

    def _queue(self, node: QueueNode) -> tuple[Json, _Sums]:
        spec, waiting = node.spec, self._waiting.get(node.name, [])
        sums = _Sums(
            nominal=Counter({key: quota.nominal for key, quota in node.quotas.items()}),
            used=Counter(node.usage),
            idle=_held(node, self._survey.idle),
            reclaimable=_held(node, self._candidates),
            pending=_asked_for(waiting),
            waiting=len(waiting),
        )
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
        keys = [key for key in dict.fromkeys([*_declared(node), *sorted(sums.keys)]) if self._is_wanted(key.resource)]
        return shown | {
            "waitingGangs": sums.waiting,
            "pending": {
                resource: number(resource, amount)
                for resource, amount in sorted(sums.pending.items())
                if self._is_wanted(resource)
            },
            "flavors": [self._flavor(node, key, sums) for key in keys],
        }

    def _flavor(self, node: CohortNode | QueueNode, key: FlavorResource, sums: _Sums) -> Json:
        quota, resource = node.quotas.get(key), key.resource
        is_judged = not self._survey.unjudged
        borrowed = max(0, node.usage.get(key, 0) - node.subtree.get(key, 0)) if node.parent is not None else 0
        return {
            "flavor": key.flavor,
            "resource": resource,
            "nominal": number(resource, sums.nominal[key]),
            "used": number(resource, sums.used[key]),
            "idle": number(resource, sums.idle[key]) if is_judged else None,
            "reclaimable": number(resource, sums.reclaimable[key]) if is_judged else None,
            "available": number(resource, node.available(key)),
            "borrowed": number(resource, borrowed),
            "borrowingLimit": number_or_none(resource, quota.borrowing_limit if quota else None),
            "lendingLimit": number_or_none(resource, quota.lending_limit if quota else None),
        }


def _by_name(node: CohortNode | QueueNode) -> str:
    return node.name


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


def _asked_for(waiting: Iterable[Workload]) -> Counter[str]:
    asked: Counter[str] = Counter()
    for workload in waiting:
        for requests in workload.requests:
            asked.update(requests)
    return asked
