"""Collects what is shown about the cluster after every evaluation: GPUs, suspensions, pending gangs, budgets.

Laws:

* Only one replica counts: one that is not to report shows nothing, and begins anew when it is its turn. It looks now
  and then all the same, for the memory of its page.
* GPU time is what was observed × the time since the evaluation before. Where that is long ago it is not known what was
  in between, and only a few intervals are counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from scaler.admission.provisioning.requests import WORKLOAD_UID_LABEL, request_of
from scaler.clock import every
from scaler.decision.decision_cache import DecisionCache
from scaler.kube.objects.nodes import Node, ProvisioningRequest, allocatable, labels
from scaler.reclaim.budget import Spending
from scaler.reporting.pending_workloads import PendingWorkloads, QueueNames, requested_gpus
from scaler.reporting.usage.fleet_metrics import FleetMetrics
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuUsageReader, in_steps
from scaler.reporting.usage.prices import normalized_model
from scaler.reporting.usage.suspensions import ScaledDown, SuspensionWatch
from scaler.targets.cluster_state import ClusterState, ObjectLister
from scaler.targets.workloads import suspended_annotation

_LONGEST_GAP = 4
"""Intervals that are counted at most between two evaluations."""
_MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""The labels of nodes. Source: NVIDIA's GPU feature discovery, AMD's node labeller."""


class UsageMemory(Protocol):
    """What is remembered for the page."""

    def is_due(self, at: datetime) -> bool: ...

    def add(self, usage: FleetUsage, suspended: Mapping[tuple[str, str], int]) -> None: ...


@dataclass(kw_only=True)
class FleetCollector:
    """The controller. `observe` is called after each evaluation that was shown."""

    name: ClassVar[str] = "fleet metrics"

    decisions: DecisionCache
    cluster: ClusterState
    usage: GpuUsageReader
    suspensions: SuspensionWatch
    pending: PendingWorkloads
    queues: QueueNames
    nodes: ObjectLister[Node]
    requests: Callable[[], Iterable[ProvisioningRequest]]
    spending: Callable[[datetime], Spending]
    metrics: FleetMetrics
    interval: timedelta
    is_reporting: Callable[[], bool]
    forget: Callable[[], None] = lambda: None
    """What other replicas have reported is not known to this one any more."""
    memory: UsageMemory | None = None
    observe: Callable[[], None] = lambda: None
    _scaled_down: ScaledDown = field(default_factory=ScaledDown, init=False)
    _before: datetime | None = field(default=None, init=False)
    """Instant of the evaluation before."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        await every(None, lambda _: self.tick(), self._wake, name=self.name)

    async def tick(self) -> None:
        """Show what there is now; nothing where this replica is not to report, or nothing was evaluated yet."""
        evaluation = self.decisions.evaluation
        if evaluation is None or not self.is_reporting():
            self._before = None
            self.forget()
            self._scaled_down.forget()
            self.metrics.clear()
            if evaluation is not None and self.memory is not None and self.memory.is_due(evaluation.at):
                self.memory.add(await self.usage.take(evaluation), await self._suspended())
            return
        metrics, at = self.metrics, evaluation.at
        usage, node_gpus = await self.usage.take(evaluation), await self._node_gpus()
        suspended, elapsed = await self._suspended(), self._elapsed(at)
        # Nothing is awaited from here on: a scrape sees all of it, or nothing.
        self._before = at
        metrics.show_usage(usage, elapsed)
        self._scaled_down.count(usage, metrics)
        suspended.update(self._scaled_down.gpus())
        if self.memory is not None:
            self.memory.add(usage, suspended)
        metrics.show_suspended(suspended, [*self.suspensions.transfers()], elapsed)
        metrics.show_pending(self.pending.pending(), at)
        metrics.show_budgets(self.spending(at), at)
        ours = (each for each in self.requests() if WORKLOAD_UID_LABEL in each.metadata.labels)
        states = Counter((each.spec.provisioning_class_name, str(request_of(each).state)) for each in ours)
        metrics.show_nodes(node_gpus, states)
        self.observe()

    def _elapsed(self, at: datetime) -> timedelta:
        if self._before is None or at <= self._before:
            return timedelta(0)
        return min(at - self._before, _LONGEST_GAP * self.interval)

    async def _suspended(self) -> Counter[tuple[str, str]]:
        """GPUs that suspended ScalableWorkloads would hold, by namespace and ClusterQueue."""
        found: Counter[tuple[str, str]] = Counter()
        async for scalable in in_steps(self.cluster.scalable_workloads.items()):
            workload = None if scalable.spec.replicas else self.cluster.workload_of(scalable)
            if (
                workload is not None
                and not workload.spec.active
                and suspended_annotation(workload.metadata) is not None
            ):
                where = scalable.metadata.namespace, self.queues.of(workload)
                found[where] += requested_gpus(workload, self.cluster.gpus)
        return found

    async def _node_gpus(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        async for node in in_steps(self.nodes.items()):
            offered = sum(n for resource, n in allocatable(node).items() if self.cluster.gpus.matches(resource))
            named = labels(node)
            if offered:
                found[normalized_model(next((named[each] for each in _MODEL_LABELS if named.get(each)), ""))] += offered
        return found
