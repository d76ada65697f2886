"""The GPUs of a workload's pods, requested and observed: where attribution is doubtful the verdict is Unknown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scaler.idleness.columns import DeviceWindows
from scaler.idleness.gpu import GpuId, Signal
from scaler.idleness.history import DeviceHistory, History
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import (
    Busy,
    GpuEvidence,
    Idle,
    Unknown,
    Verdict,
    WorkloadVerdict,
    gpu_verdict,
    judged_length,
    workload_verdict,
)


class PodPhase(StrEnum):
    """Source: Kubernetes core/v1 PodPhase, plus the empty phase of an object without status."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


TERMINAL = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})
"""Phases in which a pod holds no GPU any more, deleted or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPod:
    namespace: str
    name: str
    phase: PodPhase
    gpus: int
    """GPUs (or MIG instances) that its containers request."""
    running_since: datetime | None = None
    """When the newest of its containers started running; None while any of them does not run."""
    terminating: bool = False
    node: str = ""

    @property
    def holds_gpus(self) -> bool:
        return self.gpus > 0 and self.phase not in TERMINAL

    @property
    def is_member(self) -> bool:
        """Whether the workload runs on its GPUs, or is about to; a terminating pod is not part of it any more."""
        return self.holds_gpus and not self.terminating

    @property
    def is_running(self) -> bool:
        return self.phase is PodPhase.RUNNING and self.running_since is not None and not self.terminating


def judge(pods: Sequence[GpuPod], history: History, *, policy: Policy, trust: Trust, end: datetime) -> WorkloadVerdict:
    """The verdict on the workload that these pods make up, from the window that ends at `end`.

    Pods that request no GPU count, too, if a GPU reports for them (a DRA claim, a resource that is not configured):
    work on it is the workload's.
    """
    evidence = [
        gpu
        for pod in sorted(pods, key=lambda pod: pod.name)
        if pod.phase not in TERMINAL and not pod.terminating
        for gpu in _pod_evidence(pod, history, policy=policy, trust=trust, end=end)
    ]
    return workload_verdict(evidence, rule=policy.gpus)


def _pod_evidence(
    pod: GpuPod, history: History, *, policy: Policy, trust: Trust, end: datetime
) -> Iterable[GpuEvidence]:
    length = judged_length(policy=policy, trust=trust)
    begin_s = (end - length - trust.interval).timestamp()
    devices = {
        gpu: device
        for gpu, device in sorted(history.devices_of(pod.namespace, pod.name).items())
        if device.last_sample_s >= begin_s
    }
    surplus = _surplus(pod, devices)
    for gpu, device in devices.items():
        windows = device.windows(expected(history.signals, gpu), end=end, length=length)
        verdict = _verdict(windows, policy=policy, trust=trust, end=end)
        yield GpuEvidence(
            gpu=gpu,
            pod=pod.name,
            node=device.series.node or pod.node,
            model=device.series.model,
            verdict=surplus or _shared(gpu, pod, history, trust=trust, end=end) or verdict,
            windows=windows,
            last_active_at=device.last_active_at(policy.active_above_ratio),
        )
    for missing in range(len(devices), pod.gpus):
        yield _missing(pod, missing, len(devices))


def _verdict(windows: DeviceWindows, *, policy: Policy, trust: Trust, end: datetime) -> Verdict:
    """What `gpu_verdict` says, without a look at single windows where all signals agree."""
    if windows.is_all(active=False, above_ratio=policy.active_above_ratio, trust=trust, end=end):
        return Idle()
    if windows.is_all(active=True, above_ratio=policy.active_above_ratio, trust=trust, end=end):
        return Busy()
    return gpu_verdict(windows, policy=policy, trust=trust, end=end)


def expected(signals: Iterable[Signal], gpu: GpuId) -> list[Signal]:
    return [signal for signal in signals if not (gpu.is_mig and signal.absent_on_mig)]


def _surplus(pod: GpuPod, devices: Mapping[GpuId, DeviceHistory]) -> Verdict | None:
    if len(devices) <= pod.gpus:
        return None
    return Unknown(
        reason=UnknownReason.UNEXPECTED_GPUS,
        message=f"pod requests {pod.gpus} and {len(devices)} GPUs reported for it within the window",
    )


def _shared(gpu: GpuId, pod: GpuPod, history: History, *, trust: Trust, end: datetime) -> Verdict | None:
    since_s = (end - trust.max_age).timestamp()
    others = history.other_holders(gpu, (pod.namespace, pod.name), since_s=since_s)
    if not others:
        return None
    names = ", ".join(f"{namespace}/{name}" for namespace, name in others[:3])
    return Unknown(reason=UnknownReason.SHARED_GPU, message=f"the device reports for {names} at the same time")


def _missing(pod: GpuPod, ordinal: int, seen: int) -> GpuEvidence:
    return GpuEvidence(
        gpu=GpuId(device=f"missing-{ordinal}"),
        pod=pod.name,
        node=pod.node,
        model="",
        verdict=Unknown(
            reason=UnknownReason.NO_SAMPLES if seen == 0 else UnknownReason.MISSING_GPUS,
            message=f"pod requests {pod.gpus} GPUs and {seen} of them report",
        ),
        windows={},
    )
