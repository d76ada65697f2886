"""RayCluster → pods: one head, and the workers of each group; none while it is suspended.

`status.state` is sticky, as KubeRay's is: once `ready` it stays so until the last pod of a suspended cluster is gone,
and Kueue takes the cluster to be active that long. Other pods of the same group are awaited before new ones are made.
"""

from dataclasses import dataclass
from datetime import datetime

from scaler.kube.objects.resources import RAY_CLUSTER
from scaler_sandbox.actions import Action, status_patch
from scaler_sandbox.kinds import Json
from scaler_sandbox.operators.pods import (
    create_pod,
    delete_pod,
    gpus_in,
    is_alive,
    is_ending,
    is_ready,
    is_terminal,
    label,
)

_HEAD_GROUP = "headgroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    name: str
    node_type: str
    size: int
    template: Json


def _groups(cluster: Json) -> list[_Group]:
    spec = cluster["spec"]
    head = _Group(name=_HEAD_GROUP, node_type="head", size=1, template=spec["headGroupSpec"]["template"])
    workers = [
        _Group(
            name=each["groupName"],
            node_type="worker",
            size=each.get("replicas", 0) * each.get("numOfHosts", 1),
            template=each["template"],
        )
        for each in spec.get("workerGroupSpecs") or ()
    ]
    return [head, *workers]


def plan_ray_cluster(cluster: Json, pods: list[Json], *, now: datetime) -> list[Action]:
    """What the cluster needs next. `pods` are its own."""
    del now
    if cluster["spec"].get("suspend"):
        actions: list[Action] = [delete_pod(cluster, pod) for pod in pods if not is_ending(pod)]
    else:
        actions = [action for group in _groups(cluster) for action in _plan_group(cluster, group, pods)]
    status = status_patch(RAY_CLUSTER, cluster, _status(cluster, pods))
    return [*actions, *([status] if status else [])]


def _plan_group(cluster: Json, group: _Group, pods: list[Json]) -> list[Action]:
    members = [pod for pod in pods if label(pod, "ray.io/group") == group.name]
    alive = [pod for pod in members if is_alive(pod)]
    ended: list[Action] = [delete_pod(cluster, pod) for pod in members if is_terminal(pod) and not is_ending(pod)]
    surplus: list[Action] = [delete_pod(cluster, pod) for pod in alive[group.size :]]
    return [*ended, *surplus, *[_create(cluster, group) for _ in range(group.size - len(members))]]


def _create(cluster: Json, group: _Group) -> Action:
    name = cluster["metadata"]["name"]
    base = f"{name}-head" if group.node_type == "head" else f"{name}-{group.name}-worker"
    labels = {
        "ray.io/cluster": name,
        "ray.io/node-type": group.node_type,
        "ray.io/group": group.name,
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    return create_pod(cluster, base, group.template, labels=labels)


def _status(cluster: Json, pods: list[Json]) -> Json:
    groups = _groups(cluster)
    workers = [group for group in groups if group.node_type == "worker"]
    ready = [pod for pod in pods if is_ready(pod)]
    ready_workers = [pod for pod in ready if label(pod, "ray.io/node-type") == "worker"]
    gpus = sum(gpus_in(group.template.get("spec") or {}) * group.size for group in groups)
    return {
        **(cluster.get("status") or {}),
        "state": _state(cluster, pods, is_complete=len(ready) == sum(group.size for group in groups)),
        "desiredWorkerReplicas": sum(group.size for group in workers),
        "readyWorkerReplicas": len(ready_workers),
        "availableWorkerReplicas": len(ready_workers),
        "desiredGPU": str(gpus),
        "observedGeneration": cluster["metadata"].get("generation", 1),
    }


def _state(cluster: Json, pods: list[Json], *, is_complete: bool) -> str:
    before = str((cluster.get("status") or {}).get("state", ""))
    if cluster["spec"].get("suspend"):
        return before if pods else "suspended"
    if is_complete:
        return "ready"
    return "" if before == "suspended" else before
