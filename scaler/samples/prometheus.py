"""Samples and demand from Prometheus: one POST per signal and tick, whatever the number of workloads.

A server that refuses several metric names in one query is asked for each by its own. All of them have to be answered.

Laws of this file:

* A call ends within `timeout`: with everything that was requested, or with a SourceError that says what to do.
* Only what may pass is tried again, and only while there is time; a server that asks for a pause gets it, or is left
  alone when the pause is longer than the time that remains.
* The event loop never waits for a socket: each request has a thread, answers are decoded there too.
* A signal is a range selector (`DCGM_FI_DEV_GPU_UTIL[1800s]`) evaluated as an *instant* query at the window's end. It
  gives the samples that are really there, each with the time it was taken, and stops at a stale marker. The tempting
  alternative, `/query_range` with a step, looks back up to five minutes at each step, so that an exporter which died
  four minutes ago still seems to report, and a hole in the data cannot be seen.
* Neither thresholds nor functions appear in the query. PromQL fetches, Python decides.

prometheus-api-client builds the requests; `transport` says what is changed beneath it and why.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Generic, TypeVar

import urllib3
from prometheus_api_client import PrometheusConnect
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from scaler.clock import background_threads
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import Signal
from scaler.samples.config import PrometheusConfig
from scaler.samples.credentials import credentials
from scaler.samples.promql import any_of, quoted, signal_query
from scaler.samples.responses import QueryResult, matrix, vector
from scaler.samples.source import (
    RawSeries,
    ReadError,
    ReadOutcome,
    ReadRecord,
    SeriesColumns,
    SignalReading,
    VectorSample,
)
from scaler.samples.transport import AbortableRequest, BoundedSession

_backoff = wait_random_exponential(multiplier=0.2, max=2)
"""The pauses: up to 0.2, 0.4, 0.8 … s: a restarting server needs about a second, a KEDA poll must not notice."""
_SOCKET_GRACE_S = 0.5
"""Time by which the socket's own timeout is later than the caller's, so that the caller's says what happened."""

_EPOCH = datetime.fromtimestamp(0, UTC)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query(Generic[_T]):
    name: str
    """The signal's name, `demand`, or `page`."""
    promql: str
    at_ms: int
    decode: Callable[[QueryResult], _T]


