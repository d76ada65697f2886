"""Gangs with our AdmissionCheck, in virtual time: the real controller, the sandbox's Kueue and Job controller, nodes
with GPUs, and a scheduler that may put pods wherever there is room.

    cluster = SimCluster({"a": 8, "b": 8})
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(3)
    cluster.is_running("gang"), cluster.entry("gang")["message"]

Everything is in namespace `ns`, in LocalQueue `lq` of ClusterQueue `cq`, whose quota is large unless a test says so.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, cast

from builders import GPUS, no_switched_objects
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import Kueue
from scaler_sandbox.operators import JobController, RayClusterOperator
from sim.api import RequestStore, SimApi, SimEvents, SimStore
from sim.client import SimClient, state_of

from scaler.admission.checks import AdmissionChecks
from scaler.admission.controller import AdmissionCheckController, AdmissionReport
from scaler.admission.evicted_reservations import RELEASE_DELAY
from scaler.admission.planner import AdmissionPlanner, ReclaimAnswers
from scaler.admission.provisioning.controller import ProvisioningController
from scaler.admission.remote_copies import NominatedCopies
from scaler.admission.terminating_pods import TerminatingPodIndex
from scaler.admission.watch import AdmissionStores, AdmissionWatch
from scaler.admission.workload import CONTROLLER
from scaler.clock import Clock
from scaler.kube.objects.core import Pod
from scaler.kube.objects.idlegpu import ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.kueue_queues import AdmissionCheck, ResourceFlavor
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    WORKLOAD,
    Resource,
)
from scaler.kube.writes import LeaderApi
from scaler.placement.capacity import Capacity
from scaler.placement.node_watch import NodeWatch
from scaler.quota.watch import NotSynced
from scaler.targets.cluster_state import ClusterState, pod_indexes, scalable_workload_indexes, workload_indexes

GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
CHECK = "gate"
MEMORY = 512
"""Gi of every node."""


class SimClock(Clock):
    """The time of the cluster."""

    def __init__(self, client: SimClient) -> None:
        self._client = client

    def now(self) -> datetime:
        return self._client.now


_FOLLOWED: dict[Resource, type[Any]] = {
    WORKLOAD: Workload,
    POD: Pod,
    NODE: Node,
    ADMISSION_CHECK: AdmissionCheck,
    RESOURCE_FLAVOR: ResourceFlavor,
    RECLAIM_POLICY: ReclaimPolicy,
    SCALABLE_WORKLOAD: ScalableWorkload,
}


class SimCluster:
    """What there is, and what happens to it."""

    afterwards = RELEASE_DELAY
    """How long the places of a gang that had to go stay taken."""

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        policy: Json | None = None,
        quota: int = 1000,
        checks: Sequence[str] = (CHECK,),
        chance: Random | None = None,
        with_reclaim: bool = False,
        client: SimClient | None = None,
        api: type[SimApi] = SimApi,
        **queue: Any,
    ) -> None:
        """`policy` is the spec of the ReclaimPolicy that the check names; None: the check names none."""
        self.client = client or SimClient()
        self.chance = chance
        self.termination: dict[str, float] = {}
        """Seconds that pods of these jobs take to end; 1 s for all others."""
        self._told_to_end: dict[str, datetime] = {}
        client = cast(Client, self.client)
        self.controllers = (Kueue(client), JobController(client), RayClusterOperator(client))
        self.api = api(self.client, [*_FOLLOWED, JOB, POD_TEMPLATE, PROVISIONING_REQUEST])
        self.recorded = SimEvents()
        self.reports: list[AdmissionReport] = []
        self.counted: list[tuple[str, str, str]] = []
        self.reclaim = ReclaimAnswers(is_planning=with_reclaim)
        self.add(NAMESPACE, "ns", labels={"kubernetes.io/metadata.name": "ns"})
        self.add(RESOURCE_FLAVOR, "flavor", spec={})
        parameters = {"apiGroup": "idlegpu.io", "kind": "ReclaimPolicy", "name": "policy"}
        spec = {"controllerName": CONTROLLER, **({"parameters": parameters} if policy is not None else {})}
        for check in checks:
            if check.startswith(CHECK):
                self.add(ADMISSION_CHECK, check, spec=spec)
        if policy:
            self.add(RECLAIM_POLICY, "policy", spec=policy)
        self.add(CLUSTER_QUEUE, "cq", spec=self.queue_spec(quota, checks, **queue))
        self.add(LOCAL_QUEUE, "lq", namespace="ns", spec={"clusterQueue": "cq"})
        for name, gpus in nodes.items():
            self.add_node(name, gpus)
        self.restart()

    # ---------------------------------------------------------------------------------------------------- our process

    def restart(self) -> None:
        """Another process, with nothing in memory."""
        self.copies: dict[Resource, SimStore[Any]] = {
            WORKLOAD: SimStore(Workload, workload_indexes()),
            POD: SimStore(Pod, pod_indexes(GPUS)),
            SCALABLE_WORKLOAD: SimStore(ScalableWorkload, scalable_workload_indexes()),
        }
        for resource, kind in _FOLLOWED.items():
            self.copies.setdefault(resource, SimStore(kind))
        self.request_copy = RequestStore()
        self.follow()
        copies = self.copies
        cluster = ClusterState(
            scaled_objects=SimStore(ScalableWorkload),  # type: ignore[arg-type]
            scalable_workloads=copies[SCALABLE_WORKLOAD],
            workloads=copies[WORKLOAD],
            pods=copies[POD],
            gpus=GPUS,
            switched=no_switched_objects(),
        )
        nodes: Any = copies[NODE], copies[POD], copies[WORKLOAD]
        self.nodes_view = NodeWatch(*nodes, max_age=timedelta(minutes=1))
        self.blind = ""
        self.nominations = NominatedCopies()
        """For which remote copies of MultiKueue this cluster is nominated."""
        self.view = view = AdmissionWatch(
            cluster,
            AdmissionStores(
                workloads=copies[WORKLOAD],
                pods=copies[POD],
                checks=copies[ADMISSION_CHECK],
                flavors=copies[RESOURCE_FLAVOR],
                nodes=copies[NODE],
            ),
            afterwards=self.afterwards,
            clock=lambda: self.client.now,
        )
        api: Any = LeaderApi(self.api, is_leader=lambda: True, copies=copies)
        self.planner = AdmissionPlanner(
            view,
            TerminatingPodIndex(cluster, copies[WORKLOAD], copies[POD]),
            copies[RECLAIM_POLICY],
            self.request_copy,
            self._flavor,
            capacity=self._capacity,
            quota=lambda: self.controllers[0]._mirror.snapshot,
            nominations=lambda: self.nominations,
        )
        self.planner.leader.answers = self.reclaim
        self.admission = AdmissionCheckController(
            api,
            self.planner,
            AdmissionChecks(api, copies[RECLAIM_POLICY], self.recorded),
            ProvisioningController(
                api, self.request_copy, self._flavor, self.recorded, observe=lambda *news: self.counted.append(news)
            ),
            self.recorded,
            answers=self.reclaim,
            observe=self.reports.append,
            clock=SimClock(self.client),
        )
        self.request_copy.subscribe(lambda _: self.admission.wake())

    @property
    def report(self) -> AdmissionReport:
        """Of the latest tick."""
        return self.reports[-1]

    def _flavor(self, name: str) -> Any:
        return self.copies[RESOURCE_FLAVOR].get("", name)

    def _capacity(self) -> Capacity | NotSynced:
        return NotSynced(self.blind) if self.blind else self.nodes_view.capacity()

    def follow(self) -> None:
        """The copies show what is there."""
        for resource, copy in self.copies.items():
            copy.follow(self.client.all(resource))
        self.request_copy.follow(self.client.all(PROVISIONING_REQUEST))

    # -------------------------------------------------------------------------------------------------------- objects

    def add(
        self, resource: Resource, name: str, *, namespace: str = "", spec: Json | None = None, **metadata: Any
    ) -> Json:
        meta = {"name": name, **({"namespace": namespace} if namespace else {}), **metadata}
        return self.client.add(resource, {"metadata": meta, "spec": spec or {}})

    def queue_spec(self, quota: int, checks: Sequence[str] = (CHECK,), **more: Any) -> Json:
        memory = {"name": "memory", "nominalQuota": "100Ti"}
        flavor = {"name": "flavor", "resources": [{"name": GPU, "nominalQuota": quota}, memory]}
        return {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU, "memory"], "flavors": [flavor]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": check} for check in checks]},
            **more,
        }

    def add_node(self, name: str, gpus: int, **labels: str) -> None:
        amounts = {"cpu": "64", "memory": f"{MEMORY}Gi", "pods": "110", GPU: str(gpus)}
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T12:00:00Z"}]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
        self.client.add(
            NODE, {"metadata": {"name": name, "labels": {HOST: name, **labels}}, "spec": {}, "status": status}
        )

    def add_check(self, name: str, controller: str) -> None:
        """An AdmissionCheck of another controller."""
        ready = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
        body = {"spec": {"controllerName": controller}, "status": {"conditions": [ready]}}
        self.client.add(ADMISSION_CHECK, {"metadata": {"name": name}, **body})

    def submit(
        self,
        name: str,
        *,
        pods: int = 1,
        gpus: int = 1,
        memory: int = 0,
        queue: str = "lq",
        template: Json | None = None,
        **labels: str,
    ) -> None:
        """A Job. `memory` is in Gi; `template` has what is more of its pods."""
        merged = _merged(_template(gpus, memory), template or {})
        spec = {"parallelism": pods, "completions": pods, "template": merged}
        metadata = {"labels": {"kueue.x-k8s.io/queue-name": queue, **labels}}
        self.add(JOB, name, namespace="ns", spec=spec, **metadata)

    def dispatch(self, name: str, *, pods: int = 1, gpus: int = 1) -> None:
        """A hub of MultiKueue creates its copy of a Workload here; the job follows once that is admitted."""
        pod_set = {"name": "main", "count": pods, "template": _template(gpus, 0)}
        body = {"spec": {"active": True, "queueName": "lq", "podSets": [pod_set]}, "status": {}}
        metadata = {"name": name, "namespace": "ns", "labels": {MULTIKUEUE_ORIGIN: "multikueue"}}
        self.client.add(WORKLOAD, {"metadata": metadata, **body})

    def submit_ray(self, name: str, *, head: int, workers: int, gpus: int, memory: int = 0) -> None:
        """A RayCluster whose head has so many GPUs, and each worker so many. All have so many Gi of memory."""
        group = {"groupName": "workers", "replicas": workers, "template": _template(gpus, memory)}
        spec = {"headGroupSpec": {"template": _template(head, memory)}, "workerGroupSpecs": [group]}
        self.add(RAY_CLUSTER, name, namespace="ns", spec=spec, labels={"kueue.x-k8s.io/queue-name": "lq"})

    def change(self, resource: Resource, name: str, body: Json, subresource: str = "") -> None:
        namespace = "ns" if resource.namespaced else ""
        self.client.change(resource, namespace, name, body, subresource)

    def deactivate(self, name: str, *, for_gang: str = "", is_granted: bool = True) -> None:
        """A plan of ours takes the job for the gang: its ScalableWorkload says so, and its Workload is inactive."""
        workload = self.workload(name)["metadata"]["name"]
        note = json.dumps({"at": f"{self.client.now:%Y-%m-%dT%H:%M:%SZ}"})
        if for_gang:
            self.client.add(SCALABLE_WORKLOAD, self._scalable(name, workload, for_gang, is_granted=is_granted))
        body = {"spec": {"active": False}, "metadata": {"annotations": {"idlegpu.io/suspended": note}}}
        self.change(WORKLOAD, workload, body)

    def _scalable(self, name: str, workload: str, gang: str, *, is_granted: bool) -> Json:
        given = self.workload(gang)["metadata"]
        at = f"{self.client.now:%Y-%m-%dT%H:%M:%SZ}"
        later = f"{self.client.now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        common = {"plan": "plan-1", "workload": f"ns/{given['name']}"}
        grant = {**common, "workloadUID": given["uid"], "victims": [f"ns/{name}"], "grantedAt": at, "expiresAt": later}
        entry = {**common, "stage": "Releasing", "reclaimableAt": at, "releasingAt": at}
        return {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"replicas": 0, "workloadRef": {"name": workload}},
            "status": {"grant": grant} if is_granted else {"reallocation": entry},
        }

    def finish(self, name: str) -> None:
        """The pods of the job succeed."""
        for pod in self.pods(name):
            self.change(POD, pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")

    # ----------------------------------------------------------------------------------------------------------- time

    async def passes(self, seconds: float = 0.0, *, ticks: bool = True) -> None:
        """Time passes, second by second, and all that follows from it happens. Not `ticks`: our process is dead."""
        await self._settle(ticks=ticks)
        for _ in range(int(seconds)):
            self.client.now += timedelta(seconds=1)
            await self._settle(ticks=ticks)

    async def _settle(self, *, ticks: bool) -> None:
        for _ in range(40):
            before = self._versions()
            await self.client.settle(*self.controllers)
            self.schedule()
            self._end_pods()
            self.follow()
            if ticks:
                await self.admission.tick(self.client.now)
                self.follow()
            if self._versions() == before:
                return
        raise AssertionError("the cluster never comes to rest")

    def _versions(self) -> list[str]:
        kinds = (WORKLOAD, POD, JOB, ADMISSION_CHECK, RAY_CLUSTER)
        return [body["metadata"]["resourceVersion"] for kind in kinds for body in self.client.all(kind)]

    def schedule(self) -> None:
        """Pods that wait go to nodes with room: by name, or in any order and anywhere where there is chance."""
        pods = [pod for pod in self.client.all(POD) if not pod["spec"].get("nodeName") and _is_alive(pod)]
        if self.chance:
            self.chance.shuffle(pods)
        for pod in pods:
            rooms = [name for name, free in self.free().items() if free >= _gpus(pod) and self._suits(name, pod)]
            memory = self.free_memory()
            rooms = [name for name in rooms if memory[name] >= memory_of(pod)]
            if rooms:
                node = self.chance.choice(rooms) if self.chance else rooms[0]
                running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.change(POD, pod["metadata"]["name"], {"spec": {"nodeName": node}})
                self.change(POD, pod["metadata"]["name"], {"status": running}, "status")

    def _suits(self, node: str, pod: Json) -> bool:
        found = self.client.find(NODE, "", node)
        labels = (found or {})["metadata"]["labels"]
        return all(labels.get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())

    def _end_pods(self) -> None:
        for pod in self.client.all(POD):
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp"):
                began = self._told_to_end.setdefault(metadata["uid"], self.client.now)
                job = metadata["ownerReferences"][0]["name"]
                if (self.client.now - began).total_seconds() >= self.termination.get(job, 1.0):
                    self.client.remove(POD, "ns", metadata["name"])

    # -------------------------------------------------------------------------------------------------------- looking

    def free(self) -> dict[str, int]:
        """GPUs by node that no pod holds, ending ones included."""
        taken: dict[str, int] = {}
        for pod in self.client.all(POD):
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                taken[pod["spec"]["nodeName"]] = taken.get(pod["spec"]["nodeName"], 0) + _gpus(pod)
        return {
            node["metadata"]["name"]: int(node["status"]["allocatable"][GPU]) - taken.get(node["metadata"]["name"], 0)
            for node in self.client.all(NODE)
        }

    def free_memory(self) -> dict[str, int]:
        """Gi of memory by node that no pod holds."""
        free = {node["metadata"]["name"]: MEMORY for node in self.client.all(NODE)}
        for pod in self.client.all(POD):
            node = pod["spec"].get("nodeName")
            if node in free and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                free[node] -= memory_of(pod)
        return free

    def workload(self, job: str) -> Json:
        for each in self.client.all(WORKLOAD):
            if each["metadata"]["ownerReferences"][0]["name"] == job:
                return each
        raise AssertionError(f"{job} has no Workload")

    def entry(self, job: str, check: str = CHECK) -> Json:
        entries = self.workload(job)["status"].get("admissionChecks") or []
        return next((dict(each) for each in entries if each["name"] == check), {})

    def says(self, job: str) -> str:
        """`Pending: why`, or whatever else the entry says."""
        entry = self.entry(job)
        return f"{entry['state']}: {entry['message']}" if entry else "no entry"

    def exists(self, job: str) -> bool:
        owners = [each["metadata"]["ownerReferences"][0]["name"] for each in self.client.all(WORKLOAD)]
        return job in owners

    def state(self, job: str) -> tuple[str, ...]:
        return state_of(self.workload(job))

    def is_admitted(self, job: str) -> bool:
        return has(self.workload(job), "Admitted")

    def holds_quota(self, job: str) -> bool:
        return has(self.workload(job), "QuotaReserved")

    def pods(self, job: str) -> list[Json]:
        return [pod for pod in self.client.all(POD) if pod["metadata"]["ownerReferences"][0]["name"] == job]

    def is_running(self, job: str) -> bool:
        """Whether it was admitted, and all of its pods are on nodes."""
        pods = [pod for pod in self.pods(job) if _is_alive(pod)]
        return self.is_admitted(job) and bool(pods) and all(pod["spec"].get("nodeName") for pod in pods)

    def half_started(self) -> list[str]:
        """Jobs with some pods on nodes while others find none."""
        found = []
        for kind in (JOB, RAY_CLUSTER):
            for job in self.client.all(kind):
                alive = [pod for pod in self.pods(job["metadata"]["name"]) if _is_alive(pod)]
                bound = [bool(pod["spec"].get("nodeName")) for pod in alive]
                if any(bound) and not all(bound):
                    found.append(job["metadata"]["name"])
        return found

    def check(self, name: str = CHECK) -> Json:
        found = self.client.find(ADMISSION_CHECK, "", name)
        assert found is not None
        return found

    def active(self, name: str = CHECK) -> str:
        """The condition Active of the check, as `True` or `False: why`."""
        conditions = (self.check(name).get("status") or {}).get("conditions") or []
        found = next((each for each in conditions if each["type"] == "Active"), None)
        if found is None:
            return "unset"
        return "True" if found["status"] == "True" else f"{found['status']}: {found['message']}"


def _template(gpus: int, memory: int = 0) -> Json:
    limits = {**({GPU: gpus} if gpus else {}), **({"memory": f"{memory}Gi"} if memory else {})}
    amounts = {"limits": limits} if limits else {}
    return {"spec": {"containers": [{"name": "main", "image": "train:1", "resources": amounts}]}}


def _merged(one: Json, other: Json) -> Json:
    """Maps are merged; the containers' settings go to each of them."""
    containers = [{**each, **other.get("container", {})} for each in one["spec"]["containers"]]
    spec = {**one["spec"], **other.get("spec", {}), "containers": containers}
    return {"metadata": other.get("metadata", {}), "spec": spec}


def memory_of(pod: Json) -> int:
    """In Gi."""
    limits = (each.get("resources", {}).get("limits") or {} for each in pod["spec"]["containers"])
    return sum(int(each.get("memory", "0Gi").removesuffix("Gi")) for each in limits)


def _gpus(pod: Json) -> int:
    return sum(
        int(((each.get("resources") or {}).get("limits") or {}).get(GPU, 0)) for each in pod["spec"]["containers"]
    )


def _is_alive(pod: Json) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") not in ("Succeeded", "Failed")
