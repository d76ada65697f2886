"""What does a certificate say: for whom it is, from when and until when? X.509 in PEM or DER → a value.

Laws of this file:

* It reads, and judges nobody: signatures and chains are left to the TLS libraries. What it says decides about words
  and metrics, and never about trust.
* Names are compared as Go does, because KEDA is written in Go: an address only with addresses, a wildcard for the
  whole first label and only for one, and never the common name, however well it fits.

`idle-gpu-scaler.gpus.svc` and a certificate for `*.gpus.svc` fit; `a.idle-gpu-scaler.gpus.svc` does not, and neither
does `gpus.svc`. The common name alone fits nothing, so such a certificate has no names at all.

Tempting: a library for X.509. It would be the program's largest dependency, for two times and a list of names.

Source: RFC 5280 §4.1, X.690; Go, crypto/x509/verify.go.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")

_SEQUENCE, _OCTETS, _OID = 0x30, 0x04, 0x06
_UTC_TIME, _LONG_TIME = 0x17, 0x18
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_EMAIL, _DNS, _URI, _IP = 0x81, 0x82, 0x86, 0x87
"""Choices of GeneralName that are looked at."""
_WIDE_TEXT = 0x1E

_COMMON_NAME = bytes.fromhex("550403")
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What one certificate says of itself."""

    not_before: datetime
    not_after: datetime
    common_name: str = ""
    dns_names: tuple[str, ...] = ()
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    uris: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    is_self_issued: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All alternative names, as they are written in settings and messages."""
        return (*self.dns_names, *(str(each) for each in self.addresses), *self.uris, *self.emails)

    def is_for(self, host: str) -> bool:
        """Whether Go would accept it from a server of that name."""
        try:
            return ip_address(host.strip("[]")) in self.addresses
        except ValueError:
            return any(_fits(pattern, host) for pattern in self.dns_names)


def _fits(pattern: str, host: str) -> bool:
    wanted, given = pattern.lower().split("."), host.lower().removesuffix(".").split(".")
    if len(wanted) != len(given) or not all(given):
        return False
    return wanted == given or (wanted[0] == "*" and len(wanted) > 1 and wanted[1:] == given[1:])


def certificates_in(pem: bytes) -> tuple[Certificate, ...]:
    """Every certificate in the text, in its order; whatever stands between them, such as a key, is passed over.

    Raises: ValueError where one of them cannot be read.
    """
    return tuple(map(parse, ders_in(pem)))


def ders_in(pem: bytes) -> list[bytes]:
    """Every certificate in the text as it is. Raises: ValueError where one of them is not even base64."""
    return [_decoded(each) for each in _PEM.findall(pem)]


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(b"".join(text.split()), validate=True)
    except NotBase64:
        raise _UNREADABLE from None


_UNREADABLE = ValueError("a certificate in it cannot be read; was it cut off?")


def parse(der: bytes) -> Certificate:
    """Raises: ValueError for what is not a certificate."""
    try:
        [(tag, whole)] = _elements(der)
        if tag != _SEQUENCE:
            raise _UNREADABLE
        signed = [*_elements(next(_elements(whole))[1])]
        signed = signed[1:] if signed[0][0] == _VERSION else signed
        (_, issuer), (_, validity), (_, subject) = signed[2:5]
        (not_before, not_after), extensions = _elements(validity), _extensions(signed[6:])
        alternatives = [*_alternatives(extensions.get(_ALTERNATIVE_NAMES, b""))]
        return Certificate(
            not_before=_instant(*not_before),
            not_after=_instant(*not_after),
            common_name=_common_name(subject),
            dns_names=tuple(_text(value) for tag, value in alternatives if tag == _DNS),
            addresses=tuple(ip_address(value) for tag, value in alternatives if tag == _IP),
            uris=tuple(_text(value) for tag, value in alternatives if tag == _URI),
            emails=tuple(_text(value) for tag, value in alternatives if tag == _EMAIL),
            is_self_issued=issuer == subject,
        )
    except (ValueError, IndexError, StopIteration):
        raise _UNREADABLE from None


# ----------------------------------------------------------------------------------------------------------------- DER


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element in a row. Raises: ValueError, IndexError where it is cut off."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length >= 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            raise _UNREADABLE
        yield tag, data[at : at + length]
        at += length


def _extensions(fields: list[tuple[int, bytes]]) -> dict[bytes, bytes]:
    """Content of each extension by its object identifier."""
    found = {}
    for listed in (content for tag, content in fields if tag == _EXTENSIONS):
        for _, extension in _elements(next(_elements(listed))[1]):
            parts = dict(_elements(extension))
            found[parts.get(_OID, b"")] = parts.get(_OCTETS, b"")
    return found


def _alternatives(extension: bytes) -> Iterator[tuple[int, bytes]]:
    for _, names in _elements(extension):
        yield from _elements(names)


def _common_name(subject: bytes) -> str:
    """The last one, which is the most specific; empty where there is none."""
    found = ""
    for _, relative in _elements(subject):
        for _, attribute in _elements(relative):
            (_, kind), (tag, value) = _elements(attribute)
            if kind == _COMMON_NAME:
                found = value.decode("utf-16-be" if tag == _WIDE_TEXT else "utf-8", errors="replace")
    return found


def _text(value: bytes) -> str:
    return value.decode("ascii", errors="replace")


def _instant(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year: RFC 5280 §4.1.2.5.1 takes those from 50 on for the last century.
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _LONG_TIME:
        raise _UNREADABLE
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


# --------------------------------------------------------------------------------------------------------------- times


def is_over(certificate: Certificate, now: datetime) -> bool:
    return now > certificate.not_after


def is_still_to_come(certificate: Certificate, now: datetime) -> bool:
    return now < certificate.not_before


def is_nearly_over(certificate: Certificate, now: datetime) -> bool:
    """Whether a renewal is overdue: less than a sixth of its life is left, or a week of a longer one.

    cert-manager renews after two thirds of the life, OpenShift a year before the end. A sixth of 90 days would be 15
    days, and nobody who renews by hand wants to hear of it that early, so it is 7 days from 42 days of life on.
    """
    life = certificate.not_after - certificate.not_before
    return certificate.not_after - now < min(life / 6, timedelta(days=7))
