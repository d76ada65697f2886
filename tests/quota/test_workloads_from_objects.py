"""Workloads as Kueue's scheduler counts and queues them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import NOON, WorkloadJson, at
from recordings import moments, recorded

from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.quantity import amount
from scaler.quota import model
from scaler.quota.from_objects.pod_requests import pod_requests
from scaler.quota.from_objects.workloads import quota_workload_of
from scaler.quota.model import FlavorResource

GPU = "nvidia.com/gpu"
CREATED = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
CHANGED = datetime(2026, 12, 1, 9, 0, 1, tzinfo=UTC)
"""Of the conditions that the builder sets."""


def seen(workload: WorkloadJson, **options: Any) -> model.QuotaWorkload:
    found = quota_workload_of(workload.decoded(), **options)
    assert found is not None
    return found


def pod_set(name: str = "main", count: int = 2, gpus: Any = 1, **fields: Any) -> dict[str, Any]:
    """Fields of the pods' spec are given as `spec`."""
    container = {"name": "main", "resources": {"requests": {GPU: gpus}}}
    spec = {"containers": [container]} | fields.pop("spec", {})
    return {"name": name, "count": count, "template": {"spec": spec}, **fields}


def gang(*pod_sets: dict[str, Any]) -> WorkloadJson:
    return WorkloadJson("gang").with_pod_sets(*(pod_sets or (pod_set(),)))


def assignment(name: str = "main", count: int | None = 2, gpus: Any = 2, flavor: str = "a100") -> dict[str, Any]:
    counted = {} if count is None else {"count": count}
    return {"name": name, "flavors": {GPU: flavor}, "resourceUsage": {GPU: gpus}, **counted}


def running(workload: WorkloadJson, *assignments: dict[str, Any]) -> WorkloadJson:
    admission = {"clusterQueue": "cq", "podSetAssignments": list(assignments or (assignment(),))}
    return workload.condition("QuotaReserved", True).condition("Admitted", True).with_status(admission=admission)


def used(workload: WorkloadJson) -> dict[str, int]:
    """GPUs by flavor."""
    return {key.flavor: amount for key, amount in seen(workload).held.usage.items()}


def asked(workload: WorkloadJson, **options: Any) -> list[tuple[int, dict[str, int]]]:
    """Pods and requests of one, by PodSet."""
    return [(each.count, dict(each.requests)) for each in seen(workload, **options).pod_sets]


# --------------------------------------------------------------------------------------------------- whether it counts


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(gang().deactivated(), id="deactivated while it waited"),
        pytest.param(running(gang()).deactivated(), id="deactivated a moment ago: its status lags"),
        pytest.param(running(gang()).condition("Finished", True, "Succeeded"), id="finished"),
    ],
)
def test_what_is_finished_or_deactivated_holds_nothing_and_waits_for_nothing(workload: WorkloadJson) -> None:
    assert quota_workload_of(workload.decoded()) is None


def test_a_pending_workload_waits_with_all_that_it_asks_for() -> None:
    found = seen(gang(pod_set("driver", 1, 0), pod_set("worker", 4, 8, minCount=2)))
    assert (found.key, found.queue, found.uid, found.reservation) == ("demo/gang", "user-queue", "7e6b1a34", None)
    assert [(each.name, each.count, each.min_count, dict(each.requests)) for each in found.pod_sets] == [
        ("driver", 1, None, {GPU: 0}),
        ("worker", 4, 2, {GPU: 8}),
    ]
    assert (found.admitted, found.evicted, found.may_queue, found.opaque_because) == (False, False, True, "")


def test_a_reservation_is_what_kueue_wrote_into_the_status() -> None:
    workload = running(gang(), assignment("main", 2, 16)).condition("Admitted", False)
    found = seen(workload)
    held = found.held
    assert (held.cluster_queue, held.at, found.admitted) == ("cq", CHANGED, False)
    assert held.usage == {FlavorResource("a100", GPU): 16}
    (only,) = held.assignments
    assert (only.name, only.count, dict(only.flavors), dict(only.usage)) == ("main", 2, {GPU: "a100"}, {GPU: 16})


