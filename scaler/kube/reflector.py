"""Keeps a copy of one kind of object up to date: of the whole cluster, or of some namespaces.

Kubernetes lists and watches either all namespaces or one, and an account that may read two of them may not read all.
So each namespace has a list and a watch of its own (`watched_list.py`), and readers see one copy.

Laws:

* The copy is as good as the worst of its parts, and each part has a state of its own (`within`): what one
  namespace hides is no reason to doubt what is seen of another.
* A namespace that was refused and never listed is not waited for. It does not exist, or has no Role for this account.
  Requests go on, so that it joins the others once it may be read. Where all are refused, all are waited for.

Whatever is looked up by an index is looked up once for each namespace, and each takes a connection: this is for tens of
namespaces. With hundreds, watch all namespaces.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Generic

import msgspec

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.kube.object_cache import Change, Index, Keep, Key, T, identity_of, whole
from scaler.kube.objects.resources import Resource
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import WatchTiming
from scaler.kube.watched_list import Absent, Denied, Disconnected, Reflecting, State, WatchedList

__all__ = ["Absent", "Denied", "Disconnected", "NotWatched", "Reflecting", "Reflector", "State"]


@dataclass(frozen=True, slots=True)
class NotWatched:
    """State of a namespace that is not watched."""

    namespace: str
    age = math.inf
    is_synced = False

    @property
    def state(self) -> State:
        return Disconnected(f"namespace {self.namespace} is not watched")


class Reflector(Generic[T]):
    """A copy that is kept up to date while `run` runs. Without `namespaces` it is of all of them."""

    def __init__(
        self,
        transport: KubeTransport,
        resource: Resource,
        kind: type[T],
        *,
        namespaces: Collection[str] = (),
        label_selector: str = "",
        indexes: Mapping[str, Index[T]] | None = None,
        keep: Keep[T] = whole,
        timing: WatchTiming = WatchTiming(),  # noqa: B008 (immutable)
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.resource = resource
        self._is_confined = bool(namespaces) and resource.namespaced
        made = partial(
            WatchedList[T], transport, resource, kind, label_selector=label_selector, keep=keep, timing=timing
        )
        self._lists = {
            namespace: made(namespace=namespace, indexes=indexes or {}, clock=clock)
            for namespace in (namespaces if self._is_confined else ("",))
        }

    async def run(self) -> None:
        """Keeps the copy up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._lists.values():
                tasks.create_task(each.run())

    # ----------------------------------------------------------------------------------------------------- reading

    def __len__(self) -> int:
        return sum(map(len, self._lists.values()))

    def get(self, namespace: str, name: str) -> T | None:
        found = self._list_of(namespace)
        return None if found is None else found.get(namespace, name)

    def items(self) -> tuple[T, ...]:
        """All objects, in no particular order."""
        return _joined(each.items() for each in self._lists.values())

    def by_index(self, name: str, key: Hashable) -> tuple[T, ...]:
        """The objects that the index `name` files under the key, in no particular order."""
        return _joined(each.by_index(name, key) for each in self._lists.values())

    def revision(self, namespace: str) -> int:
        """How many changes to objects of the namespace there were: where it is as before, they are as before."""
        found = self._list_of(namespace)
        return 0 if found is None else found.revision(namespace)

    @property
    def undecodable(self) -> Mapping[Key, str]:
        """Objects that exist in a version that cannot be read, and why. A key may be empty where even that is not."""
        return dict(chain.from_iterable(each.undecodable.items() for each in self._lists.values()))

    def subscribe(self, callback: Callable[[Change[T]], None]) -> Callable[[], None]:
        """The function that ends the subscription. Callbacks run on the event loop and must not raise or block."""
        endings = [each.subscribe(callback) for each in self._lists.values()]

        def end() -> None:
            for each in endings:
                each()

        return end

    def file(self, answer: bytes) -> None:
        """Takes the object as the API has answered it, so that readers see what this process has written."""
        if (found := self._list_of(identity_of(msgspec.Raw(answer)).namespace)) is not None:
            found.file(answer)

    # ------------------------------------------------------------------------------------------------- how good it is

    def within(self, namespace: str) -> WatchedList[T] | NotWatched:
        """What is known of one namespace, and how good that is."""
        found = self._list_of(namespace)
        return NotWatched(namespace) if found is None else found

    @property
    def state(self) -> State:
        states = [each.state for each in self._awaited]
        worst = next((each for kind in (Denied, Disconnected) for each in states if isinstance(each, kind)), states[0])
        absent = [each for each in states if isinstance(each, Absent)]
        if isinstance(worst, Reflecting | Absent) and 0 < len(absent) < len(states):
            return Disconnected(f"not all namespaces agree that there is such a kind: {absent[0].message}")
        return worst

    @property
    def age(self) -> float:
        """Seconds since the last response for the quietest namespace; infinite before all are listed."""
        return max(each.age for each in self._awaited)

    @property
    def is_synced(self) -> bool:
        """Whether the copy has been complete once: fully listed, or known to be empty for want of a CRD."""
        return all(each.is_synced for each in self._awaited)

    async def wait_synced(self) -> None:
        """Returns when the copy has been complete once; subscribers have been notified of every object by then."""
        await asyncio.gather(*(each.wait_answered() for each in self._lists.values()))
        if all(each.is_refused for each in self._lists.values()):
            await self._wait_for_one()

    async def _wait_for_one(self) -> None:
        waits = [asyncio.create_task(each.wait_synced()) for each in self._lists.values()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    @property
    def _awaited(self) -> Collection[WatchedList[T]]:
        return [each for each in self._lists.values() if not each.is_refused] or self._lists.values()

    def _list_of(self, namespace: str) -> WatchedList[T] | None:
        return self._lists.get(namespace if self._is_confined else "")


def _joined(lists: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    """All of them in one; the very same one where there is only one, since these may be long."""
    first, *others = lists
    return (*first, *chain.from_iterable(others)) if others else first
