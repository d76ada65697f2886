"""How does the API speak HTTP? One handler: who asks, what about, which verb; then the cluster does it."""

import hmac
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import yaml
from aiohttp import web

from scaler.embedded.kubeapi import discovery
from scaler.embedded.kubeapi.cluster import Change, Cluster, Deletion, Writing
from scaler.embedded.kubeapi.faults import ConnectionDropped, Faults
from scaler.embedded.kubeapi.listing import Lister, ListQuery
from scaler.embedded.kubeapi.patches import APPLY_PATCH, patch_function
from scaler.embedded.kubeapi.rendering import form_of, list_body, renderer
from scaler.embedded.kubeapi.routing import Target, target_of
from scaler.embedded.kubeapi.scaling import scale_of, scaled
from scaler.embedded.kubeapi.selectors import selection
from scaler.embedded.kubeapi.status import (
    ApiError,
    Json,
    bad_request,
    method_not_allowed,
    object_details,
    success,
    unsupported_media_type,
)
from scaler.embedded.kubeapi.watch import Watcher, WatchQuery

_encode = msgspec.json.Encoder().encode
_YAML_TYPES = ("application/yaml", APPLY_PATCH)
_JSON_TYPES = ("", "application/json", "application/octet-stream")
_LARGEST_BODY_BYTES = 64 * 1024 * 1024
_MANAGER_LENGTH = 128
_Answer = Awaitable[web.StreamResponse]


class Server:
    """The HTTP side of one cluster."""

    def __init__(self, cluster: Cluster, *, faults: Faults, token: str = "") -> None:
        self._cluster = cluster
        self._lister = Lister(cluster)
        self._faults = faults
        self._token = token
        self._watchers: set[Watcher] = set()
        faults.connect(close_watches=self.close_watches, compact=self._compact)

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    def close_watches(self) -> None:
        """End all open watches."""
        for watcher in list(self._watchers):
            watcher.end()

    def _compact(self) -> None:
        self._cluster.store.compact()
        self._lister.forget()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            await self._faults.before(request.method, request.path)
            self._authenticate(request)
            return await self._answer(request)
        except ApiError as error:
            return _status_response(error)
        except ConnectionDropped:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)

    def _authenticate(self, request: web.Request) -> None:
        if not self._token:
            return
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        found = discovery.document(path, self._cluster.registry)
        if found is not None:
            return _json(found)
        target = target_of(path, self._cluster.registry)
        if target is None:
            return web.Response(status=404, text="404 page not found\n")
        return await self._verb(request, target)

    def _verb(self, request: web.Request, target: Target) -> _Answer:
        verbs = self._verbs_of(target)
        if verbs is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        verb = verbs.get(request.method)
        if verb is None:
            raise method_not_allowed()
        return verb(request, target)

    def _verbs_of(self, target: Target) -> dict[str, Callable[[web.Request, Target], _Answer]] | None:
        version = target.view.version
        if not target.name:
            writes = {"POST": self._create, "DELETE": self._delete_collection} if target.namespace is not None else {}
            return {"GET": self._list_or_watch, **writes}
        if not target.subresource:
            return {"GET": self._get, "PUT": self._replace, "PATCH": self._patch, "DELETE": self._delete}
        if target.subresource == "status" and version.has_status:
            return {"GET": self._get, "PUT": self._replace, "PATCH": self._patch}
        if target.subresource == "scale" and version.scale:
            return {"GET": self._get_scale, "PUT": self._replace_scale, "PATCH": self._patch_scale}
        return None

    # --- reading

    async def _get(self, request: web.Request, target: Target) -> web.StreamResponse:
        form = form_of(request.headers.get("Accept", ""))
        stored = self._cluster.get(target.view, *target.key)
        return _bytes(renderer(target.view, form)(stored))

    async def _list_or_watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        if request.query.get("watch") in ("1", "true"):
            return await self._watch(request, target)
        return self._list(request, target)

    def _list(self, request: web.Request, target: Target) -> web.Response:
        query = request.query
        form_of(request.headers.get("Accept", ""))
        page = self._lister.page(
            target.view,
            ListQuery(
                namespace=target.namespace if target.view.resource.namespaced else None,
                matches=self._selection(request, target),
                limit=_number(query.get("limit", "")) or 0,
                token=query.get("continue", ""),
                revision=query.get("resourceVersion", ""),
                revision_match=query.get("resourceVersionMatch", ""),
            ),
        )
        metadata: Json = {"resourceVersion": str(page.revision)}
        if page.token:
            metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        return _bytes(list_body(target.view, page.items, metadata))

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        initial = query.get("sendInitialEvents")
        watcher = Watcher(
            self._cluster,
            target.view,
            WatchQuery(
                namespace=target.namespace if target.view.resource.namespaced else None,
                matches=self._selection(request, target),
                revision=query.get("resourceVersion", ""),
                revision_match=query.get("resourceVersionMatch", ""),
                send_initial_events=None if initial is None else initial in ("1", "true"),
                bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
                # Without a wish, spread over half an hour, so that not all clients come back at once.
                timeout_seconds=_number(query.get("timeoutSeconds", "")) or random.uniform(1800, 3600),  # noqa: S311
            ),
            render=renderer(target.view, form_of(request.headers.get("Accept", ""))),
            faults=self._faults,
        )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._watchers.add(watcher)
        try:
            await watcher.stream(response.write)
        finally:
            self._watchers.discard(watcher)
        return response

    def _selection(self, request: web.Request, target: Target) -> Callable[[Json], bool]:
        query = request.query
        return selection(target.view, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))

    # --- writing

    async def _create(self, request: web.Request, target: Target) -> web.StreamResponse:
        writing = _writing(request)
        stored = self._cluster.create(target.view, target.namespace or "", await _object(request), writing)
        return _bytes(stored.encode(target.view), status=201, warnings=writing.warnings)

    async def _replace(self, request: web.Request, target: Target) -> web.StreamResponse:
        body = await _object(request)
        return self._update(request, target, lambda _old: body)

    async def _patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        patch = await _decoded(request)
        return self._update(request, target, patch_function(target.view, request.content_type, patch))

    def _update(self, request: web.Request, target: Target, change: Change) -> web.Response:
        writing = _writing(request)
        stored = self._cluster.update(target.view, target.key, change, writing, subresource=target.subresource)
        return _bytes(stored.encode(target.view), warnings=writing.warnings)

    async def _delete(self, request: web.Request, target: Target) -> web.StreamResponse:
        deletion = _deletion(request, await _decoded(request))
        stored, gone = self._cluster.delete(target.view, *target.key, deletion)
        if not gone or target.view.resource.returns_deleted:
            return _bytes(stored.encode(target.view))
        return _json(success(object_details(*target.view.resource.key, target.name, uid=stored.uid)))

    async def _delete_collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        deletion = _deletion(request, await _decoded(request))
        namespace = target.namespace if target.view.resource.namespaced else None
        query = ListQuery(namespace=namespace, matches=self._selection(request, target))
        page = self._lister.page(target.view, query)
        left = [self._cluster.delete(target.view, *stored.key, deletion)[0] for stored in page.items]
        return _bytes(list_body(target.view, left, {"resourceVersion": str(self._cluster.store.revision)}))

    # --- /scale

    async def _get_scale(self, _request: web.Request, target: Target) -> web.StreamResponse:
        return _json(scale_of(target.view, self._cluster.get(target.view, *target.key)))

    async def _replace_scale(self, request: web.Request, target: Target) -> web.StreamResponse:
        body = await _object(request)
        return self._update_scale(request, target, lambda _old: body)

    async def _patch_scale(self, request: web.Request, target: Target) -> web.StreamResponse:
        patch = await _decoded(request)
        return self._update_scale(request, target, patch_function(target.view, request.content_type, patch))

    def _update_scale(self, request: web.Request, target: Target, change: Change) -> web.Response:
        to_object = scaled(target.view, change)
        stored = self._cluster.update(target.view, target.key, to_object, _writing(request), subresource="scale")
        return _json(scale_of(target.view, stored))


