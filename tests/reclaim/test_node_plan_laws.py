"""The laws of plans, for nodes: whatever happens in whatever order, nobody is harmed, and gangs get in."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reclaim.node_shortage_world import NodesWorld
from test_plan_laws import FIRST, LAST, ROUND, ROUNDS, VICTIMS, Play, Step

from scaler.kube.objects.resources import WORKLOAD
from scaler.placement.requests import Insufficient, ReservationQueue
from scaler.placement.what_if import WhatIf


class NodesPlay(Play):
    """The gang has quota for two pods of 2 GPUs. n3 has room for one; c holds half of n2, a and b hold n1."""

    world: NodesWorld

    def __init__(self) -> None:
        super().__init__()
        self.world = NodesWorld(
            {"n1": 2, "n2": 2, "n3": 2}, grant_for=timedelta(minutes=4), replan_backoff=timedelta(seconds=30)
        )
        for name, node in zip(VICTIMS, ("n1", "n1", "n2"), strict=True):
            self.world.runs(name, gpus=1, on=node)
        self.world.waits("gang", pods=2, gpus=2)
        self.world.api.before_write = self.check

    async def gang_comes(self) -> None:
        if not self._is_there("gang"):
            self.world.waits("gang", pods=2, gpus=2)

    async def another_gang(self) -> None:
        if not self._is_there("another"):
            self.world.waits("another", pods=1, gpus=2)

    async def gang_loses(self) -> None:
        if self._is_there("gang") and self.world.is_held_back("gang"):
            self.world.preempts("gang")

    async def thief(self) -> None:
        self.world.starts("thief", "n3", 1)

    async def another_thief(self) -> None:
        self.world.starts("stranger", "n2", 1)

    async def thieves_leave(self) -> None:
        for name in ("thief", "stranger"):
            self.world.ends_pods(name)

    async def blind(self) -> None:
        self.world.gate.blind = "nodes are hidden"

    async def sees(self) -> None:
        self.world.gate.blind = ""

    async def node_comes(self) -> None:
        self.world.nodes["n4"] = 2

    async def node_goes(self) -> None:
        self.world.nodes.pop("n4", None)

    def settled(self) -> None:
        world = self.world
        for name in VICTIMS:
            assert not world.has_grant(name), f"a grant is left on {name}"
            if world.is_suspended(name):
                assert world.stage(name) == "Admitted", f"{name} is suspended for nobody"
            else:
                assert world.is_active(name)
                assert world.replicas(name) == 1
        line = world.gate.reservation_queue(world.now)
        assert isinstance(line, ReservationQueue)
        idle = frozenset(f"demo/{name}" for name in VICTIMS if world.is_admitted(name))
        for claim in line.waiting:
            assert isinstance(WhatIf(line, claim.key).result(idle), Insufficient), (
                f"{claim.key} waits although it could go"
            )

    def is_over(self) -> bool:
        return super().is_over() and not any(map(self.world.is_held_back, self.world.gated))

    def _is_there(self, gang: str) -> bool:
        return any(name == gang for name, _ in self.world.api.all(WORKLOAD))


EVENTS: list[Step] = [
    Play.keda_asks, Play.keda_acts_late, Play.leader, Play.pressure, Play.unheard, Play.time, Play.moment,
    Play.works, Play.rests, Play.works_too, Play.rests_too, Play.wakes, Play.scaled_up,
    Play.gang_leaves, NodesPlay.gang_comes, NodesPlay.another_gang, NodesPlay.gang_loses, NodesPlay.thief,
    NodesPlay.another_thief, NodesPlay.thieves_leave, Play.preempted, NodesPlay.node_comes, NodesPlay.node_goes,
    Play.dies_soon, Play.dies_later, Play.leads_again, Play.restarts,
    Play.slow, Play.quick, NodesPlay.blind, NodesPlay.sees, Play.outage, Play.metrics_back,
]  # type: ignore[list-item]  # fmt: skip


async def played(events: Sequence[tuple[int, Step]]) -> None:
    play = NodesPlay()
    await play.world.judged()
    for number, step in enumerate(ROUND * ROUNDS):
        for place, event in events:
            if place == number:
                await event(play)
        await step(play)
    await play.calms_down()
    play.settled()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(FIRST, LAST), st.sampled_from(EVENTS)), min_size=2, max_size=8))
def test_whatever_happens_nobody_is_harmed_and_gangs_with_quota_get_nodes(events: list[tuple[int, Step]]) -> None:
    asyncio.run(played(events))
