"""The pure parts of the embedded Kubernetes API, by their laws: patches, apply, columns."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaler_sandbox.kubeapi.rendering import age, value_at_path
from scaler_sandbox.kubeapi.schema.shaping import drop_nulls, fill_defaults, prune
from scaler_sandbox.kubeapi.schema.structural import compile_schema, same
from scaler_sandbox.kubeapi.writes.patches import applied, merge

SCHEMA = compile_schema(
    {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "spec": {
                "type": "object",
                "properties": {
                    "a": {"type": "string"},
                    "b": {"type": "integer", "default": 1},
                    "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "map": {"type": "object", "additionalProperties": {"type": "string"}},
                    "list": {"type": "array", "items": {"type": "string"}},
                    "keyed": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "properties": {
                                "name": {"type": "string"},
                                "x": {"type": "string"},
                                "y": {"type": "integer", "default": 2},
                            },
                        },
                    },
                },
            },
        },
    }
)

texts = st.sampled_from(["p", "q", "r"])
items = st.fixed_dictionaries({}, optional={"x": texts, "y": st.integers(0, 3)})
keyed = st.dictionaries(texts, items).map(lambda by: [{"name": name, **item} for name, item in by.items()])
specs = st.fixed_dictionaries(
    {},
    optional={
        "a": texts,
        "b": st.integers(0, 3),
        "set": st.lists(texts, unique=True),
        "map": st.dictionaries(texts, texts),
        "list": st.lists(texts, max_size=2),
        "keyed": keyed,
    },
)
configs = specs.map(lambda spec: {"apiVersion": "v1", "kind": "T", "metadata": {"name": "n"}, "spec": spec})
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(configs, configs)
def test_applying_twice_is_applying_once(before: dict[str, Any], config: dict[str, Any]) -> None:
    once = applied(applied({}, before, SCHEMA), config, SCHEMA)
    assert applied(once, config, SCHEMA) == once


@given(configs, configs)
def test_every_applied_value_is_there(before: dict[str, Any], config: dict[str, Any]) -> None:
    spec = applied(applied({}, before, SCHEMA), config, SCHEMA)["spec"]
    for key, value in config["spec"].items():
        if key == "map":
            assert value.items() <= spec["map"].items()
        elif key == "set":
            assert set(value) <= set(spec.get("set", []))
        elif key == "keyed":
            found = {item["name"]: item for item in spec.get("keyed", [])}
            assert all(item.items() <= found[item["name"]].items() for item in value)
        else:
            assert spec[key] == value


@given(configs, configs)
def test_nothing_is_changed_in_place(before: dict[str, Any], config: dict[str, Any]) -> None:
    live = applied({}, before, SCHEMA)
    kept = copy.deepcopy((live, config))
    applied(live, config, SCHEMA)
    fill_defaults(config, SCHEMA)
    prune({**config, "nope": 1}, SCHEMA)
    drop_nulls(config, SCHEMA)
    merge(live, config)
    assert (live, config) == kept


@given(configs)
def test_shaping_twice_is_shaping_once(config: dict[str, Any]) -> None:
    pruned, _ = prune({**config, "spec": {**config["spec"], "nope": {"x": 1}}}, SCHEMA)
    shaped = fill_defaults(pruned, SCHEMA)
    assert shaped["spec"]["b"] is not None
    assert fill_defaults(prune(shaped, SCHEMA)[0], SCHEMA) is shaped


@given(jsons, jsons)
def test_a_merge_patch_leaves_no_null_of_its_own_and_lasts(old: Any, patch: Any) -> None:
    once = merge(old, patch)
    assert same(merge(once, patch), once)


# The table of RFC 7396, appendix A.
MERGES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("old", "patch", "merged"), MERGES)
def test_merge_patches_follow_the_rfc(old: Any, patch: Any, merged: Any) -> None:
    assert merge(old, patch) == merged


def test_numbers_and_truth_are_not_the_same() -> None:
    assert not same({"a": 1}, {"a": True})
    assert not same([0], [False])
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})


BODY = {
    "spec": {"a.b": 1, "flag": True, "list": [{"name": "x", "v": 1}]},
    "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]},
}
FOUND = {
    ".spec.flag": True,
    r".spec.a\.b": 1,
    '.status.conditions[?(@.type=="Ready")].status': "False",
    ".status.conditions[?(@.type=='Ready')].status": "False",
    ".status.conditions[?(@.type=='None')].status": None,
    ".spec.nothing.here": None,
    ".spec.list[0].name": None,
}


@pytest.mark.parametrize(("path", "value"), FOUND.items())
def test_columns_find_their_values(path: str, value: Any) -> None:
    assert value_at_path(path, BODY) == value


AGES = {0: "0s", 119: "119s", 120: "2m", 3 * 3600: "3h", 47 * 3600: "47h", 48 * 3600: "2d", -5: "0s"}


@pytest.mark.parametrize(("seconds", "text"), AGES.items())
def test_ages_are_told_in_one_unit(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age((now - timedelta(seconds=seconds)).isoformat(), now) == text
    assert age("nonsense", now) == "<invalid>"
