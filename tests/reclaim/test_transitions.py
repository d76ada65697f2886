"""What is done about a plan, row by row of its table."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from scaler.decision.target_state import Grant
from scaler.reclaim.transitions import GangState, PlanAction, PlanEndReason, PlanTransition, Victim, next_transition

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

RUNNING = Victim(key="team/a", desired_replicas=1, is_idle=True, is_deactivated=False)
BUSY = replace(RUNNING, is_idle=False)
AT_ZERO = replace(RUNNING, desired_replicas=0)
BUSY_AT_ZERO = replace(AT_ZERO, is_idle=False)
DEACTIVATED = replace(AT_ZERO, is_deactivated=True, is_idle=False)
WOKEN = replace(DEACTIVATED, desired_replicas=1)
MISSING = replace(RUNNING, is_missing=True)
UNKNOWN = replace(RUNNING, is_idle=False, is_unknown=True)
UNKNOWN_AT_ZERO = replace(UNKNOWN, desired_replicas=0)
SET_BACK = replace(RUNNING, was_set_back=True)
BACK_AT_WORK = replace(BUSY, was_deactivated=True)

ROWS: dict[str, tuple[Grant, GangState, list[Victim], PlanTransition]] = {
    "an admitted gang ends its plan": (
        GRANT,
        GangState.ADMITTED,
        [DEACTIVATED],
        PlanTransition(course=PlanAction.FINISH),
    ),
    "a gang with quota is only watched": (
        GRANT,
        GangState.RESERVED,
        [DEACTIVATED],
        PlanTransition(course=PlanAction.WATCH),
    ),
    "a gang that got its quota spares whoever has given nothing": (
        GRANT,
        GangState.RESERVED,
        [DEACTIVATED, AT_ZERO],
        PlanTransition(course=PlanAction.WATCH, ending=PlanEndReason.NOT_NEEDED, about=("team/a",)),
    ),
    "so does one that is admitted": (
        GRANT,
        GangState.ADMITTED,
        [DEACTIVATED, AT_ZERO],
        PlanTransition(course=PlanAction.FINISH, ending=PlanEndReason.NOT_NEEDED, about=("team/a",)),
    ),
    "who gave and runs again has given": (
        GRANT,
        GangState.ADMITTED,
        [DEACTIVATED, BACK_AT_WORK],
        PlanTransition(course=PlanAction.FINISH),
    ),
    "a gang that got in by itself needs nobody": (
        GRANT,
        GangState.ADMITTED,
        [AT_ZERO, AT_ZERO],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.NOT_NEEDED),
    ),
    "nor does one that holds its quota by itself": (
        GRANT,
        GangState.RESERVED,
        [AT_ZERO, RUNNING],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.NOT_NEEDED),
    ),
    "without its gang a plan is released": (
        GRANT,
        GangState.GONE,
        [DEACTIVATED, AT_ZERO],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.GANG_GONE),
    ),
    "one busy victim calls everything off": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, BUSY],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.VICTIM_BUSY, about=("team/a",)),
    ),
    "so does one that is busy although asked to be at 0": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, BUSY_AT_ZERO],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.VICTIM_BUSY, about=("team/a",)),
    ),
    "so does one that has vanished": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, MISSING],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.VICTIM_BUSY, about=("team/a",)),
    ),
    "and one that somebody has set back to 1": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, SET_BACK],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.VICTIM_WOKE, about=("team/a",)),
    ),
    "whom the scaler itself sets back once its time is up has not been asked for": (
        LATE,
        GangState.WAITING,
        [SET_BACK, replace(RUNNING, key="team/b")],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.GRANT_EXPIRED, about=("team/b",)),
    ),
    "nor has one of a plan that was begun": (
        LATE,
        GangState.WAITING,
        [DEACTIVATED, SET_BACK],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.NOT_RESERVED, about=("team/a",)),
    ),
    "what nobody knows calls nothing off": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, UNKNOWN],
        PlanTransition(course=PlanAction.WAIT),
    ),
    "nor is it carried out": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, UNKNOWN_AT_ZERO],
        PlanTransition(course=PlanAction.WAIT),
    ),
    "until its time is up": (
        LATE,
        GangState.WAITING,
        [AT_ZERO, UNKNOWN_AT_ZERO],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.GRANT_EXPIRED),
    ),
    "a grant that nobody acted on runs out": (
        LATE,
        GangState.WAITING,
        [AT_ZERO, RUNNING],
        PlanTransition(course=PlanAction.RELEASE, ending=PlanEndReason.GRANT_EXPIRED, about=("team/a",)),
    ),
    "a plan waits for the last victim": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, RUNNING],
        PlanTransition(course=PlanAction.WAIT),
    ),
    "all victims at 0 are deactivated": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, AT_ZERO],
        PlanTransition(course=PlanAction.COMMIT),
    ),
    "what was begun is carried through": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, AT_ZERO],
        PlanTransition(course=PlanAction.COMMIT),
    ),
    "but not for ever": (
        LATE,
        GangState.WAITING,
        [DEACTIVATED, AT_ZERO],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.NOT_RESERVED, about=("team/a",)),
    ),
    "but not with one that works": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, BUSY_AT_ZERO],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.VICTIM_WOKE, about=("team/a",)),
    ),
    "nor with one of which nobody knows": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, UNKNOWN_AT_ZERO],
        PlanTransition(course=PlanAction.WAIT),
    ),
    "one that joined later has its time to go to 0": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, RUNNING],
        PlanTransition(course=PlanAction.WAIT),
    ),
    "and where it does not go the plan is reconsidered": (
        LATE,
        GangState.WAITING,
        [DEACTIVATED, RUNNING],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.NOT_RESERVED, about=("team/a",)),
    ),
    "one that lost its grant is lost": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, replace(DEACTIVATED, is_missing=True)],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.VICTIM_WOKE, about=("team/a",)),
    ),
    "a victim that woke after that has the plan reconsidered": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, WOKEN],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.VICTIM_WOKE, about=("team/a",)),
    ),
    "with all of them deactivated the gang has its time": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, DEACTIVATED],
        PlanTransition(course=PlanAction.WATCH),
    ),
    "and after that the plan is reconsidered": (
        LATE,
        GangState.WAITING,
        [DEACTIVATED, DEACTIVATED],
        PlanTransition(course=PlanAction.RECONSIDER, ending=PlanEndReason.NOT_RESERVED),
    ),
}


@pytest.mark.parametrize("truth", ROWS)
def test_every_row_of_the_table(truth: str) -> None:
    grant, gang, victims, expected = ROWS[truth]
    assert next_transition(grant, gang, victims, now=NOW) == expected


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


def test_nobody_is_deactivated_who_is_not_at_zero_and_idle() -> None:
    for grant, pair in product((GRANT, LATE), product(ANY, repeat=2)):
        if next_transition(grant, GangState.WAITING, pair, now=NOW).course is PlanAction.COMMIT:
            for victim in pair:
                assert victim.is_deactivated or (victim.is_idle and victim.desired_replicas == 0)
                assert not victim.is_missing
                assert not (victim.was_set_back and not victim.is_deactivated)


def test_nothing_is_begun_while_one_victim_is_not_idle_at_zero() -> None:
    for pair in product([RUNNING, BUSY, AT_ZERO, BUSY_AT_ZERO, MISSING, UNKNOWN_AT_ZERO, SET_BACK], repeat=2):
        for grant in (GRANT, LATE):
            begun = next_transition(grant, GangState.WAITING, pair, now=NOW).course is PlanAction.COMMIT
            assert begun == (grant is GRANT and pair == (AT_ZERO, AT_ZERO))


def test_a_grant_that_ends_when_it_begins_is_withdrawn() -> None:
    assert not GRANT.is_withdrawn
    assert replace(GRANT, expires_at=GRANT.granted_at).is_withdrawn
