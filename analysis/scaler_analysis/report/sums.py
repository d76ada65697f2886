"""What the facts of several periods come to, as far as they may be seen. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from operator import add

from scaler.reporting.usage.prices import SECONDS_PER_HOUR
from scaler_analysis.report.measures import CURRENCY, FROM, LabelValues, Measure, PeriodFacts
from scaler_analysis.report.own_metrics import MODEL, NAMESPACE, QUEUE

_MILLIJOULES_PER_KWH = 3.6e9
_WATT_MINUTES_PER_KWH = 60_000.0
ROUGH = 0.005
"""GPU-hours that are rounding: 18 seconds of one GPU."""
HIDDEN = "…"
"""What stands in place of a namespace that may not be seen."""


class FactSums:
    """The facts of all periods, as far as they may be seen."""

    def __init__(
        self, facts: Iterable[PeriodFacts], visible: Callable[[str], bool], may_name: Callable[[str], bool]
    ) -> None:
        """`visible`: of which namespaces numbers are shown; `may_name`: whose names, beside those numbers."""
        self._facts = [each.values for each in facts]
        self.visible = visible
        self.may_name = may_name

    def highest(self, measure: Measure) -> Iterator[tuple[dict[str, str], float]]:
        return self.of(measure, max)

    def of(
        self, measure: Measure, both: Callable[[float, float], float] = add
    ) -> Iterator[tuple[dict[str, str], float]]:
        """What the values of all periods come to, by the labels of the measure."""
        found: dict[LabelValues, float] = {}
        for values in self._facts:
            for labels, value in values.get(measure, {}).items():
                found[labels] = both(found[labels], value) if labels in found else value
        for labels, value in found.items():
            named = dict(zip(measure.labels, labels, strict=True))
            namespaces = [named[each] for each in (NAMESPACE, FROM) if each in named]
            if not namespaces or any(map(self.visible, namespaces)):
                yield named, value


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTime:
    """How long Workloads had waited that were admitted."""

    count: float
    seconds: float
    """What all of them waited together."""
    below: Mapping[float, float] = field(default_factory=dict)
    """How many had waited at most so many seconds."""

    @property
    def mean(self) -> timedelta:
        return timedelta(seconds=self.seconds / self.count) if self.count else timedelta(0)

    @property
    def most(self) -> timedelta | None:
        """Nine of ten waited at most so long, as precisely as the buckets are; None for longer than the largest."""
        wanted = next((bound for bound, count in sorted(self.below.items()) if count >= 0.9 * self.count - 1e-6), inf)
        return timedelta(seconds=wanted) if wanted != inf else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTransfer:
    """What gangs of a namespace got in a ClusterQueue from workloads of another one, or their own."""

    from_namespace: str
    namespace: str
    cluster_queue: str
    gpus: float
    hours: float


def energies(sums: FactSums) -> Iterator[tuple[dict[str, str], float]]:
    """kWh by the namespace of the pod, that of the exporter, and the model."""
    for labels, millijoules in sums.of(Measure.ENERGY):
        yield labels, millijoules / _MILLIJOULES_PER_KWH
    for labels, watt_minutes in sums.of(Measure.POWER):
        yield labels, watt_minutes / _WATT_MINUTES_PER_KWH


def waiting_times(sums: FactSums) -> dict[str, WaitingTime]:
    """The waiting times of each ClusterQueue in which Workloads were admitted."""
    below: defaultdict[str, dict[float, float]] = defaultdict(dict)
    for labels, count in sums.of(Measure.WAITS):
        below[labels[QUEUE]][float(labels["le"])] = count
    seconds = {labels[QUEUE]: value for labels, value in sums.of(Measure.WAIT_SECONDS)}
    found = {
        queue: WaitingTime(count=counts.get(inf, 0.0), seconds=seconds.get(queue, 0.0), below=counts)
        for queue, counts in sorted(below.items())
    }
    return {queue: each for queue, each in found.items() if round(each.count) >= 1}


def together(waiting: Iterable[WaitingTime]) -> WaitingTime | None:
    """The sum of these; None where no Workload was admitted."""
    below, count, seconds = defaultdict[float, float](float), 0.0, 0.0
    for each in waiting:
        count, seconds = count + each.count, seconds + each.seconds
        for bound, most in each.below.items():
            below[bound] += most
    return WaitingTime(count=count, seconds=seconds, below=below) if round(count) >= 1 else None


def transfers(sums: FactSums) -> list[GpuTransfer]:
    """The largest first."""
    hours, gpus = (
        _by_ends(sums, Measure.GIVEN_GPU_SECONDS, SECONDS_PER_HOUR),
        _by_ends(sums, Measure.GIVEN_GPUS, 1),
    )
    found = [
        GpuTransfer(
            from_namespace=giver,
            namespace=taker,
            cluster_queue=queue,
            gpus=gpus.get(key, 0.0),
            hours=hours.get(key, 0.0),
        )
        for key in {**hours, **gpus}
        for giver, taker, queue in [key]
    ]
    shown = [each for each in found if each.hours >= ROUGH or each.gpus >= 0.5]
    return sorted(shown, key=lambda each: (-each.hours, -each.gpus, each.from_namespace, each.namespace))


def _by_ends(sums: FactSums, measure: Measure, unit: float) -> Mapping[tuple[str, str, str], float]:
    found = defaultdict[tuple[str, str, str], float](float)
    for labels, value in sums.of(measure):
        giver, taker = (labels[each] if sums.may_name(labels[each]) else HIDDEN for each in (FROM, NAMESPACE))
        found[giver, taker, labels[QUEUE] if taker != HIDDEN else ""] += value / unit
    return found


def regret_within(sums: FactSums) -> timedelta | None:
    """How soon is too soon; None where no replica has shown it."""
    seconds = max((value for _, value in sums.highest(Measure.REGRET_WINDOW)), default=None)
    return timedelta(seconds=seconds) if seconds is not None else None


def suspended_costs(sums: FactSums) -> Iterator[tuple[dict[str, str], str, float]]:
    """What the GPU time of suspended workloads would have cost: its labels, the currency and the cost.

    At the average price of the GPUs that their namespace held, as far as they have prices; where it held none at all,
    of those that all held. Nothing where there are no prices, or prices in several currencies.
    """
    prices = {labels[MODEL]: price for labels, price in sums.highest(Measure.PRICE)}
    currencies = {labels[CURRENCY] for labels, _ in sums.highest(Measure.PRICE)}
    if len(currencies) != 1:
        return
    [currency] = currencies
    held, cost = defaultdict[str | None, float](float), defaultdict[str | None, float](float)
    for labels, seconds in sums.of(Measure.GPU_SECONDS):
        price = prices.get(labels[MODEL])
        for namespace in (labels[NAMESPACE], None):
            held[namespace] += seconds if price is not None else 0.0
            cost[namespace] += seconds * (price or 0.0)
    for labels, seconds in sums.of(Measure.RECLAIMED_GPU_SECONDS):
        namespace = labels[NAMESPACE] if labels[NAMESPACE] in held else None
        if held[namespace]:
            yield labels, currency, seconds / SECONDS_PER_HOUR * cost[namespace] / held[namespace]


def unpriced_hours(sums: FactSums) -> dict[str, float]:
    """Idle GPU-hours of models without a price."""
    found = {labels[MODEL]: value / SECONDS_PER_HOUR for labels, value in sums.of(Measure.UNPRICED_IDLE_SECONDS)}
    return {model: hours for model, hours in sorted(found.items()) if hours >= ROUGH}
