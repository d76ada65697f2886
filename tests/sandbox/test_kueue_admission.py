"""Who gets quota, when, and what their pods then carry. The embedded Kueue in virtual time."""

from datetime import timedelta

import pytest
from scaler_sandbox.actions import Action
from sim.client import states_of
from sim.kueue_cluster import GPU, KueueCluster, Teams, flavor_quota, job, ray_cluster, team, template

from scaler.kube.objects.resources import CLUSTER_QUEUE, JOB, LOCAL_QUEUE, POD, RAY_CLUSTER, RESOURCE_FLAVOR, WORKLOAD


@pytest.fixture
def world() -> KueueCluster:
    return KueueCluster()


async def test_a_ray_cluster_is_one_gang_of_head_and_workers(world: KueueCluster) -> None:
    await world.submit_and_run(ray_cluster("ray"), RAY_CLUSTER)
    admission = world.workload("ray")["status"]["admission"]
    assert [(each["name"], each["count"]) for each in admission["podSetAssignments"]] == [("head", 1), ("workers", 1)]
    assert admission["podSetAssignments"][0]["flavors"] == {GPU: "flavor"}
    assert admission["podSetAssignments"][0]["resourceUsage"] == {GPU: "1"}
    assert world.job("ray", RAY_CLUSTER)["status"]["state"] == "ready"
    assert len(world.client.all(POD)) == 2


async def test_pods_carry_their_workload_pod_set_and_queues(world: KueueCluster) -> None:
    await world.submit(ray_cluster("ray"), RAY_CLUSTER)
    for pod in world.client.all(POD):
        labels = pod["metadata"]["labels"]
        pod_set = "head" if labels["ray.io/node-type"] == "head" else "workers"
        assert labels["kueue.x-k8s.io/podset"] == pod_set
        assert labels["kueue.x-k8s.io/cluster-queue-name"] == "cq"
        assert labels["kueue.x-k8s.io/local-queue-name"] == "lq"
        workload = world.workload("ray")["metadata"]["name"]
        assert pod["metadata"]["annotations"] == {"kueue.x-k8s.io/workload": workload}


async def test_pods_get_the_node_labels_of_their_flavor_and_templates_lose_them_when_stopped(
    world: KueueCluster,
) -> None:
    world.client.change(RESOURCE_FLAVOR, "", "flavor", {"spec": {"nodeLabels": {"pool": "a100"}}})
    added = job("train", template=template(labels={"app": "train"}, annotations={"note": "kept"}))
    await world.submit_and_run(added)
    assert world.client.all(POD)[0]["spec"]["nodeSelector"] == {"pool": "a100"}
    await world.set_active("train", False)
    await world.run()
    stopped = world.job("train")["spec"]["template"]
    assert stopped["metadata"]["labels"] == {"app": "train"}
    assert stopped["metadata"]["annotations"] == {"note": "kept"}
    assert "nodeSelector" not in stopped["spec"]


async def test_a_finished_job_frees_its_quota(world: KueueCluster) -> None:
    await world.submit_and_run(job("short"))
    await world.submit(job("next"))
    for pod in world.client.all(POD):
        world.client.change(POD, "ns", pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")
    await world.settle()
    assert "Finished=True/Succeeded" in world.state("short")
    await world.settle(1)
    assert world.is_admitted("next")
    await world.set_active("short", False)
    assert not any("Evicted" in each for each in world.state("short"))


async def test_a_user_who_starts_a_waiting_job_is_turned_back(world: KueueCluster) -> None:
    await world.submit_and_run(job("holder"))
    await world.submit(job("waiting"))
    world.client.change(JOB, "ns", "waiting", {"spec": {"suspend": False}})
    await world.settle()
    assert world.job("waiting")["spec"]["suspend"] is True


async def test_jobs_without_a_queue_are_left_alone(world: KueueCluster) -> None:
    body = job("free")
    body["metadata"]["labels"] = {}
    await world.submit(body)
    assert world.client.all(WORKLOAD) == []
    assert len(world.client.all(POD)) == 2


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ("no LocalQueue", "Misconfigured", "LocalQueue lq doesn't exist"),
        ("no ClusterQueue", "Misconfigured", "ClusterQueue cq doesn't exist"),
        ("LocalQueue stopped", "Suspended", "LocalQueue lq is inactive"),
        ("ClusterQueue stopped", "Suspended", "ClusterQueue cq is inactive"),
        ("no ResourceFlavor", "Suspended", "ClusterQueue cq is inactive"),
        ("another namespace", "Misconfigured", "Workload namespace doesn't match ClusterQueue selector"),
        ("no selector", "Misconfigured", "Workload namespace doesn't match ClusterQueue selector"),
    ],
)
async def test_a_queue_that_admits_nothing_says_why(
    world: KueueCluster, change: str, reason: str, message: str
) -> None:
    client = world.client
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "other"}}
    changes = {
        "no LocalQueue": lambda: client.remove(LOCAL_QUEUE, "ns", "lq"),
        "no ClusterQueue": lambda: client.remove(CLUSTER_QUEUE, "", "cq"),
        "LocalQueue stopped": lambda: client.change(LOCAL_QUEUE, "ns", "lq", {"spec": {"stopPolicy": "Hold"}}),
        "ClusterQueue stopped": lambda: client.change(CLUSTER_QUEUE, "", "cq", {"spec": {"stopPolicy": "Hold"}}),
        "no ResourceFlavor": lambda: client.remove(RESOURCE_FLAVOR, "", "flavor"),
        "another namespace": lambda: client.change(CLUSTER_QUEUE, "", "cq", {"spec": {"namespaceSelector": selector}}),
        "no selector": lambda: client.change(CLUSTER_QUEUE, "", "cq", {"spec": {"namespaceSelector": None}}),
    }
    changes[change]()
    await world.submit(job("waiting"))
    assert f"QuotaReserved=False/{reason}" in world.state("waiting")
    assert world.why_waiting("waiting") == message


