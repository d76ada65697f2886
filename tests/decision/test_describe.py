from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from builders import (
    ACTIVE,
    BUSY,
    IDLE,
    INACTIVE,
    NO_ANSWER,
    NOON,
    SCALED_OBJECT,
    TARGET,
    UNKNOWN,
    a_target,
    at,
    decision,
    entry,
    evaluation,
    gpu_evidence,
    minutes,
    policy,
    verdict,
    window,
)

from scaler.decision.decision import Active, Answer, Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.describe import (
    EVIDENCE_LIMIT,
    decision_status,
    evidence,
    explain,
    is_warning_due,
    overview,
    percent,
    prevailing,
    timestamp,
    what_next,
)
from scaler.decision.reasons import DecisionReason
from scaler.idleness.hooks import HookOutcome, HookRun
from scaler.idleness.policy import EnforcementMode, Overrides, resolve
from scaler.idleness.verdict import WorkloadVerdict
from scaler.targets.target_state import Phase

NOT_YET = Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="running for 20m")


def decisions(shown: Evaluation | None) -> DecisionCache:
    made = DecisionCache(max_age=minutes(1), clock=lambda: 1000.0)
    if shown:
        made.publish(shown)
    return made


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        pytest.param(NOON, "2026-12-01T12:00:00Z", id="UTC"),
        pytest.param(NOON + timedelta(milliseconds=999), "2026-12-01T12:00:00Z", id="whole seconds"),
        pytest.param(
            datetime(2026, 12, 1, 14, 0, tzinfo=timezone(timedelta(hours=2))), "2026-12-01T12:00:00Z", id="another zone"
        ),
        pytest.param(None, None, id="never"),
    ],
)
def test_times_are_written_as_the_kubernetes_api_does(instant: datetime | None, text: str | None) -> None:
    assert timestamp(instant) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "-"), (0.0, "0"), (0.00123, "0.123"), (0.5, "50"), (1.0, "100"), (0.98765, "98.8")]
)
def test_shares_are_written_in_percent_with_three_digits(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


def test_evidence_shows_per_gpu_what_the_verdict_rests_on() -> None:
    windows = {"gr_engine_active": window(peak=0.4, covered=57), "gpu_util": window(peak=None, covered=0, last=None)}
    assert evidence(verdict(UNKNOWN, gpu_evidence(UNKNOWN, windows=windows), gpu_evidence(IDLE, gpu="GPU-1"))) == [
        {
            "pod": "worker-0",
            "gpu": "GPU-0",
            "node": "node-a",
            "verdict": "Unknown",
            "reason": "StaleSamples",
            "signals": [
                {
                    "name": "gr_engine_active",
                    "peakPercent": "40",
                    "coveragePercent": "95",
                    "lastSample": "2026-12-01T12:00:00Z",
                },
                {"name": "gpu_util", "peakPercent": "-", "coveragePercent": "0"},
            ],
        },
        {
            "pod": "worker-0",
            "gpu": "GPU-1",
            "node": "node-a",
            "verdict": "Idle",
            "signals": [
                {"name": name, "peakPercent": "0", "coveragePercent": "100", "lastSample": "2026-12-01T12:00:00Z"}
                for name in ("gr_engine_active", "gpu_util")
            ],
        },
    ]
    assert evidence(None) == []


# ------------------------------------------------------------------------------------------------------------- leading


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([INACTIVE, ACTIVE, NO_ANSWER], ACTIVE),
        ([INACTIVE, NO_ANSWER], NO_ANSWER),
        ([INACTIVE, INACTIVE], INACTIVE),
        ([NO_ANSWER, ACTIVE], ACTIVE),
    ],
)
def test_of_several_triggers_that_one_prevails_that_does_for_keda(answers: list[Answer], expected: Answer) -> None:
    found = prevailing([decision(answer) for answer in answers])
    assert found is not None
    assert found.answer == expected
    assert prevailing([]) is None


# ------------------------------------------------------------------------------------------------------------- status


