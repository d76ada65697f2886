"""What is shown about the cluster at one instant: GPUs, suspended workloads, pending gangs, budgets. Writes nothing.

What is not known now (quota, nodes) is left out; everything else is in it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.admission.provisioning.requests import WORKLOAD_UID_LABEL, request_of
from scaler.decision.cluster_state import ClusterState, ObjectLister
from scaler.decision.decision_cache import Evaluation
from scaler.decision.workloads import suspended_annotation
from scaler.kube.objects.nodes import Node, ProvisioningRequest, allocatable, labels
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced
from scaler.reclaim.budgets.budget import Budget
from scaler.reclaim.candidates import suspension_history_of
from scaler.reporting.pending_workloads import PendingWorkload, PendingWorkloads, QueueNames, requested_gpus
from scaler.reporting.usage.budget_headroom import BudgetHeadroom, headroom
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuUsageReader, yield_to_event_loop
from scaler.reporting.usage.prices import normalized_model
from scaler.reporting.usage.suspensions import QuotaTransfer, ScaledDown, SuspensionEvent, SuspensionWatch

_MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""On nodes. Source: NVIDIA's GPU feature discovery, AMD's node labeller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """The values of one instant."""

    at: datetime
    elapsed: timedelta
    """Since the snapshot before, for which the numbers count; nothing for the first one."""
    usage: FleetUsage
    suspended: Mapping[tuple[str, str], int]
    """GPUs that suspended workloads would hold, by namespace and ClusterQueue."""
    given: Sequence[QuotaTransfer]
    """GPUs that gangs have of them by plans."""
    pending: Sequence[PendingWorkload]
    budgets: Sequence[BudgetHeadroom]
    node_gpus: Mapping[str, int]
    """GPUs that nodes offer, by model."""
    open_requests: Mapping[tuple[str, str], int]
    """ProvisioningRequests of ours, by class and state."""
    happened: Sequence[SuspensionEvent] = ()
    """Since the snapshot before, as far as evaluations show it."""


@dataclass(frozen=True, kw_only=True)
class FleetReader:
    """Reads from copies, a few objects at a time: KEDA gets its answers meanwhile."""

    cluster: ClusterState
    usage: GpuUsageReader
    suspensions: SuspensionWatch
    scaled_down: ScaledDown
    pending: PendingWorkloads
    queues: QueueNames
    nodes: ObjectLister[Node]
    requests: Callable[[], Iterable[ProvisioningRequest]]
    budgets: Sequence[Budget]
    quota: Callable[[], Snapshot | NotSynced]

    async def read(self, evaluation: Evaluation, elapsed: timedelta) -> FleetSnapshot:
        """As of the evaluation, with the objects of now."""
        quota, usage = self.quota(), await self.usage.take(evaluation)
        happened = self.scaled_down.follow(usage)
        return FleetSnapshot(
            at=evaluation.at,
            elapsed=elapsed,
            usage=usage,
            suspended=await self._suspended(),
            given=tuple(self.suspensions.transfers()),
            pending=self.pending.pending(),
            budgets=[] if isinstance(quota, NotSynced) else [*self._headrooms(quota, evaluation.at)],
            node_gpus=await self._node_gpus(),
            open_requests=self._open_requests(),
            happened=happened,
        )

    async def _suspended(self) -> Mapping[tuple[str, str], int]:
        found = Counter(self.scaled_down.gpus())
        for count, scalable in enumerate(self.cluster.scalable_workloads.items()):
            workload = None if scalable.spec.replicas else self.cluster.workload_of(scalable)
            if workload is not None and not workload.spec.active and suspended_annotation(workload) is not None:
                where = scalable.metadata.namespace, self.queues.of(workload)
                found[where] += requested_gpus(workload, self.cluster.gpus)
            await yield_to_event_loop(count)
        return found

    def _headrooms(self, quota: Snapshot, at: datetime) -> Iterable[BudgetHeadroom]:
        if not self.budgets:
            return ()
        history = suspension_history_of(self.cluster, quota)
        return [headroom(budget, history, at) for budget in self.budgets]

    async def _node_gpus(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for count, node in enumerate(self.nodes.items()):
            offered = sum(n for resource, n in allocatable(node).items() if self.cluster.gpus.matches(resource))
            named = labels(node)
            if offered:
                found[normalized_model(next((named[each] for each in _MODEL_LABELS if named.get(each)), ""))] += offered
            await yield_to_event_loop(count)
        return found

    def _open_requests(self) -> Mapping[tuple[str, str], int]:
        ours = (each for each in self.requests() if WORKLOAD_UID_LABEL in each.metadata.labels)
        return Counter((each.spec.provisioning_class_name, str(request_of(each).state)) for each in ours)
