"""Workloads become pods, and pods end when their owners say so. In virtual time."""

from typing import Any, cast

import pytest
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json
from scaler_sandbox.operators import DeploymentController, JobController, RayClusterOperator, RayJobOperator
from scaler_sandbox.operators.pods import owned
from sim.client import SimClient
from sim.kueue_cluster import ray_cluster, template

from scaler.kube.objects.resources import DEPLOYMENT, JOB, POD, RAY_CLUSTER, RAY_JOB, Resource


@pytest.fixture
def client() -> SimClient:
    return SimClient()


async def settle(client: SimClient, *, pods: bool = True) -> None:
    """Everything that follows, pods running and ending included unless they are to be left as they are."""
    shared = cast(Client, client)
    kinds = RayClusterOperator, RayJobOperator, JobController, DeploymentController
    controllers = [kind(shared) for kind in kinds]
    await client.settle(*controllers)
    if pods:
        client.run_pods()
        await client.settle(*controllers)


def job(**spec: Any) -> Json:
    wanted = {"parallelism": 2, "completions": 2, "template": template(), **spec}
    return {"metadata": {"name": "train", "namespace": "ns"}, "spec": wanted}


def deployment(replicas: int = 2) -> Json:
    body = template(labels={"app": "web"})
    return {"metadata": {"name": "web", "namespace": "ns"}, "spec": {"replicas": replicas, "template": body}}


def unqueued(body: Json) -> Json:
    return {**body, "metadata": {**body["metadata"], "labels": {}}}


def status(client: SimClient, resource: Resource, name: str) -> Json:
    found = client.find(resource, "ns", name)
    assert found is not None
    return dict(found["status"])


def names(client: SimClient) -> set[str]:
    return {pod["metadata"]["name"] for pod in client.all(POD)}


def finish(client: SimClient, phase: str = "Succeeded", count: int = 1) -> None:
    running = [pod for pod in client.all(POD) if pod["status"]["phase"] == "Running"]
    for pod in running[:count]:
        client.change(POD, "ns", pod["metadata"]["name"], {"status": {"phase": phase}}, "status")


async def test_a_suspended_ray_cluster_stays_ready_until_its_last_pod_is_gone(client: SimClient) -> None:
    client.add(RAY_CLUSTER, unqueued(ray_cluster("ray")))
    await settle(client)
    before = names(client)
    client.change(RAY_CLUSTER, "ns", "ray", {"spec": {"suspend": True}})
    await settle(client, pods=False)
    assert all(pod["metadata"].get("deletionTimestamp") for pod in client.all(POD))
    assert status(client, RAY_CLUSTER, "ray")["state"] == "ready"
    await settle(client)
    assert status(client, RAY_CLUSTER, "ray")["state"] == "suspended"
    client.change(RAY_CLUSTER, "ns", "ray", {"spec": {"suspend": False}})
    await settle(client)
    assert status(client, RAY_CLUSTER, "ray")["state"] == "ready"
    assert before.isdisjoint(names(client))


async def test_a_ray_cluster_replaces_pods_that_ended_and_follows_its_size(client: SimClient) -> None:
    client.add(RAY_CLUSTER, unqueued(ray_cluster("ray")))
    await settle(client)
    finish(client, "Failed")
    await settle(client)
    await settle(client)
    assert [pod["status"]["phase"] for pod in client.all(POD)] == ["Running", "Running"]
    group = {**ray_cluster("ray")["spec"]["workerGroupSpecs"][0], "replicas": 0}
    client.change(RAY_CLUSTER, "ns", "ray", {"spec": {"workerGroupSpecs": [group]}})
    await settle(client)
    assert len(client.all(POD)) == 1


async def test_an_untouched_queued_job_is_left_to_kueue(client: SimClient) -> None:
    client.add(RAY_CLUSTER, ray_cluster("ray"))
    await settle(client)
    assert client.all(POD) == []


async def test_a_job_runs_to_completion(client: SimClient) -> None:
    client.add(JOB, job(completions=3))
    await settle(client)
    assert status(client, JOB, "train")["active"] == 2
    finish(client)
    await settle(client)
    shown = status(client, JOB, "train")
    assert (shown["active"], shown["succeeded"], shown["ready"]) == (2, 1, 2)
    finish(client, count=2)
    await settle(client)
    found = client.find(JOB, "ns", "train")
    assert found is not None
    assert has(found, "Complete")
    assert (found["status"]["succeeded"], found["status"]["active"]) == (3, 0)
    assert "completionTime" in found["status"]


async def test_a_suspended_job_counts_no_terminating_pod_as_active(client: SimClient) -> None:
    client.add(JOB, job())
    await settle(client)
    client.change(JOB, "ns", "train", {"spec": {"suspend": True}})
    await settle(client, pods=False)
    shown = status(client, JOB, "train")
    assert (shown["active"], shown["terminating"]) == (0, 2)
    assert [pod["status"]["phase"] for pod in client.all(POD)] == ["Running", "Running"]
    assert [each["reason"] for each in shown["conditions"]] == ["JobSuspended"]
    client.change(JOB, "ns", "train", {"spec": {"suspend": False}})
    await settle(client)
    assert [each["reason"] for each in status(client, JOB, "train")["conditions"]] == ["JobResumed"]
    assert status(client, JOB, "train")["active"] == 2


async def test_a_deployment_keeps_as_many_pods_as_it_is_asked_for(client: SimClient) -> None:
    client.add(DEPLOYMENT, deployment())
    await settle(client)
    shown = status(client, DEPLOYMENT, "web")
    assert (shown["replicas"], shown["readyReplicas"]) == (2, 2)
    assert has({"status": shown}, "Available")
    client.change(DEPLOYMENT, "ns", "web", {"spec": {"replicas": 0}})
    await settle(client)
    assert client.all(POD) == []
    assert status(client, DEPLOYMENT, "web")["replicas"] == 0


def ray_job(**spec: Any) -> Json:
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    body = {"suspend": True, "rayClusterSpec": ray_cluster("any")["spec"], **spec}
    return {"metadata": {"name": "eval-x7k2p", "namespace": "ns", "labels": labels}, "spec": body}


async def test_a_ray_job_runs_on_a_ray_cluster_of_its_own_that_a_suspension_deletes(client: SimClient) -> None:
    client.add(RAY_JOB, ray_job())
    await settle(client)
    assert status(client, RAY_JOB, "eval-x7k2p")["jobDeploymentStatus"] == "Suspended"
    seen = set[str]()
    for _ in range(2):
        client.change(RAY_JOB, "ns", "eval-x7k2p", {"spec": {"suspend": False}})
        await settle(client)
        found = status(client, RAY_JOB, "eval-x7k2p")
        [cluster] = client.all(RAY_CLUSTER)
        assert (found["jobDeploymentStatus"], found["jobStatus"]) == ("Running", "RUNNING")
        assert found["rayClusterName"] == cluster["metadata"]["name"]
        assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lq"
        assert len(owned(client.all(POD), cluster)) == 2
        assert seen.isdisjoint({cluster["metadata"]["name"]})
        seen.add(cluster["metadata"]["name"])
        client.change(RAY_JOB, "ns", "eval-x7k2p", {"spec": {"suspend": True}})
        await settle(client)
        found = status(client, RAY_JOB, "eval-x7k2p")
        assert (found["jobDeploymentStatus"], found["rayClusterName"]) == ("Suspended", "")
        assert client.all(RAY_CLUSTER) == []
