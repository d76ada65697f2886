"""TLS for HTTP by a real server: rotation, and who sees what."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from secret_volume import YESTERDAY, SecretVolume

from scaler.reporting.http import HttpServer, HttpTls, Views
from scaler.reporting.metrics import Metrics
from scaler.tls.certificates import AllowedClients
from scaler.tls.rotation import Rotation

PROMETHEUS = "prometheus-k8s.monitoring.svc"


@dataclass
class Site:
    volume: SecretVolume
    rotation: Rotation
    authority: trustme.CA
    port: int

    def follow(self) -> None:
        self.rotation.take(self.rotation.look())

    def context(self, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        if client is not None:
            client.configure_cert(context)
        return context

    @asynccontextmanager
    async def session(self, client: trustme.LeafCert | None = None, host: str = "localhost") -> AsyncIterator[Any]:
        connector = aiohttp.TCPConnector(ssl=self.context(client))
        async with aiohttp.ClientSession(f"https://{host}:{self.port}", connector=connector) as session:
            yield session

    async def get(self, path: str, client: trustme.LeafCert | None = None, **where: str) -> tuple[int, str]:
        async with self.session(client, **where) as session, session.get(path) as got:
            return got.status, await got.text()


def views(**given: Any) -> Views:
    """Of a process that has nothing to show."""
    nothing: dict[str, Any] = {"unhealthy": list, "unready": list, "overview": list, "queries": None}
    return Views(**nothing | {"explain": lambda _namespace, _name: None} | given)


@asynccontextmanager
async def site(folder: Path, *, mutual: bool = False, names: tuple[str, ...] = ()) -> AsyncIterator[Site]:
    authority, volume = trustme.CA(), SecretVolume(folder)
    volume.put_certificate(authority.issue_cert("localhost", "127.0.0.1"), authority if mutual else None)
    rotation = Rotation(volume.files(mutual=mutual), use="http")
    server = HttpServer("127.0.0.1:0", Metrics(), views(), tls=HttpTls(rotation, AllowedClients(names)))
    port = await server.start()
    try:
        yield Site(volume, rotation, authority, port)
    finally:
        await server.stop()


async def test_a_new_certificate_is_for_new_connections_and_the_old_ones_go_on(tmp_path: Path) -> None:
    async with site(tmp_path) as one, one.session() as standing:
        for _ in range(3):
            async with standing.get("/healthz") as got:
                assert got.status == 200
            renewed = trustme.CA()
            one.volume.put_certificate(renewed.issue_cert("localhost", "127.0.0.1"))
            one.follow()
            async with standing.get("/readyz") as got:
                assert await got.text() == "ok\n"
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await one.get("/healthz")
            one.authority = renewed
            assert await one.get("/healthz") == (200, "ok\n")
            # A client that connects to an address names no host in its handshake.
            assert await one.get("/healthz", host="127.0.0.1") == (200, "ok\n")


async def test_probes_need_no_certificate_and_everything_else_does(tmp_path: Path) -> None:
    async with site(tmp_path, mutual=True) as one:
        for path in ("/healthz", "/readyz"):
            assert await one.get(path) == (200, "ok\n")
        for path in ("/metrics", "/", "/api/v1/decisions", "/api/v1/queues", "/nowhere", "/healthz/"):
            status, text = await one.get(path)
            assert status == 401, path
            assert "no client certificate was presented" in json.loads(text)["error"]
        assert (await one.get("/metrics", one.authority.issue_cert(PROMETHEUS)))[0] == 200


async def test_only_named_clients_see_more_than_the_probes(tmp_path: Path) -> None:
    async with site(tmp_path, mutual=True, names=(PROMETHEUS, "scraper")) as one:
        assert (await one.get("/metrics", one.authority.issue_cert(PROMETHEUS)))[0] == 200
        assert (await one.get("/metrics", one.authority.issue_cert("a.example", common_name="scraper")))[0] == 200
        status, text = await one.get("/metrics", one.authority.issue_cert("10.1.2.3", common_name="curious"))
        words = "the client certificate is for 10.1.2.3, curious, which clientNames of the settings does not allow"
        assert (status, json.loads(text)) == (403, {"error": words})


async def test_an_authority_of_clients_can_be_taken_back_and_a_certificate_of_it_does_not_even_get_to_the_probes(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, mutual=True) as one:
        former, renewed = one.authority.issue_cert(PROMETHEUS), trustme.CA()
        assert (await one.get("/metrics", former))[0] == 200
        one.volume.put_certificate(one.authority.issue_cert("localhost"), renewed)
        one.follow()
        for untrusted in (former, renewed.issue_cert(PROMETHEUS, not_after=YESTERDAY)):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await one.get("/healthz", untrusted)
        assert (await one.get("/metrics", renewed.issue_cert(PROMETHEUS)))[0] == 200


async def test_a_session_does_not_stand_for_a_certificate(tmp_path: Path) -> None:
    async with site(tmp_path, mutual=True) as one:
        context = one.context(one.authority.issue_cert(PROMETHEUS))

        def connect(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
            with (
                socket.create_connection(("127.0.0.1", one.port), timeout=30) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
            ):
                secure.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert secure.recv(100).startswith(b"HTTP/1.0 200")
                return bool(secure.session_reused), secure.session

        _, session = await asyncio.to_thread(connect, None)
        reused, _ = await asyncio.to_thread(connect, session)
        assert not reused


def test_names_do_not_matter_where_clients_need_no_certificate(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path)
    volume.put_certificate(trustme.CA().issue_cert("localhost"))
    rotation = Rotation(volume.files(), use="http")
    assert HttpTls(rotation, AllowedClients(("a-client",))).clients is None
