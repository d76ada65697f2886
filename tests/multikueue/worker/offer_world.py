"""A worker cluster in memory that a hub asks about its Workloads.

    world = OfferWorld([cluster_queue("a", gpus=8)], [holding("runs", gpus=4)])
    world.quota.idle("runs")
    await world.fit(asks(gpus=8))       # Reclaim, of team/runs

It is noon. What the hub dispatches arrives as a remote copy.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from quota_builders import NAMESPACE, NOW
from views_builders import QuotaCluster

from scaler.admission.remote_copies import NominatedCopies
from scaler.kube.objects.core import ObjectMeta, decode
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, PodSet, Workload, WorkloadSpec
from scaler.kube.objects.multikueue import OfferedWorkload, OfferRequest
from scaler.multikueue.worker.fit import FitAnswer
from scaler.multikueue.worker.fit_answers import FitAnswers, entry_key
from scaler.quota.from_objects.workloads import quota_workload_of
from scaler.quota.model import QuotaClusterQueue, QuotaWorkload
from scaler.reclaim.planner import PlanningSnapshot
from scaler.reclaim.targets import NodeShortage


def pod_set(*, pods: int = 1, gpus: int | str = 1, name: str = "main", **spec: Any) -> PodSet:
    amounts = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "resources": {"requests": amounts, "limits": amounts}}
    document = {"name": name, "count": pods, "template": {"spec": {"containers": [container], **spec}}}
    return decode(PodSet, msgspec.json.encode(document))


def asks(
    name: str = "gang",
    *,
    pods: int = 1,
    gpus: int | str = 1,
    queue: str = "a",
    priority: int = 0,
    pod_sets: Sequence[PodSet] | None = None,
    **fields: Any,
) -> OfferedWorkload:
    """An entry of the spec that asks how a Workload with so many pods of so many GPUs would fit."""
    given = (pod_set(pods=pods, gpus=gpus),) if pod_sets is None else tuple(pod_sets)
    request = OfferRequest(queue_name=queue, priority=priority, created_at=NOW, pod_sets=given)
    return OfferedWorkload(namespace=NAMESPACE, name=name, uid=f"hub-{name}", request=request, **fields)


def remote_copy(entry: OfferedWorkload, *, at: datetime = NOW) -> Workload:
    """What Kueue of the hub creates here: with a uid and an age of its own."""
    request = entry.request or OfferRequest()
    return Workload(
        metadata=ObjectMeta(
            namespace=entry.namespace,
            name=entry.name,
            uid=entry.uid,
            generation=1,
            creation_timestamp=at,
            labels={MULTIKUEUE_ORIGIN: "multikueue"},
        ),
        spec=WorkloadSpec(queue_name=request.queue_name, priority=request.priority, pod_sets=request.pod_sets),
    )


class OfferWorld:
    """`fields` as in QuotaCluster."""

    def __init__(
        self, queues: Sequence[QuotaClusterQueue], workloads: Iterable[QuotaWorkload] = (), **fields: Any
    ) -> None:
        self.quota = QuotaCluster(queues, workloads, **fields)
        self.nodes = NodeShortage(planning=self.quota.planning)
        self.fits = FitAnswers(planning=self.quota.planning, nodes=self.nodes)

    async def look(self, at: datetime = NOW) -> PlanningSnapshot:
        state = await self.quota.planning.look(at)
        assert isinstance(state, PlanningSnapshot), state
        return state

    async def fit(self, entry: OfferedWorkload, at: datetime = NOW) -> FitAnswer:
        """The answer, computed on the present state."""
        return (await self.fits.answers(await self.look(at), [entry]))[entry_key(entry)]

    def nominates(self, entry: OfferedWorkload) -> None:
        """The hub lets idle workloads be suspended for its copy."""
        self.quota.planning.nominations = lambda: NominatedCopies(reclaim=frozenset({entry.key}))

    def arrives(self, entry: OfferedWorkload, *, at: datetime = NOW) -> QuotaWorkload:
        """The hub has created its copy here, and has not said yet whether anything may be suspended for it."""
        copy = remote_copy(entry, at=at)
        self.quota.cluster.workloads.put(copy)
        found = quota_workload_of(copy)
        assert found is not None
        self.quota.snapshot.put(found)
        return found
