"""What does a request contain? URL, query, headers and body as typed values, or an ApiError."""

import random
import re
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from aiohttp import web

from scaler_sandbox.kubeapi.errors import Cause, Json, bad_request, invalid_option, unsupported_media_type
from scaler_sandbox.kubeapi.schema.resources import Registry, View
from scaler_sandbox.kubeapi.storage.listing import ListQuery
from scaler_sandbox.kubeapi.storage.selectors import Predicate, selection
from scaler_sandbox.kubeapi.storage.watch import WatchQuery
from scaler_sandbox.kubeapi.writes.patches import APPLY_PATCH
from scaler_sandbox.kubeapi.writes.typed import DeletionOptions, WriteOptions, as_delete_options

_SUBRESOURCES_OF_NAMESPACES = frozenset({"status", "finalize"})
_YAML_TYPES = ("application/yaml", APPLY_PATCH)
_JSON_TYPES = ("", "application/json", "application/octet-stream")
_WHOLE_FLOAT = re.compile(r"(-?\d{1,15})\.0*")


# ------------------------------------------------------------------------------------------------------------- the URL


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """What one request is about."""

    view: View
    namespace: str | None
    """The namespace of the URL; None for all namespaces, "" for cluster-scoped resources."""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the object."""
        return self.namespace or "", self.name


def request_target(path: str, registry: Registry) -> RequestTarget | None:
    """The target of a URL path; None where nothing is served there."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        return _target("", parts[1:], registry)
    if parts[:1] == ["apis"] and len(parts) > 1:
        return _target(parts[1], parts[2:], registry)
    return None


def _target(group: str, parts: list[str], registry: Registry) -> RequestTarget | None:
    if len(parts) < 2:
        return None
    version, *rest = parts
    namespace: str | None = None
    if _speaks_of_namespace_contents(group, rest):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    view = registry.view(group, version, rest[0])
    if view is None or (namespace is not None and not view.resource.namespaced):
        return None
    if not view.resource.namespaced:
        namespace = ""
    elif namespace is None and len(rest) > 1:
        return None
    name, subresource, *_ = [*rest[1:], "", ""]
    return RequestTarget(view=view, namespace=namespace, name=name, subresource=subresource)


def _speaks_of_namespace_contents(group: str, parts: list[str]) -> bool:
    if parts[0] != "namespaces" or len(parts) < 3:
        return False
    return bool(group) or parts[2] not in _SUBRESOURCES_OF_NAMESPACES


# --------------------------------------------------------------------------------------------------- query and headers


def is_watch(request: web.Request) -> bool:
    """Whether a GET of a collection follows it instead of listing it."""
    return request.query.get("watch") in ("1", "true")


def list_query(request: web.Request, target: RequestTarget) -> ListQuery:
    """What a list asks for."""
    query = request.query
    return ListQuery(
        namespace=target.namespace if target.view.resource.namespaced else None,
        matches=_selection(request, target),
        limit=_whole(query.get("limit", "")) or 0,
        token=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
    )


def watch_query(request: web.Request, target: RequestTarget) -> WatchQuery:
    """What a watch asks for."""
    query = request.query
    return WatchQuery(
        namespace=target.namespace if target.view.resource.namespaced else None,
        matches=_selection(request, target),
        revision=query.get("resourceVersion", ""),
        bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
        # Without a timeout, spread over half an hour, so that not all clients come back at once.
        timeout_seconds=_whole(query.get("timeoutSeconds", "")) or random.uniform(1800, 3600),  # noqa: S311
    )


def _selection(request: web.Request, target: RequestTarget) -> Predicate:
    query = request.query
    return selection(target.view, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))


def writing(request: web.Request) -> WriteOptions:
    """How a write shall be done."""
    query = request.query
    if request.content_type == APPLY_PATCH and not query.get("fieldManager"):
        message = "Required value: is required for apply patch"
        cause = Cause(reason="FieldValueRequired", field="fieldManager", message=message)
        raise invalid_option("PatchOptions", cause)
    options = {"POST": "CreateOptions", "PUT": "UpdateOptions"}.get(request.method, "PatchOptions")
    return WriteOptions(
        dry_run=_dry_run(query.getall("dryRun", []), options),
        is_strict=query.get("fieldValidation") == "Strict",
    )


def deletion(request: web.Request, body: Any) -> DeletionOptions:
    """How a delete shall be done: by its body or, where that is silent, its query."""
    options, query = as_delete_options(body), request.query
    _check_propagation(options.propagation_policy or query.get("propagationPolicy", ""))
    wanted = options.preconditions
    grace = options.grace_period_seconds
    return DeletionOptions(
        grace_seconds=_whole(query.get("gracePeriodSeconds", "")) if grace is None else grace,
        uid=(wanted.uid if wanted else None) or "",
        resource_version=(wanted.resource_version if wanted else None) or "",
        dry_run=_dry_run(options.dry_run or list(query.getall("dryRun", [])), "DeleteOptions"),
    )


def _check_propagation(policy: str) -> None:
    """Raises: ApiError 422 for what is not carried out here; real servers know Foreground and Orphan, too."""
    if policy not in ("", "Background"):
        message = f'Unsupported value: "{policy}": supported values: "Background", "nil"'
        cause = Cause(reason="FieldValueNotSupported", field="propagationPolicy", message=message)
        raise invalid_option("DeleteOptions", cause)


def _dry_run(stages: list[str], options: str) -> bool:
    if any(stage != "All" for stage in stages):
        message = f'Unsupported value: {msgspec.json.encode(stages).decode()}: supported values: "All"'
        raise invalid_option(options, Cause(reason="FieldValueNotSupported", field="dryRun", message=message))
    return bool(stages)


def _whole(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise bad_request(f"{text!r} is not a whole number")
    return int(text)


# ------------------------------------------------------------------------------------------------------------ the body


def _number(text: str) -> int | float:
    """A JSON number with a point: whole ones become integers, as they do on their way through a real server."""
    whole = _WHOLE_FLOAT.fullmatch(text)
    return int(whole[1]) if whole else float(text)


_decode = msgspec.json.Decoder(float_hook=_number).decode


async def object_body(request: web.Request) -> Json:
    """The object that a POST or PUT brings."""
    if request.content_type not in (*_JSON_TYPES, *_YAML_TYPES):
        raise unsupported_media_type(request.content_type, ["application/json", "application/yaml"])
    body = await decoded_body(request)
    if not isinstance(body, dict):
        raise bad_request("the body of the request is not a JSON object")
    return body


async def decoded_body(request: web.Request) -> Any:
    """Whatever the body holds, None where there is none."""
    raw = await request.read()
    if not raw:
        return None
    try:
        return _decode(raw)
    except msgspec.DecodeError as error:
        if request.content_type not in _YAML_TYPES:
            raise bad_request(f"the body of the request is not JSON: {error}") from error
    try:
        return yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise bad_request(f"the body of the request is neither JSON nor YAML: {error}") from error
