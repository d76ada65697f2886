"""Kueue's objects, as they stand in the API, filed into a snapshot one by one.

Laws:

* An object that cannot be read kills nothing and is not absent. A ClusterQueue or Cohort stays as it was last readable,
  or without quota where it never was, and its tree has a doubt; a flavor, LocalQueue or check stays as it was or stays
  unknown; a Workload is opaque. `unreadable` lists them all, with the reasons.
* A Workload whose backoff runs is filed again when it is over: `wake`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from heapq import heappop, heappush
from typing import Any

from msgspec.structs import replace

from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota import model
from scaler.quota.from_objects.queues import check_of, cluster_queue_of, cohort_of, flavor_of, local_queue_of
from scaler.quota.from_objects.workloads import quota_workload_of, requeue_at_of
from scaler.quota.snapshot import Snapshot

QuotaObject = (
    kube.ResourceFlavor
    | kube.AdmissionCheck
    | kube.Cohort
    | kube.ClusterQueue
    | kube.LocalQueue
    | kube.Namespace
    | Workload
)

_READ: Mapping[type, tuple[Callable[[Any], Any], type]] = {
    kube.ResourceFlavor: (flavor_of, model.Flavor),
    kube.AdmissionCheck: (check_of, model.QuotaAdmissionCheck),
    kube.Cohort: (cohort_of, model.QuotaCohort),
    kube.ClusterQueue: (cluster_queue_of, model.QuotaClusterQueue),
    kube.LocalQueue: (local_queue_of, model.QuotaLocalQueue),
}


class SnapshotUpdater:
    """Files objects into `snapshot`. `boosts` and `excluded` are how Kueue is configured (`quota_workload_of`)."""

    def __init__(self, snapshot: Snapshot, *, boosts: bool = False, excluded: tuple[str, ...] = ()) -> None:
        self.snapshot = snapshot
        self.unreadable: dict[tuple[str, str], str] = {}
        """Reasons by kind and `namespace/name`."""
        self._boosts = boosts
        self._excluded = excluded
        self._sleeping: dict[str, Workload] = {}
        self._wake_ups: list[tuple[datetime, str]] = []
        """A heap: when which of them is to be filed again, if that still holds."""

    def put(self, obj: QuotaObject, *, now: datetime | None = None) -> None:
        """File the object as it is now. `now` is compared with the end of backoffs; without it all are over."""
        where = type(obj).__name__, name_of(obj.metadata)
        self.unreadable.pop(where, None)
        try:
            if isinstance(obj, Workload):
                self._put_workload(obj, now)
            elif isinstance(obj, kube.Namespace):
                self.snapshot.put_namespace(obj.metadata.name, obj.metadata.labels)
            else:
                self.snapshot.put(_READ[type(obj)][0](obj))
        except ValueError as error:
            self.unreadable[where] = str(error)
            self._doubt(obj, str(error))

    def _doubt(self, obj: QuotaObject, reason: str) -> None:
        snapshot, name = self.snapshot, obj.metadata.name
        match obj:
            case kube.ClusterQueue():
                bare = model.QuotaClusterQueue(name=name, cohort=obj.spec.cohort_name, inactive_because="Unreadable")
                snapshot.put(snapshot.cluster_queues.get(name, bare), doubt=reason)
            case kube.Cohort():
                bare_cohort = model.QuotaCohort(name=name, parent=obj.spec.parent_name)
                snapshot.put(snapshot.cohorts.get(name, bare_cohort), doubt=reason)

    def _put_workload(self, workload: Workload, now: datetime | None) -> None:
        key = name_of(workload.metadata)
        self._sleeping.pop(key, None)
        found = quota_workload_of(workload, boosts=self._boosts, excluded=self._excluded, now=now)
        if found is None:
            self.snapshot.drop(model.QuotaWorkload, key)
            return
        requeue_at = requeue_at_of(workload)
        if now is not None and requeue_at is not None and requeue_at > now:
            self._sleeping[key] = workload
            heappush(self._wake_ups, (requeue_at, key))
        self.snapshot.put(found)

    def if_active(self, workload: Workload) -> model.QuotaWorkload | None:
        """The Workload as it would wait for quota, or hold some, if it was active; None where it has finished."""
        active = replace(workload, spec=replace(workload.spec, active=True))
        found = quota_workload_of(active, boosts=self._boosts, excluded=self._excluded)
        return None if found is None else self.snapshot.as_seen(dataclasses.replace(found, may_queue=True))

    def wake(self, now: datetime) -> None:
        """File the Workloads again whose backoff is over by now."""
        while self._wake_ups and self._wake_ups[0][0] <= now:
            _, key = heappop(self._wake_ups)
            workload = self._sleeping.get(key)
            if workload is not None and ((requeue_at := requeue_at_of(workload)) is None or requeue_at <= now):
                self._put_workload(workload, now)

    def drop(self, obj: QuotaObject) -> None:
        """The object is gone; which version of it is given does not matter."""
        key = name_of(obj.metadata)
        self.unreadable.pop((type(obj).__name__, key), None)
        if isinstance(obj, Workload):
            self._sleeping.pop(key, None)
            self.snapshot.drop(model.QuotaWorkload, key)
        elif isinstance(obj, kube.Namespace):
            self.snapshot.put_namespace(key, None)
        else:
            self.snapshot.drop(_READ[type(obj)][1], obj.metadata.key if isinstance(obj, kube.LocalQueue) else key)


def name_of(metadata: ObjectMeta) -> str:
    """`namespace/name`, or the name alone of what belongs to no namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
