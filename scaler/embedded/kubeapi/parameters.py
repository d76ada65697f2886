"""What does a request ask for, beside its path? Query, headers and body as typed values, or an ApiError."""

import random
import re
from typing import Any

import msgspec
import yaml
from aiohttp import web

from scaler.embedded.kubeapi.listing import ListQuery
from scaler.embedded.kubeapi.options import Deletion, Writing
from scaler.embedded.kubeapi.patches import APPLY_PATCH
from scaler.embedded.kubeapi.rendering import Form, form_of
from scaler.embedded.kubeapi.routing import Target
from scaler.embedded.kubeapi.selectors import Predicate, selection
from scaler.embedded.kubeapi.status import Cause, Json, bad_request, invalid_option, unsupported_media_type
from scaler.embedded.kubeapi.typed import as_delete_options
from scaler.embedded.kubeapi.watch import WatchQuery

_YAML_TYPES = ("application/yaml", APPLY_PATCH)
_JSON_TYPES = ("", "application/json", "application/octet-stream")
_LONGEST_MANAGER = 128
_WHOLE_FLOAT = re.compile(r"(-?\d{1,15})\.0*")


def _number(text: str) -> int | float:
    """A JSON number with a point: whole ones become integers, as they do on their way through a real server."""
    whole = _WHOLE_FLOAT.fullmatch(text)
    return int(whole[1]) if whole else float(text)


_decode = msgspec.json.Decoder(float_hook=_number).decode


def is_watch(request: web.Request) -> bool:
    """Whether a GET of a collection follows it instead of listing it."""
    return request.query.get("watch") in ("1", "true")


def form(request: web.Request) -> Form:
    """The form in which the client wants its answer."""
    return form_of(request.headers.get("Accept", ""), include=request.query.get("includeObject", ""))


def list_query(request: web.Request, target: Target) -> ListQuery:
    """What a list asks for."""
    query = request.query
    return ListQuery(
        namespace=target.namespace if target.view.resource.namespaced else None,
        matches=_selection(request, target),
        limit=_whole(query.get("limit", "")) or 0,
        token=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
        revision_match=query.get("resourceVersionMatch", ""),
    )


def watch_query(request: web.Request, target: Target) -> WatchQuery:
    """What a watch asks for."""
    query = request.query
    initial = query.get("sendInitialEvents")
    return WatchQuery(
        namespace=target.namespace if target.view.resource.namespaced else None,
        matches=_selection(request, target),
        revision=query.get("resourceVersion", ""),
        revision_match=query.get("resourceVersionMatch", ""),
        send_initial_events=None if initial is None else initial in ("1", "true"),
        bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
        # Without a wish, spread over half an hour, so that not all clients come back at once.
        timeout_seconds=_whole(query.get("timeoutSeconds", "")) or random.uniform(1800, 3600),  # noqa: S311
    )


def _selection(request: web.Request, target: Target) -> Predicate:
    query = request.query
    return selection(target.view, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))


def writing(request: web.Request) -> Writing:
    """How a write shall be done."""
    query = request.query
    manager = query.get("fieldManager") or ""
    if request.content_type == APPLY_PATCH and not manager:
        message = "Required value: is required for apply patch"
        cause = Cause(reason="FieldValueRequired", field="fieldManager", message=message)
        raise invalid_option("PatchOptions", cause)
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    options = {"POST": "CreateOptions", "PUT": "UpdateOptions"}.get(request.method, "PatchOptions")
    return Writing(
        manager=(manager or agent or "unknown")[:_LONGEST_MANAGER],
        dry_run=_dry_run(query.getall("dryRun", []), options),
        force=query.get("force") in ("1", "true"),
        field_validation=query.get("fieldValidation") or "Warn",
    )


def deletion(request: web.Request, body: Any) -> Deletion:
    """How a delete shall be done: by its body or, where that is silent, its query."""
    options, query = as_delete_options(body), request.query
    wanted = options.preconditions
    grace = options.grace_period_seconds
    return Deletion(
        grace_seconds=_whole(query.get("gracePeriodSeconds", "")) if grace is None else grace,
        propagation=_propagation(options.propagation_policy or query.get("propagationPolicy", "")),
        uid=(wanted.uid if wanted else None) or "",
        resource_version=(wanted.resource_version if wanted else None) or "",
        dry_run=_dry_run(options.dry_run or list(query.getall("dryRun", [])), "DeleteOptions"),
    )


def _propagation(policy: str) -> str:
    supported = ("Foreground", "Background", "Orphan")
    if policy and policy not in supported:
        listed = ", ".join(f'"{name}"' for name in supported)
        message = f'Unsupported value: "{policy}": supported values: {listed}, "nil"'
        cause = Cause(reason="FieldValueNotSupported", field="propagationPolicy", message=message)
        raise invalid_option("DeleteOptions", cause)
    return policy


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
