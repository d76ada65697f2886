"""Pods as their owners see them: made from a template, owned, and counted by what state they are in."""

import secrets
from collections.abc import Iterable, Mapping

from scaler.kube.objects.resources import POD
from scaler_sandbox.actions import Create, Delete, RecordEvent
from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json

GPU = "nvidia.com/gpu"
_LONGEST_BASE = 57
"""Five random characters and a hyphen fit behind it in a label value of 63."""


def owned(objects: Iterable[Json], owner: Json) -> list[Json]:
    """The objects that this one controls, oldest first."""
    uid = owner["metadata"]["uid"]
    mine = [each for each in objects if controller_uid(each) == uid]
    return sorted(mine, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))


def controller_uid(body: Json) -> str:
    """The uid of what controls it; empty where nothing does."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_ending(pod: Json) -> bool:
    """Whether it is marked for deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_terminal(pod: Json) -> bool:
    """Whether its containers have stopped for good."""
    return phase(pod) in ("Succeeded", "Failed")


def is_alive(pod: Json) -> bool:
    """Whether it runs or is about to."""
    return not is_ending(pod) and not is_terminal(pod)


def is_ready(pod: Json) -> bool:
    return is_alive(pod) and phase(pod) == "Running" and has(pod, "Ready")


def label(pod: Json, key: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(key, ""))


def create_pod(owner: Json, base_name: str, template: Json, *, labels: Mapping[str, str] | None = None) -> Create:
    """A new pod of the owner, with a name of its own."""
    metadata = template.get("metadata") or {}
    name = f"{base_name[:_LONGEST_BASE]}-{secrets.token_hex(3)[:5]}"
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **(labels or {})},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [reference],
        },
        "spec": template.get("spec") or {},
    }
    note = RecordEvent(reason="SuccessfulCreate", message=f"Created pod: {name}", about=owner)
    return Create(resource=POD, body=body, notes=(note,))


def delete_pod(owner: Json, pod: Json) -> Delete:
    """The deletion of the pod."""
    note = RecordEvent(reason="SuccessfulDelete", message=f"Deleted pod: {pod['metadata']['name']}", about=owner)
    return Delete(resource=POD, observed=pod, notes=(note,))


def gpus_in(pod_spec: Json) -> int:
    """How many GPUs a pod of this spec requests."""
    return sum(gpus_of(container) for container in pod_spec.get("containers") or ())


def gpus_of(container: Json) -> int:
    """How many GPUs the container requests; a limit stands in for a request."""
    resources = container.get("resources") or {}
    return int({**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(GPU, 0))
