"""Which metrics and labels a PromQL query names, and which there are."""

from collections.abc import Iterator
from typing import Any

import promql_parser

from scaler.reporting.metrics import Metrics

OF_TARGETS = {"cluster", "instance", "pod"}
"""Labels of the scraper's that queries may use: which cluster, and to tell replicas apart."""


def declared() -> dict[str, set[str]]:
    """Labels by name of every series that the scaler shows."""
    found: dict[str, set[str]] = {}
    for each in Metrics().declared:
        for suffix in ("_bucket", "_sum", "_count") if each.type == "histogram" else ("",):
            found[f"{each.name}{suffix}"] = {*each.labels, *(("le",) if suffix == "_bucket" else ())}
    return found


def expressions(expr: Any) -> Iterator[Any]:
    """A parsed query, and every query within it."""
    yield expr
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        inner = getattr(expr, name, None)
        if inner is not None:
            yield from expressions(inner)
    for inner in getattr(expr, "args", ()) or ():
        yield from expressions(inner)


def selectors(expr: Any) -> list[promql_parser.VectorSelector]:
    return [each for each in expressions(expr) if isinstance(each, promql_parser.VectorSelector)]


def names_of(selector: promql_parser.VectorSelector) -> list[str]:
    """Of the metrics that it selects."""
    if selector.name:
        return [str(selector.name)]
    return [name for each in selector.matchers.matchers if each.name == "__name__" for name in each.value.split("|")]


def not_there(query: str) -> set[str]:
    """Labels that the query groups or joins by, and that none of its metrics has."""
    known = declared()
    found: set[str] = set()
    for each in expressions(promql_parser.parse(query)):
        there = {label for selector in selectors(each) for name in names_of(selector) for label in known.get(name, ())}
        found |= _named(getattr(each, "modifier", None)) - there - OF_TARGETS
    return found


def _named(modifier: Any) -> set[str]:
    """Labels of `by`, `without`, `on` and `ignoring`."""
    labels = getattr(getattr(modifier, "matching", modifier), "labels", None)
    return set(labels or ())
