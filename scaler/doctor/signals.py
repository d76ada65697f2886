"""Does the metrics source show each signal and each GPU, with the labels and intervals that the settings suppose?"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from statistics import median

from scaler.doctor.findings import Finding, Severity, Subject, Topic, Unread, some
from scaler.doctor.verdicts import (
    SPAN,
    Gpus,
    IdentifiedSeries,
    Judgement,
    Samples,
    history_of,
    without_parents,
)
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import GpuId, Signal, Unit, identify_device, utilisation_ratio
from scaler.idleness.history import PodKey
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.relabel import RelabelRules, relabel
from scaler.idleness.window import whole_collections

_MISREAD_RATIO = 1.5
_METRICS = Subject(Topic.METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    labels: Mapping[str, str]
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    signal: Signal
    series: Sequence[Series] = ()
    server_time: datetime | None = None

    def unit_of(self, series: Series) -> Unit:
        return self.signal.unit_of(series.labels.get("__name__", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeries:
    reads: Mapping[str, Read | Unread]
    """What was read, by the signal's name."""
    boards: Mapping[str, Read | Unread] = field(default_factory=dict)
    """What is read of whole boards, by name. Nothing of it is required."""
    rules: RelabelRules
    trust: Trust
    policy: Policy = Policy()  # noqa: RUF009 - frozen
    """The policy of workloads that set nothing else."""
    gpus: Gpus | Unread
    asked_every: timedelta | None = None
    """How often the scaler asks a source that knows only the present; None of one that keeps samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignalSeries:
    read: Read
    series: Sequence[IdentifiedSeries]
    """The series that name a device, held by a pod or not."""

    @classmethod
    def of(cls, read: Read, rules: RelabelRules) -> "_SignalSeries":
        relabelled = ((each, relabel(each.labels, rules)) for each in read.series)
        found = ((each, identify_device(labels)) for each, labels in relabelled if labels is not None)
        return cls(read=read, series=[(of, each.samples, read.unit_of(each)) for each, of in found if of is not None])

    @property
    def devices(self) -> Set[GpuId]:
        return {series.gpu for series, *_ in self.series}

    @property
    def pods(self) -> Set[PodKey]:
        return {(series.namespace, series.pod) for series, *_ in self.series if series.pod}


_ShownSeries = Mapping[str, _SignalSeries]
"""The series by the signal's name."""


def metrics_findings(metrics: SourceSeries | Unread, now: datetime) -> Iterator[Finding]:
    if isinstance(metrics, Unread):
        yield _METRICS.warn("NotAsked", metrics.reason, "name one with --prometheus-url or --config")
        return
    reads = metrics.reads.items()
    shown = {name: _SignalSeries.of(read, metrics.rules) for name, read in reads if not isinstance(read, Unread)}
    found = [*_of_signals(reads, shown, metrics, now), *_of_devices(shown, metrics)]
    yield from found
    is_fine = all(each.severity is Severity.OK for each in found)
    has_history = any(len(samples) > 1 for each in shown.values() for _, samples, *_ in each.series)
    yield from _of_verdicts(shown, metrics, now, of_time=is_fine and has_history)


def _of_signals(
    reads: Iterable[tuple[str, Read | Unread]], shown: _ShownSeries, metrics: SourceSeries, now: datetime
) -> Iterator[Finding]:
    for name, read in reads:
        about = _of_name(name)
        if isinstance(read, Unread):
            yield about.fail("NotRead", read.reason)
        elif any(each.samples for each in read.series):
            yield from _of_signal(about, shown[name], metrics, shown, now)
        else:
            yield _missing(about, read, shown)


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
        *_of_interval(about, read, metrics, now),
        *_of_holders(about, signal, metrics, shown),
    ]
    yield from problems
    if not problems:
        names = ", ".join(sorted({each.labels.get("__name__", "") for each in read.series} - {""}))
        apart = _apart(read)
        rhythm = f", samples {format_duration(apart)} apart" if apart else ""
        yield about.ok("Shown", f"{names}: {len(read.series)} series{rhythm}{_convention(read, metrics)}")


def _missing(about: Subject, read: Read, shown: _ShownSeries) -> Finding:
    devices = without_parents(device for each in shown.values() for device in each.devices)
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
    latest = (now + trust.max_clock_skew).timestamp()
    if ahead := {_host(each.labels) for each in read.series if any(at > latest for at, _ in each.samples)}:
        yield about.fail(
            "ClockSkew",
            f"samples of {some(ahead)} are yet to come: the GPUs are Unknown",
            "correct the clock there, or of what stores the samples",
        )


def _of_unit(about: Subject, read: Read) -> Iterator[Finding]:
    peaks: dict[str, float] = {}
    for each in read.series:
        measured = (utilisation_ratio(value, Unit.RATIO) for _, value in each.samples)
        name = each.labels.get("__name__", "")
        peaks[name] = max(peaks.get(name, 0.0), *(value or 0.0 for value in measured), 0.0)
    for name, peak in peaks.items():
        unit = read.signal.unit_of(name)
        if unit is Unit.RATIO and peak > _MISREAD_RATIO:
            what = f"its unit is ratio, and there is a sample of {peak:g} of {name}"
            yield about.fail("WrongUnit", what, "set unit: percent for it in the settings")
        elif unit is Unit.PERCENT and 0 < peak < 1:
            what = f"its unit is percent, and the highest sample of {name} is {peak:g}: its GPUs are Unknown"
            yield about.fail(
                "WrongUnit", what, "set unit: ratio for it in the settings, if 1 is a GPU that works fully"
            )


