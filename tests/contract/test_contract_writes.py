"""Creating and replacing objects: identity, conflicts, generation, what a write may not touch."""

import re

import pytest
from contract.contract_client import Client, Json
from contract.contract_widgets import Widgets, gated_pod


async def test_a_created_object_is_named_identified_and_dated(widgets: Widgets) -> None:
    metadata = (await widgets.create("one", {}))["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", metadata["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert metadata["resourceVersion"].isdecimal()
    assert (metadata["name"], metadata["namespace"], metadata["generation"]) == ("one", widgets.namespace, 1)


async def test_a_name_is_generated_behind_its_prefix(widgets: Widgets) -> None:
    names = set()
    for _ in range(2):
        body = widgets.body("", {}, metadata={"generateName": "eval-"})
        del body["metadata"]["name"]
        names.add((await widgets.client.post(widgets.path, body)).ok()["metadata"]["name"])
    assert len(names) == 2
    assert all(re.fullmatch(r"eval-[bcdfghjklmnpqrstvwxz2456789]{5}", each) for each in names)


async def test_an_object_needs_a_name_or_a_prefix(widgets: Widgets) -> None:
    answer = await widgets.client.post(widgets.path, widgets.body("", {}))
    assert answer.status == 422
    assert "name or generateName is required" in answer.body["message"]


async def test_what_only_the_server_sets_is_taken_from_no_client(widgets: Widgets) -> None:
    sent = {"uid": "mine", "generation": 77, "creationTimestamp": "2001-01-01T00:00:00Z"}
    metadata = (await widgets.create("one", {}, metadata=sent))["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["generation"] == 1
    assert not metadata["creationTimestamp"].startswith("2001")
    stored = await widgets.get("one")
    stored["metadata"] |= {"generation": 99, "creationTimestamp": "2001-01-01T00:00:00Z"}
    again = (await widgets.client.put(widgets.at("one"), stored)).ok()["metadata"]
    assert (again["generation"], again["creationTimestamp"]) == (1, metadata["creationTimestamp"])


async def test_a_name_is_taken_once(widgets: Widgets) -> None:
    await widgets.create("one", {})
    answer = await widgets.client.post(widgets.path, widgets.body("one", {}))
    assert (answer.status, answer.reason) == (409, "AlreadyExists")
    assert answer.body["details"] == {"name": "one", "group": widgets.group, "kind": "widgets"}


async def test_what_is_not_there_is_not_found(widgets: Widgets) -> None:
    client = widgets.client
    replaced = await client.put(widgets.at("none"), widgets.body("none", {}, metadata={"resourceVersion": "1"}))
    for answer in (await client.get(widgets.at("none")), replaced, await widgets.patch("none", {"spec": {}})):
        assert (answer.status, answer.reason) == (404, "NotFound")
        assert answer.body["details"] == {"name": "none", "group": widgets.group, "kind": "widgets"}


REFUSED: dict[str, tuple[Json, Json, int, set[tuple[str, str]], str]] = {
    # metadata, query; status, causes, words of the message
    "a name that is no DNS name": ({"name": "Bad_Name"}, {}, 422, {("FieldValueInvalid", "metadata.name")}, ""),
    "a label that is none": ({"labels": {"a": "-bad-"}}, {}, 422, {("FieldValueInvalid", "metadata.labels")}, ""),
    "another namespace than that of the URL": ({"namespace": "other"}, {}, 400, set(), ""),
    "a resource version": ({"resourceVersion": "5"}, {}, 500, set(), "resourceVersion should not be set"),
    "an owner without name and uid": (
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}]},
        {},
        422,
        {("FieldValueInvalid", f"metadata.ownerReferences.{part}") for part in ("name", "uid")},
        "",
    ),
    "a dry run in part": ({}, {"dryRun": "Some"}, 422, {("FieldValueNotSupported", "dryRun")}, ""),
}


@pytest.mark.parametrize(("metadata", "query", "status", "causes", "words"), REFUSED.values(), ids=REFUSED)
async def test_an_object_is_not_created_with(
    widgets: Widgets, metadata: Json, query: Json, status: int, causes: set[tuple[str, str]], words: str
) -> None:
    answer = await widgets.client.post(widgets.path, widgets.body("one", {}, metadata=metadata), **query)
    assert (answer.status, set(answer.causes)) == (status, causes)
    assert words in answer.body["message"]


