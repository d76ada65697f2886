"""Which Workloads of a hub wait for a cluster, what does each cluster answer, and what is done? For people and programs."""

from collections.abc import Iterator, Mapping
from typing import Any

from scaler.kube.objects.core import stamp
from scaler.multikueue.dispatch.controller import DispatchReport, nominated_message
from scaler.multikueue.dispatch.plan import WorkloadDispatch
from scaler.multikueue.dispatch.ranking import RankedCluster

Json = Mapping[str, Any]


def dispatch_view(report: DispatchReport) -> Json:
    """Every Workload that waits, in its turn, with each cluster and its answer."""
    plan = report.plan
    return {
        "at": stamp(report.at),
        "problem": report.problem,
        "preflight": {"result": str(report.preflight.result), "message": report.preflight.message},
        "workers": {
            name: {"answers": not each.silence, "problem": each.silence} for name, each in report.workers.items()
        },
        "workloads": [waiting_view(each) for each in plan.workloads] if plan is not None else [],
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
        "message": nominated_message(found),
        "clusters": [*_clusters(found)],
    }


def _clusters(found: WorkloadDispatch) -> Iterator[Json]:
    """The candidates, best first, and then the clusters that cannot be nominated."""
    for each in found.ranking.all:
        since = found.state.nominated_at.get(each.name)
        yield {
            "name": each.name,
            "answer": _answer(each),
            "why": each.words,
            "nominated": each.name in found.state.nominated,
            "nominatedAt": stamp(since) if since is not None else None,
            "reclaim": each.name == found.reclaims and each.name in found.state.nominated,
        }


def _answer(cluster: RankedCluster) -> str:
    """Its fit, or why it is no candidate."""
    return str(cluster.answer.fit if cluster.standing.obstacle is None else cluster.standing.obstacle)
