"""Which nodes may a pod run on? Answered for thousands of nodes at once: a set of nodes is one integer, a bit per node.

Laws:

* A node counts only while it is ready and not cordoned, whatever the pod tolerates: a pod must not be planned onto a
  node that is being drained.
* The bits are in the order of the nodes' names, so that the order in which nodes are listed changes nothing.
* Every pod takes one of `pods`, which it never asks for. A node that declares none (no kubelet does that) has no limit
  on them; of every other resource a node that declares none has none.

Worked example: nodes a (gpu=h100), b (gpu=a100), c (gpu=h100, cordoned) are the bits 1, 2, 4. The label gpu=h100 is
known for 1+4, open are 1+2, so a pod that selects it has 5 & 3 = 1: node a.

The tempting alternative, asking every node for every pod, costs 2,000 comparisons of labels per pod; sets that were
joined once per label cost one `&`, and how many nodes are in one is a `bit_count`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import and_, or_
from typing import NamedTuple

from scaler.kube.objects.quantity import UNLIMITED, Requests
from scaler.kube.scheduling import ANYWHERE, NodeRequirement, NodeSelection, Operator, Taint, Toleration, untolerated
from scaler.quota.model import EMPTY, Flavor, QuotaPodSet

PODS = "pods"
_PRECISION = 4
"""Bits of an amount that a grade keeps: 8 grades between an amount and its double."""
NodeSet = int
"""A bit for each node of an index."""
PodNeeds = tuple[tuple[int, int], ...]
"""Position of a resource and the amount of it, above 0."""

_SELECTIONS_KEPT = 4096
"""Answers remembered, so that pods that tenants create cannot fill the memory."""
_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes sets for a while: not ready, unreachable, unschedulable, under pressure, not initialised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    """Whether it is cordoned."""
    ready: bool = True
    allocatable: Requests

    @property
    def is_open(self) -> bool:
        return self.ready and not self.unschedulable


class PodShape(NamedTuple):
    """What a pod needs of a node, in the terms of one index. Pods of equal shapes are interchangeable."""

    eligible: NodeSet
    needs: PodNeeds
    unknown: tuple[str, ...] = ()
    """Resources that it asks for and that no node declares."""
    apart: tuple[str, ...] = ()
    """Marks of which a node takes one pod each."""

    def slots_in(self, free: Sequence[int]) -> int:
        room = max(0, min([free[resource] // amount for resource, amount in self.needs]))
        return min(1, room) if self.apart else room


class Exclusions(NamedTuple):
    """How many nodes a selection leaves out, each node counted for the first of the causes that applies."""

    closed: int
    """Nodes that are cordoned or not ready."""
    unlike: int
    """Nodes with other labels than selected."""
    tainted: int


def is_device(resource: str) -> bool:
    """Whether it is counted in pieces: an extended resource, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb."""
    return "/" in resource


def grade(amount: int) -> int:
    """A coarse measure that keeps the order: of no two amounts has the greater one the lower grade.

    What is free of memory is different on every node; by grades there are some fifty cases. Nothing free is grade 0.
    """
    if amount <= 0:
        return 0
    cut = max(0, amount.bit_length() - _PRECISION)
    return (cut << _PRECISION) + (amount >> cut)


def members(nodes: NodeSet) -> Iterator[int]:
    """Positions of the nodes in the set, in the order of their names."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def union(sets: Iterable[NodeSet]) -> NodeSet:
    return reduce(or_, sets, 0)


