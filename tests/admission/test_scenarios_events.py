"""Every change of an AdmissionCheck's state is an Event on its Workload, once.

The Events of whole stories, in order. Between changes there are none, however long a gang waits and however often the
numbers in its message change, and a process that comes after one that died does not tell everything again.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from sim.provisioning_cluster import NOBODY, ProvisioningCluster, failing

from scaler.kube.objects.resources import ADMISSION_CHECK, CLUSTER_QUEUE, LOCAL_QUEUE, RECLAIM_POLICY, WORKLOAD

Story = Callable[[ProvisioningCluster], Awaitable[None]]
_DEFAULTS: dict[str, Any] = {"nodes": {"a": 8}, "scenarios": NOBODY}


async def its_victims_end_late(cluster: ProvisioningCluster) -> None:
    cluster.termination["victim"] = 30.0
    cluster.submit("victim", gpus=8)
    await cluster.passes(2)
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    cluster.deactivate("victim", for_gang="gang")
    await cluster.passes(40)


async def others_end_on_its_node_and_then_a_node_is_missing_and_then_it_is_there(cluster: ProvisioningCluster) -> None:
    cluster.termination["other"] = 20.0
    cluster.submit("other", gpus=8)
    await cluster.passes(2)
    cluster.change(WORKLOAD, cluster.workload("other")["metadata"]["name"], {"spec": {"active": False}})
    await cluster.passes(1)
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    cluster.fleet.remove("a")
    await cluster.passes(5)
    cluster.add_node("b", 8)
    await cluster.passes(5)


async def nodes_are_asked_for_twice_and_come(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(30)


async def nodes_are_asked_for_and_something_gets_free(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "Accepted")
    await cluster.passes(1)
    cluster.add_node("b", 8)
    await cluster.passes(65)


async def its_booking_expires_and_then_it_is_at_its_limit(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), "Provisioned")
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), "BookingExpired")
    await cluster.passes(12)
    cluster.answer(cluster.newest("gang"), "Failed")
    await cluster.passes(60)


async def it_yields_at_its_limit(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(6)
    cluster.submit("other", gpus=8)
    await cluster.passes(12)


async def its_nodes_are_taken_away(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), "Provisioned")
    cluster.add_node("b", 8)
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "CapacityRevoked")
    cluster.fleet.remove("b")
    await cluster.passes(3)


async def it_is_evicted_while_it_asks(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.change(LOCAL_QUEUE, "lq", {"spec": {"stopPolicy": "Hold"}})
    await cluster.passes(5)


async def its_policy_is_unusable_for_a_while(cluster: ProvisioningCluster) -> None:
    await cluster.passes(1)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    found = cluster.client.find(RECLAIM_POLICY, "", "policy")
    assert found is not None
    cluster.client.remove(RECLAIM_POLICY, "", "policy")
    await cluster.passes(5)
    cluster.add(RECLAIM_POLICY, "policy", spec=found["spec"])
    cluster.add_node("b", 8)
    await cluster.passes(63)


async def its_pods_contradict_its_flavor(cluster: ProvisioningCluster) -> None:
    """Nobody could ask for nodes for them."""
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(0, ticks=False)
    name = cluster.workload("gang")["metadata"]["name"]
    pod_sets = cluster.workload("gang")["spec"]["podSets"]
    consumes = {"autoscaling.x-k8s.io/consume-provisioning-request": "own"}
    pod_sets[0]["template"]["metadata"] = {"annotations": consumes}
    cluster.change(WORKLOAD, name, {"spec": {"podSets": pod_sets}})
    await cluster.passes(60)


async def the_check_is_added_while_it_runs(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    cluster.add(ADMISSION_CHECK, "gate", spec={"controllerName": "idlegpu.io/reclaim"})
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": cluster.queue_spec(1000)})
    await cluster.passes(2)


ASKS = ["ProvisioningRequestCreated", "AdmissionCheckPending: NodesComing"]
LIMITED = {"retry": {"limit": 1, "base": "10s"}}
STORIES: dict[Story, tuple[Mapping[str, Any], list[str]]] = {
    its_victims_end_late: ({"quota": 8}, ["AdmissionCheckPending: PodsEnding", "AdmissionCheckReady"]),
    others_end_on_its_node_and_then_a_node_is_missing_and_then_it_is_there: (
        {"policy": {"provisioning": None, "requireFit": True}},
        ["AdmissionCheckPending: PodsEnding", "AdmissionCheckPending: NodesLacking", "AdmissionCheckReady"],
    ),
    nodes_are_asked_for_twice_and_come: (
        {"scenarios": [failing(1)]},
        [
            *ASKS,
            "NodesAccepted",
            "NodesFailed",
            "AdmissionCheckPending: NodesLacking",
            *ASKS,
            "NodesAccepted",
            "NodesProvisioned",
            "AdmissionCheckReady",
            "ProvisioningRequestRemoved",
        ],
    ),
    nodes_are_asked_for_and_something_gets_free: (
        {},
        [*ASKS, "NodesAccepted", "AdmissionCheckReady", "ProvisioningRequestRemoved"],
    ),
    its_booking_expires_and_then_it_is_at_its_limit: (
        {"provisioning": LIMITED},
        [
            *ASKS,
            "NodesProvisioned",
            "NodesBookingExpired",
            "AdmissionCheckPending: NodesLacking",
            *ASKS,
            "NodesFailed",
            "NodesLimitReached",
            "AdmissionCheckPending: NodesLimitReached",
        ],
    ),
    it_yields_at_its_limit: (
        {
            "quota": 16,
            "scenarios": [failing(9)],
            "queueingStrategy": "StrictFIFO",
            "provisioning": {"retry": {"limit": 0, "base": "10s"}, "atLimit": "Yield"},
        },
        [
            *ASKS,
            "NodesAccepted",
            "NodesFailed",
            "AdmissionCheckPending: NodesLacking",
            "NodesLimitReached",
            "AdmissionCheckRetry",
            "ProvisioningRequestRemoved",
        ],
    ),
    its_nodes_are_taken_away: (
        {},
        [
            *ASKS,
            "NodesProvisioned",
            "AdmissionCheckReady",
            "NodesCapacityRevoked",
            "NodesRevoked",
            "ProvisioningRequestRemoved",
            "AdmissionCheckPending: NodesLacking",
            *ASKS,
        ],
    ),
    it_is_evicted_while_it_asks: ({}, [*ASKS, "ProvisioningRequestRemoved"]),
    its_policy_is_unusable_for_a_while: (
        {},
        [
            *ASKS,
            "AdmissionCheckPending: PolicyUnusable",
            "AdmissionCheckPending: NodesComing",
            "AdmissionCheckReady",
            "ProvisioningRequestRemoved",
        ],
    ),
    its_pods_contradict_its_flavor: ({}, ["NodesNotAsked", "AdmissionCheckPending: NodesLacking"]),
    the_check_is_added_while_it_runs: ({"checks": ()}, []),
}


def cluster_of(options: Mapping[str, Any]) -> ProvisioningCluster:
    given = {**_DEFAULTS, **options}
    return ProvisioningCluster(given.pop("nodes"), **given)


def events_of(cluster: ProvisioningCluster) -> list[str]:
    """The reasons of the gang's Events; with what it waits for where it waits."""
    return [
        f"{reason}: {message.partition(':')[0]}" if reason == "AdmissionCheckPending" else reason
        for about, reason, message in cluster.recorded.events
        if about.startswith("job-gang")
    ]


@pytest.mark.parametrize("story", STORIES, ids=[each.__name__ for each in STORIES])
async def test_every_turn_of_a_gang_is_an_event_once(story: Story) -> None:
    options, expected = STORIES[story]
    cluster = cluster_of(options)
    await story(cluster)
    assert events_of(cluster) == expected


RETOLD = (others_end_on_its_node_and_then_a_node_is_missing_and_then_it_is_there, its_nodes_are_taken_away)
RETOLD += (its_booking_expires_and_then_it_is_at_its_limit, its_pods_contradict_its_flavor)


@pytest.mark.parametrize("story", RETOLD, ids=[each.__name__ for each in RETOLD])
async def test_a_new_process_repeats_no_event_of_long_ago(story: Story) -> None:
    """But for refusals, of which the API knows nothing."""
    options, _ = STORIES[story]
    cluster = cluster_of(options)
    await story(cluster)
    cluster.client.now += timedelta(minutes=6)
    await cluster.passes(1)
    before = events_of(cluster)
    cluster.restart()
    await cluster.passes(1)
    assert [each for each in events_of(cluster)[len(before) :] if each != "NodesNotAsked"] == []
