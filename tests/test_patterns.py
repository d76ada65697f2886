"""What reads a tenant's text takes a time that grows with its length, and not with a power of it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
import scaler_analysis

import scaler

PACKAGES = (scaler, scaler_analysis)
FOLDERS = [Path(each.__path__[0]) for each in PACKAGES]
LIBRARIES = {"fnmatch", "glob", "wcmatch", "regex"}
COMPILING = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
OF_SETTINGS = {
    "idleness/relabel.py: re2.compile": "the operator's own rules, by RE2, which is linear",
    "doctor/calls/probe.py: re.search": "of a table in the same file",
}
NESTED = {
    "scaler.idleness.durations._WHOLE": "a number ends at its unit, so that there is one way to part a text",
    "scaler.idleness.relabel._LITERAL": "of the operator's own rules; each alternative begins with another character",
    "scaler.idleness.relabel._NAME_TEMPLATE": "of the operator's own rules; the inner one ends at its brace",
}


@cache
def sources() -> dict[Path, ast.Module]:
    """Every file is parsed when a test asks, and not by each process that collects tests."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for each in FOLDERS for path in sorted(each.rglob("*.py"))
    }


def named(path: Path) -> str:
    [folder] = [each for each in FOLDERS if path.is_relative_to(each)]
    return path.relative_to(folder).as_posix()


def imported() -> Iterator[str]:
    for path, tree in sources().items():
        for node in ast.walk(tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (f"{named(path)}: {each}" for each in names if each.partition(".")[0] in LIBRARIES)


def is_constant(node: ast.expr) -> bool:
    """Whether a pattern is written in the source: text, also of constants and of other compiled patterns."""
    match node:
        case ast.Constant():
            return True
        case ast.JoinedStr(values=values):
            return all(is_constant(each) for each in values)
        case ast.FormattedValue(value=value) | ast.Attribute(value=value, attr="pattern"):
            return is_constant(value)
        case ast.BinOp(left=left, right=right):
            return is_constant(left) and is_constant(right)
        case ast.Tuple(elts=values):
            return all(is_constant(each) for each in values)
        case ast.Name(id=name):
            return name.isupper()
        case _:
            return False


def built() -> Iterator[str]:
    """Calls by which a regular expression is made of what is not written in the source."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re" | "re2" as module), attr=name), args=[first, *_]
                ):
                    if name in COMPILING and not is_constant(first):
                        yield f"{named(path)}: {module}.{name}"


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            if "._pb" not in found.name and not found.name.endswith("__main__"):
                yield import_module(found.name)


PATTERNS = {
    f"{module.__name__}.{name}": value
    for module in modules()
    for name, value in vars(module).items()
    if isinstance(value, re.Pattern) and f"{name} = re.compile" in Path(module.__file__ or "").read_text("utf-8")
}


def has_nested_repeat(pattern: str | bytes) -> bool:
    """Whether something that repeats without end has within it something that does: `(a+)+`. Possessive ones have one
    way to match."""
    parser = re._parser  # type: ignore[attr-defined]
    endless = parser.MAXREPEAT

    def nested(tokens: list[tuple[Any, Any]], is_inside: bool) -> bool:
        return any(is_nested(str(kind), value, is_inside) for kind, value in list(tokens))

    def is_nested(kind: str, value: Any, is_inside: bool) -> bool:
        match kind:
            case "MAX_REPEAT" | "MIN_REPEAT":
                is_endless = value[1] is endless
                return (is_endless and is_inside) or nested(value[2], is_inside or is_endless)
            case "SUBPATTERN" | "ASSERT" | "ASSERT_NOT":
                return nested(value[-1], is_inside)
            case "BRANCH":
                return any(nested(each, is_inside) for each in value[1])
            case _:
                return False

    return nested(parser.parse(pattern), False)


def test_names_are_compared_by_one_function() -> None:
    assert not list(imported()), "is_any_of of scaler/idleness/policy.py is linear"


def test_no_regular_expression_is_made_of_text_from_elsewhere() -> None:
    assert {*built()} == {*OF_SETTINGS}


@pytest.mark.parametrize("pattern", ["(a+)+", "(a*b?)*", "(?:x|(?:ab*))+", "(a+){2,}"])
def test_a_nested_repeat_is_found(pattern: str) -> None:
    assert has_nested_repeat(pattern)


def test_no_regular_expression_has_a_repeat_within_a_repeat() -> None:
    assert len(PATTERNS) > 30
    assert {name for name, each in PATTERNS.items() if has_nested_repeat(each.pattern)} == {*NESTED}
