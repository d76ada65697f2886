"""Direct scraping of real HTTP endpoints, some of which misbehave."""

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from http_stub import HttpStub, Received, Reply, Wire

from scaler.errors import ConfigurationError, SourceError
from scaler.idleness.gpu import DEFAULT_SIGNALS, Signal
from scaler.samples.dcgm import Endpoint, ExpositionSource, addresses, parse_endpoint
from scaler.samples.source import ReadOutcome, ReadRecord

ENGINE, UTIL = DEFAULT_SIGNALS
END = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
START = END - timedelta(minutes=30)
NOW_S = END.timestamp() + 1.25
"""A tick looks at `END` a moment later."""


def page(uuid: str, util: float = 0, engine: float = 0, at: str = "") -> bytes:
    labels = f'gpu="0",UUID="{uuid}",namespace="a",pod="p"'
    return (
        f"# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{{{labels}}} {util}{at}\n"
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} {engine}{at}\nDCGM_FI_DEV_FB_USED{{{labels}}} 1\n"
    ).encode()


def text(body: bytes) -> Reply:
    return Reply(body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def always(reply: Reply) -> Callable[[Received], Reply]:
    return lambda _: reply


@asynccontextmanager
async def source(endpoints: Any, **settings: Any) -> AsyncIterator[ExpositionSource]:
    opened = ExpositionSource(endpoints, **{"clock": lambda: NOW_S, **settings})
    try:
        yield opened
    finally:
        await opened.close()


async def read(opened: ExpositionSource, signal: Signal = UTIL, end: datetime = END) -> dict[str, list[Any]]:
    reading = await opened.read(signal, start=START, end=end)
    return {series.labels()["UUID"]: list(series.samples()) for series in reading.series}


@pytest.fixture
def stubs() -> Any:
    """Opens stubs that answer as given, and closes them."""
    with ExitStack() as stack:
        yield lambda *replies: [stack.enter_context(HttpStub(always(reply))) for reply in replies]


async def test_each_signal_gets_its_samples_of_every_endpoint_at_the_time_of_the_scrape(stubs: Any) -> None:
    one, two = stubs(text(page("GPU-1", util=97, engine=0.9)), text(page("GPU-2", util=0, engine=0.01)))
    async with source([f"{one.url}/metrics", two.url]) as opened:
        assert await read(opened) == {"GPU-1": [(NOW_S, 97.0)], "GPU-2": [(NOW_S, 0.0)]}
        assert await read(opened, ENGINE) == {"GPU-1": [(NOW_S, 0.9)], "GPU-2": [(NOW_S, 0.01)]}
    (request,) = one.received[:1]
    assert (request.method, request.path) == ("GET", "/metrics")
    assert request.headers["Accept"] == "text/plain;version=0.0.4"


async def test_all_signals_of_a_tick_share_one_scrape(stubs: Any) -> None:
    one, two = stubs(text(page("GPU-1")), text(page("GPU-2")))
    async with source([one.url, two.url]) as opened:
        for tick in range(3):
            end = END + timedelta(seconds=15 * tick)
            await asyncio.gather(read(opened, UTIL, end), read(opened, ENGINE, end), read(opened, UTIL, end))
            assert (len(one.received), len(two.received)) == (tick + 1, tick + 1)


async def test_for_a_part_of_the_past_no_endpoint_is_scraped(stubs: Any) -> None:
    (one,) = stubs(text(page("GPU-1")))
    async with source([one.url]) as opened:
        await asyncio.gather(read(opened), read(opened, end=END - timedelta(hours=1)))
        assert await read(opened, end=END - timedelta(hours=2)) == {}
        assert len(one.received) == 1


async def test_a_signal_that_is_read_later_is_still_served(stubs: Any) -> None:
    (one,) = stubs(text(page("GPU-1", util=97, engine=0.9)))
    async with source([one.url]) as opened:
        assert await read(opened, UTIL) == {"GPU-1": [(NOW_S, 97.0)]}
        assert await read(opened, ENGINE) == {"GPU-1": [(NOW_S, 0.9)]}
        later = END + timedelta(seconds=15)
        await read(opened, UTIL, later)
        await read(opened, ENGINE, later)
        assert len(one.received) == 3


@pytest.mark.parametrize(
    ("at_s", "expected"),
    [
        (END.timestamp() - 7.5, [(END.timestamp() - 7.5, 5.0)]),
        (START.timestamp(), None),
        (START.timestamp() - 3600, None),
        (END.timestamp() + 86_400, [(END.timestamp() + 86_400, 5.0)]),
    ],
)
async def test_the_exporters_own_timestamps_are_believed(stubs: Any, at_s: float, expected: Any) -> None:
    (one,) = stubs(text(page("GPU-1", util=5, at=f" {int(at_s * 1000)}")))
    async with source([one.url]) as opened:
        assert (await read(opened)).get("GPU-1") == expected


def hang(wire: Wire) -> None:
    wire.closing.wait(30)


def drip(wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while not wire.closing.wait(0.02):
        wire.send(b"#")


def interrupted(wire: Wire) -> None:
    body = page("GPU-2")
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body))
    wire.send(body[:-5])


