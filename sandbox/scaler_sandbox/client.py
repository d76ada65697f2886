"""How do the simulated controllers see and change the cluster? One shared live copy, in which writes show at once.

Laws:

* Reading is from memory, and never behind the reader's own writes: what a write returned is in the copy when the write
  returns, and an older watch event does not undo it. A plan that is made right after a write includes it, and
  nothing needs to be remembered between two plans.
* A write carries the uid and resourceVersion that its plan was made from. A conflict, or an object that is gone, is an
  ordinary outcome (`False`), since the next plan starts from what is true by then.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import structlog

from scaler.errors import KubeError
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import ObjectMeta, Struct
from scaler.kube.objects.resources import EVENT, POD, Resource
from scaler.kube.reflector import Reflecting, Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import Backoff, WatchTiming
from scaler_sandbox.actions import Action, Bind, Create, Delete, Patch, RecordEvent
from scaler_sandbox.conditions import timestamp
from scaler_sandbox.kinds import Json

_log = structlog.get_logger(__name__)

_TIMING = WatchTiming(absent=0.2, backoff=Backoff(base=0.1, cap=5.0))
"""The waits are short, since a demo or a test waits for it and the API server is on the same machine."""

Key = tuple[str, str]


_TOMBSTONES = 10_000
_UNTIL_NEWS_SECONDS = 0.02
"""The time after a conflict in which the watch has usually brought what has changed."""


class Metadata(ObjectMeta, frozen=True):
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()


class Whole(Struct, frozen=True):
    """An object of any kind, whole in what controllers look at."""

    metadata: Metadata
    api_version: str = ""
    kind: str = ""
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)
    value: int = 0
    """Value of a WorkloadPriorityClass."""
    template: dict[str, Any] = msgspec.field(default_factory=dict)
    """Template of a PodTemplate."""

    def as_json(self, resource: Resource) -> Json:
        """The object as JSON. Items of built-in lists carry no kind; here every object does."""
        body: Json = msgspec.to_builtins(self)
        return body | {"apiVersion": resource.api_version, "kind": resource.kind}


class Client:
    """The live copy of some resources, and the verbs. Use as an async context manager."""

    def __init__(self, transport: KubeTransport, resources: Sequence[Resource]) -> None:
        self.transport = transport
        self.events = Recorder(transport)
        self._reflectors = {resource: Reflector(transport, resource, Whole, timing=_TIMING) for resource in resources}
        self._objects: dict[Resource, dict[Key, Json]] = {resource: {} for resource in resources}
        self._listeners: dict[Resource, list[Callable[[], None]]] = {resource: [] for resource in resources}
        self._deleted: dict[str, None] = {}
        """Objects (uid) that are gone. A response that arrives after the deletion must not restore one."""
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for resource, reflector in self._reflectors.items():
            self._exits.callback(reflector.subscribe(partial(self._take_in, resource)))
            task = asyncio.create_task(reflector.run(), name=f"mirror-{resource.plural}")
            self._exits.push_async_callback(_cancelled, task)
        await asyncio.gather(*(reflector.wait_synced() for reflector in self._reflectors.values()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def wait_listed(self, names: Collection[str]) -> None:
        """Returns when those of the copied resources (`plural.group`) that have just been defined are listed."""
        awaited = [each for resource, each in self._reflectors.items() if resource.qualified_name in names]
        while True:
            if all(isinstance(each.state, Reflecting) for each in awaited):
                return
            await asyncio.sleep(_UNTIL_NEWS_SECONDS)

    @property
    def trouble(self) -> str:
        """Why the copy is not followed at the moment; empty where it is."""
        states = ((resource, each.state) for resource, each in self._reflectors.items())
        return next(
            (f"{resource.plural}: {state}" for resource, state in states if not isinstance(state, Reflecting)), ""
        )

    # ---------------------------------------------------------------------------------------------------- reading

    def all(self, resource: Resource) -> list[Json]:
        """Every object of the resource, which must be one that is copied, ordered by namespace and name."""
        return [body for _, body in sorted(self._objects[resource].items())]

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, where it exists."""
        return self._objects[resource].get((namespace, name))

    def listen(self, resources: Sequence[Resource], wake: Callable[[], None]) -> Callable[[], None]:
        """Calls `wake` at every change of the resources. Returns the function that ends this."""
        for resource in resources:
            self._listeners[resource].append(wake)

        def stop() -> None:
            for resource in resources:
                self._listeners[resource].remove(wake)

        return stop

    def _take_in(self, resource: Resource, change: Change[Whole]) -> None:
        if change.new is not None:
            self._remember(resource, change.new.as_json(resource))
        elif change.old is not None:
            self._forget(resource, change.old.metadata.key, change.old.metadata.uid)

    def _remember(self, resource: Resource, body: Json) -> None:
        objects = self._objects.get(resource)
        if objects is None:
            return
        key = (body["metadata"].get("namespace", ""), body["metadata"]["name"])
        known = objects.get(key)
        if body["metadata"]["uid"] in self._deleted:
            return
        if known is None or _revision(known) < _revision(body):
            objects[key] = {"spec": {}, "status": {}, **body}
            self._notify(resource)

    def _forget(self, resource: Resource, key: Key, uid: str) -> None:
        self._deleted[uid] = None
        if len(self._deleted) > _TOMBSTONES:
            del self._deleted[next(iter(self._deleted))]
        objects = self._objects[resource]
        known = objects.get(key)
        if known is not None and known["metadata"]["uid"] == uid:
            del objects[key]
            self._notify(resource)

    def _notify(self, resource: Resource) -> None:
        for wake in self._listeners[resource]:
            wake()

    # ---------------------------------------------------------------------------------------------------- writing

    async def apply(self, action: Action) -> bool:
        """Does it. False where it no longer applies, so that a new plan is due. Raises: KubeError where it failed."""
        try:
            about = await self._do(action)
        except KubeError as error:
            if error.status in (404, 409):
                _log.debug("SimulatedActionOutdated", reason=error.reason, message=str(error))
                return isinstance(action, Create)
            raise
        for note in action.notes:
            await self.record(note.about or about, note)
        return True

    async def apply_latest(
        self, resource: Resource, observed: Json, plan: Callable[[Json], Action | None], *, attempts: int = 5
    ) -> bool:
        """Does what is planned on the object as it is now, and retries after a conflict.

        For writers of a few fields of an object that others write, too. False where it could not be done; True also
        where the object is gone or nothing was to be done.
        """
        metadata = observed["metadata"]
        for _ in range(attempts):
            latest = self.find(resource, metadata.get("namespace", ""), metadata["name"])
            action = plan(latest) if latest else None
            if action is None or await self.apply(action):
                return True
            await asyncio.sleep(_UNTIL_NEWS_SECONDS)
        return False

    async def record(self, about: Json, note: RecordEvent) -> None:
        """Writes the Event. A failure is logged and does not stop the controller."""
        await self.events.record(about, note, now=datetime.now(UTC))

    async def _do(self, action: Action) -> Json:
        match action:
            case Create():
                return await self._create(action)
            case Patch():
                return await self._patch(action)
            case Delete():
                return await self._delete(action)
            case Bind():
                return await self._bind(action)

    async def _create(self, action: Create) -> Json:
        path = action.resource.path(action.body["metadata"].get("namespace", ""))
        return self._written(action.resource, await self.transport.create(path, action.body))

    async def _patch(self, action: Patch) -> Json:
        metadata = action.observed["metadata"]
        guard = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {**action.body, "metadata": {**(action.body.get("metadata") or {}), **guard}}
        path = _path(action.resource, metadata, action.subresource)
        return self._written(action.resource, await self.transport.patch(path, body))

    async def _delete(self, action: Delete) -> Json:
        metadata = action.observed["metadata"]
        path = _path(action.resource, metadata)
        uid = metadata["uid"]
        if action.grace_seconds is not None:
            # API servers read the query only where there is no body, so this goes without a precondition.
            path, uid = f"{path}?gracePeriodSeconds={action.grace_seconds}", ""
        answer: Json = msgspec.json.decode(await self.transport.delete(path, uid=uid))
        if answer.get("kind") == action.resource.kind:
            self._remember(action.resource, answer)
        return action.observed

    async def _bind(self, action: Bind) -> Json:
        pod = action.pod
        if action.annotations:
            body = {"metadata": {"annotations": action.annotations}}
            pod = await self._patch(Patch(resource=POD, observed=pod, body=body))
        metadata = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": action.node},
        }
        try:
            await self.transport.create(_path(POD, metadata, "binding"), binding)
        except KubeError as error:
            if error.status != 404:
                raise
            # The embedded API has no bindings, and lets the node's name be set directly. A real one never does.
            return await self._patch(Patch(resource=POD, observed=pod, body={"spec": {"nodeName": action.node}}))
        return self._written(POD, await self.transport.get(_path(POD, metadata)))

    def _written(self, resource: Resource, answer: bytes) -> Json:
        body: Json = msgspec.json.decode(answer)
        self._remember(resource, body)
        return body