async def test_one_that_is_deactivated_while_a_cycle_is_written_is_not_admitted() -> None:
    world = Teams(team("a"), team("b"))
    await world.start("victim", "a", 8)
    await world.start("first", "a", 4)
    await world.start("second", "b", 4)
    name = world.workload("second")["metadata"]["name"]

    def deactivate_second(action: Action) -> None:
        if any(note.reason == "Admitted" for note in action.notes):
            world.client.meddle = lambda _: None
            world.client.change(WORKLOAD, "ns", name, {"spec": {"active": False}})

    world.client.meddle = deactivate_second
    await world.set_active("victim", False)
    await world.settle(1)
    assert world.admitted == {"first"}
    assert not any("QuotaReserved=True/QuotaReserved" in state for state in states_of(world.client.history, name))


async def test_flavors_are_tried_in_order_and_the_message_has_what_each_lacks() -> None:
    offered = [flavor_quota("a100", 2), flavor_quota("h100", 4)]
    world = Teams(team("a", flavors=offered, cohort=""))
    world.add_flavor("a100")
    world.add_flavor("h100")
    await world.start("one", "a", 2)
    await world.start("two", "a", 3)
    assert (world.flavors_of("one"), world.flavors_of("two")) == (["a100"], ["h100"])
    await world.start("three", "a", 3)
    assert world.why_waiting("three") == (
        "couldn't assign flavors to pod set main: "
        "insufficient quota for nvidia.com/gpu in flavor a100, previously considered podsets requests (0) + current "
        "podset request (3) > maximum capacity (2), "
        "insufficient unused quota for nvidia.com/gpu in flavor h100, 2 more needed"
    )
    assert "QuotaReserved=False/WaitingForQuota" in world.state("three")


async def test_an_object_that_cannot_be_read_affects_no_other() -> None:
    world = Teams(team("a", 2), team("broken", 2, cohort=""))
    body = {"spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": "none"}]}}
    world.client.change(CLUSTER_QUEUE, "", "broken", body)
    await world.start("gang", "a", 2)
    assert world.admitted == {"gang"}
    world.client.remove(RESOURCE_FLAVOR, "", "flavor")
    world.client.remove(JOB, "ns", "gang")
    world.client.now += timedelta(seconds=2)
    await world.settle()
    assert world.queue("a")["conditions"][0]["reason"] == "FlavorNotFound"


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "evicted", "restarted"),
    [
        (LOCAL_QUEUE, "ns", "a", "LocalQueueStopped", "LocalQueueRestarted"),
        (CLUSTER_QUEUE, "", "a", "ClusterQueueStopped", "ClusterQueueRestarted"),
    ],
)
async def test_a_drained_queue_evicts_and_requeues_once_it_runs_again(
    resource: object, namespace: str, name: str, evicted: str, restarted: str
) -> None:
    world = Teams(team("a", 2), team("b", 0))
    await world.start("runs", "a", 2)
    world.client.change(resource, namespace, name, {"spec": {"stopPolicy": "HoldAndDrain"}})  # type: ignore[arg-type]
    await world.run()
    assert f"Evicted=True/{evicted}" in world.state("runs")
    assert f"Requeued=False/{evicted}" in world.state("runs")
    assert "QuotaReserved=False/Suspended" in world.state("runs")
    assert world.job("runs")["spec"]["suspend"] is True
    world.client.change(resource, namespace, name, {"spec": {"stopPolicy": "None"}})  # type: ignore[arg-type]
    await world.run(1)
    assert world.admitted == {"runs"}
    assert f"Requeued=True/{restarted}" in world.state("runs")
