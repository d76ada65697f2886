"""Does the metrics source show each signal and each GPU, with the labels and intervals that the settings suppose?"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import GpuId, GpuSeries, Signal, Unit, identify, utilisation_ratio
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import RelabelRules, relabel
from scaler.reporting.doctor.findings import Finding, Severity, Subject, Topic, Unread

SPAN = timedelta(minutes=10)
"""How far back samples are read: enough to see at which intervals they come."""
_SHOWN = 3
_MISREAD_RATIO = 1.5
_CLEARLY_BUSY_RATIO = 0.5
_METRICS = Subject(Topic.METRICS)

Samples = Sequence[tuple[float, float]]
PodKey = tuple[str, str]
"""(namespace, name)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    labels: Mapping[str, str]
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    signal: Signal
    series: Sequence[Series] = ()
    server_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    allocatable: int | None = 0
    """Of all nodes that are ready, shared ones counted as often as they are offered. None: nodes are not read."""
    shared_nodes: Sequence[str] = ()
    """Nodes whose GPUs are offered more than once (time-slicing, MPS)."""
    pods: Set[PodKey] = frozenset()
    """Pods that hold GPUs and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeries:
    reads: Mapping[str, Read | Unread]
    """By the signal's name."""
    rules: RelabelRules
    trust: Trust
    gpus: Gpus | Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignalSeries:
    read: Read
    held: Sequence[tuple[GpuSeries, Samples]]
    """Those that name a device and a pod."""
    devices: Set[GpuId]
    """All that are shown, held or not."""

    @classmethod
    def of(cls, read: Read, rules: RelabelRules) -> "_SignalSeries":
        held, devices = [], set()
        for series in read.series:
            labels = relabel(series.labels, rules)
            if labels is None:
                continue
            if found := identify(labels):
                held.append((found, series.samples))
            # With a pod of no meaning, because devices that no pod holds are counted, too.
            placeholders = {name: "-" for name in ("namespace", "pod") if not labels.get(name)}
            if device := identify(labels | placeholders):
                devices.add(device.gpu)
        return cls(read=read, held=held, devices=devices)

    @property
    def pods(self) -> Set[PodKey]:
        return {(series.namespace, series.pod) for series, _ in self.held}

    def peaks(self) -> dict[GpuId, float]:
        peaks: dict[GpuId, float] = {}
        for series, samples in self.held:
            for _, value in samples:
                ratio = utilisation_ratio(value, self.read.signal.unit)
                if ratio is not None:
                    peaks[series.gpu] = max(peaks.get(series.gpu, 0.0), ratio)
        return peaks


_ShownSeries = Mapping[str, _SignalSeries]
"""By the signal's name."""


def metrics_findings(metrics: SourceSeries | Unread, now: datetime) -> Iterator[Finding]:
    if isinstance(metrics, Unread):
        yield _METRICS.warn("NotAsked", metrics.reason, "name one with --prometheus-url or --config")
        return
    reads = metrics.reads.items()
    shown = {name: _SignalSeries.of(read, metrics.rules) for name, read in reads if not isinstance(read, Unread)}
    for name, read in reads:
        about = _of_name(name)
        if isinstance(read, Unread):
            yield about.fail("NotRead", read.reason)
        elif any(each.samples for each in read.series):
            yield from _of_signal(about, shown[name], metrics, shown, now)
        else:
            yield _missing(about, read, shown)
    yield from _of_devices(shown, metrics)
    yield from _of_agreement(shown)


def _of_name(signal: str) -> Subject:
    return Subject(Topic.METRICS, f"signal {signal}")


# -------------------------------------------------------------------------------------------------------- one signal


def _of_signal(
    about: Subject, signal: _SignalSeries, metrics: SourceSeries, shown: _ShownSeries, now: datetime
) -> Iterator[Finding]:
    read = signal.read
    problems = [
        *_of_clock(about, read, metrics.trust, now),
        *_of_unit(about, read),
        *_of_age(about, read, metrics.trust, now),
        *_of_interval(about, read, metrics.trust),
        *_of_holders(about, signal, metrics, shown),
    ]
    yield from problems
    if not problems:
        names = ", ".join(sorted({each.labels.get("__name__", "") for each in read.series} - {""}))
        apart = _apart(read)
        rhythm = f", samples {format_duration(apart)} apart" if apart else ""
        yield about.ok("Shown", f"{names}: {len(read.series)} series{rhythm}{_convention(read, metrics)}")


