"""What holds of every plan in every small world, and that nothing cheaper was overlooked."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st
from reclaim.search.search_inputs import Judge, cost, earlier_elsewhere, keys_of, requests

from scaler.reclaim.search.problem import SearchLimits
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import NoPlan, NoPlanReason, PlanRequest, ReclaimPlan

T = TypeVar("T")


@given(requests() | earlier_elsewhere())
def test_the_cost_is_the_least_of_all_sets_that_are_accepted(request: PlanRequest) -> None:
    judge, found = Judge(request), plan_reclaim(request)
    if isinstance(found, NoPlan) and found.why is NoPlanReason.FITS_ALREADY:
        assert judge.accepts(frozenset())
        return
    assert not judge.accepts(frozenset())
    assert found.is_exact
    best = judge.least_cost()
    if isinstance(found, NoPlan):
        assert best is None
    else:
        assert judge.accepts(keys_of(found.victims))
        assert (found.cost, cost(found.victims)) == (best, best)


@given(requests(most_candidates=8), st.integers(0, 30), st.integers(0, 12))
def test_with_few_steps_a_plan_is_still_sufficient_and_necessary(
    request: PlanRequest, steps: int, questions: int
) -> None:
    found = plan_reclaim(replace(request, limits=SearchLimits(steps=steps, questions=questions, members=64)))
    if isinstance(found, ReclaimPlan):
        judge, keys = Judge(request), keys_of(found.victims)
        assert judge.accepts(keys)
        assert not any(judge.accepts(keys - {key}) for key in keys)
        assert keys <= keys_of(request.candidates) - request.leaving


@given(requests() | earlier_elsewhere())
def test_what_is_told_beside_a_plan_is_true(request: PlanRequest) -> None:
    found, judge = plan_reclaim(request), Judge(request)
    keys = {each.name: each.workload for each in request.candidates}
    for other in found.alternatives:
        assert judge.accepts(frozenset(keys[name] for name in other.victims)) == (other.why_not is None), other
    if isinstance(found, ReclaimPlan):
        assert [each.victim for each in found.necessities] == [each.name for each in found.victims]
        assert all(each.why is not NoPlanReason.FITS_ALREADY and each.message for each in found.necessities)
        assert all(each.cost >= found.cost for each in found.alternatives if each.why_not is None)
        asked = {each.name: each for each in request.gang.pod_sets}
        for pods in found.assignments:
            assert (asked[pods.name].min_count or asked[pods.name].count) <= pods.count <= asked[pods.name].count


@given(requests(), st.integers(0, 2**32))
def test_planning_twice_is_planning_once_in_whatever_order_things_are_given(request: PlanRequest, seed: int) -> None:
    def shuffled(things: Iterable[T]) -> list[T]:
        given = list(things)
        return random.Random(seed).sample(given, len(given))

    pending = {name: shuffled(request.planning_tree.pending[name]) for name in shuffled(request.planning_tree.pending)}
    planning_tree = replace(request.planning_tree, pending=pending)
    assert plan_reclaim(
        replace(request, candidates=shuffled(request.candidates), planning_tree=planning_tree)
    ) == plan_reclaim(request)
