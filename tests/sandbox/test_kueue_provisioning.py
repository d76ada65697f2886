"""Kueue's own check for ProvisioningRequests in the embedded Kueue, in virtual time, as a running one was seen."""

from datetime import timedelta
from typing import Any, cast

import pytest
from scaler_sandbox.actions import Delete
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has, make, with_conditions
from scaler_sandbox.kinds import (
    ADMISSION_CHECK,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    PROVISIONING_REQUEST_CONFIG,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Json,
)
from sim.kueue_cluster import KueueCluster, cluster_queue, job
from sim.kueue_provisioning_check import ProvisioningCheck

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
PARAMETERS = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "config"}


class ProvisioningWorld(KueueCluster):
    """A queue with Kueue's check `pr`, and a `hold` beside it that somebody else looks after."""

    def __init__(self, **config: Any) -> None:
        super().__init__(cluster_queue(checks=("hold", "pr")))
        spec = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": PARAMETERS}
        self.client.add(ADMISSION_CHECK, {"metadata": {"name": "pr"}, "spec": spec})
        self.add_check("hold")
        retries = {"backoffLimitCount": 2, "backoffBaseSeconds": 4, "backoffMaxSeconds": 1800}
        given = {"provisioningClassName": CLASS, "retryStrategy": retries, **config}
        self.client.add(PROVISIONING_REQUEST_CONFIG, {"metadata": {"name": "config"}, "spec": given})
        self.client.change(RESOURCE_FLAVOR, "", "flavor", {"spec": {"nodeLabels": {"gpu": "yes"}}})

    def start_controllers(self) -> None:
        super().start_controllers()
        self.controllers = (*self.controllers, ProvisioningCheck(cast(Client, self.client)))  # type: ignore[assignment]

    async def settle(self, seconds: float = 0.0) -> None:
        await self.client.settle(*self.controllers, after=timedelta(seconds=seconds))
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        for template in self.client.all(POD_TEMPLATE):
            owners = template["metadata"].get("ownerReferences") or ()
            there = {each["metadata"]["uid"] for each in (*self.requests(), *self.client.all(WORKLOAD))}
            if not {each["uid"] for each in owners} & there:
                self.client._do(Delete(resource=POD_TEMPLATE, observed=template))

    def requests(self) -> list[Json]:
        return self.client.all(PROVISIONING_REQUEST)

    def attempts(self) -> list[str]:
        return [each["metadata"]["name"].rpartition("-")[2] for each in self.requests()]

    def entry(self, name: str = "pr", owner: str = "gang") -> Json:
        return next(dict(each) for each in self.workload(owner)["status"]["admissionChecks"] if each["name"] == name)

    async def say(self, kind: str, message: str = "", status: str = "True", **more: Any) -> None:
        """The autoscaler says so of the newest request."""
        request = self.requests()[-1]
        told = make(kind, status, kind, message, now=self.client.now)
        conditions = with_conditions((request.get("status") or {}).get("conditions"), told)
        name = request["metadata"]["name"]
        self.client.change(PROVISIONING_REQUEST, "ns", name, {"status": {"conditions": conditions, **more}}, "status")
        await self.settle()

    async def release(self) -> None:
        """The other check is Ready."""
        entries = [
            {**each, "state": "Ready"} if each["name"] == "hold" else each
            for each in self.workload("gang")["status"]["admissionChecks"]
        ]
        name = self.workload("gang")["metadata"]["name"]
        self.client.change(WORKLOAD, "ns", name, {"status": {"admissionChecks": entries}}, "status")
        await self.settle()


@pytest.fixture
async def world() -> ProvisioningWorld:
    """The gang has its quota, and Kueue has asked for nodes."""
    made = ProvisioningWorld()
    await made.submit(job("gang"))
    return made


async def test_its_request_is_made_while_another_check_is_pending(world: ProvisioningWorld) -> None:
    """K7b. The PodTemplate is made first, owned by the Workload, and then by the request."""
    [request] = world.requests()
    workload = world.workload("gang")["metadata"]
    assert request["metadata"]["name"] == f"{workload['name']}-pr-1"
    assert [each["kind"] for each in request["metadata"]["ownerReferences"]] == ["Workload"]
    assert request["metadata"]["labels"] == {"kueue.x-k8s.io/managed": "true"}
    [template] = world.client.all(POD_TEMPLATE)
    assert template["metadata"]["name"] == f"ppt-{workload['name']}-pr-1-main"
    assert [each["kind"] for each in template["metadata"]["ownerReferences"]] == ["ProvisioningRequest"]
    assert template["template"]["spec"]["nodeSelector"] == {"gpu": "yes"}
    assert request["spec"]["podSets"] == [{"podTemplateRef": {"name": template["metadata"]["name"]}, "count": 2}]
    assert world.entry("hold")["state"] == "Pending"


ANSWERS: dict[str, tuple[list[tuple[str, str, str]], str, str]] = {
    # conditions of the request; state and message of the entry
    "nothing yet": ([], "Pending", ""),
    "accepted, with an ETA": (
        [("Accepted", "True", "ok"), ("Provisioned", "False", "ETA: 5m")],
        "Pending",
        "ETA: 5m",
    ),
    "provisioned": ([("Accepted", "True", "ok"), ("Provisioned", "True", "found")], "Ready", "found"),
}


