"""May this client ask? The names in its certificate against those that settings allow.

The TLS library has checked before that an authority of ours has signed it; here it is only about who it is. Every
alternative name counts, and the common name, since clients' certificates often have nothing else. DNS names are
compared without regard to case; there are no patterns, because who may suspend workloads is worth a list.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """What a client has shown in this connection."""

    names: Sequence[str]
    """Alternative names and the common name, in the order of the certificate."""
    not_after: datetime | None = None
    """None where it cannot be known."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """There is a certificate, and it is not one of those that may ask."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is no certificate."""

    reason: str


class Clients:
    """Who may ask. Without names, everybody whom an authority of ours has given a certificate."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(map(str.lower, names))

    def refusal(self, presented: Presented | None, now: datetime | None = None) -> Stranger | Unknown | None:
        """Why the client is not answered; None where it is."""
        if presented is None:
            return Unknown("no client certificate was presented; present one of an authority in clientCaFile")
        if presented.not_after is not None and (now or datetime.now(UTC)) > presented.not_after:
            return Stranger("the client certificate is over; renew it, and connect anew")
        if not self._names or not self._names.isdisjoint(map(str.lower, presented.names)):
            return None
        names = ", ".join(presented.names[:_SHOWN]) or "no name at all"
        return Stranger(f"the client certificate is for {names}, which clientNames of the settings does not allow")
