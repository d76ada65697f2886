"""What does a CustomResourceDefinition make the API serve? A `Resource`. Definitions are not validated."""

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import Json
from scaler_sandbox.kubeapi.schema.builtin_schemas import OBJECT_META
from scaler_sandbox.kubeapi.schema.resources import AGE, Column, Resource, ScalePaths, Version
from scaler_sandbox.kubeapi.schema.structural import OPEN, Structural, compile_schema
from scaler_sandbox.kubeapi.schema.validation import SchemaValidator

CRD_KEY = ("apiextensions.k8s.io", "customresourcedefinitions")
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def resource_of(crd: Json) -> Resource:
    """The resource that a definition describes."""
    spec = crd["spec"]
    names = spec["names"]
    versions = {raw["name"]: _version(raw) for raw in spec["versions"]}
    return Resource(
        group=spec["group"],
        plural=names["plural"],
        kind=names["kind"],
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        short_names=tuple(names.get("shortNames") or ()),
        namespaced=spec["scope"] == "Namespaced",
        versions=versions,
        storage=next(raw["name"] for raw in spec["versions"] if raw.get("storage")),
        custom=True,
        unconditional_update=False,
    )


def _version(raw: Json) -> Version:
    return _compiled(msgspec.json.encode(raw))


@cache
def _compiled(text: bytes) -> Version:
    """Schemas keep nothing of what they have checked, so every API of a process serves the same ones."""
    raw = msgspec.json.decode(text)
    openapi = raw["schema"]["openAPIV3Schema"]
    compiled = _with_metadata(compile_schema(openapi))
    subresources = raw.get("subresources") or {}
    scale = _scale_paths(subresources.get("scale"))
    validator = SchemaValidator(openapi, compiled, replicas=scale.spec if scale else ())
    return Version(
        name=raw["name"],
        served=bool(raw.get("served")),
        schema=compiled,
        validate=validator,
        has_status="status" in subresources,
        scale=scale,
        columns=_columns(raw.get("additionalPrinterColumns")),
        selectable=tuple(field["jsonPath"].lstrip(".") for field in raw.get("selectableFields") or ()),
        unchecked_rules=validator.unchecked_rules,
    )


def _with_metadata(schema: Structural) -> Structural:
    """The schema with the metadata that every object has, and with its type fields."""
    fixed = {"metadata": OBJECT_META, "apiVersion": OPEN, "kind": OPEN}
    return replace(schema, properties={**schema.properties, **fixed})


def _scale_paths(raw: Any) -> ScalePaths | None:
    if raw is None:
        return None
    selector = raw.get("labelSelectorPath")
    return ScalePaths(
        spec=_steps(raw["specReplicasPath"]),
        status=_steps(raw["statusReplicasPath"]),
        selector=_steps(selector) if selector else None,
    )


def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.strip(".").split("."))


def _columns(raw: Any) -> tuple[Column, ...]:
    if not raw:
        return (AGE,)
    return tuple(
        Column(
            name=column["name"],
            path=column["jsonPath"],
            type=column["type"],
            priority=column.get("priority", 0),
        )
        for column in raw
    )


def with_names(crd: Json) -> Json:
    """The definition with the names that its author left to the server."""
    spec = crd["spec"]
    kind = spec["names"]["kind"]
    names = {"singular": kind.lower(), "listKind": f"{kind}List"} | spec["names"]
    return {**crd, "spec": {**spec, "names": names}}


def established(crd: Json, *, now: str) -> Json:
    """The definition with the status of one whose names are accepted and whose resource is served."""
    spec = crd["spec"]
    storage = next(raw["name"] for raw in spec["versions"] if raw.get("storage"))
    before = (crd.get("status") or {}).get("storedVersions") or []
    status = {
        "acceptedNames": spec["names"],
        "storedVersions": before if storage in before else [*before, storage],
        "conditions": [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", crd, now),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", crd, now),
        ],
    }
    return {**crd, "status": status}


def _condition(kind: str, reason: str, message: str, crd: Json, now: str) -> Json:
    standing = (crd.get("status") or {}).get("conditions") or []
    since = next((c["lastTransitionTime"] for c in standing if c["type"] == kind), now)
    return {"type": kind, "status": "True", "lastTransitionTime": since, "reason": reason, "message": message}
