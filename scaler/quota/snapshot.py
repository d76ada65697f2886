"""Everything that the scheduler would look at, kept up to date one object at a time.

Laws:

* Objects come and go in any order, as watches deliver them: a Workload may be known before its queue. The snapshot is
  at every moment the same as one that was filled with the objects as they are now.
* A Workload costs O(depth of its tree); another specification of a queue, cohort or flavor costs its trees, and those
  only when they are next asked for. What is put a second time unchanged costs and changes nothing.
* Trees are handed out as they are kept. To try something out, `clone` them.
* What could not be read is a doubt about the tree that it belongs to, never an absence: `doubts` says so, and nothing
  may be planned on a tree with doubts.
* What no object says of itself is found here (derived): which queues are inactive, which Workloads are opaque.

Source: Kueue, pkg/cache/scheduler (cache.go, clusterqueue.go), pkg/cache/queue/manager.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from scaler.quota.model import (
    MULTIKUEUE,
    PROVISIONING,
    Flavor,
    QuotaAdmissionCheck,
    QuotaClusterQueue,
    QuotaCohort,
    QuotaLocalQueue,
    QuotaWorkload,
    StopPolicy,
)
from scaler.quota.tree import CohortTrees, Tree

LocalQueueKey = tuple[str, str]
"""(namespace, name)."""

_COMPARED = tuple(each.name for each in fields(QuotaWorkload))


class Snapshot:
    """The one place that knows all objects. `fair_sharing` is how Kueue is configured."""

    def __init__(self, *, fair_sharing: bool = False) -> None:
        self.fair_sharing = fair_sharing
        self._flavors: dict[str, Flavor] = {}
        self._checks: dict[str, QuotaAdmissionCheck] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._cohorts: dict[str, QuotaCohort] = {}
        self._queues: dict[str, QuotaClusterQueue] = {}
        self._local_queues: dict[LocalQueueKey, QuotaLocalQueue] = {}
        self._workloads: dict[str, QuotaWorkload] = {}
        self._given: dict[str, QuotaWorkload] = {}
        self._waiting: dict[LocalQueueKey, dict[str, QuotaWorkload]] = {}
        self._pending: dict[str, dict[str, QuotaWorkload]] = {}
        self._holding: dict[str, dict[str, QuotaWorkload]] = {}
        self._queue_doubts: dict[str, str] = {}
        self._cohort_doubts: dict[str, str] = {}
        self._cohort_trees = CohortTrees(lambda queue: self._holding.get(queue, {}).values())

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def flavors(self) -> Mapping[str, Flavor]:
        return MappingProxyType(self._flavors)

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Labels by namespace."""
        return MappingProxyType(self._namespaces)

    @property
    def workloads(self) -> Mapping[str, QuotaWorkload]:
        """All that wait or hold quota, by `namespace/name`."""
        return MappingProxyType(self._workloads)

    def workload(self, key: str) -> QuotaWorkload | None:
        return self._workloads.get(key)

    @property
    def reserved(self) -> Iterator[QuotaWorkload]:
        """The Workloads that hold quota."""
        return chain.from_iterable(holders.values() for holders in self._holding.values())

    def local_queue(self, namespace: str, name: str) -> QuotaLocalQueue | None:
        return self._local_queues.get((namespace, name))

    @property
    def local_queues(self) -> Mapping[LocalQueueKey, QuotaLocalQueue]:
        return MappingProxyType(self._local_queues)

    @property
    def cluster_queues(self) -> Mapping[str, QuotaClusterQueue]:
        """All of them, those included that are in no tree."""
        return MappingProxyType(self._queues)

    def cluster_queue_of(self, workload: QuotaWorkload) -> str:
        """Name of the ClusterQueue where it holds quota or waits; empty where its LocalQueue is not known."""
        if workload.reservation is not None:
            return workload.reservation.cluster_queue
        local = self._local_queues.get((workload.namespace, workload.queue))
        return local.cluster_queue if local else ""

    @property
    def trees(self) -> Sequence[Tree]:
        return self._cohort_trees.trees

    def tree_of(self, cluster_queue: str) -> Tree | None:
        """The tree that the ClusterQueue is in; None for one that does not exist or is in a cycle of cohorts."""
        return self._cohort_trees.tree_of(cluster_queue)

    def version(self, tree: Tree) -> int:
        """Another number whenever something has changed that the tree's scheduling depends on, Workloads included."""
        return self._cohort_trees.version(tree)

    def pending_in(self, tree: Tree) -> Mapping[str, Sequence[QuotaWorkload]]:
        """The Workloads that wait, by ClusterQueue, in no particular order.

        Those of a LocalQueue that is stopped or does not exist are not among them: the scheduler does not know them.
        """
        return {name: tuple(waiting.values()) for name in tree.queues if (waiting := self._pending.get(name))}

    def doubts(self, tree: Tree) -> Sequence[str]:
        """What of the tree could not be read and why; nothing may be planned on a tree of which there is any."""
        return [
            *(f"Cohort {name}: {self._cohort_doubts[name]}" for name in tree.cohorts if name in self._cohort_doubts),
            *(f"ClusterQueue {name}: {self._queue_doubts[name]}" for name in tree.queues if name in self._queue_doubts),
        ]

    # -------------------------------------------------------------------------------------------- queues and cohorts

    def put_cluster_queue(self, queue: QuotaClusterQueue, *, doubt: str = "") -> None:
        """`doubt` says why the specification is not, or not surely, the one that stands in the API."""
        if _note(self._queue_doubts, queue.name, doubt) or self._queues.get(queue.name) != queue:
            self._queues[queue.name] = queue
            self._settle_queue(queue.name)

    def drop_cluster_queue(self, name: str) -> None:
        _note(self._queue_doubts, name, "")
        if self._queues.pop(name, None) is not None:
            self._cohort_trees.drop_queue(name)
            self._refile(self._pending.get(name, {}))

    def cluster_queue(self, name: str) -> QuotaClusterQueue | None:
        """Its specification as it was put. The one in its tree also says where objects that it needs are missing."""
        return self._queues.get(name)

    def put_cohort(self, cohort: QuotaCohort, *, doubt: str = "") -> None:
        if _note(self._cohort_doubts, cohort.name, doubt) or self._cohorts.get(cohort.name) != cohort:
            self._cohorts[cohort.name] = cohort
            self._cohort_trees.put_cohort(cohort)

    def drop_cohort(self, name: str) -> None:
        _note(self._cohort_doubts, name, "")
        if self._cohorts.pop(name, None) is not None:
            self._cohort_trees.drop_cohort(name)

    def cohort(self, name: str) -> QuotaCohort | None:
        """The Cohort object of that name, where there is one."""
        return self._cohorts.get(name)

    # --------------------------------------------------------------------------------------------- flavors and checks

    def put_flavor(self, flavor: Flavor) -> None:
        old = self._flavors.get(flavor.name)
        if old != flavor:
            self._flavors[flavor.name] = flavor
            self._flavor_changed(flavor.name, old.topology if old else "", flavor.topology)

    def drop_flavor(self, name: str) -> None:
        old = self._flavors.pop(name, None)
        if old is not None:
            self._flavor_changed(name, old.topology, "")

    def _flavor_changed(self, name: str, old_topology: str, topology: str) -> None:
        for queue in [each for each in self._queues.values() if name in each.flavors]:
            self._settle_queue(queue.name)
        if old_topology != topology:
            self._refile(self._workloads)

    def put_check(self, check: QuotaAdmissionCheck) -> None:
        if self._checks.get(check.name) != check:
            self._checks[check.name] = check
            self._check_changed(check.name)

    def drop_check(self, name: str) -> None:
        if self._checks.pop(name, None) is not None:
            self._check_changed(name)

    def _check_changed(self, name: str) -> None:
        for queue in [each for each in self._queues.values() if name in each.checks]:
            self._settle_queue(queue.name)

    def _settle_queue(self, name: str) -> None:
        """Judge the queue and what waits in it anew, after anything they depend on has changed."""
        self._cohort_trees.put_queue(self._judged(self._queues[name]))
        self._refile(self._pending.get(name, {}))

    def _judged(self, queue: QuotaClusterQueue) -> QuotaClusterQueue:
        reason = inactive_because(queue, self._flavors, self._checks)
        return replace(queue, inactive_because=reason) if reason else queue

    # ----------------------------------------------------------------------------------------- LocalQueues, namespaces

    def put_local_queue(self, queue: QuotaLocalQueue) -> None:
        if self._local_queues.get(queue.key) != queue:
            self._move_waiting(queue.key, queue)

    def drop_local_queue(self, namespace: str, name: str) -> None:
        self._move_waiting((namespace, name), None)

    def _move_waiting(self, key: LocalQueueKey, queue: QuotaLocalQueue | None) -> None:
        """Let the queue's Workloads wait where it leads now."""
        waiting = list(self._waiting.get(key, {}).values())
        for workload in waiting:
            self._unfile(workload)
        if queue is None:
            self._local_queues.pop(key, None)
        else:
            self._local_queues[key] = queue
        for workload in waiting:
            self._file(self._given.pop(workload.key, workload))

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            self._namespace_changed(name)

    def drop_namespace(self, name: str) -> None:
        if self._namespaces.pop(name, None) is not None:
            self._namespace_changed(name)

    def _namespace_changed(self, name: str) -> None:
        for queue in self._local_queues.values():
            if queue.namespace == name:
                self._cohort_trees.bump(queue.cluster_queue)

    # ------------------------------------------------------------------------------------------------------ Workloads

    def put_workload(self, workload: QuotaWorkload) -> None:
        known = self._workloads.get(workload.key)
        if known is not None:
            if _are_alike(self._given.get(workload.key, known), workload):
                return
            self._unfile(known)
        self._given.pop(workload.key, None)
        self._file(workload)

    def drop_workload(self, key: str) -> None:
        known = self._workloads.pop(key, None)
        if known is not None:
            self._unfile(known)
            self._given.pop(key, None)

    def _refile(self, workloads: Mapping[str, QuotaWorkload]) -> None:
        """See the Workloads as their flavors and queues make them now. Costs nothing where no flavor has a Topology."""
        if not self._given and not any(flavor.topology for flavor in self._flavors.values()):
            return
        for workload in tuple(workloads.values()):
            self._unfile(workload)
            self._file(self._given.pop(workload.key, workload))

    def _file(self, given: QuotaWorkload) -> None:
        workload = self._seen(given)
        self._workloads[workload.key] = workload
        if workload.reservation is not None:
            queue = workload.reservation.cluster_queue
            self._holding.setdefault(queue, {})[workload.key] = workload
            if leaf := self._cohort_trees.leaf(queue):
                leaf.reserve(workload)
        else:
            self._waiting.setdefault((workload.namespace, workload.queue), {})[workload.key] = workload
            queue = self._queues_at(workload)
            if queue:
                self._pending.setdefault(queue, {})[workload.key] = workload
        self._cohort_trees.bump(queue)

    def _unfile(self, workload: QuotaWorkload) -> None:
        """Take the Workload, as it was filed, out of everything but `_workloads`."""
        if workload.reservation is not None:
            queue = workload.reservation.cluster_queue
            _take(self._holding, queue, workload.key)
            if leaf := self._cohort_trees.leaf(queue):
                leaf.release(workload)
        else:
            _take(self._waiting, (workload.namespace, workload.queue), workload.key)
            queue = self._queues_at(workload)
            if queue:
                _take(self._pending, queue, workload.key)
        self._cohort_trees.bump(queue)

    def _queues_at(self, workload: QuotaWorkload) -> str:
        """The ClusterQueue in which a Workload without reservation queues; empty where none takes it."""
        local = self._local_queues.get((workload.namespace, workload.queue))
        return local.cluster_queue if local and local.stop_policy is StopPolicy.NONE else ""

    def _seen(self, given: QuotaWorkload) -> QuotaWorkload:
        """The Workload with what its flavors make of it."""
        if given.opaque_because:
            return given
        queue = None if given.reservation else self._queues.get(self._queues_at(given))
        flavor = topology_flavor(given, queue, self._flavors)
        if not flavor:
            return given
        self._given[given.key] = given
        return replace(given, opaque_because=f"flavor {flavor} is placed by topology")


