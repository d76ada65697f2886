from typing import Any

import pytest
from builders import IDLE, LONG_AGO, NOON, at, gang, observed, pending_pod, pod, policy, situation, suspended, verdict
from hypothesis import given
from hypothesis import strategies as st

from scaler.decision.decision import Active, Inactive
from scaler.decision.gates import decide
from scaler.decision.reasons import DecisionReason
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.suspension.transitions import SuspensionStep, next_step
from scaler.targets.target_state import (
    ObservedTarget,
    ObservedWorkload,
    Phase,
    TargetState,
    WakeCause,
    WakeRequest,
    running_since,
    state_of,
    state_of_scale,
)

ENDING = pod("worker-0", terminating=True)
ENDED = pod("worker-0", phase=PodPhase.FAILED, terminating=True)
WAITING = observed(quota_reserved=False, admitted=False)
BY_OTHER = suspended(suspended_by_us=False)
FOREIGN_WAKE = {"wakes_foreign": True}
ASKED = WakeRequest(WakeCause.ANNOTATION, "annotation")
IN_DEMAND = WakeRequest(WakeCause.DEMAND, "demand")
GONE: dict[str, Any] = {"pods": []}
NEVER_BOUND = {"was_bound": False}

Row = tuple[ObservedWorkload | None, dict[str, Any], Phase, SuspensionStep | None, type]
"""A Workload and what else is observed; the phase, the step that is due, and the answer to KEDA if GPUs are idle."""

AT_ZERO: dict[str, Row] = {
    "none yet": (None, NEVER_BOUND, Phase.NO_WORKLOAD, None, Inactive),
    "vanished": (None, {}, Phase.NO_WORKLOAD, None, Unknown),
    "finished": (observed(finished=True), {}, Phase.FINISHED, None, Inactive),
    "finished and inactive": (observed(finished=True, active=False), {}, Phase.FINISHED, None, Inactive),
    "a plain Pod's": (observed(is_plain_pod=True), {}, Phase.REFUSED, None, Unknown),
    "a remote copy": (observed(is_remote_copy=True), {}, Phase.REFUSED, None, Unknown),
    "an inactive remote copy": (suspended(is_remote_copy=True), GONE, Phase.REFUSED, None, Unknown),
    "active and admitted": (observed(), {}, Phase.SUSPENDING, SuspensionStep.DEACTIVATE, Unknown),
    "active and waiting": (WAITING, {}, Phase.SUSPENDING, SuspensionStep.DEACTIVATE, Unknown),
    "activated by another client": (observed(suspended_by_us=True), {}, Phase.RUNNING, None, Active),
    "the same, in a plan": (observed(suspended_by_us=True), {"is_held": True}, Phase.RUNNING, None, Active),
    "the same, no quota": (
        observed(suspended_by_us=True, quota_reserved=False, admitted=False),
        GONE,
        Phase.WAITING_FOR_QUOTA,
        None,
        Active,
    ),
    "held for its plan": (observed(), {"is_held": True}, Phase.HELD, None, Inactive),
    "held, and preempted by Kueue": (WAITING, {"is_held": True}, Phase.WAITING_FOR_QUOTA, None, Inactive),
    "inactive, not by us": (BY_OTHER, {}, Phase.SUSPENDING, SuspensionStep.ADOPT, Inactive),
    "inactive, quota reserved": (suspended(quota_reserved=True, admitted=True), {}, Phase.SUSPENDING, None, Inactive),
    "inactive, pods still there": (suspended(), {"pods": [ENDING]}, Phase.SUSPENDING, None, Inactive),
    "inactive, pods ended, held by a finalizer": (suspended(), {"pods": [ENDED]}, Phase.SUSPENDED, None, Inactive),
    "inactive, no pods": (suspended(), GONE, Phase.SUSPENDED, None, Inactive),
    "woken while it ends": (suspended(), {"wake_request": ASKED}, Phase.SUSPENDING, None, Active),
    "woken": (suspended(), {**GONE, "wake_request": ASKED}, Phase.SUSPENDED, None, Active),
}

