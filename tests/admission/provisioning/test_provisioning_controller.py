"""What the executor of provisioning steps reads before it writes, what it leaves alone, and what follows a refusal."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from scaler_sandbox.kinds import Json
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.admission.provisioning.requests import WORKLOAD_ANNOTATION
from scaler.errors import KubeError
from scaler.kube.objects.resources import POD_TEMPLATE, PROVISIONING_REQUEST, WORKLOAD, Resource

FIRST = "gate-1"


async def lacking() -> ProvisioningCluster:
    """A gang that lacks a node, before the first tick that has to do with it."""
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    await cluster.passes(1)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1, ticks=False)
    return cluster


async def requested() -> ProvisioningCluster:
    cluster = await lacking()
    await cluster.passes(1)
    assert cluster.requests("gang") == ["1: New"]
    return cluster


def creations(cluster: ProvisioningCluster) -> list[str]:
    return [each for each in cluster.api.writes if each.startswith("create")]


async def test_a_watch_that_lags_does_not_request_twice() -> None:
    cluster = await lacking()
    for _ in range(3):  # without following what was written
        await cluster.admission.tick(cluster.client.now)
    assert [each.split("/")[0] for each in creations(cluster)] == ["create podtemplates", "create provisioningrequests"]
    assert cluster.report.plan.provisioning_steps, "the plan still wants it"


def evicted(cluster: ProvisioningCluster, name: str) -> None:
    entry = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": ""}
    conditions = [*cluster.workload("gang")["status"]["conditions"], entry]
    cluster.change(WORKLOAD, name, {"status": {"conditions": conditions}}, "status")


def set_state(cluster: ProvisioningCluster, name: str, state: str) -> None:
    entries = [{**each, "state": state} for each in cluster.workload("gang")["status"]["admissionChecks"]]
    cluster.change(WORKLOAD, name, {"status": {"admissionChecks": entries}}, "status")


def reserved_anew(cluster: ProvisioningCluster, name: str) -> None:
    later = [
        {**each, "lastTransitionTime": "2026-11-20T12:30:00Z"}
        for each in cluster.workload("gang")["status"]["conditions"]
    ]
    cluster.change(WORKLOAD, name, {"status": {"conditions": later}}, "status")


MEANWHILE: dict[str, Callable[[ProvisioningCluster, str], None]] = {
    "evicted": evicted,
    "deactivated": lambda cluster, name: cluster.change(WORKLOAD, name, {"spec": {"active": False}}),
    "Ready": lambda cluster, name: set_state(cluster, name, "Ready"),
    "Retry": lambda cluster, name: set_state(cluster, name, "Retry"),
    "without an entry": lambda cluster, name: cluster.change(
        WORKLOAD, name, {"status": {"admissionChecks": None}}, "status"
    ),
    "reserved anew": reserved_anew,
    "deleted": lambda cluster, name: cluster.client.remove(WORKLOAD, "ns", name),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
async def test_nothing_is_requested_for_a_gang_that_has_changed_and_the_watch_lags(
    meanwhile: Callable[[ProvisioningCluster, str], None],
) -> None:
    cluster = await lacking()
    meanwhile(cluster, cluster.workload("gang")["metadata"]["name"])
    await cluster.admission.tick(cluster.client.now)
    assert creations(cluster) == []


async def test_the_successor_of_a_request_that_was_to_be_deleted_is_spared() -> None:
    """The watch still shows the request of before; another one has its name, and uses its PodTemplate."""
    cluster = await requested()
    name = cluster.newest("gang")
    found = cluster.client.find(PROVISIONING_REQUEST, "ns", name)
    assert found is not None
    cluster.client.remove(PROVISIONING_REQUEST, "ns", name)
    metadata = {key: value for key, value in found["metadata"].items() if key not in ("uid", "resourceVersion")}
    successor = cluster.client.add(PROVISIONING_REQUEST, {"metadata": metadata, "spec": found["spec"]})
    evicted(cluster, cluster.workload("gang")["metadata"]["name"])
    cluster.copies[WORKLOAD].follow(cluster.client.all(WORKLOAD))
    await cluster.admission.tick(cluster.client.now)
    assert cluster.client.find(PROVISIONING_REQUEST, "ns", name) == successor
    assert len(cluster.templates()) == 1


async def test_requests_of_a_workload_that_is_gone_are_removed_at_once_and_of_an_unknown_one_after_a_while() -> None:
    cluster = await requested()
    cluster.copies[WORKLOAD].follow([])
    await cluster.admission.tick(cluster.client.now)
    cluster.client.now += timedelta(seconds=31)
    await cluster.admission.tick(cluster.client.now)
    assert cluster.requests(), "watches of two kinds are never quite in step: the API is asked"
    anonymous = {"metadata": {"annotations": {WORKLOAD_ANNOTATION: None}}}
    cluster.change(PROVISIONING_REQUEST, cluster.newest("gang"), anonymous)
    cluster.follow()
    cluster.copies[WORKLOAD].follow([])
    await cluster.admission.tick(cluster.client.now)
    cluster.client.now += timedelta(seconds=29)
    await cluster.admission.tick(cluster.client.now)
    assert cluster.requests()
    cluster.client.now += timedelta(seconds=1)
    await cluster.admission.tick(cluster.client.now)
    assert (cluster.requests(), cluster.templates()) == ([], [])
    cluster = await requested()
    cluster.client.remove(WORKLOAD, "ns", cluster.workload("gang")["metadata"]["name"])
    cluster.follow()
    await cluster.admission.tick(cluster.client.now)
    assert (cluster.requests(), cluster.templates()) == ([], [])


@pytest.mark.parametrize("resource", [POD_TEMPLATE, PROVISIONING_REQUEST])
async def test_objects_of_others_are_not_touched(resource: Resource) -> None:
    cluster = await lacking()
    gang = cluster.workload("gang")["metadata"]["name"]
    name = f"{gang}-{FIRST}" if resource is PROVISIONING_REQUEST else f"ppt-{gang}-{FIRST}-main"
    theirs = cluster.add(resource, name, namespace="ns")
    await cluster.passes(2)
    [message] = [message for _, reason, message in cluster.recorded.events if reason == "NodesNotAsked"]
    assert f"ns/{name} is not managed by this scaler; rename or delete it" in message
    assert message in cluster.says("gang")
    assert cluster.client.find(resource, "ns", name) == theirs


async def test_the_api_is_left_alone_after_a_refusal() -> None:
    """5, 10, 20, 40, 80, 160 and then 300 s between tries: at 0, 5, 15, 35, 75, 155, 315, 615 and 915 s."""
    cluster = await lacking()
    tries = 0
    create = cluster.api.create

    async def refuse(path: str, body: Json) -> bytes:
        nonlocal tries
        tries += 1
        raise KubeError(f"create {path}: 403 Forbidden", status=403)

    cluster.api.create = refuse  # type: ignore[method-assign,assignment]
    for _ in range(20 * 12):
        await cluster.admission.tick(cluster.client.now)
        cluster.follow()
        cluster.client.now += timedelta(seconds=5)
    assert tries == 9
    assert "403 Forbidden" in cluster.says("gang")
    cluster.api.create = create  # type: ignore[method-assign]
    cluster.client.now += timedelta(minutes=5)
    for _ in range(2):
        await cluster.admission.tick(cluster.client.now)
    assert cluster.requests("gang") == ["1: New"]


async def test_while_requests_are_not_known_none_is_made_and_a_gang_that_fits_starts() -> None:
    cluster = await lacking()
    cluster.request_copy.trouble = "the API server serves no ProvisioningRequests"
    await cluster.passes(1)
    assert "the API server serves no ProvisioningRequests" in cluster.says("gang")
    assert creations(cluster) == []
    cluster.add_node("b", 8)
    await cluster.passes(1)
    assert cluster.is_running("gang")