def test_a_decision_fills_its_part_of_the_status() -> None:
    made = decision(
        NOT_YET, idle_since=at(-600), policy=policy(keep_until=at(3600)), verdict=verdict(IDLE, gpu_evidence())
    )
    status = decision_status(made)
    assert {name: status[name] for name in status if name != "evidence"} == {
        "verdict": "Idle",
        "reason": "IdleNotLongEnough",
        "message": "running for 20m",
        "evidenceOmitted": None,
        "idleSince": "2026-12-01T11:50:00Z",
        "idleAtLeast": None,
        "suspendAt": "2026-12-01T13:00:00Z",
        "keepUntil": "2026-12-01T13:00:00Z",
    }
    assert len(status["evidence"]) == 1


def test_evidence_is_bounded_and_says_what_it_leaves_out() -> None:
    crowd = WorkloadVerdict(verdict=IDLE, gpus=tuple(gpu_evidence(gpu=f"GPU-{n}") for n in range(EVIDENCE_LIMIT + 36)))
    status = decision_status(decision(verdict=crowd))
    assert (len(status["evidence"]), status["evidenceOmitted"]) == (64, 36)


def test_without_a_decision_everything_that_one_had_filled_is_removed() -> None:
    filled, empty = decision_status(decision()), decision_status(None)
    assert set(filled) == set(empty)
    assert set(empty.values()) == {None}


# ------------------------------------------------------------------------------------------------------------ warnings


@pytest.mark.parametrize(
    ("quiet", "given_policy", "expected"),
    [
        pytest.param(minutes(24), {}, False, id="6 min before, of 30"),
        pytest.param(minutes(25), {}, True, id="5 min before, of 30"),
        pytest.param(minutes(3.9), {"idle_after": minutes(6)}, False, id="126 s before, of 6 min: a third is 120 s"),
        pytest.param(minutes(4), {"idle_after": minutes(6)}, True, id="2 min before, of 6 min"),
        pytest.param(timedelta(seconds=2), {"idle_after": timedelta(seconds=3)}, True, id="1 s before, of 3 s"),
        pytest.param(minutes(29), {"mode": EnforcementMode.OBSERVE}, False, id="only observed: never suspended"),
        pytest.param(minutes(29), {"keep_until": at(3600)}, False, id="kept for another hour"),
        pytest.param(minutes(60), {"keep_until": at(240)}, True, id="kept for another 4 min"),
    ],
)
def test_a_warning_is_due_a_third_of_idle_after_before_and_5_minutes_at_most(
    quiet: timedelta, given_policy: dict[str, Any], expected: bool
) -> None:
    made = decision(NOT_YET, verdict=verdict(BUSY), idle_since=NOON - quiet, policy=policy(**given_policy))
    assert is_warning_due(made) is expected


@pytest.mark.parametrize("of", [None, verdict(UNKNOWN)])
def test_no_warning_where_nothing_is_known(of: WorkloadVerdict | None) -> None:
    assert not is_warning_due(decision(NOT_YET, verdict=of, idle_since=NOON - minutes(29)))


# ------------------------------------------------------------------------------------------------------------- explain


