"""What the executor of provisioning steps reads before it writes, what it leaves alone, and what follows a refusal."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from scaler_sandbox.kinds import Json
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.errors import KubeError
from scaler.kube.objects.resources import POD_TEMPLATE, PROVISIONING_REQUEST, WORKLOAD, Resource

FIRST = "gate-1"


async def lacking() -> ProvisioningCluster:
    """A gang that lacks a node, before the first tick that has to do with it."""
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    await town.passes(1)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1, gate=False)
    return town


async def requested() -> ProvisioningCluster:
    town = await lacking()
    await town.passes(1)
    assert town.requests("gang") == ["1: New"]
    return town


def creations(town: ProvisioningCluster) -> list[str]:
    return [each for each in town.api.writes if each.startswith("create")]


async def test_a_watch_that_lags_does_not_request_twice() -> None:
    town = await lacking()
    for _ in range(3):  # without following what was written
        await town.gate.tick(town.client.now)
    assert [each.split("/")[0] for each in creations(town)] == ["create podtemplates", "create provisioningrequests"]
    assert town.report.plan.provisioning_steps, "the plan still wants it"


def evicted(town: ProvisioningCluster, name: str) -> None:
    entry = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": ""}
    conditions = [*town.workload("gang")["status"]["conditions"], entry]
    town.change(WORKLOAD, name, {"status": {"conditions": conditions}}, "status")


def ready(town: ProvisioningCluster, name: str) -> None:
    entries = [{**each, "state": "Ready"} for each in town.workload("gang")["status"]["admissionChecks"]]
    town.change(WORKLOAD, name, {"status": {"admissionChecks": entries}}, "status")


def reserved_anew(town: ProvisioningCluster, name: str) -> None:
    later = [
        {**each, "lastTransitionTime": "2026-11-20T12:30:00Z"} for each in town.workload("gang")["status"]["conditions"]
    ]
    town.change(WORKLOAD, name, {"status": {"conditions": later}}, "status")


MEANWHILE: dict[str, Callable[[ProvisioningCluster, str], None]] = {
    "evicted": evicted,
    "deactivated": lambda town, name: town.change(WORKLOAD, name, {"spec": {"active": False}}),
    "Ready": ready,
    "without an entry": lambda town, name: town.change(WORKLOAD, name, {"status": {"admissionChecks": None}}, "status"),
    "reserved anew": reserved_anew,
    "deleted": lambda town, name: town.client.remove(WORKLOAD, "ns", name),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
async def test_nothing_is_requested_for_a_gang_that_has_changed_and_the_watch_lags(
    meanwhile: Callable[[ProvisioningCluster, str], None],
) -> None:
    town = await lacking()
    meanwhile(town, town.workload("gang")["metadata"]["name"])
    await town.gate.tick(town.client.now)
    assert creations(town) == []


async def test_the_successor_of_a_request_that_was_to_be_deleted_is_spared() -> None:
    """The watch still shows the request of before; another one has its name, and uses its PodTemplate."""
    town = await requested()
    name = town.newest("gang")
    found = town.client.find(PROVISIONING_REQUEST, "ns", name)
    assert found is not None
    town.client.remove(PROVISIONING_REQUEST, "ns", name)
    metadata = {key: value for key, value in found["metadata"].items() if key not in ("uid", "resourceVersion")}
    successor = town.client.add(PROVISIONING_REQUEST, {"metadata": metadata, "spec": found["spec"]})
    evicted(town, town.workload("gang")["metadata"]["name"])
    town.copies[WORKLOAD].follow(town.client.all(WORKLOAD))
    await town.gate.tick(town.client.now)
    assert town.client.find(PROVISIONING_REQUEST, "ns", name) == successor
    assert len(town.templates()) == 1


async def test_requests_of_a_workload_that_is_gone_are_removed_at_once_and_of_one_not_shown_after_a_while() -> None:
    town = await requested()
    town.copies[WORKLOAD].follow([])
    await town.gate.tick(town.client.now)
    assert town.requests(), "watches of two kinds are never quite in step"
    town.client.now += timedelta(seconds=30)
    await town.gate.tick(town.client.now)
    assert (town.requests(), town.templates()) == ([], [])
    town = await requested()
    town.client.remove(WORKLOAD, "ns", town.workload("gang")["metadata"]["name"])
    town.follow()
    await town.gate.tick(town.client.now)
    assert (town.requests(), town.templates()) == ([], [])


@pytest.mark.parametrize("resource", [POD_TEMPLATE, PROVISIONING_REQUEST])
async def test_objects_of_others_are_not_touched(resource: Resource) -> None:
    town = await lacking()
    gang = town.workload("gang")["metadata"]["name"]
    name = f"{gang}-{FIRST}" if resource is PROVISIONING_REQUEST else f"ppt-{gang}-{FIRST}-main"
    theirs = town.add(resource, name, namespace="ns")
    await town.passes(2)
    [message] = [message for _, reason, message in town.told.events if reason == "NodesNotAsked"]
    assert f"ns/{name} is not managed by this scaler; rename or delete it" in message
    assert message in town.says("gang")
    assert town.client.find(resource, "ns", name) == theirs


async def test_the_api_is_left_alone_after_a_refusal() -> None:
    """5, 10, 20, 40, 80, 160 and then 300 s between tries: at 0, 5, 15, 35, 75, 155, 315, 615 and 915 s."""
    town = await lacking()
    tries = 0
    create = town.api.create

    async def refuse(path: str, body: Json) -> bytes:
        nonlocal tries
        tries += 1
        raise KubeError(f"create {path}: 403 Forbidden", status=403)

    town.api.create = refuse  # type: ignore[method-assign,assignment]
    for _ in range(20 * 12):
        await town.gate.tick(town.client.now)
        town.follow()
        town.client.now += timedelta(seconds=5)
    assert tries == 9
    assert "403 Forbidden" in town.says("gang")
    town.api.create = create  # type: ignore[method-assign]
    town.client.now += timedelta(minutes=5)
    for _ in range(2):
        await town.gate.tick(town.client.now)
    assert town.requests("gang") == ["1: New"]


async def test_while_requests_are_not_known_none_is_made_and_a_gang_that_fits_starts() -> None:
    town = await lacking()
    town.request_copy.trouble = "the API server serves no ProvisioningRequests"
    await town.passes(1)
    assert "the API server serves no ProvisioningRequests" in town.says("gang")
    assert creations(town) == []
    town.add_node("b", 8)
    await town.passes(1)
    assert town.is_running("gang")
