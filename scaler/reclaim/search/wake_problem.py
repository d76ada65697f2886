"""Would a suspended Workload find its quota and its nodes free, with nobody waiting for them? Pure.

| it stays suspended while …                                                                          |
|-----------------------------------------------------------------------------------------------------|
| its queue is stopped, or its scheduling cannot be foreseen                                          |
| a Workload of its quota tree waits, or is being evicted, and could use what it would take           |
| a Workload of any tree has quota for such GPUs, and not all of its pods are on nodes yet            |
| Kueue would not admit it whole into free quota, or would preempt for it                             |
| its pods do not fit on what the nodes have free now                                                 |

Laws:

* It takes nothing from a Workload that waits: not even what that cannot use yet, because other Workloads are before it,
  or because it needs more. So one gang that never fits keeps suspended what would use its flavors; the answer names it.
* Pods that are terminating hold their nodes until they are gone.
* What was woken a moment ago waits for quota, or is about to. So workloads come back one after the other.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from scaler.kube.objects.quantity import as_text
from scaler.placement.capacity import Allocations
from scaler.quota.forecast import Forecast
from scaler.quota.model import Flavor, FlavorResource, QuotaWorkload
from scaler.quota.node import QueueNode
from scaler.reclaim.search.quota_problem import why_not_planned
from scaler.reclaim.search.requirements import QuotaRequirement, usage_text
from scaler.reclaim.search.simulate import AdmissionSimulator
from scaler.reclaim.search.values import NoPlanReason, PlanningTree, PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplacedWorkload:
    """A Workload that has quota, or was promised some a moment ago, and not all of its pods on nodes."""

    key: str
    takes: Collection[FlavorResource]
    """Its quota for devices."""
    why: str


def why_suspended(
    workload: QuotaWorkload, planning_tree: PlanningTree, unplaced: Collection[UnplacedWorkload] = ()
) -> str:
    """Why it has to stay suspended, in words; empty where it may be woken.

    It is given as it would wait for quota if it was active, in a tree where it waits, with those that were woken a
    moment ago.
    """
    return next(_obstacles(workload, as_it_is(planning_tree), unplaced), "")


def _obstacles(
    workload: QuotaWorkload, planning_tree: PlanningTree, unplaced: Collection[UnplacedWorkload]
) -> Iterator[str]:
    request = PlanRequest(gang=workload, planning_tree=planning_tree)
    if (ruled_out := why_not_planned(request)) is not None:
        yield ruled_out.message
        return
    queue = planning_tree.tree.queues[planning_tree.world.cluster_queue_of(workload)]
    needs = _requirement(workload, queue, planning_tree)
    yield from _waiting(workload, needs, planning_tree)
    yield from _unplaced(unplaced, needs.keys, planning_tree.world.flavor_options.flavors)
    yield from _not_free(request, needs, queue)


def as_it_is(planning_tree: PlanningTree) -> PlanningTree:
    """The planning tree with the terminating pods on their nodes, which plans count as gone."""
    capacity = planning_tree.capacity
    if capacity is None:
        return planning_tree
    staying = Allocations(capacity.allocations.of_workload, [])
    return replace(planning_tree, capacity=replace(capacity, allocations=staying))


def _requirement(workload: QuotaWorkload, queue: QueueNode, planning_tree: PlanningTree) -> QuotaRequirement:
    return QuotaRequirement.of(workload, queue, planning_tree.world.flavor_options, is_whole=True)


def _waiting(workload: QuotaWorkload, needs: QuotaRequirement, planning_tree: PlanningTree) -> Iterator[str]:
    """The Workloads of the tree that wait, or will when they are evicted, and could use something of it."""
    tree, seen = planning_tree.tree, set[object]()
    for name, line in planning_tree.pending.items():
        queue = tree.queues[name]
        for each in line if queue.spec.schedules else ():
            if each.key == workload.key or each.invalid_because or (name, each.shape) in seen:
                continue
            seen.add((name, each.shape))
            shared = needs.keys & _requirement(each, queue, planning_tree).keys
            if each.opaque_because or shared:
                yield f"Workload {each.key} waits for {_named(shared)}"
    for queue in tree.queues.values():
        for each in queue.workloads.values():
            if not each.evicted:
                continue
            # An evicted Workload may come back to another flavor than it had.
            shared = needs.keys & (each.held.usage.keys() | _requirement(each, queue, planning_tree).keys)
            if each.opaque_because or shared:
                yield f"Workload {each.key} is being evicted, and waits for {_named(shared)} again"


def _named(keys: Collection[FlavorResource]) -> str:
    return ", ".join(f"{each.resource} of {each.flavor}" for each in sorted(keys)) or "what cannot be foreseen"


def _unplaced(
    unplaced: Collection[UnplacedWorkload], keys: Collection[FlavorResource], flavors: Mapping[str, Flavor]
) -> Iterator[str]:
    for each in unplaced:
        if any(_may_share_nodes(one, other, flavors) for one in each.takes for other in keys):
            yield f"Workload {each.key} {each.why}"


def _may_share_nodes(one: FlavorResource, other: FlavorResource, flavors: Mapping[str, Flavor]) -> bool:
    """Whether both may be on the same nodes: those of a flavor without labels are any."""
    found = [flavors.get(each.flavor) for each in (one, other)]
    is_anywhere = any(each is None or not each.node_labels for each in found)
    return one.resource == other.resource and (one.flavor == other.flavor or is_anywhere)


def _not_free(request: PlanRequest, needs: QuotaRequirement, queue: QueueNode) -> Iterator[str]:
    tree, gang = request.planning_tree.tree, request.gang
    if missing := needs.missing(tree):
        lacks = ", ".join(f"{as_text(name, needs.total[name])} {name}" for name in sorted(missing))
        free = usage_text({key: queue.available(key) for key in sorted(needs.keys) if key.resource in missing})
        yield f"it needs {lacks}; free for ClusterQueue {queue.name}: {free or 'nothing'}"
    found = AdmissionSimulator(request).of(frozenset())
    if found.why is not None:
        prefix = "" if found.why is NoPlanReason.PLACEMENT_IMPOSSIBLE else "it would not get its quota: "
        yield f"{prefix}{found.message}"
    yield from _preempted(request.planning_tree.forecast(frozenset()))
    for assigned, wanted in zip(found.gang.held.assignments if found.gang else (), gang.pod_sets, strict=False):
        if assigned.count < wanted.count:
            yield f"quota is free for {assigned.count} of {wanted.count} pods of PodSet {wanted.name}"


def _preempted(forecast: Forecast) -> Iterator[str]:
    for cycle in forecast.run.cycles:
        for each in cycle.preempted:
            yield f"Kueue would preempt {each.workload.key} for {each.by}"
