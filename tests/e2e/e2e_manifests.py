"""The objects of one run of the suite: queues, a check with its policy, gangs. All have the run's label."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaler_sandbox import packaged

from scaler.kube.objects.resources import RECLAIM_POLICY, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.scheduling import Taint

Json = dict[str, Any]

RUN_LABEL = "e2e.idlegpu.io/run"
"""On every object of the suite, and on the nodes of its pods. What has it may be deleted."""
NODE_TAINT = Taint(key="e2e.idlegpu.io/node", value="fake", effect="NoSchedule")
"""Of the suite's nodes: no other pod is scheduled there."""
CONTROLLER = "idlegpu.io/reclaim"
QUEUE = "gpus"
"""The LocalQueue."""
GPU = "nvidia.com/gpu"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def object_meta(run: str, name: str = "", namespace: str = "") -> Json:
    """Metadata of an object of the run."""
    metadata: Json = {"name": name or run, "labels": {RUN_LABEL: run}}
    return metadata | {"namespace": namespace} if namespace else metadata


def namespace(run: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": object_meta(run)}


def account(run: str) -> list[Json]:
    """The program's ServiceAccount and roles as they are installed, under the run's names and in its namespace."""
    return [_renamed(run, body) for body in packaged.account() if body["kind"] != "Namespace"]


def _renamed(run: str, body: Json) -> Json:
    def of(name: str) -> str:
        return f"{run}-{name}"

    cluster_wide = body["kind"].startswith("Cluster")
    metadata = object_meta(run, of(body["metadata"]["name"]), "" if cluster_wide else run)
    renamed = {**body, "metadata": metadata}
    if "roleRef" in body:
        renamed["roleRef"] = body["roleRef"] | {"name": of(body["roleRef"]["name"])}
        renamed["subjects"] = [each | {"name": of(each["name"]), "namespace": run} for each in body["subjects"]]
    return renamed


def service_account(run: str) -> str:
    """Its name."""
    return f"{run}-{packaged.SERVICE_ACCOUNT}"


def queues(run: str, *, gpus: int, checks: Sequence[str], preempts: bool, strategy: str) -> list[Json]:
    """A flavor for the run's own nodes, a ClusterQueue with that quota of it, and a LocalQueue."""
    return [
        {
            "apiVersion": _KUEUE,
            "kind": "ResourceFlavor",
            "metadata": object_meta(run),
            "spec": {"nodeLabels": {RUN_LABEL: run}},
        },
        {
            "apiVersion": _KUEUE,
            "kind": "ClusterQueue",
            "metadata": object_meta(run),
            "spec": {
                "queueingStrategy": strategy,
                "namespaceSelector": {"matchLabels": {RUN_LABEL: run}},
                "preemption": {"withinClusterQueue": "LowerPriority" if preempts else "Never"},
                "resourceGroups": [
                    {
                        "coveredResources": [GPU],
                        "flavors": [{"name": run, "resources": [{"name": GPU, "nominalQuota": gpus}]}],
                    }
                ],
                **admission_checks(checks),
            },
        },
        {
            "apiVersion": _KUEUE,
            "kind": "LocalQueue",
            "metadata": object_meta(run, QUEUE, run),
            "spec": {"clusterQueue": run},
        },
    ]


def admission_checks(checks: Sequence[str]) -> Json:
    """The part of a ClusterQueue's `spec` that names its checks."""
    return {"admissionChecksStrategy": {"admissionChecks": [{"name": each} for each in checks]}} if checks else {}


def check(run: str) -> Json:
    """Our AdmissionCheck. Its parameters are the run's ReclaimPolicy, which need not be there."""
    parameters = {"apiGroup": RECLAIM_POLICY.group, "kind": RECLAIM_POLICY.kind, "name": run}
    return {
        "apiVersion": _KUEUE,
        "kind": "AdmissionCheck",
        "metadata": object_meta(run),
        "spec": {"controllerName": CONTROLLER, "parameters": parameters},
    }


def policy(run: str, spec: Json) -> Json:
    return {
        "apiVersion": RECLAIM_POLICY.api_version,
        "kind": RECLAIM_POLICY.kind,
        "metadata": object_meta(run),
        "spec": spec,
    }


def priority(run: str, value: int) -> Json:
    """The one WorkloadPriorityClass of the run; Workloads without it have 0."""
    return {"apiVersion": _KUEUE, "kind": "WorkloadPriorityClass", "metadata": object_meta(run), "value": value}


def job(run: str, name: str, *, pods: int, gpus: int, is_preferred: bool = False, ends_in: str = "1s") -> Json:
    """A gang of so many pods of so many GPUs each. Once it is deleted, a pod takes `ends_in` to end."""
    labels = {"kueue.x-k8s.io/queue-name": QUEUE}
    if is_preferred:
        labels["kueue.x-k8s.io/priority-class"] = run
    amount = {GPU: str(gpus)}
    metadata = object_meta(run, name, run)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata | {"labels": metadata["labels"] | labels},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 100,
            "suspend": True,
            "template": {
                "metadata": {"annotations": {"demo.idlegpu.io/termination": ends_in}},
                "spec": {
                    "restartPolicy": "Never",
                    "tolerations": [{"key": NODE_TAINT.key, "operator": "Exists", "effect": NODE_TAINT.effect}],
                    "containers": [
                        {"name": "main", "image": "train:1", "resources": {"requests": amount, "limits": amount}}
                    ],
                },
            },
        },
    }


def scaling(run: str, name: str, scaler_address: str) -> list[Json]:
    """A ScalableWorkload and a ScaledObject with short times: a plan may take the Job once its GPUs are idle."""
    target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind}
    metadata: Mapping[str, str] = {
        "scalerAddress": scaler_address,
        "reclaim": "OnPressure",
        "idleAfter": "30m",
        "idleAfterUnderPressure": "3s",
        "warmUp": "0s",
    }
    return [
        {
            **target,
            "metadata": object_meta(run, name, run),
            "spec": {"replicas": 1, "jobRef": {"apiVersion": "batch/v1", "kind": "Job", "name": name}},
        },
        {
            "apiVersion": SCALED_OBJECT.api_version,
            "kind": SCALED_OBJECT.kind,
            "metadata": object_meta(run, name, run),
            "spec": {
                "scaleTargetRef": {**target, "name": name},
                "minReplicaCount": 0,
                "maxReplicaCount": 1,
                "pollingInterval": 1,
                "cooldownPeriod": 1,
                "triggers": [{"type": "external-push", "metadata": dict(metadata)}],
            },
        },
    ]
