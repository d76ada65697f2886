"""The life of one process: construct, start, watch and stop its parts in order."""

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from ctypes import CDLL
from typing import Any

import structlog

from scaler import __version__
from scaler.app.controllers import Leadership
from scaler.app.metrics_sink import MetricsSink
from scaler.app.metrics_source import NO_METRICS_SOURCE, is_configured
from scaler.app.server_tls import ServerCertificates
from scaler.app.settings.model import Settings
from scaler.app.wiring import MISSED_TICKS, Wiring, max_evaluation_age, trigger_target
from scaler.attachment.controller import IdlePolicies
from scaler.attachment.objects import TriggerTarget
from scaler.attachment.policy import AttachmentPolicy
from scaler.clock import background_threads
from scaler.decision.decision_cache import DecisionCache, Key
from scaler.decision.describe import explain, overview
from scaler.errors import ScalerError
from scaler.keda.server import ExternalScalerServer, ServerConfig
from scaler.reporting.http import HttpServer, Views
from scaler.reporting.metrics import Metrics
from scaler.reporting.views.policy_trial import PolicyTrial

log = structlog.get_logger(__name__)

_LIST_SECONDS = 20.0
_READINESS_SECONDS = 1.0

_SWITCH_INTERVAL_S = 0.001
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 128 * 1024


def tune_process() -> None:
    """Keep garbage collection and threads from delaying the answers to KEDA, and memory low. Call it on the event loop.

    * What a tick allocates is freed by reference counting when the next one replaces it, so looking for cycles can be
      rare: by default a tick over 5,000 ScaledObjects would set off several full collections of some 50 ms, and the
      first one at 100,000 GPUs some of half a second. What is built by the end of the first evaluation stays for good,
      and is frozen then: it need not be walked again and again.
    * Threads wait for the event loop, and hand it the interpreter after a millisecond, not after Python's five.
    * glibc learns from the first long responses that such amounts are wanted again, and keeps tens of megabytes of each
      thread; set to what it begins with, it learns nothing and gives them back.
    """
    gc.set_threshold(2_000, 10, 1_000)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    asyncio.get_running_loop().set_default_executor(background_threads("background"))
    with suppress(OSError, AttributeError):  # without glibc
        CDLL("libc.so.6").mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


