"""The HTTP door, with and without TLS, in both event loops: what is no request, what never ends, and too many of them.

Nothing of what was sent is repeated, whatever waits is cut off, and the kubelet's probes are answered all the time.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from aiohttp import web
from reporting.test_http_tls import views
from secret_volume import SecretVolume

from scaler.reporting.connections import ConnectionLimits
from scaler.reporting.http import HttpServer, HttpTls
from scaler.reporting.metrics import Metrics
from scaler.tls.rotation import Rotation

SECRET = "S3CR3T"
AT_ONCE, NEVER = timedelta(milliseconds=50), timedelta(hours=1)
PATIENT = {"first_head": NEVER, "answer": NEVER, "next_head": NEVER}
PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@dataclass
class Door:
    metrics: Metrics
    port: int
    tls: ssl.SSLContext | None

    async def open(self, *, shake_hands: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = self.tls if shake_hands else None
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)

    def refusals(self) -> dict[str, float]:
        """How many were counted, by reason."""
        families = self.metrics.http_refusals_total.collect()
        samples = (each for family in families for each in family.samples if each.name.endswith("_total"))
        return {each.labels["reason"]: each.value for each in samples}

    async def answer(self, request: bytes) -> str:
        """All that is answered to it until the connection is closed."""
        reader, writer = await self.open()
        writer.write(request)
        try:
            return (await until_closed(reader)).decode()
        finally:
            writer.close()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    found = b""
    async with asyncio.timeout(30):
        try:
            while some := await reader.read(65536):
                found += some
        except ConnectionResetError:
            pass
    return found


Scenario = Callable[[Door], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return request.param


@pytest.fixture(params=["http", "https"])
def with_door(request: pytest.FixtureRequest, loop_factory: Any, tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario against a server of its own."""

    async def serve(scenario: Scenario, limits: dict[str, Any], shown: dict[str, Any], routes: Any) -> None:
        context, tls = None, None
        if request.param == "https":
            authority, volume = trustme.CA(), SecretVolume(tmp_path)
            volume.put_certificate(authority.issue_cert("127.0.0.1"))
            tls = HttpTls(Rotation(volume.files(), use="http"))
            context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        given = ConnectionLimits(**PATIENT | limits)
        metrics = Metrics()
        server = HttpServer("127.0.0.1:0", metrics, views(**shown), tls=tls, routes=routes, limits=given)
        async with AsyncExitStack() as stack:
            port = await server.start()
            stack.push_async_callback(server.stop)
            await scenario(Door(metrics, port, context))

    def run(scenario: Scenario, *, shown: Any = None, routes: Any = (), **limits: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve(scenario, limits, shown or {}, routes))

    return run


# ------------------------------------------------------------------------------------------------ what is no request

