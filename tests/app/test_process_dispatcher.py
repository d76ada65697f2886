"""The whole program on a hub of MultiKueue and on its workers."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from app.sandbox_team import HURRIED, SECONDS, TEAM, Team
from running_scaler import is_ready, runtime, settings_document
from scaler_sandbox.conditions import has
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, namespace
from scaler_sandbox.kinds import Json
from scaler_sandbox.multikueue.clusters import CHECK, SandboxClusters

from scaler.app.process import Runtime
from scaler.kube.objects.resources import ADMISSION_CHECK, JOB, SCALABLE_WORKLOAD, WORKLOAD

WORKER = replace(HURRIED, follows=(SCALABLE_WORKLOAD,))


@asynccontextmanager
async def hub_and_workers(folder: Path) -> AsyncIterator[tuple[SandboxClusters, dict[str, Team], Runtime]]:
    """Workers a and b with 4 GPUs each, and a hub whose quota is that of both; each with the program."""
    async with AsyncExitStack() as stack:
        clusters = await stack.enter_async_context(SandboxClusters({"a": WORKER, "b": WORKER}))
        teams = {}
        for name, world in clusters.workers.items():
            world.write_kubeconfig(folder / name)
            document = settings_document(folder / name, world.exporter_url, reclaim={"replanBackoff": "1s"})
            teams[name] = Team(world, document)
            await teams[name].has_queue(4)
            await stack.enter_async_context(teams[name].scaler())
        hub = clusters.hub
        await hub.apply([namespace(TEAM), flavor("gpus"), cluster_queue("cq", 8, flavor="gpus", checks=[CHECK])])
        await hub.apply([local_queue("lq", TEAM, "cq")])
        await hub.wait_for(lambda: hub.condition(ADMISSION_CHECK, "", CHECK, "Active"), "workers that are connected")
        hub.write_kubeconfig(folder / "hub")
        base = settings_document(folder / "hub", "", multiKueue={"patience": "5s"})  # answers live for 0.6 s only
        document = {**base, "components": ["dispatcher"], "dcgm": {}}
        yield clusters, teams, await stack.enter_async_context(runtime(document))


@pytest.mark.slow
async def test_a_gang_goes_where_gpus_are_idle_and_only_there_is_anybody_suspended(tmp_path: Path) -> None:
    async with hub_and_workers(tmp_path) as (clusters, teams, dispatcher):
        hub, a, b = clusters.hub, teams["a"], teams["b"]
        await a.runs("first", "second")
        await b.runs("idle", "busy")
        for team, name in ((a, "first"), (a, "second"), (b, "busy")):
            team.works(name)
        await hub.apply(job("gang", TEAM, "lq", gpus=1, pods=2))

        def gang() -> Json:
            return hub.workload_of(JOB, TEAM, "gang") or {}

        await hub.wait_for(lambda: gang().get("status", {}).get("clusterName") == "b", "b for the gang", within=SECONDS)
        await b.sees(lambda: b.status("idle").get("phase") == "Suspended", "the idle one at 0")
        assert b.replicas("idle", "busy") == [0, 1]
        assert a.replicas("first", "second") == [1, 1]
        assert not [each for each in a.world.all(WORKLOAD, TEAM) if "gang" in each["metadata"]["name"]]
        await hub.wait_for(lambda: has(gang(), "Admitted"), "the hub to know", within=SECONDS)
        assert await is_ready(dispatcher.http_port), "a hub without GPUs needs no metrics source"
