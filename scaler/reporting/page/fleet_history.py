"""What did the GPUs of the fleet do over the last hours? From Prometheus, else what this process has seen.

Laws:

* Where Prometheus scrapes the scaler, the numbers are its own metrics, as the dashboards have them; they outlive a
  process, and are the same on every replica. Where it has none, or does not answer in time, this process's memory is
  shown, and the page says so.
* Memory is bounded: so many samples, which become rarer until they reach back for six hours, each by namespace, as far
  as namespaces are labels of metrics. What is as before is kept once.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import structlog

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.errors import SourceError
from scaler.reporting.page.fleet_chart import STACK, SUSPENDED, FleetSample
from scaler.reporting.page.workloads import NAMESPACE
from scaler.reporting.usage.fleet_metrics import BoundedNames
from scaler.reporting.usage.gpu_usage import FleetUsage
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.promql import range_duration, selector
from scaler.samples.source import RawSeries

log = structlog.get_logger(__name__)

SPAN = timedelta(hours=6)
_STEP = timedelta(minutes=3)
"""Step of what Prometheus is asked for."""
_MOST_SAMPLES = 360
_PATIENCE_S = 3.0
_FRESH_S = 20.0
"""How long an answer of Prometheus is shown again."""
_MOST_ANSWERS = 64
NO_MATCHERS: Mapping[str, str] = MappingProxyType({})
_INDEX = {state: number for number, state in enumerate(STACK)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHistory:
    samples: Sequence[FleetSample]
    step: timedelta
    source: str
    """The source of the history, in words."""


class FleetMemory:
    """What this process has seen."""

    def __init__(self, *, interval: timedelta, namespaces: int = 500) -> None:
        self.step = interval
        self._samples: list[tuple[datetime, dict[str, tuple[int, ...]]]] = []
        self._names = BoundedNames(namespaces)

    def is_due(self, at: datetime) -> bool:
        return not self._samples or at - self._samples[-1][0] >= self.step

    def add(self, usage: FleetUsage, suspended: Mapping[tuple[str, str], int]) -> None:
        """The states of all GPUs, and the GPUs of suspended workloads by namespace and ClusterQueue."""
        if not self.is_due(usage.at):
            return
        counts: dict[str, list[int]] = {}
        found = Counter({(owner.namespace, str(status.state)): 0 for owner, status in usage.gpus})
        for (owner, status), count in usage.gpus.items():
            found[owner.namespace, str(status.state)] += count
        for (namespace, _), count in suspended.items():
            found[namespace, SUSPENDED] += count
        for (namespace, state), count in found.items():
            counts.setdefault(self._names.of(namespace), [0] * len(STACK))[_INDEX[state]] += count
        before = self._samples[-1][1] if self._samples else {}
        kept = {name: _same(before.get(name), tuple(each)) for name, each in counts.items()}
        self._samples.append((usage.at, before if kept == before else kept))
        self._thin_out()

    def _thin_out(self) -> None:
        if len(self._samples) <= _MOST_SAMPLES:
            return
        if self.step * _MOST_SAMPLES < SPAN:
            self._samples, self.step = self._samples[::2], 2 * self.step
        else:
            del self._samples[0]

    def samples(self, namespaces: Collection[str] | None) -> Sequence[FleetSample]:
        """The samples of these namespaces, None: of all."""
        return [
            FleetSample(at=at, gpus=_summed(found.items() if namespaces is None else _only(found, namespaces)))
            for at, found in self._samples
        ]


def _same(before: tuple[int, ...] | None, now: tuple[int, ...]) -> tuple[int, ...]:
    return before if before is not None and before == now else now


def _only(found: Mapping[str, tuple[int, ...]], namespaces: Collection[str]) -> Collection[tuple[str, tuple[int, ...]]]:
    return [(name, found[name]) for name in namespaces if name in found]


def _summed(found: Collection[tuple[str, tuple[int, ...]]]) -> dict[str, float]:
    sums = [sum(column) for column in zip(*(counts for _, counts in found), strict=True)]
    return {state: float(count) for state, count in zip(STACK, sums, strict=False) if count}


class FleetHistoryReader:
    def __init__(
        self,
        memory: FleetMemory,
        source: PrometheusSource | None,
        *,
        matchers: Mapping[str, str] = NO_MATCHERS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._memory = memory
        self._source = source
        self._matchers = matchers
        self._clock = clock
        self._turn = asyncio.Lock()
        self._answers: dict[frozenset[str] | None, tuple[float, FleetHistory | str]] = {}

    async def read(self, at: datetime, namespaces: Collection[str] | None = None) -> FleetHistory:
        """What was up to this instant in these namespaces; None: in all."""
        if self._source is None or (namespaces is not None and not any(map(NAMESPACE.fullmatch, namespaces))):
            return self._remembered(namespaces, "")
        async with self._turn:
            found = await self._asked(self._source, at, None if namespaces is None else frozenset(namespaces))
        return found if isinstance(found, FleetHistory) else self._remembered(namespaces, found)

    def _remembered(self, namespaces: Collection[str] | None, why: str) -> FleetHistory:
        source = f"seen by this process since it started{f'; {why}' if why else ''}"
        return FleetHistory(samples=self._memory.samples(namespaces), step=self._memory.step, source=source)

    async def _asked(
        self, source: PrometheusSource, at: datetime, namespaces: frozenset[str] | None
    ) -> FleetHistory | str:
        """What Prometheus has, or why that is not shown."""
        now = self._clock.monotonic()
        self._answers = {key: each for key, each in self._answers.items() if now - each[0] < _FRESH_S}
        if namespaces in self._answers:
            return self._answers[namespaces][1]
        found = await self._read(source, at, namespaces)
        if len(self._answers) < _MOST_ANSWERS:
            self._answers[namespaces] = self._clock.monotonic(), found
        return found

    async def _read(
        self, source: PrometheusSource, at: datetime, namespaces: frozenset[str] | None
    ) -> FleetHistory | str:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                samples = await read_fleet(source, self._matchers, end=at, span=SPAN, step=_STEP, namespaces=namespaces)
        except (SourceError, TimeoutError) as error:
            log.debug("fleet history not read", error=str(error))
            return "Prometheus did not answer in time"
        if not samples:
            return "Prometheus has no metrics of this scaler"
        return FleetHistory(samples=samples, step=_STEP, source="metrics of the scaler in Prometheus")


async def read_fleet(
    source: PrometheusSource,
    matchers: Mapping[str, str],
    *,
    end: datetime,
    span: timedelta,
    step: timedelta,
    namespaces: Collection[str] | None = None,
) -> list[FleetSample]:
    """GPUs that pods held by state for a time until `end`, and those of suspended workloads, as Prometheus has them.

    `matchers`: labels of the scaler's own metrics, as in the settings.

    Raises: SourceError.
    """
    chosen = () if namespaces is None else (f"workload_namespace=~{_any_of(namespaces)}",)
    of_them = selector(matchers, *chosen)
    gauges = (f"sum by (state) (idle_gpu_scaler_gpus{of_them})", f"sum (idle_gpu_scaler_suspended_gpus{of_them})")
    queries = [f"{each}[{range_duration(span)}:{range_duration(step)}]" for each in gauges]
    held, at_zero = await asyncio.gather(*(source.ranges(each, at=end) for each in queries))
    return _joined(held, at_zero)


def _any_of(names: Collection[str]) -> str:
    """A regular expression as a PromQL string, of those that are names of namespaces."""
    return f'"{"|".join(sorted(filter(NAMESPACE.fullmatch, names)))}"'


def _joined(held: Sequence[RawSeries], at_zero: Sequence[RawSeries]) -> list[FleetSample]:
    by_time: dict[float, dict[str, float]] = {}
    for series, state in [
        *((each, each.labels().get("state", "")) for each in held),
        *((x, SUSPENDED) for x in at_zero),
    ]:
        for at_s, value in series.samples() if state in _INDEX else ():
            by_time.setdefault(at_s, {})[state] = value
    return [FleetSample(at=datetime.fromtimestamp(at_s, UTC), gpus=by_time[at_s]) for at_s in sorted(by_time)]
