"""May this process write? What a leader asks of the Kubernetes API, with that question before every write.

A leader is stopped when its Lease is lost, but a process that was suspended for a while, or whose event loop hung, goes
on in the middle of what it was doing. So leadership is checked before every write, and not only when the work began.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from scaler.documents import UNREADABLE
from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.objects.core import Struct, decode
from scaler.kube.objects.resources import Resource
from scaler.kube.transport import KubeTransport


class PatchApi(Protocol):
    """As much of the Kubernetes API as reconciling needs. A KubeTransport is one."""

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

    @property
    def resource(self) -> Resource: ...

    def file(self, answer: bytes) -> None: ...


class LeaderApi:
    """A `WriteApi` that writes only while this replica leads. What it has written or read is in `copies` at once."""

    def __init__(self, transport: KubeTransport, *, is_leader: Callable[[], bool], copies: Iterable[Copy] = ()) -> None:
        self._transport = transport
        self._is_leader = is_leader
        self._copies = {(each.resource.api_version, each.resource.kind): each for each in copies}

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
            return answer  # whoever decodes it says so
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
