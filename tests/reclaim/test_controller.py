"""A gang waits for 8 GPUs, of which 4 are free and idle a and b hold 2 each: what becomes of the plan for it, whatever
happens in the meantime?"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from builders import at
from reclaim.node_shortage_world import NodesWorld
from reclaim.reclaim_world import PressureWorld

from scaler.errors import SourceError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.reclaim.budget import BudgetExhausted
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.planner import Unprotected
from scaler.reclaim.search.values import NoPlanReason
from scaler.reclaim.transitions import LedgerStage
from scaler.targets.workloads import KEEP_UNTIL, WAKE_ANNOTATION

GRANTED, HALF, AT_ZERO, BEGUN = "granted", "one of two at 0", "both at 0", "both deactivated"
NOT_BEGUN = (GRANTED, HALF, AT_ZERO)
Change = Callable[[PressureWorld], object]
ONE_AT_ONCE = {"suspendedAtOnce": "1"}
"""Of a trigger: all that have it in the namespace share it."""


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


async def two_queues(**metadata: str) -> PressureWorld:
    """In each of two queues that share nothing a gang waits for the GPUs of an idle workload."""
    made = PressureWorld({"one": 2, "two": 2})
    for queue in ("one", "two"):
        made.runs(f"idle-{queue}", queue=queue, metadata=metadata)
        made.waits(f"gang-{queue}", queue=queue, gpus=2)
    await made.judged()
    return made


def outcome(world: PressureWorld, *names: str) -> list[str]:
    """What became of these, in a word each."""
    return [
        "untouched" if world.is_untouched(each) else "suspended" if world.is_suspended(each) else "?" for each in names
    ]


async def rounds(world: PressureWorld, count: int, *, keda: bool = True) -> ReclaimReport:
    """Time passes, while Kueue does nothing."""
    for _ in range(count):
        await world.judged()
        if keda:
            await world.keda()
        report = await world.ticks()
    return report


async def gang_starts(world: PressureWorld, *, minutes: float = 2) -> None:
    """In time, and a and b are suspended for it."""
    await world.passes(minutes=minutes)
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b") == ["suspended", "suspended"]


async def settled(world: PressureWorld) -> None:
    """So much later that no answer of before is acted upon any more."""
    world.now += timedelta(seconds=10)
    await world.ticks(2)


async def is_cancelled(world: PressureWorld) -> None:
    """Nothing was lost: both run as they did, as far as they are still there, and the gang has its Event."""
    await world.ticks(2)
    assert world.deactivated == []
    await settled(world)
    assert world.deactivated == []
    there = world.names(SCALABLE_WORKLOAD)
    assert outcome(world, *there) == ["untouched" for _ in there]
    assert {world.stage(each) for each in there} == {"Cancelled"}
    assert {each.stage for each in world.ended} == {LedgerStage.CANCELLED}
    assert "ReclaimCancelled" in world.events.reasons("gang")
    assert "ReclaimCancelled" in world.events.reasons("b")


# -------------------------------------------------------------------------------------------------- as it should be


async def test_four_free_and_four_idle_serve_a_gang_of_eight() -> None:
    """Granted at 60 s, deactivated at 90 s; Kueue gives the quota at once, and the pods are gone at 120 s."""
    world = await waiting()
    await gang_starts(world, minutes=3)
    told = [reason for reason in world.events.reasons("gang") if reason.startswith("Reclaim")]
    assert told == ["ReclaimPlanned", "ReclaimAdmitted"]
    *_, (*_, said) = [each for each in world.events.told if each[2] == "ReclaimAdmitted"]
    assert said == "admitted with 4 GPUs of demo/a, demo/b, 1m after the plan was granted"
    for name in ("a", "b"):
        assert not world.has_grant(name)
        reasons = world.events.reasons(name)
        assert reasons.index("ReclaimGranted") < reasons.index("Reclaimed") < reasons.index("PodsGone")
        assert "ReclaimCancelled" not in reasons
        found = world.ledger(name)
        assert (found.stage, found.gpus, found.times, found.workload) == ("Admitted", 2, 1, "demo/gang")
        assert (found.reclaimable_at, found.releasing_at) == (at(60), at(90))
        assert (found.reserved_at, found.available_at, found.admitted_at) == (at(90), at(120), at(120))
        assert found.wasted_gpu_seconds == 2 * 30
    assert [(each.stage, each.gpus) for each in world.ended] == [(LedgerStage.ADMITTED, 2)] * 2


@pytest.mark.parametrize("they_end", [True, False])
async def test_grants_stay_while_pods_of_victims_end_but_not_for_ever(they_end: bool) -> None:
    """Kueue admits the gang a second after the deactivation; pods may take minutes to end."""
    world = await plan_at(BEGUN, grant_for=timedelta(minutes=2))
    world.evicts()
    world.admits()
    await world.ticks(2)
    assert world.is_admitted("gang")
    assert (world.stage("a"), world.has_grant("a"), world.ended) == ("Releasing", True, [])
    if they_end:
        world.evicts()
        await world.ticks(2)
    else:
        await rounds(world, 6, keda=False)
    assert (world.stage("a"), world.has_grant("a")) == ("Admitted", False)


@pytest.mark.parametrize(
    ("given", "gang", "why"),
    [
        pytest.param({}, 0, [], id="no Workload waits"),
        pytest.param({"quota": 12}, 8, [NoPlanReason.FITS_ALREADY], id="the gang fits already"),
        pytest.param({"pressure": False}, 8, [], id="plans are switched off"),
        pytest.param(
            {"strategy": "BestEffortFIFO", "unprotected": Unprotected.REFUSE},
            8,
            [NoPlanReason.UNPROTECTED],
            id="freed quota is not reserved, and settings refuse that",
        ),
        pytest.param({"metadata": ONE_AT_ONCE}, 8, [NoPlanReason.BUDGET_EXHAUSTED], id="a budget has room for one"),
    ],
)
async def test_no_workload_is_suspended_where(given: dict[str, Any], gang: int, why: list[NoPlanReason]) -> None:
    world = PressureWorld(**{name: value for name, value in given.items() if name != "metadata"})
    for name in ("a", "b"):
        world.runs(name, metadata=given.get("metadata"))
    if gang:
        world.waits("gang", gpus=gang)
    await world.judged()
    report = await world.ticks()
    assert [each.why for each in report.refused] == why
    await world.passes(minutes=3)
    assert outcome(world, "a", "b") == ["untouched", "untouched"]
    assert world.stage("a") == ""
    events = world.events.reasons("gang")
    assert all(events.count(each) == (each is not NoPlanReason.FITS_ALREADY) for each in why)


async def test_no_victim_is_deactivated_before_all_are_at_zero_and_then_all_are_at_once() -> None:
    world = await plan_at(HALF)
    await world.passes(minutes=3)
    assert world.deactivated == []
    assert world.scalable("a").status.phase == "HeldForPlan"
    world.slow.clear()
    await world.keda()
    before = len(world.api.patches)
    await world.ticks()
    first, second = [path for path, body in world.api.patches[before:] if body.get("spec") == {"active": False}]
    paths = [path for path, _ in world.api.patches]
    assert paths.index(second) == paths.index(first) + 1


# ----------------------------------------------------------------------------------- what cancels a plan at no cost

IDLE_FOR_LONGER = {"idleAfter": "3h", "idleAfterUnderPressure": "150m"}


def is_admitted_by_itself(world: PressureWorld) -> None:
    world.has_quota(12)
    world.admits()
    assert world.is_admitted("gang")


def namesake_comes(world: PressureWorld) -> None:
    world.leaves("gang")
    world.waits("gang", gpus=4)


CANCELS: dict[str, Change] = {
    "a victim works": lambda world: world.works("a"),
    "a victim is to be kept": lambda world: world.annotates("a", KEEP_UNTIL, "2026-12-24T18:00:00Z"),
    "its ScaledObject is deleted": lambda world: world.is_scaled_by("a"),
    "it is only observed": lambda world: world.is_scaled_by("a", {"mode": "observe"}),
    "it is reclaimed always": lambda world: world.is_scaled_by("a", {"reclaim": "Always"}),
    "KEDA is paused": lambda world: world.is_scaled_by("a", {}, **{"autoscaling.keda.sh/paused": "true"}),
    "another trigger has seen work": lambda world: world.is_scaled_by("a", {}, IDLE_FOR_LONGER),
    "Kueue has preempted it": lambda world: world.preempts("a"),
    "it has finished": lambda world: world.finishes("a"),
    "it is deleted": lambda world: world.delete(SCALABLE_WORKLOAD, "a"),
    "the gang is deleted": lambda world: world.leaves("gang"),
    "the gang has finished": lambda world: world.finishes("gang"),
    "the gang is deactivated": lambda world: world.change(WORKLOAD, "gang", spec={"active": False}),
    "another one has its name": namesake_comes,
    "the gang is admitted by itself": is_admitted_by_itself,
}


@pytest.mark.parametrize("phase", NOT_BEGUN)
@pytest.mark.parametrize("change", CANCELS.values(), ids=CANCELS)
async def test_before_any_deactivation_a_plan_is_cancelled_at_no_cost(phase: str, change: Change) -> None:
    world = await plan_at(phase)
    world.busy["a"] = [(at(-9000).timestamp(), at(-8000).timestamp())]
    change(world)
    await world.judged()
    await is_cancelled(world)


@pytest.mark.parametrize("phase", [HALF, AT_ZERO])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.annotates("a", WAKE_ANNOTATION, "true"), id="its owner wakes it"),
        # Nothing else is to be seen of it, and its GPUs are as idle as before.
        pytest.param(lambda world: world.scales("a", 1), id="its owner scales it"),
    ],
)
async def test_so_does_a_victim_that_its_owner_wakes(phase: str, change: Change) -> None:
    world = await plan_at(phase)
    if phase == HALF:
        await world.ticks()
    else:
        world.pressure.executor.active()  # it was observed at 0
    world.slow = {"a", "b"}
    change(world)
    await is_cancelled(world)


async def test_a_plan_that_is_not_needed_any_more_suspends_no_workload() -> None:
    """Quota has come free elsewhere just before it would have been carried out."""
    world = await plan_at(AT_ZERO)
    world.has_quota(12)
    await is_cancelled(world)


async def test_a_victim_that_woke_is_left_alone_for_a_while() -> None:
    world = await plan_at(HALF)
    world.annotates("a", WAKE_ANNOTATION, "true")
    await world.ticks(2)
    world.slow.clear()
    await settled(world)
    await world.passes(minutes=0.5)
    assert not world.has_grant("a")
    await gang_starts(world, minutes=5)


# -------------------------------------------------------------------------------- after victims were deactivated


async def test_a_victim_that_wakes_when_all_are_deactivated_is_dropped_where_the_gang_fits_without() -> None:
    """Some other Workload has left meanwhile: 2 more are free."""
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


@pytest.mark.parametrize("others", [("c",), ()], ids=["is replaced by another", "ends the plan where there is none"])
async def test_a_victim_that_wakes_and_gets_its_quota_back(others: tuple[str, ...]) -> None:
    """It is older than the gang, and Kueue admits it first."""
    world = await plan_at(BEGUN, *others)
    world.scales("a", 1)
    world.evicts()
    await world.reconciled("a")
    world.admits()
    assert world.is_admitted("a")
    await world.ticks(2)
    assert world.deactivated == ["a", "b"], "a new victim has to go to 0 first"
    await world.passes(minutes=2)
    assert world.is_active("a")
    assert world.stage("a") == "Cancelled"
    assert world.is_admitted("gang") == bool(others)
    assert outcome(world, "b", *others) == ["suspended" if others else "untouched", *("suspended" for _ in others)]
    assert ("ReclaimReplanned" in world.events.reasons("gang")) == bool(others)


# -------------------------------------------------------------------------------------------------------- several plans


async def test_gangs_that_no_plan_can_serve_do_not_keep_those_after_them_from_one() -> None:
    """More of them than are planned for in one tick; idle are 4 GPUs, and nothing is free."""
    world = PressureWorld(quota=12, strategy="BestEffortFIFO")
    for name, gpus in (("a", 2), ("b", 2), ("busy", 8)):
        world.runs(name, gpus=gpus)
    world.works("busy")
    for number in range(6):
        world.waits(f"large-{number}", gpus=5)
    world.waits("small", gpus=2)
    await world.judged()
    await world.ticks(3)
    assert sum(map(world.has_grant, ("a", "b"))) == 1
    assert "ReclaimPlanned" in world.events.reasons("small")


@pytest.mark.parametrize("fails", [False, True])
async def test_queues_that_share_nothing_have_theirs_at_the_same_time_whatever_fails_for_one(fails: bool) -> None:
    world = await two_queues()
    world.api.refused = {"idle-one"} if fails else set()
    assert len((await world.ticks()).made) == 2
    await world.passes(minutes=3)
    assert world.is_active("idle-one") == fails
    assert [world.is_admitted(f"gang-{queue}") for queue in ("one", "two")] == [not fails, True]


async def test_a_plan_whose_budget_is_spent_while_it_is_found_is_not_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a warning, for which there was room at that moment."""
    world = await two_queues(**ONE_AT_ONCE)
    budgets = world.pressure.planning.policy_budgets
    spent = BudgetExhausted(budget="few", message="few is spent", until=None)
    monkeypatch.setattr(budgets, "refuses_plan", lambda _: spent)
    report = await world.ticks()
    assert (report.made, {each.why for each in report.refused}) == ((), {NoPlanReason.BUDGET_EXHAUSTED})
    assert not any(map(world.has_grant, ("idle-one", "idle-two")))


