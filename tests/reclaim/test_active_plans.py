"""Which plans stand, as the grants in the API tell, and how is everybody in them?"""

from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, at
from loops_builders import stamp
from reclaim.reclaim_world import PressureWorld

from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.reclaim.active_plans import ActivePlan, VictimStatus, active_plans
from scaler.reclaim.transitions import GangState


async def world_with(*names: str, gang: bool = True) -> PressureWorld:
    world = PressureWorld(quota=20)
    for name in names:
        world.runs(name)
    if gang:
        world.waits("gang", gpus=18)
    await world.judged()
    return world


def grants(world: PressureWorld, name: str, *victims: str, **fields: Any) -> None:
    """Write a grant of plan `p` on it, with these victims."""
    grant = {
        "plan": "p",
        "workload": "demo/gang",
        "workloadUID": world.api.read(WORKLOAD, "gang")["metadata"]["uid"],
        "victims": [f"demo/{each}" for each in victims or (name,)],
        "grantedAt": stamp(NOON),
        "expiresAt": stamp(at(600)),
    }
    path = f"{SCALABLE_WORKLOAD.path('demo', name)}/status"
    world.api.change(path, {"status": {"grant": grant | fields}})


def standing(world: PressureWorld, **options: Any) -> list[ActivePlan]:
    return active_plans(world.evaluator.cluster, world.board.evaluation, **options)


def member(world: PressureWorld, name: str, **options: Any) -> VictimStatus:
    [plan] = standing(world, **options)
    return next(each for each in plan.members if each.name == f"demo/{name}")


async def test_a_plan_is_what_its_grants_say() -> None:
    world = await world_with("a", "b")
    for name in ("a", "b"):
        grants(world, name, "a", "b")
    [plan] = standing(world)
    assert (plan.grant.plan, plan.grant.gang, plan.gang_state) == ("p", "demo/gang", GangState.WAITING)
    assert plan.grant.expires_at == at(600)
    assert [each.name for each in plan.holders] == ["demo/a", "demo/b"]
    await world.taken_up()
    assert [each.is_idle for each in standing(world)[0].members] == [True, True]


async def test_the_oldest_plan_comes_first() -> None:
    world = await world_with("a", "b")
    grants(world, "a", plan="younger", grantedAt=stamp(at(10)))
    grants(world, "b", plan="older", grantedAt=stamp(at(0)))
    assert [each.grant.plan for each in standing(world)] == ["older", "younger"]


async def test_whoever_has_a_grant_is_a_victim_whatever_the_other_grants_say() -> None:
    """A leader ended while it dropped c: nobody must be forgotten with a grant on it."""
    world = await world_with("a", "b", "c")
    grants(world, "a", "a", "b")
    grants(world, "b", "a", "b")
    grants(world, "c", "a", "b", "c")
    [plan] = standing(world)
    assert [each.name for each in plan.holders] == ["demo/a", "demo/b", "demo/c"]
    grants(world, "c", "a", "b")
    [plan] = standing(world)
    assert [each.name for each in plan.holders] == ["demo/a", "demo/b", "demo/c"]


async def test_whoever_lacks_its_grant_is_missing() -> None:
    world = await world_with("a", "b")
    grants(world, "a", "a", "b")
    assert member(world, "b").victim.is_missing
    assert not member(world, "a").victim.is_missing


async def test_a_plan_lasts_as_long_as_the_shortest_of_its_grants() -> None:
    """Some were extended before a leader ended; the next one extends them again."""
    world = await world_with("a", "b")
    grants(world, "a", "a", "b", expiresAt=stamp(at(300)))
    grants(world, "b", "a", "b", expiresAt=stamp(at(900)))
    [plan] = standing(world)
    assert plan.grant.expires_at == at(300)


async def test_a_withdrawn_grant_makes_no_plan() -> None:
    world = await world_with("a", "b")
    grants(world, "a", "a", "b", expiresAt=stamp(NOON))
    assert standing(world) == []
    grants(world, "b", "a", "b")
    assert member(world, "a").victim.is_missing


@pytest.mark.parametrize("field", ["plan", "grantedAt", "expiresAt"])
async def test_nor_does_one_that_nobody_can_read(field: str) -> None:
    world = await world_with("a")
    grants(world, "a", **{field: None})
    assert standing(world) == []
    assert world.evaluator.cluster.situation(world.scalable("a")).is_held


async def test_an_object_that_is_being_deleted_is_gone() -> None:
    world = await world_with("a", "b")
    grants(world, "a", "a", "b")
    grants(world, "b", "a", "b")
    world.api.change(SCALABLE_WORKLOAD.path("demo", "a"), {"metadata": {"deletionTimestamp": stamp(NOON)}})
    assert member(world, "a").victim.is_missing
    assert [each.name for each in standing(world)[0].holders] == ["demo/b"]


