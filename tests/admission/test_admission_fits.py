"""What "fits" counts: gangs that start whole beside whoever else takes memory, ports, and nodes of their own."""

import pytest
from scaler_sandbox.kinds import Json
from sim.cluster import GPU, HOST, SimCluster

from scaler.kube.objects.resources import CLUSTER_QUEUE, LOCAL_QUEUE, NODE, POD, RESOURCE_FLAVOR, WORKLOAD


async def _town(nodes: dict[str, int]) -> SimCluster:
    """With a second queue `free`, in which nobody is held."""
    town = SimCluster(nodes)
    town.add(CLUSTER_QUEUE, "cq2", spec=town.queue_spec(1000, ()))
    town.add(LOCAL_QUEUE, "free", namespace="ns", spec={"clusterQueue": "cq2"})
    await town.passes(1)
    return town


async def _before_the_scheduler(town: SimCluster) -> None:
    """Everybody does what there is to do, and no pod has found a node yet."""
    for _ in range(8):
        await town.client.settle(*town.controllers)
        town.follow()
        await town.gate.tick(town.client.now)
        town.follow()


async def test_memory_that_a_job_without_gpus_was_let_go_for_is_not_promised_to_a_gang() -> None:
    """400 of 512 Gi are needed three times, and there are two nodes."""
    town = await _town({"a": 8, "b": 8})
    town.submit("etl", gpus=0, memory=400, queue="free")
    town.submit("gang", pods=2, gpus=8, memory=400)
    await _before_the_scheduler(town)
    assert town.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit: each needs 400Gi memory")
    await town.passes(5)
    assert town.is_running("etl")
    assert town.half_started() == []
    town.finish("etl")
    await town.passes(5)
    assert town.is_running("gang")


async def _odd_is_let_go() -> SimCluster:
    """Its pod is on no node yet, and its flavor is gone: nobody can read what it needs."""
    town = await _town({"a": 8, "b": 8})
    town.add(RESOURCE_FLAVOR, "other", spec={})
    spec = town.queue_spec(1000, ())
    spec["resourceGroups"][0]["flavors"][0]["name"] = "other"
    town.change(CLUSTER_QUEUE, "cq2", {"spec": spec})
    town.submit("odd", gpus=4, queue="free")
    await _before_the_scheduler(town)
    town.client.remove(RESOURCE_FLAVOR, "", "other")
    town.follow()
    return town


async def test_nobody_is_let_go_beside_one_whose_needs_cannot_be_read() -> None:
    """It was let go, and its pods may come: what they will take is not known, and not nothing."""
    town = await _odd_is_let_go()
    town.submit("gang", gpus=8)
    await _before_the_scheduler(town)
    assert town.says("gang").startswith("Pending: node capacity not available: ")
    assert "is released, and the demands of its pods cannot be read: ResourceFlavor other" in town.says("gang")
    await town.passes(2)
    assert town.is_running("odd"), "whose pods are all on nodes takes no more, whatever it needed"
    assert town.is_running("gang")


async def test_nor_when_that_one_has_to_go_while_its_pods_may_still_come() -> None:
    """Deactivated before its pod was made or has a node: until its quota was released, and 3 s longer."""
    town = await _odd_is_let_go()
    town.change(WORKLOAD, town.workload("odd")["metadata"]["name"], {"spec": {"active": False}})
    town.submit("gang", gpus=8)
    await _before_the_scheduler(town)
    assert not town.holds_quota("odd")
    assert (
        "is evicted, and the demands of its pods that may still be created cannot be read: ResourceFlavor other"
        in town.says("gang")
    )
    await town.passes(2)
    assert not town.is_admitted("gang")
    await town.passes(2)
    assert town.is_running("gang")


# ------------------------------------------------------------------------------------------- nodes of their own, taints


