"""Random small worlds in which a gang waits, and what it means there that a set of victims is accepted.

`accepted` is written from the definition and not from the planner: it simulates anew, with everything that Kueue does,
and looks at the end. `best` asks it about every set of candidates.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, combinations
from typing import Any

from hypothesis import strategies as st
from quota_builders import GPU, NOW, cluster_queue, cohort, holding, pod_set, preempting, quota, selecting, workload
from reclaim_builders import candidate, forbids, planning_tree

from scaler.kube.objects.quantity import CPU
from scaler.kube.scheduling import ANYWHERE, NodeSelection
from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.fit import fits
from scaler.placement.node_index import NodeDemand, NodeInfo, demand_of
from scaler.quota.model import (
    FlavorResource,
    Fungibility,
    FungibilityPolicy,
    PreemptionPolicy,
    QueueingStrategy,
    Quota,
    QuotaClusterQueue,
    QuotaPodSet,
    QuotaResourceGroup,
    QuotaWorkload,
    StopPolicy,
)
from scaler.quota.simulation import Simulation, SimulationEnd
from scaler.reclaim.budget import BudgetedWorkload, BudgetExhausted
from scaler.reclaim.search.problem import SearchLimits
from scaler.reclaim.search.values import AntiAffinityNodes, Candidate, PlanningTree, PlanRequest

PLENTY = SearchLimits(steps=200_000, questions=5_000, members=64)
"""More than any world here can ask for, so that every answer is exact."""

MARK = "port TCP/29500"
"""Of pods of which a node takes one."""
_POLICIES = (PreemptionPolicy.NEVER, PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY)
_WITHIN = (
    PreemptionPolicy.NEVER,
    PreemptionPolicy.NEVER,
    PreemptionPolicy.LOWER_PRIORITY,
    PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
)

# ----------------------------------------------------------------------------------------------------------- the worlds


@st.composite
def requests(draw: st.DrawFn, most_candidates: int = 6) -> PlanRequest:
    """A gang with its world, of which any part may be missing. Quotas are mostly about as large as what is held."""
    flavors = ("x", "y")[: draw(st.integers(1, 2))]
    resources = draw(st.sampled_from(((GPU,), (GPU,), (GPU, CPU))))
    above = draw(st.sampled_from(({}, {"a": "co"}, {"a": "co"}, {"a": "left", "b": "right"})))
    names = "abcd"[: draw(st.integers(1, 4))] if above else "a"
    holders = _holders(draw, names, flavors, resources, most=most_candidates + 2)
    others = [_gang(draw, f"w{i}", names, flavors, resources) for i in range(draw(st.integers(0, 4)))]
    gang = _gang(draw, "gang", names, flavors, resources)
    if draw(st.integers(0, 3)) == 3:
        others.append(replace(gang, name="alike", uid="uid-alike", queued_at=_at(draw)))
    keys = tuple(FlavorResource(flavor, resource) for flavor in flavors for resource in resources)
    queues = [
        cluster_queue(
            name,
            cohort=(parent := above.get("ab"[i % 2], above.get("a", ""))),
            groups=(QuotaResourceGroup(resources=frozenset(resources), flavors=flavors),),
            quotas=_quotas(draw, _used(name, holders), keys, _OFFSETS, _LIMITS if parent else {}),
            **_policies(draw),
        )
        for i, name in enumerate(names)
    ]
    cohorts = [
        cohort("root", gpus=_own_quota(draw, flavors)),
        *(cohort(name, parent="root", gpus=_own_quota(draw, flavors, limited=True)) for name in ("left", "right")),
    ]
    idle = [each for each in holders if draw(st.sampled_from((True, True, True, False)))][:most_candidates]
    fields = {"cohorts": cohorts if len(above) > 1 else (), "fair_sharing": draw(st.booleans())}
    return replace(
        _request(draw, gang, queues, [*holders, *others], idle, **fields),
        leaving=frozenset(each.key for each in holders if draw(st.integers(0, 15)) == 15),
        refuse=draw(budgets(names)),
    )


@st.composite
def earlier_elsewhere(draw: st.DrawFn) -> PlanRequest:
    """A gang with Workloads like it, or smaller, that wait in other queues of its cohort; nothing is preempted. The
    quota of queues is mostly just what is held there."""
    resources = draw(st.sampled_from(((GPU,), (GPU,), (GPU,), (GPU, CPU))))
    names = "abcd"[: draw(st.integers(2, 4))]
    holders = _holders(draw, names, ("x",), resources, most=7)
    others = [_gang(draw, "w", names, ("x",), resources) for _ in range(draw(st.integers(0, 1)))]
    gang = replace(_gang(draw, "gang", names, ("x",), resources), queued_at=NOW)
    for i in range(draw(st.integers(1, 3))):
        alike = replace(gang, name=f"alike{i}", uid=f"alike{i}", queue=draw(st.sampled_from(names)))
        others.append(replace(alike, queued_at=_at(draw), pod_sets=_fewer(draw, gang.pod_sets)))
    keys = tuple(FlavorResource("x", resource) for resource in resources)
    queues = [
        cluster_queue(
            name,
            cohort=draw(st.sampled_from(("co",) * 9 + ("left",))),
            groups=(QuotaResourceGroup(resources=frozenset(resources), flavors=("x",)),),
            quotas=_quotas(draw, _used(name, holders), keys, (0, 0, 0, 0, 1, -1), _FEW_LIMITS),
            strategy=draw(_STRATEGIES),
        )
        for name in names
    ]
    cohorts = [cohort("co", parent=draw(st.sampled_from(("", "root")))), cohort("left", parent="root")]
    idle = [each for each in holders if draw(st.booleans())]
    fair = draw(st.integers(0, 7)) == 7
    return _request(draw, gang, queues, [*holders, *others], idle, cohorts=cohorts, fair_sharing=fair)


def _request(
    draw: st.DrawFn,
    gang: QuotaWorkload,
    queues: list[QuotaClusterQueue],
    workloads: list[QuotaWorkload],
    idle: list[QuotaWorkload],
    **fields: Any,
) -> PlanRequest:
    holders = [each for each in workloads if each.reservation]
    nodes = _capacity(draw, holders, queues[0].groups[0])
    marked = _marked(holders, nodes) if nodes is not None else {}
    tree = planning_tree(queues, [gang, *workloads], capacity=nodes, marked=marked, of=gang.queue, **fields)
    candidates = tuple(candidate(each, cost=draw(st.integers(1, 5))) for each in idle)
    return PlanRequest(gang=gang, planning_tree=tree, candidates=candidates, limits=PLENTY)


def _fewer(draw: st.DrawFn, pod_sets: tuple[QuotaPodSet, ...]) -> tuple[QuotaPodSet, ...]:
    """The same or, sometimes, with fewer pods."""
    if draw(st.integers(0, 2)):
        return pod_sets
    return tuple(replace(each, count=draw(st.integers(1, each.count))) for each in pod_sets)


def _own_quota(draw: st.DrawFn, flavors: tuple[str, ...], *, limited: bool = False) -> dict[str, Quota] | None:
    """A cohort's; mostly none."""
    nominal = draw(st.sampled_from((None, None, 0, 2)))
    if nominal is None:
        return None
    limits = {each: draw(st.sampled_from((None, 0, 2))) for each in ("borrowing", "lending")} if limited else {}
    return dict.fromkeys(flavors, quota(nominal, **limits))


