"""What does a schema say about each place in an object? A tree of `Structural` nodes, compiled once per CRD version.

Every walk over an object (defaulting, pruning, server-side apply, CEL) follows this one tree, so that all of them
agree on what a list or a map is. Where the schema is silent (`OPEN`), maps are merged key by key and lists
are replaced whole, as a real server does.

Law: a node knows what lies below it (`defaults_below`, …), so that walks skip whole subtrees. A Workload's pod template
has 5,000 nodes and hardly a default.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from scaler_sandbox.kubeapi.errors import Json

ListType = Literal["atomic", "set", "map"]
_encode = msgspec.json.Encoder(order="sorted").encode


class _Unset:
    """The type of "no default"; `None` is a default that a schema can have."""


UNSET = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of `x-kubernetes-validations`."""

    expression: str
    message: str = ""
    is_plain: bool = True
    """Whether it has nothing but these two; what `messageExpression` and the like ask for is not done here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structural:
    """One place in an object."""

    type: str = ""
    properties: dict[str, "Structural"] = field(default_factory=dict)
    items: "Structural | None" = None
    additional: "Structural | None" = None
    """What stands under keys that `properties` does not name; None where there may be none."""
    preserve_unknown: bool = False
    embedded: bool = False
    nullable: bool = False
    default: Any = UNSET
    format: str = ""
    list_type: ListType = "atomic"
    list_keys: tuple[str, ...] = ()
    atomic_map: bool = False
    rules: tuple[Rule, ...] = ()
    defaults_below: bool = False
    uniqueness_below: bool = False
    rules_below: bool = False

    def child(self, key: str) -> "Structural | None":
        """The node under a key of a map or object; None where the schema knows of no such key."""
        return self.properties.get(key) or self.additional


OPEN = Structural(preserve_unknown=True)
"""A place of which the schema says nothing: everything is kept."""


def child_or_open(node: Structural, key: str) -> Structural:
    """The node under a key, `OPEN` where the schema is silent."""
    return node.properties.get(key) or node.additional or OPEN


def compile_schema(raw: Json) -> Structural:
    """The tree of an `openAPIV3Schema`."""
    properties = {name: compile_schema(child) for name, child in (raw.get("properties") or {}).items()}
    items = compile_schema(raw["items"]) if isinstance(raw.get("items"), dict) else None
    additional = _additional(raw.get("additionalProperties"))
    rules = tuple(_rule(entry) for entry in raw.get("x-kubernetes-validations") or ())
    list_type: ListType = raw.get("x-kubernetes-list-type", "atomic")
    below = [*properties.values(), *([items] if items else []), *([additional] if additional else [])]
    return Structural(
        type=raw.get("type", ""),
        properties=properties,
        items=items,
        additional=additional,
        preserve_unknown=bool(raw.get("x-kubernetes-preserve-unknown-fields")),
        embedded=bool(raw.get("x-kubernetes-embedded-resource")),
        nullable=bool(raw.get("nullable")),
        default=raw.get("default", UNSET),
        format=raw.get("format", ""),
        list_type=list_type,
        list_keys=tuple(raw.get("x-kubernetes-list-map-keys") or ()),
        atomic_map=raw.get("x-kubernetes-map-type") == "atomic",
        rules=rules,
        defaults_below=any(node.default is not UNSET or node.defaults_below for node in below),
        uniqueness_below=list_type != "atomic" or any(node.uniqueness_below for node in below),
        rules_below=bool(rules) or any(node.rules_below for node in below),
    )


def _additional(raw: Any) -> Structural | None:
    if raw is True or raw == {}:
        return OPEN
    return compile_schema(raw) if isinstance(raw, dict) else None


def _rule(raw: Json) -> Rule:
    return Rule(
        expression=raw.get("rule", ""), message=raw.get("message", ""), is_plain=raw.keys() <= {"rule", "message"}
    )


# ------------------------------------------------------------------------------------------------- lists and equality


def is_granular_list(value: Any, node: Structural) -> bool:
    """Whether the items of this list have an identity: by keys, or as members of a set."""
    return isinstance(value, list) and node.list_type != "atomic"


def list_key(item: Any, node: Structural) -> Any:
    """What identifies an item in its list: its key fields, defaults of absent ones included."""
    if node.list_type != "map" or not isinstance(item, dict):
        return item
    defaults = node.items.properties if node.items is not None else {}
    found = {name: item.get(name, defaults[name].default if name in defaults else UNSET) for name in node.list_keys}
    return {name: value for name, value in found.items() if value is not UNSET}


def item_key(item: Any, node: Structural) -> bytes:
    """The key of an item as something that can be looked up."""
    return _encode(list_key(item, node))


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. To Python, `1`, `1.0` and `true` are equal; to an API they are not."""
    # The first comparison, which is cheap, finds most differences.
    return one is other or (one == other and _encode(one) == _encode(other))


def json_type(value: Any) -> str:
    """A JSON value's type, by the names that schemas use."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
