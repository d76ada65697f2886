"""The life of one process: its parts are built, started, watched, and ended in order."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import structlog

from scaler import __version__
from scaler.cli.accounts import Accounts, show_ages
from scaler.cli.leadership import Leadership
from scaler.cli.observers import Observers
from scaler.cli.parts import MISSED_TICKS, Parts, Reports, patience
from scaler.cli.serving import Serving
from scaler.cli.sources import NO_SOURCE
from scaler.errors import ScalerError
from scaler.keda.server import ExternalScalerServer, ServerConfig
from scaler.loops.board import Board, Evaluation, Key
from scaler.loops.evaluation import Tick
from scaler.loops.outlook import Inquiry
from scaler.loops.projection import explain, overview
from scaler.settings.model import Settings
from scaler.telemetry.http import HttpServer, Views
from scaler.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

_LIST_SECONDS = 20.0


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
        self._evaluations: asyncio.Queue[Evaluation] = asyncio.Queue()
        self._started_at = 0.0
        self._server: ExternalScalerServer | None = None

    @property
    def board(self) -> Board:
        """What is decided."""
        return self._parts.board

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
        if self._server is not None:
            await self._server.drain(self.settings.grpc.drain)
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
            return await ask(self._parts.inquiry)

    @asynccontextmanager
    async def _looking(self, *, with_quota: bool, needs_verdicts: bool = True) -> AsyncIterator[None]:
        """Everything built, listed and judged once."""
        async with self._stack:
            await self._build(needs_source=needs_verdicts)
            parts = self._parts
            quota = [*parts.reclaiming.tasks(), *parts.gating.tasks()] if with_quota else []
            for number, work in enumerate([*parts.reflectors.tasks(), *quota]):
                self._spawn(f"reflector-{number}", work)
            try:
                await self._wait_listed(_LIST_SECONDS)
                if with_quota:
                    await asyncio.gather(
                        parts.reclaiming.wait_listed(_LIST_SECONDS), parts.gating.wait_listed(_LIST_SECONDS)
                    )
                if parts.source is not NO_SOURCE:
                    await parts.evaluator.tick(parts.evaluator.clock())
                yield
            finally:
                for task in self._tasks:
                    task.cancel()

    async def _wait_listed(self, seconds: float) -> None:
        """Raises: ScalerError where the API has not listed everything by then."""
        try:
            async with asyncio.timeout(seconds):
                await self._parts.reflectors.wait_synced()
        except TimeoutError:
            raise ScalerError(f"the Kubernetes API did not list everything: {self._parts.cluster.unlisted}") from None

    async def _evaluate(self) -> None:
        """Evaluate for ever; the first time not before there is something to evaluate, or that would cost a tick."""
        with suppress(ScalerError):  # which the evaluation tells, too
            await self._wait_listed(self.settings.evaluation.interval.total_seconds())
        await self._parts.evaluator.run()

    # ---------------------------------------------------------------------------------------------- building, starting

    async def _build(self, *, needs_source: bool = True) -> None:
        reports = Reports(
            metrics=self.metrics,
            observers=self._observers,
            ticked=self._ticked,
            published=self._evaluations.put_nowait,
        )
        self._parts = parts = await Parts.open(self.settings, reports, self._stack, needs_source=needs_source)
        self.leadership = Leadership(self.settings, parts, self.metrics, self._observers)
        self._accounts = Accounts(self.metrics, self.settings, parts, self.leadership)
        self._observers.backlog = self._accounts.backlog

    async def _listen(self) -> None:
        settings = self.settings
        self._serving = Serving.of(settings, self.metrics)
        http = HttpServer(
            settings.http.address,
            self.metrics,
            Views(
                unhealthy=self.unhealthy,
                unready=self.unready,
                overview=lambda: overview(self.board),
                explain=lambda namespace, name: explain(self.board, (namespace, name)),
                inquiries=self._parts.inquiry,
            ),
            tls=self._serving.http,
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
                config, self.board, observe=self._observers.answered, tls=self._serving.grpc
            )
            self.grpc_port = await self._server.start()
        log.info("listening", grpc_port=self.grpc_port or None, http_port=self.http_port, version=__version__)

    def _start_loops(self) -> None:
        parts = self._parts
        self._spawn("evaluation", self._evaluate())
        copies = [*parts.reflectors.tasks(), *parts.reclaiming.tasks(), *parts.gating.tasks()]
        for number, work in enumerate(copies):
            self._spawn(f"reflector-{number}", work)
        for number, work in enumerate(self._serving.tasks()):
            self._spawn(f"certificate-{number}", work)
        if leadership := self.leadership.begin():
            self._spawn("leadership", leadership)
        self._spawn("after-evaluation", self._after_evaluations())
        self._spawn("bookkeeping", self._accounts.loop.run())
        self._spawn("between-evaluations", parts.evaluator.follow())
        show_ages(self.metrics, parts.board, parts.copies())
        parts.changes.follow()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    # ----------------------------------------------------------------------------------------------- after evaluations

    async def _after_evaluations(self) -> None:
        is_first = True
        while True:
            evaluation = await self._evaluations.get()
            while not self._evaluations.empty():
                evaluation = self._evaluations.get_nowait()
            if is_first and self._server is not None:
                await self._server.set_ready(True)
                calm_collector()
            is_first = False
            if self.leadership.loops is not None:
                self.leadership.loops.evaluated(evaluation)

    def _ticked(self, tick: Tick) -> None:
        self._observers.ticked(tick)
        if tick.evaluation is not None:
            self._accounts.loop.wake()

    # ---------------------------------------------------------------------------------------------------------- health

    def unhealthy(self) -> list[str]:
        """Loops that should have beaten and did not. The metrics source and the Kubernetes API do not count."""
        silent = asyncio.get_running_loop().time() - max(self._parts.evaluator.last_tick_at, self._started_at)
        limit = patience(self.settings, 2 * MISSED_TICKS).total_seconds()
        return [f"the evaluation loop has not ended a tick for {silent:.0f} s"] if silent > limit else []

    def unready(self) -> list[str]:
        if self._stopping.is_set():
            return ["this process is stopping"]
        return [] if self.board.is_ready else [self.board.why_cold]
