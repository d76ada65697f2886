"""Lists: pages that show one moment, selectors, resource versions, the shape of items."""

import asyncio

import pytest
from contract.contract_client import Client, Json
from contract.contract_widgets import Widgets, gated_pod


def names(page: Json) -> list[str]:
    return [item["metadata"]["name"] for item in page["items"]]


async def fill(widgets: Widgets, *wanted: str) -> None:
    for name in wanted:
        await widgets.create(name, {})


async def test_a_list_is_ordered_by_name_and_carries_a_revision(widgets: Widgets) -> None:
    await fill(widgets, "c", "a", "b")
    page = (await widgets.client.get(widgets.path)).ok()
    assert (page["kind"], page["apiVersion"]) == ("WidgetList", f"{widgets.group}/v1")
    assert names(page) == ["a", "b", "c"]
    newest = max(int(item["metadata"]["resourceVersion"]) for item in page["items"])
    assert int(page["metadata"]["resourceVersion"]) >= newest


async def test_items_of_custom_lists_name_their_kind_those_of_built_in_lists_do_not(widgets: Widgets) -> None:
    await fill(widgets, "a")
    item = (await widgets.client.get(widgets.path)).ok()["items"][0]
    assert (item["kind"], item["apiVersion"]) == ("Widget", f"{widgets.group}/v1")
    path = f"/api/v1/namespaces/{widgets.namespace}/configmaps"
    (await widgets.client.post(path, {"metadata": {"name": "a"}})).ok()
    page = (await widgets.client.get(path, fieldSelector="metadata.name=a")).ok()
    assert page["kind"] == "ConfigMapList"
    assert "kind" not in page["items"][0]
    assert "apiVersion" not in page["items"][0]


async def test_pages_follow_each_other_to_the_end(widgets: Widgets) -> None:
    await fill(widgets, "a", "b", "c", "d", "e")
    first = (await widgets.client.get(widgets.path, limit=2)).ok()
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    second = (await widgets.client.get(widgets.path, limit=2, **{"continue": first["metadata"]["continue"]})).ok()
    assert names(second) == ["c", "d"]
    third = (await widgets.client.get(widgets.path, limit=2, **{"continue": second["metadata"]["continue"]})).ok()
    assert names(third) == ["e"]
    assert not third["metadata"].get("continue")