HEAD = b"POST /wake/demo/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
TOKEN = b"Authorization: Bearer S3CR3T-token"
NO_REQUESTS = {
    "bytes of another protocol": (b"\x16\x03\x01S3CR3T\r\n\r\n", 400),
    "a control character after a token": (HEAD + TOKEN + b"\x01\r\n\r\n", 400),
    "a blank before the colon": (HEAD + b"Authorization : Bearer S3CR3T\r\n\r\n", 400),
    "a token of 9,000 characters": (HEAD + TOKEN + b"a" * 9000 + b"\r\n\r\n", 400),
    "a path of 9,000 characters": (b"GET /S3CR3T" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "200 headers": (HEAD + b"".join(b"X-%d: S3CR3T\r\n" % n for n in range(200)) + b"\r\n", 400),
    "another version": (b"GET /S3CR3T HTTP/9.9\r\nHost: x\r\n\r\n", 400),
    "a length that is none": (HEAD + b"Content-Length: S3CR3T\r\n\r\n", 400),
    "two lengths": (HEAD + TOKEN + b"\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "an expectation": (HEAD + b"Expect: S3CR3T\r\n\r\n", 417),
    "chunks that are none": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nS3CR3T\r\n", 400),
    "a path that there is not": (b"GET /S3CR3T HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    "a method that there is not": (b"PUT /metrics?S3CR3T HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    "another protocol asked for, and garbage": (HEAD + b"Upgrade: S3CR3T\r\nConnection: Upgrade\r\n\r\n\x16\x03", 404),
}


def test_what_is_no_request_is_refused_without_a_word_of_it(with_door, caplog):
    async def ask(door: Door) -> None:
        refusals = 0.0
        for kind, (request, status) in NO_REQUESTS.items():
            found = await door.answer(request)
            assert found.startswith((f"HTTP/1.1 {status} ", f"HTTP/1.0 {status} ")), (kind, found)
            assert SECRET not in found, kind
            assert "Server: idle-gpu-scaler\r\n" in found, kind
            assert "X-Content-Type-Options: nosniff\r\n" in found, kind
            assert "aiohttp" not in found, kind
            refusals += status == 400
            assert door.refusals() == {"NoRequest": refusals}, kind

    with_door(ask)
    assert [each.getMessage() for each in caplog.records] == []


def test_every_answer_has_the_same_neutral_headers(with_door):
    async def ask(door: Door) -> None:
        for path in ("/metrics", "/healthz", "/api/v1/decisions", "/api/v1/decisions/demo/x", "/broken"):
            found = await door.answer(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            head, _, _ = found.partition("\r\n\r\n")
            assert head.count("Server: idle-gpu-scaler") == head.count("X-Content-Type-Options: nosniff") == 1, path
            assert "aiohttp" not in found, path

    with_door(ask, routes=[web.get("/broken", _broken)])


async def _broken(_request: web.Request) -> web.Response:
    raise RuntimeError("a fault of ours")


def test_a_fault_of_ours_is_still_logged(with_door, caplog):
    async def ask(door: Door) -> None:
        found = await door.answer(b"GET /broken HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert found.startswith("HTTP/1.1 500 ")

    with_door(ask, routes=[web.get("/broken", _broken)])
    assert any(each.exc_info and "a fault of ours" in str(each.exc_info[1]) for each in caplog.records)


# ---------------------------------------------------------------------------------------------------- what never ends

WAITING = {
    "sends nothing": ("first_head", b""),
    "sends half a head": ("first_head", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"),
    "sends half a second head": ("next_head", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"),
    "sends half a body": ("next_head", b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf"),
    "asks no more": ("next_head", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "waits for an answer that never comes": ("answer", b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n"),
}


@pytest.mark.parametrize("kind", WAITING)
def test_whoever_waits_is_cut_off(kind, with_door):
    limit, sent = WAITING[kind]

    async def wait(door: Door) -> None:
        reader, writer = await door.open()
        writer.write(sent)
        await until_closed(reader)
        writer.close()
        assert door.refusals() == ({} if limit == "next_head" else {"TooSlow": 1.0})

    with_door(wait, routes=[web.get("/never", _never)], **{limit: AT_ONCE})


async def _never(_request: web.Request) -> web.Response:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def test_whoever_ends_no_handshake_is_cut_off(with_door):
    async def wait(door: Door) -> None:
        reader, writer = await door.open(shake_hands=False)
        assert await until_closed(reader) == b""
        writer.close()

    with_door(wait, first_head=AT_ONCE)


def test_whoever_reads_nothing_is_cut_off(with_door, caplog):
    """The answer is larger than what sockets take; without a reader it is never sent."""
    overview = [{"name": "x" * 1000}] * 30_000

    async def wait(door: Door) -> None:
        reader, writer = await door.open()
        writer.write(b"GET /api/v1/decisions HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.transport.pause_reading()
        while await open_connections(door) > 1:  # the one that asks
            pass
        writer.transport.abort()
        del reader

    with_door(wait, shown={"overview": lambda: overview}, routes=[web.get("/open", _open)], answer=AT_ONCE)
    assert [each.getMessage() for each in caplog.records] == []


def test_whoever_leaves_amid_the_answer_is_no_fault_of_ours(with_door, caplog):
    ended = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
        finally:
            ended.set()

    async def leave(door: Door) -> None:
        reader, writer = await door.open()
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1)
        writer.transport.abort()
        await ended.wait()
        assert (await door.answer(PROBE)).startswith("HTTP/1.1 200 ")

    with_door(leave, routes=[web.get("/stream", stream)])
    assert [each.getMessage() for each in caplog.records] == []


async def open_connections(door: Door) -> int:
    found = await door.answer(b"GET /open HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return int(found.rpartition("\r\n\r\n")[2])


async def _open(request: web.Request) -> web.Response:
    return web.Response(text=str(len(request.protocol._others._open)))  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- too many of them


@pytest.mark.parametrize("shake_hands", [True, False], ids=["and ask nothing", "and shake no hands"])
def test_probes_are_answered_however_many_connect(shake_hands, with_door):
    async def crowd(door: Door) -> None:
        waiting = []
        for _ in range(20):
            waiting.append(await door.open(shake_hands=shake_hands))
            assert (await door.answer(PROBE)).endswith("ok\n")
        for reader, _ in waiting[:16]:
            await until_closed(reader)
        for _, writer in waiting:
            writer.transport.abort()

    with_door(crowd, connections=4)


def test_whoever_is_answered_makes_no_room(with_door):
    async def crowd(door: Door) -> None:
        asking = [await door.open() for _ in range(3)]
        for _, writer in asking:
            writer.write(b"GET /gate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for _ in asking:
            await asked.get()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await refused(door)
        assert door.refusals() == {"TooManyConnections": 1.0}
        gate.set()
        for reader, writer in asking:
            assert (await until_closed(reader)).endswith(b"through")
            writer.close()
        assert (await door.answer(PROBE)).endswith("ok\n")

    gate, asked = asyncio.Event(), asyncio.Queue[None]()

    async def hold(_request: web.Request) -> web.Response:
        asked.put_nowait(None)
        await gate.wait()
        return web.Response(text="through")

    with_door(crowd, routes=[web.get("/gate", hold)], connections=3)


async def refused(door: Door) -> None:
    """Raises: ConnectionError where the connection is closed without an answer."""
    if not await door.answer(PROBE):
        raise ConnectionResetError


def test_it_stops_while_an_answer_never_comes(with_door):
    async def wait(door: Door) -> None:
        _, writer = await door.open()
        writer.write(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(asked.wait(), 60)
        began.append(time.monotonic())

    async def never(request: web.Request) -> web.Response:
        asked.set()
        return await _never(request)

    asked, began = asyncio.Event(), list[float]()
    with_door(wait, routes=[web.get("/never", never)])
    assert time.monotonic() - began[0] < 30, "a minute is what the library would wait"
