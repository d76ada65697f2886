"""A gang waits for 8 GPUs, of which 4 are free and idle a and b hold 2 each: what becomes of the plan for it, whatever
happens in the meantime?"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from builders import at
from loops_builders import stamp
from reclaim.reclaim_world import PressureWorld

from scaler.decision.workloads import KEEP_UNTIL, WAKE_ANNOTATION
from scaler.errors import SourceError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.reclaim.budgets.budget import Budget, Limit
from scaler.reclaim.config import Unprotected
from scaler.reclaim.ledger import LedgerStage
from scaler.reclaim.search.values import NoPlan, NoPlanReason

GRANTED, HALF, AT_ZERO, BEGUN = "granted", "one of two at 0", "both at 0", "both deactivated"
NOT_BEGUN = (GRANTED, HALF, AT_ZERO)


async def waiting(*idle: str, **world: Any) -> PressureWorld:
    """The gang waits, and a and b are known to be idle; and so are these."""
    made = PressureWorld(**({"quota": 8 + 2 * len(idle)} | world))
    for name in ("a", "b", *idle):
        made.runs(name)
    made.waits("gang")
    await made.judged()
    return made


async def plan_at(phase: str, *idle: str, **world: Any) -> PressureWorld:
    """The plan for the gang has come so far."""
    made = await waiting(*idle, **world)
    await made.ticks()
    assert made.has_grant("a")
    assert made.has_grant("b")
    if phase == HALF:
        made.slow = {"b"}
    if phase != GRANTED:
        await made.keda()
        assert (made.replicas("a"), made.replicas("b")) == (0, 1 if phase == HALF else 0)
    if phase == BEGUN:
        await made.ticks()
        assert made.deactivated == ["a", "b"]
    return made


def outcome(world: PressureWorld, *names: str) -> list[str]:
    """What became of these, in a word each."""
    return [
        "untouched" if world.is_untouched(each) else "suspended" if world.is_suspended(each) else "?" for each in names
    ]


# -------------------------------------------------------------------------------------------------- as it should be


async def test_four_free_and_four_idle_serve_a_gang_of_eight() -> None:
    world = await waiting()
    await world.passes(minutes=3)
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b") == ["suspended", "suspended"]
    assert not world.has_grant("a")
    assert not world.has_grant("b")


async def test_both_sides_are_told() -> None:
    world = await waiting()
    await world.passes(minutes=3)
    told = [reason for reason in world.events.reasons("gang") if reason.startswith("Reclaim")]
    assert told == ["ReclaimPlanned", "ReclaimAdmitted"]
    for name in ("a", "b"):
        reasons = world.events.reasons(name)
        assert reasons.index("ReclaimGranted") < reasons.index("Reclaimed") < reasons.index("PodsGone")
        assert "ReclaimCancelled" not in reasons
    *_, (*_, said) = [each for each in world.events.told if each[2] == "ReclaimAdmitted"]
    assert said == "admitted with 4 GPUs of demo/a, demo/b, 1m after the plan was granted"


async def test_the_ledger_says_what_was_observed_and_when() -> None:
    """Granted at 60 s, deactivated at 90 s; Kueue gives the quota at once, and the pods are gone at 120 s."""
    world = await waiting()
    await world.passes(minutes=3)
    for name in ("a", "b"):
        found = world.scalable(name).status.reallocation
        assert found is not None
        assert (found.stage, found.gpus, found.times, found.workload) == ("Admitted", 2, 1, "demo/gang")
        assert (found.reclaimable_at, found.releasing_at) == (at(60), at(90))
        assert (found.reserved_at, found.available_at, found.admitted_at) == (at(90), at(120), at(120))
        assert found.wasted_gpu_seconds == 2 * 30
    assert [(each.stage, each.gpus) for each in world.ended] == [(LedgerStage.ADMITTED, 2)] * 2


async def test_what_still_ends_is_not_the_gangs_yet() -> None:
    """Kueue admits it a second after the deactivation; pods may take minutes to end."""
    world = await plan_at(BEGUN)
    world.evicts()
    world.admits()
    await world.ticks(2)
    assert world.is_admitted("gang")
    assert (world.stage("a"), world.has_grant("a"), world.ended) == ("Releasing", True, [])
    world.evicts()
    await world.ticks(2)
    assert (world.stage("a"), world.has_grant("a")) == ("Admitted", False)


async def test_a_victim_that_is_said_to_hold_quota_for_long_has_given_it_all_the_same() -> None:
    """Kueue writes its condition late, and for jobs in other clusters not at all."""
    world = await plan_at(BEGUN)
    world.admits()
    for name in ("a", "b"):
        world.ends_pods(name)
    await world.ticks(2)
    found = world.scalable("a").status.reallocation
    assert found is not None
    assert (found.stage, found.available_at) == ("Admitted", world.now)


async def test_pods_that_never_end_do_not_keep_the_plan_for_ever() -> None:
    world = await plan_at(BEGUN, grant_for=timedelta(minutes=2))
    world.evicts()
    world.admits()
    for _ in range(6):
        await world.judged()
        await world.ticks()
    assert (world.stage("a"), world.has_grant("a")) == ("Admitted", False)


async def test_nobody_is_asked_to_go_while_nobody_waits() -> None:
    world = PressureWorld()
    world.runs("a")
    world.runs("b")
    await world.passes(minutes=30)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]
    assert world.stage("a") == ""
    assert world.deactivated == []


async def test_a_gang_that_fits_already_takes_nobody() -> None:
    world = PressureWorld(12)
    world.runs("a")
    world.runs("b")
    world.waits("gang")
    await world.judged()
    outlook = await world.ticks()
    assert [each.why for each in outlook.refused] == [NoPlanReason.FITS_ALREADY]
    await world.passes(minutes=3)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_nobody_is_deactivated_before_all_are_at_zero_and_then_all_are_at_once() -> None:
    world = await plan_at(HALF)
    await world.passes(minutes=3)
    assert world.deactivated == []
    assert world.scalable("a").status.phase == "HeldForPlan"
    world.slow.clear()
    await world.keda()
    before = len(world.api.writes)
    await world.ticks()
    first, second = [path for path, body in world.api.writes[before:] if body.get("spec") == {"active": False}]
    paths = [path for path, _ in world.api.writes]
    assert paths.index(second) == paths.index(first) + 1


async def test_plans_are_switched_off() -> None:
    world = await waiting(pressure=False)
    await world.passes(minutes=3)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_a_plan_that_nobody_can_protect_is_refused_where_settings_say_so() -> None:
    world = await waiting(strategy="BestEffortFIFO", unprotected=Unprotected.REFUSE)
    outlook = await world.ticks()
    assert [each.why for each in outlook.refused] == [NoPlanReason.UNPROTECTED]
    await world.passes(minutes=3)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


# -------------------------------------------------------------------------------------------------- a victim is wanted


async def settled(world: PressureWorld) -> None:
    """So much later that no answer of before is acted upon any more."""
    world.now += timedelta(seconds=10)
    await world.ticks(2)


async def is_called_off(world: PressureWorld) -> None:
    """Nothing was lost: both run as they did, nobody has touched them, and the gang waits on."""
    await world.ticks(2)
    assert world.deactivated == []
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]
    assert world.stage("a") == world.stage("b") == "Cancelled"
    assert not world.is_admitted("gang")
    assert "ReclaimCancelled" in world.events.reasons("gang")
    assert "ReclaimCancelled" in world.events.reasons("a")


@pytest.mark.parametrize("phase", NOT_BEGUN)
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_victim_that_works_calls_everything_off_at_no_cost(phase: str, name: str) -> None:
    world = await plan_at(phase)
    world.works(name)
    await world.judged()
    await is_called_off(world)
    assert [each.stage for each in world.ended] == [LedgerStage.CANCELLED] * 2


@pytest.mark.parametrize("phase", NOT_BEGUN)
async def test_so_does_one_that_is_to_be_kept(phase: str) -> None:
    world = await plan_at(phase)
    world.annotates("a", KEEP_UNTIL, "2026-12-24T18:00:00Z")
    await is_called_off(world)


@pytest.mark.parametrize("phase", [HALF, AT_ZERO])
async def test_so_does_one_that_its_owner_wakes(phase: str) -> None:
    world = await plan_at(phase)
    world.annotates("a", WAKE_ANNOTATION, "true")
    await is_called_off(world)


@pytest.mark.parametrize("phase", [HALF, AT_ZERO])
async def test_so_does_one_that_its_owner_has_scaled_up(phase: str) -> None:
    """With `kubectl scale`: nothing else is to be seen of it, and its GPUs are as idle as before."""
    world = await plan_at(phase)
    world.slow = {"a", "b"}
    if phase == HALF:
        await world.ticks()
    else:
        world.pressure.executor.standing()  # it was seen at 0
    world.scales("a", 1)
    await is_called_off(world)
    assert "VictimWoke" in str(world.events.told)


@pytest.mark.parametrize("phase", NOT_BEGUN)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.is_scaled_by("a"), id="its ScaledObject is deleted"),
        pytest.param(lambda world: world.is_scaled_by("a", {"mode": "observe"}), id="it is only observed"),
        pytest.param(lambda world: world.is_scaled_by("a", {"reclaim": "Always"}), id="it is reclaimed always"),
        pytest.param(
            lambda world: world.is_scaled_by("a", {}, **{"autoscaling.keda.sh/paused": "true"}), id="KEDA is paused"
        ),
        pytest.param(
            lambda world: world.is_scaled_by("a", {}, {"idleAfter": "3h", "idleAfterUnderPressure": "150m"}),
            id="another trigger has seen work",
        ),
        pytest.param(lambda world: world.preempts("a"), id="Kueue has preempted it"),
        pytest.param(lambda world: world.finishes("a"), id="it has finished"),
    ],
)
async def test_so_does_one_that_must_not_be_taken_any_more(phase: str, change: Callable[[PressureWorld], None]) -> None:
    world = await plan_at(phase)
    world.busy["a"] = [(at(-9000).timestamp(), at(-8000).timestamp())]
    change(world)
    await world.judged()
    await world.ticks(2)
    assert world.deactivated == []
    await settled(world)
    assert outcome(world, "b") == ["untouched"]
    assert world.is_active("a")
    assert world.replicas("a") == 1
    assert not world.has_grant("a")


@pytest.mark.parametrize("phase", NOT_BEGUN)
async def test_so_does_one_that_is_deleted(phase: str) -> None:
    world = await plan_at(phase)
    world.api.delete(SCALABLE_WORKLOAD, "a")
    await world.ticks(2)
    await settled(world)
    assert outcome(world, "b") == ["untouched"]
    assert world.deactivated == []


async def test_a_victim_that_woke_is_left_alone_for_a_while() -> None:
    world = await plan_at(HALF)
    world.annotates("a", WAKE_ANNOTATION, "true")
    await world.ticks(2)
    world.slow.clear()
    await settled(world)
    await world.passes(minutes=0.5)
    assert not world.has_grant("a")
    await world.passes(minutes=5)
    assert world.is_admitted("gang")


async def test_a_victim_that_wakes_when_all_are_deactivated_takes_nothing_from_a_gang_that_fits_without() -> None:
    """Somebody else has left meanwhile: 2 more are free."""
    world = await plan_at(BEGUN)
    world.has_quota(10)
    world.scales("a", 1)
    await world.ticks()
    assert world.has_grant("b")
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert outcome(world, "b") == ["suspended"]
    assert world.is_active("a")
    assert (world.stage("a"), world.stage("b")) == ("Cancelled", "Admitted")


async def test_one_that_wakes_and_gets_its_quota_back_is_replaced_by_another() -> None:
    """It is older than the gang, and Kueue comes to look at it first."""
    world = await plan_at(BEGUN, "c")
    world.scales("a", 1)
    world.evicts()
    await world.reconciled("a")
    world.admits()
    assert world.is_admitted("a")
    await world.ticks(2)
    assert [name for name in ("a", "b", "c") if world.has_grant(name) and world.stage(name) != "Cancelled"] == [
        "b",
        "c",
    ]
    assert world.deactivated == ["a", "b"], "the new one has to go to 0 first"
    assert "ReclaimReplanned" in world.events.reasons("gang")
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert outcome(world, "b", "c") == ["suspended", "suspended"]
    assert (world.stage("a"), world.stage("b"), world.stage("c")) == ("Cancelled", "Admitted", "Admitted")


async def test_where_nobody_else_can_give_the_rest_is_woken() -> None:
    world = await plan_at(BEGUN)
    world.scales("a", 1)
    world.evicts()
    await world.reconciled("a")
    world.admits()
    await world.ticks(2)
    await world.passes(minutes=2)
    assert world.is_active("b")
    assert world.replicas("b") == 1
    assert not world.is_admitted("gang")


# ------------------------------------------------------------------------------------------------ the gang has changed


@pytest.mark.parametrize("phase", NOT_BEGUN)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.leaves("gang"), id="deleted"),
        pytest.param(lambda world: world.finishes("gang"), id="finished"),
        pytest.param(
            lambda world: world.api.change(WORKLOAD.path("demo", "gang"), {"spec": {"active": False}}), id="deactivated"
        ),
        pytest.param(lambda world: (world.leaves("gang"), world.waits("gang", gpus=4)), id="replaced by one that fits"),
    ],
)
async def test_without_its_gang_a_plan_lets_everybody_go(phase: str, change: Callable[[PressureWorld], None]) -> None:
    world = await plan_at(phase)
    change(world)
    await world.ticks(2)
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_whoever_was_suspended_for_a_gang_that_is_gone_is_woken() -> None:
    world = await plan_at(BEGUN)
    world.leaves("gang")
    await world.ticks(2)
    await world.passes(minutes=2)
    for name in ("a", "b"):
        assert world.is_admitted(name)
        assert world.replicas(name) == 1
        assert world.stage(name) == "Cancelled"


async def test_a_plan_that_is_not_needed_any_more_suspends_nobody() -> None:
    """Quota has come free elsewhere just before it would have been carried out."""
    world = await plan_at(AT_ZERO)
    world.has_quota(12)
    await is_called_off(world)


@pytest.mark.parametrize("phase", NOT_BEGUN)
async def test_a_gang_that_gets_in_by_itself_takes_nobody_with_it(phase: str) -> None:
    """Or whoever is at 0 would be suspended as soon as the grants are gone."""
    world = await plan_at(phase)
    world.has_quota(12)
    world.admits()
    assert world.is_admitted("gang")
    await world.ticks(2)
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]
    assert {each.stage for each in world.ended} == {LedgerStage.CANCELLED}


async def test_two_gangs_of_one_queue_have_their_plans_one_after_the_other() -> None:
    world = await waiting(quota=12)
    world.runs("c", gpus=8)
    world.leaves("gang")
    world.waits("first", gpus=2)
    world.waits("second", gpus=2)
    await world.ticks()
    assert [each for each in ("a", "b", "c") if world.has_grant(each)] == ["a"]
    await world.passes(minutes=4)
    assert world.is_admitted("first")
    assert world.is_admitted("second")
    assert world.is_active("c")


async def test_queues_that_share_nothing_have_theirs_at_the_same_time() -> None:
    world = PressureWorld({"one": 2, "two": 2})
    for queue in ("one", "two"):
        world.runs(f"idle-{queue}", queue=queue)
        world.waits(f"gang-{queue}", queue=queue, gpus=2)
    await world.judged()
    outlook = await world.ticks()
    assert len(outlook.made) == 2
    await world.passes(minutes=3)
    assert world.is_admitted("gang-one")
    assert world.is_admitted("gang-two")


async def test_what_fails_for_one_plan_does_not_keep_the_others() -> None:
    world = PressureWorld({"one": 2, "two": 2})
    for queue in ("one", "two"):
        world.runs(f"idle-{queue}", queue=queue)
        world.waits(f"gang-{queue}", queue=queue, gpus=2)
    world.api.refused = {"idle-one"}
    await world.judged()
    await world.passes(minutes=3)
    assert world.is_active("idle-one")
    assert world.is_admitted("gang-two")


# --------------------------------------------------------------------------------------- what cannot be known or seen


async def half_deactivated() -> PressureWorld:
    """The leader has died between two victims."""
    world = await plan_at(AT_ZERO)
    await world.reconciled()
    world.api.lives_for = 1
    await world.planned()
    assert world.deactivated == ["a"]
    world.another_leads()
    return world


async def outage(world: PressureWorld, steps: int) -> None:
    down = SourceError("Prometheus is down", transient=True)
    world.source.failing = dict.fromkeys(("gr_engine_active", "gpu_util"), down)
    for _ in range(steps):
        await world.judged()
        await world.keda()
        await world.ticks()


@pytest.mark.parametrize("phase", NOT_BEGUN)
async def test_an_outage_of_the_metrics_suspends_nobody_and_calls_nothing_off(phase: str) -> None:
    world = await plan_at(phase)
    if phase == AT_ZERO:
        world.view.blind = "for this moment"
        await world.ticks()
        world.view.blind = ""
    await outage(world, 4)
    assert world.deactivated == []
    assert world.has_grant("a")
    assert world.has_grant("b")
    world.source.failing.clear()
    world.slow.clear()
    await world.passes(minutes=5)
    assert world.is_admitted("gang")


async def test_but_a_plan_does_not_outlast_its_time() -> None:
    world = await plan_at(HALF, grant_for=timedelta(minutes=3))
    await outage(world, 10)
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_an_outage_after_the_deactivation_changes_nothing() -> None:
    world = await plan_at(BEGUN)
    await outage(world, 3)
    await world.kueue()
    await outage(world, 2)
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b") == ["suspended", "suspended"]


@pytest.mark.parametrize("phase", NOT_BEGUN)
async def test_nobody_is_suspended_while_quota_is_not_seen(phase: str) -> None:
    world = await plan_at(phase)
    world.slow.clear()
    world.view.blind = "not synced: ClusterQueues"
    for _ in range(4):
        await world.judged()
        await world.keda()
        outlook = await world.ticks()
    assert outlook.blind == "not synced: ClusterQueues"
    assert world.deactivated == []
    assert world.has_grant("a")
    world.view.blind = ""
    await world.passes(minutes=2)
    assert world.is_admitted("gang")


async def test_what_was_begun_goes_on_when_quota_is_seen_again() -> None:
    world = await half_deactivated()
    world.view.blind = "not everything is seen"
    await world.ticks(3)
    assert world.deactivated == ["a"]
    assert world.has_grant("b")
    world.view.blind = ""
    await world.passes(minutes=2)
    assert world.is_admitted("gang")


@pytest.mark.parametrize("phase", NOT_BEGUN)
async def test_nor_while_what_administrators_wrote_cannot_be_read(phase: str) -> None:
    world = await plan_at(phase)
    world.slow.clear()
    world.has_quota("plenty")
    for _ in range(3):
        await world.judged()
        await world.keda()
        await world.ticks()
    assert world.deactivated == []
    assert world.has_grant("a")
    world.has_quota(8)
    await world.passes(minutes=2)
    assert world.is_admitted("gang")


async def test_but_nobody_stays_suspended_for_a_gang_that_has_had_its_time() -> None:
    """However little is seen of why it waits."""
    world = await plan_at(BEGUN, grant_for=timedelta(minutes=3))
    world.view.blind = "not everything is seen"
    for _ in range(10):
        await world.judged()
        world.evicts()
        await world.ticks(2)
    for name in ("a", "b"):
        assert world.is_active(name)
        assert world.replicas(name) == 1


async def test_a_grant_that_nobody_can_read_holds_nobody_for_long() -> None:
    """And suspends nobody: it is at 0 on account of a plan, whichever that was."""
    world = await plan_at(HALF)
    world.api.change(f"{SCALABLE_WORKLOAD.path('demo', 'a')}/status", {"status": {"grant": {"plan": ""}}})
    await world.ticks(2)
    assert world.deactivated == []
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_a_leader_whose_clock_is_ahead_calls_a_plan_off_and_harms_nobody() -> None:
    world = await plan_at(HALF)
    outlook = await world.pressure.tick(world.now + timedelta(hours=1))
    assert outlook.standing
    await is_called_off(world)


async def test_what_kueue_wrote_cannot_be_read_and_so_nobody_is_planned_for() -> None:
    world = await waiting()
    world.has_quota("plenty")
    outlook = await world.ticks()
    assert [each.why for each in outlook.refused] == [NoPlanReason.UNFORESEEABLE]


# ------------------------------------------------------------------------------------------------ time that runs out


async def test_a_grant_that_keda_does_not_act_on_runs_out() -> None:
    world = await plan_at(HALF, "c", grant_for=timedelta(minutes=3))
    await world.passes(minutes=4)
    assert world.deactivated == []
    assert "GrantExpired" in str(world.events.told)


async def test_and_whoever_it_did_not_bring_to_zero_is_not_asked_again_soon() -> None:
    """Of a, b and c, b stays at 1 whatever it is told: it holds up one plan, and not the next."""
    world = await plan_at(HALF, "c", grant_for=timedelta(minutes=3))
    await world.passes(minutes=8, until=lambda: world.is_admitted("gang"))
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b", "c") == ["suspended", "untouched", "suspended"]


async def test_a_gang_that_does_not_get_in_although_it_fits_gives_back_what_it_was_given() -> None:
    world = await plan_at(BEGUN, grant_for=timedelta(minutes=3))
    for _ in range(10):
        await world.judged()
        world.evicts()
        await world.ticks()
    assert "NotReserved" in str(world.events.told)
    for name in ("a", "b"):
        assert world.is_active(name)
        assert world.replicas(name) == 1


async def test_a_victim_that_cannot_be_deactivated_keeps_nobody_suspended_for_ever() -> None:
    """A webhook forbids it, say: the plan goes on with c, and b is left alone."""
    world = await plan_at(AT_ZERO, "c", grant_for=timedelta(minutes=3))
    world.api.refused = {"/workloads/b"}
    await world.passes(minutes=2)
    assert world.deactivated == ["a"]
    await world.passes(minutes=5, until=lambda: world.is_admitted("gang"))
    assert world.is_admitted("gang")
    assert outcome(world, "a", "c") == ["suspended", "suspended"]
    await world.passes(minutes=1)
    assert outcome(world, "b") == ["untouched"]


async def test_the_gang_has_its_time_from_the_last_deactivation_on() -> None:
    """Also where the leader was lost before it could write so, and the grants would have run out."""
    world = await plan_at(HALF, grant_for=timedelta(minutes=3))
    for _ in range(4):
        await world.judged()
        await world.ticks()
    world.slow.clear()
    await world.keda()
    await world.reconciled()
    world.api.lives_for = 2
    await world.planned()
    assert world.deactivated == ["a", "b"]
    world.another_leads()
    for _ in range(3):
        await world.judged()
        await world.ticks()
    assert world.has_grant("a")
    found = world.scalable("a").status.grant
    assert found is not None
    assert found.expires_at == at(30 + 4 * 30 + 180)


# ------------------------------------------------------------------------------------- a leader ends between two writes


async def test_a_leader_may_end_before_any_write() -> None:
    """Another goes on from what stands in the API: the gang gets in, and nobody is left behind."""
    whole = await waiting()
    await whole.passes(minutes=3)
    for survived in range(len(whole.api.writes)):
        world = await waiting()
        world.api.lives_for = survived
        await world.passes(minutes=1.5)
        world.another_leads()
        await world.passes(minutes=10, until=lambda: world.is_admitted("gang") and not world.has_grant("a"))  # noqa: B023
        await world.passes(minutes=1)
        assert world.is_admitted("gang"), survived
        assert outcome(world, "a", "b") == ["suspended", "suspended"], survived
        assert (world.stage("a"), world.stage("b")) == ("Admitted", "Admitted"), survived
        assert not world.has_grant("a"), survived
        assert not world.has_grant("b"), survived
        found = world.scalable("a").status.reallocation
        assert found is not None
        assert found.times == 1, survived


async def test_a_leader_may_end_while_it_lets_everybody_go() -> None:
    """Whichever of its writes are made, nobody is suspended, and no grant is left."""
    for survived in range(8):
        world = await plan_at(HALF)
        await world.ticks()
        world.leaves("gang")
        world.api.lives_for = survived
        await world.ticks(3)
        world.another_leads()
        await world.ticks(3)
        await settled(world)
        assert world.deactivated == [], survived
        assert outcome(world, "a", "b") == ["untouched", "untouched"], survived


async def test_a_leader_may_end_while_it_replaces_one_plan_by_another() -> None:
    """a wakes and is replaced by c: whatever was written of that, b is not woken, and nobody else is suspended."""
    for survived in range(1, 10):
        world = await plan_at(BEGUN, "c", "d")
        world.runs("e", gpus=2)
        world.has_quota(14)
        await world.ticks()
        world.scales("a", 1)
        world.evicts()
        await world.reconciled()
        world.admits()
        world.api.lives_for = survived
        await world.ticks()
        world.another_leads()
        await world.passes(minutes=10, until=lambda: world.is_admitted("gang"))  # noqa: B023
        await world.passes(minutes=2)
        assert world.is_admitted("gang"), survived
        assert world.is_active("a"), survived
        assert outcome(world, "b") == ["suspended"], survived
        given = [name for name in ("b", "c", "d", "e") if world.is_suspended(name)]
        assert len(given) == 2, (survived, given)
        assert all(world.stage(name) == "Admitted" for name in given), survived
        assert not any(world.has_grant(name) for name in "abcde"), survived


async def test_of_two_plans_for_one_gang_the_younger_takes_over_what_the_older_has() -> None:
    """As a leader leaves them that ends while it writes one over the other."""
    world = await plan_at(BEGUN)
    await world.ticks()
    grant = world.api.read(SCALABLE_WORKLOAD, "b")["status"]["grant"]
    younger = grant | {"plan": "younger", "grantedAt": stamp(world.now + timedelta(seconds=1))}
    world.api.change(f"{SCALABLE_WORKLOAD.path('demo', 'b')}/status", {"status": {"grant": younger}})
    await world.ticks()
    found = world.scalable("a").status.grant
    assert found is not None
    assert found.plan == "younger"
    assert outcome(world, "a", "b") == ["suspended", "suspended"]
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b") == ["suspended", "suspended"]


@pytest.mark.parametrize("phase", [*NOT_BEGUN, BEGUN])
async def test_a_restarted_process_goes_on_with_the_plan_as_soon_as_it_has_judged(phase: str) -> None:
    world = await plan_at(phase)
    world.slow.clear()
    plan = world.scalable("a").status.grant
    world.restarts()
    outlook = await world.ticks(3)
    assert outlook.blind or phase == BEGUN
    assert world.scalable("a").status.grant == plan
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b") == ["suspended", "suspended"]
    assert "ReclaimCancelled" not in world.events.reasons("gang")


async def test_who_works_again_before_the_next_leader_comes_is_left_alone() -> None:
    """a was deactivated, b not yet: b is busy now, and KEDA has not heard of that."""
    world = await half_deactivated()
    world.works("b")
    await world.judged()
    assert world.replicas("b") == 0
    await world.ticks(3)
    assert world.deactivated == ["a"]
    await settled(world)
    assert outcome(world, "b") == ["untouched"]
    await world.passes(minutes=2)
    assert world.is_active("a")
    assert world.replicas("a") == 1


async def test_a_replica_that_does_not_lead_any_more_writes_nothing_and_breaks_nothing() -> None:
    world = await plan_at(AT_ZERO)
    before = len(world.api.writes)
    world.api.refused = {"/"}
    await world.ticks(2)
    assert len(world.api.writes) == before
    world.api.refused = set()
    world.another_leads()
    await world.passes(minutes=2)
    assert world.is_admitted("gang")


# --------------------------------------------------------------------------------- what is heard of late, or not at all


async def test_nothing_is_decided_before_what_was_written_is_seen() -> None:
    world = await waiting("c", "d")
    world.waits("another", gpus=4)
    await world.reconciled()
    with world.api.lagging():
        first = await world.planned()
        second = await world.planned()
    assert len(first.made) == 1
    assert (second.made, second.blind) == ((), "what was written last is not seen yet")
    assert world.events.reasons("a").count("ReclaimGranted") == 1
    assert "ReclaimCancelled" not in world.events.reasons("gang")
    await world.passes(minutes=3)
    assert world.is_admitted("gang")


async def test_a_plan_of_which_only_one_grant_is_seen_yet_is_not_called_off() -> None:
    world = await waiting()
    await world.reconciled()
    with world.api.lagging() as unheard:
        await world.planned()
        later = unheard.pop()
        world.heard(*unheard.pop())
        await world.planned()
        unheard.append(later)
    await world.ticks()
    assert "ReclaimCancelled" not in world.events.reasons("gang")
    assert world.has_grant("a")
    assert world.has_grant("b")


async def test_a_zero_that_keda_writes_too_late_suspends_nobody() -> None:
    """It has asked while the grant stood; meanwhile the plan is off and replicas were set to 1."""
    world = await plan_at(HALF)
    await world.ticks()
    answers = world.answers("a")
    world.leaves("gang")
    await world.ticks(2)
    assert world.replicas("a") == 1
    world.now += timedelta(seconds=3)
    world.scaled(answers)
    assert world.replicas("a") == 0
    await world.reconciled()
    await world.ticks()
    assert world.deactivated == []
    await settled(world)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_nor_does_the_plans_own_zero_that_could_not_be_undone_in_time() -> None:
    """The API has written that the plan is off, and then nothing for a minute."""
    world = await plan_at(HALF)
    world.leaves("gang")
    world.api.lives_for = 1
    await world.planned()
    world.api.lives_for = 0
    await world.planned()
    world.now += timedelta(minutes=1)
    world.api.lives_for = None
    assert world.replicas("a") == 0
    await world.planned()
    assert world.replicas("a") == 1
    await world.passes(minutes=2)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_but_a_zero_that_comes_later_means_what_it_says() -> None:
    world = await plan_at(HALF)
    world.leaves("gang")
    await world.ticks(2)
    await settled(world)
    world.scales("a", 0)
    await world.ticks(2)
    assert world.deactivated == ["a"]


async def test_whoever_insists_on_zero_gets_it() -> None:
    """An annotation of KEDA's, say: after a while it is not undone any more."""
    world = await plan_at(HALF)
    world.leaves("gang")
    for _ in range(4):
        await world.ticks()
        world.scales("a", 0)
        world.now += timedelta(seconds=3)
    await world.ticks(2)
    assert world.deactivated == ["a"]
    assert not world.has_grant("a")


