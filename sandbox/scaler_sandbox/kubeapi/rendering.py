"""Which form does a client want objects in? Whole, or as the `Table` from which `kubectl get` prints."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import ApiError, Json
from scaler_sandbox.kubeapi.schema.resources import Column, View
from scaler_sandbox.kubeapi.storage.store import Stored, type_head

_encode = msgspec.json.Encoder().encode


def wants_table(accept: str) -> bool:
    """Whether the first form that the client takes and that is served here is a table. Raises: ApiError 406."""
    for offer in accept.split(",") if accept else ["*/*"]:
        media, *parameters = (part.strip() for part in offer.split(";"))
        options = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        form = options.get("as", "")
        is_json = media in ("application/json", "application/*", "*/*")
        if is_json and (not form or (form == "Table" and options.get("v", "v1") == "v1")):
            return bool(form)
    raise ApiError(406, "NotAcceptable", "only the following media types are accepted: application/json")


def list_body(view: View, items: Sequence[Stored], metadata: Json) -> bytes:
    """A list of whole objects, glued together from their cached texts."""
    head = type_head(view.resource.list_kind, view.api_version)
    listed = b",".join([stored.encode_item(view) for stored in items])
    return b'%b"metadata":%b,"items":[%b]}' % (head, _encode(metadata), listed)


def table(view: View, items: Sequence[Stored], metadata: Json, *, now: datetime) -> bytes:
    """The table of the objects; its rows carry their metadata."""
    columns, bodies = view.version.columns, [stored.as_served(view) for stored in items]
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    rows = [
        {
            "cells": [body["metadata"]["name"], *(_cell(body, column, now) for column in columns)],
            "object": {**partial, "metadata": body["metadata"]},
        }
        for body in bodies
    ]
    definitions = [
        {"name": each.name, "type": each.type, "format": "", "description": each.name, "priority": each.priority}
        for each in (_NAME, *columns)
    ]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return _encode({**head, "columnDefinitions": definitions, "rows": rows})


_NAME = Column(name="Name", path=".metadata.name")


def _cell(body: Json, column: Column, now: datetime) -> Any:
    value = value_at_path(column.path, body)
    if column.type == "date":
        return None if value is None else age(value, now)
    if column.type in ("integer", "number", "boolean"):
        return value if isinstance(value, bool | int | float) else None
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


_STEP = re.compile(
    r"""\.(?P<field>(?:[^.\[\\]|\\.)+)|\[\?\(\s*@\.(?P<name>\w+)\s*==\s*['"]?(?P<value>[^'")]*)['"]?\s*\)\]"""
)


def value_at_path(path: str, body: Json) -> Any:
    """The value of a printer column's JSONPath: `.a.b`, `.a\\.b` and `[?(@.type=="Ready")]`, which CRDs here use.

    None where there is no such value, and where the path is beyond that.
    """
    value: Any = body
    place = 0
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            return None
        place = step.end()
        if step["field"]:
            value = value.get(re.sub(r"\\(.)", r"\1", step["field"])) if isinstance(value, dict) else None
        else:
            items = value if isinstance(value, list) else []
            value = next((item for item in items if str(item.get(step["name"])) == step["value"]), None)
    return value


def age(timestamp: Any, now: datetime) -> str:
    """How long ago, roughly: `42s`, `5m`, `3h`, `2d`."""
    try:
        then = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return "<invalid>"
    seconds = max(0, int((now - then.astimezone(UTC)).total_seconds()))
    for bound, unit, name in ((120, 1, "s"), (2 * 3600, 60, "m"), (48 * 3600, 3600, "h")):
        if seconds < bound:
            return f"{seconds // unit}{name}"
    return f"{seconds // 86400}d"
