"""What does a watcher see? First a state, then every later change that its selector lets through, then a clean end.

| selector matched before | matches now | the watcher sees            |
|-------------------------|-------------|-----------------------------|
| no                      | yes         | ADDED                       |
| yes                     | yes         | MODIFIED                    |
| yes                     | no          | DELETED, with the old state |
| no                      | no          | nothing                     |

A watcher follows the collection's log by a cursor, so a slow one costs no memory: when the log forgets what it has not
read yet, its stream ends and it has to resume, as with a real server. Bookmarks carry the current revision every minute
and two seconds before the end, so that a quiet watcher resumes from a fresh revision.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from scaler_sandbox.kubeapi.errors import ApiError, expired
from scaler_sandbox.kubeapi.faults import Faults
from scaler_sandbox.kubeapi.schema.resources import View
from scaler_sandbox.kubeapi.storage.listing import parse_revision
from scaler_sandbox.kubeapi.storage.selectors import Predicate, everything
from scaler_sandbox.kubeapi.storage.store import Collection, Event, Stored
from scaler_sandbox.kubeapi.verbs import ApiVerbs

_BOOKMARK_EVERY_SECONDS = 60.0
_BOOKMARK_BEFORE_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuery:
    """What a watch asks for."""

    namespace: str | None
    matches: Predicate = everything
    revision: str = ""
    bookmarks: bool = False
    timeout_seconds: float = 1800.0


class Watcher:
    """One open watch."""

    def __init__(self, cluster: ApiVerbs, view: View, query: WatchQuery, *, faults: Faults) -> None:
        self._cluster = cluster
        self._collection: Collection = cluster.store.collection(view.resource)
        self._view = view
        self._query = query
        self._faults = faults
        self._news = asyncio.Event()
        self._ended = False
        self._cursor = 0

    def end(self) -> None:
        """Let the stream end cleanly."""
        self._ended = True
        self._news.set()

    def wake(self) -> None:
        """Look up: the faults have changed."""
        self._news.set()

    async def stream(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write events until the time is up, the watch is ended, or the log has overtaken it."""
        self._collection.listeners.add(self._news.set)
        try:
            opening, goes_on = self._opening()
            if opening:
                await write(opening)
            if goes_on:
                await self._follow(write)
        finally:
            self._collection.listeners.discard(self._news.set)

    def _opening(self) -> tuple[bytes, bool]:
        """What is written first, and whether anything follows."""
        query = self._query
        asked = parse_revision(query.revision or "0")
        start = asked or self._cluster.store.revision
        cursor = self._collection.cursor_after(start)
        if cursor is None:
            too_old = expired(f"too old resource version: {asked} ({self._collection.forgotten})")
            return self._error(too_old), False
        self._cursor = cursor
        if asked:
            return b"", True
        present = filter(self._matches, self._collection.ordered(query.namespace))
        return b"".join(self._line("ADDED", stored) for stored in present), True

    async def _follow(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._query.timeout_seconds
        bookmark_at = _next_bookmark(loop.time(), end) if self._query.bookmarks else end
        while not self._ended and not self._collection.closed and loop.time() < end:
            self._news.clear()
            if not self._faults.silence_watches:
                batch = self._batch()
                if batch is None:
                    return
                if loop.time() >= bookmark_at:
                    batch += self._bookmark()
                    bookmark_at = _next_bookmark(loop.time(), end)
                if batch:
                    await write(batch)
                    continue
            await self._wait_until(min(bookmark_at, end))

    async def _wait_until(self, moment: float) -> None:
        loop = asyncio.get_running_loop()
        alarm = loop.call_at(moment, self._news.set)
        try:
            await self._news.wait()
        finally:
            alarm.cancel()

    def _batch(self) -> bytes | None:
        """All news in one piece; None where some were forgotten before they were read."""
        news = self._collection.events_from(self._cursor)
        if news is None:
            return None
        events, self._cursor = news
        return b"".join(line for event in events if (line := self._seen(event)))

    def _seen(self, event: Event) -> bytes:
        """The line that the watcher sees of an event; empty where its selectors hide it."""
        if self._query.matches is everything and self._in_namespace(event.stored):
            return self._line(event.type, event.stored)
        now = event.type != "DELETED" and self._matches(event.stored)
        before = event.previous is not None and self._matches(event.previous)
        if now:
            return self._line("MODIFIED" if before else "ADDED", event.stored)
        return self._line("DELETED", _last_seen(event)) if before else b""

    def _matches(self, stored: Stored) -> bool:
        return self._in_namespace(stored) and (
            self._query.matches is everything or self._query.matches(stored.as_served(self._view))
        )

    def _in_namespace(self, stored: Stored) -> bool:
        return self._query.namespace in (None, stored.key[0])

    def _line(self, kind: str, stored: Stored) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), stored.encode(self._view))

    def _bookmark(self) -> bytes:
        metadata = {"resourceVersion": str(self._cluster.store.revision)}
        body = {"kind": self._view.resource.kind, "apiVersion": self._view.api_version, "metadata": metadata}
        return b'{"type":"BOOKMARK","object":%b}\n' % msgspec.json.encode(body)

    @staticmethod
    def _error(error: ApiError) -> bytes:
        return b'{"type":"ERROR","object":%b}\n' % msgspec.json.encode(error.as_status())


def _last_seen(event: Event) -> Stored:
    """The state that the watcher knew, under the revision of the event that took it out of its sight."""
    if event.type == "DELETED" or event.previous is None:
        return event.stored
    known = event.previous
    metadata = {**known.body["metadata"], "resourceVersion": str(event.revision)}
    return Stored({**known.body, "metadata": metadata}, key=known.key, revision=event.revision)


def _next_bookmark(now: float, end: float) -> float:
    last = end - _BOOKMARK_BEFORE_END_SECONDS
    return min(now + _BOOKMARK_EVERY_SECONDS, last) if now < last else end
