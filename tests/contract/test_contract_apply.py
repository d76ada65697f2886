"""Server-side apply: who owns which field, conflicts, sharing, and what goes when it is no longer applied."""

from typing import Any

from contract_client import APPLY, Client, Json
from contract_widgets import Widgets


def owned(body: Json, manager: str, *, operation: str = "Apply", subresource: str = "") -> Any:
    """The `fieldsV1` of a manager; None where it owns nothing."""
    for entry in body["metadata"].get("managedFields", []):
        if (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, operation, subresource):
            return entry["fieldsV1"]
    return None


async def test_applying_creates_what_is_not_there(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {"note": "x", "parts": [{"name": "p", "hue": "q"}], "tags": ["t"]})
    assert answer.status == 201
    assert answer.body["spec"]["replicas"] == 1
    part: Json = {'k:{"name":"p"}': {".": {}, "f:name": {}, "f:hue": {}}}
    assert owned(answer.body, "a") == {"f:spec": {"f:note": {}, "f:parts": part, "f:tags": {'v:"t"': {}}}}


async def test_applying_the_same_again_changes_nothing(widgets: Widgets) -> None:
    spec = {"note": "x", "parts": [{"name": "p"}], "free": {"a": {"b": 1}}, "pinned": {"a": "b"}}
    first = (await widgets.apply("a", "one", spec, metadata={"labels": {"l": "1"}})).ok()
    again = await widgets.apply("a", "one", spec, metadata={"labels": {"l": "1"}})
    assert (again.status, again.body) == (200, first)


async def test_an_applier_must_have_a_name(widgets: Widgets) -> None:
    answer = await widgets.client.patch(widgets.at("one"), widgets.body("one", {}), APPLY)
    assert (answer.status, answer.causes) == (422, [("FieldValueRequired", "fieldManager")])


async def test_another_value_for_an_owned_field_is_a_conflict(widgets: Widgets) -> None:
    spec = {"note": "x", "pinned": {"a": "b"}, "parts": [{"name": "p", "hue": "q"}]}
    (await widgets.apply("a", "one", spec)).ok()
    other = {"note": "y", "pinned": {"a": "c"}, "parts": [{"name": "p", "hue": "r"}]}
    answer = await widgets.apply("b", "one", other)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.causes == [
        ("FieldManagerConflict", ".spec.note"),
        ("FieldManagerConflict", '.spec.parts[name="p"].hue'),
        ("FieldManagerConflict", ".spec.pinned"),
    ]
    assert (await widgets.get("one"))["spec"]["note"] == "x"


async def test_a_single_conflict_names_the_owner(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"note": "x"})).ok()
    answer = await widgets.apply("b", "one", {"note": "y"})
    assert answer.body["message"] == 'Apply failed with 1 conflict: conflict with "a": .spec.note'
    assert answer.body["details"]["causes"][0]["message"] == 'conflict with "a"'


async def test_plain_writers_own_fields_too(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "x"})
    answer = await widgets.apply("a", "one", {"note": "y"})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert f'conflict with "contract" using {widgets.group}/v1' in answer.body["message"]


async def test_the_same_value_is_shared(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"note": "x"})).ok()
    both = (await widgets.apply("b", "one", {"note": "x", "size": "s"})).ok()
    assert owned(both, "a") == {"f:spec": {"f:note": {}}}
    assert owned(both, "b") == {"f:spec": {"f:note": {}, "f:size": {}}}
    left = (await widgets.apply("a", "one", {})).ok()
    assert left["spec"]["note"] == "x"
    assert left["spec"]["size"] == "s"


async def test_force_takes_the_field_over(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"note": "x", "size": "s"})).ok()
    taken = (await widgets.apply("b", "one", {"note": "y"}, force=True)).ok()
    assert taken["spec"]["note"] == "y"
    assert owned(taken, "a") == {"f:spec": {"f:size": {}}}
    assert owned(taken, "b") == {"f:spec": {"f:note": {}}}


