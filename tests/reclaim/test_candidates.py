"""Who may be taken by a plan, who goes anyway, and who waits."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import LONG_AGO, at
from loops_builders import TICK, stamp
from reclaim.reclaim_world import ON_PRESSURE, PressureWorld

from scaler.decision.decision import Decision
from scaler.decision.scale_subresources import scalable_workload_ref
from scaler.decision.workloads import KEEP_UNTIL
from scaler.errors import SourceError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reclaim.candidates import Candidates, find_candidates, gpus_of, is_idle, is_unknown, pending_gpu_workloads
from scaler.reclaim.costs import CostWeights

ALWAYS = {"reclaim": "Always", "idleAfter": "2m"}


async def idlers(world: PressureWorld, *, patience: timedelta = timedelta(minutes=10)) -> Candidates:
    """Of the world as it is judged next."""
    await world.judged()
    assert world.board.evaluation is not None
    return find_candidates(
        world.board.evaluation,
        world.evaluator.cluster,
        world.view.filing.snapshot,
        weights=CostWeights(),
        patience=patience,
        now=world.now,
    )


def names(found: Candidates) -> list[str]:
    return [each.name for each in found.candidates]


async def test_who_is_idle_and_left_to_plans_is_a_candidate() -> None:
    world = PressureWorld()
    world.runs("a", gpus=3)
    [found] = (await idlers(world)).candidates
    assert (found.name, found.workload, found.gpus) == ("demo/a", "demo/a", 3)
    assert (found.member.namespace, found.member.name, found.member.cluster_queue) == ("demo", "a", "cq")


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"metadata": {"mode": "observe"}}, id="only observed"),
        pytest.param({"metadata": {"reclaim": "PriorityBoost"}}, id="left to Kueue"),
        pytest.param({"metadata": {"warmUp": "3h"}}, id="still warming up"),
        pytest.param({"more_triggers": [ON_PRESSURE | {"mode": "observe"}]}, id="another trigger does not allow it"),
        pytest.param({"autoscaling.keda.sh/paused": "true"}, id="KEDA is paused"),
        pytest.param({"autoscaling.keda.sh/paused-replicas": "1"}, id="KEDA is told how many"),
        pytest.param({"autoscaling.keda.sh/paused-scale-in": "true"}, id="KEDA does not scale in"),
        pytest.param({KEEP_UNTIL: "2026-12-24T18:00:00Z"}, id="kept"),
        pytest.param({KEEP_UNTIL: "Christmas"}, id="kept until nobody knows when"),
    ],
)
async def test_who_is_not_to_be_taken_is_none(given: dict[str, Any]) -> None:
    world = PressureWorld()
    world.runs("a", **given)
    found = await idlers(world)
    assert names(found) == []
    assert found.leaving == frozenset()


@pytest.mark.parametrize(
    ("asked", "minutes"),
    [(None, 5), (LONG_AGO - timedelta(minutes=20), 20), (LONG_AGO + timedelta(minutes=20), 5)],
    ids=["that never came back", "that came back", "that was asked back and whose pods of before are all that is seen"],
)
async def test_it_costs_the_time_that_one_took_to_come_back(asked: datetime | None, minutes: int) -> None:
    world = PressureWorld()
    world.runs("a", gpus=3)
    if asked is not None:
        path = SCALABLE_WORKLOAD.path("demo", "a")
        world.api.change(f"{path}/status", {"status": {"resumedAt": stamp(asked)}})
    [found] = (await idlers(world)).candidates
    # 3 GPUs for so many minutes, in thousandths of GPU hours.
    assert dict(found.cost.parts)["timeToResume"] == CostWeights().time_to_resume * 3 * minutes / 60 * 1000


async def test_nor_is_one_that_works() -> None:
    world = PressureWorld()
    world.runs("a")
    world.works("a")
    await world.judged()
    assert names(await idlers(world)) == []


async def test_nor_is_one_of_which_nobody_knows() -> None:
    world = PressureWorld()
    world.runs("a")
    await world.judged()
    down = SourceError("Prometheus is down", transient=True)
    world.source.failing = dict.fromkeys(("gr_engine_active", "gpu_util"), down)
    assert names(await idlers(world)) == []


async def test_nor_is_one_that_holds_no_quota() -> None:
    world = PressureWorld()
    world.runs("a")
    world.preempts("a")
    found = await idlers(world)
    assert (names(found), found.leaving) == ([], frozenset())


async def test_nor_is_one_that_has_a_grant_whoever_wrote_it() -> None:
    world = PressureWorld()
    world.runs("a")
    world.api.change(f"{SCALABLE_WORKLOAD.path('demo', 'a')}/status", {"status": {"grant": {"plan": ""}}})
    assert names(await idlers(world)) == []


async def test_nor_is_one_whose_scaled_object_has_just_been_deleted() -> None:
    """What it said stays on the board until the next evaluation."""
    world = PressureWorld()
    world.runs("a")
    await world.judged()
    evaluation = world.board.evaluation
    assert evaluation is not None
    world.is_scaled_by("a")
    found = find_candidates(
        evaluation,
        world.evaluator.cluster,
        world.view.filing.snapshot,
        weights=CostWeights(),
        patience=timedelta(0),
        now=world.now,
    )
    assert names(found) == []


async def test_who_is_told_to_go_by_its_own_policy_is_counted_on() -> None:
    world = PressureWorld()
    world.runs("a", metadata=ALWAYS)
    found = await idlers(world, patience=timedelta(hours=2))
    assert (names(found), found.leaving) == ([], {"demo/a"})


async def test_but_not_for_ever() -> None:
    """Another trigger keeps it at 1, say: it was told to go 118 minutes ago, and KEDA may need 10."""
    world = PressureWorld()
    world.runs("a", metadata=ALWAYS)
    found = await idlers(world)
    assert (names(found), found.leaving) == ([], frozenset())


async def test_nor_where_keda_is_told_to_leave_it_alone() -> None:
    world = PressureWorld()
    world.runs("a", metadata=ALWAYS, **{"autoscaling.keda.sh/paused": "true"})
    found = await idlers(world, patience=timedelta(hours=2))
    assert found.leaving == frozenset()


async def test_who_is_at_zero_without_a_plan_leaves() -> None:
    world = PressureWorld()
    world.runs("a")
    world.scales("a", 0)
    found = await idlers(world)
    assert (names(found), found.leaving) == ([], {"demo/a"})


async def test_who_was_idle_for_longer_and_has_worked_for_less_costs_less() -> None:
    """Both run for two hours; one has worked until half an hour ago."""
    world = PressureWorld(quota=20)
    world.runs("never-worked")
    world.runs("worked")
    world.busy["worked"] = [(at(-7000).timestamp(), at(-1800).timestamp())]
    found = {each.name: each.cost.total for each in (await idlers(world)).candidates}
    assert found["demo/never-worked"] < found["demo/worked"]


async def test_who_was_taken_before_costs_more() -> None:
    world = PressureWorld(quota=20)
    for name in ("a", "b"):
        world.runs(name)
    ledger = {"plan": "p", "workload": "demo/x", "gpus": 2, "stage": "Admitted", "times": 3}
    world.api.change(f"{SCALABLE_WORKLOAD.path('demo', 'a')}/status", {"status": {"reallocation": ledger}})
    found = {each.name: each.cost.total for each in (await idlers(world)).candidates}
    assert found["demo/b"] < found["demo/a"]


async def test_gangs_are_planned_for_by_priority_and_then_by_age() -> None:
    world = PressureWorld()
    world.runs("holds")
    world.waits("young", created=at(60))
    world.waits("old", created=at(0))
    world.waits("first", created=at(90))
    world.api.change("/apis/kueue.x-k8s.io/v1beta2/namespaces/demo/workloads/first", {"spec": {"priority": 10}})
    workloads = world.view.filing.snapshot.workloads
    assert [each.name for each in pending_gpu_workloads(workloads.values(), world.evaluator.cluster)] == [
        "first",
        "old",
        "young",
    ]
    assert [gpus_of(workloads[f"demo/{name}"], world.evaluator.cluster) for name in ("holds", "old")] == [2, 8]


async def test_idle_is_who_is_so_by_every_trigger_and_unknown_who_is_so_by_one() -> None:
    world = PressureWorld()
    world.runs("a")
    [idle] = await decisions_on_a(world)
    world.source.failing = dict.fromkeys(("gr_engine_active", "gpu_util"), SourceError("down", transient=True))
    world.now += 2 * TICK
    [unknown] = await decisions_on_a(world)
    world.is_scaled_by("a", {"mode": "observe"})
    world.source.failing.clear()
    [observed] = await decisions_on_a(world)
    assert [is_idle(each) for each in ([idle], [idle, unknown], [idle, observed], [])] == [True, False, False, False]
    assert [is_unknown(each) for each in ([unknown], [idle, unknown], [observed, unknown], [idle], [])] == [
        True, True, False, False, False
    ]  # fmt: skip


async def decisions_on_a(world: PressureWorld) -> Sequence[Decision]:
    await world.judged()
    assert world.board.evaluation is not None
    return world.board.evaluation.decisions_on("demo", scalable_workload_ref("a"))
