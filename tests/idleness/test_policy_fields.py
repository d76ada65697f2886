"""A field of a policy is declared once: what reads, shows, defines and documents policies is made of that."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import yaml
from builders import NOON, a_target
from loops_builders import scaled_object
from scaler_sandbox.kubeapi.schema.validation import json_schema

from deploy.policy_schema import meanings, properties
from scaler.app.settings.model import DefaultsSettings
from scaler.attachment.objects import policy_of
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.describe import explain
from scaler.decision.gates import decide
from scaler.decision.trigger_metadata import parse_metadata
from scaler.idleness.policy import FIELDS, NAME_OF_KEY, Overrides, Policy, describe
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import IdlePolicy

ROOT = Path(__file__).parent.parent.parent
NAMES = pytest.mark.parametrize("name", FIELDS)
WITH = {"idleAfterUnderPressure": {"idleAfter": "30m"}, "wake": {"reclaim": "OnPressure"}}
"""What a field needs beside it."""


@NAMES
def test_its_example_is_read_from_trigger_metadata_and_sets_it_alone(name: str) -> None:
    field = FIELDS[name]
    given = parse_metadata({field.key: field.example, **WITH.get(field.key, {})})
    assert getattr(given, name) == field.read(field.example)
    assert given.given().keys() == {name, *(NAME_OF_KEY[key] for key in WITH.get(field.key, {}))}


@NAMES
def test_it_has_a_meaning_and_says_what_may_be_written(name: str) -> None:
    assert meanings()[name].endswith(".")
    assert FIELDS[name].kind.written
    with pytest.raises(ValueError, match=r"write"):
        FIELDS[name].read("")


def at(place: list[str], value: Any) -> Any:
    for part in reversed(place):
        value = {part: value}
    return value


SPECS = {
    "allowed_during": [{"days": ["Mon", "Fri"], "from": "19:00", "to": "07:00", "timeZone": "Europe/Berlin"}],
    "wake_at": [{"days": ["Mon"], "time": "08:00", "timeZone": "Europe/Berlin"}],
    "suspended_per_period": {"count": 5, "period": "24h"},
    "keep_users": ["*@example.com", "alice"],
    "require_delivery": True,
    "mode": "Observe",
}
"""How they are written there, where that is another way than in trigger metadata."""


@NAMES
def test_it_is_in_the_spec_of_a_policy_and_becomes_trigger_metadata(name: str) -> None:
    field = FIELDS[name]
    if not field.place:
        assert name == "keep_until"
        return
    kind = at_schema(field.place).get("type", "integer")
    spec = at(field.place, SPECS.get(name, int(field.example) if kind == "integer" else field.example))
    body = {"metadata": {"name": "a", "namespace": "demo"}, "spec": spec}
    found = policy_of(decode(IdlePolicy, msgspec.json.encode(body)))
    metadata = {**found.metadata, **WITH.get(field.key, {})}
    assert getattr(parse_metadata(metadata), name) is not None
    assert set(found.metadata) == {field.key}


_spec = cache(properties)


def at_schema(place: list[str]) -> Any:
    *above, last = place
    schema = _spec()
    for part in above:
        schema = schema[part]["properties"]
    return schema[last]


@pytest.mark.parametrize("given", [0, 2, 99, "20%", "0.5%", 100, -1, 2.5, "2", "20", "much", "", True])
def test_a_limit_is_a_number_or_a_share_for_the_api_as_for_the_program(given: Any) -> None:
    """The API refuses a number that is written as text, which the program reads as that number."""
    is_taken = not isinstance(given, str) or given.endswith("%")
    try:
        FIELDS["suspended_at_once"].read(str(given))
    except ValueError:
        is_taken = False
    assert jsonschema_rs.is_valid(json_schema(at_schema(["budget", "atOnce"])), given) is is_taken


def test_both_definitions_have_them() -> None:
    for kind in ("idlepolicies", "clusteridlepolicies"):
        definition = yaml.load(
            (ROOT / f"deploy/crds/idlegpu.io_{kind}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
        )
        spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        assert {name: spec[name] for name in properties()} == properties()


def test_explain_shows_each_with_its_value() -> None:
    cache, scaled = DecisionCache(max_age=NOON - NOON, clock=lambda: 0.0), scaled_object("a")
    made = decide(a_target(), None, policy=Policy(), now=NOON)
    entry = EvaluatedScaledObject(target=scaled.spec.scale_target_ref, triggers={Overrides(): made})
    cache.publish(Evaluation.of({("demo", "a"): entry}, at=NOON))
    shown = explain(cache, ("demo", "a"))
    assert shown is not None
    settings = {each["name"]: each["value"] for each in shown["triggers"][0]["settings"]}
    assert settings == {field.key: describe(name, Policy()) for name, field in FIELDS.items()}


def test_no_other_module_lists_them() -> None:
    """But for the settings, which have defaults of a few."""
    found = []
    for path in ROOT.glob("scaler/**/*.py"):
        text, keys = (
            path.read_text(encoding="utf-8"),
            NAME_OF_KEY.keys() - {"mode", "gpus", "wake", "warning", "reclaim"},
        )
        if sum(f'"{key}"' in text for key in keys) <= 3:
            continue
        texts = (x.value for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Constant))
        if len({*texts} & keys) > 3:
            found.append(str(path.relative_to(ROOT)))
    assert found == ["scaler/idleness/policy.py"]


def test_overrides_hold_what_is_given_and_nothing_else() -> None:
    given = Overrides(idle_after=None, keeps_per_week=0)
    assert (given.keeps_per_week, given.idle_after, given.given()) == (0, None, {"keeps_per_week": 0})
    assert given == Overrides(keeps_per_week=0) != Overrides()
    assert {given: 1}[Overrides(keeps_per_week=0)] == 1
    with pytest.raises(TypeError, match="no field idleAfter"):
        Overrides(idleAfter=1)
    with pytest.raises(AttributeError, match="no field idleAfter"):
        _ = given.idleAfter


def test_the_settings_name_them_alike_and_read_what_triggers_read() -> None:
    for name, field in DefaultsSettings.model_fields.items():
        written = FIELDS[name]
        assert field.alias == written.key
        made = DefaultsSettings.model_validate({written.key: written.example.replace("OnPressure", "Always")})
        given = parse_metadata({written.key: written.example.replace("OnPressure", "Always")})
        assert made.overrides() == given
