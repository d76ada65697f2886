"""Every way in which a query can fail, as a type: what it means, and whether trying again can help.

All of them are SourceErrors; the loops need to know no more. The types are for telemetry, tests and the retry.
"""

from enum import StrEnum
from typing import ClassVar

from scaler.errors import SourceError


class QueryOutcome(StrEnum):
    """How one HTTP request ended. Metric labels use these words."""

    OK = "ok"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"
    REFUSED = "refused"
    PARTIAL = "partial"
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"


class PrometheusError(SourceError):
    """A query failed; its answer, where there was one, may not be used."""

    outcome: ClassVar[QueryOutcome]
    is_transient: ClassVar[bool]

    def __init__(self, message: str, *, transient: bool | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(message, transient=self.is_transient if transient is None else transient)
        self.retry_after_s = retry_after_s
        """How long the server asked to be left alone."""


class QueryTimeoutError(PrometheusError):
    """No complete answer came in time. The time was all there was, so it is not tried again within the same read."""

    outcome = QueryOutcome.TIMEOUT
    is_transient = True


class UnreachableError(PrometheusError):
    """No connection, a broken one, or one whose certificate is not to be trusted."""

    outcome = QueryOutcome.UNREACHABLE
    is_transient = True


class UnavailableError(PrometheusError):
    """The server or a proxy before it is overloaded, starting or broken: 429 and 5xx."""

    outcome = QueryOutcome.UNAVAILABLE
    is_transient = True


class AccessDeniedError(PrometheusError):
    """401 or 403, or credentials that cannot be read."""

    outcome = QueryOutcome.DENIED
    is_transient = False


class QueryRefusedError(PrometheusError):
    """The server understood and will not: a bad query, too many samples, an unknown parameter."""

    outcome = QueryOutcome.REFUSED
    is_transient = False


class PartialAnswerError(PrometheusError):
    """The server answered and warned: something is missing, and what is missing would look like idleness."""

    outcome = QueryOutcome.PARTIAL
    is_transient = True


class AnswerTooLargeError(PrometheusError):
    """More bytes than a read may take."""

    outcome = QueryOutcome.TOO_LARGE
    is_transient = False


class ProtocolError(PrometheusError):
    """What answered does not speak Prometheus' API: HTML, a redirect, another result type, a body that breaks off."""

    outcome = QueryOutcome.PROTOCOL
    is_transient = False
