"""A gang waits for 8 GPUs, of which 4 are free and idle a and b hold 2 each; b, or both, have a hook that ends before
they are suspended. What becomes of the plan?"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import minutes
from loops_builders import TICK, evaluator_of
from reclaim.reclaim_world import PressureWorld

from scaler.clock import Clock
from scaler.decision.decision_cache import DecisionCache
from scaler.idleness.hooks import HookOutcome
from scaler.quota.watch import NotSynced
from scaler.reclaim.search.values import Candidate
from scaler.suspension.before_suspend import BeforeSuspendController
from scaler.suspension.hooks import SUCCEEDED, HookCall, HookConfig, HookKind, HookProgress

FAILED = HookProgress(outcome=HookOutcome.FAILED, message="it answers HTTP 403")
PENDING = HookProgress(outcome=None, message="not yet", again_after=TICK)
SAVES: Mapping[str, Any] = {"metadata": {"beforeSuspend": "save"}}


class WorldClock(Clock):
    """Stands still until the world goes on."""

    def __init__(self, world: "HookedWorld") -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now

    async def sleep(self, seconds: float) -> None:
        until = self._world.now + timedelta(seconds=seconds)
        while self._world.now < until:  # noqa: ASYNC110 - the world says when
            await asyncio.sleep(0)


class HookedWorld(PressureWorld):
    """With the loop that runs hooks. What a hook comes to is said by the name of the workload; else it is not done."""

    def __init__(self, timeout: float = 5, **world: Any) -> None:
        """In minutes."""
        self.said: dict[str, HookProgress] = {}
        self.calls: list[HookCall] = []
        self.timeouts = {"save": minutes(timeout)}
        super().__init__(hooks=self.timeouts, **world)

    def restarts(self) -> None:
        self.decision_cache = DecisionCache(max_age=3 * TICK, clock=lambda: self.now.timestamp())
        self.evaluator = evaluator_of(
            self.cluster, self.source, self.decision_cache, lambda: self.now, hooks=self.timeouts
        )
        self.another_leads()

    def another_leads(self) -> None:
        super().another_leads()
        config = HookConfig(name="save", kind=HookKind.WEBHOOK, timeout=self.timeouts["save"])
        self.before = BeforeSuspendController(
            self.api,
            self.evaluator.cluster,
            self.decision_cache,
            self.events,
            {"save": config},
            make=lambda _: self,
            max_age=2 * TICK,
            clock=WorldClock(self),
        )

    async def attempt(self, call: HookCall, now: datetime) -> HookProgress:
        self.calls.append(call)
        return self.said.get(call.scaled_object, PENDING)

    async def planned(self) -> Any:
        for _ in range(2):  # what was begun may end at once
            with suppress(asyncio.CancelledError):  # the leader is killed
                await self.before.tick(self.now)
            for _ in range(5):
                await asyncio.sleep(0)
        return await super().planned()

    @property
    def ids(self) -> dict[str, set[str]]:
        """The runs that were called, by workload."""
        return {
            name: {each.id for each in self.calls if each.scaled_object == name}
            for name in {each.scaled_object for each in self.calls}
        }

    async def candidates(self) -> dict[str, Candidate]:
        state = await self.pressure.planning.look(self.now)
        assert not isinstance(state, NotSynced)
        return {each.name.partition("/")[2]: each for each in state.candidates}


@asynccontextmanager
async def waiting(*saving: str, **world: Any) -> AsyncIterator[HookedWorld]:
    """The gang waits, and a and b are known to be idle; these have a hook."""
    made = HookedWorld(**world)
    for name in ("a", "b"):
        made.runs(name, **(SAVES if name in saving else {}))
    made.waits("gang")
    await made.judged()
    try:
        yield made
    finally:
        await made.before.stop()


def is_untouched(world: HookedWorld) -> bool:
    return world.is_untouched("a") and world.is_untouched("b")


async def test_no_victim_is_suspended_before_the_hooks_of_all_have_ended() -> None:
    async with waiting("a", "b") as world:
        await world.passes(minutes=2)
        assert (world.has_grant("a"), world.has_grant("b")) == (True, True)
        world.said["a"] = SUCCEEDED
        await world.passes(minutes=2)
        assert (world.replicas("a"), world.replicas("b")) == (0, 1)
        assert world.deactivated == []
        world.said["b"] = SUCCEEDED
        await world.passes(minutes=2)
        assert world.deactivated == ["a", "b"]
        assert world.is_admitted("gang")
        assert {name: len(each) for name, each in world.ids.items()} == {"a": 1, "b": 1}
        assert "BeforeSuspendSucceeded" in world.events.reasons("b")


async def test_no_hook_runs_before_a_plan_takes_its_workload() -> None:
    async with waiting("a", "b") as world:
        world.leaves("gang")
        await world.passes(minutes=5)
        assert world.calls == []
        assert is_untouched(world)


async def test_a_hook_that_fails_ends_the_plan_and_nobody_is_suspended() -> None:
    async with waiting("b") as world:
        world.said["b"] = FAILED
        await world.passes(minutes=2)
        assert world.deactivated == []
        assert "ReclaimCancelled" in world.events.reasons("gang")
        assert any("(BeforeSuspendFailed: demo/b)" in said for *_, said in world.events.told)
        assert is_untouched(world)
        assert await world.candidates() == {"a": (await world.candidates())["a"]}, "b is none while it is held"
        assert len(world.ids["b"]) == 1
        world.said["b"] = SUCCEEDED
        await world.passes(minutes=6)  # idleAfterUnderPressure after it has failed it may be tried again
        assert world.is_admitted("gang")
        assert len(world.ids["b"]) == 2


async def test_with_continue_the_plan_goes_on() -> None:
    async with waiting() as world:
        world.runs("b", metadata={"beforeSuspend": "save", "beforeSuspendOnFailure": "Continue"})
        await world.judged()
        world.said["b"] = FAILED
        await world.passes(minutes=4)
        assert world.is_admitted("gang")


async def test_a_grant_lasts_as_long_as_a_hook_may_take_and_after_that_as_long_as_ever() -> None:
    """15 minutes for the hook, and 10 for KEDA."""
    async with waiting("b", timeout=15) as world:
        await world.passes(minutes=14)
        assert world.replicas("a") == 0
        assert world.grant("b").expires_at - world.grant("b").granted_at == minutes(25)
        world.said["b"] = SUCCEEDED
        await world.passes(minutes=2)
        assert world.is_admitted("gang")
        assert "ReclaimCancelled" not in world.events.reasons("gang")


async def test_a_hook_that_takes_too_long_ends_the_plan() -> None:
    async with waiting("b", timeout=15) as world:
        await world.passes(minutes=16)
        assert is_untouched(world)
        assert any("(BeforeSuspendFailed: demo/b)" in said for *_, said in world.events.told)


async def test_work_while_its_hook_runs_ends_the_plan() -> None:
    async with waiting("b") as world:
        await world.passes(minutes=2)
        world.works("b")
        await world.passes(minutes=2)
        assert world.scalable("b").status.before_suspend.outcome == "Outdated"  # type: ignore[union-attr]
        assert is_untouched(world)
        assert "ReclaimCancelled" in world.events.reasons("gang")


@pytest.mark.parametrize("change", ["another_leads", "restarts"])
async def test_another_leader_goes_on_with_the_plan_and_with_the_same_runs(change: str) -> None:
    async with waiting("a", "b") as world:
        await world.passes(minutes=2)
        await world.before.stop()
        getattr(world, change)()
        await world.passes(minutes=1)
        world.said |= {"a": SUCCEEDED, "b": SUCCEEDED}
        await world.passes(minutes=3)
        assert world.is_admitted("gang")
        assert {name: len(each) for name, each in world.ids.items()} == {"a": 1, "b": 1}


@pytest.mark.parametrize("lives_for", range(1, 12))
async def test_whenever_the_leader_is_killed_nobody_is_suspended_before_its_hook_has_ended(lives_for: int) -> None:
    async with waiting("a", "b") as world:
        world.said |= {"a": SUCCEEDED, "b": SUCCEEDED}
        world.api.lives_for = lives_for
        for _ in range(6):
            await world.judged()
            await world.keda()
            await world.ticks()
        saved = {name for name in ("a", "b") if (run := world.scalable(name).status.before_suspend) and run.saved_at}
        assert set(world.deactivated) <= saved
        await world.before.stop()
        world.another_leads()
        await world.passes(minutes=5)
        assert world.is_admitted("gang")


async def test_who_has_been_saved_costs_the_plan_less_until_it_has_worked_again() -> None:
    async with waiting("a", "b") as world:
        world.leaves("gang")
        for name in ("a", "b"):
            world.works(name)
        await world.passes(minutes=60)
        for name in ("a", "b"):
            world.rests(name)
        await world.passes(minutes=4)
        before = await world.candidates()
        assert before["a"].cost == before["b"].cost
        assert before["a"].hook_takes == minutes(5)
        world.waits("gang")
        world.said["b"] = SUCCEEDED
        await world.passes(minutes=2)
        world.leaves("gang")
        await world.passes(minutes=3)
        after = await world.candidates()
        assert after["b"].saved_at is not None
        assert (after["a"].hook_takes, after["b"].hook_takes) == (minutes(5), minutes(0))
        lost = {name: dict(each.cost.parts)["gpuHoursLost"] for name, each in after.items()}
        assert lost["b"] == 0 < lost["a"]
        assert after["b"].cost.total < after["a"].cost.total
