"""A readable copy of one kind of object, how good it is, and the rule for objects that cannot be decoded.

**An object that cannot be decoded is not absent.** Its last readable version stays, and its key stands in
`undecodable` until a readable version or its deletion arrives. To drop it would look like a deletion, and a deleted
pod is one that has given its GPUs back. Code that draws conclusions from absence can ask for it.

**Who writes reads its own writes.** What the API answers to a write is filed at once (`file`); what lists and
events show from before it is passed over. Versions are compared as numbers.
"""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from scaler.clock import Turns
from scaler.documents import UNREADABLE
from scaler.kube.objects.core import ListPage, ObjectMeta, decode

_log = structlog.get_logger(__name__)

OBJECTS_PER_TURN = 32
"""Objects handled between two yields to the event loop: a few milliseconds, so that RPCs are answered meanwhile."""

_AT_ONCE = 256
"""Changes of a list that are made in one step: some 5 ms."""

# ----------------------------------------------------------------------------------------------------- the objects

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for what belongs to none."""


class KubeObject(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)
X = TypeVar("X")
Index = Callable[[T], Iterable[Hashable]]
"""The keys under which an object is to be found; none for an object that the index does not concern."""


Filed = dict[Hashable, tuple[T, ...] | dict[Key, T]]
"""The objects of each key of an index: a few in a tuple, many in a dict."""


class Indexer(Generic[T]):
    """The objects and their indexes, always in step with each other.

    Most keys of an index have an object or two: these few are kept in a tuple, which is handed out as it is, and only
    many in a dict, which finds each of them at once.
    """

    def __init__(self, indexes: Mapping[str, Index[T]]) -> None:
        self._index_functions = indexes
        self._objects: dict[Key, T] = {}
        self._items: tuple[T, ...] | None = None
        """The objects as last asked for; None after a change."""
        self._indexes: dict[str, Filed[T]] = {name: {} for name in indexes}
        self.revisions: Counter[str] = Counter()
        """How many changes there were, by namespace."""

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def items(self) -> tuple[T, ...]:
        """All objects; it stays what it is while the store changes."""
        if self._items is None:
            self._items = tuple(self._objects.values())
        return self._items

    def keys(self) -> list[Key]:
        return list(self._objects)

    def by_index(self, name: str, key: Hashable) -> tuple[T, ...]:
        found = self._indexes[name].get(key, ())
        return found if isinstance(found, tuple) else tuple(found.values())

    def put(self, obj: T) -> T | None:
        """What the object has replaced."""
        key = obj.metadata.key
        old = self.drop(key)
        self.revisions[key[0]] += 1
        self._objects[key] = obj
        self._items = None
        for name, function in self._index_functions.items():
            for value in function(obj):
                _file(self._indexes[name], value, key, obj)
        return old

    def drop(self, key: Key) -> T | None:
        """What was removed."""
        old = self._objects.pop(key, None)
        if old is not None:
            self.revisions[key[0]] += 1
            self._items = None
            for name, function in self._index_functions.items():
                for value in function(old):
                    _unfile(self._indexes[name], value, key, old)
        return old

    def emptied(self) -> Iterator[object]:
        """Takes everything out of the store and its indexes, one by one."""
        self._items = None
        stores: list[dict[Any, Any]] = [*self._indexes.values(), self._objects]
        return chain.from_iterable(map(_emptied, stores))


_FEW = 8
"""Objects of one key of an index that are kept in a tuple, at most."""


def _file(index: Filed[T], value: Hashable, key: Key, obj: T) -> None:
    filed = index.get(value)
    if filed is None:
        index[value] = (obj,)
    elif isinstance(filed, dict):
        filed[key] = obj
    elif filed[-1] is obj:
        return  # an index may give the same value twice
    elif len(filed) < _FEW:
        index[value] = (*filed, obj)
    else:
        index[value] = {each.metadata.key: each for each in filed} | {key: obj}


def _unfile(index: Filed[T], value: Hashable, key: Key, old: T) -> None:
    filed = index.get(value, ())
    if isinstance(filed, dict):
        filed.pop(key, None)
        rest: tuple[T, ...] | dict[Key, T] = filed
    else:
        rest = index[value] = tuple(each for each in filed if each is not old)
    if not rest:
        del index[value]


class Change(NamedTuple, Generic[T]):
    """A hint that an object has changed. `new` is None where it is gone."""

    key: Key
    old: T | None
    new: T | None


class Identity(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The least of an object's metadata: its key and its version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


def version_number(version: str) -> int:
    """A resourceVersion, to be compared with others of its kind; 0 for one that is no number."""
    return int(version) if version.isdecimal() else 0


class _Named(msgspec.Struct, frozen=True, gc=False):
    metadata: Identity = Identity()


def identity_of(raw: msgspec.Raw) -> Identity:
    """Empty where even that cannot be read."""
    try:
        return decode(_Named, raw).metadata
    except UNREADABLE:
        return Identity()


Keep = Callable[[T], T | None]
"""The object as it is to be kept; None for one that nobody needs."""


def whole(obj: T) -> T | None:
    return obj


class ObjectCache(Generic[T]):
    """What is known of the objects of one kind. Read it; only its reflector writes."""

    def __init__(self, kind: type[T], indexes: Mapping[str, Index[T]], keep: Keep[T] = whole) -> None:
        self._kind = kind
        self._indexes = indexes
        self._keep = keep
        self._store: Indexer[T] = Indexer(indexes)
        self._undecodable: dict[Key, str] = {}
        self._subscribers: list[Callable[[Change[T]], None]] = []
        self._version = ""
        """The resourceVersion up to which everything is known: the last list's, or the last event's."""
        self._written: dict[Key, int] = {}
        """Versions that this process has written, and no list or event has shown yet."""

    # ----------------------------------------------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self._store)

    def get(self, namespace: str, name: str) -> T | None:
        return self._store.get((namespace, name))

    def items(self) -> tuple[T, ...]:
        return self._store.items()

    def by_index(self, name: str, key: Hashable) -> tuple[T, ...]:
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
        before = dict(self._written)
        listed: dict[Key, T] = {}
        undecodable: dict[Key, str] = {}
        version = ""
        async for page in pages:
            async for raw in _in_turns(page.items or ()):
                self._take_in(raw, listed, undecodable)
            version = page.metadata.resource_version
        # A list that began after a write has it, or what came after it.
        self._written = {key: each for key, each in self._written.items() if before.get(key) != each}
        await self._become(listed, undecodable, version_number(version))
        return version

    async def clear(self) -> None:
        self._written.clear()
        await self._become({}, {}, 0)

    def file(self, answer: bytes) -> None:
        """Takes the object as the API has answered it to a write, or to a read, unless something newer is known."""
        try:
            obj = decode(self._kind, answer)
        except UNREADABLE:
            return  # its event reports it
        key, version = obj.metadata.key, version_number(obj.metadata.resource_version)
        old = self._store.get(key)
        known = version_number(old.metadata.resource_version) if old is not None else 0
        if version > max(known, version_number(self._version), self._written.get(key, 0)):
            self._written[key] = version
            self._make(Change(key, old, self._keep(obj)))

    def put(self, raw: msgspec.Raw) -> str:
        """The version of the object that was filed."""
        try:
            obj = decode(self._kind, raw)
        except UNREADABLE as error:
            return self._doubt(raw, error, self._undecodable).resource_version
        key = obj.metadata.key
        if self._is_passed_over(key, obj.metadata.resource_version):
            return obj.metadata.resource_version
        self._undecodable.pop(key, None)
        old = self._store.get(key)
        if not _is_same(old, obj.metadata):
            self._make(Change(key, old, self._keep(obj)))
        return obj.metadata.resource_version

    def remove(self, raw: msgspec.Raw) -> str:
        """The version at which the object was removed."""
        metadata = identity_of(raw)
        if self._is_passed_over(metadata.key, metadata.resource_version):
            return metadata.resource_version
        self._undecodable.pop(metadata.key, None)
        self._make(Change(metadata.key, self._store.get(metadata.key), None))
        return metadata.resource_version

    def _is_passed_over(self, key: Key, version: str) -> bool:
        """Whether an event is older than what this process has written."""
        if version_number(version) < self._written.get(key, 0):
            return True
        self._written.pop(key, None)
        return False

    def _make(self, change: Change[T]) -> None:
        self._apply(change)
        if change.old is not change.new:
            self._notify(change)

    def _apply(self, change: Change[T]) -> None:
        if change.new is None:
            self._store.drop(change.key)
        else:
            self._store.put(change.new)

    def _take_in(self, raw: msgspec.Raw, listed: dict[Key, T], undecodable: dict[Key, str]) -> None:
        """Notes an object of a list: the very same as before where that has not changed since."""
        named = identity_of(raw) if self._store else Identity()
        known = self._store.get(named.key)
        if known is not None and _is_same(known, named):
            listed[named.key] = known
            return
        try:
            obj = self._keep(decode(self._kind, raw))
        except UNREADABLE as error:
            self._keep_known(self._doubt(raw, error, undecodable).key, listed)
            return
        if obj is not None:
            listed[obj.metadata.key] = obj

    def _keep_known(self, key: Key, listed: dict[Key, T]) -> None:
        known = self._store.get(key)
        if known is not None:
            listed.setdefault(key, known)

    def _doubt(self, raw: msgspec.Raw, error: Exception, undecodable: dict[Key, str]) -> Identity:
        """Notes an object that cannot be decoded."""
        named = identity_of(raw)
        if named.key not in self._undecodable:
            _log.warning(
                "KubeObjectUndecodable", kind=self._kind.__name__, object="/".join(named.key), error=str(error)
            )
        undecodable[named.key] = str(error)
        return named

    # -------------------------------------------------------------------------------------------------- differences

    async def _become(self, listed: dict[Key, T], undecodable: dict[Key, str], version: int) -> None:
        """Go over to these objects of that version at once, and notify of what has changed.

        A few changes are made where they are. For many the indexes are made anew beside those that are read meanwhile.
        What this process has written since stays as it is.
        """
        changes = [each async for each in self._changes(listed)]
        if len(changes) <= _AT_ONCE:
            changes, self._undecodable = self._without_newer(changes, version), undecodable
            for change in changes:
                self._apply(change)
        else:
            namespaces = {each.key[0] async for each in _in_turns(changes)}
            fresh = await self._indexed(listed)
            changes = self._without_newer(changes, version)
            for key in self._written:
                if (known := self._store.get(key)) is None:
                    fresh.drop(key)
                else:
                    fresh.put(known)
            await self._exchange(fresh, undecodable, namespaces)
        async for _ in _in_turns(_emptied(listed)):
            pass
        changes.reverse()
        async for _ in _in_turns(range(len(changes))):
            self._notify(changes.pop())

    def _without_newer(self, changes: list[Change[T]], version: int) -> list[Change[T]]:
        """The changes of objects that this process has not written since that version."""
        self._written = {key: each for key, each in self._written.items() if each > version}
        return [each for each in changes if each.key not in self._written] if self._written else changes

    async def _changes(self, listed: Mapping[Key, T]) -> AsyncIterator[Change[T]]:
        async for key, new in _in_turns(listed.items()):
            if (old := self._store.get(key)) is not new:
                yield Change(key, old, new)
        async for key in _in_turns(self._store.keys()):
            if key not in listed:
                yield Change(key, self._store.get(key), None)

    async def _indexed(self, listed: Mapping[Key, T]) -> Indexer[T]:
        fresh: Indexer[T] = Indexer(self._indexes)
        async for obj in _in_turns(listed.values()):
            fresh.put(obj)
        return fresh

    async def _exchange(self, fresh: Indexer[T], undecodable: dict[Key, str], namespaces: Iterable[str]) -> None:
        before, self._store, self._undecodable = self._store, fresh, undecodable
        fresh.revisions = before.revisions
        fresh.revisions.update(namespaces)
        async for _ in _in_turns(before.emptied()):
            pass

    # -------------------------------------------------------------------------------------------------- subscribers

    def _notify(self, change: Change[T]) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber(change)


def _is_same(known: KubeObject | None, named: Identity | ObjectMeta) -> bool:
    """Whether it is the same version of the same object."""
    if known is None:
        return False
    before, version = known.metadata, named.resource_version
    return bool(version) and (before.uid, before.resource_version) == (named.uid, version)


async def _in_turns(items: Iterable[X]) -> AsyncIterator[X]:
    """The items; other tasks get the event loop now and then."""
    turns = Turns()
    for count, each in enumerate(items, start=1):
        yield each
        if count % OBJECTS_PER_TURN == 0:
            await turns.give_way()


def _emptied(things: dict[X, Any]) -> Iterator[object]:
    """What is taken out of it, one by one, until there is nothing left: to free all at once takes long."""
    while things:
        yield things.popitem()