class NodeIndex:
    """The nodes of a cluster, found by labels and taints. It stays the same while only pods come and go."""

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        """Raises: ValueError where two nodes have one name."""
        self.nodes = tuple(sorted(nodes, key=lambda node: node.name))
        self.position = {node.name: position for position, node in enumerate(self.nodes)}
        if len(self.position) < len(self.nodes):
            raise ValueError("two nodes have the same name")
        self.resources = tuple(sorted({PODS}.union(*(node.allocatable for node in self.nodes))))
        self.resource_position = {name: position for position, name in enumerate(self.resources)}
        self.devices = frozenset(position for name, position in self.resource_position.items() if is_device(name))
        self.all: NodeSet = (1 << len(self.nodes)) - 1
        self._labelled = self._by_label()
        self._tainted = self._by_taints()
        self._eligible: dict[tuple[object, ...], NodeSet] = {}

    def _by_label(self) -> dict[str, dict[str, NodeSet]]:
        found: dict[str, dict[str, NodeSet]] = {}
        for position, node in enumerate(self.nodes):
            for key, value in node.labels.items():
                values = found.setdefault(key, {})
                values[value] = values.get(value, 0) | 1 << position
        return found

    def _by_taints(self) -> dict[tuple[Taint, ...], NodeSet]:
        found: dict[tuple[Taint, ...], NodeSet] = {}
        for position, node in enumerate(self.nodes):
            found[node.taints] = found.get(node.taints, 0) | 1 << position
        return found

    @cached_property
    def open(self) -> NodeSet:
        return union(1 << position for position, node in enumerate(self.nodes) if node.is_open)

    @cached_property
    def at_its_best(self) -> "NodeIndex":
        """These nodes with all of them ready, uncordoned and without the taints that pass."""
        best = tuple(
            replace(node, ready=True, unschedulable=False, taints=tuple(t for t in node.taints if not _passes(t)))
            for node in self.nodes
        )
        return self if best == self.nodes else NodeIndex(best)

    @cached_property
    def largest(self) -> tuple[int, ...]:
        columns = zip(*map(self.allocatable, self.nodes), strict=True)
        return tuple(map(max, columns)) if self.nodes else tuple(0 for _ in self.resources)

    def allocatable(self, node: NodeInfo) -> tuple[int, ...]:
        return tuple(node.allocatable.get(name, UNLIMITED if name == PODS else 0) for name in self.resources)

    def level(self, resource: int, free: int) -> int:
        """What distinguishes nodes: the number of free devices, the grade of what is free of anything else."""
        return free if resource in self.devices else grade(free)

    def by_scarcity(self, needs: PodNeeds) -> list[tuple[int, int]]:
        """The needs, devices first and `pods` last."""
        return sorted(needs, key=lambda need: (need[0] not in self.devices, self.resources[need[0]] == PODS, need))

    def shape(self, requests: Requests, selection: NodeSelection) -> PodShape:
        """The shape of a pod that requests these amounts and demands that of its node."""
        asked = {**{name: amount for name, amount in requests.items() if amount > 0}, PODS: 1}
        unknown = tuple(sorted(name for name in asked if name not in self.resource_position))
        needs = tuple(sorted((self.resource_position[name], asked[name]) for name in asked if name not in unknown))
        eligible = 0 if unknown else self.eligible(selection) & ~self._named(selection.closed)
        return PodShape(eligible, needs, unknown, selection.apart)

    def _named(self, names: Collection[str]) -> NodeSet:
        return union(1 << self.position[name] for name in names if name in self.position)

    def eligible(self, selection: NodeSelection) -> NodeSet:
        key = (frozenset(selection.labels.items()), selection.terms, selection.tolerations)
        known = self._eligible.get(key)
        if known is None:
            if len(self._eligible) >= _SELECTIONS_KEPT:
                self._eligible.clear()
            known = self._eligible[key] = self.open & self._matching(selection) & self._tolerated(selection)
        return known

    def exclusions(self, selection: NodeSelection) -> Exclusions:
        matching = self._matching(selection)
        return Exclusions(
            closed=(self.all & ~self.open).bit_count(),
            unlike=(self.open & ~matching).bit_count(),
            tainted=(self.open & matching & ~self._tolerated(selection)).bit_count(),
        )

    def _tolerated(self, selection: NodeSelection) -> NodeSet:
        return union(
            nodes for taints, nodes in self._tainted.items() if untolerated(taints, selection.tolerations) is None
        )

    def _matching(self, selection: NodeSelection) -> NodeSet:
        labelled = (self._labelled.get(key, {}).get(value, 0) for key, value in selection.labels.items())
        found = reduce(and_, labelled, self.all)
        if not selection.terms:
            return found
        return found & union(reduce(and_, map(self._meeting, term), self.all) for term in selection.terms)

    def _meeting(self, requirement: NodeRequirement) -> NodeSet:
        """The nodes of which the requirement is true. It must answer as `Requirement.matches` does."""
        values = self._labelled.get(requirement.key, {})
        match requirement.operator:
            case Operator.IN:
                return union(values.get(value, 0) for value in requirement.values)
            case Operator.NOT_IN:
                return self.all & ~self._meeting(replace(requirement, operator=Operator.IN))
            case Operator.EXISTS:
                return union(values.values())
            case Operator.DOES_NOT_EXIST:
                return self.all & ~union(values.values())
            case Operator.GT | Operator.LT:
                matching = (nodes for value, nodes in values.items() if requirement.matches({requirement.key: value}))
                return union(matching)


