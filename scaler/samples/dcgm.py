"""Samples straight from dcgm-exporter: each tick scrapes every endpoint once, for all signals together.

Laws of this file:

* One endpoint that fails is no failure of the source: its GPUs have no new sample, their windows go stale, and stale is
  Unknown. It is reported by `observe`. Only when no endpoint answers is there nothing to judge by.
* A sample's time is when its scrape began, as in Prometheus: the value is at least that old, never younger. It may be
  later than the `end` of the tick that asked, by the time that has passed since; it is not dated back.
* An exporter's own timestamp is handed on as it is. Whoever takes samples in refuses what is later than now.
* Nothing is remembered from one tick to the next. History lives in the rings, and after a restart it has to grow anew,
  because an exporter knows only the present.

An endpoint `http://10.0.0.7:9400/metrics` is one address; `dns+http://dcgm-exporter.gpu.svc:9400` stands for every
address of the name, asked for at every scrape: with a headless Service, every exporter of the DaemonSet.

What cannot be seen here: an exporter that goes on serving the same page although its collection hangs. Prometheus does
not see it either. Signals that disagree show it once work starts, and only then.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from scaler.errors import ConfigurationError, SourceError
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import Signal
from scaler.samples.exposition import ExpositionSeries, parse_exposition
from scaler.samples.source import ReadError, ReadOutcome, ReadRecord, SignalReading

_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "User-Agent": "idle-gpu-scaler"}
_CHUNK = 64 * 1024
_PAST_S = 300.0
"""Ticks ask for what is some seconds old at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scrape:
    metrics: frozenset[str]
    """The metrics that were looked for."""
    series: Sequence[ExpositionSeries]


_EVERY_ADDRESS = "dns+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    """Address of the page to fetch."""
    every_address: bool = False
    """Whether the host is a name all of whose addresses are meant."""

    @property
    def instance(self) -> str:
        """`host:port`, as Prometheus labels it."""
        return urlsplit(self.url).netloc


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint as an operator writes it; a URL without a path means /metrics.

    Raises: ConfigurationError.
    """
    every_address = text.startswith(_EVERY_ADDRESS)
    try:
        parts = urlsplit(text.removeprefix(_EVERY_ADDRESS))
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"dcgm endpoint {_without_user(text)!r} is not a URL; write for example 'http://10.0.0.7:9400/metrics', "
            "or 'dns+http://dcgm-exporter.gpu-operator.svc:9400' for every address of a headless Service"
        )
    if every_address and parts.scheme == "https":
        raise ConfigurationError(f"dcgm endpoint {text!r}: addresses have no certificates; dns+ works with http only")
    url = urlunsplit(parts._replace(path=parts.path if parts.path.strip("/") else "/metrics", fragment=""))
    return Endpoint(url=url, every_address=every_address)


async def addresses(endpoint: Endpoint) -> list[Endpoint]:
    """The endpoint itself, or one for each address that its name has now. Raises: OSError where it has none."""
    if not endpoint.every_address:
        return [endpoint]
    parts = urlsplit(endpoint.url)
    found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    sockets = sorted({(str(address[0]), int(address[1])) for *_, address in found})
    return [Endpoint(url=urlunsplit(parts._replace(netloc=_netloc(host, port)))) for host, port in sockets]


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _without_user(text: str) -> str:
    scheme, separator, rest = text.rpartition("@")
    return f"…@{rest}" if separator else scheme + rest


