"""Objects of Kueue with a quota of GPUs, Jobs in its queues, and what lets KEDA and a reclaim plan take such a Job."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaler.admission.workload import CONTROLLER
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    DEPLOYMENT,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    Resource,
)
from scaler_sandbox.kinds import Json

GPU = "nvidia.com/gpu"


def manifest(kind: Resource, name: str, in_namespace: str = "", *, labels: Json | None = None, **fields: Any) -> Json:
    """An object with these fields, such as `spec`."""
    metadata: Json = {"name": name, "labels": labels or {}} | ({"namespace": in_namespace} if in_namespace else {})
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def namespace(name: str) -> Json:
    return manifest(NAMESPACE, name)


def flavor(name: str, **spec: Any) -> Json:
    return manifest(RESOURCE_FLAVOR, name, spec=spec)


def cluster_queue(name: str, gpus: int, *, flavor: str, checks: Sequence[str] = (), **spec: Any) -> Json:
    """A quota of so many GPUs of one flavor, for all namespaces, with these AdmissionChecks."""
    quota = {"name": flavor, "resources": [{"name": GPU, "nominalQuota": gpus}]}
    groups = [{"coveredResources": [GPU], "flavors": [quota]}]
    common = {"namespaceSelector": {}, "queueingStrategy": "StrictFIFO", "resourceGroups": groups}
    return manifest(CLUSTER_QUEUE, name, spec=common | admission_checks(checks) | spec)


def admission_checks(names: Sequence[str]) -> Json:
    """The part of a ClusterQueue's `spec` that names its checks."""
    return {"admissionChecksStrategy": {"admissionChecks": [{"name": each} for each in names]}} if names else {}


def local_queue(name: str, in_namespace: str, cluster_queue: str) -> Json:
    return manifest(LOCAL_QUEUE, name, in_namespace, spec={"clusterQueue": cluster_queue})


def reclaim_policy(name: str, spec: Json) -> Json:
    return manifest(RECLAIM_POLICY, name, spec=spec)


def admission_check(name: str, policy: str) -> Json:
    """The scaler's AdmissionCheck with the ReclaimPolicy of that name."""
    parameters = {"apiGroup": RECLAIM_POLICY.group, "kind": RECLAIM_POLICY.kind, "name": policy}
    return manifest(ADMISSION_CHECK, name, spec={"controllerName": CONTROLLER, "parameters": parameters})


def job(
    name: str,
    in_namespace: str,
    queue: str,
    *,
    gpus: int,
    pods: int = 1,
    annotations: Mapping[str, str] | None = None,
    pod: Json | None = None,
    **spec: Any,
) -> Json:
    """A Job of the LocalQueue; `gpus`, `annotations` and `pod`, fields of its spec, for each of its pods."""
    amount = {GPU: str(gpus)}
    container = {"name": "main", "image": "python:3", "resources": {"requests": amount, "limits": amount}}
    template = {
        "metadata": {"annotations": dict(annotations or {})},
        "spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})},
    }
    size = {"parallelism": pods, "completions": pods, "suspend": True}
    labels = {"kueue.x-k8s.io/queue-name": queue}
    return manifest(JOB, name, in_namespace, labels=labels, spec={**size, "template": template, **spec})


def scaling(name: str, in_namespace: str, scaler_address: str, trigger: Mapping[str, str], **spec: Any) -> list[Json]:
    """The Job's ScalableWorkload, and a ScaledObject of it."""
    reference = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": name}
    return [
        manifest(SCALABLE_WORKLOAD, name, in_namespace, spec={"replicas": 1, "jobRef": reference}),
        scaled_object(name, in_namespace, SCALABLE_WORKLOAD, scaler_address, trigger, **spec),
    ]


def scaled_object(
    name: str, in_namespace: str, kind: Resource, scaler_address: str, trigger: Mapping[str, str], **spec: Any
) -> Json:
    """The ScaledObject of the object of that kind and the same name, with this trigger metadata and further fields."""
    metadata = {"scalerAddress": scaler_address, **trigger}
    common = {
        "scaleTargetRef": {"apiVersion": kind.api_version, "kind": kind.kind, "name": name},
        "minReplicaCount": 0,
        "maxReplicaCount": 1,
        "cooldownPeriod": 1,
        "triggers": [{"type": "external-push", "metadata": metadata}],
    }
    return manifest(SCALED_OBJECT, name, in_namespace, spec=common | spec)


def deployment(name: str, in_namespace: str, *, kind: Resource = DEPLOYMENT, replicas: int = 1, gpus: int = 1) -> Json:
    """A Deployment or a StatefulSet without a queue."""
    container = {"name": "main", "image": "python:3", "resources": {"limits": {GPU: gpus}}}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return manifest(kind, name, in_namespace, spec=spec)
