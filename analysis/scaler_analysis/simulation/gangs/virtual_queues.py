"""Kueue in virtual time: which Workloads hold quota now, and which does Kueue admit next?

All ClusterQueues are of one cohort, lend and borrow without limits and preempt nothing; they count one resource. The
order of admission is the quota engine's (`scaler/quota`): nothing of it is decided here.

Laws:

* A Workload holds the quota of all its GPUs, or none.
* The engine is asked only where a Workload that waits fits into what is free, and stops once none does. Of the
  Workloads that hold quota it is given those that a plan may suspend, and the sum of the others: nothing is preempted,
  so which they are does not matter. So what it costs does not grow with the Workloads that run.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from scaler.kube.scheduling import Selector
from scaler.quota.cycle import SchedulingCycle
from scaler.quota.demands import FlavorOptions
from scaler.quota.model import (
    Flavor,
    FlavorResource,
    Quota,
    QuotaClusterQueue,
    QuotaLocalQueue,
    QuotaPodSet,
    QuotaResourceGroup,
    QuotaWorkload,
)
from scaler.quota.simulation import Simulation
from scaler.quota.tree import Tree, build_trees
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.search.values import PlanningTree
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob

_GPU = FlavorResource("default", "nvidia.com/gpu")
_COHORT = "all"
_NAMESPACE = "simulated"
_EVERY_NAMESPACE = Selector(())
_PLACE = attrgetter("place")


class VirtualQueues:
    def __init__(self, quota: Mapping[str, int]) -> None:
        """`quota` gives the GPUs of each ClusterQueue."""
        self._cluster_queues = [_cluster_queue(name, quota[name]) for name in sorted(quota)]
        local_queues = {name: QuotaLocalQueue(namespace=_NAMESPACE, name=name, cluster_queue=name) for name in quota}
        self._context = SchedulingContext(
            flavor_options=FlavorOptions(flavors={_GPU.flavor: Flavor(name=_GPU.flavor)}),
            namespaces={_NAMESPACE: {}},
            local_queue=lambda _, name: local_queues.get(name),
        )
        self._waiting: list[QuotaWorkload] = []
        self._workloads: dict[str, QuotaWorkload] = {}
        """The Workloads that wait or hold quota, by job."""
        self._held = Counter[str]()
        """GPUs by ClusterQueue."""
        self.free = sum(quota.values())
        """GPUs that no Workload holds: any ClusterQueue may have them."""
        self.version = 0
        """Another one whenever anything has come, gone, or got quota."""
        self._settled = 0
        """The version on which nothing can be admitted."""

    # ------------------------------------------------------------------------------------------------------- reading

    def workload(self, job: str) -> QuotaWorkload | None:
        """The Workload of the job; None where it neither waits nor holds quota."""
        return self._workloads.get(job)

    @property
    def waiting(self) -> Sequence[QuotaWorkload]:
        """The Workloads that wait, in the order in which plans are made for them: by priority, then by age."""
        return self._waiting

    def planning_tree(self, now: datetime, holders: Iterable[str]) -> PlanningTree:
        """Things as they stand. `holders` are jobs that a plan may suspend."""
        return PlanningTree(
            tree=self._tree(holders), pending=self._pending(), world=self._context, fair_sharing=False, now=now
        )

    def _tree(self, holders: Iterable[str]) -> Tree:
        named = [self._workloads[each] for each in holders]
        others = self._held.copy()
        for each in named:
            others[each.held.cluster_queue] -= gpus_of(each)
        (tree,) = build_trees(self._cluster_queues, (), named)
        for queue, gpus in others.items():
            tree.queues[queue].add({_GPU: gpus})
        return tree

    def _pending(self) -> dict[str, list[QuotaWorkload]]:
        """The Workloads that wait in each ClusterQueue, in its order."""
        pending: dict[str, list[QuotaWorkload]] = {}
        for each in self._waiting:
            pending.setdefault(each.queue, []).append(each)
        return pending

    # ------------------------------------------------------------------------------------------------------ changing

    def enqueue(self, job: SimulatedJob) -> None:
        """It asks for quota, at the place that its age gives it, however often it has held some."""
        workload = QuotaWorkload(
            namespace=_NAMESPACE,
            name=job.name,
            uid=job.name,
            queue=job.queue,
            priority=job.priority,
            queued_at=job.created,
            pod_sets=(QuotaPodSet(name="main", count=job.gpus, requests={_GPU.resource: 1}),),
        )
        self._workloads[job.name] = workload
        insort(self._waiting, workload, key=_PLACE)
        self.version += 1

    def release(self, job: str) -> None:
        """It has ended or is suspended: it holds nothing and waits for nothing."""
        workload = self._workloads.pop(job, None)
        if workload is None:
            return
        if workload.reservation is None:
            self._take(workload)
        else:
            self._hold(workload, -gpus_of(workload))
        self.version += 1

    def admit(self, now: datetime) -> list[str]:
        """Run Kueue's cycles until nothing changes any more. The jobs that were admitted, in that order."""
        if self._settled == self.version:
            return []
        admitted = self._run(now) if self._any_fits(self.free) else []
        for workload in admitted:
            self._take(workload)
            self._workloads[workload.name] = workload
            self._hold(workload, gpus_of(workload))
        self.version += len(admitted)
        self._settled = self.version
        return [each.name for each in admitted]

    def _take(self, workload: QuotaWorkload) -> None:
        """It waits no longer."""
        del self._waiting[bisect_left(self._waiting, workload.place, key=_PLACE)]

    def _hold(self, workload: QuotaWorkload, gpus: int) -> None:
        self._held[workload.held.cluster_queue] += gpus
        self.free -= gpus

    def _any_fits(self, free: int) -> bool:
        return any(gpus_of(each) <= free for each in self._waiting)

    def _run(self, now: datetime) -> list[QuotaWorkload]:
        simulation = Simulation(self._tree(()), self._pending(), self._context, now=now)

        def is_settled(_: SchedulingCycle) -> bool:
            return not self._any_fits(simulation.tree.root.available(_GPU))

        run = simulation.run(until=is_settled)
        return [each for cycle in run.cycles for each in cycle.admitted]


def workload_key(job: str) -> str:
    """The key of the job's Workload."""
    return f"{_NAMESPACE}/{job}"


def gpus_of(workload: QuotaWorkload) -> int:
    (pods,) = workload.pod_sets
    return pods.count


def _cluster_queue(name: str, gpus: int) -> QuotaClusterQueue:
    return QuotaClusterQueue(
        name=name,
        cohort=_COHORT,
        groups=(QuotaResourceGroup(resources=frozenset({_GPU.resource}), flavors=(_GPU.flavor,)),),
        quotas={_GPU: Quota(nominal=gpus)},
        namespace_selector=_EVERY_NAMESPACE,
    )
