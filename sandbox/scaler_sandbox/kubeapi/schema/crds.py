"""What does a CustomResourceDefinition make the API serve? A `Resource`, or refusals that say which field is wrong."""

from dataclasses import replace
from typing import Any

from scaler_sandbox.kubeapi.errors import Cause, Json
from scaler_sandbox.kubeapi.schema.builtin_schemas import OBJECT_META
from scaler_sandbox.kubeapi.schema.resources import AGE, Column, Resource, ScalePaths, Version
from scaler_sandbox.kubeapi.schema.structural import OPEN, Structural, compile_schema
from scaler_sandbox.kubeapi.schema.validation import SchemaValidator

CRD_KEY = ("apiextensions.k8s.io", "customresourcedefinitions")
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def definition_problems(crd: Json) -> list[Cause]:
    """What is wrong with a definition; empty where it can be served."""
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    found = [
        _required(f"spec.{path}")
        for path, value in (
            ("group", spec.get("group")),
            ("scope", spec.get("scope")),
            ("names.plural", names.get("plural")),
            ("names.kind", names.get("kind")),
            ("versions", spec.get("versions")),
        )
        if not value
    ]
    if found:
        return found
    if crd["metadata"].get("name") != f"{names['plural']}.{spec['group']}":
        message = f'Invalid value: "{crd["metadata"].get("name")}": must be spec.names.plural+"."+spec.group'
        found.append(Cause(reason="FieldValueInvalid", field="metadata.name", message=message))
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        found.append(Cause(reason="FieldValueInvalid", field="spec.versions", message=message))
    for index, version in enumerate(spec["versions"]):
        path = f"spec.versions[{index}]"
        # Real servers lift the subresources of a single version out of it.
        found += _version_problems(version, path, scale="spec" if len(spec["versions"]) == 1 else path)
    return found


def _version_problems(version: Json, path: str, *, scale: str) -> list[Cause]:
    """What is wrong with a version. `scale` is where its subresources are said to stand."""
    found = [] if version.get("name") else [_required(f"{path}.name")]
    if not (version.get("schema") or {}).get("openAPIV3Schema"):
        found.append(_required(f"{path}.schema.openAPIV3Schema"))
    paths = (version.get("subresources") or {}).get("scale")
    if paths is not None:
        found += [
            _required(f"{scale}.subresources.scale.{name}")
            for name in ("specReplicasPath", "statusReplicasPath")
            if not paths.get(name)
        ]
    return found


def _required(path: str) -> Cause:
    return Cause(reason="FieldValueRequired", field=path, message="Required value")


def resource_of(crd: Json) -> Resource:
    """The resource that a definition without problems describes."""
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