def _writing(request: web.Request) -> Writing:
    """How this request wants its write done. Raises: ApiError 400."""
    query = request.query
    dry_run = query.getall("dryRun", [])
    if any(value != "All" for value in dry_run):
        raise bad_request(f"Invalid value: {dry_run}: dryRun must be All or absent")
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    return Writing(
        manager=(query.get("fieldManager") or agent or "unknown")[:_MANAGER_LENGTH],
        dry_run=bool(dry_run),
        force=query.get("force") in ("1", "true"),
        field_validation=query.get("fieldValidation") or "Warn",
    )


def _deletion(request: web.Request, options: Any) -> Deletion:
    """How this request wants its delete done, from its body or, where that is silent, its query."""
    options = options if isinstance(options, dict) else {}
    query = request.query
    preconditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds")
    return Deletion(
        grace_seconds=_number(query.get("gracePeriodSeconds", "")) if grace is None else int(grace),
        propagation=options.get("propagationPolicy") or query.get("propagationPolicy", ""),
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        dry_run=bool(options.get("dryRun") or query.get("dryRun")),
    )


def _number(text: str) -> int | None:
    """A number of the query, None where it is absent. Raises: ApiError 400."""
    if not text:
        return None
    if not text.isdecimal():
        raise bad_request(f"{text!r} is not a whole number")
    return int(text)


async def _object(request: web.Request) -> Json:
    if request.content_type not in (*_JSON_TYPES, *_YAML_TYPES):
        raise unsupported_media_type(request.content_type, ["application/json", "application/yaml"])
    body = await _decoded(request)
    if not isinstance(body, dict):
        raise bad_request("the body of the request is not a JSON object")
    return body


async def _decoded(request: web.Request) -> Any:
    raw = await request.read()
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        if request.content_type not in _YAML_TYPES:
            raise bad_request(f"the body of the request is not JSON: {error}") from error
    try:
        return yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise bad_request(f"the body of the request is neither JSON nor YAML: {error}") from error


def _bytes(body: bytes, *, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    response = web.Response(body=body, status=status, content_type="application/json")
    for warning in warnings or ():
        response.headers.add("Warning", '299 - "' + warning.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return response


def _json(body: Json, *, status: int = 200) -> web.Response:
    return _bytes(_encode(body), status=status)


def _status_response(error: ApiError) -> web.Response:
    response = _json(error.as_status(), status=error.status)
    wait = error.details.get("retryAfterSeconds")
    if wait:
        response.headers["Retry-After"] = str(wait)
    return response
