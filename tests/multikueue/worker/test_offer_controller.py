"""A worker's leader answers the ClusterOffers of its cluster: once per evaluation, and never with what it does not
know."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from builders import INTERVAL, at, unknown
from loops_builders import World
from multikueue.worker.offer_world import OfferWorld, asks
from quota_builders import cluster_queue, holding
from scripted_metrics import Metrics, ScriptedSource
from small_cluster import SmallCluster, until

from scaler.decision.decision_cache import Evaluation
from scaler.errors import NOT_LEADING, KubeError
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.multikueue import ClusterOffer, OfferedWorkload, OfferPolicy
from scaler.kube.objects.resources import CLUSTER_OFFER
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.writes import LeaderApi
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts
from scaler.multikueue.worker.offer_controller import OfferController, OfferReport
from scaler.quota.watch import NotSynced

Json = dict[str, Any]


class Leader:
    """The worker's leader, whose time is that of its last evaluation."""

    def __init__(self, cluster: SmallCluster, transport: KubeTransport, world: OfferWorld) -> None:
        self.cluster = cluster
        self.world = world
        self.offers = Reflector(transport, CLUSTER_OFFER, ClusterOffer)
        self.doubt: Unknown | None = None
        self.leads = True
        self.reports: list[OfferReport] = []
        samples = World((), lambda made: ScriptedSource(metrics=Metrics(series=[]), clock=lambda: made.now))
        self.controller = OfferController(
            api=LeaderApi(transport, is_leader=lambda: self.leads),
            offers=self.offers,
            planning=world.quota.planning,
            doubt=lambda: self.doubt,
            fits=world.fits,
            verdicts=CopyVerdicts(evaluator=samples.evaluator, cluster=world.quota.planning.cluster),
            interval=INTERVAL,
            models=lambda _: {"NVIDIA A100"},
            observe=self.reports.append,
        )

    async def hub_asks(self, *entries: OfferedWorkload, name: str = "hub") -> None:
        """The dispatcher of a hub creates the ClusterOffer, or writes its spec anew."""
        spec = {"workloads": msgspec.to_builtins(entries)}
        try:
            await self.cluster.change(CLUSTER_OFFER, name, {"spec": spec})
        except KubeError:
            await self.cluster.create(CLUSTER_OFFER, {"metadata": {"name": name}, "spec": spec})
        await self.sees(name)

    async def sees(self, name: str = "hub") -> None:
        async def is_current() -> bool:
            there, seen = await self.cluster.read(CLUSTER_OFFER, name), self.offers.get("", name)
            return seen is not None and seen.metadata.resource_version == there["metadata"]["resourceVersion"]

        await until(is_current)

    async def evaluates(self, seconds: float) -> None:
        """Everything is judged as before at that instant, and the controller is woken."""
        evaluation = self.world.quota.decision_cache.evaluation
        self.world.quota.decision_cache.publish(Evaluation.of(evaluation.entries if evaluation else {}, at=at(seconds)))
        await self.ticks(seconds)

    async def ticks(self, seconds: float) -> None:
        await self.controller.tick(at(seconds))

    async def status(self, name: str = "hub") -> Mapping[str, Any]:
        found: Json = (await self.cluster.read(CLUSTER_OFFER, name)).get("status") or {}
        return found

    async def revision(self, name: str = "hub") -> str:
        return str((await self.cluster.read(CLUSTER_OFFER, name))["metadata"]["resourceVersion"])


@asynccontextmanager
async def leading(cluster: SmallCluster, world: OfferWorld) -> AsyncIterator[Leader]:
    async with await KubeTransport.connect(cluster.kubeconfig) as transport:
        leader = Leader(cluster, transport, world)
        running = asyncio.create_task(leader.offers.run())
        try:
            await leader.offers.wait_synced()
            yield leader
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def a_world() -> OfferWorld:
    """Of eight GPUs two are free, two are idle, and four are busy."""
    world = OfferWorld([cluster_queue(gpus=8)], [holding("idle", gpus=2), holding("busy", gpus=4)])
    world.quota.idle("idle")
    return world


async def test_the_whole_status_is_written(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks("small", pods=2), asks("large", pods=4), asks("huge", pods=9))
        await leader.evaluates(30)
        status = await leader.status()
    assert status["observedGeneration"] == 1
    assert (status["observedAt"], status["validUntil"]) == ("2026-12-01T12:00:30.000Z", "2026-12-01T12:02:00.000Z")
    assert status["clusterQueues"] == [
        {
            "name": "a",
            "flavors": [
                {
                    "name": "default",
                    "resource": "nvidia.com/gpu",
                    "nominal": 8,
                    "free": 2,
                    "idle": 2,
                    "reclaimable": 2,
                }
            ],
            "largestGang": {"now": 2, "afterReclaim": 4},
        }
    ]
    small, large, huge = status["workloads"]
    assert (small["fit"], small["freeAfter"]) == ("Free", 0)
    assert (large["fit"], large["victims"], large["uid"]) == ("Reclaim", ["team/idle"], "hub-large")
    assert large["cost"] > 0
    assert huge["fit"] == "Never"
    assert "message" not in status


async def test_once_per_evaluation_and_not_without_one(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks())
        await leader.evaluates(0)
        await leader.sees()
        before = await leader.revision()
        for seconds in (1, 5, 29):
            await leader.ticks(seconds)
        assert await leader.revision() == before
        await leader.evaluates(30)
        assert (await leader.status())["observedAt"] == "2026-12-01T12:00:30.000Z"
    assert [each.written for each in leader.reports] == [1, 1]


