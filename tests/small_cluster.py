"""A small cluster for tests: the embedded Kubernetes API with one gang in namespace `demo`, and everybody else by hand.

Kueue, KEDA, the kubelet and the owner do something only when a test says so, so that it can look at every moment in
between. What they do they do as the real ones do it, in their order.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from builders import WorkloadJson
from scaler_sandbox import crds
from scaler_sandbox.kubeapi import KubeApi

from scaler.kube.objects.resources import (
    EVENT,
    JOB,
    NAMESPACE,
    POD,
    RAY_CLUSTER,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.kube.transport import KubeTransport
from scaler.targets.cluster_state import WORKLOAD_ANNOTATION

Json = dict[str, Any]

NAMESPACE_NAME = "demo"
NAME = "first-raycluster"
WORKLOAD_NAME = "raycluster-first-raycluster-6cd3b"
PODS = ("worker-0", "worker-1")
_CONTAINER = {"name": "main", "image": "train:1"}
_TEMPLATE = {"spec": {"containers": [_CONTAINER], "restartPolicy": "Never"}}
_OWNERS = {"RayCluster": RAY_CLUSTER, "Job": JOB, "Pod": POD}
_OWNER_SPECS: dict[str, Json] = {
    "RayCluster": {"headGroupSpec": {"rayStartParams": {}, "template": _TEMPLATE}},
    "Job": {"template": _TEMPLATE},
    "Pod": {"containers": [_CONTAINER]},
}
_OWN_CRDS = sorted((Path(__file__).parent.parent / "deploy" / "crds").glob("idlegpu.io_*.yaml"))


class SmallCluster:
    """The API, and what is done to it by others than the program under test."""

    def __init__(self, api: KubeApi, kube: KubeTransport, kubeconfig: Path) -> None:
        self.api = api
        self.kube = kube
        self.kubeconfig = kubeconfig
        self.workload = WorkloadJson(WORKLOAD_NAME)

    # ------------------------------------------------------------------------------------------------- any object

    async def record(self, name: str) -> Json:
        """The record of the ScaledObject of that name."""
        [found] = [
            each
            for each in await self.all(SCALABLE_WORKLOAD)
            for owner in each["metadata"].get("ownerReferences", ())
            if each["spec"]["actuator"] == "None" and owner["name"] == name
        ]
        return found

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        """The object as created, its status included."""
        metadata = {k: v for k, v in body["metadata"].items() if k not in ("uid", "resourceVersion")}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        namespace = NAMESPACE_NAME if resource.namespaced else ""
        created = _object(await self.kube.create(resource.path(namespace), whole))
        if "status" in body:
            created = await self.change(resource, created["metadata"]["name"], {"status": body["status"]}, "status")
        return created

    async def read(self, resource: Resource, name: str, subresource: str = "") -> Json:
        return _object(await self.kube.get(resource.path(NAMESPACE_NAME, name, subresource)))

    async def change(self, resource: Resource, name: str, patch: Json, subresource: str = "") -> Json:
        return _object(await self.kube.patch(resource.path(NAMESPACE_NAME, name, subresource), patch))

    async def annotate(self, resource: Resource, name: str, key: str, value: str | None) -> None:
        await self.change(resource, name, {"metadata": {"annotations": {key: value}}})

    async def delete(self, resource: Resource, name: str) -> None:
        await self.kube.delete(f"{resource.path(NAMESPACE_NAME, name)}?gracePeriodSeconds=0")

    async def all(self, resource: Resource) -> list[Json]:
        items: list[Json] = _object(await self.kube.get(resource.path(NAMESPACE_NAME)))["items"]
        return items

    @contextmanager
    def refusing(self, method: str, path_part: str, *, status: int = 500) -> Iterator[None]:
        """As long as this lasts the API refuses such requests."""
        self.api.faults.fail_next(sys.maxsize, status=status, method=method, path_part=path_part)
        try:
            yield
        finally:
            self.api.faults.heal()

    # ------------------------------------------------------------------------------------------ owners and KEDA

    async def wants(self, replicas: int = 1, *, name: str = NAME, **spec: Any) -> Json:
        """A ScalableWorkload of the RayCluster, or of what `spec` says."""
        job = {"jobRef": {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME}}
        body = {"metadata": {"name": name}, "spec": {"replicas": replicas, **(spec or job)}}
        return await self.create(SCALABLE_WORKLOAD, body)

    async def is_scaled_by(self, trigger: Mapping[str, str], *, address: str = "scaler:9090", name: str = NAME) -> Json:
        """A ScaledObject for the ScalableWorkload of the same name."""
        target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind, "name": name}
        metadata = {"scalerAddress": address, **trigger}
        spec = {"scaleTargetRef": target, "triggers": [{"type": "external-push", "metadata": metadata}]}
        return await self.create(SCALED_OBJECT, {"metadata": {"name": name}, "spec": spec})

    async def scale(self, replicas: int, *, name: str = NAME) -> None:
        """As KEDA and `kubectl scale` do it."""
        await self.change(SCALABLE_WORKLOAD, name, {"spec": {"replicas": replicas}}, "scale")

    async def scalable(self, name: str = NAME) -> Json:
        return await self.read(SCALABLE_WORKLOAD, name)

    async def has_phase(self, phase: str, name: str = NAME) -> bool:
        return (await self.status(name)).get("phase") == phase

    async def status(self, name: str = NAME) -> Json:
        """The ScalableWorkload's status, empty before the first one is written."""
        status: Json = (await self.scalable(name)).get("status") or {}
        return status

    # ------------------------------------------------------------------------------------------------------ Kueue

    async def submit(self, workload: WorkloadJson | None = None) -> Json:
        """Kueue makes the Workload of a job."""
        self.workload = workload or self.workload
        for owner in self.workload.json["metadata"]["ownerReferences"]:
            owner["uid"] = await self._uid_of_job(owner["kind"], owner["name"])
        return await self.create(WORKLOAD, self.workload.json)

    async def admit(self) -> None:
        """Kueue reserves quota and admits; what was evicted before is requeued by that."""
        self.workload.admitted().condition("Evicted", False, "QuotaReserved")
        await self._write_workload_status()

    async def reserve(self) -> None:
        """Kueue reserves quota, and admission checks are still awaited."""
        self.workload.reserved().condition("Admitted", False, "UnsatisfiedAdmissionChecks")
        await self._write_workload_status()

    async def evict(self, reason: str = "Deactivated") -> None:
        """What Kueue does first to an inactive Workload: its quota is still reserved then."""
        self.workload.condition("Evicted", True, reason, "The workload is deactivated")
        await self._write_workload_status()

    async def release(self) -> None:
        """What Kueue does when the job has stopped."""
        self.workload.condition("QuotaReserved", False, "Pending", "The workload is deactivated")
        self.workload.condition("Admitted", False, "NoReservation")
        self.workload.json["status"]["admission"] = None
        await self._write_workload_status()

    async def finish(self) -> None:
        self.workload.condition("Finished", True, "Succeeded", "Job finished successfully")
        await self._write_workload_status()

    async def recreate_workload(self) -> None:
        """Kueue deletes a Workload that no longer matches its job and makes it anew: another uid, active again."""
        await self.delete(WORKLOAD, self.workload.json["metadata"]["name"])
        self.workload = WorkloadJson(WORKLOAD_NAME)
        await self.submit()

    async def _uid_of_job(self, kind: str, name: str) -> str:
        """The uid of an owner, made where there is none yet: the garbage collector would take its Workload away."""
        resource = _OWNERS[kind]
        if name not in [each["metadata"]["name"] for each in await self.all(resource)]:
            await self.create(resource, {"metadata": {"name": name}, "spec": _OWNER_SPECS[kind]})
        return str((await self.read(resource, name))["metadata"]["uid"])

    async def is_active(self) -> bool:
        return bool((await self.observed_workload())["spec"]["active"])

    async def observed_workload(self) -> Json:
        return await self.read(WORKLOAD, self.workload.json["metadata"]["name"])

    async def _write_workload_status(self) -> None:
        name = self.workload.json["metadata"]["name"]
        await self.change(WORKLOAD, name, {"status": self.workload.json["status"]}, "status")

    # ------------------------------------------------------------------------------------------------ the kubelet

    async def run_pods(self, *names: str, annotated: bool = True, running: bool = True) -> None:
        """The gang's pods appear on a node, with one GPU each, and their containers run."""
        uid = await self._uid_of_job("RayCluster", NAME)
        for name in names or PODS:
            await self.create(POD, pod_json(name, uid, annotated=annotated, running=running))

    async def run_gang(self) -> None:
        """A gang that Kueue has admitted and whose pods run."""
        await self.wants(1)
        await self.submit()
        await self.admit()
        await self.run_pods()

    async def end_pods(self, *names: str) -> None:
        for name in names or PODS:
            await self.delete(POD, name)

    # ----------------------------------------------------------------------------------------------------- Events

    async def events(self) -> list[tuple[str, str, str]]:
        """(kind, reason, message) of every Event that was recorded, oldest first."""
        found = sorted(await self.all(EVENT), key=lambda each: int(each["metadata"]["resourceVersion"]))
        return [(each["involvedObject"]["kind"], each["reason"], each["message"]) for each in found]

    async def reasons(self, kind: str = "ScalableWorkload") -> list[str]:
        """The reasons of the Events on objects of that kind, oldest first."""
        return [reason for about, reason, _ in await self.events() if about == kind]


