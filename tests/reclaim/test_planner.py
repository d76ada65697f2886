"""What a plan is made from, and when nothing can be planned."""

from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace
from reclaim.reclaim_world import GPU, PressureWorld

from scaler.placement.allocations import BoundPod
from scaler.placement.capacity import Capacity, capacity_of
from scaler.placement.node_index import NodeInfo
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced, QuotaWatch
from scaler.reclaim.config import ReclaimConfig
from scaler.reclaim.planner import Planner, PlanningSnapshot
from scaler.reclaim.search.values import NoPlan, NoPlanReason, PlanRequest, ReclaimPlan


async def looked(world: PressureWorld) -> PlanningSnapshot:
    await world.judged()
    sight = world.pressure.planning.look(world.now)
    assert isinstance(sight, PlanningSnapshot)
    return sight


def gang(sight: PlanningSnapshot, name: str = "gang") -> QuotaWorkload:
    found = sight.snapshot.workload(f"demo/{name}")
    assert found is not None
    return found


async def waiting(*idle: str, **world: Any) -> tuple[PressureWorld, PlanningSnapshot]:
    made = PressureWorld(**world)
    for name in idle or ("a", "b"):
        made.runs(name)
    made.waits("gang")
    return made, await looked(made)


async def test_it_sees_who_is_idle_who_waits_and_what_was_spent() -> None:
    _, sight = await waiting()
    assert [each.name for each in sight.candidates] == ["demo/a", "demo/b"]
    assert [each.name for each in sight.gangs] == ["gang"]
    assert sight.spending.suspensions == ()


async def test_nothing_can_be_planned_before_the_first_verdict() -> None:
    world = PressureWorld()
    world.runs("a")
    found = world.pressure.planning.look(world.now)
    assert isinstance(found, NotSynced)
    assert "no workload has been evaluated yet" in found.reason
    assert not isinstance(world.pressure.planning.quota(), NotSynced), "quota can be looked at all the same"


async def test_nor_with_verdicts_that_are_too_old() -> None:
    world, _ = await waiting()
    world.now += timedelta(seconds=61)
    assert world.pressure.planning.look(world.now) == NotSynced("the latest verdicts are 61 s old")


async def test_nor_where_quota_is_not_seen() -> None:
    world, _ = await waiting()
    world.view.blind = "not everything is seen"
    assert world.pressure.planning.look(world.now) == NotSynced("not everything is seen")


async def test_a_plan_takes_the_victims_that_the_gang_needs() -> None:
    world, sight = await waiting()
    found = await world.pressure.planning.plan(sight, gang(sight))
    assert isinstance(found, ReclaimPlan)
    assert [each.name for each in found.victims] == ["demo/a", "demo/b"]
    assert (found.gang, found.gang_uid, found.gpus) == ("demo/gang", gang(sight).uid, 4)


async def test_the_same_state_has_the_same_plan() -> None:
    world, sight = await waiting()
    plans = [await world.pressure.planning.plan(await looked(world), gang(sight)) for _ in range(2)]
    assert all(isinstance(each, ReclaimPlan) for each in plans)
    assert plans[0].id == plans[1].id  # type: ignore[union-attr]


async def test_only_those_are_taken_that_are_offered() -> None:
    world, sight = await waiting()
    found = await world.pressure.planning.plan(sight, gang(sight), sight.candidates[:1])
    assert isinstance(found, NoPlan)
    assert found.why is NoPlanReason.NOT_ENOUGH_IDLE


async def test_idle_workloads_of_queues_that_share_nothing_are_no_candidates() -> None:
    world = PressureWorld({"one": 2, "two": 2})
    world.runs("here", queue="one")
    world.runs("there", queue="two")
    world.waits("gang", queue="one", gpus=2)
    sight = await looked(world)
    request = world.pressure.planning.request(sight, gang(sight))
    assert isinstance(request, PlanRequest)
    assert [each.name for each in request.candidates] == ["demo/here"]


