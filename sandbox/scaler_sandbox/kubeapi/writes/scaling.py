"""What does /scale say of an object, and what does a write to it change? Exactly one number."""

from collections.abc import Callable
from typing import Any

from scaler_sandbox.kubeapi.errors import Cause, Json, bad_request, internal, invalid
from scaler_sandbox.kubeapi.schema.resources import Path, ScalePaths, View
from scaler_sandbox.kubeapi.storage.store import Stored

SCALE_VERSION = "autoscaling/v1"


def scale_of(view: View, stored: Stored) -> Json:
    """The Scale of an object. Raises: ApiError 500 where a custom object lacks its replicas field."""
    body, paths = stored.as_served(view), _paths(view)
    if view.resource.custom and value_at(body, paths.spec) is None:
        raise internal(f'the spec replicas field ".{".".join(paths.spec)}" does not exist')
    return _scale(body, paths)


def _scale(body: Json, paths: ScalePaths) -> Json:
    replicas = value_at(body, paths.spec)
    metadata = body["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Json = {"replicas": value_at(body, paths.status) or 0}
    selector = _selector_text(value_at(body, paths.selector)) if paths.selector else ""
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": SCALE_VERSION,
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def scaled(view: View, change: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """The change of an object that a change of its Scale amounts to. Raises: ApiError 400, 422."""
    paths = _paths(view)

    def apply(body: Json) -> Json:
        # Unlike reading it, writing it works where there is no number yet.
        scale = change(_scale(body, paths))
        if scale.get("kind", "Scale") != "Scale":
            raise bad_request(f"a Scale was expected, not a {scale['kind']}")
        replicas = _checked(view, body, (scale.get("spec") or {}).get("replicas", 0))
        metadata = {**body["metadata"]}
        given = scale.get("metadata") or {}
        metadata |= {key: given[key] for key in ("name", "namespace", "uid", "resourceVersion") if given.get(key)}
        return with_value_at({**body, "metadata": metadata}, paths.spec, replicas)

    return apply


def _checked(view: View, body: Json, replicas: Any) -> int:
    is_number = isinstance(replicas, int) and not isinstance(replicas, bool)
    # A custom object's number is checked when the object is validated, with all else that is wrong.
    if is_number and (replicas >= 0 or view.resource.custom):
        return int(replicas)
    # A real server cannot even decode the Scale that a patch with something else leaves.
    field = "spec.replicas" if is_number else "patch"
    message = f"Invalid value: {replicas}: should be a non-negative integer"
    cause = Cause(reason="FieldValueInvalid", field=field, message=message)
    raise invalid(view.resource.group, view.resource.kind, body["metadata"]["name"], [cause])


def _paths(view: View) -> ScalePaths:
    if view.version.scale is None:
        raise internal(f"{view.resource.qualified} has no scale subresource")
    return view.version.scale


def _selector_text(selector: Any) -> str:
    """A label selector as the text that an autoscaler parses."""
    if not isinstance(selector, dict):
        return str(selector or "")
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    parts += [_requirement_text(requirement) for requirement in selector.get("matchExpressions") or ()]
    return ",".join(parts)


def _requirement_text(requirement: Json) -> str:
    key, values = requirement["key"], ",".join(sorted(requirement.get("values") or ()))
    forms: dict[str, str] = {
        "In": f"{key} in ({values})",
        "NotIn": f"{key} notin ({values})",
        "Exists": key,
        "DoesNotExist": f"!{key}",
    }
    return forms[requirement["operator"]]


def value_at(body: Json, path: Path) -> Any:
    """The value at a path, None where it is absent."""
    value: Any = body
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def with_value_at(body: Json, path: Path, value: Any) -> Json:
    """The body with another value at a path."""
    head, *rest = path
    inner = with_value_at(body.get(head) or {}, tuple(rest), value) if rest else value
    return {**body, head: inner}
