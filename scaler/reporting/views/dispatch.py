"""Which Workloads of a hub wait for a cluster, what does each cluster answer, and what do clusters have?

Any replica answers: all of them read the workers. What only the leader remembers is not known: since when an answer is
awaited, and which room it has given away.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from scaler.kube.objects.core import stamp
from scaler.kube.objects.multikueue import ClusterOfferStatus, ClusterQueueOffer
from scaler.multikueue.hub.dispatch.candidates import ClusterOption
from scaler.multikueue.hub.dispatch.controller import nominated_message, step_message, worker_view
from scaler.multikueue.hub.dispatch.moment import DispatchMemory, DispatchMoment
from scaler.multikueue.hub.dispatch.plan import DispatchPlanner, WorkloadDispatch
from scaler.multikueue.hub.dispatch.waiting import ClusterEligibilities, HubObjects
from scaler.multikueue.hub.worker_connections import WorkerConnection, WorkerConnections
from scaler.reporting.views import Json

_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, kw_only=True)
class DispatchReader:
    """Reads what the dispatcher goes by, and writes nothing."""

    objects: HubObjects
    connections: WorkerConnections
    planner: DispatchPlanner

    async def waiting(self, now: datetime) -> Mapping[tuple[str, str], Json]:
        """What each cluster answers about every Workload that waits for one."""
        workers = {name: worker_view(each, now) for name, each in self.connections.connections.items()}
        waiting, eligibilities = self.objects.waiting(), ClusterEligibilities.of(self.objects)
        memory = DispatchMemory(asked_since=dict.fromkeys((each.uid for each in waiting), _LONG_AGO))
        moment = DispatchMoment.of(eligibilities, workers, memory, now, patience=self.planner.patience)
        plan = await self.planner.plan(waiting, moment, {})
        return {each.waiting.workload.metadata.key: waiting_view(each) for each in plan.workloads}

    def clusters(self, now: datetime) -> Json:
        """What every worker has."""
        return {
            "at": stamp(now),
            "clusters": [cluster_view(name, each) for name, each in sorted(self.connections.connections.items())],
        }


def cluster_view(name: str, connection: WorkerConnection) -> Json:
    """What a worker has by its status, while that is fresh; else why it is not known."""
    status = connection.offer.status()
    unknown = connection.problem or (status.message if status is not None else "its ClusterOffer has no current status")
    return {
        "name": name,
        "problem": unknown or None,
        "observedAt": stamp(status.observed_at) if status is not None and status.observed_at is not None else None,
        "clusterQueues": [*_cluster_queues(status)] if status is not None else [],
    }


def _cluster_queues(status: ClusterOfferStatus) -> Iterator[Json]:
    for queue in status.cluster_queues:
        yield {
            "name": queue.name,
            "largestGang": {"now": queue.largest_gang.now, "afterReclaim": queue.largest_gang.after_reclaim},
            "flavors": [*_flavors(queue)],
        }


def _flavors(queue: ClusterQueueOffer) -> Iterator[Json]:
    for each in queue.flavors:
        yield {
            "name": each.name,
            "resource": each.resource,
            "models": list(each.models),
            "nominal": each.nominal,
            "free": each.free,
            "idle": each.idle,
            "reclaimable": each.reclaimable,
        }


def waiting_view(found: WorkloadDispatch) -> Json:
    workload = found.waiting.workload
    return {
        "namespace": workload.metadata.namespace,
        "name": workload.metadata.name,
        "clusterQueue": found.waiting.cluster_queue,
        "priority": workload.spec.priority or 0,
        "active": workload.spec.active,
        "nominated": list(found.state.nominated),
        "reason": found.reason,
        "step": step_message(found),
        "message": nominated_message(found),
        "clusters": [*_clusters(found)],
    }


def _clusters(found: WorkloadDispatch) -> Iterator[Json]:
    """The candidates, best first, and then the clusters that cannot be nominated."""
    since = found.state.since
    for each in found.ranking.all:
        yield {
            "name": each.name,
            "answer": _answer(each),
            "why": each.words,
            "nominated": each.name in found.state.nominated,
            "nominatedAt": stamp(since) if since is not None and each.name == found.state.cluster else None,
            "reclaim": since is not None and each.name == found.state.cluster,
        }


def _answer(cluster: ClusterOption) -> str:
    """Its fit, or why it is no candidate."""
    return str(cluster.obstacle or cluster.answer.fit)