async def test_a_local_queue_that_leads_nowhere_is_told() -> None:
    world = PressureWorld()
    world.waits("gang", queue="nowhere")
    sight = await looked(world)
    found = world.pressure.planning.request(sight, gang(sight))
    assert isinstance(found, NoPlan)
    assert found.why is NoPlanReason.QUEUE_STOPPED
    assert "demo/nowhere" in found.message


async def test_what_is_planned_is_not_changed_by_what_happens_meanwhile() -> None:
    world, sight = await waiting()
    request = world.pressure.planning.request(sight, gang(sight))
    assert isinstance(request, PlanRequest)
    held = {key for queue in request.planning_tree.tree.queues.values() for key in queue.workloads}
    world.leaves("a")
    assert (
        {key for queue in request.planning_tree.tree.queues.values() for key in queue.workloads}
        == held
        == {"demo/a", "demo/b"}
    )


async def test_the_scene_is_made_anew_only_when_something_has_changed() -> None:
    world, sight = await waiting()
    planning = world.pressure.planning
    scenes = [
        made.planning_tree for _ in range(2) if isinstance(made := planning.request(sight, gang(sight)), PlanRequest)
    ]
    assert scenes[0] is scenes[1]
    world.waits("another", gpus=1)
    after = planning.request(sight, gang(sight))
    assert isinstance(after, PlanRequest)
    assert after.planning_tree is not scenes[0]


async def test_a_victim_of_a_standing_plan_is_known_to_budgets_by_its_own_name() -> None:
    """The Workload's name is another one's, as a rule, and the grant would be counted beside the victim."""
    world, sight = await waiting()
    found = world.pressure.planning.victim(sight, "demo/a", "demo/other-name")
    assert found is not None
    assert (found.workload, found.name, found.member.name) == ("demo/a", "demo/other-name", "other-name")
    assert found.member.cluster_queue == "cq"
    world.preempts("a")
    assert world.pressure.planning.victim(sight, "demo/a", "demo/a") is None


def scattered(free: int) -> Capacity:
    """Two nodes of 4 GPUs each, and on each of them a pod of a or b with 2: of the rest `free` are free together."""
    nodes = [NodeInfo(name=f"n{n}", labels={}, allocatable={GPU: 4, "pods": 110}) for n in range(2)]
    pods = [
        BoundPod(pod=f"demo/{name}-pod", node=f"n{n}", workload=f"demo/{name}", requests={GPU: 2})
        for n, name in enumerate(("a", "b"))
    ]
    pods += [BoundPod(pod=f"x{n}", node=f"n{n}", workload="", requests={GPU: 2 - free}) for n in range(2)]
    return capacity_of(nodes, pods)


async def test_nodes_are_looked_at_where_they_are_known_and_settings_ask_for_it() -> None:
    """A pod of 8 fits no node of 4, whatever quota says."""
    world, sight = await waiting()
    for consider, why in ((True, NoPlanReason.PLACEMENT_IMPOSSIBLE), (False, None)):
        planning = Planner(
            world.evaluator.cluster,
            world.board,
            cast(QuotaWatch, world.view),
            ReclaimConfig(consider_nodes=consider),
            max_age=timedelta(minutes=1),
            capacity=lambda: scattered(2),
        )
        found = planning.look(world.now)
        assert isinstance(found, PlanningSnapshot)
        plan = await planning.plan(found, gang(sight))
        assert (plan.why if isinstance(plan, NoPlan) else None) is why


