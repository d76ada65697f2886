"""Whatever happens in whatever order: who works is left alone, nobody is suspended for nobody, and gangs get in."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops_builders import NAMESPACE
from reclaim.reclaim_world import PressureWorld

from scaler.decision.decision import Answer
from scaler.decision.workloads import WAKE_ANNOTATION
from scaler.errors import SourceError
from scaler.kube.objects.resources import WORKLOAD

VICTIMS = ("a", "b", "c")
SMALL = timedelta(seconds=2)


class Play:
    """A world with three idle workloads and a gang that needs two of them, in which anything may happen.

    5 GPUs, of which 3 are held by a, b and c; 2 are free, and the gang needs 4.
    """

    def __init__(self) -> None:
        self.world = PressureWorld(quota=5, grant_for=timedelta(minutes=4), replan_backoff=timedelta(seconds=30))
        for name in VICTIMS:
            self.world.runs(name, gpus=1)
        self.world.waits("gang", gpus=4)
        self.world.api.before_write = self.check
        self.thieves = 0
        self.answers: Mapping[str, Sequence[Answer]] = {}
        self.asked_at = self.world.now

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Looks at every write just before it happens."""
        if body.get("spec") != {"active": False}:
            return
        world, name = self.world, path.rpartition("/")[2]
        scalable = world.scalable(name)
        assert scalable.spec.replicas == 0, f"{name} is wanted"
        assert not world.is_seen_at_work(name), f"{name} works"
        grant = scalable.status.grant
        assert grant is not None, f"{name} would be suspended for nobody"
        assert grant.granted_at is not None
        assert grant.expires_at is not None
        assert grant.expires_at > grant.granted_at, f"the grant of {name} is withdrawn"
        for each in grant.victims:
            other = each.removeprefix(f"{NAMESPACE}/")
            assert world.replicas(other) == 0, f"{name} would be suspended before {other} is asked to go"

    # ---- what may happen

    async def time(self) -> None:
        await self.world.judged()

    async def keda(self) -> None:
        await self.world.keda()

    async def keda_asks(self) -> None:
        """It is answered, and does not act yet."""
        self.answers, self.asked_at = self.world.answers(), self.world.now

    async def keda_acts_late(self) -> None:
        """It acts on an answer of some moments ago."""
        if self.world.now - self.asked_at <= SMALL:
            self.world.scaled(self.answers)

    async def keda_asks_one(self) -> None:
        await self.world.keda("a")

    async def leader(self) -> None:
        await self.world.ticks()

    async def pressure(self) -> None:
        await self.world.planned()

    async def moment(self) -> None:
        self.world.now += SMALL

    async def unheard(self) -> None:
        """The leader has two turns before it hears of what it wrote."""
        with self.world.api.lagging():
            await self.world.ticks(2)

    async def kueue(self) -> None:
        await self.world.kueue()

    async def works(self) -> None:
        self.world.works("a")

    async def rests(self) -> None:
        self.world.rests("a")

    async def works_too(self) -> None:
        self.world.works("b")

    async def rests_too(self) -> None:
        self.world.rests("b")

    async def wakes(self) -> None:
        self.world.annotates("a", WAKE_ANNOTATION, "true")

    async def scaled_up(self) -> None:
        self.world.scales("b", 1)

    async def gang_leaves(self) -> None:
        if any(name == "gang" for name, _ in self.world.api.all(WORKLOAD)):
            self.world.leaves("gang")

    async def gang_comes(self) -> None:
        if not any(name == "gang" for name, _ in self.world.api.all(WORKLOAD)):
            self.world.waits("gang", gpus=4)

    async def another_gang(self) -> None:
        if not any(name == "another" for name, _ in self.world.api.all(WORKLOAD)):
            self.world.waits("another", gpus=3)

    async def thief(self) -> None:
        if self.world.free() >= 1:
            self.thieves += 1
            self.world.steals(f"thief-{self.thieves}", gpus=1)

    async def thieves_leave(self) -> None:
        for name, _ in self.world.api.all(WORKLOAD):
            if name.startswith("thief"):
                self.world.leaves(name)

    async def preempted(self) -> None:
        if self.world.is_admitted("c"):
            self.world.preempts("c")

    async def dies_soon(self) -> None:
        self.world.api.lives_for = 1

    async def dies_later(self) -> None:
        self.world.api.lives_for = 4

    async def leads_again(self) -> None:
        self.world.another_leads()

    async def restarts(self) -> None:
        self.world.restarts()

    async def slow(self) -> None:
        self.world.slow = {"b"}

    async def quick(self) -> None:
        self.world.slow = set()

    async def blind(self) -> None:
        self.world.view.blind = "not everything is seen"

    async def sees(self) -> None:
        self.world.view.blind = ""

    async def outage(self) -> None:
        down = SourceError("Prometheus is down", transient=True)
        self.world.source.failing = {"gr_engine_active": down, "gpu_util": down}

    async def metrics_back(self) -> None:
        self.world.source.failing = {}

    # ---- and in the end

    async def calms_down(self) -> None:
        """Everything works again, everybody rests, and nobody asks for anything more."""
        for calm in (self.quick, self.sees, self.metrics_back, self.rests, self.rests_too, self.thieves_leave):
            await calm()
        self.world.another_leads()
        await self.world.passes(minutes=3)
        await self.world.passes(minutes=20, until=self.is_over)
        await self.world.passes(minutes=1)

    def is_over(self) -> bool:
        """Whether every plan has ended, and nobody waits any more."""
        world = self.world
        waiting = [name for name, _ in world.api.all(WORKLOAD) if not world.is_admitted(name)]
        return not any(world.has_grant(name) for name in VICTIMS) and all(map(world.is_suspended, waiting))

    def settled(self) -> None:
        world = self.world
        for name in VICTIMS:
            assert not world.has_grant(name), f"a grant is left on {name}"
            if world.is_suspended(name):
                assert world.stage(name) == "Admitted", f"{name} is suspended for nobody"
            else:
                assert world.is_active(name)
                assert world.replicas(name) == 1
        for gang, _ in world.api.all(WORKLOAD):
            if gang not in VICTIMS:
                idle = sum(world.gpus_of(name) for name in VICTIMS if world.is_admitted(name))
                could = world.free() + idle >= world.gpus_of(gang)
                assert world.is_admitted(gang) or not could, f"{gang} waits although {world.free()} + {idle} would do"


