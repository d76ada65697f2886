"""A gang is evicted, finished, deleted or deactivated, at every state of the gate and of its requests.

Every state is met by every ending. Afterwards nothing that was asked for is left, nothing is said any more of one that
is gone, and what it kept goes to the next one. One that comes back starts in the end, whole, and on nothing of before.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scaler_sandbox.conditions import make, with_conditions
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from sim.cluster import CHECK
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.kube.objects.resources import LOCAL_QUEUE, NODE, RECLAIM_POLICY, WORKLOAD

State = Callable[[], Awaitable[ProvisioningCluster]]
RESTING = {"retry": {"limit": 2, "base": "20m"}}


def new_town(*, nodes: int = 1, checks: tuple[str, ...] = (CHECK,), **more: Any) -> ProvisioningCluster:
    """Quota for 16 GPUs; 8 of them are there, or more. The check `foreign` is somebody else's."""
    preempts = {"withinClusterQueue": "LowerPriority"}
    names = dict.fromkeys(("a", "b", "c")[:nodes], 8)
    town = ProvisioningCluster(names, quota=16, checks=checks, preemption=preempts, scenarios=NOBODY, **more)
    town.add_check("foreign", "example.com/other")
    town.add(LOCAL_QUEUE, "other", namespace="ns", spec={"clusterQueue": "cq"})
    town.add(WORKLOAD_PRIORITY_CLASS, "high")
    town.client.change(WORKLOAD_PRIORITY_CLASS, "", "high", {"value": 1000})
    return town


async def without_quota() -> ProvisioningCluster:
    """Another has it all, which finishes when the gang goes."""
    town = new_town(nodes=2)
    town.submit("holder", pods=2, gpus=8, queue="other")
    await town.passes(2)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    assert town.is_running("holder")
    assert town.says("gang") == "Pending: "
    return town


async def pods_of_its_victim_end() -> ProvisioningCluster:
    town = new_town(nodes=2)
    town.termination["victim"] = 20.0
    town.submit("victim", gpus=8, queue="other")
    await town.passes(1)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    town.deactivate("victim", for_gang="gang")
    await town.passes(3)
    assert town.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim")
    return town


async def nobody_is_asked_for_nodes() -> ProvisioningCluster:
    town = new_town()
    town.change_policy({"provisioning": None, "requireFit": True})
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    assert town.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit")
    return town


async def nobody_can_follow_its_policy() -> ProvisioningCluster:
    """Its request was made before, and is still there."""
    town = await asked()
    town.change_policy({"requireFit": False, "pin": {"enabled": True}})
    await town.passes(1)
    assert town.says("gang").startswith("Pending: ReclaimPolicy 'policy'")
    return town


async def nodes_are_not_seen() -> ProvisioningCluster:
    town = await asked()
    town.blind = "Nodes (403)"
    await town.passes(1)
    return town


async def asked(**more: Any) -> ProvisioningCluster:
    town = new_town(**more)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    assert town.requests("gang") == ["1: New"]
    return town


async def its_request_is_accepted() -> ProvisioningCluster:
    town = await asked()
    town.answer(town.newest("gang"), "Accepted")
    await town.passes(1)
    return town


async def its_request_is_provisioned_and_its_node_is_not_there() -> ProvisioningCluster:
    town = await its_request_is_accepted()
    town.answer(town.newest("gang"), "Provisioned")
    await town.passes(1)
    assert not town.is_admitted("gang")
    return town


async def its_request_has_failed_and_it_rests() -> ProvisioningCluster:
    town = await asked(provisioning=RESTING)
    town.answer(town.newest("gang"), "Failed", "no capacity")
    await town.passes(1)
    assert "next attempt at" in town.says("gang")
    return town


async def its_second_request_is_open() -> ProvisioningCluster:
    town = await asked()
    town.answer(town.newest("gang"), "BookingExpired", ago=60.0)
    await town.passes(1)
    assert town.requests("gang") == ["1: BookingExpired", "2: New"]
    return town


