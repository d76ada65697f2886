"""How would a Workload of the hub fit here? What the planner of this cluster says of it → one word. Pure.

Asked about the copy that the hub would create, as if it was there, or about the copy that is. The first line that
applies counts:

| of the Workload                                                            | fit     |
|----------------------------------------------------------------------------|---------|
| Kueue refuses its pods, whatever is free                                   | Never   |
| NeverFits: it exceeds all quota that its ClusterQueue could get            | Never   |
| QueueStopped: its LocalQueue or ClusterQueue is stopped, or does not exist | Never   |
| Unforeseeable, NotFound, or it is not known where pods fit                 | Unknown |
| it would get in now, and pods of others that have quota take the nodes     | Nodes where any are added, or Wait |
| quota and nodes are free for it now, and Kueue preempts for nobody         | Free    |
| Kueue would preempt others for it                                          | Wait    |
| it fits once suspensions and evictions that are under way have ended       | Reclaim, at no cost |
| a plan is found: idle workloads give what it lacks                         | Reclaim |
| quota is free, or a plan frees it, and nodes are added for what lacks them | Nodes   |
| anything else: others have to end, a budget is exhausted, …                | Wait    |

Laws:

* Free is about now. The planner's FitsAlready is a forecast: it counts on what is ending, and on Kueue's preemptions.
* A queue that is stopped is Never and not Wait: a Workload that is nominated there stands still, and once the queue
  goes on the next status says so.
* Quota alone is not enough where a pod finds no node. Nodes are looked at also where plans leave them to an
  AdmissionCheck that requests them.
* What is not known is Unknown, never Free.
* The cost is that of the planner's plan wherever a short search is exact, and otherwise seldom more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from scaler.kube.objects.quantity import UNLIMITED
from scaler.multikueue.cluster_offer import Fit
from scaler.placement.capacity import Capacity
from scaler.placement.fit import fits
from scaler.placement.node_index import NodeDemand, demand_of
from scaler.quota.forecast import PredictedAdmission, predicted_admission_of, without
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.search.quota_problem import plan_reclaim, why_not_planned
from scaler.reclaim.search.simulate import AdmissionSimulator, named
from scaler.reclaim.search.values import NoPlan, NoPlanReason, PlanningTree, PlanRequest, ReclaimPlan
from scaler.reclaim.search.wake_problem import as_it_is

_STEPS = 1_000
"""Steps of one search: a twentieth of the planner's. There are many requests, and more steps seldom find a cheaper
plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    fit: Fit
    message: str
    cost: int | None = None
    """Cost of the plan, in thousandths."""
    victims: tuple[str, ...] = ()
    free_after: int | None = None
    """GPUs that remain free in its ClusterQueue once it has started."""


@dataclass(frozen=True, kw_only=True)
class FitQuestion:
    request: PlanRequest
    """The request that the planner makes for the Workload, which is among those that wait."""
    is_gpu: Callable[[str], bool]
    """Whether a resource counts as GPUs."""
    capacity: Capacity | None = None
    """What nodes have free, also where plans do not ask; None where that is not known and need not be."""
    left: Capacity | None = None
    """What is left once all pods run that have quota; None where they do already, or it is not known."""
    adds_nodes: str = ""
    """What adds nodes where they lack, in words; empty where nothing does."""
    reuses_nodes: bool = False
    """Whether idle workloads are also suspended for what it lacks of nodes once it has its quota."""
    refuses_unprotected: bool = False
    """Whether plans are not carried out whose freed quota newcomers may take."""


def queued(request: PlanRequest) -> PlanRequest:
    """The request with the Workload among those that wait, where it is not."""
    tree, gang = request.planning_tree, request.gang
    name = tree.world.cluster_queue_of(gang)
    line = tree.pending.get(name, ())
    if any(each.key == gang.key for each in line):
        return request
    pending = {**tree.pending, name: sorted((*line, gang), key=attrgetter("place"))}
    return replace(request, planning_tree=replace(tree, pending=pending))


