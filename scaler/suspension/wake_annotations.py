"""Removes the wake annotation from a ScaledObject once it has taken effect.

Left there it would undo the next suspension. It has taken effect when KEDA gets 1 for the target and the target is
scaled to 1. One that is set while its target is being suspended stays, and counts from when it is suspended.

SuspensionReconciler removes the annotation of a ScalableWorkload, of which it knows more.
"""

from scaler.decision.annotations import WAKE_ANNOTATION, wake_request
from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision import Active, Decision
from scaler.decision.decision_cache import DecisionCache, Key
from scaler.decision.scale_subresources import is_scalable_workload
from scaler.decision.target_state import Phase, state_of
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.suspension.leader_api import PatchApi


class WakeAnnotationReconciler:
    """Looks at one ScaledObject at a time."""

    def __init__(self, api: PatchApi, cluster: ClusterState, board: DecisionCache) -> None:
        self._api = api
        self._cluster = cluster
        self._board = board

    async def reconcile(self, key: Key) -> None:
        """Remove the annotation if it has taken effect. Raises: KubeError; try again later."""
        scaled_object = self._cluster.scaled_objects.get(*key)
        if scaled_object is None or not has_wake_annotation(scaled_object) or not self._has_taken_effect(scaled_object):
            return
        body = {"metadata": {"annotations": {WAKE_ANNOTATION: None}, "uid": scaled_object.metadata.uid}}
        await self._api.patch(SCALED_OBJECT.path(*key), body)

    def _has_taken_effect(self, scaled_object: ScaledObject) -> bool:
        evaluation = self._board.evaluation
        entry = evaluation.entries.get(scaled_object.metadata.key) if evaluation else None
        decisions = [trigger.decision for trigger in entry.triggers.values()] if entry else []
        return bool(decisions) and all(map(_runs, decisions)) and not self._is_still_needed(scaled_object)

    def _is_still_needed(self, scaled_object: ScaledObject) -> bool:
        """Whether its target is scaled to 1, and yet only this annotation can activate its Workload."""
        target = scaled_object.spec.scale_target_ref
        if not is_scalable_workload(target):
            return False
        scalable = self._cluster.scalable_workloads.get(scaled_object.metadata.namespace, target.name)
        return scalable is not None and state_of(self._cluster.situation(scalable)).phase is Phase.DEACTIVATED_BY_OTHER


def has_wake_annotation(scaled_object: ScaledObject) -> bool:
    """Whether a wake-up is requested; an annotation with the value `false` requests none, and stays."""
    return bool(wake_request(scaled_object.metadata.annotations, where="", suspended_at=None))


def _runs(decision: Decision) -> bool:
    return isinstance(decision.answer, Active) and decision.target.desired_replicas > 0