_OFFSETS = (0, 0, 0, 1, 2, 4, -1, -3)
_LIMITS = dict.fromkeys(("borrowing", "lending"), (None, None, 0, 2, 4))
_FEW_LIMITS = {"borrowing": (None, None, None, 4, 6), "lending": (None,) * 9 + (2,)}
_STRATEGIES = st.sampled_from((*QueueingStrategy, QueueingStrategy.BEST_EFFORT_FIFO))


def _used(queue: str, holders: list[QuotaWorkload]) -> Counter[FlavorResource]:
    return sum((Counter(each.held.usage) for each in holders if each.held.cluster_queue == queue), Counter())


def _quotas(
    draw: st.DrawFn,
    used: Counter[FlavorResource],
    keys: tuple[FlavorResource, ...],
    offsets: tuple[int, ...],
    limits: Mapping[str, tuple[int | None, ...]],
) -> dict[FlavorResource, Quota]:
    """What is used, more or less."""
    return {
        key: quota(
            max(0, used[key] + draw(st.sampled_from(offsets))),
            **{name: draw(st.sampled_from(each)) for name, each in limits.items()},
        )
        for key in keys
    }


def _policies(draw: st.DrawFn) -> dict[str, Any]:
    within, reclaim = draw(st.sampled_from(_WITHIN)), draw(st.sampled_from(_POLICIES))
    borrowing = PreemptionPolicy.NEVER
    if reclaim is not PreemptionPolicy.NEVER:
        borrowing = draw(st.sampled_from((PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY)))
    return {
        "stop_policy": draw(st.sampled_from((StopPolicy.NONE,) * 15 + (StopPolicy.HOLD,))),
        "strategy": draw(_STRATEGIES),
        "preemption": preempting(within=within, reclaim=reclaim, borrowing=borrowing),
        "fungibility": Fungibility(
            when_can_borrow=draw(st.sampled_from(FungibilityPolicy)),
            when_can_preempt=draw(st.sampled_from(FungibilityPolicy)),
        ),
    }


