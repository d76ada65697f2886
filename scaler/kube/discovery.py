"""Which resource is meant by an apiVersion and a kind? The API's own discovery, remembered.

A kind that is not there is looked for again soon, because CRDs get installed; one that is there is cached for a while.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import field

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.objects import resources
from scaler.kube.objects.core import Struct, decode
from scaler.kube.objects.resources import Resource, group_version_path
from scaler.kube.transport import KubeTransport

FOUND_SECONDS = 600.0
MISSING_SECONDS = 15.0
"""The time for which a missing kind is cached, so that a thousand objects that name it do not ask a thousand times."""


class _Entry(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = True


class _ResourceList(Struct, frozen=True):
    resources: list[_Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    by_kind: Mapping[str, Resource]
    read_at: float
    missing: KubeError | None = None
    """Why there is nothing, where the API server does not know the API version at all."""


class Discovery:
    def __init__(
        self,
        transport: KubeTransport,
        *,
        found_seconds: float = FOUND_SECONDS,
        missing_seconds: float = MISSING_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._found_seconds = found_seconds
        self._missing_seconds = missing_seconds
        self._listings: dict[str, _Listing] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def resolve_kind(self, api_version: str, kind: str) -> Resource:
        """The resource of that kind. Raises: KubeError; 404 where the API server serves no such kind."""
        known = _KNOWN.get((api_version, kind))
        if known is not None:
            return known
        async with self._locks.setdefault(api_version, asyncio.Lock()):
            listing = self._listings.get(api_version)
            if listing is None or self._is_outdated(listing, kind):
                listing = await self._read(api_version)
                self._listings[api_version] = listing
        return _find(listing, api_version, kind)

    def _is_outdated(self, listing: _Listing, kind: str) -> bool:
        lifetime = self._found_seconds if kind in listing.by_kind else self._missing_seconds
        return self._clock.monotonic() - listing.read_at > lifetime

    async def _read(self, api_version: str) -> _Listing:
        path = group_version_path(api_version)
        try:
            body = await self._transport.get(path)
            entries = decode(_ResourceList, body).resources
        except KubeError as error:
            if not error.is_absent:
                raise
            return _Listing(by_kind={}, read_at=self._clock.monotonic(), missing=error)
        except UNREADABLE as error:
            raise KubeError(f"get {path}: the answer lists no resources: {error}", reason="NotAList") from error
        return _Listing(by_kind=_by_kind(api_version, entries), read_at=self._clock.monotonic())


_KNOWN = {
    (each.api_version, each.kind): each
    for each in vars(resources).values()
    if isinstance(each, Resource) and each.kind != "ProvisioningRequest"
}
"""Found without asking the API server. Which version of ProvisioningRequests is served differs."""


def _by_kind(api_version: str, entries: list[_Entry]) -> dict[str, Resource]:
    group, _, version = api_version.rpartition("/")
    return {
        entry.kind: Resource(
            group=group, version=version, plural=entry.name, kind=entry.kind, namespaced=entry.namespaced
        )
        for entry in entries
        if "/" not in entry.name
    }


def _find(listing: _Listing, api_version: str, kind: str) -> Resource:
    if kind in listing.by_kind:
        return listing.by_kind[kind]
    why = "does not serve the API version" if listing.missing else "serves no such kind in this API version"
    raise KubeError(
        f"kind {kind!r} of apiVersion {api_version!r}: the API server {why}; check the spelling (a kind is "
        "capitalised) and that its CustomResourceDefinition is installed",
        status=404,
        reason="KindNotFound",
    ) from listing.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An object's scale. Source: autoscaling/v1."""

    replicas: int
    """The replicas that are asked for."""
    selector: str
    """A label selector in its written form, `app=web,tier!=cache`; may be empty."""


class _ScaleFields(Struct, frozen=True):
    replicas: int = 0
    """The API omits zero."""
    selector: str = ""


class _Scale(Struct, frozen=True):
    spec: _ScaleFields = _ScaleFields()
    status: _ScaleFields = _ScaleFields()


async def read_scale(transport: KubeTransport, resource: Resource, namespace: str, name: str) -> Scale:
    """The object's scale subresource. Raises: KubeError; 404 where there is no such object or its kind has no scale."""
    path = resource.path(namespace, name, "scale")
    try:
        scale = decode(_Scale, await transport.get(path))
    except UNREADABLE as error:
        raise KubeError(f"get {path}: the answer is not a Scale: {error}", reason="NotAScale") from error
    return Scale(replicas=scale.spec.replicas, selector=scale.status.selector)