@pytest.mark.parametrize("leader", ["the same", "another", "a new process"])
async def test_a_budget_remembers_what_was_spent_before_any_evaluation_shows_it(leader: str) -> None:
    """The plan's grant is written; the latest evaluation is of a moment before it."""
    world = await two_queues(**ONE_AT_ONCE)
    before = world.decision_cache.evaluation
    assert len((await world.ticks()).made) == 1
    assert before is not None
    if leader == "another":
        world.another_leads()
    if leader == "a new process":
        world.restarts()
    world.decision_cache.publish(before)
    report = await world.ticks()
    assert (len(report.made), [each.why for each in report.refused]) == (0, [NoPlanReason.BUDGET_EXHAUSTED])


# -------------------------------------------------------------------------------------------------- what is not known


async def half_deactivated() -> PressureWorld:
    """The leader has died between two victims."""
    world = await plan_at(AT_ZERO)
    await world.reconciled()
    world.api.lives_for = 1
    await world.planned()
    assert world.deactivated == ["a"]
    world.another_leads()
    return world


def metrics_fail(world: PressureWorld) -> None:
    down = SourceError("Prometheus is down", transient=True)
    world.source.failing = dict.fromkeys(("gr_engine_active", "gpu_util"), down)


def quota_is_unknown(world: PressureWorld) -> None:
    world.view.blind = "not synced: ClusterQueues"


