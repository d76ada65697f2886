"""A readable copy of one kind of object, how good it is, and the rule for objects that cannot be decoded.

**An object that cannot be decoded is not absent.** Its last readable version stays, and its key stands in
`undecodable` until a readable version or its deletion arrives. To drop it would look like a deletion, and a deleted
pod is one that has given its GPUs back. Code that draws conclusions from absence can ask for it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from scaler.kube.objects.core import UNREADABLE, ListPage, ObjectMeta, decode

_log = structlog.get_logger(__name__)

OBJECTS_PER_TURN = 256
"""Objects handled between two yields to the event loop: a few milliseconds, so that RPCs are answered meanwhile."""

# ----------------------------------------------------------------------------------------------------- the objects

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for what belongs to none."""


class KubeObject(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)
Index = Callable[[T], Iterable[Hashable]]
"""The keys under which an object is to be found; none for an object that the index does not concern."""


class Indexer(Generic[T]):
    """The objects and their indexes, always in step with each other."""

    def __init__(self, indexes: Mapping[str, Index[T]]) -> None:
        self._index_functions = indexes
        self._objects: dict[Key, T] = {}
        self._indexes: dict[str, dict[Hashable, dict[Key, T]]] = {name: {} for name in indexes}
        self.revisions: Counter[str] = Counter()
        """How many changes there were, by namespace."""

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def items(self) -> list[T]:
        """All objects; a copy, so that it stays what it is while the store changes."""
        return list(self._objects.values())

    def keys(self) -> list[Key]:
        return list(self._objects)

    def by_index(self, name: str, key: Hashable) -> list[T]:
        return list(self._indexes[name].get(key, {}).values())

    def put(self, obj: T) -> T | None:
        """What the object has replaced."""
        key = obj.metadata.key
        old = self.drop(key)
        self.revisions[key[0]] += 1
        self._objects[key] = obj
        for name, function in self._index_functions.items():
            for value in function(obj):
                self._indexes[name].setdefault(value, {})[key] = obj
        return old

    def drop(self, key: Key) -> T | None:
        """What was removed."""
        old = self._objects.pop(key, None)
        if old is not None:
            self.revisions[key[0]] += 1
            for name, function in self._index_functions.items():
                index = self._indexes[name]
                for value in function(old):
                    filed = index.get(value, {})
                    filed.pop(key, None)
                    if not filed:
                        index.pop(value, None)
        return old


class Change(NamedTuple, Generic[T]):
    """A hint that an object has changed. `new` is None where it is gone."""

    key: Key
    old: T | None
    new: T | None


class Identity(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The least of an object's metadata: its key and its version."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class _Named(msgspec.Struct, frozen=True, gc=False):
    metadata: Identity = Identity()


def identity_of(raw: msgspec.Raw) -> Identity:
    """Empty where even that cannot be read."""
    try:
        return decode(_Named, raw).metadata
    except UNREADABLE:
        return Identity()


class ObjectCache(Generic[T]):
    """What is known of the objects of one kind. Read it; only its reflector writes."""

    def __init__(self, kind: type[T], indexes: Mapping[str, Index[T]]) -> None:
        self._kind = kind
        self._indexes = indexes
        self._store: Indexer[T] = Indexer(indexes)
        self._undecodable: dict[Key, str] = {}
        self._subscribers: list[Callable[[Change[T]], None]] = []

    # ----------------------------------------------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self._store)

    def get(self, namespace: str, name: str) -> T | None:
        return self._store.get((namespace, name))

    def items(self) -> list[T]:
        return self._store.items()

    def by_index(self, name: str, key: Hashable) -> list[T]:
        return self._store.by_index(name, key)

    def revision(self, namespace: str) -> int:
        """How many changes to objects of the namespace there were: where it is as before, they are as before."""
        return self._store.revisions[namespace]

    @property
    def undecodable(self) -> Mapping[Key, str]:
        return self._undecodable

    def subscribe(self, callback: Callable[[Change[T]], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    # ----------------------------------------------------------------------------------------------------- writing

    async def replace(self, pages: AsyncIterable[ListPage]) -> str:
        """The version of the list whose pages have become the copy, in one step: no reader ever sees half of them."""
        fresh: Indexer[T] = Indexer(self._indexes)
        undecodable: dict[Key, str] = {}
        version = ""
        async for page in pages:
            for count, raw in enumerate(page.items or (), start=1):
                self._file(raw, fresh, undecodable)
                await _give_way(count)
            version = page.metadata.resource_version
        self._undecodable = undecodable
        await self._swap(fresh)
        return version

    async def clear(self) -> None:
        self._undecodable = {}
        await self._swap(Indexer(self._indexes))

    def put(self, raw: msgspec.Raw) -> str:
        """The version of the object that was filed."""
        metadata, old = self._file(raw, self._store, self._undecodable)
        new = self._store.get(metadata.key)
        if _differ(old, new):
            self._notify(Change(metadata.key, old, new))
        return metadata.resource_version

    def remove(self, raw: msgspec.Raw) -> str:
        """The version at which the object was removed."""
        metadata = identity_of(raw)
        self._undecodable.pop(metadata.key, None)
        old = self._store.drop(metadata.key)
        if old is not None:
            self._notify(Change(metadata.key, old, None))
        return metadata.resource_version

    def _file(
        self, raw: msgspec.Raw, store: Indexer[T], undecodable: dict[Key, str]
    ) -> tuple[ObjectMeta | Identity, T | None]:
        """Which object was filed, and what it has replaced in the store."""
        try:
            obj = decode(self._kind, raw)
        except UNREADABLE as error:
            return self._file_undecodable(identity_of(raw), error, store, undecodable)
        undecodable.pop(obj.metadata.key, None)
        return obj.metadata, store.put(obj)

    def _file_undecodable(
        self, named: Identity, error: Exception, store: Indexer[T], undecodable: dict[Key, str]
    ) -> tuple[Identity, T | None]:
        known = self._store.get(named.key)
        if known is not None and named.key not in store:
            store.put(known)
        if named.key not in self._undecodable:
            _log.warning(
                "KubeObjectUndecodable", kind=self._kind.__name__, object="/".join(named.key), error=str(error)
            )
        undecodable[named.key] = str(error)
        return named, known

    # -------------------------------------------------------------------------------------------------- subscribers

    async def _swap(self, after: Indexer[T]) -> None:
        before, self._store = self._store, after
        after.revisions = before.revisions
        for count, key in enumerate({**dict.fromkeys(after.keys()), **dict.fromkeys(before.keys())}, start=1):
            old, new = before.get(key), after.get(key)
            if _differ(old, new):
                after.revisions[key[0]] += 1
                self._notify(Change(key, old, new))
            await _give_way(count)

    def _notify(self, change: Change[T]) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber(change)


def _differ(old: T | None, new: T | None) -> bool:
    if old is None or new is None:
        return old is not new
    return old.metadata.resource_version != new.metadata.resource_version


async def _give_way(count: int) -> None:
    if count % OBJECTS_PER_TURN == 0:
        await asyncio.sleep(0)
