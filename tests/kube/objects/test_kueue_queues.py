"""Kueue's quota objects, Workload templates and nodes are read as far as quota and placement depend on them."""

import json
from typing import Any, TypeVar

import pytest
import yaml
from recordings import FOLDER

from scaler.kube import scheduling as core
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import PodSet, Workload
from scaler.kube.objects.nodes import Affinity, Node, allocatable, labels, terms

T = TypeVar("T")

CRDS = FOLDER.parent / "crds"
NO_CRDS = pytest.mark.skipif(not CRDS.is_dir(), reason="no CRDs of Kueue: set SCALER_SHARED_DATA")


def read(kind: type[T], **fields: Any) -> T:
    return decode(kind, json.dumps({"metadata": {"name": "it"}, **fields}).encode())


# ------------------------------------------------------------------------------------------------------ quota objects


def test_a_cluster_queue_is_read_as_far_as_quota_depends_on_it() -> None:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": "4", "lendingLimit": "2"}
    queue = read(
        kube.ClusterQueue,
        spec={
            "cohortName": "team",
            "resourceGroups": [
                {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "a100", "resources": [quota]}]}
            ],
            "queueingStrategy": "StrictFIFO",
            "namespaceSelector": {"matchLabels": {"team": "red"}},
            "flavorFungibility": {"whenCanBorrow": "TryNextFlavor"},
            "preemption": {"borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100}},
            "admissionChecksStrategy": {"admissionChecks": [{"name": "idle", "onFlavors": ["a100"]}]},
            "stopPolicy": "Hold",
            "fairSharing": {"weight": "500m"},
            "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
        },
        status={"conditions": [{"type": "Active", "status": "False", "reason": "Stopped"}], "pendingWorkloads": 3},
    )
    spec = queue.spec
    (group,) = spec.resource_groups
    (flavor,) = group.flavors
    assert (group.covered_resources, flavor.name) == (("nvidia.com/gpu",), "a100")
    (found,) = flavor.resources
    assert (found.name, found.nominal_quota, found.borrowing_limit, found.lending_limit) == (*quota.values(),)
    assert spec.namespace_selector == kube.LabelSelector(match_labels={"team": "red"})
    assert (spec.flavor_fungibility.when_can_borrow, spec.flavor_fungibility.when_can_preempt) == (
        "TryNextFlavor",
        "TryNextFlavor",
    )
    assert spec.preemption.borrow_within_cohort == kube.BorrowWithinCohort("LowerPriority", 100)
    assert [each.name for each in spec.admission_checks_strategy.admission_checks] == ["idle"]
    assert (spec.cohort_name, spec.queueing_strategy, spec.stop_policy) == ("team", "StrictFIFO", "Hold")
    assert spec.fair_sharing.weight == "500m"
    assert queue.status.conditions[0].reason == "Stopped"


@pytest.mark.parametrize("absent", [{}, {"namespaceSelector": None, "preemption": None, "resourceGroups": None}])
def test_what_a_cluster_queue_leaves_out_is_absent(absent: dict[str, Any]) -> None:
    assert read(kube.ClusterQueue, spec=absent).spec == kube.ClusterQueueSpec()


def test_a_selector_for_all_namespaces_is_not_the_absence_of_one() -> None:
    found = read(kube.ClusterQueue, spec={"namespaceSelector": {}}).spec.namespace_selector
    assert found == kube.LabelSelector()
    assert found is not None


def test_cohorts_flavors_queues_checks_and_namespaces_are_read() -> None:
    assert read(kube.Cohort, spec={"parentName": "root", "fairSharing": {"weight": 2}}).spec == kube.CohortSpec(
        parent_name="root", fair_sharing=kube.FairSharing(weight=2)
    )
    flavor = read(kube.ResourceFlavor, spec={"nodeLabels": {"gpu": "a100"}, "topologyName": "racks"}).spec
    assert (flavor.node_labels, flavor.topology_name) == ({"gpu": "a100"}, "racks")
    local = read(kube.LocalQueue, spec={"clusterQueue": "cq", "stopPolicy": "HoldAndDrain"}).spec
    assert (local.cluster_queue, local.stop_policy) == ("cq", "HoldAndDrain")
    assert read(kube.AdmissionCheck, spec={"controllerName": "idlegpu.io/reclaim"}).spec.controller_name
    assert read(kube.Namespace).metadata.labels == {}


KINDS = {
    "clusterqueues": kube.ClusterQueue,
    "cohorts": kube.Cohort,
    "localqueues": kube.LocalQueue,
    "resourceflavors": kube.ResourceFlavor,
    "workloads": Workload,
}


