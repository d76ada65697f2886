"""The whole program where a gang has its quota and lacks nodes: our check, plans for nodes, KEDA, Kueue, slow pods."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from app.sandbox_team import CHECK, HURRIED, TEAM, Team, team
from running_scaler import fetch
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import KubeletTiming

from scaler.kube.objects.resources import POD

pytestmark = pytest.mark.slow

SLOW = replace(HURRIED, kubelet=KubeletTiming(start_delay=timedelta(seconds=0.05), termination=timedelta(seconds=1)))
"""Pods take a second to end."""
PLENTY = 100
"""Quota that nobody ever lacks. There are nodes for 12 GPUs: three of 4."""


def says(ours: Team, name: str) -> str:
    """What our entry of the Job's Workload says: `Pending: why`."""
    entries = (ours.workload(name).get("status") or {}).get("admissionChecks") or ()
    return next((f"{each['state']}: {each.get('message', '')}" for each in entries if each["name"] == CHECK), "")


def pods_of(ours: Team, name: str) -> list[Json]:
    return [
        pod
        for pod in ours.world.all(POD, TEAM)
        if pod["metadata"]["ownerReferences"][0]["name"] == name and pod["spec"].get("nodeName")
    ]


async def are_gone(ours: Team, *names: str) -> bool:
    """Whether no pod of these is left on a node, by the API itself: copies of several kinds are not quite in step."""
    pods = await ours.world.read_all(POD, TEAM)
    return not any(pod["metadata"]["ownerReferences"][0]["name"] in names for pod in pods)


async def fill(ours: Team, *, busy: int) -> None:
    """Two idle Jobs of 2 GPUs, and one that works."""
    await ours.submits("busy", gpus=busy)
    await ours.sees(lambda: pods_of(ours, "busy"), "it to run")
    ours.works("busy")
    await ours.runs("a", "b")


async def test_a_gang_with_quota_gets_the_node_that_idle_workloads_hold_when_their_pods_have_ended(
    tmp_path: Path,
) -> None:
    """Three nodes of 4: one is busy, a and b hold 2 each, so that 4 are free. The gang wants two pods of 4."""
    async with team(tmp_path, PLENTY, gate={}, config=SLOW) as ours, ours.scaler() as scaler:
        await fill(ours, busy=4)
        await asyncio.sleep(0.5)
        assert ours.has_no_grants("a", "b")

        await ours.submits("gang", gpus=4, pods=2)
        await ours.sees(lambda: ours.has_grants("a", "b") or ours.replicas("a", "b") == [0, 0], "a plan")
        grant = ours.status("a").get("grant") or {}
        if "seeks" in grant:  # where Kueue takes its time the plan is made before the gang has its quota
            assert (grant["seeks"], grant["check"]) == ("Nodes", CHECK)
            assert sorted(grant["victims"]) == [f"{TEAM}/a", f"{TEAM}/b"]
        _, _, page = await fetch(scaler.http_port, f"/api/v1/plans/{TEAM}/gang")
        assert "standing" in page
        await ours.sees(lambda: says(ours, "gang").startswith("Ready"), "the gang to be let go")
        assert await are_gone(ours, "a", "b")
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
        assert ours.are_active("a", "b", "busy") == [False, False, True]
        await ours.sees(lambda: len(pods_of(ours, "gang")) == 2, "its pods on nodes")
        await ours.sees(lambda: ours.has_no_grants("a", "b"), "the end of the plan")
        assert ours.replicas("a", "b") == [0, 0]
        assert {ours.status(name)["reallocation"]["stage"] for name in ("a", "b")} == {"Admitted"}
        assert f"{TEAM}/a (2 GPUs), {TEAM}/b (2 GPUs)" in await ours.hears("gang", "ReclaimPlanned")
