"""Does the metrics source show every GPU, under the labels and at the intervals that the settings suppose?

| what is seen                                     | what it means                                                     |
|--------------------------------------------------|-------------------------------------------------------------------|
| no series of a signal                            | the exporter does not publish it: every verdict is Unknown        |
| series, and none names a pod                     | the exporter does not know pods (DCGM_EXPORTER_KUBERNETES)        |
| pods are named, and none of them holds GPUs      | they are the exporter's own: labels were overwritten              |
| `exported_pod` beside `pod`                      | the target's labels won; the default relabel rules put that right |
| samples farther apart than collectionInterval    | coverage can never be reached: LowCoverage                        |
| one device held by several pods                  | time-slicing or MPS: SharedGPU, never suspended                   |
| a ratio above 1.5                                | it is a percentage: quiet GPUs would look busy                    |
| the profiling signal 0 while utilisation is high | profiling is stuck, as after some Xid errors: SignalsDisagree     |

Pure: series as they were read in, findings out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from statistics import median

from scaler.core.durations import format_duration
from scaler.core.gpu import GpuId, GpuSeries, Signal, Unit, identify, utilisation_ratio
from scaler.core.policy import Trust
from scaler.core.relabel import RelabelRules, relabel
from scaler.loops.diagnosis.findings import Finding, Severity, Topic, Unread

Samples = Sequence[tuple[float, float]]
PodKey = tuple[str, str]
"""(namespace, name)."""

_SHOWN = 3
_MISREAD_RATIO = 1.5
_CLEARLY_BUSY_RATIO = 0.5


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

    allocatable: int = 0
    """Of all nodes that are ready, shared ones counted as often as they are offered."""
    shared_nodes: Sequence[str] = ()
    """Nodes whose GPUs are offered more than once (time-slicing, MPS)."""
    pods: Set[PodKey] = frozenset()
    """Pods that hold GPUs and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What was read of the metrics source, and what it is compared with."""

    reads: Mapping[str, Read | Unread]
    """By the signal's name."""
    rules: RelabelRules
    trust: Trust
    gpus: Gpus | Unread
    span: timedelta
    """How far back was read."""


def metrics_findings(metrics: Metrics | Unread, now: datetime) -> Iterator[Finding]:
    """What there is to say about the metrics source."""
    if isinstance(metrics, Unread):
        yield _finding(Severity.WARN, "NotAsked", metrics.reason, do="name one with --prometheus-url or --config")
        return
    shown: dict[str, _Shown] = {}
    for name, read in metrics.reads.items():
        finding = partial(_finding, where=f"signal {name}")
        if isinstance(read, Unread):
            yield finding(Severity.FAIL, "NotRead", read.reason)
            continue
        shown[name] = _Shown.of(read, metrics.rules)
        yield from _of_signal(finding, shown[name], metrics, now)
    yield from _of_devices(shown, metrics)
    yield from _of_agreement(shown)


def _finding(severity: Severity, check: str, what: str, *, where: str = "", do: str = "") -> Finding:
    return Finding(severity=severity, topic=Topic.METRICS, check=check, what=what, where=where, do=do)


