"""The source against real HTTP servers, most of which misbehave."""

import asyncio
import gzip
import json
import re
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import responses
import trustme
from http_stub import HttpStub, Received, Reply, Wire
from hypothesis import given, settings
from hypothesis import strategies as st
from requests import PreparedRequest
from scripted_metrics import Metrics, Series
from scripted_prometheus import ExactNamesOnly, ScriptedPrometheus

from scaler.idleness.gpu import ENERGY, Signal, Unit
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import ReadError, ReadOutcome, ReadRecord

END = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
START = END - timedelta(minutes=30)
UTIL = Signal(name="gpu_util", metrics=("DCGM_FI_DEV_GPU_UTIL",), unit=Unit.PERCENT)
SAMPLES = [(END.timestamp() - 30, 0.0), (END.timestamp(), 97.0)]


def answer(result: Any, result_type: str = "matrix", **envelope: Any) -> bytes:
    document = {"status": "success", "data": {"resultType": result_type, "result": result}, **envelope}
    return json.dumps(document).encode()


ONE_SERIES = answer([{"metric": {"gpu": "0"}, "values": [[at, str(value)] for at, value in SAMPLES]}])
GOOD = Reply(ONE_SERIES)
BROKEN = Reply(b'{"status":"error","errorType":"internal","error":"head block is broken"}', status=500)


def always(reply: Reply) -> Callable[[Received], Reply]:
    return lambda _: reply


def in_turn(*replies: Reply) -> Callable[[Received], Reply]:
    """Each once, in order; the last for ever."""
    remaining = list(replies)
    return lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0]


@asynccontextmanager
async def source(url: str, **settings: Any) -> AsyncIterator[PrometheusSource]:
    observe = settings.pop("observe", lambda _: None)
    config = PrometheusConfig(url=url, **{"timeout": timedelta(seconds=5), **settings})
    opened = PrometheusSource(config, observe=observe)
    try:
        yield opened
    finally:
        await opened.close()


async def read(opened: PrometheusSource) -> list[tuple[float, float]]:
    reading = await opened.read(UTIL, start=START, end=END)
    return [sample for series in reading.series for sample in series.samples()]


def form(request: Received) -> dict[str, str]:
    return dict(parse_qsl(request.body.decode(), keep_blank_values=True))


# ---- what is asked


async def test_one_post_fetches_a_signal_of_the_whole_cluster() -> None:
    with HttpStub(always(GOOD)) as stub:
        async with source(f"{stub.url}/", matchers={"cluster": "x"}) as opened:
            assert await read(opened) == SAMPLES
        (request,) = stub.received
    assert (request.method, request.path) == ("POST", "/api/v1/query")
    sent = form(request)
    assert re.fullmatch(r"(4\d{3}|5000)ms", sent.pop("timeout"))
    assert sent == {"query": 'DCGM_FI_DEV_GPU_UTIL{cluster="x"}[1800s]', "time": f"{END.timestamp():.3f}"}


async def test_times_below_a_second_are_sent_to_the_millisecond() -> None:
    end = END + timedelta(milliseconds=251, microseconds=999)
    with HttpStub(always(Reply(answer([])))) as stub:
        async with source(stub.url) as opened:
            await opened.read(UTIL, start=end - timedelta(milliseconds=1500), end=end)
        sent = form(stub.received[0])
    assert (sent["query"], sent["time"]) == ("DCGM_FI_DEV_GPU_UTIL[1500ms]", f"{END.timestamp() + 0.251:.3f}")


