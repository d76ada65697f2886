"""What one process evaluates, plans and answers with, constructed from its settings. Nothing of it runs yet.

Every replica has all of it, whether or not it ever leads; so has a verb that answers one query and ends.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from scaler.admission.checks import checks_with_provisioning
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.terminating_pods import TerminatingPodIndex
from scaler.admission.watch import AdmissionStores, AdmissionWatch
from scaler.app.metrics_sink import MetricsSink
from scaler.app.metrics_source import (
    NO_METRICS_SOURCE,
    UNCONFIGURED,
    MetricsSource,
    has_metrics_source,
    open_metrics_source,
)
from scaler.app.re_evaluate import ReEvaluation
from scaler.app.reflectors import ClusterReflectors, Reflectors
from scaler.app.settings.model import Settings
from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.evaluation import ChangedScaledObjects, EvaluationConfig, Evaluator
from scaler.decision.sampling import Sampler
from scaler.decision.scale_subresources import ScaleSubresources
from scaler.decision.wake_queries import WakeQueries, WakeQuery
from scaler.idleness.relabel import DEFAULT_RULES, parse_rules
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.placement.capacity import Capacity
from scaler.placement.node_watch import NodeWatch
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced, QuotaWatch
from scaler.reclaim.planner import Planner
from scaler.reclaim.targets import NodeShortage
from scaler.reporting.metrics import Metrics
from scaler.reporting.views.query_service import QueryService
from scaler.suspension.priority_boost import Switch

MISSED_TICKS = 3
"""Evaluations that may be missed before decisions expire, and twice that before the process is unhealthy."""

_TICK_JITTER = timedelta(seconds=1)
"""By which one tick may take longer than the one before without the answers of the one before expiring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The parts by name."""

    source: MetricsSource
    transport: KubeTransport
    reflectors: Reflectors
    cluster_reflectors: ClusterReflectors
    cluster: ClusterState
    board: DecisionCache
    evaluator: Evaluator
    re_evaluation: ReEvaluation
    planner: Planner
    admission: AdmissionPlanner

    @classmethod
    async def open(
        cls,
        settings: Settings,
        metrics: Metrics,
        sink: MetricsSink,
        stack: AsyncExitStack,
        *,
        published: Callable[[], None],
        needs_source: bool = True,
    ) -> "Wiring":
        """Constructed, and connected to the API; the stack closes them. `published` is called after every evaluation.

        Subscribes, so it comes before the reflectors run. Raises: ConfigurationError.
        """
        source = _source(settings, metrics, needs_source=needs_source)
        stack.push_async_callback(source.close)
        transport = await _transport(settings, sink)
        stack.push_async_callback(transport.close)
        kubernetes, gpus = settings.kubernetes, GpuResources(patterns=settings.gpu_resources)
        reflectors = Reflectors.of(transport, gpus, kubernetes.namespaces)
        shared = ClusterReflectors.of(transport, is_confined=bool(kubernetes.namespaces))
        cluster, board, changed = reflectors.cluster(gpus), _board(settings, source), ChangedScaledObjects()
        re_evaluation = ReEvaluation(reflectors=reflectors, cluster=cluster, touch=changed.add)
        scales = ScaleSubresources(
            transport,
            namespaces=kubernetes.namespaces,
            max_age=kubernetes.max_view_age,
            changed=re_evaluation.target_changed,
        )
        stack.push_async_callback(scales.close)
        capacity = _capacity(settings, reflectors, shared)
        planner = _planner(settings, cluster, board, reflectors, shared, capacity=capacity)
        return cls(
            source=source,
            transport=transport,
            reflectors=reflectors,
            cluster_reflectors=shared,
            cluster=cluster,
            board=board,
            evaluator=Evaluator(
                config=_evaluation_config(settings),
                cluster=cluster,
                scales=scales,
                sampler=_sampler(settings, source),
                board=board,
                demands=_wake_queries(settings, source),
                changed=changed,
                observe=sink.ticked,
                published=lambda _: published(),
            ),
            re_evaluation=re_evaluation,
            planner=planner,
            admission=_admission(cluster, reflectors, shared, capacity=capacity, quota=planner.quota),
        )

    def query_service(self) -> QueryService:
        """Answers queries by the plans that the leader makes. It writes nothing."""
        nodes = NodeShortage(planning=self.planner, admission=self.admission)
        return QueryService(self.planner, self.board, admission=self.admission, nodes=nodes)

    def ages(self) -> dict[str, Reflector[Any]]:
        """The copies that are kept whatever there is in the cluster, by the kind that they are copies of."""
        return {each.resource.qualified_name: each for each in [*self.reflectors.all, *self.cluster_reflectors.always]}


def max_evaluation_age(settings: Settings, ticks: int = MISSED_TICKS) -> timedelta:
    """How old an evaluation may be that is answered from or acted on: that many intervals, and one read."""
    return ticks * settings.evaluation.interval + settings.prometheus.timeout


def _board(settings: Settings, source: MetricsSource) -> DecisionCache:
    board = DecisionCache(
        max_age=max_evaluation_age(settings), max_zero_age=1.5 * settings.evaluation.interval + _TICK_JITTER
    )
    if source is NO_METRICS_SOURCE:
        board.explain_cold_start(UNCONFIGURED)
    return board


def _source(settings: Settings, metrics: Metrics, *, needs_source: bool) -> MetricsSource:
    is_sourced = needs_source or has_metrics_source(settings)
    return open_metrics_source(settings, metrics) if is_sourced else NO_METRICS_SOURCE


async def _transport(settings: Settings, sink: MetricsSink) -> KubeTransport:
    kubernetes = settings.kubernetes
    call_seconds = kubernetes.timeout.total_seconds()
    return await KubeTransport.connect(
        kubernetes.kubeconfig, kubernetes.context, call_seconds=call_seconds, observe=sink.called
    )


def _evaluation_config(settings: Settings) -> EvaluationConfig:
    return settings.evaluation.into(
        EvaluationConfig,
        trust=settings.trust.trust(),
        defaults=settings.defaults.overrides(),
        max_view_age=settings.kubernetes.max_view_age,
        scaler_addresses=frozenset(settings.keda.scaler_addresses),
    )


def _sampler(settings: Settings, source: MetricsSource) -> Sampler:
    return Sampler(
        source.signals,
        signals=[signal.signal() for signal in settings.signals],
        rules=DEFAULT_RULES if settings.relabel is None else parse_rules(settings.relabel),
        trust=settings.trust.trust(),
        overlap=settings.evaluation.overlap,
    )


def _wake_queries(settings: Settings, source: MetricsSource) -> WakeQueries:
    queries = [each.into(WakeQuery, namespaces=frozenset(each.namespaces)) for each in settings.wake]
    return WakeQueries(queries=queries, source=source.demand)


def _capacity(
    settings: Settings, reflectors: Reflectors, shared: ClusterReflectors
) -> Callable[[], Capacity | NotSynced]:
    kubernetes = settings.kubernetes
    watch = NodeWatch(
        shared.nodes,
        reflectors.pods,
        reflectors.workloads,
        max_age=kubernetes.max_view_age,
        confined_to=kubernetes.namespaces,
    )
    return watch.capacity


def _planner(
    settings: Settings,
    cluster: ClusterState,
    board: DecisionCache,
    reflectors: Reflectors,
    shared: ClusterReflectors,
    *,
    capacity: Callable[[], Capacity | NotSynced],
) -> Planner:
    policy = settings.reclaim.policy()
    quota = QuotaWatch(
        shared.quota,
        reflectors.workloads,
        clock=lambda: datetime.now(UTC),
        max_age=settings.kubernetes.max_view_age,
        fair_sharing=policy.fair_sharing,
        boosts=policy.boost.enabled is not Switch.OFF,
        confined_to=settings.kubernetes.namespaces,
    )
    return Planner(
        cluster,
        board,
        quota,
        policy,
        max_age=max_evaluation_age(settings),
        capacity=capacity,
        checks_with_provisioning=lambda: checks_with_provisioning(shared.quota.checks.items(), shared.policies),
    )


def _admission(
    cluster: ClusterState,
    reflectors: Reflectors,
    shared: ClusterReflectors,
    *,
    capacity: Callable[[], Capacity | NotSynced],
    quota: Callable[[], Snapshot | NotSynced],
) -> AdmissionPlanner:
    stores = AdmissionStores(
        workloads=reflectors.workloads,
        pods=reflectors.pods,
        checks=shared.quota.checks,
        flavors=shared.quota.flavors,
        nodes=shared.nodes,
    )
    return AdmissionPlanner(
        AdmissionWatch(cluster, stores),
        TerminatingPodIndex(cluster, reflectors.workloads, reflectors.pods),
        shared.policies,
        shared.requests,
        shared.flavor,
        capacity=capacity,
        quota=quota,
    )
