"""Does a call get through, as KEDA makes it? One server, looked at by Go's rules: what stands in the way, all of it.

Laws of this file:

* Every obstacle is found at once, where a real client stops at the first: a certificate that is over may be for
  another host, too, and whoever renews it wants to know both.
* What it finds is what Go would: a name has to be among the alternative names, an authority in the middle of a chain
  may be the one that is trusted, the server has to agree to HTTP/2, and TLS is 1.2 at least.
* Nothing is sent but the first words of HTTP/2, which change nothing.

A server that wants a client's certificate and does not like it says nothing at all: with TLS 1.3 the handshake is over
for the client by then, and gRPC merely hangs up. So being hung up on after a good handshake is that.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scaler.core.certificates import Certificate, ders_in, is_over, is_still_to_come, parse
from scaler.tls.calling import Terms
from scaler.tls.material import UnusableError, load_pair, second

_SECONDS = 5.0
"""For each step. KEDA itself waits without end."""

_BEGINNING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""HTTP/2's first words and an empty SETTINGS frame."""
_SETTINGS = 4
_FRAME_HEADER = 9


class Obstacle(StrEnum):
    """Why a call does not get through."""

    NOT_REACHED = "NotReached"
    NO_TLS = "NoTls"
    """The server speaks, and not TLS."""
    ONLY_TLS = "OnlyTls"
    """The server speaks TLS, and is called in the clear."""
    NO_NAMES = "NoNames"
    WRONG_NAME = "WrongName"
    EXPIRED = "Expired"
    NOT_YET_VALID = "NotYetValid"
    UNKNOWN_AUTHORITY = "UnknownAuthority"
    NOT_TRUSTED = "NotTrusted"
    NO_GRPC = "NoGrpc"
    UNUSABLE_PAIR = "UnusablePair"
    CERTIFICATE_WANTED = "CertificateWanted"
    CERTIFICATE_REFUSED = "CertificateRefused"
    IDENTITY_REFUSED = "IdentityRefused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One obstacle, and what was seen."""

    obstacle: Obstacle
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Whom to call, and how."""

    host: str
    """The name that the server has to be good for."""
    at: tuple[str, int]
    """Where it is reached from here."""
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What became of it."""

    faults: tuple[Fault, ...] = ()
    leaf: Certificate | None = None
    """The server's certificate, where it has shown one."""


def examine(call: Call, now: datetime) -> Examined:
    """Blocks for some seconds at worst. Raises nothing that has to do with the server."""
    if not call.terms.encrypted:
        return Examined(faults=tuple(_of_the_clear(call)))
    try:
        leaf = _leaf(call)
    except _StoppedError as stopped:
        return Examined(faults=(stopped.fault,))
    faults = [*_of_names(leaf, call.host), *_of_times(leaf, now), *_of_trust(call, leaf, now)]
    if not call.terms.verifies:
        faults = []
    return Examined(faults=tuple(faults or _of_speech(call, now)), leaf=leaf)


class _StoppedError(Exception):
    def __init__(self, obstacle: Obstacle, what: str) -> None:
        super().__init__(what)
        self.fault = Fault(obstacle=obstacle, what=what)


# ---------------------------------------------------------------------------------------------------------- connections


@contextmanager
def _connected(call: Call) -> Iterator[socket.socket]:
    """Raises: _StoppedError where nobody answers."""
    host, port = call.at
    try:
        connection = socket.create_connection((host, port), timeout=_SECONDS)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise _StoppedError(Obstacle.NOT_REACHED, f"{host}:{port} cannot be reached from here: {reason}") from None
    with connection:
        yield connection


