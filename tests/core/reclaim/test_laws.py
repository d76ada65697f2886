"""What holds of every plan in every small world, and that nothing cheaper was overlooked."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from reclaim_worlds import Judge, cost, keys_of, requests

from scaler.core.reclaim import NoPlan, Plan, Request, Why, plan_reclaim
from scaler.core.victims import Limits

T = TypeVar("T")


@settings(max_examples=60)
@given(requests())
def test_the_cost_is_the_least_of_all_sets_that_are_accepted(request: Request) -> None:
    judge, found = Judge(request), plan_reclaim(request)
    if isinstance(found, NoPlan) and found.why is Why.FITS_ALREADY:
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


@settings(max_examples=60)
@given(requests(most_candidates=8), st.integers(0, 30), st.integers(0, 12))
def test_with_few_steps_a_plan_is_still_sufficient_and_necessary(request: Request, steps: int, questions: int) -> None:
    found = plan_reclaim(replace(request, limits=Limits(steps=steps, questions=questions, members=64)))
    if isinstance(found, Plan):
        judge, keys = Judge(request), keys_of(found.victims)
        assert judge.accepts(keys)
        assert not any(judge.accepts(keys - {key}) for key in keys)
        assert keys <= keys_of(request.candidates) - request.leaving


@settings(max_examples=60)
@given(requests())
def test_what_is_told_beside_a_plan_is_true(request: Request) -> None:
    found, judge = plan_reclaim(request), Judge(request)
    keys = {each.name: each.workload for each in request.candidates}
    for other in found.alternatives:
        assert judge.accepts(frozenset(keys[name] for name in other.victims)) == (other.why_not is None), other
    if isinstance(found, Plan):
        assert [each.victim for each in found.necessities] == [each.name for each in found.victims]
        assert all(each.why is not Why.FITS_ALREADY and each.message for each in found.necessities)
        assert all(each.cost >= found.cost for each in found.alternatives if each.why_not is None)
        asked = {each.name: each for each in request.gang.pod_sets}
        for pods in found.assignments:
            assert (asked[pods.name].min_count or asked[pods.name].count) <= pods.count <= asked[pods.name].count


@settings(max_examples=60)
@given(requests(), st.integers(0, 2**32))
def test_planning_twice_is_planning_once_in_whatever_order_things_are_given(request: Request, seed: int) -> None:
    def shuffled(things: Iterable[T]) -> list[T]:
        given = list(things)
        return random.Random(seed).sample(given, len(given))

    pending = {name: shuffled(request.scene.pending[name]) for name in shuffled(request.scene.pending)}
    scene = replace(request.scene, pending=pending)
    assert plan_reclaim(replace(request, candidates=shuffled(request.candidates), scene=scene)) == plan_reclaim(request)
