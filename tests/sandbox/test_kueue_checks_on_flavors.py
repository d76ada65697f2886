"""`onFlavors`: a check that is only for Workloads which were given certain flavors. The embedded Kueue in virtual time.

Before a Workload has flavors it is known only which checks are for all of them. Those for some are added with its
quota, and go with it.
"""

from typing import Any

import pytest
from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json
from sim.kueue_cluster import GPU, KueueCluster, cluster_queue, job

from scaler.kube.objects.resources import CLUSTER_QUEUE, POD, RESOURCE_FLAVOR, WORKLOAD

SPOT, ON_DEMAND = 2, 4
"""GPUs of quota: a Job of 2 gets spot, and one of 4 on-demand."""


def queue(*rules: Json, spot: int = SPOT) -> Json:
    flavors = [
        {"name": name, "resources": [{"name": GPU, "nominalQuota": gpus}]}
        for name, gpus in (("spot", spot), ("on-demand", ON_DEMAND))
    ]
    return cluster_queue(
        resourceGroups=[{"coveredResources": [GPU], "flavors": flavors}],
        admissionChecksStrategy={"admissionChecks": list(rules)},
    )


def world_of(*rules: Json) -> KueueCluster:
    world = KueueCluster(queue(*rules))
    for flavor in ("spot", "on-demand"):
        world.client.add(RESOURCE_FLAVOR, {"metadata": {"name": flavor}, "spec": {}})
    for rule in rules:
        world.add_check(rule["name"])
    return world


def rule(name: str, *flavors: str) -> Json:
    return {"name": name, **({"onFlavors": list(flavors)} if flavors else {})}


def entries(world: KueueCluster, name: str) -> list[str]:
    return [each["name"] for each in world.workload(name)["status"].get("admissionChecks") or ()]


RULES: dict[str, tuple[list[Json], list[str], list[str], list[str]]] = {
    # rules; entries of one that waits, of one that has spot, and of one that has on-demand
    "for all flavors": ([rule("gate")], ["gate"], ["gate"], ["gate"]),
    "for each of them by name": ([rule("gate", "spot", "on-demand")], ["gate"], ["gate"], ["gate"]),
    "for one of them": ([rule("gate", "spot")], [], ["gate"], []),
    "for each of them another one": ([rule("a", "spot"), rule("b", "on-demand")], [], ["a"], ["b"]),
    "for one of them, beside one for all": ([rule("z"), rule("a", "spot")], ["z"], ["a", "z"], ["z"]),
    "for a flavor that the queue does not offer": ([rule("gate", "other")], [], [], []),
}


@pytest.mark.parametrize(("rules", "waiting", "on_spot", "on_demand"), RULES.values(), ids=RULES)
async def test_a_workload_has_entries_of_the_checks_that_are_for_its_flavors(
    rules: list[Json], waiting: list[str], on_spot: list[str], on_demand: list[str]
) -> None:
    world = world_of(*rules)
    await world.submit(job("small", pods=SPOT))
    await world.submit(job("large", pods=ON_DEMAND))
    await world.submit(job("late", pods=ON_DEMAND))
    assert entries(world, "small") == on_spot
    assert entries(world, "large") == on_demand
    assert entries(world, "late") == waiting
    assert not has(world.workload("late"), "QuotaReserved")
    assert world.is_admitted("small") is not bool(on_spot)
    assert world.is_admitted("large") is not bool(on_demand)


async def test_one_with_a_check_for_its_flavor_is_never_admitted_before_the_check_is_ready() -> None:
    """Its entry comes after its quota: in between nothing is Ready, and nothing is missing but the entry."""
    world = world_of(rule("gate", "spot"))
    await world.submit(job("small", pods=SPOT))
    assert world.client.all(POD) == []
    await world.answer("small", "Ready", "go")
    assert world.is_admitted("small")
    history = [body for body in world.client.history if body["kind"] == WORKLOAD.kind]
    reserved = [each for each in history if has(each, "QuotaReserved")]
    assert not has(reserved[0], "Admitted")
    assert "admissionChecks" not in reserved[0]["status"]


async def test_an_entry_for_one_flavor_goes_with_the_quota_and_does_not_come_back_on_another() -> None:
    """Retried on spot, whose quota is gone by then: what the check had noted on the entry is gone, too."""
    world = world_of(rule("gate", "spot"))
    await world.submit(job("small", pods=SPOT))
    world.client.change(CLUSTER_QUEUE, "", "cq", queue(rule("gate", "spot"), spot=0))
    updates: list[dict[str, Any]] = [{"name": "main", "labels": {"from": "spot"}}]
    await world.answer("small", "Retry", "no capacity", podSetUpdates=updates)
    await world.settle(2.0)
    assert entries(world, "small") == []
    assert world.is_admitted("small")
    assert {pod["metadata"]["labels"].get("from") for pod in world.client.all(POD)} == {None}
