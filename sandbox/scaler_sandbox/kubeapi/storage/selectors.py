"""Does an object match? Label selectors and field selectors, parsed once into predicates over stored objects."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from scaler_sandbox.kubeapi.errors import Json, bad_request
from scaler_sandbox.kubeapi.schema.resources import View

Predicate = Callable[[Json], bool]
_LabelTest = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^(?P<key>[^\s!=<>,()]+)\s+(?P<verb>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=<>,()]+)\s*(?P<verb>==|!=|=)\s*(?P<value>[^\s!=<>,()]*)$")
_EXISTS = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^\s!=<>,()]+)$")
_COMMAS = re.compile(r",(?![^(]*\))")
"""The commas between requirements: not those within parentheses."""


def everything(_body: Json) -> bool:
    """The predicate of a request without selectors."""
    return True


def selection(view: View, *, labels: str, fields: str) -> Predicate:
    """The predicate of both selectors of a request. Raises: ApiError 400 for one that cannot be read."""
    tests = [test for test in (label_predicate(labels), field_predicate(fields, view)) if test is not None]
    if not tests:
        return everything
    return tests[0] if len(tests) == 1 else lambda body: all(test(body) for test in tests)


def label_predicate(selector: str) -> Predicate | None:
    """The predicate of a label selector; None where it is empty."""
    tests = [_label_test(part.strip()) for part in _COMMAS.split(selector) if part.strip()]
    if not tests:
        return None
    return lambda body: _all_hold(tests, body["metadata"].get("labels") or {})


def _all_hold(tests: list[_LabelTest], labels: Mapping[str, str]) -> bool:
    return all(test(labels) for test in tests)


def _label_test(part: str) -> _LabelTest:
    if match := _SET.match(part):
        return _set_test(match["key"], match["verb"], frozenset(v.strip() for v in match["values"].split(",")))
    if match := _COMPARE.match(part):
        return _compare_test(match["key"], match["verb"], match["value"])
    if match := _EXISTS.match(part):
        key, wanted = match["key"], not match["absent"]
        return lambda labels: (key in labels) is wanted
    raise bad_request(f"unable to parse requirement: {part!r} is not a label selector requirement")


def _set_test(key: str, verb: str, values: frozenset[str]) -> _LabelTest:
    if verb == "in":
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _compare_test(key: str, verb: str, value: str) -> _LabelTest:
    if verb in ("=", "=="):
        return lambda labels: labels.get(key) == value
    return lambda labels: labels.get(key) != value


def field_predicate(selector: str, view: View) -> Predicate | None:
    """The predicate of a field selector; None where it is empty."""
    tests = [_field_test(part.strip(), view) for part in selector.split(",") if part.strip()]
    if not tests:
        return None
    return lambda body: all(test(body) for test in tests)


def _field_test(part: str, view: View) -> Predicate:
    match = _COMPARE.match(part)
    if match is None:
        raise bad_request(f"invalid field selector {part!r}; write field=value or field!=value")
    path = _known_field(match["key"], view)
    value, equal = match["value"], match["verb"] != "!="
    return lambda body: (field_text(body, path) == value) is equal


def _known_field(name: str, view: View) -> tuple[str, ...]:
    known = {"metadata.name", *view.version.selectable}
    if view.resource.namespaced:
        known.add("metadata.namespace")
    if name not in known:
        raise bad_request(f"field label not supported: {name}")
    return tuple(name.split("."))


def field_text(body: Json, path: tuple[str, ...]) -> str:
    """A field as the text that field selectors compare with; an absent one is the empty text."""
    value: Any = body
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
