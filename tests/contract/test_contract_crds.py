"""CustomResourceDefinitions: serving what they define, several versions, changes, refusals, and their end."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.contract_client import MERGE, Client, Json
from contract.contract_widgets import DEFINITIONS, INTEGER, STRING, Widgets, definition, fields, until_served


@pytest.fixture
async def own(client: Client) -> AsyncIterator["Own"]:
    """Definitions that only this test uses."""
    own = Own(client)
    yield own
    for name in own.names:
        await client.delete(f"{DEFINITIONS}/{name}")


class Own:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.group = f"contract-{secrets.token_hex(4)}.example.com"
        self.names: list[str] = []

    def definition(self, **version: Any) -> Json:
        return definition(self.group, **version)

    async def install(self, crd: Json) -> Json:
        made: Json = (await self.client.post(DEFINITIONS, crd)).ok()
        self.names.append(made["metadata"]["name"])
        await until_served(self.client, crd)
        return made


def version(name: str, *, storage: bool = False, served: bool = True, **spec: Json) -> Json:
    schema = {"openAPIV3Schema": fields(spec=fields(**spec))}
    return {"name": name, "served": served, "storage": storage, "schema": schema}


async def test_a_definition_says_when_it_is_served(own: Own) -> None:
    await own.install(own.definition())
    found = (await own.client.get(f"{DEFINITIONS}/{own.names[0]}")).ok()
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert found["status"]["storedVersions"] == ["v1"]
    names = {
        "plural": "widgets",
        "singular": "widget",
        "kind": "Widget",
        "listKind": "WidgetList",
        "shortNames": ["wd"],
    }
    assert found["status"]["acceptedNames"] == names
    assert found["spec"]["conversion"] == {"strategy": "None"}


async def test_a_cluster_wide_resource_has_no_namespaces(own: Own) -> None:
    crd = own.definition()
    crd["spec"]["scope"] = "Cluster"
    await own.install(crd)
    path = f"/apis/{own.group}/v1/widgets"
    body = {"apiVersion": f"{own.group}/v1", "kind": "Widget", "metadata": {"name": "one"}}
    made = (await own.client.post(path, body)).ok()
    assert "namespace" not in made["metadata"]
    assert (await own.client.get(f"{path}/one")).ok() == made
    assert (await own.client.get(f"/apis/{own.group}/v1/namespaces/default/widgets")).status == 404
    stray = (await own.client.post(path, {**body, "metadata": {"name": "two", "namespace": "default"}})).ok()
    assert "namespace" not in stray["metadata"]


async def test_each_served_version_shows_the_same_object(own: Own, namespace: str) -> None:
    crd = own.definition()
    crd["spec"]["versions"] = [
        version("v1beta1", note=STRING, old=STRING),
        version("v1", storage=True, note=STRING, new={**STRING, "default": "d"}),
        version("v1alpha1", served=False, note=STRING),
    ]
    await own.install(crd)
    paths = {v: f"/apis/{own.group}/{v}/namespaces/{namespace}/widgets" for v in ("v1", "v1beta1", "v1alpha1")}
    body = {"apiVersion": f"{own.group}/v1beta1", "kind": "Widget", "metadata": {"name": "one"}}
    made = (await own.client.post(paths["v1beta1"], {**body, "spec": {"note": "x", "old": "gone"}})).ok()
    stored = (await own.client.get(f"{paths['v1']}/one")).ok()
    assert (stored["apiVersion"], stored["spec"]) == (f"{own.group}/v1", {"note": "x", "new": "d"})
    assert stored["metadata"]["uid"] == made["metadata"]["uid"]
    (await own.client.patch(f"{paths['v1']}/one", {"spec": {"note": "y"}})).ok()
    item = (await own.client.get(paths["v1beta1"])).ok()["items"][0]
    assert (item["apiVersion"], item["spec"]) == (f"{own.group}/v1beta1", {"note": "y"})
    assert (await own.client.get(paths["v1alpha1"])).status == 404


async def test_a_changed_schema_holds_for_new_writes(own: Own, namespace: str) -> None:
    crd = own.definition(schema={"openAPIV3Schema": fields(spec=fields(note=STRING, count=INTEGER))})
    crd["spec"]["versions"][0].pop("selectableFields")
    await own.install(crd)
    widgets = Widgets(own.client, own.group, namespace)
    await widgets.create("one", {"note": "long enough", "count": 1})
    tighter = {**STRING, "maxLength": 3}
    path = f"{DEFINITIONS}/{own.names[0]}"
    versions = (await own.client.get(path)).ok()["spec"]["versions"]
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["note"] = tighter
    (await own.client.patch(path, {"spec": {"versions": versions}}, MERGE)).ok()
    for _ in range(100):
        answer = await widgets.client.post(widgets.path, widgets.body("two", {"note": "too long"}), dryRun="All")
        if answer.status == 422:
            break
        await asyncio.sleep(0.05)
    assert ("FieldValueTooLong", "spec.note") in answer.causes
    # What was wrong before may stay as long as it is not touched.
    (await widgets.patch("one", {"spec": {"count": 2}})).ok()
    refused = await widgets.patch("one", {"spec": {"note": "also too long"}})
    assert (refused.status, refused.reason) == (422, "Invalid")


async def test_a_definition_takes_its_objects_with_it(own: Own, namespace: str) -> None:
    await own.install(own.definition())
    widgets = Widgets(own.client, own.group, namespace)
    await widgets.create("one", {})
    (await own.client.delete(f"{DEFINITIONS}/{own.names[0]}")).ok()
    for _ in range(200):
        if (await own.client.get(widgets.path)).status == 404:
            break
        await asyncio.sleep(0.05)
    assert (await own.client.get(f"{DEFINITIONS}/{own.names[0]}")).status == 404
    assert (await own.client.get(widgets.path)).status == 404
    await own.install(own.definition())
    assert (await own.client.get(widgets.path)).ok()["items"] == []


async def test_rules_that_compare_quantities_do_not_keep_a_definition_out(own: Own) -> None:
    rule = {"rule": "quantity(self).isGreaterThan(quantity('1'))"}
    limited = {**STRING, "maxLength": 9, "x-kubernetes-validations": [rule]}
    crd = own.definition(schema={"openAPIV3Schema": fields(spec=fields(amount=limited))})
    crd["spec"]["versions"][0].pop("selectableFields")
    await own.install(crd)