AT_ONE: dict[str, Row] = {
    "none yet": (None, NEVER_BOUND, Phase.NO_WORKLOAD, None, Active),
    "vanished": (None, {}, Phase.NO_WORKLOAD, None, Unknown),
    "finished": (observed(finished=True), {}, Phase.FINISHED, None, Active),
    "a plain Pod's": (observed(is_plain_pod=True), {}, Phase.REFUSED, None, Unknown),
    "a remote copy": (observed(is_remote_copy=True), {}, Phase.REFUSED, None, Unknown),
    "an inactive remote copy": (suspended(is_remote_copy=True), GONE, Phase.REFUSED, None, Unknown),
    "inactive by us, quota reserved": (suspended(quota_reserved=True), {}, Phase.SUSPENDING, None, Active),
    "inactive by us, quota released": (suspended(), GONE, Phase.RESUMING, SuspensionStep.ACTIVATE, Active),
    "the same, pods still end": (suspended(), {"pods": [ENDING]}, Phase.RESUMING, SuspensionStep.ACTIVATE, Active),
    "inactive by another client": (BY_OTHER, {}, Phase.DEACTIVATED_BY_OTHER, None, Active),
    "the same, in demand": (
        BY_OTHER,
        {"wake_request": IN_DEMAND},
        Phase.DEACTIVATED_BY_OTHER,
        None,
        Active,
    ),
    "the same, its owner wakes it": (BY_OTHER, FOREIGN_WAKE, Phase.RESUMING, SuspensionStep.ACTIVATE, Active),
    "the same, quota reserved": (
        suspended(suspended_by_us=False, quota_reserved=True),
        FOREIGN_WAKE,
        Phase.SUSPENDING,
        None,
        Active,
    ),
    "no quota": (WAITING, GONE, Phase.WAITING_FOR_QUOTA, None, Active),
    "quota, not admitted": (observed(admitted=False), GONE, Phase.WAITING_FOR_CHECKS, None, Active),
    "admitted, no pod yet": (observed(), GONE, Phase.STARTING, None, Active),
    "admitted, one of two pods runs": (observed(), {"pods": gang(running=1)}, Phase.STARTING, None, Active),
    "one of two pods exists": (observed(), {"pods": gang(running=1, of=1)}, Phase.STARTING, None, Active),
    "one more is pending": (observed(), {"pods": [*gang(), pending_pod("extra")]}, Phase.STARTING, None, Active),
    "admitted, all GPU pods run": (observed(), {}, Phase.RUNNING, None, Inactive),
    "a pod without GPUs waits": (
        observed(),
        {"pods": [*gang(), pending_pod("head", gpus=0)]},
        Phase.RUNNING,
        None,
        Inactive,
    ),
    "no pod has a GPU": (observed(expected_gpu_pods=0), {"pods": [pod(gpus=0)]}, Phase.RUNNING, None, Unknown),
    "activated by hand after our suspension": (
        observed(suspended_by_us=True),
        {},
        Phase.RUNNING,
        SuspensionStep.RELEASE_OWNERSHIP,
        Inactive,
    ),
}


def looked_at(target: ObservedTarget) -> tuple[Phase, SuspensionStep | None]:
    state = state_of(target)
    return state.phase, next_step(target, state)


def step_of(target: ObservedTarget) -> SuspensionStep | None:
    return looked_at(target)[1]


@pytest.mark.parametrize(("desired", "row"), [(0, row) for row in AT_ZERO.values()], ids=AT_ZERO.keys())
def test_at_zero(desired: int, row: Row) -> None:
    is_as_the_table_says(desired, row)


@pytest.mark.parametrize(("desired", "row"), [(1, row) for row in AT_ONE.values()], ids=AT_ONE.keys())
def test_at_one(desired: int, row: Row) -> None:
    is_as_the_table_says(desired, row)


def is_as_the_table_says(desired: int, row: Row) -> None:
    workload, changes, phase, step, answer = row
    target = situation(workload, desired=desired, **changes)
    assert looked_at(target) == (phase, step)
    assert type(decide(state_of(target), verdict(IDLE), policy=policy(), now=NOON).answer) is answer


@pytest.mark.parametrize("phase", list(Phase))
def test_replicas_is_one_only_in_the_phases_of_an_admitted_workload(phase: Phase) -> None:
    state = TargetState(desired_replicas=1, phase=phase)
    assert state.admitted_replicas == (1 if phase in {Phase.STARTING, Phase.RUNNING, Phase.HELD} else 0)


