"""What budgets are spent on, read off the status of ScalableWorkloads."""

from typing import Any

import pytest
from builders import at
from loops_builders import stamp
from reclaim.reclaim_world import PressureWorld

from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reclaim.budgets.scopes import BudgetedWorkload, BudgetLocation, Suspension, SuspensionHistory
from scaler.reclaim.candidates import suspension_history_of

GRANT = {"plan": "p", "workload": "demo/g", "workloadUID": "u", "victims": ["demo/a"]}


def spending(world: PressureWorld) -> SuspensionHistory:
    return suspension_history_of(world.evaluator.cluster, world.view.filing.snapshot)


A = BudgetedWorkload(namespace="demo", name="a", cluster_queue="cq")


async def test_every_workload_counts_for_its_namespace_and_queue() -> None:
    world = PressureWorld({"one": 4, "two": 4})
    world.runs("a", queue="one")
    world.runs("b", queue="two")
    world.runs("c", queue="two", gpus=1)
    world.runs("lost")
    world.leaves("lost")
    found = spending(world)
    assert found.suspensions == ()
    queues: dict[str | None, int] = {"one": 1, "two": 2, None: 1}
    assert found.population == {BudgetLocation("demo", queue): count for queue, count in queues.items()}
    assert "demo" in found.namespace_labels


@pytest.mark.parametrize(
    ("status", "since", "is_over"),
    [
        ({"grant": GRANT | {"grantedAt": stamp(at(5)), "expiresAt": stamp(at(600))}}, 5, False),
        ({"suspendedAt": stamp(at(0)), "resumedAt": stamp(at(60))}, 0, True),
        ({"suspendedAt": stamp(at(120)), "resumedAt": stamp(at(60))}, 120, False),
    ],
    ids=["a grant counts from when it was given", "one that came back still counts", "one that is suspended again"],
)
async def test_what_counts_as_a_suspension(status: dict[str, Any], since: float, is_over: bool) -> None:
    world = PressureWorld()
    world.runs("a")
    world.api.change(f"{SCALABLE_WORKLOAD.path('demo', 'a')}/status", {"status": status})
    assert spending(world).suspensions == (Suspension(member=A, at=at(since), is_over=is_over),)


async def test_a_suspended_workload_counts_for_the_queue_that_it_would_come_back_to() -> None:
    world = PressureWorld()
    world.runs("a")
    world.scales("a", 0)
    await world.judged()
    await world.ticks()
    world.evicts()
    await world.ticks()
    assert spending(world).suspensions == (Suspension(member=A, at=world.now),)
