"""The whole program where a gang waits: plans, grants, KEDA, Kueue and the ledger, in a hurried embedded world."""

import asyncio
from pathlib import Path

import pytest
from app.sandbox_team import TEAM, team
from running_scaler import metric

from scaler.kube.objects.resources import SCALED_OBJECT


async def test_four_free_and_four_idle_serve_a_gang_of_eight(tmp_path: Path) -> None:
    async with team(tmp_path, 8) as ours, ours.scaler() as scaler:
        await ours.runs("a", "b")
        await ours.sees(
            lambda: ours.status("a").get("reason") == "IdleNotNeeded", "an idle workload whose GPUs no gang needs"
        )
        await asyncio.sleep(0.5)
        assert ours.replicas("a", "b") == [1, 1]
        assert ours.has_no_grants("a", "b")

        await ours.submits("gang", gpus=4, pods=2)
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
        await ours.sees(lambda: ours.status("a") and ours.has_no_grants("a", "b"), "the end of the plan")
        assert ours.replicas("a", "b") == [0, 0]
        assert ours.are_active("a", "b") == [False, False]
        for name in ("a", "b"):
            entry = ours.status(name)["reallocation"]
            assert (entry["stage"], entry["gpus"], entry["times"]) == ("Admitted", 2, 1)
            assert entry["workload"] == f"{TEAM}/{ours.workload('gang')['metadata']['name']}"
            assert entry["reclaimableAt"] <= entry["releasingAt"] <= entry["availableAt"] <= entry["admittedAt"]
        assert f"4 GPUs of {TEAM}/a, {TEAM}/b" in await ours.hears("gang", "ReclaimAdmitted")
        assert f"{TEAM}/a (2 GPUs), {TEAM}/b (2 GPUs)" in await ours.hears("gang", "ReclaimPlanned")
        assert await ours.hears("a", "ReclaimGranted")
        assert await ours.hears("a", "Reclaimed")
        port = scaler.http_port
        assert await metric(port, "idle_gpu_scaler_reallocated_gpus_total", outcome="Admitted") == 4
        assert await metric(port, "idle_gpu_scaler_reallocated_gpus_total", outcome="Cancelled") == 0


@pytest.mark.slow
async def test_another_process_goes_on_with_the_plan(tmp_path: Path) -> None:
    async with team(tmp_path, 8) as ours:
        async with ours.scaler():
            await ours.runs("a", "b", cooldowns={"b": 300})
            await ours.submits("gang", gpus=4, pods=2)
            await ours.sees(lambda: ours.replicas("a", "b") == [0, 1] and ours.has_grants("a", "b"), "a at 0")
            plan = ours.status("a")["grant"]["plan"]
        assert ours.are_active("a", "b") == [True, True]
        await ours.world.patch(SCALED_OBJECT, TEAM, "b", {"spec": {"cooldownPeriod": 0}})
        async with ours.scaler():
            await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
            await ours.sees(lambda: ours.has_no_grants("a", "b"), "the end of the plan")
        assert ours.are_active("a", "b") == [False, False]
        assert {ours.status(name)["reallocation"]["plan"] for name in ("a", "b")} == {plan}
