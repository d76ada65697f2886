from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from builders import (
    ACTIVE,
    BUSY,
    IDLE,
    INACTIVE,
    NO_ANSWER,
    NOON,
    UNKNOWN,
    at,
    decision,
    gang,
    gpu_evidence,
    minutes,
    observed,
    policy,
    scalable_workload,
    situation,
    status_as_written,
    status_of,
    suspended,
    verdict,
)

from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.idleness.verdict import WorkloadVerdict
from scaler.kube.objects.idlegpu import ScalableWorkload, ScalableWorkloadStatus
from scaler.suspension.status import desired_status, is_worth_writing, status_digest
from scaler.targets.target_state import ObservedWorkload, state_of

CRD = Path(__file__).parents[2] / "deploy" / "crds" / "idlegpu.io_scalableworkloads.yaml"

NOT_YET = Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="running for 20m")
SUSPENDED = Inactive(reason=DecisionReason.SUSPENDED, message="suspended")


def status(
    scalable: ScalableWorkload | None = None,
    workload: ObservedWorkload | None = None,
    of: Decision | None = None,
    *,
    now: datetime = NOON,
    **changes: Any,
) -> dict[str, Any]:
    """The desired status of a ScalableWorkload and Workload as they stand, with both GPU pods running."""
    scalable = scalable or scalable_workload()
    known = {"desired": scalable.spec.replicas, "suspended_at": scalable.status.suspended_at}
    state = state_of(situation(workload, **known, **changes))
    return status_of(scalable, state, workload, of, now=now)


def quiet_for(duration: timedelta, **changes: Any) -> Decision:
    """A running workload that is quiet for so long."""
    return decision(NOT_YET, idle_since=NOON - duration, verdict=verdict(IDLE, gpu_evidence()), **changes)


# -------------------------------------------------------------------------------------------------------- what it says


def test_a_running_workload_says_so() -> None:
    found = status(workload=observed(), of=decision(ACTIVE))
    assert {name: found[name] for name in ("observedGeneration", "replicas", "phase", "verdict", "reason")} == {
        "observedGeneration": 3,
        "replicas": 1,
        "phase": "Running",
        "verdict": "Busy",
        "reason": "GPUsBusy",
    }
    assert (found["workloadName"], found["workloadUID"]) == ("raycluster-first-raycluster-6cd3b", "7e6b1a34")


def test_the_selector_is_not_empty_and_names_no_label_that_pods_carry() -> None:
    assert status()["selector"] == "idlegpu.io/scalable-workload=b1f0"


def test_a_workload_that_vanished_stays_named() -> None:
    bound = scalable_workload(workloadName="raycluster-old", workloadUID="1234")
    found = status(bound)
    assert (found["workloadName"], found["workloadUID"]) == ("raycluster-old", "1234")
    assert status()["workloadName"] is None


# ------------------------------------------------------------------------------------------------------------- the CRD


