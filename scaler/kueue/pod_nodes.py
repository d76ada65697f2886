"""On which nodes may a PodSet's pods run, by their template, and beside whom? Pure."""

from scaler.core.nodes import ANYWHERE, NodeSelection
from scaler.kube import kueue_objects as kube
from scaler.kube.nodes import terms, tolerations
from scaler.kueue.pod_neighbours import marks_of


def selection_of(workload: kube.Workload, pod_set: kube.PodSet) -> NodeSelection:
    """What its pods demand of their nodes, flavors not counted. Raises: ValueError for what cannot be read."""
    spec = pod_set.template.spec
    try:
        marks = marks_of(workload, pod_set)
    except ValueError as error:
        raise ValueError(f"PodSet {pod_set.name}: {error}") from None
    if not (spec.node_selector or spec.affinity or spec.tolerations or marks):
        return ANYWHERE
    try:
        alternatives = terms(spec.affinity)
    except ValueError as error:
        raise ValueError(f"PodSet {pod_set.name}: node affinity: {error}") from None
    return NodeSelection(
        labels=spec.node_selector, terms=alternatives, tolerations=tolerations(spec.tolerations), apart=marks
    )
