"""Gangs at the gate, in virtual time: the real gate, Kueue's rules and the Job controller as the embedded cluster has
them, nodes with GPUs, and a scheduler that may put pods wherever there is room.

    town = GateTown({"a": 8, "b": 8})
    town.submit("gang", pods=2, gpus=8)
    await town.passes(3)
    town.is_running("gang"), town.entry("gang")["message"]

Everything is in namespace `ns`, in LocalQueue `lq` of ClusterQueue `cq`, whose quota is large unless a test says so.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Self, cast

import msgspec
from builders import GPUS
from embedded.memory_client import MemoryClient, state_of

from scaler.core.placement import Capacity
from scaler.core.provisioning import Kind
from scaler.embedded.client import Client
from scaler.embedded.conditions import has
from scaler.embedded.kinds import (
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
    RESOURCE_FLAVOR,
    WORKLOAD,
    Json,
    Resource,
)
from scaler.embedded.kueue import Kueue
from scaler.embedded.operators import JobController, RayClusterOperator
from scaler.errors import KubeError
from scaler.kube.copies import LiveCopy
from scaler.kube.events import ObjectReference
from scaler.kube.kueue_objects import Workload
from scaler.kube.nodes import Node
from scaler.kube.objects import Pod, ScalableWorkload
from scaler.kube.quota_objects import AdmissionCheck, ResourceFlavor
from scaler.kube.reclaim_policy_objects import ReclaimPolicy
from scaler.kube.reflector import Reflecting, State
from scaler.kube.resources import RECLAIM_POLICY, SCALABLE_WORKLOAD
from scaler.kube.store import Index, T
from scaler.kueue.admission_checks import CONTROLLER
from scaler.loops.cluster import Cluster, pod_indexes, scalable_workload_indexes, workload_indexes
from scaler.loops.endings import Endings
from scaler.loops.gate import Gate, GateReport
from scaler.loops.gate_checks import Checks
from scaler.loops.gate_view import Copies, GateView
from scaler.loops.leaving import AFTERWARDS
from scaler.loops.nodes_view import NodesView
from scaler.loops.provisioning import Case, Progress
from scaler.loops.quota_view import Blind

GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
CHECK = "gate"
MEMORY = 512
"""Gi of every node."""


class LiveStore(LiveCopy[T]):
    """A copy that is always in step, with a word on how good it is."""

    def __init__(self, kind: type[T], indexes: Mapping[str, Index[T]] | None = None) -> None:
        super().__init__(kind, indexes or {})
        self.age = 0.0
        self.state: State = Reflecting()

    def within(self, _namespace: str) -> Self:
        return self

    def follow(self, bodies: Sequence[Json]) -> None:
        """Everything that is there, as a watch would bring it."""
        for body in bodies:
            key = body["metadata"].get("namespace", ""), body["metadata"]["name"]
            known = self.get(*key)
            if known is None or known.metadata.resource_version != body["metadata"]["resourceVersion"]:
                self.put(msgspec.Raw(msgspec.json.encode(body)))
        there = {(body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in bodies}
        for each in self.items():
            if each.metadata.key not in there:
                meta = {"name": each.metadata.name, "namespace": each.metadata.namespace}
                self.remove(msgspec.Raw(msgspec.json.encode({"metadata": meta})))


class MemoryApi:
    """The API over the same objects: merge patches with preconditions, and failures when a test wants them."""

    def __init__(self, client: MemoryClient, resources: Collection[Resource]) -> None:
        self._client = client
        self._resources = resources
        self.patches: list[tuple[str, Json]] = []
        self.before_patch: Callable[[str], None] = lambda _: None
        """Called before each patch; it may change the object, or raise."""

    async def get(self, path: str) -> bytes:
        return msgspec.json.encode(self._object(path)[1])

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        assert not dry_run
        self.before_patch(path)
        subresource = "status" if path.endswith("/status") else ""
        resource, found = self._object(path.removesuffix("/status"))
        for name in ("uid", "resourceVersion"):
            if found["metadata"][name] != body["metadata"].get(name, found["metadata"][name]):
                raise KubeError(f"patch {path}: another {name}", status=409, reason="Conflict")
        metadata = {name: value for name, value in body["metadata"].items() if name not in ("uid", "resourceVersion")}
        change = {**body, "metadata": metadata} if metadata else {k: v for k, v in body.items() if k != "metadata"}
        self._client.change(
            resource,
            found["metadata"].get("namespace", ""),
            found["metadata"]["name"],
            json.loads(json.dumps(change)),
            subresource,
        )
        self.patches.append((path, json.loads(json.dumps(body))))
        return msgspec.json.encode(self._object(path.removesuffix("/status"))[1])

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        namespace, name = body["metadata"].get("namespace", ""), body["metadata"]["name"]
        resource = next(each for each in self._resources if each.path(namespace) == path)
        if self._client.find(resource, namespace, name) is not None:
            raise KubeError(f"create {path}/{name}: it is there", status=409, reason="AlreadyExists")
        return msgspec.json.encode(self._client.add(resource, json.loads(json.dumps(body))))

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        resource, found = self._object(path)
        if uid and found["metadata"]["uid"] != uid:
            raise KubeError(f"delete {path}: another uid", status=409, reason="Conflict")
        self._client.remove(resource, found["metadata"].get("namespace", ""), found["metadata"]["name"])
        return msgspec.json.encode(found)

    def _object(self, path: str) -> tuple[Resource, Json]:
        parts = path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-2] else ""
        for resource in self._resources:
            if resource.namespaced == bool(namespace) and resource.path(namespace, parts[-1]) == path:
                found = self._client.find(resource, namespace, parts[-1])
                if found is not None:
                    return resource, found
        raise KubeError(f"get {path}: not found", status=404, reason="NotFound")


class Told:
    """The Events that were recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record(
        self, about: ObjectReference, reason: str, message: str, *, action: str = "", warning: bool = False
    ) -> None:
        self.events.append((about.name, reason, message))

    def reasons(self, name: str = "") -> list[str]:
        return [reason for about, reason, _ in self.events if name in about]


