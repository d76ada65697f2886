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

No plan: first what rules out any plan (`why_not_planned`). Then, with no set of victims accepted and no budget to
blame, the first of these that holds even with all candidates suspended is the answer: too little quota; no room on the
nodes; those before the gang take it; what a simulation says.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from scaler.kube.objects.quantity import as_text
from scaler.placement.fit import Placement, place
from scaler.quota.forecast import without
from scaler.quota.model import FlavorResource, QueueingStrategy
from scaler.quota.node import QueueNode
from scaler.quota.tree import Tree
from scaler.reclaim.search.context import SearchContext, SearchState
from scaler.reclaim.search.problem import SearchLimits, SearchResult
from scaler.reclaim.search.requirements import usage_text
from scaler.reclaim.search.simulate import AdmissionSimulator, SimulatedAdmission, named
from scaler.reclaim.search.values import (
    NOT_FOUND,
    Alternative,
    Candidate,
    Necessity,
    NoPlan,
    NoPlanReason,
    PlanRequest,
    PlanWarning,
    ReclaimPlan,
    in_order,
)

_SHOWN = 5
_REPLACED = 3
"""Victims for which another set is looked for: the dearest ones."""
_HEADS = 3_000
_FEW = SearchLimits(steps=2_000, questions=4, members=64)


def plan_reclaim(request: PlanRequest, *, is_explained: bool = True) -> ReclaimPlan | NoPlan:
    """Explained, it says why each victim is needed and what else was tried; that may take as long as to find them."""
    ruled_out = why_not_planned(request)
    if ruled_out is not None:
        return ruled_out
    context = SearchContext(request)
    needless = _why_needless(context)
    if needless is not None:
        return _no_plan(context, *needless)
    found = context.cheapest()
    if found.keys is not None:
        return _planned(context, found.keys, found, is_explained=is_explained)
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


def _planned(context: SearchContext, keys: frozenset[str], found: SearchResult, *, is_explained: bool) -> ReclaimPlan:
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
        necessities=necessities_of(context, keys) if is_explained else (),
        alternatives=alternatives_to(context, keys, is_exact=found.is_exact) if is_explained else (),
        cautions=tuple(_cautions(context, simulated)),
    )


def _cautions(context: SearchContext, simulated: SimulatedAdmission) -> Iterator[PlanWarning]:
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


# ------------------------------------------------------------------------------------------------------ without a plan


def why_not_planned(request: PlanRequest) -> NoPlan | None:
    return next((NoPlan(gang=request.gang.key, why=why, message=text) for why, text in _obstacles(request)), None)


def _obstacles(request: PlanRequest) -> Iterator[tuple[NoPlanReason, str]]:
    gang, planning_tree = request.gang, request.planning_tree
    if gang.opaque_because:
        yield NoPlanReason.UNFORESEEABLE, f"cannot be foreseen: {gang.opaque_because}"
    if gang.reservation is not None:
        yield NoPlanReason.FITS_ALREADY, f"it holds quota in ClusterQueue {gang.reservation.cluster_queue} already"
    if not gang.may_queue:
        yield (
            NoPlanReason.UNFORESEEABLE,
            "it is not queued: its requeue backoff is running, or it was evicted and not requeued yet",
        )
    queue = planning_tree.tree.queues.get(planning_tree.world.cluster_queue_of(gang))
    if queue is None:
        yield NoPlanReason.QUEUE_STOPPED, f"LocalQueue {gang.queue} is stopped, or its ClusterQueue does not exist"
    elif not queue.spec.schedules:
        why = queue.spec.inactive_because or f"stopPolicy is {queue.spec.stop_policy}"
        yield NoPlanReason.QUEUE_STOPPED, f"ClusterQueue {queue.name} admits nothing: {why}"
    elif not planning_tree.world.admits_namespace(queue.spec, gang.namespace):
        yield NoPlanReason.QUEUE_STOPPED, f"ClusterQueue {queue.name} does not select namespace {gang.namespace}"
    elif all(each.key != gang.key for each in planning_tree.pending.get(queue.name, ())):
        yield NoPlanReason.UNFORESEEABLE, f"it does not wait in ClusterQueue {queue.name} any more"


