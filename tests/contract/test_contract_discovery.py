"""What clients ask before anything else, and the forms in which they get it: discovery, errors, tables."""

import asyncio
import json
import re

import pytest
from contract.contract_client import TABLE, Client, Json
from contract.contract_widgets import Widgets, gated_pod

BUILT_IN = {
    "/api/v1": {
        "namespaces": (False, "Namespace", ["ns"]),
        "pods": (True, "Pod", ["po"]),
        "pods/status": (True, "Pod", None),
        "nodes": (False, "Node", ["no"]),
        "events": (True, "Event", ["ev"]),
        "configmaps": (True, "ConfigMap", ["cm"]),
        "secrets": (True, "Secret", None),
        "services": (True, "Service", ["svc"]),
        "serviceaccounts": (True, "ServiceAccount", ["sa"]),
        "podtemplates": (True, "PodTemplate", None),
    },
    "/apis/apps/v1": {
        "deployments": (True, "Deployment", ["deploy"]),
        "deployments/scale": (True, "Scale", None),
        "statefulsets": (True, "StatefulSet", ["sts"]),
        "replicasets": (True, "ReplicaSet", ["rs"]),
    },
    "/apis/batch/v1": {"jobs": (True, "Job", None), "jobs/status": (True, "Job", None)},
    "/apis/coordination.k8s.io/v1": {"leases": (True, "Lease", None)},
    "/apis/scheduling.k8s.io/v1": {"priorityclasses": (False, "PriorityClass", ["pc"])},
    "/apis/apiextensions.k8s.io/v1": {
        "customresourcedefinitions": (False, "CustomResourceDefinition", ["crd", "crds"])
    },
}


@pytest.mark.parametrize(("path", "expected"), BUILT_IN.items(), ids=BUILT_IN)
async def test_built_in_resources_are_discovered(client: Client, path: str, expected: Json) -> None:
    found = {r["name"]: r for r in (await client.get(path)).ok()["resources"]}
    for name, (namespaced, kind, nicknames) in expected.items():
        resource = found[name]
        assert (resource["namespaced"], resource["kind"]) == (namespaced, kind)
        assert resource.get("shortNames") == nicknames
        assert {"get", "patch", "update"} <= set(resource["verbs"])


async def test_custom_resources_are_discovered(widgets: Widgets) -> None:
    group = (await widgets.client.get(f"/apis/{widgets.group}")).ok()
    version = {"groupVersion": f"{widgets.group}/v1", "version": "v1"}
    assert (group["versions"], group["preferredVersion"]) == ([version], version)
    groups = {g["name"] for g in (await widgets.client.get("/apis")).ok()["groups"]}
    assert widgets.group in groups
    resources = (await widgets.client.get(f"/apis/{widgets.group}/v1")).ok()["resources"]
    by_name = {r["name"]: r for r in resources}
    assert set(by_name) == {"widgets", "widgets/status", "widgets/scale"}
    widget = by_name["widgets"]
    assert (widget["kind"], widget["singularName"], widget["shortNames"]) == ("Widget", "widget", ["wd"])
    assert set(widget["verbs"]) >= {"create", "delete", "get", "list", "patch", "update", "watch"}
    scale = by_name["widgets/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")


async def test_the_server_says_that_it_is_there(client: Client) -> None:
    version = (await client.get("/version")).ok()
    assert version["major"] == "1"
    assert re.match(r"v1\.\d+\.\d+", version["gitVersion"])
    assert "v1" in (await client.get("/api")).ok()["versions"]
    for path in ("/livez", "/readyz", "/healthz"):
        assert (await client.get(path)).body == "ok"


async def test_fields_are_known_to_be_validated_by_the_server(widgets: Widgets) -> None:
    place = f"apis/{widgets.group}/v1"
    path = f"/{place}/namespaces/{{namespace}}/widgets/{{name}}"
    for _ in range(100):
        # A real server takes a moment to describe a new resource.
        document = (await widgets.client.get(f"/openapi/v3/{place}")).body
        if isinstance(document, dict) and path in document.get("paths", {}):
            break
        await asyncio.sleep(0.1)
    answer = await widgets.client.get("/openapi/v3")
    # Real servers call this one plain text.
    index = (json.loads(answer.body) if isinstance(answer.body, str) else answer.body)["paths"]
    assert index[place]["serverRelativeURL"].startswith(f"/openapi/v3/{place}")
    operation = document["paths"][path]["patch"]
    kind = {"group": widgets.group, "version": "v1", "kind": "Widget"}
    assert operation["x-kubernetes-group-version-kind"] == kind
    assert "fieldValidation" in {parameter["name"] for parameter in operation["parameters"]}


async def test_what_is_not_served_is_not_found(widgets: Widgets) -> None:
    for path in ("/apis/no-such.example.com/v1/things", f"/apis/{widgets.group}/v2/widgets"):
        assert (await widgets.client.get(path)).status == 404
    answer = await widgets.client.get(f"/api/v1/namespaces/{widgets.namespace}/pods/x/scale")
    assert (answer.status, answer.reason) == (404, "NotFound")


async def test_what_a_resource_cannot_do_is_not_allowed(client: Client, namespace: str) -> None:
    for method, path in (
        ("POST", "/api/v1/pods"),
        ("PUT", f"/api/v1/namespaces/{namespace}/pods"),
        ("DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments/x/scale"),
    ):
        answer = await client.call(method, path, gated_pod("x"))
        assert (answer.status, answer.reason) == (405, "MethodNotAllowed")


async def test_a_body_must_be_of_a_known_type(client: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    answer = await client.call("POST", path, "x", content_type="text/plain")
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


async def test_an_answer_of_another_type_is_not_acceptable(client: Client) -> None:
    answer = await client.call("GET", "/api/v1/namespaces", accept="text/html")
    assert answer.status == 406


async def test_a_body_may_be_yaml(client: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    text = "metadata:\n  name: one\ndata:\n  a: '1'\n"
    made = (await client.call("POST", path, text, content_type="application/yaml")).ok()
    assert made["data"] == {"a": "1"}


async def test_a_table_has_the_columns_of_the_definition(widgets: Widgets) -> None:
    await widgets.create("one", {"color": "red", "replicas": 2})
    await widgets.create("two", {})
    status = {"conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]}
    (await widgets.patch("one", {"status": status}, "status")).ok()
    table = (await widgets.client.get(widgets.path, accept=TABLE)).ok()
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [(c["name"], c["type"], c["priority"]) for c in table["columnDefinitions"]]
    assert columns == [
        ("Name", "string", 0),
        ("Color", "string", 0),
        ("Replicas", "integer", 0),
        ("Ready", "string", 0),
        ("Age", "date", 0),
    ]
    one, two = (row["cells"] for row in table["rows"])
    assert one[:4] == ["one", "red", 2, "True"]
    assert two[:4] == ["two", None, 1, None]
    assert re.fullmatch(r"\d+s", one[4])
    carried = table["rows"][0]["object"]
    assert (carried["kind"], carried["metadata"]["name"]) == ("PartialObjectMetadata", "one")
    assert "spec" not in carried
