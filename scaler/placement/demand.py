"""What a gang needs of the nodes: pods of several shapes, each where its own rules and its flavors allow."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from scaler.kube.quantity import Requests
from scaler.kube.scheduling import ANYWHERE, NodeRequirement, NodeSelection, Operator, Toleration
from scaler.placement.node_index import is_device
from scaler.quota.model import Flavor, QuotaPodSet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemand:
    """The pods of one PodSet. They are alike."""

    pod_set: str
    count: int
    requests: Requests
    """Of one pod."""
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
