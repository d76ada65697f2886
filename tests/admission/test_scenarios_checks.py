"""Checks that are for some flavors only, and queues with several checks: Kueue's own, MultiKueue's."""

from typing import Any

from scaler_sandbox.kinds import Json
from sim.cluster import CHECK, GPU
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.kube.objects.resources import (
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    WORKLOAD,
)

# --------------------------------------------------------------------------------------------------------- parameters


async def test_while_the_policy_is_unusable_gangs_wait_and_requests_stay() -> None:
    """One gang runs, one has an open request, one is Ready and held by another check."""
    cluster = ProvisioningCluster({"a": 8, "b": 8}, checks=(CHECK, "foreign"), scenarios=NOBODY)
    cluster.add_check("foreign", "example.com/other")
    for name, pods in (("runs", 1), ("held", 1), ("waits", 1)):
        cluster.submit(name, pods=pods, gpus=8)
        await cluster.passes(1)
    set_state(cluster, "runs", "foreign")
    await cluster.passes(1)
    assert (cluster.is_running("runs"), cluster.entry("held")["state"]) == (True, "Ready")
    assert cluster.requests("waits") == ["1: New"]
    writes = len(cluster.api.writes)
    cluster.client.remove(RECLAIM_POLICY, "", "policy")
    await cluster.passes(40)
    assert cluster.says("waits").startswith("Pending: AdmissionCheck gate: spec.parameters: there is no ReclaimPolicy")
    assert cluster.requests("waits") == ["1: New"]
    assert cluster.is_running("runs")
    assert cluster.entry("held")["state"] == "Ready"
    name = cluster.workload("waits")["metadata"]["name"]
    assert set(cluster.api.writes[writes:]) == {"patch admissionchecks/gate", f"patch workloads/{name}"}
    assert len(cluster.api.writes[writes:]) == 2, "once each"


def set_state(cluster: ProvisioningCluster, job: str, check: str, state: str = "Ready", **given: Any) -> None:
    """The controller of another check sets its state."""
    workload = cluster.workload(job)
    said = {"state": state, "message": "go", **given}
    entries = [{**each, **said} if each["name"] == check else each for each in workload["status"]["admissionChecks"]]
    cluster.change(WORKLOAD, workload["metadata"]["name"], {"status": {"admissionChecks": entries}}, "status")


# -------------------------------------------------------------------------------------------------- on certain flavors


async def on_flavors(*, spot: int = 16, fixed: int = 16, **more: Any) -> ProvisioningCluster:
    """Our check is for Workloads on flavor spot; nodes a, b are spot, and c is not."""
    cluster = ProvisioningCluster({}, scenarios=NOBODY, **more)
    for flavor in ("spot", "fixed"):
        cluster.add(RESOURCE_FLAVOR, flavor, spec={"nodeLabels": {"kind": flavor}})
    for name, kind in (("a", "spot"), ("b", "spot"), ("c", "fixed")):
        cluster.add_node(name, 8, kind=kind)
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": flavored(spot, fixed)})
    await cluster.passes(1)
    return cluster


def flavored(spot: int, fixed: int) -> Json:
    flavors = [
        {"name": name, "resources": [{"name": GPU, "nominalQuota": gpus}]}
        for name, gpus in (("spot", spot), ("fixed", fixed))
    ]
    return {
        "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
        "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK, "onFlavors": ["spot"]}]},
    }


async def test_only_gangs_on_the_flavors_of_the_check_are_held() -> None:
    """The first takes all 16 GPUs of spot quota, so that the second is given the other flavor."""
    cluster = await on_flavors(spot=16, fixed=8)
    cluster.submit("first", pods=2, gpus=8)
    await cluster.passes(2)
    assert cluster.is_running("first")
    assert cluster.says("first").startswith("Ready: fits whole: 2 pods on 2 nodes (a, b)")
    cluster.submit("second", gpus=8)
    await cluster.passes(2)
    assert cluster.entry("second") == {}
    assert cluster.is_running("second"), "on the other flavor, for which the check is not"
    assert cluster.pods("second")[0]["spec"]["nodeName"] == "c"


