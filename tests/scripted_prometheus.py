"""A Prometheus for tests that lives in virtual time: a real HTTP server in front of `scripted_metrics.Metrics`.

    with ScriptedPrometheus(metrics, clock=lambda: world.now) as prometheus:
        prometheus.url               # http://127.0.0.1:41234
        prometheus.fault = hangs     # what happens to every request from now on; None: nothing
        prometheus.go_down()         # nobody listens any more, until come_up()
        prometheus.queries           # every query that came, in order

It answers POST /api/v1/query for range selectors and for the demand queries that the metrics hold. The parameter `time`
decides what is selected, the clock what already exists and what the Date header says.
"""

import json
import math
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

from scripted_metrics import Metrics, UnknownQueryError

POLL_S = 0.01


class Query(NamedTuple):
    """One query as it came."""

    promql: str
    at_s: float


class Exchange:
    """One request that waits for its answer; what a fault works on."""

    def __init__(self, handler: BaseHTTPRequestHandler, *, good: bytes, closing: threading.Event) -> None:
        self.good = good
        """The body of the right answer."""
        self.closing = closing
        """Set when the server stops; whoever hangs waits for it."""
        self._handler = handler

    def reply(
        self, body: bytes, *, status: int = 200, content_type: str = "application/json", length: int | None = None
    ) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", content_type)
        self._handler.send_header("Content-Length", str(len(body) if length is None else length))
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def hang_up(self) -> None:
        self._handler.wfile.flush()
        self._handler.close_connection = True


Fault = Callable[[Exchange], None]


def hangs(exchange: Exchange) -> None:
    """No answer ever."""
    exchange.closing.wait()
    exchange.hang_up()


def fails(exchange: Exchange) -> None:
    """500, as Prometheus says it."""
    exchange.reply(b'{"status":"error","errorType":"internal","error":"head block is broken"}', status=500)


def breaks_off(exchange: Exchange) -> None:
    """The connection ends in the middle of the body."""
    exchange.reply(exchange.good[: len(exchange.good) // 2], length=len(exchange.good))
    exchange.hang_up()


def is_cut(exchange: Exchange) -> None:
    """Half of the body, as valid HTTP: a proxy that gives up."""
    exchange.reply(exchange.good[: len(exchange.good) // 2])


def warns(exchange: Exchange) -> None:
    """Every second series, and a warning: Thanos without one of its stores."""
    answer = json.loads(exchange.good)
    answer["data"]["result"] = answer["data"]["result"][::2]
    exchange.reply(json.dumps({**answer, "warnings": ["store sidecar-1 did not answer"]}).encode())


def is_empty(exchange: Exchange) -> None:
    """Success, and nothing in it."""
    answer = json.loads(exchange.good)
    answer["data"]["result"] = []
    exchange.reply(json.dumps(answer).encode())


def is_a_login_page(exchange: Exchange) -> None:
    """200 and HTML, as a proxy answers whose session has ended."""
    exchange.reply(b"<html><body>Please log in</body></html>", content_type="text/html")


class ScriptedPrometheus:
    """Serves on a port of its own, each connection in a thread, until it is closed."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], datetime]) -> None:
        self.metrics = metrics
        self.clock = clock
        self.fault: Fault | None = None
        self.ahead = timedelta(0)
        """By how much its own clock, as its Date header tells it, is ahead of the true time."""
        self.queries: list[Query] = []
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        # Bound and never listening: while the server is down nobody else can get its port.
        self._guard = socket.socket()
        self._guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._guard.bind(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._guard.getsockname()[1]}"

    def __enter__(self) -> Self:
        self.come_up()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.go_down()
        self._guard.close()

    def come_up(self) -> None:
        self._server = _Server(self._guard.getsockname(), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True)
        self._thread.start()

    def go_down(self) -> None:
        """Refuse new connections and break off those that are open."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server.break_off()
        self._thread.join(5)
        self._server = None

    def answer(self, promql: str, at_s: float) -> tuple[int, bytes]:
        """(status, body) of the right answer."""
        if promql in self.metrics.demands:
            elements = [{"metric": labels, "value": [at_s, text(v)]} for labels, v in self.metrics.demands[promql]]
            return 200, _success("vector", elements)
        try:
            found = self.metrics.select(promql, at_s=at_s, now_s=self.clock().timestamp())
        except UnknownQueryError:
            return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}).encode()
        series = [{"metric": labels, "values": [[at, text(v)] for at, v in samples]} for labels, samples in found]
        return 200, _success("matrix", series)

    def date(self) -> datetime:
        """The time by this server's own clock."""
        return self.clock() + self.ahead

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        prometheus = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet an answer; unbuffered, headers and body wait for each other's ACK

            def do_POST(self) -> None:
                form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                query = Query(form["query"], float(form["time"]))
                prometheus.queries.append(query)
                status, body = prometheus.answer(*query)
                exchange = Exchange(self, good=body, closing=prometheus._closing)
                with suppress(OSError):  # the client gave up, as some tests make it
                    if self.path != "/api/v1/query":
                        exchange.reply(b"404 page not found", status=404, content_type="text/plain")
                    elif prometheus.fault and status == 200:
                        prometheus.fault(exchange)
                    else:
                        exchange.reply(body, status=status)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return format_datetime(prometheus.date(), usegmt=True)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Tests read `queries`, not a log."""

        return Handler


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
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _success(result_type: str, result: list[Any]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": result_type, "result": result}}).encode()


def text(value: float) -> str:
    """A sample's value as Prometheus writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.0f}" if value.is_integer() else repr(value)