def quota_is_unreadable(world: PressureWorld) -> None:
    world.has_quota("plenty")


def all_is_known(world: PressureWorld) -> None:
    world.source.failing.clear()
    world.view.blind = ""
    world.has_quota(8)


@pytest.mark.parametrize("phase", NOT_BEGUN)
@pytest.mark.parametrize("fails", [metrics_fail, quota_is_unknown, quota_is_unreadable])
async def test_what_is_not_known_suspends_no_workload_and_cancels_nothing(phase: str, fails: Change) -> None:
    world = await plan_at(phase)
    if phase == AT_ZERO and fails is metrics_fail:
        world.view.blind = "for this moment"
        await world.ticks()
        world.view.blind = ""
    if fails is not metrics_fail:
        world.slow.clear()
    fails(world)
    report = await rounds(world, 4)
    assert report.blind == ("not synced: ClusterQueues" if fails is quota_is_unknown else "")
    assert world.deactivated == []
    assert world.has_grant("a")
    assert world.has_grant("b")
    all_is_known(world)
    world.slow.clear()
    await gang_starts(world, minutes=5)


async def test_without_readable_quota_no_plan_is_made() -> None:
    world = await waiting()
    quota_is_unreadable(world)
    assert [each.why for each in (await world.ticks()).refused] == [NoPlanReason.UNFORESEEABLE]


