"""Lists and watches as a test scripts them, in memory and in virtual time: what no good server does."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from virtual_clock import VirtualClock

from scaler.errors import KubeError
from scaler.kube.objects.core import ListPage

Json = Mapping[str, Any]


# ---------------------------------------------------------------------------------------------------------- answers


def pod(name: str, version: int = 1, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), **metadata}}


def event(kind: str, obj: Json) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def error_event(code: int, reason: str) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": "it is broken"})


def refused(code: int, reason: str = "") -> KubeError:
    advice = "grant verb 'list' on 'pods'" if code == 403 else "is the CustomResourceDefinition installed?"
    return KubeError(f"{code} {reason}; {advice}", status=code, reason=reason)


CUT_OFF = KubeError("the answer broke off", status=0, reason="Truncated")
NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class ListAnswer:
    pages: tuple[bytes, ...] = ()
    error: KubeError | None = None
    """Raised after the pages."""
    after: float = 0.0
    """Seconds until it comes."""


def listing(*objects: Json, version: int = 100, pages: int = 1, error: KubeError | None = None) -> ListAnswer:
    size = -(-len(objects) // pages) or 1
    parts = [objects[start : start + size] for start in range(0, len(objects), size)] or [()]
    bodies = [{"metadata": {"resourceVersion": str(version)}, "items": part} for part in parts]
    return ListAnswer(pages=tuple(json.dumps(body).encode() for body in bodies), error=error)


def failing(error: KubeError) -> ListAnswer:
    return ListAnswer(error=error)


@dataclass(frozen=True, kw_only=True)
class WatchAnswer:
    """A stream that says some lines, and then ends, breaks or is silent."""

    lines: tuple[bytes, ...] = ()
    lasts: float = 0.0
    """Seconds from the last line to its end."""
    waits: float = 0.0
    """Seconds until its first line."""
    obeys: bool = False
    """Whether it ends in order when it is asked to, if not before."""
    error: KubeError | None = None
    """Raised in the end; None: the server ends the watch in order."""
    opens: bool = True
    """False: `error` is the answer to the request."""


def streaming(*lines: bytes) -> WatchAnswer:
    """A watch that stays open."""
    return WatchAnswer(lines=lines, lasts=NEVER)


def ending(*lines: bytes, after: float = 0.0) -> WatchAnswer:
    return WatchAnswer(lines=lines, lasts=after)


def breaking(*lines: bytes, error: KubeError = CUT_OFF) -> WatchAnswer:
    return WatchAnswer(lines=lines, error=error)


def refusing(error: KubeError) -> WatchAnswer:
    return WatchAnswer(error=error, opens=False)


# -------------------------------------------------------------------------------------------------------------- API


@dataclass(frozen=True, slots=True)
class Asked:
    path: str
    query: dict[str, Any]
    is_watch: bool
    at: float


class ScriptedApi:
    """As much of `KubeTransport` as a reflector calls. Each path's answers are given in turn, the last one for ever."""

    server = "memory"

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.requests: list[Asked] = []
        self.lists: dict[str, list[ListAnswer]] = {}
        self.watches: dict[str, list[WatchAnswer]] = {}
        self.on_watch: Callable[[], None] = lambda: None
        """Called as a watch is asked for."""

    def serve(self, *, lists: list[ListAnswer], watches: list[WatchAnswer], path: str = "") -> None:
        self.lists[path], self.watches[path] = list(lists), list(watches)

    def count(self, *, watches: bool) -> int:
        return sum(each.is_watch is watches for each in self.requests)

    @property
    def watched_from(self) -> list[str]:
        return [each.query["resourceVersion"] for each in self.requests if each.is_watch]

    # ----------------------------------------------------------------------------------- what a reflector calls

    async def list_pages(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[ListPage]:
        self._note(path, params, is_watch=False)
        answer = _next(self.lists, path, failing(refused(404, "NotFound")))
        await self.clock.sleep(answer.after)
        for page in answer.pages:
            yield msgspec.json.decode(page, type=ListPage)
        if answer.error is not None:
            raise answer.error

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, Any], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self._note(path, params, is_watch=True)
        self.on_watch()
        answer = _next(self.watches, path, streaming())
        await self.clock.sleep(0)
        if not answer.opens and answer.error is not None:
            raise answer.error
        yield self._lines(answer, silence_seconds, self.clock.monotonic() + params["timeoutSeconds"])

    async def _lines(self, answer: WatchAnswer, silence_seconds: float, asked_to_end: float) -> AsyncIterator[bytes]:
        if answer.lines:
            await self._wait(answer.waits, silence_seconds)
        for line in answer.lines:
            await self.clock.sleep(0)
            yield line
        left = asked_to_end - self.clock.monotonic() if answer.obeys else NEVER
        await self._wait(min(answer.lasts, left), silence_seconds)
        if answer.error is not None:
            raise answer.error

    async def _wait(self, seconds: float, silence_seconds: float) -> None:
        """Raises: KubeError where that is longer than the client waits for a byte."""
        await self.clock.sleep(min(seconds, silence_seconds))
        if seconds > silence_seconds:
            raise KubeError("no answer in time", status=0, reason="Timeout")

    def _note(self, path: str, params: Mapping[str, Any], *, is_watch: bool) -> None:
        self.requests.append(Asked(path, dict(params), is_watch, self.clock.monotonic()))


def _next(script: dict[str, list[Any]], path: str, otherwise: Any) -> Any:
    answers = script.get(path) or script.get("") or [otherwise]
    return answers.pop(0) if len(answers) > 1 else answers[0]
