"""Which fields does an object have, and which did a write change? Sets of paths, as managed fields count them.

A path is a tuple of the elements of `fieldsV1`: `f:name` for a field or map key, `k:{"name":"a"}` for an item of a
keyed list, `v:"x"` for a member of a set. Sets of tuples make union, difference and conflict one operator each;
`fieldsV1` trees are only made where they are written out.
"""

from typing import Any

import msgspec

from scaler.embedded.kubeapi.json_values import same
from scaler.embedded.kubeapi.status import Json
from scaler.embedded.kubeapi.structural import OPEN, UNSET, Structural, child_or_open

Path = tuple[str, ...]
Fields = frozenset[Path]

_encode = msgspec.json.Encoder(order="sorted").encode

UNMANAGED_META = frozenset(
    {"name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion"}
)
"""Metadata that belongs to the server; nobody owns it."""


def managed_part(body: Json, *, without: frozenset[str]) -> Json:
    """The part of an object that managers own: all but its type, server-set metadata and reset top-level fields."""
    part = {key: value for key, value in body.items() if key not in ("apiVersion", "kind") and key not in without}
    if "metadata" in part:
        part["metadata"] = {key: value for key, value in part["metadata"].items() if key not in UNMANAGED_META}
        if not part["metadata"]:
            del part["metadata"]
    return part


def item_element(item: Any, node: Structural) -> str:
    """How an item of a keyed list or a set is named in a path."""
    if node.list_type == "set" or not isinstance(item, dict):
        return "v:" + _encode(item).decode()
    return "k:" + _encode(list_key(item, node)).decode()


def list_key(item: Json, node: Structural) -> Json:
    """The key fields of an item, defaults of absent ones included."""
    key = {}
    for name in node.list_keys:
        value = item.get(name, UNSET)
        if value is UNSET and node.items is not None and name in node.items.properties:
            value = node.items.properties[name].default
        if value is not UNSET:
            key[name] = value
    return key


def is_granular_list(value: Any, node: Structural) -> bool:
    """Whether the items of this list are owned one by one."""
    return isinstance(value, list) and node.list_type != "atomic"


def is_granular_map(value: Any, node: Structural) -> bool:
    """Whether the keys of this map are owned one by one."""
    return isinstance(value, dict) and not node.atomic_map


def applied_fields(value: Json, schema: Structural) -> Fields:
    """The fields that an applied configuration names: its leaves, list items, and keys of free-form maps."""
    found: set[Path] = set()
    _collect(value, schema, (), found, containers=False)
    return frozenset(found)


def all_fields(value: Any, node: Structural, path: Path) -> set[Path]:
    """Every field in a value, containers included."""
    found: set[Path] = {path}
    _collect(value, node, path, found, containers=True)
    # Labels and finalizers have owners; that an object has metadata at all is nobody's.
    found.discard(("f:metadata",))
    return found


def _collect(value: Any, node: Structural, path: Path, found: set[Path], *, containers: bool) -> None:
    if isinstance(value, dict) and not node.atomic_map:
        for key, item in value.items():
            here = (*path, "f:" + key)
            if isinstance(item, dict | list):
                _collect(item, child_or_open(node, key), here, found, containers=containers)
                # An empty map is owned as such; of an empty list there is nothing to own, unless it is owned whole.
                if containers or item == {} or key not in node.properties:
                    found.add(here)
            else:
                found.add(here)
    elif is_granular_list(value, node):
        for item in value:
            here = (*path, item_element(item, node))
            if isinstance(item, dict):
                _collect(item, node.items or OPEN, here, found, containers=containers)
            found.add(here)
    elif path:
        found.add(path)


class Changes:
    """What differs between two revisions."""

    __slots__ = ("removed", "written")

    def __init__(self) -> None:
        self.written: set[Path] = set()
        """Fields that were added or have another value."""
        self.removed: set[Path] = set()

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)


def changes(old: Json, new: Json, schema: Structural) -> Changes:
    """The fields that differ between two managed parts."""
    found = Changes()
    _compare(old, new, schema, (), found)
    return found


def _compare(old: Any, new: Any, node: Structural, path: Path, found: Changes) -> None:
    if same(old, new):
        return
    if is_granular_map(old, node) and is_granular_map(new, node):
        olds = {"f:" + key: (item, child_or_open(node, key)) for key, item in old.items()}
        news = {"f:" + key: (item, child_or_open(node, key)) for key, item in new.items()}
        _compare_children(olds, news, path, found)
    elif is_granular_list(old, node) and is_granular_list(new, node):
        inner = node.items or OPEN
        olds = {item_element(item, node): (item, inner) for item in old}
        news = {item_element(item, node): (item, inner) for item in new}
        _compare_children(olds, news, path, found)
    else:
        found.written |= all_fields(new, node, path)
        found.removed |= all_fields(old, node, path) - found.written


_Children = dict[str, tuple[Any, Structural]]


def _compare_children(olds: _Children, news: _Children, path: Path, found: Changes) -> None:
    for element, (item, node) in olds.items():
        if element in news:
            _compare(item, news[element][0], node, (*path, element), found)
        else:
            found.removed |= all_fields(item, node, (*path, element))
    for element, (item, node) in news.items():
        if element not in olds:
            found.written |= all_fields(item, node, (*path, element))


def to_fields_v1(fields: Fields) -> Json:
    """The `fieldsV1` tree of a set of paths."""
    root: Json = {}
    for path in sorted(fields):
        node = root
        for element in path[:-1]:
            below = node.setdefault(element, {})
            node = below
        node.setdefault(path[-1], {})
    _mark_members(root, (), fields)
    return root


def _mark_members(tree: Json, path: Path, fields: Fields) -> None:
    """A node that has children and is itself a member says so with a "." entry."""
    for element, below in tree.items():
        if below:
            here = (*path, element)
            _mark_members(below, here, fields)
            if here in fields:
                tree[element] = {".": {}, **below}


def from_fields_v1(tree: Any) -> Fields:
    """The set of paths of a `fieldsV1` tree."""
    found: set[Path] = set()
    _read_tree(tree, (), found)
    return frozenset(found)


def _read_tree(tree: Any, path: Path, found: set[Path]) -> None:
    if not isinstance(tree, dict):
        return
    for element, below in tree.items():
        if element == ".":
            found.add(path)
        elif below:
            _read_tree(below, (*path, element), found)
        else:
            found.add((*path, element))


def spoken(path: Path) -> str:
    """A path as messages write it: `.spec.template.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "v":
            text += f"[={rest}]"
        else:
            keys = msgspec.json.decode(rest)
            text += "[" + ",".join(f"{name}={_encode(value).decode()}" for name, value in keys.items()) + "]"
    return text
