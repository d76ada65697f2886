"""Scale targets of any kind: their replicas and the selector of their pods, from their scale subresource; and what owns
these pods.

A reflector per kind tells when an object changed; only then is its scale read again. So a tick with nothing new asks
the API nothing, whatever the number of ScaledObjects.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from msgspec.structs import replace

from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Discovery, Scale, read_scale
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import (
    ListPage,
    ObjectMeta,
    OwnerReference,
    PartialObjectMetadata,
    decode,
    last_writer,
)
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef, is_scalable_workload
from scaler.kube.objects.resources import Resource
from scaler.kube.reflector import Absent, Denied, Reflecting, Reflector
from scaler.kube.transport import KubeTransport

log = structlog.get_logger(__name__)

_READS_AT_ONCE = 16
_FIRST_LIST = timedelta(seconds=5)
"""How long the first tick that meets a new kind waits for its list."""
_ONE_READ = timedelta(seconds=2)
"""How long one scale may take, so that a few which hang leave time for the others."""
_PATIENCE = timedelta(seconds=10)
"""How long all of it may take; a tick that waits for longer lets the answers for all other targets expire."""

_IS_NONE = frozenset({400, 404})
"""Statuses by which the API says that there is no such scale; all others are no news of it."""
_MOST_OWNERS = 64
"""Kinds that are watched because they own pods, at most: what pods name as their owners is written by tenants."""

Kind = tuple[str, str]
"""(apiVersion, kind)"""
TargetKey = tuple[str, ScaleTargetRef]
"""(namespace, target)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    resource_version: str
    asked: tuple[str, int | str]
    scale: Scale | Unknown


