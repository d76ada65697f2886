"""What is done about a plan, row by row of its table, and where freed GPUs are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.reclaim.transitions import (
    GangState,
    LedgerEntry,
    LedgerStage,
    PlanAction,
    Victim,
    advance,
    closed,
    next_transition,
    reopened,
)
from scaler.targets.target_state import Grant

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
GRANT = Grant(
    plan="p1",
    gang="team/gang",
    gang_uid="u1",
    victims=("team/a", "team/b"),
    granted_at=NOW - timedelta(minutes=1),
    expires_at=NOW + timedelta(minutes=9),
)
LATE = replace(GRANT, expires_at=NOW)

RUNNING = Victim(name="a", desired_replicas=1, is_idle=True, is_deactivated=False)
AT_ZERO = replace(RUNNING, desired_replicas=0)
DEACTIVATED = replace(AT_ZERO, is_deactivated=True, is_idle=False)
UNKNOWN = replace(RUNNING, is_idle=False, is_unknown=True)
VICTIMS = {
    "running": RUNNING,
    "busy": replace(RUNNING, is_idle=False),
    "zero": AT_ZERO,
    "busy-zero": replace(AT_ZERO, is_idle=False),
    "off": DEACTIVATED,
    "off-missing": replace(DEACTIVATED, is_missing=True),
    "woken": replace(DEACTIVATED, desired_replicas=1),
    "missing": replace(RUNNING, is_missing=True),
    "unknown": UNKNOWN,
    "unknown-zero": replace(UNKNOWN, desired_replicas=0),
    "set-back": replace(RUNNING, was_set_back=True),
    "failed": replace(RUNNING, is_idle=False, has_failed_hook=True),
    "works-again": replace(RUNNING, is_idle=False, was_deactivated=True),
}

# The victims are a and b; after the outcome comes its reason, and on whose account.
TABLE = """
in time | Admitted | off              | Finish                      | an admitted gang ends its plan
in time | Reserved | off              | Watch                       | a gang with quota is only watched
in time | Reserved | off zero         | Watch NotNeeded b           | a victim that has given nothing is released
in time | Admitted | off zero         | Finish NotNeeded b          | also where the gang is admitted
in time | Admitted | off works-again  | Finish                      | a victim that runs again has given
in time | Admitted | zero zero        | Release NotNeeded           | a gang that was admitted by itself needs no plan
in time | Reserved | zero running     | Release NotNeeded           | nor one that holds its quota by itself
in time | Gone     | off zero         | Release GangGone            | without its gang a plan is released
in time | Waiting  | zero busy        | Release VictimBusy b        | one busy victim cancels the plan
in time | Waiting  | zero busy-zero   | Release VictimBusy b        | also one that is asked to be at 0
in time | Waiting  | zero failed      | Release BeforeSuspendFailed b | one whose hook has failed cancels it, too
in time | Waiting  | busy failed      | Release VictimBusy a b      | but work is the reason where there is some
in time | Waiting  | zero missing     | Release VictimBusy b        | so does one that has vanished
in time | Waiting  | zero set-back    | Release VictimWoke b        | and one that was set back to 1
late    | Waiting  | set-back running | Release GrantExpired b      | the scaler sets back after the time: no wake-up
late    | Waiting  | off set-back     | Reconsider NotReserved b    | also after the plan was begun
in time | Waiting  | zero unknown     | Wait                        | what is not known cancels nothing
in time | Waiting  | zero unknown-zero | Wait                       | nor is it executed
late    | Waiting  | zero unknown-zero | Release GrantExpired       | until its time is up
late    | Waiting  | zero running     | Release GrantExpired b      | a grant that KEDA does not act on expires
in time | Waiting  | zero running     | Wait                        | a plan waits for the last victim
in time | Waiting  | zero zero        | Commit                      | all victims at 0 are deactivated
in time | Waiting  | off zero         | Commit                      | what was begun is finished
late    | Waiting  | off zero         | Reconsider NotReserved b    | but not for ever
in time | Waiting  | off busy-zero    | Reconsider VictimWoke b     | nor with a busy victim
in time | Waiting  | off unknown-zero | Wait                        | nor with one that is not known to be idle
in time | Waiting  | off running      | Wait                        | one that joined later has its time to go to 0
late    | Waiting  | off running      | Reconsider NotReserved b    | and then the plan is reconsidered
in time | Waiting  | off off-missing  | Reconsider VictimWoke b     | one that lost its grant is lost
in time | Waiting  | off woken        | Reconsider VictimWoke b     | one that woke after all were deactivated is, too
in time | Waiting  | off off          | Watch                       | with all deactivated the gang has its time
late    | Waiting  | off off          | Reconsider NotReserved      | and then the plan is reconsidered
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1])
def test_every_row_of_the_table(row: list[str]) -> None:
    time, gang, victims, outcome, _ = row
    victims_ = [replace(VICTIMS[each], name=name) for each, name in zip(victims.split(), "ab", strict=False)]
    found = next_transition(GRANT if time == "in time" else LATE, GangState(gang), victims_, now=NOW)
    assert f"{found.action} {found.ending} {' '.join(found.about)}".split() == outcome.split()


