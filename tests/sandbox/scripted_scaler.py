"""A real gRPC external scaler that answers what a test tells it to, and remembers who asked what and when."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc


@dataclass
class Asked:
    """One RPC."""

    rpc: str
    name: str
    metadata: dict[str, str]
    at: float


@dataclass
class ScriptedScaler(pb_grpc.ExternalScalerServicer):  # type: ignore[misc]
    """Set the attributes at any time; they hold from the next RPC on."""

    active: bool = False
    failing: dict[str, str] = field(default_factory=dict)
    """RPC name → text of the UNAVAILABLE that it answers."""
    hanging: set[str] = field(default_factory=set)
    metrics: list[str] = field(default_factory=lambda: ["gpu-busy"])
    asked: list[Asked] = field(default_factory=list)
    address: str = ""
    pushes: list[asyncio.Queue[bool | grpc.StatusCode]] = field(default_factory=list)
    opened: int = 0

    def rpcs(self, name: str = "") -> list[str]:
        return [each.rpc for each in self.asked if not name or each.name == name]

    def push(self, value: bool | grpc.StatusCode) -> None:
        """Sends the value on every open stream, or ends every open stream with the status."""
        for queue in self.pushes:
            queue.put_nowait(value)

    async def _asked(self, rpc: str, ref: Any, context: Any) -> None:
        self.asked.append(Asked(rpc, ref.name, dict(ref.scalerMetadata), time.monotonic()))
        while rpc in self.hanging:  # noqa: ASYNC110 (a set that tests change)
            await asyncio.sleep(0.02)
        if rpc in self.failing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.failing[rpc])

    async def GetMetricSpec(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._asked("GetMetricSpec", request, context)
        specs = [pb.MetricSpec(metricName=name, targetSize=1, targetSizeFloat=1.0) for name in self.metrics]
        return pb.GetMetricSpecResponse(metricSpecs=specs)

    async def GetMetrics(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._asked("GetMetrics", request.scaledObjectRef, context)
        value = pb.MetricValue(metricName=request.metricName, metricValue=int(self.active))
        return pb.GetMetricsResponse(metricValues=[value])

    async def IsActive(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._asked("IsActive", request, context)
        return pb.IsActiveResponse(result=self.active)

    async def StreamIsActive(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await self._asked("StreamIsActive", request, context)
        queue: asyncio.Queue[bool | grpc.StatusCode] = asyncio.Queue()
        self.pushes.append(queue)
        self.opened += 1
        try:
            while isinstance(value := await queue.get(), bool):
                yield pb.IsActiveResponse(result=value)
        finally:
            self.pushes.remove(queue)
        if value is not grpc.StatusCode.OK:
            await context.abort(value, "the test ends the stream")


@asynccontextmanager
async def scripted_scaler() -> AsyncIterator[ScriptedScaler]:
    scaler = ScriptedScaler()
    server = grpc.aio.server()
    pb_grpc.add_ExternalScalerServicer_to_server(scaler, server)
    scaler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield scaler
    finally:
        scaler.hanging.clear()
        await server.stop(None)