@responses.activate
async def test_thanos_is_asked_for_deduplicated_complete_raw_data_below_its_path() -> None:
    def asks_for_everything(request: PreparedRequest) -> tuple[bool, str]:
        sent = dict(parse_qsl(str(request.body)))
        wanted = {"dedup": "true", "partial_response": "false", "max_source_resolution": "0s", "engine": "thanos"}
        return wanted.items() <= sent.items() and "?" not in str(request.url), f"{request.url} {sent}"

    responses.post(
        "http://mimir.test:8080/prometheus/api/v1/query",
        body=ONE_SERIES,
        match=[asks_for_everything, responses.matchers.header_matcher({"X-Scope-OrgID": "team-a"})],
    )
    settings = {"thanos": True, "parameters": {"engine": "thanos"}, "headers": {"X-Scope-OrgID": "team-a"}}
    async with source("http://mimir.test:8080/prometheus/", **settings) as opened:
        assert await read(opened) == SAMPLES


TWO_NAMES = replace(UTIL, metrics=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"))
OF_NAMES = "=~ is an unsupported matchtype for the __name__ label: invalid argument"


def refused(why: str) -> Reply:
    return Reply(json.dumps({"status": "error", "errorType": "bad_data", "error": why}).encode(), status=400)


def of(metric: str, gpu: str, value: str) -> Reply:
    """One sample of one series."""
    labels = {"__name__": metric, "gpu": gpu}
    return Reply(answer([{"metric": labels, "values": [[END.timestamp(), value]]}]))


TWO_REPLIES = {
    "several": refused(OF_NAMES),
    "util": of(TWO_NAMES.metrics[0], "0", "97"),
    "ratio": of(TWO_NAMES.metrics[1], "1", "5"),
}


def by_name(**replies: Reply) -> Callable[[Received], Reply]:
    """A server that knows exact names only, but for these replies."""

    def reply(request: Received) -> Reply:
        query = form(request)["query"]
        kind = "several" if "=~" in query else "ratio" if "UTIL_RATIO" in query else "util"
        return {**TWO_REPLIES, **replies}[kind]

    return reply


async def test_several_names_are_asked_for_one_by_one_where_they_are_refused_together() -> None:
    with HttpStub(by_name()) as stub:
        async with source(stub.url) as opened:
            for _ in range(2):
                reading = await opened.read(TWO_NAMES, start=START, end=END)
                found = {each.labels()["gpu"]: list(each.samples()) for each in reading.series}
                assert found == {"0": [(END.timestamp(), 97.0)], "1": [(END.timestamp(), 5.0)]}
            queries = opened.query_of_pods(TWO_NAMES, namespace="a", pods=["p"], span=END - START)
        asked = [form(request)["query"] for request in stub.received]
    assert asked[0] == '{__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_GPU_UTIL_RATIO"}[1800s]'
    assert sorted(asked[1:]) == sorted(2 * [f"{each}[1800s]" for each in TWO_NAMES.metrics]), "it is remembered"
    assert len(queries) == 4
    assert not any("__name__" in each for each in queries)


@pytest.mark.parametrize(
    ("replies", "outcome", "count"),
    [
        pytest.param({"ratio": BROKEN}, ReadOutcome.UNAVAILABLE, 6, id="one name is not answered"),
        pytest.param({"util": refused("too many samples")}, ReadOutcome.REFUSED, 6, id="one name is refused"),
        pytest.param({"several": refused("too many samples")}, ReadOutcome.REFUSED, 2, id="refused for another reason"),
        pytest.param({"several": BROKEN}, ReadOutcome.UNAVAILABLE, 2, id="not refused"),
    ],
)
async def test_a_read_of_several_names_is_whole_or_none(
    replies: dict[str, Reply], outcome: ReadOutcome, count: int
) -> None:
    """Nor is anything remembered before all names were answered one by one."""
    with HttpStub(by_name(**replies)) as stub:
        async with source(stub.url, attempts=1) as opened:
            for _ in range(2):
                with pytest.raises(ReadError) as failure:
                    await opened.read(TWO_NAMES, start=START, end=END)
                assert failure.value.outcome is outcome
        assert len(stub.received) == count


@settings(max_examples=15)
@given(st.dictionaries(st.sampled_from(ENERGY.metrics), st.floats(0, 1e9)), st.integers(1, 600))
async def test_names_one_by_one_give_what_they_give_together(values: dict[str, float], span_s: int) -> None:
    series = [Series(metric=name, labels={"gpu": "0"}, value=lambda _, v=v: v) for name, v in values.items()]
    found = []
    for server in (ScriptedPrometheus, ExactNamesOnly):
        with server(Metrics(series=series), clock=lambda: END) as prometheus:
            async with source(prometheus.url) as opened:
                reading = await opened.read(ENERGY, start=END - timedelta(seconds=span_s), end=END)
                found.append({each.labels()["__name__"]: list(each.samples()) for each in reading.series})
    assert found[0] == found[1]


async def test_a_demand_query_gives_its_vector() -> None:
    vector = answer([{"metric": {"namespace": "a"}, "value": [1, "2"]}], "vector")
    with HttpStub(always(Reply(vector))) as stub:
        async with source(stub.url) as opened:
            assert await opened.demand("sum by (namespace) (queue) > 0", at=END) == [({"namespace": "a"}, 2.0)]
        assert form(stub.received[0])["query"] == "sum by (namespace) (queue) > 0"


async def test_the_environment_does_not_redirect_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with HttpStub(always(GOOD)) as stub:
        async with source(stub.url) as opened:
            assert await read(opened) == SAMPLES
        assert "Authorization" not in stub.received[0].headers


# ---- what comes back


def undated(wire: Wire) -> None:
    """Has no Date header, and hangs up afterwards."""
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ONE_SERIES), ONE_SERIES))