def _holders(
    draw: st.DrawFn, names: str, flavors: tuple[str, ...], resources: tuple[str, ...], *, most: int
) -> list[QuotaWorkload]:
    return [
        holding(
            f"h{i}",
            queue=draw(st.sampled_from(names)),
            flavor=draw(st.sampled_from(flavors)),
            pod_sets=(
                pod_set(requests={each: draw(st.integers(1, 4)) for each in resources}, nodes=_marks(draw, ANYWHERE)),
            ),
            priority=draw(st.integers(-1, 1)),
            evicted=draw(st.integers(0, 15)) == 15,
            queued_at=_at(draw),
            reserved_at=_at(draw),
        )
        for i in range(draw(st.integers(1, most)))
    ]


def _gang(
    draw: st.DrawFn, name: str, names: str, flavors: tuple[str, ...], resources: tuple[str, ...]
) -> QuotaWorkload:
    pod_sets = []
    for i in range(draw(st.sampled_from((1, 1, 2)))):
        requests = {each: draw(st.integers(1, 3)) for each in resources}
        least = draw(st.sampled_from((None, None, None, 1)))
        nodes = _marks(draw, draw(_selections(flavors)))
        count = draw(st.integers(1, 3))
        pod_sets.append(pod_set(f"p{i}", pods=count, requests=requests, nodes=nodes, min_count=least))
    return workload(
        name,
        queue=draw(st.sampled_from(names)),
        priority=draw(st.integers(-1, 2)),
        pod_sets=tuple(pod_sets),
        may_queue=name == "gang" or draw(st.integers(0, 15)) < 15,
        queued_at=_at(draw),
    )


def _at(draw: st.DrawFn) -> datetime:
    """Some time today: who is older than whom matters, also where two are of one age."""
    return NOW - timedelta(minutes=draw(st.integers(0, 9)))


def _selections(flavors: tuple[str, ...]) -> st.SearchStrategy[NodeSelection]:
    return st.sampled_from((ANYWHERE, ANYWHERE, *(selecting(flavor=each) for each in flavors)))


def _marks(draw: st.DrawFn, nodes: NodeSelection) -> NodeSelection:
    """Mostly none."""
    return replace(nodes, apart=draw(st.sampled_from(((), (), (), (MARK,)))))


def _marked(holders: Collection[QuotaWorkload], capacity: Capacity) -> AntiAffinityNodes:
    """Where the pods are that have the mark."""
    return {MARK: {each.key: _nodes_of(each, capacity) for each in holders if MARK in each.pod_sets[0].nodes.apart}}


def _nodes_of(holder: QuotaWorkload, capacity: Capacity) -> frozenset[str]:
    return frozenset(capacity.index.nodes[node].name for node in capacity.held_by_workload(holder.key))


def _capacity(draw: st.DrawFn, holders: list[QuotaWorkload], group: QuotaResourceGroup) -> Capacity | None:
    """Nodes of every flavor, with the holders' pods anywhere on them; None where nodes are not known."""
    if draw(st.booleans()):
        return None
    pods: list[BoundPod] = []
    used = {f"{each}{i}": Counter[str]() for each in group.flavors for i in range(draw(st.integers(1, 3)))}
    for each in holders:
        (flavor,) = {key.flavor for key in each.held.usage}
        node = draw(st.sampled_from([name for name in used if name.startswith(flavor)]))
        used[node].update(each.pod_sets[0].requests)
        pods.append(BoundPod(pod=each.key, node=node, workload=each.key, requests=each.pod_sets[0].requests))
    nodes = [
        NodeInfo(
            name=name,
            labels={"flavor": name[0]},
            allocatable={"pods": 110}
            | {each: max(0, amounts[each] + draw(_EXTRA)) for each in sorted(group.resources)},
        )
        for name, amounts in used.items()
    ]
    return capacity_of(nodes, pods)


_EXTRA = st.sampled_from((0, 0, 1, 2, -1))