async def test_what_was_begun_goes_on_when_quota_is_known_again() -> None:
    world = await half_deactivated()
    quota_is_unknown(world)
    await world.ticks(3)
    assert world.deactivated == ["a"]
    assert world.has_grant("b")
    all_is_known(world)
    await gang_starts(world)


async def test_verdicts_that_are_too_old_suspend_no_workload() -> None:
    world = await plan_at(AT_ZERO)
    world.now += timedelta(minutes=5)
    assert (await world.ticks(2)).blind == "the latest verdicts are 300 s old"
    assert world.deactivated == []


@pytest.mark.parametrize("is_known", [True, False])
async def test_no_workload_stays_suspended_for_a_gang_that_has_had_its_time(is_known: bool) -> None:
    """Whether or not it is known why the gang waits."""
    world = await plan_at(BEGUN, grant_for=timedelta(minutes=3))
    if not is_known:
        quota_is_unknown(world)
    for _ in range(10):
        await world.judged()
        world.evicts()
        await world.ticks(2)
    assert "NotReserved" in str(world.events.told)
    for name in ("a", "b"):
        assert world.is_active(name)
        assert world.replicas(name) == 1


async def test_an_unreadable_grant_holds_its_workload_only_for_a_while_and_suspends_it_not() -> None:
    """It is at 0 on account of a plan, whichever that was."""
    world = await plan_at(HALF)
    world.change(SCALABLE_WORKLOAD, "a", status={"grant": {"plan": ""}})
    await world.ticks(2)
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


