"""Kueue's quota objects, Workload templates and nodes are read as far as quota and placement depend on them."""

import json
from typing import Any, TypeVar

import pytest
import yaml
from recordings import CRDS, needs_data

from scaler.kube import scheduling as core
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Affinity, Node, allocatable, labels, terms

T = TypeVar("T")

NO_CRDS = needs_data(CRDS)


def read(kind: type[T], **fields: Any) -> T:
    return decode(kind, json.dumps({"metadata": {"name": "it"}, **fields}).encode())


# ------------------------------------------------------------------------------------------------------ quota objects


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
    text = (CRDS / f"kueue.x-k8s.io_{plural}.yaml").read_text()
    definition = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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


def test_an_operator_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="Near"):
        terms(affinity({"matchExpressions": [{"key": "zone", "operator": "Near"}]}))