def why_no_victims(context: SearchContext) -> tuple[NoPlanReason, str]:
    after = without(context.forecast.most_available, context.all_keys)
    if not context.count.fits(after):
        return NoPlanReason.NOT_ENOUGH_IDLE, _shortage(context)
    scattered = _why_no_slots(context)
    if scattered:
        return NoPlanReason.PLACEMENT_IMPOSSIBLE, scattered
    if not context.wanted.fits(after):
        return _queued_behind(context, after)
    simulated = context.simulator.of(context.all_keys)
    if simulated.why is None:
        return NoPlanReason.NOT_FOUND, NOT_FOUND
    return simulated.why, simulated.message


def why_never(context: SearchContext) -> str:
    """Why no flavor of the queue could hold the gang, were nothing used."""
    queue, count = context.queue, context.count
    if not count.is_possible:
        return (
            f"no flavor of ClusterQueue {queue.name} is open to the pods of {context.gang.key}: a resource that it has "
            "no quota for, a taint that they do not tolerate, or a node selector that no flavor matches"
        )
    most: dict[str, int] = {}
    for key in count.keys:
        most[key.resource] = most.get(key.resource, 0) + max(0, queue.potential(key))
    short = [resource for resource, amount in count.total.items() if amount > most.get(resource, 0)]
    shown = [
        f"{as_text(r, count.total[r])} {r} of at most {as_text(r, most.get(r, 0))}"
        for r in short or sorted(count.total)
    ]
    split = "" if short else ", and a PodSet takes each resource from one flavor"
    return f"it needs {', '.join(shown)} that ClusterQueue {queue.name} could ever get, borrowing included{split}"


def _why_no_slots(context: SearchContext) -> str:
    """Why it does not fit on nodes with all candidates suspended; empty where it does."""
    if context.nodes is None or not context.choices:
        return ""
    emptier = context.nodes.without(context.all_keys)
    found = [place(demands, emptier) for demands in context.choices]
    misfits = [each.message for each in found if not isinstance(each, Placement)]
    return misfits[0] if len(misfits) == len(found) else ""


def _queued_behind(context: SearchContext, after: Tree) -> tuple[NoPlanReason, str]:
    """It would fit alone, but not with those that are certain to be before it."""
    ahead = [each.key for each in context.request.planning_tree.before(context.gang)]
    needs = ", ".join(f"{as_text(r, amount)} {r}" for r, amount in sorted(context.wanted.total.items()))
    most = _words(_available(context, after))
    queue = context.queue.name
    who = f"Workloads {named(ahead)} are queued" if len(ahead) > 1 else f"Workload {named(ahead)} is queued"
    if context.queue.spec.strategy is QueueingStrategy.STRICT_FIFO:
        return NoPlanReason.HEAD_OF_LINE_BLOCKED, (
            f"ClusterQueue {queue} is StrictFIFO and {who} before the gang: together they need {needs}; "
            f"available with every idle workload suspended: {most}"
        )
    return NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, (
        f"equal Workloads are queued before it in ClusterQueue {queue}: together they need {needs}; "
        f"available with every idle workload suspended: {most}"
    )


def _shortage(context: SearchContext) -> str:
    short = frozenset(context.count.missing(context.tree)) or frozenset(context.count.total)
    now = _available(context, context.tree, short)
    most = _available(context, without(context.tree, context.all_keys), short)
    needs = ", ".join(f"{as_text(r, a)} {r}" for r, a in sorted(context.count.total.items()) if r in short)
    idle = f"with every idle workload suspended: {_words(most)}" if context.all_keys else "no workload is idle"
    return f"it needs {needs}; available to ClusterQueue {context.queue.name}: {_words(now)}; {idle}"


def _available(
    context: SearchContext, tree: Tree, resources: frozenset[str] = frozenset()
) -> dict[FlavorResource, int]:
    """What the gang's queue has of all that it might take; of these resources only, where any are named."""
    queue = tree.queues[context.queue.name]
    return {
        key: queue.available(key) for key in sorted(context.count.keys) if not resources or key.resource in resources
    }


