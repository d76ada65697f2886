"""What does Open Cluster Management see of a cluster's GPUs? An AddOnPlacementScore in its ManagedCluster's namespace.

| score             | is, of the ClusterQueue with the most                             |
|-------------------|-------------------------------------------------------------------|
| `gpu-free`        | GPUs that a Workload could get now                                |
| `gpu-reclaimable` | GPUs of idle workloads that plans may take                        |
| `gpu-gang`        | GPUs of the largest gang that fits after idle ones are suspended  |

A score is −100 for none and 100 for `maximum` GPUs or more, in between in proportion: 32 of 64 are 0. Flavors of one
ClusterQueue are added up; ClusterQueues are not, as what one can borrow another can, too.

Scores are of a fresh offer and hold as long as it does. Where nothing is known nothing is written, so that they expire.
They are written when they change, and when half of their life is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from scaler.errors import KubeError
from scaler.kube.objects.core import stamp
from scaler.kube.objects.multikueue import ClusterOfferStatus
from scaler.kube.objects.resources import ADD_ON_PLACEMENT_SCORE
from scaler.kube.writes import WriteApi
from scaler.multikueue.hub.worker_offer import life_of

log = structlog.get_logger(__name__)

SCORE_NAME = "idle-gpu-scaler"
_RETRY = timedelta(minutes=1)

Scores = Mapping[str, int]


def scores_of(status: ClusterOfferStatus, maximum: int) -> Scores:
    """Range: −100 to 100."""
    queues = status.cluster_queues
    free = max((sum(each.free for each in queue.flavors) for queue in queues), default=0)
    reclaimable = max((sum(each.reclaimable for each in queue.flavors) for queue in queues), default=0)
    gang = max((queue.largest_gang.after_reclaim for queue in queues), default=0)
    given = {"gpu-free": free, "gpu-reclaimable": reclaimable, "gpu-gang": gang}
    return {name: round(200 * min(gpus, maximum) / maximum) - 100 for name, gpus in given.items()}


def scores_status(scores: Scores, valid_until: datetime) -> Mapping[str, Any]:
    return {
        "scores": [{"name": name, "value": value} for name, value in scores.items()],
        "validUntil": stamp(valid_until),
    }


@dataclass(kw_only=True)
class PlacementScores:
    """Writes them, for the leader."""

    api: WriteApi
    maximum: int
    _written: dict[str, tuple[Scores, datetime, datetime]] = field(default_factory=dict, init=False)
    """The scores of each ManagedCluster, when they were written, and until when they hold."""
    _retry_at: dict[str, datetime] = field(default_factory=dict, init=False)

    async def publish(self, cluster: str, status: ClusterOfferStatus | None, now: datetime) -> None:
        """Writes the scores of a ManagedCluster where that is due; None where nothing is known of it."""
        if status is None or now < self._retry_at.get(cluster, now):
            return
        scores = scores_of(status, self.maximum)
        if not self._is_due(cluster, scores, now):
            return
        until = now + life_of(status)
        try:
            await self._write(cluster, scores_status(scores, until))
        except KubeError as error:
            tell = log.debug if cluster in self._retry_at else log.warning
            self._retry_at[cluster] = now + _RETRY
            tell("AddOnPlacementScore not written; retried", cluster=cluster, error=str(error))
            return
        self._written[cluster] = scores, now, until
        self._retry_at.pop(cluster, None)

    def _is_due(self, cluster: str, scores: Scores, now: datetime) -> bool:
        if cluster not in self._written:
            return True
        before, at, until = self._written[cluster]
        return scores != before or now >= at + (until - at) / 2

    async def _write(self, cluster: str, status: Mapping[str, Any]) -> None:
        """Raises: KubeError; 404 where the kind is not served, or the namespace does not exist."""
        path = ADD_ON_PLACEMENT_SCORE.path(cluster, SCORE_NAME, "status")
        try:
            await self.api.patch(path, {"status": status})
        except KubeError as error:
            if not error.is_absent:
                raise
            await self._create(cluster)
            await self.api.patch(path, {"status": status})

    async def _create(self, cluster: str) -> None:
        head = {"apiVersion": ADD_ON_PLACEMENT_SCORE.api_version, "kind": ADD_ON_PLACEMENT_SCORE.kind}
        try:
            await self.api.create(
                ADD_ON_PLACEMENT_SCORE.path(cluster), {**head, "metadata": {"name": SCORE_NAME, "namespace": cluster}}
            )
        except KubeError as error:
            if not error.is_conflict:
                raise
