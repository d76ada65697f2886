"""What plans write, who is told of it, and what becomes of it where the API refuses."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from builders import at
from reclaim.reclaim_world import PressureWorld

from scaler.errors import KubeError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reclaim.active_plans import ActivePlan
from scaler.reclaim.grant_writer import GrantWriter
from scaler.reclaim.ledger import LedgerStage
from scaler.reclaim.transitions import PlanAction, PlanEndReason, PlanTransition
from scaler.reclaim.writer import PlanWriter

GONE = PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.GANG_GONE)


async def granted(*names: str, quota: int = 8) -> PressureWorld:
    """A plan for a gang takes all of these."""
    world = PressureWorld(quota)
    for name in names or ("a", "b"):
        world.runs(name)
    world.waits("gang", gpus=quota)
    await world.judged()
    await world.ticks()
    assert all(world.has_grant(name) for name in names)
    return world


def plan_of(world: PressureWorld) -> ActivePlan:
    [plan] = world.pressure.executor.standing()
    return plan


def reallocation(world: PressureWorld) -> PlanWriter:
    return world.pressure.reallocation


def statuses(world: PressureWorld, name: str, since: int = 0) -> Sequence[Any]:
    """What was written into its status."""
    path = f"{SCALABLE_WORKLOAD.path('demo', name)}/status"
    return [body["status"] for written, body in world.api.writes[since:] if written == path]


async def test_a_grant_says_for_whom_with_whom_and_until_when() -> None:
    world = await granted("a", "b")
    grant = next(each["grant"] for each in statuses(world, "a") if "grant" in each)
    assert grant["workload"] == "demo/gang"
    assert grant["victims"] == ["demo/a", "demo/b"]
    assert (grant["grantedAt"], grant["expiresAt"]) == ("2026-12-01T12:00:30Z", "2026-12-01T12:10:30Z")


async def test_a_grant_and_its_entry_in_the_ledger_are_one_write() -> None:
    world = await granted("a", "b")
    first = next(each for each in statuses(world, "a") if "grant" in each)
    assert first["reallocation"]["stage"] == "Reclaimable"
    assert first["reallocation"]["plan"] == first["grant"]["plan"]
    assert first["reallocation"]["times"] == 0


async def test_the_ledger_is_written_once_per_stage() -> None:
    world = await granted("a", "b")
    await world.passes(minutes=5)
    stages = [each["reallocation"]["stage"] for each in statuses(world, "a") if "reallocation" in each]
    assert stages == ["Reclaimable", "Releasing", "Admitted"]
    ledger = [each["reallocation"] for each in statuses(world, "a") if "reallocation" in each]
    assert [bool(each["reservedAt"]) for each in ledger] == [False, True, True]
    assert len(world.ended) == 2


async def test_whoever_has_vanished_keeps_nobody_else_from_its_grant() -> None:
    world = await granted("a", "b")
    plan = plan_of(world)
    world.api.delete(SCALABLE_WORKLOAD, "a")
    await reallocation(world).release(plan, GONE, world.now)
    grant = world.scalable("b").status.grant
    assert grant is not None
    assert grant.expires_at == grant.granted_at


async def test_what_fails_for_one_victim_is_done_for_the_others_all_the_same() -> None:
    world = await granted("a", "b")
    world.api.refused = {"/a/"}
    with pytest.raises(KubeError, match="refused"):
        await reallocation(world).release(plan_of(world), GONE, world.now)
    grant = world.scalable("b").status.grant
    assert grant is not None
    assert grant.expires_at == grant.granted_at
    assert [each.stage for each in world.ended] == [LedgerStage.CANCELLED], "what was not written is not counted"
    world.api.refused = set()
    world.leaves("gang")
    await world.ticks(2)
    assert [each.stage for each in world.ended] == [LedgerStage.CANCELLED] * 2


async def test_who_is_at_zero_is_asked_for_after_its_grant_has_ended_and_at_once() -> None:
    """Before, and KEDA would be told 0 again."""
    world = await granted("a", "b")
    world.slow = {"b"}
    await world.keda()
    before = len(world.api.writes)
    await reallocation(world).release(plan_of(world), GONE, world.now)
    bodies = [body for path, body in world.api.writes[before:] if "/scalableworkloads/a" in path]
    assert [list(body)[-1] for body in bodies] == ["status", "spec"]
    assert world.replicas("a") == 1
    assert world.has_grant("a"), "an answer of before may still be on its way"


async def test_an_object_that_has_changed_since_is_looked_at_again_instead() -> None:
    world = await granted("a", "b")
    seen = world.evaluator.cluster.scalable_workloads.get("demo", "a")
    assert seen is not None
    world.annotates("a", "somebody", "was here")
    writer = GrantWriter(world.api, world.evaluator.cluster.scalable_workloads.get, patience_seconds=0.0)
    await writer.clear(seen)
    assert world.has_grant("a")
    world.scales("a", 0)
    await writer.scale_to_one(seen, seen.metadata.resource_version)
    assert world.replicas("a") == 0


async def test_another_object_of_the_same_name_is_left_alone() -> None:
    world = await granted("a", "b")
    plan = plan_of(world)
    world.api.delete(SCALABLE_WORKLOAD, "a")
    world.api.create(SCALABLE_WORKLOAD, "a", {"spec": {"replicas": 1, "workloadRef": {"name": "a"}}})
    before = len(world.api.writes)
    await reallocation(world).release(plan, GONE, world.now)
    assert not statuses(world, "a", before)


async def test_whoever_is_dropped_is_let_go_and_the_others_know_it() -> None:
    world = await granted("a", "b", "c")
    step = PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.VICTIM_WOKE, about=("demo/a",))
    await reallocation(world).drop(plan_of(world), ["demo/a"], step, world.now)
    [plan] = world.pressure.executor.standing()
    assert [each.name for each in plan.holders] == ["demo/b", "demo/c"]
    assert plan.grant.victims == ("demo/b", "demo/c")
    assert world.stage("a") == "Cancelled"


async def test_a_plan_that_is_extended_is_so_for_all() -> None:
    world = await granted("a", "b")
    await reallocation(world).extend(plan_of(world), until=at(3600))
    assert plan_of(world).grant.expires_at == at(3600)


async def test_who_got_what_of_whom_and_how_long_it_took_is_told() -> None:
    world = await granted("a", "b")
    await world.passes(minutes=3)
    [said] = [message for _, _, reason, message in world.events.told if reason == "ReclaimAdmitted"]
    assert said == "admitted with 4 GPUs of demo/a, demo/b, 1m after the plan was granted"


async def test_a_refusal_is_told_once_per_reason() -> None:
    world = PressureWorld()
    world.runs("a")
    world.steals("holder", gpus=4)
    world.waits("gang", gpus=8)
    await world.judged()
    for _ in range(3):
        world.now += timedelta(minutes=1)
        await world.judged()
        await world.ticks()
    assert world.events.reasons("gang") == ["NotEnoughIdle"]


async def test_what_was_written_is_waited_for_and_not_for_ever() -> None:
    world = await granted("a", "b")
    writer = GrantWriter(world.api, world.evaluator.cluster.scalable_workloads.get, patience_seconds=0.05)
    assert await writer.catch_up()
    seen = world.scalable("a")
    with world.api.lagging():
        assert await writer.write(seen, {"message": "new"})
        assert not await writer.catch_up()
    assert await writer.catch_up()


async def test_of_what_is_gone_nothing_more_is_expected() -> None:
    world = await granted("a", "b")
    writer = GrantWriter(world.api, world.evaluator.cluster.scalable_workloads.get, patience_seconds=0.0)
    with world.api.lagging():
        await writer.write(world.scalable("a"), {"message": "new"})
    world.api.delete(SCALABLE_WORKLOAD, "a")
    assert await writer.catch_up()
