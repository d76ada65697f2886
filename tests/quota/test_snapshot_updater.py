"""Kueue's objects, filed one by one into a snapshot, whatever is written."""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import pytest
from builders import WorkloadJson, at

from scaler.quota.from_objects.snapshot_updater import QuotaObject, SnapshotUpdater
from scaler.quota.model import FlavorResource
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree

GPU = "nvidia.com/gpu"


def manifest(kind: str, name: str, /, namespace: str = "", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, **fields}


def cluster_queue(name: str = "cluster-queue", *, gpus: Any = 4, **spec: Any) -> dict[str, Any]:
    quota = {"name": GPU, "nominalQuota": gpus}
    group = {"coveredResources": [GPU], "flavors": [{"name": "a100", "resources": [quota]}]}
    return manifest("ClusterQueue", name, spec={"resourceGroups": [group], "namespaceSelector": {}, **spec})


def waiting(name: str = "gang") -> WorkloadJson:
    workload = WorkloadJson(name)
    workload.json["metadata"]["name"] = name
    return workload


def holding(name: str, gpus: Any) -> WorkloadJson:
    assignment = {"name": "main", "count": 2, "flavors": {GPU: "a100"}, "resourceUsage": {GPU: gpus}}
    return (
        waiting(name)
        .admitted()
        .with_status(admission={"clusterQueue": "cluster-queue", "podSetAssignments": [assignment]})
    )


WORLD = (
    manifest("ResourceFlavor", "a100"),
    cluster_queue(cohortName="team"),
    cluster_queue("other", cohortName="team"),
    manifest("LocalQueue", "user-queue", "demo", spec={"clusterQueue": "cluster-queue"}),
    manifest("Namespace", "demo"),
)


def typed(document: Mapping[str, Any]) -> QuotaObject:
    (kind,) = (kind for kind in get_args(QuotaObject) if kind.__name__ == document["kind"])
    return msgspec.convert(document, kind)


@pytest.fixture
def filing() -> SnapshotUpdater:
    found = SnapshotUpdater(Snapshot())
    for each in WORLD:
        found.put(typed(each))
    return found


def tree_of(snapshot: Snapshot, queue: str = "cluster-queue") -> Tree:
    tree = snapshot.tree_of(queue)
    assert tree is not None
    return tree


def used(filing: SnapshotUpdater) -> int:
    return tree_of(filing.snapshot).queues["cluster-queue"].usage.get(FlavorResource("a100", GPU), 0)


def pending(filing: SnapshotUpdater) -> list[str]:
    return [each.name for each in filing.snapshot.pending_in(tree_of(filing.snapshot)).get("cluster-queue", ())]


# ---------------------------------------------------------------------------------------------------------- filing


def test_a_deactivated_workload_holds_nothing_from_that_moment_on(filing: SnapshotUpdater) -> None:
    filing.put(typed(holding("runs", 3).json))
    assert used(filing) == 3
    filing.put(typed(holding("runs", 3).deactivated().json))
    assert (used(filing), filing.snapshot.workload("demo/runs")) == (0, None)


def test_every_kind_can_go_again(filing: SnapshotUpdater) -> None:
    objects = [*WORLD, manifest("Cohort", "team"), manifest("AdmissionCheck", "x"), waiting().json]
    for each in objects:
        filing.put(typed(each))
    for each in objects:
        filing.drop(typed(each))
    snapshot = filing.snapshot
    left = (snapshot.trees, snapshot.flavors, snapshot.namespaces, snapshot.workloads, snapshot.cohorts.get("team"))
    assert [bool(each) for each in left] == [False] * 5
    assert snapshot.local_queue("demo", "user-queue") is None


def test_a_workload_whose_backoff_runs_returns_to_its_queue_when_it_is_over(filing: SnapshotUpdater) -> None:
    workload = waiting().with_status(requeueState={"requeueAt": at(60).isoformat()})
    filing.put(typed(workload.json), now=at(0))
    found = []
    for seconds in (0, 59, 60, 61):
        filing.wake(at(seconds))
        found.append(filing.snapshot.workloads["demo/gang"].may_queue)
    assert found == [False, False, True, True]


