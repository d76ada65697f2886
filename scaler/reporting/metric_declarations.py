"""How a metric is declared: its name, unit and labels, and which replicas of the scaler show it.

A declaration makes the metric and remembers how it was made, so that the page of all metrics in the documentation is
made from the very same lines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "idle_gpu_scaler"


class ReportedBy(StrEnum):
    """Which replicas show a metric, and so how those of several are put together."""

    BY_EACH = "each"
    """Every replica shows its own: a sum over replicas is that of all."""
    BY_ALL = "all"
    """Every replica shows the same, because it reads the same: the highest is taken, never the sum."""
    BY_ONE = "leader"
    """Only the leader shows it: a sum over replicas is the leader's, and goes on when another one leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDeclaration:
    """One metric as it is declared."""

    name: str
    """As in the exposition; of a histogram without `_bucket`, `_sum` and `_count`."""
    type: str
    unit: str
    labels: tuple[str, ...]
    shown: ReportedBy
    section: str
    meaning: str


class MetricDeclarations:
    """Makes metrics in one registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.declared: list[MetricDeclaration] = []
        self.forget_of_one: list[Callable[[], None]] = []
        """What empties the gauges that only the leader shows."""
        self._section = ""
        self._shown = ReportedBy.BY_EACH

    def begin(self, section: str, shown: ReportedBy) -> None:
        """What follows is documented under this heading, and shown by these replicas unless it says otherwise."""
        self._section, self._shown = section, shown

    def gauge(self, name: str, meaning: str, *labels: str, unit: str = "", shown: ReportedBy | None = None) -> Gauge:
        self._note(name, "gauge", meaning, labels=labels, unit=unit, shown=shown)
        gauge = Gauge(f"{PREFIX}_{name}", meaning, labels, registry=self.registry)
        if (shown or self._shown) is ReportedBy.BY_ONE:
            # One without labels has a series always, so it is 0 then.
            self.forget_of_one.append(partial(set_series, gauge, {}) if labels else partial(gauge.set, 0))
        return gauge

    def counter(
        self, name: str, meaning: str, *labels: str, unit: str = "", shown: ReportedBy | None = None
    ) -> Counter:
        """`name` ends in `_total`."""
        self._note(name, "counter", meaning, labels=labels, unit=unit, shown=shown)
        return Counter(f"{PREFIX}_{name}", meaning, labels, registry=self.registry)

    def histogram(
        self, name: str, meaning: str, *labels: str, buckets: Sequence[float], shown: ReportedBy | None = None
    ) -> Histogram:
        """Of durations; `name` ends in `_seconds`."""
        self._note(name, "histogram", meaning, labels=labels, unit="", shown=shown)
        return Histogram(f"{PREFIX}_{name}", meaning, labels, buckets=buckets, registry=self.registry)

    def _note(
        self, name: str, kind: str, meaning: str, *, labels: Sequence[str], unit: str, shown: ReportedBy | None
    ) -> None:
        self.declared.append(
            MetricDeclaration(
                name=f"{PREFIX}_{name}",
                type=kind,
                unit=unit or _unit_in(name),
                labels=tuple(labels),
                shown=shown or self._shown,
                section=self._section,
                meaning=meaning,
            )
        )


_UNITS = {
    "timestamp_seconds": "seconds since 1970",
    "gpu_seconds": "GPU-seconds",
    "gpus": "GPUs",
}


def _unit_in(name: str) -> str:
    """The unit that a name ends in."""
    counted = name.removesuffix("_total")
    return next((unit for end, unit in _UNITS.items() if counted.endswith(end)), counted.rpartition("_")[2])


_Labels = TypeVar("_Labels", bound=tuple[str, ...])


def set_series(gauge: Gauge, rows: Mapping[_Labels, float]) -> None:
    """Replace everything that the gauge shows. Rows are keyed by the values of its labels, in their order.

    A series that stays is kept: to make thousands anew every few seconds would hold up the answers to KEDA.
    """
    before = _SHOWN.get(gauge, frozenset())
    for labels in before - rows.keys():
        gauge.remove(*labels)
    for labels, value in rows.items():
        gauge.labels(*labels).set(value)
    _SHOWN[gauge] = frozenset(rows)


_SHOWN: WeakKeyDictionary[Gauge, frozenset[tuple[str, ...]]] = WeakKeyDictionary()
"""The series of each gauge, by the values of their labels."""


# -------------------------------------------------------------------------------------------------------------- labels

LABELS = {
    "workload_namespace": "Namespace of the workload; of a gang that was given GPUs, its own. Those beyond "
    "`metrics.namespaces` are `(others)`.",
    "cluster_queue": "ClusterQueue where the workload holds or asks for quota; empty where Kueue does not manage it.",
    "model": "GPU model as the exporter names it, blanks written as `-`; empty where nothing names it.",
    "state": "Of GPUs: `Busy`, `Idle`, `HeldIdle`, `Unknown`, `WithoutMetrics`, `Starting`, `Ending` (see above). "
    "Of nodes: `Trusted`, `Distrusted`, `Silent`. Of queue keys: `Waiting`, `Failing`. "
    "Of ProvisioningRequests: `New`, `Accepted`, `Provisioned`, `Failed`, `BookingExpired`, `CapacityRevoked`.",
    "reason": "A reason in PascalCase, the same as in Events, conditions and `explain`.",
    "kind": "Kind of the scale target, such as `ScalableWorkload` or `Deployment`.",
    "name": "Name of the scale target.",
    "signal": "Name of a configured signal, such as `gr_engine_active`.",
    "currency": "`metrics.currency` of the settings.",
    "answer": "What KEDA gets: `active`, `inactive` or `error`.",
    "verdict": "`Idle`, `Busy` or `Unknown`; empty where the GPUs were not judged.",
    "attributed": "`yes` for series that name a GPU and a pod, `no` for others.",
    "source": "`prometheus` or `dcgm`.",
    "query": "Name of the signal, `demand`, or `scrape`.",
    "outcome": "How it ended: `ok` or what went wrong. Of reallocated GPUs: `Admitted`, `Taken` or `Cancelled`.",
    "gpu_node": "A node on which GPUs are not trusted, the worst `metrics.nodes` of them.",
    "stage": "Of a gang that waits: `Quota` or `AdmissionCheck`. Of a reclaim plan: `Suspending` (granted until "
    "deactivated), `Releasing` (until the pods are gone), `Admitting` (until the gang is admitted).",
    "from_namespace": "Namespace of the workload that gave its GPUs up.",
    "budget": "Name of a budget of `reclaim.budgets`.",
    "limit": "`AtOnce` or `PerPeriod`.",
    "origin": "`reused` for nodes that were there before, `provisioned` for those that have come since.",
    "event": "`Created`, `Removed`, `Provisioned`, `Failed`, `BookingExpired` or `CapacityRevoked`.",
    "provisioning_class": "Name of the provisioning class.",
    "method": "RPC of the external scaler: `IsActive`, `GetMetricSpec`, `GetMetrics`, `StreamIsActive`.",
    "code": "gRPC status code.",
    "use": "`grpc` or `http` for the certificate that is served there, `grpc-clients` or `http-clients` for the "
    "authorities of its clients.",
    "verb": "Verb of the Kubernetes API.",
    "resource": "Resource of the Kubernetes API, with its subresource.",
    "status": "HTTP status code; 0 where there was no answer.",
    "version": "Version of the program.",
}
"""What the values of each label mean, whichever metric has it."""
