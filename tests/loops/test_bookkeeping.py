"""What is stated after every evaluation, and by whom, in virtual time."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
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
from scripted_metrics import Metrics, ScriptedSource, gpu

from scaler.core.budgets import Budget, Limit
from scaler.core.gate_values import Answer, Because, State
from scaler.core.grants import GangState, Grant
from scaler.core.quota.snapshot import Snapshot
from scaler.core.reclaim import NoPlan, Plan, Why
from scaler.core.usage import State as GpuState
from scaler.kube.copies import Change
from scaler.kube.decoding import decode
from scaler.kube.nodes import Node
from scaler.kube.scale import Scale
from scaler.loops.backlog import Backlog, Pending, Stage
from scaler.loops.bookkeeping import Bookkeeping, Statement
from scaler.loops.gate import GateReport
from scaler.loops.gate_cases import Standing
from scaler.loops.handovers import HandoverWatch, Suspended
from scaler.loops.pressure import Outlook
from scaler.loops.queue_names import QueueNames
from scaler.loops.quota_view import Blind
from scaler.loops.standing_plans import StandingPlan
from scaler.loops.usage import GpuUsage
from scaler.loops.waits import Waits

TICK = timedelta(seconds=30)


class Office:
    """A world with a bookkeeper in it."""

    def __init__(self, *inhabitants: Inhabitant, budgets: tuple[Budget, ...] = ()) -> None:
        def source(world: World) -> ScriptedSource:
            pods = [(each.metadata.name, n) for each in world.cluster.pods.items() for n in range(2)]
            series = [each for name, n in pods for each in gpu(f"GPU-{name}-{n}", pod=name)]
            return ScriptedSource(metrics=Metrics(series=series), clock=lambda: world.now)

        self.world = World(inhabitants, source)
        self.quota: Snapshot | Blind = Snapshot()
        self.is_reporting = True
        self.stated: list[Statement | None] = []
        self.nodes: MemoryStore[Node] = MemoryStore()
        cluster, queues = self.world.cluster.read(), QueueNames(quota=lambda: self.quota)
        self.waits = Waits(cluster, clock=lambda: self.world.now)
        self.backlog = Backlog(waits=self.waits, queues=queues)
        self.books = Bookkeeping(
            cluster=cluster,
            board=self.world.board,
            usage=GpuUsage(cluster=cluster, evaluator=self.world.evaluator, queues=queues),
            handovers=HandoverWatch(cluster=cluster, queues=queues, cohort_of=lambda name: name),
            backlog=self.backlog,
            nodes=self.nodes,
            budgets=budgets,
            quota=lambda: self.quota,
            interval=TICK,
            is_reporting=lambda: self.is_reporting,
            observe=self.stated.append,
        )

    async def at(self, seconds: float) -> Statement | None:
        await self.world.tick(at(seconds))
        return await self.books.tick()

    def sleeps(self, name: str) -> None:
        """A Deployment."""
        self.world.cluster.scales.scales[name] = Scale(replicas=0, observed_replicas=0, selector=f"app={name}")
        self.world.cluster.pods.drop(f"{name}-pod")

    def waits_for(self, name: str, *, gpus: int, has_quota: bool = False) -> None:
        json = WorkloadJson(name, pods=1, gpus_per_pod=gpus)
        new = (json.reserved() if has_quota else json.waiting("")).decoded()
        self.world.cluster.workloads.put(new)
        self.waits.heard(Change(new.metadata.key, None, new))


async def test_gpu_time_counts_from_one_statement_to_the_next() -> None:
    office = Office(gang("train"))
    elapsed = [statement.elapsed for seconds in (0, 30, 90) if (statement := await office.at(seconds))]
    assert elapsed == [timedelta(0), timedelta(seconds=30), timedelta(seconds=60)]


async def test_of_a_long_pause_only_four_intervals_count() -> None:
    office = Office(gang("train"))
    await office.at(0)
    statement = await office.at(3600)
    assert statement is not None
    assert statement.elapsed == 4 * TICK


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
    statement = await office.at(0)
    assert statement is not None
    assert statement.elapsed == timedelta(0)


async def test_who_is_not_to_report_states_nothing_and_begins_anew() -> None:
    office = Office(gang("train"))
    await office.at(0)
    office.is_reporting = False
    assert await office.at(30) is None
    office.is_reporting = True
    statement = await office.at(60)
    assert office.stated[1] is None
    assert statement is not None
    assert statement.elapsed == timedelta(0)


async def test_what_was_found_before_it_was_somebody_elses_turn_is_not_stated_after_it() -> None:
    office = Office(deployment("serve"))
    office.waits_for("quota", gpus=4)
    office.backlog.planned(Outlook(at=NOON, refused=(no_plan("demo/quota", Why.NOT_ENOUGH_IDLE),)))
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
    statement = await office.at(30)
    assert statement is not None
    assert [type(each) for each in statement.happened] == [Suspended]
    assert statement.suspended == {(NAMESPACE, ""): 2}


async def test_only_what_we_have_deactivated_is_suspended() -> None:
    noted = {"idlegpu.io/suspended": "{}"}

    def settle(cluster: MemoryCluster) -> None:
        whole = WorkloadJson("still-active", pods=1, gpus_per_pod=4)
        cluster.workloads.put(whole.with_annotations(noted).admitted().decoded())
        cluster.workloads.put(WorkloadJson("somebody-elses", pods=1, gpus_per_pod=4).deactivated().decoded())
        for name in ("still-active", "somebody-elses"):
            cluster.scalable_workloads.put(scalable_workload(name, workload=name, replicas=0))

    statement = await Office(settle).at(0)
    assert statement is not None
    assert statement.suspended == {}


async def test_nothing_is_stated_before_the_first_evaluation() -> None:
    office = Office(gang("train"))
    assert await office.books.tick() is None


async def test_all_of_the_cluster_is_in_one_statement() -> None:
    def settle(cluster: MemoryCluster) -> None:
        noted = WorkloadJson("asleep-w", pods=2, gpus_per_pod=4).with_annotations({"idlegpu.io/suspended": "{}"})
        cluster.workloads.put(noted.waiting("").deactivated().decoded())
        cluster.scalable_workloads.put(scalable_workload("asleep", workload="asleep-w", replicas=0))

    office = Office(gang("train", gpus=2), settle, budgets=(Budget(name="few", at_once=Limit(count=3)),))
    office.nodes.put(node("n1", gpus=8, product="NVIDIA-A100"), node("n2", gpus=8, product=""), node("cpu"))
    statement = await office.at(0)
    assert statement is not None
    assert sum(n for (_, found), n in statement.usage.gpus.items() if found.state is GpuState.IDLE) == 2
    assert statement.suspended == {(NAMESPACE, ""): 8}
    assert statement.node_gpus == {"NVIDIA-A100": 8, "": 8}
    [few] = statement.budgets
    assert (few.budget, few.is_open, few.rooms[0].most) == ("few", True, 3)


async def test_what_cannot_be_seen_is_left_out_and_the_rest_is_stated() -> None:
    office = Office(gang("train"), budgets=(Budget(name="few", at_once=Limit(count=3)),))
    office.quota = Blind("Kueue is not installed")
    statement = await office.at(0)
    assert statement is not None
    assert statement.budgets == []
    assert statement.usage.gpus


def node(name: str, *, gpus: int = 0, product: str = "") -> Node:
    document = {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product} if product else {}},
        "status": {"allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}},
    }
    return decode(Node, msgspec.json.encode(document))


# ---- gangs that wait


def no_plan(gang: str, why: Why) -> NoPlan:
    return NoPlan(gang=gang, why=why, message="")


def held(gang: str, because: Because) -> Standing:
    return Standing(
        key=gang,
        uid="u",
        check="c",
        reserved_at=NOON,
        answer=Answer(state=State.PENDING, because=because, message=""),
        verdict=None,
        progress=None,
        may_reuse=True,
    )


@pytest.fixture
def office() -> Office:
    found = Office()
    found.waits_for("quota", gpus=4)
    found.waits_for("check", gpus=2, has_quota=True)
    return found


def reasons(office: Office) -> dict[str, tuple[Stage, str]]:
    by_gpus = {4: "quota", 2: "check"}
    return {by_gpus[each.gpus]: (each.stage, each.reason) for each in office.backlog.take()}


def test_a_gang_that_nobody_has_looked_at_waits_all_the_same(office: Office) -> None:
    found = sorted(office.backlog.take(), key=lambda each: each.gpus)
    assert [(each.stage, each.reason, each.cluster_queue) for each in found] == [
        (Stage.CHECKS, "WaitingForAdmissionChecks", "cluster-queue"),
        (Stage.QUOTA, "WaitingForQuota", ""),
    ]
    assert isinstance(found[0], Pending)


def test_reasons_are_those_of_the_latest_look_at_each(office: Office) -> None:
    office.backlog.planned(Outlook(at=NOON, refused=(no_plan("demo/quota", Why.NOT_ENOUGH_IDLE),)))
    office.backlog.gated(GateReport(at=NOON, waiting=(held("demo/check", Because.PODS_ENDING),)))
    assert reasons(office) == {
        "quota": (Stage.QUOTA, "NotEnoughIdle"),
        "check": (Stage.CHECKS, "PodsEnding"),
    }
    # Not every look is at every gang, but the gate looks at all that it holds.
    office.backlog.planned(Outlook(at=NOON))
    office.backlog.gated(GateReport(at=NOON))
    assert reasons(office) == {
        "quota": (Stage.QUOTA, "NotEnoughIdle"),
        "check": (Stage.CHECKS, "WaitingForAdmissionChecks"),
    }


def test_what_another_leader_finds_is_not_known_here(office: Office) -> None:
    office.backlog.planned(Outlook(at=NOON, refused=(no_plan("demo/quota", Why.NOT_ENOUGH_IDLE),)))
    office.backlog.forget()
    assert reasons(office)["quota"] == (Stage.QUOTA, "WaitingForQuota")


def test_a_plan_is_a_reason_for_as_long_as_it_is_under_way(office: Office) -> None:
    grant = Grant(plan="p", gang="demo/quota", gang_uid="u", victims=("demo/a",), granted_at=NOON, expires_at=at(300))
    standing = StandingPlan(grant=grant, gang=None, gang_state=GangState.WAITING, members=())
    for under_way in (Outlook(at=NOON, made=(plan("demo/quota"),)), Outlook(at=NOON, standing=(standing,))):
        office.backlog.planned(under_way)
        assert reasons(office)["quota"] == (Stage.QUOTA, "Planned")
        office.backlog.planned(Outlook(at=NOON))
        assert reasons(office)["quota"] == (Stage.QUOTA, "WaitingForQuota")


def plan(gang: str) -> Plan:
    nothing: dict[str, Any] = {"free_before": {}, "free_after": {}, "takes": {}, "assignments": (), "placement": None}
    return Plan(id="p", gang=gang, gang_uid="u", cluster_queue="cq", victims=(), cost=0, **nothing)
