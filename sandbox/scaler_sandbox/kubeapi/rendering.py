"""In which form does a client want objects? Whole, or as the `Table` from which `kubectl get` prints."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import ApiError, Json
from scaler_sandbox.kubeapi.schema.resources import Column, View
from scaler_sandbox.kubeapi.storage.store import Stored, type_head

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How one request wants its answer written."""

    is_table: bool
    """A table's rows carry the metadata of their objects."""

    def single(self, view: View, stored: Stored, *, now: datetime) -> bytes:
        """One object."""
        if not self.is_table:
            return stored.encode(view)
        return _encode(self._table(view, [stored], _revision_of(stored), now=now))

    def events(self, view: View, now: Callable[[], datetime]) -> Callable[[Stored], bytes]:
        """How a watch writes the objects of its events: only its first table says what the columns are."""
        if not self.is_table:
            return lambda stored: self.single(view, stored, now=now())
        header = [True]

        def render(stored: Stored) -> bytes:
            first = header.pop() if header else False
            return _encode(self._table(view, [stored], _revision_of(stored), now=now(), header=first))

        return render

    def listed(self, view: View, items: Sequence[Stored], metadata: Json, *, now: datetime) -> bytes:
        """A list."""
        if not self.is_table:
            return list_body(view, items, metadata)
        return _encode(self._table(view, items, metadata, now=now))

    def _table(
        self, view: View, items: Sequence[Stored], metadata: Json, *, now: datetime, header: bool = True
    ) -> Json:
        columns, bodies = view.version.columns, [stored.as_served(view) for stored in items]
        rows = [
            {
                "cells": [body["metadata"]["name"], *(_cell(body, column, now) for column in columns)],
                "object": _metadata_only(body),
            }
            for body in bodies
        ]
        definitions = [_definition(column) for column in (_NAME, *columns)] if header else []
        head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        return {**head, "columnDefinitions": definitions, "rows": rows}


def form_of(accept: str) -> Form:
    """The first form that the client takes and that is served here. Raises: ApiError 406 where there is none."""
    if not accept:
        return Form(is_table=False)
    for offer in accept.split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        options = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        form = options.get("as", "")
        is_json = media in ("application/json", "application/*", "*/*")
        if is_json and (not form or (form == "Table" and options.get("v", "v1") == "v1")):
            return Form(is_table=bool(form))
    raise ApiError(406, "NotAcceptable", "only the following media types are accepted: application/json")


def list_body(view: View, items: Sequence[Stored], metadata: Json) -> bytes:
    """A list of whole objects, glued together from their cached texts."""
    head = type_head(view.resource.list_kind, view.api_version)
    listed = b",".join([stored.encode_item(view) for stored in items])
    return b'%b"metadata":%b,"items":[%b]}' % (head, _encode(metadata), listed)


def _revision_of(stored: Stored) -> Json:
    return {"resourceVersion": str(stored.revision)}


def _metadata_only(body: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}


# --------------------------------------------------------------------------------------------------------- the columns

_NAME = Column(name="Name", path=".metadata.name", format="name", description="The object's name.")


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or f"Custom resource definition column (in JSONPath format): {column.path}",
        "priority": column.priority,
    }


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
