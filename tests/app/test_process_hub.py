"""The whole program on a hub of MultiKueue and on its worker: a dispatched Job is suspended on the hub when its GPUs on
the worker are idle, and comes back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from app.sandbox_team import SECONDS
from running_scaler import runtime, settings_document
from scaler_sandbox.conditions import has
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, namespace, scaling
from scaler_sandbox.keda import KedaTiming
from scaler_sandbox.kinds import Json
from scaler_sandbox.multikueue.clusters import CHECK, SandboxClusters
from scaler_sandbox.sandbox import Sandbox, SandboxConfig

from scaler.app.process import Runtime
from scaler.kube.objects.resources import ADMISSION_CHECK, CLUSTER_OFFER, JOB, POD, SCALABLE_WORKLOAD, WORKLOAD

TEAM = "ml"
TRIGGER = {"idleAfter": "5s", "warmUp": "0s"}
QUICK = KedaTiming(polling=timedelta(seconds=0.2), push_backoff=timedelta(seconds=0.2))


def queues(gpus: int, *checks: str) -> list[Json]:
    queue = cluster_queue("all", gpus, flavor="gpus", checks=checks)
    return [namespace(TEAM), flavor("gpus"), queue, local_queue("training", TEAM, "all")]


@asynccontextmanager
async def program(cluster: Sandbox, kubeconfig: Path, *components: str) -> AsyncIterator[Runtime]:
    cluster.write_kubeconfig(kubeconfig)
    # What a worker tells holds for three intervals.
    document = settings_document(kubeconfig, cluster.exporter_url, evaluation={"interval": "2s"})
    async with runtime({**document, "components": ["scaler", "reconciler", *components]}) as running:
        yield running


@pytest.mark.slow
async def test_a_dispatched_job_is_suspended_on_the_hub_by_what_its_gpus_do_on_the_worker(tmp_path: Path) -> None:
    quick = replace(SandboxConfig.fast({"a1": 4}, collect=timedelta(seconds=0.2)), follows=(CLUSTER_OFFER,))
    of_hub = replace(SandboxConfig.fast(), keda=QUICK, follows=(SCALABLE_WORKLOAD,))
    async with SandboxClusters({"a": quick}, hub=of_hub) as clusters:
        hub, worker = clusters.hub, clusters.workers["a"]
        await worker.apply(queues(4))
        await hub.apply(queues(4, CHECK))
        await hub.wait_for(lambda: hub.condition(ADMISSION_CHECK, "", CHECK, "Active"), "the worker to be connected")
        async with program(worker, tmp_path / "a"), program(hub, tmp_path / "hub", "dispatcher") as scaler:
            worker.fleet.set_activity(TEAM, "gang-*", 0.9)
            await hub.apply(job("gang", TEAM, "training", gpus=1, pods=2))
            address = f"127.0.0.1:{scaler.grpc_port}"
            await hub.apply(scaling("gang", TEAM, address, TRIGGER, cooldownPeriod=0))

            def status() -> Json:
                return (hub.find(SCALABLE_WORKLOAD, TEAM, "gang") or {}).get("status") or {}

            await hub.wait_for(lambda: status().get("verdict") == "Busy", "its GPUs to be seen", within=SECONDS)
            assert status()["phase"] == "Running"
            assert {each["node"] for each in status()["evidence"]} == {"a/a1"}
            asked = worker.find(CLUSTER_OFFER, "", "hub")
            assert asked is not None
            [entry] = [each for each in asked["spec"]["workloads"] if "policy" in each]
            assert entry["policy"] == {"idleAfter": "5s", "warmUp": "0s", "activeAbove": 0.01, "gpus": "all"}

            worker.fleet.set_activity(TEAM, "gang-*", 0.0)
            await hub.wait_for(lambda: status().get("phase") == "Suspended", "its suspension", within=SECONDS)
            await worker.wait_for(lambda: not worker.all(POD, TEAM), "the end of its pods", within=SECONDS)
            suspended = hub.workload_of(JOB, TEAM, "gang")
            assert suspended is not None
            assert suspended["spec"]["active"] is False
            assert not has(suspended, "QuotaReserved")

            worker.fleet.set_activity(TEAM, "gang-*", 0.9)
            await hub.patch(SCALABLE_WORKLOAD, TEAM, "gang", {"metadata": {"annotations": {"idlegpu.io/wake": "true"}}})
            await hub.wait_for(lambda: status().get("verdict") == "Busy", "its return", within=SECONDS)
            assert status()["phase"] == "Running"
            copies = [each for each in worker.all(WORKLOAD, TEAM) if has(each, "Admitted")]
            assert len(copies) == 1
