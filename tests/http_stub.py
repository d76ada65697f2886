"""A real HTTP server for tests with scripted responses, correct or not.

    with HttpStub(lambda request: Reply(b"up 1\n")) as stub:
        stub.url         # http://127.0.0.1:41234
        stub.received    # every request that came, in order

A `Reply` whose body is a function writes to the wire itself: it can drip, hang until the stub closes, or break off.
"""

import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Wire:
    """The connection under a reply."""

    send: Callable[[bytes], Any]
    closing: threading.Event
    """Set when the stub stops; a reply that hangs waits for it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered. Where `body` is a function, it writes the whole answer, status line included."""

    body: bytes | Callable[[Wire], None]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: list[socket.socket] = []
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def break_off(self) -> None:
        """End the connections that are open."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests are about; anything else is a bug of the stub."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class HttpStub:
    """Serves on a port of its own, each connection in a thread, until it is closed."""

    def __init__(
        self, answer: Callable[[Received], Reply], *, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.answer = answer
        self.received: list[Received] = []
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", port), self._handler())
        self._scheme = "https" if tls else "http"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.address}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.break_off()
        self._thread.join(5)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet an answer; unbuffered, headers and body wait for each other's ACK

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = Received(self.command, self.path, dict(self.headers), self.rfile.read(length))
                stub.received.append(request)
                try:
                    self._reply(stub.answer(request))
                except OSError:
                    self.close_connection = True  # the client gave up, as some tests make it

            do_POST = do_GET  # noqa: N815 - the name that http.server looks for

            def _reply(self, reply: Reply) -> None:
                if callable(reply.body):
                    reply.body(Wire(send=self._send_now, closing=stub._closing))
                    self._hang_up()
                    return
                self.send_response_only(reply.status)
                own = {"Date": self.date_time_string(), "Content-Length": str(len(reply.body))}
                for name, value in {**own, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def _send_now(self, data: bytes) -> None:
                self.wfile.write(data)
                self.wfile.flush()

            def _hang_up(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Tests read `received`, not a log."""

        return Handler
