"""KEDA's objects (keda.sh/v1alpha1), and what `doctor` reads beside them, by the laws of `core.py`.

How KEDA treats a ScaledObject, and where a trigger's secrets come from, is read by `doctor` only, the latter with the
rights of its caller.
"""

from typing import Any, ClassVar

from msgspec import field

from scaler.kube.objects.core import ConditionedStatus, ObjectMeta, Struct
from scaler.kube.objects.resources import SCALED_OBJECT, Resource


class ScaleTargetRef(Struct, frozen=True):
    name: str = ""
    api_version: str = "apps/v1"
    kind: str = "Deployment"
    """KEDA's defaults. Source: KEDA, pkg/scaling/resolver, ResolveScaleTargetPodSpec."""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


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
    """Where it is in the API. That of a ScalableWorkload which stands for one is its own (`direct_scaling.py`)."""
    metadata: ObjectMeta
    spec: ScaledObjectSpec = ScaledObjectSpec()
    status: ConditionedStatus = ConditionedStatus()


# ------------------------------------------------------------------------------------------------- what doctor reads


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
    """By source (`secretTargetRef`, `azureKeyVault`, …): what it gives, each with the `parameter` that it is for."""


class Secret(Struct, frozen=True):
    data: dict[str, bytes] = field(default_factory=dict)
    """msgspec reads the API's base64 as what it stands for."""


class ConfigMap(Struct, frozen=True):
    data: dict[str, str] = field(default_factory=dict)
