"""Objects as they are kept answer what is asked of them as the whole ones do."""

import sys
from dataclasses import fields, replace

import msgspec
import pytest
from builders import GPUS
from hypothesis import given
from hypothesis import strategies as st

from scaler.app.kept_objects import kept_pods, kept_scalable_workload, kept_scaled_object, kept_workload
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.gpu_pods import gpu_pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_workloads import Workload
from scaler.placement.node_watch import holds_no_node, requests_of
from scaler.quota.from_objects.pod_nodes import marked_pod_sets
from scaler.quota.from_objects.workloads import quota_workload_of
from scaler.targets.cluster_state import SLICE_ANNOTATION, WORKLOAD_ANNOTATION, job_key, pod_indexes
from scaler.targets.workloads import observe, owner_key

STARTED = "2026-12-01T09:00:00Z"
OWNERS = st.sampled_from(
    [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r"},
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j"},
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "n"},
    ]
)
LABELS = st.dictionaries(
    st.sampled_from(["app", "batch.kubernetes.io/job-name", "ray.io/cluster", "kueue.x-k8s.io/podset"]),
    st.sampled_from(["x", "y"]),
)
STATES = st.sampled_from(
    [
        {"running": {"startedAt": STARTED}},
        {"running": {}},
        {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": STARTED}},
        {"terminated": {"exitCode": 1}},
        {"waiting": {"reason": "CrashLoopBackOff"}},
        {},
    ]
)
UNPLACED = {"type": "PodScheduled", "status": "False", "message": "0/5 nodes are available"}


ODD = 2
"""So many GPUs have a name that is not known."""


def container(name, gpus, sidecar=False):
    name_of_gpu = "nvidia.com/a100" if gpus == ODD else "nvidia.com/gpu"
    requests = {"cpu": "1", "memory": "1Gi"} | ({name_of_gpu: str(gpus)} if gpus else {})
    return {"name": name, "resources": {"requests": requests}} | ({"restartPolicy": "Always"} if sidecar else {})


PODS = st.builds(
    lambda labels, owners, names, gpus, node, phase, states, gone, restart, since: decode(
        Pod,
        msgspec.json.encode(
            {
                "metadata": {
                    "name": "a",
                    "namespace": "ns",
                    "uid": "u",
                    "resourceVersion": "1",
                    "labels": labels,
                    "annotations": {"other": "1"} | dict.fromkeys(names, "gang"),
                    "ownerReferences": [{**each, "controller": True} for each in owners],
                    **({"deletionTimestamp": STARTED} if gone else {}),
                    "creationTimestamp": STARTED,
                },
                "spec": {
                    "nodeName": node,
                    "restartPolicy": restart,
                    "containers": [container("main", gpus)],
                    "initContainers": [container("side", gpus, sidecar=True)],
                },
                "status": {
                    "phase": phase,
                    "conditions": [UNPLACED],
                    **({"startTime": "2026-12-01T09:00:05Z"} if since else {}),
                    "containerStatuses": [{"name": "main", "state": states[0]}],
                    "initContainerStatuses": [{"name": "side", "state": states[1]}],
                },
            }
        ),
    ),
    labels=LABELS,
    owners=st.lists(OWNERS, max_size=2),
    names=st.sets(st.sampled_from([WORKLOAD_ANNOTATION, SLICE_ANNOTATION])),
    gpus=st.integers(0, 2),
    node=st.sampled_from(["", "node-a"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    states=st.tuples(STATES, STATES),
    gone=st.booleans(),
    restart=st.sampled_from(["Always", "OnFailure", "Never"]),
    since=st.booleans(),
)


def keys(pod, index):
    """Under which the index files the pod, of owners those that may have a Workload."""
    found = set(pod_indexes(GPUS)[index](pod))
    return found - {"r", "n"} if index == "owner" else found


@given(PODS, st.booleans())
def test_a_pod_that_is_kept_says_what_the_whole_one_says(pod, with_nodes):
    kept = kept_pods(GPUS, with_nodes=with_nodes)(pod)
    found = {index: keys(pod, index) for index in pod_indexes(GPUS)}
    if kept is None:
        assert not any(found.values()), "no index would have found it"
        assert not with_nodes or holds_no_node(pod), "it holds nothing of a node"
        return
    assert {index: keys(kept, index) for index in found} == found
    assert gpu_pod(kept, GPUS) == gpu_pod(pod, GPUS)
    assert (holds_no_node(kept), requests_of(kept.spec)) == (holds_no_node(pod), requests_of(pod.spec))
    assert kept.metadata.key == pod.metadata.key
    assert (kept.metadata.uid, kept.metadata.resource_version) == ("u", "1")
    assert kept.metadata.annotations.get(WORKLOAD_ANNOTATION) == pod.metadata.annotations.get(WORKLOAD_ANNOTATION)
    if GPUS.may_be_held_by(pod.spec):
        assert kept.metadata.labels == pod.metadata.labels


def workload(*, affinity):
    selector = {"labelSelector": {"matchLabels": {"app": "train"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}
    spec = {"containers": [container("main", 8)]} | ({"affinity": apart} if affinity else {})
    template = {"metadata": {"labels": {"app": "train", "job-name": "train"}}, "spec": spec}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    flavors = {"name": "main", "count": 2, "flavors": {"cpu": "a100"}, "resourceUsage": {"cpu": "2"}}
    conditions = [
        {"type": each, "status": "True", "lastTransitionTime": STARTED} for each in ("QuotaReserved", "Admitted")
    ]
    last_applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    return decode(
        Workload,
        msgspec.json.encode(
            {
                "metadata": {
                    "name": "gang",
                    "namespace": "ns",
                    "uid": "w",
                    "resourceVersion": "7",
                    "generation": 3,
                    "creationTimestamp": STARTED,
                    "labels": {"kueue.x-k8s.io/job-uid": "j", "kueue.x-k8s.io/multikueue-origin": "multikueue"},
                    "annotations": {"idlegpu.io/suspended": "{}", **last_applied},
                    "ownerReferences": [owner],
                },
                "spec": {"queueName": "user-queue", "podSets": [{"name": "main", "count": 2, "template": template}]},
                "status": {
                    "conditions": conditions,
                    "admission": {"clusterQueue": "all", "podSetAssignments": [flavors]},
                },
            }
        ),
    )


def quota_of(workload):
    """Field by field: the values themselves are compared by identity."""
    found = quota_workload_of(workload)
    return [getattr(found, each.name) for each in fields(found)]


@pytest.mark.parametrize("affinity", [True, False])
def test_a_workload_that_is_kept_says_what_the_whole_one_says(affinity):
    whole = workload(affinity=affinity)
    kept = kept_workload(whole)
    for says in (
        owner_key,
        job_key,
        marked_pod_sets,
        lambda each: replace(observe(each, GPUS), annotations={}),  # of which it keeps ours
        quota_of,
        lambda each: each.status,
        lambda each: each.metadata.generation,
        lambda each: each.is_remote_copy,
    ):
        assert says(kept) == says(whole)
    assert set(kept.metadata.annotations) == {"idlegpu.io/suspended"}


def test_equal_parts_of_many_objects_are_one():
    one, other = (kept_workload(workload(affinity=False)) for _ in range(2))
    assert one.spec.pod_sets[0] is other.spec.pod_sets[0]
    assert one.status.admission is other.status.admission


def scaled_object():
    trigger = {"type": "external-push", "metadata": {"scalerAddress": "scaler:9090", "idleAfter": "30m"}}
    metadata = {
        "name": "train",
        "namespace": "ns",
        "uid": "s",
        "resourceVersion": "3",
        "labels": {"app": "train"},
        "annotations": {"idlegpu.io/wake": "true", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    spec = {"scaleTargetRef": {"name": "train"}, "triggers": [trigger], "fallback": {"failureThreshold": 3}}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def test_a_scaled_object_is_kept_without_what_only_kubectl_reads():
    whole = decode(ScaledObject, msgspec.json.encode(scaled_object()))
    kept = kept_scaled_object(whole)
    assert (kept.spec, kept.status, kept.metadata.labels) == (whole.spec, whole.status, whole.metadata.labels)
    assert kept.metadata.annotations == {"idlegpu.io/wake": "true"}
    assert kept.spec.triggers[0] is kept_scaled_object(whole).spec.triggers[0]


def scalable_workload():
    gpu = {"pod": "train-0", "gpu": "GPU-0", "verdict": "Idle", "signals": [{"name": "gpu_util", "peakPercent": "0"}]}
    status = {
        "phase": "Running",
        "message": "every GPU is idle",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": STARTED}],
        "evidence": [gpu, {**gpu, "gpu": "GPU-1"}],
        "grant": {"plan": "p", "victims": ["ns/train"], "grantedAt": STARTED, "expiresAt": STARTED},
    }
    metadata = {"name": "train", "namespace": "ns", "uid": "s", "resourceVersion": "3", "annotations": {"a": "b"}}
    return {"metadata": metadata, "spec": {"replicas": 1, "workloadRef": {"name": "gang"}}, "status": status}


def test_a_scalable_workload_is_kept_whole_and_holds_nothing_of_the_response_that_it_came_in():
    body = msgspec.json.encode(scalable_workload())
    references = sys.getrefcount(body)
    whole = decode(ScalableWorkload, body)
    kept = kept_scalable_workload(whole)
    assert kept == whole
    assert msgspec.json.decode(msgspec.json.encode(kept.status.evidence)) == scalable_workload()["status"]["evidence"]
    assert sys.getrefcount(body) > references, "what is decoded does"
    del whole
    assert sys.getrefcount(body) == references