_Teller = partial[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """One signal's series, with what their labels say."""

    read: Read
    held: Sequence[tuple[GpuSeries, Samples]]
    """Those that name a device and a pod."""
    devices: Mapping[GpuId, str]
    """All that are shown, held or not, with their node."""

    @classmethod
    def of(cls, read: Read, rules: RelabelRules) -> "_Shown":
        held, devices = [], {}
        for series in read.series:
            labels = relabel(series.labels, rules)
            if labels is None:
                continue
            if found := identify(labels):
                held.append((found, series.samples))
            # With a pod of no meaning, because devices that nobody holds are counted, too.
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


def _no_blanks(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: "-" for name in ("namespace", "pod") if not labels.get(name)}


# -------------------------------------------------------------------------------------------------------- one signal


def _of_signal(finding: _Teller, shown: _Shown, metrics: Metrics, now: datetime) -> Iterator[Finding]:
    read = shown.read
    if not any(each.samples for each in read.series):
        yield _missing(finding, read, metrics)
        return
    problems = [
        *_of_clock(finding, read, metrics.trust, now),
        *_of_unit(finding, read),
        *_of_interval(finding, read, metrics.trust, now),
        *_of_holders(finding, shown, metrics),
    ]
    yield from problems
    if not problems:
        names = ", ".join(sorted({each.labels.get("__name__", "") for each in read.series} - {""}))
        yield finding(Severity.OK, "Shown", f"{names}: {len(read.series)} series{_rhythm(read)}; {_convention(read)}")


def _missing(finding: _Teller, read: Read, metrics: Metrics) -> Finding:
    names = " or ".join(read.signal.metrics)
    return finding(
        Severity.FAIL,
        "NoSeries",
        f"there is no {names} of the last {format_duration(metrics.span)}: every verdict is Unknown",
        do="add it to the exporter's list of counters, or leave it out of `signals` in the settings",
    )


def _of_clock(finding: _Teller, read: Read, trust: Trust, now: datetime) -> Iterator[Finding]:
    skew = abs(now - read.server_time) if read.server_time else timedelta(0)
    if skew > trust.max_clock_skew + timedelta(seconds=1):
        yield finding(
            Severity.FAIL,
            "ClockSkew",
            f"the source's clock and the one here differ by {format_duration(skew)}",
            do="set both by NTP; trust.maxClockSkew of the settings says how much is tolerated",
        )


def _of_unit(finding: _Teller, read: Read) -> Iterator[Finding]:
    if read.signal.unit is not Unit.RATIO:
        return
    measured = (utilisation_ratio(value, Unit.RATIO) for each in read.series for _, value in each.samples)
    peak = max((value for value in measured if value is not None), default=0.0)
    if peak > _MISREAD_RATIO:
        yield finding(
            Severity.FAIL,
            "WrongUnit",
            f"its unit is ratio, and there is a sample of {peak:g}",
            do="set unit: percent for it in the settings",
        )


def _of_interval(finding: _Teller, read: Read, trust: Trust, now: datetime) -> Iterator[Finding]:
    newest = max(each.samples[-1][0] for each in read.series if each.samples)
    age = now - datetime.fromtimestamp(newest, now.tzinfo)
    if age > trust.max_age:
        yield finding(
            Severity.FAIL,
            "Stale",
            f"the newest sample is {format_duration(age)} old, and {format_duration(trust.max_age)} are tolerated",
            do="see whether the exporters are scraped; raise trust.collectionInterval if they collect more seldom",
        )
    apart = _apart(read)
    if apart is not None and apart > trust.interval * 1.25:
        share = trust.interval / apart
        yield finding(
            Severity.FAIL if share < trust.min_coverage_ratio else Severity.WARN,
            "Sparse",
            f"samples are {format_duration(apart)} apart, and trust.collectionInterval is "
            f"{format_duration(trust.interval)}: they cover {share:.0%} where {trust.min_coverage_ratio:.0%} must be",
            do=f"set trust.collectionInterval to {format_duration(apart)}, or scrape more often",
        )


def _apart(read: Read) -> timedelta | None:
    """The time between two samples, as most series have it; None where there are no two."""
    medians = [
        median(later - earlier for (earlier, _), (later, _) in zip(each.samples, each.samples[1:], strict=False))
        for each in read.series
        if len(each.samples) > 1
    ]
    return timedelta(seconds=round(median(medians), 1)) if medians else None


def _rhythm(read: Read) -> str:
    apart = _apart(read)
    return f", samples {format_duration(apart)} apart" if apart else ""


def _convention(read: Read) -> str:
    """How the labels of pods are spelt."""
    names = {name for each in read.series for name, value in each.labels.items() if value}
    if "exported_pod" in names:
        return "pods are in exported_* labels"
    return "pods are in pod and namespace (honorLabels)" if "pod" in names else "no pods are named"


def _of_holders(finding: _Teller, shown: _Shown, metrics: Metrics) -> Iterator[Finding]:
    if isinstance(metrics.gpus, Unread) or not metrics.gpus.pods:
        return
    named = {(each.namespace, each.pod) for each, _ in shown.held}
    if not named:
        yield finding(
            Severity.FAIL,
            "NoPods",
            "no series names the pod that holds the GPU",
            do="set DCGM_EXPORTER_KUBERNETES=true on dcgm-exporter, or add relabel rules to the settings",
        )
    elif not named & metrics.gpus.pods:
        yield finding(
            Severity.FAIL,
            "OtherPods",
            f"the pods that are named hold no GPUs here ({_some(named)})",
            do="they may be the exporter's own (add relabel rules, or honorLabels: true to the scrape), or another "
            "cluster's (prometheus.matchers)",
        )
    elif unseen := metrics.gpus.pods - named:
        yield finding(
            Severity.WARN,
            "PodsNotShown",
            f"{len(unseen)} of {len(metrics.gpus.pods)} pods that hold GPUs have no series ({_some(unseen)})",
            do="see whether an exporter runs on their nodes, and whether it is scraped",
        )


def _some(pods: Set[PodKey]) -> str:
    names = sorted("/".join(each) for each in pods)
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


# ------------------------------------------------------------------------------------------------------- all together


def _of_devices(shown: Mapping[str, _Shown], metrics: Metrics) -> Iterator[Finding]:
    devices: dict[GpuId, str] = {}
    for each in shown.values():
        devices |= each.devices
    if not devices:
        return
    yield from _of_sharing(shown, metrics)
    mig = sum(device.is_mig for device in devices)
    if mig:
        absent = [name for name, each in shown.items() if each.read.signal.absent_on_mig]
        without = f", for which {', '.join(absent)} is not expected" if absent else ""
        yield _finding(Severity.OK, "MIG", f"{mig} MIG instances are shown{without}")
    if isinstance(metrics.gpus, Unread):
        yield _finding(Severity.WARN, "NodesNotRead", metrics.gpus.reason)
    elif len(devices) < metrics.gpus.allocatable and not metrics.gpus.shared_nodes:
        yield _finding(
            Severity.WARN,
            "GPUsNotShown",
            f"{len(devices)} GPUs are shown, and nodes offer {metrics.gpus.allocatable}",
            do="see whether an exporter runs on every GPU node, and whether it is scraped",
        )
    else:
        yield _finding(Severity.OK, "GPUs", f"{len(devices)} GPUs are shown, nodes offer {metrics.gpus.allocatable}")


def _of_sharing(shown: Mapping[str, _Shown], metrics: Metrics) -> Iterator[Finding]:
    holders: dict[GpuId, set[PodKey]] = defaultdict(set)
    for each in shown.values():
        newest = max((samples[-1][0] for _, samples in each.held if samples), default=0.0)
        for series, samples in each.held:
            if samples and newest - samples[-1][0] <= metrics.trust.max_age.total_seconds():
                holders[series.gpu].add((series.namespace, series.pod))
    shared = sorted(str(gpu) for gpu, pods in holders.items() if len(pods) > 1)
    nodes = [] if isinstance(metrics.gpus, Unread) else sorted(metrics.gpus.shared_nodes)
    if shared or nodes:
        what = [
            *([f"{len(shared)} GPUs have several pods ({', '.join(shared[:_SHOWN])})"] if shared else []),
            *([f"nodes offer theirs more than once ({', '.join(nodes[:_SHOWN])})"] if nodes else []),
        ]
        yield _finding(
            Severity.WARN,
            "Shared",
            f"{'; '.join(what)}: readings of a shared GPU can be false zeros, so that its pods are never suspended",
            do="use MIG, or whole GPUs, for what is to be suspended",
        )


def _of_agreement(shown: Mapping[str, _Shown]) -> Iterator[Finding]:
    """GPUs of which one signal says nothing at all over the whole time, and another one that they work."""
    peaks = {name: each.peaks() for name, each in shown.items()}
    for name, quiet in peaks.items():
        stuck = sorted(
            str(gpu)
            for gpu, peak in quiet.items()
            if not peak and any(other.get(gpu, 0.0) >= _CLEARLY_BUSY_RATIO for other in peaks.values())
        )
        if stuck:
            yield _finding(
                Severity.WARN,
                "Disagree",
                f"it is 0 for {len(stuck)} GPUs of which another one says that they work ({', '.join(stuck[:_SHOWN])})",
                where=f"signal {name}",
                do="restart the exporter (or DCGM's host engine) there; until then those GPUs are Unknown, never idle",
            )
