"""dcgm-exporter's HTTP side for a whole fleet on one port: /nodes/<node>/metrics, and /metrics for all nodes together.

Nodes come and go: the path of one that has gone is not found, and the common one always has the nodes that exist.
A node whose exporter is down closes connections to its own path. It is missing from the common one, as it would be
missing from a Prometheus that scrapes every node. Metric names and labels are those of dcgm-exporter, without
timestamps; a device that no container holds has no pod labels.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from aiohttp import web

from scaler_sandbox.fleet.fleet import Fleet
from scaler_sandbox.fleet.gpus import FB_USED, GPU_UTIL, GR_ENGINE_ACTIVE, METRICS, POWER_USAGE, SENTINEL, Reading

_HOST = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP = {
    GPU_UTIL: "GPU utilization (in %).",
    POWER_USAGE: "Power draw (in W).",
    FB_USED: "Framebuffer memory used (in MiB).",
    GR_ENGINE_ACTIVE: "Ratio of time the graphics engine is active.",
}
_WHOLE_NUMBERS = frozenset({GPU_UTIL, FB_USED})


def render(readings: Iterable[Reading]) -> str:
    """The exposition text, one block per metric."""
    readings = list(readings)
    return "".join(_block(metric, readings) for metric in METRICS)


def _block(metric: str, readings: list[Reading]) -> str:
    lines = [
        f"{metric}{{{labels_of(reading)}}} {_number(metric, reading.values[metric])}\n"
        for reading in readings
        if metric in reading.values
    ]
    return f"# HELP {metric} {_HELP[metric]}\n# TYPE {metric} gauge\n" + "".join(lines) if lines else ""


def labels_of(reading: Reading) -> str:
    """The label set as it stands between the braces."""
    gpu, holder = reading.gpu, reading.holder
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": gpu.device,
        "modelName": gpu.model.name,
        "Hostname": gpu.node,
    }
    if holder:
        labels |= {"container": holder.container, "namespace": holder.namespace, "pod": holder.pod}
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _number(metric: str, value: float) -> str:
    if value == SENTINEL:
        return "9223372036854775794"  # which a float cannot hold
    return str(int(value)) if metric in _WHOLE_NUMBERS else f"{value:.6f}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exporter:
    """Serves the fleet's metrics. Use as an async context manager."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._collecting: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address at which it listens."""
        return f"http://{_HOST}:{self._port}"

    @property
    def node_urls(self) -> dict[str, str]:
        """The metrics URL of every node that is there."""
        return {node: f"{self.url}/nodes/{node}/metrics" for node in self._fleet.machines}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/metrics", self._all)
        app.router.add_get("/nodes/{node}/metrics", self._node)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, _HOST, 0).start()
        self._port = self._runner.addresses[0][1]
        self._collecting = asyncio.create_task(self._fleet.collect(), name="fleet-collection")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._collecting:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        if self._runner:
            await self._runner.cleanup()

    async def _all(self, _request: web.Request) -> web.Response:
        nodes = [node for node in self._fleet.machines if node not in self._fleet.faults.down]
        return _answer(render(reading for node in nodes for reading in self._fleet.readings(node)))

    async def _node(self, request: web.Request) -> web.StreamResponse:
        node = request.match_info["node"]
        if node not in self._fleet.machines:
            raise web.HTTPNotFound(text=f"there is no node {node!r}\n")
        if node not in self._fleet.faults.down:
            return _answer(render(self._fleet.readings(node)))
        if request.transport:
            request.transport.close()
        return web.Response()


def _answer(text: str) -> web.Response:
    return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})
