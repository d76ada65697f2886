import json

import msgspec
import pytest

from scaler.documents import UNREADABLE
from scaler.kube.objects.core import ListPage, PartialObjectMetadata, Pod, condition, decode, is_true
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_workloads import Workload

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-20T18:00:00Z",
        "deletionTimestamp": "2026-11-20T19:00:00Z",
        "labels": {"a": "b"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "o", "controller": True}],
        "managedFields": [{"fieldsV1": {"f:x": {}}}],
    },
}


def read(kind, value):
    return decode(kind, json.dumps(value).encode())


KINDS = [Pod, ScaledObject, ScalableWorkload, Workload, PartialObjectMetadata]


@pytest.mark.parametrize("kind", KINDS)
def test_null_is_absence(kind):
    bare = read(kind, {"metadata": {"name": "p"}})
    assert (
        read(kind, {"metadata": {**dict.fromkeys(POD["metadata"]), "name": "p"}, "spec": None, "status": None}) == bare
    )


def test_nulls_are_tolerated_at_any_depth():
    workload = {
        "metadata": {"name": "w", "labels": None},
        "spec": {"podSets": [{"name": "a", "count": 1.0, "template": {"spec": {"containers": [{"resources": None}]}}}]},
        "status": {"conditions": None, "admission": {"podSetAssignments": None, "clusterQueue": "q"}},
    }
    decoded = read(Workload, workload)
    assert decoded.spec.pod_sets[0].count == 1
    assert decoded.spec.pod_sets[0].template.spec.containers[0].resources.limits == {}
    assert decoded.status.admission.cluster_queue == "q"


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"5",
    b"null",
    b'{"metadata": 5}',
    b'{"metadata": {"name": ["x"]}}',
    b"\xff",
    b"[" * 5000,
]


@pytest.mark.parametrize("raw", MALFORMED)
def test_what_is_malformed_raises_what_callers_catch(raw):
    with pytest.raises(UNREADABLE):
        decode(Pod, raw)


def test_one_malformed_object_leaves_its_list_readable():
    page = read(ListPage, {"metadata": {"resourceVersion": "5", "continue": "t"}, "items": [{"metadata": 5}, POD]})
    assert (page.metadata.resource_version, page.metadata.continue_) == ("5", "t")
    with pytest.raises(msgspec.ValidationError):
        decode(Pod, page.items[0])
    assert decode(Pod, page.items[1]).metadata.name == "p"


def test_a_condition_is_true_only_where_it_says_so():
    conditions = read(
        Workload, {"metadata": {}, "status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B"}]}}
    ).status.conditions
    assert [is_true(conditions, kind) for kind in "ABC"] == [True, False, False]
    assert condition(conditions, "C") is None


def test_defaults_are_those_of_the_definitions():
    reference = read(ScaledObject, {"metadata": {}, "spec": {"scaleTargetRef": {"name": "d"}}}).spec.scale_target_ref
    assert (reference.api_version, reference.kind) == ("apps/v1", "Deployment")
    assert read(ScalableWorkload, {"metadata": {}, "spec": {"jobRef": {"name": "j"}}}).spec.replicas == 1
    assert read(Workload, {"metadata": {}}).spec.active is True
