"""A ScalableWorkload with `actuator: Direct` as the ScaledObject that it does without.

Whatever reads ScaledObjects reads it as one: its metadata, itself as the target, and its `triggerMetadata` as the only
trigger. What is written on a ScaledObject is written on the ScalableWorkload (`resource`).
"""

from typing import ClassVar

from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaledObjectSpec, Trigger, scalable_workload_ref
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, Resource
from scaler.kube.objects.sharing import shared

KEDA, DIRECT = "KEDA", "Direct"
"""The actuators: KEDA, or the leader itself."""


class DirectScaling(ScaledObject, frozen=True):
    resource: ClassVar[Resource] = SCALABLE_WORKLOAD


def direct_scaling(scalable: ScalableWorkload) -> DirectScaling | None:
    """The ScalableWorkload as what its actuator scales; None where KEDA is to scale it."""
    if scalable.spec.actuator != DIRECT:
        return None
    target = scalable_workload_ref(scalable.metadata.name)
    trigger = shared(Trigger(type=DIRECT, metadata=scalable.spec.trigger_metadata))
    return DirectScaling(
        metadata=scalable.metadata, spec=ScaledObjectSpec(scale_target_ref=target, triggers=(trigger,))
    )
