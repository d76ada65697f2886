"""What is read from an object with a switch of its own, what is written to it, and what its last activity does."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from builders import GPUS, IDLE, NO_ANSWER, NOON, a_target, at, minutes, policy, verdict
from hypothesis import given
from hypothesis import strategies as st
from switched_kinds import inference_service, notebook

from scaler.decision.decision import Active, Inactive
from scaler.decision.gates import decide
from scaler.decision.reasons import DecisionReason
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import JobRef
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.suspension.reconciler import step_patch
from scaler.suspension.transitions import SuspensionStep
from scaler.targets.switches import (
    DEPLOYMENT_MODE,
    LAST_ACTIVITY,
    NOTEBOOK_STOPPED,
    SERVICE_STOPPED,
    observe_switched,
    switch_of,
)
from scaler.targets.workloads import SUSPENDED_ANNOTATION

MARK = '{"at":"2026-12-01T12:00:00Z"}'
AFTER, BEFORE = at(60), at(-60)


def switched(body: dict[str, Any]) -> tuple[Any, SwitchedObject]:
    switch = switch_of(JobRef(api_version=body["apiVersion"], kind=body["kind"], name=body["metadata"]["name"]))
    assert switch is not None
    return switch, decode(SwitchedObject, msgspec.json.encode(body))


def seen(body: dict[str, Any], resumed_at: Any = None) -> Any:
    switch, found = switched(body)
    return observe_switched(switch, found, GPUS, resumed_at=resumed_at)


def patch(step: SuspensionStep, body: dict[str, Any], cause: dict[str, str] | None = None) -> Any:
    return step_patch(step, seen(body), switched(body)[1], cause=cause)


def service(
    *, conditions: list[str] | None = None, mode: str = "", annotations: Any = None, **predictor: Any
) -> dict[str, Any]:
    status = {"conditions": [{"type": each, "status": "False"} for each in conditions or []], "deploymentMode": mode}
    return {**inference_service("llm", "demo", annotations=annotations, **predictor), "status": status}


@pytest.mark.parametrize(
    ("annotations", "resumed_at", "active", "ours", "spent"),
    [
        ({}, None, True, False, False),
        ({NOTEBOOK_STOPPED: ""}, None, False, False, False),
        ({NOTEBOOK_STOPPED: "x", SUSPENDED_ANNOTATION: MARK}, None, False, True, False),
        ({NOTEBOOK_STOPPED: "x", SUSPENDED_ANNOTATION: MARK}, BEFORE, False, True, False),
        ({NOTEBOOK_STOPPED: "x", SUSPENDED_ANNOTATION: MARK}, AFTER, False, False, True),
        ({SUSPENDED_ANNOTATION: MARK}, None, True, True, False),
        ({SUSPENDED_ANNOTATION: MARK}, AFTER, True, False, True),
        ({NOTEBOOK_STOPPED: "x", SUSPENDED_ANNOTATION: "{"}, None, False, False, True),
    ],
)
def test_who_stopped_a_notebook(annotations: Any, resumed_at: Any, active: bool, ours: bool, spent: bool) -> None:
    observed = seen(notebook("nb", "demo", **annotations), resumed_at)
    assert (observed.active, observed.suspended_by_us, observed.has_spent_annotation) == (active, ours, spent)
    assert (observed.admitted, observed.quota_reserved, observed.has_quota) == (active, active, False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2026-12-01T11:59:00Z", BEFORE), ("2026-12-01T12:59:00+01:00", BEFORE), ("", None), ("now", None)],
)
def test_a_last_activity_that_cannot_be_read_is_ignored(value: str, expected: Any) -> None:
    assert seen(notebook("nb", "demo", **{LAST_ACTIVITY: value})).last_activity == expected


@pytest.mark.parametrize(
    ("body", "stopped"),
    [
        (service(), {"metadata": {SERVICE_STOPPED: "true"}}),
        (service(conditions=["Ready", "Stopped"], mode="Standard"), {"metadata": {SERVICE_STOPPED: "true"}}),
        (service(conditions=["Ready"], mode="Serverless", minReplicas=2), {"spec": {"predictor": {"minReplicas": 0}}}),
        (
            service(conditions=["Ready"], annotations={DEPLOYMENT_MODE: "Serverless"}),
            {"spec": {"predictor": {"minReplicas": 0}}},
        ),
    ],
)
def test_how_an_inference_service_is_stopped(body: dict[str, Any], stopped: dict[str, Any]) -> None:
    made = patch(SuspensionStep.DEACTIVATE, body, {"at": "2026-12-01T12:00:00Z"})
    metadata = dict(made["metadata"]["annotations"])
    mark = msgspec.json.decode(metadata.pop(SUSPENDED_ANNOTATION))
    assert {k: v for k, v in made.items() if k != "metadata"} == {k: v for k, v in stopped.items() if k != "metadata"}
    assert metadata == stopped.get("metadata", {})
    assert ("restore" in mark) == ("spec" in stopped)
    assert not seen(body).refusal


@pytest.mark.parametrize("mode", ["", "RawDeployment", "ModelMesh"])
def test_an_older_kserve_that_is_not_knative_cannot_stop_it(mode: str) -> None:
    assert "since version 0.16" in seen(service(conditions=["Ready"], mode=mode)).refusal


@given(st.none() | st.integers(0, 5))
def test_min_replicas_are_restored_as_they_were(replicas: int | None) -> None:
    predictor = {} if replicas is None else {"minReplicas": replicas}
    body = service(conditions=["Ready"], mode="Serverless", **predictor)
    stopped = _merged(body, patch(SuspensionStep.DEACTIVATE, body, {"at": "2026-12-01T12:00:00Z"}))
    assert not seen(stopped).active
    started = _merged(stopped, patch(SuspensionStep.ACTIVATE, stopped))
    assert started["spec"] == body["spec"]
    assert started["metadata"]["annotations"] == body["metadata"]["annotations"]


def _merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, each in patch.items():
        if each is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), each)
    return found


# -------------------------------------------------------------------------------------------------------- last activity


@pytest.mark.parametrize(
    ("ago", "reason"),
    [
        (None, DecisionReason.GPUS_IDLE),
        (minutes(-60), DecisionReason.GPUS_BUSY),
        (minutes(29), DecisionReason.GPUS_BUSY),
        (minutes(30), DecisionReason.GPUS_IDLE),
    ],
)
def test_activity_within_the_window_counts_as_work(ago: timedelta | None, reason: DecisionReason) -> None:
    target = a_target(last_activity=None if ago is None else NOON - ago)
    found = decide(target, verdict(IDLE), policy=policy(), now=NOON)
    assert found.answer.reason == reason
    assert isinstance(found.answer, Inactive) == (reason is DecisionReason.GPUS_IDLE)


def test_activity_does_not_make_known_what_is_not() -> None:
    found = decide(a_target(last_activity=NOON), verdict(NO_ANSWER), policy=policy(), now=NOON)
    assert found.answer == NO_ANSWER


@given(st.integers(-3600, 3600), st.integers(1, 7200))
def test_a_decision_stands_until_it_says(seconds: int, later: int) -> None:
    target = a_target(last_activity=NOON + timedelta(seconds=seconds))
    first = decide(target, verdict(IDLE), policy=policy(), now=NOON)
    until = first.holds_until()
    now = NOON + timedelta(seconds=later)
    if until is None or now < until:
        again = decide(target, verdict(IDLE), policy=policy(), now=now)
        assert again.answer == first.answer
        assert again.idle_since == first.idle_since or isinstance(first.answer, Active)
