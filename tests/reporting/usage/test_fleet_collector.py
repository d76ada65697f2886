"""What is collected after every evaluation, and by which replica, in virtual time."""

from datetime import timedelta

import msgspec
import pytest
from builders import NOON, WorkloadJson, at
from loops_builders import (
    NAMESPACE,
    QUICK,
    Inhabitant,
    MemoryCluster,
    MemoryStore,
    World,
    deployment,
    gang,
    scalable_workload,
)
from reporting.usage.test_fleet_metrics import values
from scripted_metrics import Metrics as ScriptedMetrics
from scripted_metrics import ScriptedSource, gpu

from scaler.app.settings.model import MetricsSettings
from scaler.kube.discovery import Scale
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import decode
from scaler.kube.objects.nodes import Node
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.policy_budgets import PolicyBudgets
from scaler.reclaim.search.values import NoPlan, NoPlanReason
from scaler.reporting.metrics import Metrics
from scaler.reporting.page.fleet_history import FleetMemory
from scaler.reporting.pending_workloads import PendingWorkloads, QueueNames
from scaler.reporting.usage.fleet_collector import FleetCollector
from scaler.reporting.usage.fleet_metrics import BoundedNames, FleetMetrics
from scaler.reporting.usage.gpu_usage import GpuUsageReader
from scaler.reporting.usage.suspensions import SuspensionWatch
from scaler.reporting.waiting_reasons import ReportedReasons

TICK = timedelta(seconds=30)


class Collected:
    """A cluster with a collector."""

    def __init__(self, *inhabitants: Inhabitant) -> None:
        def source(world: World) -> ScriptedSource:
            pods = [(each.metadata.name, n) for each in world.cluster.pods.items() for n in range(2)]
            series = [each for name, n in pods for each in gpu(f"GPU-{name}-{n}", pod=name)]
            return ScriptedSource(metrics=ScriptedMetrics(series=series), clock=lambda: world.now)

        self.world = World(inhabitants, source)
        self.quota: Snapshot | NotSynced = Snapshot()
        self.is_reporting = True
        self.memory = FleetMemory(interval=TICK)
        self.nodes: MemoryStore[Node] = MemoryStore()
        cluster, queues = self.world.cluster.read(), QueueNames(quota=lambda: self.quota)
        self.reasons = ReportedReasons()
        self.pending = PendingWorkloads(cluster, queues, self.reasons, clock=lambda: self.world.now)
        self.metrics = Metrics()
        fleet = FleetMetrics(
            self.metrics, MetricsSettings().limits(), BoundedNames(9), is_reporting=lambda: self.is_reporting
        )
        self.collector = FleetCollector(
            decisions=self.world.decision_cache,
            cluster=cluster,
            usage=GpuUsageReader(cluster=cluster, judge=self.world.evaluator.judge, queues=queues),
            suspensions=SuspensionWatch(cluster=cluster, queues=queues, metrics=fleet),
            pending=self.pending,
            queues=queues,
            nodes=self.nodes,
            requests=tuple,
            spending=PolicyBudgets(self.world.decision_cache).spending,
            metrics=fleet,
            interval=TICK,
            is_reporting=lambda: self.is_reporting,
            forget=self.reasons.forget,
            memory=self.memory,
        )

    async def at(self, seconds: float) -> None:
        await self.world.tick(at(seconds))
        await self.collector.tick()

    def scale_to_zero(self, name: str) -> None:
        """A Deployment."""
        self.world.cluster.scales.scales[name] = Scale(replicas=0, selector=f"app={name}")
        self.world.cluster.pods.drop(f"{name}-pod")

    def add_pending(self, name: str, *, gpus: int) -> None:
        new = WorkloadJson(name, pods=1, gpus_per_pod=gpus).waiting("").decoded()
        self.world.cluster.workloads.put(new)
        self.pending.heard(Change(new.metadata.key, None, new))

    def values(self, name: str, *of: str) -> dict[tuple[str, ...], float]:
        return values(self.metrics, name, *of)

    @property
    def counted_seconds(self) -> float:
        """GPU time that was counted, of a gang of 2 GPUs."""
        return sum(self.values("gpu_seconds_total", "state").values()) / 2


COUNTED = {
    "from one evaluation to the next": ((0, 30, 90), 90),
    "of a long pause only four intervals": ((0, 3600), 4 * 30),
    "an evaluation that was counted already, not again": ((0, 30, 30), 30),
    "a clock that was set back takes nothing away": ((30, 0), 0),
}