@pytest.mark.parametrize(
    ("of_four", "done", "left"),
    [
        pytest.param(assignment(count=4, gpus=8), 0, 8, id="none is done"),
        pytest.param(assignment(count=4, gpus=8), 1, 6, id="one of four is done: 8 / 4 * 3"),
        pytest.param(assignment(count=None, gpus=8), 1, 6, id="the assignment has no count: that of the PodSet counts"),
        pytest.param(assignment(count=4, gpus=8), 4, 0, id="all are done"),
        pytest.param(assignment(count=4, gpus=8), 9, 0, id="more are done than there are"),
        pytest.param(assignment(count=2, gpus=4), 1, 4, id="three are needed, two were admitted: no less than those"),
        pytest.param(assignment(count=2, gpus=4), 3, 2, id="one is needed of the two that were admitted: 4 / 2 * 1"),
    ],
)
def test_pods_that_are_done_give_their_quota_back(of_four: dict[str, Any], done: int, left: int) -> None:
    workload = running(gang(pod_set(count=4, gpus=2)), of_four)
    workload.with_status(reclaimablePods=[{"name": "main", "count": done}])
    assert sum(used(workload).values()) == left


def test_a_workload_that_returns_to_its_queue_asks_only_for_the_pods_that_are_not_done() -> None:
    workload = gang(pod_set(count=4)).with_status(reclaimablePods=[{"name": "main", "count": 3}])
    assert asked(workload) == [(1, {GPU: 1})]


def test_an_eviction_matters_while_the_quota_is_held() -> None:
    evicted = running(gang()).condition("Evicted", True, "Preempted")
    assert (seen(evicted).evicted, seen(evicted).reservation is None) == (True, False)
    assert not seen(gang().condition("Evicted", True, "Preempted")).evicted


# -------------------------------------------------------------------------------------------------- what Kueue counted


def counted(gpus: Any, *, generation: int = 1, observed: int = 1, count: int = 2, **more: Any) -> WorkloadJson:
    """A Workload of some pods with one GPU each, for which Kueue counted so many GPUs in all."""
    workload = gang(pod_set(count=count)).waiting("insufficient quota")
    workload.json["metadata"]["generation"] = generation
    workload.json["status"]["conditions"][-1]["observedGeneration"] = observed
    return workload.with_status(resourceRequests=[{"name": "main", "resources": {GPU: gpus, **more}}])


@pytest.mark.parametrize(
    ("workload", "of_one_pod"),
    [
        pytest.param(counted(2, cpu="1"), {GPU: 1, "cpu": 500}, id="a LimitRange gave each pod half a CPU"),
        pytest.param(counted(4, generation=2), {GPU: 1}, id="it was counted before the specification changed"),
        pytest.param(counted(3), {GPU: 1}, id="3 GPUs are not those of 2 equal pods: others were counted"),
    ],
)
def test_what_kueue_counted_itself_counts_while_it_can_be_that(
    workload: WorkloadJson, of_one_pod: dict[str, int]
) -> None:
    assert asked(workload) == [(2, of_one_pod)]


def test_resources_that_kueue_does_not_count_are_left_out() -> None:
    pods = pod_set(spec={"containers": [{"resources": {"requests": {GPU: 1, "rdma/hca": 2}}}]})
    assert asked(gang(pods), excluded=("rdma/",)) == [(2, {GPU: 1})]
    assert asked(gang(pods)) == [(2, {GPU: 1, "rdma/hca": 2})]


# ----------------------------------------------------------------------------------------------- its place in the queue


@pytest.mark.parametrize(
    ("reason", "stands", "queued_at"),
    [
        ("PodsReadyTimeout", True, CHANGED),
        ("AdmissionCheck", True, CHANGED),
        ("Preempted", True, CREATED),
        ("Deactivated", True, CREATED),
        ("AdmissionCheck", False, CREATED),
    ],
)
def test_it_queues_by_creation_or_by_an_eviction_that_was_its_own_fault(
    reason: str, stands: bool, queued_at: datetime
) -> None:
    assert seen(gang().condition("Evicted", stands, reason)).queued_at == queued_at


