"""The ValidatingAdmissionPolicy, evaluated: it tells mistakes, refuses nothing that the scaler takes, and lets alone
what is none of its business.
"""

from typing import Any

import pytest
from cel import cel
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.helm_chart import one, settings_of
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import MetadataError

POLICY = one("ValidatingAdmissionPolicy", name="idle-gpu-scaler-triggers")["spec"]
ADDRESS = "idle-gpu-scaler.idle-gpu-scaler.svc:9090"


def compiled(entries: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(str(each.get("name") or each.get("message")), cel.compile(each["expression"])) for each in entries]


CONDITIONS, VARIABLES, VALIDATIONS = (
    compiled(POLICY[part]) for part in ("matchConditions", "variables", "validations")
)


def scaled_object(metadata: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    trigger = {"type": "external-push", "metadata": {"scalerAddress": ADDRESS, **(metadata or {})}}
    target = {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "name": "a"}
    whole = {"scaleTargetRef": target, "maxReplicaCount": 1, "triggers": [trigger], **spec}
    return {"metadata": {"name": "a"}, "spec": {key: value for key, value in whole.items() if value is not None}}


def is_looked_at(new: dict[str, Any], old: dict[str, Any] | None = None) -> bool:
    names = {"object": new, "oldObject": old, "request": {"operation": "UPDATE" if old else "CREATE"}}
    return all(condition.execute(cel.Context(names)) for _, condition in CONDITIONS)


def complaints(new: dict[str, Any]) -> list[str]:
    """The messages of what is refused. An expression that fails refuses, too: failurePolicy is Fail."""
    names: dict[str, Any] = {"object": new, "variables": {}}
    for name, variable in VARIABLES:
        names["variables"][name] = variable.execute(cel.Context(names))
    return [message for message, rule in VALIDATIONS if rule.execute(cel.Context(names)) is not True]


def is_taken(metadata: dict[str, str]) -> bool:
    try:
        parse_metadata(metadata)
    except MetadataError:
        return False
    return True


GOOD: list[dict[str, str]] = [
    {},
    {"idleAfter": "30m", "warmUp": "0s", "activeAbove": "1%", "gpus": "all", "mode": "observe", "reclaim": "Always"},
    {"idleAfter": "1h30m", "idleAfterUnderPressure": "5m", "reclaim": "OnPressure", "gpus": "quorum:0.8"},
    {"idleAfter": "1.5h", "activeAbove": "0.5 %", "gpus": "any", "mode": " enforce "},
    {"keepUntil": "2026-12-01T18:00:00Z"},
    {
        "warning": "30m",
        "requireDelivery": "true",
        "longestKeep": "8h",
        "keepsPerWeek": "3",
        "keepUsers": "*@example.com, anna",
    },
    {"beforeSuspend": "checkpoint", "beforeSuspendOnFailure": "Continue"},
    {"allowedDuring": "Mon-Fri 19:00-07:00 Europe/Berlin", "wakeAt": "07:30 UTC"},
    {"wake": "OnRequest"},
    {"wake": "WhenFree"},
    {"wake": " WhenFree", "reclaim": "OnPressure "},
    {"keepUntil": "2026-12-01T18:00:00.5+01:00", "reclaim": "PriorityBoost"},
    {"enableTLS": "true", "unsafeSsl": "false", "caCert": "…", "modelName": "llama", "keepalive": "1"},
]
BAD: list[dict[str, str]] = [
    {"idleAfter": "5 minutes"},
    {"idleAfter": "30"},
    {"idleAfter": "0s"},
    {"idleAfter": "0m0.0s"},
    {"warmUp": "soon"},
    {"warning": "soon"},
    {"requireDelivery": "yes"},
    {"beforeSuspendOnFailure": "hold"},
    {"longestKeep": "0s"},
    {"idleAfterUnderPressure": "0s"},
    {"activeAbove": "0.01"},
    {"gpus": "most"},
    {"mode": "Enforce"},
    {"reclaim": "onPressure"},
    {"wake": "whenFree"},
    {"wake": "WhenFree", "reclaim": "Always"},
    {"keepUntil": "tomorrow"},
    {"keepUntil": "2026-12-01"},
    {"idleafter": "30m"},
    {"idle-after": "30m"},
    {"idleAfterSeconds": "30"},
    {"Mode": "observe"},
    {"warm_up": "10m"},
    {"keepUntilFromEnv": "KEEP"},
    {"modeFromEnv": "MODE"},
]


@pytest.mark.parametrize("metadata", GOOD, ids=str)
def test_what_the_scaler_takes_is_let_through(metadata: dict[str, str]) -> None:
    assert is_taken(metadata)
    assert is_looked_at(scaled_object(metadata))
    assert not complaints(scaled_object(metadata))


@pytest.mark.parametrize("metadata", BAD, ids=str)
def test_what_the_scaler_would_refuse_is_told_when_it_is_written(metadata: dict[str, str]) -> None:
    assert not is_taken(metadata)
    [complaint] = complaints(scaled_object(metadata))
    assert complaint.startswith("trigger metadata: ")


KEYS = st.one_of(
    st.sampled_from(["idleAfter", "warmUp", "activeAbove", "gpus", "mode", "reclaim", "keepUntil"]),
    st.sampled_from(["idleAfterUnderPressure", "modelName", "model", "claim", "gpu", "idle", "keep", "reclaimPolicy"]),
    st.from_regex(
        r"(?i)(idle|warm|active|keep|gpus|mode|reclaim)[-_]?(after|up|above|until)?(_?from_?env)?", fullmatch=True
    ),
)
VALUES = st.one_of(
    st.from_regex(r" ?[0-9]{1,2}([.][0-9])?(ms|s|m|h|d| ?%)? ?", fullmatch=True),
    st.sampled_from(["all", "any", "all:", "quorum:0.8", "quorum:1e-1", "observe", "enforce", "Always", "OnPressure"]),
    st.from_regex(r"20[0-9]{2}-[0-1][0-9]-[0-2][0-9][tT ][0-2][0-9]:[0-5][0-9]:00(Z|z|[+]01:00)", fullmatch=True),
)


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_nothing_is_refused_that_the_scaler_takes(metadata: dict[str, str]) -> None:
    if is_taken(metadata):
        assert not complaints(scaled_object(metadata))


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"fallback": {"failureThreshold": 3, "replicas": 0}}, "fallback"),
        ({"maxReplicaCount": 2}, "maxReplicaCount"),
        ({"maxReplicaCount": None}, "maxReplicaCount"),
        ({"cooldownPeriod": 0}, "cooldownPeriod"),
    ],
)
def test_what_makes_keda_scale_by_itself_is_refused(spec: dict[str, Any], word: str) -> None:
    [complaint] = complaints(scaled_object(**spec))
    assert word in complaint