class ExpositionSource:
    """Implements SignalSource. Use it within one event loop, and close it.

    `timeout` is for one endpoint from connecting to the last byte; all of them together have twice as long, and those
    that were not reached by then have failed. `max_bytes` is for one page: 8 GPUs with 7 MIG instances each show half
    a megabyte. Raises: ConfigurationError for a fixed endpoint that is no URL.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout: timedelta = timedelta(seconds=5),
        max_bytes: int = 16 * 2**20,
        concurrency: int = 64,
        observe: Callable[[ReadRecord], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configured = tuple(parse_endpoint(text) for text in endpoints)
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._concurrency = concurrency
        self._observe = observe
        self._clock = clock
        self._slots = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None
        self._metrics = frozenset[str]()
        self._tick: tuple[datetime, asyncio.Task[_Scrape]] | None = None

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        """The signal's samples later than `start` on every page, of the scrape that is shared by all reads up to `end`.

        Raises: SourceError where no endpoint could be scraped.
        """
        if self._clock() - end.timestamp() > _PAST_S:
            # Exporters know only the present, so there is nothing to scrape for a span that is over.
            return SignalReading([], server_time=None)
        wanted, start_s = frozenset(signal.metrics), start.timestamp()
        self._metrics |= wanted
        scrape = await self._scraped_for(end)
        if not wanted <= scrape.metrics:
            # The first time that this signal is requested, and the pages of this tick are already gone.
            self._tick = None
            scrape = await self._scraped_for(end)
        series = [each for each in scrape.series if each.metric in wanted and each.at_s > start_s]
        # Sample times are this process's clock's, so there is no other clock to compare it with.
        return SignalReading(series, server_time=None)

    async def close(self) -> None:
        if self._tick:
            self._tick[1].cancel()
            await asyncio.gather(self._tick[1], return_exceptions=True)
        if self._session:
            await self._session.close()

    async def _scraped_for(self, end: datetime) -> _Scrape:
        if self._tick is None or self._tick[0] != end:
            task = asyncio.create_task(self._scrape_all())
            # A failure after the last reader has gone is not reported as unhandled.
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
            self._tick = (end, task)
        # A reader that is cancelled takes nothing away from the others.
        return await asyncio.shield(self._tick[1])

    # ---- all endpoints

    async def _scrape_all(self) -> _Scrape:
        metrics = self._metrics
        deadline = asyncio.get_running_loop().time() + 2 * self._timeout.total_seconds()
        endpoints = await self._endpoints(deadline)
        pages = await asyncio.gather(*(self._scrape(endpoint, metrics, deadline) for endpoint in endpoints))
        failures = [page for page in pages if isinstance(page, ReadError)]
        if len(failures) == len(pages):
            raise SourceError(
                f"none of {len(pages)} dcgm-exporter endpoints could be scraped; {endpoints[0].url}: {failures[0]}",
                transient=True,
            )
        series = [each for page in pages if not isinstance(page, ReadError) for each in page]
        return _Scrape(metrics=metrics, series=series)

    async def _endpoints(self, deadline: float) -> list[Endpoint]:
        """Every address to scrape, each once. Raises: SourceError where none is known."""
        try:
            async with asyncio.timeout_at(deadline):
                found = await asyncio.gather(*(self._addresses(endpoint) for endpoint in self._configured))
        except TimeoutError:
            limit = format_duration(2 * self._timeout)
            raise SourceError(f"the dcgm-exporter endpoints were not found within {limit}", transient=True) from None
        known = dict.fromkeys(endpoint for several in found if isinstance(several, list) for endpoint in several)
        if not known:
            reasons = [f" ({reason})" for reason in found if isinstance(reason, ReadError)]
            what = f"no dcgm-exporter endpoint is known{''.join(reasons[:1])}"
            raise SourceError(f"{what}; check dcgm.endpoints and that exporters run", transient=True)
        return list(known)

    async def _addresses(self, endpoint: Endpoint) -> list[Endpoint] | ReadError:
        started = time.monotonic()
        try:
            return await addresses(endpoint)
        except OSError as error:
            failure = ReadError(ReadOutcome.UNREACHABLE, f"{endpoint.url}: {error.strerror or error}")
        self._report(endpoint, started, failure=failure)
        return failure

    # ---- one endpoint

    async def _scrape(
        self, endpoint: Endpoint, metrics: frozenset[str], deadline: float
    ) -> list[ExpositionSeries] | ReadError:
        """What the endpoint shows, or why nothing can be used of it; reported either way."""
        started = time.monotonic()
        try:
            page, scraped_at_s = await self._fetched(endpoint, deadline)
            series = self._parsed(endpoint, page, scraped_at_s, metrics)
        except ReadError as failure:
            self._report(endpoint, started, failure=failure)
            return failure
        self._report(endpoint, started, size_bytes=len(page))
        return series

    def _report(
        self, endpoint: Endpoint, started: float, *, failure: ReadError | None = None, size_bytes: int = 0
    ) -> None:
        record = ReadRecord(
            query="scrape",
            endpoint=endpoint.url,
            outcome=failure.outcome if failure else ReadOutcome.OK,
            reason=str(failure or ""),
            seconds=time.monotonic() - started,
            size_bytes=size_bytes,
        )
        self._observe(record)

    async def _fetched(self, endpoint: Endpoint, deadline: float) -> tuple[bytes, float]:
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                async with asyncio.timeout(self._timeout.total_seconds()):
                    return await self._get(endpoint.url)
        except TimeoutError:
            raise ReadError(ReadOutcome.TIMEOUT, "no complete page in time") from None
        except aiohttp.ClientPayloadError:
            raise ReadError(ReadOutcome.PROTOCOL, "the page breaks off") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ReadError(ReadOutcome.UNREACHABLE, str(error) or type(error).__name__) from None

    async def _get(self, url: str) -> tuple[bytes, float]:
        """The page, and when its scrape began in Unix seconds."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._concurrency)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        scraped_at_s = self._clock()
        async with self._session.get(url, headers=_HEADERS, allow_redirects=False) as response:
            if response.status != 200:
                raise ReadError(ReadOutcome.UNAVAILABLE, f"HTTP status {response.status}")
            kind = response.headers.get("Content-Encoding") or response.headers.get("Content-Type") or "text/plain"
            if not kind.startswith("text/plain"):
                raise ReadError(ReadOutcome.PROTOCOL, f"the page is {kind}, not the plain text of an exporter")
            return await self._body(response), scraped_at_s

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > self._max_bytes:
                raise ReadError(ReadOutcome.TOO_LARGE, f"the page is larger than {self._max_bytes} bytes")
        return bytes(body)

    def _parsed(
        self, endpoint: Endpoint, page: bytes, scraped_at_s: float, metrics: frozenset[str]
    ) -> list[ExpositionSeries]:
        try:
            return parse_exposition(page, metrics=metrics, instance=endpoint.instance, scraped_at_s=scraped_at_s)
        except ValueError as error:
            raise ReadError(ReadOutcome.PROTOCOL, str(error)) from None
