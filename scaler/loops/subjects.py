"""What does a ScaledObject scale, how does that stand, and what did its owner write on it?

Two kinds of target: a ScalableWorkload, of which Kueue's side is known, and anything else that has a scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from scaler.core.idleness import Unknown
from scaler.core.pods import Pod
from scaler.core.policy import Overrides
from scaler.core.reasons import Unknowable
from scaler.core.replicas import Stage, Standing
from scaler.core.suspension import standing, standing_of_scale
from scaler.errors import MetadataError
from scaler.kube.objects import ScaledObject
from scaler.loops.board import Target
from scaler.loops.cluster import Cluster, target_of
from scaler.loops.scales import Scales, is_scalable_workload
from scaler.loops.wishes import kept, wake_wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A scale target as it stands, its pods, and what its owner wrote on it."""

    target: Target
    standing: Standing
    pods: Sequence[Pod] = ()
    wishes: tuple[tuple[str, Overrides], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """Looks at targets in the copies of the cluster's objects; asks the API nothing."""

    cluster: Cluster
    scales: Scales

    def of(self, scaled_object: ScaledObject, *, demand: str, view_doubt: Unknown | None, at: datetime) -> Subject:
        """What the ScaledObject scales, as it stands at that instant.

        `demand` is who asks for it, in words; `view_doubt` is why the copies of objects are not to be believed.
        """
        target = target_of(scaled_object)
        where = f"ScaledObject {scaled_object.metadata.name}"
        look = self._scalable if is_scalable_workload(target) else self._scaled
        try:
            keeps = (where, kept(scaled_object.metadata.annotations, where=where))
            subject = look(scaled_object, target, demand, where, at)
        except MetadataError as error:
            subject, keeps = _unknowable(target, Unknowable.INVALID_POLICY, str(error)), (where, Overrides())
        if view_doubt:
            return _unknowable(target, view_doubt.reason, view_doubt.message)
        return Subject(
            target=target,
            standing=replace(subject.standing, demand=demand) if demand else subject.standing,
            pods=subject.pods,
            wishes=(keeps, *subject.wishes),
        )

    def _scalable(self, scaled_object: ScaledObject, target: Target, demand: str, where: str, at: datetime) -> Subject:
        namespace = scaled_object.metadata.namespace
        scalable = self.cluster.scalable_workloads.get(namespace, target.name)
        if scalable is None:
            missing = f"ScalableWorkload {namespace}/{target.name} does not exist; create it or mend scaleTargetRef"
            return _unknowable(target, Unknowable.TARGET_NOT_FOUND, missing)
        suspended_at = scalable.status.suspended_at
        wish = wake_wish(scaled_object.metadata.annotations, where=where, suspended_at=suspended_at) or demand
        situation = self.cluster.situation(scalable, wish=wish, at=at)
        on_target = f"ScalableWorkload {target.name}"
        return Subject(
            target=target,
            standing=standing(situation),
            pods=situation.pods,
            wishes=((on_target, kept(scalable.metadata.annotations, where=on_target)),),
        )

    def _scaled(self, scaled_object: ScaledObject, target: Target, demand: str, where: str, _at: datetime) -> Subject:
        namespace = scaled_object.metadata.namespace
        scale = self.scales.of(namespace, target)
        if isinstance(scale, Unknown):
            return _unknowable(target, scale.reason, scale.message)
        try:
            pods = self.cluster.pods_of_selector(namespace, scale.selector)
        except ValueError as error:
            return _unknowable(target, Unknowable.TARGET_NOT_FOUND, f"selector of {target}: {error}")
        wish = wake_wish(scaled_object.metadata.annotations, where=where, suspended_at=None) or demand
        return Subject(
            target=target,
            standing=standing_of_scale(replicas=scale.replicas, pods=pods, wake_wish=wish),
            pods=pods,
        )


def _unknowable(target: Target, reason: Unknowable, message: str) -> Subject:
    """A subject of which nothing else counts than why it is not known."""
    doubt = Unknown(reason=reason, message=message)
    return Subject(target=target, standing=Standing(desired_replicas=1, stage=Stage.STARTING, doubt=doubt))
