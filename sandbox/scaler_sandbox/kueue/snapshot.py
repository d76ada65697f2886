"""The cluster's quota objects as the engine sees them: a snapshot that follows the client's copy, object by object.

Laws:

* What has not changed since the last look is not read again.
* A Workload without quota that Kueue's scheduler would not nominate (one of its checks says Retry or Rejected, or it is
  being deleted) is none.
* A LocalQueue that is resumed queues all of its pending Workloads, also those in backoff after an eviction: as Kueue
  does, and the way to requeue a stuck one.
* What cannot be read is logged once and left out; everything else goes on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import structlog

from scaler.documents import UNREADABLE
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)
from scaler.quota.from_objects.snapshot_updater import QuotaObject, SnapshotUpdater
from scaler.quota.model import StopPolicy
from scaler.quota.snapshot import Snapshot
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.workload_status import has_failed_check

_log = structlog.get_logger(__name__)

_KINDS: Mapping[Resource, type[QuotaObject]] = {
    RESOURCE_FLAVOR: kube.ResourceFlavor,
    ADMISSION_CHECK: kube.AdmissionCheck,
    COHORT: kube.Cohort,
    CLUSTER_QUEUE: kube.ClusterQueue,
    LOCAL_QUEUE: kube.LocalQueue,
    NAMESPACE: kube.Namespace,
    WORKLOAD: Workload,
}

_Revision = tuple[Any, Any]
"""uid and resourceVersion."""


class QuotaMirror:
    """Keeps `snapshot` what the client shows."""

    def __init__(self, client: Client, *, fair_sharing: bool) -> None:
        self.snapshot = Snapshot(fair_sharing=fair_sharing)
        self._client = client
        self._stopped: set[tuple[str, str]] = set()
        self._filing = SnapshotUpdater(self.snapshot)
        self._filed: dict[Resource, dict[tuple[str, str], tuple[_Revision, QuotaObject | None]]] = {
            resource: {} for resource in _KINDS
        }

    def update(self, now: datetime) -> None:
        """Take in everything that has changed."""
        for resource in _KINDS:
            self._follow(resource, now)
        self._filing.wake(now)
        self._requeue()

    def _follow(self, resource: Resource, now: datetime) -> None:
        filed = self._filed[resource]
        gone = filed.copy()
        for key, body in self._shown(resource):
            before = gone.pop(key, None)
            revision = body["metadata"].get("uid"), body["metadata"].get("resourceVersion")
            if before is None or before[0] != revision:
                filed[key] = revision, self._file(resource, body, now) or (before[1] if before else None)
        for key, (_, obj) in gone.items():
            del filed[key]
            if obj is not None:
                self._filing.drop(obj)

    def _shown(self, resource: Resource) -> Iterator[tuple[tuple[str, str], Json]]:
        for body in self._client.all(resource):
            if resource is not WORKLOAD or _is_nominable(body):
                yield (body["metadata"].get("namespace", ""), body["metadata"]["name"]), body

    def _file(self, resource: Resource, body: Json, now: datetime) -> QuotaObject | None:
        try:
            obj = decode(_KINDS[resource], msgspec.json.encode(body))
        except UNREADABLE as error:
            _log.warning(
                "SimulatedKueueCannotRead", kind=resource.kind, name=body["metadata"]["name"], error=str(error)
            )
            return None
        self._filing.put(obj, now=now)
        return obj

    def _requeue(self) -> None:
        """Queue the Workloads of LocalQueues that were stopped and are resumed."""
        before, self._stopped = (
            self._stopped,
            {
                key
                for key in self._filed[LOCAL_QUEUE]
                if (queue := self.snapshot.local_queue(*key)) and queue.stop_policy is not StopPolicy.NONE
            },
        )
        running = before - self._stopped
        for workload in tuple(self.snapshot.workloads.values()) if running else ():
            if (workload.namespace, workload.queue) in running and workload.reservation is None:
                self.snapshot.put(replace(workload, may_queue=True))


def _is_nominable(workload: Json) -> bool:
    if has(workload, "QuotaReserved"):
        return True
    return not has_failed_check(workload) and not workload["metadata"].get("deletionTimestamp")
