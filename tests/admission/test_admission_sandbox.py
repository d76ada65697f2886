"""The gate against the embedded API, with its Kueue, nodes and autoscaler, over HTTP and in real time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from builders import GPUS
from scaler_sandbox.autoscaler import BEST_EFFORT_ATOMIC, AutoscalerConfig, Scenario, Shape
from scaler_sandbox.conditions import has
from scaler_sandbox.config import Component, SandboxConfig
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.sandbox import Sandbox

from scaler.admission.checks import AdmissionChecks
from scaler.admission.controller import AdmissionCheckController
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.provisioning.controller import ProvisioningController
from scaler.admission.provisioning.watch import RequestWatch
from scaler.admission.terminating_pods import TerminatingPodIndex
from scaler.admission.watch import AdmissionStores, AdmissionWatch
from scaler.app.reflectors import Reflectors
from scaler.decision.cluster_state import ClusterState
from scaler.kube.discovery import Discovery
from scaler.kube.events import EventRecorder
from scaler.kube.objects.idlegpu import ReclaimPolicy
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    JOB,
    NODE,
    POD,
    PROVISIONING_REQUEST,
    RECLAIM_POLICY,
    SCALABLE_WORKLOAD,
    WORKLOAD,
)
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.placement.node_watch import NodeWatch, node_reflector
from scaler.quota.watch import NotSynced, QuotaReflectors

_CRDS = Path(__file__).parents[2] / "deploy" / "crds"
AT_ONCE = timedelta(0)
QUEUES = """
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default-flavor}
spec: {}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cluster-queue}
spec:
  namespaceSelector: {}
  admissionChecksStrategy: {admissionChecks: [{name: gate}]}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors:
        - name: default-flavor
          resources: [{name: nvidia.com/gpu, nominalQuota: 16}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: user-queue, namespace: demo}
spec: {clusterQueue: cluster-queue}
---
apiVersion: idlegpu.io/v1alpha1
kind: ReclaimPolicy
metadata: {name: policy}
spec:
  provisioning: {className: best-effort-atomic-scale-up.autoscaling.x-k8s.io}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: gate}
spec:
  controllerName: idlegpu.io/reclaim
  parameters: {apiGroup: idlegpu.io, kind: ReclaimPolicy, name: policy}
"""


@cache
def definitions() -> list[Json]:
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(_CRDS.glob("*.yaml"))]


def job(name: str, *, pods: int, gpus: int, ends_in: str = "") -> Json:
    annotations = {"demo.idlegpu.io/termination": ends_in} if ends_in else {}
    container = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "demo", "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {"parallelism": pods, "completions": pods, "template": template},
    }


class Process:
    """One process with the gate in it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Process"]:
        async with await KubeTransport.connect(self._kubeconfig) as transport:
            tasks = [asyncio.create_task(work) for work in self._works(transport)]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _works(self, transport: KubeTransport) -> list[Any]:
        own, quota = Reflectors(transport, GPUS, ""), QuotaReflectors.of(transport)
        nodes = node_reflector(transport)
        policies = Reflector(transport, RECLAIM_POLICY, ReclaimPolicy)
        requests = RequestWatch(transport=transport, discovery=Discovery(transport))
        cluster = ClusterState(
            scaled_objects=own.scaled_objects,
            scalable_workloads=own.scalable_workloads,
            workloads=own.workloads,
            pods=own.pods,
            gpus=GPUS,
        )
        recorder = EventRecorder(transport)
        free = NodeWatch(nodes, own.pods, own.workloads, max_age=timedelta(minutes=1))
        copies = AdmissionStores(
            workloads=own.workloads, pods=own.pods, checks=quota.checks, flavors=quota.flavors, nodes=nodes
        )

        def flavor(name: str) -> Any:
            return quota.flavors.get("", name)

        planner = AdmissionPlanner(
            AdmissionWatch(cluster, copies),
            TerminatingPodIndex(cluster, own.workloads, own.pods),
            policies,
            requests,
            flavor,
            capacity=free.capacity,
            quota=lambda: NotSynced("quota is not watched"),
        )
        gate = AdmissionCheckController(
            transport,
            planner,
            AdmissionChecks(transport, policies, recorder),
            ProvisioningController(transport, requests, flavor, recorder),
            recorder,
            interval=timedelta(seconds=1),
            rest=timedelta(seconds=0.05),
            settle=timedelta(seconds=0.2),
        )
        requests.subscribe(lambda _: gate.wake())
        policies.subscribe(lambda _: gate.wake())
        return [
            *own.tasks(),
            *(each.run() for each in quota.all),
            nodes.run(),
            policies.run(),
            requests.run(),
            recorder.run(),
            gate.run(),
        ]


