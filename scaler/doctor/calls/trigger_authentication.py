"""Which credentials does KEDA call this scaler with? Reads what KEDA reads to build a trigger, once.

KEDA takes what it cannot find for empty and goes on without it: a Secret without its key turns TLS off. So what does
not exist is a finding, and what cannot be read leaves the credentials unknown.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scaler.doctor.calls.call_credentials import PARAMETERS, CallCredentials, credentials_of
from scaler.doctor.findings import Unread, read_or_why
from scaler.kube.objects import resources as kinds
from scaler.kube.objects.core import Secret, decode
from scaler.kube.objects.keda import AuthenticationRef, ConfigMap, ScaledObject, Trigger, TriggerAuthentication
from scaler.kube.objects.resources import Resource
from scaler.kube.transport import KubeTransport

T = TypeVar("T")

_KEDA_NAMESPACES = ("keda", "openshift-keda")
"""The namespaces of a ClusterTriggerAuthentication's secrets: KEDA's own, by its chart and by OpenShift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatedTrigger:
    namespace: str
    name: str
    metadata: Mapping[str, str]
    parameters: Mapping[str, bytes] = field(default_factory=dict)
    """Parameters of its authentication, as far as they are about TLS."""
    missing: tuple[str, ...] = ()
    """Sources of these that do not exist, so that KEDA calls without."""
    unread: Unread | None = None
    """Why it is not known how KEDA calls."""

    @property
    def address(self) -> str:
        return self.metadata.get("scalerAddress", "")

    @property
    def credentials(self) -> CallCredentials:
        return credentials_of(self.metadata, self.parameters)


class TriggerAuthenticationReader:
    def __init__(self, transport: KubeTransport) -> None:
        self._transport = transport
        self._read = dict[str, asyncio.Task[bytes]]()

    async def take(self, triggers: Sequence[tuple[ScaledObject, Trigger]]) -> list[AuthenticatedTrigger]:
        """One for each. Raises nothing that has to do with the cluster."""
        return [await self._caller(scaled_object, trigger) for scaled_object, trigger in triggers]

    async def _caller(self, scaled_object: ScaledObject, trigger: Trigger) -> AuthenticatedTrigger:
        namespace, name = scaled_object.metadata.key
        sources = await self._sources(trigger.authentication_ref, namespace)
        unread = sources if isinstance(sources, Unread) else None
        parameters, missing = dict[str, bytes](), list[str]()
        if not isinstance(sources, Unread):
            for source in sources:
                value = await self._value(source)
                if isinstance(value, bytes):
                    parameters[source.parameter] = value
                elif value.is_absent:
                    missing.append(f"{source.parameter} from {source}")
                else:
                    unread = value
        return AuthenticatedTrigger(
            namespace=namespace,
            name=name,
            metadata=trigger.metadata,
            parameters=parameters,
            missing=tuple(missing),
            unread=unread,
        )

    async def _sources(self, ref: AuthenticationRef | None, namespace: str) -> "list[_Source] | Unread":
        if ref is None or not ref.name:
            return []
        is_cluster_wide = ref.kind == kinds.CLUSTER_TRIGGER_AUTHENTICATION.kind
        resource = kinds.CLUSTER_TRIGGER_AUTHENTICATION if is_cluster_wide else kinds.TRIGGER_AUTHENTICATION
        found = await self._object(resource, "" if is_cluster_wide else namespace, ref.name, TriggerAuthentication)
        if isinstance(found, Unread):
            return Unread(f"{resource.kind} {ref.name}: {found.reason}", is_absent=found.is_absent)
        return [*_sources_in(found.spec, _KEDA_NAMESPACES if is_cluster_wide else (namespace,))]

    async def _value(self, source: "_Source") -> bytes | Unread:
        """An entry that is empty is none, as KEDA reads it."""
        if source.kind not in (kinds.SECRET.kind, kinds.CONFIG_MAP.kind):
            return Unread(f"{source.parameter} comes from {source.kind}, which only KEDA can read")
        for namespace in source.namespaces:
            found: Secret | ConfigMap | Unread
            if source.kind == kinds.SECRET.kind:
                found = await self._object(kinds.SECRET, namespace, source.name, Secret)
            else:
                found = await self._object(kinds.CONFIG_MAP, namespace, source.name, ConfigMap)
            if isinstance(found, Unread) and not found.is_absent:
                return found
            value = "" if isinstance(found, Unread) else found.data.get(source.key, "")
            if value:
                return value.encode() if isinstance(value, str) else value
        return Unread("it does not exist, or is empty", is_absent=True)

    async def _object(self, resource: Resource, namespace: str, name: str, kind: type[T]) -> T | Unread:
        """Each object is read once, however many triggers name it."""

        async def read() -> T:
            path = resource.path(namespace, name)
            if path not in self._read:
                self._read[path] = asyncio.ensure_future(self._transport.get(path))
            return decode(kind, await self._read[path])

        return await read_or_why(read())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    parameter: str
    kind: str
    """Secret, ConfigMap, or what the TriggerAuthentication calls any other source."""
    namespaces: tuple[str, ...]
    name: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"key {self.key!r} of {self.kind} {self.name}"


_KINDS = {"secretTargetRef": kinds.SECRET.kind, "configMapTargetRef": kinds.CONFIG_MAP.kind}


def _sources_in(spec: Mapping[str, Any], namespaces: tuple[str, ...]) -> Iterator[_Source]:
    for origin, content in spec.items():
        for given in _listed(content):
            if given.get("parameter") in PARAMETERS:
                yield _Source(
                    parameter=given["parameter"],
                    kind=_KINDS.get(origin, origin),
                    namespaces=namespaces,
                    name=str(given.get("name", "")),
                    key=str(given.get("key", "")),
                )


def _listed(content: Any) -> Iterator[Mapping[str, Any]]:
    """What a source gives: it is a list, or holds one as vaults do."""
    if isinstance(content, Mapping):
        for inner in content.values():
            if isinstance(inner, list):
                yield from _listed(inner)
    elif isinstance(content, list):
        yield from (each for each in content if isinstance(each, Mapping))
