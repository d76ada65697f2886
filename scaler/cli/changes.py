"""What is to be decided again before the next evaluation, because of what was just heard?

Somebody who sets replicas to 1 by hand must not meet an answer that is from before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scaler.cli.reflectors import Reflectors
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import ScalableWorkload, ScaledObject
from scaler.loops.board import Key, Target
from scaler.loops.cluster import Cluster
from scaler.loops.scales import is_asked_for_anew, scalable_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """`touch` has a ScaledObject decided again soon."""

    reflectors: Reflectors
    cluster: Cluster
    touch: Callable[[Key], None]

    def follow(self) -> None:
        """Hear of all changes from now on."""
        self.reflectors.scaled_objects.subscribe(self._scaled_object_changed)
        self.reflectors.scalable_workloads.subscribe(self._scalable_workload_changed)
        self.reflectors.workloads.subscribe(self._workload_changed)

    def target_changed(self, namespace: str, target: Target) -> None:
        """An object that may be scaled is another one now."""
        for scaled_object in self.reflectors.scaled_objects.by_index("target", (namespace, target)):
            self.touch(scaled_object.metadata.key)

    def _scaled_object_changed(self, change: Change[ScaledObject]) -> None:
        if is_asked_for_anew(change):
            self.touch(change.key)

    def _scalable_workload_changed(self, change: Change[ScalableWorkload]) -> None:
        if is_asked_for_anew(change) or _is_granted_anew(change):
            self.target_changed(change.key[0], scalable_target(change.key[1]))

    def _workload_changed(self, change: Change[Workload]) -> None:
        """What was asked to be at 0 is only known to be suspended once its Workload is inactive."""
        workload = change.new or change.old
        if workload is None or not is_asked_for_anew(change):
            return
        for scalable in self.cluster.scalers_of(workload):
            self.target_changed(scalable.metadata.namespace, scalable_target(scalable.metadata.name))


def _is_granted_anew(change: Change[ScalableWorkload]) -> bool:
    """Whether a plan has come or gone that may take the workload."""
    old, new = (each.status.grant if each is not None else None for each in (change.old, change.new))
    return old != new