@asynccontextmanager
async def embedded_api(folder: Path, *definitions: Json) -> AsyncIterator[tuple[KubeApi, KubeTransport]]:
    """An API with these definitions and a client of it; its kubeconfig is `kubeconfig` in the folder."""
    api = KubeApi()
    api.install_crds(definitions)
    await api.start()
    api.write_kubeconfig(folder / "kubeconfig")
    try:
        async with await KubeTransport.connect(folder / "kubeconfig", call_seconds=30) as kube:
            yield api, kube
    finally:
        await api.stop()


@asynccontextmanager
async def small_cluster(folder: Path) -> AsyncIterator[SmallCluster]:
    """A cluster with an empty namespace."""
    async with embedded_api(folder, *json.loads(definitions())) as (api, kube):
        await kube.create(NAMESPACE.path(), {"metadata": {"name": NAMESPACE_NAME}})
        yield SmallCluster(api, kube, folder / "kubeconfig")


@cache
def definitions() -> str:
    """All CustomResourceDefinitions as JSON, since reading them as YAML takes longer than most tests."""
    return json.dumps(
        [*crds.load(), *(yaml.load(each.read_text(encoding="utf-8"), yaml.CSafeLoader) for each in _OWN_CRDS)]
    )


def pod_json(name: str, owner_uid: str, *, annotated: bool, running: bool) -> Json:
    """A pod of the gang as Kueue admitted it, with one GPU."""
    gpu = {"nvidia.com/gpu": "1"}
    container = {**_CONTAINER, "resources": {"requests": gpu, "limits": gpu}}
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME, "uid": owner_uid, "controller": True}
    status: Json = {"phase": "Pending"}
    if running:
        state = {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T09:00:00Z"}}}
        status = {"phase": "Running", "containerStatuses": [state | {"image": "", "imageID": "", "restartCount": 0}]}
    annotations = {WORKLOAD_ANNOTATION: WORKLOAD_NAME} if annotated else {}
    return {
        "metadata": {"name": name, "annotations": annotations, "ownerReferences": [owner]},
        "spec": {"nodeName": "node-a", "containers": [container]},
        "status": status,
    }


async def until(condition: Callable[[], Any], *, seconds: float = 600.0) -> None:
    """Waits until the condition holds; a condition may be awaitable. Raises: TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if asyncio.iscoroutine(holds) else holds:
                return
            await asyncio.sleep(0.01)


def _object(body: bytes) -> Json:
    decoded: Json = json.loads(body)
    return decoded