async def test_a_name_is_required(widgets: Widgets) -> None:
    body = widgets.body("x", {})
    body["metadata"] = {}
    answer = await widgets.client.post(widgets.path, body)
    assert answer.status == 422
    assert ("FieldValueRequired", "metadata.name") in answer.causes


async def test_body_and_url_must_name_the_same_object(widgets: Widgets) -> None:
    stored = await widgets.create("one", {})
    stored["metadata"]["name"] = "two"
    answer = await widgets.client.put(widgets.at("one"), stored)
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_body_and_url_must_name_the_same_kind(widgets: Widgets) -> None:
    wrong = {**widgets.body("one", {}), "kind": "Gadget"}
    answer = await widgets.client.post(widgets.path, wrong)
    assert (answer.status, answer.causes) == (422, [("FieldValueInvalid", "kind")])
    missing = await widgets.client.post(widgets.path, {"metadata": {"name": "one"}})
    assert (missing.status, missing.reason) == (400, "BadRequest")
    pod = {"kind": "Nope", "apiVersion": "v1", "metadata": {"name": "x"}}
    built_in = await widgets.client.post(f"/api/v1/namespaces/{widgets.namespace}/configmaps", pod)
    assert (built_in.status, built_in.reason) == (400, "BadRequest")


async def test_a_namespace_must_exist(widgets: Widgets) -> None:
    path = f"/apis/{widgets.group}/v1/namespaces/no-such-namespace/widgets"
    answer = await widgets.client.post(path, widgets.body("one", {}))
    assert (answer.status, answer.reason) == (404, "NotFound")
    assert answer.body["details"] == {"name": "no-such-namespace", "kind": "namespaces"}


