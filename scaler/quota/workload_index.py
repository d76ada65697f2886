"""Which Workloads take part in a simulation, in what order, and which are alike?

Everything here depends on the objects alone and not on what has happened to them, so it is found once and shared by all
simulations of the same tree. Workloads get numbers, those of one ClusterQueue in the order in which it takes them
(priority, then age, then uid), so that its heap of Workloads is a heap of small whole numbers. Numbers of two
ClusterQueues cannot be compared.

A Workload that loses its reservation comes back with the age that it had.

Source: Kueue, pkg/cache/queue/cluster_queue.go (baseCompareFunc).
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from scaler.quota.demands import FlavorOptions, QuotaDemand
from scaler.quota.model import QuotaClusterQueue, QuotaLocalQueue, QuotaWorkload, StopPolicy, WorkloadShape
from scaler.quota.preemption.fair_sharing import DEFAULT_STRATEGIES, PreemptionStrategy
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree

_PLACE, _KEY, _NAMESPACE, _SHAPE = (attrgetter(name) for name in ("place", "key", "namespace", "shape"))

FindLocalQueue = Callable[[str, str], QuotaLocalQueue | None]
"""Finds a LocalQueue by namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingContext:
    """What decides on a Workload besides quota."""

    flavor_options: FlavorOptions
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels by namespace."""
    local_queue: FindLocalQueue
    strategies: Sequence[PreemptionStrategy] = DEFAULT_STRATEGIES
    """Strategies of preemption, where Kueue shares fairly."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        *,
        strategies: Sequence[PreemptionStrategy] = DEFAULT_STRATEGIES,
        ignore_undeclared: bool = False,
    ) -> "SchedulingContext":
        """The snapshot of this moment: flavors and namespaces that change meanwhile do not reach it."""
        return cls(
            flavor_options=FlavorOptions(flavors=dict(snapshot.flavors), ignore_undeclared=ignore_undeclared),
            namespaces=dict(snapshot.namespaces),
            local_queue=snapshot.local_queue,
            strategies=strategies,
        )

    def cluster_queue_of(self, workload: QuotaWorkload) -> str:
        """The ClusterQueue where the Workload queues; empty where its LocalQueue is stopped or does not exist."""
        found = self.local_queue(workload.namespace, workload.queue)
        return found.cluster_queue if found and found.stop_policy is StopPolicy.NONE else ""

    def admits_namespace(self, queue: QuotaClusterQueue, namespace: str) -> bool:
        labels = self.namespaces.get(namespace)
        return labels is not None and queue.namespace_selector is not None and queue.namespace_selector.matches(labels)


class WorkloadIndex:
    def __init__(
        self,
        tree: Tree,
        pending: Mapping[str, Iterable[QuotaWorkload]],
        world: SchedulingContext,
        shapes: dict[WorkloadShape, int] | None = None,
    ) -> None:
        """`shapes` keeps the numbers of shapes, for indexes that shall give equal shapes the same one."""
        self.world = world
        self._queues = {name: node.spec for name, node in tree.queues.items()}
        self._workloads: list[QuotaWorkload] = []
        self.cluster_queue_names: list[str] = []
        """The ClusterQueue where each waits, or would wait without its reservation; empty for none."""
        self.shapes: list[int] = []
        """A number that Workloads of one shape have in common, by the number of the Workload."""
        self._shapes = {} if shapes is None else shapes
        self._ranges: dict[str, range] = {}
        """The numbers of each ClusterQueue's Workloads."""
        self._queued: dict[str, list[int]] = {}
        mismatches: list[int] = []
        for name, workloads in self._by_cluster_queue(tree, pending).items():
            workloads.sort(key=_PLACE)
            mismatches += self._mismatches(name, workloads)
            self._number(name, workloads)
        self.namespace_mismatches = frozenset(mismatches)
        """The Workloads whose namespace their ClusterQueue does not select."""
        self._demands: dict[tuple[int, int], QuotaDemand] = {}
        offers: dict[Hashable, int] = {}
        self._offers = {name: offers.setdefault(each.groups, len(offers)) for name, each in self._queues.items()}
        """A number by ClusterQueue: the same for those with the same flavors in the same groups."""
        kinds: dict[Hashable, int] = {}
        self.queue_kinds = {name: kinds.setdefault(_kind(each), len(kinds)) for name, each in self._queues.items()}
        """A number by ClusterQueue: the same for those with the same quotas and policies."""

    def _by_cluster_queue(
        self, tree: Tree, pending: Mapping[str, Iterable[QuotaWorkload]]
    ) -> dict[str, list[QuotaWorkload]]:
        found = {name: list(workloads) for name, workloads in pending.items()}
        for queue in tree.queues.values():
            for each in queue.workloads.values():
                found.setdefault(self.world.cluster_queue_of(each), []).append(each)
        return found

    def _number(self, name: str, workloads: Sequence[QuotaWorkload]) -> None:
        """File all that is asked of them, queue by queue: of 50,000 Workloads most of the time goes into fetching them
        from memory."""
        first, known = len(self._workloads), self._shapes
        self._ranges[name] = range(first, first + len(workloads))
        self.shapes += [known.setdefault(each, len(known)) for each in map(_SHAPE, workloads)]
        self._queued[name] = [
            number for number, each in enumerate(workloads, first) if each.may_queue and each.reservation is None
        ]
        self._workloads += workloads
        self.cluster_queue_names += [name] * len(workloads)

    def _mismatches(self, name: str, workloads: Sequence[QuotaWorkload]) -> Iterable[int]:
        """Numbers of those in a namespace that the ClusterQueue does not select; they follow the ones given already."""
        queue = self._queues.get(name)
        if queue is None:
            return ()
        namespaces = set(map(_NAMESPACE, workloads))
        refused = {each for each in namespaces if not self.world.admits_namespace(queue, each)}
        first = len(self._workloads)
        return [number for number, each in enumerate(workloads, first) if each.namespace in refused] if refused else ()

    def __len__(self) -> int:
        return len(self._workloads)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Number by key. For single ones `number` costs less."""
        return dict(zip(map(_KEY, self._workloads), range(len(self)), strict=True))

    def number(self, workload: QuotaWorkload) -> int:
        """Raises: KeyError for one that was not there from the start."""
        numbers = self._ranges.get(self.world.cluster_queue_of(workload), range(0))
        at = bisect_left(self._workloads, workload.place, numbers.start, numbers.stop, key=_PLACE)
        is_found = at < numbers.stop and self._workloads[at].key == workload.key
        return at if is_found else self.numbers[workload.key]

    def queued(self, name: str) -> Sequence[int]:
        """The Workloads that are in the ClusterQueue's queue from the start, in its order."""
        return self._queued.get(name, ())

    def waiting(self, number: int) -> QuotaWorkload:
        workload = self._workloads[number]
        if workload.reservation is not None:
            workload = replace(workload, reservation=None, admitted=False, evicted=False)
            self._workloads[number] = workload
        return workload

    def demand(self, number: int) -> QuotaDemand:
        name = self.cluster_queue_names[number]
        key = self._offers[name], self.shapes[number]
        known = self._demands.get(key)
        if known is None:
            workload, queue = self._workloads[number], self._queues[name]
            known = self.world.flavor_options.demand(workload.pod_sets, queue, opaque=bool(workload.opaque_because))
            self._demands[key] = known
        return known


def _kind(queue: QuotaClusterQueue) -> Hashable:
    return queue.groups, tuple(queue.quotas.items()), queue.fungibility, queue.preemption
