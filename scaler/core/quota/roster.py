"""Who takes part in a simulation, in what order, and who is like whom?

Everything here depends on the objects alone and not on what has happened to them, so it is found once and shared by all
simulations of the same tree. Workloads get numbers in the order in which queues take them (priority, then age, then
uid), so that a heap of Workloads is a heap of small whole numbers.

Laws:

* Two Workloads have the same shape exactly if Kueue's scheduling hash would be the same: priority and, of every PodSet,
  what it asks for. The namespace is no part of it.
* A Workload that loses its reservation comes back with the age that it had.

Source: Kueue, pkg/cache/queue/cluster_queue.go (baseCompareFunc), pkg/workload/workload.go (computeSchedulingHash).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scaler.core.nodes import NodeSelection
from scaler.core.quota.demands import Demand, Market
from scaler.core.quota.fair_preemption import DEFAULT_STRATEGIES, Strategy
from scaler.core.quota.model import ClusterQueue, LocalQueue, PodSet, StopPolicy, Workload
from scaler.core.quota.tree import Tree

FindLocalQueue = Callable[[str, str], LocalQueue | None]
"""By namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a Workload's fate depends on besides quota."""

    market: Market
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels by namespace."""
    local_queue: FindLocalQueue
    strategies: Sequence[Strategy] = DEFAULT_STRATEGIES
    """Of preemption, where Kueue shares fairly."""

    def home(self, workload: Workload) -> str:
        """The ClusterQueue where the Workload queues; empty where its LocalQueue is stopped or does not exist."""
        found = self.local_queue(workload.namespace, workload.queue)
        return found.cluster_queue if found and found.stop_policy is StopPolicy.NONE else ""

    def admits_namespace(self, queue: ClusterQueue, namespace: str) -> bool:
        labels = self.namespaces.get(namespace)
        return labels is not None and queue.namespace_selector is not None and queue.namespace_selector.matches(labels)


class Roster:
    """The Workloads of one tree, waiting or not."""

    def __init__(
        self,
        tree: Tree,
        pending: Mapping[str, Iterable[Workload]],
        world: World,
        shapes: dict[Hashable, int] | None = None,
    ) -> None:
        """`shapes` keeps the numbers of shapes, for rosters that shall give equal shapes the same one."""
        self.world = world
        waiting = {each.key: name for name, workloads in pending.items() for each in workloads}
        holders = [each for queue in tree.queues.values() for each in queue.workloads.values()]
        everybody = [*(each for workloads in pending.values() for each in workloads), *holders]
        self._workloads = sorted(everybody, key=_place)
        self.numbers = {each.key: number for number, each in enumerate(self._workloads)}
        """Number by key."""
        self.homes = tuple(waiting.get(each.key) or world.home(each) for each in self._workloads)
        """The ClusterQueue where each waits, or would wait without its reservation; empty for none."""
        self._queues = {name: node.spec for name, node in tree.queues.items()}
        self.shapes = self._number_shapes({} if shapes is None else shapes)
        """A number by Workload: equal ones for Workloads alike."""
        self.strangers = self._find_strangers()
        """Those whose namespace their ClusterQueue does not select."""
        self._demands: dict[tuple[str, int], Demand] = {}

    def __len__(self) -> int:
        return len(self._workloads)

    def waiting(self, number: int) -> Workload:
        """The Workload as it is without a reservation."""
        workload = self._workloads[number]
        if workload.reservation is not None:
            workload = replace(workload, reservation=None, admitted=False, evicted=False)
            self._workloads[number] = workload
        return workload

    def demand(self, number: int) -> Demand:
        """What the Workload asks of the queue where it waits."""
        place = self.homes[number], self.shapes[number]
        known = self._demands.get(place)
        if known is None:
            workload, queue = self._workloads[number], self._queues[place[0]]
            known = self.world.market.demand(workload.pod_sets, queue, opaque=bool(workload.opaque_because))
            self._demands[place] = known
        return known

    def _number_shapes(self, seen: dict[Hashable, int]) -> tuple[int, ...]:
        pod_sets: dict[int, Hashable] = {}
        return tuple(seen.setdefault(_shape(each, pod_sets), len(seen)) for each in self._workloads)

    def _find_strangers(self) -> frozenset[int]:
        known: dict[tuple[str, str], bool] = {}
        strangers = []
        for number, (workload, home) in enumerate(zip(self._workloads, self.homes, strict=True)):
            if home not in self._queues:
                continue
            place = home, workload.namespace
            if place not in known:
                known[place] = self.world.admits_namespace(self._queues[home], workload.namespace)
            if not known[place]:
                strangers.append(number)
        return frozenset(strangers)


def _place(workload: Workload) -> tuple[object, ...]:
    return -workload.priority, workload.queued_at, workload.uid


def _shape(workload: Workload, pod_sets: dict[int, Hashable]) -> Hashable:
    """`pod_sets` keeps what was found for PodSets that many Workloads share."""
    known = pod_sets.get(id(workload.pod_sets))
    if known is None:
        known = pod_sets[id(workload.pod_sets)] = tuple(_shape_of_pods(each) for each in workload.pod_sets)
    return workload.priority, bool(workload.opaque_because), workload.extra_shape, known


def _shape_of_pods(pods: PodSet) -> Hashable:
    return pods.name, pods.count, pods.min_count, tuple(sorted(pods.requests.items())), _shape_of_nodes(pods.nodes)


def _shape_of_nodes(nodes: NodeSelection) -> Hashable:
    return tuple(sorted(nodes.labels.items())), nodes.terms, nodes.tolerations
