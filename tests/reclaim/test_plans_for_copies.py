"""A gang of 8 GPUs waits that is a remote copy of MultiKueue, and idle a and b hold what it lacks: nothing is suspended
for it unless this cluster is nominated for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reclaim.node_shortage_world import NodesWorld
from reclaim.reclaim_world import PressureWorld
from reclaim.test_controller import AT_ZERO, BEGUN, GRANTED, HALF, NOT_BEGUN, outcome

from scaler.admission.remote_copies import NominatedCopies
from scaler.idleness.reasons import UnknownReason
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_GATE, MULTIKUEUE_ORIGIN
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.reclaim.search.values import NoPlan, NoPlanReason
from scaler.targets.target_state import Phase

UNKNOWN = NominatedCopies(unknown="not synced: ClusterOffers (no answer)")


def world(*, copies: tuple[str, ...] = ("gang",), quota: int = 8, strategy: str = "StrictFIFO") -> PressureWorld:
    made = PressureWorld(quota, strategy=strategy)
    made.runs("a")
    made.runs("b")
    for name in copies:
        made.waits(name, is_copy=True)
    return made


async def plan_at(phase: str) -> PressureWorld:
    made = world()
    made.is_nominated_for("gang")
    await made.judged()
    await made.ticks()
    assert made.has_grant("a")
    assert made.has_grant("b")
    if phase == HALF:
        made.slow = {"b"}
    if phase != GRANTED:
        await made.keda()
    if phase == BEGUN:
        await made.ticks()
        assert made.deactivated == ["a", "b"]
    return made


def granted(made: PressureWorld) -> list[str]:
    return [each for each in ("a", "b") if made.has_grant(each)]


# ------------------------------------------------------------------------------------------------------ for whom


async def test_nothing_is_suspended_for_a_copy_without_a_nomination() -> None:
    made = world()
    await made.passes(minutes=15)
    assert outcome(made, "a", "b") == ["untouched", "untouched"]
    assert not made.is_admitted("gang")
    assert made.events.reasons("gang") == ["RemoteCopy"], "once"
    [refused] = (await made.planned()).refused
    assert (refused.gang, refused.why) == ("demo/gang", NoPlanReason.REMOTE_COPY)


async def test_what_is_idle_is_suspended_where_the_cluster_is_nominated() -> None:
    made = world()
    made.is_nominated_for("gang")
    await made.passes(minutes=15)
    assert outcome(made, "a", "b") == ["suspended", "suspended"]
    assert made.is_admitted("gang")


async def test_where_nominations_are_not_known_nothing_is_suspended() -> None:
    made = world()
    made.nominations = UNKNOWN
    await made.passes(minutes=15)
    assert outcome(made, "a", "b") == ["untouched", "untouched"]
    [refused] = (await made.planned()).refused
    assert refused.why is NoPlanReason.UNFORESEEABLE
    assert "not synced" in refused.message


# ------------------------------------------------------------------------------------------ a nomination is withdrawn


@pytest.mark.parametrize("phase", [*NOT_BEGUN, BEGUN])
async def test_a_plan_ends_with_its_nomination_and_all_victims_run_again(phase: str) -> None:
    made = await plan_at(phase)
    made.is_nominated_for()
    if phase == BEGUN:
        made.leaves("gang")  # else Kueue admits it into what is free already
    await made.passes(minutes=5)
    assert not granted(made)
    assert [made.is_active(each) for each in ("a", "b")] == [True, True]
    assert made.deactivated == (["a", "b"] if phase == BEGUN else [])
    assert any("GangGone" in message for _, _, reason, message in made.events.told if reason == "ReclaimCancelled")


@pytest.mark.parametrize("phase", [GRANTED, AT_ZERO])
async def test_while_nominations_are_not_known_nothing_is_deactivated_and_the_plan_stays(phase: str) -> None:
    made = await plan_at(phase)
    made.nominations = UNKNOWN
    await made.passes(minutes=3)
    assert made.deactivated == []
    assert granted(made) == ["a", "b"]
    made.is_nominated_for("gang")
    await made.passes(minutes=2)
    assert made.is_admitted("gang")


async def test_a_copy_that_has_its_quota_keeps_it_whatever_becomes_of_the_nomination() -> None:
    made = await plan_at(BEGUN)
    await made.kueue()
    assert made.is_admitted("gang")
    made.is_nominated_for()
    await made.passes(minutes=5)
    assert outcome(made, "a", "b") == ["suspended", "suspended"]
    assert not granted(made)


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["nominated", "not nominated", "unknown", "gate"]), min_size=1, max_size=8))
async def test_a_workload_is_deactivated_only_while_the_nomination_stands(steps: list[str]) -> None:
    made = world()
    for step in steps:
        made.nominations = UNKNOWN if step == "unknown" else NominatedCopies()
        if step == "nominated":
            made.is_nominated_for("gang")
        position = "Open" if step == "gate" else "Closed"
        made.change(WORKLOAD, "gang", status={"preemptionGates": [{"name": MULTIKUEUE_GATE, "position": position}]})
        before = len(made.deactivated)
        await made.passes(minutes=1)
        if step in ("unknown", "not nominated"):
            assert len(made.deactivated) == before
    made.is_nominated_for()
    made.change(WORKLOAD, "gang", status={"preemptionGates": []})
    is_in = made.is_admitted("gang")
    await made.passes(minutes=20)
    assert is_in or [made.is_active(each) for each in ("a", "b")] == [True, True]


# ---------------------------------------------------------------------------------------------------- gangs beside it


async def test_no_plan_for_another_gang_lets_the_copy_start_first() -> None:
    """Of 8 idle GPUs the copy would take 4, the gang behind it the others."""
    made = PressureWorld(8)
    for name in ("a", "b"):
        made.runs(name, gpus=4)
    made.waits("copy", gpus=4, is_copy=True)
    await made.judged()
    made.waits("local", gpus=4)
    await made.passes(minutes=10)
    assert outcome(made, "a", "b") == ["untouched", "untouched"]
    [found] = [each for each in (await made.planned()).refused if each.gang == "demo/local"]
    assert found.why in (NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, NoPlanReason.HEAD_OF_LINE_BLOCKED)


async def test_many_copies_in_line_keep_no_other_gang_from_its_plan() -> None:
    made = PressureWorld(8, strategy="BestEffortFIFO")
    made.runs("a")
    made.runs("b")
    for number in range(9):
        made.waits(f"copy-{number}", gpus=100, is_copy=True)
    await made.judged()
    made.waits("local")
    report = await made.ticks()
    assert [each.gang for each in report.made] == ["demo/local"]
    assert len([each for each in report.refused if each.why is NoPlanReason.REMOTE_COPY]) == 9


# ------------------------------------------------------------------------------------------------------------- nodes


async def test_for_a_copy_that_has_quota_and_lacks_nodes_nothing_is_suspended_either() -> None:
    made = NodesWorld({"n1": 8})
    made.runs("a", gpus=8, on="n1")
    made.waits("gang", pods=2, gpus=4, is_copy=True)
    await made.passes(minutes=10)
    assert outcome(made, "a") == ["untouched"]
    made.is_nominated_for("gang")
    await made.passes(minutes=10)
    assert outcome(made, "a") == ["suspended"]
    assert made.is_admitted("gang")


async def test_no_plan_for_nodes_lets_a_copy_start_that_reserved_earlier() -> None:
    made = NodesWorld({"n1": 4, "n2": 4})
    made.runs("a", gpus=4, on="n1")
    made.runs("b", gpus=4, on="n2")
    made.waits("copy", pods=1, gpus=4, is_copy=True)
    await made.passes(minutes=1)
    made.waits("local", pods=1, gpus=4)
    await made.passes(minutes=10)
    assert outcome(made, "a", "b") == ["untouched", "untouched"]
    [found] = [each for each in (await made.planned()).refused if each.gang == "demo/local"]
    assert (found.why, "demo/copy" in found.message) == (NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, True)
    made.is_nominated_for("copy")
    await made.passes(minutes=20)
    assert made.is_admitted("copy")
    assert made.is_admitted("local")


# ------------------------------------------------------------------------------------------ a copy is never suspended


async def test_the_spec_of_a_remote_copy_is_never_written_whatever_replicas_say() -> None:
    """The hub makes a new, active copy of each that is deactivated: 28 rounds in a minute were seen."""
    made = PressureWorld()
    made.runs("a")
    made.change(WORKLOAD, "a", metadata={"labels": {MULTIKUEUE_ORIGIN: "multikueue"}})
    made.scales("a", 0)
    await made.passes(minutes=3)
    assert (made.is_active("a"), made.deactivated) == (True, [])
    made.scales("a", 1)
    await made.passes(minutes=3)
    assert made.is_active("a")
    status = made.read(SCALABLE_WORKLOAD, "a")["status"]
    assert (status["phase"], status["reason"]) == (Phase.REFUSED, UnknownReason.REMOTE_COPY)
    assert "suspend it on the hub" in status["message"]
    assert "RemoteCopy" in made.events.reasons("a")


async def test_an_idle_remote_copy_is_no_victim_and_its_replicas_stay() -> None:
    made = PressureWorld(8)
    made.runs("a", gpus=8, metadata={"reclaim": "Always", "idleAfter": "2m"})
    made.change(WORKLOAD, "a", metadata={"labels": {MULTIKUEUE_ORIGIN: "multikueue"}})
    made.waits("gang")
    await made.passes(minutes=10)
    assert outcome(made, "a") == ["untouched"]
    found = [each for each in (await made.planned()).refused if isinstance(each, NoPlan)]
    assert [each.why for each in found] == [NoPlanReason.NOT_ENOUGH_IDLE]


async def test_what_a_plan_asks_to_suspend_is_not_deactivated_once_it_is_a_copy() -> None:
    made = PressureWorld()
    made.runs("a")
    made.change(WORKLOAD, "a", metadata={"labels": {MULTIKUEUE_ORIGIN: "multikueue"}})
    await made.reconciler.suspend(("demo", "a"))
    assert made.is_active("a")


# --------------------------------------------------------------------------------------------------- priority boosts


async def test_queues_in_whose_tree_such_a_copy_waits_are_spared_of_boosts() -> None:
    made = PressureWorld({"one": 8, "two": 8})
    made.waits("copy", queue="one", is_copy=True)
    planner = made.pressure.planning
    assert set(planner.spared_queues()) == {"one"}
    assert "demo/copy waits" in planner.spared_queues()["one"]
    made.is_nominated_for("copy")
    assert planner.spared_queues() == {}
    made.is_nominated_for()
    made.view.blind = "not synced"
    assert set(planner.spared_queues()) == {""}, "it may wait in any"
    made.leaves("copy")
    assert planner.spared_queues() == {}