async def test_the_servers_clock_is_read_where_it_has_one() -> None:
    with HttpStub(always(Reply(undated))) as stub:
        async with source(stub.url) as opened:
            assert (await opened.read(UTIL, start=START, end=END)).server_time is None
    with HttpStub(always(GOOD)) as stub:
        async with source(stub.url) as opened:
            dated = (await opened.read(UTIL, start=START, end=END)).server_time
    assert dated is not None
    assert abs(datetime.now(UTC) - dated) < timedelta(seconds=60)


def unframed(wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    wire.send(ONE_SERIES[:20])
    wire.send(ONE_SERIES[20:])


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(gzip.compress(ONE_SERIES), headers={"Content-Encoding": "gzip"}), id="compressed"),
        pytest.param(Reply(unframed), id="without a length, to its end"),
        pytest.param(Reply(undated), id="from a server that closes the connection each time"),
    ],
)
async def test_an_answer_is_read(reply: Reply) -> None:
    with HttpStub(always(reply)) as stub:
        async with source(stub.url) as opened:
            for _ in range(3):
                assert await read(opened) == SAMPLES
        assert stub.received[0].headers["Accept-Encoding"] == "gzip"


def interrupted(wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ONE_SERIES), ONE_SERIES[:-9]))


def interrupted_chunks(wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(ONE_SERIES), ONE_SERIES))


FAULTS: dict[str, tuple[Reply, ReadOutcome, str, int]] = {
    "an error of the server": (BROKEN, ReadOutcome.UNAVAILABLE, "500 internal: head block is broken", 3),
    "warnings": (Reply(answer([], warnings=["store down"])), ReadOutcome.PARTIAL, "store down", 3),
    "VictoriaMetrics without one of its stores": (
        Reply(answer([], isPartial=True)),
        ReadOutcome.PARTIAL,
        "as partial (isPartial)",
        3,
    ),
    "M3 at one of its limits": (
        Reply(ONE_SERIES, headers={"M3-Results-Limited": "max_fetch_series_limit_applied"}),
        ReadOutcome.PARTIAL,
        "as partial (header M3-Results-Limited)",
        3,
    ),
    "a body that breaks off": (Reply(interrupted), ReadOutcome.UNREACHABLE, "connection failed", 3),
    "chunks that break off": (Reply(interrupted_chunks), ReadOutcome.UNREACHABLE, "connection failed", 3),
    "a connection closed at once": (Reply(lambda _: None), ReadOutcome.UNREACHABLE, "connection failed", 3),
    "a body that is not gzip": (
        Reply(b"plain", headers={"Content-Encoding": "gzip"}),
        ReadOutcome.PROTOCOL,
        "Content-Encoding",
        3,
    ),
    "a bad query": (
        Reply(b'{"status":"error","errorType":"bad_data","error":"parse error"}', status=400),
        ReadOutcome.REFUSED,
        "parse error",
        1,
    ),
    "a redirect": (
        Reply(b"", status=302, headers={"Location": "https://sso.test/login?token=t0p-secret"}),
        ReadOutcome.PROTOCOL,
        "redirected (302) to https://sso.test/login;",
        1,
    ),
    "an answer that announces too much": (
        Reply(ONE_SERIES + b" " * 100_000),
        ReadOutcome.TOO_LARGE,
        "more than 50000 bytes",
        1,
    ),
}