def _apart(app: str, selects: str = "", key: str = HOST) -> Json:
    term = {"labelSelector": {"matchLabels": {"app": selects or app}}, "topologyKey": key}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"metadata": {"labels": {"app": app}}, "spec": {"affinity": rules}}


_PORT = {"container": {"ports": [{"containerPort": 22, "hostPort": 2222}]}}


@pytest.mark.parametrize("template", [_apart("a"), _PORT])
async def test_pods_that_share_no_node_need_one_each(template: Json) -> None:
    """Two pods of 4 GPUs fit 8 GPUs of one node, were it not that each wants a node."""
    town = SimCluster({"a": 8})
    town.submit("gang", pods=2, gpus=4, template=template)
    await town.passes(2)
    assert "each needs a node of its own with 4 nvidia.com/gpu, on 1 node open to them" in town.says("gang")
    town.add_node("b", 4)
    await _before_the_scheduler(town)
    assert town.says("gang").startswith("Ready: fits whole: 2 pods on 2 nodes (a, b)")


async def test_a_port_that_others_hold_on_a_node_closes_it() -> None:
    town = SimCluster({"a": 8, "b": 8})
    town.submit("first", gpus=1, template=_PORT)
    await town.passes(2)
    town.submit("gang", pods=2, gpus=4, template=_PORT)
    await town.passes(2)
    assert "1 of 2 pods does not fit" in town.says("gang")
    assert "on empty nodes either" not in town.says("gang")
    town.finish("first")
    await town.passes(2)
    assert town.is_admitted("gang")


async def test_the_place_of_a_pod_on_its_way_is_not_where_its_mate_is() -> None:
    """One pod is on a, and the other one can only go to b, however much is free on a: b is not for others."""
    town = SimCluster({"a": 8, "b": 4})
    town.submit("gang", pods=2, gpus=4, template=_apart("a"))
    await _before_the_scheduler(town)
    first = town.pods("gang")[0]["metadata"]["name"]
    town.change(POD, first, {"spec": {"nodeName": "a"}})
    town.submit("later", gpus=4)
    await _before_the_scheduler(town)
    assert town.says("later").startswith("Ready: fits whole: 1 pod on 1 node (a)") or "Pending" in town.says("later")
    assert "(b)" not in town.says("later")


async def test_two_gangs_that_keep_away_from_each_other_are_not_let_go_onto_the_same_nodes() -> None:
    town = SimCluster({"a": 8, "b": 8})
    town.submit("one", pods=2, gpus=4, template=_PORT)
    town.submit("two", pods=2, gpus=2, template=_PORT)
    await _before_the_scheduler(town)
    says = sorted(town.says(name).split(":")[0] for name in ("one", "two"))
    assert says == ["Pending", "Ready"]
    assert town.half_started() == []


async def test_nodes_with_the_taint_of_their_devices_are_open_to_pods_that_ask_for_these() -> None:
    """Clouds taint GPU nodes so, and add the toleration when the pod is made: the Workload's template lacks it."""
    town = SimCluster({"a": 8})
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    town.change(NODE, "a", {"spec": {"taints": [taint]}})
    town.submit("cpus", gpus=0, memory=1)
    await town.passes(2)
    assert "1 node with a taint that they do not tolerate" in town.says("cpus")
    town.submit("gang", gpus=8)
    await town.passes(2)
    assert town.is_running("gang")


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
async def test_a_gang_goes_by_what_can_be_counted_and_is_told_what_cannot(template: Json, note: str) -> None:
    town = SimCluster({"a": 8})
    town.submit("gang", pods=2, gpus=4, template=template)
    await town.passes(2)
    assert town.says("gang") == f"Ready: fits whole: 2 pods on 1 node (a); {note}"
    assert [note in message for _, reason, message in town.told.events if reason == "AdmissionCheckReady"] == [True]
    town.submit("later", gpus=8, template=template)
    await town.passes(2)
    assert town.says("later").endswith(f"1 node open to them; {note}")