async def it_is_at_its_limit() -> ProvisioningCluster:
    town = await asked(provisioning={"retry": {"limit": 0}})
    town.answer(town.newest("gang"), "CapacityRevoked")
    await town.passes(1)
    return town


async def another_check_holds_it() -> ProvisioningCluster:
    town = await asked(checks=(CHECK, "foreign"))
    town.answer(town.newest("gang"), "Provisioned")
    town.add_node("new", 8)
    await town.passes(1)
    assert town.entry("gang")["state"] == "Ready"
    assert not town.is_admitted("gang")
    return town


async def its_pods_are_on_their_way() -> ProvisioningCluster:
    town = await asked()
    town.hold_pods()
    town.answer(town.newest("gang"), "Provisioned")
    town.add_node("new", 8)
    await town.passes(1)
    assert town.is_admitted("gang")
    assert len(town.pods("gang")) == 2
    town.hold_pods(False)
    return town


async def it_runs() -> ProvisioningCluster:
    town = await asked()
    town.answer(town.newest("gang"), "Provisioned")
    town.add_node("new", 8)
    await town.passes(2)
    assert town.is_running("gang")
    assert town.requests("gang") == ["1: Provisioned"]
    return town


async def retry_was_just_said() -> ProvisioningCluster:
    """Its nodes are taken away, and Kueue has not seen yet what we say."""
    town = await it_runs()
    town.answer(town.newest("gang"), "CapacityRevoked")
    town.follow()
    await town.gate.tick(town.client.now)
    assert town.entry("gang")["state"] == "Retry"
    return town


STATES: dict[str, State] = {
    each.__name__: each
    for each in (
        without_quota,
        pods_of_its_victim_end,
        nobody_is_asked_for_nodes,
        nobody_can_follow_its_policy,
        nodes_are_not_seen,
        asked,
        its_request_is_accepted,
        its_request_is_provisioned_and_its_node_is_not_there,
        its_request_has_failed_and_it_rests,
        its_second_request_is_open,
        it_is_at_its_limit,
        another_check_holds_it,
        its_pods_are_on_their_way,
        it_runs,
        retry_was_just_said,
    )
}


# ----------------------------------------------------------------------------------------------------------- it goes


def name_of(town: ProvisioningCluster) -> str:
    return str(town.workload("gang")["metadata"]["name"])


def finish(town: ProvisioningCluster) -> None:
    """Its pods have succeeded; or Kueue declares it finished without having run (FailedToStart, OwnerNotFound)."""
    if town.is_running("gang"):
        town.finish("gang")
        return
    workload = town.workload("gang")
    done = make("Finished", "True", "FailedToStart", "", now=town.client.now)
    conditions = with_conditions((workload.get("status") or {}).get("conditions"), done)
    town.change(WORKLOAD, name_of(town), {"status": {"conditions": conditions}}, "status")


def set_active(town: ProvisioningCluster, active: bool) -> None:
    town.change(WORKLOAD, name_of(town), {"spec": {"active": active}})


def set_queue(town: ProvisioningCluster, policy: str) -> None:
    town.change(LOCAL_QUEUE, "lq", {"spec": {"stopPolicy": policy}})