ANY = [
    replace(
        RUNNING,
        desired_replicas=replicas,
        is_idle=judged == "idle",
        is_unknown=judged == "unknown",
        is_deactivated=is_deactivated,
        is_missing=is_missing,
        was_set_back=was_set_back,
    )
    for replicas, judged, is_deactivated, is_missing, was_set_back in product(
        (0, 1), ("idle", "busy", "unknown"), (False, True), (False, True), (False, True)
    )
]


def test_only_idle_victims_at_zero_are_deactivated_and_none_before_all_are() -> None:
    for grant, pair in product((GRANT, LATE), product(ANY, repeat=2)):
        if next_transition(grant, GangState.WAITING, pair, now=NOW).action is PlanAction.COMMIT:
            assert grant is GRANT
            for victim in pair:
                assert victim.is_deactivated or (victim.is_idle and victim.desired_replicas == 0)
                assert not victim.is_missing
                assert victim.is_deactivated or not victim.was_set_back


# ---------------------------------------------------------------------------------------------------------- the ledger

ENTRY = LedgerEntry(plan="p1", gang="team/gang", gpus=4, reclaimable_at=NOW)
WAITING, RESERVED, ADMITTED = GangState.WAITING, GangState.RESERVED, GangState.ADMITTED
HELD = Victim(name="team/a", desired_replicas=0, is_idle=True, is_deactivated=False, holds_quota=True, pods_left=2)
ENDING = replace(HELD, is_deactivated=True)
GONE = replace(ENDING, holds_quota=False, pods_left=0)


def after(*seen: tuple[float, Victim, GangState]) -> LedgerEntry:
    entry = ENTRY
    for seconds, victim, gang in seen:
        entry = advance(entry, victim, gang, now=NOW + timedelta(seconds=seconds))
    return entry


def test_the_worked_example_wastes_28_gpu_seconds() -> None:
    entry = after((0, ENDING, WAITING), (1, replace(ENDING, holds_quota=False), RESERVED), (6, GONE, RESERVED))
    assert entry.stage is LedgerStage.RESERVED
    done = advance(entry, GONE, ADMITTED, now=NOW + timedelta(seconds=7))
    assert done.stage is LedgerStage.ADMITTED
    assert done.wasted_gpu_seconds == 28
    assert done.took == timedelta(seconds=7)


def test_quota_that_is_free_is_not_available_while_a_pod_ends() -> None:
    assert after((0, ENDING, WAITING), (1, replace(GONE, pods_left=1), WAITING)).stage is LedgerStage.RELEASING
    assert after((0, ENDING, WAITING), (1, GONE, WAITING)).stage is LedgerStage.AVAILABLE


def test_what_still_ends_is_the_gangs_only_when_the_plan_ends() -> None:
    """Kueue admits the gang at once; the condition of the victim may say for long that it holds quota."""
    entry = after((0, ENDING, WAITING), (1, ENDING, ADMITTED))
    assert entry.stage is LedgerStage.RELEASING
    assert advance(entry, replace(ENDING, pods_left=0), ADMITTED, now=NOW).available_at == NOW
    later = NOW + timedelta(seconds=9)
    ended = closed(entry, ENDING, now=later)
    assert (ended.stage, ended.available_at, ended.admitted_at) == (LedgerStage.ADMITTED, None, later)


def test_nothing_is_credited_before_it_is_seen() -> None:
    assert after((0, HELD, WAITING), (9, HELD, WAITING)).stage is LedgerStage.RECLAIMABLE


def test_what_was_freed_stays_freed_when_another_plan_goes_on_with_it() -> None:
    free = after((0, ENDING, WAITING), (1, GONE, WAITING))
    again = reopened(replace(free, stage=LedgerStage.CANCELLED, ended_at=NOW), plan="p2")
    assert (again.plan, again.stage, again.ended_at) == ("p2", LedgerStage.AVAILABLE, None)
    done = advance(again, GONE, ADMITTED, now=NOW + timedelta(seconds=9))
    assert (done.stage, done.wasted_gpu_seconds) == (LedgerStage.ADMITTED, 4 * 9)
    assert reopened(after((0, ENDING, WAITING)), plan="p2").stage is LedgerStage.RELEASING
    assert reopened(ENTRY, plan="p2").stage is LedgerStage.RECLAIMABLE


victims = st.builds(
    replace, st.just(HELD), is_deactivated=st.booleans(), holds_quota=st.booleans(), pods_left=st.integers(0, 2)
)
_ORDER = [
    LedgerStage.RECLAIMABLE,
    LedgerStage.RELEASING,
    LedgerStage.AVAILABLE,
    LedgerStage.RESERVED,
    LedgerStage.ADMITTED,
]


@given(st.lists(st.tuples(victims, st.sampled_from(GangState)), max_size=8))
def test_an_entry_only_moves_forward_and_its_times_never_change(seen: list[tuple[Victim, GangState]]) -> None:
    entry = ENTRY
    for second, (victim, gang) in enumerate(seen):
        now = NOW + timedelta(seconds=second)
        following = advance(entry, victim, gang, now=now)
        assert _ORDER.index(following.stage) >= _ORDER.index(entry.stage)
        for name in ("releasing_at", "available_at", "reserved_at", "admitted_at", "ended_at"):
            before = getattr(entry, name)
            assert before is None or getattr(following, name) == before
        assert advance(following, victim, gang, now=now) == following
        entry = following
