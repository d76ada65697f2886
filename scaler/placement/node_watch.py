"""What the nodes have free by the API's objects: one Capacity, fed by the watches of nodes and of the pods on them.

Laws:

* `capacity` gives a Capacity only while all nodes and all pods are synced, and otherwise the reason why not. Plans are
  then made by quota alone.
* What counts is what a pod was bound with, as the scheduler adds it up. Other pods of a node count as well.
* A pod holds until it is gone, or has Succeeded or Failed: Kueue gives its quota away while it still ends. One that no
  node was found for holds nothing.
* A pod belongs to the Workload that it is annotated with, or else to the one of the job that owns it, or else to the
  one of the job that its labels name, as in `cluster.py`. Where several Workloads that have not finished could be meant
  it belongs to none: no workload is suspended for GPUs that may not become free.

Subscribe before the reflectors run. 20,000 pods are filed in some hundred milliseconds, while the event loop gets its
turn in between.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any

from scaler.idleness.pods import TERMINAL
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import ObjectMeta, Pod, PodSpec, is_true
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node, allocatable, labels
from scaler.kube.objects.quantity import Requests, shared
from scaler.kube.objects.resources import NODE, group_of
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflector
from scaler.kube.transport import KubeTransport
from scaler.placement.capacity import Allocation, BoundPod, Capacity, allocations_of, capacity_of, capacity_with
from scaler.placement.node_index import NodeIndex, NodeInfo
from scaler.quota.from_objects.pod_requests import pod_requests
from scaler.quota.watch import NotSynced, disconnected, limited_to_namespaces, outdated
from scaler.targets.cluster_state import JOB_NAME_LABELS, WORKLOAD_ANNOTATION, job_key

_JOB_LABELS = frozenset(JOB_NAME_LABELS.values())
_SHOWN = 3
"""Objects named in a reason."""


def node_reflector(transport: KubeTransport) -> Reflector[Node]:
    return Reflector(transport, NODE, Node)


class NodeWatch:
    """The nodes' free amounts. `confined_to` are the namespaces that this program is confined to, if it is."""

    def __init__(
        self,
        nodes: Reflector[Node],
        pods: Reflector[Pod],
        workloads: Reflector[Workload],
        *,
        max_age: timedelta,
        confined_to: Collection[str] = (),
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._workloads = workloads
        self._max_age = max_age
        self._confined_to = confined_to
        self._cache = CapacityCache()
        self._unreadable: dict[str, str] = {}
        nodes.subscribe(self._node_changed)
        pods.subscribe(self._pod_changed)
        workloads.subscribe(self._workload_changed)
        for node in nodes.items():
            self._cache.put_node(node_of(node))
        self._file(pods.items())

    def capacity(self) -> Capacity | NotSynced:
        """What is free now, or why that is not known. The same value as before where nothing has changed."""
        reason = (
            limited_to_namespaces(self._confined_to, "nodes are")
            or self._unseen()
            or self._unread()
            or outdated(self.age_s, self._max_age)
        )
        return NotSynced(reason) if reason else self._cache.capacity()

    @property
    def age_s(self) -> float:
        """Seconds since the API server last sent nodes or pods; infinite before both are listed."""
        return max(self._nodes.age, self._pods.age)

    # ------------------------------------------------------------------------------------------------------- watching

    def _node_changed(self, change: Change[Node]) -> None:
        if change.new is None:
            self._cache.drop_node(change.key[1])
        else:
            self._cache.put_node(node_of(change.new))

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._forget("/".join(change.key))
        else:
            self._file([change.new])

    def _workload_changed(self, change: Change[Workload]) -> None:
        """Pods that do not name their Workload may be another's now, or one's that was not known before."""
        if change.old and change.new and _claim(change.old) == _claim(change.new):
            return
        for workload in (change.old, change.new):
            if workload is not None:
                self._file(pod for pod in self._pods_of_job(workload) if not _annotated(pod.metadata))

    def _pods_of_job(self, workload: Workload) -> Sequence[Pod]:
        owner, job = workload.metadata.controller_owner, job_key(workload)
        owned = self._pods.by_index("owner", owner.uid) if owner else ()
        return owned + (self._pods.by_index("job", job) if job else ())

    def _file(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            name = "/".join(pod.metadata.key)
            self._forget(name) if holds_no_node(pod) else self._put(name, pod)

    def _put(self, name: str, pod: Pod) -> None:
        try:
            requests = requests_of(pod.spec)
        except ValueError as error:
            self._forget(name)
            self._unreadable[name] = str(error)
            return
        self._unreadable.pop(name, None)
        self._cache.put_pod(
            BoundPod(
                pod=name,
                node=pod.spec.node_name,
                requests=requests,
                workload=self._workload_of(pod.metadata),
                terminating=pod.metadata.deletion_timestamp is not None,
            )
        )

    def _forget(self, name: str) -> None:
        self._unreadable.pop(name, None)
        self._cache.drop_pod(name)

    def _workload_of(self, pod: ObjectMeta) -> str:
        """`namespace/name`; empty where it has none, or that is ambiguous."""
        if name := _annotated(pod):
            return f"{pod.namespace}/{name}"
        found = self._of_owner(pod) or self._of_job(pod)
        still_open = [each for each in found if not is_true(each.status.conditions, "Finished")]
        return "/".join(still_open[0].metadata.key) if len(still_open) == 1 else ""

    def _of_owner(self, pod: ObjectMeta) -> list[Workload]:
        return [
            workload
            for owner in pod.owner_references
            for workload in self._workloads.by_index(
                "owner", (pod.namespace, group_of(owner.api_version), owner.kind, owner.name)
            )
            if (owning := workload.metadata.controller_owner) and owning.uid == owner.uid
        ]

    def _of_job(self, pod: ObjectMeta) -> list[Workload]:
        keys = ((pod.namespace, label, pod.labels[label]) for label in _JOB_LABELS & pod.labels.keys())
        return [workload for key in keys for workload in self._workloads.by_index("job", key)]

    # ---------------------------------------------------------------------------------------------- why it cannot say

    def _unseen(self) -> str:
        copies: dict[str, Reflector[Any]] = {"Nodes": self._nodes, "Pods": self._pods}
        return disconnected(copies, states=(Absent, Denied, Disconnected))

    def _unread(self) -> str:
        pods = {"/".join(key): why for key, why in self._pods.undecodable.items()} | self._unreadable
        found = [f"Node {name}: {why}" for (_, name), why in self._nodes.undecodable.items()]
        found += [f"Pod {name}: {why}" for name, why in pods.items()]
        return f"cannot be read: {'; '.join(found[:_SHOWN])}" if found else ""


# ---------------------------------------------------------------------------------------------------- single objects


def node_of(node: Node) -> NodeInfo:
    """The node as far as placement goes. One that is being deleted takes no new pods, cordoned or not."""
    return NodeInfo(
        name=node.metadata.name,
        labels=labels(node),
        taints=node.spec.taints,
        unschedulable=node.spec.unschedulable or node.metadata.deletion_timestamp is not None,
        ready=is_true(node.status.conditions, "Ready"),
        allocatable=allocatable(node),
    )


def holds_no_node(pod: Pod) -> bool:
    """Whether it holds nothing of any node: not bound yet, or over."""
    return not pod.spec.node_name or pod.status.phase in TERMINAL


def requests_of(spec: PodSpec) -> Requests:
    """What the pod holds, by the specification. Raises: ValueError for a quantity that is none."""
    return shared(tuple(pod_requests(spec).items()))


def _annotated(pod: ObjectMeta) -> str:
    return pod.annotations.get(WORKLOAD_ANNOTATION, "")


def _claim(workload: Workload) -> object:
    """What of a Workload decides which pods are its own, where they do not say so themselves."""
    return workload.metadata.controller_owner, is_true(workload.status.conditions, "Finished")


# -------------------------------------------------------------------------------------- the Capacity of the moment


class CapacityCache:
    """The Capacity of the nodes and pods that are there, kept from one change to the next.

    It is the one that `capacity_of` makes of them, in whatever order they came: a pod may come before its node. It
    costs what has changed since the last call. Of 20,000 pods hardly one changes between two questions, and a Capacity
    made anew takes a tenth of a second, during which nothing else is answered.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._occupants: dict[str, BoundPod] = {}
        self._held: dict[str, Allocation] = {}
        """What the pods hold that are on a node of the index, by pod."""
        self._leaving: dict[str, Allocation] = {}
        """The allocations that the Capacity still counts, and should not."""
        self._coming: dict[str, Allocation] = {}
        """The allocations that the Capacity does not count yet."""
        self._capacity = capacity_of((), ())
        self._has_other_nodes = False

    # ------------------------------------------------------------------------------------------------------- changes

    def put_node(self, node: NodeInfo) -> None:
        if self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._has_other_nodes = True

    def drop_node(self, name: str) -> None:
        self._has_other_nodes |= self._nodes.pop(name, None) is not None

    def put_pod(self, occupant: BoundPod) -> None:
        if self._occupants.get(occupant.pod) == occupant:
            return
        self.drop_pod(occupant.pod)
        if not occupant.holds_resources:
            return
        self._occupants[occupant.pod] = occupant
        for held in allocations_of(self._capacity.index, [occupant]):
            self._held[occupant.pod] = self._coming[occupant.pod] = held

    def drop_pod(self, pod: str) -> None:
        self._occupants.pop(pod, None)
        held = self._held.pop(pod, None)
        if held is not None and self._coming.pop(pod, None) is None:
            self._leaving[pod] = held

    # ------------------------------------------------------------------------------------------------------ the answer

    def capacity(self) -> Capacity:
        """What is free now."""
        if self._has_other_nodes:
            self._take_other_nodes()
        if self._leaving or self._coming:
            self._capacity = self._capacity.exchanged(self._leaving.values(), self._coming.values())
            self._leaving, self._coming = {}, {}
        return self._capacity

    def _take_other_nodes(self) -> None:
        """Go over to the nodes that are there now. Pods are counted anew only where nodes have come or gone."""
        before, index = self._capacity.index, NodeIndex(self._nodes.values())
        self._has_other_nodes = False
        if (before.position, before.resources) != (index.position, index.resources):
            self._count_anew(index)
            return
        grown = self._capacity.exchanged(_growth(before, index), ())
        allocations = self._capacity.allocations
        self._capacity = Capacity(index=index, free=grown.free, levels=grown.levels, allocations=allocations)

    def _count_anew(self, index: NodeIndex) -> None:
        there = [occupant for occupant in self._occupants.values() if occupant.node in index.position]
        self._held = {each.pod: held for each, held in zip(there, allocations_of(index, there), strict=True)}
        self._leaving, self._coming = {}, {}
        self._capacity = capacity_with(index, self._held.values())


def _growth(before: NodeIndex, after: NodeIndex) -> Iterable[Allocation]:
    """What nodes have gained, as if a pod that held it had ended: below 0 where they have lost some."""
    for position, (old, new) in enumerate(zip(before.nodes, after.nodes, strict=True)):
        if old.allocatable != new.allocatable:
            pairs = zip(before.allocatable(old), after.allocatable(new), strict=True)
            amounts = tuple((resource, more - less) for resource, (less, more) in enumerate(pairs))
            yield Allocation(position, amounts, workload="", ends=False)