@pytest.mark.parametrize(
    ("given_situation", "message"),
    [
        (situation(None, was_bound=False), "its Kueue Workload does not exist (yet)"),
        (situation(None, was_bound=True), "its Kueue Workload has vanished"),
        (situation(suspended(quota_reserved=True), desired=0), "deactivated; Kueue still holds its quota"),
        (situation(suspended(), desired=0, pods=[ENDING]), "quota released; 1 pod(s) still end"),
        (situation(suspended(), desired=0, pods=[]), "deactivated, quota released, no pod left"),
        (situation(observed(quota_reserved=False, admitted=False)), "waiting for quota"),
        (situation(observed(quota_reserved=False, admitted=False, status_message="2 more needed")), "2 more needed"),
        (situation(observed(admitted=False, status_message="reclaim: waits")), "reclaim: waits"),
        (situation(observed(), pods=gang(running=1)), "1 of 2 GPU pods run"),
        (situation(observed()), "admitted by cluster-queue; all GPU pods run"),
        (
            situation(suspended(suspended_by_us=False, eviction_reason="DeactivatedDueToAdmissionCheck")),
            "another client set spec.active to false (DeactivatedDueToAdmissionCheck); "
            "set annotation idlegpu.io/wake to run it again",
        ),
    ],
)
def test_where_it_stands_is_said_in_words(given_situation: ObservedTarget, message: str) -> None:
    assert state_of(given_situation).message == message


# ------------------------------------------------------------------------------------------------------------ the laws

pods = st.builds(
    pod,
    st.sampled_from(["worker-0", "worker-1", "head"]),
    gpus=st.integers(0, 2),
    phase=st.sampled_from(PodPhase),
    running_since=st.sampled_from([None, LONG_AGO, NOON]),
    terminating=st.booleans(),
)
flags = {
    name: st.booleans()
    for name in ("active", "finished", "quota_reserved", "admitted", "suspended_by_us", "is_plain_pod")
}
workloads = st.one_of(st.none(), st.builds(observed, expected_gpu_pods=st.integers(0, 3), **flags))
situations = st.builds(
    lambda workload, **changes: situation(workload, **changes),
    workloads,
    desired=st.integers(0, 1),
    pods=st.lists(pods, max_size=4),
    was_bound=st.booleans(),
    wake_request=st.sampled_from([None, ASKED]),
    wakes_foreign=st.booleans(),
)


@given(given_situation=situations)
def test_a_step_is_taken_only_where_it_may_be(given_situation: ObservedTarget) -> None:
    """What finished, vanished or is refused is not touched; no Workload is activated while Kueue counts its quota."""
    workload, step, desired = given_situation.workload, step_of(given_situation), given_situation.desired_replicas
    if workload is None or workload.finished or workload.is_plain_pod:
        assert step is None
    elif step is SuspensionStep.ACTIVATE:
        assert (workload.active, workload.quota_reserved, desired) == (False, False, 1)
        assert workload.suspended_by_us or given_situation.wakes_foreign
    elif step is SuspensionStep.DEACTIVATE:
        assert (workload.active, desired) == (True, 0)
    elif step is SuspensionStep.RELEASE_OWNERSHIP:
        assert (workload.active, desired) == (True, 1)


def test_a_second_scalable_workload_of_a_workload_is_refused_and_gets_no_answer() -> None:
    for desired in (0, 1):
        found = situation(observed(), desired=desired, pods=gang(), taken_by="older")
        assert looked_at(found) == (Phase.REFUSED, None)
        doubt = state_of(found).doubt
        assert doubt is not None
        assert doubt.reason is UnknownReason.UNSUPPORTED_WORKLOAD
        assert "ScalableWorkload older scales Workload" in doubt.message


