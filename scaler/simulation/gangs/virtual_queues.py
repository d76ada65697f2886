"""Kueue in virtual time: which Workloads hold quota now, and which does Kueue admit next?

All ClusterQueues are of one cohort, lend and borrow without limits and preempt nothing; they count one resource. The
order of admission is the quota engine's (`scaler/quota`): nothing of it is decided here.

Law: a Workload holds the quota of all its GPUs, or none.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from heapq import merge
from operator import attrgetter

from scaler.kube.scheduling import Selector
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
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.search.values import PlanningTree
from scaler.simulation.gangs.simulated_job import SimulatedJob

_GPU = "nvidia.com/gpu"
_FLAVOR = "default"
_COHORT = "all"
_NAMESPACE = "simulated"
_EVERY_NAMESPACE = Selector(())


class VirtualQueues:
    def __init__(self, quota: Mapping[str, int]) -> None:
        """`quota` gives the GPUs of each ClusterQueue."""
        self._snapshot = Snapshot()
        self._snapshot.put(Flavor(name=_FLAVOR))
        self._snapshot.put_namespace(_NAMESPACE, {})
        for name, gpus in quota.items():
            self._snapshot.put(_cluster_queue(name, gpus))
            self._snapshot.put(QuotaLocalQueue(namespace=_NAMESPACE, name=name, cluster_queue=name))
        self._context = SchedulingContext.of(self._snapshot)
        self._planning_tree: tuple[int, PlanningTree] | None = None

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def _tree(self) -> Tree:
        (tree,) = self._snapshot.trees
        return tree

    @property
    def version(self) -> int:
        """Another one whenever anything has come, gone, or got quota."""
        return self._snapshot.version(self._tree)

    def key(self, job: str) -> str:
        """Of the job's Workload."""
        return f"{_NAMESPACE}/{job}"

    def workload(self, job: str) -> QuotaWorkload | None:
        """The Workload of the job; None where it neither waits nor holds quota."""
        return self._snapshot.workload(self.key(job))

    @property
    def waiting(self) -> Sequence[QuotaWorkload]:
        """In the order in which plans are made for them: by priority, then by age."""
        return list(merge(*self._snapshot.waiting().values(), key=attrgetter("place")))

    def planning_tree(self, now: datetime) -> PlanningTree:
        """Things as they stand. Made anew only where something has changed."""
        version = self.version
        if self._planning_tree is None or self._planning_tree[0] != version:
            self._planning_tree = version, self._as_it_stands(now)
        return self._planning_tree[1]

    def _as_it_stands(self, now: datetime) -> PlanningTree:
        tree = self._tree
        return PlanningTree(
            tree=tree.clone(),
            pending=self._snapshot.pending_in(tree),
            world=self._context,
            fair_sharing=False,
            now=now,
        )

    # ------------------------------------------------------------------------------------------------------ changing

    def enqueue(self, job: SimulatedJob) -> None:
        """It asks for quota, at the place that its age gives it, however often it has held some."""
        pods = QuotaPodSet(name="main", count=job.gpus, requests={_GPU: 1})
        self._snapshot.put(
            QuotaWorkload(
                namespace=_NAMESPACE,
                name=job.name,
                uid=job.name,
                queue=job.queue,
                priority=job.priority,
                queued_at=job.created,
                pod_sets=(pods,),
            )
        )

    def release(self, job: str) -> None:
        """It has ended or is suspended: it holds nothing and waits for nothing."""
        self._snapshot.drop(QuotaWorkload, self.key(job))

    def admit(self, now: datetime) -> list[str]:
        """Run Kueue's cycles until nothing changes any more. The jobs that were admitted, in that order."""
        if not self._snapshot.pending_in(self._tree):
            return []
        admitted = [
            each for cycle in self.planning_tree(now).forecast(frozenset()).run.cycles for each in cycle.admitted
        ]
        for workload in admitted:
            self._snapshot.put(workload)
        return [each.name for each in admitted]


def _cluster_queue(name: str, gpus: int) -> QuotaClusterQueue:
    return QuotaClusterQueue(
        name=name,
        cohort=_COHORT,
        groups=(QuotaResourceGroup(resources=frozenset({_GPU}), flavors=(_FLAVOR,)),),
        quotas={FlavorResource(_FLAVOR, _GPU): Quota(nominal=gpus)},
        namespace_selector=_EVERY_NAMESPACE,
    )
