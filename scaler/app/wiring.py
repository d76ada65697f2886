"""What one process evaluates, plans and answers with, constructed from its settings. Nothing of it runs yet.

Every replica has all of it, whether or not it ever leads; so has a verb that answers one query and ends.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from scaler.admission.checks import checks_with_provisioning, checks_with_reuse
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.remote_copies import NominatedCopies
from scaler.admission.terminating_pods import TerminatingPodIndex
from scaler.admission.watch import AdmissionStores, AdmissionWatch
from scaler.app.hub import HubWiring
from scaler.app.metrics_sink import MetricsSink
from scaler.app.metrics_source import NO_METRICS_SOURCE, UNCONFIGURED, MetricsSource, open_metrics_source
from scaler.app.reflectors import ClusterReflectors, ReEvaluation, Reflectors
from scaler.app.settings.model import Settings
from scaler.app.settings.multikueue import PlanOnWorkers
from scaler.app.targets import configured_notifications
from scaler.attachment.controller import IdlePolicies
from scaler.attachment.jobs import JobWatch
from scaler.attachment.objects import TriggerTarget
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import decision_of
from scaler.decision.evaluation import ChangedScaledObjects, EvaluationConfig, Evaluator
from scaler.decision.sampling import Sampler
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.relabel import DEFAULT_RULES, parse_rules
from scaler.kube.discovery import Discovery
from scaler.kube.events import EventRecorder
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.objects.resources import Resource
from scaler.kube.reflector import Reflector
from scaler.kube.reviews import AccessReviews, TokenReviews
from scaler.kube.transport import KubeTransport
from scaler.kube.writes import LeaderApi
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts, longest_window
from scaler.multikueue.worker.fit_answers import LONGEST_PATIENCE, FitAnswers
from scaler.multikueue.worker.offer_controller import OfferController
from scaler.notifications.controller import NotificationController, NotificationsObserver
from scaler.notifications.details import DetailsReader
from scaler.notifications.workloads import NotifiedWorkloads
from scaler.placement.node_watch import NodeWatch
from scaler.quota.watch import QuotaWatch
from scaler.reclaim.planner import Planner
from scaler.reclaim.targets import NodeShortage
from scaler.reporting.metrics import Metrics
from scaler.reporting.page.access import PageAccess
from scaler.reporting.page.fleet_history import FleetHistoryReader, FleetMemory
from scaler.reporting.page.reallocations import PendingReader
from scaler.reporting.page.report import installed_report
from scaler.reporting.page.routes import WebPage
from scaler.reporting.page.signal_history import PodMemory, SignalHistoryReader
from scaler.reporting.pending_workloads import PendingWorkloads, QueueNames
from scaler.reporting.usage.fleet_collector import FleetCollector
from scaler.reporting.usage.fleet_metrics import FleetMetrics
from scaler.reporting.usage.gpu_usage import GpuUsageReader
from scaler.reporting.usage.suspensions import SuspensionWatch
from scaler.reporting.views.query_service import QueryService
from scaler.requests.link_pages import LinkPages
from scaler.requests.links import LinkConfig, Links
from scaler.requests.wake import WakeRequests
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.wake_queries import WakeQueries, WakeQuery
from scaler.suspension.before_suspend import BeforeSuspendController
from scaler.suspension.hooks import hook_of
from scaler.suspension.priority_boost import BoostSwitch
from scaler.targets.cluster_state import no_remote_verdict, seconds_since_heard
from scaler.targets.owners import Owners
from scaler.targets.scale_subresources import ScaleSubresources

MISSED_TICKS = 3
"""Evaluations that may be missed before decisions expire, and twice that before the process is unhealthy."""

_TICK_JITTER = timedelta(seconds=1)
"""Time by which one tick may take longer than the one before without the answers of the one before expiring."""


class Wiring:
    """The parts by name. Subscribes, so it comes before the reflectors run.

    `published` is called after every evaluation.
    """

    def __init__(
        self,
        settings: Settings,
        sink: MetricsSink,
        source: MetricsSource,
        transport: KubeTransport,
        *,
        published: Callable[[], None],
    ) -> None:
        kubernetes, gpus = settings.kubernetes, GpuResources(patterns=settings.gpu_resources)
        self._settings = settings
        self.source = source
        self.transport = transport
        self.reflectors = Reflectors(transport, gpus, kubernetes.namespaces, max_age=kubernetes.max_view_age)
        self.cluster_reflectors = ClusterReflectors(transport, is_confined=bool(kubernetes.namespaces))
        self.hub = self._hub()
        nodes = None if kubernetes.namespaces else self.cluster_reflectors.nodes
        remote = self.hub.answers.of if self.hub is not None else no_remote_verdict
        self.cluster = self.reflectors.cluster(gpus, remote, nodes=nodes)
        self.decision_cache = self._empty_cache()
        changed = ChangedScaledObjects()
        self.re_evaluation = ReEvaluation(reflectors=self.reflectors, cluster=self.cluster, touch=changed.add)
        self.scales = self._scales()
        self.evaluator = self._evaluator(changed, sink, published)
        self._nodes = self._node_watch()
        self.planner = self._planner()
        links = settings.notifications.links
        self.idle_policies = IdlePolicies(transport, namespaces=kubernetes.namespaces, hooks=settings.hook_timeouts)
        self._seen_usage = FleetMemory(interval=settings.evaluation.interval, namespaces=settings.metrics.namespaces)
        self.seen_pods = PodMemory()
        self.links = Links(links.into(LinkConfig)) if links is not None else None
        self.admission = self._admission()

    @classmethod
    async def open(
        cls,
        settings: Settings,
        sink: MetricsSink,
        stack: AsyncExitStack,
        *,
        published: Callable[[], None],
        needs_source: bool = True,
    ) -> "Wiring":
        """The wiring, connected to the API; the stack closes the connections. Raises: ConfigurationError."""
        source = open_metrics_source(settings, sink.metrics, is_needed=needs_source)
        stack.push_async_callback(source.close)
        kubernetes = settings.kubernetes
        seconds = kubernetes.timeout.total_seconds()
        transport = await KubeTransport.connect(
            kubernetes.kubeconfig, kubernetes.context, call_seconds=seconds, observe=sink.called
        )
        stack.push_async_callback(transport.close)
        wiring = cls(settings, sink, source, transport, published=published)
        stack.push_async_callback(wiring.scales.close)
        stack.push_async_callback(wiring.reflectors.switched.close)
        return wiring

    @property
    def _owners(self) -> Owners:
        return Owners(labels=self._settings.notifications.owner_labels, namespaces=self.namespaces)

    @property
    def namespaces(self) -> Reflector[Namespace] | None:
        """The namespaces with their labels; None where only some are watched, and labels may not be read."""
        return None if self.cluster_reflectors.is_confined else self.cluster_reflectors.quota.namespaces

    def jobs(self, *, changed: Callable[[], None]) -> JobWatch:
        return JobWatch(
            self.transport,
            self.cluster,
            namespaces=self.namespaces,
            watched=self._settings.kubernetes.namespaces,
            models=self._models,
            changed=changed,
        )

    def _models(self, pod: GpuPod) -> set[str]:
        """The models of its GPUs, as far as they have reported."""
        devices = self.evaluator.sampler.history.devices_of(pod.namespace, pod.name)
        return {each.series.model for each in devices.values()}

    def offer(self, api: LeaderApi, sink: MetricsSink, *, is_due: Callable[[str, datetime], bool]) -> OfferController:
        """The leader's answers to hubs. It does nothing where there are no ClusterOffers."""
        shared = self.cluster_reflectors
        return OfferController(
            api=api,
            offers=shared.offers,
            planning=self.planner,
            doubt=lambda: self.evaluator.judge.doubt,
            fits=FitAnswers(
                planning=self.planner,
                nodes=NodeShortage(planning=self.planner, admission=self.admission),
                checks_with_reuse=lambda: checks_with_reuse(shared.quota.checks.items(), shared.policies),
                is_due=is_due,
                # A rest twice as long follows each tick, and an offer is valid for three intervals.
                patience=min(LONGEST_PATIENCE, self._settings.evaluation.interval / 3),
            ),
            verdicts=CopyVerdicts(
                judge=self.evaluator.judge,
                cluster=self.cluster,
                max_window=self._settings.evaluation.max_window,
            ),
            interval=self._settings.evaluation.interval,
            models=self._models,
            observe=sink.offered,
        )

    def notifications(self, api: LeaderApi, observer: NotificationsObserver) -> NotificationController:
        """The leader's notifications. They read what is watched already, and run only where targets are configured."""
        settings = self._settings.notifications
        workloads = NotifiedWorkloads(self.cluster, self._owners, settings.notify_targets())
        return NotificationController(
            api,
            workloads,
            configured_notifications(settings),
            DetailsReader(self.evaluator, self.decision_cache, self.links.of_notice if self.links else None).read,
            observer,
        )

    def before_suspend(self, api: LeaderApi, recorder: EventRecorder, sink: MetricsSink) -> BeforeSuspendController:
        """The leader's hooks. It does nothing where there are none."""
        discovery = Discovery(self.transport)
        return BeforeSuspendController(
            api,
            self.cluster,
            self.decision_cache,
            recorder,
            {each.name: each.config() for each in self._settings.hooks},
            make=lambda config: hook_of(config, api, discovery),
            max_age=max_evaluation_age(self._settings),
            ended=sink.hook_ended,
        )

    def link_pages(self) -> LinkPages | None:
        """The pages of links in notifications; None where no links are configured."""

        def policy_of(key: tuple[str, str]) -> Policy | None:
            decision = decision_of(self.decision_cache, key)
            return decision.policy if decision is not None else None

        scaled_object = self.cluster.scaled_objects.get
        return LinkPages(self.links, self.transport, scaled_object, policy_of=policy_of) if self.links else None

    def copies(self) -> dict[Resource, Reflector[Any]]:
        """The reflectors of kinds that the leader writes."""
        shared = self.cluster_reflectors
        found = (*self.reflectors.all, *self.idle_policies.all, shared.quota.checks, shared.policies, shared.offers)
        return {each.resource: each for each in found}

    def wake_requests(self) -> WakeRequests | None:
        """What answers requests to wake; None where the settings do not ask for them."""
        http = self._settings.http
        if not http.wake:
            return None
        tokens = TokenReviews(self.transport, audiences=http.token_audiences)
        scaled_object = self.cluster.scaled_objects.get
        return WakeRequests(self.transport, tokens, AccessReviews(self.transport), scaled_object, self.decision_cache)

    def web_page(self, queries: QueryService, unready: Callable[[], Sequence[str]]) -> WebPage:
        """The page of any replica. Where relabelling is the operator's own, it is not known what to ask Prometheus
        for."""
        prometheus = self.source if isinstance(self.source, PrometheusSource) else None
        of_pods = prometheus if self._settings.relabel is None else None
        access = self._settings.page.access()
        matchers = self._settings.prometheus.matchers
        return WebPage(
            decisions=self.decision_cache,
            cluster=self.cluster,
            policies=self.idle_policies,
            fleet=FleetHistoryReader(self._seen_usage, prometheus, matchers=matchers),
            signals=SignalHistoryReader(self.evaluator.sampler, self.seen_pods, of_pods),
            pending=PendingReader(queries=queries),
            report=installed_report(prometheus, matchers),
            access=PageAccess(access, self.transport, self._namespaces_shown) if access is not None else None,
            unready=unready,
            interval=self._settings.evaluation.interval,
        )

    def _namespaces_shown(self) -> set[str]:
        """The namespaces that the page may have something to show of."""
        cluster, policies = self.cluster, self.idle_policies.namespaced
        found = {each.metadata.namespace for each in cluster.scaled_objects.items()}
        found |= {each.metadata.namespace for each in cluster.workloads.items()}
        return found | {each.metadata.namespace for each in policies.items()}

    def query_service(self) -> QueryService:
        """Answers queries by the plans that the leader makes. It writes nothing."""
        nodes = NodeShortage(planning=self.planner, admission=self.admission)
        dispatch = self.hub.reader() if self.hub is not None else None
        return QueryService(self.planner, admission=self.admission, nodes=nodes, dispatch=dispatch)

    def fleet_collector(
        self, sink: MetricsSink, *, is_reporting: Callable[[], bool], observe: Callable[[], None]
    ) -> FleetCollector:
        """Every replica watches, so that the next leader knows since when Workloads have waited; only one counts."""
        cluster, queues = self.cluster, QueueNames(quota=self.planner.view.look)
        fleet = FleetMetrics(sink.metrics, self._settings.metrics.limits(), sink.budgets, is_reporting=is_reporting)
        suspensions = SuspensionWatch(cluster=cluster, queues=queues, metrics=fleet)
        pending = PendingWorkloads(cluster, queues, sink.reasons, admitted=fleet.admitted)
        self.reflectors.workloads.subscribe(suspensions.workload_heard)
        self.reflectors.workloads.subscribe(pending.heard)
        self.reflectors.scalable_workloads.subscribe(suspensions.scalable_heard)
        return FleetCollector(
            decisions=self.decision_cache,
            cluster=cluster,
            usage=GpuUsageReader(cluster=cluster, judge=self.evaluator.judge, queues=queues, owners=self._owners),
            suspensions=suspensions,
            pending=pending,
            queues=queues,
            nodes=self.cluster_reflectors.nodes,
            requests=self.cluster_reflectors.requests.items,
            spending=self.planner.policy_budgets.spending,
            metrics=fleet,
            interval=self._settings.evaluation.interval,
            is_reporting=is_reporting,
            forget=sink.reasons.forget,
            observe=observe,
            memory=self._seen_usage,
        )

    def export_ages(self, metrics: Metrics) -> None:
        """Show the ages of decisions and of watched copies as of each scrape."""
        cache = self.decision_cache
        metrics.decision_cache_age_seconds.set_function(
            lambda: cache.age.total_seconds() if cache.age is not None else math.nan
        )
        for copy in (*self.reflectors.all, *self.cluster_reflectors.always):
            metrics.copy_age_seconds.labels(copy.resource.qualified_name).set_function(
                partial(seconds_since_heard, copy)
            )

    def _empty_cache(self) -> DecisionCache:
        max_age, interval = max_evaluation_age(self._settings), self._settings.evaluation.interval
        decision_cache = DecisionCache(max_age=max_age, max_zero_age=1.5 * interval + _TICK_JITTER)
        if self.source is NO_METRICS_SOURCE:
            decision_cache.explain_cold_start(UNCONFIGURED)
        return decision_cache

    def _scales(self) -> ScaleSubresources:
        return ScaleSubresources(
            self.transport,
            namespaces=self._settings.kubernetes.namespaces,
            max_age=self._settings.kubernetes.max_view_age,
            changed=self.re_evaluation.target_changed,
        )

    def _node_watch(self) -> NodeWatch:
        kubernetes, watched = self._settings.kubernetes, self.reflectors
        return NodeWatch(
            self.cluster_reflectors.nodes,
            watched.pods,
            watched.workloads,
            max_age=kubernetes.max_view_age,
            confined_to=kubernetes.namespaces,
        )

    def _evaluator(self, changed: ChangedScaledObjects, sink: MetricsSink, published: Callable[[], None]) -> Evaluator:
        settings, trust = self._settings, self._settings.trust.into(Trust)
        demand = self.source if isinstance(self.source, PrometheusSource) else None
        wake_queries = [each.into(WakeQuery, namespaces=frozenset(each.namespaces)) for each in settings.wake]
        return Evaluator(
            config=settings.evaluation.into(
                EvaluationConfig,
                trust=trust,
                defaults=settings.defaults.overrides(),
                limits=settings.limits,
                max_view_age=settings.kubernetes.max_view_age,
                scaler_addresses=frozenset(settings.keda.scaler_addresses),
                notified_by=settings.notifications.notify_targets(),
                hooks=settings.hook_timeouts,
            ),
            cluster=self.cluster,
            scales=self.scales,
            sampler=Sampler(
                self.source,
                signals=[signal.signal() for signal in settings.signals],
                rules=DEFAULT_RULES if settings.relabel is None else parse_rules(settings.relabel),
                trust=trust,
                overlap=settings.evaluation.overlap,
            ),
            decision_cache=self.decision_cache,
            demands=WakeQueries(queries=wake_queries, source=demand),
            changed=changed,
            longest_asked=self._longest_asked,
            observe=sink.ticked,
            published=lambda _: published(),
        )

    def _longest_asked(self) -> timedelta:
        """The longest window that hubs of MultiKueue ask for."""
        entries = (each for offer in self.cluster_reflectors.offers.items() for each in offer.spec.workloads)
        longest, shortest = self._settings.evaluation.max_window, self._settings.trust.interval
        return longest_window(entries, longest=longest, shortest=shortest)

    def _planner(self) -> Planner:
        settings, shared, policy = self._settings, self.cluster_reflectors, self._settings.reclaim.policy()
        policy = replace(policy, hooks=settings.hook_timeouts)
        quota = QuotaWatch(
            shared.quota,
            self.reflectors.workloads,
            clock=lambda: datetime.now(UTC),
            max_age=settings.kubernetes.max_view_age,
            fair_sharing=policy.fair_sharing,
            boosts=policy.boost.enabled is not BoostSwitch.OFF,
            confined_to=settings.kubernetes.namespaces,
        )
        return Planner(
            self.cluster,
            self.decision_cache,
            quota,
            policy,
            max_age=max_evaluation_age(settings),
            capacity=self._nodes.capacity,
            checks_with_provisioning=lambda: checks_with_provisioning(shared.quota.checks.items(), shared.policies),
            nominations=self._nominations,
        )

    def _hub(self) -> HubWiring | None:
        """The wiring of a hub; None unless this is one: `dispatcher` is one of the components."""
        if "dispatcher" not in self._settings.components:
            return None
        return HubWiring(self._settings, self.transport, self.reflectors.workloads, self.cluster_reflectors.quota)

    def _nominations(self) -> NominatedCopies:
        is_always = self._settings.multi_kueue.plan_on_workers is PlanOnWorkers.ALWAYS
        return self.cluster_reflectors.nominations(self._settings.kubernetes.max_view_age, always=is_always)

    def _admission(self) -> AdmissionPlanner:
        workloads, pods, shared = self.reflectors.workloads, self.reflectors.pods, self.cluster_reflectors
        stores = AdmissionStores(
            workloads=workloads,
            pods=pods,
            checks=shared.quota.checks,
            flavors=shared.quota.flavors,
            nodes=shared.nodes,
        )
        return AdmissionPlanner(
            AdmissionWatch(self.cluster, stores),
            TerminatingPodIndex(self.cluster, workloads, pods),
            shared.policies,
            shared.requests,
            shared.flavor,
            capacity=self._nodes.capacity,
            quota=self.planner.view.look,
            nominations=self._nominations,
        )


def trigger_target(settings: Settings) -> TriggerTarget | None:
    """How KEDA reaches this scaler; None where the settings do not say."""
    keda, reference, has_tls = settings.keda, settings.keda.authentication_ref, settings.grpc.tls is not None
    if not keda.scaler_addresses:
        return None
    return TriggerTarget(
        scaler_address=keda.scaler_addresses[0],
        authentication=None if reference is None else reference.model_dump(),
        enable_tls=has_tls if keda.enable_tls is None else keda.enable_tls,
        polling_interval_s=round(keda.polling_interval.total_seconds()),
        cooldown_s=round(keda.cooldown_period.total_seconds()),
    )


def max_evaluation_age(settings: Settings, ticks: int = MISSED_TICKS) -> timedelta:
    """How old an evaluation may be that is answered from or acted on: that many intervals, and one read."""
    return ticks * settings.evaluation.interval + settings.prometheus.timeout
