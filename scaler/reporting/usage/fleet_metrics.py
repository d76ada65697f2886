"""The metrics about the cluster: GPUs, money, single workloads, suspensions, gangs, budgets.

Laws:

* Only one replica counts: one that is not to report shows nothing, and begins anew when it is its turn.
* GPU time is what was observed × the time since the snapshot before. Where that is long ago it is not known what was in
  between, and only a few intervals are counted.
* What tenants name goes through the limits of the settings before it becomes a label.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from scaler.clock import every
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import answer_word, verdict_word
from scaler.idleness.verdict import Busy, Idle, Unknown
from scaler.reporting.metric_declarations import set_series
from scaler.reporting.metrics import Metrics
from scaler.reporting.pending_workloads import AdmittedWorkload, PendingWorkload
from scaler.reporting.usage import gpu_states as core
from scaler.reporting.usage.budget_headroom import BudgetHeadroom
from scaler.reporting.usage.fleet_snapshot import FleetReader, FleetSnapshot
from scaler.reporting.usage.gpu_states import GpuState, GpuStatus
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner, TargetUsage
from scaler.reporting.usage.prices import Prices
from scaler.reporting.usage.suspensions import (
    IDLE_REASONS,
    QuotaTransfer,
    Restarted,
    Resumed,
    Suspended,
    SuspensionEvent,
)

_LONGEST_GAP = 4
"""Intervals that are counted at most between two snapshots."""
_VERDICTS = (*(each.__name__ for each in (Idle, Busy, Unknown)), "")
_Rows = dict[tuple[str, ...], float]


@dataclass(kw_only=True)
class FleetCollector:
    """The loop: shows a snapshot after every evaluation. `observe` is called after each one that was shown."""

    name: ClassVar[str] = "fleet metrics"

    board: DecisionCache
    reader: FleetReader
    metrics: "FleetMetrics"
    interval: timedelta
    is_reporting: Callable[[], bool]
    forget: Callable[[], None] = lambda: None
    """What other replicas have reported is not known to this one any more."""
    observe: Callable[[], None] = lambda: None
    _before: datetime | None = field(default=None, init=False)
    """Instant of the snapshot before."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def wake(self) -> None:
        """There is another evaluation."""
        self._wake.set()

    async def run(self) -> None:
        """After every evaluation, until cancelled."""
        await every(None, lambda _: self.tick(), self._wake, name=self.name)

    async def tick(self) -> FleetSnapshot | None:
        """Show what there is now; None where this replica is not to report, or nothing was evaluated yet."""
        evaluation = self.board.evaluation
        if evaluation is None or not self.is_reporting():
            self._before = None
            self.forget()
            self.reader.scaled_down.forget()
            self.metrics.clear()
            return None
        snapshot = await self.reader.read(evaluation, self._elapsed(evaluation.at))
        self._before = evaluation.at
        self.metrics.show(snapshot)
        self.observe()
        return snapshot

    def _elapsed(self, at: datetime) -> timedelta:
        if self._before is None or at <= self._before:
            return timedelta(0)
        return min(at - self._before, _LONGEST_GAP * self.interval)


