"""How is the service reached? The gRPC server: addresses, limits, connection age, health, and a drain without errors.

Laws of this file:

* Connections end at a limited age. KEDA keeps one connection for the life of its operator and looks for new replicas
  of the scaler only when it has to reconnect.
* A connection of that age takes no new streams and ends with the last one that it has; the grace has no limit. Any
  limit, however generous, cuts the streams of a process that was stopped for longer: on its return the limit and the
  ends of the streams are due at the same moment, and gRPC's timer comes first.
* Readiness follows the first full snapshot, liveness only whether this process answers: restarting it never helps
  against a Prometheus that is down.
* The health services are answered to every client that gets through TLS: their replies name no workload.
* What is no message of its method is refused as INVALID_ARGUMENT and counted; gRPC itself would log a traceback.
* gRPC asks for the certificate at every handshake, from a thread of its own. An open connection keeps the one that it
  began with, and its streams go on; it ends by its age.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from scaler.decision.decision_cache import DecisionCache
from scaler.errors import ConfigurationError, need_extra
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.keda.servicer import ExternalScalerServicer, Observe, StreamLifetimes
from scaler.tls.certificates import AllowedClients
from scaler.tls.material import ServerCertificate
from scaler.tls.rotation import Rotation

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_WHOLE, _LIVENESS, _READINESS = "", "liveness", "readiness"
"""The health services, as the official http-add-on names them for Kubernetes' gRPC probes."""

_UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    addresses: tuple[str, ...] = ("[::]:9090",)
    """`host:port`, `[::]:port` for all interfaces of both families, or `unix:/path`. Port 0 is any free one."""
    max_connection_age: timedelta = timedelta(minutes=10)
    """How long KEDA may go without noticing a new replica. gRPC varies it by 10 % per connection."""
    max_stream_life: timedelta = timedelta(minutes=30)
    """Every stream ends with OK before this age. Each reopening costs KEDA one write to an active ScaledObject."""
    max_concurrent_rpcs: int = 20_000
    """Open streams included, at about 30 KB each. Beyond it clients get RESOURCE_EXHAUSTED instead of our memory."""
    reflection: bool = False
    """Describe the service to tools such as grpcurl. Needs the extra `reflection`."""
    max_connections: int = 512
    """KEDA has one for each address and client certificate, and one more for each that ends by its age. Beyond it new
    ones are closed, so that descriptors remain for all else."""


class ServerTls:
    def __init__(self, rotation: Rotation, clients: AllowedClients | None = None) -> None:
        self._rotation = rotation
        self.clients = clients if rotation.is_mutual else None
        """The clients that are answered; None: every client that connects is."""

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of one port. Ports must not share them: gRPC's question is about what is new since it last
        asked."""
        first = self._rotation.material
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first), self._changes_since(first), require_client_authentication=self._rotation.is_mutual
        )

    def _changes_since(self, last: ServerCertificate) -> Callable[[], Any]:
        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal last
            current = self._rotation.material
            if current is last:
                return None
            last = current
            return _configuration(current)

        return fetch


def _configuration(material: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key_pem, material.certificate_pem)], root_certificates=material.client_authorities_pem
    )


class ExternalScalerServer:
    """A gRPC server that answers KEDA from the DecisionCache. Built, started and drained within one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        decisions: DecisionCache,
        *,
        observe: Observe = lambda *_: None,
        tls: ServerTls | None = None,
    ) -> None:
        """`tls`: None serves in the clear."""
        self._config = config
        self._decisions = decisions
        self._tls = tls
        self._lifetimes = StreamLifetimes(config.max_stream_life)
        self._health = health.aio.HealthServicer()
        self._draining = False
        self._server = grpc.aio.server(
            options=server_options(config),
            maximum_concurrent_rpcs=config.max_concurrent_rpcs,
            interceptors=[_ReadableOnly(observe)],
        )
        clients = tls.clients if tls else None
        servicer = ExternalScalerServicer(decisions, self._lifetimes, observe=observe, clients=clients)
        pb_grpc.add_ExternalScalerServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if config.reflection:
            _enable_reflection(self._server)

    async def start(self) -> int:
        """Bind and serve. Returns the port of the first address, 0 for a unix socket.

        Raises: ConfigurationError where an address cannot be bound.
        """
        ports = [self._bind(address) for address in self._config.addresses]
        await self._server.start()
        await self._health.set(_LIVENESS, _SERVING)
        await self.set_ready(self._decisions.is_ready)
        return ports[0]

    async def set_ready(self, ready: bool) -> None:
        """Make the health services "" and `readiness` say so. Once draining, they stay not ready."""
        status = _SERVING if ready and not self._draining else _NOT_SERVING
        for service in (_WHOLE, _READINESS):
            await self._health.set(service, status)

    async def drain(self, grace: timedelta) -> None:
        """Turn not ready, let every stream end with OK, finish what is under way, stop. Done within the grace."""
        self._draining = True
        await self.set_ready(False)
        self._lifetimes.end_all()
        await self._server.stop(grace.total_seconds())

    def _bind(self, address: str) -> int:
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._tls.credentials())
        except RuntimeError as error:
            of_key = ", and whether its key is of a kind that gRPC knows (RSA, P-256, P-384)" if self._tls else ""
            raise ConfigurationError(
                f"gRPC address {address!r} cannot be bound; check its spelling and whether another process listens "
                f"there{of_key} ({error})"
            ) from error
        return 0 if address.startswith("unix:") else port


