"""What "fits" counts: gangs that start whole beside whoever else takes memory, ports, and nodes of their own."""

import pytest
from scaler_sandbox.kinds import Json
from sim.cluster import GPU, HOST, SimCluster

from scaler.kube.objects.resources import CLUSTER_QUEUE, LOCAL_QUEUE, NODE, POD, RESOURCE_FLAVOR, WORKLOAD


async def _cluster(nodes: dict[str, int]) -> SimCluster:
    """With a second queue `free`, which has no check."""
    cluster = SimCluster(nodes)
    cluster.add(CLUSTER_QUEUE, "cq2", spec=cluster.queue_spec(1000, ()))
    cluster.add(LOCAL_QUEUE, "free", namespace="ns", spec={"clusterQueue": "cq2"})
    await cluster.passes(1)
    return cluster


async def _before_the_scheduler(cluster: SimCluster) -> None:
    """Everybody does what there is to do, and no pod has found a node yet."""
    for _ in range(8):
        await cluster.client.settle(*cluster.controllers)
        cluster.follow()
        await cluster.admission.tick(cluster.client.now)
        cluster.follow()


async def test_memory_that_a_released_job_without_gpus_needs_is_not_reserved_for_a_gang() -> None:
    """400 of 512 Gi are needed three times, and there are two nodes."""
    cluster = await _cluster({"a": 8, "b": 8})
    cluster.submit("etl", gpus=0, memory=400, queue="free")
    cluster.submit("gang", pods=2, gpus=8, memory=400)
    await _before_the_scheduler(cluster)
    assert cluster.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit: each needs 400Gi memory")
    await cluster.passes(5)
    assert cluster.is_running("etl")
    assert cluster.half_started() == []
    cluster.finish("etl")
    await cluster.passes(5)
    assert cluster.is_running("gang")


async def _odd_is_released() -> SimCluster:
    """Its pod is on no node yet, and its flavor is gone: its needs cannot be read."""
    cluster = await _cluster({"a": 8, "b": 8})
    cluster.add(RESOURCE_FLAVOR, "other", spec={})
    spec = cluster.queue_spec(1000, ())
    spec["resourceGroups"][0]["flavors"][0]["name"] = "other"
    cluster.change(CLUSTER_QUEUE, "cq2", {"spec": spec})
    cluster.submit("odd", gpus=4, queue="free")
    await _before_the_scheduler(cluster)
    cluster.client.remove(RESOURCE_FLAVOR, "", "other")
    cluster.follow()
    return cluster


async def test_no_gang_is_released_beside_one_whose_demands_cannot_be_read() -> None:
    """It was released, and its pods may come: what they will take is not known, and not nothing."""
    cluster = await _odd_is_released()
    cluster.submit("gang", gpus=8)
    await _before_the_scheduler(cluster)
    assert cluster.says("gang").startswith("Pending: node capacity not available: ")
    assert "is released, and the demands of its pods cannot be read: ResourceFlavor other" in cluster.says("gang")
    await cluster.passes(2)
    assert cluster.is_running("odd"), "whose pods are all on nodes takes no more, whatever it needed"
    assert cluster.is_running("gang")


async def test_nor_when_that_one_is_evicted_while_its_pods_may_still_be_created() -> None:
    """Deactivated before its pod was made or has a node: until its quota was released, and 3 s longer."""
    cluster = await _odd_is_released()
    cluster.change(WORKLOAD, cluster.workload("odd")["metadata"]["name"], {"spec": {"active": False}})
    cluster.submit("gang", gpus=8)
    await _before_the_scheduler(cluster)
    assert not cluster.holds_quota("odd")
    assert (
        "is evicted, and the demands of its pods that may still be created cannot be read: ResourceFlavor other"
        in cluster.says("gang")
    )
    await cluster.passes(2)
    assert not cluster.is_admitted("gang")
    await cluster.passes(2)
    assert cluster.is_running("gang")


# ----------------------------------------------------------------------------------------- copies that are not in step


async def _runs_again(cluster: SimCluster, name: str) -> None:
    """It is evicted and has its quota again within a second. Its old pods end for a minute, unseen."""
    cluster.termination[name] = 60.0
    cluster.copies[POD].follow = lambda _: None  # type: ignore[method-assign]
    workload = cluster.workload(name)["metadata"]["name"]
    cluster.change(WORKLOAD, workload, {"spec": {"active": False}})
    await _before_the_scheduler(cluster)
    cluster.change(WORKLOAD, workload, {"spec": {"active": True}})
    await _before_the_scheduler(cluster)


async def _runs_before_the_gang(cluster: SimCluster) -> None:
    """The copy of pods catches up."""
    del cluster.copies[POD].follow
    await cluster.passes(5)
    assert cluster.is_running("again")
    assert not cluster.is_admitted("gang")
    await cluster.passes(60)
    assert cluster.is_running("gang")


async def test_a_gang_is_not_released_again_before_the_copy_of_pods_has_caught_up_with_its_eviction() -> None:
    """Its old pod on a is seen as though it went on, and b is kept for its new one: 3 s."""
    cluster = await _cluster({"a": 8, "b": 8})
    cluster.submit("again", gpus=8)
    await cluster.passes(2)
    await _runs_again(cluster, "again")
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert cluster.says("again") == "Pending: fits once pods have terminated on b"
    await _runs_before_the_gang(cluster)


async def test_no_gang_is_released_beside_one_without_our_check_that_runs_again_until_its_pods_are_known() -> None:
    cluster = await _cluster({"a": 8, "b": 8})
    cluster.submit("again", gpus=8, queue="free")
    await cluster.passes(2)
    await _runs_again(cluster, "again")
    assert cluster.is_admitted("again")
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert "runs again a moment after its eviction" in cluster.says("gang")
    await _runs_before_the_gang(cluster)


