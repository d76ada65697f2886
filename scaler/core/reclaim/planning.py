"""Which idle workloads to suspend so that a waiting gang really gets in: the least costly set, or nobody and why.

Laws:

* Sufficient: with the victims gone, the whole sequence of Kueue's cycles admits the gang and does not preempt it again,
  and its pods fit the nodes.
* Necessary: no victim can be left out.
* Whole or nothing: there is no plan for a part of a gang. With partial admission the fewest pods are the whole.
* Idempotent: the same request gives the same plan, with the same id.
* Nobody is touched who is not a candidate; nobody outside the plan is preempted on its account; budgets hold.
* What is free already counts, and so does what is on its way out.

Worked example, the one that greedy counting gets wrong: 4 GPUs are free, idle are a (4), b (8) and c (1), and the gang
needs 8. Counting idle GPUs alone finds too little in a, and takes b for the whole; here a makes up what is missing.

How: what is missing at least is counted from the sums. `core/victims` searches the cheapest set that could do by the
sums and by the nodes; each such set is put on trial (`trial.py`), which simulates the cycles. Exact for what occurs;
where the search ends before everything was looked at, the plan says that it is not exact, or the answer is NotFound.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from scaler.core.quota.model import Strategy
from scaler.core.quota.tree import QueueNode
from scaler.core.reclaim.alternatives import alternatives_to, alternatives_tried, necessities_of
from scaler.core.reclaim.field import Field
from scaler.core.reclaim.forecast import without
from scaler.core.reclaim.ground import Budgets
from scaler.core.reclaim.refusals import hindrance, why_never, why_nobody
from scaler.core.reclaim.trial import Trial, named
from scaler.core.reclaim.values import Caution, NoPlan, Plan, Request, Why
from scaler.core.victims import Found


def plan_reclaim(request: Request) -> Plan | NoPlan:
    """The plan for the gang, or why there is none."""
    in_the_way = hindrance(request)
    if in_the_way is not None:
        return in_the_way
    field = Field(request)
    needless = _why_needless(field)
    if needless is not None:
        return _no_plan(field, *needless)
    budgets = Budgets(field.by_key.values(), request.refuse)
    found = field.cheapest(budgets)
    if found.keys is not None:
        return _planned(field, found.keys, found, budgets)
    unbounded = field.cheapest(None).keys if budgets.have_refused else None
    refusal = field.refusal(unbounded) if unbounded is not None else None
    if refusal is not None:
        return _no_plan(field, Why.BUDGET_EXHAUSTED, refusal.words, budget=refusal.budget, is_exact=found.is_exact)
    return _no_plan(field, *why_nobody(field), is_exact=found.is_exact)


def _why_needless(field: Field) -> tuple[Why, str] | None:
    """Why no plan is needed, or none need be searched."""
    if not field.forecast.comes_to_rest:
        cycles = len(field.forecast.run.cycles)
        return Why.UNFORESEEABLE, f"Kueue would not come to rest within {cycles} cycles as things stand"
    if field.trials.nobody.why is None:
        return Why.FITS_ALREADY, "it fits into what is free, or will be once those under way have gone"
    if not field.count.could_ever_fit(field.tree):
        return Why.NEVER_FITS, why_never(field)
    return None


def _no_plan(field: Field, why: Why, message: str, *, budget: str = "", is_exact: bool = True) -> NoPlan:
    return NoPlan(
        gang=field.gang.key,
        why=why,
        message=message,
        budget=budget,
        alternatives=alternatives_tried(field),
        is_exact=is_exact,
    )


def _planned(field: Field, keys: frozenset[str], found: Found, budgets: Budgets) -> Plan:
    trial = field.trials.of(keys)
    victims = field.victims(keys)
    before, after = field.queue, without(field.tree, keys).queues[field.queue.name]
    held = trial.gang.held if trial.gang is not None else None
    takes = dict(held.usage) if held is not None else {}
    return Plan(
        id=plan_id(field.gang.uid, [each.name for each in victims]),
        gang=field.gang.key,
        gang_uid=field.gang.uid,
        cluster_queue=field.queue.name,
        victims=victims,
        cost=found.cost,
        free_before={key: before.available(key) for key in sorted(takes)},
        free_after={key: after.available(key) for key in sorted(takes)},
        takes=takes,
        assignments=held.assignments if held is not None else (),
        placement=trial.placement,
        others=trial.others,
        is_exact=found.is_exact,
        necessities=necessities_of(field, keys),
        alternatives=alternatives_to(field, keys, budgets, is_exact=found.is_exact),
        cautions=tuple(_cautions(field, keys, trial)),
    )


def _cautions(field: Field, keys: frozenset[str], trial: Trial) -> Iterator[Caution]:
    """What may go wrong with the plan all the same."""
    if field.request.scene.capacity is None:
        yield Caution(reason="NodesNotCounted", message="only quota was planned for, not where pods fit")
    if trial.others:
        yield Caution(reason="OthersFirst", message=f"{named(trial.others)} get in before it")
    for pods, assigned in zip(field.gang.pod_sets, trial.gang.held.assignments if trial.gang else (), strict=False):
        if assigned.count < pods.count:
            message = f"it starts with {assigned.count} of {pods.count} pods of PodSet {pods.name}"
            yield Caution(reason="FewerPods", message=message)
    if field.forecast.changes and not field.trials.does_later(keys):
        message = f"these victims will not do any more once Kueue has done what it is about to do: {_about_to(field)}"
        yield Caution(reason="Unsettled", message=message)
    rivals = sorted(queue.name for queue in field.tree.scheduling if _could_take(field, queue))
    if rivals:
        message = (
            "freed quota is anybody's until the gang holds it: a Workload that is created meanwhile in "
            f"{named(rivals)} may take a piece"
        )
        yield Caution(reason=str(Why.UNPROTECTED), message=message)


def _about_to(field: Field) -> str:
    """What Kueue does by itself, in words."""
    ways = {
        "admit": field.forecast.admitted,
        "preempt": field.forecast.preempted,
        "end the eviction of": field.forecast.ending,
    }
    return "; ".join(f"{verb} {named(sorted(keys))}" for verb, keys in ways.items() if keys)


def _could_take(field: Field, queue: QueueNode) -> bool:
    """Whether a newcomer of the queue could take what is freed."""
    if queue.name == field.queue.name and queue.spec.strategy is Strategy.STRICT_FIFO:
        return False
    return any(queue.potential(key) > 0 for key in field.count.keys)


def plan_id(gang_uid: str, victims: Sequence[str]) -> str:
    """Ten characters that are equal for equal victims of the same gang, whoever plans."""
    return sha256("\n".join((gang_uid, *sorted(victims))).encode()).hexdigest()[:10]