# ------------------------------------------------------------------------------------------------ time that runs out


async def test_a_victim_that_keda_does_not_bring_to_zero_holds_up_one_plan_and_not_the_next() -> None:
    world = await plan_at(HALF, "c", grant_for=timedelta(minutes=3))
    await world.passes(minutes=4)
    assert world.deactivated == []
    assert "GrantExpired" in str(world.events.told)
    await world.passes(minutes=4, until=lambda: world.is_admitted("gang"))
    assert world.is_admitted("gang")
    assert outcome(world, "a", "b", "c") == ["suspended", "untouched", "suspended"]


async def test_a_victim_that_cannot_be_deactivated_keeps_no_other_suspended_for_ever() -> None:
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
    """Also where the leader was lost before it could write so, and the grants would have expired."""
    world = await plan_at(HALF, grant_for=timedelta(minutes=3))
    await rounds(world, 4, keda=False)
    world.slow.clear()
    await world.keda()
    await world.reconciled()
    world.api.lives_for = 2
    await world.planned()
    assert world.deactivated == ["a", "b"]
    world.another_leads()
    await rounds(world, 3, keda=False)
    assert world.grant("a").expires_at == at(30 + 4 * 30 + 180)


# ------------------------------------------------------------------------------------- a leader ends between two writes


async def test_a_leader_may_end_before_any_write() -> None:
    """Another goes on from what stands in the API: the gang is admitted, and no grant is left."""
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
        assert not any(map(world.has_grant, "ab")), survived
        assert world.ledger("a").times == 1, survived


async def test_a_leader_may_end_while_it_releases_all_victims() -> None:
    """Whichever of its writes are made, no workload is suspended, be it at once, and no grant is left."""
    for survived in range(8):
        world = await plan_at(HALF)
        await world.ticks()
        world.leaves("gang")
        world.api.lives_for = survived
        await world.ticks(3)
        world.api.lives_for = None
        await world.reconciled()
        assert world.deactivated == [], survived
        world.another_leads()
        await is_cancelled(world)


async def test_a_leader_may_end_while_it_replaces_one_plan_by_another() -> None:
    """a wakes and is replaced by c: whatever was written of that, b is not resumed, and no other is suspended."""
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