async def test_the_answer_is_active_as_soon_as_a_plan_is_off() -> None:
    world = await waiting()
    world.now += timedelta(seconds=10)  # granted between two evaluations, of which the one before goes on to count
    world.slow = {"b"}
    await world.ticks()
    await world.keda()
    assert world.replicas("a") == 0
    world.leaves("gang")
    await world.ticks()
    [[answer]] = world.answers("a").values()
    assert (type(answer).__name__, str(answer.reason)) == ("Active", "IdleNotNeeded")


async def test_between_the_end_of_a_grant_and_replicas_of_one_nobody_is_deactivated() -> None:
    """The reconciler has its turn after every single write."""
    for survived in range(10):
        world = await plan_at(HALF)
        await world.ticks()
        world.works("b")
        await world.judged()
        world.api.lives_for = survived
        await world.planned()
        world.api.lives_for = None
        await world.reconciled()
        assert world.deactivated == [], survived


# -------------------------------------------------------------------------------------------------------- the last look


async def test_who_is_woken_while_the_plan_is_on_trial_is_not_deactivated() -> None:
    """What stands in the API counts, heard of or not."""
    world = await plan_at(AT_ZERO)
    await world.reconciled()
    with world.api.lagging():
        world.scales("b", 1)
        await world.planned()
        assert world.deactivated == []
    await is_called_off(world)