def _passes(taint: Taint) -> bool:
    return taint.key.startswith(_CONDITIONS)


# ------------------------------------------------------------------------------------------- what a gang needs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemand:
    """The pods of one PodSet. They are alike."""

    pod_set: str
    count: int
    requests: Requests
    """What one pod requests."""
    nodes: NodeSelection = ANYWHERE
    """What a pod demands of its node, and what the flavors that it is assigned add to that."""


def demand_of(pod_set: QuotaPodSet, flavors: Iterable[Flavor] = (), *, count: int | None = None) -> NodeDemand:
    """What the PodSet needs once these flavors are assigned to it; `count` where it starts with fewer pods."""
    return NodeDemand(
        pod_set=pod_set.name,
        count=pod_set.count if count is None else count,
        requests=pod_set.requests,
        nodes=tolerating_devices(on_flavors(pod_set.nodes, flavors), pod_set.requests),
    )


def excluding(demand: NodeDemand, closed: Collection[str]) -> NodeDemand:
    """The demand for pods that may not go to these nodes, by their names."""
    return replace(demand, nodes=replace(demand.nodes, closed=frozenset(closed))) if closed else demand


def tolerating_devices(selection: NodeSelection, requests: Requests) -> NodeSelection:
    """What pods demand that tolerate the taints by which nodes with devices keep others away.

    Clouds taint these nodes with the name of the resource, such as nvidia.com/gpu, and add the toleration to every pod
    that asks for it when the pod is made: a Workload's template lacks it.

    Source: Kubernetes, plugin/pkg/admission/extendedresourcetoleration; GKE, and the GPU add-ons of other clouds.
    """
    borne = tuple(_of_device(name) for name, amount in sorted(requests.items()) if amount > 0 and is_device(name))
    missing = tuple(each for each in borne if each not in selection.tolerations)
    return replace(selection, tolerations=(*selection.tolerations, *missing)) if missing else selection


def _of_device(resource: str) -> Toleration:
    return Toleration(key=resource, operator="Exists", effect="NoSchedule")


def on_flavors(selection: NodeSelection, flavors: Iterable[Flavor]) -> NodeSelection:
    """What pods demand with the node labels and tolerations that Kueue gives them for their flavors.

    Where a pod selects one value of a label and its flavor another, both are demanded, so that no node matches.
    """
    labels, conflicts, tolerations = dict(selection.labels), [], list(selection.tolerations)
    for flavor in flavors:
        for key, value in flavor.node_labels.items():
            if labels.setdefault(key, value) != value:
                conflicts.append(NodeRequirement(key=key, operator=Operator.IN, values=(value,)))
        tolerations += (each for each in flavor.tolerations if each not in tolerations)
    terms = tuple((*term, *conflicts) for term in selection.terms or ((),)) if conflicts else selection.terms
    return replace(selection, labels=labels, terms=terms, tolerations=tuple(tolerations))


def pod_counts(demands: Iterable[NodeDemand], index: NodeIndex) -> Counter[PodShape]:
    """The demands' pods by shape."""
    pods: Counter[PodShape] = Counter()
    for demand in demands:
        if demand.count > 0:
            pods[index.shape(demand.requests, demand.nodes)] += demand.count
    return pods