class PrometheusSource:
    """Implements SignalSource and InstantQuerySource.

    `observe` is called for every HTTP request, on the event loop. Raises: ConfigurationError where a file is unusable.
    """

    def __init__(self, config: PrometheusConfig, *, observe: Callable[[ReadRecord], None] = lambda _: None) -> None:
        config.check_files()
        self._config = config
        self._observe = observe
        self._session = BoundedSession(connections=config.concurrency, max_bytes=config.max_bytes, thanos=config.thanos)
        if config.insecure_skip_verify:
            # Known and wanted; urllib3 would say so on stderr.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._session.verify = not config.insecure_skip_verify if config.ca_file is None else str(config.ca_file)
        if config.cert_file:
            self._session.cert = (str(config.cert_file), str(config.key_file or config.cert_file))
        self._connect = PrometheusConnect(
            config.base_url,
            headers=dict(config.headers),
            auth=credentials(config),
            session=self._session,
            method="POST",
        )
        self._threads = background_threads("prometheus", config.concurrency)
        self._attempts: set[AbortableRequest] = set()
        self._ranges_turn = asyncio.Lock()
        self._has_exact_names_only = False
        """Whether the server has refused several names in one query, and answered them one by one."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        """Every raw sample of the signal in (start, end]. Raises: ReadError."""
        deadline = time.monotonic() + self._config.timeout.total_seconds()
        if not self._has_exact_names_only:
            try:
                return await self._read(signal, start, end, deadline)
            except ReadError as error:
                if len(signal.metrics) == 1 or not _speaks_of_names(error):
                    raise
        names = [replace(signal, metrics=(each,)) for each in signal.metrics]
        # All come to their end, so that none is under way when the read is tried again.
        found = await asyncio.gather(
            *(self._read(each, start, end, deadline) for each in names), return_exceptions=True
        )
        readings = [*map(_unless_failed, found)]
        self._has_exact_names_only |= len(readings) > 1
        return _joined(readings)

    async def _read(self, signal: Signal, start: datetime, end: datetime, deadline: float) -> SignalReading:
        start_ms, end_ms = _unix_ms(start), _unix_ms(end)
        span = timedelta(milliseconds=end_ms - start_ms)
        query = _Query(
            name=signal.name,
            promql=signal_query(signal, matchers=self._config.matchers, span=span),
            at_ms=end_ms,
            decode=lambda answer: SignalReading(
                matrix(answer, after_s=start_ms / 1000, names=signal.metrics), answer.server_time
            ),
        )
        return await self._ask(query, deadline)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        """The instant vector of the operator's query. Raises: ReadError."""
        return await self._ask(_Query(name="demand", promql=promql, at_ms=_unix_ms(at), decode=vector))

    async def ranges(self, promql: str, *, at: datetime) -> Sequence[RawSeries]:
        """The series of a range vector, such as a subquery. One at a time: samples come first. Raises: ReadError."""
        query = _Query(
            name="page", promql=promql, at_ms=_unix_ms(at), decode=lambda answer: [*matrix(answer, after_s=0.0)]
        )
        async with self._ranges_turn:
            return await self._ask(query)

    def query_of_pods(self, signal: Signal, *, namespace: str, pods: Collection[str], span: timedelta) -> list[str]:
        """The range selectors of the signal of these pods, for both conventions of exporters, as the server takes them.

        By the rules of the settings a series may name other pods yet: whoever reads it has to look.
        """
        names = [(each,) for each in signal.metrics] if self._has_exact_names_only else [signal.metrics]
        return [
            signal_query(
                replace(signal, metrics=each),
                matchers=self._config.matchers,
                span=span,
                more=(f"{prefix}namespace={quoted(namespace)}", f"{prefix}pod=~{any_of(sorted(pods))}"),
            )
            for prefix in ("exported_", "")
            for each in names
        ]

    async def close(self) -> None:
        """Cancel the requests under way and close the connections. Later calls raise RuntimeError."""
        for attempt in list(self._attempts):
            attempt.abort()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._connect.close()

    # ---- retrying

    async def _ask(self, query: _Query[_T], deadline: float | None = None) -> _T:
        """The answer by the deadline, of the monotonic clock; without one within the settings' timeout."""
        if deadline is None:
            deadline = time.monotonic() + self._config.timeout.total_seconds()
        budget_s = max(0.0, deadline - time.monotonic())
        retrying = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            wait=_pause_s,
            stop=stop_after_attempt(self._config.attempts) | stop_before_delay(budget_s),
            reraise=True,
        )
        try:
            return await retrying(self._observed, query, deadline)
        except ReadError as error:
            error.args = (f"Prometheus at {self._config.base_url}: {error}",)
            raise

    async def _observed(self, query: _Query[_T], deadline: float) -> _T:
        started = time.monotonic()
        try:
            value, size_bytes = await self._send(query, deadline)
        except ReadError as error:
            self._observe(ReadRecord(query=query.name, outcome=error.outcome, seconds=time.monotonic() - started))
            raise
        seconds = time.monotonic() - started
        self._observe(ReadRecord(query=query.name, outcome=ReadOutcome.OK, seconds=seconds, size_bytes=size_bytes))
        return value

    # ---- one request

    async def _send(self, query: _Query[_T], deadline: float) -> tuple[_T, int]:
        """What the answer says, and its size. The thread is freed when the time is up or the caller gives up."""
        attempt = AbortableRequest()
        self._attempts.add(attempt)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await loop.run_in_executor(self._threads, self._request, query, attempt, deadline)
        except TimeoutError:
            limit = format_duration(self._config.timeout)
            raise ReadError(
                ReadOutcome.TIMEOUT, f"no complete answer within {limit}; raise timeout or narrow the query"
            ) from None
        finally:
            attempt.abort()
            self._attempts.discard(attempt)

    def _request(self, query: _Query[_T], attempt: AbortableRequest, deadline: float) -> tuple[_T, int]:
        """Runs in a thread. The server gets the timeout; the socket waits slightly longer than the caller."""
        remaining_s = max(0.001, deadline - time.monotonic())
        parameters = {
            **self._config.fixed_parameters,
            "time": f"{query.at_ms / 1000:.3f}",
            "timeout": f"{max(1, int(remaining_s * 1000))}ms",
        }
        with attempt.running():
            answer: QueryResult = self._connect.custom_query(
                query.promql, params=parameters, timeout=remaining_s + _SOCKET_GRACE_S
            )
        return query.decode(answer), answer.size_bytes


def _speaks_of_names(error: ReadError) -> bool:
    """Whether a refusal may be one of several names in one query, as Google's Monarch takes no pattern there.

    Source: cloud.google.com "PromQL compatibility" ("Matching on metric names"); GoogleCloudPlatform/prometheus-engine,
    issue 1601 ("=~ is an unsupported matchtype for the __name__ label").
    """
    return error.outcome is ReadOutcome.REFUSED and "__name__" in str(error)


def _unless_failed(found: SignalReading | BaseException) -> SignalReading:
    if isinstance(found, BaseException):
        raise found
    return found


def _joined(readings: Sequence[SignalReading]) -> SignalReading:
    """The readings as one answer; its time that of the first to be sent."""
    times = [each.server_time for each in readings if each.server_time is not None]
    columns = SeriesColumns(lambda: chain.from_iterable(each.batches() for each in readings))
    return SignalReading(columns, min(times, default=None))


def _unix_ms(instant: datetime) -> int:
    """Prometheus' time. Rounded down: what is not over yet at `instant` belongs to the next read."""
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def _may_pass(error: BaseException) -> bool:
    """Whether to try again. After a timeout there is no time left to do so."""
    return isinstance(error, ReadError) and error.transient and error.outcome is not ReadOutcome.TIMEOUT


def _pause_s(state: RetryCallState) -> float:
    """Random, so that replicas of the scaler do not come back together, and never shorter than the server asks."""
    error = state.outcome.exception() if state.outcome else None
    return max(_backoff(state), error.retry_after_s if isinstance(error, ReadError) else 0.0)
