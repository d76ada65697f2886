"""Many writes at once, and what becomes of those that the API refuses.

Laws:

* A write that is refused is not repeated here: the next tick looks again and decides anew. What is outdated is no error
  and logged as debug; anything else is a warning.
* Who has lost the Lease ends what it was doing: that error is raised.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import structlog

from scaler.errors import KubeError

T = TypeVar("T")
R = TypeVar("R")


def log_refusal(log: structlog.stdlib.BoundLogger, event: str, error: KubeError, /, **about: object) -> None:
    """One line about a write that the API has refused."""
    (log.debug if error.is_outdated else log.warning)(event, **about, error=str(error))


async def is_written(
    write: Awaitable[object], log: structlog.stdlib.BoundLogger, otherwise: str, /, **about: object
) -> bool:
    """Whether the API has taken the write; `otherwise` is logged where it has not.

    Raises: KubeError with the reason NotLeading.
    """
    try:
        await write
    except KubeError as error:
        if error.is_not_leading:
            raise
        log_refusal(log, otherwise, error, **about)
        return False
    return True


async def write_all(items: Iterable[T], write: Callable[[T], Awaitable[R]], *, at_once: int) -> list[R]:
    """The results, in the order of the items. Raises: the first failure, once all have ended."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with slots:
            return await write(item)

    ended = await asyncio.gather(*map(one, items), return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]
