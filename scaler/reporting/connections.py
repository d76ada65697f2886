"""How many connections does an HTTP server hold, for how long, and what does it answer to what is no request?

| from …                       | until …                              | at most      |
|------------------------------|--------------------------------------|--------------|
| a connection                 | the head of its first request is read | `first_head` |
| the head of a request is read | the client has the answer            | `answer`     |
| an answer                    | the head of the next request is read | `next_head`  |

Laws:

* What takes longer is cut off, whatever it waits for: a TLS handshake, a head, a body, or a client that reads nothing.
* Where there are as many connections as there may be, the oldest that waits for a request makes room for a new one:
  the kubelet's probes and Prometheus are answered whoever else connects. Where none waits, the new one is refused.
* What is refused is counted, and not logged.
* Nothing of a request that cannot be read is repeated, neither in the answer nor in the log: it may have a token.
"""

import asyncio
import os
import socket
import ssl
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError

HEADERS = {"Server": "idle-gpu-scaler", "X-Content-Type-Options": "nosniff"}
"""Headers of every answer."""
_OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError)
"""Errors in what a client sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    connections: int = 256
    """The most connections: with 512 of gRPC three quarters of the 1,024 descriptors that a process often has."""
    first_head: timedelta = timedelta(seconds=10)
    answer: timedelta = timedelta(minutes=1)
    next_head: timedelta = timedelta(minutes=2)
    """The time for the next request, longer than clients keep a connection for it: 90 s in Go, 1 min in nginx."""


class Connections:
    """The connections of one server. Called for each new one."""

    def __init__(
        self, server: web.Server, tls: ssl.SSLContext | None, limits: ConnectionLimits, refuse: Callable[[str], object]
    ) -> None:
        """`refuse` is called with the reason, each time."""
        self.server, self.tls, self.limits, self.refuse = server, tls, limits, refuse
        self._open: dict[_Connection, None] = {}
        """The open connections, the oldest first."""

    def __call__(self) -> "_Connection":
        return _Connection(self)

    def admit(self, new: "_Connection") -> bool:
        """Whether there is room for it, or can be made."""
        if len(self._open) >= self.limits.connections:
            self.refuse("TooManyConnections")
            waiting = next((each for each in self._open if each.is_waiting), None)
            if waiting is None:
                return False
            waiting.cut_off()
        self._open[new] = None
        return True

    def remove(self, ended: "_Connection") -> None:
        self._open.pop(ended, None)

    def __contains__(self, connection: "_Connection") -> bool:
        return connection in self._open

    def close(self) -> None:
        for each in tuple(self._open):
            each.cut_off()


class _Connection(web.RequestHandler):
    def __init__(self, others: Connections) -> None:
        self._others, self._limits = others, others.limits
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self.is_waiting = True
        kept_s = self._limits.next_head.total_seconds()
        loop = asyncio.get_running_loop()
        super().__init__(others.server, loop=loop, keepalive_timeout=kept_s, access_log=cast(Any, None))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The event loop calls it once without TLS, and after the handshake once more with it."""
        self._transport, tls = cast(asyncio.Transport, transport), self._others.tls
        if transport.get_extra_info("ssl_object") is not None:
            super().connection_made(transport)
        elif not self._others.admit(self):
            self.cut_off()
        else:
            self._lasts_at_most(self._limits.first_head)
            super().connection_made(transport) if tls is None else self._begin_tls(tls)

    def _begin_tls(self, tls: ssl.SSLContext) -> None:
        """Another transport takes the socket: uvloop's reads the client's first bytes before `start_tls` runs."""
        same = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        self._transport.set_protocol(asyncio.Protocol())
        self._transport.abort()
        self._handshake = self._loop.create_task(self._secure(same, tls))

    async def _secure(self, same: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self, same, ssl=tls)
        except OSError:
            self._end()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end()
        super().connection_lost(exc)

    def answers(self) -> None:
        """A request is being answered, from when its head is read."""
        self.is_waiting = False
        self._lasts_at_most(self._limits.answer)

    async def finish_response(self, request: Any, resp: Any, start_time: Any) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            resp.text = f"{resp.status}: {resp.reason}"
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.is_waiting = True
            self._lasts_at_most(self._limits.next_head, late="")

    def handle_error(self, request: Any, status: int = 500, exc: Any = None, message: Any = None) -> web.StreamResponse:
        if not isinstance(exc, _OF_CLIENTS):
            return super().handle_error(request, status, exc, message)
        self._others.refuse("NoRequest")
        refusal = web.Response(status=400, text="400: Bad Request", headers=HEADERS)
        refusal.force_close()
        return refusal

    def log_exception(self, *args: Any, **more: Any) -> None:
        error, is_open = more.get("exc_info"), self.transport is not None and not self.transport.is_closing()
        if not isinstance(error, _OF_CLIENTS if is_open else (*_OF_CLIENTS, ConnectionError)):
            super().log_exception(*args, **more)

    def cut_off(self) -> None:
        self._end()
        self._transport.abort()
        if self._handshake is not None:
            self._handshake.cancel()

    def _end(self) -> None:
        self._others.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _lasts_at_most(self, time: timedelta, *, late: str = "TooSlow") -> None:
        """The time begins now. `late`: why it is refused then; empty where it has its answer."""
        if self._timer is not None:
            self._timer.cancel()
        if self in self._others:
            self._timer = self._loop.call_later(time.total_seconds(), self._end_late, late)

    def _end_late(self, reason: str) -> None:
        if reason:
            self._others.refuse(reason)
        self.cut_off()


@web.middleware
async def answered_in_time(request: web.Request, handler: Any) -> web.StreamResponse:
    """It has to be the first of a server's middlewares."""
    cast(_Connection, request.protocol).answers()
    return cast(web.StreamResponse, await handler(request))


async def with_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """A server calls it before each answer is sent."""
    response.headers.update(HEADERS)


def compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """An answer by gzip, the quick way: of pages like ours little is left in any case."""
    gzip = zlib.compressobj(level=1, wbits=16 + zlib.MAX_WBITS)
    for part in parts:
        yield gzip.compress(part)
    yield gzip.flush()