@pytest.mark.parametrize(("conditions", "state", "message"), ANSWERS.values(), ids=ANSWERS)
async def test_the_entry_says_how_the_request_stands(
    world: ProvisioningWorld, conditions: list[tuple[str, str, str]], state: str, message: str
) -> None:
    for kind, status, told in conditions:
        await world.say(kind, told, status)
    assert (world.entry()["state"], world.entry()["message"]) == (state, message)


async def test_what_is_provisioned_is_given_to_the_pods_once_all_checks_are_ready(world: ProvisioningWorld) -> None:
    await world.say("Provisioned", "found")
    assert not world.is_admitted("gang")
    await world.release()
    assert world.is_admitted("gang")
    template = world.job("gang")["spec"]["template"]
    request = world.requests()[0]["metadata"]["name"]
    assert template["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == request


async def test_a_failed_request_takes_the_quota_after_its_delay_and_the_next_attempt_follows(
    world: ProvisioningWorld,
) -> None:
    """4 s from when the entry became Pending; then 8; the third failure deactivates the Workload."""
    await world.settle(1.0)
    await world.say("Failed", "no capacity")
    assert (world.entry()["state"], world.entry()["message"]) == ("Retry", "Retrying after failure: no capacity")
    assert has(world.workload("gang"), "QuotaReserved"), "quota is kept until the delay is over"
    assert not has(world.workload("gang"), "Evicted")
    await world.settle(2.0)
    assert not has(world.workload("gang"), "Evicted")
    await world.settle(1.0)
    assert world.entry()["retryCount"] == 1
    assert world.entry("hold").get("retryCount") is None
    assert world.attempts() == ["2"], "the first one was deleted with the eviction"
    await world.say("Failed", "no capacity")
    await world.settle(8.0)
    assert world.attempts() == ["3"]
    await world.say("Failed", "no capacity")
    await world.settle()
    assert world.workload("gang")["spec"]["active"] is False
    assert world.requests() == []
    assert world.client.all(POD_TEMPLATE) == []


async def test_a_booking_that_expires_before_admission_is_retried_and_afterwards_is_nothing(
    world: ProvisioningWorld,
) -> None:
    await world.say("Provisioned", "found")
    await world.say("BookingExpired", "late")
    assert world.entry()["message"] == "Retrying after booking expired: late"
    await world.settle(5.0)
    assert world.attempts() == ["2"]
    await world.say("Provisioned", "found")
    await world.release()
    await world.say("BookingExpired", "late")
    assert world.is_admitted("gang")
    assert world.entry()["state"] == "Ready"


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_revoked_capacity_deactivates_the_workload(world: ProvisioningWorld, is_admitted: bool) -> None:
    await world.say("Provisioned", "found")
    if is_admitted:
        await world.release()
    await world.say("CapacityRevoked", "gone")
    assert world.workload("gang")["spec"]["active"] is False
    assert "Evicted=True/DeactivatedDueToAdmissionCheck" in world.state("gang")


async def test_what_is_not_needed_is_ready_without_a_request() -> None:
    world = ProvisioningWorld(managedResources=["example.com/other"])
    await world.submit(job("gang"))
    assert world.entry()["message"] == "the provisioning request is not needed"
    assert world.requests() == []


async def test_another_config_makes_the_request_anew_under_the_same_name(world: ProvisioningWorld) -> None:
    before = world.requests()[0]["metadata"]
    change = {"spec": {"parameters": {"zone": "b"}}}
    world.client.change(PROVISIONING_REQUEST_CONFIG, "", "config", change)
    await world.settle()
    [after] = world.requests()
    assert (after["metadata"]["name"], after["spec"]["parameters"]) == (before["name"], {"zone": "b"})
    assert after["metadata"]["uid"] != before["uid"]


async def test_without_its_config_the_check_is_inactive_and_so_is_its_queue() -> None:
    world = ProvisioningWorld()
    world.client.remove(PROVISIONING_REQUEST_CONFIG, "", "config")
    await world.submit(job("gang"))
    check = world.client.find(ADMISSION_CHECK, "", "pr")
    assert check is not None
    assert has(check, "Active", "False", "BadParametersRef")
    assert not has(world.workload("gang"), "QuotaReserved")


async def test_requests_that_name_a_workload_as_owner_and_are_nobodys_are_deleted(world: ProvisioningWorld) -> None:
    """Why ours are owned by their PodTemplates."""
    workload = world.workload("gang")
    owner = {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "name": workload["metadata"]["name"]}
    owned = {"ownerReferences": [{**owner, "uid": workload["metadata"]["uid"]}]}
    spec = {"provisioningClassName": CLASS, "podSets": []}
    for name, metadata in (("owned", owned), ("free", {})):
        body = {"metadata": {"name": name, "namespace": "ns", **metadata}, "spec": spec}
        world.client.add(PROVISIONING_REQUEST, body)
    await world.settle()
    assert [each["metadata"]["name"] for each in world.requests() if each["spec"]["podSets"] == []] == ["free"]
