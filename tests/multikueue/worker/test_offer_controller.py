"""A worker's leader answers the ClusterOffers of its cluster: once per evaluation, and never with what it does not
know."""

from collections.abc import Mapping
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
from sim.api import SimApi, SimStore
from sim.client import SimClient

from scaler.decision.decision_cache import Evaluation
from scaler.errors import NOT_LEADING, KubeError
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.multikueue import ClusterOffer, OfferedWorkload, OfferPolicy
from scaler.kube.objects.resources import CLUSTER_OFFER
from scaler.kube.writes import LeaderApi
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts
from scaler.multikueue.worker.offer_controller import OfferController, OfferReport
from scaler.quota.watch import NotSynced

Json = dict[str, Any]


class Leader:
    """The worker's leader, whose time is that of its last evaluation. It sees at once what is there."""

    def __init__(self, world: OfferWorld) -> None:
        self.world = world
        self.client = SimClient()
        self.api = SimApi(self.client, [CLUSTER_OFFER])
        self.offers = SimStore(ClusterOffer)
        self.doubt: Unknown | None = None
        self.leads = True
        self.reports: list[OfferReport] = []
        samples = World((), lambda made: ScriptedSource(metrics=Metrics(series=[]), clock=lambda: made.now))
        self.controller = OfferController(
            api=LeaderApi(self.api, is_leader=lambda: self.leads),
            offers=self.offers,
            planning=world.quota.planning,
            doubt=lambda: self.doubt,
            fits=world.fits,
            verdicts=CopyVerdicts(
                judge=samples.evaluator.judge, cluster=world.quota.planning.cluster, max_window=timedelta(hours=24)
            ),
            interval=INTERVAL,
            models=lambda _: {"NVIDIA A100"},
            observe=self.reports.append,
        )

    def hub_asks(self, *entries: OfferedWorkload | Json, name: str = "hub") -> None:
        """The dispatcher of a hub creates the ClusterOffer, or writes its spec anew."""
        spec = {"workloads": msgspec.to_builtins(entries)}
        if self.client.find(CLUSTER_OFFER, "", name) is None:
            self.client.add(CLUSTER_OFFER, {"metadata": {"name": name}, "spec": spec})
        else:
            self.client.change(CLUSTER_OFFER, "", name, {"spec": spec})

    async def evaluates(self, seconds: float) -> None:
        """Everything is judged as before at that instant, and the controller is woken."""
        evaluation = self.world.quota.decision_cache.evaluation
        self.world.quota.decision_cache.publish(Evaluation.of(evaluation.entries if evaluation else {}, at=at(seconds)))
        await self.ticks(seconds)

    async def ticks(self, seconds: float) -> None:
        self.offers.follow(self.client.all(CLUSTER_OFFER))
        await self.controller.tick(at(seconds))

    def status(self, name: str = "hub") -> Mapping[str, Any]:
        found: Json = self.client.find(CLUSTER_OFFER, "", name)["status"]
        return found

    @property
    def revision(self) -> object:
        return self.client.revision


def a_world() -> OfferWorld:
    """Of eight GPUs two are free, two are idle, and four are busy."""
    world = OfferWorld([cluster_queue(gpus=8)], [holding("idle", gpus=2), holding("busy", gpus=4)])
    world.quota.idle("idle")
    return world


async def test_the_whole_status_is_written() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks("small", pods=2), asks("large", pods=4), asks("huge", pods=9))
    await leader.evaluates(30)
    status = leader.status()
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


async def test_once_per_evaluation_and_not_without_one() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks())
    await leader.evaluates(0)
    before = leader.revision
    for seconds in (1, 5, 29):
        await leader.ticks(seconds)
    assert leader.revision == before
    await leader.evaluates(30)
    assert leader.status()["observedAt"] == "2026-12-01T12:00:30.000Z"
    assert [each.written for each in leader.reports] == [1, 1]


async def test_every_hub_is_answered() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks("one"), name="hub")
    leader.hub_asks(asks("other", pods=9), name="second")
    await leader.evaluates(0)
    found = {name: leader.status(name)["workloads"] for name in ("hub", "second")}
    assert {name: [(each["name"], each["fit"]) for each in shown] for name, shown in found.items()} == {
        "hub": [("one", "Free")],
        "second": [("other", "Never")],
    }


