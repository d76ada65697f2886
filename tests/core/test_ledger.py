"""Where freed GPUs are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from scaler.core.ledger import Entry, Sight, Stage, advance, reopened

T0 = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENTRY = Entry(plan="p1", gang="team/gang", gpus=4, reclaimable_at=T0)
HELD = Sight(is_deactivated=False, holds_quota=True, pods_left=2)
ENDING = Sight(is_deactivated=True, holds_quota=True, pods_left=2)
GONE = Sight(is_deactivated=True, holds_quota=False, pods_left=0)


def after(*sights: tuple[float, Sight]) -> Entry:
    entry = ENTRY
    for seconds, sight in sights:
        entry = advance(entry, sight, now=T0 + timedelta(seconds=seconds))
    return entry


def test_the_worked_example_wastes_28_gpu_seconds() -> None:
    reserved = replace(ENDING, holds_quota=False, gang_reserved=True)
    entry = after((0, ENDING), (1, reserved), (6, replace(GONE, gang_reserved=True)))
    assert entry.stage is Stage.RESERVED
    done = advance(entry, replace(GONE, gang_reserved=True, gang_admitted=True), now=T0 + timedelta(seconds=7))
    assert done.stage is Stage.ADMITTED
    assert done.wasted_gpu_seconds == 28
    assert done.took == timedelta(seconds=7)


def test_quota_that_is_free_is_not_available_while_a_pod_ends() -> None:
    assert after((0, ENDING), (1, replace(GONE, pods_left=1))).stage is Stage.RELEASING
    assert after((0, ENDING), (1, GONE)).stage is Stage.AVAILABLE


def test_nothing_is_credited_before_it_is_seen() -> None:
    assert after((0, HELD), (9, HELD)).stage is Stage.RECLAIMABLE


def test_what_a_third_one_got_is_taken_and_stays_so() -> None:
    entry = after((0, ENDING), (1, replace(GONE, taken_by="team/thief")), (2, replace(GONE, gang_admitted=True)))
    assert (entry.stage, entry.taken_by) == (Stage.TAKEN, "team/thief")
    assert entry.wasted_gpu_seconds == 4 * 1


def test_nobody_is_a_thief_once_the_gang_holds_its_quota() -> None:
    entry = after((0, ENDING), (1, replace(GONE, gang_reserved=True, taken_by="team/next")))
    assert entry.stage is Stage.RESERVED


def test_what_was_freed_stays_freed_when_another_plan_goes_on_with_it() -> None:
    stolen = after((0, ENDING), (1, GONE), (2, replace(GONE, taken_by="team/thief")))
    again = reopened(stolen, plan="p2")
    assert (again.plan, again.stage, again.taken_by, again.ended_at) == ("p2", Stage.AVAILABLE, "", None)
    done = advance(again, replace(GONE, gang_reserved=True, gang_admitted=True), now=T0 + timedelta(seconds=9))
    assert (done.stage, done.wasted_gpu_seconds) == (Stage.ADMITTED, 4 * 9)
    assert reopened(after((0, ENDING)), plan="p2").stage is Stage.RELEASING
    assert reopened(ENTRY, plan="p2").stage is Stage.RECLAIMABLE


sights = st.builds(
    Sight,
    is_deactivated=st.booleans(),
    holds_quota=st.booleans(),
    pods_left=st.integers(0, 2),
    gang_reserved=st.booleans(),
    gang_admitted=st.booleans(),
    taken_by=st.sampled_from(["", "", "team/thief"]),
    is_cancelled=st.sampled_from([False, False, False, True]),
)
_ORDER = [Stage.RECLAIMABLE, Stage.RELEASING, Stage.AVAILABLE, Stage.RESERVED, Stage.ADMITTED]


@given(st.lists(sights, max_size=8))
def test_an_entry_only_moves_forward_and_its_times_never_change(seen: list[Sight]) -> None:
    entry = ENTRY
    for second, sight in enumerate(seen):
        following = advance(entry, sight, now=T0 + timedelta(seconds=second))
        if entry.stage.is_final:
            assert following == entry
        elif following.stage in _ORDER:
            assert _ORDER.index(following.stage) >= _ORDER.index(entry.stage)
        for name in ("releasing_at", "available_at", "reserved_at", "admitted_at", "ended_at"):
            before = getattr(entry, name)
            assert before is None or getattr(following, name) == before
        assert advance(following, sight, now=T0 + timedelta(seconds=second)) == following
        entry = following
