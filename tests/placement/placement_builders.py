"""Nodes, pods and gangs for placement, in GPUs, cores and GiB; and the plain definition of what it means to fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scaler.kube.objects.quantity import CPU
from scaler.kube.scheduling import ANYWHERE, NodeRequirement, NodeSelection, Operator, Taint, Toleration, untolerated
from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeDemand, NodeInfo, members

GPU = "nvidia.com/gpu"
MEMORY = "memory"
NIC = "rdma/hca"
GIB = 2**30

DEDICATED = Taint(key="dedicated", value="gpu")
TOLERATION = Toleration(key="dedicated", value="gpu")
MARKS = ("port TCP/1", "port TCP/2")
"""Of which a node takes one pod each."""


def amounts(gpus: int = 0, *, cores: int = 0, gib: int = 0, nics: int = 0, **more: int) -> dict[str, int]:
    named = {GPU: gpus, CPU: 1000 * cores, MEMORY: gib * GIB, NIC: nics, **more}
    return {name: amount for name, amount in named.items() if amount}


def node(name: str, gpus: int = 8, *, cores: int = 96, gib: int = 1024, nics: int = 0, **more: Any) -> NodeInfo:
    """A node with 110 places for pods."""
    return NodeInfo(name=name, allocatable=amounts(gpus, cores=cores, gib=gib, nics=nics, pods=110), **more)


def occupant(node_name: str, gpus: int = 0, *, workload: str = "", pod: str = "", **more: Any) -> BoundPod:
    requests = more.pop("requests", None) or amounts(gpus)
    return BoundPod(pod=pod or f"{workload}-{node_name}", node=node_name, requests=requests, workload=workload, **more)


def full(gpus: Mapping[str, int], held: Mapping[str, Mapping[str, int]]) -> Capacity:
    """Nodes, and how many GPUs which Workload holds on each in one pod."""
    pods = [occupant(name, n, workload=each) for name, on_node in held.items() for each, n in on_node.items()]
    return capacity_of([node(name, n) for name, n in gpus.items()], pods)


def demand(
    count: int = 1, gpus: int = 0, *, pod_set: str = "workers", nodes: NodeSelection = ANYWHERE, **more: int
) -> NodeDemand:
    return NodeDemand(pod_set=pod_set, count=count, requests=amounts(gpus, **more), nodes=nodes)


def on(labels: Mapping[str, str] | None = None, **more: Any) -> NodeSelection:
    return NodeSelection(labels=labels or {}, **more)


def free_by_node(capacity: Capacity, resource: str = GPU) -> dict[str, int]:
    """What is free on the open nodes."""
    position = capacity.index.resource_position[resource]
    return {capacity.index.nodes[each].name: capacity.free[each][position] for each in members(capacity.index.open)}


# ------------------------------------------------------------------------------------------------------- the definition


def open_to(each: NodeDemand, node_: NodeInfo) -> bool:
    if node_.unschedulable or not node_.ready:
        return False
    return each.nodes.matches(node_.labels) and untolerated(node_.taints, each.nodes.tolerations) is None


def free_on(node_: NodeInfo, occupants: Iterable[BoundPod], resource: str) -> int:
    if resource == "pods":
        taken = sum(1 for pod in occupants if pod.node == node_.name and pod.holds_resources)
    else:
        taken = sum(
            pod.requests.get(resource, 0) for pod in occupants if pod.node == node_.name and pod.holds_resources
        )
    return node_.allocatable.get(resource, 0) - taken


def fits_by_trying(demands: Sequence[NodeDemand], nodes: Sequence[NodeInfo], occupants: Sequence[BoundPod]) -> bool:
    """Whether any way of putting pod by pod onto node by node exceeds nothing. All ways are tried."""
    free = {
        (each.name, resource): free_on(each, occupants, resource)
        for each in nodes
        for resource in (GPU, CPU, MEMORY, NIC, "pods")
    }
    free |= {(each.name, mark): 1 for each in nodes for mark in MARKS}
    return _rest_fits([each for each in demands for _ in range(each.count)], nodes, free)


def _rest_fits(pods: Sequence[NodeDemand], nodes: Sequence[NodeInfo], free: dict[tuple[str, str], int]) -> bool:
    if not pods:
        return True
    wanted = {**pods[0].requests, "pods": 1, **dict.fromkeys(pods[0].nodes.apart, 1)}
    for each in nodes:
        if open_to(pods[0], each) and all(free.get((each.name, name), 0) >= amount for name, amount in wanted.items()):
            after = dict(free)
            for name, amount in wanted.items():
                after[each.name, name] -= amount
            if _rest_fits(pods[1:], nodes, after):
                return True
    return False


# ------------------------------------------------------------------------------------------------------- small clusters

_TAINTS = st.sampled_from([(), (), (DEDICATED,)])
_ZONES = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeInfo]:
    return [
        NodeInfo(
            name=f"node-{position}",
            labels=draw(_ZONES),
            taints=draw(_TAINTS),
            unschedulable=draw(st.integers(0, 7)) == 0,
            ready=draw(st.integers(0, 7)) != 0,
            allocatable=amounts(
                draw(st.integers(0, 8)),
                cores=draw(st.integers(0, 8)),
                nics=draw(st.integers(0, 2)),
                pods=draw(st.integers(1, 6)),
            ),
        )
        for position in range(draw(st.integers(1, 4)))
    ]


@st.composite
def occupants_of(draw: st.DrawFn, nodes: Sequence[NodeInfo]) -> list[BoundPod]:
    return [
        BoundPod(
            pod=f"pod-{position}",
            node=draw(st.sampled_from(nodes)).name,
            requests=amounts(draw(st.integers(0, 4)), cores=draw(st.integers(0, 3))),
            workload=draw(st.sampled_from(["", "x", "y", "z"])),
            terminating=draw(st.booleans()),
        )
        for position in range(draw(st.integers(0, 5)))
    ]


_SELECTIONS = st.sampled_from(
    [
        ANYWHERE,
        on(tolerations=(TOLERATION,)),
        on({"zone": "a"}, tolerations=(TOLERATION,)),
        on({"zone": "b"}),
        on(terms=((NodeRequirement(key="zone", operator=Operator.IN, values=("a", "b")),),)),
        on(terms=((NodeRequirement(key="zone", operator=Operator.NOT_IN, values=("a",)),),)),
    ]
)


_APART = st.sampled_from([(), (), (), MARKS[:1], MARKS[1:], MARKS])


@st.composite
def gangs(draw: st.DrawFn, most: int = 7) -> list[NodeDemand]:
    """Up to three PodSets and so many pods."""
    left, demands = most, []
    for position in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, min(4, left)))
        left -= count
        demands.append(
            demand(
                count,
                draw(st.integers(0, 5)),
                pod_set=f"set-{position}",
                nodes=replace(draw(_SELECTIONS), apart=draw(_APART)),
                cores=draw(st.integers(0, 3)),
                nics=draw(st.integers(0, 1)),
            )
        )
    return demands
