"""Where freed GPUs are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from scaler.reclaim.transitions import GangState, LedgerEntry, LedgerStage, Victim, advance, closed, reopened

T0 = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENTRY = LedgerEntry(plan="p1", gang="team/gang", gpus=4, reclaimable_at=T0)
WAITING, RESERVED, ADMITTED = GangState.WAITING, GangState.RESERVED, GangState.ADMITTED
HELD = Victim(name="team/a", desired_replicas=0, is_idle=True, is_deactivated=False, holds_quota=True, pods_left=2)
ENDING = replace(HELD, is_deactivated=True)
GONE = replace(ENDING, holds_quota=False, pods_left=0)


def after(*seen: tuple[float, Victim, GangState]) -> LedgerEntry:
    entry = ENTRY
    for seconds, victim, gang in seen:
        entry = advance(entry, victim, gang, now=T0 + timedelta(seconds=seconds))
    return entry


def test_the_worked_example_wastes_28_gpu_seconds() -> None:
    entry = after((0, ENDING, WAITING), (1, replace(ENDING, holds_quota=False), RESERVED), (6, GONE, RESERVED))
    assert entry.stage is LedgerStage.RESERVED
    done = advance(entry, GONE, ADMITTED, now=T0 + timedelta(seconds=7))
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
    assert advance(entry, replace(ENDING, pods_left=0), ADMITTED, now=T0).available_at == T0
    later = T0 + timedelta(seconds=9)
    ended = closed(entry, ENDING, now=later)
    assert (ended.stage, ended.available_at, ended.admitted_at) == (LedgerStage.ADMITTED, None, later)


def test_nothing_is_credited_before_it_is_seen() -> None:
    assert after((0, HELD, WAITING), (9, HELD, WAITING)).stage is LedgerStage.RECLAIMABLE


def test_what_was_freed_stays_freed_when_another_plan_goes_on_with_it() -> None:
    free = after((0, ENDING, WAITING), (1, GONE, WAITING))
    again = reopened(replace(free, stage=LedgerStage.CANCELLED, ended_at=T0), plan="p2")
    assert (again.plan, again.stage, again.ended_at) == ("p2", LedgerStage.AVAILABLE, None)
    done = advance(again, GONE, ADMITTED, now=T0 + timedelta(seconds=9))
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
        now = T0 + timedelta(seconds=second)
        following = advance(entry, victim, gang, now=now)
        assert _ORDER.index(following.stage) >= _ORDER.index(entry.stage)
        for name in ("releasing_at", "available_at", "reserved_at", "admitted_at", "ended_at"):
            before = getattr(entry, name)
            assert before is None or getattr(following, name) == before
        assert advance(following, victim, gang, now=now) == following
        entry = following
