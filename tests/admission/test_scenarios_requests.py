"""Stories of ProvisioningRequests in virtual time: how one can end, what gets free meanwhile, limits, autoscalers.

Every row of the table of `provisioning/lifecycle.py` is in test_provisioning_lifecycle, every death of the process in
test_scenarios_restarts.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scaler_sandbox.autoscaler import CHECK_CAPACITY, QUEUED_PROVISIONING, Scenario, Shape
from scaler_sandbox.conditions import has, timestamp
from sim.provisioning_cluster import NOBODY, QUICK, ProvisioningCluster, failing

from scaler.kube.objects.resources import JOB, POD_TEMPLATE, PROVISIONING_REQUEST, SCALABLE_WORKLOAD, WORKLOAD

# ---------------------------------------------------------------------------------------------------- the table itself


async def lacking(**asks: Any) -> ProvisioningCluster:
    """A gang of 2 pods of 8 GPUs; 8 are free, and a victim that a plan could take runs on 8 more."""
    cluster = ProvisioningCluster({"a": 8, "v": 8}, provisioning=asks, scenarios=NOBODY)
    cluster.submit("victim", gpus=8)
    await cluster.passes(1)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(0, ticks=False)
    return cluster


async def asked(**asks: Any) -> tuple[ProvisioningCluster, str]:
    """Nodes were asked for it, and nobody has answered."""
    cluster = await lacking(**asks)
    await cluster.passes(1)
    assert cluster.requests("gang") == ["1: New"]
    return cluster, cluster.newest("gang")


# ------------------------------------------------------------------------------------------------------ it has started


async def started(**asks: Any) -> tuple[ProvisioningCluster, str]:
    """The gang runs, on 8 GPUs that were there and 8 that were provisioned."""
    cluster = ProvisioningCluster({"a": 8}, provisioning=asks, scenarios=NOBODY)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    name = cluster.newest("gang")
    cluster.answer(name, "Accepted")
    cluster.answer(name, "Provisioned")
    cluster.add_node("new", 8)
    await cluster.passes(2)
    assert cluster.is_running("gang")
    assert cluster.requests("gang") == ["1: Provisioned"]
    return cluster, name


STARTED: dict[str, tuple[Callable[[ProvisioningCluster, str], None], list[str], list[str]]] = {
    # what happens; requests that are left; Events that it leads to
    "its booking expires": (
        lambda cluster, name: cluster.answer(name, "BookingExpired", "Capacity reservation time is expired"),
        ["1: BookingExpired"],
        [],
    ),
    "its request is said to have failed": (
        lambda cluster, name: cluster.answer(name, "Failed", "late"),
        ["1: Failed"],
        [],
    ),
    "somebody deletes its request": (
        lambda cluster, name: cluster.client.remove(PROVISIONING_REQUEST, "ns", name),
        [],
        [],
    ),
    "its policy asks by another class": (
        lambda cluster, name: cluster.set_policy(className=CHECK_CAPACITY),
        ["1: Provisioned"],
        [],
    ),
    "its policy asks nobody any more": (
        lambda cluster, name: cluster.change_policy({"provisioning": None}),
        ["1: Provisioned"],
        [],
    ),
}


@pytest.mark.parametrize(("happens", "left", "told"), STARTED.values(), ids=STARTED)
async def test_one_that_has_started_keeps_what_its_pods_consume(
    happens: Callable[[ProvisioningCluster, str], None], left: list[str], told: list[str]
) -> None:
    cluster, name = await started()
    events, entry = len(cluster.recorded.events), cluster.entry("gang")
    happens(cluster, name)
    await cluster.passes(60)
    assert cluster.is_running("gang")
    assert cluster.entry("gang") == entry
    assert cluster.requests("gang") == left
    assert [reason for _, reason, _ in cluster.recorded.events[events:]] == told


async def test_capacity_revoked_while_it_runs_evicts_it_and_nodes_are_asked_for_anew() -> None:
    cluster, name = await started()
    cluster.answer(name, "CapacityRevoked", "the cloud has taken the nodes back")
    cluster.fleet.remove("new")
    await cluster.passes(3)
    assert "NodesRevoked" in cluster.recorded.reasons("gang")
    assert "NodesCapacityRevoked" in cluster.recorded.reasons("gang")
    assert not cluster.is_admitted("gang")
    assert cluster.requests("gang") == ["1: New"], "of another reservation, and counted from 1 again"
    cluster.answer(cluster.newest("gang"), "Provisioned")
    cluster.add_node("newer", 8)
    await cluster.passes(2)
    assert cluster.is_running("gang")
    assert {pod["spec"]["nodeName"] for pod in cluster.pods("gang")} == {"a", "newer"}
    assert cluster.half_started() == []


# ----------------------------------------------------------------------------------------------------- ways to the end


async def test_at_the_limit_a_gang_that_holds_waits_for_capacity_and_takes_it() -> None:
    cluster = ProvisioningCluster({"a": 8}, quota=16, provisioning={"retry": {"limit": 1}}, scenarios=[failing(9)])
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(90)
    cluster.submit("other", gpus=8)
    await cluster.passes(60)
    assert cluster.requests("gang") == ["1: Failed", "2: Failed"]
    assert "attempt 2 was the last and was lost" in cluster.says("gang")
    assert cluster.holds_quota("gang")
    assert not cluster.holds_quota("other"), "it keeps its quota, which is all there is"
    cluster.add_node("b", 8)
    await cluster.passes(2)
    assert cluster.is_running("gang")
    assert cluster.requests() == []


async def test_capacity_revoked_while_another_check_holds_the_gang_lets_it_go_through_all_of_it_again() -> None:
    cluster = ProvisioningCluster({"a": 8}, checks=("gate", "foreign"), scenarios=NOBODY)
    cluster.add_check("foreign", "example.com/other")
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), "Provisioned")
    cluster.add_node("b", 8)
    await cluster.passes(1)
    assert cluster.entry("gang")["state"] == "Ready"
    cluster.answer(cluster.newest("gang"), "CapacityRevoked", "spot")
    cluster.fleet.remove("b")
    await cluster.passes(3)
    assert cluster.entry("gang")["state"] == "Pending"
    assert cluster.entry("gang")["retryCount"] == 1
    assert cluster.requests("gang") == ["1: New"]


# ------------------------------------------------------------------------------------------------ what gets free

FREE: dict[str, tuple[str, str, list[str]]] = {
    # policy, what was said of the request, requests that are left once the gang has started
    "withdrawn before it was answered": ("WhenFree", "", []),
    "withdrawn after it was accepted": ("WhenFree", "Accepted", []),
    "lost ones go with all policies": ("Never", "Failed", []),
    "never withdrawn before it was answered": ("Never", "", ["1: New"]),
    "never withdrawn after it was accepted": ("Never", "Accepted", ["1: Accepted"]),
}


@pytest.mark.parametrize(("withdraw", "answer", "left"), FREE.values(), ids=FREE)
async def test_what_gets_free_while_a_request_runs_is_used_and_the_request_withdrawn_by_the_policy(
    withdraw: str, answer: str, left: list[str]
) -> None:
    cluster = ProvisioningCluster({"a": 8, "b": 8}, provisioning={"withdraw": withdraw}, scenarios=NOBODY)
    cluster.submit("other", gpus=8)
    await cluster.passes(2)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    if answer:
        cluster.answer(cluster.newest("gang"), answer)
    await cluster.passes(1)
    assert not cluster.is_admitted("gang")
    cluster.finish("other")
    await cluster.passes(2)
    assert cluster.is_running("gang")
    assert cluster.says("gang") == "Ready: fits whole: 2 pods on 2 nodes (a, b)"
    assert "podSetUpdates" not in cluster.entry("gang"), "it consumes no request"
    assert cluster.requests("gang") == left
    await cluster.passes(60)
    assert cluster.requests("gang") == left


async def node_comes_early(answer: str = "Accepted") -> tuple[ProvisioningCluster, str]:
    """A node registers before its request is provisioned."""
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    name = cluster.newest("gang")
    if answer == "deleted":
        going = {"deletionTimestamp": timestamp(cluster.client.now), "finalizers": ["example.com/keeps"]}
        cluster.change(PROVISIONING_REQUEST, name, {"metadata": going})
    elif answer:
        cluster.answer(name, answer)
    cluster.add_node("b", 8)
    await cluster.passes(1)
    return cluster, name


async def test_nodes_that_come_before_their_request_is_provisioned_wait_for_it() -> None:
    """What the request gives reaches the pods."""
    cluster, name = await node_comes_early()
    await cluster.passes(40)
    assert (
        "fits whole: 2 pods on 2 nodes (a, b); until 12:01:02 UTC waits for its request to book the new nodes"
        in cluster.says("gang")
    )
    assert not cluster.is_admitted("gang")
    assert cluster.requests("gang") == ["1: Accepted"]
    cluster.answer(name, "Provisioned")
    await cluster.passes(2)
    assert cluster.is_running("gang")
    [update] = cluster.entry("gang")["podSetUpdates"]
    assert update["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == name
    assert cluster.requests("gang") == ["1: Provisioned"]


async def test_nodes_whose_request_is_not_provisioned_are_used_after_a_minute_and_it_is_withdrawn() -> None:
    cluster, _ = await node_comes_early()
    await cluster.passes(58)
    assert not cluster.is_admitted("gang")
    await cluster.passes(3)
    assert cluster.is_running("gang")
    assert "podSetUpdates" not in cluster.entry("gang")
    assert cluster.requests("gang") == []


OPEN: dict[str, tuple[str, bool]] = {
    # what is said of the request, and whether it may still book nodes
    "nobody has answered it yet": ("", True),
    "it is accepted": ("Accepted", True),
    "it has failed": ("Failed", False),
    "it is being deleted, and somebody's finalizer keeps it": ("deleted", False),
}


@pytest.mark.parametrize(("answer", "is_open"), OPEN.values(), ids=OPEN)
async def test_nodes_that_come_are_not_used_at_once_only_while_a_request_may_book_them(
    answer: str, is_open: bool
) -> None:
    cluster, _ = await node_comes_early(answer)
    await cluster.passes(30)
    assert cluster.is_running("gang") is not is_open


async def test_nobody_gets_the_places_of_one_whose_nodes_may_be_booked_yet() -> None:
    cluster, name = await node_comes_early()
    cluster.submit("next", gpus=8)
    await cluster.passes(20)
    assert not cluster.is_admitted("next")
    cluster.answer(name, "Provisioned")
    await cluster.passes(2)
    assert (cluster.is_running("gang"), cluster.is_admitted("next")) == (True, False)


async def test_what_a_plan_frees_while_a_request_runs_is_used_and_the_order_of_nodes_cancelled() -> None:
    """Nodes were ordered and come in 30 s; the victim ends in 5. Nothing is added."""
    slow = replace(QUICK, provisioned_after=timedelta(seconds=30))
    cluster = ProvisioningCluster({"a": 8, "v": 8}, quota=24, scenarios=[slow])
    cluster.termination["victim"] = 5.0
    cluster.submit("victim", gpus=8)
    await cluster.passes(2)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(3)
    assert cluster.requests("gang") == ["1: Accepted"]
    cluster.deactivate("victim", for_gang="gang")
    await cluster.passes(4)
    assert cluster.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim")
    assert cluster.requests("gang") == ["1: Accepted"], "not withdrawn before the gang has started"
    await cluster.passes(4)
    assert cluster.is_running("gang")
    assert cluster.requests("gang") == []
    await cluster.passes(40)
    assert set(cluster.fleet.machines) == {"a", "v"}


async def test_reuse_goes_first_and_nodes_are_asked_for_only_when_its_time_is_over() -> None:
    """`after: 20s`, and a plan that comes to nothing."""
    cluster = ProvisioningCluster({"a": 8, "v": 8}, provisioning={"after": "20s"}, scenarios=[QUICK])
    cluster.submit("victim", gpus=8)
    await cluster.passes(1)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(10)
    assert cluster.requests() == []
    cluster.grant("victim", to="gang")
    await cluster.passes(20)
    assert cluster.requests() == [], "a plan is being carried out"
    cluster.client.remove(SCALABLE_WORKLOAD, "ns", "victim")
    await cluster.passes(6)
    assert cluster.is_running("gang")
    assert cluster.is_running("victim")


# ------------------------------------------------------------------------------------------------ several, and classes


GKE = Scenario(
    provisioning_class=QUEUED_PROVISIONING,
    accepted_after=timedelta(seconds=1),
    provisioned_after=timedelta(seconds=20),
    shape=Shape(name="queued", gpus=8, labels={"autoscaling.gke.io/provisioning-request": "{id}"}),
    counts_free=False,
    tells_eta=True,
    details={"ResizeRequestName": "{id}"},
)
FROM_DETAIL = {
    "nodeSelector": [
        {
            "key": "autoscaling.gke.io/provisioning-request",
            "valueFromProvisioningClassDetail": "ResizeRequestName",
        }
    ]
}


async def test_a_gang_of_queued_provisioning_hears_the_eta_and_starts_on_its_own_nodes() -> None:
    """GKE adds nodes for all pods, whatever is free: the gang is tied to them by the label that they have."""
    cluster = ProvisioningCluster(
        {"a": 8}, provisioning={"className": QUEUED_PROVISIONING, "podSetUpdates": FROM_DETAIL}, scenarios=[GKE]
    )
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    assert cluster.report.plan.pending[0].step.until is not None
    await cluster.passes(31)
    assert cluster.is_running("gang")
    assert {pod["spec"]["nodeName"][:6] for pod in cluster.pods("gang")} == {"queued"}
    [update] = cluster.entry("gang")["podSetUpdates"]
    assert update["nodeSelector"].keys() == {"autoscaling.gke.io/provisioning-request"}


async def test_a_parameter_that_a_job_sets_by_annotation_wins_over_the_policy() -> None:
    """Kueue hands the annotation to the Workload."""
    cluster = ProvisioningCluster({}, provisioning={"parameters": {"zone": "a", "spot": "yes"}}, scenarios=NOBODY)
    cluster.submit("gang", gpus=8)
    cluster.change(JOB, "gang", {"metadata": {"annotations": {"provreq.kueue.x-k8s.io/zone": "b"}}})
    await cluster.passes(1)
    request = cluster.client.find(PROVISIONING_REQUEST, "ns", cluster.newest("gang"))
    assert request is not None
    assert request["spec"]["parameters"] == {"zone": "b", "spot": "yes"}


async def test_only_what_is_missing_is_asked_for_where_the_policy_says_so() -> None:
    """2 of 3 pods have room: nodes are asked for one, and the gang starts on all three."""
    cluster = ProvisioningCluster({"a": 8, "b": 8}, provisioning={"amount": "Missing"}, scenarios=[_counts_nothing()])
    cluster.submit("gang", pods=3, gpus=8)
    await cluster.passes(1)
    request = cluster.client.find(PROVISIONING_REQUEST, "ns", cluster.newest("gang"))
    assert request is not None
    assert [each["count"] for each in request["spec"]["podSets"]] == [1]
    await cluster.passes(5)
    assert cluster.is_running("gang")
    assert len(cluster.fleet.machines) == 3


def _counts_nothing() -> Scenario:
    """Adds nodes for everything that is asked for."""
    return replace(QUICK, counts_free=False)


async def test_after_an_eviction_nothing_of_the_earlier_request_reaches_the_pods() -> None:
    """The gang was let go with a request's name on its pods, is evicted, and fits without one when it comes back."""
    cluster, _ = await started()
    workload = cluster.workload("gang")["metadata"]["name"]
    cluster.change(WORKLOAD, workload, {"spec": {"active": False}})
    await cluster.passes(3)
    assert cluster.requests() == []
    cluster.change(WORKLOAD, workload, {"spec": {"active": True}})
    await cluster.passes(3)
    assert cluster.is_running("gang")
    assert "podSetUpdates" not in cluster.entry("gang")
    annotations = [pod["metadata"].get("annotations") or {} for pod in cluster.pods("gang")]
    assert not any("autoscaling.x-k8s.io/consume-provisioning-request" in each for each in annotations)
    assert has(cluster.workload("gang"), "Admitted")


