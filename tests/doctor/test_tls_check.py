"""Calls as KEDA makes them, to servers with which something is wrong: what stands in the way, and what helps."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID
from keda.memory_decisions import BUSY, COLD, MemoryDecisions
from made_certificates import Made, Pair
from secret_volume import TOMORROW, YESTERDAY, SecretVolume, chain_of

from scaler.doctor.calls.tls_findings import check_calls, parse_connect_to, tls_findings
from scaler.doctor.calls.trigger_authentication import AuthenticatedTrigger
from scaler.doctor.findings import Finding, Severity
from scaler.errors import ConfigurationError
from scaler.keda.server import ExternalScalerServer, ServerConfig, ServerTls
from scaler.tls.certificates import AllowedClients
from scaler.tls.rotation import Rotation

HOST = "idle-gpu-scaler.gpus.svc.cluster.local"
ADDRESS = f"{HOST}:9090"
KEDA = "keda-operator.keda.svc"

AUTHORITY, OTHER = trustme.CA(), trustme.CA()
BELOW = AUTHORITY.create_child_ca().issue_cert(HOST)
GOOD = AUTHORITY.issue_cert(HOST)
CLIENT = AUTHORITY.issue_cert(KEDA)

SHOWN = Pair.of(GOOD)
OWN = Made.of("own", names=(HOST,)).pair
FOR_CLIENTS = Made.of("client", names=(HOST,), use=ExtendedKeyUsageOID.CLIENT_AUTH).pair
NAMELESS = Made.of(HOST).pair


@pytest.fixture(autouse=True)
def system_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the system are known, and have issued nothing here."""
    file = tmp_path / "system.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


@dataclass(frozen=True)
class Case:
    """A server, a trigger, and what doctor finds: checks, and words that have to be in them."""

    shows: Pair | None = SHOWN
    """None: it speaks no TLS."""
    clients: trustme.CA | None = None
    names: tuple[str, ...] = ()
    trusts: bytes = AUTHORITY.cert_pem.bytes()
    presents: Pair | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    finds: Sequence[str] = ("Reached: KEDA gets through with TLS, by a certificate",)


