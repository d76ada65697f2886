"""The state of every GPU that a pod holds."""

from collections import Counter
from datetime import timedelta

import pytest
from builders import (
    BUSY,
    IDLE,
    INACTIVE,
    NO_ANSWER,
    NOON,
    a_target,
    decision,
    gpu_evidence,
    minutes,
    pending_pod,
    pod,
    unknown,
    verdict,
)
from hypothesis import given
from hypothesis import strategies as st

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, Verdict
from scaler.reporting.usage.gpu_states import (
    UNSCALED,
    GpuState,
    GpuStatus,
    NodeTrust,
    NotScaledReason,
    StartupLimits,
    distrusted,
    doubt_of,
    doubted,
    idle_status,
    states_of,
    trust_in,
)
from scaler.targets.target_state import Phase

STARTUP = StartupLimits(ripe=minutes(30), shown=minutes(3))
OLD = minutes(120)


def silent(reason: UnknownReason = UnknownReason.NO_SAMPLES) -> GpuEvidence:
    return gpu_evidence(unknown(reason), windows={})


def state_of(gpu: GpuEvidence, when_idle: GpuStatus = UNSCALED, *, age: timedelta = OLD) -> tuple[str, str]:
    [found] = states_of(pod(running_since=NOON - age), [gpu], when_idle, startup=STARTUP, now=NOON)
    return str(found.state), found.reason


def status_of(answer: Answer, **changes: object) -> GpuStatus:
    return idle_status(decision(answer), **changes)  # type: ignore[arg-type]


def active(reason: DecisionReason) -> GpuStatus:
    return status_of(Active(reason=reason, message=""))


QUIET, WORKING = gpu_evidence(IDLE), gpu_evidence(BUSY)
STATES = {
    "work was seen": (WORKING, UNSCALED, "Busy", ""),
    "work was seen, and its workload is not known": (WORKING, status_of(NO_ANSWER), "Busy", ""),
    "KEDA was answered 0": (QUIET, status_of(INACTIVE), "Idle", "GPUsIdle"),
    "only time keeps it": (QUIET, active(DecisionReason.IDLE_NOT_LONG_ENOUGH), "Idle", "IdleNotLongEnough"),
    "no ScaledObject scales it": (QUIET, UNSCALED, "HeldIdle", "NoScaledObject"),
    "its owner keeps it": (QUIET, active(DecisionReason.KEPT), "HeldIdle", "Kept"),
    "it is only observed": (QUIET, active(DecisionReason.OBSERVE_ONLY), "HeldIdle", "ObserveOnly"),
    "another GPU of its workload works": (QUIET, active(DecisionReason.GPUS_BUSY), "HeldIdle", "GPUsBusy"),
    "KEDA is paused": (QUIET, status_of(INACTIVE, is_paused=True), "HeldIdle", "PausedInKEDA"),
    "its workload is not known": (QUIET, status_of(NO_ANSWER), "Unknown", "StaleSamples"),
    "its samples are stale": (gpu_evidence(unknown()), UNSCALED, "Unknown", "StaleSamples"),
    "nothing reports for it": (silent(), UNSCALED, "WithoutMetrics", "NoSamples"),
    "other GPUs of the pod report": (silent(UnknownReason.MISSING_GPUS), UNSCALED, "WithoutMetrics", "MissingGPUs"),
}


@pytest.mark.parametrize(("gpu", "when_idle", "state", "reason"), STATES.values(), ids=STATES)
def test_each_gpu_is_in_one_state_with_a_reason(
    gpu: GpuEvidence, when_idle: GpuStatus, state: str, reason: str
) -> None:
    assert state_of(gpu, when_idle) == (state, reason)


@pytest.mark.parametrize(
    "because", [DecisionReason.KEPT, DecisionReason.WARMING_UP, DecisionReason.IDLE_NOT_LONG_ENOUGH]
)
def test_an_answer_that_needs_no_verdict_makes_no_idle_gpu_of_a_workload_that_is_not_known(
    because: DecisionReason,
) -> None:
    kept = decision(Active(reason=because, message=""), verdict=verdict(unknown(UnknownReason.MISSING_GPUS)))
    assert state_of(gpu_evidence(IDLE), idle_status(kept)) == ("Unknown", "MissingGPUs")


def test_a_victim_that_waits_for_the_rest_of_its_plan_is_held() -> None:
    reclaimed = Inactive(reason=DecisionReason.RECLAIMED, message="")
    held = decision(reclaimed, target=a_target(phase=Phase.HELD, desired_replicas=0))
    assert state_of(gpu_evidence(IDLE), idle_status(held)) == ("HeldIdle", NotScaledReason.PLAN)