async def test_later_pages_show_the_moment_of_the_first(widgets: Widgets) -> None:
    await fill(widgets, "a", "b", "d")
    first = (await widgets.client.get(widgets.path, limit=1)).ok()
    await widgets.create("c", {})
    (await widgets.client.delete(widgets.at("b"))).ok()
    (await widgets.patch("d", {"spec": {"note": "new"}})).ok()
    rest = (await widgets.client.get(widgets.path, **{"continue": first["metadata"]["continue"]})).ok()
    assert names(rest) == ["b", "d"]
    assert "note" not in rest["items"][1]["spec"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_limit_counts_what_the_selector_lets_through(widgets: Widgets) -> None:
    for name, color in (("a", "red"), ("b", "green"), ("c", "red"), ("d", "red")):
        await widgets.create(name, {"color": color}, metadata={"labels": {"color": color}})
    query = {"labelSelector": "color=red", "limit": 2}
    first = (await widgets.client.get(widgets.path, **query)).ok()
    assert names(first) == ["a", "c"]
    assert "remainingItemCount" not in first["metadata"]
    rest = (await widgets.client.get(widgets.path, **query, **{"continue": first["metadata"]["continue"]})).ok()
    assert names(rest) == ["d"]


async def test_a_broken_continue_token_is_refused(widgets: Widgets) -> None:
    answer = await widgets.client.get(widgets.path, **{"continue": "nonsense"})
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_revision_zero_is_answered_whole_whatever_the_limit(widgets: Widgets) -> None:
    await fill(widgets, "a", "b", "c")
    for _ in range(40):
        # It may be a little old, for it comes from a cache.
        found = names((await widgets.client.get(widgets.path, resourceVersion="0", limit=1)).ok())
        if len(found) == 3:
            break
        await asyncio.sleep(0.05)
    assert found == ["a", "b", "c"]


async def test_a_list_is_not_older_than_asked(widgets: Widgets) -> None:
    revision = (await widgets.create("a", {}))["metadata"]["resourceVersion"]
    assert names((await widgets.client.get(widgets.path, resourceVersion=revision)).ok()) == ["a"]


async def test_a_revision_from_the_future_is_refused(widgets: Widgets) -> None:
    revision = int((await widgets.client.get(widgets.path)).ok()["metadata"]["resourceVersion"])
    answer = await widgets.client.get(widgets.path, resourceVersion=revision + 1_000_000)
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert answer.causes == [("ResourceVersionTooLarge", "")]
    assert answer.headers["Retry-After"] == "1"


SELECTORS = {
    "tier=web": ["a"],
    "tier==web": ["a"],
    "tier!=web": ["b", "c", "d"],
    "tier in (web, db)": ["a", "b"],
    "tier notin (web,db)": ["c", "d"],
    "tier": ["a", "b", "c"],
    "!tier": ["d"],
    "tier,zone": ["b", "c"],
    "tier in (web,db),zone=x": ["b"],
    "ex.com/a=b": ["d"],
    "tier=": ["c"],
    "": ["a", "b", "c", "d"],
}


@pytest.mark.parametrize(("selector", "found"), SELECTORS.items())
async def test_label_selectors(widgets: Widgets, selector: str, found: list[str]) -> None:
    labels = {
        "a": {"tier": "web"},
        "b": {"tier": "db", "zone": "x", "rank": "1"},
        "c": {"tier": "", "zone": "y", "rank": "2"},
        "d": {"ex.com/a": "b", "rank": "none"},
    }
    for name, own in labels.items():
        await widgets.create(name, {}, metadata={"labels": own})
    assert names((await widgets.client.get(widgets.path, labelSelector=selector)).ok()) == found


async def test_field_selectors_of_custom_resources(widgets: Widgets) -> None:
    for name, color in (("a", "red"), ("b", "green")):
        await widgets.create(name, {"color": color})
    for selector, found in (
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b"]),
        (f"metadata.namespace={widgets.namespace}", ["a", "b"]),
        ("metadata.namespace=other", []),
        ("spec.color=green", ["b"]),
        ("spec.color=green,metadata.name=a", []),
    ):
        assert names((await widgets.client.get(widgets.path, fieldSelector=selector)).ok()) == found


async def test_a_field_must_be_selectable(widgets: Widgets) -> None:
    answer = await widgets.client.get(widgets.path, fieldSelector="spec.note=x")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "field label not supported: spec.note" in answer.body["message"]


async def test_field_selectors_of_pods(client: Client, namespace: str, service_account: None) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    (await client.post(path, gated_pod("waiting"))).ok()
    bound = gated_pod("bound")
    bound["spec"] = {"containers": bound["spec"]["containers"], "nodeName": "contract-nowhere"}
    (await client.post(path, bound)).ok()
    for selector, found in (
        ("spec.nodeName=contract-nowhere", ["bound"]),
        ("spec.nodeName=", ["waiting"]),
        ("spec.nodeName!=", ["bound"]),
        ("status.phase=Succeeded", []),
        ("status.phase!=Succeeded,metadata.name=waiting", ["waiting"]),
    ):
        assert names((await client.get(path, fieldSelector=selector)).ok()) == found
    await client.delete(f"{path}/bound", {"gracePeriodSeconds": 0})


async def test_events_are_found_by_what_they_are_about(client: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    for name, kind in (("a", "Pod"), ("b", "Job")):
        about = {"kind": kind, "name": "x", "namespace": namespace, "uid": f"uid-{name}"}
        body = {"metadata": {"name": name}, "involvedObject": about, "reason": "Because", "type": "Normal"}
        (await client.post(path, body)).ok()
    selector = "involvedObject.kind=Job,involvedObject.name=x,involvedObject.uid=uid-b,reason=Because,type=Normal"
    assert names((await client.get(path, fieldSelector=selector)).ok()) == ["b"]