class Place:
    """The world, with the gate's process, and short verbs."""

    def __init__(self, world: Sandbox, folder: Path) -> None:
        self.world = world
        self.kubeconfig = folder / "kubeconfig"
        world.write_kubeconfig(self.kubeconfig)

    def process(self) -> Any:
        return Process(self.kubeconfig).running()

    def workload(self, name: str) -> Json:
        return self.world.workload_of(JOB, "demo", name) or {"metadata": {}, "spec": {}}

    def says(self, name: str) -> str:
        entries = (self.workload(name).get("status") or {}).get("admissionChecks") or [{}]
        return f"{entries[0].get('state')}: {entries[0].get('message')}"

    def is_admitted(self, name: str) -> bool:
        return has(self.workload(name), "Admitted")

    def pods(self, name: str) -> list[Json]:
        return [pod for pod in self.world.all(POD, "demo") if pod["metadata"]["name"].startswith(f"{name}-")]

    def is_running(self, name: str) -> bool:
        phases = [pod["status"].get("phase") for pod in self.pods(name) if not pod["metadata"].get("deletionTimestamp")]
        return bool(phases) and set(phases) == {"Running"}

    async def until(self, predicate: Callable[[], Any], what: str, *, within: float = 30.0) -> None:
        await self.world.wait_for(predicate, what, within=within)

    async def takes(self, victim: str, *, for_gang: str) -> None:
        """A plan takes the victim for the gang."""
        gang, found = self.workload(for_gang)["metadata"], self.workload(victim)["metadata"]["name"]
        common = {"plan": "plan-1", "workload": f"demo/{gang['name']}"}
        now, later = "2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
        grant = {
            **common,
            "workloadUID": gang["uid"],
            "victims": [f"demo/{victim}"],
            "grantedAt": now,
            "expiresAt": later,
        }
        spec = {"replicas": 0, "workloadRef": {"name": found}}
        body = {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "spec": spec}
        await self.world.apply([{**body, "metadata": {"name": victim, "namespace": "demo"}}])
        await self.world.patch(SCALABLE_WORKLOAD, "demo", victim, {"status": {"grant": grant}}, "status")
        note = {"metadata": {"annotations": {"idlegpu.io/suspended": '{"at":"2026-11-20T12:00:00Z"}'}}}
        await self.world.patch(WORKLOAD, "demo", found, {**note, "spec": {"active": False}})


@asynccontextmanager
async def place(folder: Path, nodes: dict[str, int], *, quota: int = 16) -> AsyncIterator[Place]:
    fast = SandboxConfig.fast(nodes)
    scenario = Scenario(
        provisioning_class=BEST_EFFORT_ATOMIC,
        accepted_after=timedelta(seconds=0.2),
        provisioned_after=timedelta(seconds=0.3),
        nodes_after=timedelta(seconds=0.8),
        shape=Shape(gpus=8),
    )
    config = replace(
        fast,
        kubelet=KubeletTiming(start_delay=timedelta(seconds=0.1), termination=timedelta(seconds=0.2)),
        autoscaler=AutoscalerConfig(scenarios=(scenario,)),
        parts=frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS, Component.AUTOSCALER}),
        follows=(ADMISSION_CHECK, PROVISIONING_REQUEST, NODE),
    )
    async with Sandbox(config) as world:
        await world.apply(definitions())
        await asyncio.sleep(0.2)
        await world.apply(QUEUES.replace("nominalQuota: 16", f"nominalQuota: {quota}"))
        yield Place(world, folder)


