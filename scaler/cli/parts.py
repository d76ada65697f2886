"""What one process judges, plans and answers with, built from settings and wired together. Nothing of it runs yet.

Every replica has all of it, whether or not it ever leads; so has who asks about one thing and ends.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from scaler.cli.changes import Changes
from scaler.cli.gating import Gating
from scaler.cli.observers import Observers
from scaler.cli.reclaiming import Reclaiming
from scaler.cli.reflectors import Reflectors
from scaler.cli.sources import NO_SOURCE, UNCONFIGURED, Source, has_source, open_source
from scaler.core.relabel import DEFAULT_RULES, parse_rules
from scaler.kube.accelerators import GpuResources
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.loops.board import Board, Evaluation, Target
from scaler.loops.cluster import Cluster
from scaler.loops.demand import Demands, WakeQuery
from scaler.loops.evaluation import EvaluationConfig, Evaluator, Tick
from scaler.loops.leadership import LeaderApi
from scaler.loops.nodes_aim import NodesAim
from scaler.loops.outlook import Inquiry
from scaler.loops.sampling import Sampler
from scaler.loops.scales import Scales
from scaler.settings.model import Settings
from scaler.telemetry.metrics import Metrics

MISSED_TICKS = 3
"""Evaluations that may be missed before the board answers nobody, and twice that before the process is unwell."""

_TICK_JITTER = timedelta(seconds=1)
"""By which one tick may take longer than the one before without its predecessor's answers being overdue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Who is told what the parts do."""

    metrics: Metrics
    observers: Observers
    ticked: Callable[[Tick], None]
    published: Callable[[Evaluation], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts by name."""

    source: Source
    transport: KubeTransport
    reflectors: Reflectors
    cluster: Cluster
    board: Board
    evaluator: Evaluator
    changes: Changes
    reclaiming: Reclaiming
    gating: Gating
    inquiry: Inquiry

    @classmethod
    async def open(
        cls, settings: Settings, reports: Reports, stack: AsyncExitStack, *, needs_source: bool = True
    ) -> "Parts":
        """Built, and connected to the API; the stack closes them. Raises: ConfigurationError."""
        kubernetes = settings.kubernetes
        is_sourced = needs_source or has_source(settings)
        source = open_source(settings, reports.metrics) if is_sourced else NO_SOURCE
        stack.push_async_callback(source.close)
        transport = await KubeTransport.connect(
            kubernetes.kubeconfig,
            kubernetes.context,
            call_seconds=kubernetes.timeout.total_seconds(),
            observe=reports.observers.called,
        )
        stack.push_async_callback(transport.close)
        gpus = GpuResources(patterns=settings.gpu_resources)
        reflectors = Reflectors.of(transport, gpus, kubernetes.namespaces)
        cluster, board = reflectors.cluster(gpus), _board(settings, source)

        def target_changed(namespace: str, target: Target) -> None:  # scales come first, and are heard once they run
            changes.target_changed(namespace, target)

        scales = Scales(
            transport, namespaces=kubernetes.namespaces, max_age=kubernetes.max_view_age, changed=target_changed
        )
        stack.push_async_callback(scales.close)
        evaluator = _evaluator(settings, reports, source, cluster=cluster, scales=scales, board=board)
        changes = Changes(reflectors=reflectors, cluster=cluster, touch=evaluator.touch)
        reclaiming = _reclaiming(settings, transport, reflectors, cluster, board)
        gating = Gating.of(transport, cluster, reclaiming, workloads=reflectors.workloads, pods=reflectors.pods)
        return cls(
            source=source,
            transport=transport,
            reflectors=reflectors,
            cluster=cluster,
            board=board,
            evaluator=evaluator,
            changes=changes,
            reclaiming=reclaiming,
            gating=gating,
            inquiry=_inquiry(transport, board, reclaiming, gating),
        )

    def copies(self) -> dict[str, Reflector[Any]]:
        """All that are kept whatever there is in the cluster, by what they are copies of."""
        shared = [] if self.reclaiming.is_confined else [*self.reclaiming.reflectors.all, self.reclaiming.nodes]
        return {each.resource.qualified_name: each for each in [*self.reflectors.all, *shared]}


def patience(settings: Settings, ticks: int = MISSED_TICKS) -> timedelta:
    """How long some ticks take at worst: their interval, and a read that runs into its time limit.

    As old an evaluation may be that anybody is answered from, or suspended for.
    """
    return ticks * settings.evaluation.interval + settings.prometheus.timeout


def _board(settings: Settings, source: Source) -> Board:
    board = Board(max_age=patience(settings), max_zero_age=1.5 * settings.evaluation.interval + _TICK_JITTER)
    if source is NO_SOURCE:
        board.explain_cold_start(UNCONFIGURED)
    return board


def _evaluator(
    settings: Settings, reports: Reports, source: Source, *, cluster: Cluster, scales: Scales, board: Board
) -> Evaluator:
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
        cluster=cluster,
        scales=scales,
        sampler=Sampler(
            source.signals,
            signals=[signal.signal() for signal in settings.signals],
            rules=rules,
            trust=trust,
            overlap=settings.evaluation.overlap,
        ),
        board=board,
        demands=Demands(queries=_wake_queries(settings), source=source.demand),
        observe=reports.ticked,
        published=reports.published,
    )


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


def _reclaiming(
    settings: Settings, transport: KubeTransport, reflectors: Reflectors, cluster: Cluster, board: Board
) -> Reclaiming:
    return Reclaiming.of(
        transport,
        cluster,
        board,
        settings.reclaim.policy(),
        workloads=reflectors.workloads,
        pods=reflectors.pods,
        namespaces=settings.kubernetes.namespaces,
        max_view_age=settings.kubernetes.max_view_age,
        max_verdict_age=patience(settings),
    )


def _inquiry(transport: KubeTransport, board: Board, reclaiming: Reclaiming, gating: Gating) -> Inquiry:
    """Answers whoever asks. It has the gate look as the leader's does, and could not write if it tried."""
    reading = LeaderApi(transport, is_leader=lambda: False)
    looking, planning = gating.looking(reading), reclaiming.planning
    planning.asking = looking.asking
    return Inquiry(
        planning,
        board,
        gates=gating.onlooker(reading, looking),
        nodes=NodesAim(planning=planning, gate=looking),
    )
