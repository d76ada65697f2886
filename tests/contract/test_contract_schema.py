"""Schemas of custom resources: defaults, pruning, validation, CEL rules, and what an update may keep."""

import json

import pytest
from contract.contract_client import Json
from contract.contract_widgets import Widgets

UNCHECKED = ("FieldValueInvalid", "<nil>")
"""Added where a structural error kept the CEL rules from being run."""
SCALE = ("FieldValueInvalid", ".spec.replicas")
"""Added where the scale subresource could not read its number."""


async def test_defaults_are_filled_in(widgets: Widgets) -> None:
    created = await widgets.create("one", {"parts": [{"name": "p"}]})
    assert created["spec"] == {"replicas": 1, "defaulted": {"inner": "x"}, "parts": [{"name": "p", "count": 7}]}


async def test_defaults_need_a_parent(widgets: Widgets) -> None:
    assert "spec" not in await widgets.create("one")


async def test_nulls_vanish_where_they_are_not_allowed(widgets: Widgets) -> None:
    created = await widgets.create("one", {"note": None, "replicas": None, "owner": None, "maybe": None})
    assert created["spec"] == {"replicas": 1, "defaulted": {"inner": "x"}, "maybe": None}


async def test_unknown_fields_are_pruned(widgets: Widgets) -> None:
    body = widgets.body("one", {"nope": 1, "owner": {"nope": 1}, "parts": [{"name": "p", "nope": 1}]}, nope=1)
    answer = await widgets.client.post(widgets.path, body)
    assert answer.ok()["spec"]["owner"] == {}
    assert answer.body["spec"]["parts"] == [{"name": "p", "count": 7}]
    assert "nope" not in answer.body


async def test_unknown_fields_are_refused_where_that_is_asked(widgets: Widgets) -> None:
    body = widgets.body("one", {"nope": 1, "owner": {"nope": 1}})
    answer = await widgets.client.post(widgets.path, body, fieldValidation="Strict")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.nope", unknown field "spec.owner.nope"' in answer.body["message"]


async def test_unknown_fields_are_kept_where_the_schema_says_so(widgets: Widgets) -> None:
    free = {"a": {"b": [1, {"c": None}]}, "d": 1.5}
    assert (await widgets.create("one", {"free": free}))["spec"]["free"] == free


async def test_whole_floats_become_integers(widgets: Widgets) -> None:
    text = json.dumps(widgets.body("one", {"limits": {"x": "TWO"}})).replace('"TWO"', "2.0")
    assert '"x": 2.0' in text
    created = (await widgets.client.post(widgets.path, text)).ok()
    assert isinstance(created["spec"]["limits"]["x"], int)


INVALID: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    "a value of another type": (
        {"note": 1, "replicas": "2", "steps": {}, "owner": []},
        [
            ("FieldValueTypeInvalid", "spec.note"),
            ("FieldValueTypeInvalid", "spec.owner"),
            ("FieldValueTypeInvalid", "spec.replicas"),
            SCALE,
            ("FieldValueTypeInvalid", "spec.steps"),
            UNCHECKED,
        ],
    ),
    "a number out of range": ({"replicas": 4}, [("FieldValueInvalid", "spec.replicas")]),
    "a negative number of replicas": ({"replicas": -1}, [("FieldValueInvalid", "spec.replicas"), SCALE]),
    "a word that is not in the list": ({"color": "blue"}, [UNCHECKED, ("FieldValueNotSupported", "spec.color")]),
    "a text that is too long": ({"size": "abcdef"}, [UNCHECKED, ("FieldValueTooLong", "spec.size")]),
    "a text of the wrong form": ({"size": "ABC"}, [("FieldValueInvalid", "spec.size")]),
    "a list that is too long": ({"steps": list("abcd")}, [UNCHECKED, ("FieldValueTooMany", "spec.steps")]),
    "an item of another type": ({"steps": ["a", 1]}, [UNCHECKED, ("FieldValueTypeInvalid", "spec.steps[1]")]),
    "a missing field": ({"parts": [{"name": "p"}, {}]}, [UNCHECKED, ("FieldValueRequired", "spec.parts[1].name")]),
    "a map value of another type": ({"limits": {"x": "1"}}, [UNCHECKED, ("FieldValueTypeInvalid", "spec.limits.x")]),
    "a date that is none": ({"until": "soon"}, [UNCHECKED, ("FieldValueTypeInvalid", "spec.until")]),
    "neither number nor text": ({"port": True}, [UNCHECKED, ("FieldValueTypeInvalid", "spec.port")]),
    "an item twice in a set": ({"tags": ["a", "b", "a"]}, [("FieldValueDuplicate", "spec.tags[2]")]),
    "an item twice in a keyed list": (
        {"parts": [{"name": "p"}, {"name": "p", "count": 2}]},
        [("FieldValueDuplicate", "spec.parts[1]")],
    ),
    "a broken rule": ({"range": {"min": 5, "max": 3}}, [("FieldValueInvalid", "spec.range")]),
    "two broken rules": ({"range": {"min": 500, "max": 3}}, [("FieldValueInvalid", "spec.range")] * 2),
    "a broken rule behind a structural error": (
        {"color": "blue", "range": {"min": 5, "max": 3}},
        [UNCHECKED, ("FieldValueNotSupported", "spec.color")],
    ),
}


@pytest.mark.parametrize(("spec", "causes"), INVALID.values(), ids=INVALID.keys())
async def test_what_breaks_the_schema_is_refused_with_its_causes(
    widgets: Widgets, spec: Json, causes: list[tuple[str, str]]
) -> None:
    answer = await widgets.client.post(widgets.path, widgets.body("one", spec))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.causes == sorted(causes)
    assert answer.body["details"]["name"] == "one"
    assert answer.body["details"]["kind"] == "Widget"


async def test_status_is_validated(widgets: Widgets) -> None:
    await widgets.create("one", {})
    answer = await widgets.patch("one", {"status": {"conditions": [{"type": "Ready"}]}}, "status")
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert ("FieldValueRequired", "status.conditions[0].status") in answer.causes


async def test_a_transition_rule_compares_with_the_old_value(widgets: Widgets) -> None:
    await widgets.create("one", {})
    (await widgets.patch("one", {"spec": {"fixed": "a"}})).ok()
    (await widgets.patch("one", {"spec": {"fixed": "a", "note": "x"}})).ok()
    answer = await widgets.patch("one", {"spec": {"fixed": "b"}})
    assert (answer.status, answer.causes) == (422, [("FieldValueInvalid", "spec.fixed")])
    assert 'Invalid value: "b": fixed is immutable' in answer.body["message"]
    (await widgets.patch("one", {"spec": {"fixed": None}})).ok()


async def test_a_rule_of_the_whole_object_compares_it_with_what_it_was(widgets: Widgets) -> None:
    await widgets.create("one", {"note": "a"})
    (await widgets.patch("one", {"status": {"phase": "Locked"}}, "status")).ok()
    answer = await widgets.patch("one", {"spec": {"note": "b"}})
    assert (answer.status, answer.causes) == (422, [("FieldValueInvalid", "<nil>")])
    assert "a locked widget keeps its spec" in answer.body["message"]
    (await widgets.patch("one", {"metadata": {"labels": {"a": "b"}}})).ok()
    (await widgets.patch("one", {"status": {"phase": "Free"}}, "status")).ok()
    (await widgets.patch("one", {"spec": {"note": "b"}})).ok()
