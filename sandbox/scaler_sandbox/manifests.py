"""Manifests → the API, as `kubectl apply --server-side` does it."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import yaml

from scaler.errors import ConfigurationError
from scaler.kube.discovery import Discovery
from scaler.kube.objects.resources import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, Resource
from scaler.kube.transport import KubeTransport
from scaler_sandbox.kinds import Json

Manifest = str | Json | Iterable[Json]

_MANAGER = "idle-gpu-scaler-embedded"
_WELL_KNOWN = {(each.api_version, each.kind): each for each in (NAMESPACE, CUSTOM_RESOURCE_DEFINITION)}


def objects_in(manifest: Manifest) -> Iterator[Json]:
    """The objects of YAML text (any number of documents), of one object, of a List, or of several of them."""
    if isinstance(manifest, str):
        documents: Iterable[Any] = yaml.load_all(manifest, yaml.CSafeLoader)
    else:
        documents = [manifest] if isinstance(manifest, dict) else manifest
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict) or "kind" not in document:
            raise ConfigurationError(f"a manifest has no kind: {str(document)[:80]!r}; is it a Kubernetes object?")
        if document["kind"] == "List":
            yield from objects_in(document["items"])
        else:
            yield document


class Applier:
    """Applies objects of any kind that the API serves."""

    def __init__(self, transport: KubeTransport) -> None:
        self._transport = transport
        self._discovery = Discovery(transport, missing_seconds=0.5)

    async def resource(self, api_version: str, kind: str) -> Resource:
        """The resource of the kind. Raises: KubeError."""
        known = _WELL_KNOWN.get((api_version, kind))
        return known or await self._discovery.resolve_kind(api_version, kind)

    async def apply(self, manifest: Manifest) -> list[Json]:
        """The objects as the API has them now. Raises: KubeError, ConfigurationError."""
        return [await self._apply(body) for body in objects_in(manifest)]

    async def _apply(self, body: Json) -> Json:
        resource = await self.resource(body["apiVersion"], body["kind"])
        metadata = body["metadata"]
        namespace = metadata.get("namespace", "default") if resource.namespaced else ""
        path = resource.path(namespace, metadata["name"])
        answer = await self._transport.patch(path, body, apply_as=_MANAGER)
        applied: Json = msgspec.json.decode(answer)
        return applied
