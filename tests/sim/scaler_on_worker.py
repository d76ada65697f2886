"""The program as it runs on a worker of MultiKueue, in virtual time: it judges, answers KEDA, suspends, plans and tells
the hub what it could give. Beside it: exporters, KEDA, and owners of workloads.

    worker = WorkerScaler(member, exporters=…)
    worker.attaches("notebook")
    await worker.turn()
"""

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from builders import GPUS, TRUST
from loops_builders import MemoryCluster, MemoryScales
from scaler_sandbox.kinds import Json
from scripted_metrics import Metrics, ScriptedSource, Series, gpu
from sim.api import FaultyApi, ProcessKilled, SimEvents, SimStore
from sim.multikueue_clusters import MemberCluster

from scaler.admission.remote_copies import NominatedCopies, nominations_of
from scaler.decision.decision import Active, Inactive
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.evaluation import EvaluationConfig, Evaluator
from scaler.decision.sampling import Sampler
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import KubeError
from scaler.idleness.gpu import DEFAULT_SIGNALS
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import Pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import ClusterOffer
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    CLUSTER_QUEUE,
    COHORT,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    POD,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.kube.writes import LeaderApi
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts
from scaler.multikueue.worker.fit_answers import FitAnswers
from scaler.multikueue.worker.offer_controller import OfferController
from scaler.quota.watch import QuotaWatch
from scaler.reclaim.controller import ReclaimController
from scaler.reclaim.planner import Planner, ReclaimConfig
from scaler.reclaim.targets import NodeShortage
from scaler.reclaim.writer import PlanWriter
from scaler.samples.wake_queries import WakeQueries
from scaler.suspension.boost_controller import boost_indexes
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets.cluster_state import (
    pod_indexes,
    scalable_workload_indexes,
    scaled_object_indexes,
    workload_indexes,
)

INTERVAL = timedelta(seconds=30)
"""Between two evaluations."""
_LOOKS_EVERY = timedelta(seconds=5)
"""How often the leader's loops look although nothing has changed."""
ON_PRESSURE = {"reclaim": "OnPressure", "idleAfter": "2h", "idleAfterUnderPressure": "1m", "warmUp": "30s"}

_KINDS: dict[Resource, type[Any]] = {
    WORKLOAD: Workload,
    POD: Pod,
    SCALABLE_WORKLOAD: ScalableWorkload,
    SCALED_OBJECT: ScaledObject,
    CLUSTER_OFFER: ClusterOffer,
    RESOURCE_FLAVOR: kube.ResourceFlavor,
    ADMISSION_CHECK: kube.AdmissionCheck,
    COHORT: kube.Cohort,
    CLUSTER_QUEUE: kube.ClusterQueue,
    LOCAL_QUEUE: kube.LocalQueue,
    NAMESPACE: kube.Namespace,
}
_INDEXES: dict[Resource, Callable[[], Mapping[str, Any]]] = {
    WORKLOAD: lambda: workload_indexes() | boost_indexes(),
    POD: lambda: pod_indexes(GPUS),
    SCALABLE_WORKLOAD: scalable_workload_indexes,
    SCALED_OBJECT: scaled_object_indexes,
}


