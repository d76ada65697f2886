"""A clock that stands still until a test advances it."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any

from scaler.clock import Clock

START = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)
MOST_TURNS = 100_000
"""Turns of the event loop after which tasks that never wait are taken for an endless loop."""


class Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock(Clock):
    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(callback)
        heappush(self._timers, (self._elapsed + max(0.0, seconds), next(self._numbers), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    async def advance(self, seconds: float) -> None:
        """Lets so many seconds pass, timer by timer; tasks run between two timers until all of them wait."""
        end = self._elapsed + seconds
        await settle()
        while self._timers and self._timers[0][0] <= end:
            self._elapsed, _, timer = heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self._elapsed = end

    @property
    def next_due(self) -> float | None:
        """When the next timer is due; None where there is none."""
        while self._timers and self._timers[0][2].callback is None:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def jump(self, seconds: float) -> None:
        """Lets the seconds pass while no task gets its turn, as when the event loop is blocked."""
        self._elapsed += seconds


async def settle() -> None:
    """Lets every task run until it waits for time, or for ever."""
    loop: Any = asyncio.get_running_loop()
    for _ in range(MOST_TURNS):
        await asyncio.sleep(0)
        if not loop._ready:
            return
    raise AssertionError("a task is never idle")


async def until(clock: VirtualClock, condition: Callable[[], Any], *, within: float = 3600.0) -> None:
    """Advances the clock, timer by timer, until the condition holds. It has to within so many seconds."""
    end = clock.monotonic() + within
    await settle()
    while not condition():
        due = clock.next_due
        assert due is not None and due <= end, f"not within {within:g} s"  # noqa: PT018
        await clock.advance(due - clock.monotonic())
