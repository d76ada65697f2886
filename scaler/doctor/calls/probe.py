"""Does a call get through as KEDA makes it? One gRPC call of each kind of a poll, with the trigger's credentials.

gRPC's own error decides whether a call gets through. It stops at the first problem and says nothing of names and times,
so the server's certificate is read before, in a handshake that verifies nothing: a certificate that has expired may be
for another host, too. What is compared there is what Go compares and gRPC's C library does not: a common name is no
name, and a certificate for clients is not one for servers.

| gRPC says                                  | which means                                             |
|--------------------------------------------|---------------------------------------------------------|
| CERTIFICATE_VERIFY_FAILED: … expired, …    | Expired, of the server's certificate or one above it    |
| CERTIFICATE_VERIFY_FAILED: anything else   | NotTrusted                                              |
| Hostname Verification                      | NameMismatch                                            |
| an alert, or the connection is closed      | ClientCertificateRefused, if the server speaks TLS      |
| the server does not speak TLS, or only TLS | TLSMismatch                                             |
| no ALPN, HTTP/1, UNIMPLEMENTED             | NotAScaler                                              |

With TLS 1.3 the handshake is over for the client when the server looks at the client's certificate, so the server
merely closes the connection. Nothing is changed by a call.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import grpc

from scaler.doctor.calls.call_credentials import CallCredentials
from scaler.errors import ConfigurationError
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.tls.certificates import Certificate, certificates_in, is_expired, is_not_yet_valid, parse
from scaler.tls.material import load_pair, second

_SECONDS = 5.0
"""Each step may take so long. KEDA itself waits without end."""


class CallProblem(StrEnum):
    NOT_REACHED = "NotReached"
    TLS_MISMATCH = "TLSMismatch"
    """One side speaks TLS and the other does not."""
    NAME_MISMATCH = "NameMismatch"
    EXPIRED = "Expired"
    """The certificate is expired or not yet valid."""
    NOT_TRUSTED = "NotTrusted"
    CLIENT_REFUSED = "ClientCertificateRefused"
    NOT_A_SCALER = "NotAScaler"


class CallFault(NamedTuple):
    problem: CallProblem
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerCall:
    """Which server to call, how, and about which ScaledObject."""

    host: str
    """The name that the server's certificate has to be for."""
    at: tuple[str, int]
    """The address at which it is reached from here."""
    credentials: CallCredentials
    namespace: str = ""
    name: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallResult:
    faults: tuple[CallFault, ...] = ()
    certificate: Certificate | None = None
    """The server's, where it has shown one."""


async def probe(call: ScalerCall, now: datetime) -> CallResult:
    """Every problem that can be found at once. Raises nothing that has to do with the server."""
    try:
        return await (_probe_tls(call, now) if call.credentials.encrypted else _probe_plaintext(call, now))
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = f"{call.at[0]}:{call.at[1]} cannot be reached from here: {reason}"
        return CallResult((CallFault(CallProblem.NOT_REACHED, what),))
    except ConfigurationError as error:
        return CallResult((CallFault(CallProblem.CLIENT_REFUSED, str(error)),))


async def _probe_plaintext(call: ScalerCall, now: datetime) -> CallResult:
    """Raises: OSError where nothing listens."""
    fault = await _rpc_fault(call, call.host, None, now)
    speaks_no_http2 = fault is not None and fault.problem is CallProblem.TLS_MISMATCH
    if speaks_no_http2 and await asyncio.to_thread(_server_certificate, call) is None:
        fault = CallFault(CallProblem.NOT_A_SCALER, "it speaks neither HTTP/2 nor TLS")
    return CallResult((fault,) if fault else ())


