"""When does an open stream end? Each by itself at a time of its own, and all of them at once on drain.

KEDA treats a stream that breaks as an error and doubles its wait before the next one, up to a minute and for good;
only a stream that ends with OK is reopened after two seconds. A connection that is cut breaks every stream on it.

Laws:

* A stream lives at most `longest`, wherever in the life of its connection it was opened.
* A connection that has reached its age takes no new streams and ends with the last one that it has: nothing cuts it. A
  limit to that time, however generous, cuts the streams of a process that was stopped for longer: on its return the
  limit and the ends of the streams are due at the same moment, and gRPC's timer comes first.

The lives differ by chance (half of `longest` to all of it), so that streams which were opened together, as after a
restart of KEDA's operator, are not reopened together for ever after.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import uniform
from typing import TypeVar

T = TypeVar("T")


class StreamLifetimes:
    """The ends of all streams of one server."""

    def __init__(self, longest: timedelta) -> None:
        self._longest_s = longest.total_seconds()
        self._waits: set[asyncio.Timeout] = set()
        self._all_over = False

    def end_of_new_stream(self) -> float:
        """The event loop's time at which a stream that opens now has to end."""
        life_s = self._longest_s * uniform(0.5, 1.0)  # noqa: S311 -- spreads load, guards nothing
        return asyncio.get_running_loop().time() + life_s

    def end_all(self) -> None:
        """Let every stream end now, and those that are still to open as soon as they wait for something."""
        self._all_over = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    async def until(self, end: float, values: AsyncIterator[T]) -> AsyncIterator[T]:
        """The values until the stream has to end or there are no more.

        Only waiting for a value is interrupted. What is done with a value, such as writing it, always completes: half
        a write would break the stream that is to end well.
        """
        while True:
            try:
                async with self._interrupted_at(end):
                    value = await anext(values)
            except (TimeoutError, StopAsyncIteration):
                return
            yield value

    async def wait(self, end: float) -> None:
        """Return when the stream has to end."""
        try:
            async with self._interrupted_at(end):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return

    @asynccontextmanager
    async def _interrupted_at(self, end: float) -> AsyncIterator[None]:
        """Raises: TimeoutError in its body at `end`, or as soon as all streams have to end."""
        at = asyncio.get_running_loop().time() if self._all_over else end
        async with asyncio.timeout_at(at) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)
