"""The time, as an argument: whatever waits or measures takes a `Clock`, so that its tests run in virtual time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from scaler.errors import KubeError

log = structlog.get_logger(__name__)

_CONFLICT = 409


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


class Turns:
    """A long computation that leaves the event loop to other tasks now and then.

    A call of KEDA's takes several rounds of the event loop. With some milliseconds of work in each of them it would be
    answered when all of the work is done; so this waits a moment, and not for one round.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def give_way(self) -> None:
        """Call it after every piece of work, which should not take longer than some milliseconds."""
        if (now := time.perf_counter()) - self._since < _TURN_S:
            return
        while time.perf_counter() < now + _PAUSE_S:  # noqa: ASYNC110
            # uvloop counts from when its round began: the first of these may end at once.
            await asyncio.sleep(_PAUSE_S)
        self._since = time.perf_counter()


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
        tell = log.debug if error.status == _CONFLICT else log.warning
        tell(f"{name} reconcile failed; retried", error=str(error))
    except Exception:
        log.exception(f"{name} reconcile failed")