def _path(resource: Resource, metadata: Mapping[str, Any], subresource: str = "") -> str:
    return resource.path(metadata.get("namespace", ""), metadata["name"], subresource)


def _revision(body: Json) -> int:
    """The resourceVersion as a number, as which API servers have defined it to be comparable since Kubernetes 1.35."""
    text = body["metadata"].get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


_log = structlog.get_logger(__name__)

_REMEMBERED = 1000
"""Events whose repetitions are counted; the oldest is then forgotten and would be written anew."""


class Recorder:
    """Writes Events. Never raises: a lost Event must not stop the controller that records it."""

    def __init__(self, transport: KubeTransport) -> None:
        self._transport = transport
        self._counts: dict[tuple[str, ...], tuple[str, int]] = {}
        self._serial = 0

    async def record(self, about: Json, note: RecordEvent, *, now: datetime) -> None:
        """Records one more occurrence of the Event about the object."""
        metadata = about["metadata"]
        same = (metadata["uid"], note.type, note.reason, note.message)
        name, count = self._counts.get(same, ("", 0))
        try:
            if not name:
                name = await self._create(about, note, now)
            else:
                await self._count(metadata.get("namespace", ""), name, count + 1, now)
        except KubeError as error:
            _log.debug("EventNotRecorded", reason=note.reason, error=str(error))
            name = ""
        self._counts.pop(same, None)
        self._counts[same] = (name, count + 1 if name else 0)
        if len(self._counts) > _REMEMBERED:
            del self._counts[next(iter(self._counts))]

    async def _create(self, about: Json, note: RecordEvent, now: datetime) -> str:
        self._serial += 1
        body = event(about, note, now=now, serial=self._serial)
        await self._transport.create(EVENT.path(body["metadata"]["namespace"]), body)
        return str(body["metadata"]["name"])

    async def _count(self, namespace: str, name: str, count: int, now: datetime) -> None:
        path = EVENT.path(namespace or "default", name)
        await self._transport.patch(path, {"count": count, "lastTimestamp": timestamp(now)})


def event(about: Json, note: RecordEvent, *, now: datetime, serial: int) -> Json:
    """The Event object. Those of cluster-scoped objects are in namespace `default`, as everywhere."""
    metadata: dict[str, Any] = about["metadata"]
    namespace = metadata.get("namespace", "")
    unique = f"{int(now.timestamp() * 1e6):x}{serial:x}"
    component = _COMPONENTS.get(about["apiVersion"].partition("/")[0], "simulated-controller")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{unique}", "namespace": namespace or "default"},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": note.type,
        "reason": note.reason,
        "message": note.message,
        "count": 1,
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "source": {"component": component},
        "reportingComponent": component,
    }


_COMPONENTS = {
    "kueue.x-k8s.io": "kueue-admission",
    "keda.sh": "keda-operator",
    "batch": "job-controller",
    "ray.io": "raycluster-controller",
    "v1": "kubelet",
}
