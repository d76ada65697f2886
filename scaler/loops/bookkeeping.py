"""Adds up, after every evaluation, what is to be shown about the cluster. Writes nothing anywhere.

Laws:

* Only one replica counts: who is not to report takes no statement, and begins anew when it is its turn.
* GPU time is what was seen × the time since the statement before. Where that is long ago nobody knows what was in
  between, and only a few intervals are counted.
* What cannot be seen now (quota, nodes) is left out of the statement; everything else is in it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from scaler.core.budgets import Budget
from scaler.core.handovers import Flow
from scaler.core.headroom import Headroom, headroom
from scaler.core.prices import spelled
from scaler.core.quota.snapshot import Snapshot
from scaler.kube.nodes import Node, allocatable, labels
from scaler.kueue.workloads import cause_of
from scaler.loops.backlog import Backlog, Pending
from scaler.loops.board import Board, Evaluation
from scaler.loops.cluster import Cluster, Store
from scaler.loops.handovers import Event, HandoverWatch
from scaler.loops.quota_view import Blind
from scaler.loops.scaled_down import ScaledDown
from scaler.loops.spending import spending_of
from scaler.loops.usage import GpuUsage, Usage, give_way
from scaler.loops.waits import gpus_asked

log = structlog.get_logger(__name__)

_LONGEST_GAP = 4
"""Intervals that are counted at most between two statements."""
_MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""On nodes. Source: NVIDIA's GPU feature discovery, AMD's node labeller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What is shown about the cluster at one instant."""

    at: datetime
    elapsed: timedelta
    """For which the numbers count; nothing for the first one."""
    usage: Usage
    suspended: Mapping[tuple[str, str], int]
    """GPUs that suspended workloads would hold, by namespace and ClusterQueue."""
    given: Mapping[Flow, int]
    """GPUs that gangs have of them."""
    pending: Sequence[Pending]
    budgets: Sequence[Headroom]
    node_gpus: Mapping[str, int]
    """GPUs that nodes offer, by model."""
    happened: Sequence[Event] = ()
    """What evaluations show to have happened since the statement before."""


@dataclass(kw_only=True)
class Bookkeeping:
    """The loop. `observe` is told of every statement, and of None where this replica is not to report."""

    cluster: Cluster
    board: Board
    usage: GpuUsage
    handovers: HandoverWatch
    backlog: Backlog
    nodes: Store[Node]
    budgets: Sequence[Budget]
    quota: Callable[[], Snapshot | Blind]
    interval: timedelta
    is_reporting: Callable[[], bool]
    observe: Callable[[Statement | None], None] = lambda _: None
    _scaled_down: ScaledDown = field(default_factory=ScaledDown, init=False)
    _before: datetime | None = field(default=None, init=False)
    """Instant of the statement before."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def wake(self) -> None:
        """There is another evaluation."""
        self._wake.set()

    async def run(self) -> None:
        """After every evaluation, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.tick()
            except Exception:
                log.exception("bookkeeping broke")

    async def tick(self) -> Statement | None:
        """State what there is now; None where this replica is not to report, or nothing was evaluated yet."""
        evaluation = self.board.evaluation
        if evaluation is None or not self.is_reporting():
            self._before = None
            self.backlog.forget()
            self._scaled_down.forget()
            self.observe(None)
            return None
        statement = await self._statement(evaluation)
        self._before = evaluation.at
        self.observe(statement)
        return statement

    async def _statement(self, evaluation: Evaluation) -> Statement:
        snapshot, usage = self.quota(), await self.usage.take(evaluation)
        happened = self._scaled_down.follow(usage)
        return Statement(
            at=evaluation.at,
            elapsed=self._elapsed(evaluation.at),
            usage=usage,
            suspended=await self._suspended(),
            given=self.handovers.gpus_in_use(),
            pending=tuple(self.backlog.take()),
            budgets=[] if isinstance(snapshot, Blind) else [*self._headrooms(snapshot, evaluation.at)],
            node_gpus=await self._node_gpus(),
            happened=happened,
        )

    def _elapsed(self, at: datetime) -> timedelta:
        if self._before is None or at <= self._before:
            return timedelta(0)
        return min(at - self._before, _LONGEST_GAP * self.interval)

    async def _suspended(self) -> Mapping[tuple[str, str], int]:
        found = Counter(self._scaled_down.gpus())
        for count, scalable in enumerate(self.cluster.scalable_workloads.items()):
            workload = None if scalable.spec.replicas else self.cluster.workload_of(scalable)
            if workload is not None and not workload.spec.active and cause_of(workload) is not None:
                place = scalable.metadata.namespace, self.backlog.queues.of(workload)
                found[place] += gpus_asked(workload, self.cluster.gpus)
            await give_way(count)
        return found

    def _headrooms(self, snapshot: Snapshot, at: datetime) -> Iterable[Headroom]:
        if not self.budgets:
            return ()
        spending = spending_of(self.cluster, snapshot)
        return [headroom(budget, spending, at) for budget in self.budgets]

    async def _node_gpus(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for count, node in enumerate(self.nodes.items()):
            offered = sum(n for resource, n in allocatable(node).items() if self.cluster.gpus.matches(resource))
            named = labels(node)
            if offered:
                found[spelled(next((named[each] for each in _MODEL_LABELS if named.get(each)), ""))] += offered
            await give_way(count)
        return found
