"""The whole program on a worker of MultiKueue: what it says to the hub comes true once the hub dispatches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from app.sandbox_team import HURRIED, TEAM, team
from running_scaler import metric

from scaler.kube.objects.resources import CLUSTER_OFFER, SCALABLE_WORKLOAD, WORKLOAD

Json = dict[str, Any]
WORKER = replace(HURRIED, follows=(SCALABLE_WORKLOAD, CLUSTER_OFFER))
_CONTAINER = {"name": "main", "image": "train:1", "resources": {"requests": {"nvidia.com/gpu": "2"}}}
POD_SETS = [{"name": "main", "count": 4, "template": {"spec": {"containers": [_CONTAINER], "restartPolicy": "Never"}}}]
POLICY = {"idleAfter": "1s", "warmUp": "0s", "activeAbove": 0.01, "gpus": "all"}
GANG: Json = {"namespace": TEAM, "name": "gang", "uid": "hub-gang"}
REQUEST = {**GANG, "request": {"queueName": "lq", "podSets": POD_SETS}}


def offer(*workloads: Json) -> Json:
    document = {"apiVersion": CLUSTER_OFFER.api_version, "kind": CLUSTER_OFFER.kind, "metadata": {"name": "hub"}}
    return {**document, "spec": {"workloads": list(workloads)}}


def remote_copy() -> Json:
    metadata = {"name": "gang", "namespace": TEAM, "labels": {"kueue.x-k8s.io/multikueue-origin": "multikueue"}}
    spec = {"queueName": "lq", "podSets": POD_SETS, "priority": 0, "active": True}
    return {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind, "metadata": metadata, "spec": spec}


@pytest.mark.slow
async def test_who_the_answer_names_is_suspended_once_this_cluster_is_nominated(tmp_path: Path) -> None:
    async with team(tmp_path, 8, config=WORKER) as ours, ours.scaler() as scaler:

        def status() -> Json:
            return (ours.world.find(CLUSTER_OFFER, "", "hub") or {}).get("status") or {}

        def answer() -> Json:
            return next(iter(status().get("workloads") or []), {})

        await ours.runs("a", "b")
        await ours.world.apply([offer(REQUEST)])
        await ours.sees(lambda: answer().get("fit") == "Reclaim", "an answer that counts on both idle workloads")
        assert answer()["victims"] == [f"{TEAM}/a", f"{TEAM}/b"]
        assert status()["clusterQueues"][0]["largestGang"] == {"now": 4, "afterReclaim": 8}
        assert ours.replicas("a", "b") == [1, 1]

        port = scaler.http_port
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/api/v1/offer") as got:
            (shown,) = (await got.json())["offers"]
        assert shown["name"] == "hub"
        assert shown["status"]["workloads"][0]["fit"] == "Reclaim"
        assert await metric(port, "idle_gpu_scaler_offered_workloads", fit="Reclaim") == 1

        await ours.world.apply([remote_copy()])
        await ours.sees(lambda: answer().get("fit") == "Reclaim", "the same answer for the copy")
        assert ours.replicas("a", "b") == [1, 1]

        await ours.world.apply([offer({**REQUEST, "reclaim": True, "policy": POLICY})])
        await ours.sees(lambda: ours.replicas("a", "b") == [0, 0], "the suspension of both")
        await ours.sees(lambda: answer().get("fit") == "Free", "a copy that has its quota")
        await ours.sees(lambda: answer().get("verdict") == "Unknown", "a verdict, although no hub made its Job")
        assert answer()["judgedBy"] == POLICY
