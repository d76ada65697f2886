"""Every state that a real Kueue brought a Workload into, through `observe`, `state_of` and `next_step`."""

from dataclasses import replace
from datetime import timedelta
from itertools import groupby, product
from pathlib import Path

import pytest
from builders import IDLE, NOON, policy, verdict
from recordings import Moment, moments, one, recorded

from scaler.decision.decision import Inactive
from scaler.decision.gates import decide
from scaler.suspension.transitions import SuspensionStep, next_step
from scaler.targets.target_state import ObservedTarget, Phase, state_of

EVERYTHING = pytest.mark.parametrize("path", recorded("kueue-*.json", "e2e-*.json", "multikueue-*.json"))


def situations(moment: Moment) -> list[ObservedTarget]:
    """The moment under everything that could be asked of it, and by whomever it was deactivated."""
    return [
        ObservedTarget(
            desired_replicas=desired,
            workload=replace(moment.workload, suspended_by_us=ours),
            pods=moment.pods,
            was_bound=True,
            wakes_foreign=wake,
        )
        for desired, ours, wake in product((0, 1), (False, True), (False, True))
    ]


@EVERYTHING
def test_a_recorded_workload_is_read_as_it_stands(path: Path) -> None:
    for moment in moments(path):
        found, spec = moment.workload, moment.json["spec"]
        assert found.active is spec.get("active", True)
        assert found.quota_reserved is moment.is_reserved
        assert found.admitted is moment.has("Admitted")
        assert found.finished is moment.has("Finished")
        assert found.resource_version == moment.json["metadata"]["resourceVersion"]
        assert not found.suspended_by_us, "our annotation is our own"


@EVERYTHING
def test_no_step_races_kueue_in_any_recorded_state(path: Path) -> None:
    for moment in moments(path):
        for situation in situations(moment):
            step, is_active = next_step(situation, state_of(situation)), moment.json["spec"].get("active", True)
            if step is SuspensionStep.ACTIVATE:
                assert not moment.is_reserved
                assert not is_active
                assert situation.desired_replicas == 1
            elif step is SuspensionStep.DEACTIVATE:
                assert is_active
                assert situation.desired_replicas == 0
            elif step is SuspensionStep.ADOPT:
                assert not is_active
            assert step is None or not moment.has("Finished")


@EVERYTHING
def test_asked_to_run_no_recorded_state_is_answered_zero_before_all_of_its_gpu_pods_run(path: Path) -> None:
    long_after = NOON + timedelta(days=365)
    for moment in moments(path):
        for situation in situations(moment):
            found = state_of(situation)
            answer = decide(found, verdict(IDLE), policy=policy(), now=long_after).answer
            if situation.desired_replicas == 1 and isinstance(answer, Inactive):
                assert moment.has("Admitted")
                assert moment.json["spec"].get("active", True)
                members = [pod for pod in moment.pods if pod.is_member]
                assert len(members) >= moment.workload.expected_gpu_pods > 0
                assert all(pod.is_running for pod in members)


# ------------------------------------------------------------------------------------------------------------- stories


def story(path: Path, workload: str) -> list[Phase]:
    """The phases that one Workload went through, had we asked for its `spec.active` and annotated it."""
    phases = []
    for moment in moments(path):
        if moment.workload.name.startswith(workload):
            active = moment.workload.active
            ours = replace(moment.workload, suspended_by_us=not active)
            phases.append(state_of(ObservedTarget(desired_replicas=int(active), workload=ours, pods=moment.pods)).phase)
    return [phase for phase, _ in groupby(phases)]


@one("e2e-keda-idle-to-gang-and-back")
def test_the_whole_story_of_the_notebook_and_the_gang(path: Path) -> None:
    started = [Phase.WAITING_FOR_QUOTA, Phase.WAITING_FOR_CHECKS, Phase.STARTING, Phase.RUNNING]
    assert story(path, "job-notebook") == [*started, Phase.SUSPENDING, Phase.SUSPENDED, *started]
    assert story(path, "job-gang") == [*started, Phase.STARTING, Phase.FINISHED], "a pod that is done runs no more"


@one("kueue-deactivate-slow-terminating-pods")
def test_a_workload_is_not_suspended_before_its_slow_pods_are_gone(path: Path) -> None:
    """Kueue hands its quota on long before."""
    states = [moment for moment in moments(path) if not moment.workload.active and not moment.is_reserved]
    ending = [moment for moment in states if any(pod.holds_gpus for pod in moment.pods)]
    assert ending
    for moment in ending:
        ours = replace(moment.workload, suspended_by_us=True)
        assert state_of(ObservedTarget(desired_replicas=0, workload=ours, pods=moment.pods)).phase is Phase.SUSPENDING


@one("kueue-deactivate-plain-pod")
def test_a_plain_pods_workload_is_refused_from_its_first_state_on(path: Path) -> None:
    assert story(path, "pod-solo") in ([Phase.REFUSED], [Phase.REFUSED, Phase.FINISHED])


@one("kueue-deactivate-pod-group")
def test_a_pod_group_is_suspended_though_its_failed_pods_are_kept_by_finalizers(path: Path) -> None:
    started = [Phase.WAITING_FOR_QUOTA, Phase.STARTING, Phase.RUNNING]
    assert story(path, "grp") == [*started, Phase.SUSPENDING, Phase.SUSPENDED]
