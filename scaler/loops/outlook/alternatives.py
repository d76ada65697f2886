"""What else was there to do? Beside the plan: what costs less and why it does not do, and what does it for more.

A plan needs every one of its victims, and of all that would do it is the cheapest. That is shown by example:

* the plan without each of its victims, and whoever alone would be cheaper: each on trial, with the numbers;
* for each victim the plan that would be made if just that one were not idle.

Worked example: a gang lacks 4 GPUs; idle are a (2 GPUs, cost 3), b (2, 3) and c (8, 10). The plan is a and b for 6.
Without a: 2 of 4. Without b: 2 of 4. Were a not idle: c for 10.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scaler.core.quota.amounts import as_text
from scaler.core.quota.tree import QueueNode
from scaler.core.reclaim import Alternative, Candidate, NoPlan, Plan, Request, Why, plan_reclaim
from scaler.core.reclaim.trial import Trial, Trials
from scaler.core.victims import Limits

_TRIED = 8
"""Sets that are put on trial, and victims that are thought away."""
_SHOWN = 10
_SEARCH = Limits(steps=4_000, questions=12)
"""For each plan without one of the victims: less than for the plan itself, since there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The answer, with what it was chosen from."""

    answer: Plan | NoPlan
    alternatives: tuple[Alternative, ...] = ()
    """First what does not do, then what does; both with the cheapest first."""


def examine(request: Request) -> Examined:
    """The plan and its alternatives. Takes several times as long as the plan alone."""
    answer = plan_reclaim(request)
    if isinstance(answer, NoPlan):
        return Examined(answer=answer, alternatives=answer.alternatives)
    known = [_with_numbers(request, answer, each) for each in answer.alternatives]
    found = [*_lesser(request, answer), *_instead(request, answer), *known]
    chosen = tuple(sorted(each.name for each in answer.victims))
    distinct = {each.victims: each for each in reversed(found) if each.victims != chosen}
    ordered = sorted(distinct.values(), key=lambda each: (each.why_not is None, each.cost, each.victims))
    short = [each for each in ordered if each.why_not is not None]
    enough = [each for each in ordered if each.why_not is None and not _has_more_than_enough(each, ordered)]
    return Examined(answer=answer, alternatives=(*short[:_SHOWN], *enough[:_SHOWN]))


def _has_more_than_enough(one: Alternative, others: Iterable[Alternative]) -> bool:
    return any(each.why_not is None and set(each.victims) < set(one.victims) for each in others)


def _lesser(request: Request, plan: Plan) -> list[Alternative]:
    """Sets that cost less, and what is wrong with each."""
    trials = Trials(request)
    return [
        _judged(request, plan, each, trials.of(frozenset(one.workload for one in each)))
        for each in _less(request, plan)
    ]


def _less(request: Request, plan: Plan) -> list[Sequence[Candidate]]:
    chosen = {each.workload for each in plan.victims}
    held = {key for queue in request.scene.tree.queues.values() for key in queue.workloads}
    spared = [
        each
        for each in request.candidates
        if each.workload in held - chosen - request.leaving and each.cost.total < plan.cost
    ]
    alone = [[each] for each in sorted(spared, key=lambda each: (-each.gpus, each.cost.total, each.name))]
    dropped = [[each for each in plan.victims if each is not out] for out in plan.victims]
    return [each for each in [*dropped[:_TRIED], *alone[:_TRIED]] if each]


def _judged(request: Request, plan: Plan, victims: Sequence[Candidate], trial: Trial) -> Alternative:
    short = _shortage(request, plan, victims)
    return Alternative(
        victims=tuple(sorted(each.name for each in victims)),
        cost=sum(each.cost.total for each in victims),
        why_not=trial.why,
        message=short if short and trial.why is Why.NOT_ENOUGH_IDLE else trial.message,
    )


def _with_numbers(request: Request, plan: Plan, known: Alternative) -> Alternative:
    if known.why_not is not Why.NOT_ENOUGH_IDLE:
        return known
    victims = [each for each in request.candidates if each.name in known.victims]
    return replace(known, message=_shortage(request, plan, victims) or known.message)


def _shortage(request: Request, plan: Plan, victims: Iterable[Candidate]) -> str:
    """What of the gang's need would be available then, where that is not all."""
    queue = _queue_without(request, plan.cluster_queue, request.leaving | {each.workload for each in victims})
    short = [
        f"{as_text(key.resource, available)} of {as_text(key.resource, needed)} {key.resource} of {key.flavor}"
        for key, needed in sorted(plan.takes.items())
        if (available := queue.available(key)) < needed
    ]
    return f"only {', '.join(short)} would be available" if short else ""


def _queue_without(request: Request, name: str, keys: frozenset[str]) -> QueueNode:
    """The ClusterQueue as it is with these Workloads gone."""
    after = request.scene.tree.clone()
    for queue in after.queues.values():
        for key in queue.workloads.keys() & keys:
            queue.release(queue.workloads[key])
    return after.queues[name]


def _instead(request: Request, plan: Plan) -> list[Alternative]:
    """What would be done were one of the victims not idle."""
    found = []
    for out in plan.victims[:_TRIED]:
        rest = tuple(each for each in request.candidates if each.workload != out.workload)
        limits = replace(_SEARCH, members=request.limits.members)
        other = plan_reclaim(replace(request, candidates=rest, limits=limits))
        if isinstance(other, Plan):
            found.append(_enough(other))
    return found


def _enough(plan: Plan) -> Alternative:
    return Alternative(
        victims=tuple(sorted(each.name for each in plan.victims)), cost=plan.cost, why_not=None, message=""
    )
