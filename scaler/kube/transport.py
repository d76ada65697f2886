"""HTTP to the Kubernetes API: bytes and dicts in, bytes out, every failure a KubeError.

Laws:

* Every call has a deadline, for the whole of it: connecting, retrying and reading the last byte. A watch has a limit
  on silence instead.
* Only reads are repeated, a bounded number of times, with full jitter. A write is sent once: after a timeout nobody
  knows whether it was done, and only its caller can look and decide again.
* A KubeError says what was asked, what the API said, and what to do. It never holds bodies, parameters or credentials.
* Objects are not decoded here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from scaler.kube.access import Access, open_access
from scaler.kube.backoff import Backoff
from scaler.kube.calls import TRANSIENT, Call, Params, Request, refusal, unanswered
from scaler.kube.decoding import UNREADABLE, Page, decode
from scaler.kube.exchange import Answer, Exchange

CALL_SECONDS = 10.0
READ_ATTEMPTS = 3
PAGE_SIZE = 500
"""Objects per page: some 3 MB of Workloads, decoded in a few milliseconds."""

Json = Mapping[str, object]


class PatchType(StrEnum):
    """How a patch is to be understood."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class KubeTransport:
    """A connection pool to one API server. Use as an async context manager, or call `close`."""

    def __init__(
        self,
        access: Access,
        *,
        call_seconds: float = CALL_SECONDS,
        backoff: Backoff = Backoff(base=0.2, cap=2.0),  # noqa: B008 (immutable)
        observe: Callable[[Call], None] | None = None,
    ) -> None:
        self._access = access
        self._call_seconds = call_seconds
        self._backoff = backoff
        self._exchange = Exchange(access, observe=observe)
        self._refresher = asyncio.create_task(access.keep_fresh(), name="kube-credentials")

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        *,
        call_seconds: float = CALL_SECONDS,
        observe: Callable[[Call], None] | None = None,
    ) -> Self:
        """A transport by the kubeconfig, or by what the environment offers (see `open_access`). Asks nothing yet.

        Raises: ConfigurationError.
        """
        return cls(await open_access(kubeconfig, context), call_seconds=call_seconds, observe=observe)

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._access.server

    async def close(self) -> None:
        self._refresher.cancel()
        await asyncio.gather(self._refresher, return_exceptions=True)
        await self._access.api.close()  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------------- reads

    async def get(
        self, path: str, params: Params | None = None, *, within: float | None = None, attempts: int = READ_ATTEMPTS
    ) -> bytes:
        """The answer's body. Units: `within` in seconds, all attempts together. Raises: KubeError."""
        return await self._read(Request(method="GET", path=path, params=params or {}), within, attempts)

    async def list_pages(
        self, path: str, params: Params | None = None, *, limit: int = PAGE_SIZE
    ) -> AsyncIterator[Page]:
        """The pages of a list, each with its own deadline, as one consistent snapshot.

        No resourceVersion is asked for: with `resourceVersion=0` API servers ignore the limit and send all at once.

        Raises: KubeError; with status 410 where the snapshot has expired meanwhile and the list has to start again.
        """
        token = ""
        while True:
            asked = {**(params or {}), "limit": limit} | ({"continue": token} if token else {})
            request = Request(method="GET", path=path, params=asked)
            body = await self._read(request, None, READ_ATTEMPTS)
            try:
                page = decode(Page, body)
            except UNREADABLE as error:
                raise unanswered(request, server=self.server, reason="NotAList", what=f"not a list: {error}") from error
            yield page
            token = page.metadata.continue_
            if not token:
                return

    @asynccontextmanager
    async def watch(
        self, path: str, params: Params | None = None, *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An open watch: `async with transport.watch(…) as lines: async for line in lines: …`.

        The lines end where the server ends the watch in good order. Nothing but complete lines is ever yielded.

        Raises: KubeError, also out of the lines: after `silence_seconds` without a byte (a half-open connection),
        and where the connection breaks.
        """
        request = Request(method="GET", path=path, params={**(params or {}), "watch": True})
        async with self._exchange.stream(
            request, deadline=self._deadline(None), silence_seconds=silence_seconds
        ) as lines:
            yield lines

    # ------------------------------------------------------------------------------------------------------ writes

    async def create(self, path: str, body: Json, *, within: float | None = None) -> bytes:
        """The created object. Raises: KubeError; 409 where it exists."""
        return await self._once(Request(method="POST", path=path, body=body), within)

    async def replace(self, path: str, body: Json, *, within: float | None = None) -> bytes:
        """The object as replaced. Raises: KubeError; 409 where the body's resourceVersion is not the current one."""
        return await self._once(Request(method="PUT", path=path, body=body), within)

    async def patch(
        self,
        path: str,
        body: Json | Sequence[Json],
        *,
        content_type: PatchType = PatchType.MERGE,
        field_manager: str = "",
        force: bool = False,
        dry_run: bool = False,
        within: float | None = None,
    ) -> bytes:
        """The object as patched; a subresource is part of the path.

        A resourceVersion in the body's metadata makes a merge patch fail with 409 where the object has changed. With
        `dry_run` everybody who may refuse it is asked, and nothing is written.

        Raises: KubeError.
        """
        asked = {"fieldManager": field_manager, "force": "true" if force else "", "dryRun": "All" if dry_run else ""}
        params = {name: value for name, value in asked.items() if value}
        request = Request(method="PATCH", path=path, params=params, body=body, content_type=content_type)
        return await self._once(request, within)

    async def delete(
        self, path: str, *, uid: str = "", resource_version: str = "", within: float | None = None
    ) -> bytes:
        """The object as deleted, or a Status. Raises: KubeError; 409 where uid or resourceVersion do not match."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in wanted.items() if value}
        body = {"preconditions": preconditions} if preconditions else None
        return await self._once(Request(method="DELETE", path=path, body=body), within)

    # --------------------------------------------------------------------------------------------------- one request

    async def _read(self, request: Request, within: float | None, attempts: int) -> bytes:
        deadline = self._deadline(within)
        for attempt in count(1):
            answer = await self._exchange.answer(request, deadline=deadline)
            wait = max(answer.retry_after, self._backoff.wait(attempt))
            is_late = asyncio.get_running_loop().time() + wait >= deadline
            if answer.status not in TRANSIENT or attempt >= attempts or is_late:
                return self._body(request, answer)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _once(self, request: Request, within: float | None) -> bytes:
        return self._body(request, await self._exchange.answer(request, deadline=self._deadline(within)))

    def _deadline(self, within: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._call_seconds if within is None else within)

    def _body(self, request: Request, answer: Answer) -> bytes:
        if answer.failure:
            raise answer.failure
        if answer.status >= 300:
            raise refusal(request, server=self.server, status=answer.status, body=answer.body)
        return answer.body
