"""The law of `inputs`: a decision that was not made again is the one that would be made now.

Two evaluators look at the same random fleet. One of them forgets at every tick what its decisions rest on, and so makes
all of them anew.
"""

import pytest
from decision.random_fleet import RandomFleet, all_shown

from scaler.decision.evaluation import Evaluator
from scaler.decision.inputs import DecisionInputs


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 5))])
async def test_a_decision_that_stands_is_the_one_that_would_be_made_now(seed: int) -> None:
    fleet, reasons = RandomFleet(seed, evaluators=2), set[str]()
    lazy, thorough = fleet.evaluators
    lazy._inputs = DecisionInputs(lazy._own, fewest=1)
    for _ in range(40):
        forget(thorough)
        found, expected = await fleet.pass_time()
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert all_shown(found) == all_shown(expected)
            reasons |= {str(each.answer.reason) for entry in found.entries.values() for each in entry.triggers.values()}
    assert len(reasons) > 7


def forget(evaluator: Evaluator) -> None:
    evaluator._inputs = DecisionInputs(evaluator._own)
