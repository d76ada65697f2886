"""What do the ClusterQueues of this cluster have, by GPU flavor? For the status of a ClusterOffer. Computes only.

| of a flavor   | is                                                                                     |
|---------------|----------------------------------------------------------------------------------------|
| `nominal`     | the ClusterQueue's own quota                                                           |
| `free`        | what a Workload could get now, borrowing included                                      |
| `idle`        | what Workloads hold whose every verdict is Idle                                        |
| `reclaimable` | what of that plans may take; 0 where none are made                                     |
| `models`      | the models of its GPUs that were seen in pods of its Workloads                         |

`largestGang` is about a gang of pods with one GPU each, all in one flavor as Kueue assigns them: the smaller of `free`
and of the pods for which nodes of that flavor have a GPU, in the best of its flavors. `afterReclaim` is the same with
all reclaimable Workloads gone, and with those that are being suspended anyway.

Laws:

* Two ClusterQueues of a cohort may show the same free quota: whichever admits first has it.
* The gang is counted from sums, and not planned for: Workloads that wait before it, and budgets, are not counted. How a
  certain gang fits is what its own entry of the status says.
* A ClusterQueue that admits nothing has nothing free. One of a tree that cannot be read is left out.

Tempting: to ask the planner about ever larger gangs. That is a dozen plans for each of a hundred ClusterQueues.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scaler.kube.objects.multikueue import ClusterQueueOffer, FlavorOffer, LargestGang
from scaler.placement.capacity import Capacity
from scaler.placement.node_index import demand_of
from scaler.quota.forecast import without
from scaler.quota.model import Flavor, FlavorResource, QuotaPodSet
from scaler.quota.node import QueueNode
from scaler.quota.tree import Tree

_MOST_QUEUES, _MOST_FLAVORS, _MOST_MODELS = 1_000, 256, 64
"""The CustomResourceDefinition allows no more."""


@dataclass(frozen=True, kw_only=True)
class OfferInputs:
    """Copies: nothing in it changes any more."""

    trees: Sequence[Tree]
    """The trees that can be read."""
    flavors: Mapping[str, Flavor]
    is_gpu: Callable[[str], bool]
    """Whether a resource counts as GPUs."""
    idle: Collection[str] = frozenset()
    """Keys of the Workloads that are idle."""
    reclaimable: Collection[str] = frozenset()
    """Keys of those of them that plans may take."""
    leaving: Collection[str] = frozenset()
    """Keys of Workloads that are being suspended anyway."""
    models: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The models of the GPUs of Workloads, by key, as far as they were seen."""
    capacity: Capacity | None = None
    """What nodes have free; None where that does not matter."""

    @property
    def gone(self) -> frozenset[str]:
        """Keys of all that may go."""
        return frozenset(self.reclaimable) | frozenset(self.leaving)

    @cached_property
    def slots_now(self) -> "_GpuSlots":
        return _GpuSlots(self.capacity, self.flavors)

    @cached_property
    def slots_after_reclaim(self) -> "_GpuSlots":
        capacity = self.capacity
        return _GpuSlots(capacity and capacity.once_ended().without(self.gone), self.flavors)


def cluster_queue_offers(inputs: OfferInputs) -> tuple[ClusterQueueOffer, ...]:
    """The ClusterQueues with quota for GPUs, in the order of their names."""
    found = (each for tree in inputs.trees for each in _offers_of(tree, inputs))
    return tuple(sorted(found, key=lambda each: each.name)[:_MOST_QUEUES])


def _offers_of(tree: Tree, inputs: OfferInputs) -> Iterator[ClusterQueueOffer]:
    after = without(tree, inputs.gone)
    for queue in tree.queues.values():
        keys = [key for key in queue.quotas if inputs.is_gpu(key.resource)]
        if keys:
            yield ClusterQueueOffer(
                name=queue.name,
                flavors=tuple(_flavors_of(queue, keys, inputs))[:_MOST_FLAVORS],
                largest_gang=LargestGang(
                    now=_largest_gang(queue, keys, inputs.slots_now),
                    after_reclaim=_largest_gang(after.queues[queue.name], keys, inputs.slots_after_reclaim),
                ),
            )


def _flavors_of(queue: QueueNode, keys: Iterable[FlavorResource], inputs: OfferInputs) -> Iterator[FlavorOffer]:
    idle, reclaimable = _held(queue, inputs.idle), _held(queue, inputs.reclaimable)
    models = _models(queue, inputs)
    for key in sorted(keys):
        yield FlavorOffer(
            name=key.flavor,
            resource=key.resource,
            models=tuple(sorted(models.get(key, ()))[:_MOST_MODELS]),
            nominal=queue.nominal(key),
            free=free_quota(queue, key),
            idle=idle[key],
            reclaimable=reclaimable[key],
        )


def free_quota(queue: QueueNode, key: FlavorResource) -> int:
    return queue.available(key) if queue.spec.schedules else 0


def _held(queue: QueueNode, workloads: Collection[str]) -> Counter[FlavorResource]:
    held: Counter[FlavorResource] = Counter()
    for key in queue.workloads.keys() & workloads:
        held.update(queue.workloads[key].held.usage)
    return held


def _models(queue: QueueNode, inputs: OfferInputs) -> Mapping[FlavorResource, set[str]]:
    """The models by flavor. Where a Workload has GPUs of several flavors, it is not known which of them has which
    model."""
    found: dict[FlavorResource, set[str]] = {}
    for key, workload in queue.workloads.items():
        flavors = [each for each, amount in workload.held.usage.items() if amount and inputs.is_gpu(each.resource)]
        if len(flavors) == 1:
            found.setdefault(flavors[0], set()).update(inputs.models.get(key, ()))
    return found


def _largest_gang(queue: QueueNode, keys: Iterable[FlavorResource], slots: "_GpuSlots") -> int:
    return max((slots.at_most(free_quota(queue, key), key) for key in keys), default=0)


class _GpuSlots:
    """Pods with one GPU that nodes of a flavor have room for. Most ClusterQueues have the same few flavors."""

    def __init__(self, capacity: Capacity | None, flavors: Mapping[str, Flavor]) -> None:
        self._capacity = capacity
        self._flavors = flavors
        self._known: dict[FlavorResource, int] = {}

    def at_most(self, quota: int, key: FlavorResource) -> int:
        """The quota, or as much of it as nodes have room for where nodes matter."""
        if not quota or self._capacity is None:
            return quota
        if key not in self._known:
            self._known[key] = self._counted(key, self._capacity)
        return min(quota, self._known[key])

    def _counted(self, key: FlavorResource, capacity: Capacity) -> int:
        flavor = self._flavors.get(key.flavor)
        if flavor is None:
            return 0
        demand = demand_of(QuotaPodSet(name="main", count=1, requests={key.resource: 1}), [flavor])
        shape = capacity.index.shape(demand.requests, demand.nodes)
        return sum(room for _, room in capacity.slots(shape))
