"""Do the devices that are shown add up: are all of them there, is each held by one pod, do the signals agree on them?

| what is seen                                     | what it means                                                 |
|--------------------------------------------------|---------------------------------------------------------------|
| fewer devices than nodes offer                   | an exporter is missing or not scraped                         |
| one device held by several pods                  | time-slicing or MPS: SharedGPU, never suspended               |
| MIG instances                                    | utilisation is not published for them, and not expected       |
| the profiling signal 0 while utilisation is high | profiling is stuck, as after some Xid errors: SignalsDisagree |

Pure: series as they were read in, findings out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from scaler.idleness.gpu import GpuId
from scaler.reporting.doctor.findings import Finding, Severity, Unread
from scaler.reporting.doctor.signal_series import PodKey, SignalSeries, SourceSeries, metrics_finding

_SHOWN = 3
_CLEARLY_BUSY_RATIO = 0.5


def device_findings(shown: Mapping[str, SignalSeries], metrics: SourceSeries) -> Iterator[Finding]:
    """What there is to say about devices, from all signals together."""
    yield from _of_devices(shown, metrics)
    yield from _of_agreement(shown)


def _of_devices(shown: Mapping[str, SignalSeries], metrics: SourceSeries) -> Iterator[Finding]:
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
        yield metrics_finding(Severity.OK, "MIG", f"{mig} MIG instances are shown{without}")
    if isinstance(metrics.gpus, Unread):
        yield metrics_finding(Severity.WARN, "NodesNotRead", metrics.gpus.reason)
    elif metrics.gpus.allocatable is None:
        yield metrics_finding(Severity.OK, "GPUs", f"{len(devices)} GPUs are shown; nodes are not read")
    elif len(devices) < metrics.gpus.allocatable and not metrics.gpus.shared_nodes:
        yield metrics_finding(
            Severity.WARN,
            "GPUsNotShown",
            f"{len(devices)} GPUs are shown, and nodes offer {metrics.gpus.allocatable}",
            do="see whether an exporter runs on every GPU node, and whether it is scraped",
        )
    else:
        yield metrics_finding(
            Severity.OK, "GPUs", f"{len(devices)} GPUs are shown, nodes offer {metrics.gpus.allocatable}"
        )


def _of_sharing(shown: Mapping[str, SignalSeries], metrics: SourceSeries) -> Iterator[Finding]:
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
        yield metrics_finding(
            Severity.WARN,
            "Shared",
            f"{'; '.join(what)}: readings of a shared GPU can be false zeros, so that its pods are never suspended",
            do="use MIG, or whole GPUs, for what is to be suspended",
        )


def _of_agreement(shown: Mapping[str, SignalSeries]) -> Iterator[Finding]:
    """GPUs of which one signal says nothing at all over the whole time, and another one that they work."""
    peaks = {name: each.peaks() for name, each in shown.items()}
    for name, quiet in peaks.items():
        stuck = sorted(
            str(gpu)
            for gpu, peak in quiet.items()
            if not peak and any(other.get(gpu, 0.0) >= _CLEARLY_BUSY_RATIO for other in peaks.values())
        )
        if stuck:
            yield metrics_finding(
                Severity.WARN,
                "Disagree",
                f"it is 0 for {len(stuck)} GPUs of which another one says that they work ({', '.join(stuck[:_SHOWN])})",
                where=f"signal {name}",
                do="restart the exporter (or DCGM's host engine) there; until then those GPUs are Unknown, never idle",
            )
