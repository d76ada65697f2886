"""What else could be done for a gang, what would it cost, and why not less? For whoever has to answer for a plan.

| shown                                           | and what is said of it                       |
|-------------------------------------------------|----------------------------------------------|
| the plan less one victim, for each of them      | what would be missing, or who would take it  |
| the cheapest set by the sums of quota           | why it does not do, where it is not the plan |
| the cheapest set if no budget forbade it        | which budget does                            |
| other sets that were on trial and cost less     | why they do not do                           |
| the cheapest set without one of the victims     | that it would do, and costs more             |

All of it is on the side: a few more trials, and none that the plan depends on.
"""

from scaler.core.quota.amounts import as_text
from scaler.core.reclaim.field import Field
from scaler.core.reclaim.forecast import without
from scaler.core.reclaim.ground import Budgets
from scaler.core.reclaim.values import Alternative, Necessity, Why
from scaler.core.victims import Limits

_SHOWN = 5
"""Alternatives of each kind."""
_SPARED = 3
"""Victims for which another way is looked for: the dearest ones."""
_HEADS = 3_000
_FEW = Limits(steps=2_000, questions=4, members=64)


def necessities_of(field: Field, chosen: frozenset[str]) -> tuple[Necessity, ...]:
    """Why each of the chosen ones is needed."""
    return tuple(_necessity(field, chosen, each.workload) for each in field.victims(chosen))


def _necessity(field: Field, chosen: frozenset[str], key: str) -> Necessity:
    rest, name = chosen - {key}, field.by_key[key].name
    missing = field.wanted.missing(without(field.forecast.roomiest, rest))
    if missing:
        lack = ", ".join(f"{as_text(resource, amount)} {resource}" for resource, amount in sorted(missing.items()))
        return Necessity(victim=name, why=Why.NOT_ENOUGH_IDLE, message=f"without it {lack} would be missing")
    trial = field.trials.of(rest)
    return Necessity(victim=name, why=trial.why or Why.FITS_ALREADY, message=f"without it {trial.message}")


def alternatives_to(
    field: Field, chosen: frozenset[str], budgets: Budgets, *, is_exact: bool
) -> tuple[Alternative, ...]:
    """Other sets than the chosen one: first what would cost less and does not do, then what would do for more.

    Where the search ended early, nothing more is searched here either.
    """
    field.trials.allow(_HEADS)
    field.trials.of(field.cheapest_by_sums() or chosen)
    if budgets.have_refused:
        field.cheapest(None, limits=_FEW)
    dearest = sorted(field.victims(chosen), key=lambda each: (-each.cost.total, each.name))
    for victim in dearest[: _SPARED if is_exact else 0]:
        field.cheapest(budgets, spared=[victim.workload], limits=_FEW)
    tried = [_alternative(field, keys) for keys in field.trials.made if keys and not keys >= chosen]
    less = [each for each in tried if each.why_not is not None and each.cost < _cost(field, chosen)]
    more = [each for each in tried if each.why_not is None]
    return (*sorted(less, key=_by_cost)[:_SHOWN], *sorted(more, key=_by_cost)[:_SHOWN])


def alternatives_tried(field: Field) -> tuple[Alternative, ...]:
    """Where there is no plan: the largest of the sets that were on trial, the largest last."""
    tried = [_alternative(field, keys) for keys in field.trials.made if keys]
    return tuple(sorted(tried, key=lambda each: (len(each.victims), *_by_cost(each)))[-_SHOWN:])


def _alternative(field: Field, keys: frozenset[str]) -> Alternative:
    trial = field.trials.of(keys)
    refusal = field.refusal(keys) if trial.why is None else None
    return Alternative(
        victims=tuple(each.name for each in field.victims(keys)),
        cost=_cost(field, keys),
        why_not=Why.BUDGET_EXHAUSTED if refusal else trial.why,
        message=refusal.words if refusal else trial.message,
    )


def _cost(field: Field, keys: frozenset[str]) -> int:
    return sum(field.by_key[key].cost.total for key in keys)


def _by_cost(alternative: Alternative) -> tuple[int, tuple[str, ...]]:
    return alternative.cost, alternative.victims
