"""How long gangs are left alone for which plans were in vain."""

from collections.abc import Collection
from datetime import timedelta

import pytest
from builders import NOON

from scaler.reclaim.executor import PlanBackoff
from scaler.reclaim.planner import ReclaimConfig
from scaler.targets.target_state import Seeks

MINUTE = timedelta(minutes=1)


def rests_long(proposals: PlanBackoff) -> float:
    """Minutes that the gang has to wait for the next plan after this one in vain."""
    proposals.back_off("uid", Seeks.NODES, NOON, was_in_vain=True)
    return next(n for n in range(1_000) if proposals.is_due(("uid", Seeks.NODES), NOON + n * MINUTE))


@pytest.mark.parametrize(
    ("backoff", "minutes"),
    [(1, [10, 20, 40, 80, 160, 320, 360, 360]), (60, [60, 60, 60, 80])],
    ids=["twice as long every time, and six hours at most", "and never less than after any other plan"],
)
def test_a_gang_rests_ever_longer_after_plans_in_vain(backoff: int, minutes: list[int]) -> None:
    proposals = PlanBackoff(ReclaimConfig(grant_for=10 * MINUTE, replan_backoff=backoff * MINUTE))
    assert [rests_long(proposals) for _ in minutes] == minutes
    assert proposals.is_due(("uid", Seeks.QUOTA), NOON), "a plan for quota is another matter"


@pytest.mark.parametrize(("waiting", "minutes"), [((), 10), (("uid",), 20)], ids=["which waits no more", "which waits"])
def test_plans_in_vain_are_forgotten_with_the_gang(waiting: Collection[str], minutes: int) -> None:
    proposals = PlanBackoff(ReclaimConfig(grant_for=10 * MINUTE, replan_backoff=MINUTE))
    assert rests_long(proposals) == 10
    proposals.forget_others(waiting)
    assert rests_long(proposals) == minutes
