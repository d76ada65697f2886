"""Keeps a copy of one list of objects up to date: list once, then follow the watch, for ever.

Laws:

* The copy says how good it is: `state` whether it is being kept up to date and if not why, `age` how long ago it was
  known to be current, and `undecodable` what is there and cannot be read.
* It is known to be current by a list, as of when that was asked for, and by every line of a watch. That a watch opens
  proves nothing: from a version that the server has not reached (an etcd was restored, and versions went backwards)
  kube-apiserver 1.36 answers 200 and is silent until the time is up, and so is a proxy that holds lines back.
* Nor does a watch have to say anything, bookmarks included (Source: KEP-956, "not guaranteed"). So silence is no
  failure, and what was not heard of for some time is listed again, which a quiet API answers and a dead one does not.
* Whatever the API server does, requests stay rare (`watch_backoff.py`).

| what happened                                | state        | next                                          |
|----------------------------------------------|--------------|-----------------------------------------------|
| list answered, watch open, or ended in order | Reflecting   | watch                                         |
| nothing heard for a while, or an open watch silent | Reflecting | list                                      |
| refused, broken, expired                     | Disconnected | watch or list after a wait (`watch_backoff.py`) |
| 401, 403                                     | Denied       | the same again after a backoff                |
| 404: the server does not know the resource   | Absent       | list, every half minute                       |

The first 404 after a successful list does not empty the copy, a second one half a minute later does: API servers
answer 404 for custom resources for a moment while they start.

Why not the official client's informer: it cannot hold custom resources, does not page, and repeats a failing watch a
thousand times a second.
"""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from scaler.clock import Clock
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.api_requests import NO_ANSWER, TIMEOUT, ApiStatus, Params, read_status
from scaler.kube.object_cache import OBJECTS_PER_TURN, Index, Keep, ObjectCache, T, identity_of
from scaler.kube.objects.core import WatchEvent, decode
from scaler.kube.objects.resources import Resource
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import WatchTiming, after_watch

_log = structlog.get_logger(__name__)

# -------------------------------------------------------------------------------------------------- how good it is


@dataclass(frozen=True, slots=True)
class Reflecting:
    """The copy is complete and being kept up to date."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The API server does not know the resource, as when its CRD is not installed: there are no such objects."""

    message: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The credentials or their RBAC rules do not allow to read the resource."""

    message: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The copy, if there is one, is not being kept up to date at the moment."""

    message: str


State = Reflecting | Absent | Denied | Disconnected


