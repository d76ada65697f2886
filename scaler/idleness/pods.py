"""The GPUs of a workload's pods, requested and observed: where attribution is doubtful the verdict is Unknown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from math import inf
from typing import Protocol

import numpy as np

from scaler.idleness.gpu import GpuId, Signal
from scaler.idleness.history import DeviceHistory, History
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import (
    OWN_QUIET,
    Code,
    GpuEvidence,
    GpuVerdicts,
    Unknown,
    Verdict,
    WorkloadVerdict,
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
        """The time from which it might have run; None where its containers with GPUs do, and where it has none."""
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
    """A cluster of which nothing is known: each pod that a series names may hold the GPU."""

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
    found: GpuVerdicts | None = None,
) -> WorkloadVerdict:
    """The verdict on the workload that these pods make up, from the window that ends at `end`.

    Pods that request no GPU count, too, if a GPU reports for them (a DRA claim, a resource that is not configured):
    work on it is the workload's. `found`: the verdicts on the GPUs of more pods, where these are judged together.
    """
    if found is None:
        found = look([(pods, policy)], history, trust=trust, end=end)[judged_by(policy, trust)]
    judging = _Judging(history=history, policy=policy, trust=trust, end=end, places=places, found=found)
    evidence = [
        gpu
        for pod in sorted(pods, key=lambda pod: pod.name)
        if pod.phase not in TERMINAL and not pod.terminating
        for gpu in judging.evidence_of(pod)
    ]
    return workload_verdict(evidence, rule=policy.gpus)


JudgedBy = tuple[float, timedelta]
"""The ratio from which on a GPU is active, and the length of the window."""


def judged_by(policy: Policy, trust: Trust) -> JudgedBy:
    return policy.active_above_ratio, judged_length(policy=policy, trust=trust)


def look(
    asked: Iterable[tuple[Iterable[GpuPod], Policy]], history: History, *, trust: Trust, end: datetime
) -> Mapping[JudgedBy, GpuVerdicts]:
    """The verdicts on the GPUs of all these pods, together for all policies that judge alike."""
    rows: dict[JudgedBy, dict[int, None]] = {}
    for pods, policy in asked:
        found = rows.setdefault(judged_by(policy, trust), {})
        found.update((row, None) for pod in pods for row in history.rows_of(pod.namespace, pod.name))
    return {
        (above_ratio, length): history.verdicts(
            np.fromiter(found, np.intp, len(found)), above_ratio=above_ratio, length=length, trust=trust, end=end
        )
        for (above_ratio, length), found in rows.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judging:
    history: History
    policy: Policy
    trust: Trust
    end: datetime
    places: PodPlaces
    found: GpuVerdicts

    def evidence_of(self, pod: GpuPod) -> Iterable[GpuEvidence]:
        found, devices = self.found, self._devices(pod)
        surplus = _surplus(pod, devices)
        for gpu, device in devices.items():
            place = found.positions[device.row]
            verdict = surplus or self._verdict(pod, device, place)
            last_active = found.last_active.item(place)
            yield GpuEvidence(
                gpu=gpu,
                pod=pod.name,
                node=device.series.node or pod.node,
                model=device.series.model,
                verdict=verdict,
                windows=found.windows_at(place),
                last_active_at=None if last_active == -inf else datetime.fromtimestamp(last_active, UTC),
                unseen_until=None if isinstance(verdict, Unknown) else self._unseen_until(pod, device, place),
                is_quiet=found.is_quiet.item(place),
                is_lone_witness=found.is_lone_witness.item(place),
            )
        for missing in range(len(devices), pod.gpus):
            yield _missing(pod, missing, len(devices))

    def _devices(self, pod: GpuPod) -> dict[GpuId, DeviceHistory]:
        """GPUs that reported for the pod since the window began, or since the pod started."""
        started_s = -inf if pod.started_at is None else pod.started_at.timestamp()
        codes, positions = self.found.codes, self.found.positions
        return {
            gpu: device
            for gpu, device in sorted(self.history.devices_of(pod.namespace, pod.name).items())
            if codes.item(positions[device.row]) != Code.ABSENT
            and device.last_sample_s >= started_s
            and self._place_of(device, pod) is not Place.ELSEWHERE
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

    def _verdict(self, pod: GpuPod, device: DeviceHistory, place: int) -> Verdict:
        """The verdict on one GPU in words, unless its quiet is not believed for what the cluster says of its Node."""
        code, node, host = Code(self.found.codes.item(place)), pod.node, device.series.node
        if code is Code.SHARED:
            names = ", ".join(self._other_holders(device)[:3])
            return Unknown(reason=UnknownReason.SHARED_GPU, message=f"the device reports for {names} at the same time")
        if code in OWN_QUIET and self.places.offers_shared(device.series.gpu, node):
            message = f"Node {node} offers its GPUs more than once: a pod's own series can be 0 while the pod works"
            return Unknown(reason=UnknownReason.SHARED_GPU, message=message)
        if code is Code.IDLE and self._place_of(device, pod) is Place.IN_DOUBT:
            message = f"its series name the host {host}, and nothing shows whether that is Node {node}"
            return Unknown(reason=UnknownReason.UNEXPECTED_GPUS, message=message)
        return self.found.in_words(place)

    def _unseen_until(self, pod: GpuPod, device: DeviceHistory, place: int) -> datetime | None:
        """The time until which work may have gone unseen: unexplained by its series, and before an idle one's begin."""
        until_s = self.found.unexplained.item(place)
        if self.found.codes.item(place) == Code.IDLE:
            signals = expected(self.history.signals, device.series.gpu)
            until_s = max(until_s, _begin_s(pod, device, signals, self.trust))
        return None if until_s == -inf else datetime.fromtimestamp(until_s, UTC)

    def _other_holders(self, device: DeviceHistory) -> list[str]:
        """Pods that hold GPUs and for which the same GPU reports now."""
        history, since_s = self.history, (self.end - self.trust.max_age).timestamp()
        others = (x for x in history.others_of(device.series.gpu, device.pod) if x.series.gpu == device.series.gpu)
        return sorted("/".join(x.pod) for x in others if history.is_holder(x) and x.last_sample_s >= since_s)


class Place(Enum):
    """The place where a series that names a pod was taken."""

    HERE = auto()
    ELSEWHERE = auto()
    IN_DOUBT = auto()


def _is_same_host(host: str, node: str) -> bool:
    """Whether one is the other without its domain."""
    return node.startswith(f"{host}.") or host.startswith(f"{node}.")


def _begin_s(pod: GpuPod, device: DeviceHistory, signals: Iterable[Signal], trust: Trust) -> float:
    """When its samples begin, in Unix seconds; -inf where they go back to the pod's start."""
    begin = device.unbroken_since(signals, trust.max_gap_intervals)
    is_whole = begin and pod.running_since and begin <= pod.running_since + trust.max_gap_intervals * trust.interval
    return -inf if is_whole or begin is None else begin.timestamp()


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
