"""Which certificate is to be served? Files → a value that is known to work, or the reason why not.

Laws of this file:

* What is checked is what is served: the files are read once, and that copy is tried out and handed to the servers, so
  that a swap of the Secret volume in between cannot put one pair's certificate beside another pair's key.
* No message holds anything of a key.

A Secret of type `kubernetes.io/tls`, as cert-manager and OpenShift's service-serving certificates write it, is mounted
as `tls.crt`, `tls.key` and, from cert-manager, `ca.crt`.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scaler.documents import read_bytes
from scaler.errors import ConfigurationError
from scaler.tls.certificates import Certificate, certificates_in, ders_in, is_expired, is_not_yet_valid


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    certificate: Path
    """PEM: the server's certificate, then those between it and the authority."""
    key: Path
    client_authorities: Path | None = None
    """PEM: the authorities of clients; None: clients need no certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """What a server shows, and by which authorities it knows its clients. Equal for equal contents of the files."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    client_authorities_pem: bytes | None
    chain: tuple[Certificate, ...] = field(compare=False)
    authorities: tuple[Certificate, ...] = field(compare=False)
    context: ssl.SSLContext = field(compare=False, repr=False)
    """The context for a server of this program that speaks TLS by OpenSSL. gRPC has a TLS library of its own."""

    @property
    def ends(self) -> datetime:
        """When clients refuse it: the first end in the chain."""
        return min(each.not_after for each in self.chain)

    @property
    def trust_ends(self) -> datetime | None:
        """When no client can be known any more: the last end of an authority, since old ones stay in bundles."""
        return max((each.not_after for each in self.authorities), default=None)

    def why_out_of_date(self, now: datetime) -> str:
        """Empty while it is accepted."""
        if late := next((each for each in self.chain if is_expired(each, now)), None):
            return f"its certificate was good until {second(late.not_after)}"
        if early := next((each for each in self.chain if is_not_yet_valid(each, now)), None):
            return f"its certificate is good from {second(early.not_before)} only"
        return ""


def second(instant: datetime) -> str:
    """The instant as people read it, in UTC."""
    return instant.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def read_material(files: CertificateFiles) -> ServerCertificate:
    """What the files hold, tried out. Raises: ConfigurationError."""
    certificate, key = read_bytes(files.certificate), read_bytes(files.key)
    authorities = None if files.client_authorities is None else read_bytes(files.client_authorities)
    return ServerCertificate(
        certificate_pem=certificate,
        key_pem=key,
        client_authorities_pem=authorities,
        chain=_certificates(files.certificate, certificate),
        authorities=() if authorities is None else _certificates(files.client_authorities, authorities),
        context=_context(files, certificate, key, authorities),
    )


def _certificates(path: Path | None, pem: bytes) -> tuple[Certificate, ...]:
    try:
        found = certificates_in(pem)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if not found:
        raise ConfigurationError(f"{path} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    return found


# ------------------------------------------------------------------------------------------------------------- OpenSSL


def _context(files: CertificateFiles, certificate: bytes, key: bytes, authorities: bytes | None) -> ssl.SSLContext:
    """A server's context of exactly these bytes. Raises: ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, certificate, key, names=(files.certificate, files.key))
    if authorities is not None:
        _ask_for_certificates(context, files.client_authorities, authorities)
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, *, names: tuple[object, object]) -> None:
    """Let the context show this certificate. `names` are what the two are called in messages.

    Raises: ConfigurationError.
    """
    try:
        with _as_path(certificate) as certificate_path, _as_path(key) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=_no_password)
    except _PasswordWantedError:
        raise ConfigurationError(f"{names[1]} is encrypted; store the key without a passphrase") from None
    except ssl.SSLError as error:
        reason = "the certificate belongs to another key" if error.reason == "KEY_VALUES_MISMATCH" else _words(error)
        raise ConfigurationError(f"{names[0]} and {names[1]} cannot be used together: {reason}") from None
    except OSError as error:
        raise ConfigurationError(f"{names[0]} cannot be tried out: {error.strerror}") from None


def _ask_for_certificates(context: ssl.SSLContext, path: Path | None, authorities: bytes) -> None:
    """A certificate that a client presents is verified; a client without one is left to the server.

    TLS 1.2 would let a client come back by a session without a look at its certificate, as would tickets.
    """
    try:
        context.load_verify_locations(cadata=b"".join(ders_in(authorities)))
    except ssl.SSLError as error:
        raise ConfigurationError(f"{path} cannot be used: {_words(error)}") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0


def _words(error: ssl.SSLError) -> str:
    """OpenSSL's own; it tells a wrong format from an unknown algorithm, and holds no content."""
    return (error.reason or "its format is not known").replace("_", " ").lower()


class _PasswordWantedError(Exception):
    pass


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal, and wait.
    raise _PasswordWantedError


@contextmanager
def _as_path(content: bytes) -> Iterator[str]:
    """A path that has this content: OpenSSL, as Python shows it, reads pairs from files only.

    It is memory of this process, so that a key is on no disk and a read-only root file system is no obstacle.
    """
    number = os.memfd_create("pem")
    try:
        with os.fdopen(number, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
