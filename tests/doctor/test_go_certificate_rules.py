"""What we say of a certificate is what Go does with it. kubectl is written in Go, and has the same library as KEDA."""

import asyncio
import ssl
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID
from made_certificates import Made, Pair
from programs import needs
from secret_volume import TOMORROW, YESTERDAY

from scaler.doctor.calls.call_credentials import CallCredentials
from scaler.doctor.calls.probe import CallProblem, ScalerCall, probe

pytestmark = needs("kubectl")

HOST = "idle-gpu-scaler.gpus.svc.cluster.local"
AUTHORITY = trustme.CA()
BETWEEN = AUTHORITY.create_child_ca()
ROOT = AUTHORITY.cert_pem.bytes()


def named(*names: str, common_name: str = "scaler") -> tuple[Pair, bytes]:
    pair = Made.of(common_name, names=names).pair
    return pair, pair.certificate


def lacking() -> Pair:
    issued = BETWEEN.issue_cert(HOST)
    return Pair(issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes())


FOR_CLIENTS = Made.of("client", names=(HOST,), use=ExtendedKeyUsageOID.CLIENT_AUTH).pair
OVER = Made.of("over", is_authority=True, ends=YESTERDAY)
BELOW = Made.of("below", names=(HOST,), issuer=OVER).pair

SHOWN_AND_TRUSTED: dict[str, tuple[Pair, bytes]] = {
    "the name, of an authority that is trusted": (Pair.of(AUTHORITY.issue_cert(HOST)), ROOT),
    "the name, with the authority between": (Pair.of(BETWEEN.issue_cert(HOST)), ROOT),
    "the name, and only the authority between is trusted": (lacking(), BETWEEN.cert_pem.bytes()),
    "the name, without the authority between": (lacking(), ROOT),
    "the name, of another authority": (Pair.of(trustme.CA().issue_cert(HOST)), ROOT),
    "the name, of an authority that is over": (BELOW, OVER.pair.certificate),
    "the name, over": (Pair.of(AUTHORITY.issue_cert(HOST, not_after=YESTERDAY)), ROOT),
    "the name, still to come": (Pair.of(AUTHORITY.issue_cert(HOST, not_before=TOMORROW)), ROOT),
    "the name, for clients only": (FOR_CLIENTS, FOR_CLIENTS.certificate),
    "the name, signed by itself": named(HOST),
    "the name in capitals": named(HOST.upper()),
    "the name as a common name": named(common_name=HOST),
    "another name": named("idle-gpu-scaler.gpus.svc"),
    "a wildcard for one label": named("*.gpus.svc.cluster.local"),
    "a wildcard for two": named("*.svc.cluster.local"),
    "a wildcard inside": named("idle-gpu-scaler.*.svc.cluster.local"),
    "a wildcard for a part": named("idle*.gpus.svc.cluster.local"),
    "a wildcard alone": named("*"),
}

OF_CERTIFICATES = {CallProblem.NAME_MISMATCH, CallProblem.EXPIRED, CallProblem.NOT_TRUSTED}


@pytest.mark.parametrize("case", SHOWN_AND_TRUSTED)
async def test_go_refuses_what_we_say_it_refuses_and_nothing_else(case: str, tmp_path: Path) -> None:
    pair, trusted = SHOWN_AND_TRUSTED[case]
    (tmp_path / "pair.pem").write_bytes(pair.certificate + pair.key)
    (tmp_path / "ca.crt").write_bytes(trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    async with await asyncio.start_server(know_nothing, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        said = await kubectl(port, tmp_path / "ca.crt")
        credentials = CallCredentials(encrypted=True, authorities_pem=trusted)
        result = await probe(ScalerCall(host=HOST, at=("127.0.0.1", port), credentials=credentials), datetime.now(UTC))
    found = {each.problem for each in result.faults} & OF_CERTIFICATES
    assert bool(found) == ("x509: " in said), (found, said)


async def know_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
    writer.close()


async def kubectl(port: int, authority: Path) -> str:
    """What it complains of; it always does, since nothing is there."""
    where = ("--server", f"https://127.0.0.1:{port}", "--kubeconfig", "/dev/null", "--token", "none")
    how = ("--certificate-authority", str(authority), "--tls-server-name", HOST, "--request-timeout", "5s")
    ran = await asyncio.create_subprocess_exec(
        "kubectl", *where, *how, "get", "--raw", "/", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    _, complaint = await ran.communicate()
    assert complaint
    return complaint.decode()