async def test_nor_is_one_whose_owner_has_just_written_that_it_is_to_be_kept() -> None:
    world = await plan_at(AT_ZERO)
    await world.reconciled()
    with world.api.lagging():
        world.annotates("a", KEEP_UNTIL, "2026-12-24T18:00:00Z")
        await world.planned()
        assert world.deactivated == []
    await is_called_off(world)


async def test_a_decision_from_when_it_was_at_one_says_nothing_about_it_at_zero() -> None:
    """Its owner has asked for it already: that counts from when it is at 0, and nobody has decided on it since."""
    world = await plan_at(GRANTED)
    world.annotates("a", WAKE_ANNOTATION, "true")
    await world.taken_up()
    world.scaled(world.answers())
    assert (world.replicas("a"), world.replicas("b")) == (0, 0)
    await world.pressure.tick(world.now)
    assert world.deactivated == []
    await is_called_off(world)


async def test_who_is_seen_at_work_while_the_plan_is_on_trial_is_not_deactivated() -> None:
    world = await plan_at(AT_ZERO)
    await world.reconciled()

    async def meanwhile() -> None:
        world.api.on_read = None
        world.works("b")
        await world.judged()

    world.api.on_read = meanwhile
    await world.planned()
    assert world.api.on_read is None
    await is_called_off(world)