class WorkerScaler:
    """The program on one worker."""

    def __init__(self, member: MemberCluster, *, plans_always: bool = False) -> None:
        self.member = member
        self.plans_always = plans_always
        self.api = FaultyApi(member.client, [WORKLOAD, SCALABLE_WORKLOAD, CLUSTER_OFFER])
        self.is_stopped = False
        """Whether its process does not get its turn."""
        self.busy: dict[str, list[tuple[float, float]]] = {}
        """By job, the stretches of time in which its GPUs work, in Unix seconds."""
        self.deaths = 0
        self._series: dict[str, list[Series]] = {}
        self._source = ScriptedSource(metrics=Metrics(series=[]), clock=lambda: self.now)
        self.starts()

    @property
    def now(self) -> datetime:
        return self.member.client.now

    # ------------------------------------------------------------------------------------------------------ the process

    def starts(self) -> None:
        """Another process, which remembers nothing and has evaluated nothing yet."""
        self.copies: dict[Resource, SimStore[Any]] = {
            resource: SimStore(kind, _INDEXES.get(resource, dict)()) for resource, kind in _KINDS.items()
        }
        self._seen: object = None
        self._evaluate_at = self._look_at = self.now
        copies, stores = self.copies, cast(Any, self.copies)
        cluster = MemoryCluster(
            scaled_objects=stores[SCALED_OBJECT],
            scalable_workloads=stores[SCALABLE_WORKLOAD],
            workloads=stores[WORKLOAD],
            pods=stores[POD],
            scales=MemoryScales(),
        )
        state = cluster.read()
        clock = lambda: self.now  # noqa: E731
        cache = self.decisions = DecisionCache(max_age=3 * INTERVAL, clock=lambda: self.now.timestamp())
        self.evaluator = Evaluator(
            config=EvaluationConfig(interval=INTERVAL, trust=TRUST),
            cluster=state,
            scales=cluster.scales,
            sampler=Sampler(
                self._source,
                signals=DEFAULT_SIGNALS,
                rules=DEFAULT_RULES,
                trust=TRUST,
                overlap=timedelta(minutes=1),
                clock=clock,
            ),
            decision_cache=cache,
            demands=WakeQueries(queries=(), source=self._source),
            clock=clock,
        )
        quota = SimpleNamespace(
            flavors=copies[RESOURCE_FLAVOR],
            checks=copies[ADMISSION_CHECK],
            cohorts=copies[COHORT],
            cluster_queues=copies[CLUSTER_QUEUE],
            local_queues=copies[LOCAL_QUEUE],
            namespaces=copies[NAMESPACE],
        )
        planner = Planner(
            state,
            cache,
            QuotaWatch(cast(Any, quota), stores[WORKLOAD], clock=clock, max_age=timedelta(minutes=3)),
            ReclaimConfig(consider_nodes=False, replan_backoff=timedelta(seconds=30), grant_for=timedelta(minutes=3)),
            max_age=3 * INTERVAL,
            nominations=self._nominations,
        )
        self.events = SimEvents()
        api: Any = LeaderApi(self.api, is_leader=lambda: True, copies=self.copies)
        self._reconciler = SuspensionReconciler(api, state, cache, self.events, clock=clock)
        writer = PlanWriter(api, state.scalable_workloads.get, self.events)
        self.reclaim = ReclaimController(planning=planner, reconciler=self._reconciler, writer=writer)
        self.offer = OfferController(
            api=api,
            offers=stores[CLUSTER_OFFER],
            planning=planner,
            doubt=lambda: self.evaluator.judge.doubt,
            fits=FitAnswers(planning=planner, nodes=NodeShortage(planning=planner)),
            verdicts=CopyVerdicts(
                judge=self.evaluator.judge, cluster=state, max_window=self.evaluator.config.max_window
            ),
            interval=INTERVAL,
            models=lambda _pod: (),
        )

    def _nominations(self) -> NominatedCopies:
        return nominations_of(self.copies[CLUSTER_OFFER].items(), always=self.plans_always)

    async def turn(self) -> None:
        """What is due now: an evaluation, and the loops of the leader after it and after changes. It may die of it."""
        if self.is_stopped:
            return
        has_changed = self._follow()
        is_judged = self.now >= self._evaluate_at
        if not (has_changed or is_judged or self.now >= self._look_at):
            return
        self._look_at = self.now + _LOOKS_EVERY
        try:
            await self._run_loops(has_changed=has_changed, is_judged=is_judged)
        except ProcessKilled:
            self.deaths += 1
            self.starts()

    async def _run_loops(self, *, has_changed: bool, is_judged: bool) -> None:
        if is_judged:
            self._evaluate_at = self.now + INTERVAL
            self._source.metrics.series = self._all_series()
            await self.evaluator.tick(self.now)
        if has_changed:
            await self._redecide()
        self._scale()
        if await self._taken_up() or has_changed or is_judged:
            await self._reconcile()
        await self.reclaim.tick(self.now)
        if await self._taken_up():
            await self._reconcile()
        await self.offer.tick(self.now)

    async def _taken_up(self) -> bool:
        """What has changed meanwhile is decided about again. Whether anything has."""
        has_changed = self._follow()
        if has_changed:
            await self._redecide()
        return has_changed

    async def _redecide(self) -> None:
        await self.evaluator.redecide(each.metadata.key for each in self.copies[SCALED_OBJECT].items())

    async def _reconcile(self) -> None:
        for each in self.copies[SCALABLE_WORKLOAD].items():
            try:
                await self._reconciler.reconcile(each.metadata.key)
            except KubeError:
                continue
        await self._taken_up()

    def _follow(self) -> bool:
        """The copies show what is there. Whether anything has changed."""
        if self._seen == self.member.client.revision:
            return False
        for resource, copy in self.copies.items():
            copy.follow(self.member.client.all(resource))
        self._seen = self.member.client.revision
        return True

    # ------------------------------------------------------------------------------------------------------------- KEDA

    def _scale(self) -> None:
        """KEDA polls, and acts on what it gets: an error freezes."""
        for scaled in self.copies[SCALED_OBJECT].items():
            namespace, name = scaled.metadata.key
            (trigger,) = scaled.spec.triggers
            answer = self.decisions.answer(namespace, name, parse_metadata(trigger.metadata))
            wanted = {Active: 1, Inactive: 0}.get(type(answer))
            current = self.member.client.find(SCALABLE_WORKLOAD, namespace, name)
            if wanted is not None and current is not None and current["spec"]["replicas"] != wanted:
                self.member.client.change(SCALABLE_WORKLOAD, namespace, name, {"spec": {"replicas": wanted}})

    # -------------------------------------------------------------------------------------------- owners and their GPUs

    def attaches(self, job: str) -> None:
        """The job can be suspended when a gang needs its GPUs."""
        reference = {"apiVersion": "batch/v1", "kind": JOB.kind, "name": job}
        target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind, "name": job}
        metadata = {"name": job, "namespace": "ns"}
        add = self.member.client.add
        add(SCALABLE_WORKLOAD, {"metadata": metadata, "spec": {"replicas": 1, "jobRef": reference}})
        trigger = {"type": "external", "metadata": ON_PRESSURE}
        add(SCALED_OBJECT, {"metadata": metadata, "spec": {"scaleTargetRef": target, "triggers": [trigger]}})

    def works(self, job: str) -> None:
        """From now on its GPUs work."""
        self.busy.setdefault(job, []).append((self.now.timestamp(), math.inf))

    def rests(self, job: str) -> None:
        """From now on its GPUs are quiet."""
        now = self.now.timestamp()
        self.busy[job] = [(begin, min(end, now)) for begin, end in self.busy.get(job, ())]

    def _all_series(self) -> list[Series]:
        for pod in self.member.client.all(POD):
            name = pod["metadata"]["name"]
            if name not in self._series:
                self._series[name] = self._series_of(pod, name)
        return [each for series in self._series.values() for each in series]

    def _series_of(self, pod: Json, name: str) -> list[Series]:
        job = pod["metadata"]["ownerReferences"][0]["name"]

        def ratio(at_s: float) -> float:
            return 0.9 if any(begin <= at_s < end for begin, end in self.busy.get(job, ())) else 0.0

        return gpu(f"GPU-{name}", pod=name, namespace="ns", ratio=ratio)

    @property
    def suspended(self) -> set[str]:
        """The jobs whose Workload the program has deactivated."""
        return {
            each["metadata"]["ownerReferences"][0]["name"]
            for each in self.member.client.all(WORKLOAD)
            if not each["spec"].get("active", True) and each["metadata"].get("ownerReferences")
        }
