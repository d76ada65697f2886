"""What plans write, and what becomes of it where the API refuses."""

from collections.abc import Sequence
from typing import Any

import pytest
from reclaim.reclaim_world import PressureWorld

from scaler.errors import KubeError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reclaim.active_plans import ActivePlan
from scaler.reclaim.grant_writer import GrantWriter
from scaler.reclaim.transitions import LedgerStage, PlanAction, PlanEndReason, PlanTransition
from scaler.reclaim.writer import PlanWriter

GONE = PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.GANG_GONE)


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
    [plan] = world.pressure.executor.active()
    return plan


def writer_of(world: PressureWorld) -> PlanWriter:
    return world.pressure.writer


def statuses(world: PressureWorld, name: str, since: int = 0) -> Sequence[Any]:
    """What was written into its status."""
    path = f"{SCALABLE_WORKLOAD.path('demo', name)}/status"
    return [body["status"] for written, body in world.api.patches[since:] if written == path]


async def test_the_grant_and_the_first_ledger_entry_are_one_write_and_later_there_is_one_per_stage() -> None:
    world = await granted("a", "b")
    await world.passes(minutes=5)
    written = [each for each in statuses(world, "a") if "reallocation" in each]
    grant, ledger = written[0]["grant"], [each["reallocation"] for each in written]
    assert (grant["workload"], grant["victims"]) == ("demo/gang", ["demo/a", "demo/b"])
    assert (grant["grantedAt"], grant["expiresAt"]) == ("2026-12-01T12:00:30Z", "2026-12-01T12:10:30Z")
    assert ledger[0]["plan"] == grant["plan"]
    assert [(each["stage"], each["times"]) for each in ledger] == [
        ("Reclaimable", 0),
        ("Releasing", 1),
        ("Admitted", 1),
    ]
    assert [bool(each["reservedAt"]) for each in ledger] == [False, True, True]
    assert len(world.ended) == 2


async def test_what_fails_for_one_victim_is_done_for_the_others_all_the_same() -> None:
    world = await granted("a", "b")
    world.api.refused = {"/a/"}
    with pytest.raises(KubeError, match="refused"):
        await writer_of(world).release(plan_of(world), GONE, world.now)
    grant = world.grant("b")
    assert grant.expires_at == grant.granted_at
    assert [each.stage for each in world.ended] == [LedgerStage.CANCELLED], "what was not written is not counted"
    world.api.refused = set()
    world.leaves("gang")
    await world.ticks(2)
    assert [each.stage for each in world.ended] == [LedgerStage.CANCELLED] * 2


async def test_replicas_are_set_to_one_after_the_grant_has_ended_and_at_once() -> None:
    """Before, and KEDA would be answered inactive again."""
    world = await granted("a", "b")
    world.slow = {"b"}
    await world.keda()
    before = len(world.api.patches)
    await writer_of(world).release(plan_of(world), GONE, world.now)
    bodies = [body for path, body in world.api.patches[before:] if "/scalableworkloads/a" in path]
    assert [list(body)[-1] for body in bodies] == ["status", "spec"]
    assert world.replicas("a") == 1
    assert world.has_grant("a"), "an answer of before may still be on its way"


async def test_an_object_that_has_changed_since_is_looked_at_again_instead() -> None:
    world = await granted("a", "b")
    seen = world.evaluator.cluster.scalable_workloads.get("demo", "a")
    assert seen is not None
    world.annotates("a", "somebody", "was here")
    writer = GrantWriter(world.api)
    await writer.clear(seen)
    assert world.has_grant("a")
    world.scales("a", 0)
    await writer.scale_to_one(seen, seen.metadata.resource_version)
    assert world.replicas("a") == 0


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_vanished_victim_keeps_none_from_its_release_and_its_namesake_is_left_alone(is_made_anew: bool) -> None:
    world = await granted("a", "b")
    plan = plan_of(world)
    world.delete(SCALABLE_WORKLOAD, "a")
    if is_made_anew:
        world.create(SCALABLE_WORKLOAD, "a", {"spec": {"replicas": 1, "workloadRef": {"name": "a"}}})
    before = len(world.api.patches)
    await writer_of(world).release(plan, GONE, world.now)
    assert not statuses(world, "a", before)
    grant = world.grant("b")
    assert grant.expires_at == grant.granted_at


async def test_a_victim_that_is_dropped_is_released_and_the_grants_of_the_others_do_not_name_it() -> None:
    world = await granted("a", "b", "c")
    step = PlanTransition(action=PlanAction.RECONSIDER, ending=PlanEndReason.VICTIM_WOKE, about=("demo/a",))
    await writer_of(world).drop(plan_of(world), ["demo/a"], step, world.now)
    [plan] = world.pressure.executor.active()
    assert [each.name for each in plan.holders] == ["demo/b", "demo/c"]
    assert plan.grant.victims == ("demo/b", "demo/c")
    assert world.stage("a") == "Cancelled"


async def test_a_plan_that_ends_releases_the_victims_that_were_not_needed() -> None:
    world = await granted("a", "b")
    step = PlanTransition(action=PlanAction.FINISH, ending=PlanEndReason.NOT_NEEDED, about=("demo/a",))
    await writer_of(world).finish(plan_of(world), step, world.now)
    assert (world.stage("a"), world.stage("b")) == ("Cancelled", "Reclaimable")
    assert "ReclaimCancelled" in world.events.reasons("a")
