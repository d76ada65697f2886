"""Does an object obey the CEL rules of its schema (`x-kubernetes-validations`)?

Rules stand at nodes of the schema and see the value there as `self`; transition rules also see what stood there before,
as `oldSelf`, where the two can be matched (not within lists that are replaced whole).

Law: a rule is either evaluated as a real server would, or it is listed in `unchecked` and not evaluated at all. Not
evaluated are rules that have more than a rule and a message, and those that use functions which only Kubernetes has,
escaped field names, or fields that Kubernetes hands to CEL as something else than their JSON (dates, durations, bytes,
floats). Without the extra `rules`, which has the evaluator, all of them are in that list.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import Cause, Json
from scaler_sandbox.kubeapi.schema.structural import Rule, Structural, item_key, json_type, same

Place = tuple[str | int, ...]

_OPERATORS = frozenset(
    {
        *("!_", "-_", "_+_", "_-_", "_*_", "_/_", "_%_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"),
        *("_&&_", "_||_", "_?_:_", "_[_]", "@in", "@not_strictly_false"),
    }
)
_FUNCTIONS = frozenset(
    {
        *("size", "type", "string", "int", "uint", "double", "bool", "dyn"),
        *("matches", "contains", "startsWith", "endsWith"),
    }
)
_LIKE_NO_JSON = frozenset({"date", "date-time", "duration", "byte"})
_WORD = re.compile(r"\w+")
_ESCAPED = re.compile(r"__\w+__")


@dataclass(frozen=True, slots=True)
class _Compiled:
    rule: Rule
    check: Any
    is_transition: bool
    """Whether the rule compares with what was before."""

    def is_due(self, new: Any, old: Any) -> bool:
        """Whether the rule applies to this change.

        A value that did not change is not held against a rule that it broke before (ratcheting).
        """
        if self.is_transition:
            return old is not None
        return old is None or not same(old, new)


class RuleBook:
    """The rules of one schema, compiled."""

    def __init__(self, schema: Structural) -> None:
        self._schema = schema
        self._compiled: dict[int, list[_Compiled]] = {}
        """The rules by the identity of the node, which lives as long as the schema."""
        self.unchecked: tuple[str, ...] = ()
        self._compile(schema)

    def _compile(self, node: Structural) -> None:
        if not node.rules_below:
            return
        self._compiled[id(node)] = [compiled for rule in node.rules if (compiled := self._rule(rule, node))]
        below = [*node.properties.values(), node.items, node.additional]
        for child in below:
            if child is not None:
                self._compile(child)

    def _rule(self, rule: Rule, node: Structural) -> _Compiled | None:
        check = _program(rule.expression, node) if rule.is_plain else None
        if check is None:
            self.unchecked = (*self.unchecked, rule.expression)
            return None
        return _Compiled(rule, check, "oldSelf" in _WORD.findall(rule.expression))

    def broken(self, new: Json, old: Json | None) -> Iterator[Cause]:
        """A cause for each rule that the new object breaks."""
        return self._broken(new, old, self._schema, ())

    def _broken(self, new: Any, old: Any, node: Structural, place: Place) -> Iterator[Cause]:
        if not node.rules_below or new is None:
            return
        yield from self._broken_here(new, old, node, place)
        if isinstance(new, dict):
            for key, item in new.items():
                child = node.child(key)
                if child is not None:
                    before = old.get(key) if isinstance(old, dict) else None
                    yield from self._broken(item, before, child, (*place, key))
        elif isinstance(new, list) and node.items is not None:
            before_of = _matcher(old, node)
            for index, item in enumerate(new):
                yield from self._broken(item, before_of(item), node.items, (*place, index))

    def _broken_here(self, new: Any, old: Any, node: Structural, place: Place) -> Iterator[Cause]:
        due = [rule for rule in self._compiled.get(id(node), ()) if rule.is_due(new, old)]
        if not due:
            return
        import cel

        context = cel.Context({"self": new} if old is None else {"self": new, "oldSelf": old})
        for rule in due:
            yield from _verdict(rule, context, new, place)


def _program(expression: str, node: Structural) -> Any:
    """A compiled expression; None where it cannot be evaluated faithfully."""
    try:
        import cel
    except ImportError:
        return None
    if _ESCAPED.search(expression) or set(_WORD.findall(expression)) & _fields_unlike_json(node):
        return None
    try:
        program = cel.compile(expression)
    except ValueError:
        return None
    return program if set(program.functions()) <= _OPERATORS | _FUNCTIONS else None


def _fields_unlike_json(node: Structural) -> set[str]:
    """The names by which a rule may speak of values that CEL sees as another type than their JSON has."""
    return _unlike_json_below(node) | ({"self", "oldSelf"} if _is_unlike_json(node) else set())


def _unlike_json_below(node: Structural) -> set[str]:
    named = {name for name, child in node.properties.items() if _is_unlike_json(child)}
    for child in (*node.properties.values(), node.items, node.additional):
        if child is not None:
            named |= _unlike_json_below(child)
    return named


def _is_unlike_json(node: Structural) -> bool:
    return node.format in _LIKE_NO_JSON or node.type == "number"


def _matcher(old: Any, node: Structural) -> Callable[[Any], Any]:
    """Finds what stood in the old list under an item's key; nothing in lists without keys."""
    if not isinstance(old, list) or node.list_type != "map":
        return lambda _item: None
    by_key = {item_key(item, node): item for item in old}
    return lambda item: by_key.get(item_key(item, node))


def _verdict(compiled: _Compiled, context: Any, value: Any, place: Place) -> Iterator[Cause]:
    rule, shown = compiled.rule, "" if isinstance(value, dict | list) else f"{msgspec.json.encode(value).decode()}: "
    why = f"{shown}{rule.message or f'failed rule: {rule.expression}'}"
    try:
        holds = compiled.check.execute(context)
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
        lacks = f"no such key: {error.args[0]}" if isinstance(error, KeyError) else str(error)
        why = f'"{json_type(value)}": {lacks} evaluating rule: {rule.message or rule.expression}'
        holds = False
    if holds is not True:
        yield Cause(reason="FieldValueInvalid", field=_spoken(place), message=f"Invalid value: {why}")


def _spoken(place: Place) -> str:
    """A place as causes name it; the object itself is `<nil>`, as real servers print it."""
    if not place:
        return "<nil>"
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")
