"""A recorded experiment with a real Kueue, done again with the embedded one: same objects, same actions, virtual time.

Names and uids are those of the recording, so that messages can be compared to the letter. Pods run as soon as they are
made and end when the recording says; how long that takes is not Kueue's.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

from recordings import FOLDER
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import condition
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS, Json
from scaler_sandbox.kueue import Kueue
from scaler_sandbox.operators import JobController
from sim.client import CONDITIONS, START, SimClient

from scaler.kube.objects.resources import CLUSTER_QUEUE, JOB, LOCAL_QUEUE, NAMESPACE, RESOURCE_FLAVOR, WORKLOAD

STEP_SECONDS = 0.1

State = tuple[str, ...]


def states(versions: Sequence[Json]) -> list[State]:
    """The different states of a Workload: its conditions, and in words why it waits or had to go."""
    found: list[State] = []
    for body in versions:
        state = tuple(_told(body, kind) for kind in (*CONDITIONS, "Preempted") if condition(body, kind))
        state = ("active" if body["spec"].get("active", True) else "inactive", *state)
        if not found or found[-1] != state:
            found.append(state)
    return found


def _told(body: Json, kind: str) -> str:
    found = condition(body, kind) or {}
    return f"{kind}={found['status']}/{found['reason']}: {found['message']}"


class Recording:
    """One file."""

    def __init__(self, name: str) -> None:
        loaded = json.loads((FOLDER / f"{name}.json").read_text())
        self.actions: list[Json] = loaded["actions"]
        self._static: list[Json] = loaded["static"]
        self._events: list[Json] = loaded["events"]

    def first(self, kind: str) -> Iterator[Json]:
        """The objects of that kind, as they were first seen."""
        seen = set()
        for body in (*self._static, *(each["object"] for each in self._events)):
            key = body["metadata"].get("namespace"), body["metadata"]["name"]
            if body["kind"] == kind and key not in seen:
                seen.add(key)
                yield body

    def all(self, kind: str) -> list[Json]:
        """All versions of the objects of that kind that were there, in order."""
        return [each["object"] for each in self._events if each["object"]["kind"] == kind and each["type"] != "DELETED"]

    def workloads(self) -> dict[str, list[Json]]:
        """All versions of every Workload by name."""
        versions: dict[str, list[Json]] = {}
        for event in self._events:
            if event["object"]["kind"] == "Workload" and event["type"] != "DELETED":
                versions.setdefault(event["object"]["metadata"]["name"], []).append(event["object"])
        return versions


class Replay:
    """The experiment, done again. `admitted_at`: when each Workload was admitted, and when no longer, in seconds."""

    def __init__(self, recording: Recording) -> None:
        self.client = SimClient()
        self.admitted_at: dict[str, list[float]] = {}
        self._recording = recording
        self._jobs = {
            (body["metadata"]["namespace"], body["metadata"]["name"]): body for body in recording.first("Job")
        }
        client = cast(Client, self.client)
        self._controllers = (Kueue(client), JobController(client))
        self.client.uids = {body["metadata"]["name"]: body["metadata"]["uid"] for body in recording.first("Workload")}
        self._furnish()

    def _furnish(self) -> None:
        recording = self._recording
        namespaces = {namespace for namespace, _ in self._jobs}
        for resource, bodies in {
            NAMESPACE: [{"metadata": {"name": name}} for name in namespaces],
            RESOURCE_FLAVOR: [{"metadata": {"name": name}, "spec": {}} for name in self._flavors()],
            CLUSTER_QUEUE: recording.first("ClusterQueue"),
            LOCAL_QUEUE: recording.first("LocalQueue"),
            WORKLOAD_PRIORITY_CLASS: [{"metadata": {"name": "lab-high"}, "value": 1000}],
        }.items():
            for body in bodies:
                self.client.add(resource, {"metadata": body["metadata"], **_only(body, "spec", "value")})

    def _flavors(self) -> set[str]:
        groups = [group for body in self._recording.first("ClusterQueue") for group in body["spec"]["resourceGroups"]]
        return {flavor["name"] for group in groups for flavor in group["flavors"]}

    async def run(self, *, until: float) -> None:
        actions, at = list(self._recording.actions), 0.0
        while at <= until:
            self.client.now = START + timedelta(seconds=at)
            while actions and actions[0]["t_offset_s"] <= at:
                self._act(*actions.pop(0)["action"])
            await self.client.settle(*self._controllers)
            self.client.run_pods()
            await self.client.settle(*self._controllers)
            self._note(at)
            at = round(at + STEP_SECONDS, 2)

    def _act(self, verb: str, namespace: str, name: str = "", value: Any = None) -> None:
        match verb.split():
            case ["create", "Job"]:
                self._create(self._jobs[(namespace, name)])
            case ["PATCH", "spec.active"]:
                self.client.change(WORKLOAD, namespace, name, {"spec": {"active": value}})
            case ["delete", "job", job]:
                self.client.remove(JOB, namespace, job)
                (name,) = [each for each in self.client.uids if each.startswith(f"job-{job}-")]
                self.client.remove(WORKLOAD, namespace, name)

    def _create(self, body: Json) -> None:
        metadata = {key: body["metadata"].get(key) for key in ("namespace", "name", "uid", "labels", "annotations")}
        self.client.add(JOB, {"metadata": metadata, "spec": {**body["spec"], "suspend": False}})

    def _note(self, at: float) -> None:
        for body in self.client.all(WORKLOAD):
            admitted = condition(body, "Admitted")
            moments = self.admitted_at.setdefault(body["metadata"]["name"], [])
            is_admitted, was_admitted = admitted is not None and admitted["status"] == "True", len(moments) % 2 == 1
            if is_admitted != was_admitted:
                moments.append(at)

    def workloads(self) -> dict[str, list[Json]]:
        """All versions of every Workload by name."""
        versions: dict[str, list[Json]] = {}
        for body in self.client.history:
            if body["kind"] == WORKLOAD.kind:
                versions.setdefault(body["metadata"]["name"], []).append(body)
        return versions


def _only(body: Json, *keys: str) -> Json:
    return {key: body[key] for key in keys if key in body}
