"""Which pods does a scale target own, through however many owners between? Pod → ReplicaSet → Deployment → target.

The selector of a scale names the pods that a HorizontalPodAutoscaler averages over, and these may be a part: leaders
without their workers, one of two roles. Deployments, StatefulSets and ReplicaSets adopt what their selector matches and
nothing else, and all pods of a LeaderWorkerSet name it. Of any other kind the pods that it owns count as well. So do,
of every kind, the pods that its pods own through other objects: Pod → Job → Pod.

Laws:

* Every owner counts, whether it is said to be the controller or not: garbage collection does not ask for that either.
* A pod of which it is not known whose it is may be the target's: until its owners are read, the target is not judged.
  Beside a target whose own pods are known by labels, that is so only while a kind is still being read: one that may
  not be read at all would keep every Deployment of its namespace from being judged for ever.
* Owners are read from watches of their kinds, which begin when a pod with GPUs beside such a target names them. No pod
  costs a request.

* Of what is known by labels no owners are read beside such a target: there are ten times as many ReplicaSets as
  Deployments. What such objects bring forth that a pod owns is not found.

Why not the selector alone: the pods that it leaves out may work while those that it names are quiet.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from scaler.idleness.pods import GpuPod
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Scale
from scaler.kube.objects.core import ObjectMeta, OwnerReference, Pod
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.resources import DEPLOYMENT, LEADER_WORKER_SET, REPLICA_SET, STATEFUL_SET, group_of
from scaler.targets.cluster_state import JOB_NAME_LABELS, ClusterState
from scaler.targets.scale_subresources import ScaleSubresources

_LEVELS = 16
"""Owners above each other that are read. Kubernetes sets no limit, and what tenants write may be a circle."""
_WHOLE_BY_LABELS = frozenset(
    (each.group, each.kind) for each in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, LEADER_WORKER_SET)
)
"""Kinds whose pods are what their selector, or the label of their name, matches. Source: Kubernetes,
pkg/controller/controller_ref_manager.go, which releases what a selector does not match. Selectors of apps/v1 never
change."""


class _Filed(NamedTuple):
    """The pods with GPUs of a namespace."""

    by_owner: Mapping[str, Mapping[str, GpuPod]]
    """UID of each object above them → name → pod."""
    unread: Mapping[str, Unknown]
    """Name of a pod → why not all of its owners are known."""


class OwnedPods:
    def __init__(self, cluster: ClusterState, scales: ScaleSubresources) -> None:
        self._cluster, self._scales = cluster, scales
        self._last: dict[bool, tuple[Hashable, _Filed]] = {}
        """What was filed last, of one namespace: decisions are made in the order of these. By whether it is below pods
        only."""

    def of(self, namespace: str, target: ScaleTargetRef, scale: Scale) -> Sequence[GpuPod] | Unknown:
        """The GPU pods of a scale target; or why not all of them are known.

        Raises: ValueError for a selector that is not understood.
        """
        kind, label = (group_of(target.api_version), target.kind), JOB_NAME_LABELS.get(target.kind)
        selectors = (scale.selector, f"{label}={target.name}" if label else "")
        found = {pod.name: pod for each in selectors for pod in self._cluster.pods_of_selector(namespace, each)}
        if not scale.replicas:
            return [*found.values()]
        filed = self._filed(namespace, below_pods=kind in _WHOLE_BY_LABELS)
        seen = self._scales.object_of(namespace, target) if kind not in _WHOLE_BY_LABELS else None
        found |= filed.by_owner.get(seen[1].uid, {}) if seen is not None else {}
        own = [pod for name in found if (pod := self._cluster.pods.get(namespace, name)) is not None]
        found |= {name: pod for each in own for name, pod in filed.by_owner.get(each.metadata.uid, {}).items()}
        stray = next(((name, doubt) for name, doubt in filed.unread.items() if name not in found), None)
        if stray is None:
            return [*found.values()]
        name, doubt = stray
        return Unknown(reason=doubt.reason, message=f"Pod {name} may belong to {target}: {doubt.message}")

    def _filed(self, namespace: str, *, below_pods: bool) -> _Filed:
        """The index, made again only when pods or owners of the namespace have changed."""
        now = namespace, self._cluster.pods.revision(namespace), self._scales.revision(namespace)
        last = self._last.get(below_pods)
        if last is None or last[0] != now:
            last = self._last[below_pods] = now, self._file(namespace, below_pods=below_pods)
        return last[1]

    def _file(self, namespace: str, *, below_pods: bool) -> _Filed:
        by_owner: defaultdict[str, dict[str, GpuPod]] = defaultdict(dict)
        unread: dict[str, Unknown] = {}
        for pod in self._cluster.pods.by_index("gpus", namespace):
            if (seen := self._cluster.gpu_pod(pod)).is_member:
                for owner in self._above(pod, unread, below_pods=below_pods):
                    by_owner[owner][seen.name] = seen
        return _Filed(by_owner, unread)

    def _above(self, pod: Pod, unread: dict[str, Unknown], *, below_pods: bool) -> set[str]:
        """UIDs of all objects that own the pod, or own one of its owners, as far as they can be read.

        `below_pods`: those that do not lead from a pod to another are left out.
        """
        namespace, name = pod.metadata.key
        uids, level = set[str](), [pod.metadata]
        for _ in range(_LEVELS):
            above = {each.uid: each for owned in level for each in owned.owner_references if not _is_node(each)}
            uids |= above.keys()
            read = [each for each in above.values() if not below_pods or self._is_between_pods(namespace, each)]
            found = [self._owner(namespace, each) for each in read]
            level = [each for each in found if not isinstance(each, Unknown)]
            if (doubt := next((each for each in found if isinstance(each, Unknown)), None)) is not None:
                unread[name] = doubt
            if not level:
                return uids
        unread[name] = _unread(f"it has more than {_LEVELS} owners above each other")
        return uids

    def _is_between_pods(self, namespace: str, reference: OwnerReference) -> bool:
        """Whether a pod may own it, and its own owners may be read."""
        if (reference.api_version, reference.kind) == ("v1", "Pod"):
            found = self._cluster.pods.get(namespace, reference.name)
            return found is not None and bool(found.metadata.owner_references)
        kind = group_of(reference.api_version), reference.kind
        return kind not in _WHOLE_BY_LABELS and self._scales.may_read(namespace, reference)

    def _owner(self, namespace: str, reference: OwnerReference) -> ObjectMeta | Unknown:
        """The owner of a pod; of one without GPUs its own owners may not be kept."""
        if (reference.api_version, reference.kind) != ("v1", "Pod"):
            return self._scales.owner(namespace, reference)
        found = self._cluster.pods.get(namespace, reference.name)
        is_kept = found is not None and (found.metadata.owner_references or self._cluster.gpus.of_pod(found.spec))
        if found is None or found.metadata.uid != reference.uid or not is_kept:
            return _unread(f"the owners of Pod {reference.name}, which owns it, are not known")
        return found.metadata


def _is_node(reference: OwnerReference) -> bool:
    """Whether it is that of a static pod."""
    return (reference.api_version, reference.kind) == ("v1", "Node")


def _unread(message: str) -> Unknown:
    return Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message=message)
