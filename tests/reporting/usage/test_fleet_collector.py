"""What is collected after every evaluation, and by which replica, in virtual time."""

from datetime import timedelta

import msgspec
from builders import NOON, WorkloadJson, at
from loops_builders import (
    NAMESPACE,
    Inhabitant,
    MemoryCluster,
    MemoryStore,
    World,
    deployment,
    gang,
    scalable_workload,
)
from scripted_metrics import Metrics as ScriptedMetrics
from scripted_metrics import ScriptedSource, gpu

from scaler.app.settings.model import MetricsSettings
from scaler.kube.discovery import Scale
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import decode
from scaler.kube.objects.nodes import Node
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced
from scaler.reclaim.budgets.budget import Budget, Limit
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.search.values import NoPlan, NoPlanReason
from scaler.reporting.metrics import Metrics
from scaler.reporting.pending_workloads import PendingWorkloads, QueueNames
from scaler.reporting.usage.fleet_metrics import FleetCollector, FleetMetrics
from scaler.reporting.usage.fleet_snapshot import FleetReader, FleetSnapshot
from scaler.reporting.usage.gpu_states import GpuState
from scaler.reporting.usage.gpu_usage import GpuUsageReader
from scaler.reporting.usage.suspensions import ScaledDown, Suspended, SuspensionWatch
from scaler.reporting.waiting_reasons import ReportedReasons

TICK = timedelta(seconds=30)


class Office:
    """A cluster with a collector."""

    def __init__(self, *inhabitants: Inhabitant, budgets: tuple[Budget, ...] = ()) -> None:
        def source(world: World) -> ScriptedSource:
            pods = [(each.metadata.name, n) for each in world.cluster.pods.items() for n in range(2)]
            series = [each for name, n in pods for each in gpu(f"GPU-{name}-{n}", pod=name)]
            return ScriptedSource(metrics=ScriptedMetrics(series=series), clock=lambda: world.now)

        self.world = World(inhabitants, source)
        self.quota: Snapshot | NotSynced = Snapshot()
        self.is_reporting = True
        self.nodes: MemoryStore[Node] = MemoryStore()
        cluster, queues = self.world.cluster.read(), QueueNames(quota=lambda: self.quota)
        self.reasons = ReportedReasons()
        self.pending = PendingWorkloads(cluster, queues, self.reasons, clock=lambda: self.world.now)
        self.metrics = Metrics()
        self.books = FleetCollector(
            board=self.world.board,
            reader=FleetReader(
                cluster=cluster,
                usage=GpuUsageReader(cluster=cluster, evaluator=self.world.evaluator, queues=queues),
                suspensions=SuspensionWatch(cluster=cluster, queues=queues),
                scaled_down=ScaledDown(),
                pending=self.pending,
                queues=queues,
                nodes=self.nodes,
                requests=tuple,
                budgets=budgets,
                quota=lambda: self.quota,
            ),
            metrics=FleetMetrics(self.metrics, MetricsSettings(), is_reporting=lambda: self.is_reporting),
            interval=TICK,
            is_reporting=lambda: self.is_reporting,
            forget=self.reasons.forget,
        )

    async def at(self, seconds: float) -> FleetSnapshot | None:
        await self.world.tick(at(seconds))
        return await self.books.tick()

    def sleeps(self, name: str) -> None:
        """A Deployment."""
        self.world.cluster.scales.scales[name] = Scale(replicas=0, observed_replicas=0, selector=f"app={name}")
        self.world.cluster.pods.drop(f"{name}-pod")

    def waits_for(self, name: str, *, gpus: int) -> None:
        new = WorkloadJson(name, pods=1, gpus_per_pod=gpus).waiting("").decoded()
        self.world.cluster.workloads.put(new)
        self.pending.heard(Change(new.metadata.key, None, new))


async def test_gpu_time_counts_from_one_snapshot_to_the_next() -> None:
    office = Office(gang("train"))
    elapsed = [snapshot.elapsed for seconds in (0, 30, 90) if (snapshot := await office.at(seconds))]
    assert elapsed == [timedelta(0), timedelta(seconds=30), timedelta(seconds=60)]


async def test_of_a_long_pause_only_four_intervals_count() -> None:
    office = Office(gang("train"))
    await office.at(0)
    snapshot = await office.at(3600)
    assert snapshot is not None
    assert snapshot.elapsed == 4 * TICK


