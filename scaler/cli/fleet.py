"""What is counted about the cluster, turned into metrics: GPUs, money, single workloads, hand-overs, gangs, budgets.

Only whoever is to report counts. What tenants name goes through the limits of the settings before it becomes a label.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from scaler.core import usage as core
from scaler.core.bounded import BoundedNames
from scaler.core.handovers import Flow, Gift
from scaler.core.headroom import Headroom
from scaler.core.idleness import Busy, Idle, Unknown
from scaler.core.prices import Prices
from scaler.core.replicas import answer_reason
from scaler.core.usage import Found, State
from scaler.loops.backlog import Pending
from scaler.loops.bookkeeping import Statement
from scaler.loops.handovers import FOUND_IDLE, Event, Resumed, Running, Suspended
from scaler.loops.projection import answer_word, verdict_word
from scaler.loops.usage import Place, Usage, WorkloadUsage
from scaler.loops.waits import Admitted
from scaler.settings.metrics import MetricsSetting
from scaler.telemetry.declaring import show
from scaler.telemetry.metrics import Metrics

_VERDICTS = (*(each.__name__ for each in (Idle, Busy, Unknown)), "")
_Rows = dict[tuple[str, ...], float]


class FleetObserver:
    """One method per kind of report."""

    def __init__(self, metrics: Metrics, settings: MetricsSetting, *, is_reporting: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._settings = settings
        self._prices: Prices = settings.price_list()
        self._namespaces = BoundedNames(settings.namespaces)
        self._is_reporting = is_reporting
        metrics.regret_window.set(settings.regret_within.total_seconds())

    # ------------------------------------------------------------------------------------------------------ statements

    def stated(self, statement: Statement | None) -> None:
        """Show it; None: somebody else does, and nothing is to be left standing here."""
        if statement is None:
            self._metrics.forget_what_the_leader_shows()
            return
        self._show_gpus(statement.usage, statement.elapsed)
        self._show_nodes(statement.usage)
        self._show_workloads(statement.usage.workloads)
        self._metrics.paused_scaled_objects.set(statement.usage.paused_scaled_objects)
        for event in statement.happened:
            self.happened(event)
        self._show_suspended(statement)
        self._show_pending(statement)
        self._show_budgets(statement.budgets)
        show(self._metrics.node_gpus, {(model,): count for model, count in statement.node_gpus.items()})
        self._metrics.folded_namespaces.set(self._namespaces.folded)

    def _place(self, place: Place, state: State) -> tuple[str, str, str, str]:
        return self._namespaces.of(place.namespace), place.cluster_queue, place.model, str(state)

    def _show_gpus(self, usage: Usage, elapsed: timedelta) -> None:
        rows: _Rows = {}
        for (place, found), count in usage.gpus.items():
            labels = (*self._place(place, found.state), str(found.reason))
            rows[labels] = rows.get(labels, 0) + count
            self._count_time(place, found, count * elapsed.total_seconds())
        show(self._metrics.gpus, rows)
        models = {place.model for place, _ in usage.gpus}
        priced = {model: price for model in models if (price := self._prices.of(model)) is not None}
        currency = self._prices.currency
        show(self._metrics.gpu_hour_price, {(model, currency): price for model, price in priced.items()})

    def _count_time(self, place: Place, found: Found, gpu_seconds: float) -> None:
        labels = self._place(place, found.state)
        self._metrics.gpu_seconds.labels(*labels).inc(gpu_seconds)
        if found.state not in core.IDLE or not self._prices:
            return
        cost = self._prices.cost(place.model, gpu_seconds)
        if cost is None:
            self._metrics.unpriced_idle_gpu_seconds.labels(place.model).inc(gpu_seconds)
        else:
            self._metrics.idle_cost.labels(*labels[:3], self._prices.currency).inc(cost)

    def _show_nodes(self, usage: Usage) -> None:
        metrics, trust = self._metrics, Counter(core.trust_in(found) for found in usage.nodes.values())
        show(metrics.gpu_nodes, {(str(each),): trust[each] for each in core.NodeTrust})
        bad = {node: reasons for node, found in usage.nodes.items() if (reasons := core.distrusted(found))}
        worst = sorted(bad, key=lambda node: (-sum(bad[node].values()), node))[: self._settings.nodes]
        rows = {(node, str(reason)): count for node in worst for reason, count in bad[node].items()}
        show(metrics.distrusted_gpus, rows)
        metrics.hidden_nodes.set(len(bad) - len(worst))
        show(metrics.signal_coverage, {(signal,): ratio for signal, ratio in usage.coverage.items()})

    # ------------------------------------------------------------------------------------------------------- workloads

    def _show_workloads(self, workloads: Sequence[WorkloadUsage]) -> None:
        metrics = self._metrics
        ordered = sorted(workloads, key=lambda each: (-(each.idle_seconds or -1.0), each.title))
        shown, hidden = ordered[: self._settings.workloads], ordered[self._settings.workloads :]
        verdicts = Counter(verdict_word(each.decision) for each in hidden)
        show(metrics.hidden_workloads, {(verdict,): verdicts[verdict] for verdict in _VERDICTS})
        show(metrics.workload_idle_seconds, _rows(shown, lambda each: each.idle_seconds))
        show(metrics.workload_desired_replicas, _rows(shown, lambda each: each.decision.standing.desired_replicas))
        show(
            metrics.workload_idle_after_seconds, _rows(shown, lambda each: each.decision.policy.window.total_seconds())
        )
        show(metrics.workload_active_above_ratio, _rows(shown, lambda each: each.decision.policy.active_above_ratio))
        show(metrics.workload_suspend_timestamp, _rows(shown, _suspend_at))
        show(metrics.workload_answer, {(*each.title, *_answer(each)): 1 for each in shown})
        show(metrics.workload_paused, {tuple(each.title): 1 for each in shown if each.is_paused})
        states = {(*each.title, str(state)): n for each in shown for state, n in each.states.items()}
        show(metrics.workload_gpus, states)
        peaks = {(*each.title, signal): peak for each in shown for signal, peak in each.peaks.items()}
        show(metrics.workload_peak_ratio, peaks)

    # ------------------------------------------------------------------------------------------------ suspended, given

    def _show_suspended(self, statement: Statement) -> None:
        seconds, metrics, rows = statement.elapsed.total_seconds(), self._metrics, _Rows()
        for (namespace, queue), gpus in statement.suspended.items():
            labels = self._namespaces.of(namespace), queue
            rows[labels] = rows.get(labels, 0) + gpus
            metrics.reclaimed_gpu_seconds.labels(*labels).inc(gpus * seconds)
        show(metrics.suspended_gpus, rows)
        for flow, gpus in statement.given.items():
            metrics.given_gpu_seconds.labels(*self._flow(flow)).inc(gpus * seconds)

    def _flow(self, flow: Flow) -> tuple[str, str, str, str]:
        giver, receiver = self._namespaces.of(flow.from_namespace), self._namespaces.of(flow.namespace)
        return giver, receiver, flow.cluster_queue, str(flow.through)

    def happened(self, event: Event) -> None:
        """Something was observed about a workload that was suspended, or about what it gave."""
        if not self._is_reporting():
            return
        match event:
            case Suspended():
                self._suspended(event)
            case Resumed():
                self._resumed(event)
            case Running(after=after):
                self._metrics.resumed_to_running.observe(after.total_seconds())
            case Gift():
                self._metrics.given_gpus.labels(*self._flow(event.flow)).inc(event.gpus)
                self._metrics.suspended_to_given.labels(str(event.flow.through)).observe(event.after.total_seconds())

    def _suspended(self, event: Suspended) -> None:
        labels = self._namespaces.of(event.namespace), event.reason
        self._metrics.suspensions.labels(*labels).inc()
        self._metrics.reclaimed_gpus.labels(*labels).inc(event.gpus)
        self._metrics.idle_suspensions.inc(event.reason in FOUND_IDLE)
        if event.idle_for is not None:
            self._metrics.idle_to_suspended.labels(event.reason).observe(event.idle_for.total_seconds())

    def _resumed(self, event: Resumed) -> None:
        namespace = self._namespaces.of(event.namespace)
        self._metrics.resumptions.labels(namespace).inc()
        if event.after is None:
            return
        self._metrics.suspended_to_resumed.observe(event.after.total_seconds())
        if event.was_found_idle and event.after <= self._settings.regret_within:
            self._metrics.regrets.labels(namespace, event.reason).inc()
            self._metrics.regretted_suspensions.inc()

    # ---------------------------------------------------------------------------------------------------------- gangs

    def admitted(self, admitted: Admitted, cluster_queue: str) -> None:
        if self._is_reporting() and admitted.waited is not None:
            self._metrics.admission_wait.labels(cluster_queue).observe(admitted.waited.total_seconds())

    def _show_pending(self, statement: Statement) -> None:
        metrics = self._metrics
        show(metrics.pending_gangs, _summed(statement.pending, lambda _: 1))
        show(metrics.pending_gpus, _summed(statement.pending, lambda each: each.gpus))
        longest: _Rows = {}
        for each in statement.pending:
            waited = max(0.0, (statement.at - each.since).total_seconds())
            longest[each.cluster_queue,] = max(waited, longest.get((each.cluster_queue,), 0.0))
        show(metrics.longest_pending, longest)

    def _show_budgets(self, budgets: Collection[Headroom]) -> None:
        metrics = self._metrics
        rooms = {(each.budget, str(room.kind)): room for each in budgets for room in each.rooms}
        show(metrics.budget_limit, {labels: room.most for labels, room in rooms.items()})
        show(metrics.budget_used, {labels: room.used for labels, room in rooms.items()})
        show(metrics.budget_headroom, {labels: room.left for labels, room in rooms.items()})
        show(metrics.budget_open, {(each.budget,): each.is_open for each in budgets})
        for each in budgets:
            metrics.budget_refusals.labels(each.budget)  # from 0 on, so that the first one is an increase


def _rows(
    workloads: Iterable[WorkloadUsage], of: Callable[[WorkloadUsage], float | None]
) -> Mapping[tuple[str, ...], float]:
    """One row for each workload of which it is known."""
    values = ((each.title, of(each)) for each in workloads)
    return {tuple(title): value for title, value in values if value is not None}


def _answer(workload: WorkloadUsage) -> tuple[str, str]:
    return answer_word(workload.decision), answer_reason(workload.decision.answer)


def _suspend_at(workload: WorkloadUsage) -> float | None:
    due = workload.decision.suspend_at
    return None if due is None else due.timestamp()


def _summed(pending: Iterable[Pending], of: Callable[[Pending], int]) -> _Rows:
    rows: _Rows = {}
    for each in pending:
        labels = each.cluster_queue, str(each.stage), each.reason
        rows[labels] = rows.get(labels, 0) + of(each)
    return rows
