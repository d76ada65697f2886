"""Is an object what its CRD's schema allows? Causes, field by field, with the reasons that real servers give.

An update may keep what was wrong before (ratcheting): a part that is the same as in the old object is not held against
the new one, so that a schema can be tightened while old objects live on.

Not checked, although real servers do: the range of int32, embedded resources, metadata beyond names and labels.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import Cause, Json
from scaler_sandbox.kubeapi.schema.cel_rules import RuleBook
from scaler_sandbox.kubeapi.schema.structural import UNSET, Structural, item_key, json_type, same

Place = tuple[str | int, ...]

_GO_DURATION = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*|0")
_LEADING_FLAGS = re.compile(r"^(\^?)\(\?([a-z]+)\)(.*)$", re.DOTALL)
"""Go's `^(?i)abc`, which other dialects write `^(?i:abc)`."""
_CHECKED_FORMATS = frozenset({"date-time", "date", "ipv4", "ipv6", "email", "uuid", "uri", "duration"})
_COPIED = (
    *("enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "required"),
)
_BLOCKING = frozenset(
    {"FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid"}
)
_NOT_ALL_CHECKED = Cause(
    reason="FieldValueInvalid",
    field="<nil>",
    message="Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)


class SchemaValidator:
    """Checks objects against one version's schema: structure, uniqueness in lists, then CEL rules."""

    def __init__(self, openapi: Json, compiled: Structural, *, replicas: Place) -> None:
        """`replicas` is where the scale subresource keeps its number; empty where there is none."""
        import jsonschema_rs

        self._compiled = compiled
        self._replicas = replicas
        self._schema = jsonschema_rs.Draft4Validator(
            json_schema(openapi),
            validate_formats=True,
            formats={"duration": lambda text: _GO_DURATION.fullmatch(text) is not None},
        )
        self._rules = RuleBook(compiled)
        self.unchecked_rules = self._rules.unchecked

    def __call__(self, new: Json, old: Json | None) -> Sequence[Cause]:
        """What is wrong with a new object, or with the new revision of an old one."""
        found = [*self._structural(new, old), *duplicates(new, self._compiled, ())]
        found += _scale_problems(new, self._replicas) if self._replicas else []
        if not self._compiled.rules_below:
            return found
        if any(cause.reason in _BLOCKING for cause in found):
            return [*found, _NOT_ALL_CHECKED]
        return [*found, *self._rules.broken(new, old)]

    def _structural(self, new: Json, old: Json | None) -> Iterator[Cause]:
        for error in self._schema.iter_errors(new):
            if old is None or not same(value_at_place(old, tuple(error.instance_path)), error.instance):
                yield _cause(error)


def _scale_problems(new: Json, place: Place) -> list[Cause]:
    replicas = value_at_place(new, place)
    if replicas in (UNSET, None) or (type(replicas) is int and replicas >= 0):
        return []
    field = f".{spoken_place(place)}"
    message = f"Invalid value: {replicas}: should be a non-negative integer"
    return [Cause(reason="FieldValueInvalid", field=field, message=message)]


def json_schema(openapi: Json) -> Json:
    """An `openAPIV3Schema` as a JSON schema of draft 4, which shares its boolean `exclusiveMinimum`."""
    schema = {key: openapi[key] for key in _COPIED if key in openapi}
    if "pattern" in schema:
        schema["pattern"] = _LEADING_FLAGS.sub(r"\1(?\2:\3)", schema["pattern"])
    if openapi.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    elif "type" in openapi:
        schema["type"] = openapi["type"]
    if openapi.get("nullable") and "type" in schema:
        schema["type"] = [*([schema["type"]] if isinstance(schema["type"], str) else schema["type"]), "null"]
    if openapi.get("format") in _CHECKED_FORMATS:
        schema["format"] = openapi["format"]
    schema |= {
        key: [json_schema(part) for part in openapi[key]]
        for key in ("allOf", "anyOf", "oneOf")
        if key in openapi and not (key == "anyOf" and openapi.get("x-kubernetes-int-or-string"))
    }
    schema |= {key: json_schema(openapi[key]) for key in ("not", "items") if isinstance(openapi.get(key), dict)}
    if "properties" in openapi:
        schema["properties"] = {name: json_schema(child) for name, child in openapi["properties"].items()}
    if isinstance(openapi.get("additionalProperties"), dict):
        schema["additionalProperties"] = json_schema(openapi["additionalProperties"])
    return schema


def value_at_place(value: Any, place: Place) -> Any:
    """What stands at a place, `UNSET` where nothing does."""
    for step in place:
        if isinstance(value, dict):
            value = value.get(step, UNSET)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return UNSET
    return value


def spoken_place(place: Place) -> str:
    """A place as causes name it: `spec.podSets[0].count`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


def duplicates(value: Any, node: Structural, place: Place) -> Iterator[Cause]:
    """Items that occur twice in sets and keyed lists."""
    if not node.uniqueness_below:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            child = node.child(key)
            if child is not None:
                yield from duplicates(item, child, (*place, key))
    elif isinstance(value, list):
        if node.list_type != "atomic":
            yield from _twice(value, node, place)
        for index, item in enumerate(value):
            if node.items is not None:
                yield from duplicates(item, node.items, (*place, index))


def _twice(items: list[Any], node: Structural, place: Place) -> Iterator[Cause]:
    seen: set[bytes] = set()
    for index, item in enumerate(items):
        text = item_key(item, node)
        if text in seen:
            message = f"Duplicate value: {text.decode()}"
            yield Cause(reason="FieldValueDuplicate", field=spoken_place((*place, index)), message=message)
        seen.add(text)


def _cause(error: Any) -> Cause:
    """An error of the schema library in the API's words."""
    keyword, limit, place = error.kind.name, error.kind.value, tuple(error.instance_path)
    if keyword == "required":
        return Cause(reason="FieldValueRequired", field=spoken_place((*place, limit)), message="Required value")
    field = spoken_place(place)
    reason, message = _worded(keyword, limit, error.instance, field)
    return Cause(reason=reason, field=field, message=message)


def _worded(keyword: str, limit: Any, value: Any, field: str) -> tuple[str, str]:
    text = msgspec.json.encode(value).decode()
    match keyword:
        case "type":
            named, expected = f'"{json_type(value)}"', ",".join(t for t in limit if t != "null")
            return (
                "FieldValueTypeInvalid",
                f"Invalid value: {named}: {field} in body must be of type {expected}: {named}",
            )
        case "format":
            return "FieldValueTypeInvalid", f"Invalid value: {text}: {field} in body must be of type {limit}: {text}"
        case "enum":
            supported = ", ".join(msgspec.json.encode(option).decode() for option in limit)
            return "FieldValueNotSupported", f"Unsupported value: {text}: supported values: {supported}"
        case "maxLength":
            return "FieldValueTooLong", f"Too long: may not be more than {limit} byte{'s' if limit != 1 else ''}"
        case "maxItems" | "maxProperties":
            most = f"must have at most {limit} item{'s' if limit != 1 else ''}"
            return "FieldValueTooMany", f"Too many: {len(value)}: {most}"
    bounds = {"maximum": "<=", "minimum": ">=", "exclusiveMaximum": "<", "exclusiveMinimum": ">"}
    said = f"should be {bounds[keyword]} {limit}" if keyword in bounds else f"breaks {keyword} {limit!r} of its schema"
    return "FieldValueInvalid", f"Invalid value: {text}: {field} in body {said}"
