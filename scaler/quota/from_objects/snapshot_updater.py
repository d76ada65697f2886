"""Kueue's objects, as they stand in the API, filed into a snapshot one by one.

Laws:

* An object that cannot be read kills nothing and is not absent. A ClusterQueue or Cohort stays as it was last readable,
  or without quota where it never was, and its tree has a doubt; a flavor, LocalQueue or check stays as it was or stays
  unknown; a Workload is opaque. `unreadable` lists them all, with the reasons.
* A Workload whose backoff runs is filed again when it is over: `wake`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

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
KINDS: tuple[type[QuotaObject], ...] = (
    kube.ResourceFlavor,
    kube.AdmissionCheck,
    kube.Cohort,
    kube.ClusterQueue,
    kube.LocalQueue,
    kube.Namespace,
    Workload,
)
"""In the order in which filing all of them costs least."""

_BY_NAME = {kind.__name__: kind for kind in KINDS}


class SnapshotUpdater:
    """Files objects into `snapshot`. `boosts` and `excluded` are how Kueue is configured (`quota_workload_of`)."""

    def __init__(self, snapshot: Snapshot, *, boosts: bool = False, excluded: tuple[str, ...] = ()) -> None:
        self.snapshot = snapshot
        self.unreadable: dict[tuple[str, str], str] = {}
        """Reasons by kind and `namespace/name`."""
        self._boosts = boosts
        self._excluded = excluded
        self._sleeping: dict[str, Workload] = {}
        self._drops: Mapping[type[QuotaObject], Callable[[str], None]] = {
            Workload: snapshot.drop_workload,
            kube.LocalQueue: lambda key: snapshot.drop_local_queue(*key.split("/")),
            kube.ClusterQueue: snapshot.drop_cluster_queue,
            kube.Cohort: snapshot.drop_cohort,
            kube.ResourceFlavor: snapshot.drop_flavor,
            kube.AdmissionCheck: snapshot.drop_check,
            kube.Namespace: snapshot.drop_namespace,
        }

    def put(self, obj: QuotaObject, *, now: datetime | None = None) -> None:
        """File the object as it is now. `now` is compared with the end of backoffs; without it all are over."""
        where = type(obj).__name__, name_of(obj.metadata)
        self.unreadable.pop(where, None)
        try:
            self._put(obj, now)
        except ValueError as error:
            self.unreadable[where] = str(error)
            self._doubt(obj, str(error))

    def _put(self, obj: QuotaObject, now: datetime | None) -> None:
        snapshot = self.snapshot
        match obj:
            case Workload():
                self._put_workload(obj, now)
            case kube.ClusterQueue():
                snapshot.put_cluster_queue(cluster_queue_of(obj))
            case kube.Cohort():
                snapshot.put_cohort(cohort_of(obj))
            case kube.ResourceFlavor():
                snapshot.put_flavor(flavor_of(obj))
            case kube.LocalQueue():
                snapshot.put_local_queue(local_queue_of(obj))
            case kube.AdmissionCheck():
                snapshot.put_check(check_of(obj))
            case kube.Namespace():
                snapshot.put_namespace(obj.metadata.name, obj.metadata.labels)

    def _doubt(self, obj: QuotaObject, reason: str) -> None:
        snapshot, name = self.snapshot, obj.metadata.name
        match obj:
            case kube.ClusterQueue():
                known = snapshot.cluster_queue(name)
                bare = model.QuotaClusterQueue(name=name, cohort=obj.spec.cohort_name, inactive_because="Unreadable")
                snapshot.put_cluster_queue(known or bare, doubt=reason)
            case kube.Cohort():
                bare_cohort = model.QuotaCohort(name=name, parent=obj.spec.parent_name)
                snapshot.put_cohort(snapshot.cohort(name) or bare_cohort, doubt=reason)

    def _put_workload(self, workload: Workload, now: datetime | None) -> None:
        key = name_of(workload.metadata)
        self._sleeping.pop(key, None)
        found = quota_workload_of(workload, boosts=self._boosts, excluded=self._excluded, now=now)
        if found is None:
            self.snapshot.drop_workload(key)
            return
        requeue_at = requeue_at_of(workload)
        if now is not None and requeue_at is not None and requeue_at > now:
            self._sleeping[key] = workload
        self.snapshot.put_workload(found)

    def wake(self, now: datetime) -> None:
        """File the Workloads again whose backoff is over by now."""
        for workload in tuple(self._sleeping.values()):
            if (requeue_at := requeue_at_of(workload)) is None or requeue_at <= now:
                self._put_workload(workload, now)

    def drop(self, obj: QuotaObject) -> None:
        """The object is gone; which version of it is given does not matter."""
        kind, key = type(obj), name_of(obj.metadata)
        self.unreadable.pop((kind.__name__, key), None)
        if kind is Workload:
            self._sleeping.pop(key, None)
        self._drops[kind](key)


def snapshot_of(
    manifests: Iterable[Mapping[str, Any]],
    *,
    fair_sharing: bool = False,
    boosts: bool = False,
    now: datetime | None = None,
) -> Snapshot:
    """A snapshot of plain manifests, as they stand in files; those of other kinds are left out.

    Raises: ValueError where one cannot be read, with its kind and name.
    """
    filing = SnapshotUpdater(Snapshot(fair_sharing=fair_sharing), boosts=boosts)
    for manifest in manifests:
        if (kind := _BY_NAME.get(manifest.get("kind", ""))) is not None:
            filing.put(_converted(manifest, kind), now=now)
    for (kind_name, name), reason in filing.unreadable.items():
        raise ValueError(f"{kind_name} {name}: {reason}")
    return filing.snapshot


def _converted(manifest: Mapping[str, Any], kind: type[QuotaObject]) -> QuotaObject:
    try:
        return msgspec.convert(manifest, kind)
    except msgspec.ValidationError as error:
        name = manifest.get("metadata", {}).get("name", "")
        raise ValueError(f"{kind.__name__} {name}: {error}") from None


def name_of(metadata: ObjectMeta) -> str:
    """`namespace/name`, or the name alone of what belongs to no namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