async def test_what_an_evicted_gang_has_requested_goes_while_its_pods_still_terminate() -> None:
    cluster, _ = await started()
    cluster.termination["gang"] = 60.0
    workload = cluster.workload("gang")["metadata"]["name"]
    cluster.change(WORKLOAD, workload, {"spec": {"active": False}})
    await cluster.passes(3)
    assert len(cluster.pods("gang")) == 2, "they terminate slowly"
    assert (cluster.requests(), cluster.templates()) == ([], [])


async def test_a_template_of_somebody_else_stays_although_a_request_of_ours_names_it() -> None:
    """Whoever may edit requests may write any owners into them; what we may delete is not theirs to choose."""
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    (ours,) = cluster.templates()
    foreign = cluster.add(POD_TEMPLATE, "precious", namespace="ns")
    request = cluster.client.find(PROVISIONING_REQUEST, "ns", cluster.newest("gang"))
    assert request is not None
    owner = {"apiVersion": "v1", "kind": "PodTemplate", "name": "precious", "uid": foreign["metadata"]["uid"]}
    owners = [owner, *request["metadata"]["ownerReferences"]]
    cluster.change(PROVISIONING_REQUEST, cluster.newest("gang"), {"metadata": {"ownerReferences": owners}})
    cluster.add_node("b", 8)
    await cluster.passes(61)
    assert cluster.is_running("gang")
    assert cluster.requests() == []
    assert ours not in cluster.templates()
    assert cluster.templates() == ["precious"]
