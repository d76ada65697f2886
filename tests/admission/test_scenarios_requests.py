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
    town = ProvisioningCluster({"a": 8, "v": 8}, provisioning=asks, scenarios=NOBODY)
    town.submit("victim", gpus=8)
    await town.passes(1)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(0, gate=False)
    return town


async def asked(**asks: Any) -> tuple[ProvisioningCluster, str]:
    """Nodes were asked for it, and nobody has answered."""
    town = await lacking(**asks)
    await town.passes(1)
    assert town.requests("gang") == ["1: New"]
    return town, town.newest("gang")


# ------------------------------------------------------------------------------------------------------ it has started


async def started(**asks: Any) -> tuple[ProvisioningCluster, str]:
    """The gang runs, on 8 GPUs that were there and 8 that were provisioned."""
    town = ProvisioningCluster({"a": 8}, provisioning=asks, scenarios=NOBODY)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    name = town.newest("gang")
    town.answer(name, "Accepted")
    town.answer(name, "Provisioned")
    town.add_node("new", 8)
    await town.passes(2)
    assert town.is_running("gang")
    assert town.requests("gang") == ["1: Provisioned"]
    return town, name


STARTED: dict[str, tuple[Callable[[ProvisioningCluster, str], None], list[str], list[str]]] = {
    # what happens; requests that are left; Events that it leads to
    "its booking expires": (
        lambda town, name: town.answer(name, "BookingExpired", "Capacity reservation time is expired"),
        ["1: BookingExpired"],
        [],
    ),
    "its request is said to have failed": (lambda town, name: town.answer(name, "Failed", "late"), ["1: Failed"], []),
    "somebody deletes its request": (lambda town, name: town.client.remove(PROVISIONING_REQUEST, "ns", name), [], []),
    "its policy asks by another class": (
        lambda town, name: town.set_policy(className=CHECK_CAPACITY),
        ["1: Provisioned"],
        [],
    ),
    "its policy asks nobody any more": (
        lambda town, name: town.change_policy({"provisioning": None}),
        ["1: Provisioned"],
        [],
    ),
}


@pytest.mark.parametrize(("happens", "left", "told"), STARTED.values(), ids=STARTED)
async def test_one_that_has_started_keeps_what_its_pods_consume(
    happens: Callable[[ProvisioningCluster, str], None], left: list[str], told: list[str]
) -> None:
    town, name = await started()
    events, entry = len(town.told.events), town.entry("gang")
    happens(town, name)
    await town.passes(60)
    assert town.is_running("gang")
    assert town.entry("gang") == entry
    assert town.requests("gang") == left
    assert [reason for _, reason, _ in town.told.events[events:]] == told


async def test_capacity_revoked_while_it_runs_evicts_it_and_nodes_are_asked_for_anew() -> None:
    town, name = await started()
    town.answer(name, "CapacityRevoked", "the cloud has taken the nodes back")
    town.fleet.remove("new")
    await town.passes(3)
    assert "NodesRevoked" in town.told.reasons("gang")
    assert "NodesCapacityRevoked" in town.told.reasons("gang")
    assert not town.is_admitted("gang")
    assert town.requests("gang") == ["1: New"], "of another reservation, and counted from 1 again"
    town.answer(town.newest("gang"), "Provisioned")
    town.add_node("newer", 8)
    await town.passes(2)
    assert town.is_running("gang")
    assert {pod["spec"]["nodeName"] for pod in town.pods("gang")} == {"a", "newer"}
    assert town.half_started() == []


# ----------------------------------------------------------------------------------------------------- ways to the end


async def test_at_the_limit_a_gang_that_holds_waits_for_capacity_and_takes_it() -> None:
    town = ProvisioningCluster({"a": 8}, quota=16, provisioning={"retry": {"limit": 1}}, scenarios=[failing(9)])
    town.submit("gang", pods=2, gpus=8)
    await town.passes(90)
    town.submit("other", gpus=8)
    await town.passes(60)
    assert town.requests("gang") == ["1: Failed", "2: Failed"]
    assert "attempt 2 was the last and was lost" in town.says("gang")
    assert town.holds_quota("gang")
    assert not town.holds_quota("other"), "it keeps its quota, which is all there is"
    town.add_node("b", 8)
    await town.passes(2)
    assert town.is_running("gang")
    assert town.requests() == []


async def test_at_the_limit_a_gang_that_yields_gives_its_quota_to_one_that_can_use_it_and_comes_back() -> None:
    """After its last attempt it rests a pause, yields, and asks from 1 again once it has quota again."""
    town = ProvisioningCluster(
        {"a": 8},
        quota=16,
        provisioning={"retry": {"limit": 0, "base": "10s"}, "atLimit": "Yield"},
        scenarios=[failing(1)],
        queueingStrategy="StrictFIFO",
    )
    town.submit("gang", pods=2, gpus=8)
    await town.passes(6)
    town.submit("other", gpus=8)
    await town.passes(4)
    assert "releases its quota at 12:00:14 UTC" in town.says("gang")
    await town.passes(6)
    assert town.is_running("other")
    assert not town.holds_quota("gang")
    assert town.requests() == []
    assert "AdmissionCheckRetry" in town.told.reasons("gang")
    town.finish("other")
    await town.passes(10)
    assert town.is_running("gang"), town.says("gang")


