"""A Prometheus for tests that lives in virtual time: a real HTTP server in front of `scripted_metrics.Metrics`.

    with ScriptedPrometheus(metrics, clock=lambda: world.now) as prometheus:
        prometheus.url               # http://127.0.0.1:41234
        prometheus.fault = hangs     # what becomes of every answer from now on; None: nothing
        prometheus.go_down()         # nothing listens any more, until come_up()
        prometheus.queries           # every query that came, in order

It answers POST /api/v1/query for range selectors and for the wake queries that the metrics hold. The parameter `time`
decides what is selected, the clock what already exists and what the Date header says.
"""

import json
import math
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

from http_stub import HttpStub, Received, Reply, Wire
from scripted_metrics import Metrics, UnknownQueryError


class Query(NamedTuple):
    """One query as it came."""

    promql: str
    at_s: float


Fault = Callable[[bytes], Reply]
"""What is answered in place of this body."""


def hangs(_: bytes) -> Reply:
    """No answer ever."""

    def wait(wire: Wire) -> None:
        wire.closing.wait()

    return Reply(wait)


def fails(_: bytes) -> Reply:
    """500, as Prometheus says it."""
    return Reply(b'{"status":"error","errorType":"internal","error":"head block is broken"}', status=500)


def breaks_off(good: bytes) -> Reply:
    """The connection ends in the middle of the body."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(good)

    def half(wire: Wire) -> None:
        wire.send(head + good[: len(good) // 2])

    return Reply(half)


def is_cut(good: bytes) -> Reply:
    """Half of the body, as valid HTTP: a proxy that gives up."""
    return Reply(good[: len(good) // 2])


def warns(good: bytes) -> Reply:
    """Every second series, and a warning: Thanos without one of its stores."""
    answer = json.loads(good)
    answer["data"]["result"] = answer["data"]["result"][::2]
    return Reply(json.dumps({**answer, "warnings": ["store sidecar-1 did not answer"]}).encode())


def is_partial(good: bytes) -> Reply:
    """Every second series, marked as VictoriaMetrics does it without one of its stores."""
    answer = json.loads(good)
    answer["data"]["result"] = answer["data"]["result"][::2]
    return Reply(json.dumps({**answer, "isPartial": True}).encode())


def names_another(good: bytes) -> Reply:
    """Series of a metric that nobody asked for."""
    return Reply(good.replace(b'"__name__": "', b'"__name__": "OTHER_'))


def names_none(good: bytes) -> Reply:
    """Series without a name, as functions give them."""
    return Reply(good.replace(b'"__name__": ', b'"metric": '))


def is_empty(good: bytes) -> Reply:
    """Success, and nothing in it."""
    answer = json.loads(good)
    answer["data"]["result"] = []
    return Reply(json.dumps(answer).encode())


def is_a_login_page(_: bytes) -> Reply:
    """200 and HTML, as a proxy answers whose session has ended."""
    return Reply(b"<html><body>Please log in</body></html>", headers={"Content-Type": "text/html"})


class ScriptedPrometheus:
    """Serves on a port of its own, each connection in a thread, until it is closed."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], datetime]) -> None:
        self.metrics = metrics
        self.clock = clock
        self.fault: Fault | None = None
        self.ahead = timedelta(0)
        """By how much its own clock, as its Date header tells it, is ahead of the true time."""
        self.queries: list[Query] = []
        self._stub: HttpStub | None = None
        # Bound and never listening: while the server is down no other program can get its port.
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
        self.go_down()
        self._guard.close()

    def come_up(self) -> None:
        self._stub = HttpStub(self._reply, port=self._guard.getsockname()[1])
        self._stub.__enter__()

    def go_down(self) -> None:
        """Refuse new connections and break off those that are open."""
        if self._stub is not None:
            self._stub.__exit__()
        self._stub = None

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

    def _reply(self, request: Received) -> Reply:
        if request.path != "/api/v1/query":
            return Reply(b"404 page not found", status=404)
        form = dict(parse_qsl(request.body.decode()))
        query = Query(form["query"], float(form["time"]))
        self.queries.append(query)
        status, body = self.answer(*query)
        reply = self.fault(body) if self.fault and status == 200 else Reply(body, status=status)
        date = format_datetime(self.clock() + self.ahead, usegmt=True)
        return Reply(reply.body, reply.status, {"Content-Type": "application/json", "Date": date, **reply.headers})


class ExactNamesOnly(ScriptedPrometheus):
    """Refuses queries as Google Managed Prometheus does.

    Source: GoogleCloudPlatform/prometheus-engine, issue 1601.
    """

    def answer(self, promql: str, at_s: float) -> tuple[int, bytes]:
        if "__name__=~" not in promql:
            return super().answer(promql, at_s)
        error = (
            'invalid parameter "query": substitute queries failed: convert vector selector failed: '
            "=~ is an unsupported matchtype for the __name__ label: invalid argument"
        )
        return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": error}).encode()


def _success(result_type: str, result: list[Any]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": result_type, "result": result}}).encode()


def text(value: float) -> str:
    """A sample's value as Prometheus writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.0f}" if float(value).is_integer() else repr(value)
