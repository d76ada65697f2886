"""What do pods hold on which node, and what is freed without some workloads, or once terminating pods have ended?

Laws:

* A pod occupies until it is really gone: deleted, or in phase Succeeded or Failed. One that is terminating still holds
  its GPUs, for as long as it takes.
* Nothing is freed twice: a pod that is terminating and whose workload is a victim counts once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scaler.idleness.pods import TERMINAL, PodPhase
from scaler.kube.quantity import Requests
from scaler.placement.node_index import PODS, NodeIndex, PodNeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """A pod that is bound to a node."""

    pod: str
    """`namespace/name`."""
    node: str
    requests: Requests
    workload: str = ""
    """Key of its Workload; empty where it has none, so that nothing frees what it holds."""
    phase: PodPhase = PodPhase.RUNNING
    terminating: bool = False

    @property
    def holds_resources(self) -> bool:
        return self.phase not in TERMINAL


@dataclass(slots=True)
class Allocation:
    """What one pod takes from one node."""

    node: int
    amounts: PodNeeds
    workload: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """Which pods are counted as gone."""

    workloads: frozenset[str] = frozenset()
    ended: bool = False

    def includes(self, held: Allocation) -> bool:
        return (self.ended and held.ends) or held.workload in self.workloads


@dataclass(frozen=True, slots=True)
class Allocations:
    """The pods that may go. Those without a workload go only when they are terminating."""

    of_workload: Mapping[str, list[Allocation]] = field(default_factory=dict)
    ending: list[Allocation] = field(default_factory=list)

    def leaving(self, workloads: Iterable[str], gone: Removed) -> Iterator[Allocation]:
        """The workloads' pods that are not gone already."""
        for workload in set(workloads):
            for held in self.of_workload.get(workload, ()):
                if not gone.includes(held):
                    yield held

    def ended(self, gone: Removed) -> Iterator[Allocation]:
        """The terminating pods that are not gone already."""
        return (held for held in self.ending if not gone.includes(held))

    def exchanged(self, leaving: Sequence[Allocation], coming: Sequence[Allocation]) -> "Allocations":
        """Without some of these very pods and with others. It shares what is the same."""
        left, arrived = {id(held) for held in leaving}, allocations_by_workload(coming)
        of_workload = dict(self.of_workload)
        for workload in {held.workload for held in leaving} | arrived.of_workload.keys():
            staying = [held for held in of_workload.pop(workload, ()) if id(held) not in left]
            if present := staying + arrived.of_workload.get(workload, []):
                of_workload[workload] = present
        ending = [held for held in self.ending if id(held) not in left]
        return Allocations(of_workload, ending + arrived.ending)


def allocations_by_workload(holding: Iterable[Allocation]) -> Allocations:
    """The pods by workload."""
    of_workload: dict[str, list[Allocation]] = {}
    ending: list[Allocation] = []
    for held in holding:
        if held.workload:
            of_workload.setdefault(held.workload, []).append(held)
        if held.ends:
            ending.append(held)
    return Allocations(of_workload, ending)


def allocations_of(index: NodeIndex, occupants: Iterable[BoundPod]) -> Iterator[Allocation]:
    """What each pod holds. Pods that are over, and pods on nodes that are not there, hold nothing."""
    known: dict[int, tuple[Requests, PodNeeds]] = {}
    for each in occupants:
        node = index.position.get(each.node)
        if node is not None and each.holds_resources:
            requests = each.requests
            found = known.get(id(requests))
            if found is None:
                found = known[id(requests)] = (requests, needs_of(index, requests))
            yield Allocation(node, found[1], each.workload, each.terminating)


def needs_of(index: NodeIndex, requests: Requests) -> PodNeeds:
    """What a pod takes of the resources that nodes declare; one of `pods` in any case."""
    positions = index.resource_position
    needs = [
        (positions[name], amount) for name, amount in requests.items() if amount and name in positions and name != PODS
    ]
    return (*needs, (positions[PODS], 1))
