"""The whole program and KEDA with Notebooks and an InferenceService, in a hurried embedded world."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from app.sandbox_team import HURRIED, TEAM, Team, team
from running_scaler import metric
from scaler_sandbox.job_manifests import manifest, scaled_object
from small_cluster import until
from switched_kinds import (
    InferenceServiceController,
    NotebookController,
    SwitchedKindController,
    definition,
    inference_service,
    notebook,
    running,
)

from scaler.kube.objects.resources import INFERENCE_SERVICE, NOTEBOOK, POD, SCALABLE_WORKLOAD, Resource
from scaler.kube.transport import KubeTransport
from scaler.targets.switches import LAST_ACTIVITY, NOTEBOOK_STOPPED, SERVICE_STOPPED

TRIGGER = {"idleAfter": "1s", "warmUp": "0s"}


@asynccontextmanager
async def controller(kind: type[SwitchedKindController], folder: Path) -> AsyncIterator[None]:
    kube = await KubeTransport.connect(folder / "kubeconfig", call_seconds=30)
    async with kube, running(kind(kube, TEAM, runs_pods=False)):
        yield


async def scale(ours: Team, resource: Resource, name: str, **trigger: str) -> None:
    """The object's ScalableWorkload, and a ScaledObject of it."""
    job = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name}
    scalable = manifest(SCALABLE_WORKLOAD, name, TEAM, spec={"replicas": 1, "jobRef": job})
    address = f"127.0.0.1:{ours.port}"
    await ours.world.apply([scalable, scaled_object(name, TEAM, SCALABLE_WORKLOAD, address, {**TRIGGER, **trigger})])


async def annotations(ours: Team, resource: Resource, name: str) -> dict[str, str]:
    found: dict[str, str] = (await ours.world.read(resource, TEAM, name))["metadata"].get("annotations") or {}
    return found


async def annotate(ours: Team, resource: Resource, name: str, key: str, value: str | None) -> None:
    await ours.world.patch(resource, TEAM, name, {"metadata": {"annotations": {key: value}}})


def is_at(ours: Team, name: str, phase: str, replicas: int) -> bool:
    return ours.status(name).get("phase") == phase and ours.replicas(name) == [replicas]


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Team]:
    async with team(tmp_path, 4, config=HURRIED) as made:
        await made.world.apply([definition(NOTEBOOK), definition(INFERENCE_SERVICE)])
        async with (
            controller(NotebookController, tmp_path),
            controller(InferenceServiceController, tmp_path),
        ):
            yield made


@pytest.mark.slow
async def test_an_idle_notebook_is_suspended_and_its_users_start_is_not_undone(ours: Team) -> None:
    async with ours.scaler() as scaler:
        await ours.world.apply([notebook("bench", TEAM)])
        await scale(ours, NOTEBOOK, "bench", warmUp="3s")
        await ours.sees(lambda: is_at(ours, "bench", "Suspended", 0), "an idle Notebook at 0")
        assert ours.status("bench")["state"] == "Suspended"
        assert not ours.world.all(POD, TEAM)
        assert NOTEBOOK_STOPPED in await annotations(ours, NOTEBOOK, "bench")
        await until(lambda: is_counted(scaler.http_port, "suspensions_total", reason="GPUsIdle"))

        await annotate(ours, NOTEBOOK, "bench", NOTEBOOK_STOPPED, None)
        await ours.sees(lambda: is_at(ours, "bench", "Running", 1), "KEDA's 1 after a start from the dashboard")
        await asyncio.sleep(1.5)
        assert is_at(ours, "bench", "Running", 1), "its warm-up counts from the new pod"
        await until(lambda: is_counted(scaler.http_port, "suspended_to_resumed_seconds_count"))
        assert NOTEBOOK_STOPPED not in await annotations(ours, NOTEBOOK, "bench")

        await ours.sees(lambda: is_at(ours, "bench", "Suspended", 0), "idle again, suspended again")


async def is_counted(port: int, name: str, **labels: str) -> bool:
    return await metric(port, f"idle_gpu_scaler_{name}", **labels) == 1


async def test_what_its_user_has_stopped_stays_so(ours: Team) -> None:
    async with ours.scaler():
        await ours.world.apply([notebook("bench", TEAM)])
        await scale(ours, NOTEBOOK, "bench", mode="observe")
        await ours.sees(lambda: is_at(ours, "bench", "Running", 1), "a Notebook that runs")
        await annotate(ours, NOTEBOOK, "bench", NOTEBOOK_STOPPED, "2026-12-01T12:00:00Z")
        await ours.sees(lambda: is_at(ours, "bench", "DeactivatedByOther", 1), "its user's stop")
        await asyncio.sleep(1.0)
        assert (await annotations(ours, NOTEBOOK, "bench"))[NOTEBOOK_STOPPED] == "2026-12-01T12:00:00Z"
        assert not ours.world.all(POD, TEAM)


@asynccontextmanager
async def culler(ours: Team, name: str) -> AsyncIterator[None]:
    """A culler that sees a Notebook in use, again and again, and before anything else happens."""

    async def see() -> None:
        await annotate(ours, NOTEBOOK, name, LAST_ACTIVITY, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")

    async def look() -> None:
        while True:
            await asyncio.sleep(0.5)
            await see()

    await see()
    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


@pytest.mark.slow
async def test_activity_that_its_culler_has_seen_keeps_it_and_what_cannot_be_read_does_not(ours: Team) -> None:
    async with ours.scaler():
        await ours.world.apply([notebook("used", TEAM), notebook("odd", TEAM, **{LAST_ACTIVITY: "yesterday"})])
        async with culler(ours, "used"):
            await scale(ours, NOTEBOOK, "used", idleAfter="8s")
            await scale(ours, NOTEBOOK, "odd")
            await ours.sees(lambda: is_at(ours, "odd", "Suspended", 0), "one whose activity cannot be read")
            await until(lambda: ours.status("used").get("reason") == "GPUsBusy")
            await asyncio.sleep(10)
            assert is_at(ours, "used", "Running", 1)
            assert ours.status("used")["reason"] == "GPUsBusy"
        await ours.sees(lambda: is_at(ours, "used", "Suspended", 0), "its end, after its last activity")


@pytest.mark.slow
async def test_an_inference_service_goes_to_zero_and_another_process_brings_it_back(ours: Team) -> None:
    async with ours.scaler():
        await ours.world.apply([inference_service("llm", TEAM, minReplicas=2, annotations={"team": "a"})])
        await scale(ours, INFERENCE_SERVICE, "llm")
        await ours.sees(lambda: is_at(ours, "llm", "Suspended", 0), "an idle InferenceService at 0")
        assert (await annotations(ours, INFERENCE_SERVICE, "llm"))[SERVICE_STOPPED] == "true"
    await annotate(ours, INFERENCE_SERVICE, "llm", SERVICE_STOPPED, None)
    async with ours.scaler():
        await ours.sees(lambda: ours.replicas("llm") == [1], "the start that nobody saw")
        await ours.sees(lambda: len(ours.world.all(POD, TEAM)) == 2, "both of its pods")


async def test_reclaim_on_pressure_says_that_it_has_no_quota(ours: Team) -> None:
    async with ours.scaler():
        await ours.world.apply([notebook("bench", TEAM)])
        await scale(ours, NOTEBOOK, "bench", reclaim="OnPressure", idleAfterUnderPressure="1s")
        await ours.sees(lambda: ours.status("bench").get("reason") == "IdleNotNeeded", "why it stays")
        assert "ScalableWorkloads of Kueue Workloads, whose quota is known" in ours.status("bench")["message"]