async def test_capacity_revoked_while_another_check_holds_the_gang_lets_it_go_through_all_of_it_again() -> None:
    town = ProvisioningCluster({"a": 8}, checks=("gate", "foreign"), scenarios=NOBODY)
    town.add_check("foreign", "example.com/other")
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    town.answer(town.newest("gang"), "Provisioned")
    town.add_node("b", 8)
    await town.passes(1)
    assert town.entry("gang")["state"] == "Ready"
    town.answer(town.newest("gang"), "CapacityRevoked", "spot")
    town.fleet.remove("b")
    await town.passes(3)
    assert town.entry("gang")["state"] == "Pending"
    assert town.entry("gang")["retryCount"] == 1
    assert town.requests("gang") == ["1: New"]


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
    town = ProvisioningCluster({"a": 8, "b": 8}, provisioning={"withdraw": withdraw}, scenarios=NOBODY)
    town.submit("other", gpus=8)
    await town.passes(2)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    if answer:
        town.answer(town.newest("gang"), answer)
    await town.passes(1)
    assert not town.is_admitted("gang")
    town.finish("other")
    await town.passes(2)
    assert town.is_running("gang")
    assert town.says("gang") == "Ready: fits whole: 2 pods on 2 nodes (a, b)"
    assert "podSetUpdates" not in town.entry("gang"), "it consumes no request"
    assert town.requests("gang") == left
    await town.passes(60)
    assert town.requests("gang") == left


async def node_comes_early(answer: str = "Accepted") -> tuple[ProvisioningCluster, str]:
    """A node registers before its request is provisioned."""
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    name = town.newest("gang")
    if answer == "deleted":
        going = {"deletionTimestamp": timestamp(town.client.now), "finalizers": ["example.com/keeps"]}
        town.change(PROVISIONING_REQUEST, name, {"metadata": going})
    elif answer:
        town.answer(name, answer)
    town.add_node("b", 8)
    await town.passes(1)
    return town, name


