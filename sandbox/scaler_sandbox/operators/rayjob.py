"""RayJob → the RayCluster that it runs on, which is deleted while the RayJob is suspended and made anew after that.

| `status.jobDeploymentStatus` | `spec.suspend` | its RayCluster | next                                            |
|------------------------------|----------------|----------------|-------------------------------------------------|
| none                         | any            | –              | Initializing, with the name of a new RayCluster |
| Initializing, Running        | true           | any            | Suspending                                      |
| Initializing                 | false          | none           | the RayCluster is created                       |
| Initializing                 | false          | ready          | Running                                         |
| Suspending                   | any            | there          | the RayCluster is deleted                       |
| Suspending                   | any            | none           | Suspended, without a name                       |
| Suspended                    | false          | –              | none                                            |

Nothing submits the job, so it runs until it is deleted. The RayCluster has the labels of the RayJob, that of its queue
too; Kueue knows by its owner that the RayJob is what it admits. Source: KubeRay, rayjob_controller.go.
"""

import secrets
from datetime import datetime

from scaler.kube.objects.resources import RAY_CLUSTER, RAY_JOB
from scaler_sandbox.actions import Action, Create, Delete, RecordEvent, status_patch
from scaler_sandbox.conditions import timestamp
from scaler_sandbox.kinds import Json

_LONGEST_BASE = 41
"""KubeRay cuts the RayJob's name so that pods and services of the RayCluster still get valid names."""
_SUSPENDED: Json = {"jobDeploymentStatus": "Suspended", "jobStatus": "", "rayClusterName": "", "rayClusterStatus": None}


def plan_ray_job(job: Json, clusters: list[Json], *, now: datetime) -> list[Action]:
    """What the RayJob needs next. `clusters` are its own."""
    status = job.get("status") or {}
    is_suspended = bool(job["spec"].get("suspend"))
    match status.get("jobDeploymentStatus", ""):
        case "":
            return _becomes(job, _initial(job, now))
        case "Initializing" | "Running" if is_suspended:
            return _becomes(job, {"jobDeploymentStatus": "Suspending"})
        case "Initializing":
            return _initialize(job, clusters)
        case "Suspending":
            return _suspend(job, clusters)
        case "Suspended" if not is_suspended:
            return _becomes(job, {"jobDeploymentStatus": ""})
    return []


def _becomes(job: Json, change: Json) -> list[Action]:
    status = {key: value for key, value in ((job.get("status") or {}) | change).items() if value is not None}
    patch = status_patch(RAY_JOB, job, status)
    return [patch] if patch else []


def _initial(job: Json, now: datetime) -> Json:
    name = f"{job['metadata']['name'][:_LONGEST_BASE]}-{secrets.token_hex(3)[:5]}"
    return {"jobDeploymentStatus": "Initializing", "rayClusterName": name, "startTime": timestamp(now)}


def _initialize(job: Json, clusters: list[Json]) -> list[Action]:
    if not clusters:
        return [_create(job)]
    state = (clusters[0].get("status") or {}).get("state", "")
    running = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"} if state == "ready" else {}
    return _becomes(job, {"rayClusterStatus": {"state": state}, **running})


def _suspend(job: Json, clusters: list[Json]) -> list[Action]:
    if not clusters:
        return _becomes(job, _SUSPENDED)
    return [_delete(job, each) for each in clusters if not each["metadata"].get("deletionTimestamp")]


def _create(job: Json) -> Create:
    metadata, name = job["metadata"], job["status"]["rayClusterName"]
    origin = {"ray.io/originated-from-cr-name": metadata["name"], "ray.io/originated-from-crd": RAY_JOB.kind}
    owner = {
        "apiVersion": RAY_JOB.api_version,
        "kind": RAY_JOB.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    body = {
        "apiVersion": RAY_CLUSTER.api_version,
        "kind": RAY_CLUSTER.kind,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": (metadata.get("labels") or {}) | origin,
            "ownerReferences": [owner],
        },
        "spec": job["spec"]["rayClusterSpec"],
    }
    note = RecordEvent(reason="CreatedRayCluster", message=f"Created RayCluster {name}", about=job)
    return Create(resource=RAY_CLUSTER, body=body, notes=(note,))


def _delete(job: Json, cluster: Json) -> Delete:
    message = f"Deleted RayCluster {cluster['metadata']['name']}"
    note = RecordEvent(reason="DeletedRayCluster", message=message, about=job)
    return Delete(resource=RAY_CLUSTER, observed=cluster, notes=(note,))
