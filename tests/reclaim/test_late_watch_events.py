"""What a plan's own deactivations look like when they are heard of late, and one after the other."""

from typing import Any

import pytest
from loops_builders import NAMESPACE
from reclaim.reclaim_world import GPU, PressureWorld

from scaler.kube.objects.resources import WORKLOAD
from scaler.placement.capacity import BoundPod
from scaler.placement.node_index import NodeInfo
from scaler.placement.node_watch import CapacityCache

Event = tuple[Any, str, Any]


class WorldWithNodes(PressureWorld):
    """Its GPUs are on one node, where pods stay until they are taken away."""

    def __init__(self, gpus: int) -> None:
        self.census = CapacityCache()
        self.census.put_node(NodeInfo(name="n", allocatable={GPU: gpus, "pods": 100}))
        super().__init__(quota=gpus, consider_nodes=True)
        self.capacity = self.census.capacity

    def has_pod(self, name: str, gpus: int) -> None:
        pod = BoundPod(pod=name, node="n", requests={GPU: gpus}, workload=f"{NAMESPACE}/{name}", terminating=False)
        self.census.put_pod(pod)


async def deactivated_unheard() -> tuple[WorldWithNodes, list[Event]]:
    """Two victims that have just been deactivated for a gang, and what nobody has heard of yet. Their pods run on."""
    world = WorldWithNodes(8)
    for name in ("a", "b"):
        world.runs(name, gpus=4)
        world.has_pod(name, 4)
    world.waits("gang", gpus=8)
    for _ in range(20):
        await world.judged()
        await world.keda()
        await world.reconciled()
        with world.api.lagging() as held:
            await world.planned()
            if world.deactivated:
                events = [*held]
                held.clear()
        if world.deactivated:
            assert sorted(world.deactivated) == ["a", "b"]
            return world, events
    raise AssertionError("no plan was carried out")


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("when", ["while the ledger is written", "after the next looks"])
async def test_a_plan_does_not_doubt_itself_while_its_deactivations_are_heard_of(late: str, when: str) -> None:
    """Of one it is heard late. Nothing is free yet: Kueue has not stopped anybody's pods."""
    world, events = await deactivated_unheard()
    echo = next(each for each in events if each[:2] == (WORKLOAD, late))
    for each in events:
        if each is not echo:
            world.heard(*each)

    def hear(*_: object) -> None:
        world.api.before_write = lambda _path, _body: None
        world.heard(*echo)

    if when == "while the ledger is written":
        world.api.before_write = hear
    await world.planned()
    await world.planned()
    if when == "after the next looks":
        hear()
    assert [world.replicas(name) for name in ("a", "b")] == [0, 0]
    assert "ReclaimCancelled" not in world.events.reasons("gang")
    for name in ("a", "b"):
        world.census.drop_pod(name)
    await world.passes(minutes=1)
    assert world.is_admitted("gang")
    assert [world.is_suspended(name) for name in ("a", "b")] == [True, True]
