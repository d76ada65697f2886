"""Two teams in a cohort, over the real HTTP API: what is lent is taken back by preemption, and pods end later."""

import dataclasses
from datetime import timedelta

from scaler_sandbox.conditions import has, reason_of
from scaler_sandbox.config import Component, SandboxConfig
from scaler_sandbox.kinds import EVENT, JOB, POD, Json
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.kueue import KueueConfig
from scaler_sandbox.sandbox import Sandbox

TEAMS = """
apiVersion: v1
kind: Namespace
metadata: {name: ml}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: gpus}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: all}
spec:
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: gpus, resources: [{name: nvidia.com/gpu, nominalQuota: 1}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: owner}
spec:
  cohortName: all
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ml}}
  preemption: {reclaimWithinCohort: Any}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: gpus, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: borrower}
spec:
  cohortName: all
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: gpus, resources: [{name: nvidia.com/gpu, nominalQuota: 0}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: owner, namespace: ml}
spec: {clusterQueue: owner}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: borrower, namespace: ml}
spec: {clusterQueue: borrower}
"""


def job(name: str, gpus: int, queue: str) -> Json:
    container = {"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {
            "parallelism": gpus,
            "completions": gpus,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }


def workload(world: Sandbox, name: str) -> Json:
    return world.workload_of(JOB, "ml", name) or {}


def running(world: Sandbox, name: str) -> int:
    pods = [pod for pod in world.all(POD, "ml") if pod["metadata"]["name"].startswith(f"{name}-")]
    return sum((pod.get("status") or {}).get("phase") == "Running" for pod in pods)


async def test_lent_quota_is_taken_back_while_the_borrowers_pods_still_run() -> None:
    base = SandboxConfig.fast({"node-a": 4})
    config = dataclasses.replace(
        base,
        kueue=KueueConfig(fair_sharing=True),
        kubelet=KubeletTiming(start_delay=timedelta(seconds=0.1), termination=timedelta(seconds=2)),
        parts=frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS}),
    )
    async with Sandbox(config) as world:
        await world.apply(TEAMS)
        await world.apply(job("guest", 3, "borrower"))
        await world.wait_for(lambda: running(world, "guest") == 3, "the guest to run on borrowed GPUs")
        await world.apply(job("host", 2, "owner"))
        await world.wait_for(lambda: has(workload(world, "host"), "Admitted"), "the host's admission")
        assert running(world, "guest") == 3  # told to end, and holding their GPUs for two seconds more
        assert reason_of(workload(world, "guest"), "Preempted") == "InCohortReclamation"
        await world.wait_for(lambda: running(world, "host") == 2, "the host to run")
        await world.wait_for(
            lambda: has(workload(world, "guest"), "QuotaReserved", "False", "WaitingForQuota"), "the guest to wait"
        )

        reasons = {event["reason"] for event in await world.read_all(EVENT, "ml")}
        assert {"Preempted", "EvictedDueToPreempted", "PreemptedWorkload", "WaitingForQuota"} <= reasons