def interrupted_between_lines(wire: Wire) -> None:
    """Whole lines, fewer than announced: only Content-Length shows that GPUs are missing."""
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % (2 * len(page("GPU-2"))))
    wire.send(page("GPU-2"))


def cut_off(wire: Wire) -> None:
    """Ends with the connection, so that only the missing newline shows that 0.95 became 0."""
    wire.send(b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nDCGM_FI_DEV_GPU_UTIL{UUID="GPU-2"} 0')


FAULTS: dict[str, tuple[Reply, ReadOutcome, str]] = {
    "an exporter that hangs": (Reply(hang), ReadOutcome.TIMEOUT, "in time"),
    "an exporter that drips": (Reply(drip), ReadOutcome.TIMEOUT, "in time"),
    "an exporter in trouble": (Reply(b"no", status=500), ReadOutcome.UNAVAILABLE, "status 500"),
    "a redirect": (Reply(b"", status=302, headers={"Location": "/x"}), ReadOutcome.UNAVAILABLE, "status 302"),
    "a page that breaks off": (Reply(interrupted), ReadOutcome.PROTOCOL, "breaks off"),
    "a page that breaks off between lines": (Reply(interrupted_between_lines), ReadOutcome.PROTOCOL, "breaks off"),
    "a page that breaks off unannounced": (Reply(cut_off), ReadOutcome.PROTOCOL, "breaks off"),
    "a connection closed at once": (Reply(lambda _: None), ReadOutcome.UNREACHABLE, "disconnected"),
    "HTML": (Reply(b"<p>\n", headers={"Content-Type": "text/html"}), ReadOutcome.PROTOCOL, "is text/html"),
    "a compressed page": (
        Reply(gzip.compress(page("GPU-2")), headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"}),
        ReadOutcome.PROTOCOL,
        "is gzip",
    ),
    "a page that is too large": (text(page("GPU-2") * 1000), ReadOutcome.TOO_LARGE, "larger than 100000 bytes"),
    "a line that is no sample": (text(b"DCGM_FI_DEV_GPU_UTIL{ 1\n"), ReadOutcome.PROTOCOL, "line 1 is not a"),
}


@pytest.mark.parametrize(("reply", "outcome", "reason"), FAULTS.values(), ids=FAULTS.keys())
async def test_one_bad_endpoint_costs_its_own_samples_only_and_is_reported(
    stubs: Any, reply: Reply, outcome: ReadOutcome, reason: str
) -> None:
    records: list[ReadRecord] = []
    good, bad = stubs(text(page("GPU-1", util=97)), reply)
    settings = {"timeout": timedelta(milliseconds=300), "max_bytes": 100_000, "observe": records.append}
    async with source([good.url, bad.url], **settings) as opened:
        assert await read(opened) == {"GPU-1": [(NOW_S, 97.0)]}
    by_endpoint = {record.endpoint: record for record in records}
    assert len(records) == 2
    fine, failed = by_endpoint[f"{good.url}/metrics"], by_endpoint[f"{bad.url}/metrics"]
    assert (fine.outcome, fine.reason, fine.size_bytes > 100) == (ReadOutcome.OK, "", True)
    assert failed.outcome is outcome
    assert reason in failed.reason.lower()


async def test_no_endpoint_answering_is_an_error_for_every_signal(stubs: Any) -> None:
    one, two = stubs(Reply(b"no", status=500), Reply(b"no", status=503))
    async with source([one.url, two.url]) as opened:
        results = await asyncio.gather(read(opened, UTIL), read(opened, ENGINE), return_exceptions=True)
    for error in results:
        assert isinstance(error, SourceError)
        assert error.transient
        assert str(error) == f"none of 2 dcgm-exporter endpoints could be scraped; {one.url}/metrics: HTTP status 500"
    assert (len(one.received), len(two.received)) == (1, 1)


async def test_after_a_failure_the_next_tick_tries_again() -> None:
    replies = [Reply(b"no", status=500), text(page("GPU-1"))]
    with HttpStub(lambda _: replies.pop(0)) as stub:
        async with source([stub.url]) as opened:
            with pytest.raises(SourceError):
                await read(opened)
            assert set(await read(opened, end=END + timedelta(seconds=15))) == {"GPU-1"}


async def test_an_exporter_without_gpus_is_no_failure(stubs: Any) -> None:
    (one,) = stubs(text(b""))
    async with source([one.url]) as opened:
        assert await read(opened) == {}


async def test_many_that_hang_cost_twice_the_timeout_at_most(stubs: Any) -> None:
    hanging = stubs(*[Reply(hang)] * 60)
    records: list[ReadRecord] = []
    settings = {"timeout": timedelta(seconds=1), "concurrency": 2, "observe": records.append}
    started = time.monotonic()
    async with source([stub.url for stub in hanging], **settings) as opened:
        with pytest.raises(SourceError, match="none of 60"):
            await read(opened)
    assert time.monotonic() - started < 20  # 60 in pairs of a second would take 30 s
    assert [record.outcome for record in records] == [ReadOutcome.TIMEOUT] * 60


async def test_a_reader_that_gives_up_takes_nothing_from_the_others() -> None:
    release = threading.Event()

    def once_released(wire: Wire) -> None:
        release.wait(30)
        body = page("GPU-1")
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with HttpStub(always(Reply(once_released))) as stub:
        async with source([stub.url]) as opened:
            impatient, patient = asyncio.create_task(read(opened)), asyncio.create_task(read(opened))
            while not stub.received:  # noqa: ASYNC110 - another thread appends
                await asyncio.sleep(0.005)
            impatient.cancel()
            release.set()
            assert set(await patient) == {"GPU-1"}
            with pytest.raises(asyncio.CancelledError):
                await impatient


async def test_an_address_that_is_written_twice_is_scraped_once(stubs: Any) -> None:
    (one,) = stubs(text(page("GPU-1")))
    async with source([one.url, f"{one.url}/metrics"]) as opened:
        assert set(await read(opened)) == {"GPU-1"}
    assert len(one.received) == 1


async def test_without_an_endpoint_nothing_is_known() -> None:
    async with source([]) as opened:
        with pytest.raises(SourceError, match="no dcgm-exporter endpoint is known; check") as failed:
            await read(opened)
    assert failed.value.transient


async def test_a_name_stands_for_every_exporter_behind_it(stubs: Any) -> None:
    (one,) = stubs(text(page("GPU-1")))
    port = one.url.rpartition(":")[2]
    async with source([f"dns+http://localhost:{port}"]) as opened:
        reading = await opened.read(UTIL, start=START, end=END)
    assert [series.labels()["instance"] for series in reading.series] == [one.address]


async def test_a_name_without_addresses_is_reported() -> None:
    records: list[ReadRecord] = []
    async with source(["dns+http://dcgm-exporter.invalid:9400"], observe=records.append) as opened:
        with pytest.raises(SourceError, match=r"endpoint is known \(http://dcgm-exporter\.invalid:9400"):
            await read(opened)
    assert [record.outcome for record in records] == [ReadOutcome.UNREACHABLE]


async def test_close_ends_what_is_under_way(stubs: Any) -> None:
    (one,) = stubs(Reply(hang))
    async with source([one.url]) as opened:
        pending = asyncio.create_task(read(opened))
        while not one.received:  # noqa: ASYNC110 - another thread appends
            await asyncio.sleep(0.005)
        await opened.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(pending, 20)


# ---- endpoints


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.7:9400/metrics", "http://10.0.0.7:9400/metrics"),
        ("http://10.0.0.7:9400", "http://10.0.0.7:9400/metrics"),
        ("http://10.0.0.7:9400/", "http://10.0.0.7:9400/metrics"),
        ("https://node-a/gpus?collect=all", "https://node-a/gpus?collect=all"),
        ("http://[fd00::7]:9400", "http://[fd00::7]:9400/metrics"),
    ],
)
async def test_a_url_is_one_endpoint(text: str, url: str) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(url=url)
    assert await addresses(endpoint) == [endpoint]


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.7:9400", "ftp://10.0.0.7", "http://", "http://a:99999", "http://[::1", "http://u:s3cret@a:9400"],
)
def test_what_is_no_url_is_refused_at_start_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write for example 'http://10") as refused:
        ExpositionSource([text])
    assert "s3cret" not in str(refused.value)


def test_addresses_cannot_be_checked_by_certificates() -> None:
    with pytest.raises(ConfigurationError, match="with http only"):
        parse_endpoint("dns+https://dcgm-exporter:9400")