async def test_verdicts_that_are_too_old_suspend_nobody() -> None:
    world = await plan_at(AT_ZERO)
    world.now += timedelta(minutes=5)
    outlook = await world.ticks(2)
    assert outlook.blind == "the latest verdicts are 300 s old"
    assert world.deactivated == []


# --------------------------------------------------------------------------------- another Workload gets freed quota


async def test_a_plan_whose_freed_quota_another_workload_got_is_made_anew_with_what_else_is_idle() -> None:
    world = await plan_at(BEGUN, "c", strategy="BestEffortFIFO")
    world.steals("other", gpus=1)
    await world.ticks(2)
    assert world.has_grant("c")
    assert world.deactivated == ["a", "b"]
    assert (world.stage("a"), world.stage("c")) == ("Releasing", "Reclaimable")
    [said] = [
        message for _, about, reason, message in world.events.told if (about, reason) == ("gang", "ReclaimReplanned")
    ]
    assert said.startswith("FreedQuotaTaken: plan")
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert world.deactivated == ["a", "b", "c"]
    assert [world.stage(name) for name in ("a", "b", "c")] == ["Admitted"] * 3
    times = [world.scalable(name).status.reallocation for name in ("a", "b", "c")]
    assert [each.times for each in times if each] == [1, 1, 1]
    assert [each.stage for each in world.ended] == [LedgerStage.ADMITTED] * 3, "no GPU is counted twice"


