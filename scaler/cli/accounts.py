"""The parts of one process that add up what is shown about the cluster: what is watched for it, and the loop.

Every replica watches, so that whoever leads next knows what has been waiting since when; only one counts.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from scaler.cli.fleet import FleetObserver
from scaler.cli.reclaiming import Reclaiming
from scaler.kube.events import EventRecorder
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import ScalableWorkload
from scaler.kube.reflector import Absent, Reflector
from scaler.kueue.provisioning_requests import WORKLOAD_UID_LABEL, request_of
from scaler.loops.backlog import Backlog
from scaler.loops.board import Board
from scaler.loops.bookkeeping import Bookkeeping, Statement
from scaler.loops.cluster import Cluster
from scaler.loops.evaluation import Evaluator
from scaler.loops.handovers import HandoverWatch
from scaler.loops.leading import Leading
from scaler.loops.provisioning import Requests
from scaler.loops.queue_names import QueueNames
from scaler.loops.quota_view import Blind
from scaler.loops.usage import GpuUsage
from scaler.loops.waits import Admitted, Waits
from scaler.settings.metrics import MetricsSetting
from scaler.telemetry.declaring import show
from scaler.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The copies that are subscribed to. That is to be done before they are filled."""

    workloads: Reflector[Workload]
    scalable_workloads: Reflector[ScalableWorkload]


class Accounts:
    """The loop, and what it is made of."""

    def __init__(
        self,
        metrics: Metrics,
        settings: MetricsSetting,
        *,
        cluster: Cluster,
        board: Board,
        evaluator: Evaluator,
        reclaiming: Reclaiming,
        requests: Requests,
        watched: Watched,
        interval: timedelta,
        is_reporting: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self._requests = requests
        self._reclaiming = reclaiming
        self._fleet = FleetObserver(metrics, settings, is_reporting=is_reporting)
        self._queues = QueueNames(quota=reclaiming.planning.quota)
        self.leading: Leading | None = None
        """The leader's loop over ScalableWorkloads, where this process may lead."""
        self.recorder: EventRecorder | None = None
        self._lost_before = 0
        handovers = HandoverWatch(
            cluster=cluster, queues=self._queues, cohort_of=self._cohort_of, observe=self._fleet.happened
        )
        self._handovers = handovers
        waits = Waits(cluster, admitted=self._admitted)
        self.backlog = Backlog(waits=waits, queues=self._queues)
        self.loop = Bookkeeping(
            cluster=cluster,
            board=board,
            usage=GpuUsage(cluster=cluster, evaluator=evaluator, queues=self._queues),
            handovers=handovers,
            backlog=self.backlog,
            nodes=reclaiming.nodes,
            budgets=reclaiming.planning.policy.budgets,
            quota=reclaiming.planning.quota,
            interval=interval,
            is_reporting=is_reporting,
            observe=self._stated,
        )
        watched.workloads.subscribe(handovers.workload_heard)
        watched.workloads.subscribe(waits.heard)
        watched.scalable_workloads.subscribe(handovers.scalable_heard)

    def _admitted(self, admitted: Admitted) -> None:
        self._handovers.admitted(admitted)
        self._fleet.admitted(admitted, self._queues.of(admitted.workload))

    def _cohort_of(self, cluster_queue: str) -> str:
        """The name of its tree; its own where trees are not seen."""
        snapshot = self._reclaiming.planning.quota()
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
        if self.leading is not None:
            keys = {("Waiting",): self.leading.waiting, ("Failing",): self.leading.failing}
            show(self._metrics.reconcile_queue, keys)
        if self.recorder is not None:
            lost = self.recorder.dropped + self.recorder.failed
            self._metrics.events_lost.inc(lost - self._lost_before)
            self._lost_before = lost


def show_ages(metrics: Metrics, board: Board, copies: Mapping[str, Reflector[Any]]) -> None:
    """Let the ages of the board and of the copies be looked at whenever somebody scrapes."""
    metrics.board_age.set_function(lambda: board.age.total_seconds() if board.age is not None else math.nan)
    for name, copy in copies.items():
        metrics.copy_age.labels(name).set_function(partial(_age, copy))


def _age(copy: Reflector[Any]) -> float:
    """A kind that is not installed has no objects, and that is known."""
    return 0.0 if isinstance(copy.state, Absent) else copy.age
