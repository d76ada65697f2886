"""Everything that a search for the victims of one gang starts from, found once and on demand."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from scaler.placement.capacity import Capacity
from scaler.placement.node_index import NodeDemand
from scaler.placement.pod_slots import PodSlots
from scaler.quota.forecast import Forecast
from scaler.quota.model import QuotaWorkload, Reservation, Usage
from scaler.quota.tree import Tree
from scaler.reclaim.budget import BudgetExhausted
from scaler.reclaim.search.branch_and_bound import ask_about, cheapest
from scaler.reclaim.search.covers import SlotCosts, covers_of
from scaler.reclaim.search.problem import BudgetAnswers, Incumbent, Item, Problem, SearchLimits, SearchResult
from scaler.reclaim.search.requirements import (
    CohortRequirement,
    QuotaRequirement,
    Requirement,
    certainly_before,
    cohort_requirement,
)
from scaler.reclaim.search.shortfalls import (
    MissingAmount,
    MissingSlots,
    choices_of,
    items_of,
    missing_slots,
    quota_needs,
    slot_needs,
)
from scaler.reclaim.search.simulate import AdmissionSimulator, free_capacity
from scaler.reclaim.search.values import Candidate, PlanRequest, by_name

_FEW = 16
"""Candidates that are all tried for themselves where Kueue preempts, so that age makes a difference."""
_COVERS = 4
"""Covers that are asked about before anything is searched: mostly there is one for every combination of flavors."""
_BY_SUMS = SearchLimits(steps=2_000, questions=2_000, members=64)


class SearchState:
    def __init__(
        self,
        tree: Tree,
        held: Mapping[str, Reservation],
        requirements: Sequence[Requirement],
        capacity: Capacity | None = None,
        choices: Sequence[Sequence[NodeDemand]] = (),
    ) -> None:
        """`held` is what the candidates hold in the tree. One that may go in any case is counted as gone already.

        `choices` are the gang's pods with every combination of flavors; none where nodes decide nothing yet.
        """
        self._tree = tree.clone()
        self._held = held
        self._requirements = requirements
        self._slots = [PodSlots(each, capacity) for each in choices] if capacity is not None else []

    def remove_workload(self, key: str) -> None:
        if key in self._held:
            self._tree.queues[self._held[key].cluster_queue].remove(self._held[key].usage)
        for slots in self._slots:
            slots.remove_workload(key)

    def restore_workload(self, key: str) -> None:
        if key in self._held:
            self._tree.queues[self._held[key].cluster_queue].add(self._held[key].usage)
        for slots in self._slots:
            slots.restore_workload(key)

    @property
    def could_fit(self) -> bool:
        if not all(each.fits(self._tree) for each in self._requirements):
            return False
        return not self._slots or any(slots.could_fit for slots in self._slots)

    @property
    def missing(self) -> list[Mapping[str, int]]:
        return [each.missing(self._tree) for each in self._requirements]


class SearchContext:
    """One request, with all that is found on the way."""

    def __init__(self, request: PlanRequest) -> None:
        planning_tree = request.planning_tree
        self.forecast: Forecast = planning_tree.forecast(request.leaving)
        self.tree = self.forecast.start.tree
        """The tree without the Workloads that are being suspended anyway."""
        self.holders: Mapping[str, QuotaWorkload] = {
            key: each for queue in self.tree.queues.values() for key, each in queue.workloads.items()
        }
        candidates = _distinct(each for each in request.candidates if each.workload in self.holders)
        self.request = replace(request, candidates=candidates)
        self.by_key: Mapping[str, Candidate] = {each.workload: each for each in candidates}
        self.gang = request.gang
        self.queue = self.tree.queues[planning_tree.world.cluster_queue_of(request.gang)]
        self.count = QuotaRequirement.of(request.gang, self.queue, planning_tree.world.flavor_options)
        """The requirement of the gang alone."""
        self.simulator = AdmissionSimulator(self.request)

    @cached_property
    def uncounted(self) -> frozenset[str]:
        """Keys of the Workloads that may lose their quota in any case."""
        return self.forecast.preempted | self.forecast.ending

    @property
    def all_keys(self) -> frozenset[str]:
        return frozenset(self.by_key)

    @cached_property
    def budgets(self) -> BudgetAnswers:
        return BudgetAnswers({key: each.member for key, each in self.by_key.items()}, self.request.refuse)

    @cached_property
    def wanted(self) -> QuotaRequirement:
        """What the gang needs, and what those need that are certain to be before it."""
        planning_tree = self.request.planning_tree
        before = certainly_before(
            self.gang, planning_tree.before(self.gang), self.queue.spec.strategy, self.forecast.preempted
        )
        return QuotaRequirement.of(self.gang, self.queue, planning_tree.world.flavor_options, list(before))

    @cached_property
    def in_cohort(self) -> CohortRequirement:
        """What the cohort has to have for the gang and those of other queues that are certain to be before it."""
        planning_tree, forecast = self.request.planning_tree, self.forecast
        if planning_tree.fair_sharing or forecast.may_preempt or forecast.ending or not forecast.comes_to_rest:
            return CohortRequirement(queue=self.queue.name, needs={})
        return cohort_requirement(
            self.wanted,
            self.count,
            forecast.most_available,
            planning_tree.heads,
            lambda other: other.key not in self.request.leaving and planning_tree.is_before(other, self.gang),
            least_usage=self._least_usage,
            flavor_options=planning_tree.world.flavor_options,
        )

    @property
    def _least_usage(self) -> Usage:
        used = Counter(self.forecast.most_available.queues[self.queue.name].usage)
        for held in self.held.values():
            if held.cluster_queue == self.queue.name:
                used.subtract(held.usage)
        return used

    @cached_property
    def nodes(self) -> Capacity | None:
        """The most that nodes may have free without a plan, as `forecast.most_available` is it of quota."""
        capacity = free_capacity(self.request)
        return capacity.without(self.uncounted) if capacity is not None else None

    @cached_property
    def choices(self) -> list[list[NodeDemand]]:
        """The gang's pods with every combination of flavors; none where nodes are not known."""
        if self.nodes is None:
            return []
        return choices_of(self.gang, self.queue, self.request.planning_tree.world.flavor_options)

    @cached_property
    def choices_with_earlier(self) -> list[list[NodeDemand]]:
        """The choices with the pods of those of `in_cohort` that are just like the gang.

        Wherever the gang fits, each of them fits alone, and its pods are placed beside the gang's.
        """
        alike = sum(each.pod_sets == self.gang.pod_sets for each in self.in_cohort.earlier)
        if not alike or any(each.min_count is not None for each in self.gang.pod_sets):
            return self.choices
        return [[replace(each, count=each.count * (1 + alike)) for each in demands] for demands in self.choices]

    @cached_property
    def quota_needs(self) -> list[MissingAmount]:
        return quota_needs(self.wanted, self.forecast.most_available, self.held)

    @cached_property
    def needs(self) -> list[MissingAmount]:
        """What is missing of quota and, as far as it can be counted candidate by candidate, of slots."""
        return self.amounts_missing + slot_needs(self.missing_slots)

    @cached_property
    def amounts_missing(self) -> list[MissingAmount]:
        """How much quota is missing, of the gang's queue and of its cohort."""
        in_cohort = quota_needs(self.in_cohort, self.forecast.most_available, self.held)
        own = [each for each in self.quota_needs if not any(each.is_within(other) for other in in_cohort)]
        return own + in_cohort

    @cached_property
    def missing_slots(self) -> list[list[MissingSlots]]:
        """The missing slots by combination of flavors."""
        return missing_slots(self.choices_with_earlier, self.nodes, self.by_key) if self.nodes is not None else []

    @cached_property
    def costs(self) -> Mapping[str, int]:
        return {key: each.cost.total for key, each in self.by_key.items()}

    @cached_property
    def slot_costs(self) -> list[list[SlotCosts]]:
        return [[SlotCosts(each, self.costs) for each in shapes] for shapes in self.missing_slots]

    @cached_property
    def held(self) -> Mapping[str, Reservation]:
        return {key: self.holders[key].held for key in self.by_key if key not in self.uncounted}

    @cached_property
    def equivalence(self) -> Mapping[str, Hashable]:
        """What is equal for candidates that can replace each other in every set of victims, by key of the Workload.

        Those that hold the same quota of the same queue on the same nodes, and that budgets do not tell apart. Where
        Kueue preempts, age makes a difference too: which Workload it takes first depends on which are left.
        """
        if self.forecast.may_preempt and len(self.by_key) <= _FEW:
            return {key: key for key in self.by_key}
        return {key: self._equivalence_of(each) for key, each in self.by_key.items()}

    @property
    def is_equivalence_certain(self) -> bool:
        """Whether no candidates count as equivalent that differ in age, as they do among many where Kueue preempts."""
        return not self.forecast.may_preempt or len(set(self.equivalence.values())) == len(self.by_key)

    def _equivalence_of(self, candidate: Candidate) -> Hashable:
        key, holder = candidate.workload, self.holders[candidate.workload]
        if key in self.uncounted:
            return key  # it may wait again, at a place of its own
        placements = self.nodes.held_by_workload(key) if self.nodes is not None else {}
        return (
            holder.held.cluster_queue,
            tuple(sorted(holder.held.usage.items())),
            holder.priority,
            self.request.planning_tree.world.cluster_queue_of(holder),
            tuple((node, tuple(sorted(amounts.items()))) for node, amounts in sorted(placements.items())),
            tuple(pods.nodes.apart for pods in holder.pod_sets),
            candidate.budgets,
        )

    @cached_property
    def items(self) -> list[Item]:
        return items_of(self.by_key.values(), self.needs, self.equivalence)

    @property
    def state(self) -> Callable[[], SearchState]:
        """Makes what there is with all candidates in place. It does not know the context: whoever keeps it would keep
        that, and all that was simulated."""
        requirements = (self.wanted, self.in_cohort)
        most = self.forecast.most_available
        return partial(SearchState, most, self.held, requirements, self.nodes, self.choices_with_earlier)

    @cached_property
    def problem(self) -> Problem:
        """The problem of all searches of this context. Each leaves it as it was."""
        return Problem(self.state, self.by_key, self.simulator)

    def cheapest(
        self, *, is_bounded: bool = True, without: str = "", limits: SearchLimits | None = None
    ) -> SearchResult:
        """The cheapest set of candidates that does, or does without one of them; where it is not bounded, whatever
        budgets say."""
        self.problem.budgets = self.budgets if is_bounded else None
        covers = covers_of(self.amounts_missing, self.slot_costs, self.costs, without)
        incumbent = Incumbent(problem=self.problem, limits=limits or self.request.limits, floor=covers.floor)
        ask_about([self._set_of(cover.keys) for cover in covers.found[:_COVERS]], incumbent)
        if incumbent.is_proven:
            return incumbent.result(is_exact=True)
        found = self._searched(incumbent, without)
        is_certain = incumbent.is_proven or (self.is_equivalence_certain and self.simulator.are_foreseen)
        return found if is_certain else replace(found, is_exact=False)

    def _set_of(self, keys: Iterable[str]) -> list[Item]:
        """The keys as items for questions about this very set, where gains and equivalents do not matter."""
        return [Item(key=key, cost=self.costs[key], gains=(), equivalence=key) for key in sorted(keys)]

    def _searched(self, incumbent: Incumbent, without: str) -> SearchResult:
        left_out = [each for each in self.items if each.key == without]
        for each in left_out:
            self.problem.exclude(each)
        try:
            if not self.problem.could_fit():
                return SearchResult(keys=None, cost=0, is_exact=True)
            items = [each for each in self.items if each.key != without]
            return cheapest(items, tuple(need.amount for need in self.needs), incumbent)
        finally:
            for each in left_out:
                self.problem.readmit(each)

    def cheapest_by_sums(self) -> frozenset[str] | None:
        """The cheapest set by the quota of the gang's own queue, whatever nodes, budgets and other queues say."""
        problem = Problem(lambda: SearchState(self.forecast.most_available, self.held, (self.wanted,)), self.by_key)
        covers = covers_of(self.quota_needs, (), self.costs)
        incumbent = Incumbent(problem=problem, limits=_BY_SUMS, floor=covers.floor)
        ask_about([self._set_of(cover.keys) for cover in covers.found], incumbent)
        if incumbent.is_proven:
            return incumbent.best
        items = items_of(self.by_key.values(), self.quota_needs, self.equivalence)
        return cheapest(items, tuple(need.amount for need in self.quota_needs), incumbent).keys

    def victims(self, keys: Collection[str]) -> tuple[Candidate, ...]:
        return by_name(self.by_key[key] for key in keys)

    def refusal(self, keys: Collection[str]) -> BudgetExhausted | None:
        return self.request.refuse([each.member for each in self.victims(keys)]) if keys else None


def _distinct(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates in a stable order, each Workload once: of two ScalableWorkloads that name it, the cheaper one."""
    found: dict[str, Candidate] = {}
    for each in sorted(candidates, key=lambda each: (each.workload, each.cost.total, each.name)):
        found.setdefault(each.workload, each)
    return tuple(found.values())
