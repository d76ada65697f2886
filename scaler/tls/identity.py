"""May this client ask? The names in its certificate against those that settings allow.

The TLS library has checked before that a configured authority has signed it; here only its names are compared. Every
alternative name counts, and the common name, since clients' certificates often have nothing else. DNS names are
compared without regard to case; there are no patterns, because who may suspend workloads is worth a list.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """What a client has shown in this connection."""

    names: Sequence[str]
    """Alternative names and the common name, in the order of the certificate."""
    not_after: datetime | None = None
    """None where it cannot be known."""


@dataclass(frozen=True, slots=True)
class IdentityNotAllowed:
    """There is a certificate, and it is not one of those that may ask."""

    reason: str


@dataclass(frozen=True, slots=True)
class CertificateMissing:
    """There is no certificate."""

    reason: str


class AllowedClients:
    """The clients that are allowed. Without names, every client with a certificate of a configured authority."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(map(str.lower, names))

    def refusal(
        self, presented: ClientCertificate | None, now: datetime | None = None
    ) -> IdentityNotAllowed | CertificateMissing | None:
        """Why the client is not answered; None where it is."""
        if presented is None:
            return CertificateMissing(
                "no client certificate was presented; present one of an authority in clientCaFile"
            )
        if presented.not_after is not None and (now or datetime.now(UTC)) > presented.not_after:
            return IdentityNotAllowed("the client certificate is over; renew it, and connect anew")
        if not self._names or not self._names.isdisjoint(map(str.lower, presented.names)):
            return None
        names = ", ".join(presented.names[:_SHOWN]) or "no name at all"
        return IdentityNotAllowed(
            f"the client certificate is for {names}, which clientNames of the settings does not allow"
        )
