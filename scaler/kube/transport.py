"""HTTP to the Kubernetes API: bytes and dicts in, bytes out, every failure a KubeError.

Laws:

* Every call has a deadline, for the whole of it: connecting, retrying and reading the last byte. A watch has a limit
  on silence instead.
* Only reads are repeated, a bounded number of times, with full jitter. A write is sent once: after a timeout it
  may have been done or not, and only its caller can read and decide again.
* A KubeError says what was asked, what the API said, and what to do. It never holds bodies, parameters or credentials.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.access import Access, open_access
from scaler.kube.api_requests import NO_ANSWER, TIMEOUT, TRANSIENT, ApiRequest, Params, no_answer, refusal
from scaler.kube.objects.core import ListPage, decode
from scaler.kube.watch_backoff import Backoff

CALL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
READ_ATTEMPTS = 3
_BACKOFF = Backoff(base=0.2, cap=2.0)
PAGE_SIZE = 500
"""Objects per page, at most."""
FIRST_PAGE_SIZE = 100
"""Objects of the first page: how large they are is not known yet."""
PAGE_BYTES = 2_000_000
"""What a page should not exceed by much: while it is decoded, a few milliseconds, nothing else runs."""

Json = Mapping[str, object]


class KubeTransport:
    """A connection pool to one API server. Use as an async context manager, or call `close`.

    The client library adds the credentials and owns the connections; the answers are aiohttp's own, so that bytes can
    be read as they come. Its own timeouts are not used: they end a watch after five minutes and nothing else in time.
    """

    def __init__(
        self,
        access: Access,
        *,
        call_seconds: float = CALL_SECONDS,
        observe: Callable[[ApiRequest], None] | None = None,
    ) -> None:
        self._access = access
        self._call_seconds = call_seconds
        self._observe = observe
        self._refresher = asyncio.create_task(access.keep_fresh(), name="kube-credentials")

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        *,
        call_seconds: float = CALL_SECONDS,
        observe: Callable[[ApiRequest], None] | None = None,
    ) -> Self:
        """A transport by `open_access`. Asks nothing yet. Raises: ConfigurationError."""
        return cls(await open_access(kubeconfig, context), call_seconds=call_seconds, observe=observe)

    @property
    def server(self) -> str:
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
        return await self._call(ApiRequest(method="GET", path=path, params=params or {}), within, attempts)

    async def list_pages(
        self, path: str, params: Params | None = None, *, limit: int = PAGE_SIZE
    ) -> AsyncIterator[ListPage]:
        """The pages of a list, each with its own deadline, as one consistent snapshot.

        At most `limit` objects a page, and as many of the size of those before as make PAGE_BYTES. No resourceVersion
        is asked for: with `resourceVersion=0` API servers ignore the limit and send all at once.

        Raises: KubeError; with status 410 where the snapshot has expired meanwhile and the list has to start again.
        """
        token, size = "", min(limit, FIRST_PAGE_SIZE)
        while True:
            asked = {**(params or {}), "limit": size} | ({"continue": token} if token else {})
            request = ApiRequest(method="GET", path=path, params=asked)
            body = await self._call(request, None, READ_ATTEMPTS)
            try:
                page = decode(ListPage, body)
            except UNREADABLE as error:
                raise no_answer(request, server=self.server, reason="NotAList", what=f"not a list: {error}") from error
            token, size = page.metadata.continue_, min(limit, _as_many(len(page.items or ()), len(body)))
            yield page
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
        request = ApiRequest(method="GET", path=path, params={**(params or {}), "watch": True})
        response, _ = await self._answer(request, self._deadline(None), silence_seconds)
        lines = self._lines(request, response)
        try:
            yield lines
        finally:
            await lines.aclose()
            response.close()

    # ------------------------------------------------------------------------------------------------------ writes

    async def create(self, path: str, body: Json, *, within: float | None = None) -> bytes:
        """The created object. Raises: KubeError; 409 where it exists."""
        return await self._call(ApiRequest(method="POST", path=path, body=body), within)

    async def replace(self, path: str, body: Json, *, within: float | None = None) -> bytes:
        """The object as replaced. Raises: KubeError; 409 where the body's resourceVersion is not the current one."""
        return await self._call(ApiRequest(method="PUT", path=path, body=body), within)

    async def patch(self, path: str, body: Json, *, apply_as: str = "", dry_run: bool = False) -> bytes:
        """The object as patched by a merge patch, or applied by this field manager; a subresource is part of the path.

        A resourceVersion in the body's metadata makes a merge patch fail with 409 where the object has changed. With
        `dry_run` admission runs, and nothing is written.

        Raises: KubeError.
        """
        params = {"fieldManager": apply_as, "force": "true"} if apply_as else {}
        params |= {"dryRun": "All"} if dry_run else {}
        kind = "apply-patch+yaml" if apply_as else "merge-patch+json"
        request = ApiRequest(method="PATCH", path=path, params=params, body=body, content_type=f"application/{kind}")
        return await self._call(request, None)

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        """The object as deleted, or a Status. Raises: KubeError; 409 where the uid is not its own."""
        body = {"preconditions": {"uid": uid}} if uid else None
        return await self._call(ApiRequest(method="DELETE", path=path, body=body), None)

    # --------------------------------------------------------------------------------------------------- one request

    async def _call(self, request: ApiRequest, within: float | None, attempts: int = 1) -> bytes:
        deadline = self._deadline(within)
        for attempt in count(1):
            try:
                return (await self._answer(request, deadline))[1]
            except KubeError as error:
                wait = max(error.retry_after, _BACKOFF.wait(attempt))
                is_late = asyncio.get_running_loop().time() + wait >= deadline
                if error.status not in TRANSIENT or attempt >= attempts or is_late:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    def _deadline(self, within: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._call_seconds if within is None else within)

    async def _answer(
        self, request: ApiRequest, deadline: float, silence_seconds: float | None = None
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The answer to one request, and its body unless it is an open watch, for which the limit on silence is given.

        Units: `deadline` in the event loop's time. Raises: KubeError.
        """
        started, response, body = time.monotonic(), None, b""
        try:
            with self._failures(request):
                async with asyncio.timeout_at(deadline):
                    response = await self._send(request, silence_seconds)
                    if silence_seconds is None or response.status >= 300:
                        body = await response.read()
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, KubeError):
                self._report(request, NO_ANSWER, started)
            raise
        self._report(request, response.status, started)
        if response.status >= 300:
            response.close()
            asked = response.headers.get("Retry-After", "")
            wait = float(asked) if asked.isdecimal() else 0.0  # it may be a date
            raise refusal(request, server=self.server, status=response.status, body=body, retry_after=wait)
        return response, body

    async def _send(self, request: ApiRequest, silence_seconds: float | None) -> aiohttp.ClientResponse:
        api = self._access.api
        headers = {"Accept": "application/json", "Content-Type": request.content_type or "application/json"}
        serialized = await api.param_serialize(
            method=request.method,
            resource_path=request.path,
            query_params=list(request.params.items()),
            header_params=headers,
            body=request.body,
            auth_settings=["BearerToken"],
        )
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        answer = await api.call_api(*serialized, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _lines(self, request: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        rest = bytearray()
        with self._failures(request):
            async for chunk in response.content.iter_any():
                rest += chunk
                if b"\n" in chunk:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        if line:
                            yield bytes(line)
        if rest:
            raise no_answer(request, server=self.server, reason="Truncated", what="the stream ended within a line")

    @contextmanager
    def _failures(self, request: ApiRequest) -> Iterator[None]:
        """Raises: KubeError for whatever goes wrong on the way."""
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            reason, what = _failure(error)
            raise no_answer(request, server=self.server, reason=reason, what=what) from error

    def _report(self, request: ApiRequest, status: int, started: float) -> None:
        if self._observe:
            self._observe(replace(request, status=status, seconds=time.monotonic() - started))


def _as_many(objects: int, size: int) -> int:
    """Objects in PAGE_BYTES, where so many had that size in bytes."""
    return max(1, objects * PAGE_BYTES // max(1, size))


def _failure(error: Exception) -> tuple[str, str]:
    """The reason and the words for an exception from the HTTP client."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "CertificateRefused", f"TLS failed: {error}"
        case TimeoutError():
            return TIMEOUT, f"no answer in time{f' ({error})' if str(error) else ''}"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "Truncated", f"the answer broke off: {error}"
        case aiohttp.ClientError() | OSError():
            return "Unreachable", f"cannot connect: {error}"
        case _:
            return "NotSent", f"cannot be sent: {type(error).__name__}"
