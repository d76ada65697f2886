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

Source: Kueue, pkg/scheduler/flavorassigner/flavorassigner.go (assignFlavors, checkFlavorForPodSets, flavorSelector).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scaler.core.nodes import NodeSelection, Taint, untolerated
from scaler.core.quota.amounts import FlavorResource, Requests
from scaler.core.quota.model import ClusterQueue, Flavor, PodSet, ResourceGroup

PODS = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One flavor of a resource group, as the pods of one PodSet would use it."""

    flavor: str
    refusal: str
    """Why these pods may not use it; empty where they may."""
    amounts: tuple[tuple[FlavorResource, int], ...]
    """What all the pods together would take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One resource group that the pods need, or one resource that the queue does not have."""

    group: int
    options: tuple[Option, ...]
    undeclared: str = ""
    """The resource for which the queue has no quota; there are no options then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSetDemand:
    name: str
    count: int
    requests: Requests
    """Of all pods together, `pods` included where the queue counts them."""
    steps: tuple[Step, ...]
    """In the order in which they are taken."""

    def scaled(self, count: int) -> "PodSetDemand":
        """The same with another number of pods."""
        if count == self.count:
            return self
        requests = {resource: amount // self.count * count for resource, amount in self.requests.items()}
        steps = tuple(replace(step, options=_with_amounts(step.options, requests)) for step in self.steps)
        return replace(self, count=count, requests=requests, steps=steps)


def _with_amounts(options: tuple[Option, ...], requests: Requests) -> tuple[Option, ...]:
    return tuple(
        replace(option, amounts=tuple((key, requests[key.resource]) for key, _ in option.amounts)) for option in options
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a Workload of one shape asks of one queue."""

    pod_sets: tuple[PodSetDemand, ...]
    given: tuple[PodSet, ...]

    @property
    def dispensable(self) -> int:
        """How many pods may be missing at most (partial admission)."""
        return sum(each.count - _least(each) for each in self.given)

    def reduced(self, missing: int) -> "Demand":
        """The demand with so many of its pods missing, taken evenly from those that may be.

        Source: Kueue, podset_reducer.go.
        """
        total = self.dispensable
        counts = [each.count - (each.count - _least(each)) * missing // total for each in self.given]
        scaled = tuple(each.scaled(count) for each, count in zip(self.pod_sets, counts, strict=True))
        return Demand(pod_sets=scaled, given=self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The flavors that there are, and how Kueue is configured to look at them."""

    flavors: Mapping[str, Flavor]
    ignore_undeclared: bool = False
    """`quotaCheckStrategy: IgnoreUndeclared`."""

    def demand(self, pod_sets: Sequence[PodSet], queue: ClusterQueue, *, opaque: bool = False) -> Demand:
        """What the PodSets ask of the queue. Of an opaque Workload it is assumed that its topology finds a place."""
        demands = tuple(self._pod_set(each, queue, opaque=opaque) for each in pod_sets)
        return Demand(pod_sets=demands, given=tuple(pod_sets))

    def _pod_set(self, pods: PodSet, queue: ClusterQueue, *, opaque: bool) -> PodSetDemand:
        requests = {resource: amount * pods.count for resource, amount in pods.requests.items()}
        if queue.group_of(PODS) is not None:
            requests[PODS] = pods.count
        steps: dict[int | str, Step] = {}
        for resource in sorted(requests, key=_place):
            group = queue.group_of(resource)
            if group is not None:
                index = queue.groups.index(group)
                if index not in steps:
                    options = self._options(pods.nodes, requests, group, opaque=opaque)
                    steps[index] = Step(group=index, options=options)
            elif requests[resource] and not self.ignore_undeclared:
                steps[resource] = Step(group=-1, options=(), undeclared=resource)
        return PodSetDemand(name=pods.name, count=pods.count, requests=requests, steps=tuple(steps.values()))

    def _options(
        self, nodes: NodeSelection, requests: Requests, group: ResourceGroup, *, opaque: bool
    ) -> tuple[Option, ...]:
        wanted = [resource for resource in sorted(requests, key=_place) if resource in group.resources]
        return tuple(
            Option(
                flavor=name,
                refusal=refusal(name, self.flavors.get(name), nodes, opaque=opaque),
                amounts=tuple((FlavorResource(name, resource), requests[resource]) for resource in wanted),
            )
            for name in group.flavors
        )


def _least(pods: PodSet) -> int:
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
    """Where Kueue keeps the resource among others: by FNV-1a hash. It decides which obstacle is found first."""
    value = 0xCBF29CE484222325
    for byte in resource.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value, resource
