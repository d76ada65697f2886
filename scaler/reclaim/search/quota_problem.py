"""Which idle workloads to suspend so that a waiting gang is admitted: the least costly set, or none and why.

Laws:

* Sufficient: with the victims gone, Kueue's cycles admit the gang and do not preempt it again, and its pods fit.
* Necessary: no victim can be left out.
* Whole or nothing: there is no plan for a part of a gang. With partial admission the fewest pods are the whole.
* Idempotent: the same request gives the same plan, with the same id.
* Only candidates are suspended; no other Workload is preempted because of the plan; budgets hold.
* What is free already counts, and so does what is being suspended or evicted.

Worked example, the one that greedy counting gets wrong: 4 GPUs are free, idle are a (4), b (8) and c (1), and the gang
needs 8. Counting idle GPUs alone finds too little in a, and takes b for the whole; here a makes up what is missing.

How: what is missing at least is counted from the sums. `branch_and_bound` searches the cheapest set that could be
enough by the sums and by the nodes; for each such set the cycles are simulated (`simulate.py`). Exact for what occurs;
where the search ends before everything was looked at, the plan says that it is not exact, or the answer is NotFound.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from scaler.quota.forecast import without
from scaler.quota.model import QueueingStrategy
from scaler.quota.node import QueueNode
from scaler.reclaim.search.context import SearchContext
from scaler.reclaim.search.explain import (
    alternatives_to,
    alternatives_tried,
    necessities_of,
    why_never,
    why_no_victims,
    why_not_planned,
)
from scaler.reclaim.search.problem import SearchResult
from scaler.reclaim.search.simulate import AdmissionSimulator, SimulatedAdmission, named
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, PlanRequest, PlanWarning, ReclaimPlan


def plan_reclaim(request: PlanRequest) -> ReclaimPlan | NoPlan:
    """The plan for the gang, or why there is none."""
    ruled_out = why_not_planned(request)
    if ruled_out is not None:
        return ruled_out
    context = SearchContext(request)
    needless = _why_needless(context)
    if needless is not None:
        return _no_plan(context, *needless)
    found = context.cheapest()
    if found.keys is not None:
        return _planned(context, found.keys, found)
    unbounded = context.cheapest(is_bounded=False).keys if context.budgets.have_refused else None
    refusal = context.refusal(unbounded) if unbounded is not None else None
    if refusal is not None:
        return _no_plan(
            context, NoPlanReason.BUDGET_EXHAUSTED, refusal.words, budget=refusal.budget, is_exact=found.is_exact
        )
    return _no_plan(context, *why_no_victims(context), is_exact=found.is_exact)


def _why_needless(context: SearchContext) -> tuple[NoPlanReason, str] | None:
    """Why no plan is needed, or none need be searched."""
    if not context.forecast.comes_to_rest:
        cycles = len(context.forecast.run.cycles)
        message = f"Kueue would not reach a stable state within {cycles} cycles as things stand"
        return NoPlanReason.UNFORESEEABLE, message
    if context.simulator.accept(frozenset()):
        message = "it fits into free quota, or will once current suspensions and evictions have ended"
        return NoPlanReason.FITS_ALREADY, message
    if not context.count.could_ever_fit(context.tree):
        return NoPlanReason.NEVER_FITS, why_never(context)
    return None


def _no_plan(
    context: SearchContext, why: NoPlanReason, message: str, *, budget: str = "", is_exact: bool = True
) -> NoPlan:
    tried = alternatives_tried(context)
    return NoPlan(gang=context.gang.key, why=why, message=message, budget=budget, alternatives=tried, is_exact=is_exact)


def _planned(context: SearchContext, keys: frozenset[str], found: SearchResult) -> ReclaimPlan:
    simulated = context.simulator.of(keys)
    victims = context.victims(keys)
    before, after = context.queue, without(context.tree, keys).queues[context.queue.name]
    held = simulated.gang.held if simulated.gang is not None else None
    takes = dict(held.usage) if held is not None else {}
    return ReclaimPlan(
        id=plan_id(context.gang.uid, [each.name for each in victims]),
        gang=context.gang.key,
        gang_uid=context.gang.uid,
        cluster_queue=context.queue.name,
        victims=victims,
        cost=found.cost,
        free_before={key: before.available(key) for key in sorted(takes)},
        free_after={key: after.available(key) for key in sorted(takes)},
        takes=takes,
        assignments=held.assignments if held is not None else (),
        placement=simulated.placement,
        others=simulated.others,
        is_exact=found.is_exact,
        necessities=necessities_of(context, keys),
        alternatives=alternatives_to(context, keys, is_exact=found.is_exact),
        cautions=tuple(_cautions(context, simulated)),
    )


def _cautions(context: SearchContext, simulated: SimulatedAdmission) -> Iterator[PlanWarning]:
    """What may go wrong with the plan all the same."""
    if context.request.planning_tree.capacity is None:
        yield PlanWarning(
            reason="NodeCapacityUnknown", message="planned by quota only; whether pods fit on nodes was not checked"
        )
    if simulated.others:
        yield PlanWarning(reason="OtherWorkloadsFirst", message=f"{named(simulated.others)} are admitted before it")
    for pods, assigned in zip(
        context.gang.pod_sets, simulated.gang.held.assignments if simulated.gang else (), strict=False
    ):
        if assigned.count < pods.count:
            message = f"it starts with {assigned.count} of {pods.count} pods of PodSet {pods.name}"
            yield PlanWarning(reason="PartialAdmission", message=message)
    others = sorted(queue.name for queue in context.tree.scheduling if _may_be_admitted_first(context, queue))
    if others:
        queues = f"ClusterQueue{'s' if len(others) > 1 else ''} {named(others)}"
        message = f"freed quota is not reserved: a Workload created meanwhile in {queues} may be admitted first"
        yield PlanWarning(reason=str(NoPlanReason.UNPROTECTED), message=message)


def _may_be_admitted_first(context: SearchContext, queue: QueueNode) -> bool:
    """Whether a new Workload of the queue could be admitted into what is freed."""
    if queue.name == context.queue.name and queue.spec.strategy is QueueingStrategy.STRICT_FIFO:
        return False
    return any(queue.potential(key) > 0 for key in context.count.keys)


def plan_id(gang_uid: str, victims: Sequence[str]) -> str:
    """Ten characters that are equal for equal victims of the same gang, whichever replica plans."""
    return sha256("\n".join((gang_uid, *sorted(victims))).encode()).hexdigest()[:10]


def revalidate(request: PlanRequest, victims: Sequence[Candidate]) -> str:
    """Why these are not to be suspended any more; empty where they are.

    Budgets are not asked again: what was granted is spent already. A victim that is not needed any more is
    reason enough: the next plan does without it.
    """
    ruled_out = why_not_planned(request)
    if ruled_out is not None:
        return f"{ruled_out.why}: {ruled_out.message}"
    simulator = AdmissionSimulator(request)
    if simulator.accept(frozenset()):
        return "the gang fits without suspending any workload"
    holding = {key for queue in request.planning_tree.tree.queues.values() for key in queue.workloads} - request.leaving
    names = {each.workload: each.name for each in victims if each.workload in holding}
    keys = frozenset(names)
    outcome = simulator.of(keys)
    if outcome.why is not None:
        return f"{outcome.why}: {outcome.message}"
    needless = [names[key] for key in sorted(keys) if simulator.of(keys - {key}).why is None]
    return f"the gang fits without {needless[0]}, too" if needless else ""
