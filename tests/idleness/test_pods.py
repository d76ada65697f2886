from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from builders import (
    GPU_UTIL,
    GR_ENGINE,
    INTERVAL,
    NOON,
    TRUST,
    at,
    every,
    found_of,
    history,
    minutes,
    pod,
    policy,
    record,
    series,
)
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.history import History
from scaler.idleness.pods import GpuPod, PodPhase, judge
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Busy, Idle, Unknown, Verdict, WorkloadVerdict
from scaler.idleness.window import as_stored

WINDOW_S = 30 * 60


def quiet(into: History, gpu: str = "GPU-0", name: str = "worker-0", **span: float) -> None:
    record(into, series(gpu, pod=name), every(30, **{"start": -WINDOW_S - 60, "end": -5, **span}))


def working(into: History, gpu: str = "GPU-0", name: str = "worker-0", **span: float) -> None:
    record(into, series(gpu, pod=name), every(30, **{"start": -WINDOW_S - 60, "end": -5, **span}, ratio=0.9))


def judged(pods: Sequence[GpuPod], made: History, **changes: Any) -> WorkloadVerdict:
    return judge(pods, made, policy=policy(**changes), trust=TRUST, end=NOON)


def reason(of: Verdict) -> UnknownReason | None:
    return of.reason if isinstance(of, Unknown) else None


def test_a_gang_whose_gpus_are_all_quiet_is_idle() -> None:
    made = history()
    quiet(made, "GPU-0", "worker-0")
    quiet(made, "GPU-1", "worker-1")
    found = judged([pod("worker-1"), pod("worker-0")], made)
    assert isinstance(found.verdict, Idle)
    assert [(gpu.pod, str(gpu.gpu), gpu.node, gpu.model) for gpu in found.gpus] == [
        ("worker-0", "GPU-0", "node-a", "NVIDIA A100"),
        ("worker-1", "GPU-1", "node-a", "NVIDIA A100"),
    ]


def test_evidence_names_the_pods_node_where_the_exporter_names_none() -> None:
    made = history()
    record(made, replace(series(), node=""), every(30, start=-WINDOW_S - 60, end=-5))
    assert judged([pod()], made).gpus[0].node == "node-a"
    assert judged([replace(pod(gpus=2), node="node-b")], made).gpus[1].node == "node-b", "missing GPUs, too"


def test_a_single_sample_of_work_anywhere_in_the_window_is_work() -> None:
    made = history()
    quiet(made)
    record(made, series(), [(NOON.timestamp() - WINDOW_S + 1, 0.5)])
    assert isinstance(judged([pod()], made).verdict, Busy)


# --------------------------------------------------------------------------------------------- requested and observed


@pytest.mark.parametrize(
    ("requested", "reporting", "expected"),
    [
        pytest.param(4, 4, None, id="4 requested, 4 shown"),
        pytest.param(4, 3, UnknownReason.MISSING_GPUS, id="4 requested, 3 shown"),
        pytest.param(4, 1, UnknownReason.MISSING_GPUS, id="4 requested, 1 shown"),
        pytest.param(4, 0, UnknownReason.NO_SAMPLES, id="4 requested, none shown"),
        pytest.param(1, 2, UnknownReason.UNEXPECTED_GPUS, id="1 requested, 2 shown"),
    ],
)
def test_a_pod_must_show_as_many_gpus_as_it_requests(
    requested: int, reporting: int, expected: UnknownReason | None
) -> None:
    made = history()
    for number in range(reporting):
        quiet(made, f"GPU-{number}")
    found = judged([pod(gpus=requested)], made)
    assert reason(found.verdict) == expected
    assert len(found.gpus) == max(requested, reporting), "what is missing is evidence too"


@pytest.mark.parametrize("rule", [0.0, 0.25, 1.0])
def test_a_missing_gpu_is_unknown_under_every_rule(rule: float) -> None:
    made = history()
    for number in range(3):
        quiet(made, f"GPU-{number}")
    found = judged([pod(gpus=4)], made, share=rule)
    assert reason(found.verdict) is UnknownReason.MISSING_GPUS
    assert isinstance(found.verdict, Unknown)
    assert "pod requests 4 GPUs and 3 of them report" in found.verdict.message


def test_a_gpu_that_reported_in_the_window_and_fell_silent_is_stale_not_missing() -> None:
    made = history()
    quiet(made, "GPU-0")
    quiet(made, "GPU-1", end=-600)
    assert reason(judged([pod(gpus=2)], made).verdict) is UnknownReason.STALE_SAMPLES


def test_work_for_a_pod_that_requests_no_gpu_keeps_the_gang() -> None:
    """A claim (DRA), or a resource that is not among gpuResources: its GPUs are the workload's all the same."""
    made = history()
    quiet(made, "GPU-0", "head")
    working(made, "GPU-1", "worker")
    found = judged([pod("head"), pod("worker", gpus=0)], made)
    assert reason(found.verdict) is UnknownReason.UNEXPECTED_GPUS