class Runtime:
    """One process. `await start()`, then `await run()` until `stop()` is called."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._sink = MetricsSink(
            self.metrics,
            has_source=is_configured(settings),
            most_budgets=settings.metrics.limits().namespaces,
        )
        self.metrics.build_info.labels(version=__version__).set(1)
        self.grpc_port = 0
        self.http_port = 0
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._evaluated = asyncio.Event()
        self._started_at = 0.0
        self._server: ExternalScalerServer | None = None

    @property
    def decision_cache(self) -> DecisionCache:
        return self._wiring.decision_cache

    # ----------------------------------------------------------------------------------------------------- life-cycle

    async def start(self) -> None:
        """Build and start everything. Raises: ConfigurationError; nothing is left running then."""
        tune_process()
        try:
            await self._build(needs_source="dispatcher" not in self.settings.components)
            await self._listen()
        except BaseException:
            await self._stack.aclose()
            raise
        self._started_at = asyncio.get_running_loop().time()
        self._start_loops()

    async def run(self) -> None:
        """Run until `stop` is called, or a task ends that must not. Raises: what ended it."""
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
        """End the streams, release the Lease, and only then close the connections."""
        log.info("stopping")
        self.decision_cache.close()
        if self._server is not None:
            await self._server.drain(self.settings.grpc.drain)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def explain(self, key: Key) -> Mapping[str, Any]:
        """The decision on one ScaledObject, or on what it scales. Raises: ScalerError where there is none."""
        explanation = self._explanation(*key)
        if explanation is None:
            missing = "; ".join(self._cold()) or "there is no such ScaledObject with an external trigger"
            raise ScalerError(f"ScaledObject {key[0]}/{key[1]}: {missing}")
        return explanation

    def _explanation(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return explain(self.decision_cache, self._wiring.cluster.scaled_object_key(namespace, name))

    async def overview(self) -> Mapping[str, Any]:
        """A line for each ScaledObject."""
        return {"decisions": [*overview(self.decision_cache)]}

    async def try_policies(self, given: Sequence[AttachmentPolicy]) -> Mapping[str, Any]:
        """What would become of all jobs with these policies. Within `query_once`. Raises: ScalerError."""
        wiring, namespaces = self._wiring, self.settings.kubernetes.namespaces
        trial = PolicyTrial(
            wiring.cluster,
            wiring.evaluator,
            IdlePolicies(wiring.transport, namespaces=namespaces, hooks=self.settings.hook_timeouts),
            wiring.jobs(changed=lambda: None),
            trigger_target(self.settings) or TriggerTarget(scaler_address=""),
        )
        return await trial.run(given)

    async def query_once(
        self,
        query: Callable[["Runtime"], Awaitable[Mapping[str, Any]]],
        *,
        with_quota: bool = True,
        needs_verdicts: bool = True,
    ) -> Mapping[str, Any]:
        """What this process answers once everything is listed and evaluated. Listens on no port, writes nothing.

        Without `needs_verdicts` no metrics source is needed; the answer then says that verdicts are unknown.
        Raises: ScalerError where the API or the source does not answer, and what the query raises.
        """
        async with self._stack:
            await self._build(needs_source=needs_verdicts)
            wiring = self._wiring
            self._spawn_all("reflector", wiring.reflectors.tasks())
            if with_quota:
                self._spawn_all("reflector", wiring.cluster_reflectors.tasks())
                self._spawn_all("hub", wiring.hub.tasks() if wiring.hub is not None else [])
            try:
                await self._wait_listed(_LIST_SECONDS)
                if with_quota:
                    await wiring.cluster_reflectors.wait_synced(_LIST_SECONDS)
                if wiring.source is not NO_METRICS_SOURCE:
                    await wiring.evaluator.tick(wiring.evaluator.clock())
                return await query(self)
            finally:
                for task in self._tasks:
                    task.cancel()

    async def _wait_listed(self, seconds: float) -> None:
        """Raises: ScalerError where the API has not listed everything by then."""
        try:
            async with asyncio.timeout(seconds):
                await self._wiring.reflectors.wait_synced()
        except TimeoutError:
            raise ScalerError(
                f"the Kubernetes API did not list everything: {self._wiring.cluster.unlisted()}"
            ) from None

    async def _evaluate(self) -> None:
        """Evaluate for ever; first wait for the API's lists, or a tick would be lost."""
        with suppress(ScalerError):  # the evaluation reports it, too
            await self._wait_listed(self.settings.evaluation.interval.total_seconds())
        await self._wiring.evaluator.run()

    # ---------------------------------------------------------------------------------------------- building, starting

    async def _build(self, *, needs_source: bool = True) -> None:
        self._wiring = wiring = await Wiring.open(
            self.settings,
            self._sink,
            self._stack,
            published=self._evaluated.set,
            needs_source=needs_source,
        )
        self.queries = wiring.query_service()
        self.leadership = Leadership(self.settings, wiring, self._sink)
        self._fleet = wiring.fleet_collector(
            self._sink,
            is_reporting=self.leadership.is_reporting,
            observe=self.leadership.show_upkeep,
        )

    async def _listen(self) -> None:
        settings = self.settings
        self._certificates = ServerCertificates.of(settings, self.metrics)
        page = self._wiring.web_page(self.queries, self.unready)
        http = HttpServer(
            settings.http.address,
            self.metrics,
            Views(
                unhealthy=self.unhealthy,
                unready=self.unready,
                overview=lambda: overview(self.decision_cache),
                explain=self._explanation,
                queries=self.queries,
                offers=self._wiring.cluster_reflectors.offers.items,
            ),
            tls=self._certificates.http,
            routes=[
                route
                for pages in (page, self._wiring.link_pages(), self._wiring.wake_requests())
                if pages is not None
                for route in pages.routes()
            ],
            guards=[page.access.guard] if page.access is not None else (),
        )
        self.http_port = await http.start()
        self._stack.push_async_callback(http.stop)
        if "scaler" in settings.components:
            config = ServerConfig(
                addresses=(settings.grpc.address,),
                max_connection_age=settings.grpc.max_connection_age,
                reflection=settings.grpc.reflection,
            )
            self._server = ExternalScalerServer(
                config, self.decision_cache, observe=self._sink.answered, tls=self._certificates.grpc
            )
            self.grpc_port = await self._server.start()
        log.info("listening", grpc_port=self.grpc_port or None, http_port=self.http_port, version=__version__)

    def _start_loops(self) -> None:
        wiring = self._wiring
        self._spawn("evaluation", self._evaluate())
        self._spawn("re-evaluation", wiring.evaluator.redecide_changes())
        self._spawn("after evaluation", self._after_evaluations())
        if self._server is not None:
            self._spawn("readiness", self._show_readiness(self._server))
        self._spawn_all("reflector", [*wiring.reflectors.tasks(), *wiring.cluster_reflectors.tasks()])
        self._spawn_all("reflector of policies", [each.run() for each in wiring.idle_policies.all])
        self._spawn_all("hub", wiring.hub.tasks() if wiring.hub is not None else [])
        self._spawn_all("certificate", self._certificates.tasks())
        self._spawn("fleet metrics", self._fleet.run())
        if self.leadership.has_lease:
            self._spawn("leadership", self.leadership.run())
        wiring.export_ages(self.metrics)
        wiring.re_evaluation.subscribe()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _spawn_all(self, name: str, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        for number, work in enumerate(works):
            self._spawn(f"{name} {number}", work)

    async def _after_evaluations(self) -> None:
        """Wake the controllers; the metrics of the cluster are collected once per tick."""
        ticked_at = None
        while True:
            await self._evaluated.wait()
            self._evaluated.clear()
            evaluation = self.decision_cache.evaluation
            if ticked_at is None and self._server is not None:
                gc.freeze()
            if evaluation is not None and evaluation.at != ticked_at:
                ticked_at = evaluation.at
                self._fleet.wake()
                self._wiring.seen_pods.look(evaluation)
            self.leadership.wake()

    # ---------------------------------------------------------------------------------------------------------- health

    def unhealthy(self) -> list[str]:
        """Loops that hang. A metrics source or Kubernetes API that does not answer is no reason."""
        silent = asyncio.get_running_loop().time() - max(self._wiring.evaluator.last_tick_at, self._started_at)
        limit = max_evaluation_age(self.settings, 2 * MISSED_TICKS).total_seconds()
        return [f"the evaluation loop has not ended a tick for {silent:.0f} s"] if silent > limit else []

    async def _show_readiness(self, server: ExternalScalerServer) -> None:
        """Readiness is shown by gRPC, as HTTP shows it whenever it is asked."""
        while True:
            await server.set_ready(not self.unready())
            await asyncio.sleep(_READINESS_SECONDS)

    def unready(self) -> list[str]:
        """Why it is not ready: it cannot answer yet, or what it answers is not carried out.

        A rollout stops at a replica that may not hold the Lease. Without a leader no replica is ready, KEDA gets errors
        and changes nothing, instead of scaling by half of what should happen.
        """
        if self._stopping.is_set():
            return ["this process is stopping"]
        return [*self._cold(), *self.leadership.leaderless()]

    def _cold(self) -> list[str]:
        if self._wiring.source is NO_METRICS_SOURCE:
            return []  # a hub: there is nothing here that would be judged by samples
        return [] if self.decision_cache.is_ready else [self.decision_cache.why_cold]


def run_until_signal(settings: Settings) -> None:
    """Run a process until SIGTERM or SIGINT. Raises: ConfigurationError, and what ended it."""

    async def serve() -> None:
        runtime = Runtime(settings)
        await runtime.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, runtime.stop)
        await runtime.run()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(serve())


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where the extra `fast` is installed; None means asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
