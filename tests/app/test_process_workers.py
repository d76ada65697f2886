"""The whole program on two worker clusters of MultiKueue, of which a hub asks both for the same gang."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from app.sandbox_team import SECONDS, TEAM, Team, team
from scaler_sandbox.conditions import has
from scaler_sandbox.job_manifests import job
from small_cluster import until

from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN
from scaler.kube.objects.resources import CLUSTER_OFFER, EVENT, WORKLOAD

GANG = "job-gang-c5c17"


def copy() -> dict[str, Any]:
    """As the hub creates it, with the pods of its job there."""
    template = job("gang", TEAM, "lq", gpus=4, pods=2)["spec"]["template"]
    spec = {"queueName": "lq", "podSets": [{"name": "main", "count": 2, "template": template}]}
    metadata = {"name": GANG, "namespace": TEAM, "labels": {MULTIKUEUE_ORIGIN: "multikueue"}}
    return {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind, "metadata": metadata, "spec": spec}


def offer(*, reclaim: bool) -> dict[str, Any]:
    workload = {"namespace": TEAM, "name": GANG, "uid": "of-the-hub", "reclaim": reclaim}
    kind = {"apiVersion": CLUSTER_OFFER.api_version, "kind": CLUSTER_OFFER.kind}
    return {**kind, "metadata": {"name": "hub"}, "spec": {"workloads": [workload]}}


def is_admitted(worker: Team) -> bool:
    return has(worker.world.find(WORKLOAD, TEAM, GANG) or {}, "Admitted")


async def is_refused(worker: Team) -> bool:
    """Whether an Event says why nothing is suspended for it."""
    events = await worker.world.read_all(EVENT, TEAM)
    return "RemoteCopy" in [each["reason"] for each in events if each["involvedObject"]["name"] == GANG]


@pytest.mark.slow
async def test_of_two_workers_that_hold_a_copy_only_the_nominated_one_suspends_for_it(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    async with (
        team(tmp_path / "one", 8) as one,
        team(tmp_path / "two", 8) as two,
        one.scaler(),
        two.scaler(),
    ):
        for worker in (one, two):
            await worker.runs("a", "b")
            await worker.world.apply([copy()])
            await until(partial(is_refused, worker), seconds=SECONDS)
            await worker.world.apply([offer(reclaim=False)])
        await asyncio.sleep(2)
        for worker in (one, two):
            assert (worker.replicas("a", "b"), worker.are_active("a", "b")) == ([1, 1], [True, True])

        await two.world.apply([offer(reclaim=True)])
        await two.sees(lambda: is_admitted(two), "the admission of the copy where it is nominated")
        assert two.are_active("a", "b") == [False, False]
        assert (one.replicas("a", "b"), one.are_active("a", "b")) == ([1, 1], [True, True])
        assert one.has_no_grants("a", "b")
        assert not is_admitted(one)
