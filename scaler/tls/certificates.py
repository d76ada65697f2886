"""What does a certificate say: for which names, from when and until when? X.509 in PEM or DER → a value.

Laws of this file:

* It reads and does not verify: signatures and chains are left to the TLS libraries. What it says decides about messages
  and metrics, never about trust.
* Names are compared as Go does, because KEDA is written in Go: an address only with addresses, a wildcard for the
  whole first label and only for one, and never the common name: `*.gpus.svc` fits `a.gpus.svc`, not `a.b.gpus.svc`.

Source: Go, crypto/x509/verify.go.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = b"-----BEGIN CERTIFICATE-----"
_FOR_SERVERS = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
_MALFORMED = (ValueError, TypeError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    not_before: datetime
    not_after: datetime
    common_name: str = ""
    dns_names: tuple[str, ...] = ()
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    other_names: tuple[str, ...] = ()
    """URIs and mail addresses."""
    is_self_issued: bool = False
    is_for_servers: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """All alternative names, as they are written in settings and messages."""
        return (*self.dns_names, *map(str, self.addresses), *self.other_names)

    def is_for(self, host: str) -> bool:
        """Whether Go would accept it from a server of that name."""
        try:
            return ip_address(host.strip("[]")) in self.addresses
        except ValueError:
            return any(_fits(pattern, host) for pattern in self.dns_names)


def _fits(pattern: str, host: str) -> bool:
    expected, given = pattern.lower().split("."), host.lower().removesuffix(".").split(".")
    if len(expected) != len(given) or not all(given):
        return False
    return expected == given or (expected[0] == "*" and len(expected) > 1 and expected[1:] == given[1:])


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def certificates_in(pem: bytes) -> tuple[Certificate, ...]:
    """Every certificate in the text, in its order; what is between them, such as a key, is skipped.

    Raises: ValueError where one of them cannot be read.
    """
    return tuple(map(parse, ders_in(pem)))


def ders_in(pem: bytes) -> list[bytes]:
    """Every certificate in the text as DER. Raises: ValueError where one of them cannot be read."""
    if _PEM not in pem:
        return []
    try:
        return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(pem)]
    except _MALFORMED:
        raise _UNREADABLE from None


_UNREADABLE = ValueError("a certificate in it cannot be read; was it cut off?")


def parse(der: bytes) -> Certificate:
    """Raises: ValueError for what is not a certificate."""
    try:
        found = x509.load_der_x509_certificate(der)
        names = _extension(found, x509.SubjectAlternativeName) or x509.SubjectAlternativeName([])
        usage = _extension(found, x509.ExtendedKeyUsage)
        common_names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        others = (x509.UniformResourceIdentifier, x509.RFC822Name)
        return Certificate(
            not_before=found.not_valid_before_utc,
            not_after=found.not_valid_after_utc,
            common_name=str(common_names[-1].value) if common_names else "",  # the last one is the most specific
            dns_names=tuple(names.get_values_for_type(x509.DNSName)),
            addresses=tuple(
                each
                for each in names.get_values_for_type(x509.IPAddress)
                if isinstance(each, IPv4Address | IPv6Address)
            ),
            other_names=tuple(name for kind in others for name in names.get_values_for_type(kind)),
            is_self_issued=found.issuer == found.subject,
            is_for_servers=usage is None or not _FOR_SERVERS.isdisjoint(usage),
        )
    except _MALFORMED:
        raise _UNREADABLE from None


def _extension(found: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return found.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def is_expired(certificate: Certificate, now: datetime) -> bool:
    return now > certificate.not_after


def is_not_yet_valid(certificate: Certificate, now: datetime) -> bool:
    return now < certificate.not_before


def is_renewal_overdue(certificate: Certificate, now: datetime) -> bool:
    """Whether less than a sixth of its lifetime is left, or a week of a longer one.

    cert-manager renews after two thirds of the lifetime, OpenShift a year before the end; by hand a week is enough.
    """
    lifetime = certificate.not_after - certificate.not_before
    return certificate.not_after - now < min(lifetime / 6, timedelta(days=7))


# ----------------------------------------------------------------------------------------------------------- clients


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """What a client has presented in this connection."""

    names: Sequence[str]
    """Alternative names and the common name, in the order of the certificate."""
    not_after: datetime | None = None
    """The end of its validity; None where it cannot be known."""


@dataclass(frozen=True, slots=True)
class ClientRefusal:
    reason: str
    is_unidentified: bool = False
    """Whether it has presented no certificate; else it is of another identity, or too late."""


class AllowedClients:
    """The clients that are answered: without names, every one with a certificate of a configured authority.

    The TLS library has verified the certificate before. Every alternative name counts, and the common name, since
    clients' certificates often have nothing else; without regard to case, and without patterns.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(map(str.lower, names))

    def refusal(self, presented: ClientCertificate | None, now: datetime | None = None) -> ClientRefusal | None:
        """Why the client is not answered; None where it is."""
        if presented is None:
            missing = "no client certificate was presented; present one of an authority in clientCaFile"
            return ClientRefusal(missing, is_unidentified=True)
        if presented.not_after is not None and (now or datetime.now(UTC)) > presented.not_after:
            return ClientRefusal("the client certificate is over; renew it, and connect anew")
        if not self._names or not self._names.isdisjoint(map(str.lower, presented.names)):
            return None
        names = ", ".join(presented.names[:5]) or "no name at all"
        return ClientRefusal(f"the client certificate is for {names}, which clientNames of the settings does not allow")
