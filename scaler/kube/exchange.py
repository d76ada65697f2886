"""One HTTP request to the API server and what came of it: an answer, a stream of lines, or a KubeError with the reason.

The client library adds the credentials and owns the connections; the answers are aiohttp's own, so that bytes can be
read as they come. Its own timeouts are not used: they end a watch after five minutes and nothing else in time.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import aiohttp

from scaler.errors import KubeError
from scaler.kube.access import Access
from scaler.kube.calls import NO_ANSWER, Call, Request, refusal, unanswered

CONNECT_SECONDS = 5.0
LONGEST_RETRY_AFTER = 5.0
"""Seconds. What a server asks for beyond that is for the caller's next round, not for a call that somebody awaits."""


class Answer(NamedTuple):
    """What came of a request that is answered in whole."""

    status: int
    body: bytes = b""
    retry_after: float = 0.0
    """Seconds that the server asks to wait, capped."""
    failure: KubeError | None = None
    """Why there is no answer, where the status is 0."""


class Exchange:
    """Sends requests, each once."""

    def __init__(self, access: Access, *, observe: Callable[[Call], None] | None) -> None:
        self._access = access
        self._observe = observe

    async def answer(self, request: Request, *, deadline: float) -> Answer:
        """The whole answer to one request, or why there is none. Units: `deadline` in the event loop's time."""
        started = time.monotonic()
        try:
            with self._failures(request):
                async with asyncio.timeout_at(deadline):
                    response = await self._send(request)
                    async with response:
                        answer = Answer(response.status, await response.read(), _retry_after(response))
        except KubeError as failure:
            answer = Answer(NO_ANSWER, failure=failure)
        self._report(request, answer.status, started)
        return answer

    @asynccontextmanager
    async def stream(
        self, request: Request, *, deadline: float, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that does not end soon; it has to begin by the deadline. Raises: KubeError."""
        response = await self._open(request, deadline, silence_seconds)
        lines = self._lines(request, response)
        try:
            yield lines
        finally:
            await lines.aclose()
            response.close()

    async def _open(self, request: Request, deadline: float, silence_seconds: float) -> aiohttp.ClientResponse:
        started = time.monotonic()
        try:
            with self._failures(request):
                async with asyncio.timeout_at(deadline):
                    response = await self._send(request, silence_seconds)
                    refused = b"" if response.status < 300 else await response.read()
        except KubeError:
            self._report(request, NO_ANSWER, started)
            raise
        self._report(request, response.status, started)
        if response.status >= 300:
            response.close()
            raise refusal(request, server=self._access.server, status=response.status, body=refused)
        return response

    async def _send(self, request: Request, silence_seconds: float | None = None) -> aiohttp.ClientResponse:
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

    async def _lines(self, request: Request, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
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
            raise unanswered(
                request, server=self._access.server, reason="Truncated", what="the stream ended within a line"
            )

    @contextmanager
    def _failures(self, request: Request) -> Iterator[None]:
        """Turns whatever goes wrong on the way into a KubeError."""
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            reason, what = _failure(error)
            raise unanswered(request, server=self._access.server, reason=reason, what=what) from error

    def _report(self, request: Request, status: int, started: float) -> None:
        if self._observe:
            self._observe(request.answered(status, time.monotonic() - started))


def _failure(error: Exception) -> tuple[str, str]:
    """The reason and the words for an exception from the HTTP client."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "CertificateRefused", f"TLS failed: {error}"
        case TimeoutError():
            return "Timeout", f"no answer in time{f' ({error})' if str(error) else ''}"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "Truncated", f"the answer broke off: {error}"
        case aiohttp.ClientError() | OSError():
            return "Unreachable", f"cannot connect: {error}"
        case _:
            return "NotSent", f"cannot be sent: {type(error).__name__}"


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """Seconds that the server asks to wait, capped; 0 where it does not ask or writes a date."""
    seconds = response.headers.get("Retry-After", "")
    return min(float(seconds), LONGEST_RETRY_AFTER) if seconds.isdigit() else 0.0
