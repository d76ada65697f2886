"""A week of decisions, evidence and statuses, as they were when it was recorded: whoever moves code changes none.

What is recorded is a hash of all that is shown of every ScaledObject, hour by hour: `recorded_week.json`. It is of two
random fleets, and of the fleet of the demo. Whoever changes a decision on purpose records it again, and says so:
`cd tests && python -m decision.test_recorded_week`. The test plays a day or two; whoever moves code records the
whole week and sees that nothing has changed in the file.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from builders import NOON
from decision.demo_fleet import ACT_SECONDS, DemoFleet
from decision.random_fleet import RandomFleet, all_shown
from scaler_sandbox.keda.rules import Effect

from scaler.decision.reasons import DecisionReason
from scaler.idleness.reasons import UnknownReason

RECORDED = Path(__file__).with_name("recorded_week.json")
HOURS = 7 * 24
PLAYED = {"2026": 24, "47": 24, "demo": 2 * 24}
"""Hours that the test plays of each fleet, of which a random one is named by its seed: a week takes three minutes of a
processor. Workloads of the demo's are suspended and resumed often enough within two days."""


async def hours(fleet: RandomFleet | DemoFleet, number: int) -> AsyncIterator[str]:
    """The hash of what was decided up to the end of each hour."""
    told = hashlib.sha256()
    for hour in range(1, number + 1):
        while fleet.now < NOON + timedelta(hours=hour):
            [evaluation] = await fleet.pass_time()
            told.update(repr(evaluation and all_shown(evaluation)).encode())
        yield told.hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
async def test_decisions_of_a_week_are_those_that_were_recorded(name: str) -> None:
    recorded = json.loads(RECORDED.read_text())[name]
    assert len(recorded) == HOURS
    async with DemoFleet() if name == "demo" else nullcontext(RandomFleet(int(name))) as fleet:
        assert [each async for each in hours(fleet, PLAYED[name])] == recorded[: PLAYED[name]]
    if isinstance(fleet, DemoFleet):
        check_that_much_happened(fleet)


def check_that_much_happened(fleet: DemoFleet) -> None:
    """Every act is told every day; gangs and owners come, GPUs are idle, busy and unknown, workloads go and wake."""
    assert fleet.told == PLAYED["demo"] * 3600 / ACT_SECONDS
    assert fleet.reasons.keys() >= {
        *(DecisionReason.STARTING, DecisionReason.WARMING_UP, DecisionReason.GPUS_BUSY),
        *(DecisionReason.IDLE_NOT_LONG_ENOUGH, DecisionReason.IDLE_NOT_NEEDED, DecisionReason.GPUS_IDLE),
        *(DecisionReason.RECLAIMED, DecisionReason.SUSPENDED, DecisionReason.WAKING, DecisionReason.WAITING_FOR_QUOTA),
        *(UnknownReason.SOURCE_UNAVAILABLE, UnknownReason.STALE_SAMPLES, UnknownReason.NO_SAMPLES),
        *(UnknownReason.SAMPLE_GAP, UnknownReason.LOW_COVERAGE, UnknownReason.MISSING_GPUS),
    }
    assert min(fleet.cluster.effects[Effect.ACTIVATE], fleet.cluster.effects[Effect.DEACTIVATE]) >= 15


async def record() -> None:
    """The decisions as they are now; of the named fleets alone, where any are named."""
    found = json.loads(RECORDED.read_text())
    for name in sys.argv[1:] or PLAYED:
        async with DemoFleet() if name == "demo" else nullcontext(RandomFleet(int(name))) as fleet:
            found[name] = [each async for each in hours(fleet, HOURS)]
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
