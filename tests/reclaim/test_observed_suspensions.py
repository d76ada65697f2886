"""What budgets are spent on, read off the status of ScalableWorkloads."""

from typing import Any

from builders import at
from loops_builders import stamp
from reclaim.reclaim_world import PressureWorld

from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reclaim.budgets.scopes import BudgetedWorkload, BudgetLocation, SuspensionHistory
from scaler.reclaim.candidates import suspension_history_of


def spending(world: PressureWorld) -> SuspensionHistory:
    return suspension_history_of(world.evaluator.cluster, world.view.filing.snapshot)


def writes(world: PressureWorld, name: str, **status: Any) -> None:
    world.api.change(f"{SCALABLE_WORKLOAD.path('demo', name)}/status", {"status": status})


async def test_every_workload_counts_for_its_namespace_and_queue_and_none_is_suspended() -> None:
    world = PressureWorld({"one": 4, "two": 4})
    world.runs("a", queue="one")
    world.runs("b", queue="two")
    world.runs("c", queue="two", gpus=1)
    found = spending(world)
    assert found.suspensions == ()
    assert found.population == {BudgetLocation("demo", "one"): 1, BudgetLocation("demo", "two"): 2}
    assert "demo" in found.namespace_labels


async def test_a_grant_counts_as_a_suspension_from_when_it_was_given() -> None:
    world = PressureWorld()
    world.runs("a")
    grant = {"plan": "p", "workload": "demo/g", "workloadUID": "u", "victims": ["demo/a"]}
    writes(world, "a", grant=grant | {"grantedAt": stamp(at(5)), "expiresAt": stamp(at(600))})
    [found] = spending(world).suspensions
    assert found.member == BudgetedWorkload(namespace="demo", name="a", cluster_queue="cq")
    assert (found.at, found.is_over) == (at(5), False)


async def test_who_is_suspended_counts_for_the_queue_that_it_would_come_back_to() -> None:
    world = PressureWorld()
    world.runs("a")
    world.scales("a", 0)
    await world.judged()
    await world.ticks()
    world.evicts()
    await world.ticks()
    [found] = spending(world).suspensions
    assert found.member == BudgetedWorkload(namespace="demo", name="a", cluster_queue="cq")
    assert (found.at, found.is_over) == (world.now, False)


async def test_who_has_come_back_since_is_not_suspended_any_more_and_still_counts() -> None:
    world = PressureWorld()
    world.runs("a")
    writes(world, "a", suspendedAt=stamp(at(0)), resumedAt=stamp(at(60)))
    [found] = spending(world).suspensions
    assert (found.at, found.is_over) == (at(0), True)
    writes(world, "a", suspendedAt=stamp(at(120)))
    [found] = spending(world).suspensions
    assert (found.at, found.is_over) == (at(120), False)


async def test_nobody_knows_the_queue_of_one_without_a_workload() -> None:
    world = PressureWorld()
    world.runs("a")
    world.leaves("a")
    assert spending(world).population == {BudgetLocation("demo", None): 1}
