"""Patches: merge, JSON and strategic, their media types, and the optimistic lock that a patch may carry."""

import pytest
from contract.contract_client import STRATEGIC
from contract.contract_widgets import Widgets


async def test_a_merge_patch_merges_maps_replaces_lists_and_removes_nulls(widgets: Widgets) -> None:
    spec = {"note": "a", "limits": {"x": 1, "y": 2}, "parts": [{"name": "p"}, {"name": "q"}]}
    await widgets.create("one", spec)
    patch = {"spec": {"note": None, "limits": {"x": None, "z": 3}, "parts": [{"name": "r"}]}}
    patched = (await widgets.patch("one", patch)).ok()["spec"]
    assert "note" not in patched
    assert patched["limits"] == {"y": 2, "z": 3}
    assert patched["parts"] == [{"name": "r", "count": 7}]


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_merge_patch_with_a_stale_resource_version_is_a_conflict(widgets: Widgets, subresource: str) -> None:
    stale = (await widgets.create("one", {}))["metadata"]["resourceVersion"]
    fresh = (await widgets.patch("one", {"spec": {"note": "a"}})).ok()["metadata"]["resourceVersion"]
    patch = {"spec": {"note": "b"}, "status": {"phase": "b"}}
    answer = await widgets.patch("one", {**patch, "metadata": {"resourceVersion": stale}}, subresource)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.body["details"] == {"name": "one", "group": widgets.group, "kind": "widgets"}
    (await widgets.patch("one", {**patch, "metadata": {"resourceVersion": fresh}}, subresource)).ok()


async def test_a_patch_with_another_uid_is_refused(widgets: Widgets) -> None:
    await widgets.create("one", {})
    answer = await widgets.patch("one", {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert ("FieldValueInvalid", "metadata.uid") in answer.causes


async def test_a_custom_object_takes_no_strategic_merge_patch(widgets: Widgets) -> None:
    await widgets.create("one", {})
    for path in (widgets.at("one"), widgets.at("one", "status"), widgets.at("one", "scale")):
        answer = await widgets.client.patch(path, {"spec": {"replicas": 1}}, STRATEGIC)
        assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


async def test_a_patch_must_say_which_kind_it_is(widgets: Widgets) -> None:
    await widgets.create("one", {})
    answer = await widgets.client.patch(widgets.at("one"), {"spec": {}}, "application/json")
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")
