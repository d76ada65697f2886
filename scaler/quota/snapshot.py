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

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

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
SnapshotObject = Flavor | QuotaAdmissionCheck | QuotaCohort | QuotaClusterQueue | QuotaLocalQueue | QuotaWorkload

K = TypeVar("K")

_PLACE = attrgetter("place")
_COMPARED = tuple(each.name for each in fields(QuotaWorkload) if each.init)


class Snapshot:
    """All objects, changed by `put` and `drop` only. `fair_sharing` is how Kueue is configured."""

    def __init__(self, *, fair_sharing: bool = False) -> None:
        self.fair_sharing = fair_sharing
        self.flavors: dict[str, Flavor] = {}
        self._checks: dict[str, QuotaAdmissionCheck] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        """Labels by namespace."""
        self.cohorts: dict[str, QuotaCohort] = {}
        self.cluster_queues: dict[str, QuotaClusterQueue] = {}
        """The ClusterQueues as they were put, also those in no tree. The ones in trees say which objects they lack,
        too.
        """
        self.local_queues: dict[LocalQueueKey, QuotaLocalQueue] = {}
        self.workloads: dict[str, QuotaWorkload] = {}
        """All that wait or hold quota, by `namespace/name`."""
        self._given: dict[str, QuotaWorkload] = {}
        self.by_uid: dict[str, QuotaWorkload] = {}
        """All Workloads by uid."""
        self._waiting = _Lines[LocalQueueKey]()
        self._pending = _Lines[str]()
        """The pending ones by ClusterQueue."""
        self._holding: dict[str, dict[str, QuotaWorkload]] = {}
        self._placing: dict[str, str] = {}
        """The first flavor of each ClusterQueue whose flavors all have a Topology."""
        self._doubts: dict[tuple[type, str], str] = {}
        self._cohort_trees = CohortTrees(lambda queue: self._holding.get(queue, {}).values())
        self.tree_of, self.version = self._cohort_trees.tree_of, self._cohort_trees.version
        self._kinds: dict[type, tuple[dict[Any, Any], Callable[[Any, Any], None]]] = {
            Flavor: (self.flavors, self._set_flavor),
            QuotaAdmissionCheck: (self._checks, self._set_check),
            QuotaCohort: (self.cohorts, self._set_cohort),
            QuotaClusterQueue: (self.cluster_queues, self._set_cluster_queue),
            QuotaLocalQueue: (self.local_queues, self._set_local_queue),
        }

    # ------------------------------------------------------------------------------------------------------- reading

    def workload(self, key: str) -> QuotaWorkload | None:
        return self.workloads.get(key)

    def local_queue(self, namespace: str, name: str) -> QuotaLocalQueue | None:
        return self.local_queues.get((namespace, name))

    def checks_of(self, controller: str) -> frozenset[str]:
        """Names of the AdmissionChecks that the controller answers."""
        return frozenset(name for name, each in self._checks.items() if each.controller == controller)

    @property
    def reserved(self) -> Iterator[QuotaWorkload]:
        return chain.from_iterable(holders.values() for holders in self._holding.values())

    def cluster_queue_of(self, workload: QuotaWorkload) -> str:
        """Name of the ClusterQueue where it holds quota or waits; empty where its LocalQueue is not known."""
        if workload.reservation is not None:
            return workload.reservation.cluster_queue
        local = self.local_queues.get((workload.namespace, workload.queue))
        return local.cluster_queue if local else ""

    @property
    def trees(self) -> Sequence[Tree]:
        return self._cohort_trees.trees

    def pending_in(self, tree: Tree) -> Mapping[str, Sequence[QuotaWorkload]]:
        """The Workloads that wait, by ClusterQueue, in its order.

        Those of a LocalQueue that is stopped or does not exist are not among them: the scheduler does not know them.
        """
        return {name: line for name in tree.queues if (line := self._pending.line(name))}

    def waiting(self) -> Mapping[LocalQueueKey, Sequence[QuotaWorkload]]:
        """All Workloads that hold no quota, by LocalQueue, in the order of queues."""
        return self._waiting.lines()

    def dispatches(self, queue: str) -> bool:
        """Whether MultiKueue runs on other clusters whatever the ClusterQueue admits."""
        spec = self.cluster_queues.get(queue)
        checks = {name for name, each in self._checks.items() if each.controller == MULTIKUEUE}
        if spec is None or not checks or not spec.flavors:
            return False
        return all(checks & spec.checks_on({flavor}) for flavor in spec.flavors)

    def doubts(self, tree: Tree) -> Sequence[str]:
        """What of the tree could not be read and why; nothing may be planned on a tree of which there is any."""
        cohorts = ((f"Cohort {name}", (QuotaCohort, name)) for name in tree.cohorts)
        queues = ((f"ClusterQueue {name}", (QuotaClusterQueue, name)) for name in tree.queues)
        return [f"{what}: {self._doubts[key]}" for what, key in chain(cohorts, queues) if key in self._doubts]

    # -------------------------------------------------------------------------------------------------------- changing

    def put(self, obj: SnapshotObject, *, doubt: str = "") -> None:
        """`doubt` says why a ClusterQueue or Cohort is not, or not surely, the one that stands in the API."""
        if isinstance(obj, QuotaWorkload):
            self._put_workload(obj)
            return
        kind = type(obj)
        key = obj.key if isinstance(obj, QuotaLocalQueue) else obj.name
        known, set_to = self._kinds[kind]
        if self._note(kind, key, doubt) or known.get(key) != obj:
            set_to(key, obj)

    def drop(self, kind: type[SnapshotObject], key: str | LocalQueueKey) -> None:
        """The object of that key is gone, if it was there: its name, of a Workload `namespace/name`."""
        if kind is QuotaWorkload:
            self._drop_workload(str(key))
            return
        known, set_to = self._kinds[kind]
        self._note(kind, key, "")
        if key in known:
            set_to(key, None)

    def put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        if self.namespaces.get(name) == labels:
            return
        _set(self.namespaces, name, labels)
        for queue in self.local_queues.values():
            if queue.namespace == name:
                self._cohort_trees.bump(queue.cluster_queue)

    def _note(self, kind: type, key: Any, doubt: str) -> bool:
        """Whether the doubt is another than before."""
        before = self._doubts.get((kind, key), "")
        _set(self._doubts, (kind, key), doubt or None)
        return before != doubt

    # --------------------------------------------------------------------------------------------- what follows from it

    def _set_cluster_queue(self, name: str, queue: QuotaClusterQueue | None) -> None:
        _set(self.cluster_queues, name, queue)
        self._settle_queue(name)

    def _set_cohort(self, name: str, cohort: QuotaCohort | None) -> None:
        _set(self.cohorts, name, cohort)
        if cohort is None:
            self._cohort_trees.drop_cohort(name)
        else:
            self._cohort_trees.put_cohort(cohort)

    def _set_flavor(self, name: str, flavor: Flavor | None) -> None:
        old = self.flavors.get(name)
        _set(self.flavors, name, flavor)
        for queue in [each for each in self.cluster_queues.values() if _offers(each, name)]:
            self._settle_queue(queue.name)
        if (old.topology if old else "") != (flavor.topology if flavor else ""):
            self._refile([each for each in self.reserved if name in _flavors_of(each)])

    def _set_check(self, name: str, check: QuotaAdmissionCheck | None) -> None:
        _set(self._checks, name, check)
        for queue in [each for each in self.cluster_queues.values() if name in each.checks]:
            self._settle_queue(queue.name)

    def _set_local_queue(self, key: LocalQueueKey, queue: QuotaLocalQueue | None) -> None:
        """Let the queue's Workloads wait where it leads now."""
        before = self._leads_to(key)
        _set(self.local_queues, key, queue)
        after = self._leads_to(key)
        waiting = self._waiting.line(key)
        self._cohort_trees.bump(before)
        self._cohort_trees.bump(after)
        if before != after:
            if before:
                self._pending.take_all(before, waiting)
            if after:
                self._pending.put_all(after, waiting)
        if self._placing.get(before) != self._placing.get(after):
            self._refile(waiting)

    def _settle_queue(self, name: str) -> None:
        """Judge the queue and what waits in it anew, after anything they depend on has changed."""
        queue = self.cluster_queues.get(name)
        if queue is None:
            self._cohort_trees.drop_queue(name)
        else:
            reason = inactive_because(queue, self.flavors, self._checks)
            self._cohort_trees.put_queue(replace(queue, inactive_because=reason) if reason else queue)
        placed = _placing_flavor(queue, self.flavors)
        if placed != self._placing.get(name, ""):
            _set(self._placing, name, placed or None)
            self._refile(self._pending.line(name))

    # ------------------------------------------------------------------------------------------------------ Workloads

    def _put_workload(self, workload: QuotaWorkload) -> None:
        known = self.workloads.get(workload.key)
        if known is not None:
            if _are_alike(self._given.get(workload.key, known), workload):
                return
            self._unfile(known)
        self._given.pop(workload.key, None)
        self._file(workload)

    def _drop_workload(self, key: str) -> None:
        known = self.workloads.pop(key, None)
        if known is not None:
            self._unfile(known)
            self._given.pop(key, None)

    def _refile(self, workloads: Iterable[QuotaWorkload]) -> None:
        """See the Workloads as their flavors and queues make them now."""
        for workload in tuple(workloads):
            self._unfile(workload)
            self._file(self._given.pop(workload.key, workload))

    def _file(self, given: QuotaWorkload) -> None:
        workload = self._seen(given)
        _ = workload.shape  # cached by this read, so that no plan computes it for all Workloads at once
        self.workloads[workload.key] = self.by_uid[workload.uid] = workload
        if workload.reservation is not None:
            queue = workload.reservation.cluster_queue
            self._holding.setdefault(queue, {})[workload.key] = workload
            if leaf := self._cohort_trees.leaf(queue):
                leaf.reserve(workload)
        else:
            self._waiting.put((workload.namespace, workload.queue), workload)
            queue = self._queues_at(workload)
            if queue:
                self._pending.put(queue, workload)
        self._cohort_trees.bump(queue)

    def _unfile(self, workload: QuotaWorkload) -> None:
        """Take the Workload, as it was filed, out of everything but `workloads`."""
        if self.by_uid.get(workload.uid) is workload:
            del self.by_uid[workload.uid]
        if workload.reservation is not None:
            queue = workload.reservation.cluster_queue
            _take(self._holding, queue, workload.key)
            if leaf := self._cohort_trees.leaf(queue):
                leaf.release(workload)
        else:
            self._waiting.take((workload.namespace, workload.queue), workload)
            queue = self._queues_at(workload)
            if queue:
                self._pending.take(queue, workload)
        self._cohort_trees.bump(queue)

    def _queues_at(self, workload: QuotaWorkload) -> str:
        """The ClusterQueue in which a Workload without reservation queues; empty where none takes it."""
        return self._leads_to((workload.namespace, workload.queue))

    def _leads_to(self, key: LocalQueueKey) -> str:
        """The ClusterQueue of a LocalQueue that is not stopped; empty for any other."""
        local = self.local_queues.get(key)
        return local.cluster_queue if local and local.stop_policy is StopPolicy.NONE else ""

    def _seen(self, given: QuotaWorkload) -> QuotaWorkload:
        seen = self.as_seen(given)
        if seen is not given:
            self._given[given.key] = given
        return seen

    def as_seen(self, given: QuotaWorkload) -> QuotaWorkload:
        """The Workload as it would be filed, as its flavors and queue make it."""
        if given.opaque_because:
            return given
        queue = None if given.reservation else self.cluster_queues.get(self._queues_at(given))
        flavor = topology_flavor(given, queue, self.flavors)
        return replace(given, opaque_because=f"flavor {flavor} is placed by topology") if flavor else given


