"""The free amounts of nodes, seen through copies of nodes, pods and Workloads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest
from builders import GPUS, WorkloadJson
from placement.placement_builders import free_by_node
from sim.api import SimStore
from sim.client import SimClient
from small_cluster import NAME, NAMESPACE_NAME, WORKLOAD_NAME
from small_cluster import pod_json as pod_of_gang

from scaler.kube.objects.core import Pod
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import NODE, POD, WORKLOAD, Resource
from scaler.kube.reflector import Absent, Denied, Disconnected, State
from scaler.placement.capacity import Capacity
from scaler.placement.node_watch import NodeWatch
from scaler.quota.watch import NotSynced
from scaler.targets.cluster_state import WORKLOAD_ANNOTATION, pod_indexes, workload_indexes

GPU = "nvidia.com/gpu"
KEY = f"{NAMESPACE_NAME}/{WORKLOAD_NAME}"
MINUTE = timedelta(minutes=1)


class Watched:
    """A node `node-a` of 8 GPUs, and a view that sees at once what happens to it."""

    def __init__(self) -> None:
        self.client = SimClient()
        self.nodes, self.pods = SimStore(Node), SimStore(Pod, pod_indexes(GPUS))
        self.workloads = SimStore(Workload, workload_indexes())
        self.view = NodeWatch(*cast(Any, (self.nodes, self.pods, self.workloads)), max_age=MINUTE)
        self.create(NODE, node_json("node-a"))

    def create(self, resource: Resource, body: dict[str, Any]) -> None:
        namespace = {"namespace": NAMESPACE_NAME} if resource.namespaced else {}
        self.client.restore(resource, {**body, "metadata": {**body["metadata"], **namespace}})
        self.follow()

    def change(self, resource: Resource, name: str, body: dict[str, Any], subresource: str = "") -> None:
        self.client.change(resource, NAMESPACE_NAME if resource.namespaced else "", name, body, subresource)
        self.follow()

    def ends(self, resource: Resource, name: str) -> None:
        """It is being deleted, and a finalizer keeps it."""
        self.change(resource, name, {"metadata": {"deletionTimestamp": "2026-12-01T12:00:00Z"}})

    def delete(self, resource: Resource, name: str) -> None:
        self.client.remove(resource, NAMESPACE_NAME if resource.namespaced else "", name)
        self.follow()

    def follow(self) -> None:
        for resource, copy in ((NODE, self.nodes), (POD, self.pods), (WORKLOAD, self.workloads)):
            copy.follow(self.client.all(resource))

    def submit(self, name: str = WORKLOAD_NAME, *, finished: bool = False) -> None:
        workload = WorkloadJson(name)
        self.create(WORKLOAD, (workload.condition("Finished", True, "Succeeded") if finished else workload).json)

    def run_pods(self, *names: str, annotated: bool = True) -> None:
        """Pods of the job that owns the Workload, with one GPU each."""
        (owner,) = WorkloadJson(WORKLOAD_NAME).json["metadata"]["ownerReferences"]
        for name in names or ("worker-0", "worker-1"):
            self.create(POD, pod_of_gang(name, owner["uid"], annotated=annotated, running=True))

    @property
    def capacity(self) -> Capacity:
        found = self.view.capacity()
        assert isinstance(found, Capacity), found.reason
        return found

    def free(self, *, node: str = "node-a", without: str = "", ended: bool = False) -> int:
        """GPUs that are free on the node, were the pods of that Workload gone or were all ended that are about to."""
        capacity = self.capacity.without([without]) if without else self.capacity
        capacity = capacity.once_ended() if ended else capacity
        return capacity.free[capacity.index.position[node]][capacity.index.resource_position[GPU]]

    @property
    def reason(self) -> str:
        """Why nothing is known."""
        found = self.view.capacity()
        assert isinstance(found, NotSynced)
        return found.reason


@pytest.fixture
def watched() -> Watched:
    return Watched()


def node_json(name: str, *, gpus: int = 8, ready: bool = True) -> dict[str, Any]:
    amounts = {"cpu": "32", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
    return {
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": str(ready), "reason": "KubeletReady"}],
        },
    }


def container(gpus: int = 0, name: str = "main", *, cpu: str = "", **more: Any) -> dict[str, Any]:
    amounts = {**({GPU: str(gpus)} if gpus else {}), **({"cpu": cpu} if cpu else {})}
    return {"name": name, "image": "train:1", "resources": {"requests": amounts, "limits": amounts}, **more}


def pod_json(
    name: str,
    gpus: int = 1,
    *,
    node: str = "node-a",
    workload: str = "",
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> dict[str, Any]:
    annotations = {WORKLOAD_ANNOTATION: workload} if workload else {}
    return {
        "metadata": {"name": name, "annotations": annotations, "labels": dict(labels or {})},
        "spec": {"containers": [container(gpus)], **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": phase},
    }


# -------------------------------------------------------------------------------------------------------- what is free


def test_pods_take_from_their_node_and_their_workload_would_give_it_back(watched: Watched) -> None:
    watched.create(POD, pod_json("worker-0", 2, workload=WORKLOAD_NAME))
    watched.create(POD, pod_json("worker-1", 1, workload=WORKLOAD_NAME))
    watched.create(POD, pod_json("of-nobody", 1))
    assert watched.free() == 8 - 2 - 1 - 1
    assert watched.free(without=KEY) == 8 - 1


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_json("worker-0", node=""), id="no node was found for it"),
        pytest.param(pod_json("worker-0", phase="Succeeded"), id="it has succeeded"),
        pytest.param(pod_json("worker-0", phase="Failed"), id="it has failed"),
        pytest.param(pod_json("worker-0", node="elsewhere"), id="its node is not there"),
    ],
)
def test_a_pod_holds_nothing_where(watched: Watched, pod: dict[str, Any]) -> None:
    watched.create(POD, pod)
    assert watched.free() == 8


def test_a_terminating_pod_holds_until_it_has_ended(watched: Watched) -> None:
    watched.create(POD, pod_json("worker-0", 3))
    assert watched.free() == 8 - 3
    watched.ends(POD, "worker-0")
    assert watched.free() == 8 - 3
    assert watched.free(ended=True) == 8
    watched.change(POD, "worker-0", {"status": {"phase": "Failed"}}, "status")
    assert watched.free() == 8
    watched.delete(POD, "worker-0")
    assert watched.free() == 8


def test_nodes_come_change_and_go(watched: Watched) -> None:
    watched.create(POD, pod_json("worker-0", 3, node="node-b"))
    watched.create(NODE, node_json("node-b", gpus=4))
    assert watched.free(node="node-b") == 4 - 3
    watched.change(NODE, "node-b", {"status": {"allocatable": {GPU: "2"}}}, "status")
    assert watched.free(node="node-b") == 2 - 3
    watched.delete(NODE, "node-b")
    assert "node-b" not in watched.capacity.index.position
    assert watched.free() == 8


def test_nothing_is_put_on_a_node_that_is_cordoned_silent_or_being_deleted(watched: Watched) -> None:
    watched.create(NODE, node_json("cordoned") | {"spec": {"unschedulable": True}})
    watched.create(NODE, node_json("silent", ready=False))
    watched.create(NODE, node_json("leaving"))
    watched.ends(NODE, "leaving")
    assert watched.free() == 8
    assert free_by_node(watched.capacity).keys() == {"node-a"}


def test_what_changes_nothing_gives_the_very_same_capacity(watched: Watched) -> None:
    watched.create(POD, pod_json("worker-0"))
    assert watched.free() == 8 - 1
    before = watched.capacity
    watched.change(POD, "worker-0", {"status": {"message": "still at it"}}, "status")
    watched.change(NODE, "node-a", {"metadata": {"annotations": {"heartbeat": "2"}}})
    assert watched.free() == 8 - 1
    assert watched.capacity is before


# ------------------------------------------------------------------------------------------------------- whose pods


def test_pods_without_annotation_are_those_of_the_job_that_owns_the_workload(watched: Watched) -> None:
    """As where Kueue's gate TopologyAwareScheduling is off. The pods are seen before their Workload."""
    watched.run_pods(annotated=False)
    assert watched.free(without=KEY) == 8 - 2
    watched.submit()
    assert watched.free(without=KEY) == 8
    watched.delete(WORKLOAD, WORKLOAD_NAME)
    assert watched.free(without=KEY) == 8 - 2