def _words(amounts: Mapping[FlavorResource, int]) -> str:
    return usage_text(amounts) or "nothing"


# ----------------------------------------------------------------------------------------------------------- of a plan


def necessities_of(context: SearchContext, chosen: frozenset[str]) -> tuple[Necessity, ...]:
    state = context.state()
    for key in chosen:
        state.remove_workload(key)
    found = []
    for each in context.victims(chosen):
        state.restore_workload(each.workload)
        why, message = _why_needed(context, state, chosen - {each.workload})
        found.append(Necessity(victim=each.name, why=why, message=f"without it {message}"))
        state.remove_workload(each.workload)
    return tuple(found)


def _why_needed(context: SearchContext, state: SearchState, rest: frozenset[str]) -> tuple[NoPlanReason, str]:
    """Why the rest of the victims is not enough: by the counts, where these say so, or by simulation."""
    of_queue, in_cohort = (_amounts(each) for each in state.missing)
    if of_queue:
        return NoPlanReason.NOT_ENOUGH_IDLE, f"{of_queue} would be missing"
    if in_cohort:
        earlier = named(in_order(context.in_cohort.earlier))
        return NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, (
            f"what is freed would go to {earlier} first, and {in_cohort} would be missing"
        )
    simulated = context.simulator.of(rest)
    return simulated.why or NoPlanReason.FITS_ALREADY, simulated.message


def _amounts(missing: Mapping[str, int]) -> str:
    return ", ".join(f"{as_text(resource, amount)} {resource}" for resource, amount in sorted(missing.items()))


def alternatives_to(context: SearchContext, chosen: frozenset[str], *, is_exact: bool) -> tuple[Alternative, ...]:
    """Other sets than the chosen one: first what would cost less and is not enough, then what is enough and costs more.

    Tried are the cheapest by the sums of quota, the cheapest if no budget forbade it, and the cheapest without one of
    the victims. Where the search ended early, nothing more is searched here either.
    """
    context.simulator.allow(_HEADS)
    context.simulator.of(context.cheapest_by_sums() or chosen)
    if context.budgets.have_refused:
        context.cheapest(is_bounded=False, limits=_FEW)
    dearest = sorted(context.victims(chosen), key=lambda each: (-each.cost.total, each.name))
    for victim in dearest[: _REPLACED if is_exact else 0]:
        if not context.simulator.are_spent:
            context.cheapest(without=victim.workload, limits=_FEW)
    tried = [_alternative(context, keys) for keys in context.simulator.made if keys and not keys >= chosen]
    less = [each for each in tried if each.why_not is not None and each.cost < _cost(context, chosen)]
    more = [each for each in tried if each.why_not is None]
    return (*sorted(less, key=_by_cost)[:_SHOWN], *sorted(more, key=_by_cost)[:_SHOWN])


def alternatives_tried(context: SearchContext) -> tuple[Alternative, ...]:
    """The largest of the sets that were simulated where there is no plan, the largest last."""
    tried = [_alternative(context, keys) for keys in context.simulator.made if keys]
    return tuple(sorted(tried, key=lambda each: (len(each.victims), *_by_cost(each)))[-_SHOWN:])


def _alternative(context: SearchContext, keys: frozenset[str]) -> Alternative:
    simulated = context.simulator.of(keys)
    refusal = context.refusal(keys) if simulated.why is None else None
    return Alternative(
        victims=tuple(each.name for each in context.victims(keys)),
        cost=_cost(context, keys),
        why_not=NoPlanReason.BUDGET_EXHAUSTED if refusal else simulated.why,
        message=refusal.words if refusal else simulated.message,
    )


def _cost(context: SearchContext, keys: frozenset[str]) -> int:
    return sum(context.by_key[key].cost.total for key in keys)


def _by_cost(alternative: Alternative) -> tuple[int, tuple[str, ...]]:
    return alternative.cost, alternative.victims
