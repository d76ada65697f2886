"""Deleting: finalizers, preconditions, owners and dependents, grace for pods, collections, namespaces."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest
from contract.contract_client import Client, Json
from contract.contract_widgets import Widgets, gated_pod

SECONDS_FOR_CONTROLLERS = 60
"""A real namespace controller has the namespaces of all other tests to clear away as well."""
Pause = Callable[[], Awaitable[None]]


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for controllers, which a real cluster runs beside its API server."""
    for _ in range(SECONDS_FOR_CONTROLLERS * 20):
        if await holds():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{what}: not within {SECONDS_FOR_CONTROLLERS} s")


def owner(body: Json, **more: bool) -> Json:
    """An owner reference to an object."""
    reference = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
    return {**reference, "name": body["metadata"]["name"], "uid": body["metadata"]["uid"], **more}


async def is_gone(widgets: Widgets, name: str) -> bool:
    return (await widgets.client.get(widgets.at(name))).status == 404


async def test_a_delete_answers_with_what_is_gone(widgets: Widgets) -> None:
    created = await widgets.create("one", {})
    answer = (await widgets.client.delete(widgets.at("one"))).ok()
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    details = {"name": "one", "group": widgets.group, "kind": "widgets", "uid": created["metadata"]["uid"]}
    assert answer["details"] == details
    assert await is_gone(widgets, "one")
    assert (await widgets.client.delete(widgets.at("one"))).status == 404