def status_schema() -> dict[str, Any]:
    version = yaml.load(CRD.read_text(), yaml.CSafeLoader)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return closed(schema)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown fields refused, which an API server would silently drop."""
    if "properties" in schema:
        inner = {name: closed(each) for name, each in schema["properties"].items()}
        return {**schema, "properties": inner, "additionalProperties": False}
    return {**schema, "items": closed(schema["items"])} if "items" in schema else schema


def without_nulls(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [without_nulls(item) for item in value]
    return value


CROWD = WorkloadVerdict(verdict=UNKNOWN, gpus=tuple(gpu_evidence(UNKNOWN, gpu=f"GPU-{n}") for n in range(100)))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(status(), id="nothing known"),
        pytest.param(status(workload=observed(), of=decision(ACTIVE)), id="busy"),
        pytest.param(status(workload=observed(), of=quiet_for(minutes(29))), id="warned"),
        pytest.param(status(workload=observed(), of=decision(INACTIVE)), id="idle"),
        pytest.param(status(workload=observed(), of=decision(NO_ANSWER, verdict=CROWD)), id="100 unknown GPUs"),
        pytest.param(
            status(
                scalable_workload(replicas=0),
                suspended(suspended_at=at(-60)),
                decision(SUSPENDED, verdict=None),
                pods=[],
            ),
            id="suspended",
        ),
        pytest.param(
            status(scalable_workload(suspendedAt="2026-12-01T11:00:00Z"), observed(), quiet_for(minutes(1))),
            id="resumed",
        ),
        pytest.param(
            status(workload=observed(), of=quiet_for(minutes(1), policy=policy(keep_until=at(60)))), id="kept"
        ),
    ],
)
def test_the_status_is_what_the_crd_allows_and_nothing_it_would_drop(found: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(status_schema(), validate_formats=True)
    assert [error.message for error in validator.iter_errors(without_nulls(found))] == []


def test_the_schema_used_here_does_refuse() -> None:
    validator = jsonschema_rs.validator_for(status_schema(), validate_formats=True)
    assert not validator.is_valid({"unheardOf": 1})
    assert not validator.is_valid({"idleSince": "yesterday"})
    assert not validator.is_valid({"verdict": "Sleepy"})


# ----------------------------------------------------------------------------------------------------------- condition


def ready(found: dict[str, Any]) -> tuple[str, str, str]:
    (condition,) = found["conditions"]
    assert condition["type"] == "Ready"
    return condition["status"], condition["reason"], condition["lastTransitionTime"]


@pytest.mark.parametrize(
    ("scalable", "workload", "changes", "expected"),
    [
        pytest.param(scalable_workload(), observed(), {}, ("True", "Running"), id="asked to run, running"),
        pytest.param(scalable_workload(), observed(), {"pods": gang(running=1)}, ("False", "Starting"), id="starting"),
        pytest.param(scalable_workload(replicas=0), observed(), {}, ("False", "Suspending"), id="asked to be at 0"),
        pytest.param(scalable_workload(replicas=0), suspended(), {"pods": []}, ("True", "Suspended"), id="and there"),
        pytest.param(scalable_workload(), suspended(), {"pods": []}, ("False", "Resuming"), id="asked to run again"),
        pytest.param(scalable_workload(), None, {}, ("False", "NoWorkload"), id="no Workload"),
        pytest.param(scalable_workload(replicas=0), None, {}, ("False", "NoWorkload"), id="no Workload at 0"),
    ],
)
def test_it_is_ready_where_it_was_asked_to_be(
    scalable: ScalableWorkload, workload: ObservedWorkload | None, changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert ready(status(scalable, workload, **changes))[:2] == expected


def conditioned(word: str, since: str) -> ScalableWorkload:
    condition = {"type": "Ready", "status": word, "reason": "Running", "message": "", "lastTransitionTime": since}
    return scalable_workload(conditions=[condition])


def test_ready_keeps_its_transition_time_until_it_changes() -> None:
    before = "2026-12-01T08:00:00Z"
    assert ready(status(conditioned("True", before), observed()))[2] == before
    assert ready(status(conditioned("False", before), observed()))[2] == "2026-12-01T12:00:00Z"
    assert ready(status(workload=observed()))[2] == "2026-12-01T12:00:00Z", "the first time"


# --------------------------------------------------------------------------------------------------------------- times


def test_the_time_of_the_suspension_comes_from_the_workload_and_survives_it() -> None:
    at_zero = scalable_workload(replicas=0)
    first = status(at_zero, suspended(suspended_at=at(-60)))
    assert (first["suspendedAt"], first["resumedAt"]) == ("2026-12-01T11:59:00Z", None)
    kept = scalable_workload(suspendedAt=first["suspendedAt"])
    assert status(kept, observed())["suspendedAt"] == first["suspendedAt"], "the annotation is gone by then"
    assert status(kept, None)["suspendedAt"] == first["suspendedAt"], "and the Workload, too"


def test_the_time_of_the_resumption_is_noted_once() -> None:
    was_suspended = scalable_workload(suspendedAt="2026-12-01T11:00:00Z")
    first = status(was_suspended, observed())
    assert first["resumedAt"] == "2026-12-01T12:00:00Z"
    resumed = scalable_workload(suspendedAt="2026-12-01T11:00:00Z", resumedAt=first["resumedAt"])
    assert status(resumed, observed(), now=at(600))["resumedAt"] == first["resumedAt"]


def test_a_second_resumption_has_a_time_of_its_own() -> None:
    again = scalable_workload(suspendedAt="2026-12-01T11:00:00Z", resumedAt="2026-12-01T09:00:00Z")
    assert status(again, observed())["resumedAt"] == "2026-12-01T12:00:00Z"
    asleep = scalable_workload(replicas=0, suspendedAt="2026-12-01T11:00:00Z", resumedAt="2026-12-01T09:00:00Z")
    assert status(asleep, suspended())["resumedAt"] == "2026-12-01T09:00:00Z", "not before it comes"


def test_a_workload_that_kueue_recreated_active_has_not_been_resumed() -> None:
    """It is about to be deactivated again."""
    at_zero = scalable_workload(replicas=0, suspendedAt="2026-12-01T11:00:00Z")
    assert status(at_zero, observed())["resumedAt"] is None


# ------------------------------------------------------------------------------------------------------------ warnings


def warned_at(before: str | None, of: Decision | None, *, now: datetime = NOON) -> str | None:
    scalable = scalable_workload(warnedAt=before) if before else scalable_workload()
    found = status(scalable, observed(), of, now=now)["warnedAt"]
    assert found is None or isinstance(found, str)
    return found


def test_an_owner_is_warned_once_in_an_idle_period() -> None:
    assert warned_at(None, quiet_for(minutes(24))) is None, "not yet"
    assert warned_at(None, quiet_for(minutes(25))) == "2026-12-01T12:00:00Z"
    assert warned_at("2026-12-01T11:58:00Z", quiet_for(minutes(27))) == "2026-12-01T11:58:00Z"
    assert warned_at("2026-12-01T11:33:00Z", quiet_for(minutes(27))) == "2026-12-01T11:33:00Z", "at its very begin"
    assert warned_at("2026-12-01T11:58:00Z", decision(INACTIVE, idle_since=at(-1800))) == "2026-12-01T11:58:00Z"


def test_a_warning_of_an_idle_period_that_is_over_is_forgotten() -> None:
    assert warned_at("2026-12-01T11:00:00Z", decision(ACTIVE)) is None, "work was seen"
    assert warned_at("2026-12-01T11:00:00Z", quiet_for(minutes(1))) is None, "and is over"
    assert warned_at("2026-12-01T11:00:00Z", quiet_for(minutes(25))) == "2026-12-01T12:00:00Z", "so it is warned again"


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(None, id="no decision"),
        pytest.param(decision(NO_ANSWER, verdict=verdict(UNKNOWN)), id="unknown"),
        pytest.param(decision(NO_ANSWER, verdict=None), id="a doubt about the cluster"),
        pytest.param(
            replace(quiet_for(minutes(27)), answer=NO_ANSWER, verdict=verdict(UNKNOWN)), id="source unavailable"
        ),
    ],
)
def test_not_knowing_for_a_while_does_not_warn_twice(of: Decision | None) -> None:
    before = "2026-12-01T11:58:00Z"
    during = warned_at(before, of)
    assert during == before
    assert warned_at(during, quiet_for(minutes(28)), now=at(60)) == before


def test_a_workload_that_is_asked_to_sleep_needs_no_warning() -> None:
    found = status(
        scalable_workload(replicas=0, warnedAt="2026-12-01T11:58:00Z"), suspended(), decision(SUSPENDED, verdict=None)
    )
    assert found["warnedAt"] is None


# ---------------------------------------------------------------------------------------------------- worth a write


def settled(**changes: Any) -> dict[str, Any]:
    return status(workload=observed(), of=decision(ACTIVE), **changes)


def is_worth(found: dict[str, Any], written: dict[str, Any]) -> bool:
    return is_worth_writing(status_as_written(written), found)


def test_what_was_written_is_not_worth_a_write() -> None:
    for found in (settled(), status(), status(workload=observed(), of=quiet_for(minutes(26)))):
        assert not is_worth(found, found)


def test_everything_is_worth_a_first_write() -> None:
    assert is_worth_writing(ScalableWorkloadStatus(), settled())


@pytest.mark.parametrize(
    "changed",
    [
        {"phase": "Starting"},
        {"replicas": 0},
        {"verdict": "Unknown"},
        {"verdict": None},
        {"reason": "StaleSamples"},
        {"observedGeneration": 4},
        {"workloadUID": "another"},
        {"idleSince": "2026-12-01T11:00:00Z"},
        {"suspendAt": "2026-12-01T13:00:00Z"},
        {"warnedAt": "2026-12-01T12:00:00Z"},
        {"suspendedAt": "2026-12-01T12:00:00Z"},
        {"resumedAt": "2026-12-01T12:00:00Z"},
        {"keepUntil": "2026-12-01T13:00:00Z"},
        {"selector": "something=else"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_somebody_waits_for_is_worth_a_write(changed: dict[str, Any]) -> None:
    assert is_worth({**settled(), **changed}, settled())


@pytest.mark.parametrize("changed", [{"message": "running for 21m"}, {"evidence": []}, {"evidenceOmitted": 7}])
def test_what_changes_with_every_tick_is_not(changed: dict[str, Any]) -> None:
    assert not is_worth({**settled(), **changed}, settled())


def test_a_workload_at_work_is_written_once_however_often_it_is_looked_at() -> None:
    written = settled()
    for seconds in range(15, 300, 15):
        of = replace(decision(ACTIVE, verdict=verdict(BUSY)), decided_at=at(seconds))
        assert not is_worth(status(workload=observed(), of=of, now=at(seconds)), written)


def test_a_quiet_workload_is_written_once_until_its_warning() -> None:
    """The evidence ages, the times it leads to do not."""
    quiet = quiet_for(minutes(5))
    written = status(workload=observed(), of=quiet)
    for later_s, expected in ((15, False), (300, False), (1190, False), (1200, True)):
        found = status(workload=observed(), of=replace(quiet, decided_at=at(later_s)), now=at(later_s))
        assert is_worth(found, written) is expected, "25 of 30 min quiet at 1200 s"


def test_quiet_is_shown_once_it_has_lasted_for_a_tenth_of_idle_after() -> None:
    """A status that followed every pause of a workload at work would be written at every tick."""
    shown = [status(workload=observed(), of=quiet_for(minutes(each)))["idleSince"] for each in (1, 2.9, 3)]
    assert shown == [None, None, "2026-12-01T11:57:00Z"]
    assert status_digest(quiet_for(minutes(1))) == status_digest(quiet_for(minutes(2)))
    assert status_digest(quiet_for(minutes(2))) != status_digest(quiet_for(minutes(3)))
    assert status_digest(None) != status_digest(quiet_for(minutes(1)))


def test_before_the_first_evaluation_the_last_decision_stays_in_the_status() -> None:
    scalable = scalable_workload()
    state = state_of(situation(observed()))
    found = desired_status(scalable, state, observed(), None, line=None, is_evaluated=False, now=NOON, warned_at=None)
    assert not {"verdict", "reason", "message", "evidence", "idleSince", "suspendAt"} & set(found)
    assert not is_worth_writing(status_as_written(settled()), found)


def test_a_warning_that_is_given_again_is_written_although_it_changes_no_field() -> None:
    """As a process of before may have left it: warned anew, and its owner told of the warning before only."""
    warned = quiet_for(minutes(26))
    first = status(workload=observed(), of=warned)
    assert first["history"][-1]["state"] == "Warned"
    told = [{"at": "2026-12-01T11:00:00Z", "state": "Warned"}]
    scalable = scalable_workload(**(first | {"history": told}))
    again = status(scalable, observed(), warned, now=at(60))
    assert again["warnedAt"] == first["warnedAt"]
    assert is_worth_writing(scalable.status, again)
    assert not is_worth_writing(status_as_written(again), again)
