"""Suspended workloads come back when there is room: one after the other, behind every gang, once for each request."""

from collections.abc import Mapping
from typing import Any

import pytest
from builders import minutes
from msgspec.structs import replace
from placement.placement_builders import full
from reclaim.reclaim_world import BACKOFF, GPU, NAMESPACE, PressureWorld

from scaler.errors import KubeError
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import decode
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.placement.capacity import Capacity
from scaler.reclaim.wake_controller import WakeController
from scaler.reclaim.wake_planner import WakePlan, WakePlanner
from scaler.targets.workloads import ASKED_BY, WAKE_ANNOTATION

WHEN_FREE = {"wake": "WhenFree"}


class OwnersApi:
    """Writes annotations of ScaledObjects into the copies, and everything else to the world's API."""

    def __init__(self, world: PressureWorld) -> None:
        self.world = world
        self.refused: KubeError | None = None

    async def get(self, path: str) -> bytes:
        return await self.world.api.get(path)

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        if self.refused is not None:
            raise self.refused
        name = path.removeprefix(SCALED_OBJECT.path(NAMESPACE, "x").removesuffix("x"))
        if name == path:
            return await self.world.api.patch(path, body, dry_run=dry_run)
        found = self.world.cluster.scaled_objects.get(NAMESPACE, name)
        assert found is not None
        annotations = found.metadata.annotations | body["metadata"]["annotations"]
        self.world.cluster.scaled_objects.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))
        self.world._touched.add(name)
        return b"{}"


class Site:
    """A world in which idle workloads were suspended for a gang, and a leader that wakes."""

    def __init__(self, world: PressureWorld) -> None:
        self.world = world
        self.api = OwnersApi(world)
        self.another_leads()

    def another_leads(self) -> None:
        self.controller = WakeController(WakePlanner(self.world.pressure.planning), self.api)

    async def ticks(self) -> WakePlan:
        await self.world.judged()
        return await self.controller.tick(self.world.now)

    async def passes(self, times: int) -> WakePlan:
        """The leader ticks, and the others do what they do."""
        plan = WakePlan()
        for _ in range(times):
            plan = await self.ticks()
            await self.world.passes(minutes=0.5)
        return plan

    def annotations(self, name: str) -> Mapping[str, str]:
        found = self.world.cluster.scaled_objects.get(NAMESPACE, name)
        assert found is not None
        return found.metadata.annotations


async def suspended(*names: str, quota: int = 8, metadata: Mapping[str, str] = WHEN_FREE, **fields: Any) -> Site:
    """These workloads were suspended for a gang that needs all of the quota."""
    world = PressureWorld(quota=quota, **fields)
    for name in names:
        world.runs(name, metadata=metadata)
    world.waits("gang", gpus=quota)
    await world.passes(minutes=5)
    assert world.is_admitted("gang")
    assert all(map(world.is_suspended, names))
    return Site(world)


async def test_they_come_back_one_after_the_other_when_the_gang_has_finished() -> None:
    site = await suspended("a", "b")
    plan = await site.passes(4)
    assert plan.woken == ()
    assert plan.suspended[NAMESPACE, "a"].startswith(f"it needs 2 {GPU}; free for ClusterQueue cq: nothing")
    assert site.world.is_suspended("a")

    site.world.finishes("gang")
    plan = await site.ticks()
    assert [wish.key for wish in plan.woken] == [(NAMESPACE, "a")]
    assert plan.suspended == {(NAMESPACE, "b"): f"Workload {NAMESPACE}/a waits for {GPU} of gpus"}
    assert site.annotations("a")[WAKE_ANNOTATION] > "2026-12-01T12:0"
    assert site.annotations("a")[ASKED_BY] == "trigger metadata, WhenFree"
    await site.passes(6)
    assert site.world.is_admitted("a")
    assert site.world.is_admitted("b")


async def test_the_one_that_was_suspended_first_comes_first() -> None:
    site = await suspended("b")
    site.world.finishes("gang")
    site.world.runs("a", metadata=WHEN_FREE)
    site.world.waits("second", gpus=8)
    await site.world.passes(minutes=5)
    site.world.finishes("second")
    plan = await site.ticks()
    assert [wish.key[1] for wish in plan.woken] == ["b"]


