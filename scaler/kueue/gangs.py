"""A Workload as the gate sees it: how it stands with one of our checks, and what its pods need of the nodes. Pure.

Laws:

* What counts is what was admitted: so many pods of each PodSet on such flavors, less those that are done.
* Pods demand what their template says, what their flavors add, and what admission checks give them beside it.
* What cannot be read is an error and never nothing: a gang of which nobody knows what it needs is not let go.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scaler.core import nodes as core
from scaler.core.gate_values import Gang
from scaler.core.nodes import NodeSelection
from scaler.core.placement import Demand, bearing, on_flavors
from scaler.core.provisioning import PodSetUpdate
from scaler.core.quota.model import Flavor
from scaler.kube import kueue_objects as kube
from scaler.kube.nodes import tolerations
from scaler.kube.objects import condition, is_true
from scaler.kueue.admission_checks import entry_of, yielded_of
from scaler.kueue.pod_neighbours import uncounted, words_of
from scaler.kueue.pod_nodes import selection_of
from scaler.kueue.pod_requests import pod_requests
from scaler.kueue.provisioning_requests import CONSUME_ANNOTATION, Flavors, assignments_of, counts_of, reserved_at
from scaler.kueue.quota_queues import flavor_of

_PREEMPTOR = re.compile(r"\(UID: ([0-9A-Za-z-]{1,64})[,)]", re.ASCII)
_SENT_BACK = frozenset({"Retry", "Rejected"})
_ANY_TAINT = core.Toleration(operator="Exists")


def gang_of(workload: kube.Workload, check: str) -> Gang:
    """How the Workload stands with the check."""
    conditions, checks = workload.status.conditions, workload.status.admission_checks
    entry = next((each for each in checks if each.name == check), None)
    return Gang(
        key="/".join(workload.metadata.key),
        uid=workload.metadata.uid,
        reserved_at=reserved_at(workload),
        admitted=is_true(conditions, "Admitted"),
        evicted=is_true(conditions, "Evicted"),
        active=workload.spec.active and workload.metadata.deletion_timestamp is None,
        finished=is_true(conditions, "Finished"),
        is_sent_back=any(each.state in _SENT_BACK for each in checks if each.name != check),
        entry=entry_of(entry) if entry is not None else None,
        yielded=yielded_of(workload),
    )


def preemptor_of(workload: kube.Workload) -> str:
    """The uid of the Workload for which Kueue has preempted this one; empty where it has not.

    Source: Kueue, pkg/scheduler/preemption: "Preempted to accommodate a workload (UID: …, JobUID: …) due to …".
    """
    evicted = condition(workload.status.conditions, "Evicted")
    if evicted is None or evicted.status != "True" or evicted.reason != "Preempted":
        return ""
    found = _PREEMPTOR.search(evicted.message)
    return found[1] if found else ""


# ------------------------------------------------------------------------------------------------------- what it needs


@dataclass(frozen=True, slots=True)
class Needs:
    """What a gang's pods need, all of them."""

    demands: tuple[Demand, ...]
    selected: frozenset[str]
    """Node labels that its pods or any of its flavors demand: nobody may tie pods to nodes by these."""
    note: str = ""
    """What of their demands is not counted, in words; empty where everything is."""

    @property
    def is_exclusive(self) -> bool:
        """Whether pods of it keep away from others, or from each other."""
        return any(each.nodes.apart for each in self.demands)

    def without(self, bound: Mapping[str, int]) -> tuple[Demand, ...]:
        """What is needed for the pods that are not on nodes yet, where so many of each PodSet are."""
        return tuple(
            replace(each, count=max(0, each.count - bound.get(each.pod_set, 0))) if each.pod_set in bound else each
            for each in self.demands
        )


def needs_of(workload: kube.Workload, flavors: Flavors) -> Needs:
    """What the pods of an admitted Workload need. Raises: ValueError for what cannot be read, or is not known."""
    counts = counts_of(workload)
    done = {each.name: each.count for each in workload.status.reclaimable_pods}
    assigned = _flavors_by_pod_set(workload, flavors)
    given = _given_by_checks(workload)
    demands = []
    for each in workload.spec.pod_sets:
        requests = _requests(each)
        nodes = on_flavors(selection_of(workload, each), assigned.get(each.name, ()))
        demands.append(
            Demand(
                pod_set=each.name,
                count=max(0, counts[each.name] - done.get(each.name, 0)),
                requests=requests,
                nodes=bearing(_with_updates(nodes, given.get(each.name, ())), requests),
            )
        )
    selected = {key for each in demands for key in each.nodes.labels}
    return Needs(demands=tuple(demands), selected=frozenset(selected), note=words_of(uncounted(workload)))


def _flavors_by_pod_set(workload: kube.Workload, flavors: Flavors) -> dict[str, list[Flavor]]:
    found: dict[str, list[Flavor]] = {}
    for assignment in assignments_of(workload):
        for name in dict.fromkeys(assignment.flavors.values()):
            flavor = flavors(name)
            if flavor is None:
                raise ValueError(f"ResourceFlavor {name}, which PodSet {assignment.name} was given, is not seen")
            found.setdefault(assignment.name, []).append(flavor_of(flavor))
    return found


def _requests(pod_set: kube.PodSet) -> Mapping[str, int]:
    try:
        return pod_requests(pod_set.template.spec)
    except ValueError as error:
        raise ValueError(f"PodSet {pod_set.name}: {error}") from None


# ------------------------------------------------------------------------------------------------ what checks give them


def _given_by_checks(workload: kube.Workload) -> dict[str, list[kube.PodSetUpdate]]:
    """What the checks that are Ready give to each PodSet. What is left over in one that is not counts for nothing."""
    found: dict[str, list[kube.PodSetUpdate]] = {}
    for check in workload.status.admission_checks:
        for update in check.pod_set_updates if check.state == "Ready" else ():
            found.setdefault(update.name, []).append(update)
    return found


def _with_updates(selection: NodeSelection, updates: Sequence[kube.PodSetUpdate]) -> NodeSelection:
    if not updates:
        return selection
    labels, borne = dict(selection.labels), list(selection.tolerations)
    for each in updates:
        labels |= each.node_selector
        borne += tolerations(each.tolerations)
        borne += [_ANY_TAINT] if CONSUME_ANNOTATION in each.annotations else []
    return replace(selection, labels=labels, tolerations=tuple(borne))


def on_booked_nodes(demands: Sequence[Demand], updates: Sequence[PodSetUpdate]) -> tuple[Demand, ...]:
    """What is needed of the nodes that a request has provisioned: with the labels that its pods will select.

    Taints are not looked at. The autoscaler has tried these pods on these nodes, and clouds let those through that
    consume a request (GKE taints the nodes of queued provisioning, and adds the toleration to pods by a webhook).
    """
    selected = {each.name: each.node_selector for each in updates}
    return tuple(
        replace(
            each,
            nodes=replace(
                each.nodes,
                labels={**selected[each.pod_set], **each.nodes.labels},
                tolerations=(*each.nodes.tolerations, _ANY_TAINT),
            ),
        )
        if each.pod_set in selected
        else each
        for each in demands
    )
