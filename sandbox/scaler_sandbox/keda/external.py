"""The client of external scalers: the RPCs, in KEDA's order and with KEDA's way of asking twice.

| what fails    | calls of one poll                          | what the user sees                    |
|---------------|--------------------------------------------|---------------------------------------|
| nothing       | GetMetricSpec, GetMetrics, IsActive        |                                       |
| GetMetricSpec | GetMetricSpec ×2                           | `got empty metric spec`               |
| GetMetrics    | GetMetricSpec, GetMetrics ×2               | `rpc error: code = … desc = …`        |
| IsActive      | GetMetricSpec, (GetMetrics, IsActive) ×2   | `rpc error: code = … desc = …`        |

There is one channel per address for all ScaledObjects. KEDA sets no deadline, so that a scaler that never answers
stops the loop of its ScaledObject for good.

Source: KEDA 2.18, pkg/scalers/external_scaler.go and pkg/scaling/cache/scalers_cache.go.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler_sandbox.keda.scaledobjects import Trigger

T = TypeVar("T")
_OPTIONS = (
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.primary_user_agent", "idle-gpu-scaler-embedded-keda"),
    ("grpc.initial_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 120_000),
)


class Channels:
    """One connection per scaler address, shared by all ScaledObjects."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def stub(self, address: str) -> Any:
        """The client of the scaler at that address."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return pb_grpc.ExternalScalerStub(self._channels[address])

    async def close(self) -> None:
        """Ends all RPCs and connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


class ScalerFailed(Exception):  # noqa: N818 (a value that is carried to an Event, in KEDA's words)
    """The scaler gave no answer that could be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerState:
    """What one trigger's scaler said in one poll."""

    is_active: bool
    failure: str = ""
    """The message of the Event; empty where the scaler answered."""


class ExternalScaler:
    """The scaler of one trigger of one ScaledObject."""

    def __init__(self, channels: Channels, namespace: str, name: str, trigger: Trigger) -> None:
        self._stub = channels.stub(trigger.address)
        self._ref = pb.ScaledObjectRef(namespace=namespace, name=name, scalerMetadata=dict(trigger.metadata))
        self.trigger = trigger

    async def metric_names(self) -> list[str]:
        """The metrics that the scaler specifies. Raises: ScalerFailed."""
        for _ in range(2):
            try:
                specs = (await self._stub.GetMetricSpec(self._ref)).metricSpecs
            except grpc.aio.AioRpcError:
                continue
            if specs:
                return [spec.metricName for spec in specs]
        raise ScalerFailed("got empty metric spec")

    async def poll(self) -> TriggerState:
        """One poll of this trigger. With several metrics the last one decides, as in KEDA."""
        is_active = False
        try:
            for metric in await self.metric_names():
                is_active = await _twice(lambda name=metric: self._metric_and_activity(name))  # type: ignore[misc]
        except ScalerFailed as failure:
            return TriggerState(is_active=is_active, failure=str(failure))
        return TriggerState(is_active=is_active)

    async def _metric_and_activity(self, metric: str) -> bool:
        request = pb.GetMetricsRequest(scaledObjectRef=self._ref, metricName=metric)
        await self._stub.GetMetrics(request)
        return bool((await self._stub.IsActive(self._ref)).result)

    async def listen(self, activated: Callable[[], Awaitable[None]]) -> bool:
        """Calls back at every pushed true; a pushed false is ignored. Returns whether the stream ended well."""
        try:
            async for response in self._stub.StreamIsActive(self._ref):
                if response.result:
                    await activated()
        except grpc.aio.AioRpcError:
            return False
        return True


async def _twice(call: Callable[[], Awaitable[T]]) -> T:
    """The answer, at the second try if need be. Raises: ScalerFailed."""
    try:
        return await call()
    except grpc.aio.AioRpcError:
        pass
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        raise ScalerFailed(in_go_words(error)) from error


def in_go_words(error: grpc.aio.AioRpcError) -> str:
    """The error as grpc-go prints it, which is what KEDA shows in events."""
    code = "".join(part.capitalize() for part in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"