def answer(question: FitQuestion) -> FitAnswer:
    request = question.request
    if request.gang.invalid_because:
        return FitAnswer(fit=Fit.NEVER, message=f"Kueue refuses it: {request.gang.invalid_because}")
    if (ruled_out := why_not_planned(request)) is not None:
        return refusal(ruled_out)
    on_nodes = _on_nodes(request, question.capacity)
    if (admission := _admission_now(on_nodes)) is not None:
        return _free(on_nodes, admission, question)
    return _planned_on_nodes(request, question) if on_nodes is request else _planned_for_quota(on_nodes, question)


def refusal(found: NoPlan) -> FitAnswer:
    """What follows from there being no plan."""
    return FitAnswer(fit=_REFUSALS.get(found.why, Fit.WAIT), message=f"{found.why}: {found.message}")


_REFUSALS = {
    NoPlanReason.NEVER_FITS: Fit.NEVER,
    NoPlanReason.QUEUE_STOPPED: Fit.NEVER,
    NoPlanReason.UNFORESEEABLE: Fit.UNKNOWN,
    NoPlanReason.NOT_FOUND: Fit.UNKNOWN,
}
"""All others are Wait; FitsAlready is none."""


def _on_nodes(request: PlanRequest, capacity: Capacity | None) -> PlanRequest:
    """The request with a look at these nodes, where plans leave them to others; unchanged where they do not."""
    tree = request.planning_tree
    is_seen = tree.capacity is not None or capacity is None
    return request if is_seen else replace(request, planning_tree=replace(tree, capacity=capacity))


# ---------------------------------------------------------------------------------------------------------- it is free


def _admission_now(request: PlanRequest) -> PredictedAdmission | None:
    """How it gets in; None where anything has to go first."""
    found = _admission(replace(request, planning_tree=_as_it_is(request.planning_tree), leaving=frozenset()))
    return None if found is None or found.gone else found


def _free(request: PlanRequest, admission: PredictedAdmission, question: FitQuestion) -> FitAnswer:
    """The answer for one that gets in now. Its nodes may be promised to pods that have quota already."""
    if question.left is not None and not fits(_demands(request, admission.holder), question.left):
        if question.adds_nodes:
            return FitAnswer(fit=Fit.NODES, message=question.adds_nodes)
        return FitAnswer(fit=Fit.WAIT, message="quota is free, and pods of others that have quota take the nodes")
    words = "quota is free for it" if request.planning_tree.capacity is None else "quota and nodes are free for it"
    free_after = _left(request, frozenset(), [admission.holder, *admission.others.values()], question)
    return FitAnswer(fit=Fit.FREE, message=words, free_after=free_after)


def _demands(request: PlanRequest, holder: QuotaWorkload) -> list[NodeDemand]:
    flavors = request.planning_tree.world.flavor_options.flavors
    pod_sets = {each.name: each for each in holder.pod_sets}
    return [
        demand_of(
            pod_sets[each.name],
            [flavors[name] for name in sorted(set(each.flavors.values())) if name in flavors],
            count=each.count,
        )
        for each in holder.held.assignments
    ]


def _as_it_is(tree: PlanningTree) -> PlanningTree:
    """The tree with pods that are terminating on their nodes; itself where there are none, as it has its forecast."""
    is_ending = tree.capacity is not None and bool(tree.capacity.allocations.ending)
    return as_it_is(tree) if is_ending else tree


def _admission(request: PlanRequest) -> PredictedAdmission | None:
    """How it gets in without any plan; None where it does not, or its pods find no nodes."""
    if not AdmissionSimulator(request).accept(frozenset()):
        return None
    forecast = request.planning_tree.forecast(request.leaving)
    return predicted_admission_of(request.gang.key, forecast.run.cycles, forecast.ending)


def _free_after(request: PlanRequest, admission: PredictedAdmission, question: FitQuestion) -> int:
    started = [admission.holder, *admission.others.values()]
    return _left(request, request.leaving | admission.gone, started, question)


def _left(request: PlanRequest, gone: frozenset[str], started: Iterable[QuotaWorkload], question: FitQuestion) -> int:
    """GPUs that are free in the Workload's ClusterQueue with these gone and those started."""
    tree = without(request.planning_tree.tree, gone)
    for each in started:
        tree.queues[each.held.cluster_queue].add(each.held.usage)
    queue = tree.queues[request.planning_tree.world.cluster_queue_of(request.gang)]
    free = sum(queue.available(key) for key in queue.quotas if question.is_gpu(key.resource))
    return min(free, UNLIMITED)


