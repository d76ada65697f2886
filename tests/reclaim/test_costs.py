"""What a suspension costs."""

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scaler.reclaim.costs import Cost, CostWeights, cost_of

HOUR = timedelta(hours=1)
NO_WEIGHTS = CostWeights(gpu_hours_lost=0, idle_time=0, priority=0, reclaimed_before=0, time_to_resume=0)


def cost(weights: CostWeights = CostWeights(), **stake: Any) -> Cost:  # noqa: B008 - frozen
    return cost_of(weights, **{"gpus": 8, "worked": 2 * HOUR, "idle": HOUR, "resume": HOUR / 10, **stake})


def test_the_worked_example_adds_up() -> None:
    # (8 + 8·2 + 0 + 0 + 8·0.1) / (1 + 1) = 12.4;  (24.8) / 4 = 6.2
    assert str(cost()) == "12.4 = (gpus 8 + gpuHoursLost 16 + timeToResume 0.8) / 2.00 for being idle"
    assert (cost().total, cost(idle=3 * HOUR).total) == (12_400, 6_200)
    assert cost(NO_WEIGHTS).total == 8_000, "only GPUs count"


@given(st.integers(0, 64), st.floats(0, 1000), st.floats(0, 1000), st.integers(-1000, 100_000), st.integers(0, 50))
def test_more_of_what_hurts_never_costs_less_and_nothing_is_free(
    gpus: int, worked: float, idle: float, priority: int, reclaimed: int
) -> None:
    stake: dict[str, Any] = {"gpus": gpus, "worked": worked * HOUR, "idle": idle * HOUR, "priority": priority}
    least = cost(**stake, times_reclaimed=reclaimed).total
    assert least >= 1
    for name, more in (("gpus", 1), ("worked", HOUR), ("priority", 1)):
        assert cost(**{**stake, name: stake[name] + more}, times_reclaimed=reclaimed).total >= least
    assert cost(**stake, times_reclaimed=reclaimed + 1).total >= least
    assert cost(**{**stake, "idle": stake["idle"] + HOUR}, times_reclaimed=reclaimed).total <= least