@pytest.mark.parametrize("phase", [*NOT_BEGUN, BEGUN])
async def test_a_restarted_process_goes_on_with_the_plan_as_soon_as_it_has_evaluated(phase: str) -> None:
    world = await plan_at(phase)
    world.slow.clear()
    plan = world.grant("a")
    world.restarts()
    report = await world.ticks(3)
    assert report.blind or phase == BEGUN
    assert world.grant("a") == plan
    await gang_starts(world)
    assert "ReclaimCancelled" not in world.events.reasons("gang")


# --------------------------------------------------------------------------- what is observed late, or not at all


async def test_what_was_written_counts_before_its_watch_event_comes() -> None:
    world = await waiting("c", "d")
    world.waits("another", gpus=4)
    await world.reconciled()
    with world.client.lagging():
        first = await world.planned()
        second = await world.planned()
    assert len(first.made) == 1
    assert (second.made, second.blind) == ((), "")
    assert world.events.reasons("a").count("ReclaimGranted") == 1
    await gang_starts(world, minutes=3)


async def test_a_plan_of_which_only_one_grant_is_observed_yet_is_not_cancelled() -> None:
    world = await waiting()
    await world.reconciled()
    with world.client.lagging() as unheard:
        await world.planned()
        later = unheard.pop()
        world.heard(*unheard.pop())
        await world.planned()
        unheard.append(later)
    await world.ticks()
    assert "ReclaimCancelled" not in world.events.reasons("gang")
    assert world.has_grant("a")
    assert world.has_grant("b")


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("when", ["while the ledger is written", "after the next looks"])
async def test_a_plan_does_not_doubt_itself_while_its_deactivations_are_observed(late: str, when: str) -> None:
    """One is observed late. Nothing is free on the node yet: Kueue has not stopped any pods."""
    world = NodesWorld({"n": 8}, quota=8, consider_nodes=True)
    world.capacity = world.node_capacity
    for name in ("a", "b"):
        world.runs(name, gpus=4, on="n")
    world.waits("gang")
    await rounds(world, 1)
    await world.keda()
    await world.reconciled()
    with world.client.lagging() as unheard:
        await world.planned()
        events = [*unheard]
        unheard.clear()
    assert world.deactivated == ["a", "b"]
    echo = next(each for each in events if each[:2] == (WORKLOAD, late))
    for each in events:
        if each is not echo:
            world.heard(*each)

    def hear(*_: object) -> None:
        world.api.before_write = lambda _path, _body: None
        world.heard(*echo)

    if when == "while the ledger is written":
        world.api.before_write = hear
    await world.planned()
    await world.planned()
    if when == "after the next looks":
        hear()
    assert [world.replicas(name) for name in ("a", "b")] == [0, 0]
    assert "ReclaimCancelled" not in world.events.reasons("gang")
    await gang_starts(world, minutes=1)


async def test_a_zero_that_keda_writes_too_late_suspends_no_workload() -> None:
    """It was answered while the grant stood; meanwhile the plan is cancelled and replicas were set to 1."""
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
    await settled(world)
    assert world.deactivated == []
    assert outcome(world, "a", "b") == ["untouched", "untouched"]


async def test_nor_does_the_plans_own_zero_that_could_not_be_undone_in_time() -> None:
    """The API has taken the cancellation, and then nothing for a minute."""
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


@pytest.mark.parametrize("again", [False, True], ids=["once, later", "again and again, as an annotation of KEDA's may"])
async def test_but_a_zero_that_is_asked_for_after_a_while_means_what_it_says(again: bool) -> None:
    world = await plan_at(HALF)
    world.leaves("gang")
    for _ in range(4 if again else 0):
        await world.ticks()
        world.scales("a", 0)
        world.now += timedelta(seconds=3)
    if not again:
        await world.ticks(2)
        await settled(world)
        world.scales("a", 0)
    await world.ticks(2)
    assert world.deactivated == ["a"]
    assert not world.has_grant("a")


async def test_the_answer_is_active_as_soon_as_a_plan_is_cancelled() -> None:
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


