"""The resources that the simulated controllers need beyond those of the program."""

from typing import Any

from scaler.kube.objects.resources import Resource

Json = dict[str, Any]
"""A Kubernetes object or a part of one, as the API shows it."""

SERVICE_ACCOUNT = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount")
WORKLOAD_PRIORITY_CLASS = Resource(
    group="kueue.x-k8s.io",
    version="v1beta2",
    plural="workloadpriorityclasses",
    kind="WorkloadPriorityClass",
    namespaced=False,
)


def _ocm(version: str, plural: str, kind: str, *, namespaced: bool) -> Resource:
    group = "cluster.open-cluster-management.io"
    return Resource(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)


MANAGED_CLUSTER = _ocm("v1", "managedclusters", "ManagedCluster", namespaced=False)
PLACEMENT = _ocm("v1beta1", "placements", "Placement", namespaced=True)