async def test_a_victim_that_joins_later_is_put_on_trial_too() -> None:
    """The other Workload has left before the third one is at 0: it is not needed any more."""
    world = await plan_at(BEGUN, "c", strategy="BestEffortFIFO")
    world.steals("other", gpus=1)
    await world.ticks(2)
    world.leaves("other")
    await world.keda()
    await world.ticks()
    assert world.deactivated == ["a", "b"]
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert outcome(world, "c") == ["untouched"]


async def test_others_that_get_freed_quota_again_and_again_do_not_wear_out_all_idle_workloads() -> None:
    world = await plan_at(BEGUN, *(f"idle-{number}" for number in range(6)), strategy="BestEffortFIFO")
    for number in range(6):
        world.steals(f"other-{number}", gpus=2)
        await world.ticks(2)
        await world.judged()
        await world.keda()
        await world.ticks(2)
    # The plan is made anew twice at most, with one victim more each time; then all are released.
    assert world.deactivated == ["a", "b", "idle-0", "idle-1"]
    assert not any(world.has_grant(f"idle-{number}") for number in range(6))


@pytest.mark.parametrize("phase", [AT_ZERO, BEGUN])
async def test_without_other_candidates_what_was_freed_is_given_back(phase: str) -> None:
    """Also where the other Workload came in the second of the deactivation."""
    world = await plan_at(phase, strategy="BestEffortFIFO")
    if phase == AT_ZERO:
        await world.ticks()
    assert world.deactivated == ["a", "b"]
    world.steals("other", gpus=1)
    await world.ticks(2)
    assert "FreedQuotaTaken" in next(text for *_, reason, text in world.events.told if reason == "ReclaimCancelled")
    await world.passes(minutes=2)
    assert world.is_admitted("other")
    for name in ("a", "b"):
        assert world.replicas(name) == 1
        assert world.is_active(name)


