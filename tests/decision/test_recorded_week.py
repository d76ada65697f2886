"""A week of random fleets' decisions, evidence and statuses, as they were before any of it was computed in columns.

What was recorded then is a hash of all that is told of every ScaledObject, hour by hour: `recorded_week.json`. The
code that made it decided about every ScaledObject at every tick, window by window, in plain Python.
"""

import hashlib
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from builders import NOON
from decision.random_fleet import RandomFleet, all_shown

RECORDED = Path(__file__).with_name("recorded_week.json")
SEEDS = (2026, 47)
NEWER = re.compile(
    r"(warning=None|warned_at=(None|datetime\.datetime\([^()]*\))), (?=keep_until=|wake_request=)"
    r"|, (read_since|exclude_until)=None"
)
"""Fields that there were not when it was recorded."""
HOURS = 7 * 24


async def hours(seed: int) -> AsyncIterator[str]:
    """The hash of what was decided up to the end of each hour."""
    fleet, told = RandomFleet(seed), hashlib.sha256()
    for hour in range(1, HOURS + 1):
        while fleet.now < NOON + timedelta(hours=hour):
            [evaluation] = await fleet.pass_time()
            told.update(NEWER.sub("", repr(evaluation and all_shown(evaluation))).encode())
        yield told.hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_decisions_of_a_week_are_those_that_were_recorded(seed: int) -> None:
    recorded = json.loads(RECORDED.read_text())[str(seed)]
    assert len(recorded) == HOURS
    assert [each async for each in hours(seed)] == recorded
