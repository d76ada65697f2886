"""What does an object become under a JSON merge patch or a server-side apply?

Real servers take JSON patches, and for built-in resources strategic merge patches, too. Here they get 415.

An apply merges maps key by key and keyed lists item by item, and unites sets; everything else is replaced. Fields have
no owners here: no apply conflicts with another, and a field that a manager no longer names stays.

Law: the old object is never changed; untouched parts of it are shared with the result.
"""

from collections.abc import Callable
from typing import Any

from scaler_sandbox.kubeapi.errors import ApiError, Json, bad_request, unsupported_media_type
from scaler_sandbox.kubeapi.schema.shaping import prune
from scaler_sandbox.kubeapi.schema.structural import OPEN, Structural, child_or_open, is_granular_list, item_key


def applied(live: Json, config: Json, schema: Structural) -> Json:
    """The object with the configuration in it. Raises: ApiError 500 for fields that the schema does not declare.

    Unlike other writes, an apply does not drop unknown fields: a real server could not record their owners.
    """
    _, unknown = prune({key: value for key, value in config.items() if key != "metadata"}, schema)
    if unknown:
        raise ApiError(500, "", f"failed to create typed patch object: .{unknown[0]}: field not declared in schema")
    merged: Json = merge_applied(live, config, schema)
    return merged


def merge_applied(live: Any, config: Any, node: Structural) -> Any:
    """The live value with the applied one merged into it."""
    if isinstance(live, dict) and isinstance(config, dict) and not node.atomic_map:
        merged = dict(live)
        for key, value in config.items():
            merged[key] = merge_applied(live.get(key), value, child_or_open(node, key))
        return merged
    if is_granular_list(live, node) and is_granular_list(config, node):
        return _merge_lists(live, config, node)
    # A null says nothing about a map or list that is there.
    return live if config is None and isinstance(live, dict | list) else config


def _merge_lists(live: list[Any], config: list[Any], node: Structural) -> list[Any]:
    """Live items keep their places; new ones follow. Raises: ApiError 500 where an item is applied twice."""
    wanted = {item_key(item, node): item for item in config}
    if len(wanted) < len(config):
        raise ApiError(500, "", f"failed to create typed patch object: duplicate entries for key {node.list_keys}")
    inner = node.items or OPEN
    kept = [merge_applied(item, wanted.pop(item_key(item, node), item), inner) for item in live]
    return [*kept, *wanted.values()]


MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def patch_function(content_type: str, patch: Any) -> Callable[[Json], Json]:
    """The change that a patch makes. Raises: ApiError 415 for another type."""
    if content_type == MERGE_PATCH:
        return lambda old: _object(merge(old, patch))
    raise unsupported_media_type(content_type, [MERGE_PATCH, APPLY_PATCH])


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise bad_request("the patch does not leave an object behind")
    return value


def merge(old: Any, patch: Any) -> Any:
    """The value under a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), change)
    return merged
