"""ScaledObjects with what decides how KEDA treats them, by the laws of `objects.py`. Only `doctor` reads as much."""

from typing import Any

from msgspec import field

from scaler.kube.objects import ConditionedStatus, ObjectMeta, ScaleTargetRef, Struct, Trigger


class ScaledObjectSettingsSpec(Struct, frozen=True):
    scale_target_ref: ScaleTargetRef = ScaleTargetRef()
    triggers: tuple[Trigger, ...] = ()
    polling_interval: int = 30
    """Seconds; this and the next three with KEDA's defaults."""
    cooldown_period: int = 300
    """Seconds."""
    min_replica_count: int = 0
    max_replica_count: int = 100
    idle_replica_count: int | None = None
    fallback: dict[str, Any] | None = None
    """What KEDA does on errors; only whether it is there is looked at."""


class ScaledObjectSettings(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ScaledObjectSettingsSpec = ScaledObjectSettingsSpec()
    status: ConditionedStatus = ConditionedStatus()


class ServicePort(Struct, frozen=True):
    port: int = 0


class ServiceSpec(Struct, frozen=True):
    cluster_ip: str = field(default="", name="clusterIP")
    ports: tuple[ServicePort, ...] = ()


class Service(Struct, frozen=True):
    """What KEDA calls a scaler by."""

    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()
