"""The pure parts of the embedded Kubernetes API, by their laws: patches, apply, ownership, columns."""

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.embedded.kubeapi.apply import applied
from scaler.embedded.kubeapi.fieldsets import Changes, from_fields_v1, to_fields_v1
from scaler.embedded.kubeapi.json_values import same
from scaler.embedded.kubeapi.jsonpath import find
from scaler.embedded.kubeapi.ownership import Manager, after_update
from scaler.embedded.kubeapi.patches import merge
from scaler.embedded.kubeapi.shaping import drop_nulls, fill_defaults, prune
from scaler.embedded.kubeapi.structural import compile_schema
from scaler.embedded.kubeapi.tables import age

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


def manager(name: str, operation: str = "Apply") -> Manager:
    return Manager(name=name, operation=operation, api_version="v1", time="t", fields=frozenset())


def apply(live: dict[str, Any], config: dict[str, Any], owners: tuple[Manager, ...], name: str) -> Any:
    return applied(live, config, schema=SCHEMA, managers=owners, applier=manager(name), without=frozenset(), force=True)


@given(configs, configs)
def test_applying_twice_is_applying_once(before: dict[str, Any], config: dict[str, Any]) -> None:
    start = apply({}, before, (), "other")
    once = apply(start.body, config, start.managers, "me")
    twice = apply(once.body, config, once.managers, "me")
    assert twice == once


@given(configs, configs)
def test_what_is_taken_back_takes_nothing_that_another_owns(a: dict[str, Any], b: dict[str, Any]) -> None:
    alone = apply({}, a, (), "a")
    both = apply(alone.body, b, alone.managers, "b")
    back = apply(both.body, {**b, "spec": {}}, both.managers, "b")
    owned = {path for entry in both.managers if entry.name == "a" for path in entry.fields}
    for key in ("a", "b"):
        if ("f:spec", f"f:{key}") in owned:
            assert back.body["spec"][key] == a["spec"][key]


@given(configs, configs)
def test_every_applied_value_is_there(before: dict[str, Any], config: dict[str, Any]) -> None:
    start = apply({}, before, (), "other")
    body = apply(start.body, config, start.managers, "me").body
    spec = body["spec"]
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
    live = apply({}, before, (), "other")
    kept = copy.deepcopy((live.body, config))
    apply(live.body, config, live.managers, "me")
    fill_defaults(config, SCHEMA)
    prune({**config, "nope": 1}, SCHEMA)
    drop_nulls(config, SCHEMA)
    merge(live.body, config)
    assert (live.body, config) == kept


@given(configs)
def test_shaping_twice_is_shaping_once(config: dict[str, Any]) -> None:
    pruned, _ = prune({**config, "spec": {**config["spec"], "nope": {"x": 1}}}, SCHEMA)
    shaped = fill_defaults(pruned, SCHEMA)
    assert shaped["spec"]["b"] is not None
    assert fill_defaults(prune(shaped, SCHEMA)[0], SCHEMA) is shaped


paths = st.lists(st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"']), min_size=1, max_size=4).map(tuple)


@given(st.frozensets(paths, max_size=8))
def test_fields_survive_being_written_out(fields: frozenset[tuple[str, ...]]) -> None:
    tree = to_fields_v1(fields)
    assert from_fields_v1(tree) == fields
    assert from_fields_v1(json.loads(json.dumps(tree))) == fields


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


def test_processes_with_random_names_do_not_let_the_owners_grow_without_bound() -> None:
    owners: tuple[Manager, ...] = ()
    for index in range(40):
        changed = Changes()
        changed.written = {(f"f:field{index}",)}
        owners = after_update(owners, manager(f"pod-{index:02}", "Update"), changed)
    assert len(owners) == 10
    assert sum(len(owner.fields) for owner in owners) == 40
    assert any(owner.name == "ancient-changes" for owner in owners)


BODY = {
    "spec": {"a.b": 1, "flag": True, "list": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]},
    "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]},
}
FOUND = {
    ".spec.flag": [True],
    "spec.flag": [True],
    "{.spec.flag}": [True],
    "$.spec.flag": [True],
    r".spec.a\.b": [1],
    ".spec['a.b']": [1],
    ".spec.list[0].name": ["x"],
    ".spec.list[-1].name": ["y"],
    ".spec.list[*].v": [1, 2],
    ".spec.list[7].v": [],
    '.status.conditions[?(@.type=="Ready")].status': ["False"],
    ".status.conditions[?(@.type=='Ready')].status": ["False"],
    '.status.conditions[?(@.type!="Ready")].type': ["Other"],
    ".spec.nothing.here": [],
    ".spec..name": [],
    ".spec.list[0:2]": [],
    "": [],
}


@pytest.mark.parametrize(("path", "values"), FOUND.items())
def test_columns_find_their_values(path: str, values: list[Any]) -> None:
    assert find(path, BODY) == values


AGES = {
    0: "0s",
    119: "119s",
    120: "2m",
    305: "5m5s",
    600: "10m",
    3 * 3600: "3h",
    3 * 3600 + 60: "3h1m",
    8 * 3600 + 60: "8h",
    48 * 3600: "2d",
    49 * 3600: "2d1h",
    9 * 86400: "9d",
    731 * 86400: "2y1d",
    8 * 365 * 86400: "8y",
    -1: "0s",
    -5: "<invalid>",
}


@pytest.mark.parametrize(("seconds", "text"), AGES.items())
def test_ages_read_as_kubectl_writes_them(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age((now - timedelta(seconds=seconds)).isoformat(), now) == text
    assert age("nonsense", now) == "<invalid>"
