"""Whatever happens in whatever order: busy workloads are left alone, none is suspended for nothing, and gangs start."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops_builders import NAMESPACE
from reclaim.node_shortage_world import NodesWorld
from reclaim.reclaim_world import PressureWorld

from scaler.decision.decision import Answer
from scaler.errors import SourceError
from scaler.kube.objects.resources import WORKLOAD
from scaler.placement.requests import Insufficient, ReservationQueue
from scaler.placement.reservations import WhatIf
from scaler.targets.workloads import WAKE_ANNOTATION

VICTIMS = ("a", "b", "c")
SMALL = timedelta(seconds=2)
POLICY: dict[str, Any] = {"grant_for": timedelta(minutes=4), "replan_backoff": timedelta(seconds=30)}
DOWN = dict.fromkeys(("gr_engine_active", "gpu_util"), SourceError("Prometheus is down", transient=True))


class Play:
    """Three idle workloads and a gang that needs two of them: of 5 GPUs a, b and c hold 3, and the gang needs 4."""

    world: Any
    gangs: ClassVar[Mapping[str, Mapping[str, int]]] = {"gang": {"gpus": 4}, "another": {"gpus": 3}}

    def __init__(self) -> None:
        self.world = self.start()
        self.world.api.before_write = self.check
        self.others = 0
        self.answers: Mapping[str, Sequence[Answer]] = {}
        self.answered_at = self.world.now

    def start(self) -> PressureWorld:
        world = PressureWorld(quota=5, **POLICY)
        for name in VICTIMS:
            world.runs(name, gpus=1)
        world.waits("gang", gpus=4)
        return world

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Called with every write just before it is made."""
        if body.get("spec") != {"active": False}:
            return
        world, name = self.world, path.rpartition("/")[2]
        scalable = world.scalable(name)
        assert scalable.spec.replicas == 0, f"{name} is wanted"
        assert not world.is_seen_at_work(name), f"{name} works"
        grant = scalable.status.grant
        assert grant is not None, f"{name} would be suspended without a plan"
        assert grant.expires_at > grant.granted_at, f"the grant of {name} is withdrawn"
        for each in grant.victims:
            other = each.removeprefix(f"{NAMESPACE}/")
            assert world.replicas(other) == 0, f"{name} would be suspended before {other} is at 0"

    # ---- what may happen

    def keda_is_answered(self) -> None:
        """And does not act yet."""
        self.answers, self.answered_at = self.world.answers(), self.world.now

    def keda_acts_late(self) -> None:
        """On an answer of some moments ago."""
        if self.world.now - self.answered_at <= SMALL:
            self.world.scaled(self.answers)

    def moment(self) -> None:
        self.world.now += SMALL

    async def unheard(self) -> None:
        """The leader has two turns before it observes what it wrote."""
        with self.world.client.lagging():
            await self.world.ticks(2)

    def leaves(self, gang: str) -> None:
        if self.exists(gang):
            self.world.leaves(gang)

    def comes(self, gang: str) -> None:
        if not self.exists(gang):
            self.world.waits(gang, **self.gangs[gang])

    def exists(self, gang: str) -> bool:
        return any(name == gang for name in self.world.names(WORKLOAD))

    def other_comes(self) -> None:
        if self.world.free() >= 1:
            self.others += 1
            self.world.admits_newcomer(f"other-{self.others}", gpus=1)

    def others_leave(self) -> None:
        for name in self.world.names(WORKLOAD):
            if name.startswith("other-"):
                self.world.leaves(name)

    def c_is_preempted(self) -> None:
        if self.world.is_admitted("c"):
            self.world.preempts("c")

    def hides(self, why: str) -> None:
        self.world.view.blind = why

    # ---- and in the end

    async def calms_down(self) -> None:
        """Everything works again, and no GPU does."""
        self.world.slow.clear()
        self.world.source.failing.clear()
        self.hides("")
        self.world.rests("a")
        self.world.rests("b")
        self.others_leave()
        self.world.another_leads()
        await self.world.passes(minutes=3)
        await self.world.passes(minutes=20, until=self.is_over)
        await self.world.passes(minutes=1)

    def is_over(self) -> bool:
        """Whether every plan has ended, and no Workload waits any more."""
        world = self.world
        waiting = [name for name in world.names(WORKLOAD) if not world.is_admitted(name)]
        return not any(world.has_grant(name) for name in VICTIMS) and all(map(world.is_suspended, waiting))

    def assert_settled(self) -> None:
        world = self.world
        for name in VICTIMS:
            assert not world.has_grant(name), f"a grant is left on {name}"
            if world.is_suspended(name):
                assert world.stage(name) == "Admitted", f"{name} is suspended for nothing"
            else:
                assert world.is_active(name)
                assert world.replicas(name) == 1
        self.assert_served()

    def assert_served(self) -> None:
        world = self.world
        idle = sum(world.gpus_of(name) for name in VICTIMS if world.is_admitted(name))
        for gang in world.names(WORKLOAD):
            is_served = gang in VICTIMS or world.is_admitted(gang)
            assert is_served or world.free() + idle < world.gpus_of(gang), f"{gang} waits although {idle} idle would do"


