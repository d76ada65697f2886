"""What does a printer column's JSONPath find? The subset that CRDs use.

`.a.b`, `['a.b']`, `.a\\.b`, `[0]`, `[-1]`, `[*]`, and `[?(@.type=="Ready")]`. Anything else finds nothing.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

_STEP = re.compile(
    r"""
      \.(?P<field>(?:[^.\[\\]|\\.)+)
    | \[['"](?P<quoted>[^'"]+)['"]\]
    | \[(?P<index>-?\d+)\]
    | \[(?P<all>\*)\]
    | \[\?\(\s*@(?P<path>[^=!<>)\s]+)\s*(?P<test>==|!=)\s*(?P<value>'[^']*'|"[^"]*"|[^)\s]+)\s*\)\]
    """,
    re.VERBOSE,
)
_Step = Callable[[Any], Iterable[Any]]


def find(path: str, body: Any) -> list[Any]:
    """The values at a path; empty where there are none, or where the path is beyond the subset."""
    steps = _compiled(path.strip().removeprefix("{").removesuffix("}"))
    values = [body]
    for step in steps:
        values = [found for value in values for found in step(value)]
    return values if steps else []


def _compiled(path: str) -> list[_Step]:
    path = path.removeprefix("$")
    if path and path[0] not in ".[":
        path = f".{path}"
    steps: list[_Step] = []
    place = 0
    while place < len(path):
        match = _STEP.match(path, place)
        if match is None:
            return []
        steps.append(_step(match))
        place = match.end()
    return steps


def _step(match: re.Match[str]) -> _Step:
    if match["field"] or match["quoted"]:
        name = match["quoted"] or re.sub(r"\\(.)", r"\1", match["field"])
        return _each if name == "*" else lambda value: _field(value, name)
    if match["index"]:
        place = int(match["index"])
        return lambda value: _item(value, place)
    if match["all"]:
        return _each
    path, value, equal = match["path"], match["value"].strip("'\""), match["test"] == "=="
    return lambda items: [item for item in _each(items) if (_text(find(path, item)) == value) is equal]


def _field(value: Any, name: str) -> list[Any]:
    return [value[name]] if isinstance(value, dict) and name in value else []


def _item(value: Any, place: int) -> list[Any]:
    inside = isinstance(value, list) and -len(value) <= place < len(value)
    return [value[place]] if inside else []


def _each(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _text(values: list[Any]) -> str:
    if not values:
        return ""
    value = values[0]
    return str(value).lower() if isinstance(value, bool) else str(value)
