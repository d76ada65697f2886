"""Which ScaledObjects are evaluated again before the next tick, because their objects changed?

After a user sets replicas to 1 by hand, KEDA must not get an answer from before that.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scaler.app.reflectors import Reflectors
from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision_cache import Key
from scaler.decision.scale_subresources import scalable_workload_ref, spec_or_annotations_changed
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.kueue_workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReEvaluation:
    """`touch` requests that a ScaledObject is evaluated again."""

    reflectors: Reflectors
    cluster: ClusterState
    touch: Callable[[Key], None]

    def follow(self) -> None:
        """Subscribe to all changes."""
        self.reflectors.scaled_objects.subscribe(self._scaled_object_changed)
        self.reflectors.scalable_workloads.subscribe(self._scalable_workload_changed)
        self.reflectors.workloads.subscribe(self._workload_changed)

    def target_changed(self, namespace: str, target: ScaleTargetRef) -> None:
        """An object that ScaledObjects may scale has changed."""
        for scaled_object in self.reflectors.scaled_objects.by_index("target", (namespace, target)):
            self.touch(scaled_object.metadata.key)

    def _scaled_object_changed(self, change: Change[ScaledObject]) -> None:
        if spec_or_annotations_changed(change):
            self.touch(change.key)

    def _scalable_workload_changed(self, change: Change[ScalableWorkload]) -> None:
        if spec_or_annotations_changed(change) or _grant_changed(change):
            self.target_changed(change.key[0], scalable_workload_ref(change.key[1]))

    def _workload_changed(self, change: Change[Workload]) -> None:
        """A target at 0 replicas is suspended only once its Workload is inactive."""
        workload = change.new or change.old
        if workload is None or not spec_or_annotations_changed(change):
            return
        for scalable in self.cluster.scalers_of(workload):
            self.target_changed(scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name))


def _grant_changed(change: Change[ScalableWorkload]) -> bool:
    """Whether the grant of a reclaim plan was added or removed."""
    old, new = (each.status.grant if each is not None else None for each in (change.old, change.new))
    return old != new