def _host(labels: Mapping[str, str]) -> str:
    """The host whose samples arrive together."""
    return next(
        (labels[name] for name in ("Hostname", "hostname", "node", "instance") if labels.get(name)), "all hosts"
    )


def _of_age(about: Subject, read: Read, trust: Trust, now: datetime) -> Iterator[Finding]:
    """Hosts whose newest sample is too old for how often they have one."""
    newest: dict[str, float] = {}
    for each in read.series:
        for at_s in (at for at, _ in each.samples[-1:]):
            newest[_host(each.labels)] = max(newest.get(_host(each.labels), 0.0), at_s)
    tolerated = trust.max_age_intervals * max(trust.interval, _apart(read) or trust.interval)
    delays = {host: now.timestamp() - at_s for host, at_s in newest.items()}
    late = {host: delay for host, delay in delays.items() if delay > tolerated.total_seconds()}
    if late:
        intervals = ceil(max(late.values()) / trust.interval.total_seconds()) + 1
        shown = some(f"{host} by {format_duration(timedelta(seconds=round(delay)))}" for host, delay in late.items())
        yield about.finding(
            Severity.FAIL if len(late) == len(newest) else Severity.WARN,
            "Stale",
            f"samples are late: {shown}; {format_duration(trust.max_age)} are tolerated",
            "see whether its exporter is scraped; where samples always arrive so late (remote write, Cloud Monitoring) "
            f"set trust.maxAgeIntervals to {intervals}, and trust.maxGapIntervals to no less",
        )


def _of_interval(about: Subject, read: Read, metrics: SourceSeries, now: datetime) -> Iterator[Finding]:
    trust, apart = metrics.trust, _apart(read)
    if apart is None and metrics.asked_every is not None:
        # Exporters that write times of their own bring nothing newer than what they collected last.
        ages = [now.timestamp() - at_s for each in read.series for at_s, _ in each.samples]
        oldest = max((age for age in ages if age <= trust.max_age.total_seconds()), default=0.0)
        apart = max(metrics.asked_every, timedelta(seconds=round(oldest)))
    missed = int(whole_collections(apart / trust.interval)) if apart else 0
    if apart and missed:
        share = 1 - missed * trust.interval / apart
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
    if not isinstance(metrics.gpus, Unread) and not metrics.gpus.running:
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
            f"the pods that are named hold no GPUs here ({some('/'.join(each) for each in named)})",
            "they may be the exporter's own (add relabel rules, or honorLabels: true to the scrape), or another "
            "cluster's (prometheus.matchers)",
        )
    elif unseen := holders - named:
        yield about.warn(
            "PodsNotShown",
            f"{len(unseen)} of {len(holders)} pods that hold GPUs have no series "
            f"({some('/'.join(each) for each in unseen)})",
            "see whether an exporter runs on their nodes, and whether it is scraped",
        )


def _expected_pods(signal: _SignalSeries, metrics: SourceSeries, shown: _ShownSeries) -> Set[PodKey]:
    """Pods that hold GPUs for which the signal is published; none where that is not known."""
    if isinstance(metrics.gpus, Unread):
        return frozenset()
    if not signal.read.signal.absent_on_mig:
        return metrics.gpus.running
    held = (series for each in shown.values() for series, *_ in each.series)
    return metrics.gpus.running - {(series.namespace, series.pod) for series in held if series.gpu.is_mig}


# ---------------------------------------------------------------------------------------------------------- all devices


def _of_devices(shown: _ShownSeries, metrics: SourceSeries) -> Iterator[Finding]:
    devices, gpus = without_parents(device for each in shown.values() for device in each.devices), metrics.gpus
    if not devices:
        return
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


def _of_verdicts(shown: _ShownSeries, metrics: SourceSeries, now: datetime, *, of_time: bool) -> Iterator[Finding]:
    """What keeps pods from being judged; nothing while a signal cannot be read, of which all are Unknown."""
    read = {name: each for name, each in metrics.boards.items() if isinstance(each, Read)}
    boards = {name: _SignalSeries.of(each, metrics.rules) for name, each in read.items()}
    for name, each in metrics.boards.items():
        if isinstance(each, Unread):
            yield _of_name(name).fail("NotRead", each.reason)
    if isinstance(metrics.gpus, Unread) or len(shown) + len(boards) < len(metrics.reads) + len(metrics.boards):
        return
    of_signals, of_boards = ({x.read.signal: x.series for x in found.values()} for found in (shown, boards))
    gpus, trust, policy = metrics.gpus, metrics.trust, metrics.policy
    history = history_of(of_signals, of_boards, gpus=gpus, trust=trust, now=now)
    judgement = Judgement(history=history, gpus=gpus, trust=trust, policy=policy, now=now)
    yield from judgement.findings(of_time=of_time)
