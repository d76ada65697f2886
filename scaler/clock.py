"""The time, as an argument: whatever waits or measures takes a `Clock`, so that its tests run in virtual time."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from scaler.errors import KubeError

log = structlog.get_logger(__name__)


class Cancellable(Protocol):
    """A planned call."""

    def cancel(self) -> None: ...


class Clock:
    """The clock of this machine and of the running event loop."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC. It may jump: measure durations with `monotonic`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Calls the callback on the event loop after so many seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds, and not before other tasks have had their turn."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = Clock()

_TURN_S, _PAUSE_S = 0.002, 0.001
_MOST_PAUSES = 10
_AT_REST = 0.4
"""The share of a pause in which the event loop may have worked for others without being taken for busy."""


class Turns:
    """A long computation that leaves the event loop to other tasks now and then.

    gRPC takes up one call in each round of the event loop, and answers it some rounds later. With some milliseconds of
    work in each round, calls would come in faster than they are answered; so this waits until the event loop has rested
    for a moment. Where it never rests, the computation goes on all the same, ten times as slowly.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def give_way(self) -> None:
        """Call it after every piece of work, which should not take longer than some milliseconds."""
        began = time.perf_counter()
        if began - self._since < _TURN_S:
            return
        for _ in range(_MOST_PAUSES):
            worked = time.thread_time()
            await asyncio.sleep(_PAUSE_S)
            worked, began, paused_since = time.thread_time() - worked, time.perf_counter(), began
            if worked < _AT_REST * (began - paused_since):
                break
        self._since = began


_NICENESS = 10


def background_threads(name: str, count: int | None = None) -> ThreadPoolExecutor:
    """Threads for long work, which have the processor when the event loop leaves it (on Linux; elsewhere: like all).

    On one core, threads that decompress or plan would otherwise take half of it from a loop that has calls to answer.
    """
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_lower_priority)


def _lower_priority() -> None:
    if sys.platform == "linux":  # where this concerns the thread alone
        os.nice(_NICENESS)


async def every(
    interval: timedelta | None,
    tick: Callable[[datetime], Awaitable[object]],
    wake: asyncio.Event,
    *,
    name: str,
    rest: timedelta = timedelta(0),
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Call `tick` with the time until cancelled: at every interval (None: only when woken), and when `wake` is set.

    A tick that fails is logged and followed by the next one. What wakes during a tick causes another tick. After a tick
    it rests that long, and with a rest at least twice as long as the tick took: the same process answers KEDA.
    """
    while True:
        wake.clear()
        began = clock.monotonic()
        await _attempt(tick, clock.now(), name)
        if rest:
            await clock.sleep(max(rest.total_seconds(), 2 * (clock.monotonic() - began)))
        timer = clock.call_later(interval.total_seconds(), wake.set) if interval is not None else None
        try:
            await wake.wait()
        finally:
            if timer is not None:
                timer.cancel()


async def _attempt(tick: Callable[[datetime], Awaitable[object]], now: datetime, name: str) -> None:
    try:
        await tick(now)
    except KubeError as error:
        tell = log.debug if error.is_conflict else log.warning
        tell(f"{name} reconcile failed; retried", error=str(error))
    except Exception:
        log.exception(f"{name} reconcile failed")