async def test_what_is_no_longer_applied_goes(widgets: Widgets) -> None:
    spec = {"note": "x", "size": "s", "parts": [{"name": "p"}, {"name": "q"}], "limits": {"x": 1, "y": 2}}
    (await widgets.apply("a", "one", spec, metadata={"labels": {"l": "1", "m": "2"}})).ok()
    less = {"note": "x", "parts": [{"name": "q"}], "limits": {"y": 2}}
    body = (await widgets.apply("a", "one", less, metadata={"labels": {"m": "2"}})).ok()
    assert "size" not in body["spec"]
    assert [part["name"] for part in body["spec"]["parts"]] == ["q"]
    assert body["spec"]["limits"] == {"y": 2}
    assert body["metadata"]["labels"] == {"m": "2"}


async def test_containers_go_with_the_last_of_their_contents(widgets: Widgets) -> None:
    spec = {"note": "x", "owner": {"first": "f"}, "limits": {"x": 1}}
    (await widgets.apply("a", "one", spec, metadata={"labels": {"l": "1"}})).ok()
    body = (await widgets.apply("a", "one", {"note": "x"})).ok()
    assert "owner" not in body["spec"]
    assert "limits" not in body["spec"]
    assert "labels" not in body["metadata"]


async def test_what_others_own_stays(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"parts": [{"name": "p", "hue": "h"}], "owner": {"first": "f"}})).ok()
    (await widgets.apply("b", "one", {"parts": [{"name": "p", "count": 3}], "owner": {"last": "l"}})).ok()
    body = (await widgets.apply("a", "one", {})).ok()
    assert body["spec"]["parts"] == [{"name": "p", "count": 3}]
    assert body["spec"]["owner"] == {"last": "l"}


async def test_a_plain_write_takes_fields_over(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"note": "x", "size": "s"})).ok()
    body = (await widgets.patch("one", {"spec": {"note": "y"}}, fieldManager="u")).ok()
    assert owned(body, "a") == {"f:spec": {"f:size": {}}}
    assert owned(body, "u", operation="Update") == {"f:spec": {"f:note": {}}}
    body = (await widgets.apply("a", "one", {"size": "s"})).ok()
    assert body["spec"]["note"] == "y"


async def test_a_plain_writer_owns_what_it_created(widgets: Widgets) -> None:
    spec = {"note": "x", "tags": ["t"], "parts": [{"name": "p"}], "limits": {"x": 1}}
    more = {"labels": {"l": "1"}, "finalizers": ["ex.com/f"]}
    body = (await widgets.client.post(widgets.path, widgets.body("one", spec, metadata=more), fieldManager="u")).ok()
    await widgets.patch("one", {"metadata": {"finalizers": None}})
    part: Json = {'k:{"name":"p"}': {".": {}, "f:name": {}, "f:count": {}}}
    assert owned(body, "u", operation="Update") == {
        "f:metadata": {
            "f:labels": {".": {}, "f:l": {}},
            "f:finalizers": {".": {}, 'v:"ex.com/f"': {}},
        },
        "f:spec": {
            ".": {},
            "f:note": {},
            "f:replicas": {},
            "f:defaulted": {".": {}, "f:inner": {}},
            "f:tags": {".": {}, 'v:"t"': {}},
            "f:parts": {".": {}, **part},
            "f:limits": {".": {}, "f:x": {}},
        },
    }


async def test_removed_fields_have_no_owner(widgets: Widgets) -> None:
    body = widgets.body("one", {"note": "x", "size": "s"})
    (await widgets.client.post(widgets.path, body, fieldManager="u")).ok()
    left = (await widgets.patch("one", {"spec": {"size": None}}, fieldManager="v")).ok()
    assert "f:size" not in owned(left, "u", operation="Update")["f:spec"]
    assert owned(left, "v", operation="Update") is None


async def test_status_is_applied_through_its_subresource_only(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "x"})
    condition = {"type": "Ready", "status": "True"}
    status = {"phase": "p", "conditions": [condition]}
    body = (await widgets.apply("s", "one", {"note": "y"}, subresource="status", status=status)).ok()
    assert body["spec"]["note"] == "x"
    assert body["status"] == status
    item: Json = {'k:{"type":"Ready"}': {".": {}, "f:type": {}, "f:status": {}}}
    assert owned(body, "s", subresource="status") == {"f:status": {"f:phase": {}, "f:conditions": item}}
    body = (await widgets.apply("s", "one", status={"phase": "q"})).ok()
    assert body["status"]["phase"] == "p"


