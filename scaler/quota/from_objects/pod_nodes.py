"""Which nodes may a PodSet's pods run on, and which of them keep away from each other? Pure.

Laws:

* Pods that must not share a node have a common mark, of which a node takes one pod. A host port is one. Required
  anti-affinity by host name is one where its selector chooses the PodSet's own pods: other pods with the same one, in
  the same namespace, keep away, too.
* All else that is required and depends on other pods, or on volumes, is not counted, and said to be so.

Worked example: pods with the label app=a and `podAntiAffinity` for app=a by kubernetes.io/hostname need a node each.
With a selector app=b they keep away from pods of others, wherever these are: that is not counted.

What the scheduler merely prefers keeps no pod from any node.

Source: Kubernetes core/v1, PodAffinityTerm; scheduler plugins InterPodAffinity, NodePorts and PodTopologySpread.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from scaler.kube.objects import kueue_workloads as kube
from scaler.kube.objects.core import Struct
from scaler.kube.objects.kueue_queues import LabelSelector
from scaler.kube.objects.nodes import terms
from scaler.kube.scheduling import ANYWHERE, NodeSelection
from scaler.quota.from_objects.queues import selector_of

HOST_LABEL = "kubernetes.io/hostname"
PODSET_LABEL = "kueue.x-k8s.io/podset"
"""The label of pods of admitted Workloads: their PodSet."""
_JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")
"""What Kubernetes gives to the pods of a Job, and no template need have."""


class _Term(Struct, frozen=True):
    """A term of a required pod (anti-)affinity."""

    label_selector: LabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] = ()
    namespace_selector: Any = None
    mismatch_label_keys: tuple[str, ...] = ()


class _Rules(Struct, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[_Term, ...] = ()


def selection_of(workload: kube.Workload, pod_set: kube.PodSet) -> NodeSelection:
    """What its pods demand of their nodes, flavors not counted. Raises: ValueError for what cannot be read."""
    spec = pod_set.template.spec
    try:
        marks = anti_affinity_marks(workload, pod_set)
    except ValueError as error:
        raise ValueError(f"PodSet {pod_set.name}: {error}") from None
    if not (spec.node_selector or spec.affinity or spec.tolerations or marks):
        return ANYWHERE
    try:
        alternatives = terms(spec.affinity)
    except ValueError as error:
        raise ValueError(f"PodSet {pod_set.name}: node affinity: {error}") from None
    return NodeSelection(labels=spec.node_selector, terms=alternatives, tolerations=spec.tolerations, apart=marks)


def anti_affinity_marks(workload: kube.Workload, pod_set: kube.PodSet) -> tuple[str, ...]:
    """Marks of which a node takes one pod each. Raises: ValueError for what cannot be read."""
    return tuple(sorted({*_ports(pod_set.template.spec), *_kept_apart(workload, pod_set)}))


def marked_pod_sets(workload: kube.Workload) -> dict[str, frozenset[str]]:
    """The PodSets by the marks of their pods; none where that cannot be read."""
    found: dict[str, frozenset[str]] = {}
    try:
        for each in workload.spec.pod_sets:
            for mark in anti_affinity_marks(workload, each):
                found[mark] = found.get(mark, frozenset()) | {each.name}
    except ValueError:
        return {}
    return found


def unsupported_constraints(workload: kube.Workload) -> tuple[str, ...]:
    """What kube-scheduler demands for its pods, and is not counted here. Raises: ValueError for what cannot be read."""
    found = {words: None for pod_set in workload.spec.pod_sets for words in _uncounted(workload, pod_set)}
    return tuple(found)


def _uncounted(workload: kube.Workload, pod_set: kube.PodSet) -> Iterator[str]:
    spec = pod_set.template.spec
    if spec.affinity and _required(spec.affinity.pod_affinity):
        yield "required pod affinity"
    if any(not _is_among_its_own(term, workload, pod_set) for term in _repelled(spec)):
        yield "required pod anti-affinity to others"
    if any(_is_strict(each) for each in spec.topology_spread_constraints):
        yield "topology spread"
    if any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes):
        yield "where volumes are"


def _ports(spec: kube.TemplateSpec) -> Iterator[str]:
    sidecars = [each for each in spec.init_containers if each.restart_policy == "Always"]
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            if port.host_port:
                yield f"port {port.protocol or 'TCP'}/{port.host_port}"


def _kept_apart(workload: kube.Workload, pod_set: kube.PodSet) -> Iterator[str]:
    for term in _repelled(pod_set.template.spec):
        if _is_among_its_own(term, workload, pod_set):
            selector = msgspec.json.encode(term.label_selector, order="deterministic").decode()
            yield f"apart {workload.metadata.namespace} {selector}"


def _repelled(spec: kube.TemplateSpec) -> tuple[_Term, ...]:
    return _required(spec.affinity.pod_anti_affinity) if spec.affinity else ()


def _required(rules: Any) -> tuple[_Term, ...]:
    try:
        return msgspec.convert(rules or {}, _Rules).required_during_scheduling_ignored_during_execution
    except msgspec.ValidationError as error:
        raise ValueError(f"pod affinity: {error}") from None


def _is_among_its_own(term: _Term, workload: kube.Workload, pod_set: kube.PodSet) -> bool:
    """Whether it chooses pods of this very PodSet, node by node."""
    namespace = workload.metadata.namespace
    is_here = namespace in term.namespaces if term.namespaces else term.namespace_selector is None
    if term.topology_key != HOST_LABEL or not is_here or term.mismatch_label_keys or term.label_selector is None:
        return False
    return selector_of(term.label_selector).matches(_labels(workload, pod_set))


def _labels(workload: kube.Workload, pod_set: kube.PodSet) -> Mapping[str, str]:
    """The labels that its pods will have."""
    owner = workload.metadata.controller_owner
    of_job = dict.fromkeys(_JOB_LABELS, owner.name) if owner is not None and owner.kind == "Job" else {}
    return {**of_job, PODSET_LABEL: pod_set.name, **pod_set.template.metadata.labels}


def _is_strict(constraint: Any) -> bool:
    return (
        not isinstance(constraint, Mapping) or constraint.get("whenUnsatisfiable", "DoNotSchedule") != "ScheduleAnyway"
    )


def unsupported_message(found: Iterable[str]) -> str:
    """`topology spread and where volumes are is not counted`; empty where everything is."""
    names = list(found)
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not counted" if names else ""
