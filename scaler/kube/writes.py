"""How the leader writes: only while it leads, many at once, and what becomes of what the API refuses.

A leader is stopped when its Lease is lost, but a process that was suspended for a while, or whose event loop hung, goes
on in the middle of what it was doing.

Laws:

* Leadership is checked before every write, and not only when the work began. Who has lost the Lease ends what it was
  doing: that error is raised.
* A write without an answer may have been done. Until the object was read again, what it would have made and what was
  there before may both hold (`Doubts`).
* A write that is refused is not repeated here: the next tick looks again and decides anew. What is outdated is no error
  and logged as debug; anything else is a warning.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import structlog

from scaler.documents import UNREADABLE
from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.objects.core import Struct, decode
from scaler.kube.objects.resources import Resource

T = TypeVar("T")
R = TypeVar("R")


class PatchApi(Protocol):
    """The part of the Kubernetes API that reconciling needs. A KubeTransport is one."""

    async def get(self, path: str) -> bytes:
        """The object. Raises: KubeError."""

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        """The object as changed by a JSON merge patch, or as it would be. Raises: KubeError."""


class WriteApi(PatchApi, Protocol):
    """A `PatchApi` for those who also make objects and remove them. A KubeTransport is one, too."""

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The created object. Raises: KubeError; 409 where there is one of that name."""

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        """The object as deleted, or a Status. Raises: KubeError; 409 where the object has another uid."""


class _TypeMeta(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""


class Copy(Protocol):
    """A copy of objects of one kind. A Reflector is one."""

    def file(self, answer: bytes) -> None:
        """Takes the object as the API has answered it, unless something newer is known."""


_NO_COPIES: Mapping[Resource, Copy] = MappingProxyType({})


class LeaderApi:
    """A `WriteApi` that writes only while this replica leads. What it has written or read is in `copies` at once."""

    def __init__(
        self, transport: WriteApi, *, is_leader: Callable[[], bool], copies: Mapping[Resource, Copy] = _NO_COPIES
    ) -> None:
        self._transport = transport
        self._is_leader = is_leader
        self._copies = {(resource.api_version, resource.kind): copy for resource, copy in copies.items()}

    async def get(self, path: str) -> bytes:
        return self._filed(await self._transport.get(path))

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        """Raises: KubeError, with the reason NotLeading where the Lease was lost meanwhile; nothing is sent then."""
        self._check(f"patch {path}")
        answer = await self._transport.patch(path, body, dry_run=dry_run)
        return answer if dry_run else self._filed(answer)

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        self._check(f"create {path}")
        return self._filed(await self._transport.create(path, body))

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        self._check(f"delete {path}")
        return await self._transport.delete(path, uid=uid)

    def _filed(self, answer: bytes) -> bytes:
        try:
            named = decode(_TypeMeta, answer)
        except UNREADABLE:
            return answer  # whoever decodes it raises
        if (copy := self._copies.get((named.api_version, named.kind))) is not None:
            copy.file(answer)
        return answer

    def _check(self, what: str) -> None:
        """Raises: KubeError unless this replica leads."""
        if not self._is_leader():
            raise KubeError(
                f"{what}: not sent, because this replica no longer leads; its successor does what is left to do",
                reason=NOT_LEADING,
            )


class Doubts(Generic[T]):
    """What may have been written: by writes that are under way, or were without an answer."""

    def __init__(self) -> None:
        self.open: list[T] = []

    @contextmanager
    def held(self, written: T) -> Iterator[None]:
        """A write that is open until it is answered or refused; longer where neither comes."""
        self.open.append(written)
        try:
            yield
        except KubeError as error:
            if error.is_refused:
                self.read(written)
            raise
        self.read(written)

    def read(self, written: T) -> None:
        """It is known what is there."""
        self.open = [each for each in self.open if each != written]


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