async def test_nodes_that_come_before_their_request_is_provisioned_wait_for_it() -> None:
    """What the request gives reaches the pods."""
    town, name = await node_comes_early()
    await town.passes(40)
    assert (
        "fits whole: 2 pods on 2 nodes (a, b); until 12:01:02 UTC waits for its request to book the new nodes"
        in town.says("gang")
    )
    assert not town.is_admitted("gang")
    assert town.requests("gang") == ["1: Accepted"]
    town.answer(name, "Provisioned")
    await town.passes(2)
    assert town.is_running("gang")
    [update] = town.entry("gang")["podSetUpdates"]
    assert update["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == name
    assert town.requests("gang") == ["1: Provisioned"]


async def test_nodes_whose_request_is_not_provisioned_are_used_after_a_minute_and_it_is_withdrawn() -> None:
    town, _ = await node_comes_early()
    await town.passes(58)
    assert not town.is_admitted("gang")
    await town.passes(3)
    assert town.is_running("gang")
    assert "podSetUpdates" not in town.entry("gang")
    assert town.requests("gang") == []


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
    town, _ = await node_comes_early(answer)
    await town.passes(30)
    assert town.is_running("gang") is not is_open


async def test_nobody_gets_the_places_of_one_whose_nodes_may_be_booked_yet() -> None:
    town, name = await node_comes_early()
    town.submit("next", gpus=8)
    await town.passes(20)
    assert not town.is_admitted("next")
    town.answer(name, "Provisioned")
    await town.passes(2)
    assert (town.is_running("gang"), town.is_admitted("next")) == (True, False)


async def test_what_a_plan_frees_while_a_request_runs_is_used_and_the_order_of_nodes_cancelled() -> None:
    """Nodes were ordered and come in 30 s; the victim ends in 5. Nothing is added."""
    slow = replace(QUICK, provisioned_after=timedelta(seconds=30))
    town = ProvisioningCluster({"a": 8, "v": 8}, quota=24, scenarios=[slow])
    town.termination["victim"] = 5.0
    town.submit("victim", gpus=8)
    await town.passes(2)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(3)
    assert town.requests("gang") == ["1: Accepted"]
    town.deactivate("victim", for_gang="gang")
    await town.passes(4)
    assert town.says("gang").startswith("Pending: waits for 1 pod of ns/job-victim")
    assert town.requests("gang") == ["1: Accepted"], "not withdrawn before the gang has started"
    await town.passes(4)
    assert town.is_running("gang")
    assert town.requests("gang") == []
    await town.passes(40)
    assert set(town.fleet.machines) == {"a", "v"}


async def test_reuse_goes_first_and_nodes_are_asked_for_only_when_its_time_is_over() -> None:
    """`after: 20s`, and a plan that comes to nothing."""
    town = ProvisioningCluster({"a": 8, "v": 8}, provisioning={"after": "20s"}, scenarios=[QUICK])
    town.submit("victim", gpus=8)
    await town.passes(1)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(10)
    assert town.requests() == []
    town.grant("victim", to="gang")
    await town.passes(20)
    assert town.requests() == [], "a plan is being carried out"
    town.client.remove(SCALABLE_WORKLOAD, "ns", "victim")
    await town.passes(6)
    assert town.is_running("gang")
    assert town.is_running("victim")


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
    town = ProvisioningCluster(
        {"a": 8}, provisioning={"className": QUEUED_PROVISIONING, "podSetUpdates": FROM_DETAIL}, scenarios=[GKE]
    )
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    assert town.report.plan.pending[0].step.until is not None
    await town.passes(31)
    assert town.is_running("gang")
    assert {pod["spec"]["nodeName"][:6] for pod in town.pods("gang")} == {"queued"}
    [update] = town.entry("gang")["podSetUpdates"]
    assert update["nodeSelector"].keys() == {"autoscaling.gke.io/provisioning-request"}


async def test_a_parameter_that_a_job_sets_by_annotation_wins_over_the_policy() -> None:
    """Kueue hands the annotation to the Workload."""
    town = ProvisioningCluster({}, provisioning={"parameters": {"zone": "a", "spot": "yes"}}, scenarios=NOBODY)
    town.submit("gang", gpus=8)
    town.change(JOB, "gang", {"metadata": {"annotations": {"provreq.kueue.x-k8s.io/zone": "b"}}})
    await town.passes(1)
    request = town.client.find(PROVISIONING_REQUEST, "ns", town.newest("gang"))
    assert request is not None
    assert request["spec"]["parameters"] == {"zone": "b", "spot": "yes"}


async def test_only_what_is_missing_is_asked_for_where_the_policy_says_so() -> None:
    """2 of 3 pods have room: nodes are asked for one, and the gang starts on all three."""
    town = ProvisioningCluster({"a": 8, "b": 8}, provisioning={"amount": "Missing"}, scenarios=[_counts_nothing()])
    town.submit("gang", pods=3, gpus=8)
    await town.passes(1)
    request = town.client.find(PROVISIONING_REQUEST, "ns", town.newest("gang"))
    assert request is not None
    assert [each["count"] for each in request["spec"]["podSets"]] == [1]
    await town.passes(5)
    assert town.is_running("gang")
    assert len(town.fleet.machines) == 3


def _counts_nothing() -> Scenario:
    """Adds nodes for everything that is asked for."""
    return replace(QUICK, counts_free=False)


async def test_after_an_eviction_nothing_of_the_earlier_request_reaches_the_pods() -> None:
    """The gang was let go with a request's name on its pods, is evicted, and fits without one when it comes back."""
    town, _ = await started()
    workload = town.workload("gang")["metadata"]["name"]
    town.change(WORKLOAD, workload, {"spec": {"active": False}})
    await town.passes(3)
    assert town.requests() == []
    town.change(WORKLOAD, workload, {"spec": {"active": True}})
    await town.passes(3)
    assert town.is_running("gang")
    assert "podSetUpdates" not in town.entry("gang")
    annotations = [pod["metadata"].get("annotations") or {} for pod in town.pods("gang")]
    assert not any("autoscaling.x-k8s.io/consume-provisioning-request" in each for each in annotations)
    assert has(town.workload("gang"), "Admitted")


async def test_what_an_evicted_gang_has_requested_goes_while_its_pods_still_terminate() -> None:
    town, _ = await started()
    town.termination["gang"] = 60.0
    workload = town.workload("gang")["metadata"]["name"]
    town.change(WORKLOAD, workload, {"spec": {"active": False}})
    await town.passes(3)
    assert len(town.pods("gang")) == 2, "they terminate slowly"
    assert (town.requests(), town.templates()) == ([], [])


async def test_a_template_of_somebody_else_stays_although_a_request_of_ours_names_it() -> None:
    """Whoever may edit requests may write any owners into them; what we may delete is not theirs to choose."""
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(1)
    (ours,) = town.templates()
    foreign = town.add(POD_TEMPLATE, "precious", namespace="ns")
    request = town.client.find(PROVISIONING_REQUEST, "ns", town.newest("gang"))
    assert request is not None
    owner = {"apiVersion": "v1", "kind": "PodTemplate", "name": "precious", "uid": foreign["metadata"]["uid"]}
    owners = [owner, *request["metadata"]["ownerReferences"]]
    town.change(PROVISIONING_REQUEST, town.newest("gang"), {"metadata": {"ownerReferences": owners}})
    town.add_node("b", 8)
    await town.passes(61)
    assert town.is_running("gang")
    assert town.requests() == []
    assert ours not in town.templates()
    assert town.templates() == ["precious"]
