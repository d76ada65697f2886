"""Which candidates can stand for each other in every set of victims, so that only the cheaper one need be tried first?

Those that hold the same quota of the same queue on the same nodes, and that budgets do not tell apart. Where Kueue
preempts, age makes a difference too: whom it takes first depends on who is left. Then few candidates are all tried for
themselves; of many, those that differ in age only stand for each other nevertheless, and the search is not exact.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from scaler.core.quota.model import Workload
from scaler.core.reclaim.forecast import Forecast
from scaler.core.reclaim.trial import free_capacity
from scaler.core.reclaim.values import Candidate, Request

_FEW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    kinds: Mapping[str, Hashable]
    """By key of the Workload; equal for twins."""
    are_alike: bool
    """Whether twins can stand for each other for certain."""


def twins_of(request: Request, forecast: Forecast, holders: Mapping[str, Workload]) -> Twins:
    """The kinds of the request's candidates; `holders` has their Workloads."""
    if forecast.may_preempt and len(request.candidates) <= _FEW:
        return Twins(kinds={each.workload: each.workload for each in request.candidates}, are_alike=True)
    comes_back = forecast.preempted | forecast.ending
    capacity = free_capacity(request)
    kinds: dict[str, Hashable] = {}
    for each in request.candidates:
        if each.workload in comes_back:
            # It may wait again, at a place of its own.
            kinds[each.workload] = each.workload
            continue
        seats = capacity.held_by((each.workload,)) if capacity is not None else {}
        on_nodes = tuple((node, tuple(sorted(amounts.items()))) for node, amounts in sorted(seats.items()))
        kinds[each.workload] = (
            *_held(holders[each.workload]),
            request.scene.world.home(holders[each.workload]),
            on_nodes,
            tuple(pods.nodes.apart for pods in holders[each.workload].pod_sets),
            _place(each),
        )
    are_alike = len(set(kinds.values())) == len(kinds) or not forecast.may_preempt
    return Twins(kinds=kinds, are_alike=are_alike)


def _held(workload: Workload) -> tuple[Hashable, ...]:
    held = workload.held
    return held.cluster_queue, tuple(sorted(held.usage.items())), workload.priority


def _place(candidate: Candidate) -> Hashable:
    return candidate.member.place