@st.composite
def budgets(draw: st.DrawFn, names: Iterable[str]) -> Any:
    """At most so many in all and from one queue; or no limit."""
    most = draw(st.sampled_from((99, 99, 2, 1)))
    spared = draw(st.sampled_from(("", "", *names)))

    def refuse(members: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        if len(members) > most:
            return forbids(f"at most {most}")
        return forbids(f"not from {spared}" if any(spared in each.budgets for each in members) else "")

    return refuse


# ------------------------------------------------------------------------------------------------------ the definition


class Judge:
    """What is accepted for one request, by definition."""

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self._members = {each.workload: each.member for each in request.candidates}
        self._unavoidable = self._preempted(self._run(frozenset())[1])

    def accepts(self, keys: frozenset[str]) -> bool:
        """Whether the gang gets in and stays, on nodes with free capacity, at no other gang's cost."""
        simulation, cycles, is_over = self._run(keys)
        gang = self.request.gang.key
        if not is_over or simulation.holder(gang) is None or gang in self._preempted(cycles):
            return False
        if keys and not self._preempted(cycles) <= self._unavoidable:
            return False
        return self._has_room(keys) and not (keys and self.request.refuse([self._members[key] for key in keys]))

    def _run(self, keys: frozenset[str]) -> tuple[Simulation, Any, bool]:
        simulation = simulation_of(self.request.planning_tree)
        simulation.deactivate(sorted(self.request.leaving | keys))
        run = simulation.run()
        return simulation, run.cycles, run.ending is not SimulationEnd.CAPPED

    def _preempted(self, cycles: Any) -> set[str]:
        return {each.workload.key for cycle in cycles for each in cycle.preempted}

    def _has_room(self, keys: frozenset[str]) -> bool:
        """Whether nodes have room for the gang at the moment when it gets in, beside all that hold quota then."""
        capacity, gang = self.request.planning_tree.capacity, self.request.gang.key
        if capacity is None:
            return True
        simulation = simulation_of(self.request.planning_tree)
        before = {each.key for each in simulation.holders}
        simulation.deactivate(sorted(self.request.leaving | keys))
        came: set[str] = set()

        def is_in(cycle: Any) -> bool:
            came.update(each.key for each in cycle.admitted)
            return any(each.key == gang for each in cycle.admitted)

        simulation.run(until=is_in)
        now = {each.key: each for each in simulation.holders}
        left = capacity.without(before - (now.keys() - came))
        stay = [now[key] for key in now if key not in came]
        kept = [_nodes_of(each, capacity) for each in stay if MARK in each.pod_sets[0].nodes.apart]
        kept += [nodes for key, nodes in self._marked if key not in before]
        closed = frozenset[str]().union(*kept)
        own = list(self._demands(now[gang], closed))
        others = [list(self._demands(now[key], closed)) for key in now if key in came and key != gang]
        return fits([*own, *chain.from_iterable(others)], left) or fits(
            [*own, *(pods for each in others for pods in _as_many_as_fit(each, left))], left
        )

    @property
    def _marked(self) -> Iterable[tuple[str, frozenset[str]]]:
        """All that have the mark, whatever their tree, and the nodes where they have pods."""
        return self.request.planning_tree.marked.get(MARK, {}).items()

    def _demands(self, workload: QuotaWorkload, closed: frozenset[str]) -> Iterator[NodeDemand]:
        """`closed` are nodes that take no pod with the mark."""
        flavors = self.request.planning_tree.world.flavor_options.flavors
        for pods, assigned in zip(workload.pod_sets, workload.held.assignments, strict=True):
            chosen = [flavors[name] for name in sorted(set(assigned.flavors.values()))]
            nodes = replace(pods.nodes, closed=closed) if pods.nodes.apart else pods.nodes
            named = replace(pods, name=f"{workload.key}/{pods.name}", nodes=nodes)
            yield demand_of(named, chosen, count=assigned.count)

    def sets(self) -> Iterator[tuple[Candidate, ...]]:
        present = {key for queue in self.request.planning_tree.tree.queues.values() for key in queue.workloads}
        there = [each for each in self.request.candidates if each.workload in present - self.request.leaving]
        for size in range(1, len(there) + 1):
            yield from combinations(there, size)

    def least_cost(self) -> int | None:
        """Of all accepted sets; None where there is none."""
        return min((cost(each) for each in self.sets() if self.accepts(keys_of(each))), default=None)


def _as_many_as_fit(demands: list[NodeDemand], capacity: Capacity) -> list[NodeDemand]:
    """The pods of a Workload that would run: those that do not fit wait, and take nothing from anybody."""
    if fits(demands, capacity):
        return demands
    fewer = [[replace(each, count=count) for count in range(each.count, 0, -1)] for each in demands]
    found = [next((each for each in counts if fits([each], capacity)), None) for counts in fewer]
    return [each for each in found if each is not None]


def simulation_of(given: PlanningTree) -> Simulation:
    return Simulation(given.tree, given.pending, given.world, now=given.now, fair_sharing=given.fair_sharing)


def cost(candidates: Collection[Candidate]) -> int:
    return sum(each.cost.total for each in candidates)


def keys_of(candidates: Collection[Candidate]) -> frozenset[str]:
    return frozenset(each.workload for each in candidates)
