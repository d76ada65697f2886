"""Discovery documents: `/api`, `/apis`, the resource lists, `/version`, and a sketch of `/openapi/v3`.

The OpenAPI documents hold no schemas. They only say which kinds can be written and that the server itself checks fields
(`fieldValidation`), which is what kubectl looks for before it applies something.
"""

from collections import defaultdict
from collections.abc import Iterable

from scaler_sandbox.kubeapi.errors import Json
from scaler_sandbox.kubeapi.schema.resources import Registry, Resource, View

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_VERBS = ["get", "patch", "update"]

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+embedded",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}


def document(path: str, registry: Registry) -> Json | None:
    """The discovery document at a path; None where there is none."""
    parts = [part for part in path.split("/") if part]
    found: Json | None = None
    match parts:
        case ["version"]:
            found = VERSION
        case ["api"]:
            found = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            found = {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(registry)}
        case ["apis", group]:
            found = next((g for g in _groups(registry) if g["name"] == group), None)
        case ["api", "v1"]:
            found = _resource_list("", "v1", registry)
        case ["apis", group, version]:
            found = _resource_list(group, version, registry)
        case ["openapi", "v3"]:
            found = {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in _places(registry)}}
        case ["openapi", "v3", "api", "v1"]:
            found = _openapi(_served(registry, "", "v1"))
        case ["openapi", "v3", "apis", group, version]:
            found = _openapi(_served(registry, group, version))
    return found


def _served(registry: Registry, group: str, version: str) -> list[View]:
    found = (registry.view(group, version, resource.plural) for resource in registry if resource.group == group)
    return [view for view in found if view is not None]


def _group_versions(registry: Registry) -> dict[str, list[str]]:
    """The served versions of each group, the stored ones first: clients prefer the first."""
    versions: dict[str, list[str]] = defaultdict(list)
    for resource in registry:
        for name in sorted(resource.versions, key=lambda name: name != resource.storage):
            if resource.versions[name].served and name not in versions[resource.group]:
                versions[resource.group].append(name)
    return versions


def _groups(registry: Registry) -> list[Json]:
    listed = []
    for group, names in _group_versions(registry).items():
        if group:
            versions = [{"groupVersion": f"{group}/{name}", "version": name} for name in names]
            entry = {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions}
            listed.append({**entry, "preferredVersion": versions[0]})
    return listed


def _resource_list(group: str, version: str, registry: Registry) -> Json | None:
    views = _served(registry, group, version)
    if not views:
        return None
    resources = [entry for view in views for entry in _entries(view)]
    api_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}


def _entries(view: View) -> Iterable[Json]:
    resource = view.resource
    names = {"shortNames": list(resource.short_names)} if resource.short_names else {}
    yield _entry(resource, "", resource.kind, _VERBS) | names
    if view.version.has_status:
        yield _entry(resource, "/status", resource.kind, _SUBRESOURCE_VERBS)
    if view.version.scale:
        scale = {"group": "autoscaling", "version": "v1"}
        yield _entry(resource, "/scale", "Scale", _SUBRESOURCE_VERBS) | scale


def _entry(resource: Resource, suffix: str, kind: str, verbs: list[str]) -> Json:
    name = resource.plural + suffix
    singular = "" if suffix else resource.singular
    return {"name": name, "singularName": singular, "namespaced": resource.namespaced, "kind": kind, "verbs": verbs}


def _places(registry: Registry) -> Iterable[str]:
    for group, versions in _group_versions(registry).items():
        for version in versions:
            yield f"apis/{group}/{version}" if group else f"api/{version}"


def _openapi(views: list[View]) -> Json | None:
    if not views:
        return None
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": dict(_write_paths(views)), "components": {"schemas": {}}}


def _write_paths(views: list[View]) -> Iterable[tuple[str, Json]]:
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for view in views:
        resource, version = view.resource, view.version.name
        root = f"/apis/{resource.group}/{version}" if resource.group else f"/api/{version}"
        place = "/namespaces/{namespace}" if resource.namespaced else ""
        kind = {"group": resource.group, "version": version, "kind": resource.kind}
        operation = {"parameters": [parameter], "responses": {}, "x-kubernetes-group-version-kind": kind}
        yield f"{root}{place}/{resource.plural}/{{name}}", {"patch": operation}