async def test_pods_on_their_way_of_a_gang_without_the_check_keep_their_places() -> None:
    """It was never held, and its pods go to the same nodes: here both flavors have no labels of their own."""
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    for flavor in ("spot", "fixed"):
        cluster.add(RESOURCE_FLAVOR, flavor, spec={})
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": flavored(4, 8)})
    cluster.hold_pods()
    cluster.submit("free", gpus=8)
    await cluster.passes(2)
    assert cluster.is_admitted("free")
    cluster.submit("gang", gpus=4)
    await cluster.passes(2)
    assert cluster.says("gang").startswith("Pending: PodSet main: 1 of 1 pods does not fit")


async def test_a_gang_that_comes_back_on_another_flavor_leaves_nothing_behind() -> None:
    """It has asked for nodes of spot, is evicted while that quota is taken away, and starts on the other flavor."""
    cluster = await on_flavors(spot=24, fixed=24)
    cluster.submit("gang", pods=3, gpus=8)
    await cluster.passes(2)
    assert cluster.requests("gang") == ["1: New"]
    name = cluster.workload("gang")["metadata"]["name"]
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": flavored(0, 24)})
    cluster.change(WORKLOAD, name, {"spec": {"active": False}})
    await cluster.passes(2)
    cluster.change(WORKLOAD, name, {"spec": {"active": True}})
    await cluster.passes(2)
    assert cluster.entry("gang") == {}
    assert cluster.is_admitted("gang"), "no check is for that flavor"
    assert (cluster.requests(), cluster.templates()) == ([], [])


async def test_a_request_goes_when_the_check_is_no_more_for_the_flavor_of_its_gang() -> None:
    cluster = await on_flavors(spot=24)
    cluster.submit("gang", pods=3, gpus=8)
    await cluster.passes(2)
    assert cluster.requests("gang") == ["1: New"]
    rules = {"admissionChecks": [{"name": CHECK, "onFlavors": ["fixed"]}]}
    cluster.change(CLUSTER_QUEUE, "cq", {"spec": {"admissionChecksStrategy": rules}})
    await cluster.passes(2)
    assert cluster.is_admitted("gang")
    await cluster.passes(31)
    assert (cluster.requests(), cluster.templates()) == ([], [])


# ------------------------------------------------------------------------------------------------- beside other checks

PODS_ONLY: Json = {"requireFit": False, "reuse": {"enabled": False}, "provisioning": None}
KUEUES = "nodes-by-kueue"


async def beside_kueue(nodes: dict[str, int], **policy: Any) -> ProvisioningCluster:
    cluster = ProvisioningCluster(nodes, policy=policy or PODS_ONLY, checks=(CHECK, KUEUES), quota=16, scenarios=NOBODY)
    cluster.add_check(KUEUES, "kueue.x-k8s.io/provisioning-request")
    await cluster.passes(1)
    return cluster


async def test_beside_kueues_own_check_ours_waits_for_pods_only_and_requests_no_nodes() -> None:
    """Kueue's request is made while ours is Pending (K7b), and its answer alone admits no gang."""
    cluster = await beside_kueue({"a": 8, "b": 8})
    cluster.termination["victim"] = 10.0
    cluster.submit("victim", pods=2, gpus=8)
    await cluster.passes(1)
    set_state(cluster, "victim", KUEUES)
    await cluster.passes(1)
    assert cluster.is_running("victim")
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    cluster.deactivate("victim", for_gang="gang")
    await cluster.passes(3)
    set_state(cluster, "gang", KUEUES)
    await cluster.passes(3)
    assert cluster.says("gang").startswith("Pending: waits for 2 pods of ns/job-victim")
    assert not cluster.is_admitted("gang")
    await cluster.passes(8)
    assert cluster.is_running("gang")
    assert cluster.requests() == []
    assert cluster.entry("gang", KUEUES)["message"] == "go", "left as it was"