async def test_quota_that_its_administrator_cuts_ends_the_plan_as_well() -> None:
    world = await plan_at(BEGUN)
    world.has_quota(6)
    await world.ticks(2)
    assert [world.replicas(name) for name in ("a", "b")] == [1, 1]


async def test_what_another_workload_gives_back_while_the_plan_is_called_off_is_the_gangs_all_the_same() -> None:
    """The leader has died when it had written the first half of it."""
    world = await plan_at(BEGUN, strategy="BestEffortFIFO")
    await world.ticks()
    world.steals("other", gpus=1)
    await world.reconciled()
    world.api.lives_for = 1
    await world.planned()
    assert (world.stage("a"), world.stage("b")) == ("Cancelled", "Releasing")
    world.another_leads()
    world.leaves("other")
    await world.passes(minutes=4)
    assert world.is_admitted("gang")


async def test_a_newcomer_beside_which_the_gang_fits_changes_nothing() -> None:
    world = await plan_at(BEGUN, strategy="BestEffortFIFO")
    world.has_quota(9)
    world.steals("newcomer", gpus=1)
    await world.ticks(2)
    assert "ReclaimReplanned" not in world.events.reasons("gang")
    await world.passes(minutes=2)
    assert world.is_admitted("gang")
    assert "ReclaimCancelled" not in world.events.reasons("gang")