@contextmanager
def _secured(call: Call, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """Raises: _StoppedError; ssl.SSLCertVerificationError, which only a context that verifies gives."""
    with _connected(call) as plain:
        try:
            secure = context.wrap_socket(plain, server_hostname=call.host)
        except ssl.SSLCertVerificationError:
            raise
        except ssl.SSLError as error:
            raise _StoppedError(*_of_handshake(error, call.terms)) from None
        except TimeoutError:
            raise _StoppedError(Obstacle.NOT_REACHED, f"it does not answer within {_SECONDS:g} s") from None
        except OSError:
            raise _StoppedError(Obstacle.NO_TLS, "it hangs up when TLS is spoken to it") from None
        with secure:
            yield secure


def _of_handshake(error: ssl.SSLError, terms: Terms) -> tuple[Obstacle, str]:
    reason = error.reason or ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE_FAILURE" in reason):
        wanted = Obstacle.CERTIFICATE_REFUSED if terms.has_certificate else Obstacle.CERTIFICATE_WANTED
        return wanted, f"it ends the handshake: {reason.replace('_', ' ').lower()}"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE") or "EOF" in reason:
        return Obstacle.NO_TLS, "it does not answer with TLS"
    return Obstacle.NOT_TRUSTED, f"the handshake fails: {reason.replace('_', ' ').lower() or error}"


def _context(terms: Terms) -> ssl.SSLContext:
    """One that looks at nothing. Raises: _StoppedError where the client's own pair cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if terms.has_certificate:
        try:
            load_pair(context, terms.certificate_pem, terms.key_pem, names=("tlsClientCert", "tlsClientKey"))
        except UnusableError as error:
            raise _StoppedError(Obstacle.UNUSABLE_PAIR, str(error)) from None
    return context


# ----------------------------------------------------------------------------------------------- what stands in the way


def _leaf(call: Call) -> Certificate:
    """Raises: _StoppedError."""
    with _secured(call, _context(call.terms)) as secure:
        der = secure.getpeercert(binary_form=True) or b""
    try:
        return parse(der)
    except ValueError:
        raise _StoppedError(Obstacle.NOT_TRUSTED, "it shows something that is no certificate") from None


def _of_names(leaf: Certificate, host: str) -> Iterator[Fault]:
    if leaf.is_for(host):
        return
    if leaf.names:
        yield Fault(
            obstacle=Obstacle.WRONG_NAME, what=f"its certificate is for {', '.join(leaf.names)}, not for {host}"
        )
        return
    common = f", only the common name {leaf.common_name}" if leaf.common_name else ""
    yield Fault(obstacle=Obstacle.NO_NAMES, what=f"its certificate has no subject alternative names{common}")


def _of_times(leaf: Certificate, now: datetime) -> Iterator[Fault]:
    if is_over(leaf, now):
        yield Fault(obstacle=Obstacle.EXPIRED, what=f"its certificate was good until {second(leaf.not_after)}")
    elif is_still_to_come(leaf, now):
        what = f"its certificate is good from {second(leaf.not_before)} only, and here it is {second(now)}"
        yield Fault(obstacle=Obstacle.NOT_YET_VALID, what=what)


_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's X509_V_ERR_ codes: no issuer to be found, a self-signed one that is not trusted, no signature to check."""


def _of_trust(call: Call, leaf: Certificate, now: datetime) -> Iterator[Fault]:
    """By its signature; whatever is the matter with the leaf's own times has been said."""
    context = _context(call.terms)
    context.verify_mode = ssl.CERT_REQUIRED
    # Go stops at any certificate that it was given, be it that of an intermediate authority or the server's own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_default_certs()
    _trust(context, call.terms.authorities_pem)
    try:
        with _secured(call, context):
            return
    except _StoppedError as stopped:
        yield stopped.fault
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _UNKNOWN:
            what = f"its certificate is of an authority that is not known: {error.verify_message}"
            yield Fault(obstacle=Obstacle.UNKNOWN_AUTHORITY, what=what)
        elif error.verify_code not in (_EXPIRED, _NOT_YET_VALID):
            yield Fault(obstacle=Obstacle.NOT_TRUSTED, what=f"its certificate is refused: {error.verify_message}")
        elif not [*_of_times(leaf, now)]:
            obstacle = Obstacle.EXPIRED if error.verify_code == _EXPIRED else Obstacle.NOT_YET_VALID
            what = f"a certificate between its own and the authority, or the authority's: {error.verify_message}"
            yield Fault(obstacle=obstacle, what=what)


def _trust(context: ssl.SSLContext, pem: bytes) -> None:
    """As Go does: what cannot be read is passed over."""
    with suppress(ValueError):
        for der in ders_in(pem):
            with suppress(ssl.SSLError):
                context.load_verify_locations(cadata=der)


def _of_speech(call: Call, now: datetime) -> Iterator[Fault]:
    try:
        with _secured(call, _context(call.terms)) as secure:
            if secure.selected_alpn_protocol() != "h2":
                what = "it does not agree to HTTP/2 (ALPN h2), which gRPC in Go insists on"
                yield Fault(obstacle=Obstacle.NO_GRPC, what=what)
                return
            heard = _answer(secure)
    except _StoppedError as stopped:
        yield stopped.fault
        return
    if heard is None:
        yield Fault(obstacle=Obstacle.NO_GRPC, what=f"it says nothing within {_SECONDS:g} s")
    elif not heard:
        yield _hung_up(call.terms, now)
    elif not _is_http2(heard):
        yield Fault(obstacle=Obstacle.NO_GRPC, what="it does not answer in HTTP/2")


def _hung_up(terms: Terms, now: datetime) -> Fault:
    if not terms.has_certificate:
        what = "it hangs up on a client that shows no certificate"
        return Fault(obstacle=Obstacle.CERTIFICATE_WANTED, what=what)
    why = "it hangs up on the client certificate"
    with suppress(ValueError, IndexError):
        own = parse(ders_in(terms.certificate_pem)[0])
        if is_over(own, now):
            why = f"{why}, which was good until {second(own.not_after)}"
        elif is_still_to_come(own, now):
            why = f"{why}, which is good from {second(own.not_before)} only"
    return Fault(obstacle=Obstacle.CERTIFICATE_REFUSED, what=why)


def _of_the_clear(call: Call) -> Iterator[Fault]:
    try:
        with _connected(call) as plain:
            if _is_http2(_answer(plain) or b""):
                return
        with _secured(call, _context(call.terms)):
            pass
    except _StoppedError as stopped:
        if stopped.fault.obstacle is Obstacle.NOT_REACHED:
            yield stopped.fault
            return
        if stopped.fault.obstacle is Obstacle.NO_TLS:
            yield Fault(obstacle=Obstacle.NO_GRPC, what="it speaks neither HTTP/2 nor TLS")
            return
    yield Fault(obstacle=Obstacle.ONLY_TLS, what="it speaks TLS, and is called in the clear")


def _answer(connection: socket.socket) -> bytes | None:
    """The first of what it says to a client that begins HTTP/2; empty where it hangs up, None where it is silent."""
    heard = b""
    try:
        connection.sendall(_BEGINNING)
        while len(heard) < _FRAME_HEADER and (more := connection.recv(1024)):
            heard += more
    except TimeoutError:
        return None
    except OSError:
        return b""
    return heard


def _is_http2(heard: bytes) -> bool:
    """A server's first frame is SETTINGS."""
    return len(heard) >= _FRAME_HEADER and heard[3] == _SETTINGS
