"""What does a scaler say to KEDA about a ScaledObject? One call of each kind that a poll makes, changing nothing."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.tls.probe import Call, Fault, Obstacle

_SECONDS = 5.0
_STRANGER = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A ScaledObject as KEDA names it in its calls."""

    namespace: str
    name: str
    metadata: Mapping[str, str]


async def ask(call: Call, about: Asked) -> Fault | None:
    """Why the server does not talk to this client of it; None where it does.

    Whether it has an answer to give is another question: an error of its own is none of the connection.
    """
    host, port = call.at
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with _channel(target, call) as channel:
        stub = pb_grpc.ExternalScalerStub(channel)
        ref = pb.ScaledObjectRef(namespace=about.namespace, name=about.name, scalerMetadata=dict(about.metadata))
        try:
            await stub.GetMetricSpec(ref, timeout=_SECONDS)
            await stub.IsActive(ref, timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            return _fault(error)
    return None


def _channel(target: str, call: Call) -> grpc.aio.Channel:
    if not call.terms.encrypted:
        return grpc.aio.insecure_channel(target)
    terms = call.terms
    credentials = grpc.ssl_channel_credentials(
        _roots(terms.authorities_pem), terms.key_pem or None, terms.certificate_pem or None
    )
    return grpc.aio.secure_channel(target, credentials, options=[("grpc.ssl_target_name_override", call.host)])


def _roots(given: bytes) -> bytes:
    """What is trusted: beside the given ones, those of this system."""
    file = ssl.get_default_verify_paths().cafile
    return given + b"\n" + (Path(file).read_bytes() if file and Path(file).is_file() else b"")


def _fault(error: grpc.aio.AioRpcError) -> Fault | None:
    if error.code() in _STRANGER:
        return Fault(obstacle=Obstacle.IDENTITY_REFUSED, what=f"it answers {error.code().name}: {error.details()}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Fault(obstacle=Obstacle.NO_GRPC, what="it is a gRPC server, and no external scaler for KEDA")
    return None
