"""Notebooks and InferenceServices in the embedded API, and controllers that do about them what the real ones do.

Sources: kubeflow/notebooks, branch notebooks-v1 (generateStatefulSet, CullingReconciler); kserve/kserve v0.17.1 and
v0.14.1 (predictor, deployment and HPA reconcilers). There is nothing between them and
their pods.

| kind             | what is done                                                                              |
|------------------|-------------------------------------------------------------------------------------------|
| Notebook         | a pod `NAME-0` while there is no stop annotation; the culler writes its annotations        |
| InferenceService | pods while there is no stop annotation. A pod's template has the annotations of the object,|
|                  | and pods of another template are replaced                                                 |
| – of KServe 0.14 | knows no stop annotation. Knative: `minReplicas` pods, none at 0. Else at least one        |
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import yaml
from recordings import CRDS

from scaler.errors import KubeError
from scaler.kube.objects.resources import INFERENCE_SERVICE, NOTEBOOK, POD, Resource
from scaler.kube.transport import KubeTransport
from scaler.targets.switches import LAST_ACTIVITY, NOTEBOOK_STOPPED, SERVICE_STOPPED

Json = dict[str, Any]
GPU = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
REAL_NOTEBOOK_CRD = CRDS / "kubeflow.org_notebooks.yaml"
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(resource: Resource) -> Json:
    """As much of its CustomResourceDefinition as matters. KServe's own small one keeps spec and status as they are."""
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    schema = {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}
    version = {
        **{"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.qualified_name},
        "spec": {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def real_notebook_definition() -> Json:
    """Kubeflow's own, without the versions that are not used here."""
    found: Json = yaml.load(REAL_NOTEBOOK_CRD.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    versions = [each for each in found["spec"]["versions"] if each["name"] == NOTEBOOK.version]
    storage = [{**each, "storage": True} for each in versions]
    return {**found, "spec": {**found["spec"], "versions": storage, "conversion": {"strategy": "None"}}}


def notebook(name: str, namespace: str, *, labels: Mapping[str, str] | None = None, **annotations: str) -> Json:
    container = {"name": name, "image": "jupyter:1", "resources": GPU}
    metadata = {"name": name, "namespace": namespace, "labels": {**(labels or {})}, "annotations": annotations}
    spec = {"template": {"spec": {"containers": [container]}}}
    return {"apiVersion": NOTEBOOK.api_version, "kind": NOTEBOOK.kind, "metadata": metadata, "spec": spec}


def inference_service(name: str, namespace: str, *, annotations: Json | None = None, **predictor: Any) -> Json:
    model = {"modelFormat": {"name": "huggingface"}, "resources": GPU}
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"predictor": {"model": model, **predictor}},
    }


class SwitchedKindController:
    """What both have in common. `tick` does everything that is to be done at this moment."""

    resource: Resource

    def __init__(self, kube: KubeTransport, namespace: str, *, runs_pods: bool = True) -> None:
        """`runs_pods`: no kubelet does."""
        self._kube, self._namespace, self._runs_pods = kube, namespace, runs_pods
        self.started: list[str] = []
        """Names of all pods that were made."""

    async def run(self) -> None:
        while True:
            try:
                await self.tick()
            except KubeError as error:
                if error.status not in (404, 409):
                    raise
            await asyncio.sleep(0.02)

    async def tick(self) -> None:
        pods = await self.all(POD)
        for found in await self.all(self.resource):
            owned = [pod for pod in pods if _is_owned(pod, found)]
            await self.reconcile(found, [pod for pod in owned if not pod["metadata"].get("deletionTimestamp")])

    async def reconcile(self, found: Json, pods: list[Json]) -> None:
        raise NotImplementedError

    async def all(self, resource: Resource) -> list[Json]:
        items: list[Json] = json.loads(await self._kube.get(resource.path(self._namespace)))["items"]
        return items

    async def has_pods(self, found: Json, pods: list[Json], names: list[str], **template: Any) -> None:
        """Make those that are missing, and delete all others."""
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in names:
                grace = "" if not self._runs_pods else "?gracePeriodSeconds=0"
                await self._kube.delete(f"{POD.path(self._namespace, name)}{grace}")
        for name in names:
            if name not in [pod["metadata"]["name"] for pod in pods]:
                await self._start(found, name, **template)

    async def _start(self, found: Json, name: str, *, labels: Json, annotations: Json) -> None:
        owner = {key: found[key] for key in ("apiVersion", "kind")}
        owner |= {"name": found["metadata"]["name"], "uid": found["metadata"]["uid"], "controller": True}
        metadata = {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]}
        spec = {"containers": [{"name": "main", "image": "main:1", "resources": GPU}]}
        if self._runs_pods:
            spec["nodeName"] = "node-a"  # type: ignore[assignment]
        await self._kube.create(POD.path(self._namespace), {"metadata": metadata, "spec": spec})
        self.started.append(name)
        if self._runs_pods:
            running = {"name": "main", "ready": True, "image": "", "imageID": "", "restartCount": 0}
            state = {"running": {"startedAt": "2026-01-01T09:00:00Z"}}
            status = {"phase": "Running", "containerStatuses": [running | {"state": state}]}
            await self._kube.patch(POD.path(self._namespace, name, "status"), {"status": status})


def _is_owned(pod: Json, found: Json) -> bool:
    return any(each["uid"] == found["metadata"]["uid"] for each in pod["metadata"].get("ownerReferences", ()))


class NotebookController(SwitchedKindController):
    resource = NOTEBOOK

    async def reconcile(self, found: Json, pods: list[Json]) -> None:
        metadata = found["metadata"]
        name, annotations = metadata["name"], metadata.get("annotations", {})
        is_stopped = NOTEBOOK_STOPPED in annotations
        if is_stopped and LAST_ACTIVITY in annotations:
            await self.culls(name, {LAST_ACTIVITY: None})
        copied = {key: value for key, value in annotations.items() if "notebook" not in key and "kubectl" not in key}
        labels = {**metadata.get("labels", {}), "statefulset": name, "notebook-name": name}
        await self.has_pods(found, pods, [] if is_stopped else [f"{name}-0"], labels=labels, annotations=copied)

    async def culls(self, name: str, annotations: Json) -> None:
        """What the culler writes: when it saw activity, or that it stops the Notebook."""
        await self._kube.patch(NOTEBOOK.path(self._namespace, name), {"metadata": {"annotations": annotations}})


class InferenceServiceController(SwitchedKindController):
    resource = INFERENCE_SERVICE

    def __init__(
        self, *arguments: Any, version: tuple[int, int] = (0, 17), mode: str = "Standard", **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._stops, self._mode = version >= (0, 16), mode

    async def reconcile(self, found: Json, pods: list[Json]) -> None:
        metadata = found["metadata"]
        name, annotations = metadata["name"], metadata.get("annotations", {})
        wanted = found["spec"]["predictor"].get("minReplicas")
        count = wanted if wanted is not None and (wanted or self._mode == "Serverless") else 1
        is_stopped = self._stops and annotations.get(SERVICE_STOPPED, "").lower() == "true"
        template = format(hash(json.dumps(annotations, sort_keys=True)) & 0xFFFFFF, "06x")
        names = [f"{name}-predictor-{template}-{number}" for number in range(0 if is_stopped else count)]
        labels = {"serving.kserve.io/inferenceservice": name, "component": "predictor"}
        await self.has_pods(found, pods, names, labels=labels, annotations=annotations)
        ready = {"type": "Ready", "status": "False" if is_stopped else "True"}
        stopped = {"type": "Stopped", "status": "True" if is_stopped else "False"}
        status = {"conditions": [ready, *([stopped] if self._stops else [])], "deploymentMode": self._mode}
        if found.get("status") != status:
            await self._kube.patch(INFERENCE_SERVICE.path(self._namespace, name, "status"), {"status": status})


@asynccontextmanager
async def running(controller: SwitchedKindController) -> AsyncIterator[SwitchedKindController]:
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