async def test_an_evaluation_that_was_stated_already_counts_no_time() -> None:
    office = Office(gang("train"))
    await office.at(0)
    await office.at(30)
    again = await office.books.tick()
    assert again is not None
    assert again.elapsed == timedelta(0)


async def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    office = Office(gang("train"))
    await office.at(30)
    snapshot = await office.at(0)
    assert snapshot is not None
    assert snapshot.elapsed == timedelta(0)


async def test_who_is_not_to_report_states_nothing_and_begins_anew() -> None:
    office = Office(gang("train"))
    await office.at(0)
    office.is_reporting = False
    assert await office.at(30) is None
    office.is_reporting = True
    snapshot = await office.at(60)
    assert snapshot is not None
    assert snapshot.elapsed == timedelta(0)


async def test_what_was_found_before_it_was_somebody_elses_turn_is_not_stated_after_it() -> None:
    office = Office(deployment("serve"))
    office.waits_for("quota", gpus=4)
    office.reasons.planned(
        ReclaimReport(at=NOON, refused=(NoPlan(gang="demo/quota", why=NoPlanReason.NOT_ENOUGH_IDLE, message=""),))
    )
    before = await office.at(0)
    assert before is not None
    assert [each.reason for each in before.pending] == ["NotEnoughIdle"]
    office.is_reporting = False
    await office.at(30)
    office.is_reporting = True
    office.sleeps("serve")
    after = await office.at(60)
    assert after is not None
    assert [each.reason for each in after.pending] == ["WaitingForQuota"]
    assert not after.happened


async def test_a_deployment_that_sleeps_is_suspended_like_a_gang() -> None:
    office = Office(deployment("serve", gpus=2))
    await office.at(0)
    office.sleeps("serve")
    snapshot = await office.at(30)
    assert snapshot is not None
    assert [type(each) for each in snapshot.happened] == [Suspended]
    assert snapshot.suspended == {(NAMESPACE, ""): 2}


async def test_only_what_we_have_deactivated_is_suspended() -> None:
    noted = {"idlegpu.io/suspended": "{}"}

    def settle(cluster: MemoryCluster) -> None:
        whole = WorkloadJson("still-active", pods=1, gpus_per_pod=4)
        cluster.workloads.put(whole.with_annotations(noted).admitted().decoded())
        cluster.workloads.put(WorkloadJson("somebody-elses", pods=1, gpus_per_pod=4).deactivated().decoded())
        for name in ("still-active", "somebody-elses"):
            cluster.scalable_workloads.put(scalable_workload(name, workload=name, replicas=0))

    snapshot = await Office(settle).at(0)
    assert snapshot is not None
    assert snapshot.suspended == {}


async def test_nothing_is_stated_before_the_first_evaluation() -> None:
    office = Office(gang("train"))
    assert await office.books.tick() is None


async def test_all_of_the_cluster_is_in_one_snapshot() -> None:
    def settle(cluster: MemoryCluster) -> None:
        noted = WorkloadJson("asleep-w", pods=2, gpus_per_pod=4).with_annotations({"idlegpu.io/suspended": "{}"})
        cluster.workloads.put(noted.waiting("").deactivated().decoded())
        cluster.scalable_workloads.put(scalable_workload("asleep", workload="asleep-w", replicas=0))

    office = Office(gang("train", gpus=2), settle, budgets=(Budget(name="few", at_once=Limit(count=3)),))
    office.nodes.put(node("n1", gpus=8, product="NVIDIA-A100"), node("n2", gpus=8, product=""), node("cpu"))
    snapshot = await office.at(0)
    assert snapshot is not None
    assert sum(n for (_, found), n in snapshot.usage.gpus.items() if found.state is GpuState.IDLE) == 2
    assert snapshot.suspended == {(NAMESPACE, ""): 8}
    assert snapshot.node_gpus == {"NVIDIA-A100": 8, "": 8}
    [few] = snapshot.budgets
    assert (few.budget, few.is_open, few.rooms[0].most) == ("few", True, 3)


async def test_what_cannot_be_seen_is_left_out_and_the_rest_is_stated() -> None:
    office = Office(gang("train"), budgets=(Budget(name="few", at_once=Limit(count=3)),))
    office.quota = NotSynced("Kueue is not installed")
    snapshot = await office.at(0)
    assert snapshot is not None
    assert snapshot.budgets == []
    assert snapshot.usage.gpus


def node(name: str, *, gpus: int = 0, product: str = "") -> Node:
    document = {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product} if product else {}},
        "status": {"allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}},
    }
    return decode(Node, msgspec.json.encode(document))
