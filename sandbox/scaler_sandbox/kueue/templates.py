"""What Kueue writes into pod templates when a job starts, and takes out of them when it stops.

Pods get their Workload's name, their pod set and their queues this way, and the node labels of the flavor that they
were admitted with. These identify the pods of a Workload.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.jobs import (
    CLUSTER_QUEUE_NAME,
    LOCAL_QUEUE_NAME,
    MULTIKUEUE_ORIGIN,
    POD_SET,
    WORKER_POD,
    WORKLOAD_NAME,
    PodSet,
)

_OWN_LABELS = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
"""What the API server writes into the template of a Job, and which are immutable."""

_OUR_LABELS = (POD_SET, CLUSTER_QUEUE_NAME, LOCAL_QUEUE_NAME, WORKER_POD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What the pods of one pod set get in addition to what their job says."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Json] = ()


def injections(workload: Json, node_labels: Mapping[str, Mapping[str, str]]) -> dict[str, Injection]:
    """What the pods of each pod set of the admitted Workload get: queues, flavor and what admission checks want."""
    admission = workload["status"]["admission"]
    checks = workload["status"].get("admissionChecks") or []
    is_copy = MULTIKUEUE_ORIGIN in (workload["metadata"].get("labels") or {})
    result = {}
    for assignment in admission["podSetAssignments"]:
        name = assignment["name"]
        updates = [u for check in checks for u in check.get("podSetUpdates") or () if u["name"] == name]
        flavors = dict.fromkeys((assignment.get("flavors") or {}).values())
        result[name] = Injection(
            labels={
                POD_SET: name,
                CLUSTER_QUEUE_NAME: admission["clusterQueue"],
                LOCAL_QUEUE_NAME: workload["spec"].get("queueName", ""),
                **({WORKER_POD: "true"} if is_copy else {}),
                **_merged(updates, "labels"),
            },
            annotations={WORKLOAD_NAME: workload["metadata"]["name"], **_merged(updates, "annotations")},
            node_selector={
                **{key: value for flavor in flavors for key, value in node_labels.get(flavor, {}).items()},
                **_merged(updates, "nodeSelector"),
            },
            tolerations=[toleration for update in updates for toleration in update.get("tolerations") or ()],
        )
    return result


def _merged(updates: Sequence[Json], field_name: str) -> Json:
    return {key: value for update in updates for key, value in (update.get(field_name) or {}).items()}


def injected(template: Json, injection: Injection) -> Json:
    """The template as the pods shall be made."""
    metadata, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    _extend(metadata, "labels", injection.labels)
    _extend(metadata, "annotations", injection.annotations)
    _extend(spec, "nodeSelector", injection.node_selector)
    if injection.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *injection.tolerations]
    return {**template, "metadata": metadata, "spec": spec}


def _extend(owner: Json, key: str, more: Mapping[str, str]) -> None:
    if more:
        owner[key] = {**(owner.get(key) or {}), **more}


def is_injected(pod_sets: Sequence[PodSet]) -> bool:
    """Whether the job's templates are still those of a started job."""
    return any(POD_SET in ((each.template.get("metadata") or {}).get("labels") or {}) for each in pod_sets)


def restored(template: Json, original: Json) -> Json:
    """The template as it was before the job was started; containers are left as they are."""
    metadata, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    before = original.get("metadata") or {}
    own = {key: value for key, value in (metadata.get("labels") or {}).items() if key in _OWN_LABELS}
    _put_back(metadata, "labels", {**(before.get("labels") or {}), **own})
    _put_back(metadata, "annotations", before.get("annotations"))
    for key in ("nodeSelector", "tolerations"):
        _put_back(spec, key, (original.get("spec") or {}).get(key))
    return {**template, "metadata": metadata, "spec": spec}


def _put_back(owner: Json, key: str, value: object) -> None:
    owner.pop(key, None)
    if value:
        owner[key] = value


def as_workload_pod_sets(pod_sets: Sequence[PodSet]) -> list[Json]:
    """The pod sets as a Workload holds them: without what names the one Job that they were read from."""
    return [_as_workload_pod_set(each) for each in pod_sets]


def _as_workload_pod_set(pods: PodSet) -> Json:
    return {"name": pods.name, "count": pods.count, "template": _anonymous(pods.template)}


def _anonymous(template: Json) -> Json:
    metadata = dict(template.get("metadata") or {})
    metadata.pop("creationTimestamp", None)
    _put_back(metadata, "labels", _without(metadata.get("labels"), *_OWN_LABELS, *_OUR_LABELS))
    _put_back(metadata, "annotations", _without(metadata.get("annotations"), WORKLOAD_NAME))
    return {**template, "metadata": metadata}


def _without(mapping: Json | None, *keys: str) -> Json:
    return {key: value for key, value in (mapping or {}).items() if key not in keys}


def same_demand(pod_sets: Sequence[PodSet], workload: Json) -> bool:
    """Whether the Workload still asks for what the job runs. What Kueue itself injects is no difference."""
    asked: list[Json] = workload["spec"].get("podSets") or []
    return [_demand(each) for each in as_workload_pod_sets(pod_sets)] == [_demand(each) for each in asked]


def _demand(pod_set: Json) -> tuple[object, ...]:
    spec = pod_set["template"].get("spec") or {}
    return pod_set["name"], pod_set["count"], spec.get("containers"), spec.get("initContainers") or []
