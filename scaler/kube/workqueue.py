"""Keys of objects to be reconciled: each at most once in the queue, and at most once in work.

Laws:

* A key that is added while it waits is added once. One that is added while it is worked on is worked on again, after.
  So no change is lost, and no two workers ever reconcile the same object.
* A key that fails comes back later and later, each key by its own count. `forget` ends the count.
* Of several delayed additions of one key the earliest counts; whatever was due then is seen by a level-triggered
  reconciler anyway.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import Generic, TypeVar

from scaler.clock import SYSTEM_CLOCK, Cancellable, Clock
from scaler.kube.watch_backoff import Backoff

K = TypeVar("K", bound=Hashable)


class QueueClosed(Exception):  # noqa: N818 (an end, not an error)
    """There is nothing more to do: the queue was closed."""


class WorkQueue(Generic[K]):
    def __init__(
        self,
        *,
        backoff: Backoff = Backoff(base=0.5, cap=60.0),  # noqa: B008 (immutable)
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._backoff = backoff
        self._clock = clock
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        """What is in `_ready`, or will be as soon as it is done."""
        self._in_work: set[K] = set()
        self._delayed: dict[K, tuple[float, Cancellable]] = {}
        """When each is due, and its timer."""
        self._failures: dict[K, int] = {}
        self._has_ready = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """How many keys wait to be handed out; not those in work or delayed."""
        return len(self._waiting)

    @property
    def failing(self) -> int:
        """How many keys have failed when they were last worked on."""
        return len(self._failures)

    def add(self, key: K) -> None:
        """Has the key worked on as soon as possible."""
        self._undelay(key)
        if self._closed or key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._in_work:
            self._enqueue(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Has the key worked on after so long, or earlier where that was asked for already."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        planned = self._delayed.get(key)
        if self._closed or (planned is not None and planned[0] <= due):
            return
        self._undelay(key)
        self._delayed[key] = due, self._clock.call_later(seconds, partial(self.add, key))

    def retry(self, key: K) -> float:
        """Seconds until the key that has just failed is worked on again: more after every failure in a row."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        # Not jittered: each key has its own clock already, and a lower bound keeps a broken object cheap.
        wait = self._backoff.ceiling(failures)
        self.add_after(key, wait)
        return wait

    def forget(self, key: K) -> None:
        """Ends the count of the key's failures."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often the key has failed in a row."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key, which is in work until `done`. Raises: QueueClosed."""
        while not self._ready and not self._closed:
            self._has_ready.clear()
            await self._has_ready.wait()
        if self._closed:
            raise QueueClosed
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._in_work.add(key)
        return key

    def done(self, key: K) -> None:
        """Ends the work on a key; it goes to the end of the queue where it was added meanwhile."""
        self._in_work.discard(key)
        if key in self._waiting:
            self._enqueue(key)

    def close(self) -> None:
        """Ends the queue: every `get` raises, waiting keys are dropped, and nothing can be added any more."""
        self._closed = True
        for _, timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        self._ready.clear()
        self._waiting.clear()
        self._has_ready.set()

    def _enqueue(self, key: K) -> None:
        self._ready.append(key)
        self._has_ready.set()

    def _undelay(self, key: K) -> None:
        planned = self._delayed.pop(key, None)
        if planned is not None:
            planned[1].cancel()
