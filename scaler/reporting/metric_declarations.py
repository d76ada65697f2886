"""How a metric is declared: its name, unit and labels, and which replicas of the scaler show it.

A declaration makes the metric and remembers how it was made, so that the page of all metrics in the documentation is
made from the very same lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast, overload

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric, Sample

PREFIX = "idle_gpu_scaler"


class ReportedBy(StrEnum):
    """Which replicas show a metric, and so how those of several are put together."""

    BY_EACH = "each"
    """Every replica shows its own: a sum over replicas is that of all."""
    BY_ALL = "all"
    """Every replica shows the same, because it reads the same: the highest is taken, never the sum."""
    BY_ONE = "leader"
    """The leader shows it alone: a sum over replicas is the leader's, and goes on when another one leads."""


_Labels = tuple[str, ...]
_Row = TypeVar("_Row", bound=_Labels)


@dataclass(frozen=True, slots=True)
class GaugeSamples(Sequence[Sample]):
    """The samples of a gauge. Those of `rows` are made only for whoever looks at them one by one."""

    name: str
    labels: _Labels
    rows: Mapping[_Labels, float]
    others: list[Sample]
    """Samples of series that were set one by one."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.others)

    def __iter__(self) -> Iterator[Sample]:
        for values, value in self.rows.items():
            yield Sample(self.name, dict(zip(self.labels, map(str, values), strict=True)), value)
        yield from self.others

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        return list(self)[index]


class Gauge(prometheus_client.Gauge):
    """A gauge whose series may be set all at once."""

    rows: Mapping[_Labels, float] = MappingProxyType({})

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            samples = GaugeSamples(family.name, self._labelnames, self.rows, family.samples)
            family.samples = samples  # type: ignore[assignment]  # they are only iterated
            yield family


_Metric = TypeVar("_Metric", bound=Gauge | Counter | Histogram)


class MetricDeclaration(Generic[_Metric]):
    """A metric in the body of a `MetricSet`, by its name; of an instance, the metric itself."""

    name: str
    """The name in the exposition; of a histogram without `_bucket`, `_sum` and `_count`."""

    def __init__(
        self, kind: type[_Metric], section: "MetricSection", meaning: str, labels: _Labels, **more: Any
    ) -> None:
        self.type = kind.__name__.lower()
        self.section = section.title
        self.meaning = meaning
        self.labels = labels
        self.shown: ReportedBy = more.pop("shown", section.shown)
        self.unit: str = more.pop("unit", "")
        self._kind, self._more = kind, more

    def __set_name__(self, kind: type, name: str) -> None:
        self.name = f"{PREFIX}_{name}"
        counted = name.removesuffix("_total")
        in_name = next((unit for end, unit in _UNITS.items() if counted.endswith(end)), counted.rpartition("_")[2])
        self.unit = self.unit or in_name

    def make(self, registry: CollectorRegistry) -> _Metric:
        return self._kind(self.name, self.meaning, self.labels, registry=registry, **self._more)

    def __get__(self, of: "MetricSet", kind: type) -> _Metric:
        return cast(_Metric, of.made[self.name])


@dataclass(frozen=True)
class MetricSection:
    """Metrics that are documented under one heading, and shown by these replicas unless they say otherwise."""

    title: str
    shown: ReportedBy

    def gauge(self, meaning: str, labels: _Labels = (), **more: Any) -> MetricDeclaration[Gauge]:
        return MetricDeclaration(Gauge, self, meaning, labels, **more)

    def counter(self, meaning: str, labels: _Labels = (), **more: Any) -> MetricDeclaration[Counter]:
        """Its name ends in `_total`."""
        return MetricDeclaration(Counter, self, meaning, labels, **more)

    def histogram(self, meaning: str, labels: _Labels = (), **more: Any) -> MetricDeclaration[Histogram]:
        """A histogram of durations; its name ends in `_seconds`."""
        return MetricDeclaration(Histogram, self, meaning, labels, **more)


class MetricSet:
    """The metrics that its class declares, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.declared = [each for each in vars(type(self)).values() if isinstance(each, MetricDeclaration)]
        self.made = {each.name: each.make(self.registry) for each in self.declared}

    def forget_what_the_leader_shows(self) -> None:
        """Another replica shows it now: what this one has shown last must not be added to that."""
        for each in self.declared:
            metric = self.made[each.name]
            if not isinstance(metric, Gauge) or each.shown is not ReportedBy.BY_ONE:
                continue
            if each.labels:
                set_series(metric, {})
            else:
                metric.set(0)  # it always has a series


_UNITS = {
    "timestamp_seconds": "seconds since 1970",
    "gpu_seconds": "GPU-seconds",
    "gpus": "GPUs",
}


