"""Small worlds in which a gang waits: queues, who holds quota, who of them is idle, and where everybody's pods are."""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from quota_builders import GPU, NAMESPACE, NOW, flavors, local_queue

from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeInfo
from scaler.quota.demands import FlavorOptions
from scaler.quota.model import Flavor, QuotaClusterQueue, QuotaCohort, QuotaWorkload
from scaler.quota.tree import build_trees
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.budget import BudgetCheck, BudgetExhausted, no_budgets
from scaler.reclaim.costs import Cost, CostWeights, cost_of
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import AntiAffinityNodes, Candidate, NoPlan, PlanningTree, PlanRequest, ReclaimPlan


def candidate(workload: QuotaWorkload, *, cost: int | None = None, **stake: Any) -> Candidate:
    """An idle holder of quota; `cost` in whole units, or what follows from the stake."""
    gpus = sum(amount for key, amount in workload.held.usage.items() if key.resource == GPU)
    given = {"worked": timedelta(hours=1), "idle": timedelta(hours=1), "priority": workload.priority} | stake
    found = cost_of(CostWeights(), gpus=gpus, **given)
    if cost is not None:
        found = Cost(total=1000 * cost, parts=(("gpus", 1000 * cost),), idle_divisor=1)
    return Candidate(
        workload=workload.key,
        name=f"{workload.namespace}/scale-{workload.name}",
        gpus=gpus,
        cost=found,
        cluster_queue=workload.held.cluster_queue,
        budgets=(workload.held.cluster_queue,),
    )


def forbids(words: str) -> BudgetExhausted | None:
    """What the budget `few` says; empty words where it has room."""
    return BudgetExhausted(budget="few", message=words, until=None) if words else None


def planning_tree(
    queues: Sequence[QuotaClusterQueue],
    workloads: Iterable[QuotaWorkload],
    *,
    cohorts: Iterable[QuotaCohort] = (),
    given_flavors: Mapping[str, Flavor] | None = None,
    fair_sharing: bool = False,
    capacity: Capacity | None = None,
    marked: AntiAffinityNodes | None = None,
    of: str = "a",
) -> PlanningTree:
    """The tree of queue `of`. LocalQueues are named like their ClusterQueues."""
    workloads = list(workloads)
    names = {name for queue in queues for group in queue.groups for name in group.flavors}
    locals_ = {queue.name: local_queue(queue.name) for queue in queues}
    trees = build_trees(queues, cohorts, [each for each in workloads if each.reservation])
    tree = next(each for each in trees if of in each.queues)
    pending: dict[str, list[QuotaWorkload]] = {}
    for each in workloads:
        if each.reservation is None and each.queue in tree.queues:
            pending.setdefault(each.queue, []).append(each)
    return PlanningTree(
        tree=tree,
        pending=pending,
        world=SchedulingContext(
            flavor_options=FlavorOptions(flavors=given_flavors or flavors(*sorted(names))),
            namespaces={NAMESPACE: {}},
            local_queue=lambda _, name: locals_.get(name),
        ),
        fair_sharing=fair_sharing,
        now=NOW,
        capacity=capacity,
        marked=marked or {},
    )


def request(
    gang: QuotaWorkload,
    queues: Sequence[QuotaClusterQueue],
    workloads: Iterable[QuotaWorkload] = (),
    idle: Iterable[Candidate | QuotaWorkload] = (),
    *,
    leaving: Iterable[str] = (),
    refuse: BudgetCheck = no_budgets,
    **fields: Any,
) -> PlanRequest:
    """Holders of quota may stand among `workloads` or, where they are idle at whatever cost, in `idle` alone."""
    given = list(idle)
    holders = [each for each in given if isinstance(each, QuotaWorkload)]
    return PlanRequest(
        gang=gang,
        planning_tree=planning_tree(queues, [gang, *workloads, *holders], of=gang.queue, **fields),
        candidates=tuple(candidate(each) if isinstance(each, QuotaWorkload) else each for each in given),
        leaving=frozenset(leaving),
        refuse=refuse,
    )


def planned(given: PlanRequest) -> ReclaimPlan:
    found = plan_reclaim(given)
    assert isinstance(found, ReclaimPlan), found
    return found


def refused(given: PlanRequest) -> NoPlan:
    found = plan_reclaim(given)
    assert isinstance(found, NoPlan), found
    return found


def names(plan: ReclaimPlan) -> set[str]:
    return {each.workload.removeprefix("team/") for each in plan.victims}


def reasons(plan: ReclaimPlan) -> list[str]:
    """Of its warnings."""
    return [each.reason for each in plan.cautions]


def nodes_with(
    gpus: Mapping[str, int],
    placements: Mapping[str, Mapping[QuotaWorkload, int]],
    *,
    terminating: Container[QuotaWorkload] = (),
) -> Capacity:
    """Nodes with so many GPUs, and how many GPUs each Workload holds on each in one pod."""
    nodes = [
        NodeInfo(name=name, labels={"flavor": "default"}, allocatable={GPU: count, "pods": 110})
        for name, count in gpus.items()
    ]
    pods = [
        BoundPod(
            pod=f"{each.key}-{name}",
            node=name,
            workload=each.key,
            requests={GPU: count},
            terminating=each in terminating,
        )
        for name, held in placements.items()
        for each, count in held.items()
    ]
    return capacity_of(nodes, pods)
