"""A ScaledObject as KEDA reads it, with KEDA's defaults, or why this poller cannot stand in for KEDA on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from scaler.errors import ConfigurationError
from scaler.kube.discovery import Discovery
from scaler.kube.objects.resources import Resource
from scaler.kube.transport import KubeTransport
from scaler_sandbox.kinds import Json

FINALIZER = "finalizer.keda.sh"
NAME_LABEL = "scaledobject.keda.sh/name"
_ANNOTATION = "autoscaling.keda.sh/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """One trigger that an external scaler answers."""

    index: int
    type: str
    name: str
    address: str
    metadata: Mapping[str, str]
    """All of the trigger's metadata, as the scaler gets it."""

    @property
    def is_push(self) -> bool:
        return self.type == "external-push"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTargetRef:
    """What is scaled."""

    api_version: str
    kind: str
    name: str

    @property
    def kind_text(self) -> str:
        """The kind as events and status name it: `apps/v1.Deployment`."""
        return f"{self.api_version}.{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectSpec:
    """The specification."""

    namespace: str
    name: str
    target: ScaleTargetRef
    triggers: tuple[Trigger, ...]
    polling: timedelta
    cooldown: timedelta
    initial_cooldown: timedelta
    minimum: int
    maximum: int
    restores: bool
    """Whether the target gets its original replicas back when the ScaledObject is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAnnotations:
    """What the ScaledObject's annotations ask for."""

    paused: bool
    paused_replicas: int | None
    paused_scale_in: bool
    paused_scale_out: bool
    forced: bool

    @property
    def is_any_pause(self) -> bool:
        return self.paused or self.paused_replicas is not None or self.paused_scale_in or self.paused_scale_out


def read_scaled_object(scaled_object: Json) -> ScaledObjectSpec:
    """The specification. Raises: ConfigurationError for what is not simulated, or makes no sense."""
    metadata, spec = scaled_object["metadata"], scaled_object["spec"]
    for unsupported in ("fallback", "idleReplicaCount"):
        if spec.get(unsupported) is not None:
            raise _not_simulated(metadata, f"spec.{unsupported}")
    if (spec.get("advanced") or {}).get("scalingModifiers"):
        raise _not_simulated(metadata, "spec.advanced.scalingModifiers")
    if not spec["triggers"]:
        raise ConfigurationError(f"ScaledObject {metadata['name']}: no triggers defined; write at least one")
    target = spec["scaleTargetRef"]
    return ScaledObjectSpec(
        namespace=metadata["namespace"],
        name=metadata["name"],
        target=ScaleTargetRef(
            api_version=target.get("apiVersion") or "apps/v1",
            kind=target.get("kind") or "Deployment",
            name=target["name"],
        ),
        triggers=tuple(_trigger(metadata, index, each) for index, each in enumerate(spec["triggers"])),
        polling=timedelta(seconds=spec.get("pollingInterval", 30)),
        cooldown=timedelta(seconds=spec.get("cooldownPeriod", 300)),
        initial_cooldown=timedelta(seconds=spec.get("initialCooldownPeriod", 0)),
        minimum=spec.get("minReplicaCount", 0),
        maximum=spec.get("maxReplicaCount", 100),
        restores=bool((spec.get("advanced") or {}).get("restoreToOriginalReplicaCount")),
    )


def _not_simulated(metadata: Json, what: str) -> ConfigurationError:
    name = f"{metadata['namespace']}/{metadata['name']}"
    return ConfigurationError(
        f"ScaledObject {name}: {what} is not simulated by the embedded KEDA; remove it or use KEDA"
    )


def _trigger(owner: Json, index: int, trigger: Json) -> Trigger:
    metadata: dict[str, str] = trigger["metadata"]
    if trigger["type"] not in ("external", "external-push"):
        raise _not_simulated(owner, f"trigger type {trigger['type']!r}")
    if metadata.get("enableTLS") == "true" or trigger.get("authenticationRef"):
        raise _not_simulated(owner, "a trigger with enableTLS or authenticationRef")
    if not metadata.get("scalerAddress"):
        raise ConfigurationError(f"trigger {index}: scalerAddress is a required field; write host:port")
    # Values from the environment of the target's containers are not resolved here, and KEDA drops what is not resolved.
    passed = {key: value for key, value in metadata.items() if not key.endswith("FromEnv")}
    return Trigger(
        index=index,
        type=trigger["type"],
        name=trigger.get("name", ""),
        address=metadata["scalerAddress"],
        metadata=passed,
    )


def read_pause_annotations(scaled_object: Json) -> PauseAnnotations:
    """What the annotations ask for."""
    annotations = scaled_object["metadata"].get("annotations") or {}
    replicas = str(annotations.get(f"{_ANNOTATION}paused-replicas", ""))
    return PauseAnnotations(
        paused=_is_set(annotations, "paused"),
        paused_replicas=int(replicas) if replicas.isdigit() else None,
        paused_scale_in=_is_set(annotations, "paused-scale-in"),
        paused_scale_out=_is_set(annotations, "paused-scale-out"),
        forced=_is_set(annotations, "force-activation"),
    )


def _is_set(annotations: Mapping[str, str], name: str) -> bool:
    """Whether the annotation is there and not a spelling of false; to KEDA anything else counts as true."""
    value = annotations.get(f"{_ANNOTATION}{name}")
    return value is not None and value not in ("false", "False", "FALSE", "f", "F", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectTimes:
    """What a ScaledObject's own status and metadata remember."""

    created: datetime
    last_active: datetime | None

    @classmethod
    def of(cls, scaled_object: Json) -> "ScaledObjectTimes":
        last = (scaled_object.get("status") or {}).get("lastActiveTime")
        return cls(
            created=datetime.fromisoformat(scaled_object["metadata"]["creationTimestamp"]),
            last_active=datetime.fromisoformat(last) if last else None,
        )


class Scales:
    """Reads and writes scales of whatever kind."""

    def __init__(self, transport: KubeTransport) -> None:
        self._transport = transport
        self._discovery = Discovery(transport, missing_seconds=1.0)

    async def resource(self, target: ScaleTargetRef) -> Resource:
        """The target's resource. Raises: KubeError."""
        return await self._discovery.resolve_kind(target.api_version, target.kind)

    async def replicas(self, namespace: str, target: ScaleTargetRef) -> int:
        """The replicas that are asked for. Raises: KubeError."""
        return _replicas(await self._read(namespace, target))

    async def set(self, namespace: str, target: ScaleTargetRef, replicas: int) -> int:
        """Sets the replicas. Returns what they were. Raises: KubeError; 409 on a conflict."""
        scale = await self._read(namespace, target)
        before = _replicas(scale)
        scale["spec"] = {**(scale.get("spec") or {}), "replicas": replicas}
        path = (await self.resource(target)).path(namespace, target.name, "scale")
        await self._transport.replace(path, scale)
        return before

    async def _read(self, namespace: str, target: ScaleTargetRef) -> Json:
        path = (await self.resource(target)).path(namespace, target.name, "scale")
        scale: Json = msgspec.json.decode(await self._transport.get(path))
        return scale


def _replicas(scale: Json) -> int:
    return int((scale.get("spec") or {}).get("replicas", 0))