def set_series(gauge: Gauge, rows: Mapping[_Row, float]) -> None:
    """Replace everything that the gauge shows. Rows are keyed by the values of its labels, in their order.

    The rows are shown as they are now. To make an object of each series would hold up the answers to KEDA: a cluster
    with 5,000 workloads has 50,000 of them, new ones every few seconds.
    """
    gauge.rows = dict[_Labels, float](rows.items())


# -------------------------------------------------------------------------------------------------------------- labels

_STATE = "State of a workload between work and suspension, as in `status.state`"

LABELS = {
    "before": f"{_STATE}; empty where none was known.",
    "entered": f"{_STATE}.",
    "cause": "What asked for a wake-up: `Annotation` (also the verb), `Link` in a message, `HTTP`, `WhenFree`, "
    "`Demand` (a wake query), `Schedule` (`wakeAt`), or `Other` (`kubectl scale`, another trigger, its own switch).",
    "workload_namespace": "Namespace of the workload; of a gang that was given GPUs, its own. Those beyond "
    "`metrics.namespaces` are `(others)`.",
    "cluster_queue": "ClusterQueue where the workload holds or asks for quota; empty where Kueue does not manage it.",
    "model": "GPU model as the exporter names it, blanks written as `-`; empty where nothing names it.",
    "state": "Of GPUs: `Busy`, `Idle`, `HeldIdle`, `Unknown`, `WithoutMetrics`, `Starting`, `Ending` (see above). "
    "Of a workload: as in `status.state`. "
    "Of nodes: `Trusted`, `Distrusted`, `Silent`. Of queue keys: `Waiting`, `Failing`. "
    "Of ProvisioningRequests: `New`, `Accepted`, `Provisioned`, `Failed`, `BookingExpired`, `CapacityRevoked`.",
    "reason": "A reason in PascalCase, the same as in Events, conditions and `explain`.",
    "kind": "Kind of the scale target, such as `ScalableWorkload` or `Deployment`.",
    "name": "Name of the scale target.",
    "owner": "[Owner](notifications.md#owners) of the workload: a team, or a mail address.",
    "signal": "Name of a configured signal, such as `gr_engine_active`.",
    "currency": "`metrics.currency` of the settings.",
    "answer": "What KEDA gets: `active`, `inactive` or `error`.",
    "verdict": "`Idle`, `Busy` or `Unknown`; empty where the GPUs were not judged.",
    "fit": "How a Workload of a hub would fit: `Free`, `Reclaim`, `Nodes`, `Wait`, `Never` or `Unknown`.",
    "attributed": "`yes` for series that name a GPU and a pod, `no` for others.",
    "source": "`prometheus` or `dcgm`.",
    "query": "Name of the signal, `demand`, `page`, or `scrape`.",
    "outcome": "How it ended: `ok` or what went wrong. Of reallocated GPUs: `Admitted`, `Taken` or `Cancelled`. "
    "Of messages: `delivered`, `failed` or `expired`. Of hooks: `Succeeded`, `Failed`, `TimedOut` or `Outdated`.",
    "hook": "Name of a hook of the settings.",
    "gpu_node": "A node on which GPUs are not trusted, the worst `metrics.nodes` of them.",
    "stage": "Of a gang that waits: `Quota` or `AdmissionCheck`. Of a reclaim plan: `Suspending` (granted until "
    "deactivated), `Releasing` (until the pods are gone), `Admitting` (until the gang is admitted).",
    "from_namespace": "Namespace of the workload that gave its GPUs up.",
    "budget": "Which limit of which policy: `suspendedAtOnce of ClusterIdlePolicy/night`.",
    "origin": "`reused` for nodes that were there before, `provisioned` for those that have come since.",
    "event": "`Created`, `Removed`, `Provisioned`, `Failed`, `BookingExpired` or `CapacityRevoked`.",
    "provisioning_class": "Name of the provisioning class.",
    "method": "RPC of the external scaler: `IsActive`, `GetMetricSpec`, `GetMetrics`, `StreamIsActive`.",
    "code": "gRPC status code.",
    "target": "Target of notifications, as the settings name it.",
    "use": "`grpc` or `http` for the certificate that is served there, `grpc-clients` or `http-clients` for the "
    "authorities of its clients.",
    "verb": "Verb of the Kubernetes API.",
    "resource": "Resource of the Kubernetes API, with its subresource.",
    "status": "HTTP status code; 0 where there was no answer.",
    "worker": "Name of a MultiKueueCluster.",
    "version": "Version of the program.",
}
"""What the values of each label mean, whichever metric has it."""