def test_a_workload_that_has_finished_has_no_pods_but_those_that_name_it(watched: Watched) -> None:
    watched.submit()
    watched.run_pods("worker-0", annotated=False)
    watched.run_pods("worker-1")
    assert watched.free(without=KEY) == 8
    watched.delete(WORKLOAD, WORKLOAD_NAME)
    watched.submit(finished=True)
    assert watched.free(without=KEY) == 8 - 1


def test_pods_of_a_job_with_two_workloads_are_freed_by_neither(watched: Watched) -> None:
    """Nobody is suspended for GPUs that may not become free."""
    watched.submit()
    watched.submit("second")
    watched.run_pods(annotated=False)
    for name in (WORKLOAD_NAME, "second"):
        assert watched.free(without=f"{NAMESPACE_NAME}/{name}") == 8 - 2


def test_pods_of_another_job_of_that_name_are_not_the_workloads(watched: Watched) -> None:
    """A job that was deleted and made anew: the old one's pods still end."""
    watched.submit()
    old = pod_json("worker-0", 2)
    old["metadata"]["ownerReferences"] = [
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME, "uid": "another", "controller": True}
    ]
    watched.create(POD, old)
    assert watched.free(without=KEY) == 8 - 2


# ---------------------------------------------------------------------------------------- why they are not synced


@pytest.mark.parametrize("state", [Disconnected("not listed yet"), Denied("403 Forbidden"), Absent("404 Not Found")])
@pytest.mark.parametrize("kind", ["Nodes", "Pods"])
def test_the_reason_is_given_where_they_are_not_synced(watched: Watched, state: State, kind: str) -> None:
    {"Nodes": watched.nodes, "Pods": watched.pods}[kind].state = state
    assert watched.reason == f"not synced: {kind} ({state.message})"


def test_old_news_are_no_news(watched: Watched) -> None:
    watched.pods.age = 61.0
    assert watched.view.age_s == 61.0
    assert watched.reason.endswith("61 s ago; the limit is 60 s")


def test_what_cannot_be_read_is_not_guessed(watched: Watched) -> None:
    """No API server lets such a quantity in; one that did must not end the watch."""
    odd = pod_json("odd")
    odd["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"
    watched.create(POD, odd)
    assert watched.reason.startswith("cannot be read: Pod demo/odd: 'many' is not a resource quantity")
    watched.delete(POD, "odd")
    assert watched.free() == 8