ENDINGS: dict[str, Callable[[ProvisioningCluster], None]] = {
    "finished": finish,
    "deleted": lambda town: town.delete("gang"),
    "deactivated": lambda town: set_active(town, False),
    "evicted": lambda town: set_queue(town, "HoldAndDrain"),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("state", STATES)
async def test_of_a_gang_that_goes_nothing_is_left_and_the_next_one_starts(state: str, ending: str) -> None:
    town = await STATES[state]()
    uid = town.workload("gang")["metadata"]["uid"]
    town.submit("next", gpus=8, queue="other")
    await town.client.settle(*town.controllers)
    before = len(town.api.patches)
    ENDINGS[ending](town)
    seen_again(town)
    if town.exists("holder"):
        town.finish("holder")
    for _ in range(4):
        await town.passes(1)
        assert town.half_started() == []
    assert town.requests_of(uid) == []
    assert not [name for name in town.templates() if "gang" in name]
    assert not said_since(town, before)
    assert is_released(town, "next"), town.says("next")


async def test_what_an_evicted_gang_has_asked_for_goes_while_its_pods_still_end() -> None:
    town = await it_runs()
    town.termination["gang"] = 60.0
    town.submit("boss", pods=1, gpus=8, queue="other", **{"kueue.x-k8s.io/priority-class": "high"})
    await town.passes(3)
    assert len(town.pods("gang")) == 2, "they end slowly"
    uid = town.workload("gang")["metadata"]["uid"]
    assert (town.requests_of(uid), [each for each in town.templates() if "gang" in each]) == ([], [])


def seen_again(town: ProvisioningCluster) -> None:
    """What was out of order in the state is in order again: the next gang is to start."""
    town.blind = ""
    if town.client.find(RECLAIM_POLICY, "", "policy"):
        town.change_policy({"requireFit": True, "pin": {"enabled": False}})


def said_since(town: ProvisioningCluster, before: int) -> list[str]:
    """What was written to the gang's Workload."""
    return [path for path, _ in town.api.patches[before:] if "/workloads/job-gang-" in path]


def is_released(town: ProvisioningCluster, job: str) -> bool:
    """Whether it runs or, where another check holds it, ours does not."""
    is_held = bool(town.entry(job, "foreign"))
    return town.entry(job)["state"] == "Ready" if is_held else town.is_running(job)


# -------------------------------------------------------------------------------------------------------- it comes back


def preempt(town: ProvisioningCluster) -> None:
    """Another one of higher priority comes, and takes the quota."""
    town.submit("boss", pods=1, gpus=8, queue="other", **{"kueue.x-k8s.io/priority-class": "high"})


def finish_boss(town: ProvisioningCluster) -> None:
    assert is_released(town, "boss"), town.says("boss")
    town.finish("boss")
    if not town.is_running("boss"):
        town.delete("boss")


COMEBACKS: dict[str, tuple[Callable[[ProvisioningCluster], None], Callable[[ProvisioningCluster], None]]] = {
    "deactivated and activated again": (
        lambda town: set_active(town, False),
        lambda town: set_active(town, True),
    ),
    "evicted until its queue runs again": (
        lambda town: set_queue(town, "HoldAndDrain"),
        lambda town: set_queue(town, "None"),
    ),
    "preempted until the other one is done": (preempt, finish_boss),
}


@pytest.mark.parametrize("ending", COMEBACKS)
@pytest.mark.parametrize("state", STATES)
async def test_a_gang_that_comes_back_starts_in_the_end_and_on_nothing_of_before(state: str, ending: str) -> None:
    town = await STATES[state]()
    goes, comes = COMEBACKS[ending]
    goes(town)
    seen_again(town)
    if town.exists("holder"):
        town.finish("holder")
    for _ in range(4):
        await town.passes(1)
        assert town.half_started() == []
    if town.client.find(NODE, "", "new"):
        town.fleet.remove("new")
    comes(town)
    if town.exists("victim"):
        town.delete("victim")
    for second in range(24):
        serve(town, second)
        await town.passes(1)
        assert town.half_started() == []
    assert is_released(town, "gang"), town.says("gang")
    assert len(town.requests()) <= 1


def serve(town: ProvisioningCluster, second: int) -> None:
    """From now on an autoscaler answers, and the policy that asks nobody is mended by a node more."""
    for request in town.open_requests():
        town.answer(request, "Provisioned")
        town.add_node(f"served-{second}", 8)
    if second == 4 and not town.open_requests() and not town.is_admitted("gang"):
        town.add_node("spare", 8)