class ScaleSubresources:
    """Scales of all targets that are not ScalableWorkloads."""

    def __init__(
        self,
        transport: KubeTransport,
        *,
        namespaces: Collection[str] = (),
        max_age: timedelta,
        patience: timedelta = _PATIENCE,
        changed: Callable[[str, ScaleTargetRef], None] = lambda _namespace, _target: None,
    ) -> None:
        """`changed` is called with (namespace, target) for every change to an object of a kind that is scaled."""
        self._transport = transport
        self._discovery = Discovery(transport)
        self._namespaces = namespaces
        self._max_age = max_age
        self._patience_s = patience.total_seconds()
        self._changed = changed
        self._reflectors: dict[Kind, Reflector[PartialObjectMetadata]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._unresolved: dict[Kind, str] = {}
        self._owning: set[Kind] = set()
        """Kinds of the owners that were asked for."""
        self._watching: dict[Kind, asyncio.Lock] = {}
        self._reads: dict[TargetKey, _Read] = {}
        self._revisions: Counter[str] = Counter()
        """How many changes there were, by namespace."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def refresh(self, scaled_objects: Iterable[ScaledObject]) -> None:
        """Follow the kinds that are scaled or own pods, and read the scales of targets that changed.

        What cannot be read in time is not known, and tried again at the next refresh.
        """
        by_kind: dict[Kind, list[TargetKey]] = {kind: [] for kind in self._owning - self._reflectors.keys()}
        for key in sorted(filter(self._is_to_be_read, _targets(scaled_objects)), key=self._has_failed):
            by_kind.setdefault((key[1].api_version, key[1].kind), []).append(key)
        turns = asyncio.Semaphore(_READS_AT_ONCE)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await asyncio.gather(*(self._refresh(kind, targets, turns) for kind, targets in by_kind.items()))

    async def _refresh(self, kind: Kind, targets: Iterable[TargetKey], turns: asyncio.Semaphore) -> None:
        """A kind whose API hangs delays only its own targets."""
        async with self._watching.setdefault(kind, asyncio.Lock()):
            if kind not in self._reflectors:
                await self._reflect(kind)
        await asyncio.gather(*(self._read(namespace, target, turns) for namespace, target in targets))

    def _is_to_be_read(self, key: TargetKey) -> bool:
        """Whether its kind is not watched yet, or it was not read as it is now."""
        namespace, target = key
        reflector = self._reflectors.get((target.api_version, target.kind))
        return reflector is None or self._is_news(key, reflector.get(namespace, target.name))

    def _is_news(self, key: TargetKey, seen: PartialObjectMetadata | None) -> bool:
        last = self._reads.get(key)
        if seen is None or last is None:
            return seen is not None
        return last.resource_version != seen.metadata.resource_version or isinstance(last.scale, Unknown)

    def _has_failed(self, key: TargetKey) -> bool:
        """Whether it could not be read the last time; such targets come last."""
        read = self._reads.get(key)
        return read is not None and isinstance(read.scale, Unknown)

    def forget_others(self, scaled_objects: Iterable[ScaledObject]) -> None:
        """Drop what was read of targets that none of these scales."""
        targets = _targets(scaled_objects)
        self._reads = {key: read for key, read in self._reads.items() if key in targets}

    def of(self, namespace: str, target: ScaleTargetRef) -> Scale | Unknown:
        """The target's scale as last read, or why it is not known."""
        kind = target.api_version, target.kind
        reflector, read = self._reflectors.get(kind), self._reads.get((namespace, target))
        doubt = self._doubt(kind, reflector, namespace)
        if doubt is not None or reflector is None:
            return doubt or _stale(f"{target.kind} objects are not listed yet")
        seen = reflector.get(namespace, target.name)
        if seen is None:
            return _not_found(f"{target} does not exist in namespace {namespace}; create it or correct scaleTargetRef")
        if read is None or (isinstance(read.scale, Scale) and read.asked != _asked(seen)):
            return _stale(f"the scale of {target} has not been read since it changed")
        return read.scale

    def object_of(self, namespace: str, target: ScaleTargetRef) -> tuple[Resource, ObjectMeta] | None:
        """The target as it is watched; None for one that is not seen."""
        reflector = self._reflectors.get((target.api_version, target.kind))
        seen = reflector.get(namespace, target.name) if reflector is not None else None
        return (reflector.resource, seen.metadata) if reflector is not None and seen is not None else None

    async def scaled_last_by(self, namespace: str, target: ScaleTargetRef) -> str:
        """The client that has written its replicas last; empty where that is not known. Targets may be listed only."""
        found = self.object_of(namespace, target)
        if found is None:
            return ""
        try:
            path, only = found[0].path(namespace), {"fieldSelector": f"metadata.name={target.name}"}
            listed = decode(ListPage, await self._transport.get(path, only)).items
            return last_writer(listed[0], "replicas") if listed else ""
        except (KubeError, *UNREADABLE):
            return ""

    def owner(self, namespace: str, reference: OwnerReference) -> ObjectMeta | Unknown:
        """The metadata of an object that owns another, or why it is not known. Its kind is watched from now on."""
        kind = reference.api_version, reference.kind
        if len(self._owning) < _MOST_OWNERS:
            self._owning.add(kind)
        reflector = self._reflectors.get(kind)
        doubt = self._doubt(kind, reflector, namespace)
        if doubt is not None or reflector is None:
            return doubt or _stale(f"its owners of kind {reference.kind} are not listed yet")
        seen = reflector.get(namespace if reflector.resource.namespaced else "", reference.name)
        if seen is None or seen.metadata.uid != reference.uid:
            return _stale(f"its owner {reference.kind} {reference.name} does not exist (any more)")
        return seen.metadata

    def may_read(self, namespace: str, reference: OwnerReference) -> bool:
        """Whether objects of its kind there are, or may yet be, listed."""
        kind = reference.api_version, reference.kind
        if (reflector := self._reflectors.get(kind)) is not None:
            return not isinstance(reflector.within(namespace).state, Absent | Denied)
        return kind not in self._unresolved and (kind in self._owning or len(self._owning) < _MOST_OWNERS)

    def revision(self, namespace: str) -> Hashable:
        """A value that is equal while all scales of the namespace are as before."""
        kinds = {**self._reflectors, **dict.fromkeys(self._unresolved)}
        doubts = tuple(self._doubt(kind, reflector, namespace) for kind, reflector in kinds.items())
        return self._revisions[namespace], doubts

    def _doubt(self, kind: Kind, reflector: Reflector[PartialObjectMetadata] | None, namespace: str) -> Unknown | None:
        """Why nothing is known about any such object there; None where something is, or nothing was tried."""
        if kind in self._unresolved:
            return _not_found(self._unresolved[kind])
        if reflector is None:
            return None
        watched = reflector.within(namespace)
        if isinstance(watched.state, Absent):
            return _not_found(watched.state.message)
        if isinstance(watched.state, Denied) or not watched.is_synced:
            why = "" if isinstance(watched.state, Reflecting) else f": {watched.state.message}"
            return _stale(f"{kind[1]} objects cannot be listed (value targets of the chart){why}")
        if watched.age > self._max_age.total_seconds():
            return _stale(f"{kind[1]} objects were not heard of for {int(watched.age)} s")
        return None

    async def _reflect(self, kind: Kind) -> None:
        try:
            resource = await self._discovery.resolve_kind(*kind)
        except KubeError as error:
            self._unresolved[kind] = str(error)
            return
        self._unresolved.pop(kind, None)
        reflector = Reflector(
            self._transport, resource, PartialObjectMetadata, namespaces=self._namespaces, keep=_without_labels
        )
        self._reflectors[kind] = reflector
        reflector.subscribe(lambda change: self._tell(kind, change))
        task = asyncio.create_task(reflector.run(), name=f"reflect-{resource.qualified_name}")
        task.add_done_callback(lambda ended: self._ended(kind, ended))
        self._tasks.append(task)
        with suppress(TimeoutError):
            await asyncio.wait_for(reflector.wait_synced(), _FIRST_LIST.total_seconds())

    def _ended(self, kind: Kind, task: asyncio.Task[None]) -> None:
        """A reflector runs for ever. One that broke is watched anew, and until then nothing is known of its kind."""
        self._reflectors.pop(kind, None)
        if not task.cancelled():
            log.error("a reflector ended", kind=kind[1], error=repr(task.exception()))

    def _tell(self, kind: Kind, change: Change[PartialObjectMetadata]) -> None:
        if spec_or_annotations_changed(change) or _owners(change.old) != _owners(change.new):
            namespace, name = change.key
            self._revisions[namespace] += 1
            self._changed(namespace, ScaleTargetRef(api_version=kind[0], kind=kind[1], name=name))

    async def _read(self, namespace: str, target: ScaleTargetRef, turns: asyncio.Semaphore) -> None:
        reflector = self._reflectors.get((target.api_version, target.kind))
        seen = reflector.get(namespace, target.name) if reflector else None
        if reflector is None or seen is None:
            return
        version, key = seen.metadata.resource_version, (namespace, target)
        if not self._is_news(key, seen):
            return
        async with turns:
            scale = await self._scale(reflector, namespace, target)
        now = reflector.get(namespace, target.name)
        if now is not None and _asked(now) != _asked(seen):
            return  # it has changed meanwhile: a later read replaces this late answer
        read = _Read(resource_version=version, asked=_asked(seen), scale=scale)
        if key not in self._reads or (self._reads[key].asked, self._reads[key].scale) != (read.asked, read.scale):
            self._revisions[namespace] += 1
        self._reads[key] = read

    async def _scale(
        self, reflector: Reflector[PartialObjectMetadata], namespace: str, target: ScaleTargetRef
    ) -> Scale | Unknown:
        try:
            async with asyncio.timeout(_ONE_READ.total_seconds()):
                return await read_scale(self._transport, reflector.resource, namespace, target.name)
        except TimeoutError:
            return _stale(f"the scale of {target} was not read within {_ONE_READ.total_seconds():g} s")
        except KubeError as error:
            return _not_found(str(error)) if error.status in _IS_NONE else _stale(str(error))


def _targets(scaled_objects: Iterable[ScaledObject]) -> set[TargetKey]:
    found = ((each.metadata.namespace, each.spec.scale_target_ref) for each in scaled_objects)
    return {(namespace, target) for namespace, target in found if not is_scalable_workload(target)}


def _without_labels(found: PartialObjectMetadata) -> PartialObjectMetadata:
    """There may be as many owners of pods as pods."""
    return replace(found, metadata=replace(found.metadata, labels={}))


def _owners(found: PartialObjectMetadata | None) -> tuple[OwnerReference, ...]:
    return found.metadata.owner_references if found is not None else ()


def spec_or_annotations_changed(change: Change[Any]) -> bool:
    """Whether spec or annotations have changed, and not only the status."""
    old, new = change.old, change.new
    if old is None or new is None:
        return True
    asked = (new.metadata.generation, new.metadata.annotations)
    return asked != (old.metadata.generation, old.metadata.annotations)


def _asked(seen: PartialObjectMetadata) -> tuple[str, int | str]:
    """Identifies the object's specification. Kinds without a generation change with every write."""
    return seen.metadata.uid, seen.metadata.generation or seen.metadata.resource_version


def _not_found(message: str) -> Unknown:
    return Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=message)


def _stale(message: str) -> Unknown:
    return Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message=message)