def _are_alike(one: QuotaWorkload, other: QuotaWorkload) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _COMPARED)


def _set(values: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _take(filed: dict[Any, dict[str, QuotaWorkload]], place: Any, key: str) -> None:
    there = filed[place]
    del there[key]
    if not there:
        del filed[place]


class _Lines(Generic[K]):
    """Workloads by queue, each in the order of queues. What was given out is no longer changed."""

    def __init__(self) -> None:
        self._lines: dict[K, list[QuotaWorkload]] = {}
        self._given: dict[K, tuple[QuotaWorkload, ...]] = {}
        """What was given out, for as long as nothing changes in the queue."""

    def line(self, queue: K) -> tuple[QuotaWorkload, ...]:
        given = self._given.get(queue)
        if given is None and queue in self._lines:
            given = self._given[queue] = tuple(self._lines[queue])
        return given or ()

    def lines(self) -> dict[K, tuple[QuotaWorkload, ...]]:
        return {queue: self.line(queue) for queue in self._lines}

    def put(self, queue: K, workload: QuotaWorkload) -> None:
        self._given.pop(queue, None)
        insort(self._lines.setdefault(queue, []), workload, key=_PLACE)

    def take(self, queue: K, workload: QuotaWorkload) -> None:
        line = self._lines[queue]
        at = bisect_left(line, workload.place, key=_PLACE)
        self._given.pop(queue, None)
        del line[next(place for place in range(at, len(line)) if line[place] is workload)]
        if not line:
            del self._lines[queue]

    def put_all(self, queue: K, workloads: Iterable[QuotaWorkload]) -> None:
        self._replace(queue, sorted([*self._lines.get(queue, ()), *workloads], key=_PLACE))

    def take_all(self, queue: K, workloads: Iterable[QuotaWorkload]) -> None:
        gone = set(workloads)
        self._replace(queue, [each for each in self._lines.get(queue, ()) if each not in gone])

    def _replace(self, queue: K, line: list[QuotaWorkload]) -> None:
        self._given.pop(queue, None)
        _set(self._lines, queue, line or None)


# -------------------------------------------------------------------------------------------------- derived state


def inactive_because(
    queue: QuotaClusterQueue, flavors: Mapping[str, Flavor], checks: Mapping[str, QuotaAdmissionCheck]
) -> str:
    """Kueue's reason why the queue admits nothing; empty where it does. What the queue says of itself comes first."""
    if queue.inactive_because:
        return queue.inactive_because
    if any(name not in flavors for group in queue.groups for name in group.flavors):
        return "FlavorNotFound"
    if not queue.checks:
        return ""
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
        return next((name for name in _flavors_of(workload) if _has_topology(name, flavors)), "")
    return _placing_flavor(queue, flavors)


def _placing_flavor(queue: QuotaClusterQueue | None, flavors: Mapping[str, Flavor]) -> str:
    """One of the flavors that the queue offers, if all of them have a Topology; else empty."""
    for group in queue.groups if queue else ():
        for name in group.flavors:
            if not _has_topology(name, flavors):
                return ""
    return min(queue.flavors, default="") if queue else ""


def _offers(queue: QuotaClusterQueue, flavor: str) -> bool:
    return any(flavor in group.flavors for group in queue.groups)


def _flavors_of(workload: QuotaWorkload) -> list[str]:
    """The flavors that a Workload with a reservation has."""
    return [name for each in workload.held.assignments for name in each.flavors.values()]


def _has_topology(name: str, flavors: Mapping[str, Flavor]) -> bool:
    return name in flavors and bool(flavors[name].topology)
