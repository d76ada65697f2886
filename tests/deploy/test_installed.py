"""What is installed works with what it is granted: the rendered settings, run with the rendered roles, lead to a job
that a policy attaches, that is left alone while it is observed, and suspended and resumed once that is allowed.

The API enforces the roles. Of the settings only that is replaced which a single machine has not: addresses, TLS,
Prometheus, and times of minutes.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import yaml
from kustomized import BASE, OVERLAYS, built
from programs import needs
from running_scaler import is_ready, runtime
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, manifest, namespace
from scaler_sandbox.keda import KedaTiming
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.packaged import crds
from scaler_sandbox.prometheus import free_port
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig

from deploy.helm_chart import NAMESPACE, merged, objects, platform
from scaler.kube.objects.resources import IDLE_POLICY, JOB, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.targets.workloads import WAKE_ANNOTATION

TEAM, NAME = "team-a", "job-train"
SECONDS = 120.0
ROLES = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
HURRIED = replace(
    SandboxConfig.fast({"node-a": 4}),
    parts=frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS, Component.KEDA}),
    kubelet=KubeletTiming(start_delay=timedelta(seconds=0.05), termination=timedelta(seconds=0.2)),
    keda=KedaTiming(polling=timedelta(seconds=0.2), push_backoff=timedelta(seconds=0.2)),
    follows=(SCALABLE_WORKLOAD, SCALED_OBJECT),
)
PLATFORMS = ("openshift", "gke", "dev")
OTHERS = {
    **{f"kustomize {each}": partial(built, OVERLAYS / each) for each in PLATFORMS},
    **{f"chart {each}": partial(objects, platform(each)) for each in PLATFORMS},
}
INSTALLED = [
    pytest.param(partial(built, BASE), id="kustomize base"),
    pytest.param(objects, id="chart"),
    pytest.param(partial(objects, {"namespaces": [TEAM]}), id="chart for some namespaces"),
    *(pytest.param(make, id=name, marks=pytest.mark.slow) for name, make in OTHERS.items()),
]
POLICY = {"mode": "Enforce", "idleAfter": "1s", "warmUp": "0s", "selector": {"kinds": ["Job"]}}


def settings_of(bodies: list[Json]) -> Json:
    [text] = [each["data"]["settings.yaml"] for each in bodies if "settings.yaml" in each.get("data", {})]
    return dict(yaml.load(text, yaml.CSafeLoader))


async def here(world: Sandbox, folder: Path, bodies: list[Json]) -> Json:
    """The settings, for this machine."""
    kubeconfig, address = folder / "kubeconfig", f"127.0.0.1:{free_port()}"
    world.write_kubeconfig(kubeconfig, token=await world.token_of(NAMESPACE, NAMESPACE))
    lease = {"duration": "3s", "renewDeadline": "2s", "retryPeriod": "200ms"}
    document = merged(
        settings_of(bodies),
        {
            "kubernetes": {"kubeconfig": str(kubeconfig), "lease": lease},
            "prometheus": {"timeout": "5s"},
            "dcgm": {"endpoints": [world.exporter_url]},
            "grpc": {"address": address, "drain": "1s"},
            "http": {"address": "127.0.0.1:0"},
            "keda": {"scalerAddresses": [address], "cooldownPeriod": "1s", "pollingInterval": "1s"},
            "evaluation": {"interval": "200ms", "overlap": "1s"},
            "trust": {"collectionInterval": "1s", "maxAgeIntervals": 10, "maxGapIntervals": 10, "minCoverage": "30 %"},
        },
    )
    document["grpc"].pop("tls", None)
    document["keda"].pop("authenticationRef", None)
    document["prometheus"].pop("url")
    return document


@needs("kubectl")
@pytest.mark.parametrize("installed", INSTALLED)
async def test_what_is_installed_suspends_and_resumes_with_what_it_is_granted(
    installed: Callable[[], list[Json]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bodies = installed()
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
    async with Sandbox(HURRIED) as world:
        await world.apply([*crds(), flavor("gpus"), cluster_queue("gpus", 4, flavor="gpus"), namespace(NAMESPACE)])
        await world.apply([namespace(TEAM), local_queue("gpus", TEAM, "gpus")])
        await world.apply([each for each in bodies if each["kind"] in ROLES])
        document = await here(world, tmp_path, bodies)

        def shows(reason: str) -> Callable[[], bool]:
            return lambda: (world.find(SCALABLE_WORKLOAD, TEAM, NAME) or {}).get("status", {}).get("reason") == reason

        def is_active() -> bool:
            workload = world.workload_of(JOB, TEAM, "train")
            return workload is not None and workload["spec"].get("active", True)

        async with runtime(document) as observing:
            await world.apply([job("train", TEAM, "gpus", gpus=1), manifest(IDLE_POLICY, "all", TEAM, spec=POLICY)])
            await world.wait_for(shows("ObserveOnly"), "the policy's job to be observed", within=SECONDS)
            assert await is_ready(observing.http_port)
        assert is_active()
        async with runtime({**document, "mode": "enforce"}):
            await world.wait_for(lambda: not is_active(), "the job to be suspended", within=SECONDS)
            world.fleet.set_activity(TEAM, "*", 0.9)
            await world.patch(SCALED_OBJECT, TEAM, NAME, {"metadata": {"annotations": {WAKE_ANNOTATION: "true"}}})
            await world.wait_for(is_active, "the job to be resumed", within=SECONDS)
    said = capsys.readouterr()
    assert [line for line in (said.out + said.err).splitlines() if re.search(r"\b403\b", line)] == []
