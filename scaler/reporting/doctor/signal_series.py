"""What was read of a metrics source, and what its labels say: devices, the pods that hold them, MIG instances.

Pure values, for `signals` and `devices` to judge.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.idleness.gpu import GpuId, GpuSeries, Signal, identify, utilisation_ratio
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import RelabelRules, relabel
from scaler.reporting.doctor.findings import Finding, Severity, Topic, Unread

Samples = Sequence[tuple[float, float]]
PodKey = tuple[str, str]
"""(namespace, name)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series as a source returned it."""

    labels: Mapping[str, str]
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All series of one signal."""

    signal: Signal
    series: Sequence[Series] = ()
    server_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that the Kubernetes API knows of."""

    allocatable: int | None = 0
    """Of all nodes that are ready, shared ones counted as often as they are offered. None: nodes are not read."""
    shared_nodes: Sequence[str] = ()
    """Nodes whose GPUs are offered more than once (time-slicing, MPS)."""
    pods: Set[PodKey] = frozenset()
    """Pods that hold GPUs and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeries:
    """What was read of the metrics source, and what it is compared with."""

    reads: Mapping[str, Read | Unread]
    """By the signal's name."""
    rules: RelabelRules
    trust: Trust
    gpus: Gpus | Unread
    span: timedelta
    """How far back was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSeries:
    """One signal's series, with what their labels say."""

    read: Read
    held: Sequence[tuple[GpuSeries, Samples]]
    """Those that name a device and a pod."""
    devices: Mapping[GpuId, str]
    """All that are shown, held or not, with their node."""

    @classmethod
    def of(cls, read: Read, rules: RelabelRules) -> "SignalSeries":
        held, devices = [], {}
        for series in read.series:
            labels = relabel(series.labels, rules)
            if labels is None:
                continue
            if found := identify(labels):
                held.append((found, series.samples))
            # With a pod of no meaning, because devices that no pod holds are counted, too.
            if device := identify({"namespace": "-", "pod": "-"} | labels | _no_blanks(labels)):
                devices[device.gpu] = device.node
        return cls(read=read, held=held, devices=devices)

    def peaks(self) -> dict[GpuId, float]:
        """The highest ratio of every device that a pod holds."""
        peaks: dict[GpuId, float] = {}
        for series, samples in self.held:
            ratios = [
                ratio for _, value in samples if (ratio := utilisation_ratio(value, self.read.signal.unit)) is not None
            ]
            if ratios:
                peaks[series.gpu] = max([peaks.get(series.gpu, 0.0), *ratios])
        return peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """What is partitioned by MIG, of which some signals are not published."""

    pods: Set[PodKey]
    """Those that hold MIG instances."""
    only: bool
    """Whether all GPUs that are shown are MIG instances."""

    @classmethod
    def of(cls, shown: Iterable[SignalSeries]) -> "Mig":
        held, devices = set[PodKey](), set[GpuId]()
        for each in shown:
            held |= {(series.namespace, series.pod) for series, _ in each.held if series.gpu.is_mig}
            devices |= each.devices.keys()
        return cls(pods=held, only=bool(devices) and all(each.is_mig for each in devices))


def _no_blanks(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: "-" for name in ("namespace", "pod") if not labels.get(name)}


def metrics_finding(severity: Severity, check: str, what: str, *, where: str = "", do: str = "") -> Finding:
    """A finding about the metrics source."""
    return Finding(severity=severity, topic=Topic.METRICS, check=check, what=what, where=where, do=do)
