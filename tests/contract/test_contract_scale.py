"""The scale subresource: what it shows, the one number it changes, and what it refuses."""

from contract.contract_client import Client
from contract.contract_widgets import Widgets, definition, install


async def test_scale_shows_wanted_and_present_replicas_and_the_selector(widgets: Widgets) -> None:
    created = await widgets.create("one", {"replicas": 2})
    scale = (await widgets.client.get(widgets.at("one", "scale"))).ok()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    same = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    assert scale["metadata"] == {key: created["metadata"][key] for key in same}
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 0})
    (await widgets.patch("one", {"status": {"replicas": 1, "selector": "app=one"}}, "status")).ok()
    scale = (await widgets.client.get(widgets.at("one", "scale"))).ok()
    assert scale["status"] == {"replicas": 1, "selector": "app=one"}


async def test_scaling_changes_the_number_and_the_generation(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "x"})
    scaled = (await widgets.patch("one", {"spec": {"replicas": 0}}, "scale")).ok()
    assert scaled["kind"] == "Scale"
    body = await widgets.get("one")
    assert (body["spec"]["replicas"], body["spec"]["note"], body["metadata"]["generation"]) == (0, "x", 2)
    assert scaled["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]


async def test_scaling_changes_nothing_else(widgets: Widgets) -> None:
    before = await widgets.create("one", {"note": "x", "replicas": 1})
    patch = {"metadata": {"labels": {"a": "b"}}, "status": {"replicas": 3}, "spec": {"replicas": 1}}
    (await widgets.patch("one", patch, "scale")).ok()
    after = await widgets.get("one")
    assert (after["spec"], after.get("status")) == (before["spec"], None)
    assert "labels" not in after["metadata"]
    assert after["metadata"]["generation"] == 1


async def test_replacing_a_stale_scale_is_a_conflict(widgets: Widgets) -> None:
    await widgets.create("one", {})
    stale = (await widgets.client.get(widgets.at("one", "scale"))).ok()
    stale["spec"]["replicas"] = 2
    (await widgets.client.put(widgets.at("one", "scale"), stale)).ok()
    answer = await widgets.client.put(widgets.at("one", "scale"), {**stale, "spec": {"replicas": 3}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    del stale["metadata"]["resourceVersion"]
    (await widgets.client.put(widgets.at("one", "scale"), {**stale, "spec": {"replicas": 3}})).ok()
    assert (await widgets.get("one"))["spec"]["replicas"] == 3


async def test_replicas_are_a_count(widgets: Widgets) -> None:
    await widgets.create("one", {})
    answer = await widgets.patch("one", {"spec": {"replicas": -1}}, "scale")
    assert (answer.status, answer.causes) == (
        422,
        [("FieldValueInvalid", ".spec.replicas"), ("FieldValueInvalid", "spec.replicas")],
    )
    answer = await widgets.patch("one", {"spec": {"replicas": "many"}}, "scale")
    assert (answer.status, answer.causes) == (422, [("FieldValueInvalid", "patch")])


async def test_a_replicas_field_that_is_absent_is_an_error_of_the_server(
    client: Client, namespace: str, suffix: str, installed: set[str]
) -> None:
    group = f"contract-noreplicas-{suffix}.example.com"
    crd = definition(
        group, schema={"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    )
    crd["spec"]["versions"][0].pop("selectableFields")
    await install(client, crd, installed)
    widgets = Widgets(client, group, namespace)
    await widgets.create("one", {})
    answer = await client.get(widgets.at("one", "scale"))
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert 'the spec replicas field ".spec.replicas" does not exist' in answer.body["message"]
    (await widgets.patch("one", {"spec": {"replicas": 2}}, "scale")).ok()
    assert (await client.get(widgets.at("one", "scale"))).ok()["spec"] == {"replicas": 2}


async def test_a_deployment_scales_and_shows_its_selector(client: Client, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    template = {"metadata": {"labels": {"a": "b", "t": "u"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    expressions = [{"key": "t", "operator": "In", "values": ["v", "u"]}]
    selector = {"matchLabels": {"a": "b"}, "matchExpressions": expressions}
    body = {"metadata": {"name": "web"}, "spec": {"replicas": 0, "selector": selector, "template": template}}
    (await client.post(path, body)).ok()
    scale = (await client.get(f"{path}/web/scale")).ok()
    assert scale["status"] == {"replicas": 0, "selector": "a=b,t in (u,v)"}
    assert scale["spec"] == {}
