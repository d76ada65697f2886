"""The scale subresource of a target, as KEDA uses it: read, set, replace once; a conflict is a failure."""

import msgspec

from scaler.embedded.keda.scaledobjects import Target
from scaler.embedded.kinds import Json
from scaler.kube.discovery import Discovery
from scaler.kube.resources import Resource
from scaler.kube.transport import KubeTransport


class Scales:
    """Reads and writes scales of whatever kind."""

    def __init__(self, transport: KubeTransport) -> None:
        self._transport = transport
        self._discovery = Discovery(transport, missing_seconds=1.0)

    async def resource(self, target: Target) -> Resource:
        """The target's resource. Raises: KubeError."""
        return await self._discovery.resolve_kind(target.api_version, target.kind)

    async def replicas(self, namespace: str, target: Target) -> int:
        """The replicas that are asked for. Raises: KubeError."""
        return _replicas(await self._read(namespace, target))

    async def set(self, namespace: str, target: Target, replicas: int) -> int:
        """Sets the replicas. Returns what they were. Raises: KubeError; 409 where somebody else was faster."""
        scale = await self._read(namespace, target)
        before = _replicas(scale)
        scale["spec"] = {**(scale.get("spec") or {}), "replicas": replicas}
        path = (await self.resource(target)).path(namespace, target.name, "scale")
        await self._transport.replace(path, scale)
        return before

    async def _read(self, namespace: str, target: Target) -> Json:
        path = (await self.resource(target)).path(namespace, target.name, "scale")
        scale: Json = msgspec.json.decode(await self._transport.get(path))
        return scale


def _replicas(scale: Json) -> int:
    return int((scale.get("spec") or {}).get("replicas", 0))