def _are_alike(one: QuotaWorkload, other: QuotaWorkload) -> bool:
    """Whether the two are the same in every respect. Workloads themselves are compared by identity."""
    return all(getattr(one, name) == getattr(other, name) for name in _COMPARED)


def _note(doubts: dict[str, str], name: str, doubt: str) -> bool:
    """Whether the doubt is another than before."""
    before = doubts.pop(name, "")
    if doubt:
        doubts[name] = doubt
    return before != doubt


def _take(filed: dict[Any, dict[str, QuotaWorkload]], place: Any, key: str) -> None:
    """Take the Workload out of its place, and the place away with the last one."""
    there = filed[place]
    del there[key]
    if not there:
        del filed[place]


# -------------------------------------------------------------------------------------------------- derived state


def inactive_because(
    queue: QuotaClusterQueue, flavors: Mapping[str, Flavor], checks: Mapping[str, QuotaAdmissionCheck]
) -> str:
    """Kueue's reason why the queue admits nothing; empty where it does. What the queue says of itself comes first."""
    if queue.inactive_because:
        return queue.inactive_because
    if any(flavor not in flavors for flavor in queue.flavors):
        return "FlavorNotFound"
    found = [checks.get(name) for name in queue.checks]
    if None in found:
        return "AdmissionCheckNotFound"
    if any(check and not check.active for check in found):
        return "AdmissionCheckInactive"
    return _clashing_controllers([check.controller for check in found if check])


def _clashing_controllers(controllers: list[str]) -> str:
    if controllers.count(MULTIKUEUE) > 1:
        return "MultipleMultiKueueAdmissionChecks"
    if MULTIKUEUE in controllers and PROVISIONING in controllers:
        return "MultiKueueWithProvisioningRequest"
    return ""


def topology_flavor(workload: QuotaWorkload, queue: QuotaClusterQueue | None, flavors: Mapping[str, Flavor]) -> str:
    """A flavor with a Topology that the Workload has, or will have since its queue offers no others; empty otherwise.

    `queue` is the one that it waits in. Where a queue offers both, Kueue gives flavors with a Topology only to those
    that ask for one.
    """
    if workload.reservation is not None:
        used = (name for each in workload.reservation.assignments for name in each.flavors.values())
        return next((name for name in used if _has_topology(name, flavors)), "")
    offered = sorted(queue.flavors) if queue else []
    return offered[0] if offered and all(_has_topology(name, flavors) for name in offered) else ""


def _has_topology(name: str, flavors: Mapping[str, Flavor]) -> bool:
    return name in flavors and bool(flavors[name].topology)