class FleetLimits(Protocol):
    """What of the cluster is shown: `metrics` of the settings."""

    @property
    def namespaces(self) -> int: ...

    @property
    def workloads(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def regret_within(self) -> timedelta: ...

    def price_list(self) -> Prices: ...


class FleetMetrics:
    """Snapshots and events → metrics."""

    def __init__(self, metrics: Metrics, limits: FleetLimits, *, is_reporting: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._is_reporting = is_reporting
        self._limits = limits
        self._prices = limits.price_list()
        self._namespaces = BoundedNames(limits.namespaces)
        metrics.regret_window.set(limits.regret_within.total_seconds())

    def clear(self) -> None:
        """Another replica shows them now."""
        self._metrics.forget_what_the_leader_shows()

    def show(self, snapshot: FleetSnapshot) -> None:
        metrics = self._metrics
        self._show_gpus(snapshot.usage, snapshot.elapsed)
        self._show_nodes(snapshot.usage)
        self._show_workloads(snapshot.usage.workloads)
        metrics.paused_scaled_objects.set(snapshot.usage.paused_scaled_objects)
        for event in snapshot.happened:
            self.happened(event)
        self._show_suspended(snapshot)
        self._show_pending(snapshot)
        self._show_budgets(snapshot.budgets)
        set_series(metrics.node_gpus, {(model,): count for model, count in snapshot.node_gpus.items()})
        set_series(metrics.open_requests, snapshot.open_requests)
        metrics.folded_namespaces.set(self._namespaces.folded)

    def _place(self, place: GpuOwner, state: GpuState) -> tuple[str, str, str, str]:
        return self._namespaces.of(place.namespace), place.cluster_queue, place.model, str(state)

    def _show_gpus(self, usage: FleetUsage, elapsed: timedelta) -> None:
        rows: _Rows = {}
        for (place, found), count in usage.gpus.items():
            labels = (*self._place(place, found.state), str(found.reason))
            rows[labels] = rows.get(labels, 0) + count
            self._count_time(place, found, count * elapsed.total_seconds())
        set_series(self._metrics.gpus, rows)
        models = {place.model for place, _ in usage.gpus}
        priced = {model: price for model in models if (price := self._prices.of(model)) is not None}
        currency = self._prices.currency
        set_series(self._metrics.gpu_hour_price, {(model, currency): price for model, price in priced.items()})

    def _count_time(self, place: GpuOwner, found: GpuStatus, gpu_seconds: float) -> None:
        labels = self._place(place, found.state)
        self._metrics.gpu_seconds.labels(*labels).inc(gpu_seconds)
        if found.state not in core.IDLE or not self._prices:
            return
        cost = self._prices.cost(place.model, gpu_seconds)
        if cost is None:
            self._metrics.unpriced_idle_gpu_seconds.labels(place.model).inc(gpu_seconds)
        else:
            self._metrics.idle_cost.labels(*labels[:3], self._prices.currency).inc(cost)

    def _show_nodes(self, usage: FleetUsage) -> None:
        metrics, trust = self._metrics, Counter(core.trust_in(found) for found in usage.nodes.values())
        set_series(metrics.gpu_nodes, {(str(each),): trust[each] for each in core.NodeTrust})
        bad = {node: reasons for node, found in usage.nodes.items() if (reasons := core.distrusted(found))}
        worst = sorted(bad, key=lambda node: (-sum(bad[node].values()), node))[: self._limits.nodes]
        rows = {(node, str(reason)): count for node in worst for reason, count in bad[node].items()}
        set_series(metrics.distrusted_gpus, rows)
        metrics.hidden_nodes.set(len(bad) - len(worst))
        set_series(metrics.signal_coverage, {(signal,): ratio for signal, ratio in usage.coverage.items()})

    # ------------------------------------------------------------------------------------------------------- workloads

    def _show_workloads(self, workloads: Sequence[TargetUsage]) -> None:
        metrics = self._metrics
        ordered = sorted(workloads, key=lambda each: (-(each.idle_seconds or -1.0), each.title))
        shown, hidden = ordered[: self._limits.workloads], ordered[self._limits.workloads :]
        verdicts = Counter(verdict_word(each.decision) for each in hidden)
        set_series(metrics.hidden_workloads, {(verdict,): verdicts[verdict] for verdict in _VERDICTS})
        set_series(metrics.workload_idle_seconds, _rows(shown, lambda each: each.idle_seconds))
        set_series(metrics.workload_desired_replicas, _rows(shown, lambda each: each.decision.target.desired_replicas))
        set_series(
            metrics.workload_idle_after_seconds, _rows(shown, lambda each: each.decision.policy.window.total_seconds())
        )
        set_series(
            metrics.workload_active_above_ratio, _rows(shown, lambda each: each.decision.policy.active_above_ratio)
        )
        set_series(metrics.workload_suspend_timestamp, _rows(shown, _suspend_at))
        set_series(metrics.workload_answer, {(*each.title, *_answer(each)): 1 for each in shown})
        set_series(metrics.workload_paused, {tuple(each.title): 1 for each in shown if each.is_paused})
        states = {(*each.title, str(state)): n for each in shown for state, n in each.states.items()}
        set_series(metrics.workload_gpus, states)
        peaks = {(*each.title, signal): peak for each in shown for signal, peak in each.peaks.items()}
        set_series(metrics.workload_peak_ratio, peaks)

    # ------------------------------------------------------------------------------------------------ suspended, given

    def _show_suspended(self, snapshot: FleetSnapshot) -> None:
        seconds, metrics, rows = snapshot.elapsed.total_seconds(), self._metrics, _Rows()
        for (namespace, queue), gpus in snapshot.suspended.items():
            labels = self._namespaces.of(namespace), queue
            rows[labels] = rows.get(labels, 0) + gpus
            metrics.reclaimed_gpu_seconds.labels(*labels).inc(gpus * seconds)
        set_series(metrics.suspended_gpus, rows)
        for transfer in snapshot.given:
            metrics.given_gpu_seconds.labels(*self._transfer(transfer)).inc(transfer.gpus * seconds)

    def _transfer(self, transfer: QuotaTransfer) -> tuple[str, str, str]:
        namespace = self._namespaces.of
        return namespace(transfer.from_namespace), namespace(transfer.namespace), transfer.cluster_queue

    def happened(self, event: SuspensionEvent) -> None:
        """Count what was observed about a workload that was suspended."""
        if not self._is_reporting():
            return
        match event:
            case Suspended():
                self._suspended(event)
            case Resumed():
                self._resumed(event)
            case Restarted(after=after):
                self._metrics.resumed_to_running.observe(after.total_seconds())
            case QuotaTransfer():
                self._metrics.given_gpus.labels(*self._transfer(event)).inc(event.gpus)

    def _suspended(self, event: Suspended) -> None:
        labels = self._namespaces.of(event.namespace), event.reason
        self._metrics.suspensions.labels(*labels).inc()
        self._metrics.reclaimed_gpus.labels(*labels).inc(event.gpus)
        self._metrics.idle_suspensions.inc(event.reason in IDLE_REASONS)
        if event.idle_for is not None:
            self._metrics.idle_to_suspended.labels(event.reason).observe(event.idle_for.total_seconds())

    def _resumed(self, event: Resumed) -> None:
        namespace = self._namespaces.of(event.namespace)
        self._metrics.resumptions.labels(namespace).inc()
        if event.after is None:
            return
        self._metrics.suspended_to_resumed.observe(event.after.total_seconds())
        if event.was_found_idle and event.after <= self._limits.regret_within:
            self._metrics.regrets.labels(namespace, event.reason).inc()
            self._metrics.regretted_suspensions.inc()

    # ---------------------------------------------------------------------------------------------------------- gangs

    def admitted(self, admitted: AdmittedWorkload) -> None:
        if self._is_reporting():
            self._metrics.admission_wait.labels(admitted.cluster_queue).observe(admitted.waited.total_seconds())

    def _show_pending(self, snapshot: FleetSnapshot) -> None:
        metrics = self._metrics
        set_series(metrics.pending_gangs, _summed(snapshot.pending, lambda _: 1))
        set_series(metrics.pending_gpus, _summed(snapshot.pending, lambda each: each.gpus))
        longest: _Rows = {}
        for each in snapshot.pending:
            waited = max(0.0, (snapshot.at - each.since).total_seconds())
            longest[each.cluster_queue,] = max(waited, longest.get((each.cluster_queue,), 0.0))
        set_series(metrics.longest_pending, longest)

    def _show_budgets(self, budgets: Collection[BudgetHeadroom]) -> None:
        metrics = self._metrics
        rooms = {(each.budget, str(room.kind)): room for each in budgets for room in each.rooms}
        set_series(metrics.budget_limit, {labels: room.most for labels, room in rooms.items()})
        set_series(metrics.budget_used, {labels: room.used for labels, room in rooms.items()})
        set_series(metrics.budget_headroom, {labels: room.left for labels, room in rooms.items()})
        set_series(metrics.budget_open, {(each.budget,): each.is_open for each in budgets})
        for each in budgets:
            metrics.budget_refusals.labels(each.budget)  # from 0 on, so that the first one is an increase


def _rows(
    workloads: Iterable[TargetUsage], of: Callable[[TargetUsage], float | None]
) -> Mapping[tuple[str, ...], float]:
    """One row for each workload of which it is known."""
    values = ((each.title, of(each)) for each in workloads)
    return {tuple(title): value for title, value in values if value is not None}


def _answer(workload: TargetUsage) -> tuple[str, str]:
    return answer_word(workload.decision), workload.decision.answer.reason


def _suspend_at(workload: TargetUsage) -> float | None:
    due = workload.decision.suspend_at
    return None if due is None else due.timestamp()


def _summed(pending: Iterable[PendingWorkload], of: Callable[[PendingWorkload], int]) -> _Rows:
    rows: _Rows = {}
    for each in pending:
        labels = each.cluster_queue, str(each.stage), each.reason
        rows[labels] = rows.get(labels, 0) + of(each)
    return rows


# -------------------------------------------------------------------------------------------------------- bounded names


OTHERS = "(others)"
"""What the names beyond the limit are called. No Kubernetes object can have this name."""


class BoundedNames:
    """The first `limit` names; all others are `(others)`. The empty name is not counted.

    A label keeps its series for as long as the process lives, so the first names stay: if others took their place,
    counters would continue under a wrong name.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._folded: set[str] = set()

    @property
    def folded(self) -> int:
        """How many names are beyond the limit; counted up to ten times of it."""
        return len(self._folded)

    def of(self, name: str) -> str:
        """The name itself, or `(others)`."""
        if not name or name in self._known:
            return name
        if len(self._known) < self._limit:
            self._known.add(name)
            return name
        if len(self._folded) < 10 * self._limit:
            self._folded.add(name)
        return OTHERS
