"""Workloads that hold GPUs and are no candidates for reclaim, and why. Pure, from what is observed."""

from collections.abc import Iterable, Sequence

from scaler.decision.decision_cache import Evaluation
from scaler.decision.describe import prevailing
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.quota.model import QuotaWorkload
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree
from scaler.reclaim.candidates import gpus_of, is_idle, is_not_scaled
from scaler.reclaim.search.values import NoPlanReason
from scaler.reporting.views import Json
from scaler.targets.cluster_state import ClusterState
from scaler.targets.target_state import Phase, state_of
from scaler.targets.workloads import grant_of

MOST = 20


def non_candidates_in(
    trees: Iterable[Tree],
    spared: Iterable[str],
    cluster: ClusterState,
    evaluation: Evaluation | None,
) -> tuple[Sequence[Json], int]:
    """The Workloads of the trees that are not among the spared, the largest first, and how many more there are."""
    keys = frozenset(spared)
    queues = [queue for tree in trees for queue in tree.queues.values()]
    holders = [each for queue in queues for key, each in queue.workloads.items() if key not in keys]
    sized = [(gpus, each) for each in holders if (gpus := gpus_of(each, cluster))]
    sized.sort(key=lambda one: (-one[0], one[1].key))
    return [_view(each, gpus, cluster, evaluation) for gpus, each in sized[:MOST]], max(0, len(sized) - MOST)


def _view(workload: QuotaWorkload, gpus: int, cluster: ClusterState, evaluation: Evaluation | None) -> Json:
    scalable = scalable_of(workload.key, cluster)
    reason, message = _why(workload, scalable, evaluation)
    return {
        "workload": workload.key,
        "name": "/".join(scalable.metadata.key) if scalable is not None else None,
        "clusterQueue": workload.held.cluster_queue,
        "gpus": gpus,
        "reason": reason,
        "message": message,
    }


def scalable_of(key: str, cluster: ClusterState) -> ScalableWorkload | None:
    namespace, _, name = key.partition("/")
    workload = cluster.workloads.get(namespace, name)
    return cluster.scaler_of(workload) if workload is not None else None


def why_ineligible(key: str, quota: Snapshot, cluster: ClusterState) -> str:
    """Why no plan may take the Workload even if it is idle; empty where one may."""
    scalable, workload = scalable_of(key, cluster), quota.workload(key)
    if scalable is None:
        return "no ScalableWorkload acts for it"
    if is_not_scaled(scalable, cluster):
        return "its ScaledObject is missing or paused"
    if state_of(cluster.situation(scalable)).phase is Phase.REFUSED:
        return "it cannot be suspended; its ScalableWorkload says why"
    if workload is not None and workload.opaque_because:
        return f"what Kueue does when it goes is not known ({workload.opaque_because})"
    return ""


def _why(workload: QuotaWorkload, scalable: ScalableWorkload | None, evaluation: Evaluation | None) -> tuple[str, str]:
    if scalable is None:
        return "NotScaled", "it has no ScalableWorkload, so no plan may take it"
    grant = grant_of(scalable)
    if grant is not None:
        return "TakenByPlan", f"it is a victim of {grant.words}"
    namespace, name = scalable.metadata.key
    decisions = evaluation.decisions_on(namespace, scalable_workload_ref(name)) if evaluation is not None else ()
    decision = prevailing(decisions)
    if decision is None:
        return "NotJudged", "no ScaledObject scales it, or it is not judged yet"
    if is_idle(decisions) and workload.opaque_because:
        message = f"idle, but what Kueue does when it goes is not known: {workload.opaque_because}"
        return str(NoPlanReason.UNFORESEEABLE), message
    if is_idle(decisions):
        return "LeftAlone", "idle, but its ScaledObject is paused or missing, or another ScalableWorkload acts for it"
    return str(decision.answer.reason), decision.answer.message
