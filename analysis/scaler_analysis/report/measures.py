"""What is read of a period, and by which labels. Pure.

| measures                                       | read as                                                        |
|------------------------------------------------|----------------------------------------------------------------|
| GPU time, money, suspensions, waiting          | what counters gained, with what new series begin with          |
| GPU time of single workloads                   | their gauges, minute by minute                                 |
| the longest idle time, prices, hidden workloads| the highest value of the period                                |
| energy                                         | DCGM's counter, or the power that it samples, minute by minute |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import NamedTuple

from scaler.samples.promql import range_duration
from scaler_analysis.report.own_metrics import MODEL, NAMESPACE, QUEUE, STATE, OwnMetrics
from scaler_analysis.report.periods import Period

LabelValues = tuple[str, ...]
"""The values of the measure's labels, in their order."""

FROM, CURRENCY, REASON, LE = "from_namespace", "currency", "reason", "le"
WORKLOAD = (NAMESPACE, QUEUE, "kind", "name")
POD_NAMESPACE, EXPORTER_NAMESPACE, DCGM_MODEL = "exported_namespace", "namespace", "modelName"
_ENERGY_BY = (POD_NAMESPACE, EXPORTER_NAMESPACE, DCGM_MODEL)
_DEVICE = f"UUID, {', '.join(_ENERGY_BY)}, exported_pod, pod"
_WHOLE_GPU = 'GPU_I_ID=""'
"""Every instance of a partitioned GPU (MIG) has the power of all of it, which nobody could tell apart."""

Question = Callable[[OwnMetrics, Period, Collection[str]], str]
"""The PromQL, of a period, where the scaler is scraped under these jobs."""


class _Read(NamedTuple):
    labels: tuple[str, ...]
    promql: Question


def _gained(name: str, *labels: str) -> _Read:
    def promql(own: OwnMetrics, period: Period, jobs: Collection[str]) -> str:
        return own.gained(name, labels, begin=period.begin, end=period.end, jobs=jobs)

    return _Read(labels, promql)


def _highest(name: str, *labels: str) -> _Read:
    def promql(own: OwnMetrics, period: Period, _: Collection[str]) -> str:
        return f"max by ({', '.join(labels)}) (max_over_time({own.of(name)}[{range_duration(period.length)}]))"

    return _Read(labels, promql)


def every_minute(gauge: str, period: Period) -> str:
    """The gauge at each whole minute of the period, its begin included and its end not."""
    return f"({gauge})[{range_duration(period.length)}:1m] offset 1ms"


def _gpu_minutes(own: OwnMetrics, period: Period, _: Collection[str]) -> str:
    gauge = f"max by ({', '.join((*WORKLOAD, STATE))}) ({own.of('workload_gpus')})"
    return f"sum_over_time({every_minute(gauge, period)})"


def _energy(own: OwnMetrics, period: Period, _: Collection[str]) -> str:
    """Millijoules."""
    counter = own.selector("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _WHOLE_GPU)
    return _of_devices(f"increase({counter}[{range_duration(period.length)}])")


def _power(own: OwnMetrics, period: Period, _: Collection[str]) -> str:
    """Watt-minutes."""
    gauge = own.selector("DCGM_FI_DEV_POWER_USAGE", _WHOLE_GPU)
    return _of_devices(f"sum_over_time({every_minute(gauge, period)})")


def _of_devices(each: str) -> str:
    """The sums with each GPU once, whoever else scrapes it."""
    return f"sum by ({', '.join(_ENERGY_BY)}) (max by ({_DEVICE}) ({each}))"


class Measure(Enum):
    GPU_SECONDS = _gained("gpu_seconds_total", NAMESPACE, QUEUE, MODEL, STATE)
    IDLE_COST = _gained("idle_cost_total", NAMESPACE, QUEUE, MODEL, CURRENCY)
    UNPRICED_IDLE_SECONDS = _gained("unpriced_idle_gpu_seconds_total", MODEL)
    RECLAIMED_GPU_SECONDS = _gained("reclaimed_gpu_seconds_total", NAMESPACE, QUEUE)
    GIVEN_GPU_SECONDS = _gained("given_gpu_seconds_total", FROM, NAMESPACE, QUEUE)
    GIVEN_GPUS = _gained("given_gpus_total", FROM, NAMESPACE, QUEUE)
    SUSPENSIONS = _gained("suspensions_total", NAMESPACE, REASON)
    RESUMPTIONS = _gained("resumptions_total", NAMESPACE)
    REGRETS = _gained("regrets_total", NAMESPACE, REASON)
    WAIT_SECONDS = _gained("admission_wait_seconds_sum", QUEUE)
    WAITS = _gained("admission_wait_seconds_bucket", QUEUE, LE)
    PRICE = _highest("gpu_hour_price", MODEL, CURRENCY)
    REGRET_WINDOW = _highest("regret_window_seconds")
    WORKLOAD_MINUTES = _Read((*WORKLOAD, STATE), _gpu_minutes)
    LONGEST_IDLE = _highest("workload_idle_seconds", *WORKLOAD)
    HIDDEN_WORKLOADS = _highest("hidden_workloads", "verdict")
    ENERGY = _Read(_ENERGY_BY, _energy)
    POWER = _Read(_ENERGY_BY, _power)

    @property
    def labels(self) -> tuple[str, ...]:
        read: _Read = self.value
        return read.labels

    def promql(self, own: OwnMetrics, period: Period, jobs: Collection[str]) -> str:
        read: _Read = self.value
        return read.promql(own, period, jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodFacts:
    """What is known of one period."""

    period: Period
    gaps: Sequence[Period]
    """When nothing is known."""
    values: Mapping[Measure, Mapping[LabelValues, float]] = field(default_factory=dict)

    @property
    def known(self) -> timedelta:
        return self.period.length - sum((each.length for each in self.gaps), timedelta(0))
