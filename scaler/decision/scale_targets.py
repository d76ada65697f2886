"""What does a ScaledObject scale, in which state is it, and what do annotations say about it?

Two kinds of target: a ScalableWorkload, of which Kueue's side is known, and anything else that has a scale. Both are
read from the caches of API objects; the API is not asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from scaler.decision.cluster_state import ClusterState
from scaler.decision.scale_subresources import ScaleSubresources, is_scalable_workload
from scaler.decision.target_state import Phase, TargetState, state_of, state_of_scale
from scaler.decision.workloads import keep_overrides, wake_request
from scaler.errors import MetadataError
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """A scale target as observed, and its pods."""

    state: TargetState
    pods: Sequence[GpuPod] = ()
    annotations: tuple[tuple[str, Overrides], ...] = ()
    """The policy fields that annotations set, by the object that carries them, in the order of precedence."""


def unknown_target(doubt: Unknown) -> ScaleTarget:
    """A target of which nothing else counts than why it is not known."""
    return ScaleTarget(state=TargetState(desired_replicas=1, phase=Phase.STARTING, doubt=doubt))


def find_target(
    scaled_object: ScaledObject, cluster: ClusterState, scales: ScaleSubresources, *, demand: str, at: datetime
) -> ScaleTarget:
    """What the ScaledObject scales, as observed at that instant; `demand` is the wake query that asks for it."""
    namespace, reference = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref
    where = f"ScaledObject {scaled_object.metadata.name}"
    try:
        keep = where, keep_overrides(scaled_object.metadata.annotations, where=where)
        if not is_scalable_workload(reference):
            found = _scaled(scaled_object, cluster, scales, demand, where)
        elif scalable := cluster.scalable_workloads.get(namespace, reference.name):
            found = _scalable(scaled_object, scalable, cluster, demand=demand, where=where, at=at)
        else:
            missing = (
                f"ScalableWorkload {namespace}/{reference.name} does not exist; create it or correct scaleTargetRef"
            )
            found = unknown_target(Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=missing))
    except MetadataError as error:
        return unknown_target(Unknown(reason=UnknownReason.INVALID_POLICY, message=str(error)))
    return replace(found, state=replace(found.state, demand=demand), annotations=(keep, *found.annotations))


def _scalable(
    scaled_object: ScaledObject,
    scalable: ScalableWorkload,
    cluster: ClusterState,
    *,
    demand: str,
    where: str,
    at: datetime,
) -> ScaleTarget:
    suspended_at = scalable.status.suspended_at
    wake = wake_request(scaled_object.metadata.annotations, where=where, suspended_at=suspended_at) or demand
    target = cluster.situation(scalable, wake=wake, at=at)
    on_target = f"ScalableWorkload {scalable.metadata.name}"
    keep = on_target, keep_overrides(scalable.metadata.annotations, where=on_target)
    return ScaleTarget(state=state_of(target), pods=target.pods, annotations=(keep,))


def _scaled(
    scaled_object: ScaledObject, cluster: ClusterState, scales: ScaleSubresources, demand: str, where: str
) -> ScaleTarget:
    namespace, reference = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref
    scale = scales.of(namespace, reference)
    if isinstance(scale, Unknown):
        return unknown_target(scale)
    try:
        pods = cluster.pods_of_selector(namespace, scale.selector)
    except ValueError as error:
        message = f"selector of {reference}: {error}"
        return unknown_target(Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=message))
    wake = wake_request(scaled_object.metadata.annotations, where=where, suspended_at=None) or demand
    return ScaleTarget(state=state_of_scale(replicas=scale.replicas, pods=pods, wake_request=wake), pods=pods)
