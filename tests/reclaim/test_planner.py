"""What a plan is made from, and when nothing can be planned."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from builders import at
from msgspec.structs import replace
from placement.placement_builders import full
from reclaim.reclaim_world import PressureWorld

from scaler.placement.capacity import Capacity
from scaler.quota.model import QuotaWorkload
from scaler.quota.watch import NotSynced
from scaler.reclaim.planner import PlanningSnapshot
from scaler.reclaim.search.values import NoPlan, NoPlanReason, PlanRequest, ReclaimPlan
from scaler.targets.target_state import Seeks


async def looked(world: PressureWorld) -> PlanningSnapshot:
    await world.judged()
    sight = await world.pressure.planning.look(world.now)
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


async def test_nothing_can_be_planned_without_fresh_verdicts_and_quota() -> None:
    world = PressureWorld()
    world.runs("a")
    planner = world.pressure.planning
    found = await planner.look(world.now)
    assert isinstance(found, NotSynced)
    assert "no workload has been evaluated yet" in found.reason
    await world.judged()
    world.now += timedelta(seconds=61)
    assert await planner.look(world.now) == NotSynced("the latest verdicts are 61 s old")
    await world.judged()
    world.view.blind = "not everything is seen"
    assert await planner.look(world.now) == NotSynced("not everything is seen")


async def test_a_plan_takes_the_victims_that_the_gang_needs_and_is_the_same_again() -> None:
    world, sight = await waiting()
    found = await world.pressure.planning.plan(sight, gang(sight))
    assert isinstance(found, ReclaimPlan)
    assert [each.name for each in found.victims] == ["demo/a", "demo/b"]
    assert (found.gang, found.gang_uid, found.gpus) == ("demo/gang", gang(sight).uid, 4)
    assert found.placement is None, "nodes are not considered"
    again = await world.pressure.planning.plan(await looked(world), gang(sight))
    assert isinstance(again, ReclaimPlan)
    assert again.id == found.id
    fewer = await world.pressure.planning.plan(sight, gang(sight), sight.candidates[:1])
    assert isinstance(fewer, NoPlan)
    assert fewer.why is NoPlanReason.NOT_ENOUGH_IDLE


async def test_of_trees_that_are_closed_meanwhile_no_more_gangs_are_looked_at() -> None:
    world = PressureWorld()
    for name, created in (("first", 0), ("second", 10), ("third", 20)):
        world.waits(name, created=at(created))
    sight, target = await looked(world), world.pressure.targets[Seeks.QUOTA]
    closed: set[str] = set()
    found = []
    for each in target.gangs(sight, closed):
        found.append(each.name)
        if len(found) == 2:
            closed.add(target.plan_scope(sight, each.key))
    assert found == ["first", "second"]
    assert [each.name for each in target.gangs(sight)] == ["first", "second", "third"]
    uids = {each.uid for each in target.gangs(sight)}
    assert set(target.waiting(sight, [*uids, "another"])) == uids


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


async def test_a_request_does_not_change_and_its_tree_is_made_anew_only_when_something_else_has() -> None:
    world, sight = await waiting()
    planner = world.pressure.planning
    first, second = (planner.request(sight, gang(sight)) for _ in range(2))
    assert isinstance(first, PlanRequest)
    assert isinstance(second, PlanRequest)
    assert first.planning_tree is second.planning_tree
    world.leaves("a")
    third = planner.request(sight, gang(sight))
    assert isinstance(third, PlanRequest)
    trees = [each.planning_tree.tree for each in (first, third)]
    held = [{key for queue in tree.queues.values() for key in queue.workloads} for tree in trees]
    assert held == [{"demo/a", "demo/b"}, {"demo/b"}]


async def test_a_victim_of_a_standing_plan_is_known_to_budgets_by_its_own_name() -> None:
    """The Workload's name is another one's, as a rule, and the grant would be counted beside the victim."""
    world, sight = await waiting()
    found = world.pressure.planning.victim(sight, "demo/a", "demo/other-name")
    assert found is not None
    assert (found.workload, found.name, found.member.name) == ("demo/a", "demo/other-name", "other-name")
    assert found.cluster_queue == "cq"
    world.preempts("a")
    assert world.pressure.planning.victim(sight, "demo/a", "demo/a") is None


def scattered(free: int) -> Capacity:
    """Two nodes of 4 GPUs each, and on each of them a pod of a or b with 2: of the rest `free` are free together."""
    return full({"n0": 4, "n1": 4}, {"n0": {"demo/a": 2, "x0": 2 - free}, "n1": {"demo/b": 2, "x1": 2 - free}})


UNSEEN = NotSynced("Nodes are not watched: 403 Forbidden")


@pytest.mark.parametrize(
    ("seen", "consider", "why"),
    [
        (scattered(2), True, NoPlanReason.PLACEMENT_IMPOSSIBLE),
        (scattered(2), False, None),
        (UNSEEN, True, NoPlanReason.UNFORESEEABLE),
    ],
    ids=["a pod of 8 fits no node of 4", "whatever quota says, if settings say so", "where nodes are not known"],
)
async def test_nodes_count_where_settings_say_so(
    seen: Capacity | NotSynced, consider: bool, why: NoPlanReason | None
) -> None:
    world, _ = await waiting(consider_nodes=consider)
    world.capacity = lambda: seen
    sight = await looked(world)
    found = await world.pressure.planning.plan(sight, gang(sight))
    assert (found.why if isinstance(found, NoPlan) else None) is why
    if why is NoPlanReason.UNFORESEEABLE:
        assert isinstance(found, NoPlan)
        assert "403 Forbidden" in found.message


@pytest.mark.parametrize(
    ("of_gang", "of_busy", "ends", "is_planned"),
    [(0, 29500, False, True), (29500, 0, False, True), (29500, 29500, False, False), (29500, 29500, True, True)],
    ids=["the gang needs no port", "no pod has its port", "one that stays has its port", "one that ends has it"],
)
async def test_a_port_that_is_kept_closes_its_node(of_gang: int, of_busy: int, ends: bool, is_planned: bool) -> None:
    """Of 12 GPUs 4 are idle and 2 are busy, all on one node: with idle gone 10 are free there, for a pod of 8."""
    world = PressureWorld(12, consider_nodes=True)
    world.runs("idle", gpus=4)
    world.runs("busy", gpus=2, host_port=of_busy)
    world.works("busy")
    world.waits("gang", gpus=8, host_port=of_gang)
    if ends:
        (pod,) = world.cluster.pods.by_index("workload", ("demo", "busy"))
        world.cluster.pods.put(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=world.now)))
    world.capacity = lambda: full({"node-a": 12}, {"node-a": {"demo/idle": 4, "demo/busy": 2}})
    sight = await looked(world)
    found = await world.pressure.planning.plan(sight, gang(sight))
    assert (found.why if isinstance(found, NoPlan) else None) is (
        None if is_planned else NoPlanReason.PLACEMENT_IMPOSSIBLE
    )


@pytest.mark.parametrize(
    ("check", "flavors", "is_planned"),
    [("gate", (), True), ("gate", ("gpus",), True), ("gate", ("another",), False), ("other", (), False)],
    ids=["for all", "for the flavor of its queue", "for another flavor", "of one that requests none"],
)
async def test_nodes_that_a_check_requests_stand_in_no_plans_way(
    check: str, flavors: tuple[str, ...], is_planned: bool
) -> None:
    """The pod of 8 fits no node of 4, or nodes are not known."""
    world, _ = await waiting(consider_nodes=True)
    world.has_checks(check, on_flavors=flavors)
    world.checks_with_provisioning = frozenset({"gate"})
    for seen in (scattered(2), UNSEEN):
        world.capacity = partial(_given, seen)
        sight = await looked(world)
        found = await world.pressure.planning.plan(sight, gang(sight))
        assert isinstance(found, ReclaimPlan) == is_planned
        if isinstance(found, ReclaimPlan):
            assert found.placement is None


def _given(seen: Capacity | NotSynced) -> Capacity | NotSynced:
    return seen
