"""In which ClusterQueue is a Workload, or would it be? Pure, from what is observed."""

from collections.abc import Callable
from dataclasses import dataclass

from scaler.core.quota.snapshot import Snapshot
from scaler.kube.kueue_objects import Workload
from scaler.loops.quota_view import Blind


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNames:
    """`quota` gives Kueue's queues, or why they are not seen."""

    quota: Callable[[], Snapshot | Blind]

    def of(self, workload: Workload) -> str:
        """Where it holds quota, or where its LocalQueue leads to; empty where nobody knows."""
        if workload.status.admission is not None:
            return workload.status.admission.cluster_queue
        snapshot = self.quota()
        if isinstance(snapshot, Blind):
            return ""
        local = snapshot.local_queue(workload.metadata.namespace, workload.spec.queue_name)
        return local.cluster_queue if local is not None else ""
