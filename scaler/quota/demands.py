"""What does a Workload ask of a ClusterQueue's flavors: which may its pods use, and how much of each would they take?

All of this depends on specifications only, so it is found once for every shape of Workload and queue and kept, while
the quota that is left is another in every cycle.

Laws:

* A pod may use a flavor if it tolerates the flavor's taints and its node selector and required affinity match the
  flavor's labels. Only keys among *this flavor's* labels count: a demand for `zone` says nothing about a flavor without
  `zone`. An affinity term of which nothing is left matches everything, so the whole affinity then does.
* A queue that has quota for the virtual resource `pods` counts the pods.
* A resource for which the queue has no quota fits nowhere, unless none of it is asked for or Kueue is configured to
  ignore it.

Worked example: groups {cpu, memory} with flavor `default` and {nvidia.com/gpu} with flavors `a100` and `h100`, labelled
`gpu`; two pods with 1 CPU and 4 GPUs each and `gpu: h100` in the node selector. The demand has two steps: 8 GPUs of
a100 (refused) or of h100, and 2,000 of default/cpu.

What it is assigned is a value, too: an assignment fits, or fits after preemptions, or does not fit. Its shortfalls say
what every flavor lacked that was tried and was not enough: "4 more needed" is `lacking == 4`.

Source: Kueue, pkg/scheduler/flavorassigner/flavorassigner.go (assignFlavors, checkFlavorForPodSets, flavorSelector,
Assignment, PodSetAssignment, FlavorAssignmentMode).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from scaler.kube.objects.quantity import Requests
from scaler.kube.scheduling import NodeSelection, Taint, untolerated
from scaler.quota.model import (
    Flavor,
    FlavorResource,
    QuotaClusterQueue,
    QuotaPodSet,
    QuotaPodSetAssignment,
    QuotaResourceGroup,
    Usage,
)

PODS = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorOption:
    """One flavor of a resource group, as the pods of one PodSet would use it."""

    flavor: str
    refusal: str
    """Why these pods may not use it; empty where they may."""
    amounts: tuple[tuple[FlavorResource, int], ...]
    """What all the pods together would take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroupDemand:
    group: int
    options: tuple[FlavorOption, ...]
    undeclared: str = ""
    """The resource for which the queue has no quota; there are no options then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSetDemand:
    name: str
    count: int
    requests: Requests
    """What all pods request together, `pods` included where the queue counts them."""
    steps: tuple[ResourceGroupDemand, ...]
    """The steps in the order in which they are taken."""

    def scaled(self, count: int) -> "PodSetDemand":
        """The demand with another number of pods."""
        if count == self.count:
            return self
        requests = {resource: amount // self.count * count for resource, amount in self.requests.items()}

        def rescaled(option: FlavorOption) -> FlavorOption:
            return replace(option, amounts=tuple((key, requests[key.resource]) for key, _ in option.amounts))

        steps = tuple(replace(step, options=tuple(map(rescaled, step.options))) for step in self.steps)
        return replace(self, count=count, requests=requests, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaDemand:
    """What a Workload of one shape asks of one queue."""

    pod_sets: tuple[PodSetDemand, ...]
    given: tuple[QuotaPodSet, ...]

    @property
    def dispensable(self) -> int:
        """How many pods may be missing at most (partial admission)."""
        return sum(each.count - _least(each) for each in self.given)

    def reduced(self, missing: int) -> "QuotaDemand":
        """The demand with so many of its pods missing, taken evenly from those that may be.

        Source: Kueue, podset_reducer.go.
        """
        total = self.dispensable
        counts = [each.count - (each.count - _least(each)) * missing // total for each in self.given]
        scaled = tuple(each.scaled(count) for each, count in zip(self.pod_sets, counts, strict=True))
        return QuotaDemand(pod_sets=scaled, given=self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorOptions:
    flavors: Mapping[str, Flavor]
    ignore_undeclared: bool = False
    """`quotaCheckStrategy: IgnoreUndeclared`."""

    def demand(self, pod_sets: Sequence[QuotaPodSet], queue: QuotaClusterQueue, *, opaque: bool = False) -> QuotaDemand:
        """What the PodSets ask of the queue. Of an opaque Workload it is assumed that its topology finds a place."""
        demands = tuple(self._pod_set(each, queue, opaque=opaque) for each in pod_sets)
        return QuotaDemand(pod_sets=demands, given=tuple(pod_sets))

    def _pod_set(self, pods: QuotaPodSet, queue: QuotaClusterQueue, *, opaque: bool) -> PodSetDemand:
        requests = {resource: amount * pods.count for resource, amount in pods.requests.items()}
        if queue.group_of(PODS) is not None:
            requests[PODS] = pods.count
        steps: dict[int | str, ResourceGroupDemand] = {}
        for resource in sorted(requests, key=_place):
            group = queue.group_of(resource)
            if group is not None:
                index = queue.groups.index(group)
                if index not in steps:
                    options = self._options(pods.nodes, requests, group, opaque=opaque)
                    steps[index] = ResourceGroupDemand(group=index, options=options)
            elif requests[resource] and not self.ignore_undeclared:
                steps[resource] = ResourceGroupDemand(group=-1, options=(), undeclared=resource)
        return PodSetDemand(name=pods.name, count=pods.count, requests=requests, steps=tuple(steps.values()))

    def _options(
        self, nodes: NodeSelection, requests: Requests, group: QuotaResourceGroup, *, opaque: bool
    ) -> tuple[FlavorOption, ...]:
        wanted = [resource for resource in sorted(requests, key=_place) if resource in group.resources]
        return tuple(
            FlavorOption(
                flavor=name,
                refusal=refusal(name, self.flavors.get(name), nodes, opaque=opaque),
                amounts=tuple((FlavorResource(name, resource), requests[resource]) for resource in wanted),
            )
            for name in group.flavors
        )


def _least(pods: QuotaPodSet) -> int:
    return pods.count if pods.min_count is None else pods.min_count


def refusal(name: str, flavor: Flavor | None, nodes: NodeSelection, *, opaque: bool = False) -> str:
    """Why pods that demand such nodes may not use the flavor; empty where they may.

    An opaque Workload may ask for a topology; any other may not use flavors that are placed by one.
    """
    if flavor is None:
        return f"flavor {name} does not exist"
    if flavor.topology and not opaque:
        return f"flavor {name} is placed by topology"
    taint = untolerated(flavor.taints, (*nodes.tolerations, *flavor.tolerations))
    if taint is not None:
        return f"flavor {name} has the taint {_as_text(taint)}, which the pods do not tolerate"
    if not _restricted(nodes, flavor.node_labels).matches(flavor.node_labels):
        return f"flavor {name} does not match the pods' node selector or affinity"
    return ""


def _as_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _restricted(nodes: NodeSelection, labels: Mapping[str, str]) -> NodeSelection:
    """Selector and affinity as far as they are about these labels."""
    terms = tuple(tuple(one for one in term if one.key in labels) for term in nodes.terms)
    return NodeSelection(
        labels={key: value for key, value in nodes.labels.items() if key in labels},
        terms=terms,
    )


@lru_cache(maxsize=1024)
def _place(resource: str) -> tuple[int, str]:
    """The resource's place among others in Kueue: by FNV-1a hash. It decides which obstacle is found first."""
    value = 0xCBF29CE484222325
    for byte in resource.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value, resource