async def _probe_tls(call: ScalerCall, now: datetime) -> CallResult:
    """Raises: OSError where nothing listens; ConfigurationError for the trigger's own pair."""
    found = await asyncio.to_thread(_server_certificate, call)
    certificate, pem = found or (None, b"")
    faults: list[CallFault] = []
    if certificate is not None and not call.credentials.verifies:
        return await _probe_unverified(call, certificate, pem, now)
    if certificate is not None:
        faults += _certificate_faults(certificate, call.host, now)
    if certificate is None or _roots(call.credentials.authorities_pem):
        fault = await _rpc_fault(call, call.host, certificate, now)
    else:
        fault = CallFault(CallProblem.NOT_TRUSTED, _NO_AUTHORITIES)
    if fault is not None and fault.problem not in {each.problem for each in faults}:
        faults.append(fault)
    return CallResult(tuple(faults), certificate=certificate)


async def _probe_unverified(call: ScalerCall, certificate: Certificate, pem: bytes, now: datetime) -> CallResult:
    """The result for a client that trusts any certificate. gRPC knows none, but one that trusts this certificate."""
    if is_expired(certificate, now) or is_not_yet_valid(certificate, now):
        return CallResult(certificate=certificate)
    trusting = replace(call, credentials=replace(call.credentials, authorities_pem=pem))
    host = next(iter(certificate.names), certificate.common_name).replace("*", "any")
    fault = await _rpc_fault(trusting, host, certificate, now)
    return CallResult((fault,) if fault else (), certificate=certificate)


# --------------------------------------------------------------------------------------------- the server's certificate


def _server_certificate(call: ScalerCall) -> tuple[Certificate, bytes] | None:
    """The certificate and its PEM; None where the server does not get as far as to show one. Blocks.

    Raises: OSError where nothing listens; ConfigurationError for the trigger's own pair.
    """
    context = _unverified_context(call.credentials)
    with socket.create_connection(call.at, timeout=_SECONDS) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=call.host) as secure:
                der = secure.getpeercert(binary_form=True) or b""
            return parse(der), ssl.DER_cert_to_PEM_cert(der).encode()
        except (OSError, ValueError):
            return None


