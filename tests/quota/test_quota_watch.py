"""Kueue's quota as it is seen through the copies of a cluster's objects, or the reason why it is not."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from builders import NOON, WorkloadJson, at
from sim.api import SimStore
from sim.client import SimClient

from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)
from scaler.kube.reflector import Absent, Denied, Disconnected
from scaler.quota.model import FlavorResource
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced, QuotaWatch

GPU = "nvidia.com/gpu"
KINDS: dict[Resource, tuple[str, type[Any]]] = {
    RESOURCE_FLAVOR: ("flavors", kube.ResourceFlavor),
    ADMISSION_CHECK: ("checks", kube.AdmissionCheck),
    COHORT: ("cohorts", kube.Cohort),
    CLUSTER_QUEUE: ("cluster_queues", kube.ClusterQueue),
    LOCAL_QUEUE: ("local_queues", kube.LocalQueue),
    NAMESPACE: ("namespaces", kube.Namespace),
}


class Watched:
    """A cluster's objects, and copies of them: they show what is there, and are as well watched as a test says."""

    def __init__(self) -> None:
        self.now = NOON
        self.client = SimClient()
        self.copies: dict[Resource, SimStore[Any]] = {each: SimStore(kind) for each, (_, kind) in KINDS.items()}
        self.copies[WORKLOAD] = SimStore(Workload)
        quota = {"name": GPU, "nominalQuota": 4}
        group = {"coveredResources": [GPU], "flavors": [{"name": "a100", "resources": [quota]}]}
        self.add(NAMESPACE, "demo", labels={"team": "red"})
        self.add(RESOURCE_FLAVOR, "a100")
        self.add(CLUSTER_QUEUE, "cq", resourceGroups=[group], namespaceSelector={}, cohortName="team")
        self.add(LOCAL_QUEUE, "user-queue", clusterQueue="cq")

    def view(self, **options: Any) -> QuotaWatch:
        quota: Any = SimpleNamespace(**{name: self.copies[each] for each, (name, _) in KINDS.items()})
        workloads: Any = self.copies[WORKLOAD]
        given: dict[str, Any] = {"clock": lambda: self.now, "max_age": timedelta(minutes=3)} | options
        return QuotaWatch(quota, workloads, **given)

    def add(self, resource: Resource, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        namespace = {"namespace": "demo"} if resource.namespaced else {}
        self.client.add(resource, {"metadata": {"name": name, "labels": labels or {}, **namespace}, "spec": spec})
        self.follow()

    def submit(self, name: str, **status: Any) -> None:
        workload = WorkloadJson(name).json
        self.client.restore(WORKLOAD, {**workload, "status": {**workload.get("status", {}), **status}})
        self.follow()

    def remove(self, resource: Resource, name: str) -> None:
        self.client.remove(resource, "demo" if resource.namespaced else "", name)
        self.follow()

    def follow(self) -> None:
        for resource, copy in self.copies.items():
            copy.follow(self.client.all(resource))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def seen(view: QuotaWatch) -> Snapshot:
    found = view.look()
    assert isinstance(found, Snapshot), found
    return found


def reason(view: QuotaWatch) -> str:
    found = view.look()
    return found.reason if isinstance(found, NotSynced) else ""


def pending(snapshot: Snapshot) -> list[str]:
    tree = snapshot.tree_of("cq")
    return sorted(each.name for each in snapshot.pending_in(tree).get("cq", ())) if tree else []


def used(snapshot: Snapshot) -> int:
    tree = snapshot.tree_of("cq")
    return tree.queues["cq"].usage.get(FlavorResource("a100", GPU), 0) if tree else 0


RESERVED = {
    "type": "QuotaReserved",
    "status": "True",
    "reason": "QuotaReserved",
    "message": "",
    "lastTransitionTime": "2026-12-01T12:00:00Z",
}
ASSIGNED = {"name": "main", "count": 2, "flavors": {GPU: "a100"}, "resourceUsage": {GPU: "2"}}
HELD: dict[str, Any] = {
    "admission": {"clusterQueue": "cq", "podSetAssignments": [ASSIGNED]},
    "conditions": [RESERVED],
}


def test_what_is_there_is_seen(watched: Watched) -> None:
    watched.add(COHORT, "team", parentName="root")
    watched.submit("waits")
    watched.submit("runs", **HELD)
    snapshot = seen(watched.view(fair_sharing=True))
    tree = snapshot.tree_of("cq")
    assert tree is not None
    assert (tree.root.name, pending(snapshot), used(snapshot)) == ("root", ["waits"], 2)
    assert (snapshot.namespaces["demo"]["team"], list(snapshot.flavors)) == ("red", ["a100"])
    assert snapshot.fair_sharing


def test_what_changes_is_seen_at_once(watched: Watched) -> None:
    view = watched.view()
    snapshot = seen(view)
    watched.submit("one", **HELD)
    assert used(snapshot) == 2
    watched.client.change(WORKLOAD, "demo", "one", {"spec": {"active": False}})
    watched.follow()
    assert (used(snapshot), pending(snapshot)) == (0, [])
    watched.remove(WORKLOAD, "one")
    watched.submit("two")
    assert pending(snapshot) == ["two"]
    watched.remove(RESOURCE_FLAVOR, "a100")
    tree = snapshot.tree_of("cq")
    assert tree is None or not tree.scheduling
    assert view.look() is snapshot


def test_a_backoff_that_ends_is_seen_without_any_change(watched: Watched) -> None:
    watched.copies[COHORT].state = Absent("404")
    watched.submit("waits", requeueState={"requeueAt": at(60).isoformat().replace("+00:00", "Z")})
    view = watched.view()
    snapshot = seen(view)
    assert [tree.root.name for tree in snapshot.trees] == ["team"], "without the kind Cohort there are only names"
    assert not snapshot.workloads["demo/waits"].may_queue
    watched.now = at(60)
    view.look()
    assert snapshot.workloads["demo/waits"].may_queue


UNSEEN = {
    "everything is listed but Workloads": ({WORKLOAD: Disconnected("not listed yet")}, "Workloads (not listed yet)"),
    "what may not be read is named": ({CLUSTER_QUEUE: Denied("403 Forbidden")}, "ClusterQueues (403 Forbidden)"),
}


@pytest.mark.parametrize(("states", "why"), UNSEEN.values(), ids=UNSEEN)
def test_what_is_not_watched_blinds_until_it_is_again(watched: Watched, states: Any, why: str) -> None:
    view = watched.view()
    before = {resource: watched.copies[resource].state for resource in states}
    for resource, state in states.items():
        watched.copies[resource].state = state
    assert reason(view) == f"not synced: {why}"
    for resource, state in before.items():
        watched.copies[resource].state = state
    seen(view)


def test_without_kueue_there_is_nothing_to_see(watched: Watched) -> None:
    for resource in (CLUSTER_QUEUE, LOCAL_QUEUE, COHORT):
        watched.copies[resource].state = Absent("404")
    wanted = "Kueue (kueue.x-k8s.io/v1beta2) is not installed: the API does not serve ClusterQueues, LocalQueues"
    assert reason(watched.view()).startswith(wanted)


def test_a_silence_that_lasts_too_long_blinds(watched: Watched) -> None:
    view = watched.view(max_age=timedelta(seconds=30))
    watched.copies[NAMESPACE].age = 31.0
    assert view.age_s == 31.0
    assert reason(view) == "last response of the API server 31 s ago; the limit is 30 s"


def test_one_namespace_is_not_enough(watched: Watched) -> None:
    assert reason(watched.view(confined_to=["demo"])).startswith("only namespace demo is watched")
    assert reason(watched.view(confined_to=["a", "b"])).startswith("only namespaces a, b are watched, but quota is")


def test_a_queue_that_cannot_be_decoded_blinds(watched: Watched) -> None:
    view = watched.view()
    seen(view)
    watched.add(COHORT, "odd", resourceGroups="none")
    assert reason(view).startswith("cannot be read: Cohorts odd: ")
    watched.remove(COHORT, "odd")
    seen(view)
