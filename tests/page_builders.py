"""The page over a cluster in memory, served by a real HTTP server. It is noon.

site = PageSite()
site.workload("team-a", "notebook", GPUS_IDLE, idle_since=at(-3600), gpus=2)
async with site.serving() as url:
    ...
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from builders import BUSY, IDLE, NOON, TRUST, a_target, at, decision, every, gpu_evidence, history, pod, record, series
from builders import policy as a_policy
from builders import verdict as workload_verdict
from loops_builders import MemoryStore, scalable_workload, scaled_object
from quota_builders import cluster_queue
from reporting.test_http_tls import views
from scaler_analysis.report.page import PageReports
from scripted_metrics import Metrics as ScriptedMetrics
from scripted_metrics import ScriptedSource
from views_builders import QuotaCluster

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.reasons import DecisionReason
from scaler.decision.sampling import Sampler
from scaler.idleness.gpu import DEFAULT_SIGNALS
from scaler.idleness.policy import Overrides, Policy
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import IdlePolicy
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, IDLE_POLICY, Resource
from scaler.reporting.http import HttpServer
from scaler.reporting.metrics import Metrics
from scaler.reporting.page.access import PageAccess
from scaler.reporting.page.fleet_history import FleetHistoryReader, FleetMemory
from scaler.reporting.page.reallocations import PendingReader
from scaler.reporting.page.rendering import Renderer
from scaler.reporting.page.routes import WebPage
from scaler.reporting.page.signal_history import PodMemory, SignalHistoryReader
from scaler.reporting.usage.gpu_states import GpuState, GpuStatus
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner
from scaler.samples.prometheus import PrometheusSource

WORKS = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")
QUIET = Active(reason=DecisionReason.GPUS_BUSY, message="quiet, but work was seen within the last 30m")
KEPT = Active(reason=DecisionReason.KEPT, message="kept until 2026-12-01T18:00:00Z by annotation idlegpu.io/keep-until")
NOT_NEEDED = Active(reason=DecisionReason.IDLE_NOT_NEEDED, message="quiet; no waiting gang needs its GPUs")
SUSPENDED = Inactive(reason=DecisionReason.SUSPENDED, message="suspended; no wake-up requested")


class PolicyStore(MemoryStore[IdlePolicy]):
    def __init__(self, resource: Resource) -> None:
        super().__init__()
        self.resource = resource
        self.is_synced = True
        self.undecodable: dict[Key, str] = {}


@dataclass
class PolicyStores:
    namespaced: PolicyStore = field(default_factory=lambda: PolicyStore(IDLE_POLICY))
    of_cluster: PolicyStore = field(default_factory=lambda: PolicyStore(CLUSTER_IDLE_POLICY))

    @property
    def all(self) -> list[PolicyStore]:
        return [self.namespaced, self.of_cluster]


class PageSite:
    def __init__(
        self,
        quota: QuotaCluster | None = None,
        *,
        prometheus: PrometheusSource | None = None,
        reports: PrometheusSource | None = None,
        is_report_installed: bool = True,
        of_pods: Any = None,
        access: PageAccess | None = None,
    ) -> None:
        """`quota` has the gangs that wait."""
        self.quota = quota or QuotaCluster([cluster_queue("queue", gpus=8)], [])
        self.cluster = self.quota.cluster
        self.decision_cache = self.quota.decision_cache
        self.policies = PolicyStores()
        self.entries: dict[Key, EvaluatedScaledObject] = {}
        self.memory = FleetMemory(interval=timedelta(minutes=1))
        self.pods = PodMemory()
        source = ScriptedSource(metrics=ScriptedMetrics(series=[]), clock=lambda: NOON)
        self.sampler = Sampler(
            source, signals=DEFAULT_SIGNALS, rules=DEFAULT_RULES, trust=TRUST, overlap=timedelta(minutes=2)
        )
        self.sampler.history = history(span=timedelta(hours=6))
        self.missing: list[str] = []
        policies: Any = self.policies
        self.page = WebPage(
            decisions=self.decision_cache,
            cluster=self.cluster.read(),
            policies=policies,
            fleet=FleetHistoryReader(self.memory, prometheus),
            signals=SignalHistoryReader(self.sampler, self.pods, of_pods),
            pending=PendingReader(queries=self.quota.queries),
            report=PageReports(source=reports, matchers={}) if is_report_installed else None,
            unready=lambda: self.missing,
            access=access,
            interval=timedelta(seconds=15),
        )
        self.page.answers.renderer = _renderer(*([self.page.report.templates] if self.page.report else []))

    # ------------------------------------------------------------------------------------------------------- writing

    def workload(
        self,
        namespace: str,
        name: str,
        answer: Answer = WORKS,
        *,
        gpus: int = 1,
        idle_since: datetime | None = None,
        idle_at_least: bool = False,
        warned_at: datetime | None = None,
        policy: Policy = a_policy(),  # noqa: B008 (immutable)
        desired: int = 1,
        annotations: Mapping[str, str] | None = None,
        attached_by: str = "",
        owner: str = "",
        **status: Any,
    ) -> None:
        """A ScaledObject and its ScalableWorkload, with the decision on it; keywords fill the status."""
        verdict = workload_verdict(
            IDLE if idle_since else BUSY,
            *(gpu_evidence(IDLE if idle_since else BUSY, gpu=f"GPU-{name}-{n}", pod=f"{name}-0") for n in range(gpus)),
        )
        found = decision(
            answer,
            verdict=verdict if desired else None,
            idle_since=idle_since,
            idle_at_least=idle_at_least,
            policy=policy,
            target=a_target(desired_replicas=desired, warned_at=warned_at),
        )
        pods = [replace(pod(f"{name}-0", gpus=gpus), namespace=namespace)] if desired else []
        target = scalable_workload_ref(name)
        self.entries[namespace, name] = EvaluatedScaledObject(target=target, triggers={Overrides(): found}, pods=pods)
        marks = {"idlegpu.io/policy": attached_by} if attached_by else {}
        self.cluster.scaled_objects.put(
            scaled_object(name, namespace=namespace, annotations={**marks, **(annotations or {})})
        )
        job = ("batch/v1", "Job", owner or name)
        self.cluster.scalable_workloads.put(
            scalable_workload(name, job=job, namespace=namespace, replicas=desired, **status)
        )

    def policy(self, name: str, *, namespace: str = "", status: Mapping[str, Any] | None = None, **spec: Any) -> None:
        document = {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": dict(status or {})}
        store = self.policies.namespaced if namespace else self.policies.of_cluster
        store.put(decode(IdlePolicy, msgspec.json.encode(document)))

    def remember(self, seconds: float, suspended: Mapping[tuple[str, str], int] = {}, **gpus: int) -> None:
        """What the fleet did at that time; keywords are states."""
        usage = FleetUsage(at=at(seconds))
        for state, count in gpus.items():
            usage.gpus[GpuOwner("team-a", "queue", "A100"), GpuStatus(GpuState(state))] = count
        self.memory.add(usage, suspended)

    def samples(self, namespace: str, name: str, parts: Iterable[tuple[float, float, float]], *, gpus: int = 1) -> None:
        """Of GPUs of a workload: from, to (seconds from noon), and the ratio of the first one; others do half of it."""
        for begin, end, ratio in parts:
            for n in range(gpus):
                of = series(f"GPU-{name}-{n}", pod=f"{name}-0", namespace=namespace)
                record(self.sampler.history, of, every(30, start=begin, end=end, ratio=ratio / (n + 1)))

    def publish(self) -> None:
        evaluation = Evaluation.of(dict(self.entries), at=NOON)
        self.decision_cache.publish(evaluation)
        self.pods.look(evaluation)

    # ------------------------------------------------------------------------------------------------------- serving

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The address, without a slash at its end."""
        self.publish()
        access = self.page.access
        guards = [access.guard] if access is not None else []
        server = HttpServer("127.0.0.1:0", Metrics(), views(), routes=self.page.routes(), guards=guards)
        port = await server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await server.stop()


@cache
def _renderer(*more: Path) -> Renderer:
    """A process has one page, and tests have hundreds: compiling all templates takes longer than most of them."""
    return Renderer(*more)


def line(seconds: float, state: str, reason: str = "", message: str = "", by: str = "") -> dict[str, str]:
    """Of a history, as it stands in the API."""
    found = {"at": at(seconds).isoformat().replace("+00:00", "Z"), "state": state, "reason": reason}
    return {**found, "message": message, **({"by": by} if by else {})}
