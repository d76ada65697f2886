"""Everything that one process runs, wired together from settings: built, started, watched, and ended in order."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from scaler import __version__
from scaler.cli.accounts import Accounts, Watched, show_ages
from scaler.cli.gating import Gating
from scaler.cli.observers import Observers
from scaler.cli.reclaiming import Reclaiming
from scaler.cli.serving import Serving
from scaler.cli.sources import NO_SOURCE, UNCONFIGURED, Source, has_source, open_source
from scaler.core.relabel import DEFAULT_RULES, parse_rules
from scaler.errors import ScalerError
from scaler.keda.server import ExternalScalerServer, ServerConfig
from scaler.kube.accelerators import GpuResources
from scaler.kube.access import SERVICE_ACCOUNT
from scaler.kube.copies import Change
from scaler.kube.events import EventRecorder
from scaler.kube.kueue_objects import Workload
from scaler.kube.lease import LeaderElector
from scaler.kube.objects import Pod, ScalableWorkload, ScaledObject
from scaler.kube.reflector import Reflector
from scaler.kube.resources import POD, SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kube.transport import KubeTransport
from scaler.kueue.workloads import owner_key
from scaler.loops.board import Board, Evaluation, Key, Target
from scaler.loops.boosting import Boosting
from scaler.loops.cluster import (
    Cluster,
    pod_indexes,
    scalable_workload_indexes,
    scaled_object_indexes,
    workload_indexes,
)
from scaler.loops.demand import Demands, WakeQuery
from scaler.loops.evaluation import EvaluationConfig, Evaluator, Tick
from scaler.loops.gate import Gate
from scaler.loops.granting import Granter
from scaler.loops.leadership import LeaderApi
from scaler.loops.leading import Leading
from scaler.loops.nodes_aim import NodesAim
from scaler.loops.outlook import Inquiry
from scaler.loops.policy_status import PolicyStatus
from scaler.loops.pressure import Pressure
from scaler.loops.projection import explain, overview
from scaler.loops.reconciliation import Reconciler
from scaler.loops.sampling import Sampler
from scaler.loops.scales import Scales, is_asked_for_anew, scalable_target
from scaler.settings.metrics import Fleet
from scaler.settings.model import Settings
from scaler.telemetry.http import HttpServer, Views
from scaler.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

_MISSED_TICKS = 3
"""Evaluations that may be missed before the board answers nobody, and twice that before the process is unwell."""

_TICK_JITTER = timedelta(seconds=1)
"""By which one tick may take longer than the one before without its predecessor's answers being overdue."""
_LIST_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflectors:
    """The live copies that every replica keeps."""

    scaled_objects: Reflector[ScaledObject]
    scalable_workloads: Reflector[ScalableWorkload]
    workloads: Reflector[Workload]
    pods: Reflector[Pod]

    @classmethod
    def of(cls, transport: KubeTransport, gpus: GpuResources, namespaces: Collection[str]) -> "Reflectors":
        return cls(
            scaled_objects=Reflector(
                transport, SCALED_OBJECT, ScaledObject, namespaces=namespaces, indexes=scaled_object_indexes()
            ),
            scalable_workloads=Reflector(
                transport,
                SCALABLE_WORKLOAD,
                ScalableWorkload,
                namespaces=namespaces,
                indexes=scalable_workload_indexes(),
            ),
            workloads=Reflector(transport, WORKLOAD, Workload, namespaces=namespaces, indexes=workload_indexes()),
            pods=Reflector(transport, POD, Pod, namespaces=namespaces, indexes=pod_indexes(gpus)),
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self.scaled_objects.run(), self.scalable_workloads.run(), self.workloads.run(), self.pods.run()]