QUERIES: dict[str, Callable[[PrometheusSource], Any]] = {
    "samples": lambda opened: opened.read(UTIL, start=START, end=END),
    "demand": lambda opened: opened.demand("queue > 0", at=END),
    "the page's and the report's ranges": lambda opened: opened.ranges("queue[5m:1m]", at=END),
}


@pytest.mark.parametrize("ask", QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.parametrize("result_type", ["matrix", "vector"])
async def test_no_query_takes_a_partial_answer(ask: Callable[[PrometheusSource], Any], result_type: str) -> None:
    with HttpStub(always(Reply(answer([], result_type, isPartial=True)))) as stub:
        async with source(stub.url, attempts=1) as opened:
            with pytest.raises(ReadError) as failed:
                await ask(opened)
    assert failed.value.outcome is ReadOutcome.PARTIAL


@pytest.mark.parametrize(("reply", "outcome", "words", "sent"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_is_an_error_and_only_what_may_pass_is_tried_again(
    reply: Reply, outcome: ReadOutcome, words: str, sent: int
) -> None:
    records: list[ReadRecord] = []
    with HttpStub(always(reply)) as stub:
        async with source(stub.url, max_bytes=50_000, observe=records.append) as opened:
            with pytest.raises(ReadError) as failed:
                await read(opened)
        assert str(failed.value).startswith(f"Prometheus at {stub.url}: ")
        assert words in str(failed.value)
        assert "t0p-secret" not in str(failed.value)
        assert len(stub.received) == sent
    assert [(record.query, record.outcome) for record in records] == [("gpu_util", outcome)] * sent


async def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"[" * 50_000_000)
    with HttpStub(always(Reply(bomb, headers={"Content-Encoding": "gzip"}))) as stub:
        async with source(stub.url, max_bytes=1_000_000) as opened:
            tracemalloc.start()
            with pytest.raises(ReadError):
                await read(opened)
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize("fault", [BROKEN, Reply(interrupted), Reply(answer([], warnings=["store down"]))])
async def test_a_fault_that_passes_is_retried(fault: Reply) -> None:
    records: list[ReadRecord] = []
    with HttpStub(in_turn(fault, GOOD)) as stub:
        async with source(stub.url, observe=records.append) as opened:
            assert await read(opened) == SAMPLES
    assert [str(record.outcome) for record in records][1:] == ["ok"]
    assert records[1].size_bytes == len(ONE_SERIES)
    assert records[1].seconds > 0


async def test_a_refused_connection_is_unreachable() -> None:
    with HttpStub(always(GOOD)) as stub:
        url = stub.url
    async with source(url) as opened:
        with pytest.raises(ReadError, match="Connection refused") as failed:
            await read(opened)
    assert failed.value.transient


# ---- time


async def test_a_pause_longer_than_the_time_left_is_not_waited_for() -> None:
    started = time.monotonic()
    with HttpStub(always(Reply(b"slow down", status=429, headers={"Retry-After": "70"}))) as stub:
        async with source(stub.url, timeout=timedelta(minutes=1)) as opened:
            with pytest.raises(ReadError, match="a pause of 70 s"):
                await read(opened)
        assert len(stub.received) == 1
    assert time.monotonic() - started < 50


async def test_a_pause_that_fits_is_kept() -> None:
    limited = Reply(b"slow down", status=429, headers={"Retry-After": "1"})
    started = time.monotonic()
    with HttpStub(in_turn(limited, GOOD)) as stub:
        async with source(stub.url) as opened:
            assert await read(opened) == SAMPLES
    assert time.monotonic() - started >= 1


def hang(wire: Wire) -> None:
    wire.closing.wait(30)


def drip(head: bytes) -> Callable[[Wire], None]:
    """This at once, and then a byte now and then."""

    def send(wire: Wire) -> None:
        wire.send(head)
        while not wire.closing.wait(0.02):
            wire.send(b" ")

    return send


drip_body = drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
drip_error = drip(b"HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n")
drip_headers = drip(b"HTTP/1.1 200 OK\r\nX-Slow: ")


@pytest.mark.parametrize(
    "slowness", [hang, drip_body, drip_headers, drip_error], ids=["nothing", "body", "headers", "error"]
)
async def test_a_slow_server_costs_the_timeout_and_its_thread_is_free_again(slowness: Callable[[Wire], None]) -> None:
    with HttpStub(in_turn(Reply(slowness), GOOD)) as stub:
        async with source(stub.url, timeout=timedelta(seconds=1), concurrency=1) as opened:
            started = time.monotonic()
            with pytest.raises(ReadError, match=r"no complete answer within 1s"):
                await read(opened)
            assert 1 <= time.monotonic() - started < 20, "hanging takes 30 s"
            assert len(stub.received) == 1
            assert await read(opened) == SAMPLES


async def test_a_caller_that_gives_up_frees_the_thread() -> None:
    with HttpStub(in_turn(Reply(hang), GOOD)) as stub:
        async with source(stub.url, concurrency=1) as opened:
            given_up = asyncio.create_task(read(opened))
            while not stub.received:  # noqa: ASYNC110 - another thread appends
                await asyncio.sleep(0.005)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            started = time.monotonic()
            assert await read(opened) == SAMPLES
            assert time.monotonic() - started < 20, "hanging takes 30 s"


async def test_close_ends_what_is_under_way() -> None:
    with HttpStub(always(Reply(hang))) as stub:
        async with source(stub.url, attempts=1) as opened:
            pending = asyncio.create_task(read(opened))
            while not stub.received:  # noqa: ASYNC110 - another thread appends
                await asyncio.sleep(0.005)
            await opened.close()
            with pytest.raises(ReadError):
                await asyncio.wait_for(pending, 20)


async def test_signals_are_read_at_the_same_time() -> None:
    waiting: list[Received] = []

    def together(request: Received) -> Reply:
        waiting.append(request)
        deadline = time.monotonic() + 300
        while len(waiting) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        return GOOD if len(waiting) == 4 else BROKEN

    with HttpStub(together) as stub:
        async with source(stub.url, attempts=1) as opened:
            assert await asyncio.gather(*(read(opened) for _ in range(4))) == [SAMPLES] * 4


# ---- who asks


async def test_a_token_is_read_anew_for_each_request_and_waited_for_where_it_vanishes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    with HttpStub(always(GOOD)) as stub:
        async with source(stub.url, bearer_token_file=token) as opened:
            await read(opened)
            token.unlink()
            with pytest.raises(ReadError, match="No such file"):
                await read(opened)
            token.write_text("two\nlines")
            with pytest.raises(ReadError, match="not a token of one word") as failed:
                await read(opened)
            assert "lines" not in str(failed.value).replace("of one", "")
            token.write_text("another\n")
            assert await read(opened) == SAMPLES
        assert [request.headers["Authorization"] for request in stub.received] == ["Bearer t", "Bearer another"]


async def test_basic_authentication(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sésame\n")
    with HttpStub(always(GOOD)) as stub:
        async with source(stub.url, username="reader", password_file=tmp_path / "password") as opened:
            await read(opened)
        # base64 of "reader:open sésame" in UTF-8
        assert stub.received[0].headers["Authorization"] == "Basic cmVhZGVyOm9wZW4gc8Opc2FtZQ=="


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("mechanism", ["bearer", "basic"])
async def test_no_secret_is_repeated_though_the_server_echoes_it(tmp_path: Path, status: int, mechanism: str) -> None:
    def echo(request: Received) -> Reply:
        header = request.headers["Authorization"]
        return Reply(f"you sent {header} and s3cr3t-w0rd".encode() * 20, status=status)

    secret = tmp_path / "secret"
    secret.write_text("s3cr3t-w0rd")
    settings: dict[str, Any] = (
        {"bearer_token_file": secret} if mechanism == "bearer" else {"username": "reader", "password_file": secret}
    )
    with HttpStub(echo) as stub:
        async with source(stub.url, attempts=1, **settings) as opened:
            with pytest.raises(ReadError) as failed:
                await read(opened)
            told = f"{failed.value!r} {failed.value} {failed.value.__cause__!r} {vars(opened)!r}"
        sent = stub.received[0].headers["Authorization"].split()[1]
    assert "s3cr3t-w0rd" not in told
    assert sent not in told
    assert "you sent" in told


# ---- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


def server_tls(authority: trustme.CA, name: str = "127.0.0.1", *, clients: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if clients:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize("trusts", ["the system's authorities", "another name"])
async def test_a_server_without_a_trusted_certificate_gets_no_request(
    authority: trustme.CA, ca_file: Path, trusts: str
) -> None:
    name, ca = ("127.0.0.1", None) if trusts == "the system's authorities" else ("other.test", ca_file)
    with HttpStub(always(GOOD), tls=server_tls(authority, name)) as stub:
        async with source(stub.url, ca_file=ca) as opened:
            with pytest.raises(ReadError, match=r"TLS failed \(.*certificate") as failed:
                await read(opened)
        assert stub.received == []
    assert not failed.value.transient


async def test_any_certificate_is_accepted_only_where_that_is_configured(authority: trustme.CA) -> None:
    with HttpStub(always(GOOD), tls=server_tls(authority)) as stub:
        async with source(stub.url, insecure_skip_verify=True) as opened:
            assert await read(opened) == SAMPLES


@pytest.mark.parametrize("bundled", [True, False])
async def test_a_client_certificate_is_shown(
    authority: trustme.CA, ca_file: Path, tmp_path: Path, bundled: bool
) -> None:
    client = authority.issue_cert("scaler.test")
    settings: dict[str, Any] = {"cert_file": tmp_path / "client.pem"}
    if bundled:
        client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    else:
        client.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
        client.private_key_pem.write_to_path(tmp_path / "client.key")
        settings["key_file"] = tmp_path / "client.key"
    with HttpStub(always(GOOD), tls=server_tls(authority, clients=authority)) as stub:
        async with source(stub.url, ca_file=ca_file, **settings) as opened:
            assert await read(opened) == SAMPLES
        async with source(stub.url, ca_file=ca_file, attempts=1) as stranger:
            with pytest.raises(ReadError):
                await read(stranger)


async def test_a_slow_server_behind_tls_is_left_in_time(authority: trustme.CA, ca_file: Path) -> None:
    with HttpStub(in_turn(Reply(drip_body), GOOD), tls=server_tls(authority)) as stub:
        async with source(stub.url, ca_file=ca_file, timeout=timedelta(seconds=1), concurrency=1) as opened:
            with pytest.raises(ReadError):
                await read(opened)
            assert await read(opened) == SAMPLES
