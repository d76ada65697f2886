"""What will nodes have free once all pods run that have quota? Pure.

A Workload takes its quota at once, and its nodes some seconds later: pods are created, scheduled and bound, or wait for
an AdmissionCheck. Where quota exceeds nodes, what is free of both now is promised already.

| of a Workload with quota for GPUs | counted as taking nodes                                                         |
|-----------------------------------|---------------------------------------------------------------------------------|
| none of its pods has a node       | all of its pods                                                                 |
| some have                         | so many pods with GPUs as are missing, those with the most GPUs first           |
| all have                          | nothing more                                                                    |

Of pods that fit nowhere, which wait for new nodes, nothing is counted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from scaler.placement.capacity import Capacity
from scaler.placement.fit import place_as_many
from scaler.placement.node_index import NodeDemand, demand_of
from scaler.quota.model import Flavor, QuotaPodSetAssignment, QuotaWorkload


def with_unplaced_pods(
    capacity: Capacity,
    holders: Iterable[QuotaWorkload],
    flavors: Mapping[str, Flavor],
    is_gpu: Callable[[str], bool],
) -> Capacity:
    """What is left of the capacity; `holders` are all Workloads with quota. The very same where all pods are placed."""
    for each in holders:
        demands = [*_missing(each, capacity, flavors, is_gpu)]
        if demands:
            capacity = capacity.after(place_as_many(demands, capacity))
    return capacity


def _missing(
    workload: QuotaWorkload, capacity: Capacity, flavors: Mapping[str, Flavor], is_gpu: Callable[[str], bool]
) -> Iterator[NodeDemand]:
    with_gpus = {each.name: _gpus(each, is_gpu) for each in workload.held.assignments if each.count > 0}
    bound = _bound(workload.key, capacity, is_gpu)
    missing = sum(each.count for each in workload.held.assignments if with_gpus.get(each.name)) - bound
    if missing <= 0:
        return
    pod_sets = {each.name: each for each in workload.pod_sets}
    for each in sorted(workload.held.assignments, key=lambda one: -with_gpus.get(one.name, 0)):
        count = each.count if not bound else min(each.count, missing) if with_gpus.get(each.name) else 0
        if count > 0 and each.name in pod_sets:
            missing -= count
            chosen = [flavors[name] for name in sorted(set(each.flavors.values())) if name in flavors]
            yield demand_of(pod_sets[each.name], chosen, count=count)


def _gpus(assignment: QuotaPodSetAssignment, is_gpu: Callable[[str], bool]) -> int:
    """GPUs of one of its pods."""
    return sum(amount for name, amount in assignment.usage.items() if is_gpu(name)) // assignment.count


def _bound(key: str, capacity: Capacity, is_gpu: Callable[[str], bool]) -> int:
    """Its pods with GPUs that have a node."""
    resources = capacity.index.resources
    held = capacity.allocations.of_workload.get(key, ())
    return sum(any(amount and is_gpu(resources[at]) for at, amount in each.amounts) for each in held)