CASES = {
    "everything is right": Case(),
    "a self-signed certificate is what caCert has": Case(shows=OWN, trusts=OWN.certificate),
    "the client shows what is wanted": Case(
        clients=AUTHORITY, names=(KEDA,), presents=Pair.of(CLIENT), finds=["Reached: with TLS and a certificate"]
    ),
    "the name is another one": Case(
        shows=Pair.of(AUTHORITY.issue_cert("idle-gpu-scaler.gpus.svc")),
        finds=[
            f"NameMismatch: is for idle-gpu-scaler.gpus.svc, not for {HOST}",
            f"NameMismatch: {HOST} among its dnsNames",
        ],
    ),
    "there is only a common name": Case(
        shows=NAMELESS,
        trusts=NAMELESS.certificate,
        finds=[f"NameMismatch: only the common name {HOST}", "NameMismatch: Go does not look at common names"],
    ),
    "it is over": Case(
        shows=Pair.of(AUTHORITY.issue_cert(HOST, not_after=YESTERDAY)),
        finds=[f"Expired: expired at {YESTERDAY:%Y-%m-%d}", "Expired: renew it"],
    ),
    "it is still to come": Case(
        shows=Pair.of(AUTHORITY.issue_cert(HOST, not_before=TOMORROW)),
        finds=[f"Expired: from {TOMORROW:%Y-%m-%d}", "Expired: clocks"],
    ),
    "it is over, for another name and of another authority": Case(
        shows=Pair.of(OTHER.issue_cert("elsewhere", not_after=YESTERDAY)),
        finds=["NameMismatch: is for elsewhere", "Expired: expired at", "NotTrusted: caCert has another one"],
    ),
    "caCert has another authority": Case(
        trusts=OTHER.cert_pem.bytes(), finds=["NotTrusted: caCert has another one: put its authority's, ca.crt"]
    ),
    "there is no caCert": Case(
        trusts=b"",
        metadata=(("enableTLS", "true"),),
        finds=["NotTrusted: without caCert only those of the system are known"],
    ),
    "it is self-signed, and caCert is not it": Case(
        shows=OWN, finds=["NotTrusted: put the certificate itself into caCert"]
    ),
    "the chain lacks the authority between": Case(
        shows=Pair(BELOW.cert_chain_pems[0].bytes(), BELOW.private_key_pem.bytes()), finds=["NotTrusted: "]
    ),
    "it is for clients only": Case(
        shows=FOR_CLIENTS,
        trusts=FOR_CLIENTS.certificate,
        finds=["NotTrusted: is not for servers", "NotTrusted: issue another one, for servers"],
    ),
    "a client certificate is wanted": Case(
        clients=AUTHORITY,
        finds=[
            "ClientCertificateRefused: a client without a certificate",
            "ClientCertificateRefused: give tlsClientCert and tlsClientKey",
        ],
    ),
    "the client certificate is of another authority": Case(
        clients=AUTHORITY,
        presents=Pair.of(OTHER.issue_cert(KEDA)),
        finds=["ClientCertificateRefused: of an authority in grpc.tls.clientCaFile"],
    ),
    "the client certificate is over": Case(
        clients=AUTHORITY,
        presents=Pair.of(AUTHORITY.issue_cert(KEDA, not_after=YESTERDAY)),
        finds=[f"ClientCertificateRefused: which expired at {YESTERDAY:%Y-%m-%d}"],
    ),
    "the client has another name": Case(
        clients=AUTHORITY,
        names=(KEDA,),
        presents=Pair.of(AUTHORITY.issue_cert("prometheus")),
        finds=[
            "ClientCertificateRefused: PERMISSION_DENIED: the client certificate is for prometheus, which clientNames",
            "ClientCertificateRefused: with a name in grpc.tls.clientNames",
        ],
    ),
    "the client's key is another one": Case(
        presents=Pair(chain_of(CLIENT), GOOD.private_key_pem.bytes()),
        finds=[
            "ClientCertificateRefused: tlsClientCert and tlsClientKey cannot be used together: the certificate belongs"
        ],
    ),
    "only KEDA speaks TLS": Case(shows=None, finds=["TLSMismatch: set grpc.tls of the scaler's settings"]),
    "only the server speaks TLS": Case(
        trusts=b"", finds=["TLSOff: ", "TLSMismatch: and the trigger does not", 'TLSMismatch: enableTLS: "true"']
    ),
    "neither speaks TLS": Case(
        shows=None, trusts=b"", finds=["TLSOff: docs/tls.md", "Reached: KEDA gets through without TLS"]
    ),
    "KEDA verifies nothing": Case(
        shows=OWN,
        metadata=(("unsafeSsl", "true"), ("enableTLS", "true")),
        finds=["CertificateNotVerified: accept any certificate", "Reached: with TLS, unverified"],
    ),
    "caCert is in the metadata": Case(
        trusts=b"",
        metadata=(("caCert", "/certs/ca.crt"),),
        finds=[
            "IgnoredByKEDA: caCert in the trigger's metadata",
            "IgnoredByKEDA: so it calls without TLS",
            "IgnoredByKEDA: TriggerAuthentication",
            "TLSOff: ",
            "TLSMismatch: ",
        ],
    ),
    "unsafeSsl alone": Case(
        trusts=b"",
        metadata=(("unsafeSsl", "true"),),
        finds=["CertificateNotVerified: does not turn TLS on by itself", "TLSOff: ", "TLSMismatch: "],
    ),
    "caCert is a path": Case(trusts=b"/certs/ca.crt", finds=["NotPem: neither a path nor base64", "NotTrusted: "]),
    "there is a certificate without a key": Case(
        presents=Pair(chain_of(CLIENT), b""),
        finds=["IncompleteKeyPair: tlsClientCert and no tlsClientKey", "Reached: "],
    ),
    "there is a key without a certificate": Case(
        presents=Pair(b"", CLIENT.private_key_pem.bytes()),
        finds=["IncompleteKeyPair: tlsClientKey and no tlsClientCert", "Reached: "],
    ),
    "its end is near": Case(
        shows=Pair.of(AUTHORITY.issue_cert(HOST, not_after=TOMORROW)),
        finds=["RenewalOverdue: was not renewed", "Reached: "],
    ),
}