async def test_every_hub_is_answered(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks("one"), name="hub")
        await leader.hub_asks(asks("other", pods=9), name="second")
        await leader.evaluates(0)
        found = {name: (await leader.status(name))["workloads"] for name in ("hub", "second")}
    assert {name: [(each["name"], each["fit"]) for each in shown] for name, shown in found.items()} == {
        "hub": [("one", "Free")],
        "second": [("other", "Never")],
    }


async def test_what_is_asked_no_more_is_answered_no_more(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks("one"), asks("other"))
        await leader.evaluates(0)
        await leader.hub_asks(asks("other"))
        await leader.evaluates(30)
        status = await leader.status()
    assert [each["name"] for each in status["workloads"]] == ["other"]
    assert status["observedGeneration"] == 2


async def test_an_entry_that_asks_nothing_is_not_answered(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(OfferedWorkload(namespace="team", name="gang", uid="hub-gang", reclaim=True))
        await leader.evaluates(0)
        assert (await leader.status())["workloads"] == []


@pytest.mark.parametrize("unseen", ["samples", "quota", "verdicts", "nodes"])
async def test_what_is_not_known_expires_and_says_why_once(cluster: SmallCluster, unseen: str) -> None:
    world = a_world()
    async with leading(cluster, world) as leader:
        await leader.hub_asks(asks())
        await leader.evaluates(0)
        await leader.sees()
        known = await leader.status()
        match unseen:
            case "samples":
                leader.doubt = unknown()
            case "quota":
                world.quota.view.shown = NotSynced("not synced: ClusterQueues")
            case "verdicts":
                world.quota.planning.max_age = timedelta(seconds=-1)
            case "nodes":
                world.quota.planning.policy = replace(world.quota.planning.policy, consider_nodes=True)
                world.quota.planning.capacity = lambda: NotSynced("nodes are not listed")
        await leader.evaluates(30)
        await leader.sees()
        told, revision = await leader.status(), await leader.revision()
        assert told["message"]
        assert {**told, "message": None} == {**known, "message": None}
        leader.doubt = unknown(message="newest sample is 6m old")
        await leader.evaluates(60)
        assert await leader.revision() == revision, "although the reason is another one"
        assert leader.reports[-1].unknown


async def test_before_the_first_evaluation_nothing_is_said_but_why(cluster: SmallCluster) -> None:
    world = OfferWorld([cluster_queue(gpus=8)], is_judged=False)
    async with leading(cluster, world) as leader:
        await leader.hub_asks(asks())
        await leader.ticks(0)
        await leader.sees()
        assert set(await leader.status()) == {"message"}


async def test_once_it_is_known_again_the_message_is_gone(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks())
        leader.doubt = unknown()
        await leader.evaluates(0)
        await leader.sees()
        leader.doubt = None
        await leader.evaluates(30)
        status = await leader.status()
    assert "message" not in status
    assert [each["fit"] for each in status["workloads"]] == ["Free"]


async def test_what_runs_here_is_judged_by_the_policy_of_the_hub(cluster: SmallCluster) -> None:
    policy = OfferPolicy(idle_after="30m", warm_up="10m", active_above=0.01, gpus="all")
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(OfferedWorkload(namespace="team", name="gone", uid="hub-gone", policy=policy))
        await leader.evaluates(0)
        (found,) = (await leader.status())["workloads"]
    assert (found["verdict"], found["reason"]) == ("Unknown", "WorkloadMissing")
    assert found["judgedBy"] == {"idleAfter": "30m", "warmUp": "10m", "activeAbove": 0.01, "gpus": "all"}


async def test_a_conflict_is_looked_at_again_at_the_next_tick(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks())
        with cluster.refusing("PATCH", "clusteroffers", status=409):
            await leader.evaluates(0)
        assert await leader.status() == {}
        await leader.ticks(1)
        assert (await leader.status())["observedAt"] == "2026-12-01T12:00:01.000Z"


async def test_who_does_not_lead_any_more_writes_nothing(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks())
        leader.leads = False
        with pytest.raises(KubeError) as raised:
            await leader.evaluates(0)
        assert raised.value.reason == NOT_LEADING
        assert await leader.status() == {}


async def test_an_offer_that_cannot_be_read_is_not_answered_and_the_others_are(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks())
        bad = {"namespace": "team", "name": "bad", "uid": "u", "request": {"podSets": [{"count": "many"}]}}
        await cluster.create(CLUSTER_OFFER, {"metadata": {"name": "second"}, "spec": {"workloads": [bad]}})
        await until(lambda: leader.offers.undecodable)
        await leader.evaluates(0)
        assert [each["fit"] for each in (await leader.status())["workloads"]] == ["Free"]
        assert await leader.status("second") == {}
    assert "ClusterOffer second cannot be read" in leader.reports[-1].unknown


async def test_without_offers_nothing_is_computed(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.evaluates(0)
    assert leader.reports == []


async def test_an_offer_that_was_created_anew_is_answered_anew(cluster: SmallCluster) -> None:
    async with leading(cluster, a_world()) as leader:
        await leader.hub_asks(asks())
        await leader.evaluates(0)
        await cluster.delete(CLUSTER_OFFER, "hub")
        await leader.hub_asks(asks("other"))
        await leader.ticks(1)
        assert [each["name"] for each in (await leader.status())["workloads"]] == ["other"]
