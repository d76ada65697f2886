"""What HTTP serves: metrics, probes, decisions, quota and plans as JSON, and others' routes (docs/command-line.md).

TLS follows a rotation of certificates: a listening socket keeps the context that it was opened with, so that one only
begins each handshake and hands it over to the newest one, certificate and authorities of clients together. Open
connections continue. Tempting: to load the new pair into the context that listens. That cannot remove an authority of
clients, and a half-loaded context serves.

An error is `{"error": …}`: 400 for an invalid query, 404 for what does not exist, 409 for what does not wait, 503 while
not enough is known.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

import msgspec
from aiohttp import hdrs, web

from scaler.clock import Turns
from scaler.errors import ConfigurationError, QueryError
from scaler.kube.objects.multikueue import ClusterOffer
from scaler.reporting.connections import ConnectionLimits, Connections, answered_in_time, compressed, with_headers
from scaler.reporting.metrics import Metrics
from scaler.reporting.views.query_service import QueryService
from scaler.tls.certificates import AllowedClients, ClientCertificate
from scaler.tls.rotation import Rotation

_HIGHEST_PORT = 65535
_LONGEST_END_SECONDS = 2.0
"""The time for answers that are under way when it stops; Kubernetes kills what has not ended after 30 s."""
_TRUTHS = {"": False, "true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    unhealthy: Callable[[], Sequence[str]]
    """What is wrong with the process; empty while it is healthy."""
    unready: Callable[[], Sequence[str]]
    """What is still missing before it is ready."""
    overview: Callable[[], Collection[Mapping[str, Any]]]
    """It stays what it is while the decisions change."""
    explain: Callable[[str, str], Mapping[str, Any] | None]
    queries: QueryService
    offers: Callable[[], Sequence[ClusterOffer]] = tuple
    """What this cluster has said to hubs of MultiKueue."""


class HttpTls:
    def __init__(self, rotation: Rotation, clients: AllowedClients | None = None) -> None:
        self._rotation = rotation
        self.clients = clients if rotation.is_mutual else None
        """The clients that are answered; None: no client certificate is needed."""

    def context(self) -> ssl.SSLContext:
        first = self._rotation.material.context

        def hand_over(handshake: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            handshake.context = self._rotation.material.context

        first.sni_callback = hand_over  # called for clients that send no server name, too
        return first


class HttpServer:
    def __init__(
        self,
        address: str,
        metrics: Metrics,
        views: Views,
        *,
        tls: HttpTls | None = None,
        routes: Sequence[web.AbstractRouteDef] = (),
        guards: Sequence[Any] = (),
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`routes` are those of others, beside its own; `guards` are middlewares before all of them."""
        self._address = address
        self._tls = tls
        self._host, self._port = _split(address)
        self._metrics = metrics
        self._views = views
        self._routes = routes
        self._guards = guards
        self._limits = limits or ConnectionLimits()
        self._stack = AsyncExitStack()

    async def start(self) -> int:
        """Listen; returns the port. Raises: ConfigurationError where the address cannot be bound."""
        clients, queries = self._tls.clients if self._tls else None, self._views.queries
        guards = [*([] if clients is None else [_only_for(clients)]), *self._guards]
        app = web.Application(middlewares=[answered_in_time, *guards])
        app.on_response_prepare.append(with_headers)
        app.add_routes(
            [
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._probe(self._views.unhealthy)),
                web.get("/readyz", self._probe(self._views.unready)),
                web.get("/api/v1/decisions", self._get_decisions),
                web.get("/api/v1/decisions/{namespace}/{name}", _answered(self._explanation)),
                web.get("/api/v1/offer", _answered(self._offer)),
                web.get("/api/v1/queues", _answered(self._queues)),
                web.get("/api/v1/clusters", _answered(lambda _: queries.clusters())),
                web.get("/api/v1/pending", _answered(self._pending)),
                web.get("/api/v1/gangs/{namespace}/{name:.+}", _answered(lambda at: queries.gang(**at.match_info))),
                web.get("/api/v1/plans/{namespace}/{name:.+}", _answered(self._plan)),
                *self._routes,
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=_LONGEST_END_SECONDS)
        await runner.setup()
        server, context = cast(web.Server, runner.server), self._tls.context() if self._tls else None
        refusals = self._metrics.http_refusals_total
        connections = Connections(server, context, self._limits, lambda reason: refusals.labels(reason=reason).inc())
        self._stack.callback(connections.close)
        self._stack.push_async_callback(runner.cleanup)
        try:
            listening = await asyncio.get_running_loop().create_server(connections, self._host, self._port)
        except OSError as error:
            await self.stop()
            reason = error.strerror or str(error)
            raise ConfigurationError(f"http.address {self._address} cannot be bound: {reason}") from None
        self._stack.callback(listening.close)
        port: int = listening.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        await self._stack.aclose()

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        parts, content_type = self._metrics.exposition(request.headers.get("Accept", ""))
        return await _sent(request, parts, content_type)

    def _probe(self, problems: Callable[[], Sequence[str]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            found = problems()
            return web.Response(status=503 if found else 200, text="\n".join(found) + "\n" if found else "ok\n")

        return answer

    async def _get_decisions(self, request: web.Request) -> web.StreamResponse:
        return await _sent(request, _json_parts("decisions", self._views.overview()), "application/json; charset=utf-8")

    async def _explanation(self, request: web.Request) -> Mapping[str, Any]:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        explanation = self._views.explain(namespace, name)
        if explanation is None:
            problem, missing = f"ScaledObject {namespace}/{name} is not evaluated", "; ".join(self._views.unready())
            raise QueryError(f"{problem}: {missing}" if missing else problem, status=404)
        return explanation

    async def _offer(self, _request: web.Request) -> Mapping[str, Any]:
        return {"offers": [{"name": each.metadata.name, "status": each.status} for each in self._views.offers()]}

    async def _queues(self, request: web.Request) -> Mapping[str, Any]:
        given = request.query.get("allResources", "")
        if given not in _TRUTHS:
            raise QueryError(f"allResources={given!r} is neither true nor false", status=400)
        return await self._views.queries.queues(all_resources=_TRUTHS[given])

    async def _pending(self, request: web.Request) -> Mapping[str, Any]:
        namespace, queue = (request.query.get(each, "") for each in ("namespace", "queue"))
        return await self._views.queries.pending(namespace=namespace, queue=queue)

    async def _plan(self, request: web.Request) -> Mapping[str, Any]:
        names = request.query.getall("whatIfIdle", [])
        idle = None if not names else [] if "*" in names else names
        return await self._views.queries.plan(**request.match_info, idle=idle)


_LINES = 100
"""Decisions in one part of JSON."""


def _json_parts(name: str, items: Iterable[Any]) -> Iterator[bytes]:
    """An object whose one field has the items."""
    rest, before = iter(items), f'{{"{name}": ['
    while some := list(islice(rest, _LINES)):
        yield (before + json.dumps(some)[1:-1]).encode()
        before = ", "
    yield (before.removesuffix(", ") + "]}").encode()


async def _sent(request: web.Request, parts: Iterable[bytes], content_type: str) -> web.StreamResponse:
    """A long response in parts, between which RPCs are answered; compressed only for whoever asks for that."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.headers["Content-Encoding"] = "gzip"
        parts = compressed(parts)
    await response.prepare(request)
    turns = Turns()
    for part in parts if request.method != hdrs.METH_HEAD else ():
        await response.write(part)
        await turns.give_way()
    await response.write_eof()
    return response


_PROBES = frozenset({"/healthz", "/readyz"})


def _only_for(clients: AllowedClients) -> Any:
    """A middleware that answers other clients nothing but the probes."""

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        identity = client_identity(request.get_extra_info("peercert"))
        refusal = clients.refusal(identity) if request.path not in _PROBES else None
        if refusal:
            status = 401 if refusal.is_unidentified else 403
            return web.json_response({"error": refusal.reason}, status=status)
        return await handler(request)

    return guard


_NAMES = frozenset({"DNS", "IP Address", "URI", "email"})


def client_identity(certificate: Mapping[str, Any] | None) -> ClientCertificate | None:
    """The names in the client's certificate as `getpeercert` returns it; None without one."""
    if not certificate:
        return None
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind in _NAMES]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    return ClientCertificate(names=[*names, *common], not_after=end)


def _answered(
    ask: Callable[[web.Request], Awaitable[Mapping[str, Any]]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            return web.Response(body=msgspec.json.encode(await ask(request)), content_type="application/json")
        except QueryError as error:
            return web.json_response({"error": str(error)}, status=error.status)

    return answer


def _split(address: str) -> tuple[str | None, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port`, whose host is None: every interface of both families."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal() and int(port) <= _HIGHEST_PORT) or (":" in host and not host.endswith("]")):
        raise ConfigurationError(f"http.address {address!r} is not host:port; write for example '0.0.0.0:8080'")
    return host.strip("[]") or None, int(port)
