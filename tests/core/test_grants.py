"""What is done about a plan, row by row of its table."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from scaler.core.grants import Course, Ending, GangState, Grant, Move, Victim, move

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

ROWS: dict[str, tuple[Grant, GangState, list[Victim], Move]] = {
    "an admitted gang ends its plan": (GRANT, GangState.ADMITTED, [DEACTIVATED], Move(course=Course.FINISH)),
    "a gang with quota is only watched": (GRANT, GangState.RESERVED, [DEACTIVATED], Move(course=Course.WATCH)),
    "without its gang a plan is released": (
        GRANT,
        GangState.GONE,
        [DEACTIVATED, AT_ZERO],
        Move(course=Course.RELEASE, ending=Ending.GANG_GONE),
    ),
    "one busy victim calls everything off": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, BUSY],
        Move(course=Course.RELEASE, ending=Ending.VICTIM_BUSY, about=("team/a",)),
    ),
    "so does one that is busy although asked to be at 0": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, BUSY_AT_ZERO],
        Move(course=Course.RELEASE, ending=Ending.VICTIM_BUSY, about=("team/a",)),
    ),
    "so does one that has vanished": (
        GRANT,
        GangState.WAITING,
        [AT_ZERO, MISSING],
        Move(course=Course.RELEASE, ending=Ending.VICTIM_BUSY, about=("team/a",)),
    ),
    "a grant that nobody acted on runs out": (
        LATE,
        GangState.WAITING,
        [AT_ZERO, RUNNING],
        Move(course=Course.RELEASE, ending=Ending.GRANT_EXPIRED, about=("team/a",)),
    ),
    "a plan waits for the last victim": (GRANT, GangState.WAITING, [AT_ZERO, RUNNING], Move(course=Course.WAIT)),
    "all victims at 0 are deactivated": (GRANT, GangState.WAITING, [AT_ZERO, AT_ZERO], Move(course=Course.COMMIT)),
    "what was begun is carried through": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, BUSY_AT_ZERO],
        Move(course=Course.COMMIT),
    ),
    "a victim that woke after that has the plan reconsidered": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, WOKEN],
        Move(course=Course.RECONSIDER, ending=Ending.VICTIM_WOKE, about=("team/a",)),
    ),
    "with all of them deactivated the gang has its time": (
        GRANT,
        GangState.WAITING,
        [DEACTIVATED, DEACTIVATED],
        Move(course=Course.WATCH),
    ),
    "and after that the plan is reconsidered": (
        LATE,
        GangState.WAITING,
        [DEACTIVATED, DEACTIVATED],
        Move(course=Course.RECONSIDER, ending=Ending.NOT_RESERVED),
    ),
}


@pytest.mark.parametrize("truth", ROWS)
def test_every_row_of_the_table(truth: str) -> None:
    grant, gang, victims, expected = ROWS[truth]
    assert move(grant, gang, victims, now=NOW) == expected


def test_nothing_is_begun_while_one_victim_is_busy_or_not_yet_at_zero() -> None:
    for pair in product([RUNNING, BUSY, AT_ZERO, BUSY_AT_ZERO, MISSING], repeat=2):
        for grant in (GRANT, LATE):
            begun = move(grant, GangState.WAITING, pair, now=NOW).course is Course.COMMIT
            assert begun == (grant is GRANT and pair == (AT_ZERO, AT_ZERO))
