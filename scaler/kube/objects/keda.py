"""KEDA's objects (keda.sh/v1alpha1), and what `doctor` reads beside them, by the laws of `core.py`.

How KEDA treats a ScaledObject, and where a trigger's secrets come from, is read by `doctor` only, the latter with the
rights of its caller.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from msgspec import field

from scaler.kube.objects.core import ConditionedStatus, ObjectMeta, Struct
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource, group_of


class ScaleTargetRef(Struct, frozen=True):
    name: str = ""
    api_version: str = "apps/v1"
    kind: str = "Deployment"
    """KEDA's defaults. Source: KEDA, pkg/scaling/resolver, ResolveScaleTargetPodSpec."""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def is_scalable_workload(target: ScaleTargetRef) -> bool:
    """Whether the target is our own kind, of which more is known than its scale."""
    return group_of(target.api_version) == SCALABLE_WORKLOAD.group and target.kind == SCALABLE_WORKLOAD.kind


def scalable_workload_ref(name: str) -> ScaleTargetRef:
    return ScaleTargetRef(api_version=SCALABLE_WORKLOAD.api_version, kind=SCALABLE_WORKLOAD.kind, name=name)


class AuthenticationRef(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    """Empty: TriggerAuthentication."""


class Trigger(Struct, frozen=True):
    type: str = ""
    name: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    authentication_ref: AuthenticationRef | None = None


class AdvancedSpec(Struct, frozen=True):
    restore_to_original_replica_count: bool = False


class ScaledObjectSpec(Struct, frozen=True):
    scale_target_ref: ScaleTargetRef = ScaleTargetRef()
    triggers: tuple[Trigger, ...] = ()
    polling_interval: int = 30
    """Seconds, as the cooldown; these and the next two with KEDA's defaults."""
    cooldown_period: int = 300
    min_replica_count: int = 0
    max_replica_count: int = 100
    idle_replica_count: int | None = None
    fallback: dict[str, Any] | None = None
    """What KEDA does on errors; only whether it is there is looked at."""
    advanced: AdvancedSpec = AdvancedSpec()


class ScaledObject(Struct, frozen=True):
    resource: ClassVar[Resource] = SCALED_OBJECT
    """The place of the object in the API. A ScalableWorkload that stands for one has its own (`direct_scaling.py`)."""
    metadata: ObjectMeta
    spec: ScaledObjectSpec = ScaledObjectSpec()
    status: ConditionedStatus = ConditionedStatus()


# ------------------------------------------------------------------------------------------------------------- pauses

_ANNOTATION = "autoscaling.keda.sh/"
_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})


def keeps_from_zero(annotations: Mapping[str, str]) -> str:
    """The annotation by which KEDA does not scale to 0, whatever its scalers answer; empty where there is none."""
    return _first_pause(annotations, "paused-replicas", "paused", "paused-scale-in", "force-activation")


def keeps_at_zero(annotations: Mapping[str, str]) -> str:
    """The annotation by which KEDA does not scale to 1, whatever its scalers answer; empty where there is none."""
    return _first_pause(annotations, "paused-replicas", "paused", "paused-scale-out")


def _first_pause(annotations: Mapping[str, str], *names: str) -> str:
    """The first that is set, as KEDA reads it.

    | annotation                        | pauses                                                              |
    |-----------------------------------|---------------------------------------------------------------------|
    | paused-replicas                   | where it is there, whatever its value                               |
    | paused                            | but for a spelling of false (before KEDA 2.13: where it is there)   |
    | paused-scale-in, paused-scale-out | but for a spelling of false                                         |
    | force-activation                  | the same: KEDA takes its target for active                          |

    What is no boolean, the empty text too, counts as true. Source: KEDA, apis/keda/v1alpha1/scaledobject_types.go,
    getBoolAnnotation (the last two rows since 2.18); Go, strconv.ParseBool.
    """
    found = ((name, annotations.get(_ANNOTATION + name)) for name in names)
    is_set = (name for name, value in found if value is not None and (name == "paused-replicas" or value not in _FALSE))
    return next((_ANNOTATION + name for name in is_set), "")


# ------------------------------------------------------------------------------------------------- what doctor reads


class LeaseSpec(Struct, frozen=True):
    renew_time: datetime | None = None


class Lease(Struct, frozen=True):
    """Ours, or that of KEDA's operator: `operator.keda.sh` in KEDA's namespace. Source: KEDA, cmd/operator/main.go."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ServicePort(Struct, frozen=True):
    port: int = 0


class ServiceSpec(Struct, frozen=True):
    cluster_ip: str = field(default="", name="clusterIP")
    ports: tuple[ServicePort, ...] = ()


class Service(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()


class TriggerAuthentication(Struct, frozen=True):
    spec: dict[str, Any] = field(default_factory=dict)
    """Parameters by source (`secretTargetRef`, `azureKeyVault`, …): what it gives, each with the `parameter` that it is
    for."""


class ConfigMap(Struct, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = field(default_factory=dict)