async def test_a_finalizer_holds_a_deleted_object(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "a"}, metadata={"finalizers": ["ex.com/f"]})
    held = (await widgets.client.delete(widgets.at("one"))).ok()
    assert held["kind"] == "Widget"
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert held["metadata"]["generation"] == 2
    again = (await widgets.client.delete(widgets.at("one"))).ok()
    assert again["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]
    (await widgets.patch("one", {"spec": {"note": "b"}})).ok()
    let_go = (await widgets.patch("one", {"metadata": {"finalizers": None}})).ok()
    assert let_go["spec"]["note"] == "b"
    assert await is_gone(widgets, "one")


async def test_watchers_see_the_mark_and_then_the_end(widgets: Widgets) -> None:
    created = await widgets.create("one", {}, metadata={"finalizers": ["ex.com/f"]})
    revision = created["metadata"]["resourceVersion"]
    async with widgets.client.watch(widgets.path, resourceVersion=revision) as watch:
        (await widgets.client.delete(widgets.at("one"))).ok()
        (await widgets.patch("one", {"metadata": {"finalizers": []}})).ok()
        (marked, held), (ended, gone) = await watch.next(), await watch.next()
    assert (marked, ended) == ("MODIFIED", "DELETED")
    assert "deletionTimestamp" in held["metadata"]
    assert int(gone["metadata"]["resourceVersion"]) > int(held["metadata"]["resourceVersion"])


async def test_no_finalizer_is_added_to_what_is_being_deleted(widgets: Widgets) -> None:
    await widgets.create("one", {}, metadata={"finalizers": ["ex.com/f"]})
    (await widgets.client.delete(widgets.at("one"))).ok()
    answer = await widgets.patch("one", {"metadata": {"finalizers": ["ex.com/f", "ex.com/g"]}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert set(answer.causes) == {("FieldValueForbidden", "metadata.finalizers")}
    (await widgets.patch("one", {"metadata": {"finalizers": None}})).ok()


async def test_a_write_does_not_mark_an_object_deleted(widgets: Widgets) -> None:
    await widgets.create("one", {})
    answer = await widgets.patch("one", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert set(answer.causes) == {("FieldValueInvalid", "metadata.deletionTimestamp")}
    (await widgets.client.delete(widgets.at("one"))).ok()


async def test_a_delete_can_be_meant_for_one_uid_and_one_revision(widgets: Widgets) -> None:
    created = await widgets.create("one", {})
    uid, revision = created["metadata"]["uid"], created["metadata"]["resourceVersion"]
    (await widgets.patch("one", {"spec": {"note": "x"}})).ok()
    for preconditions in ({"uid": "00000000-0000-0000-0000-000000000000"}, {"uid": uid, "resourceVersion": revision}):
        answer = await widgets.client.delete(widgets.at("one"), {"preconditions": preconditions})
        assert (answer.status, answer.reason) == (409, "Conflict")
    (await widgets.client.delete(widgets.at("one"), {"preconditions": {"uid": uid}})).ok()


async def test_dependents_follow_their_owner(widgets: Widgets) -> None:
    parent = await widgets.create("parent", {})
    child = await widgets.create("child", {}, metadata={"ownerReferences": [owner(parent)]})
    await widgets.create("grandchild", {}, metadata={"ownerReferences": [owner(child)]})
    path = f"/api/v1/namespaces/{widgets.namespace}/configmaps"
    (await widgets.client.post(path, {"metadata": {"name": "other", "ownerReferences": [owner(parent)]}})).ok()
    (await widgets.client.delete(widgets.at("parent"), {"propagationPolicy": "Background"})).ok()
    await eventually(lambda: is_gone(widgets, "child"), "the child is gone")
    await eventually(lambda: is_gone(widgets, "grandchild"), "the grandchild is gone")

    async def other_is_gone() -> bool:
        return (await widgets.client.get(f"{path}/other")).status == 404

    await eventually(other_is_gone, "the config map is gone")


async def test_an_owner_keeps_its_own_finalizers_to_the_end(widgets: Widgets) -> None:
    parent = await widgets.create("parent", {}, metadata={"finalizers": ["ex.com/f"]})
    await widgets.create("child", {}, metadata={"ownerReferences": [owner(parent)]})
    (await widgets.client.delete(widgets.at("parent"), {"propagationPolicy": "Background"})).ok()
    assert (await widgets.get("parent"))["metadata"]["finalizers"] == ["ex.com/f"]
    (await widgets.patch("parent", {"metadata": {"finalizers": None}})).ok()
    await eventually(lambda: is_gone(widgets, "child"), "the child is gone")


async def test_a_dependent_stays_while_one_of_its_owners_does(widgets: Widgets) -> None:
    first, second = await widgets.create("first", {}), await widgets.create("second", {})
    await widgets.create("child", {}, metadata={"ownerReferences": [owner(first), owner(second)]})
    (await widgets.client.delete(widgets.at("first"))).ok()

    async def has_one_owner() -> bool:
        references = (await widgets.get("child"))["metadata"]["ownerReferences"]
        return [reference["name"] for reference in references] == ["second"]

    await eventually(has_one_owner, "the reference to the first owner is gone")


async def test_a_pod_on_a_node_waits_for_its_kubelet(client: Client, namespace: str, service_account: None) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    pod = gated_pod("one")
    pod["spec"] = {"containers": pod["spec"]["containers"], "nodeName": "contract-nowhere"}
    (await client.post(path, pod)).ok()
    marked = (await client.delete(f"{path}/one")).ok()
    assert marked["kind"] == "Pod"
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert marked["metadata"]["deletionTimestamp"] > marked["metadata"]["creationTimestamp"]
    hurried = (await client.delete(f"{path}/one", {"gracePeriodSeconds": 5})).ok()
    assert hurried["metadata"]["deletionGracePeriodSeconds"] == 5
    assert hurried["metadata"]["deletionTimestamp"] < marked["metadata"]["deletionTimestamp"]
    unhurried = (await client.delete(f"{path}/one", {"gracePeriodSeconds": 60})).ok()
    assert unhurried["metadata"]["deletionGracePeriodSeconds"] == 5
    (await client.delete(f"{path}/one", {"gracePeriodSeconds": 0})).ok()
    assert (await client.get(f"{path}/one")).status == 404


async def test_a_pod_on_no_node_goes_at_once(client: Client, namespace: str, service_account: None) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    (await client.post(path, gated_pod("one"))).ok()
    (await client.delete(f"{path}/one")).ok()
    assert (await client.get(f"{path}/one")).status == 404


async def test_a_namespace_takes_its_contents_with_it(client: Client) -> None:
    name = f"contract-{secrets.token_hex(4)}"
    made = (await client.post("/api/v1/namespaces", {"metadata": {"name": name}})).ok()
    assert made["status"]["phase"] == "Active"
    assert made["spec"]["finalizers"] == ["kubernetes"]
    assert made["metadata"]["labels"]["kubernetes.io/metadata.name"] == name
    path = f"/api/v1/namespaces/{name}/configmaps"
    (await client.post(path, {"metadata": {"name": "held", "finalizers": ["ex.com/f"]}})).ok()
    marked = (await client.delete(f"/api/v1/namespaces/{name}")).ok()
    assert marked["kind"] == "Namespace"
    assert marked["metadata"]["deletionTimestamp"]
    assert marked["status"]["phase"] == "Terminating"
    refused = await client.post(path, {"metadata": {"name": "late"}})
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert ("NamespaceTerminating", "metadata.namespace") in refused.causes

    async def content_is_marked() -> bool:
        return "deletionTimestamp" in (await client.get(f"{path}/held")).ok()["metadata"]

    async def namespace_is_gone() -> bool:
        return (await client.get(f"/api/v1/namespaces/{name}")).status == 404

    await eventually(content_is_marked, "the contents are being deleted")
    assert not await namespace_is_gone()
    (await client.patch(f"{path}/held", {"metadata": {"finalizers": None}})).ok()
    await eventually(namespace_is_gone, "the namespace is gone")
