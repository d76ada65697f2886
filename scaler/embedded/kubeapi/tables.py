"""How do objects look to people? The server-side `Table` from which `kubectl get` prints its columns."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from scaler.embedded.kubeapi.jsonpath import find
from scaler.embedded.kubeapi.resources import Column, View
from scaler.embedded.kubeapi.status import Json

_NAME = Column(name="Name", path=".metadata.name", format="name", description="The object's name.")


def table(
    view: View, bodies: Sequence[Json], metadata: Json, *, now: datetime, header: bool = True, include: str = ""
) -> Json:
    """The Table of some objects. `include` is the request's `includeObject`: None, Metadata (default) or Object."""
    columns = view.version.columns
    definitions = [_definition(column) for column in (_NAME, *columns)] if header else []
    rows = [{"cells": _cells(body, columns, now), **_object(body, include)} for body in bodies]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**head, "columnDefinitions": definitions, "rows": rows}


def metadata_only(body: Json) -> Json:
    """An object reduced to its metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}


def _object(body: Json, include: str) -> Json:
    if include == "None":
        return {}
    return {"object": body if include == "Object" else metadata_only(body)}


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or f"Custom resource definition column (in JSONPath format): {column.path}",
        "priority": column.priority,
    }


def _cells(body: Json, columns: Sequence[Column], now: datetime) -> list[Any]:
    return [body["metadata"]["name"], *(_cell(body, column, now) for column in columns)]


def _cell(body: Json, column: Column, now: datetime) -> Any:
    found = find(column.path, body)
    if not found or found[0] is None:
        return None
    value = found[0]
    match column.type:
        case "date":
            return age(value, now)
        case "integer" | "number" | "boolean":
            return value if isinstance(value, bool | int | float) else None
        case _:
            return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def age(timestamp: Any, now: datetime) -> str:
    """How long ago, in at most two units: `42s`, `5m10s`, `3h`, `2d4h`."""
    try:
        then = datetime.fromisoformat(str(timestamp).replace("Z", "+00:00"))
    except ValueError:
        return "<invalid>"
    seconds = int((now - then.astimezone(UTC)).total_seconds())
    if seconds < 0:
        return "<invalid>" if seconds < -1 else "0s"
    return _duration(seconds)


# Below each bound the two units are shown, the smaller one only where it is not 0; these are kubectl's own bounds.
_FORMS = (
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (3 * 3600, 60, "m", 0, ""),
    (8 * 3600, 3600, "h", 60, "m"),
    (48 * 3600, 3600, "h", 0, ""),
    (8 * 86400, 86400, "d", 3600, "h"),
    (2 * 365 * 86400, 86400, "d", 0, ""),
    (8 * 365 * 86400, 365 * 86400, "y", 86400, "d"),
)


def _duration(seconds: int) -> str:
    for bound, unit, name, smaller, smaller_name in _FORMS:
        if seconds < bound:
            rest = seconds % unit // smaller if smaller else 0
            return f"{seconds // unit}{name}" + (f"{rest}{smaller_name}" if rest else "")
    return f"{seconds // (365 * 86400)}y"
