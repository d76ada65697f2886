"""The life of a simulated controller: look at everything, do what follows, wait for a change or a moment, repeat.

Law: a controller keeps nothing that it could not do without. Killed at any point and made anew, it goes on from what
the API shows. Timers that it keeps in memory start again, so a restart can delay a step but never lose or repeat one.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import structlog

from scaler.errors import KubeError
from scaler.kube.objects.resources import Resource
from scaler_sandbox.actions import Action
from scaler_sandbox.client import Client

_log = structlog.get_logger(__name__)

_SHORTEST_PAUSE = timedelta(milliseconds=10)
"""The pause between two ticks: lets a burst of changes be one tick."""
_AFTER_ERROR = timedelta(milliseconds=500)


class Controller(ABC):
    """One control loop over some resources."""

    name: ClassVar[str]
    watched: ClassVar[tuple[Resource, ...]]

    def __init__(self, client: Client) -> None:
        self.client = client
        self._wake = asyncio.Event()
        self._has_failed = False

    @abstractmethod
    async def tick(self, now: datetime) -> datetime | None:
        """Everything that is to be done now. Returns when to look again although nothing has changed by then."""

    async def run(self) -> None:
        """Ticks until cancelled."""
        stop_listening = self.client.listen(self.watched, self._wake.set)
        try:
            while True:
                self._wake.clear()
                due = await self._guarded_tick()
                await self._pause(due)
        finally:
            stop_listening()

    async def _guarded_tick(self) -> datetime | None:
        now = datetime.now(UTC)
        self._has_failed = False
        due = None
        try:
            due = await self.tick(now)
        except Exception:
            # A bug in a simulation must show, and must not silently end the story that it is part of.
            _log.exception("SimulatedControllerBroke", controller=self.name)
            self._has_failed = True
        return soonest([due, now + _AFTER_ERROR]) if self._has_failed else due

    async def _pause(self, due: datetime | None) -> None:
        await asyncio.sleep(_SHORTEST_PAUSE.total_seconds())
        try:
            async with asyncio.timeout(_seconds_until(due)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def act(self, actions: Iterable[Action]) -> int:
        """Does them in order. Returns how many were done.

        One that fails is logged and tried again in a later tick; it does not keep the others from being done.
        """
        done = 0
        for action in actions:
            try:
                done += await self.client.apply(action)
            except KubeError as error:
                _log.warning("SimulatedActionFailed", controller=self.name, error=str(error))
                self._has_failed = True
        return done


def _seconds_until(due: datetime | None) -> float | None:
    return None if due is None else max(0.0, (due - datetime.now(UTC)).total_seconds())


def soonest(moments: Iterable[datetime | None]) -> datetime | None:
    """The first of the moments; None where there is none."""
    return min((moment for moment in moments if moment is not None), default=None)