@pytest.mark.parametrize(("instants", "seconds"), COUNTED.values(), ids=COUNTED)
async def test_gpu_time_counts(instants: tuple[float, ...], seconds: float) -> None:
    collected = Collected(gang("train", gpus=2))
    for instant in instants:
        await collected.at(instant)
    assert collected.counted_seconds == seconds


async def test_a_replica_that_is_not_to_report_shows_nothing_and_begins_anew() -> None:
    collected = Collected(gang("train", gpus=2))
    await collected.collector.tick()
    assert collected.values("gpus", "state") == {}, "nothing was evaluated yet"
    await collected.at(0)
    collected.is_reporting = False
    await collected.at(30)
    assert collected.values("gpus", "state") == {}
    collected.is_reporting = True
    await collected.at(60)
    assert (collected.values("gpus", "state"), collected.counted_seconds) == ({("Idle",): 2}, 0)


async def test_every_replica_remembers_what_it_sees_for_its_page() -> None:
    collected = Collected(gang("train", gpus=2))
    await collected.at(0)
    collected.is_reporting = False
    await collected.at(30)
    await collected.at(45)  # not due yet
    await collected.at(60)
    assert [(each.at, each.gpus) for each in collected.memory.samples(None)] == [
        (at(seconds), {"Idle": 2}) for seconds in (0, 30, 60)
    ]
    assert collected.values("gpus", "state") == {}


async def test_what_was_found_before_another_replica_reported_is_not_shown_after_it() -> None:
    collected = Collected(deployment("serve"))
    collected.add_pending("quota", gpus=4)
    refused = NoPlan(gang="demo/quota", why=NoPlanReason.NOT_ENOUGH_IDLE, message="")
    collected.reasons.planned(ReclaimReport(at=NOON, refused=(refused,)))
    await collected.at(0)
    assert collected.values("pending_gangs", "reason") == {("NotEnoughIdle",): 1}
    collected.is_reporting = False
    await collected.at(30)
    collected.is_reporting = True
    collected.scale_to_zero("serve")
    await collected.at(60)
    assert collected.values("pending_gangs", "reason") == {("WaitingForQuota",): 1}
    assert collected.values("suspensions_total") == {}


async def test_what_we_have_deactivated_or_keda_scaled_to_0_is_suspended() -> None:
    noted = {"idlegpu.io/suspended": "{}"}

    def settle(cluster: MemoryCluster) -> None:
        for name in ("still-active", "deactivated-by-others", "ours"):
            cluster.scalable_workloads.put(scalable_workload(name, workload=name, replicas=0))
            workload = WorkloadJson(name, pods=2, gpus_per_pod=4)
            workload = workload if name == "deactivated-by-others" else workload.with_annotations(noted)
            workload = workload.admitted() if name == "still-active" else workload.waiting("").deactivated()
            cluster.workloads.put(workload.decoded())

    collected = Collected(settle, deployment("serve", gpus=2))
    await collected.at(0)
    assert collected.values("suspended_gpus", "workload_namespace", "cluster_queue") == {(NAMESPACE, ""): 8}
    collected.scale_to_zero("serve")
    await collected.at(30)
    assert collected.values("suspended_gpus", "workload_namespace", "cluster_queue") == {(NAMESPACE, ""): 8 + 2}
    assert collected.values("suspensions_total", "workload_namespace", "reason") == {(NAMESPACE, "GPUsIdle"): 1}


async def test_nodes_and_budgets_are_shown() -> None:
    collected = Collected(gang("train", metadata=QUICK | {"suspendedAtOnce": "3"}))
    collected.nodes.put(node("n1", gpus=8, product="NVIDIA-A100"), node("n2", gpus=8, product=""), node("cpu"))
    await collected.at(0)
    assert collected.values("node_gpus", "model") == {("NVIDIA-A100",): 8, ("",): 8}
    name = f"suspendedAtOnce of trigger metadata in {NAMESPACE}"
    assert collected.values("budget_limit_workloads", "budget") == {(name,): 3}
    assert collected.values("budget_headroom_workloads", "budget") == {(name,): 3}


def node(name: str, *, gpus: int = 0, product: str = "") -> Node:
    document = {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product} if product else {}},
        "status": {"allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}},
    }
    return decode(Node, msgspec.json.encode(document))