class Autoscaler:
    """A Provisioner that says what a test wants."""

    def __init__(self) -> None:
        self.says: dict[str, Progress] = {}
        """By name of the job's Workload, or for all by the empty name."""
        self.asked: dict[str, Case] = {}
        self.swept: set[str] = set()

    async def follow(self, case: Case, now: datetime) -> Progress:
        name = case.workload.metadata.name
        self.asked[name] = case
        return self.says.get(name, self.says.get("", Progress(kind=Kind.NOTHING)))

    async def sweep(self, followed: Collection[str], now: datetime) -> None:
        self.swept = set(followed)


_FOLLOWED: dict[Resource, type[Any]] = {
    WORKLOAD: Workload,
    POD: Pod,
    NODE: Node,
    ADMISSION_CHECK: AdmissionCheck,
    RESOURCE_FLAVOR: ResourceFlavor,
    RECLAIM_POLICY: ReclaimPolicy,
    SCALABLE_WORKLOAD: ScalableWorkload,
}


class GateTown:
    """What there is, and what happens to it."""

    afterwards = AFTERWARDS
    """How long the places of a gang that had to go stay taken."""

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        policy: Json | None = None,
        quota: int = 1000,
        checks: Sequence[str] = (CHECK,),
        chance: Random | None = None,
        with_provisioning: bool = False,
        client: MemoryClient | None = None,
        api: type[MemoryApi] = MemoryApi,
        **queue: Any,
    ) -> None:
        """`policy` is the spec of the ReclaimPolicy that the check names; None: the check names none."""
        self.client = client or MemoryClient()
        self.chance = chance
        self.termination: dict[str, float] = {}
        """Seconds that pods of these jobs take to end; 1 s for all others."""
        self._told_to_end: dict[str, datetime] = {}
        client = cast(Client, self.client)
        self.controllers = (Kueue(client), JobController(client), RayClusterOperator(client))
        self.api = api(self.client, [*_FOLLOWED, JOB, POD_TEMPLATE, PROVISIONING_REQUEST])
        self.told = Told()
        self.reports: list[GateReport] = []
        self.autoscaler = Autoscaler() if with_provisioning else None
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

    # ------------------------------------------------------------------------------------------------------ the gate

    def restart(self) -> None:
        """Another process, with nothing in memory."""
        self.copies: dict[Resource, LiveStore[Any]] = {
            WORKLOAD: LiveStore(Workload, workload_indexes()),
            POD: LiveStore(Pod, pod_indexes(GPUS)),
            SCALABLE_WORKLOAD: LiveStore(ScalableWorkload, scalable_workload_indexes()),
        }
        for resource, kind in _FOLLOWED.items():
            self.copies.setdefault(resource, LiveStore(kind))
        self.follow()
        copies = self.copies
        cluster = Cluster(
            scaled_objects=LiveStore(ScalableWorkload),  # type: ignore[arg-type]
            scalable_workloads=copies[SCALABLE_WORKLOAD],
            workloads=copies[WORKLOAD],
            pods=copies[POD],
            gpus=GPUS,
        )
        nodes: Any = copies[NODE], copies[POD], copies[WORKLOAD]
        self.nodes_view = NodesView(*nodes, max_age=timedelta(minutes=1))
        self.blind = ""
        self.view = view = GateView(
            cluster,
            Copies(
                workloads=copies[WORKLOAD],
                pods=copies[POD],
                checks=copies[ADMISSION_CHECK],
                flavors=copies[RESOURCE_FLAVOR],
                nodes=copies[NODE],
            ),
            afterwards=self.afterwards,
            clock=lambda: self.client.now,
        )
        self.gate = Gate(
            self.api,
            view,
            Endings(cluster, copies[WORKLOAD], copies[POD]),
            Checks(self.api, copies[RECLAIM_POLICY], self.told),
            self.told,
            capacity=self._capacity,
            quota=lambda: self.controllers[0]._mirror.snapshot,
            provisioning=self.autoscaler,
            observe=self.reports.append,
            clock=lambda: self.client.now,
        )

    def _capacity(self) -> Capacity | Blind:
        return Blind(self.blind) if self.blind else self.nodes_view.capacity()

    def follow(self) -> None:
        """The copies show what is there."""
        for resource, copy in self.copies.items():
            copy.follow(self.client.all(resource))

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
        """An AdmissionCheck that somebody else looks after."""
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

    async def passes(self, seconds: float = 0.0, *, gate: bool = True) -> None:
        """Time goes by, second by second, and everything that follows from it happens. `gate` False: it is dead."""
        await self._settle(gate=gate)
        for _ in range(int(seconds)):
            self.client.now += timedelta(seconds=1)
            await self._settle(gate=gate)

    async def _settle(self, *, gate: bool) -> None:
        for _ in range(40):
            before = self._versions()
            await self.client.settle(*self.controllers)
            self.schedule()
            self._end_pods()
            self.follow()
            if gate:
                await self.gate.tick(self.client.now)
                self.follow()
            if self._versions() == before:
                return
        raise AssertionError("the town never comes to rest")

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

    def is_done(self, job: str) -> bool:
        return self.exists(job) and has(self.workload(job), "Finished")

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