def test_a_deployment_may_have_more_replicas() -> None:
    assert not complaints(scaled_object(scaleTargetRef={"name": "web"}, maxReplicaCount=None, cooldownPeriod=300))


@pytest.mark.parametrize(
    "triggers",
    [
        None,
        [{"type": "cpu", "metadata": {"value": "60"}}],
        [{"type": "external", "metadata": {"scalerAddress": "other.scaler.svc:9090", "mode": "fast"}}],
        [{"type": "external", "metadata": {}}],
        [{"type": "prometheus", "metadata": {"scalerAddress": ADDRESS}}],
    ],
    ids=str,
)
def test_scaled_objects_of_others_are_none_of_its_business(triggers: Any) -> None:
    assert not is_looked_at(scaled_object(triggers=triggers, fallback={}))


def test_every_name_of_the_service_means_this_scaler() -> None:
    for address in settings_of()["keda"]["scalerAddresses"]:
        trigger = {"type": "external", "metadata": {"scalerAddress": address}}
        assert is_looked_at(scaled_object(triggers=[trigger]))


def test_only_our_triggers_are_judged() -> None:
    other = {"type": "external", "metadata": {"scalerAddress": "other.scaler.svc:9090", "mode": "fast"}}
    mine = {"type": "external", "metadata": {"scalerAddress": ADDRESS}}
    assert not complaints(scaled_object(triggers=[other, mine]))


def test_whoever_does_not_touch_the_spec_is_not_held_up() -> None:
    """KEDA removes its finalizer from what was written before the policy was there."""
    old = scaled_object({"mode": "fast"})
    new = {**old, "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not is_looked_at(new, old)
    assert is_looked_at(scaled_object({"mode": "slow"}), old)


def test_it_is_bound_as_values_say() -> None:
    name = "idle-gpu-scaler-triggers"
    binding = one("ValidatingAdmissionPolicyBinding", name=name)["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}
    values = {"admissionPolicy": {"validationActions": ["Warn", "Audit"]}}
    softer = one("ValidatingAdmissionPolicyBinding", values, name)["spec"]
    assert softer["validationActions"] == ["Warn", "Audit"]


# ---------------------------------------------------------------------------------------------------------- asked by

ASKED_BY = one("ValidatingAdmissionPolicy", {"admissionPolicy": {"askedBy": True}}, name="idle-gpu-scaler-asked-by")[
    "spec"
]
KEEP, BY = {"idlegpu.io/keep-until": "2026-12-01T18:00:00Z"}, {"idlegpu.io/asked-by": "anna"}


@pytest.mark.parametrize(
    ("new", "old", "user", "groups", "is_refused"),
    [
        pytest.param(KEEP, {}, "anna", ["team"], True, id="says nothing of who"),
        pytest.param(KEEP | BY, {}, "anna", ["team"], False, id="says so"),
        pytest.param(KEEP | BY, {}, "bob", ["team"], True, id="says another"),
        pytest.param(KEEP | BY, None, "bob", ["team"], True, id="a new object"),
        pytest.param(KEEP | BY, KEEP | BY, "bob", ["team"], False, id="changes something else"),
        pytest.param(KEEP | {"idlegpu.io/wake": "true"} | BY, KEEP | BY, "bob", ["team"], True, id="wakes it, too"),
        pytest.param({}, KEEP | BY, "bob", ["team"], False, id="takes it back"),
        pytest.param(None, KEEP | BY, "bob", ["team"], False, id="takes all annotations away"),
        pytest.param(KEEP, {}, "system:serviceaccount:a:b", ["system:serviceaccounts"], False, id="a controller"),
    ],
)
def test_who_asks_for_a_workload_names_themselves(
    new: dict[str, str] | None, old: dict[str, str] | None, user: str, groups: list[str], is_refused: bool
) -> None:
    def named(annotations: dict[str, str] | None) -> dict[str, Any]:
        return {"metadata": {"name": "train"} | ({} if annotations is None else {"annotations": annotations})}

    request = {"userInfo": {"username": user, "groups": groups}}
    names = {"object": named(new), "oldObject": None if old is None else named(old), "request": request}
    is_checked = all(rule.execute(cel.Context(names)) for _, rule in compiled(ASKED_BY["matchConditions"]))
    [rule] = ASKED_BY["validations"]
    assert (is_checked and cel.compile(rule["expression"]).execute(cel.Context(names)) is not True) is is_refused
    assert f"asked-by to {user}" in cel.compile(rule["messageExpression"]).execute(cel.Context(names))