@pytest.mark.parametrize(
    ("age", "gpu", "expected"),
    [
        # The first sample may take 3 minutes, and 30 must be covered.
        (minutes(2), silent(), "Starting"),
        (minutes(3), silent(), "WithoutMetrics"),
        (minutes(29), gpu_evidence(unknown(UnknownReason.LOW_COVERAGE)), "Starting"),
        (minutes(30), gpu_evidence(unknown(UnknownReason.LOW_COVERAGE)), "Unknown"),
        (minutes(29), gpu_evidence(unknown(UnknownReason.SIGNALS_DISAGREE)), "Unknown"),
        (minutes(2), gpu_evidence(BUSY), "Busy"),
        # What reports is the pod that had the GPU before.
        (minutes(2), gpu_evidence(unknown(UnknownReason.SHARED_GPU)), "Starting"),
        (minutes(3), gpu_evidence(unknown(UnknownReason.SHARED_GPU)), "Unknown"),
    ],
)
def test_what_a_young_pod_cannot_have_shown_yet_is_no_fault(age: timedelta, gpu: GpuEvidence, expected: str) -> None:
    assert state_of(gpu, age=age)[0] == expected


def test_gpus_of_pods_that_do_not_run_are_allocated_all_the_same() -> None:
    def states(of: object, gpus: list[GpuEvidence]) -> list[str]:
        return [str(each.state) for each in states_of(of, gpus, UNSCALED, startup=STARTUP, now=NOON)]  # type: ignore[arg-type]

    assert states(pending_pod(gpus=2), []) == ["Starting"] * 2
    late = active(DecisionReason.PODS_NOT_RUNNING)
    [found] = states_of(pending_pod(), [], late, startup=STARTUP, now=NOON)
    assert found == GpuStatus(GpuState.STARTING, "PodsNotRunning"), "held, and unused: that it says why"
    assert states(pod(gpus=2, terminating=True), [gpu_evidence(BUSY)]) == ["Ending"] * 2


VERDICTS = st.sampled_from([IDLE, BUSY, *(unknown(reason) for reason in UnknownReason)])
ANSWERS = st.one_of(
    st.sampled_from(DecisionReason).map(lambda because: Active(reason=because, message="")),
    st.sampled_from(DecisionReason).map(lambda because: Inactive(reason=because, message="")),
    st.just(NO_ANSWER),
)


@given(
    st.integers(1, 8),
    st.lists(VERDICTS, max_size=10),
    ANSWERS,
    st.booleans(),
    st.sampled_from(PodPhase),
    st.integers(0, 60),
)
def test_the_states_of_a_pod_add_up_to_what_it_requests(
    gpus: int, verdicts: list[Verdict], answer: Answer, terminating: bool, phase: PodPhase, age: int
) -> None:
    of = pod(gpus=gpus, terminating=terminating, phase=phase, running_since=NOON - minutes(age))
    evidence = [gpu_evidence(each) for each in verdicts]
    found = [*states_of(of, evidence, status_of(answer), startup=STARTUP, now=NOON)]
    assert len(found) == gpus
    # Absence is not idleness: only positive evidence makes a GPU idle.
    assert sum(each.state in (GpuState.IDLE, GpuState.HELD_IDLE) for each in found) <= verdicts[:gpus].count(IDLE)


UNREQUESTED = {
    "each that reports": (pod(gpus=0), [WORKING, WORKING], ["Busy", "Busy"]),
    # Since when it runs is only known of containers that request a GPU.
    "not starting for ever": (
        pod(gpus=0, running_since=None),
        [WORKING, gpu_evidence(unknown(UnknownReason.LOW_COVERAGE))],
        ["Busy", "Unknown"],
    ),
    "ending with the pod": (pod(gpus=0, terminating=True), [WORKING], ["Ending"]),
}


@pytest.mark.parametrize(("of", "gpus", "states"), UNREQUESTED.values(), ids=UNREQUESTED)
def test_gpus_of_a_pod_that_requests_none_count(of: GpuPod, gpus: list[GpuEvidence], states: list[str]) -> None:
    assert [each.state for each in states_of(of, gpus, UNSCALED, startup=STARTUP, now=NOON)] == states


# ---- nodes


def test_a_node_is_as_trusted_as_its_worst_gpu_and_silent_when_none_reports() -> None:
    busy, stale = GpuStatus(GpuState.BUSY), GpuStatus(GpuState.UNKNOWN, "StaleSamples")
    gone, early = GpuStatus(GpuState.WITHOUT_METRICS, "NoSamples"), GpuStatus(GpuState.STARTING)
    assert trust_in(Counter({busy: 8})) is NodeTrust.TRUSTED
    assert trust_in(Counter({busy: 7, stale: 1})) is NodeTrust.DISTRUSTED
    assert trust_in(Counter({busy: 7, gone: 1})) is NodeTrust.DISTRUSTED
    assert trust_in(Counter({gone: 8})) is NodeTrust.SILENT
    assert trust_in(Counter({gone: 1, early: 7})) is NodeTrust.SILENT
    assert trust_in(Counter({early: 8})) is None
    assert distrusted(Counter({busy: 5, stale: 1, gone: 2})) == {"StaleSamples": 1, "NoSamples": 2}


def test_a_node_is_not_blamed_for_what_another_node_lacks() -> None:
    assert trust_in(Counter({doubted(UnknownReason.NO_SAMPLES): 8})) is NodeTrust.TRUSTED


def test_the_quiet_of_a_pod_is_doubted_where_one_of_its_gpus_is_unknown() -> None:
    assert (doubt_of(verdict(unknown())), doubt_of(verdict(IDLE))) == (UnknownReason.STALE_SAMPLES, None)
