"""Which idle workloads to suspend so that a gang that has its quota fits on nodes: the least costly set, or none.

Our AdmissionCheck is Pending, as not all of the gang's pods fit on nodes. Its quota is reserved: only nodes count, and
the idle workloads on them may be of any ClusterQueue.

Laws:

* Sufficient: with the victims' pods gone the AdmissionCheck becomes Ready for the whole gang, after all that reserved
  quota earlier (`WhatIf`).
* Necessary: no victim can be left out.
* Whole or nothing. Only where nodes may be provisioned for the rest, and no set of candidates is enough, as many of its
  pods as possible fit, and more than would without the plan: then nodes are requested for the rest only.
* No remote copy for which nothing may be suspended starts before it on what is freed.
* Idempotent; only candidates are suspended; budgets hold; what is terminating anyway is counted as gone.

Worked example: a gang of three pods of 4 GPUs; node a has 4 free, and x (2, cost 3) and y (2, cost 3) hold the rest; z
(8, cost 9) holds node b. One pod fits. With z gone all three do, for 9; with x and y two do. Were z busy, none would
be suspended; or, with provisioning, x and y, so that nodes are requested for one pod and not for two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scaler.placement.capacity import Capacity, PodPlacement
from scaler.placement.fit import Placement, missing_pods
from scaler.placement.node_index import NodeDemand
from scaler.placement.pod_slots import PodSlots
from scaler.placement.requests import Blocked, Fits, Insufficient, PlacementResult, ReservationQueue
from scaler.placement.reservations import WhatIf, is_placed
from scaler.placement.shortage import Misfit, Shortage
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.budget import BudgetCheck, BudgetExhausted, no_budgets
from scaler.reclaim.search.branch_and_bound import ask_about, cheapest
from scaler.reclaim.search.covers import SlotCosts, covers_of
from scaler.reclaim.search.problem import DEFAULT_LIMITS, BudgetAnswers, Incumbent, Problem, SearchLimits, SearchResult
from scaler.reclaim.search.quota_problem import plan_id
from scaler.reclaim.search.shortfalls import items_of, missing_slots, slot_needs
from scaler.reclaim.search.values import (
    NOT_FOUND,
    Candidate,
    Necessity,
    NoPlan,
    NoPlanReason,
    PlanWarning,
    ReclaimPlan,
    by_name,
)
from scaler.targets.target_state import Seeks

_PLACED = 5_000
"""Gangs that are placed, in all the answers for one plan. Each answer places all that reserved quota earlier: on two
thousand nodes some 10 ms for the first gang in line, and 200 ms for the thousandth."""
_FEWEST = 100
"""Gangs that an answer counts for at least."""


@dataclass(frozen=True, kw_only=True)
class NodePlanRequest:
    gang: QuotaWorkload
    """The gang with its reservation."""
    check: str
    """Name of the AdmissionCheck that is Pending."""
    queue: ReservationQueue
    """All Workloads that need nodes; the gang waits in it."""
    may_provision: bool = False
    candidates: Sequence[Candidate] = ()
    leaving: frozenset[str] = frozenset()
    """Keys of Workloads whose pods terminate anyway, or are about to."""
    copies: frozenset[str] = frozenset()
    """Keys of remote copies for which nothing may be suspended."""
    refuse: BudgetCheck = no_budgets
    limits: SearchLimits = DEFAULT_LIMITS

    @cached_property
    def what_if(self) -> WhatIf:
        return WhatIf(self.queue, self.gang.key)


def plan_nodes(request: NodePlanRequest) -> ReclaimPlan | NoPlan:
    problem = NodeProblem(request)
    if problem.is_placed(frozenset()):
        message = "it fits on nodes, or will once current suspensions and evictions have ended"
        return problem.no_plan(NoPlanReason.FITS_ALREADY, message)
    whole = _Goal(problem)
    found = problem.cheapest(whole)
    if found.keys is not None:
        return problem.plan(found, whole)
    part = _plan_for_part(problem) if request.may_provision else None
    return part or problem.refused(is_exact=found.is_exact)


def lacks_nodes(request: NodePlanRequest) -> bool:
    """Whether the gang lacks nodes with all leaving Workloads gone, and none are requested."""
    return not request.may_provision and isinstance(request.what_if.result(request.leaving), Insufficient)


def revalidate_nodes(request: NodePlanRequest) -> str:
    """Why the candidates, which are the victims of a plan, are not to be suspended any more; empty where they are.
    Budgets are not asked again."""
    problem = NodeProblem(request)
    everything = problem.all_keys
    if problem.is_placed(frozenset()):
        return "the gang fits without suspending any workload"
    goal = _Goal(problem)
    if not goal.accept(everything):
        if not request.may_provision:
            return f"the gang would lack nodes: {problem.result(everything).message}"
        pods = problem.pods(everything)
        goal = _Goal(problem, pods=pods)
        if pods <= problem.pods(frozenset()) or not goal.accept(everything):
            return f"no more of its pods would fit on nodes: {problem.result(everything).message}"
    needless = [each.name for each in request.candidates if goal.accept(everything - {each.workload})]
    return f"the gang does as well without {needless[0]}" if needless else ""


# ---------------------------------------------------------------------------------------------------------- the problem


class NodeProblem:
    """One request, with all that is found on the way."""

    def __init__(self, request: NodePlanRequest) -> None:
        self.request = request
        self.what_if = request.what_if
        self.demands: Sequence[NodeDemand] = self.what_if.request.demands
        self.wanted = sum(each.count for each in self.demands)
        self.capacity: Capacity = self.what_if.left.without(request.leaving)
        """The most that is left for the gang."""
        holders = [each for each in request.candidates if self.capacity.held_by_workload(each.workload)]
        dearest_first = sorted(holders, key=lambda each: (each.cost.total, each.name), reverse=True)
        self.candidates: Mapping[str, Candidate] = {each.workload: each for each in dearest_first}
        """The candidates with pods on nodes, by key of their Workload; of two for one Workload the cheaper one."""
        self._results: dict[frozenset[str], PlacementResult] = {}
        self._placed: dict[frozenset[str], tuple[PodPlacement, ...]] = {}

    @property
    def all_keys(self) -> frozenset[str]:
        return frozenset(self.candidates)

    @property
    def are_spent(self) -> bool:
        return (len(self._results) + len(self._placed)) * max(self.what_if.turns, _FEWEST) >= _PLACED

    def result(self, keys: frozenset[str]) -> PlacementResult:
        """What the AdmissionCheck would find with these suspended."""
        if keys not in self._results:
            self._results[keys] = self.what_if.result(keys | self.request.leaving)
        return self._results[keys]

    def is_placed(self, keys: frozenset[str]) -> bool:
        return is_placed(self.result(keys))

    def copies_served(self, keys: frozenset[str]) -> frozenset[str]:
        """Remote copies that would start on what these free, before the gang."""
        copies, leaving = self.request.copies, self.request.leaving
        if not copies or not keys:
            return frozenset()
        return copies & (self.what_if.placed_first(keys | leaving) - self.what_if.placed_first(leaving))

    def placed(self, keys: frozenset[str]) -> tuple[PodPlacement, ...]:
        """The places of as many of its pods as possible with these suspended."""
        if keys not in self._placed:
            self._placed[keys] = self.what_if.most(keys | self.request.leaving)
        return self._placed[keys]

    def pods(self, keys: frozenset[str]) -> int:
        return sum(each.pods for each in self.placed(keys))

    # ------------------------------------------------------------------------------------------------------ the search

    @cached_property
    def budgets(self) -> BudgetAnswers:
        members = {key: each.member for key, each in self.candidates.items()}
        return BudgetAnswers(members, self.request.refuse)

    def cheapest(self, goal: "_Goal", *, is_bounded: bool = True) -> SearchResult:
        """The cheapest set that is enough; where it is not bounded, whatever budgets say."""
        missing = missing_slots([goal.demands], self.capacity, self.candidates)
        needs = slot_needs(missing)
        classes = {key: (self.capacity.gain(key), each.budgets) for key, each in self.candidates.items()}
        items = items_of(self.candidates.values(), needs, classes)
        budgets = self.budgets if is_bounded else None
        problem = Problem(lambda: PodSlots(goal.demands, self.capacity), self.candidates, goal, budgets)
        if not problem.could_fit():
            return SearchResult(keys=None, cost=0, is_exact=True)
        costs = {key: each.cost.total for key, each in self.candidates.items()}
        covers = covers_of((), [[SlotCosts(each, costs) for each in shapes] for shapes in missing], costs)
        incumbent = Incumbent(problem=problem, limits=self.request.limits, floor=covers.floor)
        ask_about([[item for item in items if item.key in cover.keys] for cover in covers.found], incumbent)
        if incumbent.is_proven:
            return incumbent.result(is_exact=True)
        return cheapest(items, tuple(need.amount for need in needs), incumbent)

    # ---------------------------------------------------------------------------------------------------- the outcome

    def plan(self, found: SearchResult, goal: "_Goal") -> ReclaimPlan:
        gang, keys = self.request.gang, found.keys or frozenset()
        victims = by_name(self.candidates[key] for key in keys)
        placements, missing = goal.outcome(keys)
        return ReclaimPlan(
            id=plan_id(f"{gang.uid}/{Seeks.NODES}", [each.name for each in victims]),
            gang=gang.key,
            gang_uid=gang.uid,
            cluster_queue=gang.held.cluster_queue,
            victims=victims,
            cost=found.cost,
            placement=Placement(placements=tuple(sorted(placements, key=lambda each: (each.pod_set, each.node)))),
            is_exact=found.is_exact,
            cautions=tuple(_cautions(missing)),
            necessities=tuple(_necessity(goal, keys, each) for each in victims),
            seeks=Seeks.NODES,
            check=self.request.check,
            missing=missing,
        )

    def no_plan(self, why: NoPlanReason, message: str, *, budget: str = "", is_exact: bool = True) -> NoPlan:
        return NoPlan(gang=self.request.gang.key, why=why, message=message, budget=budget, is_exact=is_exact)

    def refused(self, *, is_exact: bool) -> NoPlan:
        now = self.result(frozenset())
        if isinstance(now, Insufficient) and isinstance(now.because, Misfit) and now.because.never:
            return self.no_plan(NoPlanReason.NEVER_FITS, now.message)
        refusal = self._refusal() if self.budgets.have_refused else None
        if refusal is not None:
            return self.no_plan(NoPlanReason.BUDGET_EXHAUSTED, refusal.words, budget=refusal.budget, is_exact=is_exact)
        if not self.candidates:
            return self.no_plan(NoPlanReason.NOT_ENOUGH_IDLE, f"{now.message}; no idle workload is on nodes")
        if copies := self.copies_served(self.all_keys):
            message = f"what is freed would go to {min(copies)} first, a remote copy that may start on another cluster"
            return self.no_plan(NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, message, is_exact=is_exact)
        if self.is_placed(self.all_keys):
            return self.no_plan(NoPlanReason.NOT_FOUND, NOT_FOUND, is_exact=False)
        why, message = _explained(self.result(self.all_keys))
        return self.no_plan(why, f"{now.message}; with every idle workload suspended: {message}", is_exact=is_exact)

    def _refusal(self) -> BudgetExhausted | None:
        """The budget that forbids the set which would be enough; None where none would, or none is forbidden."""
        keys = self.cheapest(_Goal(self), is_bounded=False).keys
        return self.request.refuse([self.candidates[key].member for key in sorted(keys)]) if keys is not None else None


def _explained(result: PlacementResult) -> tuple[NoPlanReason, str]:
    because = result.because if isinstance(result, Insufficient) else None
    is_short = isinstance(because, Misfit) and because.why is Shortage.NOT_ENOUGH_FREE
    return (NoPlanReason.NOT_ENOUGH_IDLE if is_short else NoPlanReason.PLACEMENT_IMPOSSIBLE), result.message


def _cautions(missing: Mapping[str, int]) -> list[PlanWarning]:
    lacking = ", ".join(f"{count} of PodSet {name}" for name, count in sorted(missing.items()))
    message = f"nodes are requested for the pods that do not fit: {lacking}"
    return [PlanWarning(reason="NodesMissing", message=message)] if lacking else []


# ---------------------------------------------------------------------------------------------------- what is enough


class _Goal:
    """The AdmissionCheck becomes Ready for the whole gang; or, with `pods`, so many of its pods fit.

    These are the first of those that would with all candidates suspended, and not the whole gang: where that fits and
    the AdmissionCheck stays Pending even so, nodes are not what is missing.
    """

    def __init__(self, problem: "NodeProblem", *, pods: int | None = None) -> None:
        self._problem = problem
        self._pods = pods
        self.demands: Sequence[NodeDemand] = problem.demands
        if pods is not None:
            self.demands = _first(problem.demands, problem.placed(problem.all_keys), pods)

    @property
    def are_spent(self) -> bool:
        return self._problem.are_spent

    def accept(self, keys: frozenset[str]) -> bool:
        problem = self._problem
        if problem.copies_served(keys):
            return False
        if self._pods is None:
            return problem.is_placed(keys)
        has_room = problem.what_if.has_room(self.demands, keys | problem.request.leaving)
        return has_room and self._pods <= problem.pods(keys) < problem.wanted

    def explain(self, keys: frozenset[str]) -> tuple[NoPlanReason, str]:
        if self._pods is None:
            return _explained(self._problem.result(keys))
        message = f"{self._problem.pods(keys)} pods would fit on nodes, not {self._pods}"
        return NoPlanReason.NOT_ENOUGH_IDLE, message

    def outcome(self, keys: frozenset[str]) -> tuple[tuple[PodPlacement, ...], Mapping[str, int]]:
        if self._pods is None:
            result = self._problem.result(keys)
            return (result.placements if isinstance(result, Fits | Blocked) else ()), {}
        placed = self._problem.placed(keys)
        return placed, missing_pods(self._problem.demands, placed)


def _necessity(goal: _Goal, keys: frozenset[str], victim: Candidate) -> Necessity:
    why, message = goal.explain(keys - {victim.workload})
    return Necessity(victim=victim.name, why=why, message=f"without it {message}")


def _first(demands: Sequence[NodeDemand], placed: Sequence[PodPlacement], pods: int) -> list[NodeDemand]:
    missing = missing_pods(demands, placed)
    found = []
    for each in demands:
        count = min(each.count - missing.get(each.pod_set, 0), pods)
        pods -= count
        found.append(replace(each, count=count))
    return found


def _plan_for_part(problem: NodeProblem) -> ReclaimPlan | None:
    """The cheapest plan by which as many of its pods as possible fit; None where no more fit than do now.

    What is enough for a larger number of pods is enough for a smaller one. So the number is found by halving, where
    budgets or the size of plans forbid the largest.
    """
    least, most = problem.pods(frozenset()) + 1, min(problem.pods(problem.all_keys), problem.wanted - 1)
    best: tuple[SearchResult, _Goal] | None = None
    pods = most
    while least <= pods:
        goal = _Goal(problem, pods=pods)
        found = problem.cheapest(goal)
        if found.keys is not None:
            best, least = (found, goal), pods + 1
        else:
            most = pods - 1
        pods = (least + most) // 2 if least < most else most
    return problem.plan(*best) if best is not None else None
