"""Removes a wake wish from a ScaledObject once it has been granted, so that it does not undo the next suspension.

A wish is granted when KEDA has been told to run the target and the target is asked to run. Until then it stays: one
that is made while its target is just being put to sleep counts from when it sleeps.

What stands on a ScalableWorkload is removed by its reconciler, which knows more about it.
"""

from scaler.core.replicas import Active, Decision, Stage
from scaler.core.suspension import Phase, plan
from scaler.kube.objects import ScaledObject
from scaler.kube.resources import SCALED_OBJECT
from scaler.loops.board import Board, Key
from scaler.loops.cluster import Cluster, target_of
from scaler.loops.leadership import Api
from scaler.loops.scales import is_scalable_workload
from scaler.loops.wishes import WAKE, wake_wish


class Granter:
    """Looks at one ScaledObject at a time."""

    def __init__(self, api: Api, cluster: Cluster, board: Board) -> None:
        self._api = api
        self._cluster = cluster
        self._board = board

    async def grant(self, key: Key) -> None:
        """Remove the ScaledObject's wish if it was granted. Raises: KubeError; try again later."""
        scaled_object = self._cluster.scaled_objects.get(*key)
        if scaled_object is None or not has_wish(scaled_object) or not self._is_granted(scaled_object):
            return
        body = {"metadata": {"annotations": {WAKE: None}, "uid": scaled_object.metadata.uid}}
        await self._api.patch(SCALED_OBJECT.path(*key), body)

    def _is_granted(self, scaled_object: ScaledObject) -> bool:
        evaluation = self._board.evaluation
        entry = evaluation.entries.get(scaled_object.metadata.key) if evaluation else None
        decisions = [trigger.decision for trigger in entry.triggers.values()] if entry else []
        return bool(decisions) and all(map(_runs, decisions)) and not self._is_still_needed(scaled_object)

    def _is_still_needed(self, scaled_object: ScaledObject) -> bool:
        """Whether its target is asked to run, and yet only this wish can bring it back."""
        target = target_of(scaled_object)
        if not is_scalable_workload(target):
            return False
        scalable = self._cluster.scalable_workloads.get(scaled_object.metadata.namespace, target.name)
        return scalable is not None and plan(self._cluster.situation(scalable)).phase is Phase.DEACTIVATED_BY_OTHER


def has_wish(scaled_object: ScaledObject) -> bool:
    """Whether its owner asks for it to come back; `false` on the annotation is no wish, and is left alone."""
    return bool(wake_wish(scaled_object.metadata.annotations, where="", suspended_at=None))


def _runs(decision: Decision) -> bool:
    standing = decision.standing
    return isinstance(decision.answer, Active) and standing.desired_replicas > 0 and standing.stage != Stage.SUSPENDED
