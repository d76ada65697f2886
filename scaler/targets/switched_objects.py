"""Copies of the objects with a switch of their own, of the kinds that ScalableWorkloads name.

A kind is watched from when the first ScalableWorkload names it, or an IdlePolicy may attach it, so that a cluster
without either needs no permission for it. What cannot be known of an object is a value with its reason: a kind that is
not installed or may not be listed makes its targets unknown, never idle.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from datetime import timedelta

import structlog
from msgspec.structs import replace

from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import Resource
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.kube.reflector import Absent, Denied, Reflecting, Reflector
from scaler.kube.transport import KubeTransport
from scaler.targets.switches import Switch, switch_of

log = structlog.get_logger(__name__)

_FIRST_LIST = timedelta(seconds=5)
"""How long the first tick that meets a new kind waits for its list."""

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

SwitchedKey = tuple[str, str, str, str]
"""(namespace, API group, kind, name), as the index `subject` of ScalableWorkloads has it."""


class SwitchedObjects:
    """Subscribe `scalable_heard` to the ScalableWorkloads before they are listed."""

    def __init__(
        self, transport: KubeTransport, *, namespaces: Collection[str], max_age: timedelta = timedelta(minutes=3)
    ) -> None:
        self._transport, self._namespaces, self._max_age = transport, namespaces, max_age
        self._reflectors: dict[Resource, Reflector[SwitchedObject]] = {}
        self._wanted: dict[Resource, Switch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited: set[Resource] = set()
        """Kinds that no tick has waited for yet."""
        self._callbacks: list[Callable[[SwitchedKey], None]] = []

    async def close(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def subscribe(self, callback: Callable[[SwitchedKey], None]) -> Callable[[], None]:
        """Calls back with every object whose metadata or specification has changed; returns what ends that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def scalable_heard(self, change: Change[ScalableWorkload]) -> None:
        """Follow the kind that it names."""
        switch = switch_of(change.new.spec.job_ref) if change.new is not None else None
        if switch is not None:
            self.watch(switch)

    def watch(self, switch: Switch) -> Reflector[SwitchedObject]:
        resource = switch.resource
        self._wanted[resource] = switch
        if (known := self._reflectors.get(resource)) is not None:
            return known
        reflector = Reflector(self._transport, resource, SwitchedObject, namespaces=self._namespaces, keep=_kept)
        reflector.subscribe(lambda change: self._heard(resource, change))
        self._reflectors[resource] = reflector
        self._awaited.add(resource)
        task = asyncio.create_task(reflector.run(), name=f"reflect-{resource.qualified_name}")
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(resource, ended))
        return reflector

    async def wait_listed(self) -> None:
        """Returns once all kinds are listed or refused, or after a while; a kind is waited for only once.

        One whose reflector broke is watched anew.
        """
        for switch in self._wanted.values():
            self.watch(switch)
        awaited, self._awaited = self._awaited, set()
        watched = [self._reflectors[each] for each in awaited if each in self._reflectors]
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LIST.total_seconds()):
                await asyncio.gather(*(each.wait_synced() for each in watched))

    def get(self, switch: Switch, namespace: str, name: str) -> SwitchedObject | Unknown:
        """The object as last seen, or why it is not known."""
        reflector, kind = self._reflectors.get(switch.resource), switch.resource.kind
        doubt = self._doubt(switch.resource, namespace)
        if doubt is not None or reflector is None:
            return doubt or _stale(f"{kind} objects are not listed yet")
        found = reflector.get(namespace, name)
        if found is not None:
            return found
        missing = f"{kind} {namespace}/{name} does not exist; create it or correct spec.jobRef"
        return Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=missing)

    def revision(self, namespace: str) -> Hashable:
        """A value that is equal while all that `get` gives for the namespace is as before."""
        known = [*self._reflectors]
        return tuple((self._reflectors[each].revision(namespace), self._doubt(each, namespace)) for each in known)

    def _doubt(self, resource: Resource, namespace: str) -> Unknown | None:
        """Why nothing is known about objects of the kind there; None where something is, or nothing was tried."""
        reflector, kind = self._reflectors.get(resource), resource.kind
        if reflector is None:
            return None
        watched = reflector.within(namespace)
        match watched.state:
            case Absent():
                return not_served(resource)
            case Denied(message):
                return _stale(f"{kind} objects cannot be listed: {message}")
        if not watched.is_synced:
            why = "" if isinstance(watched.state, Reflecting) else f": {watched.state.message}"
            return _stale(f"{kind} objects are not listed yet{why}")
        if watched.age > self._max_age.total_seconds():
            return _stale(f"{kind} objects were not heard of for {int(watched.age)} s")
        return None

    def _heard(self, resource: Resource, change: Change[SwitchedObject]) -> None:
        old, new = change.old, change.new
        if old is not None and new is not None and _matters(old) == _matters(new):
            return
        for callback in [*self._callbacks]:
            callback((change.key[0], resource.group, resource.kind, change.key[1]))

    def _ended(self, resource: Resource, task: asyncio.Task[None]) -> None:
        """A reflector runs for ever. One that broke is watched anew at the next tick."""
        self._reflectors.pop(resource, None)
        self._tasks.discard(task)
        if not task.cancelled():
            log.error("a reflector ended", kind=resource.kind, error=repr(task.exception()))


def _kept(found: SwitchedObject) -> SwitchedObject:
    """The object without an annotation that only kubectl reads."""
    annotations = {key: value for key, value in found.metadata.annotations.items() if key != _LAST_APPLIED}
    return replace(found, metadata=replace(found.metadata, annotations=annotations))


def _matters(found: SwitchedObject) -> object:
    metadata, status = found.metadata, found.status
    conditions = frozenset((each.type, each.status) for each in status.conditions)
    return (
        metadata.uid,
        metadata.annotations,
        metadata.deletion_timestamp,
        found.spec,
        status.deployment_mode,
        conditions,
    )


def not_served(resource: Resource) -> Unknown:
    """Why nothing is known of objects of a kind that the API server does not serve, or not in that version."""
    why = f"the API server does not serve {resource.kind} of {resource.api_version}"
    advice = f"is {resource.qualified_name} installed, in a release that has this version?"
    return Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=f"{why}; {advice}")


def _stale(message: str) -> Unknown:
    return Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message=message)