# ------------------------------------------------------------------------------------------------------- it is made so


def _planned_on_nodes(request: PlanRequest, question: FitQuestion) -> FitAnswer:
    """Plans look at nodes themselves, or nobody can."""
    found = _answered(request, _plan(request), question)
    if found.fit is not Fit.WAIT or not question.adds_nodes or request.planning_tree.capacity is None:
        return found
    by_quota = replace(request, planning_tree=replace(request.planning_tree, capacity=None))
    why = _plan(by_quota)
    is_free = isinstance(why, NoPlan) and _answered(by_quota, why, question).fit is Fit.RECLAIM
    return FitAnswer(fit=Fit.NODES, message=question.adds_nodes) if is_free else found


def _planned_for_quota(on_nodes: PlanRequest, question: FitQuestion) -> FitAnswer:
    """Plans are about quota, and what its pods lack of nodes is reused, or added."""
    plan = _plan(question.request)
    found = _answered(question.request, plan, question)
    if found.fit is not Fit.RECLAIM or AdmissionSimulator(on_nodes).accept(_victims(plan)):
        return found
    if not found.victims and question.reuses_nodes:
        reused = _answered(on_nodes, _plan(on_nodes), question)
        if reused.fit is Fit.RECLAIM:
            return reused
    first = f"a plan suspends {named(found.victims)}, and " if found.victims else ""
    return FitAnswer(fit=Fit.NODES, message=f"{first}{question.adds_nodes}")


def _plan(request: PlanRequest) -> ReclaimPlan | NoPlan:
    """The plan by a short search; only where that leaves open whether there is any, by one as long as the planner's."""
    short = replace(request.limits, steps=min(_STEPS, request.limits.steps))
    found = plan_reclaim(replace(request, limits=short), is_explained=False)
    is_open = isinstance(found, NoPlan) and not found.is_exact
    return plan_reclaim(request, is_explained=False) if is_open else found


def _victims(plan: ReclaimPlan | NoPlan) -> frozenset[str]:
    return frozenset(each.workload for each in plan.victims) if isinstance(plan, ReclaimPlan) else frozenset()


def _answered(request: PlanRequest, found: ReclaimPlan | NoPlan, question: FitQuestion) -> FitAnswer:
    if isinstance(found, ReclaimPlan):
        return _reclaimed(request, found, question)
    return _coming(request, found, question) if found.why is NoPlanReason.FITS_ALREADY else refusal(found)


def _reclaimed(request: PlanRequest, plan: ReclaimPlan, question: FitQuestion) -> FitAnswer:
    exposed = [each for each in plan.cautions if each.reason == NoPlanReason.UNPROTECTED]
    if exposed and question.refuses_unprotected:
        return FitAnswer(fit=Fit.WAIT, message=f"{NoPlanReason.UNPROTECTED}: {exposed[0].message}")
    names, gone = tuple(each.name for each in plan.victims), _victims(plan)
    simulated = AdmissionSimulator(request).of(gone)
    started = [simulated.gang] if simulated.gang is not None else []
    return FitAnswer(
        fit=Fit.RECLAIM,
        message=f"a plan suspends {named(names)} for it",
        cost=plan.cost,
        victims=names,
        free_after=_left(request, request.leaving | gone, started, question),
    )


def _coming(request: PlanRequest, found: NoPlan, question: FitQuestion) -> FitAnswer:
    """It fits without a plan, and not yet."""
    forecast = request.planning_tree.forecast(request.leaving)
    preempted = [
        each.workload.key for cycle in forecast.run.cycles for each in cycle.preempted if each.by == request.gang.key
    ]
    if preempted:
        return FitAnswer(fit=Fit.WAIT, message=f"Kueue would preempt {named(preempted)} for it")
    admission = _admission(request)
    free_after = _free_after(request, admission, question) if admission is not None else None
    return FitAnswer(fit=Fit.RECLAIM, message=found.message, cost=0, free_after=free_after)
