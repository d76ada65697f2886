"""A week of decisions, evidence and statuses, as they were before any of it was computed in columns.

What was recorded then is a hash of all that is told of every ScaledObject, hour by hour: `recorded_week.json`. The
code that made it decided about every ScaledObject at every tick, window by window, in plain Python. It was made of two
random fleets, and of the fleet of the demo.
"""

import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from builders import NOON
from decision.demo_fleet import ACT_SECONDS, DemoFleet
from decision.random_fleet import RandomFleet, all_shown
from scaler_sandbox.keda.rules import Effect

from scaler.idleness.reasons import DecisionReason, UnknownReason

RECORDED = Path(__file__).with_name("recorded_week.json")
_INSTANT = r"(None|datetime\.datetime\([^()]*\))"
NEWER = re.compile(
    r"\b(warning|allowed_during|wake_at|longest_keep|keeps_per_week|keep_users|suspended_(at_once|per_period))="
    r"(None|\(\)), "
    rf"|warned_at={_INSTANT}, told_by=\(\), told_at=None, (?=wake_request=)"
    r"|\brequire_delivery=(False|None), |\bwake=(None|<WakeRule\.ON_REQUEST: 'OnRequest'>), "
    r"|\bbefore_suspend=(''|None), before_suspend_on_failure=(<OnFailure\.HOLD: 'Hold'>|None), |, hook_run=None"
    r"|\bwhen_free_request='', |\bsuspended_because='', "
    rf"|, (read_since|exclude_until|last_activity|suspended_at)={_INSTANT}"
)
"""Fields that there were not when it was recorded."""
HOURS = 7 * 24


async def hours(fleet: RandomFleet | DemoFleet) -> AsyncIterator[str]:
    """The hash of what was decided up to the end of each hour."""
    told = hashlib.sha256()
    for hour in range(1, HOURS + 1):
        while fleet.now < NOON + timedelta(hours=hour):
            [evaluation] = await fleet.pass_time()
            told.update(NEWER.sub("", repr(evaluation and all_shown(evaluation))).encode())
        yield told.hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2026", "47", "demo"])
async def test_decisions_of_a_week_are_those_that_were_recorded(name: str) -> None:
    """The name of a random fleet is its seed."""
    recorded = json.loads(RECORDED.read_text())[name]
    assert len(recorded) == HOURS
    async with DemoFleet() if name == "demo" else nullcontext(RandomFleet(int(name))) as fleet:
        assert [each async for each in hours(fleet)] == recorded
    if isinstance(fleet, DemoFleet):
        check_that_much_happened(fleet)


def check_that_much_happened(fleet: DemoFleet) -> None:
    """Every act is told every day; gangs and owners come, GPUs are idle, busy and unknown, workloads go and wake."""
    assert fleet.told == HOURS * 3600 / ACT_SECONDS
    assert fleet.reasons.keys() >= {
        *(DecisionReason.STARTING, DecisionReason.WARMING_UP, DecisionReason.GPUS_BUSY),
        *(DecisionReason.IDLE_NOT_LONG_ENOUGH, DecisionReason.IDLE_NOT_NEEDED, DecisionReason.GPUS_IDLE),
        *(DecisionReason.RECLAIMED, DecisionReason.SUSPENDED, DecisionReason.WAKING, DecisionReason.WAITING_FOR_QUOTA),
        *(UnknownReason.SOURCE_UNAVAILABLE, UnknownReason.STALE_SAMPLES, UnknownReason.NO_SAMPLES),
        *(UnknownReason.SAMPLE_GAP, UnknownReason.LOW_COVERAGE, UnknownReason.MISSING_GPUS),
    }
    assert min(fleet.cluster.effects[Effect.ACTIVATE], fleet.cluster.effects[Effect.DEACTIVATE]) >= 50
