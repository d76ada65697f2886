"""When a controller reconciles, in virtual time."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs
from virtual_clock import START, VirtualClock, settle

from scaler.clock import Turns, background_threads, every
from scaler.errors import KubeError

TEN = timedelta(seconds=10)


class Controller:
    """Ticks for ever; `at` are the seconds at which it began to."""

    def __init__(self) -> None:
        self.clock, self.wake, self.at = VirtualClock(), asyncio.Event(), list[float]()
        self.during: Callable[[], Awaitable[None]] | None = None

    async def tick(self, now: datetime) -> None:
        self.at.append((now - START).total_seconds())
        if self.during is not None:
            await self.during()

    @asynccontextmanager
    async def running(self, interval: timedelta | None = TEN, **more: timedelta) -> AsyncIterator[None]:
        task = asyncio.create_task(every(interval, self.tick, self.wake, name="test", clock=self.clock, **more))
        await settle()
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_ticks_at_once_and_at_every_interval() -> None:
    one = Controller()
    async with one.running():
        await one.clock.advance(25)
    assert one.at == [0, 10, 20]


async def test_it_ticks_when_it_is_woken_and_the_interval_begins_anew() -> None:
    one = Controller()
    async with one.running():
        await one.clock.advance(4)
        one.wake.set()
        await one.clock.advance(12)
    assert one.at == [0, 4, 14]


async def test_what_wakes_it_during_a_tick_causes_another_one() -> None:
    one = Controller()

    async def work() -> None:
        one.during = None
        one.wake.set()

    one.during = work
    async with one.running():
        pass
    assert one.at == [0, 0]


async def test_without_an_interval_it_only_ticks_when_it_is_woken() -> None:
    one = Controller()
    async with one.running(None):
        await one.clock.advance(3600)
        one.wake.set()
        await settle()
    assert one.at == [0, 3600]


async def test_between_two_ticks_it_rests_twice_as_long_as_the_first_one_took() -> None:
    one = Controller()

    async def work() -> None:
        one.wake.set()
        await one.clock.sleep(3)

    one.during = work
    async with one.running(rest=timedelta(seconds=1)):
        await one.clock.advance(10)
    assert one.at == [0, 9]


@pytest.mark.parametrize(
    ("error", "level"),
    [(KubeError("conflict", status=409), "debug"), (KubeError("down"), "warning"), (ZeroDivisionError(), "error")],
)
async def test_a_tick_that_fails_is_logged_and_followed_by_the_next_one(error: Exception, level: str) -> None:
    one = Controller()

    async def fail() -> None:
        raise error

    one.during = fail
    with capture_logs() as logs:
        async with one.running():
            await one.clock.advance(10)
    assert one.at == [0, 10]
    assert [each["log_level"] for each in logs] == [level, level]
    assert all(each["event"].startswith("test reconcile failed") for each in logs)


# ------------------------------------------------------------------------------------------------------------ long work


class Processor:
    """Its time passes by work and by pauses; in each pause others work for a share, `busy`, of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *busy: float) -> None:
        self.wall_s = self.worked_s = 0.0
        self.busy, self.pauses = [*busy], 0
        monkeypatch.setattr("time.perf_counter", lambda: self.wall_s)
        monkeypatch.setattr("time.thread_time", lambda: self.worked_s)
        monkeypatch.setattr("scaler.clock.asyncio.sleep", self.sleep)

    def work(self, seconds: float) -> None:
        self.wall_s += seconds
        self.worked_s += seconds

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self.wall_s += seconds
        self.worked_s += seconds * (self.busy.pop(0) if self.busy else 0)


@pytest.mark.parametrize(
    ("work_s", "busy", "pauses"),
    [(0.001, (), 0), (0.003, (), 1), (0.003, (0.3,), 1), (0.003, (1, 0.9, 0.1), 3), (0.003, (1,) * 100, 10)],
    ids=["short", "at rest", "hardly busy", "busy for two pauses", "always busy"],
)
async def test_long_work_goes_on_when_the_event_loop_has_rested_or_after_ten_pauses(
    monkeypatch: pytest.MonkeyPatch, work_s: float, busy: tuple[float, ...], pauses: int
) -> None:
    processor = Processor(monkeypatch, *busy)
    turns = Turns()
    processor.work(work_s)
    await turns.give_way()
    assert processor.pauses == pauses
    processor.work(0.001)
    await turns.give_way()
    assert processor.pauses == max(pauses, work_s + 0.001 >= 0.002), "the next turn begins after the pauses"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_background_threads_give_the_event_loop_precedence() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with background_threads("test", 1) as threads:
        assert threads.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result() == min(
            own + 10, 19
        )
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