class WatchedList(ObjectCache[T]):
    """A copy that is kept up to date while `run` runs: of all objects of a kind, or of those in one namespace."""

    def __init__(
        self,
        transport: KubeTransport,
        resource: Resource,
        kind: type[T],
        *,
        namespace: str,
        label_selector: str,
        indexes: Mapping[str, Index[T]],
        keep: Keep[T],
        timing: WatchTiming,
        clock: Clock,
    ) -> None:
        super().__init__(kind, indexes, keep)
        self._resource = resource
        self._transport = transport
        self._clock = clock
        self._namespace = namespace
        self._path = resource.path(namespace)
        self._selectors = {"labelSelector": label_selector} if label_selector else {}
        self._timing = timing
        self._state: State = Disconnected("not listed yet")
        self._synced = asyncio.Event()
        self._answered = asyncio.Event()
        self._last_contact = -math.inf
        self._failures = 0
        self._opened_at: float | None = None
        self._delivered = 0
        self._sends_bookmarks = False

    @property
    def state(self) -> State:
        return self._state

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def is_refused(self) -> bool:
        """Whether it was refused and has never been listed. It is retried; readers need not wait for it."""
        return self._answered.is_set() and not self.is_synced

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_answered(self) -> None:
        """Returns when the copy has been complete once, or was refused."""
        await self._answered.wait()

    @property
    def age(self) -> float:
        """Seconds since this was known to be current; infinite before the first list.

        Range: up to two and a quarter minutes, and the time of a list, while the API answers, whether or not it has
        anything to report (`WatchTiming`).
        """
        return self._clock.monotonic() - self._last_contact

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        while True:
            await self._clock.sleep(await self._round())

    async def _round(self) -> float:
        """Seconds to wait after a list (where one is needed) and a watch."""
        self._opened_at, self._delivered = None, 0
        try:
            if not self._version or self.age >= self._timing.quiet:
                await self._list()
            await self._watch()
        except KubeError as error:
            return await self._after_error(error)
        return self._wait_after(None)

    async def _list(self) -> None:
        asked_at = self._clock.monotonic()
        self._version = await self.replace(self._transport.list_pages(self._path, self._selectors))
        self._last_contact = asked_at
        self._enter(Reflecting())
        self._has_synced()

    async def _watch(self) -> None:
        seconds = self._timing.watch_seconds(sends_bookmarks=self._sends_bookmarks)
        silence = self._timing.silence_seconds(seconds, sends_bookmarks=self._sends_bookmarks)
        params: Params = {
            **self._selectors,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": seconds,
        }
        async with self._transport.watch(self._path, params, silence_seconds=silence) as lines:
            self._opened_at = self._clock.monotonic()
            self._enter(Reflecting())
            async for line in lines:
                self._last_contact = self._clock.monotonic()
                self._take(line)
                self._delivered += 1
                if self._delivered % OBJECTS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _take(self, line: bytes) -> None:
        """Applies one line of the watch. Raises: KubeError for one that ends it."""
        try:
            event = decode(WatchEvent, line)
        except UNREADABLE as error:
            raise KubeError(f"watch {self._path}: a line is not an event: {error}", reason="NotAnEvent") from error
        match event.type:
            case "ADDED" | "MODIFIED":
                version = self.put(event.object)
            case "DELETED":
                version = self.remove(event.object)
            case "BOOKMARK":
                self._sends_bookmarks = True
                version = identity_of(event.object).resource_version
            case "ERROR":
                raise self._broken_off(read_status(event.object) or ApiStatus(message="no Status came with the error"))
            case _:
                version = ""
        self._version = version or self._version

    def _broken_off(self, status: ApiStatus) -> KubeError:
        return KubeError(
            f"watch {self._path} at {self._transport.server}: the API server ended it: "
            f"{status.code} {status.reason}: {status.message}; it is retried",
            status=status.code,
            reason=status.reason,
        )

    def _has_synced(self) -> None:
        self._synced.set()
        self._answered.set()

    # -------------------------------------------------------------------------------------------------- afterwards

    async def _after_error(self, error: KubeError) -> float:
        if error.is_absent:
            return await self._after_not_found(error)
        if (error.status, error.reason) == (NO_ANSWER, TIMEOUT) and self._opened_at is not None:
            return self._wait_after(None)
        if error.status in (401, 403):
            self._enter(Denied(str(error)))
            self._answered.set()
        else:
            self._enter(Disconnected(str(error)))
        return self._wait_after(error)

    def _wait_after(self, error: KubeError | None) -> float:
        self._failures, gives_up = after_watch(
            self._failures,
            self._timing,
            lasted=self._clock.monotonic() - self._opened_at if self._opened_at is not None else 0.0,
            delivered=self._delivered > 0,
            in_order=error is None,
            was_reached=error is None or error.status != NO_ANSWER or self._opened_at is not None,
            is_expired=error is not None and error.status == 410,
        )
        if gives_up:
            self._version = ""
        return self._timing.backoff.wait(self._failures)

    async def _after_not_found(self, error: KubeError) -> float:
        self._version = ""
        if isinstance(self._state, Absent) or not self.is_synced:
            await self.clear()
            self._has_synced()
        self._enter(Absent(str(error)))
        return self._timing.absent * random.uniform(0.8, 1.2)  # noqa: S311 (spreads load; keeps no secret)

    def _enter(self, state: State) -> None:
        before, self._state = self._state, state
        if type(before) is type(state):
            return
        detail = {} if isinstance(state, Reflecting) else {"message": state.message}
        if self._namespace:
            detail["namespace"] = self._namespace
        log = _log.info if isinstance(state, Reflecting | Absent) else _log.warning
        log(f"Kube{type(state).__name__}", resource=self._resource.qualified_name, objects=len(self), **detail)
