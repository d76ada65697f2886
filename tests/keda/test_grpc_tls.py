"""TLS for gRPC by a real server and real clients: rotation under load, and who is answered."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from keda.keda_harness import ObservedRpc, ref, refusal
from keda.memory_decisions import BUSY, IDLE, MemoryDecisions
from made_certificates import Made, Pair
from secret_volume import YESTERDAY, SecretVolume, chain_of

from scaler.errors import ConfigurationError
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.keda.server import ExternalScalerServer, ServerConfig, ServerTls
from scaler.keda.servicer import presented
from scaler.tls.certificates import AllowedClients
from scaler.tls.rotation import Rotation

FIRST = ("demo", "first-raycluster")
HOST = "localhost"
KEDA = "keda-operator.keda.svc"


@dataclass
class Secured:
    """A server that speaks TLS, the files that it follows, and what it has reported."""

    volume: SecretVolume
    rotation: Rotation
    server: ExternalScalerServer
    port: int
    authority: trustme.CA
    observed: list[ObservedRpc] = field(default_factory=list)

    def follow(self) -> None:
        """Look at the files once, as the loop does every some seconds."""
        self.rotation.take(self.rotation.look())

    @asynccontextmanager
    async def client(self, client: trustme.LeafCert | None = None, **options: Any) -> AsyncIterator[Any]:
        pair = (client.private_key_pem.bytes(), chain_of(client)) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.cert_pem.bytes(), *pair)
        # gRPC's channels in one process share connections, and here each has to have its own handshake.
        own = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        async with grpc.aio.secure_channel(f"{HOST}:{self.port}", credentials, options=own) as channel:
            yield pb_grpc.ExternalScalerStub(channel)

    async def serial_shown(self) -> bytes:
        """Of the certificate that a new connection sees."""
        context = ssl.create_default_context(cafile=None)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(der)


@asynccontextmanager
async def secured(
    folder: Path,
    decisions: MemoryDecisions | None = None,
    *,
    mutual: bool = False,
    names: tuple[str, ...] = (),
    **config: Any,
) -> AsyncIterator[Secured]:
    authority, volume = trustme.CA(), SecretVolume(folder)
    volume.put_certificate(authority.issue_cert(HOST), authority if mutual else None)
    rotation = Rotation(volume.files(mutual=mutual), use="grpc")
    observed: list[ObservedRpc] = []
    server = ExternalScalerServer(
        ServerConfig(**{"addresses": ("127.0.0.1:0",), **config}),
        decisions or MemoryDecisions({FIRST: BUSY}),
        observe=lambda *rpc: observed.append(ObservedRpc(*rpc)),
        tls=ServerTls(rotation, AllowedClients(names)),
    )
    port = await server.start()
    try:
        yield Secured(volume, rotation, server, port, authority, observed)
    finally:
        await server.drain(timedelta(0))


# ----------------------------------------------------------------------------------------------------------- rotation


async def keep_calling(stub: Any, calls: list[bool], until: asyncio.Event) -> None:
    while not until.is_set():
        calls.append((await stub.IsActive(ref(), timeout=30)).result)


async def connect_anew(served: Secured, calls: list[bool], until: asyncio.Event) -> None:
    while not until.is_set():
        async with served.client() as stub:
            calls.append((await stub.IsActive(ref(), timeout=30)).result)


async def test_a_rotation_under_load_fails_no_call_and_ends_no_stream(tmp_path: Path) -> None:
    decisions = MemoryDecisions({FIRST: IDLE})
    async with secured(tmp_path, decisions) as served, served.client() as stub:
        streams = [stub.StreamIsActive(ref()) for _ in range(100)]
        assert {(await stream.read()).result for stream in streams} == {False}
        old, new, over = list[bool](), list[bool](), asyncio.Event()
        work = [
            *(asyncio.create_task(keep_calling(stub, old, over)) for _ in range(8)),
            *(asyncio.create_task(connect_anew(served, new, over)) for _ in range(2)),
        ]
        shown = {await served.serial_shown()}
        for _ in range(5):
            served.volume.put_certificate(served.authority.issue_cert(HOST))
            served.follow()
            shown.add(await served.serial_shown())
            before = len(old), len(new)
            while not (len(old) > before[0] + 20 and len(new) > before[1] + 1):
                assert not any(each.done() for each in work), "a call has failed"
                await asyncio.sleep(0.005)
        over.set()
        await asyncio.gather(*work)
        assert len(shown) == 6, "every new connection sees the newest certificate"
        assert {*old, *new} == {False}

        decisions.put(*FIRST, BUSY)
        assert {(await stream.read()).result for stream in streams} == {True}, "streams are those of the beginning"
        assert {record.code for record in served.observed} == {"OK"}


async def test_every_address_shows_the_new_certificate(tmp_path: Path) -> None:
    async with secured(tmp_path, addresses=("127.0.0.1:0", f"unix:{tmp_path}/scaler.sock")) as served:
        renewed = trustme.CA()
        served.volume.put_certificate(renewed.issue_cert(HOST))
        served.follow()
        served.authority = renewed
        async with served.client() as stub:
            assert (await stub.IsActive(ref(), timeout=30)).result is True
        credentials = grpc.ssl_channel_credentials(renewed.cert_pem.bytes())
        target = f"unix:{tmp_path}/scaler.sock"
        named = [("grpc.ssl_target_name_override", HOST)]
        async with grpc.aio.secure_channel(target, credentials, options=named) as channel:
            assert (await pb_grpc.ExternalScalerStub(channel).IsActive(ref(), timeout=30)).result is True


# ------------------------------------------------------------------------------------------------------------ clients


async def test_a_client_without_a_certificate_does_not_get_in(tmp_path: Path) -> None:
    async with secured(tmp_path, mutual=True) as served:
        async with served.client() as stub:
            assert (await refusal(stub.GetMetricSpec(ref(), timeout=30)))[0] is grpc.StatusCode.UNAVAILABLE
        async with served.client(trustme.CA().issue_cert(KEDA)) as stub:
            assert (await refusal(stub.GetMetricSpec(ref(), timeout=30)))[0] is grpc.StatusCode.UNAVAILABLE
        async with served.client(served.authority.issue_cert(KEDA, not_after=YESTERDAY)) as stub:
            assert (await refusal(stub.GetMetricSpec(ref(), timeout=30)))[0] is grpc.StatusCode.UNAVAILABLE
        assert served.observed == []
        async with served.client(served.authority.issue_cert(KEDA)) as stub:
            assert (await stub.IsActive(ref(), timeout=30)).result is True


async def test_a_client_is_known_by_its_spiffe_id_or_its_common_name(tmp_path: Path) -> None:
    name = "spiffe://cluster.local/ns/keda/sa/keda-operator"
    clients = Made.of("clients", is_authority=True)
    async with secured(tmp_path, mutual=True, names=(name, "operator")) as served:
        server = Pair.of(served.authority.issue_cert(HOST))
        served.volume.put(tls_crt=server.certificate, tls_key=server.key, ca_crt=clients.pair.certificate)
        served.follow()
        ok, denied = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
        for common_name, uri, code in (("keda", name, ok), ("keda", f"{name}-2", denied), ("operator", "other:1", ok)):
            client = Made.of(common_name, uris=(uri,), issuer=clients).pair
            roots = served.authority.cert_pem.bytes()
            credentials = grpc.ssl_channel_credentials(roots, client.key, client.certificate)
            own = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(f"{HOST}:{served.port}", credentials, options=own) as channel:
                call = pb_grpc.ExternalScalerStub(channel).IsActive(ref(), timeout=30)
                assert await call.code() is code


def test_the_end_of_a_clients_certificate_is_looked_at_with_every_rpc() -> None:
    over = trustme.CA().issue_cert(KEDA, not_after=YESTERDAY).cert_chain_pems[0].bytes()
    client = presented({"x509_pem_cert": [over], "x509_subject_alternative_name": [KEDA.encode()]})
    assert client is not None
    assert AllowedClients().refusal(client)
    assert presented({}) is None


async def test_a_client_of_another_name_is_refused_and_learns_nothing_of_workloads(tmp_path: Path) -> None:
    decisions = MemoryDecisions({FIRST: BUSY})
    async with (
        secured(tmp_path, decisions, mutual=True, names=(KEDA,)) as served,
        served.client(served.authority.issue_cert("grafana.monitoring.svc")) as stub,
    ):
        calls = [
            stub.IsActive(ref(), timeout=30),
            stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref()), timeout=30),
            stub.StreamIsActive(ref(), timeout=30).read(),
            stub.StreamMetricSpec(ref(), timeout=30).read(),
        ]
        words = "the client certificate is for grafana.monitoring.svc, which clientNames of the settings does not allow"
        assert {await refusal(each) for each in calls} == {(grpc.StatusCode.PERMISSION_DENIED, words)}
        assert {record.code for record in served.observed} == {"PERMISSION_DENIED"}
        assert len(served.observed) == 4
        assert decisions.listeners == 0
        # It is the same for all clients, and KEDA does not show the text with which it fails.
        assert (await stub.GetMetricSpec(ref(), timeout=30)).metricSpecs


async def test_health_is_served_to_every_client_that_has_a_certificate(tmp_path: Path) -> None:
    async with secured(tmp_path, mutual=True, names=(KEDA,)) as served:
        client = served.authority.issue_cert("kubelet")
        pair = client.private_key_pem.bytes(), chain_of(client)
        credentials = grpc.ssl_channel_credentials(served.authority.cert_pem.bytes(), *pair)
        async with grpc.aio.secure_channel(f"{HOST}:{served.port}", credentials) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_names_do_not_matter_where_clients_need_no_certificate(tmp_path: Path) -> None:
    async with secured(tmp_path, names=(KEDA,)) as served, served.client() as stub:
        assert (await stub.IsActive(ref(), timeout=30)).result is True


async def test_a_key_that_grpc_does_not_know_ends_the_start_with_that_reason(tmp_path: Path) -> None:
    made = Made.of("scaler", names=(HOST,), curve=ec.SECP256K1()).pair
    volume = SecretVolume(tmp_path)
    volume.put(tls_crt=made.certificate, tls_key=made.key)
    tls = ServerTls(Rotation(volume.files(), use="grpc"))
    server = ExternalScalerServer(ServerConfig(addresses=("127.0.0.1:0",)), MemoryDecisions(), tls=tls)
    with pytest.raises(ConfigurationError, match="a kind that gRPC knows"):
        await server.start()