def calm_collector() -> None:
    """Keep the cyclic garbage collector from pausing the answers to KEDA.

    What was built so far stays for good and need not be walked again and again. What a tick allocates is freed by
    reference counting when the next one replaces it, so looking for cycles can be rare: by default a tick over 5,000
    ScaledObjects would set off several full collections of some 50 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 1_000)


class Runtime:
    """One process. `await start()`, then `await run()` until `stop()` is called."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._observers = Observers(self.metrics)
        self.metrics.build.labels(version=__version__).set(1)
        self.grpc_port = 0
        self.http_port = 0
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._followers: list[Callable[[Tick], None]] = []
        self._evaluations: asyncio.Queue[Evaluation] = asyncio.Queue()
        self._started_at = 0.0
        self._elector: LeaderElector | None = None
        self.server: ExternalScalerServer | None = None
        self.leading: Leading | None = None
        self.pressure: Pressure | None = None
        self.boosting: Boosting | None = None
        self.gate: Gate | None = None
        self.policy_status: PolicyStatus | None = None

    def follow(self, follower: Callable[[Tick], None]) -> None:
        """Be told of every tick."""
        self._followers.append(follower)

    # ----------------------------------------------------------------------------------------------------- life-cycle

    async def start(self) -> None:
        """Build and start everything. Raises: ConfigurationError; nothing is left running then."""
        try:
            await self._build()
            await self._listen()
        except BaseException:
            await self._stack.aclose()
            raise
        self._started_at = asyncio.get_running_loop().time()
        self._start_loops()

    async def run(self) -> None:
        """Until `stop` is called, or a loop that must not end has ended. Raises: what ended it."""
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            await asyncio.wait([stopping, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            ended = [task for task in self._tasks if task.done() and not task.cancelled()]
            await self._shut_down()
        for task in ended:
            task.result()

    def stop(self) -> None:
        self._stopping.set()

    async def _shut_down(self) -> None:
        """Streams end well, the Lease is released, and only then the connections are closed."""
        log.info("stopping")
        self.board.close()
        if self.server is not None:
            await self.server.drain(self.settings.grpc.drain)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def explain_now(self, key: Key) -> Mapping[str, Any]:
        """What this process decides by itself about one ScaledObject. Listens nowhere, writes nothing.

        Raises: ScalerError where the API or the source does not answer, or the ScaledObject is not there.
        """
        async with self._looking(with_quota=False):
            explanation = explain(self.board, key)
        if explanation is None:
            missing = "; ".join(self.unready()) or "there is no such ScaledObject with an external trigger"
            raise ScalerError(f"ScaledObject {key[0]}/{key[1]}: {missing}")
        return explanation

    async def ask_now(
        self, ask: Callable[[Inquiry], Awaitable[Mapping[str, Any]]], *, needs_verdicts: bool = True
    ) -> Mapping[str, Any]:
        """What this process finds by itself about quota and plans. Listens nowhere, writes nothing.

        Without `needs_verdicts` no metrics source is needed; the answer says then that nobody knows who is idle.
        Raises: ScalerError where the API does not answer; InquiryError.
        """
        async with self._looking(with_quota=True, needs_verdicts=needs_verdicts):
            return await ask(self.inquiry)

    @asynccontextmanager
    async def _looking(self, *, with_quota: bool, needs_verdicts: bool = True) -> AsyncIterator[None]:
        """Everything built, listed and judged once."""
        async with self._stack:
            await self._build(needs_source=needs_verdicts)
            quota = [*self.reclaiming.tasks(), *self.gating.tasks()] if with_quota else []
            for number, work in enumerate([*self.reflectors.tasks(), *quota]):
                self._spawn(f"reflector-{number}", work)
            try:
                await self._wait_listed(_LIST_SECONDS)
                if with_quota:
                    await asyncio.gather(
                        self.reclaiming.wait_listed(_LIST_SECONDS), self.gating.wait_listed(_LIST_SECONDS)
                    )
                if self.source is not NO_SOURCE:
                    await self.evaluator.tick(self.evaluator.clock())
                yield
            finally:
                for task in self._tasks:
                    task.cancel()

    async def _wait_listed(self, seconds: float) -> None:
        """Raises: ScalerError where the API has not listed everything by then."""
        copies = self.reflectors
        waits = (copies.scaled_objects, copies.scalable_workloads, copies.workloads, copies.pods)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(copy.wait_synced() for copy in waits))
        except TimeoutError:
            raise ScalerError(f"the Kubernetes API did not list everything: {self.cluster.unlisted}") from None

    async def _evaluate(self) -> None:
        """Evaluate for ever; the first time not before there is something to evaluate, or that would cost a tick."""
        with suppress(ScalerError):  # which the evaluation tells, too
            await self._wait_listed(self.settings.evaluation.interval.total_seconds())
        await self.evaluator.run()

    # --------------------------------------------------------------------------------------------------------- parts

    async def _build(self, *, needs_source: bool = True) -> None:
        settings = self.settings
        kubernetes = settings.kubernetes
        namespaces = kubernetes.namespaces
        is_sourced = needs_source or has_source(settings)
        self.source = open_source(settings, self.metrics) if is_sourced else NO_SOURCE
        self._stack.push_async_callback(self.source.close)
        self.transport = await KubeTransport.connect(
            kubernetes.kubeconfig,
            kubernetes.context,
            call_seconds=kubernetes.timeout.total_seconds(),
            observe=self._observers.called,
        )
        self._stack.push_async_callback(self.transport.close)
        gpus = GpuResources(patterns=settings.gpu_resources)
        self.reflectors = Reflectors.of(self.transport, gpus, namespaces)
        self.cluster = Cluster(
            scaled_objects=self.reflectors.scaled_objects,
            scalable_workloads=self.reflectors.scalable_workloads,
            workloads=self.reflectors.workloads,
            pods=self.reflectors.pods,
            gpus=gpus,
        )
        self.board = Board(
            max_age=self._patience(_MISSED_TICKS),
            max_zero_age=1.5 * settings.evaluation.interval + _TICK_JITTER,
        )
        if self.source is NO_SOURCE:
            self.board.explain_cold_start(UNCONFIGURED)
        self.scales = Scales(
            self.transport, namespaces=namespaces, max_age=kubernetes.max_view_age, changed=self._target_changed
        )
        self._stack.push_async_callback(self.scales.close)
        self.evaluator = self._evaluator(self.source)
        self.reclaiming = Reclaiming.of(
            self.transport,
            self.cluster,
            self.board,
            settings.reclaim.policy(),
            workloads=self.reflectors.workloads,
            pods=self.reflectors.pods,
            namespaces=namespaces,
            max_view_age=kubernetes.max_view_age,
            max_verdict_age=self._patience(_MISSED_TICKS),
        )
        self.gating = Gating.of(
            self.transport,
            self.cluster,
            self.reclaiming,
            workloads=self.reflectors.workloads,
            pods=self.reflectors.pods,
        )
        self.accounts = Accounts(
            self.metrics,
            settings.metrics,
            cluster=self.cluster,
            board=self.board,
            evaluator=self.evaluator,
            reclaiming=self.reclaiming,
            requests=self.gating.requests,
            watched=Watched(workloads=self.reflectors.workloads, scalable_workloads=self.reflectors.scalable_workloads),
            interval=settings.evaluation.interval,
            is_reporting=self._is_reporting,
        )
        self._observers.backlog = self.accounts.backlog
        looking, planning = self.gating.looking(self.transport), self.reclaiming.planning
        planning.asking = looking.asking
        self.inquiry = Inquiry(
            planning,
            self.board,
            gates=self.gating.onlooker(self.transport, looking),
            nodes=NodesAim(planning=planning, gate=looking),
        )

    def _evaluator(self, source: Source) -> Evaluator:
        settings = self.settings
        trust = settings.trust.trust()
        rules = DEFAULT_RULES if settings.relabel is None else parse_rules(settings.relabel)
        return Evaluator(
            config=EvaluationConfig(
                interval=settings.evaluation.interval,
                trust=trust,
                defaults=settings.defaults.overrides(),
                max_window=settings.evaluation.max_window,
                max_view_age=settings.kubernetes.max_view_age,
                scaler_addresses=frozenset(settings.keda.scaler_addresses),
            ),
            cluster=self.cluster,
            scales=self.scales,
            sampler=Sampler(
                source.signals,
                signals=[signal.signal() for signal in settings.signals],
                rules=rules,
                trust=trust,
                overlap=settings.evaluation.overlap,
            ),
            board=self.board,
            demands=Demands(queries=_wake_queries(settings), source=source.demand),
            observe=self._ticked,
            published=self._evaluations.put_nowait,
        )

    def _patience(self, ticks: int) -> timedelta:
        """How long some ticks take at worst: their interval, and a read that runs into its time limit."""
        return ticks * self.settings.evaluation.interval + self.settings.prometheus.timeout

    async def _listen(self) -> None:
        settings = self.settings
        self.serving = Serving.of(settings, self.metrics)
        http = HttpServer(
            settings.http.address,
            self.metrics,
            Views(
                unhealthy=self.unhealthy,
                unready=self.unready,
                overview=lambda: overview(self.board),
                explain=lambda namespace, name: explain(self.board, (namespace, name)),
                inquiries=self.inquiry,
            ),
            tls=self.serving.http,
        )
        self.http_port = await http.start()
        self._stack.push_async_callback(http.stop)
        if "scaler" in settings.components:
            config = ServerConfig(
                addresses=(settings.grpc.address,),
                max_connection_age=settings.grpc.max_connection_age,
                reflection=settings.grpc.reflection,
            )
            self.server = ExternalScalerServer(
                config, self.board, observe=self._observers.answered, tls=self.serving.grpc
            )
            self.grpc_port = await self.server.start()
        log.info("listening", grpc_port=self.grpc_port or None, http_port=self.http_port, version=__version__)

    def _start_loops(self) -> None:
        self._spawn("evaluation", self._evaluate())
        copies = [*self.reflectors.tasks(), *self.reclaiming.tasks(), *self.gating.tasks()]
        for number, work in enumerate(copies):
            self._spawn(f"reflector-{number}", work)
        for number, work in enumerate(self.serving.tasks()):
            self._spawn(f"certificate-{number}", work)
        if "reconciler" in self.settings.components:
            self._spawn("reconciliation", self._reconcile())
        elif self._takes_turns:
            self._spawn("election", self._report_in_turn())
        else:
            self.metrics.show_no_leader()
        self._spawn("after-evaluation", self._after_evaluations())
        self._spawn("bookkeeping", self.accounts.loop.run())
        self._spawn("between-evaluations", self.evaluator.follow())
        show_ages(self.metrics, self.board, self._copies())
        self.reflectors.scaled_objects.subscribe(self._scaled_object_changed)
        self.reflectors.scalable_workloads.subscribe(self._scalable_workload_changed)
        self.reflectors.workloads.subscribe(self._workload_changed)

    def _copies(self) -> dict[str, Reflector[Any]]:
        """By what they are copies of."""
        copies = self.reflectors
        own: list[Reflector[Any]] = [copies.scaled_objects, copies.scalable_workloads, copies.workloads, copies.pods]
        shared = [] if self.reclaiming.is_confined else [*self.reclaiming.reflectors.all, self.reclaiming.nodes]
        return {each.resource.qualified_name: each for each in [*own, *shared]}

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    # ------------------------------------------------------------------------------------------------------ leadership

    def _candidate(self) -> LeaderElector:
        """For the Lease that its settings name. Whether it leads is a metric."""
        lease = self.settings.kubernetes.lease
        elector = LeaderElector(
            self.transport,
            namespace=self._lease_namespace or "default",
            name=self.settings.lease_name,
            identity=os.environ.get("POD_NAME") or socket.gethostname(),
            lease_duration=lease.duration.total_seconds(),
            renew_deadline=lease.renew_deadline.total_seconds(),
            retry_period=lease.retry_period.total_seconds(),
        )
        self.metrics.leader.set_function(lambda: float(elector.is_leader))
        return elector

    @property
    def _lease_namespace(self) -> str:
        """Empty where this process is in no cluster, and none is named."""
        kubernetes = self.settings.kubernetes
        return kubernetes.lease.namespace or _own_namespace(has_kubeconfig=kubernetes.kubeconfig is not None)

    @property
    def _takes_turns(self) -> bool:
        """Whether replicas that reconcile nothing agree on who shows what is counted about the cluster."""
        return self.settings.metrics.fleet is None and bool(self._lease_namespace)

    async def _report_in_turn(self) -> None:
        """By a Lease of their own: who holds it keeps nobody from reconciling, and writes nothing besides."""
        self._elector = self._candidate()
        await self._elector.run(_until_cancelled)

    async def _reconcile(self) -> None:
        self._elector = elector = self._candidate()
        recorder = EventRecorder(self.transport, instance=elector.identity)
        api = LeaderApi(self.transport, is_leader=lambda: elector.is_leader)
        reflectors = self.reflectors
        reconciler = Reconciler(api, self.cluster, self.board, recorder)
        self.gate = self.gating.gate(api, recorder, self._observers)
        self.policy_status = self.gating.policy_status(api)
        self.pressure = self.reclaiming.pressure(api, reconciler, recorder, self.board, self._observers, gate=self.gate)
        self.boosting = self.reclaiming.boosting(
            api, recorder, self.board, max_age=self._patience(_MISSED_TICKS), observers=self._observers
        )
        self.leading = Leading(
            reconciler=reconciler,
            granter=Granter(api, self.cluster, self.board),
            scaled_objects=reflectors.scaled_objects,
            scalable_workloads=reflectors.scalable_workloads,
            workloads=reflectors.workloads,
            pods=reflectors.pods,
            observe=self._observers.reconciled,
        )
        self.accounts.leading, self.accounts.recorder = self.leading, recorder
        recording = asyncio.create_task(recorder.run(), name="events")
        try:
            await elector.run(self._lead)
        finally:
            await recorder.drain(2.0)
            recording.cancel()

    def _is_reporting(self) -> bool:
        """Whether this process shows what is counted about the cluster."""
        match self.settings.metrics.fleet:
            case Fleet.ALWAYS:
                return True
            case None if "reconciler" not in self.settings.components and not self._takes_turns:
                return True
        return self._elector is not None and self._elector.is_leader

    async def _lead(self) -> None:
        copies = self.reflectors
        waits = (copies.scaled_objects, copies.scalable_workloads, copies.workloads, copies.pods)
        await asyncio.gather(*(copy.wait_synced() for copy in waits))
        if self.leading is None or self.pressure is None or self.boosting is None or self.gate is None:
            return
        async with asyncio.TaskGroup() as work:
            work.create_task(self.leading.run())
            work.create_task(self.pressure.run())
            work.create_task(self.boosting.run())
            if not self.reclaiming.is_confined:
                work.create_task(self.gate.run())
                if self.policy_status is not None:
                    work.create_task(self.policy_status.run())

    async def _after_evaluations(self) -> None:
        is_first = True
        while True:
            evaluation = await self._evaluations.get()
            while not self._evaluations.empty():
                evaluation = self._evaluations.get_nowait()
            if is_first and self.server is not None:
                await self.server.set_ready(True)
                calm_collector()
            is_first = False
            if self.leading is not None:
                self.leading.evaluated(evaluation)
            if self.pressure is not None:
                self.pressure.wake()
            if self.boosting is not None:
                self.boosting.wake()

    # ---------------------------------------------------------------------------------------------- between evaluations

    def _scaled_object_changed(self, change: Change[ScaledObject]) -> None:
        if is_asked_for_anew(change):
            self.evaluator.touch(change.key)

    def _scalable_workload_changed(self, change: Change[ScalableWorkload]) -> None:
        if is_asked_for_anew(change) or _is_granted_anew(change):
            self._target_changed(change.key[0], scalable_target(change.key[1]))
        if self.pressure is not None and is_asked_for_anew(change):
            self.pressure.wake()

    def _target_changed(self, namespace: str, target: Target) -> None:
        for scaled_object in self.reflectors.scaled_objects.by_index("target", (namespace, target)):
            self.evaluator.touch(scaled_object.metadata.key)

    def _workload_changed(self, change: Change[Workload]) -> None:
        """What was asked to be at 0 is only known to be suspended once its Workload is inactive."""
        workload = change.new or change.old
        if workload is None or not is_asked_for_anew(change):
            return
        for subject in (workload.metadata.key, owner_key(workload)):
            for scalable in self.reflectors.scalable_workloads.by_index("subject", subject) if subject else ():
                self._target_changed(scalable.metadata.namespace, scalable_target(scalable.metadata.name))

    def _ticked(self, tick: Tick) -> None:
        self._observers.ticked(tick)
        if tick.evaluation is not None:
            self.accounts.loop.wake()
        for follower in self._followers:
            follower(tick)

    # ---------------------------------------------------------------------------------------------------------- health

    def unhealthy(self) -> list[str]:
        """Loops that should have beaten and did not. The metrics source and the Kubernetes API do not count."""
        silent = asyncio.get_running_loop().time() - max(self.evaluator.last_tick_at, self._started_at)
        limit = self._patience(2 * _MISSED_TICKS).total_seconds()
        return [f"the evaluation loop has not ended a tick for {silent:.0f} s"] if silent > limit else []

    def unready(self) -> list[str]:
        if self._stopping.is_set():
            return ["this process is stopping"]
        return [] if self.board.is_ready else [self.board.why_cold]


def _is_granted_anew(change: Change[ScalableWorkload]) -> bool:
    """Whether a plan has come or gone that may take the workload."""
    old, new = (each.status.grant if each is not None else None for each in (change.old, change.new))
    return old != new


def _wake_queries(settings: Settings) -> list[WakeQuery]:
    return [
        WakeQuery(
            name=wake.name,
            promql=wake.query,
            namespaces=frozenset(wake.namespaces),
            namespace_label=wake.namespace_label,
            name_label=wake.name_label,
        )
        for wake in settings.wake
    ]


def _own_namespace(*, has_kubeconfig: bool) -> str:
    """The namespace of this Pod; empty where the API is not that of the cluster it runs in, or there is no Pod."""
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    file = SERVICE_ACCOUNT / "namespace"
    return file.read_text(encoding="utf-8").strip() if file.is_file() and not has_kubeconfig else ""


async def _until_cancelled() -> None:
    await asyncio.Event().wait()
