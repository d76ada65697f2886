"""Who is new among those that hold quota, when a plan has freed some."""

from datetime import timedelta
from typing import Any, cast

import pytest
from pressure_world import PressureWorld

from scaler.core.grants import Grant
from scaler.loops.planning import Sight
from scaler.loops.standing_plans import StandingPlan
from scaler.loops.theft import newcomers_of


class Plan:
    """As much of a standing plan as is looked at here: its victims were deactivated one and five minutes ago."""

    def __init__(self, world: PressureWorld) -> None:
        now = world.now
        self.deactivated_at = [now - timedelta(minutes=5), now - timedelta(minutes=1)]
        self.grant = Grant(plan="p", gang="demo/gang", gang_uid="uid", victims=(), granted_at=now, expires_at=now)


async def seen() -> tuple[Plan, Sight]:
    """One came three minutes ago and one just now, beside one that has been there for two hours."""
    world = PressureWorld(20)
    world.runs("ever")
    world.waits("gang")
    await world.judged()
    world.now += timedelta(minutes=2)
    world.steals("between", gpus=1)
    world.now += timedelta(minutes=3)
    world.steals("since", gpus=1)
    await world.judged()
    sight = world.pressure.planning.look(world.now)
    assert isinstance(sight, Sight)
    return Plan(world), sight


@pytest.mark.parametrize(
    ("known", "new"),
    [(None, ["since"]), (("ever",), ["between", "since"]), (("ever", "between", "since"), [])],
    ids=["whoever came since the last deactivation", "whoever was not there at the last trial", "nobody"],
)
async def test_new_is(known: tuple[str, ...] | None, new: list[str]) -> None:
    plan, sight = await seen()
    uids = None if known is None else {workload(sight, name).uid for name in known}
    found = newcomers_of(cast(StandingPlan, plan), sight, known=uids)
    assert sorted(each.name for each in found) == new


def workload(sight: Sight, name: str) -> Any:
    return sight.snapshot.workload(f"demo/{name}")