@pytest.mark.parametrize("many", [0, 40])
def test_a_gpu_whose_only_sample_is_yet_to_come_is_doubted_for_its_clock(many: int) -> None:
    """However many others are judged with it."""
    made = history(signals=[GPU_UTIL])
    for n in range(many):
        quiet(made, f"GPU-{n + 1}", f"other-{n}")
    device = made.device(GPU_UTIL, series())
    made.refuse(GPU_UTIL, np.array([device.row]), np.array([NOON.timestamp() + 600]))
    found = judged([pod(), *(pod(f"other-{n}") for n in range(many))], made)
    assert reason(found.gpus[-1].verdict) is UnknownReason.CLOCK_SKEW


# ---------------------------------------------------------------------------------------------------------- sharing


def test_a_device_that_reports_for_two_pods_at_once_is_judged_for_neither() -> None:
    made = history()
    quiet(made, "GPU-0", "worker-0")
    working(made, "GPU-0", "neighbour")
    found = judged([pod()], made)
    assert reason(found.verdict) is UnknownReason.SHARED_GPU
    assert isinstance(found.verdict, Unknown)
    assert "demo/neighbour" in found.verdict.message


def test_a_device_handed_over_long_ago_is_not_shared() -> None:
    made = history()
    quiet(made, "GPU-0", "worker-0")
    working(made, "GPU-0", "yesterdays", end=-WINDOW_S)
    assert isinstance(judged([pod()], made).verdict, Idle)


def test_instances_of_one_partitioned_gpu_are_not_shared() -> None:
    made = history(signals=[GR_ENGINE])
    for mig, name in (("1", "worker-0"), ("2", "neighbour")):
        record(made, series("GPU-0", pod=name, mig=mig), every(30, start=-WINDOW_S - 60, end=-5))
    assert isinstance(judged([pod()], made).verdict, Idle)


def test_an_instance_of_a_partitioned_gpu_needs_no_signal_that_exporters_do_not_publish_for_it() -> None:
    made = history()
    record(made, series(mig="1"), every(30, start=-WINDOW_S - 60, end=-5), signals=[GR_ENGINE])
    found = judged([pod()], made)
    assert isinstance(found.verdict, Idle)
    assert list(found.gpus[0].windows) == ["gr_engine_active"]


# ------------------------------------------------------------------------------------------------- which pods count


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod("head", gpus=0), id="a head without GPUs"),
        pytest.param(pod("head", gpus=0, phase=PodPhase.PENDING, running_since=None), id="a pending one without GPUs"),
        pytest.param(pod("worker-1", phase=PodPhase.SUCCEEDED), id="a pod that succeeded"),
        pytest.param(pod("worker-1", phase=PodPhase.FAILED), id="a pod that failed"),
        pytest.param(pod("worker-1", phase=PodPhase.FAILED, terminating=True), id="one kept by a finalizer"),
        pytest.param(pod("worker-1", terminating=True), id="one that ends, on a lost node for ever"),
    ],
)
def test_pods_that_are_no_members_are_not_judged(other: GpuPod) -> None:
    made = history()
    quiet(made)
    found = judged([pod(), other], made)
    assert isinstance(found.verdict, Idle)
    assert [gpu.pod for gpu in found.gpus] == ["worker-0"]


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.UNKNOWN])
def test_a_pod_that_does_not_run_and_has_not_ended_is_judged_like_any_other(phase: PodPhase) -> None:
    made = history()
    quiet(made)
    found = judged([pod(), pod("worker-1", phase=phase, running_since=None)], made)
    assert reason(found.verdict) is UnknownReason.NO_SAMPLES


@pytest.mark.parametrize("pods", [[], [pod(gpus=0)], [pod(phase=PodPhase.SUCCEEDED)]])
def test_without_a_pod_that_holds_gpus_there_is_nothing_to_judge(pods: list[GpuPod]) -> None:
    assert reason(judged(pods, history()).verdict) is UnknownReason.NO_GPU_PODS


@pytest.mark.parametrize(
    ("phase", "running_since", "terminating", "expected"),
    [
        (PodPhase.RUNNING, NOON, False, ["holds", "member", "runs"]),
        (PodPhase.RUNNING, None, False, ["holds", "member"]),
        (PodPhase.RUNNING, NOON, True, ["holds"]),
        (PodPhase.PENDING, None, False, ["holds", "member"]),
        (PodPhase.UNKNOWN, NOON, False, ["holds", "member"]),
        (PodPhase.SUCCEEDED, NOON, False, []),
        (PodPhase.FAILED, NOON, True, []),
    ],
)
def test_a_pod_holds_gpus_until_it_ended_belongs_until_it_ends_and_runs_while_its_containers_do(
    phase: PodPhase, running_since: Any, terminating: bool, expected: list[str]
) -> None:
    made = pod(phase=phase, running_since=running_since, terminating=terminating)
    found = {"holds": made.holds_gpus, "member": made.is_member, "runs": made.is_running}
    assert [word for word, applies in found.items() if applies] == expected
    without = pod(gpus=0, phase=phase, running_since=running_since, terminating=terminating)
    assert not without.holds_gpus
    assert not without.is_member


