"""The objects of one run of the suite: queues, a check with its policy, gangs. All carry the run's label."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaler.app import packaged
from scaler.kube.objects.resources import RECLAIM_POLICY, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.scheduling import Taint

Json = dict[str, Any]

RUN_LABEL = "e2e.idlegpu.io/run"
"""On everything that the suite makes, and on the nodes that its pods are sent to. What carries it may be deleted."""
KEEP_OFF = Taint(key="e2e.idlegpu.io/node", value="fake", effect="NoSchedule")
"""Of the suite's nodes: nobody else's pod may land on one."""
CONTROLLER = "idlegpu.io/reclaim"
QUEUE = "gpus"
"""The LocalQueue."""
GPU = "nvidia.com/gpu"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def named(run: str, name: str = "", namespace: str = "") -> Json:
    """Metadata of an object of the run."""
    metadata: Json = {"name": name or run, "labels": {RUN_LABEL: run}}
    return metadata | {"namespace": namespace} if namespace else metadata


def namespace(run: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": named(run)}


def account(run: str) -> list[Json]:
    """The program's ServiceAccount and roles as they are installed, under the run's names and in its namespace."""
    return [_renamed(run, body) for body in packaged.account() if body["kind"] != "Namespace"]


def _renamed(run: str, body: Json) -> Json:
    def of(name: str) -> str:
        return f"{run}-{name}"

    cluster_wide = body["kind"].startswith("Cluster")
    metadata = named(run, of(body["metadata"]["name"]), "" if cluster_wide else run)
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
            "metadata": named(run),
            "spec": {"nodeLabels": {RUN_LABEL: run}},
        },
        {
            "apiVersion": _KUEUE,
            "kind": "ClusterQueue",
            "metadata": named(run),
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
                **guarded_by(checks),
            },
        },
        {
            "apiVersion": _KUEUE,
            "kind": "LocalQueue",
            "metadata": named(run, QUEUE, run),
            "spec": {"clusterQueue": run},
        },
    ]


def guarded_by(checks: Sequence[str]) -> Json:
    """The part of a ClusterQueue's `spec` that names its checks."""
    return {"admissionChecksStrategy": {"admissionChecks": [{"name": each} for each in checks]}} if checks else {}


def check(run: str) -> Json:
    """Our AdmissionCheck. Its parameters are the run's ReclaimPolicy, which need not be there."""
    parameters = {"apiGroup": RECLAIM_POLICY.group, "kind": RECLAIM_POLICY.kind, "name": run}
    return {
        "apiVersion": _KUEUE,
        "kind": "AdmissionCheck",
        "metadata": named(run),
        "spec": {"controllerName": CONTROLLER, "parameters": parameters},
    }


def policy(run: str, spec: Json) -> Json:
    return {
        "apiVersion": RECLAIM_POLICY.api_version,
        "kind": RECLAIM_POLICY.kind,
        "metadata": named(run),
        "spec": spec,
    }


def priority(run: str, value: int) -> Json:
    """The one WorkloadPriorityClass of the run; Workloads without it have 0."""
    return {"apiVersion": _KUEUE, "kind": "WorkloadPriorityClass", "metadata": named(run), "value": value}


def job(run: str, name: str, *, pods: int, gpus: int, is_preferred: bool = False, ends_in: str = "1s") -> Json:
    """A gang of so many pods of so many GPUs each. Told to stop, each pod takes that long to end."""
    labels = {"kueue.x-k8s.io/queue-name": QUEUE}
    if is_preferred:
        labels["kueue.x-k8s.io/priority-class"] = run
    amount = {GPU: str(gpus)}
    metadata = named(run, name, run)
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
                    "tolerations": [{"key": KEEP_OFF.key, "operator": "Exists", "effect": KEEP_OFF.effect}],
                    "containers": [
                        {"name": "main", "image": "train:1", "resources": {"requests": amount, "limits": amount}}
                    ],
                },
            },
        },
    }


def scaling(run: str, name: str, scaler_address: str) -> list[Json]:
    """What lets a plan take the Job once its GPUs are idle: a ScalableWorkload, and a ScaledObject in a hurry."""
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
            "metadata": named(run, name, run),
            "spec": {"replicas": 1, "jobRef": {"apiVersion": "batch/v1", "kind": "Job", "name": name}},
        },
        {
            "apiVersion": SCALED_OBJECT.api_version,
            "kind": SCALED_OBJECT.kind,
            "metadata": named(run, name, run),
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