def _missing(about: Subject, read: Read, shown: _ShownSeries) -> Finding:
    devices = {device for each in shown.values() for device in each.devices}
    if read.signal.absent_on_mig and devices and all(each.is_mig for each in devices):
        return about.ok("NotOnMIG", "it is not published for MIG instances, and all GPUs are such")
    names = " or ".join(read.signal.metrics)
    return about.fail(
        "NoSeries",
        f"there is no {names} of the last {format_duration(SPAN)}: every verdict is Unknown",
        "add it to the exporter's list of counters, or leave it out of `signals` in the settings",
    )


def _of_clock(about: Subject, read: Read, trust: Trust, now: datetime) -> Iterator[Finding]:
    skew = abs(now - read.server_time) if read.server_time else timedelta(0)
    if skew > trust.max_clock_skew + timedelta(seconds=1):
        yield about.fail(
            "ClockSkew",
            f"the source's clock and the one here differ by {format_duration(skew)}",
            "set both by NTP; trust.maxClockSkew of the settings says how much is tolerated",
        )


def _of_unit(about: Subject, read: Read) -> Iterator[Finding]:
    if read.signal.unit is not Unit.RATIO:
        return
    measured = (utilisation_ratio(value, Unit.RATIO) for each in read.series for _, value in each.samples)
    peak = max((value for value in measured if value is not None), default=0.0)
    if peak > _MISREAD_RATIO:
        what = f"its unit is ratio, and there is a sample of {peak:g}"
        yield about.fail("WrongUnit", what, "set unit: percent for it in the settings")


def _of_age(about: Subject, read: Read, trust: Trust, now: datetime) -> Iterator[Finding]:
    newest = max(each.samples[-1][0] for each in read.series if each.samples)
    age = now - datetime.fromtimestamp(newest, now.tzinfo)
    if age > trust.max_age:
        yield about.fail(
            "Stale",
            f"the newest sample is {format_duration(age)} old, and {format_duration(trust.max_age)} are tolerated",
            "see whether the exporters are scraped; raise trust.collectionInterval if they collect more seldom",
        )


def _of_interval(about: Subject, read: Read, trust: Trust) -> Iterator[Finding]:
    apart = _apart(read)
    if apart is not None and apart > trust.interval * 1.25:
        share = trust.interval / apart
        yield about.finding(
            Severity.FAIL if share < trust.min_coverage_ratio else Severity.WARN,
            "Sparse",
            f"samples are {format_duration(apart)} apart, and trust.collectionInterval is "
            f"{format_duration(trust.interval)}: they cover {share:.0%} where {trust.min_coverage_ratio:.0%} must be",
            f"set trust.collectionInterval to {format_duration(apart)}, or scrape more often",
        )


def _apart(read: Read) -> timedelta | None:
    """The time between two samples, as most series have it; None where there are no two."""
    medians = [
        median(later - earlier for (earlier, _), (later, _) in zip(each.samples, each.samples[1:], strict=False))
        for each in read.series
        if len(each.samples) > 1
    ]
    return timedelta(seconds=round(median(medians), 1)) if medians else None


def _convention(read: Read, metrics: SourceSeries) -> str:
    """How the labels of pods are spelt; nothing where no pod holds a GPU: `pod` is the exporter's own then."""
    names = {name for each in read.series for name, value in each.labels.items() if value}
    if "exported_pod" in names:
        return "; pods are in exported_* labels"
    if not isinstance(metrics.gpus, Unread) and not metrics.gpus.pods:
        return ""
    return "; pods are in pod and namespace (honorLabels)" if "pod" in names else "; no pods are named"


def _of_holders(about: Subject, signal: _SignalSeries, metrics: SourceSeries, shown: _ShownSeries) -> Iterator[Finding]:
    holders, named = _expected_pods(signal, metrics, shown), signal.pods
    if not holders:
        return
    if not named:
        yield about.fail(
            "NoPods",
            "no series names the pod that holds the GPU",
            "set DCGM_EXPORTER_KUBERNETES=true on dcgm-exporter, or add relabel rules to the settings",
        )
    elif not named & holders:
        yield about.fail(
            "OtherPods",
            f"the pods that are named hold no GPUs here ({_some('/'.join(each) for each in named)})",
            "they may be the exporter's own (add relabel rules, or honorLabels: true to the scrape), or another "
            "cluster's (prometheus.matchers)",
        )
    elif unseen := holders - named:
        yield about.warn(
            "PodsNotShown",
            f"{len(unseen)} of {len(holders)} pods that hold GPUs have no series "
            f"({_some('/'.join(each) for each in unseen)})",
            "see whether an exporter runs on their nodes, and whether it is scraped",
        )


