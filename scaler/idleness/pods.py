"""The GPUs of a workload's pods, requested and observed: where attribution is doubtful the verdict is Unknown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from math import inf
from typing import Protocol

from scaler.idleness.columns import DeviceWindows
from scaler.idleness.gpu import GpuId, Signal
from scaler.idleness.history import DeviceHistory, Doubt, History
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
    cause: str = ""
    """Why its GPUs cannot be judged, in words that continue its name; empty where they can."""
    ended: str = ""
    """Which of its containers with GPUs has ended for good while others run, in words."""
    started_at: datetime | None = None
    """When its node took it up, or until then, when it was created. What was recorded before was another pod's of its
    name."""

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

    @property
    def starting_since(self) -> datetime | None:
        """From when on it might have run; None where its containers with GPUs do, and where it has none."""
        return self.started_at if self.gpus and self.running_since is None else None


class PodPlaces(Protocol):
    """What the cluster says of pods and Nodes: whose a series can be."""

    def node_of(self, namespace: str, pod: str) -> str | None:
        """The Node of a pod that holds GPUs here, empty where it is not known; None where no such pod does."""

    def is_node(self, host: str) -> bool:
        """Whether a Node of this cluster has that name."""

    def offers_shared(self, gpu: GpuId, node: str) -> bool:
        """Whether the Node offers such GPUs more than once, to several pods."""


class UnknownPlaces:
    """Nothing is known of the cluster: each pod that a series names may hold the GPU."""

    def node_of(self, namespace: str, pod: str) -> str | None:  # noqa: ARG002
        return ""

    def is_node(self, host: str) -> bool:  # noqa: ARG002
        return False

    def offers_shared(self, gpu: GpuId, node: str) -> bool:  # noqa: ARG002
        return False


UNKNOWN_PLACES = UnknownPlaces()


def judge(
    pods: Sequence[GpuPod],
    history: History,
    *,
    policy: Policy,
    trust: Trust,
    end: datetime,
    places: PodPlaces = UNKNOWN_PLACES,
) -> WorkloadVerdict:
    """The verdict on the workload that these pods make up, from the window that ends at `end`.

    Pods that request no GPU count, too, if a GPU reports for them (a DRA claim, a resource that is not configured):
    work on it is the workload's.
    """
    judging = _Judging(history=history, policy=policy, trust=trust, end=end, places=places)
    evidence = [
        gpu
        for pod in sorted(pods, key=lambda pod: pod.name)
        if pod.phase not in TERMINAL and not pod.terminating
        for gpu in judging.evidence_of(pod)
    ]
    return workload_verdict(evidence, rule=policy.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judging:
    history: History
    policy: Policy
    trust: Trust
    end: datetime
    places: PodPlaces

    def evidence_of(self, pod: GpuPod) -> Iterable[GpuEvidence]:
        history, policy, trust, end = self.history, self.policy, self.trust, self.end
        length = judged_length(policy=policy, trust=trust)
        doubts = history.doubts(above_ratio=policy.active_above_ratio, length=length, trust=trust, end=end)
        unexplained = history.unexplained_until(above_ratio=policy.active_above_ratio, length=length)
        devices = self._devices(pod, length)
        surplus = _surplus(pod, devices)
        for gpu, device in devices.items():
            signals = expected(history.signals, gpu)
            windows = device.windows(signals, end=end, length=length)
            verdict = _verdict(windows, policy=policy, trust=trust, end=end)
            if isinstance(verdict, Idle):
                verdict = _misread(device, windows, signals) or verdict
            doubt, unseen_s = Doubt(int(doubts[device.row])), [unexplained.item(device.row)]
            if isinstance(verdict, Idle):
                unseen_s.append(_unseen_until(pod, device, signals, trust))
            yield GpuEvidence(
                gpu=gpu,
                pod=pod.name,
                node=device.series.node or pod.node,
                model=device.series.model,
                verdict=surplus or self._doubted(pod, device, doubt, verdict),
                windows=windows,
                last_active_at=device.last_active_at(policy.active_above_ratio),
                unseen_until=None if max(unseen_s) == -inf else datetime.fromtimestamp(max(unseen_s), UTC),
                is_lone_witness=len(signals) == 1 and not history.is_alive(device, trust, end),
            )
        for missing in range(len(devices), pod.gpus):
            yield _missing(pod, missing, len(devices))

    def _devices(self, pod: GpuPod, length: timedelta) -> dict[GpuId, DeviceHistory]:
        """GPUs that reported for the pod since the window began, or since the pod started."""
        begin = self.end - length - self.trust.interval
        begin_s = max(begin, pod.started_at or begin).timestamp()
        found = sorted(self.history.devices_of(pod.namespace, pod.name).items())
        return {
            gpu: device
            for gpu, device in found
            if device.last_sample_s >= begin_s and self._place_of(device, pod) is not Place.ELSEWHERE
        }

    def _place_of(self, device: DeviceHistory, pod: GpuPod) -> "Place":
        """Whether the host that the series names is the pod's Node.

        | the host …                                                         | the series is    |
        |--------------------------------------------------------------------|------------------|
        | is not named, or the pod's Node is not known                       | the pod's        |
        | is the pod's Node                                                  | the pod's        |
        | is another Node of this cluster                                    | another pod's    |
        | is the pod's Node with or without its domain                       | the pod's        |
        | stands beside others, the first of which that is a Node is …       | as if it was that|
        | shows other pods, of which all that hold GPUs here run on one Node | as if it was that|
        | shows other pods, none of which holds GPUs here                    | another pod's    |
        | shows no other pod, or pods of several Nodes                       | in doubt         |
        """
        host, node = device.series.node, pod.node
        if not host or not node or host == node:
            return Place.HERE
        if self.places.is_node(host):
            return Place.ELSEWHERE
        if _is_same_host(host, node):
            return Place.HERE
        if named := next(filter(self.places.is_node, device.series.hosts), ""):
            return Place.HERE if named == node else Place.ELSEWHERE
        others = self.history.pods_of_host(host) - {device.pod}
        nodes = {found for each in others if (found := self.places.node_of(*each)) is not None}
        if len(nodes) > 1 or not others:
            return Place.IN_DOUBT
        return Place.HERE if nodes == {node} else Place.ELSEWHERE

    def _doubted(self, pod: GpuPod, device: DeviceHistory, doubt: Doubt, verdict: Verdict) -> Verdict:
        """The verdict, or why it is not believed."""
        if doubt & Doubt.SHARED:
            names = ", ".join(self._other_holders(device)[:3])
            return Unknown(reason=UnknownReason.SHARED_GPU, message=f"the device reports for {names} at the same time")
        found = self._doubts_of_quiet(pod, device, doubt) if isinstance(verdict, Idle) else None
        return found or verdict

    def _other_holders(self, device: DeviceHistory) -> list[str]:
        """Pods that hold GPUs and for which the same GPU reports now."""
        history, since_s = self.history, (self.end - self.trust.max_age).timestamp()
        others = (x for x in history.others_of(device.series.gpu, device.pod) if x.series.gpu == device.series.gpu)
        return sorted("/".join(x.pod) for x in others if history.is_holder(x) and x.last_sample_s >= since_s)

    def _doubts_of_quiet(self, pod: GpuPod, device: DeviceHistory, doubt: Doubt) -> Unknown | None:
        node, host = pod.node, device.series.node
        if self.places.offers_shared(device.series.gpu, node):
            message = f"Node {node} offers its GPUs more than once: a pod's own series can be 0 while the pod works"
            return Unknown(reason=UnknownReason.SHARED_GPU, message=message)
        for flag, (reason, message) in _DOUBTS.items():
            if doubt & flag:
                return Unknown(reason=reason, message=message)
        if self._place_of(device, pod) is Place.IN_DOUBT:
            message = f"its series name the host {host}, and nothing shows whether that is Node {node}"
            return Unknown(reason=UnknownReason.UNEXPECTED_GPUS, message=message)
        return None


_DOUBTS = {
    Doubt.DEVICE_WORKS: (
        UnknownReason.SIGNALS_DISAGREE,
        "a series of the device or its board, which names no pod that holds GPUs, shows work; the pod's own is quiet",
    ),
    Doubt.FROZEN: (
        UnknownReason.FROZEN_EXPORTER,
        "the energy counter of the GPU does not grow, as it does even while idle: the exporter repeats an old page",
    ),
    Doubt.POWER: (
        UnknownReason.SIGNALS_DISAGREE,
        "the board draws the power of one that works, and none of its MIG instances shows work",
    ),
}


class Place(Enum):
    """Where a series that names a pod was taken."""

    HERE = auto()
    ELSEWHERE = auto()
    IN_DOUBT = auto()


def _is_same_host(host: str, node: str) -> bool:
    """Whether one is the other without its domain."""
    return node.startswith(f"{host}.") or host.startswith(f"{node}.")


def _unseen_until(pod: GpuPod, device: DeviceHistory, signals: Iterable[Signal], trust: Trust) -> float:
    """When its samples begin, in Unix seconds; -inf where they go back to the pod's start."""
    begin = device.unbroken_since(signals, trust.max_gap_intervals)
    is_whole = begin and pod.running_since and begin <= pod.running_since + trust.max_gap_intervals * trust.interval
    return -inf if is_whole or begin is None else begin.timestamp()


