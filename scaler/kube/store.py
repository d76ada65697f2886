"""Objects by namespace and name, and by whatever else they are looked up by. Memory only; knows nothing of the API."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from scaler.kube.objects import ObjectMeta

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for what belongs to none."""


class KubeObject(Protocol):
    """Anything with Kubernetes metadata."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)
Index = Callable[[T], Iterable[Hashable]]
"""The keys under which an object is to be found; none for an object that the index does not concern."""


class Store(Generic[T]):
    """The objects and their indexes, always in step with each other."""

    def __init__(self, indexes: Mapping[str, Index[T]]) -> None:
        self._index_functions = indexes
        self._objects: dict[Key, T] = {}
        self._indexes: dict[str, dict[Hashable, dict[Key, T]]] = {name: {} for name in indexes}

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
        """The objects that the index files under the key, in no particular order."""
        return list(self._indexes[name].get(key, {}).values())

    def put(self, obj: T) -> T | None:
        """What the object has replaced."""
        key = obj.metadata.key
        old = self.drop(key)
        self._objects[key] = obj
        for name, function in self._index_functions.items():
            for value in function(obj):
                self._indexes[name].setdefault(value, {})[key] = obj
        return old

    def drop(self, key: Key) -> T | None:
        """What was removed."""
        old = self._objects.pop(key, None)
        if old is not None:
            for name, function in self._index_functions.items():
                self._unfile(self._indexes[name], function(old), key)
        return old

    @staticmethod
    def _unfile(index: dict[Hashable, dict[Key, T]], values: Iterable[Hashable], key: Key) -> None:
        for value in values:
            filed = index.get(value, {})
            filed.pop(key, None)
            if not filed:
                index.pop(value, None)
