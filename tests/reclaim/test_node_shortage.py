"""Gangs that have quota and lack nodes: which workloads are suspended for them, and when none is."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from reclaim.node_shortage_world import CHECK, NodesWorld

from scaler.kube.objects.resources import WORKLOAD
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.planner import PlanningSnapshot
from scaler.reclaim.search.values import NoPlan, NoPlanReason, ReclaimPlan
from scaler.targets.target_state import Seeks


def cluster(*, metadata: dict[str, str] | None = None, **options: Any) -> NodesWorld:
    """n1 is held by two idle halves, n2 by one that works. A gang of two pods of 4 fits neither; n3 takes one."""
    world = NodesWorld({"n1": 4, "n2": 4, "n3": 4}, **options)
    world.runs("a", gpus=2, on="n1", metadata=metadata)
    world.runs("b", gpus=2, on="n1", metadata=metadata)
    world.runs("busy", gpus=4, on="n2")
    world.works("busy")
    return world


async def test_idle_workloads_go_together_for_a_gang_that_has_quota_and_lacks_a_node() -> None:
    world = cluster()
    await world.passes(minutes=4)
    assert all(world.is_untouched(name) for name in ("a", "b"))
    world.waits("gang", pods=2, gpus=4)
    await world.passes(minutes=5, until=lambda: world.has_grant("a"))
    grant = world.grant("a")
    assert (grant.seeks, grant.check, sorted(grant.victims)) == ("Nodes", CHECK, ["demo/a", "demo/b"])
    assert world.is_held_back("gang")
    await world.passes(minutes=10, until=lambda: world.is_admitted("gang"))
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert all(world.is_suspended(name) and not world.has_grant(name) for name in ("a", "b"))
    assert sorted(world.deactivated) == ["a", "b"]
    assert {world.stage(name) for name in ("a", "b")} == {"Admitted"}
    assert world.is_untouched("busy")


async def test_budgets_bound_plans_for_nodes_too() -> None:
    world = cluster(metadata={"suspendedAtOnce": "1"})
    world.waits("gang", pods=2, gpus=4)
    await world.passes(minutes=5)
    assert [each.why for each in (await world.ticks()).refused] == [NoPlanReason.BUDGET_EXHAUSTED]
    assert all(world.is_untouched(name) for name in ("a", "b"))


async def test_an_admission_plan_that_is_old_does_not_count() -> None:
    world = cluster()
    world.waits("gang", pods=2, gpus=4)
    await world.kueue()
    nodes = world.pressure.nodes
    assert nodes.lacking(world.now + timedelta(seconds=60))
    assert not nodes.lacking(world.now + timedelta(seconds=61))


async def looked(world: NodesWorld, name: str = "gang") -> tuple[PlanningSnapshot, QuotaWorkload]:
    await world.judged()
    await world.kueue()
    sight = await world.pressure.planning.look(world.now)
    assert isinstance(sight, PlanningSnapshot)
    gang = sight.snapshot.workload(f"demo/{name}")
    assert gang is not None
    return sight, gang


async def test_for_a_gang_that_cannot_be_foreseen_no_workload_is_suspended() -> None:
    world = cluster()
    world.waits("gang", pods=2, gpus=4)
    sight, gang = await looked(world)
    found = await world.pressure.nodes.plan(sight, replace(gang, opaque_because="topology"), sight.candidates)
    assert isinstance(found, NoPlan)
    assert (found.why, found.message) == (NoPlanReason.UNFORESEEABLE, "cannot be foreseen: topology")
    assert isinstance(await world.pressure.nodes.plan(sight, gang, sight.candidates), ReclaimPlan)


async def test_gangs_with_quota_come_first_and_no_victim_is_in_two_plans() -> None:
    """All quota is held, of 16 GPUs. With a and b gone `gang` has its node, or `poor` its quota: one plan is made."""
    world = cluster(quota=16)
    world.waits("gang", pods=2, gpus=4)
    await world.kueue()
    world.waits("poor", gpus=4)
    seen: list[ReclaimReport] = []
    world.pressure.observe = seen.append
    await world.passes(minutes=5, until=lambda: world.has_grant("a"))
    first = next(each for each in seen if each.made)
    assert [(each.gang, each.seeks) for each in first.made] == [("demo/gang", Seeks.NODES)]
    assert [each.gang for each in first.refused] == ["demo/poor"]


async def test_room_that_comes_before_the_commit_spares_the_victims() -> None:
    world = cluster()
    world.slow.add("b")
    world.waits("gang", pods=2, gpus=4)
    await world.passes(minutes=8, until=lambda: world.replicas("a") == 0)
    world.nodes["n4"] = 4
    world.slow.clear()
    await world.passes(minutes=5)
    assert world.is_admitted("gang")
    assert world.deactivated == []


async def test_no_workload_is_suspended_for_a_gang_that_awaits_nodes_or_whose_policy_reuses_none() -> None:
    for mark in ("coming", "spared"):
        world = cluster()
        getattr(world, mark).add("gang")
        world.waits("gang", pods=2, gpus=4)
        await world.passes(minutes=5)
        assert all(world.is_untouched(name) for name in ("a", "b"))
        getattr(world, mark).clear()
        await world.passes(minutes=10)
        assert world.is_admitted("gang")


async def test_where_nodes_are_not_known_nothing_is_planned_and_no_plan_is_executed() -> None:
    world = cluster()
    world.waits("gang", pods=2, gpus=4)
    await world.passes(minutes=5, until=lambda: world.has_grant("a"))
    world.gate.blind = "nodes are hidden"
    await world.passes(minutes=5)
    assert world.deactivated == []
    await world.passes(minutes=15)
    assert all(world.replicas(name) == 1 and not world.has_grant(name) for name in ("a", "b"))
    await world.passes(minutes=5)
    assert not world.has_grant("a")
    world.gate.blind = ""
    await world.passes(minutes=10)
    assert world.is_admitted("gang")


async def test_where_another_pod_takes_the_node_no_workload_stays_suspended() -> None:
    """A pod that Kueue does not know of takes a part of n1 when a and b end. They come back at once."""
    world = cluster()
    world.waits("gang", pods=2, gpus=4)
    await world.passes(minutes=10, until=lambda: len(world.deactivated) == 2)
    world.starts("stranger", "n1", 2)
    await world.passes(minutes=2)
    assert world.is_held_back("gang")
    assert all(world.is_active(name) and not world.has_grant(name) for name in ("a", "b"))
    assert "FreedNodesTaken" in next(text for *_, reason, text in world.events.told if reason == "ReclaimCancelled")


@pytest.mark.parametrize("with_other", [True, False])
async def test_a_victim_that_is_woken_after_the_commit_is_replaced_or_ends_the_plan(with_other: bool) -> None:
    """The other one is dearer by a GPU, and would do alone."""
    world = cluster()
    if with_other:
        world.nodes["n4"] = 5
        world.runs("c", gpus=5, on="n4")
    world.waits("gang", pods=2, gpus=4)
    await world.passes(minutes=10, until=lambda: len(world.deactivated) == 2)
    assert sorted(world.deactivated) == ["a", "b"]
    world.scales("a", 1)
    await world.passes(minutes=2)
    assert world.is_active("a")
    assert world.is_active("b") != with_other
    await world.passes(minutes=1 if with_other else 0)
    assert world.is_admitted("gang") == with_other
    assert world.deactivated == ["a", "b", *(["c"] if with_other else [])]


@pytest.mark.parametrize("is_coming", [True, False])
async def test_with_provisioning_a_part_is_kept_only_while_nodes_come_for_the_rest(is_coming: bool) -> None:
    """Three pods of 4 where one fits: a and b make place for one more, and a node comes for the third, half an hour
    later. Without word of that node they come back after their time, and are left alone for ever longer."""
    world = cluster(provisions=True, grant_for=timedelta(minutes=5))
    world.waits("gang", pods=3, gpus=4)
    await world.passes(minutes=10, until=lambda: len(world.deactivated) == 2)
    world.coming |= {"gang"} if is_coming else set()
    await world.passes(minutes=7)
    assert [world.is_suspended(name) for name in ("a", "b")] == [is_coming, is_coming]
    await world.passes(minutes=53)
    assert len(world.deactivated) == (2 if is_coming else 8)  # again 5, 10 and 20 minutes after their return
    world.nodes["n4"] = 4
    world.coming.clear()
    await world.passes(minutes=1, until=lambda: world.is_admitted("gang"))
    assert world.is_admitted("gang") or not is_coming


async def test_one_plan_for_nodes_at_a_time_and_no_candidate_in_two() -> None:
    """Two gangs lack a node each, and a third one lacks quota; x and y hold a node each. x is taken for the first gang,
    y for the second one after that, and for quota neither of them meanwhile."""
    world = NodesWorld({"n1": 8, "n2": 8}, quota=32)
    world.runs("x", gpus=8, on="n1")
    world.runs("y", gpus=8, on="n2")
    world.slow |= {"x", "y"}
    world.waits("first", pods=1, gpus=8)
    await world.passes(minutes=0.5)
    world.waits("second", pods=1, gpus=8)
    await world.passes(minutes=5)
    granted = [name for name in ("x", "y") if world.has_grant(name)]
    assert len(granted) == 1
    world.waits("third", gpus=8)
    await world.passes(minutes=2)
    plans = {name: world.scalable(name).status.grant for name in ("x", "y")}
    assert [grant and (grant.seeks, grant.workload) for grant in plans.values()].count(("Nodes", "demo/first")) == 1
    world.slow.clear()
    await world.passes(minutes=10)
    assert world.is_admitted("first")


# ------------------------------------------------------------------------------------------- before nodes are asked for


async def test_nodes_are_requested_once_it_is_known_that_idle_gpus_do_not_serve() -> None:
    world = NodesWorld({"n1": 4}, provisions=True)
    world.runs("busy", gpus=4, on="n1")
    world.works("busy")
    world.waits("gang", pods=1, gpus=4)
    await world.judged()
    await world.kueue()
    uid = world.read(WORKLOAD, "gang")["metadata"]["uid"]
    assert world.reclaim_answers.is_pending(uid, world.now)
    [found] = (await world.planned()).refused
    assert found.why is NoPlanReason.NOT_ENOUGH_IDLE
    assert not world.reclaim_answers.is_pending(uid, world.now)


async def test_a_gang_that_backs_off_after_a_plan_that_failed_does_not_keep_nodes_from_being_requested() -> None:
    world = cluster(provisions=True)
    world.waits("gang", pods=2, gpus=4)
    _, gang = await looked(world)
    world.pressure.executor.backoff.back_off(gang.uid, Seeks.NODES, world.now)
    assert world.reclaim_answers.is_pending(gang.uid, world.now)
    await world.planned()
    assert not world.reclaim_answers.is_pending(gang.uid, world.now)