class NodesPlay(Play):
    """The gang has quota for two pods of 2 GPUs. n3 has room for one; c holds half of n2, a and b hold n1."""

    gangs: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "gang": {"pods": 2, "gpus": 2},
        "another": {"pods": 1, "gpus": 2},
    }

    def start(self) -> PressureWorld:
        world = NodesWorld({"n1": 2, "n2": 2, "n3": 2}, **POLICY)
        for name, node in zip(VICTIMS, ("n1", "n1", "n2"), strict=True):
            world.runs(name, gpus=1, on=node)
        world.waits("gang", pods=2, gpus=2)
        return world

    def gang_loses_quota(self) -> None:
        if self.exists("gang") and self.world.is_held_back("gang"):
            self.world.preempts("gang")

    def others_leave(self) -> None:
        for name in ("stranger-n2", "stranger-n3"):
            self.world.ends_pods(name)

    def hides(self, why: str) -> None:
        self.world.gate.blind = why

    def is_over(self) -> bool:
        return super().is_over() and not any(map(self.world.is_held_back, self.world.gated))

    def assert_served(self) -> None:
        queue = self.world.gate.reservation_queue(self.world.now)
        assert isinstance(queue, ReservationQueue)
        idle = frozenset(f"demo/{name}" for name in VICTIMS if self.world.is_admitted(name))
        for each in queue.waiting:
            assert isinstance(WhatIf(queue, each.key).result(idle), Insufficient), f"{each.key} waits although it fits"


Step = Callable[[Any], Awaitable[object] | object]

ROUND: list[Step] = [
    lambda play: play.world.judged(),
    lambda play: play.world.keda(),
    lambda play: play.world.ticks(),
    lambda play: play.world.kueue(),
    lambda play: play.world.ticks(),
]
"""What goes on all the time. Two rounds make a plan and execute it, a third one ends it."""

EVENTS: dict[str, Step] = {
    "KEDA is answered": Play.keda_is_answered,
    "KEDA acts late": Play.keda_acts_late,
    "the leader ticks": lambda play: play.world.ticks(),
    "plans alone are executed": lambda play: play.world.planned(),
    "writes are observed late": Play.unheard,
    "there is a new evaluation": lambda play: play.world.judged(),
    "a moment passes": Play.moment,
    "a works": lambda play: play.world.works("a"),
    "a rests": lambda play: play.world.rests("a"),
    "b works": lambda play: play.world.works("b"),
    "b rests": lambda play: play.world.rests("b"),
    "a is woken": lambda play: play.world.annotates("a", WAKE_ANNOTATION, "true"),
    "b is scaled up": lambda play: play.world.scales("b", 1),
    "the gang is deleted": lambda play: play.leaves("gang"),
    "the gang is created": lambda play: play.comes("gang"),
    "another gang is created": lambda play: play.comes("another"),
    "others leave": lambda play: play.others_leave(),
    "c is preempted": Play.c_is_preempted,
    "the leader dies after a write": lambda play: setattr(play.world.api, "lives_for", 1),
    "the leader dies after four": lambda play: setattr(play.world.api, "lives_for", 4),
    "another replica leads": lambda play: play.world.another_leads(),
    "the process restarts": lambda play: play.world.restarts(),
    "KEDA does not bring b to 0": lambda play: play.world.slow.add("b"),
    "KEDA does": lambda play: play.world.slow.clear(),
    "quota or nodes are unknown": lambda play: play.hides("not everything is known"),
    "they are known": lambda play: play.hides(""),
    "metrics fail": lambda play: play.world.source.failing.update(DOWN),
    "metrics are back": lambda play: play.world.source.failing.clear(),
}
"""What may come between any two steps of that."""
QUOTA_EVENTS = EVENTS | {
    "KEDA polls one": lambda play: play.world.keda("a"),
    "another Workload gets quota": Play.other_comes,
}
NODE_EVENTS = EVENTS | {
    "the gang loses its quota": NodesPlay.gang_loses_quota,
    "a pod starts on n3": lambda play: play.world.starts("stranger-n3", "n3", 1),
    "a pod starts on n2": lambda play: play.world.starts("stranger-n2", "n2", 1),
    "a node comes": lambda play: play.world.nodes.update(n4=2),
    "a node goes": lambda play: play.world.nodes.pop("n4", None),
}
ROUNDS = 4
PLACES = st.integers(2, 14)
"""Steps before which events come: from just before the plan is made until after its gang is admitted."""


async def played(play: Play, events: Sequence[tuple[int, Step]]) -> None:
    """Rounds with these events, each before the step of that number."""
    await play.world.judged()
    for number, step in enumerate(ROUND * ROUNDS):
        for each in [event for place, event in events if place == number] + [step]:
            done = each(play)
            if isinstance(done, Awaitable):
                await done
    await play.calms_down()
    play.assert_settled()


@pytest.mark.parametrize(("kind", "events"), [(Play, QUOTA_EVENTS), (NodesPlay, NODE_EVENTS)], ids=["quota", "nodes"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_happens_no_workload_is_harmed_and_gangs_start(
    kind: type[Play], events: dict[str, Step], data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(st.tuples(PLACES, st.sampled_from(sorted(events))), min_size=2, max_size=8))
    asyncio.run(played(kind(), [(place, events[name]) for place, name in drawn]))
