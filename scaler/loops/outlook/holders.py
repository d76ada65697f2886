"""Who holds the GPUs that a gang would need and may not be taken, and why? Pure, from what is observed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaler.core.quota.model import Workload
from scaler.core.quota.snapshot import Snapshot
from scaler.core.quota.tree import Tree
from scaler.core.reclaim import Why
from scaler.core.replicas import answer_reason
from scaler.core.suspension import Phase, plan
from scaler.kube.objects import ScalableWorkload
from scaler.loops.board import Evaluation
from scaler.loops.candidates import gpus_of, is_idle, is_left_alone
from scaler.loops.cluster import Cluster
from scaler.loops.granted import grant_of
from scaler.loops.projection import leading
from scaler.loops.scales import scalable_target

MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A Workload that holds GPUs and is not a candidate."""

    workload: Workload
    gpus: int
    name: str
    """`namespace/name` of its ScalableWorkload; empty where it has none."""
    reason: str
    message: str


def others_in(
    trees: Iterable[Tree], spared: Iterable[str], cluster: Cluster, evaluation: Evaluation | None, *, most: int = MOST
) -> tuple[Sequence[Holder], int]:
    """Those of the trees that are not among the spared, the largest first, and how many more there are."""
    keys = frozenset(spared)
    queues = [queue for tree in trees for queue in tree.queues.values()]
    holders = [each for queue in queues for key, each in queue.workloads.items() if key not in keys]
    sized = [(gpus, each) for each in holders if (gpus := gpus_of(each, cluster))]
    sized.sort(key=lambda one: (-one[0], one[1].key))
    return [_holder(each, gpus, cluster, evaluation) for gpus, each in sized[:most]], max(0, len(sized) - most)


def _holder(workload: Workload, gpus: int, cluster: Cluster, evaluation: Evaluation | None) -> Holder:
    scalable = scalable_of(workload.key, cluster)
    reason, message = _why(workload, scalable, evaluation)
    name = "/".join(scalable.metadata.key) if scalable is not None else ""
    return Holder(workload=workload, gpus=gpus, name=name, reason=reason, message=message)


def scalable_of(key: str, cluster: Cluster) -> ScalableWorkload | None:
    """The ScalableWorkload that acts for the Workload of that key."""
    namespace, _, name = key.partition("/")
    workload = cluster.workloads.get(namespace, name)
    return cluster.scaler_of(workload) if workload is not None else None


def why_barred(key: str, snapshot: Snapshot, cluster: Cluster) -> str:
    """Why no plan may take the Workload even if it is idle; empty where one may."""
    scalable, workload = scalable_of(key, cluster), snapshot.workload(key)
    if scalable is None:
        return "no ScalableWorkload acts for it"
    if is_left_alone(scalable, cluster):
        return "its ScaledObject is missing or paused"
    if plan(cluster.situation(scalable)).phase is Phase.REFUSED:
        return "it cannot be suspended; its ScalableWorkload says why"
    if workload is not None and workload.opaque_because:
        return f"what Kueue does when it goes is not known ({workload.opaque_because})"
    return ""


def _why(workload: Workload, scalable: ScalableWorkload | None, evaluation: Evaluation | None) -> tuple[str, str]:
    """Why no plan may take it."""
    if scalable is None:
        return "NotScaled", "it has no ScalableWorkload, so no plan may take it"
    grant = grant_of(scalable)
    if grant is not None:
        return "TakenByPlan", f"{grant.words} takes it"
    namespace, name = scalable.metadata.key
    decisions = evaluation.decisions_on(namespace, scalable_target(name)) if evaluation is not None else ()
    decision = leading(decisions)
    if decision is None:
        return "NotJudged", "no ScaledObject scales it, or it is not judged yet"
    if is_idle(decisions) and workload.opaque_because:
        return str(Why.UNFORESEEABLE), f"idle, but what Kueue does when it goes is not known: {workload.opaque_because}"
    if is_idle(decisions):
        return "LeftAlone", "idle, but its ScaledObject is paused or missing, or another ScalableWorkload acts for it"
    return answer_reason(decision.answer), decision.answer.message
