"""Is this client allowed? The names in its certificate against those of the settings.

The TLS library has verified the certificate before. Every alternative name counts, and the common name, since clients'
certificates often have nothing else; without regard to case, and without patterns.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """What a client has presented in this connection."""

    names: Sequence[str]
    """Alternative names and the common name, in the order of the certificate."""
    not_after: datetime | None = None
    """None where it cannot be known."""


@dataclass(frozen=True, slots=True)
class IdentityNotAllowed:
    reason: str


@dataclass(frozen=True, slots=True)
class CertificateMissing:
    reason: str


class AllowedClients:
    """Without names, every client with a certificate of a configured authority is allowed."""

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
