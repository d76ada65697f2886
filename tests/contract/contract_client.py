"""How do the contract tests speak to an API? Plain HTTP, with an address and credentials from a kubeconfig.

Deliberately not a Kubernetes client: what goes over the wire stands in the tests.
"""

import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@dataclass(frozen=True)
class Access:
    """Where an API is and how to get in."""

    server: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None
    tls_without_certificate: ssl.SSLContext | None = None
    """Without the user's own certificate, which would come before a token."""

    def with_token(self, token: str) -> "Access":
        """The same API as another client."""
        headers = {"Authorization": f"Bearer {token}"}
        return Access(self.server, headers, self.tls_without_certificate, self.tls_without_certificate)

    @classmethod
    def from_kubeconfig(cls, config: Json) -> "Access":
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == context["user"]) or {}
        headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
        tls, without_certificate = None, None
        if cluster["server"].startswith("https"):
            tls, without_certificate = _tls(cluster, user), _tls(cluster, {})
        return cls(cluster["server"].rstrip("/"), headers, tls, without_certificate)

    @classmethod
    def from_file(cls, path: str) -> "Access":
        return cls.from_kubeconfig(yaml.load(Path(path).read_text(), yaml.CSafeLoader))


def _tls(cluster: Json, user: Json) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if certificate and key:
        # The ssl module reads client certificates from files only.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(certificate + "\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _pem(entry: Json, field: str) -> str | None:
    if f"{field}-data" in entry:
        return base64.b64decode(entry[f"{field}-data"]).decode()
    return Path(entry[field]).read_text() if field in entry else None


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        return self.body.get("reason", "") if isinstance(self.body, dict) else ""

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(reason, field) of each cause, in a fixed order."""
        causes = (self.body.get("details") or {}).get("causes") or []
        return sorted((cause.get("reason", ""), cause.get("field", "")) for cause in causes)

    def ok(self) -> Any:
        """The body of a request that had to succeed."""
        assert self.status < 300, f"{self.status}: {json.dumps(self.body)[:2000]}"
        return self.body


class Client:
    """Requests to one API."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls if access.tls else True),
            headers={"User-Agent": "contract/1.0", **access.headers},
            timeout=aiohttp.ClientTimeout(total=30),
        )

    async def close(self) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: Any,
    ) -> Answer:
        headers = {"Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = body if isinstance(body, str) else json.dumps(body)
        params = {key: _text(value) for key, value in query.items() if value is not None}
        url = self.access.server + path
        async with self._session.request(method, url, data=data, params=params, headers=headers) as response:
            text = await response.text()
            body = json.loads(text) if "json" in response.headers.get("Content-Type", "") else text
            return Answer(response.status, body, dict(response.headers))

    async def get(self, path: str, **query: Any) -> Answer:
        return await self.call("GET", path, **query)

    async def post(self, path: str, body: Any, **query: Any) -> Answer:
        return await self.call("POST", path, body, **query)

    async def put(self, path: str, body: Any, **query: Any) -> Answer:
        return await self.call("PUT", path, body, **query)

    async def delete(self, path: str, body: Any = None, **query: Any) -> Answer:
        return await self.call("DELETE", path, body, **query)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **query: Any) -> Answer:
        return await self.call("PATCH", path, body, content_type=content_type, **query)

    async def apply(self, path: str, body: Json, manager: str, **query: Any) -> Answer:
        return await self.patch(path, body, APPLY, fieldManager=manager, **query)

    @asynccontextmanager
    async def watch(self, path: str, *, accept: str = "application/json", **query: Any) -> AsyncIterator["Watch"]:
        params = {"watch": "true"} | {key: _text(value) for key, value in query.items()}
        url = self.access.server + path
        async with self._session.get(url, params=params, headers={"Accept": accept}) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)


class Watch:
    """One open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, Json]:
        """The next event; fails where the stream ended."""
        line = await self._response.content.readline()
        assert line, "the watch ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def until(self, last: str) -> list[tuple[str, Json]]:
        """The events before the first one about the object of this name: a quiet stream never says that it is quiet."""
        events = []
        while (event := await self.next())[1]["metadata"].get("name") != last:
            events.append(event)
        return events

    async def rest(self) -> list[tuple[str, Json]]:
        """All events until the server ends the stream."""
        return [
            (event["type"], event["object"]) async for line in self._response.content if (event := json.loads(line))
        ]


def _text(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)