@asynccontextmanager
async def server_of(case: Case, folder: Path) -> AsyncIterator[int]:
    tls = None
    if case.shows:
        volume = SecretVolume(folder)
        authorities = {"ca_crt": case.clients.cert_pem.bytes()} if case.clients else {}
        volume.put(tls_crt=case.shows.certificate, tls_key=case.shows.key, **authorities)
        tls = ServerTls(Rotation(volume.files(mutual=bool(case.clients)), use="grpc"), AllowedClients(case.names))
    server = ExternalScalerServer(
        ServerConfig(addresses=("127.0.0.1:0",)), MemoryDecisions({("demo", "ana"): BUSY}), tls=tls
    )
    yield await server.start()
    await server.drain(timedelta(0))


def caller_of(case: Case, name: str = "ana", address: str = ADDRESS) -> AuthenticatedTrigger:
    pair = case.presents or Pair(b"", b"")
    given = {"caCert": case.trusts, "tlsClientCert": pair.certificate, "tlsClientKey": pair.key}
    return AuthenticatedTrigger(
        namespace="demo",
        name=name,
        metadata={"scalerAddress": address, **dict(case.metadata)},
        parameters={name: value for name, value in given.items() if value},
    )


PLAIN = Case(trusts=b"")


async def found(port: int, *callers: AuthenticatedTrigger) -> list[Finding]:
    now = datetime.now(UTC)
    return [*tls_findings(callers, await check_calls(callers, ("127.0.0.1", port), now), now)]


@pytest.mark.parametrize("name", CASES)
async def test_whatever_is_wrong_is_found_and_explained(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    async with server_of(case, tmp_path) as port:
        findings = await found(port, caller_of(case))
    assert {each.check for each in findings} == {each.partition(": ")[0] for each in case.finds}
    shown = {each.check: f"{each.what} → {each.do}" for each in findings}
    for check, _, words in (each.partition(": ") for each in case.finds):
        assert words in shown[check]
    for each in findings:
        assert each.do or each.severity is Severity.OK
        assert each.where in (f"scalerAddress {ADDRESS}", "ScaledObject demo/ana")


@pytest.mark.parametrize("bundle", [None, b"", b"no certificate\n"], ids=["absent", "empty", "no certificates"])
async def test_without_any_authority_the_certificate_is_not_trusted(
    bundle: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gRPC that cannot begin then; the server has refused no client."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bundle.pem"))
    if bundle is not None:
        (tmp_path / "bundle.pem").write_bytes(bundle)
    case = CASES["there is no caCert"]
    async with server_of(case, tmp_path) as port:
        (finding,) = await found(port, caller_of(case))
    assert finding.check == "NotTrusted"
    assert "this system has no bundle" in finding.what
    assert "put its authority's, ca.crt into caCert" in finding.do


