"""Makes the collector of fleet metrics, and what it watches.

Every replica watches, so that the next leader knows since when Workloads have waited; only one counts.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from scaler.app.controllers import Leadership
from scaler.app.metrics_sink import MetricsSink
from scaler.app.settings.model import Settings
from scaler.app.wiring import Wiring
from scaler.decision.cluster_state import seconds_since_heard
from scaler.decision.decision_cache import DecisionCache
from scaler.kube.reflector import Reflector
from scaler.reporting.metric_declarations import set_series
from scaler.reporting.metrics import Metrics
from scaler.reporting.pending_workloads import PendingWorkloads, QueueNames
from scaler.reporting.usage.fleet_collector import FleetCollector
from scaler.reporting.usage.fleet_metrics import FleetMetrics
from scaler.reporting.usage.gpu_usage import GpuUsageReader
from scaler.reporting.usage.suspensions import SuspensionWatch


def fleet_collector(
    metrics: Metrics, settings: Settings, parts: Wiring, leadership: Leadership, sink: MetricsSink
) -> FleetCollector:
    """Subscribes, so it is to be called before the copies are filled."""
    cluster, planning = parts.cluster, parts.planner
    queues = QueueNames(quota=planning.view.look)
    fleet = FleetMetrics(metrics, settings.metrics, is_reporting=leadership.is_reporting)
    suspensions = SuspensionWatch(cluster=cluster, queues=queues, metrics=fleet)
    pending = PendingWorkloads(cluster, queues, sink.reasons, admitted=fleet.admitted)
    parts.reflectors.workloads.subscribe(suspensions.workload_heard)
    parts.reflectors.workloads.subscribe(pending.heard)
    parts.reflectors.scalable_workloads.subscribe(suspensions.scalable_heard)
    return FleetCollector(
        decisions=parts.decision_cache,
        cluster=cluster,
        usage=GpuUsageReader(cluster=cluster, evaluator=parts.evaluator, queues=queues),
        suspensions=suspensions,
        pending=pending,
        queues=queues,
        nodes=parts.cluster_reflectors.nodes,
        requests=parts.cluster_reflectors.requests.items,
        budgets=planning.policy.budgets,
        metrics=fleet,
        interval=settings.evaluation.interval,
        is_reporting=leadership.is_reporting,
        forget=sink.reasons.forget,
        observe=_upkeep(metrics, leadership),
    )


def _upkeep(metrics: Metrics, leadership: Leadership) -> Callable[[], None]:
    """Shows the queue of the leader's controllers, and the Events that were lost."""
    lost_before = 0

    def show() -> None:
        nonlocal lost_before
        loops, recorder = leadership.controllers, leadership.recorder
        if loops is not None:
            keys = {("Waiting",): loops.suspension.waiting, ("Failing",): loops.suspension.failing}
            set_series(metrics.reconcile_queue_keys, keys)
        if recorder is not None:
            lost = recorder.dropped + recorder.failed
            metrics.events_lost_total.inc(lost - lost_before)
            lost_before = lost

    return show


def export_ages(metrics: Metrics, decision_cache: DecisionCache, copies: Mapping[str, Reflector[Any]]) -> None:
    """Show the ages of decisions and of watched copies as of each scrape."""
    metrics.board_age_seconds.set_function(
        lambda: decision_cache.age.total_seconds() if decision_cache.age is not None else math.nan
    )
    for name, copy in copies.items():
        metrics.copy_age_seconds.labels(name).set_function(partial(seconds_since_heard, copy))