async def test_no_gang_that_waits_is_passed_however_little_is_asked_for() -> None:
    site = await suspended("a", quota=8)
    site.world.finishes("gang")
    site.world.waits("never", gpus=9)
    plan = await site.passes(10)
    assert plan.suspended == {(NAMESPACE, "a"): f"Workload {NAMESPACE}/never waits for {GPU} of gpus"}
    assert site.world.is_suspended("a")
    site.world.leaves("never")
    await site.passes(3)
    assert site.world.is_admitted("a")


async def test_not_within_a_while_after_its_suspension() -> None:
    site = await suspended("a", replan_backoff=minutes(30))
    site.world.finishes("gang")
    plan = await site.passes(3)
    assert plan.suspended == {(NAMESPACE, "a"): "it was suspended less than 30m ago"}
    plan = await site.passes(60)
    assert site.world.is_admitted("a")


async def test_what_its_owner_has_scaled_to_0_stays_there() -> None:
    world = PressureWorld()
    world.runs("a", metadata=WHEN_FREE)
    world.works("a")
    await world.passes(minutes=1)
    world.slow.add("a")
    world.scales("a", 0)
    for _ in range(6):
        await world.judged()
        await world.ticks()
        await world.kueue()
        await world.ticks()
    assert world.is_suspended("a")
    site = Site(world)
    plan = await site.ticks()
    assert (plan.woken, plan.suspended) == ((), {})


@pytest.mark.parametrize("on", ["ScalableWorkload", "ScaledObject"])
async def test_an_owner_may_ask_for_it_whatever_the_policy_says_and_it_counts_once(on: str) -> None:
    site = await suspended("a", metadata={})
    site.world.finishes("gang")
    plan = await site.passes(3)
    assert (plan.woken, plan.suspended) == ((), {})
    asked = {WAKE_ANNOTATION: "WhenFree", ASKED_BY: "ana"}
    if on == "ScaledObject":
        site.world.is_scaled_by("a", {}, **asked)
    else:
        for key, value in asked.items():
            site.world.annotates("a", key, value)
    plan = await site.ticks()
    assert [wish.key for wish in plan.woken] == [(NAMESPACE, "a")]
    where = site.annotations("a") if on == "ScaledObject" else site.world.scalable("a").metadata.annotations
    assert where[ASKED_BY] == "ana, WhenFree"
    assert where[WAKE_ANNOTATION].startswith("2026-12-01T12:")
    await site.world.passes(minutes=2)
    assert site.world.is_admitted("a")


async def test_a_request_on_what_runs_is_removed_as_any_other_wake_up() -> None:
    world = PressureWorld()
    world.runs("a")
    world.annotates("a", WAKE_ANNOTATION, "WhenFree")
    await world.passes(minutes=1)
    assert WAKE_ANNOTATION not in world.scalable("a").metadata.annotations
    assert world.is_untouched("a")


async def test_what_keda_does_not_scale_is_not_woken() -> None:
    site = await suspended("a")
    site.world.finishes("gang")
    site.world.is_scaled_by("a", WHEN_FREE, **{"autoscaling.keda.sh/paused": "true"})
    plan = await site.ticks()
    assert plan.suspended == {
        (NAMESPACE, "a"): "KEDA does not scale it: annotation autoscaling.keda.sh/paused of its ScaledObject"
    }


# ------------------------------------------------------------------------------------------------- what is not known


async def test_where_quota_or_nodes_or_decisions_are_not_known_all_stay_suspended() -> None:
    site = await suspended("a")
    site.world.finishes("gang")
    site.world.view.blind = "ClusterQueues are not synced"
    plan = await site.ticks()
    assert plan.suspended == {(NAMESPACE, "a"): "it is not known what is free: ClusterQueues are not synced"}
    site.world.view.blind = ""
    site.world.now += minutes(5)
    assert "the latest verdicts are" in (await site.controller.tick(site.world.now)).suspended[NAMESPACE, "a"]
    assert [wish.key[1] for wish in (await site.ticks()).woken] == ["a"]