# ------------------------------------------------------------------------------------------------------- other servers


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def context_of(pair: trustme.LeafCert, *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(protocols)
    pair.configure_cert(context)
    return context


def http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_what_does_not_speak_grpc_over_tls_is_no_scaler() -> None:
    async with listening(http, context_of(GOOD, "http/1.1")) as port:
        [fault] = await found(port, caller_of(Case()))
    assert fault.check == "NotAScaler"
    assert fault.what == "it does not agree to HTTP/2 (ALPN h2), which gRPC in Go insists on"
    for answer in (http, lambda *_: None):
        async with listening(answer) as port:
            clear, nothing = await found(port, caller_of(PLAIN))
            [no_tls] = await found(port, caller_of(Case()))
        assert (clear.check, nothing.check, no_tls.check) == ("TLSOff", "NotAScaler", "TLSMismatch")


async def test_another_grpc_server_is_no_scaler() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _, other = await found(port, caller_of(PLAIN))
    await server.stop(0)
    assert (other.check, other.what) == ("NotAScaler", "it is a gRPC server, and no external scaler for KEDA")


def shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            with suppress(ssl.SSLError), listener.accept()[0] as plain:
                context.wrap_socket(plain, server_side=True).close()


@pytest.mark.parametrize("presents", [None, Pair.of(OTHER.issue_cert(KEDA))], ids=["none", "of another authority"])
async def test_a_server_of_tls_1_2_says_that_it_wants_another_certificate(presents: Pair | None) -> None:
    context = context_of(GOOD, "h2")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    AUTHORITY.configure_trust(context)
    # A server of asyncio's hangs up without the alert that others send.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=shake_hands, args=(listener, context))
        serving.start()
        findings = await found(listener.getsockname()[1], caller_of(Case(presents=presents)))
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert [each.check for each in findings] == ["ClientCertificateRefused"]


async def test_a_certificate_above_the_servers_that_has_expired_is_named(tmp_path: Path) -> None:
    authority = Made.of("root", is_authority=True)
    between = Made.of("between", issuer=authority, is_authority=True, ends=YESTERDAY)
    leaf = Made.of("leaf", issuer=between, names=(HOST,)).pair
    chain = leaf.certificate + between.pair.certificate
    case = Case(shows=Pair(chain, leaf.key), trusts=authority.pair.certificate)
    async with server_of(case, tmp_path) as port:
        [over] = await found(port, caller_of(case))
    assert (over.check, over.what) == (
        "Expired",
        "a certificate between its own and the authority, or the authority's, has expired",
    )


async def test_a_port_where_nothing_listens_is_a_scaler_that_nobody_reaches(tmp_path: Path) -> None:
    async with server_of(Case(), tmp_path) as port:
        pass
    [away] = await found(port, caller_of(Case()))
    assert (away.severity, away.check) == (Severity.FAIL, "NotReached")
    assert f"127.0.0.1:{port} cannot be reached from here: Connection refused" in away.what


async def test_a_scaler_that_does_not_know_yet_is_reached(tmp_path: Path) -> None:
    server = ExternalScalerServer(ServerConfig(addresses=("127.0.0.1:0",)), MemoryDecisions({("demo", "ana"): COLD}))
    port = await server.start()
    _, reached = await found(port, caller_of(PLAIN))
    await server.drain(timedelta(0))
    assert reached.check == "Reached"


# ------------------------------------------------------------------------------------------------------------ many ways


async def test_ways_that_differ_share_a_connection_in_old_versions_of_keda(tmp_path: Path) -> None:
    case = Case()
    async with server_of(case, tmp_path) as port:
        callers = [caller_of(case, name) for name in ("ana", "ben")]
        assert {each.check for each in await found(port, *callers)} == {"Reached"}, "one way, reported once"
        findings = await found(port, *callers, caller_of(PLAIN, "cai"))
    [several] = [each for each in findings if each.check == "DifferentCredentials"]
    assert "call it in 2 ways (2 with TLS, 1 without TLS); KEDA before 2.20" in several.what


async def test_names_of_the_cluster_are_not_looked_up_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    now = datetime.now(UTC)
    for address in (ADDRESS, "scaler.gpus:9090", "scaler:9090", "dns:///scaler.gpus.svc:9090"):
        for case, checks in ((Case(), {"NotTested"}), (PLAIN, {"TLSOff"})):
            caller = caller_of(case, address=address)
            seen = await check_calls([caller], None, now)
            assert {each.check for each in tls_findings([caller], seen, now)} == checks


@pytest.mark.parametrize("address", ["scaler", ":9090", "a..b:9090", f"{'x' * 64}.svc:9090", "a\0b:9090", "a:65536"])
async def test_an_invalid_address_is_not_called(address: str) -> None:
    """Users write it in ScaledObjects, and must not keep the other calls from being checked."""
    now = datetime.now(UTC)
    caller = caller_of(Case(), address=address)
    assert [*tls_findings([caller], await check_calls([caller], ("127.0.0.1", 1), now), now)] == []


def test_where_to_connect_to_is_host_and_port() -> None:
    assert parse_connect_to("") is None
    assert parse_connect_to("localhost:9090") == ("localhost", 9090)
    assert parse_connect_to("[::1]:9090") == ("::1", 9090)
    with pytest.raises(ConfigurationError, match="--connect-to 'localhost' is not HOST:PORT; write for example"):
        parse_connect_to("localhost")
