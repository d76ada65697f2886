"""What does a server-side apply make of an object? Its configuration is merged in, what it no longer names goes.

 live object ──merge configuration──▶ merged ──drop what only this manager owned and no longer names──▶ new object
                                                     │ compare with live
                                                     ▼
                              other managers own a changed field: conflict, or theirs no longer (force)

Laws: applying a value that a field already has shares the field, it is no conflict; a field that another manager owns
is never removed; applying the same configuration twice is applying it once.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from scaler.embedded.kubeapi.fieldsets import (
    Changes,
    Fields,
    Path,
    all_fields,
    applied_fields,
    changes,
    is_granular_list,
    is_granular_map,
    item_element,
    managed_part,
    spoken,
)
from scaler.embedded.kubeapi.ownership import Manager, arranged, find_manager
from scaler.embedded.kubeapi.status import ApiError, Cause, Json
from scaler.embedded.kubeapi.structural import OPEN, Structural, child_or_open

_FIRST = "before-first-apply"
_IDENTITY = ("apiVersion", "kind", "metadata")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of an apply that has no conflicts."""

    body: Json
    managers: tuple[Manager, ...]


def applied(
    live: Json,
    config: Json,
    *,
    schema: Structural,
    managers: tuple[Manager, ...],
    applier: Manager,
    without: frozenset[str],
    force: bool,
) -> Applied:
    """The object and its managers after `applier` (its `fields` are ignored) applied a configuration.

    `without` are the top-level fields that this endpoint cannot set. Raises: ApiError 409, 500.
    """
    wanted_part = managed_part(config, without=without)
    _check_typed(wanted_part, schema, ())
    if live and not managers:
        managers = (_first_manager(managed_part(live, without=without), applier, schema),)
    mine = find_manager(managers, applier)
    others = [manager for manager in managers if manager.identity != applier.identity]
    wanted = applied_fields(wanted_part, schema)
    owned = wanted.union(*(manager.fields for manager in others))
    merged = _merged_object(live or {key: config[key] for key in _IDENTITY}, wanted_part, schema)
    doomed = _no_longer_named(mine.fields if mine else frozenset(), owned, schema)
    body = _without_paths(merged, schema, (), doomed) if doomed else merged
    changed = changes(managed_part(live, without=without), managed_part(body, without=without), schema)
    conflicts = [(manager, found) for manager in others if (found := manager.fields & changed.written)]
    if conflicts and not force:
        raise _conflict(conflicts)
    return Applied(body, _managers_after(others, mine, replace(applier, fields=wanted), changed))


def _merged_object(live: Json, wanted_part: Json, schema: Structural) -> Json:
    merged: Json = {**live, **merge_applied(managed_part(live, without=frozenset()), wanted_part, schema)}
    # Name, uid and the like take no part in the merge, since nobody owns them.
    return {**merged, "metadata": {**live["metadata"], **merged["metadata"]}}


def _first_manager(live_part: Json, applier: Manager, schema: Structural) -> Manager:
    """Who is taken to own an object that nobody was recorded to own."""
    fields = frozenset(all_fields(live_part, schema, ()) - {()})
    return replace(applier, name=_FIRST, operation="Update", fields=fields)


def _managers_after(
    others: list[Manager], before: Manager | None, now: Manager, changed: Changes
) -> tuple[Manager, ...]:
    lost = changed.written | changed.removed
    kept = [replace(manager, fields=manager.fields - lost) if lost else manager for manager in others]
    if before is not None and before.fields == now.fields and not changed:
        now = before
    return arranged([*kept, now])


def merge_applied(live: Any, config: Any, node: Structural) -> Any:
    """The live value with the applied one merged into it, following the lists' and maps' own rules."""
    if is_granular_map(live, node) and is_granular_map(config, node):
        merged = dict(live)
        for key, value in config.items():
            child = child_or_open(node, key)
            merged[key] = merge_applied(live[key], value, child) if key in live else value
        return merged
    if is_granular_list(live, node) and is_granular_list(config, node):
        return _merge_lists(live, config, node)
    # A null says nothing about a map or list that is there.
    return live if config is None and isinstance(live, dict | list) else config


def _merge_lists(live: list[Any], config: list[Any], node: Structural) -> list[Any]:
    """Common items in the order of the configuration; live ones and new ones keep their places before and after."""
    lives = {item_element(item, node): item for item in live}
    configs = {item_element(item, node): item for item in config}
    behind, ahead = deque(lives), deque(configs)
    common = deque(element for element in configs if element in lives)
    merged: list[Any] = []
    while behind or ahead:
        if behind and behind[0] not in configs:
            merged.append(lives[behind.popleft()])
        elif behind and behind[0] != common[0]:
            # A common item that has a later place in the configuration.
            behind.popleft()
        else:
            element = ahead.popleft()
            merged.append(_merged_item(element, lives, configs, node))
            if element in lives:
                common.popleft()
                if behind:
                    behind.popleft()
    return merged


