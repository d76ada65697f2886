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
