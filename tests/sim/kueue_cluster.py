"""Kueue and the controllers that it suspends, alone: builders of queues and jobs, and short verbs.

`KueueCluster` has one queue; in `Teams` each team has a ClusterQueue and a LocalQueue of its name, in one cohort unless
said otherwise.
"""

from datetime import timedelta
from typing import Any, cast

from scaler_sandbox.client import Client
from scaler_sandbox.conditions import message_of
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import Kueue, KueueConfig
from scaler_sandbox.operators import JobController, RayClusterOperator
from sim.client import SimClient, state_of

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)

GPU = "nvidia.com/gpu"


def cluster_queue(name: str = "cq", *, gpus: int | str = 2, checks: tuple[str, ...] = (), **spec: Any) -> Json:
    resources = [{"name": GPU, "nominalQuota": gpus}]
    return {
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": [{"name": "flavor", "resources": resources}]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": check} for check in checks]},
            **spec,
        },
    }


def template(gpus: int = 1, **metadata: Json) -> Json:
    container = {"name": "main", "image": "train:1", "resources": {"limits": {GPU: gpus}, "requests": {"cpu": "500m"}}}
    return {"metadata": metadata, "spec": {"containers": [container], "restartPolicy": "Never"}}


def job(
    name: str,
    *,
    pods: int = 2,
    queue: str = "lq",
    labels: Json | None = None,
    annotations: Json | None = None,
    **spec: Any,
) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": {"kueue.x-k8s.io/queue-name": queue} | (labels or {}),
            "annotations": annotations or {},
        },
        "spec": {"parallelism": pods, "completions": pods, "template": template(), **spec},
    }


def ray_cluster(name: str, *, workers: int = 1, queue: str = "lq") -> Json:
    group = {"groupName": "workers", "replicas": workers, "template": template()}
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [group]},
    }


class KueueCluster:
    """One namespace `ns` with LocalQueue `lq` into ClusterQueue `cq`."""

    def __init__(self, queue: Json | None = None, *, config: KueueConfig | None = None) -> None:
        self.client = SimClient()
        self._config = config
        self.start_controllers()
        self.client.add(NAMESPACE, {"metadata": {"name": "ns", "labels": {"kubernetes.io/metadata.name": "ns"}}})
        self.client.add(RESOURCE_FLAVOR, {"metadata": {"name": "flavor"}, "spec": {}})
        self.client.add(CLUSTER_QUEUE, queue or cluster_queue())
        self.client.add(LOCAL_QUEUE, {"metadata": {"name": "lq", "namespace": "ns"}, "spec": {"clusterQueue": "cq"}})

    def start_controllers(self) -> None:
        """All controllers anew, with nothing in memory."""
        client = cast(Client, self.client)
        self.controllers = (Kueue(client, self._config), JobController(client), RayClusterOperator(client))

    async def settle(self, seconds: float = 0.0) -> None:
        await self.client.settle(*self.controllers, after=timedelta(seconds=seconds))

    async def run(self, seconds: float = 0.0) -> None:
        """Settles, and lets pods start and stop at once."""
        await self.settle(seconds)
        self.client.run_pods()
        await self.settle()

    async def submit(self, body: Json, resource: Resource = JOB) -> Json:
        added = self.client.add(resource, body)
        await self.settle()
        return added

    async def submit_and_run(self, body: Json, resource: Resource = JOB) -> Json:
        added = await self.submit(body, resource)
        await self.run()
        return added

    async def set_active(self, name: str, active: bool) -> None:
        self.client.change(WORKLOAD, "ns", self.workload(name)["metadata"]["name"], {"spec": {"active": active}})
        await self.settle()

    def workload(self, owner: str) -> Json:
        """The Workload of the job with that name."""
        for each in self.client.all(WORKLOAD):
            if each["metadata"]["ownerReferences"][0]["name"] == owner:
                return each
        raise AssertionError(f"{owner} has no Workload")

    def state(self, owner: str) -> tuple[str, ...]:
        return state_of(self.workload(owner))

    def is_admitted(self, owner: str) -> bool:
        return "Admitted=True/Admitted" in self.state(owner)

    def why_waiting(self, owner: str) -> str:
        return message_of(self.workload(owner), "QuotaReserved")

    def job(self, name: str, resource: Resource = JOB) -> Json:
        found = self.client.find(resource, "ns", name)
        assert found is not None
        return found

    def check(self, owner: str) -> Json:
        """The Workload's only admission check."""
        (entry,) = self.workload(owner)["status"]["admissionChecks"]
        return dict(entry)

    async def answer(self, owner: str, state: str, message: str = "", **fields: Any) -> None:
        """What the check's controller writes."""
        entry = self.check(owner) | {"state": state, "message": message} | fields
        name = self.workload(owner)["metadata"]["name"]
        self.client.change(WORKLOAD, "ns", name, {"status": {"admissionChecks": [entry]}}, "status")
        await self.settle()

    def add_check(self, name: str = "gate", *, active: bool = True) -> None:
        conditions = [{"type": "Active", "status": "True", "reason": "Active", "message": ""}] if active else []
        body = {"metadata": {"name": name}, "spec": {"controllerName": "x/y"}, "status": {"conditions": conditions}}
        self.client.add(ADMISSION_CHECK, body)


# ---------------------------------------------------------------------------------------------- teams that share quota


def flavor_quota(name: str, gpus: int, **limits: int) -> Json:
    return {"name": name, "resources": [{"name": GPU, "nominalQuota": gpus, **limits}]}


def team(name: str, gpus: int = 4, *, cohort: str = "all", flavors: list[Json] | None = None, **spec: Any) -> Json:
    """Its ClusterQueue. `flavors` come instead of one with so many GPUs."""
    offered = flavors or [flavor_quota("flavor", gpus)]
    groups = [{"coveredResources": [GPU], "flavors": offered}]
    body = {"cohortName": cohort, "namespaceSelector": {}, "resourceGroups": groups, **spec}
    return {"metadata": {"name": name}, "spec": body}


class Teams(KueueCluster):
    """Pods run as soon as their job is started; they end when `stop_pods` says so."""

    def __init__(self, *teams: Json) -> None:
        super().__init__()
        for body in teams:
            name = body["metadata"]["name"]
            self.client.add(CLUSTER_QUEUE, body)
            self.client.add(
                LOCAL_QUEUE, {"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterQueue": name}}
            )

    def add_flavor(self, name: str, **spec: Any) -> None:
        self.client.add(RESOURCE_FLAVOR, {"metadata": {"name": name}, "spec": spec})

    async def start(self, name: str, team: str, gpus: int) -> None:
        """Submit a job of one-GPU pods, a second after whatever was before."""
        self.client.now += timedelta(seconds=1)
        await self.submit_and_run(job(name, pods=gpus, queue=team))

    @property
    def admitted(self) -> set[str]:
        return {name for name in self.names if self.is_admitted(name)}

    @property
    def names(self) -> list[str]:
        return [each["metadata"]["ownerReferences"][0]["name"] for each in self.client.all(WORKLOAD)]

    def flavors_of(self, name: str) -> list[str]:
        assignments = self.workload(name)["status"]["admission"]["podSetAssignments"]
        return [each["flavors"][GPU] for each in assignments]

    def queue(self, name: str) -> Json:
        found = self.client.find(CLUSTER_QUEUE, "", name)
        assert found is not None
        return dict(found["status"])