@given(given_situation=situations)
def test_taking_a_step_makes_it_unnecessary(given_situation: ObservedTarget) -> None:
    """A plan that is carried out is not planned again: no writing in circles."""
    workload, step = given_situation.workload, step_of(given_situation)
    if workload is None or step is None:
        return
    wanted_active = step in {SuspensionStep.ACTIVATE, SuspensionStep.RELEASE_OWNERSHIP}
    flags = {name: getattr(workload, name) for name in ("finished", "quota_reserved", "admitted", "is_plain_pod")}
    after = observed(active=wanted_active, suspended_by_us=not wanted_active, **flags)
    again = situation(after, desired=given_situation.desired_replicas, pods=given_situation.pods)
    assert step_of(again) is None


@given(given_situation=situations)
def test_at_one_nothing_but_an_idle_verdict_makes_the_answer_zero(given_situation: ObservedTarget) -> None:
    found = state_of(given_situation)
    for of in (None, verdict(IDLE)):
        answer = decide(found, of, policy=policy(), now=NOON).answer
        if isinstance(answer, Inactive) and given_situation.desired_replicas == 1:
            assert answer.reason is DecisionReason.GPUS_IDLE
            assert of is not None
            assert found.phase is Phase.RUNNING
            assert given_situation.workload is not None
            assert given_situation.workload.admitted
            assert given_situation.workload.active


# ------------------------------------------------------------------------------------------------------------- warm-up


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param([pod("a", running_since=at(-60)), pod("b", running_since=at(-30))], at(-30), id="the newest"),
        pytest.param([pod("a", running_since=at(-60)), pending_pod("b")], None, id="one does not run"),
        pytest.param([pod("a", running_since=at(-60)), pending_pod("b", gpus=0)], at(-60), id="GPUs only"),
        pytest.param([pod("a", running_since=at(-60)), pod("b", running_since=None)], None, id="one did not say"),
        pytest.param([pod("a", running_since=at(-60)), pod("b", terminating=True)], at(-60), id="one ends"),
        pytest.param([pod("a", running_since=at(-60)), pod("b", phase=PodPhase.SUCCEEDED)], at(-60), id="one is done"),
        pytest.param([], None, id="none"),
    ],
)
def test_warm_up_counts_from_the_newest_of_the_gpu_containers(members: list[GpuPod], expected: Any) -> None:
    assert running_since(members) == expected


# ------------------------------------------------------------------------------------------- targets of any other kind


@pytest.mark.parametrize(
    ("replicas", "members", "phase"),
    [
        pytest.param(0, [], Phase.SUSPENDED, id="at 0"),
        pytest.param(0, [ENDING], Phase.SUSPENDED, id="at 0, a pod still ends"),
        pytest.param(1, [], Phase.STARTING, id="no pod yet"),
        pytest.param(1, [pod(gpus=0)], Phase.STARTING, id="no pod with GPUs: held for ever"),
        pytest.param(1, [pending_pod()], Phase.STARTING, id="its pod is pending"),
        pytest.param(2, [pod()], Phase.STARTING, id="one of two pods"),
        pytest.param(1, [pod("old"), pending_pod("new")], Phase.STARTING, id="a rolling update"),
        pytest.param(1, [pod()], Phase.RUNNING, id="its pod runs"),
        pytest.param(1, gang(of=4, running=4), Phase.RUNNING, id="a group of four pods per replica"),
    ],
)
def test_a_deployment_runs_when_all_of_its_gpu_pods_do(replicas: int, members: list[GpuPod], phase: Phase) -> None:
    assert state_of_scale(replicas=replicas, pods=members).phase is phase


def test_a_deployment_says_how_many_of_its_pods_run() -> None:
    assert state_of_scale(replicas=2, pods=[pod()]).message == "1 of 2 GPU pods run"
    assert state_of_scale(replicas=1, pods=[]).message == "no pod of it requests a GPU"
    assert state_of_scale(replicas=0, pods=[]).message == "it is scaled to 0"


@given(replicas=st.integers(0, 3), members=st.lists(pods, max_size=4), wish=st.sampled_from([None, ASKED]))
def test_a_deployment_at_one_or_more_is_never_answered_zero_without_an_idle_verdict(
    replicas: int, members: list[GpuPod], wish: WakeRequest | None
) -> None:
    found = state_of_scale(replicas=replicas, pods=members, wake_request=wish)
    answer = decide(found, None, policy=policy(), now=NOON).answer
    if replicas:
        assert isinstance(answer, Active)
    else:
        assert isinstance(answer, Active if wish else Inactive)