@NO_CRDS
@pytest.mark.parametrize(("plural", "kind"), KINDS.items(), ids=KINDS)
def test_what_the_api_would_default_is_read_alike_before_and_after(plural: str, kind: type[Any]) -> None:
    definition = yaml.safe_load((CRDS / f"kueue.x-k8s.io_{plural}.yaml").read_text())
    (schema,) = (
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for version in definition["spec"]["versions"]
        if version["storage"]
    )
    bare: dict[str, Any] = {"podSets": [{}]} if plural == "workloads" else {}
    completed = with_defaults(schema, bare)
    assert (completed == bare) is (plural in ("cohorts", "resourceflavors")), "the schemas do have defaults"
    assert read(kind, spec=completed) == read(kind, spec=bare)


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """The value as an API server completes it: absent fields get their defaults, and those are completed again."""
    if isinstance(value, list):
        return [with_defaults(schema["items"], each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    return {name: with_defaults(fields.get(name, {}), each) for name, each in (defaults | value).items()}


# ----------------------------------------------------------------------------------------------------- pod templates


def test_a_pod_template_is_read_as_far_as_quota_depends_on_it() -> None:
    container = {
        "name": "main",
        "resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": 8}},
        "ports": [{"containerPort": 80, "protocol": "TCP"}],
    }
    template = {
        "spec": {
            "containers": [container],
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "overhead": {"memory": "64Mi"},
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "runtimeClassName": "kata",
            "priority": 7,
            "resources": {"requests": {"memory": "1Gi"}},
            "volumes": [{"name": "not-read"}],
        }
    }
    workload = read(Workload, spec={"podSets": [{"name": "main", "count": 2, "minCount": 1, "template": template}]})
    (pod_set,) = workload.spec.pod_sets
    spec = pod_set.template.spec
    assert (pod_set.count, pod_set.min_count) == (2, 1)
    assert spec.containers[0].resources.limits == {"nvidia.com/gpu": 8}
    assert spec.containers[0].ports[0].container_port == 80
    assert spec.init_containers[0].restart_policy == "Always"
    assert (spec.overhead, spec.node_selector) == ({"memory": "64Mi"}, {"zone": "a"})
    assert (spec.runtime_class_name, spec.priority, spec.tolerations[0].key) == ("kata", 7, "spot")
    assert spec.resources is not None
    assert spec.resources.requests == {"memory": "1Gi"}


def test_a_bare_pod_set_is_one_pod_named_main_that_asks_for_nothing() -> None:
    assert read(Workload, spec={"podSets": [{}]}).spec.pod_sets == (PodSet(name="main", count=1),)


def test_what_kueue_wrote_into_the_status_is_read() -> None:
    status = read(
        Workload,
        status={
            "requeueState": {"count": 2, "requeueAt": "2026-12-01T12:00:00Z"},
            "resourceRequests": [{"name": "main", "resources": {"nvidia.com/gpu": "2"}}],
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [
                    {"name": "main", "topologyAssignment": {"levels": ["host"], "slices": []}, "flavors": {"a": "b"}}
                ],
            },
            "nominatedClusterNames": ["one"],
        },
    ).status
    assert status.requeue_state is not None
    assert status.requeue_state.requeue_at is not None
    assert status.resource_requests[0].resources == {"nvidia.com/gpu": "2"}
    assert status.admission is not None
    (assignment,) = status.admission.pod_set_assignments
    assert (assignment.count, assignment.flavors) == (None, {"a": "b"})
    assert assignment.topology_assignment is not None
    assert status.nominated_cluster_names == ("one",)


# ------------------------------------------------------------------------------------------------------------- nodes


def node(*, ready: str = "True", **spec: Any) -> Node:
    return read(
        Node,
        spec=spec,
        status={
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "63500m", "memory": "garbage"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    )


def test_a_node_gives_what_it_can_be_read_to_give() -> None:
    assert allocatable(node()) == {"nvidia.com/gpu": 8, "cpu": 63500, "memory": 0}
    assert labels(node()) == {"metadata.name": "it"}
    taint = {"key": "spot", "value": "true", "effect": "NoExecute", "timeAdded": "2026-12-01T12:00:00Z"}
    assert node(taints=[taint]).spec.taints == (core.Taint(key="spot", value="true", effect="NoExecute"),)


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        pytest.param(node(), True, id="its kubelet says so"),
        pytest.param(node(ready="False"), False, id="its kubelet denies it"),
        pytest.param(node(ready="Unknown"), False, id="its kubelet is silent"),
        pytest.param(node(unschedulable=True), False, id="cordoned"),
        pytest.param(read(Node), False, id="nothing is known"),
    ],
)
def test_a_node_takes_pods_when_it_is_ready_and_not_cordoned(found: Node, ready: bool) -> None:
    assert found.is_ready is ready


def affinity(*node_terms: Any, **preferred: Any) -> Affinity:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(node_terms)}}
    return decode(Affinity, json.dumps({"nodeAffinity": required | preferred}).encode())


def test_required_node_affinity_becomes_terms_fields_included() -> None:
    found = terms(
        affinity(
            {
                "matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}],
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["it"]}],
            },
            {"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["4"]}]},
            preferredDuringSchedulingIgnoredDuringExecution=[{"weight": 1, "preference": {}}],
        )
    )
    selection = core.NodeSelection(labels={}, terms=found)
    assert selection.matches(labels(node())), "by its name"
    assert not selection.matches(labels(node()) | {"zone": "b"})
    assert selection.matches({"zone": "b", "gpus": "8"}), "by the other term"


@pytest.mark.parametrize("absent", [None, Affinity(), affinity()])
def test_without_required_node_affinity_there_are_no_terms(absent: Affinity | None) -> None:
    assert terms(absent) == ()


def test_an_operator_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="Near"):
        terms(affinity({"matchExpressions": [{"key": "zone", "operator": "Near"}]}))


def test_a_toleration_without_operator_compares_values() -> None:
    spec = {"containers": [], "tolerations": [{"key": "spot", "value": "true"}, {"operator": "Exists"}]}
    workload = read(Workload, spec={"podSets": [{"template": {"spec": spec}}]})
    first, second = workload.spec.pod_sets[0].template.spec.tolerations
    taint = core.Taint(key="spot", value="true", effect="NoSchedule")
    assert first.covers(taint)
    assert not first.covers(core.Taint(key="spot", value="false"))
    assert second.covers(core.Taint(key="anything"))
