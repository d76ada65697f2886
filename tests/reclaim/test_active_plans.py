"""Which plans stand, as the grants in the API tell, and how is everybody in them?"""

from dataclasses import replace
from typing import Any

import pytest
from builders import NOON, at
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import scalable_workload, stamp
from reclaim.reclaim_world import PressureWorld

from scaler.admission.remote_copies import NominatedCopies
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.reclaim.active_plans import ActivePlan, VictimStatus, active_plans, entry_of, entry_status
from scaler.reclaim.candidates import times_reclaimed
from scaler.reclaim.transitions import GangState, LedgerEntry, LedgerStage
from scaler.reclaim.writer import grant_status
from scaler.targets.target_state import Grant, Seeks
from scaler.targets.workloads import grant_of


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
        "workloadUID": world.read(WORKLOAD, "gang")["metadata"]["uid"],
        "victims": [f"demo/{each}" for each in victims or (name,)],
        "grantedAt": stamp(NOON),
        "expiresAt": stamp(at(600)),
    }
    world.change(SCALABLE_WORKLOAD, name, status={"grant": grant | fields})


def active(world: PressureWorld, **options: Any) -> list[ActivePlan]:
    decisions, nominations = world.decision_cache.evaluation, NominatedCopies()
    return active_plans(world.evaluator.cluster, decisions, nominations=nominations, **options)


def victim(world: PressureWorld, name: str, **options: Any) -> VictimStatus:
    [plan] = active(world, **options)
    return next(each for each in plan.victims if each.name == f"demo/{name}")


async def test_a_plan_is_what_its_grants_say_together() -> None:
    """A leader ended while it extended one of them: the plan lasts as long as the shortest."""
    world = await world_with("a", "b")
    grants(world, "a", "a", "b", expiresAt=stamp(at(300)))
    grants(world, "b", "a", "b", expiresAt=stamp(at(900)))
    await world.taken_up()
    [plan] = active(world)
    assert (plan.grant.plan, plan.grant.gang, plan.gang_state) == ("p", "demo/gang", GangState.WAITING)
    assert plan.grant.expires_at == at(300)
    assert [(each.name, each.is_idle, each.pods_left) for each in plan.victims] == [
        ("demo/a", True, 1),
        ("demo/b", True, 1),
    ]
    grants(world, "b", plan="younger", grantedAt=stamp(at(10)))
    assert [each.grant.plan for each in active(world)] == ["p", "younger"], "the oldest first"


@pytest.mark.parametrize("victims", [("a", "b", "c"), ("a", "b")])
async def test_a_workload_with_a_grant_is_a_victim_whatever_the_other_grants_say(victims: tuple[str, ...]) -> None:
    """A leader ended while it dropped c."""
    world = await world_with("a", "b", "c")
    grants(world, "a", "a", "b")
    grants(world, "b", "a", "b")
    grants(world, "c", *victims)
    [plan] = active(world)
    assert [each.name for each in plan.holders] == ["demo/a", "demo/b", "demo/c"]


async def test_a_victim_without_its_grant_is_missing_and_a_withdrawn_grant_is_none() -> None:
    world = await world_with("a", "b")
    grants(world, "a", "a", "b", expiresAt=stamp(NOON))
    assert active(world) == []
    grants(world, "b", "a", "b")
    assert victim(world, "a").is_missing
    assert not victim(world, "b").is_missing


async def test_an_object_that_is_being_deleted_is_gone() -> None:
    world = await world_with("a", "b")
    grants(world, "a", "a", "b")
    grants(world, "b", "a", "b")
    world.change(SCALABLE_WORKLOAD, "a", metadata={"deletionTimestamp": stamp(NOON)})
    assert victim(world, "a").is_missing
    assert [each.name for each in active(world)[0].holders] == ["demo/b"]


async def test_a_verdict_counts_for_the_replicas_that_it_was_made_for() -> None:
    world = await world_with("a")
    grants(world, "a")
    [plan] = active_plans(world.evaluator.cluster, None, nominations=NominatedCopies())
    assert [(each.is_idle, each.is_unknown) for each in plan.victims] == [(False, True)], "there is none"
    await world.taken_up()
    assert victim(world, "a").is_idle
    world.scales("a", 0)
    assert (victim(world, "a").is_idle, victim(world, "a").is_unknown) == (False, True)
    await world.taken_up()
    assert (victim(world, "a").is_idle, victim(world, "a").is_unknown) == (True, False)


@pytest.mark.parametrize(("plan", "replicas", "is_so"), [("p", 1, True), ("q", 1, False), ("p", 0, False)])
async def test_a_victim_that_was_at_zero_for_its_plan_and_is_at_one_again_was_set_back(
    plan: str, replicas: int, is_so: bool
) -> None:
    world = await world_with("a")
    grants(world, "a")
    world.scales("a", replicas)
    assert victim(world, "a", seen_at_zero={(plan, "demo/a")}).was_set_back == is_so


