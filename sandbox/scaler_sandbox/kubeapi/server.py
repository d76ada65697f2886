"""How does the API speak HTTP? One handler: user, target, verb; then the verb is run on the store."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from scaler_sandbox.kubeapi import discovery
from scaler_sandbox.kubeapi.access import Permissions, User, Users
from scaler_sandbox.kubeapi.errors import (
    ApiError,
    Json,
    bad_request,
    method_not_allowed,
    no_such_resource,
    object_details,
    success,
)
from scaler_sandbox.kubeapi.faults import Faults
from scaler_sandbox.kubeapi.rendering import list_body, table, wants_table
from scaler_sandbox.kubeapi.requests import (
    RequestTarget,
    decoded_body,
    deletion,
    is_watch,
    list_query,
    object_body,
    request_target,
    watch_query,
    writing,
)
from scaler_sandbox.kubeapi.storage.listing import Lister
from scaler_sandbox.kubeapi.storage.store import Stored
from scaler_sandbox.kubeapi.storage.watch import Watcher
from scaler_sandbox.kubeapi.verbs import ApiVerbs, Change
from scaler_sandbox.kubeapi.writes.lifecycle import replacement
from scaler_sandbox.kubeapi.writes.patches import APPLY_PATCH, patch_function
from scaler_sandbox.kubeapi.writes.scaling import scale_of, scaled

_encode = msgspec.json.Encoder().encode
_LARGEST_BODY_BYTES = 64 * 1024 * 1024
_Verb = Callable[[web.Request, RequestTarget], Awaitable[web.StreamResponse]]


class Server:
    """The HTTP side of one cluster."""

    def __init__(self, cluster: ApiVerbs, *, faults: Faults, permissions: Permissions, users: Users) -> None:
        self._cluster = cluster
        self._lister = Lister(cluster)
        self._faults = faults
        self._permissions = permissions
        self._users = users
        self._watchers: set[Watcher] = set()
        faults.close_watches, faults.wake_watches = self.close_watches, self._wake_watches
        faults.compact_history = self._compact

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    def close_watches(self) -> None:
        """End all open watches."""
        for watcher in list(self._watchers):
            watcher.end()

    def _wake_watches(self) -> None:
        for watcher in self._watchers:
            watcher.wake()

    def _compact(self) -> None:
        self._cluster.store.compact()
        self._lister.forget()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            await self._faults.before(request.method, request.path)
            user = self._users.by_header(request.headers.get("Authorization", ""))
            return await self._answer(request, user)
        except ApiError as error:
            return _refusal(error)

    async def _answer(self, request: web.Request, user: User) -> web.StreamResponse:
        path = request.path
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        found = discovery.document(path, self._cluster.registry)
        if found is not None:
            return _json(found)
        target = request_target(path, self._cluster.registry)
        if target is None:
            if request.method == "POST" and (review := self._review(path, await object_body(request), user)):
                return _json(review, status=201)
            return web.Response(status=404, text="404 page not found\n")
        self._permissions.check(request.method, target, user, watches=is_watch(request))
        return await self._verb(request.method, target)(request, target)

    def _review(self, path: str, body: Json, user: User) -> Json | None:
        by_role = self._permissions.review(path, body, user)
        return by_role or self._users.review(path, body, user, self._permissions.demand)

    def _verb(self, method: str, target: RequestTarget) -> _Verb:
        """What to do. Raises: ApiError 404, 405."""
        version = target.view.version
        verbs: dict[str, _Verb]
        if not target.name:
            verbs = {"GET": self._list_or_watch}
            if target.namespace is not None:
                verbs |= {"POST": self._create}
        elif not target.subresource:
            verbs = {"GET": self._get, "PUT": self._replace, "PATCH": self._patch, "DELETE": self._delete}
        elif target.subresource == "status" and version.has_status:
            verbs = {"GET": self._get, "PUT": self._replace, "PATCH": self._patch}
        elif target.subresource == "scale" and version.scale:
            verbs = {"GET": self._get_scale, "PUT": self._replace_scale, "PATCH": self._patch_scale}
        elif target.subresource == "token" and target.view.resource.key == ("", "serviceaccounts"):
            verbs = {"POST": self._create_token}
        else:
            raise no_such_resource()
        if method not in verbs:
            raise method_not_allowed()
        return verbs[method]

    async def _get(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return self._single(request, target, self._cluster.get(target.view, *target.key))

    def _single(self, request: web.Request, target: RequestTarget, stored: Stored) -> web.Response:
        if not wants_table(request.headers.get("Accept", "")):
            return _bytes(stored.encode(target.view))
        metadata = {"resourceVersion": str(stored.revision)}
        return _bytes(table(target.view, [stored], metadata, now=self._cluster.now()))

    async def _list_or_watch(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return await self._watch(request, target) if is_watch(request) else self._list(request, target)

    def _list(self, request: web.Request, target: RequestTarget) -> web.Response:
        page = self._lister.page(target.view, list_query(request, target))
        metadata: Json = {"resourceVersion": str(page.revision)}
        if page.token or target.view.resource.custom:
            metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if wants_table(request.headers.get("Accept", "")):
            return _bytes(table(target.view, page.items, metadata, now=self._cluster.now()))
        return _bytes(list_body(target.view, page.items, metadata))

    async def _watch(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        watcher = Watcher(self._cluster, target.view, watch_query(request, target), faults=self._faults)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._watchers.add(watcher)
        try:
            await response.prepare(request)
            await watcher.stream(response.write)
        except ConnectionResetError:
            pass  # the client has hung up
        finally:
            self._watchers.discard(watcher)
        return response

    async def _create(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return self._store_new(request, target, await object_body(request))

    def _store_new(self, request: web.Request, target: RequestTarget, body: Json) -> web.Response:
        stored = self._cluster.create(target.view, target.namespace or "", body, writing(request))
        return _bytes(stored.encode(target.view), status=201)

    async def _replace(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        body = await object_body(request)
        resource = target.view.resource
        if resource.create_on_update and self._cluster.store.find(resource, target.key) is None:
            return self._store_new(request, target, body)
        return self._update(request, target, replacement(target.view, body))

    async def _patch(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        patch = await decoded_body(request)
        if request.content_type == APPLY_PATCH:
            return self._apply(request, target, patch)
        return self._update(request, target, patch_function(request.content_type, patch))

    def _apply(self, request: web.Request, target: RequestTarget, config: Json) -> web.Response:
        how = writing(request)
        stored, created = self._cluster.apply(target.view, target.key, config, how, subresource=target.subresource)
        return _bytes(stored.encode(target.view), status=201 if created else 200)

    def _update(self, request: web.Request, target: RequestTarget, change: Change) -> web.Response:
        how = writing(request)
        stored = self._cluster.update(target.view, target.key, change, how, subresource=target.subresource)
        return _bytes(stored.encode(target.view))

    async def _delete(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        how = deletion(request, await decoded_body(request))
        stored, gone = self._cluster.delete(target.view, *target.key, how)
        if not gone or target.view.resource.returns_deleted:
            return self._single(request, target, stored)
        return _json(success(object_details(*target.view.resource.key, target.name, uid=stored.uid)))

    async def _create_token(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return _json(self._users.token_request(target, await object_body(request)), status=201)

    async def _get_scale(self, _request: web.Request, target: RequestTarget) -> web.StreamResponse:
        return _json(scale_of(target.view, self._cluster.get(target.view, *target.key)))

    async def _replace_scale(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        body = await object_body(request)
        return self._update_scale(request, target, lambda _old: body)

    async def _patch_scale(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        patch = await decoded_body(request)
        if request.content_type == APPLY_PATCH:
            raise bad_request("server-side apply to /scale is not offered here; apply spec.replicas to the object")
        return self._update_scale(request, target, patch_function(request.content_type, patch))

    def _update_scale(self, request: web.Request, target: RequestTarget, change: Change) -> web.Response:
        to_object = scaled(target.view, change)
        stored = self._cluster.update(target.view, target.key, to_object, writing(request), subresource="scale")
        return _json(scale_of(target.view, stored))


def _bytes(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _json(body: Json, *, status: int = 200) -> web.Response:
    return _bytes(_encode(body), status=status)


def _refusal(error: ApiError) -> web.Response:
    response = _json(error.as_status(), status=error.status)
    wait = error.details.get("retryAfterSeconds")
    if wait:
        response.headers["Retry-After"] = str(wait)
    return response
