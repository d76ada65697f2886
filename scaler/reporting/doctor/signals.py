"""Does the metrics source show each signal, under the labels and at the intervals that the settings suppose?

| what is seen                                  | what it means                                              |
|-----------------------------------------------|------------------------------------------------------------|
| no series of a signal                         | the exporter does not publish it: every verdict is Unknown |
| series, and none names a pod                  | the exporter does not know pods (DCGM_EXPORTER_KUBERNETES) |
| pods are named, and none of them holds GPUs   | they are the exporter's own: labels were overwritten       |
| `exported_pod` beside `pod`                   | the target's labels won; the default rules put that right  |
| samples farther apart than collectionInterval | coverage can never be reached: LowCoverage                 |
| a ratio above 1.5                             | it is a percentage: quiet GPUs would look busy             |

Pure: series as they were read in, findings out.
"""

from collections.abc import Iterator, Set
from datetime import datetime, timedelta
from functools import partial
from statistics import median

from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import Unit, utilisation_ratio
from scaler.idleness.policy import Trust
from scaler.reporting.doctor.devices import device_findings
from scaler.reporting.doctor.findings import Finding, Severity, Unread
from scaler.reporting.doctor.signal_series import Mig, PodKey, Read, SignalSeries, SourceSeries, metrics_finding

_SHOWN = 3
_MISREAD_RATIO = 1.5


def metrics_findings(metrics: SourceSeries | Unread, now: datetime) -> Iterator[Finding]:
    """What there is to say about the metrics source."""
    if isinstance(metrics, Unread):
        yield metrics_finding(
            Severity.WARN, "NotAsked", metrics.reason, do="name one with --prometheus-url or --config"
        )
        return
    reads = metrics.reads.items()
    shown = {name: SignalSeries.of(read, metrics.rules) for name, read in reads if not isinstance(read, Unread)}
    on_mig = Mig.of(shown.values())
    for name, read in reads:
        finding = partial(metrics_finding, where=f"signal {name}")
        if isinstance(read, Unread):
            yield finding(Severity.FAIL, "NotRead", read.reason)
        else:
            yield from _of_signal(finding, shown[name], metrics, on_mig, now)
    yield from device_findings(shown, metrics)


_Teller = partial[Finding]


# -------------------------------------------------------------------------------------------------------- one signal


def _of_signal(
    finding: _Teller, shown: SignalSeries, metrics: SourceSeries, on_mig: Mig, now: datetime
) -> Iterator[Finding]:
    read = shown.read
    if not any(each.samples for each in read.series):
        yield _missing(finding, read, metrics, on_mig)
        return
    problems = [
        *_of_clock(finding, read, metrics.trust, now),
        *_of_unit(finding, read),
        *_of_interval(finding, read, metrics.trust, now),
        *_of_holders(finding, shown, metrics, on_mig),
    ]
    yield from problems
    if not problems:
        names = ", ".join(sorted({each.labels.get("__name__", "") for each in read.series} - {""}))
        said = f"{names}: {len(read.series)} series{_rhythm(read)}{_convention(read, metrics)}"
        yield finding(Severity.OK, "Shown", said)


def _missing(finding: _Teller, read: Read, metrics: SourceSeries, on_mig: Mig) -> Finding:
    if read.signal.absent_on_mig and on_mig.only:
        return finding(Severity.OK, "NotOnMIG", "it is not published for MIG instances, and all GPUs are such")
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


def _convention(read: Read, metrics: SourceSeries) -> str:
    """How the labels of pods are spelt; nothing where no pod holds a GPU: `pod` is the exporter's own then."""
    names = {name for each in read.series for name, value in each.labels.items() if value}
    if "exported_pod" in names:
        return "; pods are in exported_* labels"
    if not isinstance(metrics.gpus, Unread) and not metrics.gpus.pods:
        return ""
    return "; pods are in pod and namespace (honorLabels)" if "pod" in names else "; no pods are named"


def _of_holders(finding: _Teller, shown: SignalSeries, metrics: SourceSeries, on_mig: Mig) -> Iterator[Finding]:
    if isinstance(metrics.gpus, Unread):
        return
    holders = metrics.gpus.pods - (on_mig.pods if shown.read.signal.absent_on_mig else frozenset())
    if not holders:
        return
    named = {(each.namespace, each.pod) for each, _ in shown.held}
    if not named:
        yield finding(
            Severity.FAIL,
            "NoPods",
            "no series names the pod that holds the GPU",
            do="set DCGM_EXPORTER_KUBERNETES=true on dcgm-exporter, or add relabel rules to the settings",
        )
    elif not named & holders:
        yield finding(
            Severity.FAIL,
            "OtherPods",
            f"the pods that are named hold no GPUs here ({_some(named)})",
            do="they may be the exporter's own (add relabel rules, or honorLabels: true to the scrape), or another "
            "cluster's (prometheus.matchers)",
        )
    elif unseen := holders - named:
        yield finding(
            Severity.WARN,
            "PodsNotShown",
            f"{len(unseen)} of {len(holders)} pods that hold GPUs have no series ({_some(unseen)})",
            do="see whether an exporter runs on their nodes, and whether it is scraped",
        )


def _some(pods: Set[PodKey]) -> str:
    names = sorted("/".join(each) for each in pods)
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
