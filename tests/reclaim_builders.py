"""Small worlds in which a gang waits: queues, who holds quota, who of them is idle, and where everybody's pods are."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from quota_builders import GPU, NAMESPACE, NOW, flavors, local_queue

from scaler.core.budgets import Exhausted
from scaler.core.costs import Cost, Stake, Weights, cost_of
from scaler.core.placement import Capacity, Node, Occupant, capacity_of
from scaler.core.quota.demands import Market
from scaler.core.quota.model import ClusterQueue, Cohort, Flavor, Workload
from scaler.core.quota.roster import World
from scaler.core.quota.tree import build_trees
from scaler.core.reclaim import Candidate, Request, Scene
from scaler.core.reclaim.values import Marked, Refusal, nothing_refused
from scaler.core.scopes import Member


def candidate(workload: Workload, *, cost: int | None = None, **stake: Any) -> Candidate:
    """An idle holder of quota; `cost` in whole units, or what follows from the stake."""
    gpus = sum(amount for key, amount in workload.held.usage.items() if key.resource == GPU)
    given = {"worked": timedelta(hours=1), "idle": timedelta(hours=1), "priority": workload.priority} | stake
    found = cost_of(Stake(gpus=gpus, **given), Weights())
    if cost is not None:
        found = Cost(total=1000 * cost, parts=(("gpus", 1000 * cost),), idle_divisor=1)
    return Candidate(
        workload=workload.key,
        name=f"{workload.namespace}/scale-{workload.name}",
        gpus=gpus,
        cost=found,
        member=Member(
            namespace=workload.namespace, name=f"scale-{workload.name}", cluster_queue=workload.held.cluster_queue
        ),
    )


def forbids(words: str) -> Exhausted | None:
    """What the budget `few` says; empty words where it has room."""
    return Exhausted(budget="few", message=words, until=None) if words else None


def scene(
    queues: Sequence[ClusterQueue],
    workloads: Iterable[Workload],
    *,
    cohorts: Iterable[Cohort] = (),
    given_flavors: Mapping[str, Flavor] | None = None,
    fair_sharing: bool = False,
    capacity: Capacity | None = None,
    marked: Marked | None = None,
    of: str = "a",
) -> Scene:
    """The tree of queue `of`. LocalQueues are named like their ClusterQueues."""
    workloads = list(workloads)
    names = {name for queue in queues for group in queue.groups for name in group.flavors}
    locals_ = {queue.name: local_queue(queue.name) for queue in queues}
    trees = build_trees(queues, cohorts, [each for each in workloads if each.reservation])
    tree = next(each for each in trees if of in each.queues)
    pending: dict[str, list[Workload]] = {}
    for each in workloads:
        if each.reservation is None and each.queue in tree.queues:
            pending.setdefault(each.queue, []).append(each)
    return Scene(
        tree=tree,
        pending=pending,
        world=World(
            market=Market(flavors=given_flavors or flavors(*sorted(names))),
            namespaces={NAMESPACE: {}},
            local_queue=lambda _, name: locals_.get(name),
        ),
        fair_sharing=fair_sharing,
        now=NOW,
        capacity=capacity,
        marked=marked or {},
    )


def request(
    gang: Workload,
    queues: Sequence[ClusterQueue],
    workloads: Iterable[Workload],
    idle: Iterable[Candidate] = (),
    *,
    leaving: Iterable[str] = (),
    refuse: Refusal = nothing_refused,
    **fields: Any,
) -> Request:
    return Request(
        gang=gang,
        scene=scene(queues, [gang, *workloads], of=gang.queue, **fields),
        candidates=tuple(idle),
        leaving=frozenset(leaving),
        refuse=refuse,
    )


def nodes_with(
    gpus: Mapping[str, int], seats: Mapping[str, Mapping[Workload, int]], flavor: str = "default"
) -> Capacity:
    """Nodes of a flavor with so many GPUs, and how many GPUs each Workload holds on each in one pod."""
    nodes = [
        Node(name=name, labels={"flavor": flavor}, allocatable={GPU: count, "pods": 110})
        for name, count in gpus.items()
    ]
    pods = [
        Occupant(pod=f"{each.key}-{name}", node=name, workload=each.key, requests={GPU: count})
        for name, held in seats.items()
        for each, count in held.items()
    ]
    return capacity_of(nodes, pods)