class _ReadableOnly(grpc.aio.ServerInterceptor):
    """An interceptor for methods that take one message; a stream of messages is left to its own method."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_streaming:
            return handler
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        method, reply = details.method.rpartition("/")[2], getattr(handler, kind)

        def read(raw: bytes) -> Any:
            try:
                return handler.request_deserializer(raw)
            except DecodeError:
                return None

        async def answer(request: Any, context: Any) -> Any:
            if request is None:
                self._observe(method, grpc.StatusCode.INVALID_ARGUMENT.name, 0.0)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no message of {method}")
            return await reply(request, context)

        return handler._replace(**{kind: answer, "request_deserializer": read})


def server_options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_connection_age_ms", round(config.max_connection_age.total_seconds() * 1000)),
        # No max_connection_age_grace_ms: its default is for ever, and every stream ends by itself.
        # All of KEDA's calls share one connection, and beyond this limit they would wait inside KEDA, without a
        # deadline. So the limit that counts is `max_concurrent_rpcs`, which refuses.
        ("grpc.max_concurrent_streams", _UNLIMITED),
        # After a restart all streams are opened in one burst. gRPC drops calls at random beyond 1,000 that wait to be
        # taken up, and every one beyond 3,000.
        ("grpc.server.max_pending_requests", 2 * config.max_concurrent_rpcs),
        ("grpc.server.max_pending_requests_hard_limit", 2 * config.max_concurrent_rpcs),
        # A KEDA whose node died leaves no FIN. Without pings its streams would stay open here until TCP gives up.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping as they like: a GOAWAY for it would break their streams.
        ("grpc.http2.max_ping_strikes", 0),
        # Whoever connects and never speaks HTTP/2 is cut off.
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Proxies and meshes add headers; gRPC's own limit is 8 KiB.
        ("grpc.max_metadata_size", 64 * 1024),
        ("grpc.absolute_max_metadata_size", 64 * 1024),
        # A ScaledObject, its metadata included, is at most 1.5 MiB: etcd takes no more.
        ("grpc.max_receive_message_length", 2 * 1024 * 1024),
        # A second process on the same port has to fail, not to take half of the connections.
        ("grpc.so_reuseport", 0),
    ]


def _enable_reflection(server: grpc.aio.Server) -> None:
    need_extra("reflection", module="grpc_reflection", use="grpc.reflection")
    from grpc_reflection.v1alpha import reflection

    scaler = pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
    reflection.enable_server_reflection((scaler, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