async def test_nodes_have_to_be_known_and_to_have_room_where_they_count() -> None:
    site = await suspended("a")
    site.world.finishes("gang")
    site.world.policy = type(site.world.policy)(replan_backoff=BACKOFF, consider_nodes=True)
    site.world.another_leads()
    site.another_leads()
    plan = await site.ticks()
    assert plan.suspended == {(NAMESPACE, "a"): "it is not known what is free: nodes are not watched"}
    site.world.capacity = lambda: nodes(2, other=1)
    assert "node" in (await site.ticks()).suspended[NAMESPACE, "a"]
    site.world.capacity = lambda: nodes(4, other=1)
    assert [wish.key[1] for wish in (await site.ticks()).woken] == ["a"]


async def test_whoever_is_admitted_has_its_nodes_first() -> None:
    site = await suspended("a")
    site.world.finishes("gang")
    site.world.admits_newcomer("newcomer", gpus=2)
    site.world.policy = type(site.world.policy)(replan_backoff=BACKOFF, consider_nodes=True)
    site.world.another_leads()
    site.another_leads()
    site.world.capacity = lambda: nodes(8)
    plan = await site.ticks()
    assert plan.suspended == {
        (NAMESPACE, "a"): f"Workload {NAMESPACE}/newcomer is admitted, and 0 of its 1 pods with GPUs are on nodes"
    }
    site.world.capacity = lambda: nodes(8, newcomer=2)
    assert [wish.key[1] for wish in (await site.ticks()).woken] == ["a"]


def nodes(gpus: int, **held: int) -> Capacity:
    """One node, and how many of its GPUs these Workloads hold."""
    return full({"n": gpus}, {"n": {f"{NAMESPACE}/{name}": count for name, count in held.items()}})


async def test_what_is_not_seen_yet_is_not_woken_twice_and_still_counts() -> None:
    site = await suspended("a", "b")
    site.world.finishes("gang")
    first = await site.ticks()
    assert [wish.key[1] for wish in first.woken] == ["a"]
    before = site.annotations("a")[WAKE_ANNOTATION]
    again = await site.controller.tick(site.world.now)
    assert again.woken == ()
    assert again.suspended == {(NAMESPACE, "b"): f"Workload {NAMESPACE}/a waits for {GPU} of gpus"}
    assert site.annotations("a")[WAKE_ANNOTATION] == before


async def test_the_next_leader_goes_on_with_what_was_written() -> None:
    site = await suspended("a", "b")
    site.world.finishes("gang")
    await site.ticks()
    site.world.restarts()
    site.another_leads()
    plan = await site.ticks()
    assert plan.woken == ()
    assert set(plan.suspended) == {(NAMESPACE, "b")}
    await site.passes(6)
    assert site.world.is_admitted("a")
    assert site.world.is_admitted("b")


async def test_where_the_write_fails_nothing_counts_as_woken() -> None:
    site = await suspended("a", "b")
    site.world.finishes("gang")
    site.api.refused = KubeError("conflict", status=409)
    await site.ticks()
    assert WAKE_ANNOTATION not in site.annotations("a")
    site.api.refused = None
    plan = await site.ticks()
    assert [wish.key[1] for wish in plan.woken] == ["a"]
    assert site.world.read(WORKLOAD, "a")["spec"]["active"] is False, "KEDA and the reconciler do the rest"
    assert site.world.read(SCALABLE_WORKLOAD, "a")["spec"]["replicas"] == 0


async def test_a_queue_that_is_stopped_is_a_reason() -> None:
    site = await suspended("a")
    text = '{"metadata": {"name": "cq", "namespace": "demo"}, "spec": {"clusterQueue": "cq", "stopPolicy": "Hold"}}'
    site.world.view.filing.put(decode(kube.LocalQueue, text.encode()))
    plan = await site.ticks()
    assert plan.suspended[NAMESPACE, "a"].startswith("LocalQueue demo/cq leads to no ClusterQueue")