async def test_a_gang_of_16_waits_for_8_that_end_late_and_for_one_node_more(tmp_path):
    """8 GPUs are freed for it, slowly, and 8 are provisioned; the process restarts in the middle. It starts whole."""
    async with place(tmp_path, {"node-a": 8}) as town:
        async with town.process():
            await town.world.apply([job("idle", pods=1, gpus=8, ends_in="2s")])
            await town.until(lambda: town.is_running("idle"), "the idle job to run")
            await town.world.apply([job("gang", pods=2, gpus=8)])
            await town.until(lambda: town.workload("gang")["metadata"], "the gang's Workload")
            await town.takes("idle", for_gang="gang")
            await town.until(
                lambda: town.says("gang").startswith("Pending: waits for 1 pod of demo/job-idle"), "its turn"
            )
            assert has(town.workload("gang"), "QuotaReserved")
        async with town.process():
            await town.until(lambda: "not fit" in town.says("gang"), "it to lack nodes")
            await town.until(lambda: town.world.all(PROVISIONING_REQUEST, "demo"), "a request")
            assert not town.is_admitted("gang")
            await town.until(lambda: town.is_running("gang"), "the gang to run")
        nodes = {pod["spec"]["nodeName"] for pod in town.pods("gang")}
        assert "node-a" in nodes
        assert len(nodes) == 2
        entry = town.workload("gang")["status"]["admissionChecks"][0]
        assert entry["podSetUpdates"][0]["annotations"].keys() >= {"autoscaling.x-k8s.io/consume-provisioning-request"}


async def test_of_two_gangs_one_wins_whole_and_a_check_stays_active_while_nobody_runs(tmp_path):
    async with place(tmp_path, {"node-a": 8, "node-b": 8}, quota=24) as town:
        await town.world.patch(RECLAIM_POLICY, "", "policy", {"spec": {"provisioning": None}})
        async with town.process():
            await town.until(lambda: _is_active(town), "the check to be active")
        await town.world.apply([job("one", pods=2, gpus=8)])
        await town.until(lambda: has(town.workload("one"), "QuotaReserved"), "its quota")
        await asyncio.sleep(1.0)  # whole seconds are all that the API tells of whose turn it is
        await town.world.apply([job("two", pods=1, gpus=8)])
        await town.until(lambda: has(town.workload("two"), "QuotaReserved"), "the other's quota")
        assert _is_active(town)
        assert not town.is_admitted("one")
        async with town.process():
            await town.until(lambda: town.is_running("one"), "the gang to run")
            await town.until(lambda: "not fit" in town.says("two"), "the other to lack nodes")
            assert town.pods("two") == []


async def test_parameters_that_are_missing_make_the_check_inactive_until_they_are_there(tmp_path):
    async with place(tmp_path, {"node-a": 8}) as town:
        await town.world.delete(RECLAIM_POLICY, "", "policy")
        async with town.process():
            await town.until(lambda: town.world.condition(ADMISSION_CHECK, "", "gate", "Active", "False"), "False")
            await town.world.apply([job("gang", pods=1, gpus=8)])
            policy = {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ReclaimPolicy", "metadata": {"name": "policy"}}
            await town.world.apply([{**policy, "spec": {}}])
            await town.until(lambda: town.is_running("gang"), "the gang to run")
            assert _is_active(town)


def _is_active(town: Place) -> bool:
    return town.world.condition(ADMISSION_CHECK, "", "gate", "Active")
