"""Stories of ProvisioningRequests in virtual time: how one can end, what gets free meanwhile, limits, autoscalers.

Every row of the table of `provisioning/lifecycle.py` is in test_provisioning_lifecycle, every death of the process in
test_scenarios_restarts.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scaler_sandbox.autoscaler import QUEUED_PROVISIONING, Scenario, Shape
from scaler_sandbox.conditions import has, timestamp
from sim.provisioning_cluster import NOBODY, QUICK, ProvisioningCluster

from scaler.admission.remote_copies import NominatedCopies
from scaler.kube.objects.resources import POD_TEMPLATE, PROVISIONING_REQUEST, SCALABLE_WORKLOAD, WORKLOAD

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


STARTED: dict[str, tuple[Callable[[ProvisioningCluster, str], None], list[str]]] = {
    # what happens; requests that are left
    "its booking expires": (
        lambda cluster, name: cluster.answer(name, "BookingExpired", "Capacity reservation time is expired"),
        ["1: BookingExpired"],
    ),
    "its request is deleted": (
        lambda cluster, name: cluster.client.remove(PROVISIONING_REQUEST, "ns", name),
        [],
    ),
    "its policy requests no nodes any more": (
        lambda cluster, name: cluster.change_policy({"provisioning": None}),
        ["1: Provisioned"],
    ),
}


@pytest.mark.parametrize(("happens", "left"), STARTED.values(), ids=STARTED)
async def test_one_that_has_started_keeps_what_its_pods_consume(
    happens: Callable[[ProvisioningCluster, str], None], left: list[str]
) -> None:
    cluster, name = await started()
    events, entry = len(cluster.recorded.events), cluster.entry("gang")
    happens(cluster, name)
    await cluster.passes(60)
    assert cluster.is_running("gang")
    assert cluster.entry("gang") == entry
    assert cluster.requests("gang") == left
    assert [reason for _, reason, _ in cluster.recorded.events[events:]] == []


# ------------------------------------------------------------------------------------------------ what gets free

FREE: dict[str, tuple[str, str, list[str]]] = {
    # policy, what was said of the request, requests that are left once the gang has started
    "withdrawn after it was accepted": ("WhenFree", "Accepted", []),
    "lost ones go with all policies": ("Never", "Failed", []),
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


OPEN: dict[str, tuple[str, bool]] = {
    # what is said of the request, and whether it may still book nodes
    "it has no answer yet": ("", True),
    "it is accepted": ("Accepted", True),
    "it has failed": ("Failed", False),
    "it is being deleted, and a finalizer keeps it": ("deleted", False),
}


@pytest.mark.parametrize(("answer", "is_open"), OPEN.values(), ids=OPEN)
async def test_nodes_that_come_are_not_used_at_once_only_while_a_request_may_book_them(
    answer: str, is_open: bool
) -> None:
    cluster, _ = await node_comes_early(answer)
    await cluster.passes(30)
    assert cluster.is_running("gang") is not is_open


async def test_no_other_gets_the_places_of_one_whose_nodes_may_be_booked_yet() -> None:
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


async def test_after_an_eviction_nothing_of_the_earlier_request_reaches_the_pods() -> None:
    """The gang was released with a request's name on its pods, is evicted, and fits without one when it comes back."""
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


# ----------------------------------------------------------------------------------------------- copies of MultiKueue


def stands(cluster: ProvisioningCluster, name: str = "copy") -> tuple[str, list[str]]:
    """The state of its check, and the reason why it is Pending; and its requests."""
    [found] = [
        each for each in cluster.planner.inputs(cluster.client.now).workloads if each.workload.metadata.name == name
    ]
    entry = found.reserved.entry
    assert entry is not None
    reasons = [
        str(change.because) for each, change in cluster.report.plan.changes if each.workload.metadata.name == name
    ]
    return f"{entry.state} {''.join(reasons)}".strip(), cluster.requests_of(found.uid)


async def test_nodes_are_requested_for_a_remote_copy_only_where_the_cluster_is_nominated() -> None:
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    cluster.dispatch("copy", pods=2, gpus=8)
    await cluster.passes(30)
    assert stands(cluster) == ("Pending RemoteCopy", [])
    assert (
        "the hub has not nominated this cluster for it"
        in cluster.planner.inputs(cluster.client.now).workloads[0].reserved.entry.message
    )
    cluster.nominations = NominatedCopies(reclaim=frozenset({("ns", "copy")}))
    await cluster.passes(5)
    state, requests = stands(cluster)
    assert (state, len(requests)) == ("Pending NodesComing", 1)


async def test_a_withdrawn_nomination_withdraws_the_request_and_an_unknown_one_does_not() -> None:
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    cluster.nominations = NominatedCopies(reclaim=frozenset({("ns", "copy")}))
    cluster.dispatch("copy", pods=2, gpus=8)
    await cluster.passes(5)
    cluster.nominations = NominatedCopies(unknown="not synced")
    await cluster.passes(30)
    assert len(stands(cluster)[1]) == 1
    cluster.nominations = NominatedCopies()
    await cluster.passes(5)
    assert stands(cluster) == ("Pending RemoteCopy", [])


async def test_a_remote_copy_that_fits_is_released_without_a_nomination() -> None:
    cluster = ProvisioningCluster({"a": 8, "b": 8}, scenarios=NOBODY)
    cluster.dispatch("copy", pods=2, gpus=8)
    await cluster.passes(5)
    assert stands(cluster) == ("Ready", [])
