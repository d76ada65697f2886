"""Every metric, declared once. Names start with `idle_gpu_scaler_`, units are in the names, label sets are bounded.

No metric has a label per workload: their number is unbounded. What stands about one workload is in `explain`, in the
status of its ScalableWorkload and in Events.
"""

from collections.abc import Mapping
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

_PREFIX = "idle_gpu_scaler"
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_MINUTES = (1, 5, 15, 30, 60, 120, 300, 600, 1800)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self.build = Gauge(f"{_PREFIX}_build_info", "Version of this process.", ["version"], registry=registry)
        self.rpcs = Histogram(
            f"{_PREFIX}_rpc_seconds", "Time to answer KEDA.", ["method", "code"], buckets=_FAST, registry=registry
        )
        self.tick = Histogram(f"{_PREFIX}_tick_seconds", "Time of one evaluation.", buckets=_SLOW, registry=registry)
        self.evaluated_at = Gauge(
            f"{_PREFIX}_evaluation_timestamp_seconds", "Instant of the latest published evaluation.", registry=registry
        )
        self.decisions = Gauge(
            f"{_PREFIX}_decisions",
            "Triggers by answer and reason in the latest evaluation.",
            ["answer", "reason"],
            registry=registry,
        )
        self.gpus = Gauge(
            f"{_PREFIX}_gpus",
            "GPUs of judged workloads by verdict in the latest evaluation.",
            ["verdict"],
            registry=registry,
        )
        self.reads = Histogram(
            f"{_PREFIX}_source_read_seconds",
            "Time of reads of the metrics source.",
            ["source", "query", "outcome"],
            buckets=_SLOW,
            registry=registry,
        )
        self.read_bytes = Counter(
            f"{_PREFIX}_source_read_bytes_total", "Bytes read from the metrics source.", ["source"], registry=registry
        )
        self.samples = Counter(f"{_PREFIX}_samples_total", "Samples taken in.", registry=registry)
        self.blanks = Counter(
            f"{_PREFIX}_blank_samples_total",
            "Samples that were no measurements (blanks, NaN, another unit).",
            registry=registry,
        )
        self.series = Gauge(f"{_PREFIX}_series", "Series in the latest reads.", ["attributed"], registry=registry)
        self.kube_calls = Histogram(
            f"{_PREFIX}_kube_call_seconds",
            "Time of calls to the Kubernetes API.",
            ["verb", "resource", "status"],
            buckets=_SLOW,
            registry=registry,
        )
        self.reconciliations = Histogram(
            f"{_PREFIX}_reconcile_seconds",
            "Time to reconcile a ScalableWorkload.",
            ["outcome"],
            buckets=_SLOW,
            registry=registry,
        )
        self.gangs = Gauge(
            f"{_PREFIX}_waiting_gangs",
            "Workloads that wait for GPUs and were planned for in the latest look, by what came of it.",
            ["outcome"],
            registry=registry,
        )
        self.reclaimable_gpus = Gauge(
            f"{_PREFIX}_reclaimable_gpus", "GPUs of idle workloads that a plan may take.", registry=registry
        )
        self.boosted = Gauge(
            f"{_PREFIX}_boosted_workloads",
            "Idle workloads that Kueue preempts before others, by a negative priority boost of ours.",
            registry=registry,
        )
        self.reallocated_gpus = Counter(
            f"{_PREFIX}_reallocated_gpus_total",
            "GPUs that plans took, by where they ended: with the gang, with somebody else, or nowhere.",
            ["outcome"],
            registry=registry,
        )
        self.reallocations = Histogram(
            f"{_PREFIX}_reallocation_seconds",
            "Time from the grant on an idle workload to the admission of the gang that got its GPUs.",
            buckets=_MINUTES,
            registry=registry,
        )
        self.wasted_gpu_seconds = Counter(
            f"{_PREFIX}_wasted_gpu_seconds_total",
            "GPU time between the suspension of victims and the admission of their gang.",
            registry=registry,
        )
        self.gate = Gauge(
            f"{_PREFIX}_gated_gangs",
            "Gangs that have quota and are held by our AdmissionCheck, by what they wait for.",
            ["reason"],
            registry=registry,
        )
        self.gate_waits = Histogram(
            f"{_PREFIX}_gate_seconds",
            "Time from a gang's quota reservation until our AdmissionCheck let it go.",
            buckets=_MINUTES,
            registry=registry,
        )
        self.gate_gpus = Counter(
            f"{_PREFIX}_gate_gpus_total",
            "GPUs of gangs that were let go, on nodes that were there before or that have come since.",
            ["origin"],
            registry=registry,
        )
        self.requests = Counter(
            f"{_PREFIX}_provisioning_requests_total",
            "What became of ProvisioningRequests.",
            ["event", "provisioning_class", "reason"],
            registry=registry,
        )
        self.leader = Gauge(f"{_PREFIX}_leader", "1 while this replica holds the Lease.", registry=registry)
        self.events_lost = Gauge(
            f"{_PREFIX}_events_lost", "Kubernetes Events dropped or refused since the start.", registry=registry
        )

    def show_evaluation(
        self, *, at: datetime, decisions: Mapping[tuple[str, str], int], gpus: Mapping[str, int]
    ) -> None:
        """Replace the gauges that describe the latest evaluation."""
        self.evaluated_at.set(at.timestamp())
        self.decisions.clear()
        for (answer, reason), count in decisions.items():
            self.decisions.labels(answer=answer, reason=reason).set(count)
        self.gpus.clear()
        for verdict, count in gpus.items():
            self.gpus.labels(verdict=verdict).set(count)

    def show_pressure(self, *, gangs: Mapping[str, int], reclaimable_gpus: int) -> None:
        """Replace the gauges that describe the latest look at those that wait."""
        self.gangs.clear()
        for outcome, count in gangs.items():
            self.gangs.labels(outcome=outcome).set(count)
        self.reclaimable_gpus.set(reclaimable_gpus)

    def show_gate(self, gangs: Mapping[str, int]) -> None:
        """Replace the gauge that describes the latest look at gangs that are held."""
        self.gate.clear()
        for reason, count in gangs.items():
            self.gate.labels(reason=reason).set(count)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that the scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
