"""The sources of samples: the protocols that Prometheus and dcgm-exporter implement, and how a read may fail."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain, islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scaler.errors import SourceError
from scaler.idleness.gpu import Signal


class ReadOutcome(StrEnum):
    """How one HTTP request ended. Metric labels use these words."""

    OK = "ok"
    TIMEOUT = "timeout"
    """No complete answer came in time."""
    UNREACHABLE = "unreachable"
    """No connection, a broken one, or one whose certificate is not to be trusted."""
    UNAVAILABLE = "unavailable"
    """The server or a proxy before it is overloaded, starting or broken: 429 and 5xx."""
    DENIED = "denied"
    """401 or 403, or credentials that cannot be read."""
    REFUSED = "refused"
    """The server understood and will not: a bad query, too many samples, an unknown parameter."""
    PARTIAL = "partial"
    """The server answered and warned: something is missing, and what is missing would look like idleness."""
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"
    """The API or the page that was meant did not answer: HTML, a redirect, another result type, a broken body."""


_TRANSIENT = frozenset({ReadOutcome.TIMEOUT, ReadOutcome.UNREACHABLE, ReadOutcome.UNAVAILABLE, ReadOutcome.PARTIAL})


class ReadError(SourceError):
    """A read failed; its answer, where there was one, may not be used."""

    def __init__(
        self, outcome: ReadOutcome, message: str, *, transient: bool | None = None, retry_after_s: float = 0.0
    ) -> None:
        """`transient` where it is not what the outcome implies; `retry_after_s`: the pause that the server asks for."""
        super().__init__(message, transient=outcome in _TRANSIENT if transient is None else transient)
        self.outcome = outcome
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    query: str
    """The signal's name, `demand`, `page` or `scrape`."""
    outcome: ReadOutcome
    seconds: float
    size_bytes: int = 0
    """Decompressed size of the answer; 0 where there is none to use."""
    endpoint: str = ""
    """URL of the page that was scraped."""
    reason: str = ""
    """Why a scrape has failed, for an operator's eyes."""


class RawSeries(Protocol):
    """One series as a source returned it, before relabelling."""

    @property
    def key(self) -> bytes:
        """Identifies the label set: equal keys mean equal labels, so relabelling can be remembered by key."""

    def labels(self) -> dict[str, str]:
        """The labels, metric name included as `__name__`."""

    def samples(self) -> Sequence[tuple[float, float]]:
        """(Unix seconds, value in the signal's own unit), each sample with the time it was really taken."""


class SeriesBatch(NamedTuple):
    """Series in columns: keys and counts have an element a series, times and values one a sample, series by series."""

    keys: Sequence[bytes]
    counts: Sequence[int]
    """How many samples each has."""
    at_s: NDArray[np.float64]
    """Unix seconds."""
    values: NDArray[np.float64]
    """The values in the signal's own unit."""
    labels_of: Callable[[int], dict[str, str]]
    """The labels of the series at that position."""


class SeriesColumns(Iterable[RawSeries]):
    """Series that a source gives in columns. Each batch is read when it is its turn; a single series when asked for."""

    def __init__(self, batches: Callable[[], Iterator[SeriesBatch]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[RawSeries]:
        for batch in self.batches():
            samples = list(zip(batch.at_s.tolist(), batch.values.tolist(), strict=True))
            end = 0
            for position, (key, count) in enumerate(zip(batch.keys, batch.counts, strict=True)):
                start, end = end, end + count
                yield _ReadSeries(key, batch.labels_of, position, samples[start:end])


class _ReadSeries:
    """Implements RawSeries."""

    def __init__(
        self,
        key: bytes,
        labels_of: Callable[[int], dict[str, str]],
        position: int,
        samples: Sequence[tuple[float, float]],
    ) -> None:
        self.key = key
        self._labels_of, self._position, self._samples = labels_of, position, samples

    def labels(self) -> dict[str, str]:
        return self._labels_of(self._position)

    def samples(self) -> Sequence[tuple[float, float]]:
        return self._samples


_SERIES_PER_BATCH = 512
"""The series of one batch, about a millisecond's work."""


class SignalReading(NamedTuple):
    series: Iterable[RawSeries]
    server_time: datetime | None
    """The source's own clock when it answered, where it says; to detect skew."""

    def batches(self) -> Iterator[SeriesBatch]:
        """The samples in columns, some hundred series at a time. Raises: SourceError for samples that cannot be
        read."""
        if isinstance(self.series, SeriesColumns):
            yield from self.series.batches()
            return
        left = iter(self.series)
        while some := [*islice(left, _SERIES_PER_BATCH)]:
            yield _in_columns(some)


def _in_columns(series: Sequence[RawSeries]) -> SeriesBatch:
    samples = [each.samples() for each in series]
    flat = np.array([*chain.from_iterable(samples)], np.float64).reshape(-1, 2)
    return SeriesBatch(
        keys=[each.key for each in series],
        counts=[*map(len, samples)],
        at_s=flat[:, 0],
        values=flat[:, 1],
        labels_of=lambda position: series[position].labels(),
    )


class SignalSource(Protocol):
    """A source of samples for the evaluation loop."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        """Every raw sample of the signal in (start, end], cluster-wide, in one query.

        Raises: SourceError where the read failed, was partial, or cannot be trusted to be complete.
        """


class VectorSample(NamedTuple):
    """One element of the instant vector that a query gives."""

    labels: Mapping[str, str]
    value: float


class InstantQuerySource(Protocol):
    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        """The instant vector of the query. Raises: SourceError."""