async def test_a_gang_is_not_released_again_onto_the_place_that_its_old_pod_has_got_unseen() -> None:
    """It waits 3 s, after which the pod is seen on the node: beside a pod there that ends it would start by half."""
    cluster = await _cluster({"a": 8})
    cluster.submit("again", gpus=8)
    await _before_the_scheduler(cluster)
    cluster.copies[POD].follow = lambda _: None  # type: ignore[method-assign]
    cluster.schedule()
    await _runs_again(cluster, "again")
    assert cluster.says("again") == "Pending: fits once pods have terminated on a"
    del cluster.copies[POD].follow
    await cluster.passes(5)
    assert not cluster.is_admitted("again")
    await cluster.passes(60)
    assert cluster.is_running("again")


# ------------------------------------------------------------------------------------------- nodes of their own, taints


def _apart(app: str, selects: str = "", key: str = HOST) -> Json:
    term = {"labelSelector": {"matchLabels": {"app": selects or app}}, "topologyKey": key}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"metadata": {"labels": {"app": app}}, "spec": {"affinity": rules}}


_PORT = {"container": {"ports": [{"containerPort": 22, "hostPort": 2222}]}}


@pytest.mark.parametrize("template", [_apart("a"), _PORT])
async def test_pods_that_share_no_node_need_one_each(template: Json) -> None:
    """Two pods of 4 GPUs fit 8 GPUs of one node, were it not that each wants a node."""
    cluster = SimCluster({"a": 8})
    cluster.submit("gang", pods=2, gpus=4, template=template)
    await cluster.passes(2)
    assert "each needs a node of its own with 4 nvidia.com/gpu, on 1 node open to them" in cluster.says("gang")
    cluster.add_node("b", 4)
    await _before_the_scheduler(cluster)
    assert cluster.says("gang").startswith("Ready: fits whole: 2 pods on 2 nodes (a, b)")


async def test_a_port_that_others_hold_on_a_node_closes_it() -> None:
    cluster = SimCluster({"a": 8, "b": 8})
    cluster.submit("first", gpus=1, template=_PORT)
    await cluster.passes(2)
    cluster.submit("gang", pods=2, gpus=4, template=_PORT)
    await cluster.passes(2)
    assert "1 of 2 pods does not fit" in cluster.says("gang")
    assert "on empty nodes either" not in cluster.says("gang")
    cluster.finish("first")
    await cluster.passes(2)
    assert cluster.is_admitted("gang")


async def test_the_place_of_a_pod_on_its_way_is_not_where_its_mate_is() -> None:
    """One pod is on a, and the other one can only go to b, however much is free on a: b is not for others."""
    cluster = SimCluster({"a": 8, "b": 4})
    cluster.submit("gang", pods=2, gpus=4, template=_apart("a"))
    await _before_the_scheduler(cluster)
    first = cluster.pods("gang")[0]["metadata"]["name"]
    cluster.change(POD, first, {"spec": {"nodeName": "a"}})
    cluster.submit("later", gpus=4)
    await _before_the_scheduler(cluster)
    assert cluster.says("later").startswith("Ready: fits whole: 1 pod on 1 node (a)") or "Pending" in cluster.says(
        "later"
    )
    assert "(b)" not in cluster.says("later")


async def test_two_gangs_with_anti_affinity_are_not_released_onto_the_same_nodes() -> None:
    cluster = SimCluster({"a": 8, "b": 8})
    cluster.submit("one", pods=2, gpus=4, template=_PORT)
    cluster.submit("two", pods=2, gpus=2, template=_PORT)
    await _before_the_scheduler(cluster)
    says = sorted(cluster.says(name).split(":")[0] for name in ("one", "two"))
    assert says == ["Pending", "Ready"]
    assert cluster.half_started() == []


async def test_nodes_with_the_taint_of_their_devices_are_open_to_pods_that_ask_for_these() -> None:
    """Clouds taint GPU nodes so, and add the toleration when the pod is made: the Workload's template lacks it."""
    cluster = SimCluster({"a": 8})
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    cluster.change(NODE, "a", {"spec": {"taints": [taint]}})
    cluster.submit("cpus", gpus=0, memory=1)
    await cluster.passes(2)
    assert "1 node with a taint that they do not tolerate" in cluster.says("cpus")
    cluster.submit("gang", gpus=8)
    await cluster.passes(2)
    assert cluster.is_running("gang")


# -------------------------------------------------------------------------------------------------- what is not counted


_SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
_NEAR = {"labelSelector": {"matchLabels": {"app": "store"}}, "topologyKey": HOST}


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ({"spec": {"topologySpreadConstraints": [_SPREAD]}}, "topology spread is not counted"),
        (_apart("a", selects="b"), "required pod anti-affinity to others is not counted"),
        (_apart("a", key="zone"), "required pod anti-affinity to others is not counted"),
        (
            {"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_NEAR]}}}},
            "required pod affinity is not counted",
        ),
        (
            {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}},
            "where volumes are is not counted",
        ),
    ],
)
async def test_the_message_of_a_released_gang_has_which_demands_are_not_counted(template: Json, note: str) -> None:
    cluster = SimCluster({"a": 8})
    cluster.submit("gang", pods=2, gpus=4, template=template)
    await cluster.passes(2)
    assert cluster.says("gang") == f"Ready: fits whole: 2 pods on 1 node (a); {note}"
    assert [note in message for _, reason, message in cluster.recorded.events if reason == "AdmissionCheckReady"] == [
        True
    ]
    cluster.submit("later", gpus=8, template=template)
    await cluster.passes(2)
    assert cluster.says("later").endswith(f"1 node open to them; {note}")
