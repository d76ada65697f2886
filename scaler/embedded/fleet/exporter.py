"""dcgm-exporter's HTTP side for a whole fleet on one port: /nodes/<node>/metrics, and /metrics for all nodes together.

Nodes come and go: the path of one that has gone is not found, and the common one always tells of those that are there.
A node whose exporter is out of order fails as that outage fails on its own path. It is missing from the common one, as
it would be missing from a Prometheus that scrapes every node.
"""

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web

from scaler.embedded.fleet.exposition import CONTENT_TYPE, render
from scaler.embedded.fleet.faults import Outage
from scaler.embedded.fleet.fleet import Fleet

_LONGEST_HANG_SECONDS = 3600.0


class Exporter:
    """Serves the fleet's metrics. Use as an async context manager."""

    def __init__(self, fleet: Fleet, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._fleet = fleet
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self._collecting: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"

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
        await web.TCPSite(self._runner, self._host, self._port).start()
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
        nodes = [node for node in self._fleet.machines if not self._fleet.faults.outage(node)]
        return _answer(render(reading for node in nodes for reading in self._fleet.readings(node)))

    async def _node(self, request: web.Request) -> web.StreamResponse:
        node = request.match_info["node"]
        if node not in self._fleet.machines:
            raise web.HTTPNotFound(text=f"there is no node {node!r}\n")
        text = render(self._fleet.readings(node))
        match self._fleet.faults.outage(node):
            case None:
                return _answer(text)
            case Outage.ERROR:
                raise web.HTTPInternalServerError(text="failed to collect metrics\n")
            case Outage.HANG:
                await asyncio.sleep(_LONGEST_HANG_SECONDS)
            case Outage.TRUNCATED:
                return await _broken_off(request, text)
            case Outage.DOWN:
                pass
        return _hang_up(request)


def _answer(text: str) -> web.Response:
    return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})


async def _broken_off(request: web.Request, text: str) -> web.StreamResponse:
    """Two thirds of the announced length, and then no connection any more."""
    body = text.encode()
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) * 2 // 3])
    _hang_up(request)
    return response


def _hang_up(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.close()
    return web.Response()