@pytest.mark.parametrize(
    ("of_gang", "of_busy", "ends", "is_planned"),
    [(0, 29500, False, True), (29500, 0, False, True), (29500, 29500, False, False), (29500, 29500, True, True)],
    ids=["the gang needs no port", "nobody has its port", "one who stays has its port", "one who ends has it"],
)
async def test_a_port_that_somebody_keeps_closes_his_node(
    of_gang: int, of_busy: int, ends: bool, is_planned: bool
) -> None:
    """Of 12 GPUs 4 are idle and 2 are busy, all on one node: with idle gone 10 are free there, for a pod of 8."""
    world = PressureWorld(12)
    world.runs("idle", gpus=4)
    world.runs("busy", gpus=2, host_port=of_busy)
    world.works("busy")
    world.waits("gang", gpus=8, host_port=of_gang)
    if ends:
        (pod,) = world.cluster.pods.by_index("workload", ("demo", "busy"))
        world.cluster.pods.put(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=world.now)))
    node = NodeInfo(name="node-a", labels={}, allocatable={GPU: 12, "pods": 110})
    held = {"idle": 4, "busy": 2}
    pods = [
        BoundPod(pod=name, node="node-a", workload=f"demo/{name}", requests={GPU: gpus}) for name, gpus in held.items()
    ]
    await world.judged()
    planning = Planner(
        world.evaluator.cluster,
        world.board,
        cast(QuotaWatch, world.view),
        ReclaimConfig(),
        max_age=timedelta(minutes=1),
        capacity=lambda: capacity_of([node], pods),
    )
    sight = planning.look(world.now)
    assert isinstance(sight, PlanningSnapshot)
    found = await planning.plan(sight, gang(sight))
    assert isinstance(found, ReclaimPlan) == is_planned
    if isinstance(found, NoPlan):
        assert found.why is NoPlanReason.PLACEMENT_IMPOSSIBLE


async def test_without_nodes_only_quota_is_planned_for_and_the_plan_says_so() -> None:
    world, sight = await waiting()
    assert sight.capacity is None
    found = await world.pressure.planning.plan(sight, gang(sight))
    assert isinstance(found, ReclaimPlan)
    assert found.placement is None


async def test_where_nodes_matter_and_are_not_seen_nobody_is_suspended() -> None:
    world, sight = await waiting()
    planning = Planner(
        world.evaluator.cluster,
        world.board,
        cast(QuotaWatch, world.view),
        ReclaimConfig(consider_nodes=True),
        max_age=timedelta(minutes=1),
        capacity=lambda: NotSynced("Nodes are not followed: 403 Forbidden"),
    )
    found = planning.look(world.now)
    assert isinstance(found, PlanningSnapshot)
    plan = await planning.plan(found, gang(sight))
    assert isinstance(plan, NoPlan)
    assert plan.why is NoPlanReason.UNFORESEEABLE
    assert "403 Forbidden" in plan.message


UNSEEN = NotSynced("Nodes are not followed")


def _given(seen: Capacity | NotSynced) -> Capacity | NotSynced:
    return seen


@pytest.mark.parametrize(
    ("check", "flavors", "is_planned"),
    [("gate", (), True), ("gate", ("gpus",), True), ("gate", ("another",), False), ("other", (), False)],
    ids=["for all", "for the flavor of its queue", "for another flavor", "of somebody who asks for none"],
)
async def test_nodes_that_a_check_asks_for_stand_in_no_plans_way(
    check: str, flavors: tuple[str, ...], is_planned: bool
) -> None:
    """The pod of 8 fits no node of 4, or nobody sees nodes."""
    world, _ = await waiting()
    world.has_checks(check, on_flavors=flavors)
    for seen in (scattered(2), UNSEEN):
        planning = Planner(
            world.evaluator.cluster,
            world.board,
            cast(QuotaWatch, world.view),
            ReclaimConfig(),
            max_age=timedelta(minutes=1),
            capacity=partial(_given, seen),
            checks_with_provisioning=lambda: {"gate"},
        )
        found = planning.look(world.now)
        assert isinstance(found, PlanningSnapshot)
        answer = await planning.plan(found, gang(found))
        assert isinstance(answer, ReclaimPlan) == is_planned
        if isinstance(answer, ReclaimPlan):
            assert answer.placement is None


async def test_everybody_is_there_for_what_if_questions() -> None:
    world = PressureWorld()
    world.runs("idle")
    world.runs("busy")
    world.works("busy")
    world.waits("gang")
    await world.judged()
    sight = await looked(world)
    assert [each.name for each in sight.candidates] == ["demo/idle"]
    found = world.pressure.planning.everybody(sight, gang(sight))
    assert sorted(each.workload for each in found) == ["demo/busy", "demo/idle"]
