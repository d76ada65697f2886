"""Which resources the simulated controllers talk about, beyond those that the program itself does."""

from typing import Any

from scaler.kube.objects.resources import (
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)

Json = dict[str, Any]
"""A Kubernetes object or a part of one, as the API shows it."""

_KUEUE = "kueue.x-k8s.io"


def _of_kueue(plural: str, kind: str, *, namespaced: bool) -> Resource:
    return Resource(group=_KUEUE, version="v1beta2", plural=plural, kind=kind, namespaced=namespaced)


NAMESPACE = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
NODE = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
SERVICE_ACCOUNT = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
COHORT = _of_kueue("cohorts", "Cohort", namespaced=False)
CLUSTER_QUEUE = _of_kueue("clusterqueues", "ClusterQueue", namespaced=False)
LOCAL_QUEUE = _of_kueue("localqueues", "LocalQueue", namespaced=True)
RESOURCE_FLAVOR = _of_kueue("resourceflavors", "ResourceFlavor", namespaced=False)
ADMISSION_CHECK = _of_kueue("admissionchecks", "AdmissionCheck", namespaced=False)
PROVISIONING_REQUEST_CONFIG = _of_kueue("provisioningrequestconfigs", "ProvisioningRequestConfig", namespaced=False)
WORKLOAD_PRIORITY_CLASS = _of_kueue("workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)

__all__ = [
    "ADMISSION_CHECK",
    "CLUSTER_QUEUE",
    "COHORT",
    "CUSTOM_RESOURCE_DEFINITION",
    "DEPLOYMENT",
    "EVENT",
    "JOB",
    "LOCAL_QUEUE",
    "NAMESPACE",
    "NODE",
    "POD",
    "POD_TEMPLATE",
    "PROVISIONING_REQUEST",
    "PROVISIONING_REQUEST_CONFIG",
    "RAY_CLUSTER",
    "RESOURCE_FLAVOR",
    "SCALED_OBJECT",
    "SERVICE_ACCOUNT",
    "WORKLOAD",
    "WORKLOAD_PRIORITY_CLASS",
    "Json",
    "Resource",
]