# ----------------------------------------------------------------------------------------------- what is assigned


class AssignmentMode(IntEnum):
    """What an assignment needs before the Workload can be admitted with it; of several PodSets the lowest counts."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED_FIT = 2
    """It fits once preemptions for others, asked for in the same cycle, are complete."""
    FIT = 3


class PendingReason(StrEnum):
    """Why a Workload waits: Kueue's reasons of the condition QuotaReserved=False.

    Assignments have the first three only.
    """

    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    WAITING_FOR_PREEMPTED_WORKLOADS = "WaitingForPreemptedWorkloads"
    PENDING_EVALUATION = "PendingEvaluation"
    MISCONFIGURED = "Misconfigured"


_SEVERITIES = {
    PendingReason.WAITING_FOR_QUOTA: 1,
    PendingReason.EXCEEDS_MAX_QUOTA: 2,
    PendingReason.NO_MATCHING_FLAVOR: 3,
}


def severity(obstacle: PendingReason | None) -> int:
    """How bad it is, as an obstacle of an assignment; that of none is 0."""
    return 0 if obstacle is None else _SEVERITIES[obstacle]


class Shortfall(NamedTuple):
    """What one flavor lacks for one PodSet."""

    pod_set: str
    flavor: str
    obstacle: PendingReason
    resource: str = ""
    wanted: int = 0
    """The amount wanted, with what PodSets before this one would take."""
    available: int = 0
    """What there is now; of what exceeds the quota, the most that there could ever be."""

    @property
    def lacking(self) -> int:
        """How much more is needed."""
        return max(0, self.wanted - self.available)


Tried = tuple[Mapping[int, int], ...]
"""The last flavor tried for every PodSet by resource group, where there are more; empty where all were tried."""

NOTHING_TRIED: Tried = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSetFlavors:
    """The flavors of one PodSet."""

    pods: PodSetDemand
    flavors: Mapping[str, str]
    """The flavors by resource."""
    contested: frozenset[FlavorResource]
    """The quota in which it fits only after preemptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The flavors that a Workload would get."""

    mode: AssignmentMode
    borrows: int
    """Height of the smallest subtree whose quota it would use; 0 where it stays within its queue's own."""
    usage: Usage
    choices: tuple[PodSetFlavors, ...]
    tried: Tried
    shortfalls: tuple[Shortfall, ...] = ()
    obstacle: PendingReason | None = None
    """Why it does not fit, where it does not."""

    @property
    def contested(self) -> frozenset[FlavorResource]:
        return frozenset[FlavorResource]().union(*(choice.contested for choice in self.choices))

    @property
    def claim(self) -> dict[FlavorResource, int]:
        """What has to be freed for it. Kueue does not count `pods` here."""
        return {key: amount for key, amount in self.usage.items() if amount and key.resource != PODS}

    @property
    def pod_sets(self) -> tuple[QuotaPodSetAssignment, ...]:
        """The assignments as the Workload's status will have them."""
        return tuple(
            QuotaPodSetAssignment(
                name=choice.pods.name,
                count=choice.pods.count,
                flavors=choice.flavors,
                usage={resource: choice.pods.requests[resource] for resource in choice.flavors},
            )
            for choice in self.choices
        )