def test_explain_tells_everything_about_a_scaled_object() -> None:
    resolved = resolve(
        ("settings", Overrides(warm_up=minutes(5))), ("trigger metadata", Overrides(mode=EnforcementMode.ENFORCE))
    )
    made = decision(NOT_YET, idle_since=at(-600), verdict=verdict(IDLE, gpu_evidence()), policy=resolved)
    shown = EvaluatedScaledObject(
        target=entry().target,
        triggers={Overrides(): made},
        problems=("trigger metadata 'gpus': ...",),
    )
    found = explain(decisions(Evaluation.of({SCALED_OBJECT: shown}, at=NOON)), SCALED_OBJECT)
    assert found is not None
    (trigger,) = found.pop("triggers")
    assert found == {
        "scaledObject": {"namespace": "demo", "name": "first-raycluster"},
        "actuator": "KEDA",
        "target": {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "name": "first-raycluster"},
        "evaluatedAt": "2026-12-01T12:00:00+00:00",
        "evaluationAgeSeconds": 0.0,
        "problems": ["trigger metadata 'gpus': ..."],
        "ignoredKeys": [],
    }
    assert (trigger["answer"], trigger["reason"], trigger["phase"]) == ("active", "IdleNotLongEnough", "Running")
    assert (trigger["idleSince"], trigger["suspendAt"]) == ("2026-12-01T11:50:00+00:00", "2026-12-01T12:50:00+00:00")
    assert trigger["gpus"] == evidence(made.verdict)
    assert {(each["name"], each["value"], each["source"]) for each in trigger["settings"]} == {
        ("idleAfter", "1h", "built-in default"),
        ("warmUp", "5m", "settings"),
        ("activeAbove", "1 %", "built-in default"),
        ("gpus", "all", "built-in default"),
        ("reclaim", "Always", "built-in default"),
        ("idleAfterUnderPressure", "1h", "built-in default"),
        ("warning", "-", "built-in default"),
        ("requireDelivery", "false", "built-in default"),
        ("beforeSuspend", "-", "built-in default"),
        ("beforeSuspendOnFailure", "Hold", "built-in default"),
        ("allowedDuring", "-", "built-in default"),
        ("wakeAt", "-", "built-in default"),
        ("wake", "OnRequest", "built-in default"),
        ("suspendedAtOnce", "-", "built-in default"),
        ("suspendedPerPeriod", "-", "built-in default"),
        ("longestKeep", "-", "built-in default"),
        ("keepsPerWeek", "-", "built-in default"),
        ("keepUsers", "-", "built-in default"),
        ("mode", "enforce", "trigger metadata"),
        ("keepUntil", "-", "built-in default"),
    }


def test_explain_tells_of_the_last_run_of_a_hook() -> None:
    run = HookRun(hook="checkpoint", started_at=at(-60), ended_at=NOON, outcome=HookOutcome.FAILED, message="HTTP 403")
    made = active(DecisionReason.BEFORE_SUSPEND_FAILED, policy=HOOKED, target=a_target(hook_run=run))
    shown = EvaluatedScaledObject(target=TARGET, triggers={Overrides(): made})
    found = explain(decisions(Evaluation.of({SCALED_OBJECT: shown}, at=NOON)), SCALED_OBJECT)
    assert found is not None
    assert found["triggers"][0]["beforeSuspend"] == {
        "hook": "checkpoint",
        "startedAt": "2026-12-01T11:59:00Z",
        "endedAt": "2026-12-01T12:00:00Z",
        "outcome": "Failed",
        "message": "HTTP 403",
        "savedAt": None,
    }


@pytest.mark.parametrize("shown", [None, evaluation(ACTIVE)])
def test_nothing_is_explained_that_was_not_evaluated(shown: Evaluation | None) -> None:
    assert explain(decisions(shown), ("demo", "third")) is None


def active(reason: DecisionReason, **changes: Any) -> Decision:
    return decision(Active(reason=reason, message=""), **changes)


def inactive(reason: DecisionReason) -> Decision:
    return decision(Inactive(reason=reason, message=""), verdict=None)


