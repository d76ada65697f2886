"""Kueue's own check for ProvisioningRequests does what a running one was seen to do, entry by entry, name by name."""

from typing import Any, cast

import pytest
from sandbox.kueue_replay import FOLDER, Recording, Replay
from scaler_sandbox.actions import Delete
from scaler_sandbox.client import Client
from scaler_sandbox.kinds import PROVISIONING_REQUEST_CONFIG, Json
from sim.kueue_provisioning_check import ProvisioningCheck

from scaler.kube.objects.resources import ADMISSION_CHECK, POD_TEMPLATE, PROVISIONING_REQUEST, WORKLOAD

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no recordings: set SCALER_SHARED_DATA")

RECORDINGS = {
    "provisioned": 12.0,
    "failed-until-rejected": 18.0,
    "failed-competitor-takes-quota": 9.0,
    "booking-expired-before-admission": 9.0,
    "capacity-revoked-before-admission": 5.0,
    "capacity-revoked-after-admission": 8.0,
    "deactivate-cleanup": 11.0,
    "not-needed": 5.0,
}
"""By name, for how many seconds each is played."""


class ProvisioningReplay(Replay):
    """Beside Kueue's scheduler, its provisioning controller. What the autoscaler said is said at the same times."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._controllers = (*self._controllers, ProvisioningCheck(cast(Client, self.client)))  # type: ignore[assignment]
        for resource in (PROVISIONING_REQUEST_CONFIG, ADMISSION_CHECK):
            for body in recording.first(resource.kind):
                self.client.add(resource, {"metadata": {"name": body["metadata"]["name"]}, "spec": body["spec"]})
        active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
        for check in self.client.all(ADMISSION_CHECK):
            if not check["spec"]["controllerName"].startswith("kueue.x-k8s.io/"):
                name = check["metadata"]["name"]
                self.client.change(ADMISSION_CHECK, "", name, {"status": {"conditions": [active]}}, "status")

    def _act(self, verb: str, namespace: str, name: str = "", value: Any = None, *_: Any) -> None:
        match verb:
            case "PATCH ProvisioningRequest":
                self._answer(namespace, name, {(kind, status) for kind, status, _ in value})
            case "delete PR":
                self.client.remove(PROVISIONING_REQUEST, namespace, name)
            case "config param changed":
                latest = self._recording.all(PROVISIONING_REQUEST_CONFIG.kind)[-1]
                self.client.change(
                    PROVISIONING_REQUEST_CONFIG, "", latest["metadata"]["name"], {"spec": latest["spec"]}
                )
            case _:
                super()._act(verb, namespace, name, value)

    def _answer(self, namespace: str, name: str, answer: set[tuple[str, str]]) -> None:
        """The status as it was recorded right after the autoscaler had said these."""
        for body in self._recording.all(PROVISIONING_REQUEST.kind):
            said = {(each["type"], each["status"]) for each in (body.get("status") or {}).get("conditions") or ()}
            if body["metadata"]["name"] == name and answer <= said:
                self.client.change(PROVISIONING_REQUEST, namespace, name, {"status": body["status"]}, "status")
                return
        raise AssertionError(f"{name}: nobody has said {answer}")

    def _note(self, at: float) -> None:
        super()._note(at)
        there = {each["metadata"]["uid"] for each in self.client.all(PROVISIONING_REQUEST)} | set(
            self.client.uids.values()
        )
        for template in self.client.all(POD_TEMPLATE):
            if not {each["uid"] for each in template["metadata"]["ownerReferences"]} & there:
                self.client._do(Delete(resource=POD_TEMPLATE, observed=template))


def entries(versions: list[Json]) -> list[tuple[Any, ...]]:
    """What the check's entry said, one after the other."""
    found: list[tuple[Any, ...]] = []
    for body in versions:
        for entry in (body.get("status") or {}).get("admissionChecks") or ():
            fields = ("state", "message", "retryCount", "requeueAfterSeconds", "podSetUpdates")
            told = tuple(entry.get(field) for field in fields)
            if entry["name"].endswith("-pr") and told not in found[-1:]:
                found.append(told)
    return found


def made(bodies: list[Json]) -> list[str]:
    """Names, in the order in which objects of them were first seen; anew where the uid is another one."""
    seen = {each["metadata"]["uid"]: each["metadata"]["name"] for each in bodies}
    return list(seen.values())


@pytest.mark.parametrize("name", RECORDINGS)
async def test_entries_and_requests_are_those_of_the_recording(name: str) -> None:
    recording = Recording(f"kueue-provreq-{name}")
    replay = ProvisioningReplay(recording)
    await replay.run(until=RECORDINGS[name])
    seen, played = recording.workloads(), replay.workloads()
    assert {each: entries(versions) for each, versions in played.items()} == {
        each: entries(versions) for each, versions in seen.items()
    }
    for kind in (PROVISIONING_REQUEST.kind, POD_TEMPLATE.kind):
        assert made([each for each in replay.client.history if each["kind"] == kind]) == made(recording.all(kind))


async def test_the_objects_are_those_of_the_recording() -> None:
    """But for what the API server adds."""
    recording = Recording("kueue-provreq-provisioned")
    replay = ProvisioningReplay(recording)
    await replay.run(until=3.0)
    [request], [template] = replay.client.all(PROVISIONING_REQUEST), replay.client.all(POD_TEMPLATE)
    seen = recording.all(PROVISIONING_REQUEST.kind)[0]
    assert request["spec"] == seen["spec"]
    assert request["metadata"]["labels"] == seen["metadata"]["labels"]
    assert [each["kind"] for each in request["metadata"]["ownerReferences"]] == ["Workload"]
    recorded = recording.all(POD_TEMPLATE.kind)[-1]["metadata"]
    assert template["metadata"]["labels"] == recorded["labels"]
    assert [each["kind"] for each in template["metadata"]["ownerReferences"]] == ["ProvisioningRequest"]


async def test_a_request_that_names_a_workload_as_owner_and_is_not_its_own_is_deleted() -> None:
    """Why ours are owned by their PodTemplates."""
    replay = ProvisioningReplay(Recording("kueue-provreq-provisioned"))
    await replay.run(until=3.0)
    [workload] = replay.client.all(WORKLOAD)
    metadata = workload["metadata"]
    owner = {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "name": metadata["name"], "uid": metadata["uid"]}
    spec = {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io", "podSets": []}
    for name, owned in (("owned", {"ownerReferences": [owner]}), ("free", {})):
        body = {"metadata": {"name": name, "namespace": metadata["namespace"], **owned}, "spec": spec}
        replay.client.add(PROVISIONING_REQUEST, body)
    await replay.client.settle(*replay._controllers)
    left = {each["metadata"]["name"] for each in replay.client.all(PROVISIONING_REQUEST)}
    assert ("free" in left, "owned" in left) == (True, False)
