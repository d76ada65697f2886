"""Gangs that wait at a check, as objects of the API, and the answers that autoscalers write."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from builders import NOON, WorkloadJson

from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_queues import ResourceFlavor
from scaler.kube.objects.nodes import ProvisioningRequest

CHECK = "reclaim"
CLASS = "check-capacity.autoscaling.x-k8s.io"
GPU = "nvidia.com/gpu"
CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"


def pod_set(
    name: str = "main", count: int = 2, *, gpus: int = 8, metadata: Mapping[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A PodSet whose pods have one container; limits are written, requests only of CPU."""
    limits = {GPU: str(gpus)} if gpus else {}
    container = {"name": "c", "image": "train:1", "resources": {"requests": {"cpu": "1"}, "limits": limits}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never", **spec}}
    return {"name": name, "count": count, "template": ({"metadata": dict(metadata)} if metadata else {}) | template}


def gang(
    *pod_sets: Mapping[str, Any], name: str = "job-a", state: str = "Pending", flavor: str = "new"
) -> WorkloadJson:
    """A Workload with quota, held by the check."""
    found = WorkloadJson(name).with_pod_sets(*(pod_sets or (pod_set(),))).reserved()
    for assignment in found.json["status"]["admission"]["podSetAssignments"]:
        assignment["flavors"] = {GPU: flavor, "cpu": flavor}
    return found.with_status(admissionChecks=[entry(state)])


def entry(state: str = "Pending", *, consumes: str = "", name: str = CHECK) -> dict[str, Any]:
    updates = [{"name": "main", "annotations": {CONSUME: consumes}}] if consumes else []
    found = {"name": name, "state": state, "message": "", "lastTransitionTime": "2026-12-01T09:00:01Z"}
    return found | ({"podSetUpdates": updates} if updates else {})


def flavors(*given: Mapping[str, Any]) -> dict[str, ResourceFlavor]:
    """Flavor `new` on nodes with label pool=new, which tolerates their taint; others as given."""
    new = flavor("new", {"pool": "new"}, [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}])
    return {each["metadata"]["name"]: decode(ResourceFlavor, msgspec.json.encode(each)) for each in (new, *given)}


def flavor(name: str, labels: Mapping[str, str], tolerations: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeLabels": dict(labels), "tolerations": list(tolerations)}}


def condition(
    kind: str, status: bool = True, *, message: str = "", reason: str = "", since: datetime = NOON
) -> dict[str, Any]:
    written = f"{since:%Y-%m-%dT%H:%M:%SZ}"
    told = {"reason": reason or kind, "message": message, "lastTransitionTime": written}
    return {"type": kind, "status": str(status), **told}


def provisioning_request(
    manifest: Mapping[str, Any],
    *conditions: Mapping[str, Any],
    details: Mapping[str, str] | None = None,
    **metadata: Any,
) -> ProvisioningRequest:
    """The request as it stands in the API after an autoscaler has answered."""
    given = {**manifest["metadata"], "uid": "u-1", "creationTimestamp": "2026-12-01T11:00:00Z", **metadata}
    status = {"conditions": list(conditions), "provisioningClassDetails": dict(details or {})}
    return decode(ProvisioningRequest, msgspec.json.encode({**manifest, "metadata": given, "status": status}))