async def test_two_controllers_share_a_list_of_conditions(widgets: Widgets) -> None:
    await widgets.create("one", {})
    for manager, kind in (("a", "A"), ("b", "B")):
        status = {"conditions": [{"type": kind, "status": "True"}]}
        (await widgets.apply(manager, "one", subresource="status", status=status)).ok()
    body = (await widgets.apply("a", "one", subresource="status", status={"phase": "p"})).ok()
    assert body["status"] == {"phase": "p", "conditions": [{"type": "B", "status": "True"}]}


async def test_a_status_cannot_be_applied_to_nothing(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "none", subresource="status", status={"phase": "p"})
    assert (answer.status, answer.reason) == (404, "NotFound")


async def test_sets_and_keyed_lists_keep_everybodys_items(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"tags": ["a", "b", "c", "d"]})).ok()
    body = (await widgets.apply("b", "one", {"tags": ["d", "x", "b", "y"]})).ok()
    assert body["spec"]["tags"] == ["a", "c", "d", "x", "b", "y"]
    body = (await widgets.apply("c", "one", {"tags": ["z", "a", "w"]})).ok()
    assert body["spec"]["tags"] == ["z", "a", "c", "d", "x", "b", "y", "w"]


async def test_unknown_fields_cannot_be_applied(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {"nope": 1})
    assert answer.status == 500
    assert ".spec.nope: field not declared in schema" in answer.body["message"]


async def test_an_item_cannot_be_applied_twice(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {"parts": [{"name": "p"}, {"name": "p"}]})
    assert answer.status == 500
    assert "duplicate entries for key" in answer.body["message"]


async def test_an_applied_object_is_validated(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {"color": "blue"})
    assert (answer.status, answer.reason) == (422, "Invalid")


async def test_applying_on_a_stale_resource_version_is_a_conflict(widgets: Widgets) -> None:
    stale = (await widgets.apply("a", "one", {"note": "x"})).ok()["metadata"]["resourceVersion"]
    (await widgets.apply("a", "one", {"note": "y"})).ok()
    answer = await widgets.apply("a", "one", {"note": "z"}, metadata={"resourceVersion": stale})
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_applying_to_a_uid_that_is_gone_is_a_conflict(widgets: Widgets) -> None:
    answer = await widgets.apply("a", "one", {}, metadata={"uid": "00000000-0000-0000-0000-000000000000"})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert (await widgets.client.get(widgets.at("one"))).status == 404


async def test_managed_fields_are_not_applied(widgets: Widgets) -> None:
    entry = {"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
    answer = await widgets.apply("a", "one", {}, metadata={"managedFields": [entry]})
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_managed_fields_can_be_reset(widgets: Widgets) -> None:
    (await widgets.apply("a", "one", {"note": "x"})).ok()
    body = (await widgets.patch("one", {"metadata": {"managedFields": [{}]}})).ok()
    assert not body["metadata"].get("managedFields")
    answer = await widgets.apply("b", "one", {"note": "y"})
    assert "before-first-apply" in answer.body["message"]


async def test_scaling_a_deployment_takes_its_replicas_from_an_applier(client: Client, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    config = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    body = (await client.apply(path, config, "a")).ok()
    container: Json = {'k:{"name":"c"}': {".": {}, "f:name": {}, "f:image": {}}}
    assert owned(body, "a")["f:spec"]["f:template"]["f:spec"] == {"f:containers": container}
    assert owned(body, "a")["f:spec"]["f:selector"] == {}
    (await client.patch(f"{path}/scale", {"spec": {"replicas": 1}}, fieldManager="hpa")).ok()
    body = (await client.get(path)).ok()
    assert owned(body, "hpa", operation="Update", subresource="scale") == {"f:spec": {"f:replicas": {}}}
    answer = await client.apply(path, config, "a")
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.causes == [("FieldManagerConflict", ".spec.replicas")]