def test_times_are_comparable_however_they_are_written() -> None:
    for written in ("2026-12-01T09:00:00Z", "2026-12-01T11:00:00+02:00", "2026-12-01T09:00:00"):
        workload = gang()
        workload.json["metadata"]["creationTimestamp"] = written
        assert seen(workload).queued_at == CREATED
    del workload.json["metadata"]["creationTimestamp"]
    assert seen(workload).queued_at < CREATED


def backing_off(seconds: float) -> WorkloadJson:
    return gang().with_status(requeueState={"count": 1, "requeueAt": at(seconds).isoformat()})


@pytest.mark.parametrize(
    ("workload", "may"),
    [
        pytest.param(gang(), True, id="new"),
        pytest.param(gang().condition("Requeued", True, "Reactivated"), True, id="requeued"),
        pytest.param(gang().condition("Requeued", False, "ClusterQueueStopped"), False, id="drained"),
        pytest.param(backing_off(1), False, id="its backoff runs"),
        pytest.param(backing_off(0), True, id="its backoff ends now"),
        pytest.param(gang().annotated(**{"kueue.x-k8s.io__admission-gated-by": "quota-bot"}), False, id="gated"),
        pytest.param(gang().annotated(**{"kueue.x-k8s.io__admission-gated-by": ""}), True, id="no longer gated"),
        pytest.param(gang().condition("QuotaReserved", False, "OnHold"), False, id="on hold"),
        pytest.param(gang().condition("WaitingForReplacementPods", True), False, id="its pods are gone"),
        pytest.param(running(gang()).condition("Evicted", True, "Preempted"), True, id="preempted a moment ago"),
        pytest.param(running(gang()).condition("Evicted", True, "NodeFailures"), True, id="its nodes have failed"),
        pytest.param(running(gang()).condition("Evicted", True, "AdmissionCheck"), False, id="a check evicts it"),
        pytest.param(running(gang()).condition("Evicted", False, "AdmissionCheck"), True, id="a check has evicted it"),
        pytest.param(gang().condition("Evicted", True, "PodsReadyTimeout"), True, id="its eviction is complete"),
    ],
)
def test_it_is_in_its_queue_unless_something_keeps_it_out(workload: WorkloadJson, may: bool) -> None:
    assert seen(workload, now=NOON).may_queue is may


@pytest.mark.parametrize(
    ("boost", "boosts", "priority"),
    [
        ("-20", True, -10),
        ("-20", False, 10),
        ("+5", True, 15),
        ("", True, 10),
        ("much", True, 10),
        ("2147483648", True, 10),
        ("-2147483648", True, 10 - 2**31),
    ],
)
def test_a_boost_counts_where_the_gate_is_on_and_it_is_a_number(boost: str, boosts: bool, priority: int) -> None:
    workload = gang().with_annotations({"kueue.x-k8s.io/priority-boost": boost})
    workload.json["spec"]["priority"] = 10
    assert seen(workload, boosts=boosts).priority == priority


# ------------------------------------------------------------------------------------------------------ what is opaque


def topology(**request: Any) -> WorkloadJson:
    return gang(pod_set(topologyRequest=request))