def _expected_pods(signal: _SignalSeries, metrics: SourceSeries, shown: _ShownSeries) -> Set[PodKey]:
    """Pods that hold GPUs for which the signal is published; none where that is not known."""
    if isinstance(metrics.gpus, Unread):
        return frozenset()
    if not signal.read.signal.absent_on_mig:
        return metrics.gpus.pods
    held = (series for each in shown.values() for series, _ in each.held)
    return metrics.gpus.pods - {(series.namespace, series.pod) for series in held if series.gpu.is_mig}


# ---------------------------------------------------------------------------------------------------------- all devices


def _of_devices(shown: _ShownSeries, metrics: SourceSeries) -> Iterator[Finding]:
    devices, gpus = {device for each in shown.values() for device in each.devices}, metrics.gpus
    if not devices:
        return
    yield from _of_sharing(shown, metrics)
    mig = sum(device.is_mig for device in devices)
    if mig:
        absent = [name for name, each in shown.items() if each.read.signal.absent_on_mig]
        without = f", for which {', '.join(absent)} is not expected" if absent else ""
        yield _METRICS.ok("MIG", f"{mig} MIG instances are shown{without}")
    if isinstance(gpus, Unread):
        yield _METRICS.warn("NodesNotRead", gpus.reason)
    elif gpus.allocatable is None:
        yield _METRICS.ok("GPUs", f"{len(devices)} GPUs are shown; nodes are not read")
    elif len(devices) < gpus.allocatable and not gpus.shared_nodes:
        what = f"{len(devices)} GPUs are shown, and nodes offer {gpus.allocatable}"
        do = "see whether an exporter runs on every GPU node, and whether it is scraped"
        yield _METRICS.warn("GPUsNotShown", what, do)
    else:
        yield _METRICS.ok("GPUs", f"{len(devices)} GPUs are shown, nodes offer {gpus.allocatable}")


def _of_sharing(shown: _ShownSeries, metrics: SourceSeries) -> Iterator[Finding]:
    nodes = [] if isinstance(metrics.gpus, Unread) else metrics.gpus.shared_nodes
    shared = [str(gpu) for gpu, pods in _current_holders(shown, metrics.trust).items() if len(pods) > 1]
    what = [f"{len(shared)} GPUs have several pods ({_some(shared)})"] if shared else []
    what += [f"nodes offer theirs more than once ({_some(nodes)})"] if nodes else []
    if what:
        yield _METRICS.warn(
            "Shared",
            f"{'; '.join(what)}: readings of a shared GPU can be false zeros, so that its pods are never suspended",
            "use MIG, or whole GPUs, for what is to be suspended",
        )


def _current_holders(shown: _ShownSeries, trust: Trust) -> Mapping[GpuId, Set[PodKey]]:
    """The pods for which each GPU reports now. One that has ended since, or that another one has followed, is none."""
    holders: dict[GpuId, set[PodKey]] = defaultdict(set)
    for each in shown.values():
        newest = max((samples[-1][0] for _, samples in each.held if samples), default=0.0)
        begun: dict[GpuId, float] = {}
        for series, samples in each.held:
            if samples:
                begun[series.gpu] = max(begun.get(series.gpu, 0.0), samples[0][0])
        for series, samples in each.held:
            if samples and samples[-1][0] >= max(begun[series.gpu], newest - trust.max_age.total_seconds()):
                holders[series.gpu].add((series.namespace, series.pod))
    return holders


def _of_agreement(shown: _ShownSeries) -> Iterator[Finding]:
    """GPUs of which one signal is 0 over the whole time, while another one shows work."""
    peaks = {name: each.peaks() for name, each in shown.items()}
    for name, quiet in peaks.items():
        stuck = [
            str(gpu)
            for gpu, peak in quiet.items()
            if not peak and any(other.get(gpu, 0.0) >= _CLEARLY_BUSY_RATIO for other in peaks.values())
        ]
        if stuck:
            yield _of_name(name).warn(
                "Disagree",
                f"it is 0 for {len(stuck)} GPUs of which another one says that they work ({_some(stuck)})",
                "restart the exporter (or DCGM's host engine) there; until then those GPUs are Unknown, never idle",
            )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_SHOWN]) + (", …" if len(ordered) > _SHOWN else "")