def _merged_item(element: str, lives: Json, configs: Json, node: Structural) -> Any:
    if element in lives and isinstance(configs[element], dict):
        return merge_applied(lives[element], configs[element], node.items or OPEN)
    return configs[element]


def _no_longer_named(before: Fields, owned: Fields, schema: Structural) -> set[Path]:
    """What goes: fields that were applied before and that nobody owns, and the containers around them.

    A list item or a key of a free-form map goes with all that is in it unless somebody owns the item or key itself; a
    field of the schema stays as long as anything below it is owned.
    """
    alive = set(_with_named_parents(owned, schema))
    return {path for path in _with_named_parents(before, schema) if path not in alive and path != ("f:metadata",)}


def _with_named_parents(fields: Fields, schema: Structural) -> Iterable[Path]:
    """The fields, and those above them that the schema knows by name."""
    yield from fields
    for path in fields:
        node: Structural | None = schema
        for depth, element in enumerate(path[:-1], start=1):
            if node is None:
                break
            if element.startswith("f:"):
                named = node.properties.get(element.removeprefix("f:"))
                if named is not None:
                    yield path[:depth]
                node = named or node.additional
            else:
                node = node.items


def _without_paths(value: Any, node: Structural, path: Path, doomed: set[Path]) -> Any:
    if is_granular_map(value, node):
        kept = {}
        for key, item in value.items():
            here = (*path, "f:" + key)
            # What holds no field that could be owned (empty lists) cannot be taken away either.
            if here in doomed and applied_fields({key: item}, node):
                continue
            left = _without_paths(item, child_or_open(node, key), here, doomed)
            # What has no field left that could be owned goes too, whoever owned it; an empty map still has itself.
            if left in (item, {}) or applied_fields({key: left}, node):
                kept[key] = left
        return kept
    if is_granular_list(value, node):
        placed = [((*path, item_element(item, node)), item) for item in value]
        inner = node.items or OPEN
        return [_without_paths(item, inner, place, doomed) for place, item in placed if place not in doomed]
    return value


def _check_typed(value: Any, node: Structural, path: Path) -> None:
    """Raises: ApiError 500 where a configuration names fields that the schema does not have, or an item twice.

    Unlike other writes, an apply cannot just drop what it does not know: it would have to own it.
    """
    if is_granular_map(value, node):
        for key, item in value.items():
            if node.child(key) is None and not node.preserve_unknown and key not in ("metadata", "status"):
                raise _not_typed(f"{spoken((*path, 'f:' + key))}: field not declared in schema")
            _check_typed(item, child_or_open(node, key), (*path, "f:" + key))
    elif is_granular_list(value, node):
        seen = set()
        for index, item in enumerate(value):
            element = item_element(item, node)
            if element == "k:{}":
                raise _not_typed(f"{spoken(path)}: element {index}: omits all key fields {list(node.list_keys)}")
            if element in seen:
                raise _not_typed(f"{spoken(path)}: duplicate entries for key {spoken((element,))}")
            seen.add(element)
            _check_typed(item, node.items or OPEN, (*path, element))
    elif node.type in _PYTHON_TYPES and value is not None and type(value) not in _PYTHON_TYPES[node.type]:
        raise _not_typed(f"{spoken(path)}: expected {node.type}, got {value!r}")


def _not_typed(why: str) -> ApiError:
    return ApiError(500, "", f"failed to create typed patch object: {why}")


def _conflict(conflicts: list[tuple[Manager, Fields]]) -> ApiError:
    """409: others own fields of this configuration with other values."""
    causes: list[Cause] = []
    by_manager: defaultdict[str, list[str]] = defaultdict(list)
    for manager, fields in sorted(conflicts, key=lambda conflict: conflict[0].name):
        for path in sorted(fields):
            causes.append(
                Cause(reason="FieldManagerConflict", field=spoken(path), message=f"conflict with {_named(manager)}")
            )
            by_manager[_named(manager)].append(spoken(path))
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        blocks = [
            f"conflicts with {name}:\n" + "\n".join(f"- {p}" for p in paths) for name, paths in by_manager.items()
        ]
        text = f"Apply failed with {len(causes)} conflicts: " + "\n".join(blocks)
    return ApiError(409, "Conflict", text, details={"causes": [cause.as_json() for cause in causes]})


def _named(manager: Manager) -> str:
    name = f'"{manager.name}"'
    if manager.subresource:
        name += f' with subresource "{manager.subresource}"'
    return f"{name} using {manager.api_version}" if manager.operation == "Update" else name