def _verdict(windows: DeviceWindows, *, policy: Policy, trust: Trust, end: datetime) -> Verdict:
    """What `gpu_verdict` says, without a look at single windows where all signals agree."""
    if windows.is_all(active=False, above_ratio=policy.active_above_ratio, trust=trust, end=end):
        return Idle()
    if windows.is_all(active=True, above_ratio=policy.active_above_ratio, trust=trust, end=end):
        return Busy()
    return gpu_verdict(windows, policy=policy, trust=trust, end=end)


def _misread(device: DeviceHistory, windows: DeviceWindows, signals: Sequence[Signal]) -> Unknown | None:
    """Of a metric in percent whose highest sample is a fraction below 1: as a ratio it would be work.

    1 itself is doubted where all signals are in percent; any other would show that work, too.

    Exporters that measure percent give whole numbers. Source: `nvmlUtilization_t` of NVML, `gpu_gfx_activity` of AMD;
    XPU Manager calls `xpum_engine_ratio` a percentage, and gives 0..1.
    """
    percent = [each.name for each in signals if device.is_percent(each.name)]
    for name in percent:
        if windows.is_fraction(name, or_one=len(percent) == len(signals)):
            peak = 100 * (windows[name].peak_ratio or 0.0)
            message = f"the highest sample of {name} is {peak:.3g}: as a percentage it is nothing, as a ratio work"
            return Unknown(reason=UnknownReason.SIGNALS_DISAGREE, message=f"{message}; see its unit in the settings")
    return None


def expected(signals: Iterable[Signal], gpu: GpuId) -> list[Signal]:
    return [signal for signal in signals if not (gpu.is_mig and signal.absent_on_mig)]


def _surplus(pod: GpuPod, devices: Mapping[GpuId, DeviceHistory]) -> Verdict | None:
    if len(devices) <= pod.gpus:
        return None
    return Unknown(
        reason=UnknownReason.UNEXPECTED_GPUS,
        message=f"pod requests {pod.gpus} and {len(devices)} GPUs reported for it within the window",
    )


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
