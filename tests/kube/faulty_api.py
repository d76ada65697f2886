"""An API server that answers as a test tells it to: for the shapes of failure that a well-behaved one does not show."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FaultyApi:
    """Serves `handler`, which a test sets, and remembers what was asked."""

    def __init__(self) -> None:
        self.handler: Handler = not_found
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        return await self.handler(request)

    def count(self, *, watches: bool) -> int:
        return sum(is_watch(request) == watches for request in self.requests)

    @asynccontextmanager
    async def serving(self, port: int = 0, **tls: Any) -> AsyncIterator[Self]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = runner = web.AppRunner(app, shutdown_timeout=0.05)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, **tls)
        await site.start()
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def write_kubeconfig(path: Path, url: str, *, cluster: dict[str, Any] | None = None, **user: Any) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "it", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


# ---------------------------------------------------------------------------------------------------------- answers


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch") == "true"


def status(code: int, reason: str = "", message: str = "", **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


async def not_found(_: web.Request) -> web.StreamResponse:
    return web.Response(status=404, text="404 page not found")


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError("no test waits this long")


def page(*objects: dict[str, Any], version: int = 100, token: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version), "continue": token}, "items": objects})


async def stream(
    request: web.Request, *chunks: bytes, stays_open: bool = True, drops: bool = False
) -> web.StreamResponse:
    """A watch that sends the chunks, then stays open, ends in order, or drops the connection."""
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    if drops and request.transport is not None:
        request.transport.close()
    elif stays_open:
        await asyncio.sleep(60)
    return response
