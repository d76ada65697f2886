"""What a gang's pods need of the nodes, and how it stands with a check, from the Workload as it stands in the API."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from builders import WorkloadJson, at

from scaler.admission.provisioning.lifecycle import PodSetPatch, ReservationStage
from scaler.admission.provisioning.requests import holds_quota
from scaler.admission.workload import PodDemands, on_booked_nodes, pod_demands_of, preemptor_of, reserved_workload_of
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_queues import ResourceFlavor
from scaler.kube.scheduling import Taint, Toleration, untolerated

GPU = "nvidia.com/gpu"
ANY_TAINT = Taint(key="anything")
OF_GPUS = Toleration(key=GPU, operator="Exists", effect="NoSchedule")
"""What Kubernetes adds to pods that ask for GPUs."""


def flavor(name: str = "h100", **spec: Any) -> ResourceFlavor:
    return decode(ResourceFlavor, msgspec.json.encode({"metadata": {"name": name}, "spec": spec}))


def pod_set(name: str, count: int, gpus: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {GPU: gpus}}}
    return {"name": name, "count": count, "template": {"spec": {"containers": [container], **spec}}}


def admitted(*pod_sets: dict[str, Any], counts: dict[str, int] | None = None, **status: Any) -> WorkloadJson:
    """Every PodSet is on flavor h100."""
    assignments = [
        {"name": each["name"], "count": (counts or {}).get(each["name"], each["count"]), "flavors": {GPU: "h100"}}
        for each in pod_sets
    ]
    admission = {"clusterQueue": "cq", "podSetAssignments": assignments}
    return WorkloadJson().with_pod_sets(*pod_sets).reserved().with_status(admission=admission, **status)


def needs(json: WorkloadJson, *flavors: ResourceFlavor) -> PodDemands:
    known = {each.metadata.name: each for each in flavors or (flavor(),)}
    return pod_demands_of(json.decoded(), known.get)


def test_what_counts_is_what_was_admitted_less_what_is_done():
    done = [{"name": "workers", "count": 1}]
    found = needs(admitted(pod_set("workers", 8, 4), counts={"workers": 6}, reclaimablePods=done))
    [demand] = found.demands
    assert (demand.pod_set, demand.count, demand.requests) == ("workers", 5, {GPU: 4})


def test_pods_that_are_on_nodes_are_not_needed_again():
    found = needs(admitted(pod_set("head", 1, 0), pod_set("workers", 4, 8)))
    assert [each.count for each in found.without({"workers": 3})] == [1, 1]
    assert [each.count for each in found.without({"workers": 9, "head": 1})] == [0, 0]


def test_pods_demand_what_their_template_their_flavor_and_other_checks_say():
    given = {"name": "workers", "nodeSelector": {"rack": "r1"}, "tolerations": [{"key": "t", "operator": "Exists"}]}
    checks = [{"name": "x", "state": "Ready", "message": "", "podSetUpdates": [given]}]
    json = admitted(pod_set("workers", 1, 8, nodeSelector={"zone": "a"}), admissionChecks=checks)
    found = needs(json, flavor(nodeLabels={"gpu": "h100"}, tolerations=[{"key": "gpu", "operator": "Exists"}]))
    nodes = found.demands[0].nodes
    assert nodes.labels == {"zone": "a", "gpu": "h100", "rack": "r1"}
    assert {each.key for each in nodes.tolerations} == {"gpu", "t", GPU}
    assert found.selected == {"zone", "gpu", "rack"}


def test_what_is_left_over_in_a_check_that_is_not_ready_counts_for_nothing():
    given = {"name": "workers", "nodeSelector": {"rack": "r1"}}
    checks = [{"name": "x", "state": "Pending", "message": "", "podSetUpdates": [given]}]
    found = needs(admitted(pod_set("workers", 1, 8), admissionChecks=checks))
    assert found.demands[0].nodes.labels == {}


def test_whoever_consumes_a_request_tolerates_the_taints_of_its_nodes():
    consumes = {"name": "workers", "annotations": {"autoscaling.x-k8s.io/consume-provisioning-request": "r"}}
    checks = [{"name": "x", "state": "Ready", "message": "", "podSetUpdates": [consumes]}]
    found = needs(admitted(pod_set("workers", 1, 8), admissionChecks=checks))
    assert untolerated([ANY_TAINT], found.demands[0].nodes.tolerations) is None


def test_on_booked_nodes_labels_are_selected_and_taints_not_looked_at():
    [head, workers] = needs(admitted(pod_set("head", 1, 0), pod_set("workers", 4, 8, nodeSelector={"a": "1"}))).demands
    updates = [PodSetPatch(name="workers", node_selector={"pool": "new", "a": "2"})]
    unchanged, booked = on_booked_nodes([head, workers], updates)
    assert unchanged is head
    assert booked.nodes.labels == {"pool": "new", "a": "1"}, "what the pods say themselves is not changed"
    assert untolerated([ANY_TAINT], booked.nodes.tolerations) is None
    assert replace(booked, nodes=workers.nodes) == workers


@pytest.mark.parametrize(
    ("json", "known", "error"),
    [
        pytest.param(admitted(pod_set("w", 1, 1)), "other", "ResourceFlavor h100, which PodSet w", id="flavor"),
        pytest.param(
            admitted(
                {"name": "w", "count": 1, "template": {"spec": {"containers": [{"resources": {"limits": {GPU: "x"}}}]}}}
            ),
            "h100",
            "PodSet w: 'x' is not a resource quantity",
            id="quantity",
        ),
        pytest.param(
            admitted(
                pod_set(
                    "w",
                    1,
                    1,
                    affinity={
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]
                            }
                        }
                    },
                )
            ),
            "h100",
            "PodSet w: node affinity: 'Like'",
            id="affinity",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_and_never_nothing(json, known, error):
    with pytest.raises(ValueError, match=error):
        needs(json, flavor(known))


def test_affinity_and_tolerations_of_pods_count():
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    tolerations = [{"key": "t", "operator": "Exists"}]
    nodes = needs(admitted(pod_set("w", 1, 1, affinity=affinity, tolerations=tolerations))).demands[0].nodes
    assert nodes.matches({"zone": "a"})
    assert not nodes.matches({"zone": "b"})
    assert nodes.tolerations == (Toleration(key="t", operator="Exists"), OF_GPUS)


# ----------------------------------------------------------------------------------------------------- how it stands


def with_entry(state: str) -> WorkloadJson:
    return WorkloadJson().reserved().with_status(admissionChecks=[{"name": "gate", "state": state, "message": ""}])


@pytest.mark.parametrize(
    ("json", "stage"),
    [
        pytest.param(WorkloadJson(), ReservationStage.GONE, id="it waits for quota"),
        pytest.param(WorkloadJson().reserved(), ReservationStage.WAITING, id="it has quota, and no entry yet"),
        pytest.param(with_entry("Pending"), ReservationStage.WAITING, id="its check is Pending"),
        pytest.param(with_entry("Ready"), ReservationStage.STARTED, id="its check is Ready"),
        pytest.param(with_entry("Ready").condition("Finished", True), ReservationStage.GONE, id="finished"),
        pytest.param(WorkloadJson().admitted(), ReservationStage.STARTED, id="it runs, and has no entry"),
        pytest.param(WorkloadJson().reserved().deactivated(), ReservationStage.GONE, id="deactivated, and reserved"),
        pytest.param(
            WorkloadJson().reserved().condition("Evicted", True, "Preempted"), ReservationStage.GONE, id="evicted"
        ),
        pytest.param(WorkloadJson().reserved().condition("Evicted", False), ReservationStage.WAITING, id="back again"),
        pytest.param(
            WorkloadJson().condition("QuotaReserved", True), ReservationStage.GONE, id="reserved, but not what"
        ),
    ],
)
def test_the_stage_of_a_workload_and_whether_it_holds_quota_that_it_may_use(json, stage):
    found = reserved_workload_of(json.decoded(), "gate")
    assert found.stage is stage
    assert holds_quota(json.decoded()) is found.is_held is (stage is not ReservationStage.GONE)


def test_one_that_is_being_deleted_is_not_held():
    json = WorkloadJson().reserved()
    json.json["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    assert not holds_quota(json.decoded())
    assert not reserved_workload_of(json.decoded(), "gate").is_held


def test_a_gang_is_read_as_it_stands():
    entry = {"name": "gate", "state": "Pending", "message": "m", "lastTransitionTime": "2026-12-01T11:59:00Z"}
    found = reserved_workload_of(WorkloadJson().reserved().with_status(admissionChecks=[entry]).decoded(), "gate")
    assert (found.key, found.uid) == ("demo/raycluster-first-raycluster-6cd3b", "7e6b1a34")
    assert found.reserved_at == at(-3 * 3600 + 1)
    assert found.entry is not None
    assert (found.waits, found.is_released, found.entry.message) == (True, False, "m")
    assert reserved_workload_of(WorkloadJson().reserved().decoded(), "gate").entry is None


@pytest.mark.parametrize(
    ("reason", "message", "uid"),
    [
        (
            "Preempted",
            "Preempted to accommodate a workload (UID: dab4d3fd-8be4, JobUID: 5f36) due to x",
            "dab4d3fd-8be4",
        ),
        ("Preempted", "Preempted to accommodate a workload (UID: dab4d3fd-8be4) due to x", "dab4d3fd-8be4"),
        ("Preempted", "for other reasons", ""),
        ("Deactivated", "Preempted to accommodate a workload (UID: dab4d3fd-8be4, JobUID: 5f36)", ""),
    ],
)
def test_the_preemptor_is_the_one_that_kueue_names(reason, message, uid):
    json = WorkloadJson().reserved().condition("Evicted", True, reason, message)
    assert preemptor_of(json.decoded()) == uid
    assert preemptor_of(WorkloadJson().condition("Evicted", False, reason, message).decoded()) == ""
