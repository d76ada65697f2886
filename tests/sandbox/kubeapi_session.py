"""How do the tests of the embedded Kubernetes API speak to it? Over HTTP, a few words a request."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from scaler_sandbox.kubeapi import KubeApi

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"


class Session:
    """Requests to one embedded API."""

    def __init__(self, api: KubeApi, http: aiohttp.ClientSession) -> None:
        self.api = api
        self.http = http

    async def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Status and body."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind} if body is not None else {}
        async with self.http.request(method, self.api.url + path, data=data, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    async def create(self, name: str, **data: str) -> Any:
        """A new config map."""
        status, body = await self.call("POST", CONFIG_MAPS, {"metadata": {"name": name}, "data": data})
        assert status == 201, body
        return body

    async def revision(self) -> str:
        """The present revision."""
        return str((await self.call("GET", CONFIG_MAPS))[1]["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def watch(self, query: str = "") -> AsyncIterator[aiohttp.ClientResponse]:
        """An open watch of config maps."""
        async with self.http.get(f"{self.api.url}{CONFIG_MAPS}?watch=1{query}") as response:
            assert response.status == 200
            yield response


async def next_event(watch: aiohttp.ClientResponse) -> tuple[str, Any]:
    """The next event of a watch."""
    event = json.loads(await watch.content.readline())
    return event["type"], event["object"]


@asynccontextmanager
async def serving(api: KubeApi) -> AsyncIterator[Session]:
    """A started API and a session with it."""
    await api.start()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        try:
            yield Session(api, http)
        finally:
            await api.stop()