def _unverified_context(credentials: CallCredentials) -> ssl.SSLContext:
    """Raises: ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if credentials.has_certificate:
        load_pair(context, credentials.certificate_pem, credentials.key_pem, names=("tlsClientCert", "tlsClientKey"))
    return context


def _certificate_faults(certificate: Certificate, host: str, now: datetime) -> Iterator[CallFault]:
    if not certificate.is_for(host):
        common = f", only the common name {certificate.common_name}" if certificate.common_name else ""
        named = f"is for {', '.join(certificate.names)}, not for {host}"
        what = named if certificate.names else f"has no subject alternative names{common}"
        yield CallFault(CallProblem.NAME_MISMATCH, f"its certificate {what}")
    if is_expired(certificate, now):
        yield CallFault(CallProblem.EXPIRED, f"its certificate expired at {second(certificate.not_after)}")
    elif is_not_yet_valid(certificate, now):
        what = f"its certificate is valid from {second(certificate.not_before)}, and here it is {second(now)}"
        yield CallFault(CallProblem.EXPIRED, what)
    if not certificate.is_for_servers:
        yield CallFault(CallProblem.NOT_TRUSTED, "its certificate is not for servers (extended key usage)")


# ------------------------------------------------------------------------------------------------------------- the call


def _channel(call: ScalerCall, host: str) -> grpc.aio.Channel:
    address, port = call.at
    target, options = f"[{address}]:{port}" if ":" in address else f"{address}:{port}", [("grpc.enable_http_proxy", 0)]
    credentials = call.credentials
    if not credentials.encrypted:
        return grpc.aio.insecure_channel(target, options=options)
    pair = (credentials.key_pem, credentials.certificate_pem) if credentials.has_certificate else (None, None)
    secure = grpc.ssl_channel_credentials(_roots(credentials.authorities_pem), *pair)
    return grpc.aio.secure_channel(target, secure, options=[*options, ("grpc.ssl_target_name_override", host)])


_NO_AUTHORITIES = "its certificate is not trusted: caCert has no authority, and this system has no bundle of them"
"""gRPC without any authority does not begin a handshake, and its error is that of a connection that was closed."""


def _roots(given: bytes) -> bytes:
    """What is trusted: beside the given ones, those of this system. As in Go, what cannot be read is skipped."""
    file = ssl.get_default_verify_paths().cafile
    system = Path(file).read_bytes() if file and Path(file).is_file() else b""
    readable = (given if _first(given) else b"", system if b"-----BEGIN" in system else b"")
    return b"\n".join(pem for pem in readable if pem)


async def _rpc_fault(call: ScalerCall, host: str, certificate: Certificate | None, now: datetime) -> CallFault | None:
    """The fault of the first of KEDA's calls that fails. `host`: the name that gRPC looks for in the server's
    certificate."""
    ref = pb.ScaledObjectRef(namespace=call.namespace, name=call.name, scalerMetadata=dict(call.metadata))
    async with _channel(call, host) as channel:
        stub = pb_grpc.ExternalScalerStub(channel)
        try:
            await stub.GetMetricSpec(ref, timeout=_SECONDS)
            await stub.IsActive(ref, timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            return _fault(error, call.credentials, certificate, now)
    return None


_NOT_CONNECTED = re.compile("failed to connect|Socket closed|Connection reset|Broken pipe")


def _fault(
    error: grpc.aio.AioRpcError, credentials: CallCredentials, certificate: Certificate | None, now: datetime
) -> CallFault | None:
    """The fault; None for an error that the scaler itself answers with: the call got through."""
    code, details = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return CallFault(CallProblem.CLIENT_REFUSED, f"it answers {code.name}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return CallFault(CallProblem.NOT_A_SCALER, "it is a gRPC server, and no external scaler for KEDA")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallFault(CallProblem.NOT_REACHED, f"it does not answer within {_SECONDS:g} s")
        case grpc.StatusCode.UNAVAILABLE if _NOT_CONNECTED.search(details):
            return _connection_fault(details, credentials, certificate, now)
    return None


_ABOVE = "a certificate between its own and the authority, or the authority's, {}"
_SAID: Mapping[str, tuple[CallProblem, str]] = {
    r"CERTIFICATE_VERIFY_FAILED: certificate (has expired|is not yet valid)": (CallProblem.EXPIRED, _ABOVE),
    r"CERTIFICATE_VERIFY_FAILED: ([^:]+)": (CallProblem.NOT_TRUSTED, "its certificate is not trusted: {}"),
    r"Hostname Verification": (CallProblem.NAME_MISMATCH, "its certificate is for another host"),
    r"ALPN": (CallProblem.NOT_A_SCALER, "it does not agree to HTTP/2 (ALPN h2), which gRPC in Go insists on"),
    r"HTTP/2": (CallProblem.NOT_A_SCALER, "it does not answer in HTTP/2"),
    r"_(ALERT_\w+)": (CallProblem.CLIENT_REFUSED, "it ends the handshake: {}"),
}
"""What gRPC says of a connection that failed, whatever is known besides."""


def _connection_fault(
    details: str, credentials: CallCredentials, certificate: Certificate | None, now: datetime
) -> CallFault:
    for pattern, (problem, what) in _SAID.items():
        if found := re.search(pattern, details):
            return CallFault(problem, what.format(*found.groups()))
    if not credentials.encrypted:
        return CallFault(CallProblem.TLS_MISMATCH, "it speaks TLS, and the trigger does not")
    if certificate is None:
        return CallFault(CallProblem.TLS_MISMATCH, "it does not answer with TLS")
    return CallFault(CallProblem.CLIENT_REFUSED, _why_closed(credentials, now))


def _why_closed(credentials: CallCredentials, now: datetime) -> str:
    if not credentials.has_certificate:
        return "it closes the connection of a client without a certificate"
    why, own = "it closes the connection after seeing the client certificate", _first(credentials.certificate_pem)
    if own is not None and is_expired(own, now):
        return f"{why}, which expired at {second(own.not_after)}"
    if own is not None and is_not_yet_valid(own, now):
        return f"{why}, which is valid from {second(own.not_before)}"
    return why


def _first(pem: bytes) -> Certificate | None:
    try:
        return next(iter(certificates_in(pem)), None)
    except ValueError:
        return None
