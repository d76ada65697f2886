"""The Protocols by which the loops and the gRPC servicer see the world, each as small as its consumer needs."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from scaler.core.gpu import Signal
from scaler.core.policy import Overrides
from scaler.core.replicas import Answer


class RawSeries(Protocol):
    """One series as a source returned it, before relabelling."""

    @property
    def key(self) -> bytes:
        """Stands for the label set: equal keys mean equal labels, so relabelling can be remembered by key."""

    def labels(self) -> dict[str, str]:
        """The labels, metric name included as `__name__`."""

    def samples(self) -> Sequence[tuple[float, float]]:
        """(Unix seconds, value in the signal's own unit), each sample with the time it was really taken."""


class Reading(NamedTuple):
    """A complete, successful read of one signal."""

    series: Sequence[RawSeries]
    server_time: datetime | None
    """The source's own clock when it answered, where it says; to detect skew."""


class SignalSource(Protocol):
    """Where samples come from. Used by the evaluation loop."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> Reading:
        """Every raw sample of the signal in (start, end], cluster-wide, in one query.

        Raises: SourceError where the read failed, was partial, or cannot be trusted to be complete.
        """


class Demand(NamedTuple):
    """One element of an operator's demand query."""

    labels: Mapping[str, str]
    value: float


class DemandSource(Protocol):
    """Answers an operator-configured demand query. Used by the evaluation loop to wake workloads."""

    async def demand(self, promql: str, *, at: datetime) -> Sequence[Demand]:
        """The instant vector of the query. Raises: SourceError."""


class DecisionBoard(Protocol):
    """The answers, ready to be read. Used by the gRPC servicer; nothing behind it ever waits on a backend."""

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        """The standing answer for a ScaledObject's trigger; `NoAnswer` where there is none usable."""

    def activations(self, namespace: str, name: str, trigger: Overrides) -> AsyncIterator[Answer]:
        """The current answer where there is a usable one, then one `Active` answer per change to active.

        Ends when the board is closed (drain). Never raises because an answer is not usable: it waits.
        """

    @property
    def is_ready(self) -> bool:
        """Whether a first full snapshot was evaluated."""
