"""The whole program with ScalableWorkloads that it scales itself, in a hurried embedded world that has no KEDA."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from app.cli.command import command_beside
from app.sandbox_team import HURRIED, SECONDS, TEAM, Team, team
from running_scaler import metric
from scaler_sandbox import crds
from scaler_sandbox.job_manifests import manifest, scaled_object
from scaler_sandbox.kinds import Json
from scaler_sandbox.sandbox import Component
from small_cluster import until
from switched_kinds import NotebookController, definition, notebook
from switched_kinds import running as running_controller

from scaler.kube.objects.resources import (
    CLUSTER_IDLE_POLICY,
    CUSTOM_RESOURCE_DEFINITION,
    JOB,
    NOTEBOOK,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
)
from scaler.kube.reflector import Reflecting
from scaler.kube.transport import KubeTransport
from scaler.targets.switches import NOTEBOOK_STOPPED
from scaler.targets.workloads import WAKE_ANNOTATION

WITHOUT_KEDA = replace(HURRIED, parts=HURRIED.parts - {Component.KEDA})
METADATA = {"idleAfter": "1s", "warmUp": "0s"}


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Team]:
    async with team(tmp_path, 4, config=WITHOUT_KEDA) as made:
        await made.world.delete(CUSTOM_RESOURCE_DEFINITION, "", SCALED_OBJECT.qualified_name)
        yield replace(made, document={**made.document, "components": ["scaler", "reconciler"]})


async def scale_directly(ours: Team, name: str, **metadata: str) -> None:
    job = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": name}
    spec = {"replicas": 1, "jobRef": job, "actuator": "Direct", "triggerMetadata": {**METADATA, **metadata}}
    await ours.world.apply([manifest(SCALABLE_WORKLOAD, name, TEAM, spec=spec)])


def is_at(ours: Team, name: str, phase: str, replicas: int) -> bool:
    return ours.status(name).get("phase") == phase and ours.replicas(name) == [replicas]


@pytest.mark.slow
async def test_an_idle_job_makes_room_for_a_gang_and_comes_back_when_woken(ours: Team) -> None:
    """Also across a restart, and without a server for KEDA."""
    alone = replace(ours, document={**ours.document, "components": ["reconciler"]})
    async with alone.scaler() as running:
        assert running.grpc_port == 0
        await ours.submits("idle", gpus=4)
        await ours.sees(lambda: ours.is_admitted("idle"), "a job that runs")
        await scale_directly(ours, "idle")
        await ours.submits("gang", gpus=2, pods=2)
        await ours.sees(lambda: is_at(ours, "idle", "Suspended", 0), "an idle job at 0")
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang in its place")
    ours.works("gang")
    async with alone.scaler():
        await asyncio.sleep(1.0)
        assert is_at(ours, "idle", "Suspended", 0), "a restart wakes nothing"
        await ours.world.patch(
            SCALABLE_WORKLOAD, TEAM, "idle", {"metadata": {"annotations": {WAKE_ANNOTATION: "true"}}}
        )
        await ours.sees(lambda: is_at(ours, "idle", "WaitingForQuota", 1), "a job that waits for its quota")
        states = lambda: [each["state"] for each in ours.status("idle")["history"]]  # noqa: E731
        await ours.sees(lambda: "Waking" in states(), "a wake-up in its history")
        ours.works("idle")
        await ours.world.delete(JOB, TEAM, "gang")
        await ours.sees(lambda: is_at(ours, "idle", "Running", 1), "a job that is back")


@pytest.mark.slow
async def test_a_plan_takes_what_is_scaled_directly(ours: Team) -> None:
    async with ours.scaler() as running:
        for name in ("first", "second"):
            await ours.submits(name, gpus=2)
            await scale_directly(ours, name, reclaim="OnPressure", idleAfter="10m", idleAfterUnderPressure="1s")
        await ours.sees(lambda: all(is_at(ours, each, "Running", 1) for each in ("first", "second")), "both running")
        await asyncio.sleep(2.0)
        assert ours.replicas("first", "second") == [1, 1], "nothing waits for them"
        assert await metric(running.http_port, "idle_gpu_scaler_scaled_objects") == 0, "KEDA need not call"
        await ours.submits("gang", gpus=2, pods=2)
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang in place of both")
        assert ours.replicas("first", "second") == [0, 0]


async def test_a_notebook_is_stopped_and_a_start_from_the_dashboard_is_a_wake_up(ours: Team, tmp_path: Path) -> None:
    await ours.world.apply([definition(NOTEBOOK)])
    kube = await KubeTransport.connect(tmp_path / "kubeconfig", call_seconds=30)
    async with kube, running_controller(NotebookController(kube, TEAM, runs_pods=False)), ours.scaler():
        await ours.world.apply([notebook("bench", TEAM), idle_policy(actuator="Direct", warmUp="3s")])
        await ours.sees(lambda: is_at(ours, "notebook-bench", "Suspended", 0), "an idle Notebook at 0")
        body = {"metadata": {"annotations": {NOTEBOOK_STOPPED: None}}}
        await ours.world.patch(NOTEBOOK, TEAM, "bench", body)
        await ours.sees(lambda: is_at(ours, "notebook-bench", "Running", 1), "a Notebook that its user has started")


async def test_without_samples_nothing_is_suspended(ours: Team) -> None:
    async with ours.scaler():
        ours.works("job")
        await ours.submits("job", gpus=2)
        await ours.sees(lambda: ours.is_admitted("job"), "a job that runs")
        # Longer than a busy machine is late with samples: those of before it worked are all that a second may hold.
        await scale_directly(ours, "job", idleAfter="5s")
        await ours.sees(lambda: ours.status("job").get("reason") == "GPUsBusy", "a job at work")
        ours.world.fleet.faults.exporter_down("node-a")
        await ours.sees(lambda: ours.status("job").get("verdict") == "Unknown", "no verdict")
        await asyncio.sleep(2.0)
        assert ours.replicas("job") == [1]


async def test_the_verbs_reach_it_by_its_name_and_explain_says_who_scales_it(ours: Team, tmp_path: Path) -> None:
    flags = ("--kubeconfig", str(tmp_path / "kubeconfig"))
    async with ours.scaler() as running:
        await ours.submits("job", gpus=2)
        await scale_directly(ours, "job", mode="observe")
        await ours.sees(lambda: is_at(ours, "job", "Running", 1), "a job that runs")
        kept = await command_beside("keep", f"{TEAM}/job", "--for", "4h", *flags)
        assert kept.status == 0, kept
        await ours.sees(lambda: ours.status("job").get("reason") == "Kept", "what is kept")
        explained = await command_beside(
            "explain", f"{TEAM}/job", "--server", f"http://127.0.0.1:{running.http_port}", "--json"
        )
        assert explained.json["actuator"] == "Direct"
        [kept_until] = [x for t in explained.json["triggers"] for x in t["settings"] if x["name"] == "keepUntil"]
        assert kept_until["source"] == "ScalableWorkload job"
        history = await command_beside("history", f"{TEAM}/job", "--json", *flags)
        assert history.json["history"][-1]["state"] == "Kept"
        suspended = await command_beside("suspend", f"{TEAM}/job", *flags)
        assert suspended.status == 0, suspended
        await ours.sees(lambda: is_at(ours, "job", "Suspended", 0), "a job that its user has suspended")
        woken = await command_beside("wake", f"{TEAM}/job", *flags)
        assert woken.status == 0, woken
        await ours.sees(lambda: is_at(ours, "job", "Running", 1), "a job that its user has woken")
        missing = await command_beside("wake", f"{TEAM}/other", *flags)
        assert "there are: job" in missing.err


def idle_policy(**spec: object) -> Json:
    return manifest(CLUSTER_IDLE_POLICY, "all", spec={"mode": "Enforce", **METADATA, **spec})


async def policy_status(ours: Team) -> Json:
    return (await ours.world.read(CLUSTER_IDLE_POLICY, "", "all")).get("status") or {}


async def test_a_policy_attaches_jobs_where_there_is_no_keda(ours: Team) -> None:
    async with ours.scaler():
        await ours.submits("idle", gpus=4)
        await ours.world.apply([idle_policy()])
        await ours.sees(lambda: ours.is_admitted("idle"), "a job that runs")
        await until(lambda: has_problems(ours, ["the API serves no ScaledObjects"]), seconds=SECONDS)
        assert not ours.replicas("job-idle"), "nothing is made that nothing would scale"
        await ours.world.apply([idle_policy(actuator="Direct")])
        await ours.sees(lambda: is_at(ours, "job-idle", "Suspended", 0), "an idle job at 0")
        await until(lambda: has_problems(ours, []), seconds=SECONDS)
        await until(lambda: is_counted(ours, suspended=1), seconds=SECONDS)
        await ours.world.delete(CLUSTER_IDLE_POLICY, "", "all")
        await ours.sees(lambda: not ours.replicas("job-idle"), "a job that is detached")
        await ours.sees(lambda: ours.is_admitted("idle"), "a job that was resumed before")


async def is_counted(ours: Team, **counts: int) -> bool:
    return counts.items() <= (await policy_status(ours)).items()


async def has_problems(ours: Team, begins: list[str]) -> bool:
    found = (await policy_status(ours)).get("problems", [])
    return len(found) == len(begins) and all(map(str.startswith, found, begins))


@pytest.mark.slow
async def test_a_suspended_job_changes_from_keda_to_direct_and_back_as_it_is(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with team(tmp_path, 4, config=HURRIED) as made:
        keda = {"scalerAddresses": [f"127.0.0.1:{port}"], "pollingInterval": "1s", "cooldownPeriod": "1s"}
        ours = replace(made, port=port, document={**made.document, "keda": keda})
        async with ours.scaler():
            await ours.submits("idle", gpus=4)
            await ours.world.apply([idle_policy()])
            await ours.sees(lambda: is_at(ours, "job-idle", "Suspended", 0), "a job that KEDA has scaled to 0")
            async with unchanged(ours):
                await ours.world.apply([idle_policy(actuator="Direct")])
                await until(lambda: is_attached_by(ours, keda=False), seconds=SECONDS)
                await asyncio.sleep(2.0)
                await ours.world.apply([idle_policy(actuator="KEDA")])
                await until(lambda: is_attached_by(ours, keda=True), seconds=SECONDS)
                await asyncio.sleep(2.0)
                await ours.world.apply([idle_policy(actuator="Direct")])
                await until(lambda: is_attached_by(ours, keda=False), seconds=SECONDS)
            ours.works("idle")
            body = {"metadata": {"annotations": {WAKE_ANNOTATION: "true"}}}
            await ours.world.patch(SCALABLE_WORKLOAD, TEAM, "job-idle", body)
            await ours.sees(lambda: is_at(ours, "job-idle", "Running", 1), "a job that was woken")
            await ours.world.apply([idle_policy(actuator="KEDA")])
            await until(lambda: is_attached_by(ours, keda=True), seconds=SECONDS)
            assert is_at(ours, "job-idle", "Running", 1)


async def is_attached_by(ours: Team, *, keda: bool) -> bool:
    there = [each["metadata"]["name"] for each in await ours.world.read_all(SCALED_OBJECT, TEAM)]
    actuator = (await ours.world.read(SCALABLE_WORKLOAD, TEAM, "job-idle"))["spec"]["actuator"]
    return (there, actuator) == ((["job-idle"], "KEDA") if keda else ([], "Direct"))


@asynccontextmanager
async def unchanged(ours: Team) -> AsyncIterator[None]:
    """Meanwhile neither the replicas nor the Workload change."""
    before = ours.workload("idle")["metadata"]["generation"]
    yield
    assert is_at(ours, "job-idle", "Suspended", 0)
    assert ours.workload("idle")["metadata"]["generation"] == before, "it was activated or deactivated"


@pytest.mark.slow
async def test_once_keda_is_installed_it_is_followed(ours: Team) -> None:
    definitions = [each for each in crds.load() if each["metadata"]["name"] == SCALED_OBJECT.qualified_name]
    async with ours.scaler() as running:
        await ours.submits("job", gpus=2)
        await scale_directly(ours, "job", mode="observe")
        await ours.sees(lambda: ours.status("job").get("reason") == "ObserveOnly", "a job that is observed")
        await ours.world.apply(definitions)
        reflector = running.leadership.controllers.reflectors.scaled_objects
        await until(lambda: isinstance(reflector.state, Reflecting), seconds=SECONDS)
        await ours.world.apply([scaled_object("job", TEAM, SCALABLE_WORKLOAD, "scaler:9090", METADATA)])
        await ours.sees(lambda: _direct(ours) == "ScaledByKEDA", "a job that is KEDA's")


def _direct(ours: Team) -> str:
    return next((each["reason"] for each in ours.status("job")["conditions"] if each["type"] == "Direct"), "")
