"""Server-side apply: an object is created, or a configuration merged into it. Who owns which field is not looked at."""

from contract.contract_client import APPLY
from contract.contract_widgets import Widgets


async def test_applying_creates_what_is_not_there(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {"note": "x", "parts": [{"name": "p", "hue": "q"}], "tags": ["t"]})
    assert answer.status == 201
    assert answer.body["spec"]["replicas"] == 1


async def test_applying_the_same_again_changes_nothing(widgets: Widgets) -> None:
    spec = {"note": "x", "parts": [{"name": "p"}], "free": {"a": {"b": 1}}, "pinned": {"a": "b"}}
    first = (await widgets.apply("a", "one", spec, metadata={"labels": {"l": "1"}})).ok()
    again = await widgets.apply("a", "one", spec, metadata={"labels": {"l": "1"}})
    assert (again.status, again.body) == (200, first)


async def test_an_applier_must_have_a_name(widgets: Widgets) -> None:
    answer = await widgets.client.patch(widgets.at("one"), widgets.body("one", {}), APPLY)
    assert (answer.status, answer.causes) == (422, [("FieldValueRequired", "fieldManager")])


async def test_what_others_have_applied_stays(widgets: Widgets) -> None:
    theirs = {"note": "x", "tags": ["t"], "parts": [{"name": "p", "hue": "h"}], "owner": {"first": "f"}}
    (await widgets.apply("a", "one", theirs, metadata={"labels": {"l": "1"}})).ok()
    ours = {"note": "y", "tags": ["u"], "parts": [{"name": "p", "count": 3}, {"name": "q"}], "owner": {"last": "l"}}
    body = (await widgets.apply("b", "one", ours, metadata={"labels": {"m": "2"}}, force=True)).ok()
    assert (body["spec"]["note"], sorted(body["spec"]["tags"])) == ("y", ["t", "u"])
    parts = {part["name"]: part for part in body["spec"]["parts"]}
    assert (parts["p"]["hue"], parts["p"]["count"], set(parts)) == ("h", 3, {"p", "q"})
    assert body["spec"]["owner"] == {"first": "f", "last": "l"}
    assert body["metadata"]["labels"] == {"l": "1", "m": "2"}


async def test_status_is_applied_through_its_subresource_only(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "x"})
    status = {"phase": "p", "conditions": [{"type": "Ready", "status": "True"}]}
    body = (await widgets.apply("s", "one", {"note": "y"}, subresource="status", status=status)).ok()
    assert (body["spec"]["note"], body["status"]) == ("x", status)
    body = (await widgets.apply("s", "one", status={"phase": "q"})).ok()
    assert body["status"]["phase"] == "p"


async def test_a_status_cannot_be_applied_to_nothing(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "none", subresource="status", status={"phase": "p"})
    assert (answer.status, answer.reason) == (404, "NotFound")


async def test_unknown_fields_cannot_be_applied(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {"nope": 1})
    assert answer.status == 500
    assert ".spec.nope: field not declared in schema" in answer.body["message"]


async def test_applying_on_a_stale_resource_version_is_a_conflict(widgets: Widgets) -> None:
    stale = (await widgets.apply("a", "one", {"note": "x"})).ok()["metadata"]["resourceVersion"]
    (await widgets.apply("a", "one", {"note": "y"})).ok()
    answer = await widgets.apply("a", "one", {"note": "z"}, metadata={"resourceVersion": stale})
    assert (answer.status, answer.reason) == (409, "Conflict")