async def test_a_stale_replace_is_a_conflict(widgets: Widgets) -> None:
    stale = await widgets.create("one", {"note": "a"})
    (await widgets.client.put(widgets.at("one"), {**stale, "spec": {"note": "b"}})).ok()
    answer = await widgets.client.put(widgets.at("one"), {**stale, "spec": {"note": "c"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.body["details"] == {"name": "one", "group": widgets.group, "kind": "widgets"}
    assert (await widgets.get("one"))["spec"]["note"] == "b"


async def test_a_replace_of_a_recreated_object_is_a_conflict(widgets: Widgets) -> None:
    first = await widgets.create("one", {})
    (await widgets.client.delete(widgets.at("one"))).ok()
    second = await widgets.create("one", {})
    first["metadata"]["resourceVersion"] = second["metadata"]["resourceVersion"]
    answer = await widgets.client.put(widgets.at("one"), first)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_a_custom_object_is_not_replaced_blindly(widgets: Widgets) -> None:
    stored = await widgets.create("one", {})
    del stored["metadata"]["resourceVersion"]
    answer = await widgets.client.put(widgets.at("one"), stored)
    assert (answer.status, answer.causes) == (422, [("FieldValueInvalid", "metadata.resourceVersion")])


async def test_a_config_map_may_be_replaced_blindly_but_not_created_by_put(client: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    (await client.post(path, {"metadata": {"name": "one"}, "data": {"a": "1"}})).ok()
    replaced = (await client.put(f"{path}/one", {"metadata": {"name": "one"}, "data": {"a": "2"}})).ok()
    assert replaced["data"] == {"a": "2"}
    assert (await client.put(f"{path}/two", {"metadata": {"name": "two"}})).status == 404


async def test_generation_counts_changes_of_the_spec_only(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "a"})
    generations = [
        (await widgets.patch("one", patch, subresource)).ok()["metadata"]["generation"]
        for patch, subresource in (
            ({"metadata": {"labels": {"x": "1"}}}, ""),
            ({"status": {"phase": "Running"}}, "status"),
            ({"spec": {"note": "b"}}, ""),
            ({"spec": {"note": "b"}}, ""),
            ({"metadata": {"annotations": {"x": "1"}}, "spec": {"note": "c"}}, ""),
        )
    ]
    assert generations == [1, 1, 2, 2, 3]


async def test_a_write_that_changes_nothing_is_not_stored(widgets: Widgets) -> None:
    stored = await widgets.create("one", {"note": "a"}, metadata={"labels": {"x": "1"}})
    revision = stored["metadata"]["resourceVersion"]
    answers = [
        await widgets.client.put(widgets.at("one"), stored),
        await widgets.patch("one", {"spec": {"note": "a"}}),
        await widgets.patch("one", {"metadata": {"labels": {"x": "1"}}}),
        await widgets.patch("one", {"status": {}}, "status"),
    ]
    revisions = [answer.ok()["metadata"]["resourceVersion"] for answer in answers[:3]]
    assert revisions == [revision] * 3


async def test_status_comes_only_through_its_subresource(widgets: Widgets) -> None:
    created = await widgets.create("one", {"note": "a"}, status={"phase": "Made up"})
    assert "status" not in created
    patched = (await widgets.patch("one", {"status": {"phase": "Made up"}})).ok()
    assert "status" not in patched
    (await widgets.patch("one", {"status": {"phase": "Real"}}, "status")).ok()
    stored = await widgets.get("one")
    stored["status"] = {"phase": "Made up"}
    assert (await widgets.client.put(widgets.at("one"), stored)).ok()["status"] == {"phase": "Real"}


async def test_the_status_subresource_changes_nothing_but_status(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "a"})
    patch = {
        "status": {"phase": "x"},
        "spec": {"note": "b"},
        "metadata": {"labels": {"x": "1"}, "finalizers": ["e.x/y"]},
    }
    patched = (await widgets.patch("one", patch, "status")).ok()
    assert patched["status"] == {"phase": "x"}
    assert patched["spec"]["note"] == "a"
    assert "labels" not in patched["metadata"]
    assert "finalizers" not in patched["metadata"]


async def test_replacing_status_is_guarded_by_the_resource_version(widgets: Widgets) -> None:
    stale = await widgets.create("one", {})
    (await widgets.patch("one", {"spec": {"note": "b"}})).ok()
    answer = await widgets.client.put(widgets.at("one", "status"), {**stale, "status": {"phase": "x"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    fresh = await widgets.get("one")
    (await widgets.client.put(widgets.at("one", "status"), {**fresh, "status": {"phase": "x"}})).ok()


async def test_a_dry_run_says_what_would_be_and_does_nothing(widgets: Widgets) -> None:
    made = (await widgets.client.post(widgets.path, widgets.body("one", {}), dryRun="All")).ok()
    assert made["spec"]["replicas"] == 1
    assert "resourceVersion" not in made["metadata"]
    assert (await widgets.client.get(widgets.at("one"))).status == 404
    stored = await widgets.create("one", {})
    patched = (await widgets.patch("one", {"spec": {"note": "x"}}, dryRun="All")).ok()
    assert patched["spec"]["note"] == "x"
    (await widgets.client.delete(widgets.at("one"), dryRun="All")).ok()
    assert await widgets.get("one") == stored


async def test_a_lease_is_taken_by_one_of_two(client: Client, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    free = (await client.post(path, {"metadata": {"name": "lead"}, "spec": {"holderIdentity": ""}})).ok()
    bids = [{**free, "spec": {"holderIdentity": who, "leaseDurationSeconds": 15}} for who in ("a", "b")]
    first, second = [await client.put(f"{path}/lead", bid) for bid in bids]
    assert first.ok()["spec"]["holderIdentity"] == "a"
    assert (second.status, second.reason) == (409, "Conflict")
    unguarded = await client.put(f"{path}/lead", {"metadata": {"name": "lead"}, "spec": {"holderIdentity": "c"}})
    assert (unguarded.status, unguarded.causes) == (422, [("FieldValueInvalid", "metadata.resourceVersion")])
    renewed = first.body | {"spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.123456Z"}}
    assert (await client.put(f"{path}/lead", renewed)).ok()["spec"]["renewTime"] == "2026-01-01T00:00:00.123456Z"


async def test_the_status_of_a_pod_is_isolated_too(client: Client, namespace: str, service_account: None) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = (await client.post(path, {**gated_pod("one"), "status": {"phase": "Running"}})).ok()
    assert made["status"]["phase"] == "Pending"
    (await client.patch(f"{path}/one", {"status": {"phase": "Running"}})).ok()
    assert (await client.get(f"{path}/one")).ok()["status"] == made["status"]
    patch = {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}}
    moved = (await client.patch(f"{path}/one/status", patch)).ok()
    assert moved["status"]["phase"] == "Running"
    assert moved["spec"] == made["spec"]