OBSERVE = policy(mode=EnforcementMode.OBSERVE)
HOOKED = policy(before_suspend="checkpoint")
STARTING = a_target(phase=Phase.STARTING)
NEXT = {
    "quiet for 10 of 30 min": (
        decision(NOT_YET, idle_since=at(-600)),
        "If its GPUs stay quiet the answer turns inactive at 2026-12-01T12:20:00Z, in 20m.",
    ),
    "quiet for 10 of 30 min, with a hook": (
        decision(NOT_YET, idle_since=at(-600), policy=HOOKED),
        "If its GPUs stay quiet its hook checkpoint begins at 2026-12-01T12:20:00Z, in 20m.",
    ),
    "its hook runs": (
        active(DecisionReason.BEFORE_SUSPEND, policy=HOOKED, verdict=verdict(IDLE)),
        "Once its hook has ended the answer turns inactive, if its GPUs stay quiet.",
    ),
    "its hook has failed": (
        active(DecisionReason.BEFORE_SUSPEND_FAILED, policy=HOOKED, verdict=verdict(IDLE)),
        "It stays at 1 until its hook runs again and succeeds; after work, or later.",
    ),
    "at work": (decision(ACTIVE), "It stays up while any work is seen; after 30m without, the answer turns inactive."),
    "mode observe": (
        active(DecisionReason.OBSERVE_ONLY, verdict=verdict(IDLE), policy=OBSERVE),
        "It stays at 1 whatever its GPUs do: mode observe only reports.",
    ),
    "starting": (
        active(DecisionReason.STARTING, target=STARTING, verdict=None),
        "It stays at 1; its GPUs are judged once all of its GPU pods run.",
    ),
    "unknown": (
        decision(NO_ANSWER),
        "KEDA gets an error and leaves the replicas as they are, until this is known again.",
    ),
    "judged idle": (decision(INACTIVE), "KEDA scales it to 0 at its next poll after its cooldownPeriod."),
    "suspended": (
        inactive(DecisionReason.SUSPENDED),
        "It stays at 0 until a wake-up: kubectl scale, annotation idlegpu.io/wake, or a wake query.",
    ),
    "suspended, and it comes back when there is room": (
        replace(
            inactive(DecisionReason.SUSPENDED),
            target=a_target(desired_replicas=0, phase=Phase.SUSPENDED, when_free_request="annotation idlegpu.io/wake"),
        ),
        "It comes back when its quota and nodes are free and no Workload waits for them: annotation idlegpu.io/wake.",
    ),
    "waking": (
        active(DecisionReason.WAKING, verdict=None),
        "KEDA scales it to 1 at its next poll, or at once with an external-push trigger.",
    ),
    "finished at 1": (active(DecisionReason.FINISHED), "Nothing: the workload has finished."),
    "finished at 0": (inactive(DecisionReason.FINISHED), "Nothing: the workload has finished."),
}


@pytest.mark.parametrize(("made", "text"), NEXT.values(), ids=NEXT.keys())
def test_what_happens_next_is_said_in_a_sentence(made: Decision, text: str) -> None:
    assert what_next(made, made.decided_at) == text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(INACTIVE, "The leader scales it to 0.", id="idle"),
        pytest.param(Active(reason=DecisionReason.WAKING, message=""), "The leader scales it to 1.", id="woken"),
        pytest.param(NO_ANSWER, "Its replicas stay as they are, until this is known again.", id="unknown"),
    ],
)
def test_of_what_is_scaled_directly_no_keda_is_named(answer: Answer, text: str) -> None:
    made = decision(answer)
    assert what_next(made, made.decided_at, is_direct=True) == text


def test_a_suspension_that_is_overdue_is_due_now() -> None:
    late = replace(decision(NOT_YET, idle_since=at(-3600)), decided_at=at(0))
    assert what_next(late, late.decided_at).endswith("in 0s.")


# ------------------------------------------------------------------------------------------------------------ overview


def test_the_overview_has_a_line_for_each_scaled_object_in_order() -> None:
    entries = {
        ("demo", "b"): entry(INACTIVE),
        ("demo", "a"): entry(problems=("mode: what?",)),
        ("a", "z"): entry(ACTIVE),
    }
    lines = list(overview(decisions(Evaluation.of(entries, at=NOON))))
    assert [(line["namespace"], line["name"], line.get("answer"), line["problems"]) for line in lines] == [
        ("a", "z", "active", []),
        ("demo", "a", None, ["mode: what?"]),
        ("demo", "b", "inactive", []),
    ]
    assert lines[0]["gpus"] == 1
    assert not overview(decisions(None))
