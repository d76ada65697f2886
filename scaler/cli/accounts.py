"""The parts of one process that add up what is shown about the cluster: what is watched for it, and the loop.

Every replica watches, so that whoever leads next knows what has been waiting since when; only one counts.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from scaler.cli.fleet import FleetObserver
from scaler.cli.leadership import Leadership
from scaler.cli.parts import Parts
from scaler.kube.reflector import Reflector
from scaler.kueue.provisioning_requests import WORKLOAD_UID_LABEL, request_of
from scaler.loops.backlog import Backlog
from scaler.loops.board import Board
from scaler.loops.bookkeeping import Bookkeeping, Statement
from scaler.loops.cluster import silence
from scaler.loops.handovers import HandoverWatch
from scaler.loops.queue_names import QueueNames
from scaler.loops.quota_view import Blind
from scaler.loops.usage import GpuUsage
from scaler.loops.waits import Admitted, Waits
from scaler.settings.model import Settings
from scaler.telemetry.declaring import show
from scaler.telemetry.metrics import Metrics


class Accounts:
    """The loop, and what it is made of. Subscribes, so it is to be made before the copies are filled."""

    def __init__(self, metrics: Metrics, settings: Settings, parts: Parts, leadership: Leadership) -> None:
        self._metrics = metrics
        self._leadership = leadership
        self._requests = parts.gating.requests
        self._planning = planning = parts.reclaiming.planning
        self._fleet = FleetObserver(metrics, settings.metrics, is_reporting=leadership.is_reporting)
        self._queues = QueueNames(quota=planning.quota)
        self._lost_before = 0
        handovers = HandoverWatch(
            cluster=parts.cluster, queues=self._queues, cohort_of=self._cohort_of, observe=self._fleet.happened
        )
        self._handovers = handovers
        waits = Waits(parts.cluster, admitted=self._admitted)
        self.backlog = Backlog(waits=waits, queues=self._queues)
        self.loop = Bookkeeping(
            cluster=parts.cluster,
            board=parts.board,
            usage=GpuUsage(cluster=parts.cluster, evaluator=parts.evaluator, queues=self._queues),
            handovers=handovers,
            backlog=self.backlog,
            nodes=parts.reclaiming.nodes,
            budgets=planning.policy.budgets,
            quota=planning.quota,
            interval=settings.evaluation.interval,
            is_reporting=leadership.is_reporting,
            observe=self._stated,
        )
        parts.reflectors.workloads.subscribe(handovers.workload_heard)
        parts.reflectors.workloads.subscribe(waits.heard)
        parts.reflectors.scalable_workloads.subscribe(handovers.scalable_heard)

    def _admitted(self, admitted: Admitted) -> None:
        self._handovers.admitted(admitted)
        self._fleet.admitted(admitted, self._queues.of(admitted.workload))

    def _cohort_of(self, cluster_queue: str) -> str:
        """The name of its tree; its own where trees are not seen."""
        snapshot = self._planning.quota()
        tree = None if isinstance(snapshot, Blind) else snapshot.tree_of(cluster_queue)
        return cluster_queue if tree is None else tree.root.name

    def _stated(self, statement: Statement | None) -> None:
        self._fleet.stated(statement)
        if statement is not None:
            self._show_requests()
            self._show_upkeep()

    def _show_requests(self) -> None:
        ours = [each for each in self._requests.items() if WORKLOAD_UID_LABEL in each.metadata.labels]
        states = Counter((each.spec.provisioning_class_name, str(request_of(each).state)) for each in ours)
        show(self._metrics.open_requests, states)

    def _show_upkeep(self) -> None:
        loops, recorder = self._leadership.loops, self._leadership.recorder
        if loops is not None:
            keys = {("Waiting",): loops.leading.waiting, ("Failing",): loops.leading.failing}
            show(self._metrics.reconcile_queue, keys)
        if recorder is not None:
            lost = recorder.dropped + recorder.failed
            self._metrics.events_lost.inc(lost - self._lost_before)
            self._lost_before = lost


def show_ages(metrics: Metrics, board: Board, copies: Mapping[str, Reflector[Any]]) -> None:
    """Let the ages of the board and of the copies be looked at whenever somebody scrapes."""
    metrics.board_age.set_function(lambda: board.age.total_seconds() if board.age is not None else math.nan)
    for name, copy in copies.items():
        metrics.copy_age.labels(name).set_function(partial(silence, copy))
