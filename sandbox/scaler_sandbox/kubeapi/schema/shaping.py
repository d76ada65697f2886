"""What does an object look like once the API took it in? Without unknown fields and nulls, with its defaults.

Laws: the input is never changed; a walk returns its very argument where it has nothing to do, so that unchanged parts
stay shared between revisions. Order: prune, drop nulls, default, as a real server decodes.
"""

from typing import Any

from scaler_sandbox.kubeapi.errors import Json
from scaler_sandbox.kubeapi.schema.structural import UNSET, Structural

_OBJECT_META = frozenset(
    {
        *("name", "namespace", "uid", "labels", "annotations", "ownerReferences", "finalizers"),
        *("resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "generateName"),
    }
)
_ROOT = frozenset({"apiVersion", "kind", "metadata"})


def prune(body: Json, schema: Structural) -> tuple[Json, list[str]]:
    """The object without what its schema does not know, and the paths that were dropped."""
    dropped: list[str] = []
    pruned = _prune_object(body, schema, "", dropped, keep=_ROOT)
    metadata = _known_metadata(body.get("metadata"), dropped)
    if metadata is not pruned.get("metadata"):
        pruned = {**pruned, "metadata": metadata}
    return pruned, dropped


def _known_metadata(metadata: Any, dropped: list[str]) -> Any:
    """The metadata as a typed server keeps it: known fields, and no empty ones."""
    if not isinstance(metadata, dict) or (metadata.keys() <= _OBJECT_META and all(metadata.values())):
        return metadata
    dropped.extend(f"metadata.{key}" for key in metadata if key not in _OBJECT_META)
    return {key: value for key, value in metadata.items() if key in _OBJECT_META and value}


def _prune(value: Any, node: Structural, path: str, dropped: list[str]) -> Any:
    if isinstance(value, dict):
        return _prune_object(value, node, path, dropped, keep=_ROOT if node.embedded else frozenset())
    if isinstance(value, list) and node.items is not None:
        return _map_list(value, lambda index, item: _prune(item, node.items, f"{path}[{index}]", dropped))
    return value


def _prune_object(value: Json, node: Structural, path: str, dropped: list[str], *, keep: frozenset[str]) -> Json:
    changed: Json = {}
    gone: list[str] = []
    for key, item in value.items():
        child = node.child(key)
        if child is None:
            if key not in keep and not node.preserve_unknown:
                gone.append(key)
        elif isinstance(item, dict | list) and key not in keep:
            pruned = _prune(item, child, f"{path}.{key}" if path else key, dropped)
            if pruned is not item:
                changed[key] = pruned
    if not changed and not gone:
        return value
    dropped.extend(f"{path}.{key}" if path else key for key in gone)
    return {key: changed.get(key, item) for key, item in value.items() if key not in gone}


def drop_nulls(value: Any, node: Structural | None) -> Any:
    """The value without nulls in fields that are known, not nullable, and have no default to take their place."""
    if isinstance(value, dict) and node is not None:
        kept = {}
        same = True
        for key, item in value.items():
            child = node.child(key)
            if item is None and child is not None and not child.nullable and child.default is UNSET:
                same = False
                continue
            kept[key] = drop_nulls(item, child) if isinstance(item, dict | list) else item
            same = same and kept[key] is item
        return value if same else kept
    if isinstance(value, list) and node is not None and node.items is not None:
        return _map_list(value, lambda _, item: drop_nulls(item, node.items))
    return value


def drop_all_nulls(value: Any) -> Any:
    """The value without any null in an object: how typed, built-in objects take them."""
    if isinstance(value, dict):
        kept = {key: drop_all_nulls(item) for key, item in value.items() if item is not None}
        same = len(kept) == len(value) and all(kept[key] is item for key, item in value.items())
        return value if same else kept
    if isinstance(value, list):
        return _map_list(value, lambda _, item: drop_all_nulls(item))
    return value


def fill_defaults(value: Any, node: Structural) -> Any:
    """The value with every default that its schema gives for an absent (or, where not nullable, null) field."""
    if not node.defaults_below:
        return value
    if isinstance(value, dict):
        return _fill_object(value, node)
    if isinstance(value, list) and node.items is not None:
        return _map_list(value, lambda _, item: fill_defaults(item, node.items))
    return value


def _fill_object(value: Json, node: Structural) -> Json:
    filled: Json = {}
    for key, child in node.properties.items():
        if child.default is UNSET and not child.defaults_below:
            continue
        present = value.get(key, UNSET)
        if present is UNSET or (present is None and not child.nullable):
            if child.default is UNSET:
                continue
            present = child.default
        complete = fill_defaults(present, child)
        if complete is not value.get(key, UNSET):
            filled[key] = complete
    if node.additional is not None and node.additional.defaults_below:
        for key, item in value.items():
            if key not in node.properties:
                filled[key] = fill_defaults(item, node.additional)
    return {**value, **filled} if filled else value


def _map_list(value: list[Any], change: Any) -> list[Any]:
    changed = [change(index, item) for index, item in enumerate(value)]
    return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed
