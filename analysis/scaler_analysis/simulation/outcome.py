"""What came of a policy: suspensions, what they freed, and how many of them were regretted. Pure.

| word        | meaning                                                                                            |
|-------------|----------------------------------------------------------------------------------------------------|
| return      | the first sample at or above the floor after a suspension: its owner would have had to wake it      |
| freed       | the GPU time of its pods from the suspension to the return, or to their last sample where none came |
| interrupted | the GPU time that it had run when it was suspended, of suspensions with a return within an hour     |
| unknown     | the GPU time in which the decision had no answer, by the reason                                     |
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from scaler.reporting.usage.prices import Prices
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload

SOON, WITHIN_AN_HOUR = timedelta(minutes=15), timedelta(hours=1)
"""Returns so early are told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSuspension:
    workload: RecordedWorkload
    at_s: float
    until_s: float
    ran_since_s: float
    """When it was started, or had come back."""
    has_returned: bool
    """Whether it ended by work; else by its last sample, or because its policy wakes it then."""

    @property
    def seconds(self) -> float:
        return self.until_s - self.at_s

    def has_returned_within(self, limit: timedelta) -> bool:
        return self.has_returned and self.seconds <= limit.total_seconds()


@dataclass(slots=True, kw_only=True)
class Totals:
    """What came of one workload, or of several."""

    gpu_hours: float = 0.0
    suspensions: int = 0
    returns_soon: int = 0
    returns_within_an_hour: int = 0
    freed_gpu_hours: float = 0.0
    freed_cost: float | None = None
    """The cost; None where no model has a price."""
    interrupted_gpu_hours: float = 0.0
    unknown_gpu_hours: dict[str, float] = field(default_factory=dict)
    """Hours without an answer, by reason."""

    @property
    def freed_ratio(self) -> float:
        return self.freed_gpu_hours / self.gpu_hours if self.gpu_hours else 0.0

    @property
    def regret_ratio(self) -> float:
        """The share of suspensions with a return within 15 minutes."""
        return self.returns_soon / self.suspensions if self.suspensions else 0.0

    @property
    def unknown(self) -> float:
        """Hours without an answer, for any reason."""
        return sum(self.unknown_gpu_hours.values())

    def add(self, other: "Totals") -> None:
        self.gpu_hours += other.gpu_hours
        self.suspensions += other.suspensions
        self.returns_soon += other.returns_soon
        self.returns_within_an_hour += other.returns_within_an_hour
        self.freed_gpu_hours += other.freed_gpu_hours
        if other.freed_cost is not None:
            self.freed_cost = (self.freed_cost or 0.0) + other.freed_cost
        self.interrupted_gpu_hours += other.interrupted_gpu_hours
        for reason, gpu_hours in other.unknown_gpu_hours.items():
            self.count_unknown(reason, gpu_hours)

    def count_unknown(self, reason: str, gpu_hours: float) -> None:
        self.unknown_gpu_hours[reason] = self.unknown_gpu_hours.get(reason, 0.0) + gpu_hours

    def count(self, suspension: SimulatedSuspension, prices: Prices) -> None:
        workload = suspension.workload
        freed = workload.gpu_hours(suspension.at_s, suspension.until_s)
        self.suspensions += 1
        self.returns_soon += suspension.has_returned_within(SOON)
        self.freed_gpu_hours += freed
        if (cost := _cost(suspension, prices)) is not None:
            self.freed_cost = (self.freed_cost or 0.0) + cost
        if suspension.has_returned_within(WITHIN_AN_HOUR):
            self.returns_within_an_hour += 1
            self.interrupted_gpu_hours += workload.gpu_hours(suspension.ran_since_s, suspension.at_s)


def _cost(suspension: SimulatedSuspension, prices: Prices) -> float | None:
    """The cost of the GPUs that it freed; None where the price of none of its pods' GPUs is known."""
    found = [
        prices.cost(pod.model, pod.gpu_seconds(suspension.at_s, suspension.until_s)) for pod in suspension.workload.pods
    ]
    known = [each for each in found if each is not None]
    return sum(known) if known else None


Key = TypeVar("Key", bound=Hashable)


@dataclass(kw_only=True)
class CaseOutcome:
    """What came of one case, workload by workload, where anything did."""

    name: str
    prices: Prices = field(default_factory=Prices)
    by_workload: dict[int, Totals] = field(default_factory=dict)
    """What came of each workload, by its position."""
    observe: Callable[[SimulatedSuspension], None] = lambda _: None

    def of(self, position: int) -> Totals:
        return self.by_workload.setdefault(position, Totals())

    def suspended(self, position: int, suspension: SimulatedSuspension) -> None:
        self.of(position).count(suspension, self.prices)
        self.observe(suspension)

    def unknown(self, position: int, reason: str, gpu_hours: float) -> None:
        if gpu_hours > 0:
            self.of(position).count_unknown(reason, gpu_hours)

    def by(self, workloads: Iterable[RecordedWorkload], key: Callable[[RecordedWorkload], Key]) -> Mapping[Key, Totals]:
        """The totals by what the key says of each workload, with the GPU time of all."""
        found: dict[Key, Totals] = {}
        for position, workload in enumerate(workloads):
            totals = found.setdefault(key(workload), Totals())
            totals.gpu_hours += workload.gpu_hours(workload.start_s, workload.end_s)
            if position in self.by_workload:
                totals.add(self.by_workload[position])
        return found

    def total(self, workloads: Iterable[RecordedWorkload]) -> Totals:
        return self.by(workloads, lambda _: "").get("", Totals())
