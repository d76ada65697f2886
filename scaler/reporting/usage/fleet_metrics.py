"""The metrics about the cluster: GPUs, money, single workloads, suspensions, gangs, budgets.

What tenants name goes through the limits of the settings before it becomes a label.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from scaler.decision.describe import answer_word, verdict_word
from scaler.decision.reasons import FOUND_IDLE, CandidateState
from scaler.idleness.verdict import Busy, Idle, Unknown
from scaler.reclaim.budget import Spending
from scaler.reporting.metric_declarations import set_series
from scaler.reporting.metrics import Metrics
from scaler.reporting.pending_workloads import PendingWorkload
from scaler.reporting.usage.gpu_states import IDLE, GpuState, GpuStatus, NodeTrust, distrusted, trust_in
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner, TargetUsage
from scaler.reporting.usage.prices import Prices

_VERDICTS = (*(each.__name__ for each in (Idle, Busy, Unknown)), "")
_OF_OWNERS = frozenset({CandidateState.WARNED, CandidateState.SUSPENDED})
"""States of which alerts notify owners."""
_Rows = defaultdict[tuple[str, ...], float]


class QuotaTransfer(NamedTuple):
    """GPUs that a plan took from a workload and gave to a gang."""

    from_namespace: str
    namespace: str
    cluster_queue: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    namespaces: int
    workloads: int
    nodes: int
    regret_within: timedelta
    prices: Prices


class FleetMetrics:
    """What is collected, and what is observed of workloads as they are suspended and resumed, → metrics."""

    def __init__(
        self, metrics: Metrics, limits: FleetLimits, budgets: "BoundedNames", *, is_reporting: Callable[[], bool]
    ) -> None:
        self._metrics = metrics
        self._is_reporting = is_reporting
        self._limits = limits
        self._prices = limits.prices
        self._namespaces = BoundedNames(limits.namespaces)
        self._budgets = budgets
        metrics.regret_window_seconds.set(limits.regret_within.total_seconds())

    def clear(self) -> None:
        self._metrics.forget_what_the_leader_shows()

    def show_usage(self, usage: FleetUsage, elapsed: timedelta) -> None:
        """`elapsed`: for how long it counts."""
        self._show_gpus(usage, elapsed)
        self._show_trust(usage)
        self._show_workloads(usage.workloads)
        self._metrics.paused_scaled_objects.set(usage.paused_scaled_objects)

    def show_nodes(self, gpus: Mapping[str, int], requests: Mapping[tuple[str, str], int]) -> None:
        """GPUs that nodes offer by model, and ProvisioningRequests by class and state."""
        set_series(self._metrics.node_gpus, {(model,): count for model, count in gpus.items()})
        set_series(self._metrics.open_provisioning_requests, requests)

    def _place(self, place: GpuOwner, state: GpuState) -> tuple[str, str, str, str]:
        return self._namespaces.of(place.namespace), place.cluster_queue, place.model, str(state)

    def _show_gpus(self, usage: FleetUsage, elapsed: timedelta) -> None:
        rows = _Rows(float)
        for (place, found), count in usage.gpus.items():
            labels = (*self._place(place, found.state), str(found.reason))
            rows[labels] += count
            self._count_time(place, found, count * elapsed.total_seconds())
        set_series(self._metrics.gpus, rows)
        models = {place.model for place, _ in usage.gpus}
        priced = {model: price for model in models if (price := self._prices.of(model)) is not None}
        currency = self._prices.currency
        set_series(self._metrics.gpu_hour_price, {(model, currency): price for model, price in priced.items()})

    def _count_time(self, place: GpuOwner, found: GpuStatus, gpu_seconds: float) -> None:
        labels = self._place(place, found.state)
        self._metrics.gpu_seconds_total.labels(*labels).inc(gpu_seconds)
        if found.state not in IDLE or not self._prices:
            return
        cost = self._prices.cost(place.model, gpu_seconds)
        if cost is None:
            self._metrics.unpriced_idle_gpu_seconds_total.labels(place.model).inc(gpu_seconds)
        else:
            self._metrics.idle_cost_total.labels(*labels[:3], self._prices.currency).inc(cost)

    def _show_trust(self, usage: FleetUsage) -> None:
        metrics, trust = self._metrics, Counter(trust_in(found) for found in usage.nodes.values())
        set_series(metrics.gpu_nodes, {(str(each),): trust[each] for each in NodeTrust})
        bad = {node: reasons for node, found in usage.nodes.items() if (reasons := distrusted(found))}
        worst = sorted(bad, key=lambda node: (-sum(bad[node].values()), node))[: self._limits.nodes]
        rows = {(node, str(reason)): count for node in worst for reason, count in bad[node].items()}
        set_series(metrics.distrusted_gpus, rows)
        metrics.hidden_nodes.set(len(bad) - len(worst))
        set_series(metrics.signal_coverage_ratio, {(signal,): ratio for signal, ratio in usage.coverage.items()})

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
        dues = {tuple(each.title): due.timestamp() for each in shown if (due := each.decision.suspend_at) is not None}
        set_series(metrics.workload_suspend_timestamp_seconds, dues)
        decided = [(each.title, each.decision) for each in shown]
        set_series(
            metrics.workload_answer, {(*title, answer_word(one), one.answer.reason): 1 for title, one in decided}
        )
        set_series(metrics.workload_paused, {tuple(each.title): 1 for each in shown if each.is_paused})
        states = {(*each.title, str(state)): n for each in shown for state, n in each.states.items()}
        set_series(metrics.workload_gpus, states)
        peaks = {(*each.title, signal): peak for each in shown for signal, peak in each.peaks.items()}
        set_series(metrics.workload_peak_ratio, peaks)
        owned = [each for each in ordered if each.state in _OF_OWNERS][: self._limits.workloads]
        set_series(metrics.workload_state, {(*each.title, str(each.state), each.owner): 1 for each in owned})

    # ------------------------------------------------------------------------------------------------ suspended, given

    def show_suspended(
        self, gpus: Mapping[tuple[str, str], int], transfers: Iterable[QuotaTransfer], elapsed: timedelta
    ) -> None:
        """GPUs that suspended workloads would hold, by namespace and ClusterQueue, and what gangs have of them."""
        seconds, metrics, rows = elapsed.total_seconds(), self._metrics, _Rows(float)
        for (namespace, queue), count in gpus.items():
            labels = self._namespaces.of(namespace), queue
            rows[labels] += count
            metrics.reclaimed_gpu_seconds_total.labels(*labels).inc(count * seconds)
        set_series(metrics.suspended_gpus, rows)
        for transfer in transfers:
            metrics.given_gpu_seconds_total.labels(*self._transfer(transfer)).inc(transfer.gpus * seconds)
        metrics.folded_namespaces.set(self._namespaces.folded)

    def _transfer(self, transfer: QuotaTransfer) -> tuple[str, str, str]:
        namespace = self._namespaces.of
        return namespace(transfer.from_namespace), namespace(transfer.namespace), transfer.cluster_queue

    def transferred(self, transfer: QuotaTransfer) -> None:
        if self._is_reporting():
            self._metrics.given_gpus_total.labels(*self._transfer(transfer)).inc(transfer.gpus)

    def suspended(self, namespace: str, reason: str, *, gpus: int, idle_for: timedelta | None) -> None:
        """`idle_for`: None where it was not found idle."""
        if not self._is_reporting():
            return
        labels = self._namespaces.of(namespace), reason
        self._metrics.suspensions_total.labels(*labels).inc()
        self._metrics.reclaimed_gpus_total.labels(*labels).inc(gpus)
        self._metrics.idle_suspensions_total.inc(reason in FOUND_IDLE)
        if idle_for is not None:
            self._metrics.idle_to_suspended_seconds.labels(reason).observe(idle_for.total_seconds())

    def resumed(self, namespace: str, reason: str, *, after: timedelta | None) -> None:
        """`reason` for which it had been suspended; `after`: None where it is not known since when it was."""
        if not self._is_reporting():
            return
        namespace = self._namespaces.of(namespace)
        self._metrics.resumptions_total.labels(namespace).inc()
        if after is None:
            return
        self._metrics.suspended_to_resumed_seconds.observe(after.total_seconds())
        if reason in FOUND_IDLE and after <= self._limits.regret_within:
            self._metrics.regrets_total.labels(namespace, reason).inc()
            self._metrics.regretted_suspensions_total.inc()

    # ---------------------------------------------------------------------------------------------------------- gangs

    def admitted(self, cluster_queue: str, waited: timedelta) -> None:
        if self._is_reporting():
            self._metrics.admission_wait_seconds.labels(cluster_queue).observe(waited.total_seconds())

    def show_pending(self, pending: Iterable[PendingWorkload], at: datetime) -> None:
        gangs, gpus, longest = _Rows(float), _Rows(float), _Rows(float)
        for each in pending:
            labels = each.cluster_queue, str(each.stage), each.reason
            gangs[labels] += 1
            gpus[labels] += each.gpus
            longest[each.cluster_queue,] = max((at - each.since).total_seconds(), longest[each.cluster_queue,])
        set_series(self._metrics.pending_gangs, gangs)
        set_series(self._metrics.pending_gpus, gpus)
        set_series(self._metrics.longest_pending_seconds, longest)

    def show_budgets(self, spending: Spending, at: datetime) -> None:
        """No more are shown than namespaces: policies are made by their owners. Of several limits the lowest."""
        shown = [each for each in spending.budgets if self._budgets.of(each.name) == each.name]
        used, metrics = {each: spending.used(each, at) for each in shown}, self._metrics
        set_series(metrics.budget_limit_workloads, {(each.name,): each.most for each in shown})
        set_series(metrics.budget_used_workloads, {(each.name,): used[each] for each in shown})
        left = {(each.name,): max(0, each.most - used[each]) for each in shown}
        set_series(metrics.budget_headroom_workloads, left)
        for each in shown:
            metrics.budget_refusals_total.labels(each.name)  # from 0 on, so that the first one is an increase


def _rows(
    workloads: Iterable[TargetUsage], of: Callable[[TargetUsage], float | None]
) -> Mapping[tuple[str, ...], float]:
    """One row for each workload of which it is known."""
    values = ((each.title, of(each)) for each in workloads)
    return {tuple(title): value for title, value in values if value is not None}


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
        if not name or name in self._known:
            return name
        if len(self._known) < self._limit:
            self._known.add(name)
            return name
        if len(self._folded) < 10 * self._limit:
            self._folded.add(name)
        return OTHERS
