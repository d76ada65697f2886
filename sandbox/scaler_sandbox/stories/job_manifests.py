"""The objects of stories with Jobs: queues in one cohort, Jobs in them, and what makes a Job a reclaim candidate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler_sandbox.kinds import Json

NAMESPACE = "research"
COHORT = "research"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A Job that holds GPUs before the gang comes."""

    name: str
    team: str
    gpus: int
    works: bool = False
    annotations: Mapping[str, str] | None = None
    """Of its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimTiming:
    """In seconds, and as trigger metadata writes them."""

    patience: float = 30.0
    watches: float = 2.0
    """How long idle Jobs have to keep running while no Workload is pending."""
    idle_after: str = "30m"
    idle_after_under_pressure: str = "4s"
    warm_up: str = "1s"
    cooldown_seconds: int = 1


def queues(teams: Mapping[str, int], *, checks: Mapping[str, Sequence[str]] | None = None) -> list[Json]:
    """The namespace, the flavor, and for every team a ClusterQueue in the cohort and a LocalQueue.

    `teams` are GPUs by team, `checks` the AdmissionChecks of a team's queue.
    """
    checks = checks or {}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "gpu"}, "spec": {}},
        *(_cluster_queue(team, gpus, checks.get(team, ())) for team, gpus in teams.items()),
        *(_local_queue(team) for team in teams),
    ]


def _cluster_queue(name: str, gpus: int, checks: Sequence[str]) -> Json:
    flavor = {"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    passed = {"admissionChecksStrategy": {"admissionChecks": [{"name": check} for check in checks]}} if checks else {}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "cohortName": COHORT,
            "namespaceSelector": {},
            "queueingStrategy": "StrictFIFO",
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
            **passed,
        },
    }


def _local_queue(name: str) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"clusterQueue": name},
    }


def job(name: str, team: str, *, gpus: int, pods: int = 1, annotations: Mapping[str, str] | None = None) -> Json:
    """A Job of the team's queue, `gpus` and `annotations` for each of its pods."""
    amount = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "python:3", "resources": {"requests": amount, "limits": amount}}
    template: Json = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    if annotations:
        template["metadata"] = {"annotations": dict(annotations)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": {"kueue.x-k8s.io/queue-name": team}},
        "spec": {"parallelism": pods, "completions": pods, "suspend": True, "template": template},
    }


def scaling(name: str, scaler_address: str, timing: ReclaimTiming) -> list[Json]:
    """What makes the Job a reclaim candidate: its ScalableWorkload, and a ScaledObject with `reclaim: OnPressure`."""
    target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind}
    metadata = {
        "scalerAddress": scaler_address,
        "idleAfter": timing.idle_after,
        "reclaim": "OnPressure",
        "idleAfterUnderPressure": timing.idle_after_under_pressure,
        "warmUp": timing.warm_up,
    }
    return [
        {
            **target,
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {"replicas": 1, "jobRef": {"apiVersion": "batch/v1", "kind": "Job", "name": name}},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "scaleTargetRef": {**target, "name": name},
                "minReplicaCount": 0,
                "maxReplicaCount": 1,
                "cooldownPeriod": timing.cooldown_seconds,
                "triggers": [{"type": "external-push", "metadata": metadata}],
            },
        },
    ]
