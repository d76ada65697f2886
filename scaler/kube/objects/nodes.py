"""Nodes, requests for more of them, and what pods demand of them, by the laws of `core.py`.

A demand by field (`matchFields`, in practice `metadata.name`) is treated as one by a label of that name, which `labels`
gives every node. What is written and cannot be read (an operator that Kubernetes does not know) raises ValueError.

Source: Kubernetes core/v1, NodeSpec, NodeStatus, Affinity, Toleration.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import field

from scaler.kube.objects.core import Condition, ObjectMeta, Quantity, SelectorRequirement, Struct, is_true
from scaler.kube.objects.quantity import amount
from scaler.kube.scheduling import NodeRequirement, Operator, Taint, Term

NAME_FIELD = "metadata.name"


class NodeSelectorTerm(Struct, frozen=True):
    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(Struct, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Struct, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[Any, ...] = ()
    """The preferences, which are compared and never interpreted."""


class Affinity(Struct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: Any = None
    """Read by `scaler.quota.from_objects.pod_nodes`."""
    pod_anti_affinity: Any = None


class NodeSpec(Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Struct, frozen=True):
    allocatable: dict[str, Quantity] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(Struct, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet says so and new pods may be bound to it; a node that is silent is not."""
        return not self.spec.unschedulable and is_true(self.status.conditions, "Ready")


class ProvisioningRequestPodSet(Struct, frozen=True):
    count: int = 0


class ProvisioningRequestSpec(Struct, frozen=True):
    provisioning_class_name: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    pod_sets: tuple[ProvisioningRequestPodSet, ...] = ()


class ProvisioningRequestStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    provisioning_class_details: dict[str, str] = field(default_factory=dict)


class ProvisioningRequest(Struct, frozen=True):
    """autoscaling.x-k8s.io, v1 and v1beta1 alike."""

    metadata: ObjectMeta
    spec: ProvisioningRequestSpec = ProvisioningRequestSpec()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()


_GKE_SHARED = "cloud.google.com/gke-max-shared-clients-per-gpu"


def offers_shared(node: Node, *, is_mig: bool) -> bool:
    """Whether it offers whole GPUs, or MIG instances, more than once.

    Source: NVIDIA k8s-device-plugin, internal/lm/mig-strategy.go and resource.go: `nvidia.com/<resource>.replicas` for
    time-slicing and MPS, where MIG instances are `gpu` by the strategy `single`, `mig-<profile>` by `mixed`; there is
    no label of the strategy where it is `none`. GKE's documentation of time-sharing and MPS.
    """
    labels = node.metadata.labels
    is_own_resource = is_mig and labels.get("nvidia.com/mig.strategy") != "single"
    resource = "nvidia.com/mig-" if is_own_resource else "nvidia.com/gpu."
    values = (x for key, x in labels.items() if key.startswith(resource) and key.endswith(".replicas"))
    return any(each.isdecimal() and int(each) > 1 for each in (*values, labels.get(_GKE_SHARED, "")))


def labels(node: Node) -> dict[str, str]:
    """What demands of pods are compared with."""
    return node.metadata.labels | {NAME_FIELD: node.metadata.name}


def allocatable(node: Node) -> Mapping[str, int]:
    """Amounts that pods may take, by resource. A quantity that cannot be read counts as none: nothing is put there."""
    amounts = {}
    for resource, quantity in node.status.allocatable.items():
        try:
            amounts[resource] = amount(resource, quantity)
        except ValueError:
            amounts[resource] = 0
    return amounts


def terms(affinity: Affinity | None) -> tuple[Term, ...]:
    """The alternatives of the required node affinity. Raises: ValueError for an operator that is none."""
    required = (
        affinity.node_affinity.required_during_scheduling_ignored_during_execution
        if affinity and affinity.node_affinity
        else None
    )
    return tuple(
        tuple(
            NodeRequirement(key=each.key, operator=Operator(each.operator), values=each.values)
            for each in (*term.match_expressions, *term.match_fields)
        )
        for term in (required.node_selector_terms if required else ())
    )
