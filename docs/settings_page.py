"""What docs/settings.md shows of the settings: every one, with what may be written, its default and its meaning.

`uv run python -m docs.generate` writes it anew. Meanings are the strings below the fields of `scaler/app/settings`.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from datetime import time, timedelta
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from scaler.app.settings.fields import Ratio, Section
from scaler.app.settings.model import Settings
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import DEFAULT_SIGNALS


class Row(NamedTuple):
    path: str
    kind: str
    default: str
    meaning: str


def tables() -> str:
    """One table for what stands at the top, and one for every section."""
    rows = [*_rows(Settings, "")]
    tops = [row for row in rows if "." not in row.path and row.path not in _sections()]
    sections = [(name, [row for row in rows if _is_below(name, row.path)]) for name in _sections()]
    parts = [("The document itself", "", tops), *((f"`{name}`", _about(name), below) for name, below in sections)]
    return "\n".join(_table(title, about, found) for title, about, found in parts)


def _sections() -> list[str]:
    return [str(field.alias) for field in Settings.model_fields.values() if _section_in(field.annotation)]


def _is_below(section: str, path: str) -> bool:
    return path == section or path.startswith((f"{section}.", f"{section}[]"))


def _about(name: str) -> str:
    model = next(_section_in(each.annotation) for each in Settings.model_fields.values() if each.alias == name)
    return _prose(model.__dict__.get("__doc__") or "") if model else ""


def _table(title: str, about: str, rows: list[Row]) -> str:
    lines = [f"### {title}", "", *([about, ""] if about else [])]
    lines += ["| setting | written as | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.path}` | {row.kind} | {row.default} | {row.meaning} |" for row in rows]
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], above: str) -> Iterator[Row]:
    meanings = meanings_of(model)
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias}"
        section = _section_in(field.annotation)
        if section is None or _is_optional(field) or _is_list(field):
            yield Row(path, _kind(field), _default(field), meanings[name])
        if section is not None:
            yield from _rows(section, f"{path}[]." if _is_list(field) else f"{path}.")


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field; empty where there is none."""
    found = dict.fromkeys(model.model_fields, "")
    for base in reversed(model.__mro__):
        if issubclass(base, Section) and base is not Section:
            found |= strings_below(base)
    return found


def strings_below(model: type) -> dict[str, str]:
    """The string below each field in the source."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(node, ast.ClassDef)
    pairs = zip(node.body, node.body[1:], strict=False)
    return {
        line.target.id: _prose(text.value.value)
        for line, text in pairs
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _prose(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("None: ", "Left out: ").replace("Empty: ", "Left out: ")


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_in(each))), None)


def _is_optional(field: FieldInfo) -> bool:
    return type(None) in get_args(field.annotation)


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


_RATIO = get_args(Ratio)[1]
"""What distinguishes a share from another number: what reads its percent sign."""
_BY_TYPE = {timedelta: "duration", time: "time of day", Path: "path", str: "text", Any: "anything"}


def _kind(field: FieldInfo) -> str:
    if _section_in(field.annotation):
        return "list of sections" if _is_list(field) else "section"
    if field.annotation is float and _RATIO in field.metadata:
        return "percentage"
    if schemas := [each.json_schema for each in field.metadata if isinstance(each, WithJsonSchema)]:
        return " ".join(f"`{each}`" for each in schemas[0]["enum"])
    return _words(field.annotation) + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    if not {int, float} & {field.annotation, *get_args(field.annotation)}:
        return ""
    found = {
        name: getattr(each, name) for each in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(each, name)
    }
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return "".join(f", {sign} {found[name]}" for name, sign in signs.items() if name in found)


def _words(annotation: Any) -> str:
    if annotation in _BY_TYPE:
        return _BY_TYPE[annotation]
    if annotation == Ratio:
        return "percentage"
    origin, inner = get_origin(annotation), [each for each in get_args(annotation) if each is not type(None)]
    if origin is Annotated:
        return _words(inner[0])
    if origin in {Union, UnionType}:
        return ", or ".join(map(_words, inner))
    if origin is Literal:
        return " ".join(f"`{each}`" for each in inner)
    if origin is tuple:
        return f"list: {_words(inner[0])}"
    if origin is dict:
        return f"map: {_words(inner[0])} to {_words(inner[1])}" if inner[1] is not Any else "rule"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " ".join(f"`{each.value}`" for each in annotation)
    return {bool: "`true` `false`", int: "whole number", float: "number"}[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.alias == "signals":
        return f"{len(DEFAULT_SIGNALS)} signals, see above"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or value in ((), {}):
        return "–"
    if _kind(field) == "percentage":
        return f"`{value * 100:g} %`"
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    """The value as it is written in YAML."""
    match value:
        case timedelta():
            return format_duration(value)
        case time():
            return f'"{value:%H:%M}"'
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(_written, value))}]"
        case _:
            return str(value)