# ------------------------------------------------------------------------------------------------ the last revalidation


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.scales("b", 1), id="it is scaled up"),
        pytest.param(lambda world: world.annotates("b", KEEP_UNTIL, "2026-12-24T18:00:00Z"), id="it is to be kept"),
    ],
)
async def test_what_stands_in_the_api_counts_observed_or_not(change: Change) -> None:
    world = await plan_at(AT_ZERO)
    await world.reconciled()
    with world.client.lagging():
        change(world)
        await world.planned()
        assert world.deactivated == []
    await is_cancelled(world)


async def test_a_victim_that_works_while_the_plan_is_revalidated_is_not_deactivated() -> None:
    world = await plan_at(AT_ZERO)
    await world.reconciled()

    async def meanwhile() -> None:
        world.api.on_read = None
        world.works("b")
        await world.judged()

    world.api.on_read = meanwhile
    await world.planned()
    assert world.api.on_read is None
    await is_cancelled(world)


# --------------------------------------------------------------------------------- another Workload gets freed quota


async def test_a_plan_whose_freed_quota_another_workload_got_is_made_anew_with_what_else_is_idle() -> None:
    world = await plan_at(BEGUN, "c", strategy="BestEffortFIFO")
    world.admits_newcomer("other", gpus=1)
    await world.ticks(2)
    assert world.has_grant("c")
    assert world.deactivated == ["a", "b"]
    assert (world.stage("a"), world.stage("c")) == ("Releasing", "Reclaimable")
    [said] = [text for _, about, reason, text in world.events.told if (about, reason) == ("gang", "ReclaimReplanned")]
    assert said.startswith("FreedQuotaTaken: plan")
    await gang_starts(world)
    assert world.deactivated == ["a", "b", "c"]
    assert [world.stage(name) for name in ("a", "b", "c")] == ["Admitted"] * 3
    assert [world.ledger(name).times for name in ("a", "b", "c")] == [1, 1, 1]
    assert [each.stage for each in world.ended] == [LedgerStage.ADMITTED] * 3, "no GPU is counted twice"


async def test_others_that_get_freed_quota_again_and_again_do_not_wear_out_all_idle_workloads() -> None:
    world = await plan_at(BEGUN, *(f"idle-{number}" for number in range(6)), strategy="BestEffortFIFO")
    for number in range(6):
        world.admits_newcomer(f"other-{number}", gpus=2)
        await world.ticks(2)
        await world.judged()
        await world.keda()
        await world.ticks(2)
    # The plan is made anew twice at most, with one victim more each time; then all are released.
    assert world.deactivated == ["a", "b", "idle-0", "idle-1"]
    assert not any(world.has_grant(f"idle-{number}") for number in range(6))


@pytest.mark.parametrize(
    ("phase", "change"),
    [
        pytest.param(
            AT_ZERO, lambda world: world.admits_newcomer("other", gpus=1), id="in the second of the deactivation"
        ),
        pytest.param(BEGUN, lambda world: world.admits_newcomer("other", gpus=1), id="later"),
        pytest.param(BEGUN, lambda world: world.has_quota(7), id="where an administrator reduces the quota"),
    ],
)
async def test_without_other_candidates_what_was_freed_is_given_back(phase: str, change: Change) -> None:
    world = await plan_at(phase, strategy="BestEffortFIFO")
    if phase == AT_ZERO:
        await world.ticks()
    assert world.deactivated == ["a", "b"]
    change(world)
    await world.ticks(2)
    assert "FreedQuotaTaken" in next(text for *_, reason, text in world.events.told if reason == "ReclaimCancelled")
    assert [world.replicas(name) for name in ("a", "b")] == [1, 1]
    await world.passes(minutes=2)
    assert [world.is_active(name) for name in ("a", "b")] == [True, True]


async def test_what_another_workload_gives_back_while_the_plan_is_cancelled_is_the_gangs_all_the_same() -> None:
    """The leader has died when it had written the first half of it."""
    world = await plan_at(BEGUN, strategy="BestEffortFIFO")
    await world.ticks()
    world.admits_newcomer("other", gpus=1)
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
    world.admits_newcomer("newcomer", gpus=1)
    await gang_starts(world)
    assert not {"ReclaimReplanned", "ReclaimCancelled"} & set(world.events.reasons("gang"))
