"""What the ClusterQueues of a worker have, counted."""

from typing import Any

import pytest
from multikueue.worker.offer_world import OfferWorld, asks
from quota_builders import GPU, cluster_queue, cohort, flavor, flavors, gpu, holding, preempting, quota, tree
from reclaim_builders import nodes_with

from scaler.kube.objects.multikueue import ClusterQueueOffer
from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.worker.offer import OfferInputs, cluster_queue_offers
from scaler.placement.capacity import capacity_of
from scaler.placement.node_index import NodeInfo
from scaler.quota.model import Quota, QuotaResourceGroup, StopPolicy


def offers(*trees: Any, **fields: Any) -> dict[str, ClusterQueueOffer]:
    given = {"flavors": flavors("default", "a100", "h100"), "is_gpu": lambda name: name == GPU} | fields
    return {each.name: each for each in cluster_queue_offers(OfferInputs(trees=trees, **given))}


def amounts(offer: ClusterQueueOffer) -> dict[str, tuple[int, int, int, int]]:
    """Nominal, free, idle and reclaimable, by flavor."""
    return {each.name: (each.nominal, each.free, each.idle, each.reclaimable) for each in offer.flavors}


def gangs(offer: ClusterQueueOffer) -> tuple[int, int]:
    return offer.largest_gang.now, offer.largest_gang.after_reclaim


def test_what_is_free_idle_and_reclaimable_by_flavor() -> None:
    holders = [
        holding("busy", gpus=1, flavor="a100"),
        holding("idle", gpus=2, flavor="a100"),
        holding("kept", gpus=3, flavor="h100"),
    ]
    (found,) = offers(
        tree([cluster_queue(gpus={"a100": 4, "h100": 8})], workloads=holders),
        idle={"team/idle", "team/kept"},
        reclaimable={"team/idle"},
    ).values()
    assert amounts(found) == {"a100": (4, 1, 2, 2), "h100": (8, 5, 3, 0)}
    assert gangs(found) == (5, 5)  # h100 has more than the 1 + 2 of a100


def test_borrowing_counts_as_free_and_is_free_for_both() -> None:
    queues = [cluster_queue("a", gpus=4, cohort="team"), cluster_queue("b", gpus=4, cohort="team")]
    found = offers(tree(queues, [cohort()], [holding("runs", gpus=2, queue="a")]))
    assert {name: amounts(each)["default"][1] for name, each in found.items()} == {"a": 6, "b": 6}


def test_what_others_give_is_in_the_largest_gang() -> None:
    queues = [cluster_queue("a", gpus=4, cohort="team"), cluster_queue("b", gpus=4, cohort="team")]
    holders = [holding("idle", gpus=4, queue="b"), holding("leaves", gpus=1, queue="a")]
    found = offers(tree(queues, [cohort()], holders), reclaimable={"team/idle"}, leaving={"team/leaves"})
    assert gangs(found["a"]) == (3, 8)
    assert amounts(found["a"])["default"] == (4, 3, 0, 0)


def test_a_borrowing_limit_bounds_it() -> None:
    queues = [cluster_queue("a", gpus=quota(4, borrowing=1), cohort="team"), cluster_queue("b", gpus=4, cohort="team")]
    assert gangs(offers(tree(queues, [cohort()]))["a"]) == (5, 5)


@pytest.mark.parametrize("stopped", [{"stop_policy": StopPolicy.HOLD}, {"inactive_because": "FlavorNotFound"}])
def test_a_queue_that_admits_nothing_has_nothing_free(stopped: dict[str, Any]) -> None:
    (found,) = offers(tree([cluster_queue(gpus=4, **stopped)])).values()
    assert (amounts(found), gangs(found)) == ({"default": (4, 0, 0, 0)}, (0, 0))


def test_queues_without_gpus_are_left_out() -> None:
    cpu = QuotaResourceGroup(resources=frozenset({"cpu"}), flavors=("default",))
    group = {"groups": (cpu,), "quotas": {gpu()._replace(resource="cpu"): Quota(nominal=8)}}
    assert not offers(tree([cluster_queue(**group)]))


def test_a_gang_needs_nodes_of_its_flavor() -> None:
    nodes = capacity_of(
        [
            NodeInfo(name="n1", labels={"flavor": "a100"}, allocatable={GPU: 3, "pods": 110}),
            NodeInfo(name="n2", labels={"flavor": "h100"}, allocatable={GPU: 8, "pods": 2}),
        ],
        [],
    )
    (found,) = offers(tree([cluster_queue(gpus={"a100": 8, "h100": 8})]), capacity=nodes).values()
    assert gangs(found) == (3, 3)  # h100 has pods for two


def test_nodes_of_idle_workloads_and_of_pods_that_end_count_after_reclaim() -> None:
    idle, ended = holding("idle", gpus=2), holding("ended", gpus=2)
    nodes = nodes_with({"n": 8}, {"n": {idle: 2, ended: 2}}, terminating={ended})
    (found,) = offers(tree([cluster_queue(gpus=8)], workloads=[idle]), capacity=nodes, reclaimable={idle.key}).values()
    assert gangs(found) == (4, 8)  # now 8 - 2 - 2


def test_models_are_those_that_were_seen_on_a_flavor() -> None:
    holders = [holding("one", flavor="a100"), holding("other", flavor="h100")]
    (found,) = offers(
        tree([cluster_queue(gpus={"a100": 4, "h100": 4})], workloads=holders),
        models={"team/one": {"NVIDIA A100", "NVIDIA A100 80GB"}},
    ).values()
    assert {each.name: each.models for each in found.flavors} == {
        "a100": ("NVIDIA A100", "NVIDIA A100 80GB"),
        "h100": (),
    }


def test_a_flavor_that_is_not_there_has_no_nodes() -> None:
    nodes = nodes_with({"n": 8}, {})
    (found,) = offers(tree([cluster_queue(gpus=4)]), flavors={}, capacity=nodes).values()
    assert gangs(found) == (0, 0)


async def test_the_largest_gang_is_what_the_planner_lets_in() -> None:
    """One of that size fits, one that is larger does not: now, and after reclaim."""
    idle, busy = holding("idle", gpus=3), holding("busy", gpus=2, queue="b")
    nodes = nodes_with({"n1": 4, "n2": 4}, {"n1": {idle: 3}, "n2": {busy: 2}})
    queues = [
        cluster_queue("a", gpus=4, cohort="team", preemption=preempting()),
        cluster_queue("b", gpus=4, cohort="team", preemption=preempting()),
    ]
    world = OfferWorld(queues, [idle, busy], cohorts=[cohort()], capacity=lambda: nodes)
    world.quota.idle("idle")
    (found,) = world.quota.snapshot.trees
    counted = offers(found.clone(), capacity=nodes, reclaimable={idle.key}, flavors={"default": flavor()})
    now, after = gangs(counted["a"])
    assert (now, after) == (3, 6)
    assert (await world.fit(asks("now", pods=now))).fit is Fit.FREE
    assert (await world.fit(asks("more", pods=now + 1))).fit is Fit.RECLAIM
    assert (await world.fit(asks("most", pods=after))).fit is Fit.RECLAIM
    assert (await world.fit(asks("over", pods=after + 1))).fit is Fit.WAIT