def test_a_backoff_that_was_prolonged_ends_only_then(filing: SnapshotUpdater) -> None:
    for seconds in (60, 120):
        filing.put(typed(waiting().with_status(requeueState={"requeueAt": at(seconds).isoformat()}).json), now=at(0))
    found = []
    for seconds in (61, 119, 120):
        filing.wake(at(seconds))
        found.append(filing.snapshot.workloads["demo/gang"].may_queue)
    assert found == [False, False, True]


def test_a_workload_that_goes_while_its_backoff_runs_does_not_come_back(filing: SnapshotUpdater) -> None:
    workload = waiting().with_status(requeueState={"requeueAt": at(60).isoformat()})
    filing.put(typed(workload.json), now=at(0))
    filing.drop(typed(workload.json))
    filing.wake(at(61))
    assert filing.snapshot.workload("demo/gang") is None


# ------------------------------------------------------------------------------------------------- what is unreadable


def test_a_queue_that_cannot_be_read_stays_as_it_was_and_its_tree_has_a_doubt(filing: SnapshotUpdater) -> None:
    filing.put(typed(cluster_queue(gpus="lots", cohortName="team")))
    tree = tree_of(filing.snapshot, "other")
    assert tree.queues["cluster-queue"].subtree == {FlavorResource("a100", GPU): 4}
    (doubt,) = filing.snapshot.doubts(tree)
    assert "ClusterQueue cluster-queue" in doubt
    assert "'lots' is not a resource quantity" in doubt
    assert ("ClusterQueue", "cluster-queue") in filing.unreadable
    filing.put(typed(cluster_queue(gpus=8, cohortName="team")))
    assert (filing.snapshot.doubts(tree_of(filing.snapshot)), filing.unreadable) == ([], {})


def test_a_queue_that_never_could_be_read_has_no_quota_and_its_tree_a_doubt(filing: SnapshotUpdater) -> None:
    filing.put(typed(cluster_queue("new", gpus="lots", cohortName="team")))
    tree = tree_of(filing.snapshot, "new")
    assert (tree.queues["new"].spec.schedules, tree.queues["new"].subtree) == (False, {})
    assert len(filing.snapshot.doubts(tree_of(filing.snapshot))) == 1, "all of the tree are concerned"
    filing.drop(typed(cluster_queue("new", gpus="lots")))
    assert (filing.snapshot.doubts(tree_of(filing.snapshot)), filing.unreadable) == ([], {})


def test_a_cohort_that_cannot_be_read_is_a_doubt_about_its_tree(filing: SnapshotUpdater) -> None:
    filing.put(typed(manifest("Cohort", "team", spec={"parentName": "root", "fairSharing": {"weight": "heavy"}})))
    tree = tree_of(filing.snapshot)
    assert tree.root.name == "root"
    assert filing.snapshot.doubts(tree) == [
        "Cohort team: fairSharing.weight: 'heavy' is not a resource quantity; write for example '8', '500m' or '64Gi'"
    ]


def test_a_local_queue_that_cannot_be_read_stays_as_it_was(filing: SnapshotUpdater) -> None:
    filing.put(typed(waiting().json))
    odd = {"clusterQueue": "other", "stopPolicy": "Pause"}
    filing.put(typed(manifest("LocalQueue", "user-queue", "demo", spec=odd)))
    assert pending(filing) == ["gang"]
    assert list(filing.unreadable) == [("LocalQueue", "demo/user-queue")]


def test_a_workload_that_cannot_be_read_is_opaque_and_disturbs_no_other(filing: SnapshotUpdater) -> None:
    filing.put(typed(holding("odd", "lots").json))
    filing.put(typed(holding("runs", 2).json))
    assert used(filing) == 2
    assert "'lots'" in filing.snapshot.workloads["demo/odd"].opaque_because
