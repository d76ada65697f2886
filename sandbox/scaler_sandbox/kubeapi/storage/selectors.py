"""Does an object match? Label selectors and field selectors, parsed once into predicates over stored objects."""

import re
from collections.abc import Callable
from typing import Any

from scaler.kube.scheduling import parse_selector
from scaler_sandbox.kubeapi.errors import Json, bad_request
from scaler_sandbox.kubeapi.schema.resources import View

Predicate = Callable[[Json], bool]
_COMPARE = re.compile(r"^(?P<key>[^\s!=<>,()]+)\s*(?P<verb>==|!=|=)\s*(?P<value>[^\s!=<>,()]*)$")


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
    try:
        wanted = parse_selector(selector)
    except ValueError as error:
        raise bad_request(f"unable to parse requirement: {error}") from error
    return (lambda body: wanted.matches(body["metadata"].get("labels") or {})) if wanted.requirements else None


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
