"""Which Workloads wait for GPUs, since when, and why? From the watch of Workloads and the controllers' reports.

Laws:

* A Workload waits from when it asks for quota until it is admitted: while its admission checks are not ready, too.
* One that lost its quota, or was suspended and is resumed, begins anew. By its creation, which Kueue's queues are
  ordered by, it would have waited while it was suspended.
* Of what waited before this process began its own conditions tell since when.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from scaler.decision.decision_cache import Key
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import condition, is_true
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced
from scaler.reporting.waiting_reasons import ReportedReasons
from scaler.targets.cluster_state import ClusterState


class PendingFor(StrEnum):
    QUOTA = "Quota"
    CHECKS = "AdmissionCheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWorkload:
    key: str
    cluster_queue: str
    stage: PendingFor
    reason: str
    gpus: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNames:
    """The ClusterQueue in which a Workload is, or would be. `quota` gives Kueue's queues, or why they are not known."""

    quota: Callable[[], Snapshot | NotSynced]

    def of(self, workload: Workload) -> str:
        """The ClusterQueue in which it holds quota, or that its LocalQueue leads to; empty where that is not known."""
        if workload.status.admission is not None:
            return workload.status.admission.cluster_queue
        snapshot = self.quota()
        if isinstance(snapshot, NotSynced):
            return ""
        local = snapshot.local_queue(workload.metadata.namespace, workload.spec.queue_name)
        return local.cluster_queue if local is not None else ""


class PendingWorkloads:
    """Subscribe `heard` to the Workloads.

    `admitted` is called for each with GPUs that was seen waiting and is admitted: with its ClusterQueue, and how long
    it waited.
    """

    def __init__(
        self,
        cluster: ClusterState,
        queues: QueueNames,
        reasons: ReportedReasons,
        *,
        admitted: Callable[[str, timedelta], None] = lambda _queue, _waited: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._queues = queues
        self._reasons = reasons
        self._admitted = admitted
        self._clock = clock
        self._since: dict[Key, datetime] = {}

    def heard(self, change: Change[Workload]) -> None:
        """The change is counted; it never raises."""
        workload = change.new
        if workload is None:
            self._since.pop(change.key, None)
            return
        if is_waiting(workload):
            begin = self._clock() if change.old is not None else _pending_since(workload) or self._clock()
            self._since.setdefault(change.key, begin)
            return
        since = self._since.pop(change.key, None)
        if since is not None and is_admitted(workload) and requested_gpus(workload, self._cluster.gpus):
            self._admitted(self._queues.of(workload), max(timedelta(0), self._clock() - since))

    def pending(self) -> list[PendingWorkload]:
        found = [each for key, since in self._since.items() if (each := self._pending(key, since))]
        self._reasons.keep({each.key for each in found})
        return found

    def _pending(self, key: Key, since: datetime) -> PendingWorkload | None:
        workload = self._cluster.workloads.get(*key)
        gpus = requested_gpus(workload, self._cluster.gpus) if workload is not None else 0
        if workload is None or not gpus:
            return None
        has_quota = is_true(workload.status.conditions, "QuotaReserved")
        return PendingWorkload(
            key="/".join(key),
            cluster_queue=self._queues.of(workload),
            stage=PendingFor.CHECKS if has_quota else PendingFor.QUOTA,
            reason=self._reasons.of("/".join(key), has_quota=has_quota),
            gpus=gpus,
            since=since,
        )


def is_admitted(workload: Workload) -> bool:
    """Whether it may run, and has not finished."""
    conditions = workload.status.conditions
    return is_true(conditions, "Admitted") and not is_true(conditions, "Finished")


def is_waiting(workload: Workload) -> bool:
    """Whether it asks for quota, or for its checks."""
    conditions = workload.status.conditions
    is_over = is_true(conditions, "Finished") or is_true(conditions, "Admitted")
    return workload.spec.active and workload.metadata.deletion_timestamp is None and not is_over


def _pending_since(workload: Workload) -> datetime | None:
    """The time at which it lost its quota, or was created."""
    lost = condition(workload.status.conditions, "QuotaReserved")
    lost_at = lost.last_transition_time if lost is not None and lost.status != "True" else None
    return lost_at or workload.metadata.creation_timestamp


def requested_gpus(workload: Workload, gpus: GpuResources) -> int:
    """GPUs of all its pods, as admitted where it is, and as it requests them where not."""
    assigned = workload.status.admission.pod_set_assignments if workload.status.admission is not None else ()
    counts = {each.name: each.count for each in assigned if each.count is not None}
    return sum(counts.get(each.name, each.count) * gpus.of_pod(each.template.spec) for each in workload.spec.pod_sets)