async def test_only_what_we_have_deactivated_has_begun() -> None:
    world = await world_with("a")
    grants(world, "a")
    world.scales("a", 0)
    world.change(WORKLOAD, "a", spec={"active": False})
    assert not active(world)[0].is_begun
    note = {"idlegpu.io/suspended": f'{{"at": "{stamp(at(90))}"}}'}
    world.change(WORKLOAD, "a", metadata={"annotations": note})
    [plan] = active(world)
    assert plan.is_begun
    assert plan.deactivated_at == [at(90)]


HELD = ("QuotaReserved",)
WAITING, RESERVED, ADMITTED, GONE = GangState.WAITING, GangState.RESERVED, GangState.ADMITTED, GangState.GONE


@pytest.mark.parametrize(
    ("seeks", "true", "checks", "state"),
    [
        ("Quota", (), {}, WAITING),
        ("Quota", HELD, {}, RESERVED),
        ("Quota", (*HELD, "Admitted"), {}, ADMITTED),
        ("Quota", (*HELD, "Admitted", "Finished"), {}, GONE),
        ("Nodes", HELD, {"gate": "Pending", "other": "Ready"}, WAITING),
        ("Nodes", HELD, {}, WAITING),
        ("Nodes", HELD, {"gate": "Ready", "other": "Pending"}, ADMITTED),
        ("Nodes", (*HELD, "Admitted"), {}, ADMITTED),
        ("Nodes", (), {"gate": "Pending"}, GONE),
        ("Nodes", (*HELD, "Evicted"), {"gate": "Pending"}, GONE),
        ("Nodes", (*HELD, "Finished"), {"gate": "Ready"}, GONE),
    ],
)
async def test_how_far_a_gang_is(seeks: str, true: tuple[str, ...], checks: dict[str, str], state: GangState) -> None:
    world = await world_with("a")
    grants(world, "a", seeks=seeks, check="gate")
    written = [{"type": kind, "status": str(kind in true)} for kind in ("QuotaReserved", "Admitted", *true)]
    entries = [{"name": name, "state": each} for name, each in checks.items()]
    world.change(WORKLOAD, "gang", status={"conditions": written, "admissionChecks": entries})
    assert active(world)[0].gang_state is state
    world.change(WORKLOAD, "gang", spec={"active": False})
    assert active(world)[0].gang_state is GONE


# -------------------------------------------------------------------------------- written to the status and read again

GRANT = Grant(
    plan="2d2f1dfc9b",
    gang="demo/gang",
    gang_uid="7e6b1a34",
    victims=("demo/a", "demo/b"),
    granted_at=at(0),
    expires_at=at(600),
)
ENTRY = LedgerEntry(plan="2d2f1dfc9b", gang="demo/gang", gpus=4, reclaimable_at=at(0))

times = st.none() | st.integers(0, 10_000).map(at)
entries = st.builds(
    LedgerEntry,
    plan=st.just("p"),
    gang=st.just("demo/gang"),
    gpus=st.integers(0, 64),
    stage=st.sampled_from(LedgerStage),
    reclaimable_at=st.integers(0, 10_000).map(at),
    releasing_at=times,
    available_at=times,
    reserved_at=times,
    admitted_at=times,
    ended_at=times,
)


@pytest.mark.parametrize(
    "grant",
    [GRANT, replace(GRANT, seeks=Seeks.NODES, check="gate"), replace(GRANT, expires_at=GRANT.granted_at)],
    ids=["for quota", "for nodes", "withdrawn"],
)
def test_a_grant_is_read_as_it_was_written(grant: Grant) -> None:
    written = {name: value for name, value in grant_status(grant).items() if value is not None}
    assert ("seeks" in written, "check" in written) == (bool(grant.check), bool(grant.check))
    assert grant_of(scalable_workload("a", grant=written)) == grant
    assert grant.is_withdrawn == (grant.expires_at == grant.granted_at)


@pytest.mark.parametrize("lacking", [{"plan": None}, {"grantedAt": None}, {"expiresAt": None}, {"seeks": "Luck"}])
def test_an_unreadable_grant_is_none(lacking: dict[str, str | None]) -> None:
    assert grant_of(scalable_workload("a", grant={**grant_status(GRANT), **lacking})) is None


@given(entries, st.integers(0, 9))
def test_an_entry_of_the_ledger_is_read_as_it_was_written(entry: LedgerEntry, times: int) -> None:
    status = {name: value for name, value in entry_status(entry, times=times).items() if value is not None}
    found = scalable_workload("a", reallocation=status)
    assert entry_of(found) == entry
    assert times_reclaimed(found) == times


def test_what_was_wasted_stands_in_the_status_and_what_is_absent_is_removed() -> None:
    assert [entry_status(ENTRY, times=0)[name] for name in ("admittedAt", "wastedGpuSeconds")] == [None, None]
    done = replace(ENTRY, stage=LedgerStage.ADMITTED, releasing_at=at(0), admitted_at=at(7))
    assert entry_status(done, times=1)["wastedGpuSeconds"] == 28


def test_an_entry_of_an_unknown_stage_is_none() -> None:
    status = {name: value for name, value in entry_status(ENTRY, times=2).items() if value is not None}
    found = scalable_workload("a", reallocation=status | {"stage": "Lost"})
    assert entry_of(found) is None
    assert times_reclaimed(found) == 2, "it is counted all the same"