# ------------------------------------------------------------------------------------------------------ same names


def test_a_pod_recreated_under_its_name_on_another_gpu_is_doubted_while_both_report_in_the_window() -> None:
    """A StatefulSet's pod: the device before it is still in the window, and it is not known whose samples those are."""
    made = history()
    quiet(made, "GPU-0", end=-600)
    quiet(made, "GPU-1", start=-570)
    assert reason(judged([pod(running_since=at(-580))], made).verdict) is UnknownReason.UNEXPECTED_GPUS


def compared(made: History, above_ratio: float) -> float:
    """The verdict on GPU-0 as a number."""
    return found_of(made, above_ratio=above_ratio, length=minutes(30)).compared().item(0)


@given(
    values=st.lists(st.just(0.0) | st.floats(1e-6, 1), min_size=1, max_size=20),
    floor=st.sampled_from([0.01, 0.05]),
    many=st.sampled_from([0, 40]),
)
def test_a_percentage_that_may_be_a_ratio_is_never_idle(values: list[float], floor: float, many: int) -> None:
    """Neither where one GPU is judged alone, nor where many are together. Full load may be 1."""
    made, last_s = history(signals=[GPU_UTIL]), NOON.timestamp() - 5
    for n in range(many):
        quiet(made, f"GPU-{n + 1}", f"other-{n}")
    quiet(made)
    before = compared(made, floor)
    made.record(GPU_UTIL, series("GPU-0", pod="worker-0"), [(last_s - 30 * n, value) for n, value in enumerate(values)])
    found = [
        judged([pod(name)], made, active_above_ratio=floor)
        for name in [f"other-{n}" for n in range(many)] + ["worker-0"]
    ]
    may_be_work = max(values) > 0 and as_stored(max(values) / 100) < as_stored(floor)
    assert (reason(found[-1].verdict) is UnknownReason.SIGNALS_DISAGREE) == may_be_work
    assert may_be_work <= (compared(made, floor) != before), "a decision that is remembered has to be made anew"
    assert all(isinstance(each.verdict, Idle) for each in found[:-1])


def test_once_the_window_has_passed_the_recreated_pod_is_judged_by_its_own_gpu() -> None:
    made = history(span=minutes(60))
    working(made, "GPU-0", start=-3600, end=-WINDOW_S - 60)
    quiet(made, "GPU-1")
    found = judged([pod(running_since=at(-WINDOW_S - 50))], made)
    assert isinstance(found.verdict, Idle)
    assert [str(gpu.gpu) for gpu in found.gpus] == ["GPU-1"]


# ------------------------------------------------------------------------------------------------------------- the law


@given(
    peaks=st.lists(st.sampled_from([0.0, 0.009, 0.5]), min_size=1, max_size=4),
    lost=st.sampled_from(["a GPU", "a signal", "the newest", "a stretch"]),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    data=st.data(),
)
def test_no_loss_of_samples_makes_a_workload_idle(
    peaks: list[float], lost: str, share: float, data: st.DataObject
) -> None:
    victim = data.draw(st.integers(0, len(peaks) - 1))
    full, partial = history(), history()
    for number, peak in enumerate(peaks):
        samples = every(30, start=-WINDOW_S - 60, end=-5, ratio=peak)
        record(full, series(f"GPU-{number}"), samples)
        kept, signals = samples, full.signals
        if number == victim:
            match lost:
                case "a GPU":
                    continue
                case "a signal":
                    signals = (data.draw(st.sampled_from(full.signals)),)
                case "the newest":
                    kept = samples[: -data.draw(st.integers(4, 40))]
                case "a stretch":
                    begin = data.draw(st.integers(5, 40))
                    kept = samples[:begin] + samples[begin + 8 :]
        record(partial, series(f"GPU-{number}"), kept, signals=signals)
    pods = [pod(gpus=len(peaks))]
    known, doubted = (judged(pods, made, share=share).verdict for made in (full, partial))
    assert isinstance(known, Idle) or not isinstance(doubted, Idle)
    if peaks[victim] < 0.01:
        assert not isinstance(doubted, Idle), "its quiet cannot be believed any more"


def test_the_window_is_as_long_as_the_policy_says() -> None:
    made = history()
    quiet(made)
    record(made, series(), [(NOON.timestamp() - 400, 0.9)])
    assert isinstance(judged([pod()], made, idle_after=minutes(5)).verdict, Idle)
    assert isinstance(judged([pod()], made, idle_after=minutes(7)).verdict, Busy)
    assert isinstance(judged([pod()], made, idle_after=timedelta(seconds=1)).verdict, Idle)
    assert timedelta(seconds=30) == INTERVAL, "and at least that, as the last line shows"
