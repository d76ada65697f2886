"""The real server on a free loopback port, and a client that speaks to it as KEDA does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import grpc

from scaler.decision.decision_cache import DecisionCache
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.keda.server import ExternalScalerServer, ServerConfig

KEDA_METADATA = {
    "scalerAddress": "idle-gpu-scaler.gpu-system.svc.cluster.local:9090",
    "enableTLS": "false",
    "unsafeSsl": "false",
}


def ref(name: str = "first-raycluster", namespace: str = "demo", **metadata: str) -> Any:
    return pb.ScaledObjectRef(name=name, namespace=namespace, scalerMetadata=KEDA_METADATA | metadata)


class ObservedRpc(NamedTuple):
    method: str
    code: str
    seconds: float


@dataclass
class Served:
    """A running server and a client of it."""

    server: ExternalScalerServer
    port: int
    channel: grpc.aio.Channel
    stub: Any
    observed: list[ObservedRpc] = field(default_factory=list)


@asynccontextmanager
async def serving(decisions: DecisionCache, **config: Any) -> AsyncIterator[Served]:
    observed: list[ObservedRpc] = []
    settings = ServerConfig(**{"addresses": ("127.0.0.1:0",), **config})
    server = ExternalScalerServer(settings, decisions, observe=lambda *rpc: observed.append(ObservedRpc(*rpc)))
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Served(server, port, channel, pb_grpc.ExternalScalerStub(channel), observed)
    finally:
        await server.drain(timedelta(0))


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status and text with which an RPC fails."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError(f"answered {response!r} instead of failing")
