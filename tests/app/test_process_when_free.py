"""The whole program where workloads were suspended for a gang and come back when it is done (`wake: WhenFree`)."""

import json
from pathlib import Path
from typing import Any

import pytest
from app.cli.command import command_beside
from app.sandbox_team import TEAM, TRIGGER, Team, team
from running_scaler import fetch, metric
from scaler_sandbox.job_manifests import scaling
from small_cluster import until

from scaler.kube.objects.resources import JOB

WHEN_FREE = TRIGGER | {"wake": "WhenFree"}


@pytest.mark.slow
async def test_idle_workloads_make_room_for_a_gang_and_come_back_when_it_is_done(tmp_path: Path) -> None:
    async with team(tmp_path, 4) as ours, ours.scaler() as scaler:
        await _run(ours, "a", "b")
        await ours.submits("gang", gpus=4)
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
        await ours.sees(lambda: all(ours.status(each)["phase"] == "Suspended" for each in "ab"), "suspended workloads")
        await until(
            lambda: _stays(scaler.http_port, "a", "it needs 2 nvidia.com/gpu; free for ClusterQueue cq: nothing")
        )
        told = await command_beside("explain", f"{TEAM}/a", "--server", f"http://127.0.0.1:{scaler.http_port}")
        assert "stays suspended: it needs 2 nvidia.com/gpu" in told.out, told
        await ours.submits("next", gpus=4)
        await ours.world.delete(JOB, TEAM, "gang")
        await ours.sees(lambda: ours.is_admitted("next"), "the admission of the gang that waits")
        assert ours.replicas("a", "b") == [0, 0]

        for each in "ab":
            ours.works(each)  # or they would be idle again at once
        await ours.world.delete(JOB, TEAM, "next")
        await ours.sees(lambda: all(ours.status(each)["phase"] == "Running" for each in "ab"), "running workloads")
        # The phase is seen at once; who asked is written with the next decision.
        await ours.sees(lambda: all(_asked_by_scaler(ours.status(each)["history"]) for each in "ab"), "who asked")
        await until(lambda: _have_returned(scaler.http_port, 2))


async def _run(ours: Team, *names: str) -> None:
    for name in names:
        await ours.submits(name, gpus=2)
        await ours.world.apply(scaling(name, TEAM, f"127.0.0.1:{ours.port}", WHEN_FREE, cooldownPeriod=0))
    await ours.sees(lambda: all(ours.status(name).get("phase") == "Running" for name in names), "running")


async def _stays(port: int, name: str, why: str) -> bool:
    _, _, body = await fetch(port, f"/api/v1/gangs/{TEAM}/ScalableWorkload/{name}")
    found: dict[str, Any] = json.loads(body)
    return bool(found["staysSuspended"] == why)


def _asked_by_scaler(history: list[dict[str, Any]]) -> bool:
    woken = [line for line in history if line["state"] == "Waking"][-1]
    asked = woken.get("by") == "trigger metadata, WhenFree"
    return asked and "annotation idlegpu.io/wake on ScaledObject" in woken["message"]


async def _have_returned(port: int, number: int) -> bool:
    return await metric(port, "idle_gpu_scaler_wake_seconds_count", cause="WhenFree") == number