# -------------------------------------------------------------------------------------------------------------- budgets


ONE_AT_ONCE = Budget(name="few", at_once=Limit(count=1))


async def test_a_budget_that_has_no_room_for_all_lets_nobody_go() -> None:
    world = await waiting(budgets=(ONE_AT_ONCE,))
    outlook = await world.ticks()
    [refused] = outlook.refused
    assert isinstance(refused, NoPlan)
    assert refused.why is NoPlanReason.BUDGET_EXHAUSTED
    assert "few" in refused.message
    await world.passes(minutes=3)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]
    assert world.events.reasons("gang").count("BudgetExhausted") == 1


async def test_two_plans_of_one_tick_do_not_spend_a_budget_twice() -> None:
    world = PressureWorld({"one": 2, "two": 2}, budgets=(ONE_AT_ONCE,))
    for queue in ("one", "two"):
        world.runs(f"idle-{queue}", queue=queue)
        world.waits(f"gang-{queue}", queue=queue, gpus=2)
    await world.judged()
    outlook = await world.ticks()
    assert len(outlook.made) == 1
    assert [each.why for each in outlook.refused] == [NoPlanReason.BUDGET_EXHAUSTED]
    await world.passes(minutes=5)
    assert len(world.deactivated) == 1


async def test_a_plan_that_was_called_off_has_spent_nothing() -> None:
    world = await plan_at(HALF, budgets=(Budget(name="two", at_once=Limit(count=2)),))
    world.works("a")
    await world.judged()
    await world.ticks(2)
    await settled(world)
    world.rests("a")
    world.slow.clear()
    await world.passes(minutes=6)
    assert world.is_admitted("gang")
