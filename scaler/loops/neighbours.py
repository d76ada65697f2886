"""Which nodes have pods that others must not share a node with, and whose are they? For plans, by which some go. Pure.

Pods that end are not counted: like what they hold, their nodes are free once a plan has come to its end.
"""

from collections.abc import Iterable

from scaler.core.quota.snapshot import Snapshot
from scaler.core.reclaim.values import Marked
from scaler.kube.objects import Pod
from scaler.kueue.pod_neighbours import PODSET_LABEL, marked_pod_sets
from scaler.loops.cluster import Cluster
from scaler.loops.endings import pods_of
from scaler.loops.nodes_view import is_nowhere
from scaler.loops.standing_plans import key_of


def marked_nodes(snapshot: Snapshot, cluster: Cluster) -> Marked:
    """Of all Workloads that hold quota."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for each in snapshot.reserved:
        if not any(pods.nodes.apart for pods in each.pod_sets):
            continue
        workload = cluster.workloads.get(*key_of(each.key))
        marks = marked_pod_sets(workload) if workload is not None else {}
        staying = [pod for pod in pods_of(workload, cluster.pods) if _stays(pod)] if workload is not None else []
        for mark, pod_sets in marks.items():
            found.setdefault(mark, {})[each.key] = frozenset(_nodes(staying, pod_sets))
    return found


def _stays(pod: Pod) -> bool:
    return not is_nowhere(pod) and pod.metadata.deletion_timestamp is None


def _nodes(pods: Iterable[Pod], pod_sets: frozenset[str]) -> Iterable[str]:
    """Those of the pods of these PodSets, and of pods that do not say of which they are."""
    return (pod.spec.node_name for pod in pods if pod.metadata.labels.get(PODSET_LABEL) in (None, *pod_sets))
