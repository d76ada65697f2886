"""What is stored, in which revision, and what happened since? Objects, one revision counter, and a bounded event log.

Laws: stored objects are immutable, every change is a new `Stored`; revisions only grow and are shared by all resources,
as with one etcd; the log of a collection forgets its oldest events, and remembers up to which revision it forgot, so
that a watcher has to list again instead of missing events.
"""

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from scaler_sandbox.kubeapi.errors import Json
from scaler_sandbox.kubeapi.schema.resources import Resource, View
from scaler_sandbox.kubeapi.schema.shaping import prune

Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name. Lists are ordered by it."""

_encode = msgspec.json.Encoder().encode


class Stored:
    """One revision of one object."""

    __slots__ = ("_encoded", "body", "key", "revision")

    def __init__(self, body: Json, *, key: Key, revision: int) -> None:
        self.body = body
        self.key = key
        self.revision = revision
        self._encoded: dict[str, bytes] = {}

    @property
    def uid(self) -> str:
        """The object's identity over all revisions."""
        return str(self.body["metadata"]["uid"])

    def as_served(self, view: View) -> Json:
        """The object as one version shows it: another apiVersion, and only the fields that this version has."""
        if view.is_storage:
            return self.body
        body, _ = prune(self.body, view.version.schema)
        return {**body, "apiVersion": view.api_version}

    def encode(self, view: View) -> bytes:
        """The object as JSON text."""
        return type_head(view.resource.kind, view.api_version) + self._tail(view)[1:]

    def encode_item(self, view: View) -> bytes:
        """The object as an item of a list: items of built-in lists carry no kind, as a real server's."""
        return self.encode(view) if view.resource.custom else self._tail(view)

    def _tail(self, view: View) -> bytes:
        """All but kind and apiVersion, encoded once per version however many watchers and lists there are."""
        encoded = self._encoded.get(view.version.name)
        if encoded is None:
            body = self.as_served(view)
            encoded = _encode({key: value for key, value in body.items() if key not in ("kind", "apiVersion")})
            self._encoded[view.version.name] = encoded
        return encoded


def type_head(kind: str, api_version: str) -> bytes:
    """The opening of an encoded object, up to where its other fields follow."""
    return f'{{"kind":"{kind}","apiVersion":"{api_version}",'.encode()


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one object."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    stored: Stored
    previous: Stored | None

    @property
    def revision(self) -> int:
        """The revision that the change made."""
        return self.stored.revision


def _event_revision(event: Event) -> int:
    return event.stored.revision


class Collection:
    """All objects of one resource, with the recent events."""

    def __init__(self, *, history: int, forgotten: int) -> None:
        self.objects: dict[Key, Stored] = {}
        self.forgotten = forgotten
        """Events up to this revision may be lost."""
        self.listeners: set[Callable[[], None]] = set()
        self.closed = False
        self._keys: list[Key] = []
        self._history = history
        self._log: list[Event] = []
        self._first = 0

    def ordered(self, namespace: str | None = None) -> list[Stored]:
        """The objects of a namespace (None: of all) ordered by namespace and name."""
        if namespace is None:
            return [self.objects[key] for key in self._keys]
        start = bisect_right(self._keys, (namespace, ""))
        end = bisect_right(self._keys, (namespace + "\0", ""))
        return [self.objects[key] for key in self._keys[start:end]]

    def record(self, event: Event) -> None:
        """Add a change and wake the listeners."""
        key = event.stored.key
        if event.type == "DELETED":
            del self.objects[key]
            del self._keys[bisect_right(self._keys, key) - 1]
        else:
            if key not in self.objects:
                insort(self._keys, key)
            self.objects[key] = event.stored
        self._log.append(event)
        # Trimmed in lumps: deleting from a list's head costs as much as the list is long.
        if len(self._log) > self._history + self._history // 4 + 1:
            self._forget(len(self._log) - self._history)
        self._wake()

    def close(self) -> None:
        """End what follows this collection: its resource is gone."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        for wake in self.listeners:
            wake()

    def compact(self, revision: int) -> None:
        """Forget every event; a watch from before `revision` has to list again."""
        self._forget(len(self._log))
        self.forgotten = max(self.forgotten, revision)

    def _forget(self, count: int) -> None:
        if count:
            self.forgotten = self._log[count - 1].revision
            del self._log[:count]
            self._first += count

    def cursor_after(self, revision: int) -> int | None:
        """The place in the log to go on from after a revision; None where events after it may be forgotten."""
        if revision < self.forgotten:
            return None
        return self._first + bisect_right(self._log, revision, key=_event_revision)

    def events_from(self, cursor: int) -> tuple[list[Event], int] | None:
        """The events from a cursor on and the next cursor; None where the cursor fell out of the log."""
        if cursor < self._first:
            return None
        return self._log[cursor - self._first :], self._first + len(self._log)


class Store:
    """All collections under one revision counter."""

    def __init__(self, *, history: int) -> None:
        self.revision = 1
        self.observers: list[Callable[[Resource, Event], None]] = []
        """The store calls them with every change, in order; an observer may write itself."""
        self._history = history
        self._collections: dict[tuple[str, str], Collection] = {}

    def collection(self, resource: Resource) -> Collection:
        """The collection of a resource, made when first asked for."""
        found = self._collections.get(resource.key)
        if found is None:
            # Like a real server's watch cache, it knows nothing of the time before it was there.
            found = Collection(history=self._history, forgotten=self.revision)
            self._collections[resource.key] = found
        return found

    def find(self, resource: Resource, key: Key) -> Stored | None:
        """The present revision of an object."""
        return self.collection(resource).objects.get(key)

    def put(self, resource: Resource, key: Key, body: Json) -> Stored:
        """Store a new revision of an object, or its first."""
        collection = self.collection(resource)
        previous = collection.objects.get(key)
        stored = self._next(key, body)
        self._record(resource, Event("MODIFIED" if previous else "ADDED", stored, previous))
        return stored

    def remove(self, resource: Resource, key: Key, body: Json | None = None) -> Stored:
        """Remove an object; its last revision, which watchers see, is `body` where given."""
        collection = self.collection(resource)
        previous = collection.objects[key]
        last = self._next(key, body or previous.body)
        self._record(resource, Event("DELETED", last, previous))
        return last

    def drop(self, resource: Resource) -> None:
        """Forget a resource that is not served any more; its watches end."""
        gone = self._collections.pop(resource.key, None)
        if gone is not None:
            gone.close()

    def _record(self, resource: Resource, event: Event) -> None:
        self.collection(resource).record(event)
        for observe in self.observers:
            observe(resource, event)

    def _next(self, key: Key, body: Json) -> Stored:
        self.revision += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.revision)}
        return Stored({**body, "metadata": metadata}, key=key, revision=self.revision)

    def compact(self) -> None:
        """Forget all events so far, as etcd's compaction does."""
        for collection in self._collections.values():
            collection.compact(self.revision)