async def test_without_verdicts_nobody_is_idle_and_nobody_is_busy() -> None:
    world = await world_with("a")
    grants(world, "a")
    [plan] = active_plans(world.evaluator.cluster, None)
    assert [(each.is_idle, each.is_unknown) for each in plan.members] == [(False, True)]


async def test_a_verdict_counts_for_the_replicas_that_it_was_made_for() -> None:
    world = await world_with("a")
    grants(world, "a")
    await world.taken_up()
    assert member(world, "a").is_idle
    world.scales("a", 0)
    assert (member(world, "a").is_idle, member(world, "a").is_unknown) == (False, True)
    await world.taken_up()
    assert (member(world, "a").is_idle, member(world, "a").is_unknown) == (True, False)


async def test_who_was_at_zero_and_is_at_one_again_was_set_back() -> None:
    world = await world_with("a")
    grants(world, "a")
    seen = {("p", "demo/a")}
    assert member(world, "a", seen_at_zero=seen).victim.was_set_back
    assert not member(world, "a", seen_at_zero={("q", "demo/a")}).victim.was_set_back
    world.scales("a", 0)
    assert not member(world, "a", seen_at_zero=seen).victim.was_set_back


async def test_only_what_we_have_deactivated_has_begun() -> None:
    world = await world_with("a")
    grants(world, "a")
    world.scales("a", 0)
    world.api.change(WORKLOAD.path("demo", "a"), {"spec": {"active": False}})
    assert not standing(world)[0].is_begun
    note = {"metadata": {"annotations": {"idlegpu.io/suspended": f'{{"at": "{stamp(at(90))}"}}'}}}
    world.api.change(WORKLOAD.path("demo", "a"), note)
    [plan] = standing(world)
    assert plan.is_begun
    assert plan.deactivated_at == [at(90)]


@pytest.mark.parametrize(
    ("conditions", "active", "state"),
    [
        ({}, True, GangState.WAITING),
        ({"QuotaReserved": False}, True, GangState.WAITING),
        ({"QuotaReserved": True}, True, GangState.RESERVED),
        ({"QuotaReserved": True, "Admitted": False}, True, GangState.RESERVED),
        ({"QuotaReserved": True, "Admitted": True}, True, GangState.ADMITTED),
        ({"QuotaReserved": True, "Admitted": True, "Finished": True}, True, GangState.GONE),
        ({"QuotaReserved": True, "Admitted": True}, False, GangState.GONE),
    ],
)
async def test_how_far_a_gang_is(conditions: dict[str, bool], active: bool, state: GangState) -> None:
    world = await world_with("a")
    grants(world, "a")
    written = [{"type": kind, "status": str(is_so)} for kind, is_so in conditions.items()]
    body = {"spec": {"active": active}, "status": {"conditions": written}}
    world.api.change(WORKLOAD.path("demo", "gang"), body)
    assert standing(world)[0].gang_state is state


HELD = {"QuotaReserved": True}


@pytest.mark.parametrize(
    ("conditions", "checks", "state"),
    [
        (HELD, {"gate": "Pending"}, GangState.WAITING),
        (HELD, {"gate": "Pending", "other": "Ready"}, GangState.WAITING),
        (HELD, {}, GangState.WAITING),
        (HELD, {"gate": "Ready", "other": "Pending"}, GangState.ADMITTED),
        (HELD | {"Admitted": True}, {}, GangState.ADMITTED),
        ({"QuotaReserved": False}, {"gate": "Pending"}, GangState.GONE),
        (HELD | {"Evicted": True}, {"gate": "Pending"}, GangState.GONE),
        (HELD | {"Finished": True}, {"gate": "Ready"}, GangState.GONE),
    ],
)
async def test_how_far_a_gang_is_that_lacks_nodes(
    conditions: dict[str, bool], checks: dict[str, str], state: GangState
) -> None:
    world = await world_with("a")
    grants(world, "a", seeks="Nodes", check="gate")
    written = [{"type": kind, "status": str(is_so)} for kind, is_so in conditions.items()]
    entries = [{"name": name, "state": each} for name, each in checks.items()]
    body = {"status": {"conditions": written, "admissionChecks": entries}}
    world.api.change(WORKLOAD.path("demo", "gang"), body)
    assert standing(world)[0].gang_state is state


async def test_another_workload_of_the_gangs_name_is_not_the_gang() -> None:
    world = await world_with("a")
    grants(world, "a")
    world.leaves("gang")
    world.now += timedelta(seconds=1)
    world.waits("gang", gpus=18)
    [plan] = standing(world)
    assert plan.gang_state is GangState.GONE


async def test_what_a_victim_still_runs_is_not_handed_over() -> None:
    world = await world_with("a")
    grants(world, "a")
    [plan] = standing(world)
    assert not plan.members[0].is_deactivated
    assert plan.members[0].pods_left == 1
