"""The hub of MultiKueue in one process: connections to its workers, by which every replica judges what runs there, and
the dispatcher of the leader."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from scaler.app.metrics_sink import MetricsSink
from scaler.app.settings.model import Settings
from scaler.kube.events import EventRecorder
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import MultiKueueCluster, MultiKueueConfig, PlacementDecision
from scaler.kube.objects.resources import (
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    PLACEMENT_DECISION,
    PROFILE_DECISION,
)
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.writes import LeaderApi
from scaler.multikueue.hub.dispatch.controller import Dispatcher
from scaler.multikueue.hub.dispatch.plan import DispatchPlanner, JudgedWorkloads
from scaler.multikueue.hub.dispatch.scores import PlacementScores
from scaler.multikueue.hub.dispatch.waiting import HubObjects
from scaler.multikueue.hub.remote_verdicts import RemoteAnswers
from scaler.multikueue.hub.worker_connections import WorkerConnections
from scaler.quota.watch import QuotaReflectors
from scaler.reporting.views.dispatch import DispatchReader


class HubWiring:
    """Subscribes, so it comes before the reflectors run."""

    def __init__(
        self, settings: Settings, transport: KubeTransport, workloads: Reflector[Workload], quota: QuotaReflectors
    ) -> None:
        self._settings = settings
        self._workloads, self._quota = workloads, quota
        self._configs = Reflector(transport, MULTIKUEUE_CONFIG, MultiKueueConfig)
        self._clusters = Reflector(transport, MULTIKUEUE_CLUSTER, MultiKueueCluster)
        self._decisions = tuple(
            Reflector(transport, each, PlacementDecision) for each in (PLACEMENT_DECISION, PROFILE_DECISION)
        )
        self.connections = WorkerConnections(
            api=transport,
            clusters=self._clusters,
            namespace=settings.multi_kueue.namespace,
            offer_name=settings.multi_kueue.offer_name,
        )
        self.answers = RemoteAnswers(workers=self.connections)
        """What the workers say of what is dispatched to them."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        reflectors: tuple[Reflector[Any], ...] = (self._configs, self._clusters, *self._decisions)
        return [*(each.run() for each in reflectors), self.connections.run()]

    def reader(self) -> DispatchReader:
        """What any replica reads of the hub."""
        return DispatchReader(objects=self._objects(), connections=self.connections, planner=self._planner())

    def _objects(self) -> HubObjects:
        return HubObjects(
            workloads=self._workloads,
            checks=self._quota.checks,
            configs=self._configs,
            clusters=self._clusters,
            decisions=self._decisions,
            local_queues=self._quota.local_queues,
        )

    def _planner(self) -> DispatchPlanner:
        settings = self._settings.multi_kueue
        gpus = GpuResources(patterns=self._settings.gpu_resources)
        return DispatchPlanner(patience=settings.patience, requests=settings.requests, gpus=gpus)

    def dispatcher(
        self,
        api: LeaderApi,
        recorder: EventRecorder,
        sink: MetricsSink,
        *,
        judged: Callable[[], JudgedWorkloads],
    ) -> Dispatcher:
        """The leader's dispatcher. It writes to workers while `api` may write, and is woken by what it watches."""
        settings = self._settings.multi_kueue
        dispatcher = Dispatcher(
            api=api,
            objects=self._objects(),
            connections=self.connections,
            planner=self._planner(),
            recorder=recorder,
            judged=judged,
            scores=PlacementScores(api=api, maximum=settings.score_maximum) if settings.scores else None,
            observe=sink.dispatched,
            woken=asyncio.Event(),
        )
        self.connections.subscribe(dispatcher.wake)
        self._workloads.subscribe(dispatcher.heard)
        reflectors: tuple[Reflector[Any], ...] = (self._configs, self._clusters, *self._decisions)
        for each in reflectors:
            each.subscribe(lambda _: dispatcher.wake())
        return dispatcher
