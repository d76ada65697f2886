"""What does an object become under a patch? JSON merge patch, JSON patch, and a subset of strategic merge patch.

Strategic merge, the subset: keyed lists are merged by their first key and sets are united (as `builtins` knows them);
`$patch: delete|replace`, `$deleteFromPrimitiveList` and `$retainKeys` are obeyed; `$setElementOrder` is ignored, so
merged items keep their place and new ones go to the end. Real servers take it for built-in resources only; so do we.

Law: the old object is never changed; untouched parts of it are shared with the result.
"""

import copy
from collections.abc import Callable
from typing import Any

from scaler.embedded.kubeapi.fieldsets import is_granular_list
from scaler.embedded.kubeapi.resources import View
from scaler.embedded.kubeapi.status import ApiError, Json, bad_request, unsupported_media_type
from scaler.embedded.kubeapi.structural import OPEN, Structural, child_or_open

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def patch_function(view: View, content_type: str, patch: Any) -> Callable[[Json], Json]:
    """The change that a patch makes. Raises: ApiError 415 for a type that the resource does not take."""
    if content_type == MERGE_PATCH:
        return lambda old: _object(merge(old, patch))
    if content_type == JSON_PATCH:
        return lambda old: _object(json_patched(old, patch))
    if content_type == STRATEGIC_PATCH and not view.resource.custom:
        return lambda old: _object(strategic_merge(old, patch, view.version.schema))
    accepted = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
    if not view.resource.custom:
        accepted.insert(2, STRATEGIC_PATCH)
    raise unsupported_media_type(content_type, accepted)


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


def json_patched(old: Json, operations: Any) -> Any:
    """The object under a JSON patch (RFC 6902). Raises: ApiError 422 where an operation does not apply."""
    import jsonpatch

    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    patched = copy.deepcopy(old)
    try:
        for operation in operations:
            patched = jsonpatch.JsonPatch([_lenient(operation, patched)]).apply(patched, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise _does_not_apply(str(error)) from error
    return patched


def _lenient(operation: Any, body: Any) -> Any:
    """The operation; a replace of an absent key adds it, as real servers let it."""
    import jsonpatch

    if not isinstance(operation, dict) or operation.get("op") != "replace":
        return operation
    parent, _ = jsonpatch.JsonPointer(operation.get("path", "")).to_last(body)
    return {**operation, "op": "add"} if isinstance(parent, dict) else operation


def _does_not_apply(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def strategic_merge(old: Any, patch: Any, node: Structural) -> Any:
    """The value under a strategic merge patch."""
    if isinstance(patch, dict):
        return _merge_object(old if isinstance(old, dict) else {}, patch, node)
    if isinstance(patch, list) and is_granular_list(patch, node):
        return _merge_list(old if isinstance(old, list) else [], patch, node)
    return patch


def _merge_object(old: Json, patch: Json, node: Structural) -> Json:
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = {} if directive == "delete" else dict(old)
    if "$retainKeys" in patch:
        merged = {key: value for key, value in merged.items() if key in patch["$retainKeys"]}
    for key, change in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [item for item in merged.get(name) or [] if item not in change]
        elif key.startswith("$"):
            continue
        elif change is None:
            merged.pop(key, None)
        else:
            merged[key] = strategic_merge(merged.get(key), change, child_or_open(node, key))
    return merged


def _merge_list(old: list[Any], patch: list[Any], node: Structural) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    if node.list_type == "set":
        return [*old, *(item for item in patch if item not in old)]
    return _merge_keyed(old, patch, node.list_keys[0], node.items or OPEN)


def _merge_keyed(old: list[Any], patch: list[Any], key: str, node: Structural) -> list[Any]:
    merged = list(old)
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise bad_request(f"map: {change!r} does not contain declared merge key: {key}")
        place = next((index for index, item in enumerate(merged) if _is_named(item, key, change[key])), None)
        if change.get("$patch") == "delete":
            merged = [item for item in merged if not _is_named(item, key, change[key])]
        elif place is None:
            merged.append(strategic_merge({}, change, node))
        else:
            merged[place] = strategic_merge(merged[place], change, node)
    return merged


def _is_named(item: Any, key: str, name: Any) -> bool:
    return isinstance(item, dict) and item.get(key) == name
