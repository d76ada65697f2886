"""What periods say, by team, ClusterQueue, model or workload. Pure.

Which numbers there are depends on what they are asked by, because metrics have only so many labels; None is what is
not known, and never 0:

|                                     | team | queue | model | workload                                             |
|-------------------------------------|------|-------|-------|------------------------------------------------------|
| GPU time by state                   | yes  | yes   | yes   | those with series of their own (`metrics.workloads`) |
| cost of idle GPUs, of priced models | yes  | yes   | yes   |                                                      |
| GPU time while suspended, its cost  | yes  | yes   |       |                                                      |
| GPU time given to and got by gangs  | yes  | got   |       |                                                      |
| suspensions, resumptions, regrets   | yes  |       |       |                                                      |
| waiting time of gangs               |      | yes   |       |                                                      |
| energy, where DCGM measures it      | yes  |       | yes   |                                                      |
| longest idle                        |      |       |       | yes                                                  |

Units: GPU-hours, kWh; money in the currency that it was counted in.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from scaler.reporting.usage.gpu_states import IDLE, GpuState
from scaler.reporting.usage.prices import SECONDS_PER_HOUR, normalized_model
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.measures import (
    CURRENCY,
    DCGM_MODEL,
    EXPORTER_NAMESPACE,
    FROM,
    POD_NAMESPACE,
    WORKLOAD,
    Measure,
    PeriodFacts,
)
from scaler_analysis.report.own_metrics import MODEL, NAMESPACE, QUEUE, STATE
from scaler_analysis.report.periods import Period, joined
from scaler_analysis.report.sums import (
    ROUGH,
    FactSums,
    GpuTransfer,
    WaitingTime,
    energies,
    regret_within,
    suspended_costs,
    together,
    transfers,
    unpriced_hours,
    waiting_times,
)

_MINUTES_PER_HOUR = 60


@dataclass(slots=True, kw_only=True)
class ReportRow:
    name: tuple[str, ...] = ()
    """A namespace, a ClusterQueue or a model; of a workload: namespace, ClusterQueue, kind and name."""
    hours: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-hours by state."""
    idle_cost: dict[str, float] | None = None
    """Costs by currency."""
    suspended_hours: float | None = None
    suspended_cost: dict[str, float] | None = None
    """What these would have cost, by currency."""
    given_hours: float | None = None
    """What gangs ran on GPUs that it gave up."""
    got_hours: float | None = None
    """What its gangs ran on GPUs that others gave up."""
    suspensions: float | None = None
    resumptions: float | None = None
    regrets: float | None = None
    waiting: WaitingTime | None = None
    energy_kwh: float | None = None
    longest_idle: timedelta | None = None

    @property
    def held_hours(self) -> float:
        return sum(self.hours.values())

    @property
    def idle_hours(self) -> float:
        return sum(self.hours.get(state, 0.0) for state in IDLE)

    @property
    def unknown_hours(self) -> float:
        return sum(self.hours.get(state, 0.0) for state in (GpuState.UNKNOWN, GpuState.WITHOUT_METRICS))

    @property
    def idle_share(self) -> float | None:
        return self.idle_hours / self.held_hours if self.held_hours else None

    def add(self, amount: str, value: float) -> None:
        """Add to one of its amounts, which is 0 as long as it is not known."""
        setattr(self, amount, (getattr(self, amount) or 0.0) + value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    whole: Period
    by: GroupBy
    rows: Sequence[ReportRow]
    """The rows, those with the most idle GPU-hours first."""
    total: ReportRow
    """The sum of everything, whatever the rows are by."""
    transfers: Sequence[GpuTransfer]
    waiting: Mapping[str, WaitingTime]
    """Waiting times by ClusterQueue."""
    gaps: Sequence[Period]
    regret_within: timedelta | None
    unpriced_hours: Mapping[str, float]
    """Idle GPU-hours of models without a price."""
    hidden_workloads: int
    """How many at most had no series of their own."""
    is_restricted: bool
    """Whether it is about some namespaces only."""

    @property
    def known(self) -> timedelta:
        return self.whole.length - sum((each.length for each in self.gaps), timedelta(0))


def summarized(
    facts: Sequence[PeriodFacts],
    whole: Period,
    by: GroupBy,
    *,
    namespaces: Collection[str] | None = None,
    about: str = "",
) -> UsageReport:
    """`namespaces`: those that may be seen, None: all, and what belongs to the whole cluster; `about`: only one."""

    def may_see(namespace: str) -> bool:
        return namespaces is None or namespace in namespaces

    sums = FactSums(facts, lambda name: may_see(name) and about in ("", name), may_see)
    is_whole = namespaces is None and not about
    rows = _Rows(by, sums, is_whole=is_whole)
    found = sorted(rows.found.values(), key=lambda row: (-row.idle_hours, -row.held_hours, row.name))
    hidden = sum(value for _, value in sums.highest(Measure.HIDDEN_WORKLOADS))
    return UsageReport(
        whole=whole,
        by=by,
        rows=[each for each in found if _is_worth_showing(each)],
        total=_Rows(None, sums, is_whole=is_whole).row(()),
        transfers=transfers(sums),
        waiting=waiting_times(sums) if is_whole else {},
        gaps=joined([gap for each in facts for gap in each.gaps]),
        regret_within=regret_within(sums),
        unpriced_hours=unpriced_hours(sums) if is_whole else {},
        hidden_workloads=round(hidden) if is_whole else 0,
        is_restricted=not is_whole,
    )


def _is_worth_showing(row: ReportRow) -> bool:
    amounts = (row.held_hours, row.suspended_hours, row.given_hours, row.got_hours, row.suspensions, row.energy_kwh)
    return any(amount is not None and amount >= ROUGH for amount in amounts) or row.waiting is not None


def _more(costs: Mapping[str, float] | None, currency: str, cost: float) -> dict[str, float]:
    return {**(costs or {}), currency: (costs or {}).get(currency, 0.0) + cost}


_LABELS = {
    None: (),
    GroupBy.TEAM: (NAMESPACE,),
    GroupBy.QUEUE: (QUEUE,),
    GroupBy.MODEL: (MODEL,),
    GroupBy.WORKLOAD: WORKLOAD,
}
_COUNTED = {
    Measure.SUSPENSIONS: "suspensions",
    Measure.RESUMPTIONS: "resumptions",
    Measure.REGRETS: "regrets",
}


class _Rows:
    """The rows; by None there is one, of everything."""

    def __init__(self, by: GroupBy | None, sums: FactSums, *, is_whole: bool) -> None:
        self._by, self._sums, self._is_whole = by, sums, is_whole
        self.found: dict[tuple[str, ...], ReportRow] = {}
        if by is GroupBy.WORKLOAD:
            self._add_workloads()
        else:
            self._add_gpu_time()
        if by in (None, GroupBy.TEAM, GroupBy.QUEUE):
            self._add_reclaimed()
        if by in (None, GroupBy.TEAM):
            self._add_counts()
        if by in (None, GroupBy.QUEUE) and is_whole:
            self._add_waiting()
        if by in (None, GroupBy.TEAM, GroupBy.MODEL):
            self._add_energy()

    def row(self, name: tuple[str, ...]) -> ReportRow:
        """The one of that name. What its metrics would have shown is 0 until they do."""
        if name not in self.found:
            row = self.found[name] = ReportRow(name=name)
            if self._by in (None, GroupBy.TEAM):
                row.given_hours = row.suspensions = row.resumptions = row.regrets = 0.0
            if self._by in (None, GroupBy.TEAM, GroupBy.QUEUE):
                row.suspended_hours = row.got_hours = 0.0
        return self.found[name]

    def _row_of(self, labels: Mapping[str, str]) -> ReportRow:
        return self.row(tuple(labels[each] for each in _LABELS[self._by]))

    def _add_workloads(self) -> None:
        for labels, minutes in self._sums.of(Measure.WORKLOAD_MINUTES):
            self._row_of(labels).hours[labels[STATE]] += minutes / _MINUTES_PER_HOUR
        for labels, seconds in self._sums.highest(Measure.LONGEST_IDLE):
            self._row_of(labels).longest_idle = timedelta(seconds=round(seconds))

    def _add_gpu_time(self) -> None:
        for labels, seconds in self._sums.of(Measure.GPU_SECONDS):
            self._row_of(labels).hours[labels[STATE]] += seconds / SECONDS_PER_HOUR
        for labels, cost in self._sums.of(Measure.IDLE_COST):
            row = self._row_of(labels)
            row.idle_cost = _more(row.idle_cost, labels[CURRENCY], cost)

    def _add_reclaimed(self) -> None:
        for labels, seconds in self._sums.of(Measure.RECLAIMED_GPU_SECONDS):
            self._row_of(labels).add("suspended_hours", seconds / SECONDS_PER_HOUR)
        for labels, currency, cost in suspended_costs(self._sums):
            row = self._row_of(labels)
            row.suspended_cost = _more(row.suspended_cost, currency, cost)
        for labels, seconds in self._sums.of(Measure.GIVEN_GPU_SECONDS):
            hours, giver = seconds / SECONDS_PER_HOUR, labels[FROM]
            if self._sums.visible(labels[NAMESPACE]):
                self._row_of(labels).add("got_hours", hours)
            if self._by is not GroupBy.QUEUE and self._sums.visible(giver):
                self._row_of({**labels, NAMESPACE: giver}).add("given_hours", hours)

    def _add_counts(self) -> None:
        for measure, amount in _COUNTED.items():
            for labels, count in self._sums.of(measure):
                self._row_of(labels).add(amount, count)

    def _add_waiting(self) -> None:
        waiting = waiting_times(self._sums)
        if self._by is None:
            self.row(()).waiting = together(waiting.values())
            return
        for queue, each in waiting.items():
            self.row((queue,)).waiting = each

    def _add_energy(self) -> None:
        """Teams are the namespaces that held GPUs. The whole is also the energy of GPUs that no pod held.

        Where any series has the pod's namespace as `exported_namespace`, one without it is of a GPU that no pod held,
        and not of the exporter's own namespace.
        """
        teams = {labels[NAMESPACE] for labels, _ in self._sums.of(Measure.GPU_SECONDS)}
        found = [*energies(self._sums)]
        name = POD_NAMESPACE if any(labels[POD_NAMESPACE] for labels, _ in found) else EXPORTER_NAMESPACE
        for labels, kwh in found:
            namespace, model = labels[name], normalized_model(labels[DCGM_MODEL])
            is_of_team = namespace in teams and self._sums.visible(namespace)
            if self._is_whole if self._by in (None, GroupBy.MODEL) else is_of_team:
                self._row_of({NAMESPACE: namespace, MODEL: model}).add("energy_kwh", kwh)