def deleted(workload: WorkloadJson) -> WorkloadJson:
    workload.json["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    return workload


def failed_check(state: str) -> list[dict[str, str]]:
    return [{"name": "ready", "state": "Ready"}, {"name": "idle", "state": state}]


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        pytest.param(gang(), "", id="nothing special"),
        pytest.param(topology(podIndexLabel="batch.kubernetes.io/job-completion-index"), "", id="as every Job has it"),
        pytest.param(topology(required="rack"), "it asks for a topology", id="required"),
        pytest.param(topology(preferred="rack"), "it asks for a topology", id="preferred"),
        pytest.param(topology(unconstrained=False), "it asks for a topology", id="unconstrained, even if it is false"),
        pytest.param(topology(podSetGroupName="all"), "it asks for a topology", id="PodSets that stay together"),
        pytest.param(topology(podSetSliceSize=4), "it asks for a topology", id="slices"),
        pytest.param(
            running(gang(), assignment() | {"topologyAssignment": {"levels": ["host"]}}),
            "it is placed by topology",
            id="placed",
        ),
        pytest.param(
            running(gang(), assignment() | {"delayedTopologyRequest": "Pending"}),
            "it is placed by topology",
            id="to be placed",
        ),
        pytest.param(gang().annotated(**{"kueue.x-k8s.io__elastic-job": "true"}), "it is a slice of an elastic job"),
        pytest.param(
            gang().annotated(**{"kueue.x-k8s.io__workload-slice-replacement-for": "ns/old"}),
            "it is a slice of an elastic job",
        ),
        pytest.param(
            gang().annotated(**{"kueue.x-k8s.io__workload-allowed-resource-flavors": "a100"}),
            "it is one of several variants that are admitted concurrently",
        ),
        pytest.param(gang(pod_set(spec={"resourceClaims": [{"name": "gpu"}]})), "it claims devices"),
        pytest.param(
            gang().with_status(admissionChecks=failed_check("Retry")),
            "its check idle is Retry",
            id="a check said Retry",
        ),
        pytest.param(
            running(gang()).with_status(admissionChecks=failed_check("Rejected")), "", id="a check of one that runs"
        ),
        pytest.param(gang().with_status(admissionChecks=failed_check("Pending")), "", id="a check that waits"),
        pytest.param(deleted(running(gang())), "it is being deleted", id="being deleted"),
    ],
)
def test_a_workload_is_opaque_where_kueues_decisions_cannot_be_foreseen(workload: WorkloadJson, reason: str) -> None:
    assert seen(workload).opaque_because == reason


