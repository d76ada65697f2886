"""Where samples come from: the protocols that Prometheus and dcgm-exporter implement, as small as their users need."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from scaler.idleness.gpu import Signal


class RawSeries(Protocol):
    """One series as a source returned it, before relabelling."""

    @property
    def key(self) -> bytes:
        """Identifies the label set: equal keys mean equal labels, so relabelling can be remembered by key."""

    def labels(self) -> dict[str, str]:
        """The labels, metric name included as `__name__`."""

    def samples(self) -> Sequence[tuple[float, float]]:
        """(Unix seconds, value in the signal's own unit), each sample with the time it was really taken."""


class SignalReading(NamedTuple):
    """A complete, successful read of one signal."""

    series: Sequence[RawSeries]
    server_time: datetime | None
    """The source's own clock when it answered, where it says; to detect skew."""


class SignalSource(Protocol):
    """Where samples come from. Used by the evaluation loop."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        """Every raw sample of the signal in (start, end], cluster-wide, in one query.

        Raises: SourceError where the read failed, was partial, or cannot be trusted to be complete.
        """


class VectorSample(NamedTuple):
    """One element of the instant vector that a query gives."""

    labels: Mapping[str, str]
    value: float


class InstantQuerySource(Protocol):
    """Answers the operator's wake queries."""

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        """The instant vector of the query. Raises: SourceError."""