async def test_what_is_asked_no_more_is_answered_no_more() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks("one"), asks("other"))
    await leader.evaluates(0)
    leader.hub_asks(asks("other"))
    await leader.evaluates(30)
    status = leader.status()
    assert [each["name"] for each in status["workloads"]] == ["other"]
    assert status["observedGeneration"] == 2


async def test_an_entry_that_asks_nothing_is_not_answered() -> None:
    leader = Leader(a_world())
    leader.hub_asks(OfferedWorkload(namespace="team", name="gang", uid="hub-gang", reclaim=True))
    await leader.evaluates(0)
    assert leader.status()["workloads"] == []


@pytest.mark.parametrize("unseen", ["samples", "quota", "verdicts", "nodes"])
async def test_what_is_not_known_expires_and_says_why_once(unseen: str) -> None:
    world = a_world()
    leader = Leader(world)
    leader.hub_asks(asks())
    await leader.evaluates(0)
    known = leader.status()
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
    told, revision = leader.status(), leader.revision
    assert told["message"]
    assert {**told, "message": None} == {**known, "message": None}
    leader.doubt = unknown(message="newest sample is 6m old")
    await leader.evaluates(60)
    assert leader.revision == revision, "although the reason is another one"
    assert leader.reports[-1].unknown


async def test_before_the_first_evaluation_nothing_is_said_but_why() -> None:
    world = OfferWorld([cluster_queue(gpus=8)], is_judged=False)
    leader = Leader(world)
    leader.hub_asks(asks())
    await leader.ticks(0)
    assert set(leader.status()) == {"message"}


async def test_once_it_is_known_again_the_message_is_gone() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks())
    leader.doubt = unknown()
    await leader.evaluates(0)
    leader.doubt = None
    await leader.evaluates(30)
    status = leader.status()
    assert "message" not in status
    assert [each["fit"] for each in status["workloads"]] == ["Free"]


async def test_what_runs_here_is_judged_by_the_policy_of_the_hub() -> None:
    policy = OfferPolicy(idle_after="30m", warm_up="10m", active_above=0.01, gpus="all")
    leader = Leader(a_world())
    leader.hub_asks(OfferedWorkload(namespace="team", name="gone", uid="hub-gone", policy=policy))
    await leader.evaluates(0)
    (found,) = leader.status()["workloads"]
    assert (found["verdict"], found["reason"]) == ("Unknown", "WorkloadMissing")
    assert found["judgedBy"] == {"idleAfter": "30m", "warmUp": "10m", "activeAbove": 0.01, "gpus": "all"}


async def test_a_conflict_is_looked_at_again_at_the_next_tick() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks())
    touched = {"metadata": {"labels": {"touched": "yes"}}}
    leader.api.before_patch = lambda _: leader.client.change(CLUSTER_OFFER, "", "hub", touched)
    await leader.evaluates(0)
    assert leader.status() == {}
    leader.api.before_patch = lambda _: None
    await leader.ticks(1)
    assert leader.status()["observedAt"] == "2026-12-01T12:00:01.000Z"


async def test_who_does_not_lead_any_more_writes_nothing() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks())
    leader.leads = False
    with pytest.raises(KubeError) as raised:
        await leader.evaluates(0)
    assert raised.value.reason == NOT_LEADING
    assert leader.status() == {}


async def test_an_offer_that_cannot_be_read_is_not_answered_and_the_others_are() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks())
    bad = {"namespace": "team", "name": "bad", "uid": "u", "request": {"podSets": [{"count": "many"}]}}
    leader.hub_asks(bad, name="second")
    await leader.evaluates(0)
    assert [each["fit"] for each in leader.status()["workloads"]] == ["Free"]
    assert leader.status("second") == {}
    assert "ClusterOffer second cannot be read" in leader.reports[-1].unknown


async def test_without_offers_nothing_is_computed() -> None:
    leader = Leader(a_world())
    await leader.evaluates(0)
    assert leader.reports == []


async def test_an_offer_that_was_created_anew_is_answered_anew() -> None:
    leader = Leader(a_world())
    leader.hub_asks(asks())
    await leader.evaluates(0)
    leader.client.remove(CLUSTER_OFFER, "", "hub")
    leader.hub_asks(asks("other"))
    await leader.ticks(1)
    assert [each["name"] for each in leader.status()["workloads"]] == ["other"]
