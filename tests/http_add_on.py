"""The external scaler of KEDA's HTTP add-on, as far as KEDA sees it: requests under way, for each route.

It speaks as the original does: metrics of the route that the trigger names and that has to be there, active while any
request is under way, and its activity pushed again and again whether or not it has changed.

Source: kedacore/http-add-on, scaler/handlers.go.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc

_PUSHES_EVERY_S = 0.2


@dataclass
class HttpAddOn(pb_grpc.ExternalScalerServicer):  # type: ignore[misc]
    """Set the requests at any time."""

    requests: dict[str, int] = field(default_factory=dict)
    """Under way, by the name of the InterceptorRoute. Without an entry there is no such route."""
    address: str = ""

    async def GetMetricSpec(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = await self._route(request, context)
        spec = pb.MetricSpec(metricName=f"http_{name}_concurrency", targetSizeFloat=100.0)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = await self._route(request.scaledObjectRef, context)
        value = pb.MetricValue(metricName=f"http_{name}_concurrency", metricValueFloat=float(self.requests[name]))
        return pb.GetMetricsResponse(metricValues=[value])

    async def IsActive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.IsActiveResponse(result=self.requests[await self._route(request, context)] > 0)

    async def StreamIsActive(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        while True:
            await asyncio.sleep(_PUSHES_EVERY_S)
            yield pb.IsActiveResponse(result=self.requests[await self._route(request, context)] > 0)

    async def _route(self, reference: Any, context: Any) -> str:
        name = str(reference.scalerMetadata.get("interceptorRoute", ""))
        if name not in self.requests:
            await context.abort(grpc.StatusCode.UNKNOWN, f'interceptorroutes.http.keda.sh "{name}" not found')
        return name


@asynccontextmanager
async def http_add_on(*routes: str) -> AsyncIterator[HttpAddOn]:
    """Serves these routes, without any request."""
    scaler = HttpAddOn(requests=dict.fromkeys(routes, 0))
    server = grpc.aio.server()
    pb_grpc.add_ExternalScalerServicer_to_server(scaler, server)
    scaler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield scaler
    finally:
        await server.stop(None)
