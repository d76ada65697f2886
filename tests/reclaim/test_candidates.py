"""Who may be taken by a plan, who goes anyway, and who waits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import LONG_AGO, at
from loops_builders import TICK, stamp
from reclaim.reclaim_world import ON_PRESSURE, PressureWorld

from scaler.decision.decision import Active, Decision
from scaler.decision.reasons import DecisionReason
from scaler.errors import SourceError
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.reclaim.candidates import (
    find_candidates,
    gpus_of,
    is_idle,
    is_undecided,
    pending_gpu_workloads,
)
from scaler.reclaim.costs import CostWeights
from scaler.reclaim.search.values import Candidate
from scaler.targets.workloads import KEEP_UNTIL

ALWAYS = {"reclaim": "Always", "idleAfter": "2m"}
GRANT = {"plan": "p", "workload": "demo/g", "workloadUID": "u", "victims": ["demo/a"]}
Found = tuple[tuple[Candidate, ...], frozenset[str]]
DOWN = dict.fromkeys(("gr_engine_active", "gpu_util"), SourceError("Prometheus is down", transient=True))


async def found_in(world: PressureWorld, *, patience: timedelta = timedelta(minutes=10), judged: bool = True) -> Found:
    """The candidates and the keys of those that leave, as they are evaluated next."""
    if judged:
        await world.judged()
    assert world.decision_cache.evaluation is not None
    return await find_candidates(
        world.decision_cache.evaluation,
        world.evaluator.cluster,
        world.view.filing.snapshot,
        weights=CostWeights(),
        patience=patience,
        hooks={},
        now=world.now,
    )


async def candidates(world: PressureWorld) -> tuple[Candidate, ...]:
    return (await found_in(world))[0]


def writes(world: PressureWorld, name: str, **status: Any) -> None:
    world.change(SCALABLE_WORKLOAD, name, status=status)


async def test_an_idle_workload_that_is_left_to_plans_is_a_candidate() -> None:
    world = PressureWorld()
    world.runs("a", gpus=3)
    [found] = await candidates(world)
    assert (found.name, found.workload, found.gpus) == ("demo/a", "demo/a", 3)
    assert (found.member.key, found.cluster_queue) == (("demo", "a"), "cq")


@pytest.mark.parametrize("annotation", ["paused", "paused-scale-in", "paused-scale-out", "force-activation"])
async def test_it_is_one_where_an_annotation_of_kedas_says_false(annotation: str) -> None:
    world = PressureWorld()
    world.runs("a", **{f"autoscaling.keda.sh/{annotation}": "false"})
    assert len(await candidates(world)) == 1


def nothing(_: PressureWorld) -> None:
    """Happens."""


@pytest.mark.parametrize(
    ("given", "change", "leaves"),
    [
        pytest.param({"metadata": {"mode": "observe"}}, nothing, False, id="it is only observed"),
        pytest.param({"metadata": {"reclaim": "PriorityBoost"}}, nothing, False, id="it is left to Kueue"),
        pytest.param({"metadata": {"warmUp": "3h"}}, nothing, False, id="it is still warming up"),
        pytest.param({"more_triggers": [ON_PRESSURE | {"mode": "observe"}]}, nothing, False, id="a trigger forbids it"),
        pytest.param({"autoscaling.keda.sh/paused": "true"}, nothing, False, id="KEDA is paused"),
        pytest.param({"autoscaling.keda.sh/paused-replicas": "1"}, nothing, False, id="KEDA has fixed replicas"),
        pytest.param({"autoscaling.keda.sh/paused-scale-in": "true"}, nothing, False, id="KEDA does not scale in"),
        pytest.param({"autoscaling.keda.sh/force-activation": "true"}, nothing, False, id="KEDA takes it for active"),
        pytest.param({KEEP_UNTIL: "2026-12-24T18:00:00Z"}, nothing, False, id="it is kept"),
        pytest.param({KEEP_UNTIL: "Christmas"}, nothing, False, id="it is kept until an unreadable time"),
        pytest.param({}, lambda world: world.works("a"), False, id="it works"),
        pytest.param({}, lambda world: world.preempts("a"), False, id="it holds no quota"),
        pytest.param(
            {}, lambda world: writes(world, "a", grant={"plan": ""}), False, id="it has a grant, even unreadable"
        ),
        pytest.param({}, lambda world: world.source.failing.update(DOWN), False, id="it is not known to be idle"),
        pytest.param({}, lambda world: world.scales("a", 0), True, id="it is at 0 without a plan: it leaves"),
        # Another trigger keeps it at 1, say: it was answered inactive 118 minutes ago, and KEDA may need 10.
        pytest.param({"metadata": ALWAYS}, nothing, False, id="its own policy has suspended it long ago, in vain"),
    ],
)
async def test_it_is_no_candidate_where(
    given: dict[str, Any], change: Callable[[PressureWorld], None], leaves: bool
) -> None:
    world = PressureWorld()
    world.runs("a", **given)
    await world.judged()
    change(world)
    assert await found_in(world) == ((), frozenset({"demo/a"}) if leaves else frozenset())


@pytest.mark.parametrize(("paused", "leaving"), [({}, {"demo/a"}), ({"autoscaling.keda.sh/paused": "true"}, set())])
async def test_what_its_own_policy_suspends_leaves_unless_keda_is_paused(
    paused: dict[str, str], leaving: set[str]
) -> None:
    world = PressureWorld()
    world.runs("a", metadata=ALWAYS, **paused)
    assert await found_in(world, patience=timedelta(hours=2)) == ((), leaving)


async def test_nor_is_one_whose_scaled_object_has_just_been_deleted() -> None:
    """Its decisions stay until the next evaluation."""
    world = PressureWorld()
    world.runs("a")
    await world.judged()
    world.is_scaled_by("a")
    assert await found_in(world, judged=False) == ((), frozenset())


@pytest.mark.parametrize(
    ("asked", "minutes"),
    [(None, 5), (LONG_AGO - timedelta(minutes=20), 20), (LONG_AGO + timedelta(minutes=20), 5)],
    ids=["that never came back", "that came back", "that was asked back and whose pods of before are all that is seen"],
)
async def test_it_costs_the_time_that_one_took_to_come_back(asked: datetime | None, minutes: int) -> None:
    world = PressureWorld()
    world.runs("a", gpus=3)
    if asked is not None:
        writes(world, "a", resumedAt=stamp(asked))
    [found] = await candidates(world)
    # 3 GPUs for so many minutes, in thousandths of GPU hours.
    assert dict(found.cost.parts)["timeToResume"] == CostWeights().time_to_resume * 3 * minutes / 60 * 1000


@pytest.mark.parametrize("dearer", ["worked until half an hour ago", "was reclaimed before"])
async def test_recent_work_and_earlier_suspensions_cost(dearer: str) -> None:
    world = PressureWorld(quota=20)
    for name in ("a", "b"):
        world.runs(name)
    if dearer.startswith("worked"):
        world.busy["a"] = [(at(-7000).timestamp(), at(-1800).timestamp())]
    else:
        ledger = {"plan": "p", "workload": "demo/x", "gpus": 2, "stage": "Admitted", "times": 3}
        writes(world, "a", reallocation=ledger)
    found = {each.name: each.cost.total for each in await candidates(world)}
    assert found["demo/b"] < found["demo/a"]


async def test_work_that_nobody_may_have_seen_costs_as_if_it_was_done() -> None:
    """One runs for longer than samples are kept: it may have worked until they begin. The other did nothing."""
    world = PressureWorld(quota=20)
    world.runs("old", started=LONG_AGO - timedelta(days=300))
    world.runs("young")
    found = {each.name: dict(each.cost.parts) for each in await candidates(world)}
    assert found["demo/old"]["gpuHoursLost"] >= 2 * 300 * 24 * 1000 > found["demo/young"]["gpuHoursLost"]


async def test_gangs_are_planned_for_by_priority_and_then_by_age() -> None:
    world = PressureWorld()
    world.runs("holds")
    world.waits("young", created=at(60))
    world.waits("old", created=at(0))
    world.waits("first", created=at(90))
    world.change(WORKLOAD, "first", spec={"priority": 10})
    snapshot = world.view.filing.snapshot
    workloads, lines = snapshot.workloads, snapshot.waiting().values()
    assert [each.name for each in pending_gpu_workloads(lines, world.evaluator.cluster)] == ["first", "old", "young"]
    assert [gpus_of(workloads[f"demo/{name}"], world.evaluator.cluster) for name in ("holds", "old")] == [2, 8]


async def test_idle_is_who_is_so_by_every_trigger_and_unknown_who_is_so_by_one() -> None:
    world = PressureWorld()
    world.runs("a")
    [idle] = await decisions_on_a(world)
    world.source.failing.update(DOWN)
    world.now += 2 * TICK
    [unknown] = await decisions_on_a(world)
    world.is_scaled_by("a", {"mode": "observe"})
    world.source.failing.clear()
    [observed] = await decisions_on_a(world)
    assert is_idle([idle])
    assert not any(map(is_idle, ([idle, unknown], [idle, observed], [])))
    assert all(map(is_undecided, ([unknown], [idle, unknown])))
    assert not any(map(is_undecided, ([observed, unknown], [idle], [])))
    prepares, failed = (
        replace(idle, answer=Active(reason=each, message=""))
        for each in (DecisionReason.BEFORE_SUSPEND, DecisionReason.BEFORE_SUSPEND_FAILED)
    )
    assert all(map(is_undecided, ([prepares], [idle, prepares], [unknown, prepares])))
    assert not any(map(is_undecided, ([failed], [observed, prepares], [failed, prepares])))
    assert not any(map(is_idle, ([prepares], [failed])))


async def decisions_on_a(world: PressureWorld) -> Sequence[Decision]:
    await world.judged()
    assert world.decision_cache.evaluation is not None
    return world.decision_cache.evaluation.decisions_on("demo", scalable_workload_ref("a"))