async def test_places_are_not_kept_for_a_gang_that_another_check_sends_back() -> None:
    """It keeps its quota until the delay of that check is over, and GPUs that it cannot use go to another one."""
    cluster = await beside_kueue({"a": 8}, requireFit=True, provisioning=None)
    cluster.add(CLUSTER_QUEUE, "ours", spec=cluster.queue_spec(8))
    cluster.add(LOCAL_QUEUE, "ours", namespace="ns", spec={"clusterQueue": "ours"})
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    set_state(cluster, "gang", KUEUES, "Retry", requeueAfterSeconds=60)
    before = len(cluster.api.patches)
    cluster.add_node("b", 8)
    await cluster.passes(1)
    assert cluster.api.patches[before:] == [], "it would fit, and is sent back all the same"
    assert cluster.holds_quota("gang")
    cluster.submit("other", gpus=8, queue="ours")
    await cluster.passes(1)
    assert cluster.is_running("other")


async def test_what_kueues_check_gives_to_pods_counts_for_where_they_fit() -> None:
    """Its node selector ties pods to nodes that it has provisioned: only these are room for the gang."""
    cluster = await beside_kueue({"a": 8}, requireFit=True, provisioning=None)
    cluster.submit("gang", gpus=8)
    await cluster.client.settle(*cluster.controllers)
    set_state(cluster, "gang", KUEUES, podSetUpdates=[{"name": "main", "nodeSelector": {"pool": "new"}}])
    await cluster.passes(2)
    assert cluster.says("gang").startswith("Pending: PodSet main: 1 of 1 pods does not fit")
    cluster.add_node("new", 8, pool="new")
    await cluster.passes(2)
    assert cluster.is_running("gang")


async def test_beside_multikueue_ours_waits_for_pods_that_end_here_and_then_lets_it_be_dispatched() -> None:
    """Then Kueue's dispatcher, which waits for all other checks, goes on. Nothing is asked of the nodes here."""
    cluster = ProvisioningCluster({"a": 8}, checks=(CHECK, "elsewhere"), quota=8, scenarios=NOBODY)
    cluster.add_check("elsewhere", "kueue.x-k8s.io/multikueue")
    cluster.add(CLUSTER_QUEUE, "here", spec=cluster.queue_spec(8))
    cluster.add(LOCAL_QUEUE, "here", namespace="ns", spec={"clusterQueue": "here"})
    cluster.termination["victim"] = 10.0
    cluster.submit("victim", gpus=8, queue="here")
    await cluster.passes(1)
    cluster.submit("gang", gpus=8)
    await cluster.passes(ticks=False)
    cluster.deactivate("victim", for_gang="gang")
    await cluster.passes(3)
    assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim")
    await cluster.passes(9)
    assert cluster.says("gang") == "Ready: no pod terminates for it here, and it runs on another cluster"
    assert cluster.entry("gang", "elsewhere")["state"] == "Pending"
    assert not cluster.is_admitted("gang")
    assert cluster.requests() == []


async def test_one_that_runs_on_another_cluster_keeps_no_places_here() -> None:
    cluster = ProvisioningCluster({"a": 8}, checks=(CHECK, "elsewhere"), scenarios=NOBODY)
    cluster.add_check("elsewhere", "kueue.x-k8s.io/multikueue")
    cluster.add(CLUSTER_QUEUE, "here", spec=cluster.queue_spec(8))
    cluster.add(LOCAL_QUEUE, "here", namespace="ns", spec={"clusterQueue": "here"})
    cluster.hold_pods()
    cluster.submit("away", gpus=8)
    await cluster.passes(1)
    set_state(cluster, "away", "elsewhere")
    await cluster.passes(1)
    assert cluster.is_admitted("away")
    cluster.submit("gang", gpus=8, queue="here")
    await cluster.passes(2)
    assert cluster.entry("gang")["state"] == "Ready"