Step = Callable[[Play], Awaitable[None]]

ROUND: list[Step] = [Play.time, Play.keda, Play.leader, Play.kueue, Play.leader]
"""What goes on all the time. Two rounds make a plan and carry it out, a third one ends it."""

EVENTS: list[Step] = [
    Play.keda_asks, Play.keda_acts_late, Play.keda_asks_one, Play.leader, Play.pressure, Play.unheard,
    Play.time, Play.moment,
    Play.works, Play.rests, Play.works_too, Play.rests_too, Play.wakes, Play.scaled_up,
    Play.gang_leaves, Play.gang_comes, Play.another_gang, Play.thief, Play.thieves_leave, Play.preempted,
    Play.dies_soon, Play.dies_later, Play.leads_again, Play.restarts,
    Play.slow, Play.quick, Play.blind, Play.sees, Play.outage, Play.metrics_back,
]  # fmt: skip
"""What may come between any two steps of that."""

ROUNDS = 4
FIRST, LAST = 2, 14
"""Steps before which events come: from just before the plan is made until after its gang is in."""


async def played(events: Sequence[tuple[int, Step]]) -> None:
    """Rounds with these events, each before the step of that number."""
    play = Play()
    await play.world.judged()
    for number, step in enumerate(ROUND * ROUNDS):
        for place, event in events:
            if place == number:
                await event(play)
        await step(play)
    await play.calms_down()
    play.settled()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(FIRST, LAST), st.sampled_from(EVENTS)), min_size=2, max_size=8))
def test_whatever_happens_nobody_is_harmed_and_gangs_get_in(events: list[tuple[int, Step]]) -> None:
    asyncio.run(played(events))