def near(operator: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "zone", "operator": operator, "values": ["a"]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def test_what_cannot_be_read_makes_it_opaque_and_never_disappear() -> None:
    asks = seen(
        gang(pod_set("one", 2, "lots"), pod_set("two", 1, 4), pod_set("three", spec={"affinity": near("Near")}))
    )
    assert [dict(each.requests) for each in asks.pod_sets] == [{}, {GPU: 4}, {GPU: 1}]
    assert "PodSet one: 'lots' is not a resource quantity" in asks.opaque_because
    assert "PodSet three: node affinity: 'Near'" in asks.opaque_because
    holds = seen(running(gang(), assignment(gpus="lots")))
    assert holds.held.usage == {}
    assert "admission of PodSet main: 'lots' is not a resource quantity" in holds.opaque_because
    claims = seen(gang().condition("QuotaReserved", True))
    assert claims.reservation is None
    assert claims.opaque_because == "QuotaReserved is True without an admission in its status"


def test_requests_above_their_limits_are_refused() -> None:
    excessive = {"name": "main", "resources": {"requests": {GPU: 2}, "limits": {GPU: 1}}}
    found = seen(gang(pod_set("driver"), pod_set("worker", spec={"containers": [excessive]})))
    assert found.invalid_because == f"PodSet worker: container main requests more {GPU} than its limit of 1"
    assert not found.opaque_because


def test_a_limit_that_cannot_be_read_is_reported_once() -> None:
    broken = {"resources": {"limits": {GPU: "many"}}}
    found = seen(gang(pod_set(spec={"containers": [broken]})))
    assert not found.invalid_because
    assert found.opaque_because.count("'many' is not a resource quantity") == 1


# ---------------------------------------------------------------------------------------------------- nodes, and shapes


def test_what_its_pods_demand_of_nodes_is_kept() -> None:
    spec = {"nodeSelector": {"gpu": "a100"}, "affinity": near("In"), "tolerations": [{"operator": "Exists"}]}
    (pods,) = seen(gang(pod_set(spec=spec))).pod_sets
    assert pods.nodes.matches({"gpu": "a100", "zone": "a"})
    assert not pods.nodes.matches({"gpu": "a100", "zone": "b"})
    assert not pods.nodes.matches({"zone": "a"})
    assert [each.operator for each in pods.nodes.tolerations] == ["Exists"]


def shape(**spec: Any) -> object:
    return seen(gang(pod_set(spec=spec))).extra_shape


HALVES = [{"resources": {"requests": {GPU: "500m"}}}] * 2
OTHER_SHAPES: dict[str, dict[str, Any]] = {
    "two containers that ask for as much together": {"containers": HALVES},
    "an init container": {"initContainers": [{"resources": {}}]},
    "ports": {"containers": [{"resources": {"requests": {GPU: 1}}, "ports": [{"containerPort": 80}]}]},
    "a preference for nodes": {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    },
    "distance from other pods": {"affinity": {"podAntiAffinity": {"x": []}}},
    "a runtime class": {"runtimeClassName": "kata"},
    "a priority of its pods": {"priority": 1},
    "spreading": {"topologySpreadConstraints": [{"maxSkew": 1}]},
    "overhead": {"overhead": {GPU: 0}},
}


@pytest.mark.parametrize("spec", OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_pods_of_another_shape_are_distinguished(spec: dict[str, Any]) -> None:
    assert shape(**spec) != shape()
    assert shape(**spec) == shape(**spec)


def test_a_limit_or_the_equal_request_is_the_same_shape() -> None:
    by_limit = shape(containers=[{"resources": {"limits": {GPU: 1}, "requests": {"cpu": 1}}}])
    assert by_limit == shape(containers=[{"resources": {"requests": {"cpu": 1, GPU: 1}}}])


def test_the_same_amount_is_the_same_shape_however_it_is_written() -> None:
    one = shape(containers=[{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}], overhead={"cpu": "500m"})
    two = shape(containers=[{"resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}}}], overhead={"cpu": "0.5"})
    assert one == two
    assert shape(overhead={"cpu": "much"}) != shape(overhead={"cpu": "more"})


# ---------------------------------------------------------------------------------------------------- which nodes


def apart(**selector: Any) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_pods_that_need_a_node_each_say_so() -> None:
    listens = {"resources": {"requests": {GPU: 1}}, "ports": [{"hostPort": 29500}]}
    of_job = apart(matchLabels={"kueue.x-k8s.io/podset": "main"})
    found = [
        seen(gang(pod_set(spec=spec))).pod_sets[0].nodes for spec in ({"containers": [listens]}, {"affinity": of_job})
    ]
    assert [each.apart[0].partition(" ")[0] for each in found] == ["port", "apart"]
    assert not seen(gang()).pod_sets[0].nodes.apart


def test_one_whose_neighbours_cannot_be_read_cannot_be_foreseen() -> None:
    found = seen(gang(pod_set(spec={"affinity": apart(matchExpressions=[{"key": "app", "operator": "Like"}])})))
    assert found.opaque_because.startswith("PodSet main: ")


# ------------------------------------------------------------------------------------------------- what a Kueue did


EVERYTHING = pytest.mark.parametrize("path", recorded("kueue-*.json", "e2e-*.json"))


@EVERYTHING
def test_in_every_recorded_state_it_counts_as_kueue_counted(path: Path) -> None:
    """The laboratory had no LimitRanges: what Kueue counted is what the pods ask for."""
    for moment in moments(path):
        workload = decode(Workload, msgspec.json.encode(moment.json))
        found = quota_workload_of(workload)
        is_out = not workload.spec.active or moment.has("Finished")
        assert (found is None) is is_out
        if found is None:
            continue
        assert (found.reservation is not None) is moment.is_reserved
        assert "topology" not in found.opaque_because
        asks = {
            pods.name: {name: value * each.count for name, value in pod_requests(pods.template.spec).items()}
            for pods, each in zip(workload.spec.pod_sets, found.pod_sets, strict=True)
        }
        if found.reservation:
            assert {each.name: dict(each.usage) for each in found.held.assignments} == asks
        else:
            assert [dict(each) for each in found.requests] == list(asks.values())
        for each in workload.status.resource_requests:
            assert {name: amount(name, value) for name, value in each.resources.items()} == asks[each.name]
