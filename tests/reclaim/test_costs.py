"""What a suspension costs."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from scaler.reclaim.costs import CostWeights, SuspensionImpact, cost_of

STAKE = SuspensionImpact(gpus=8, worked=timedelta(hours=2), idle=timedelta(hours=1), resume=timedelta(minutes=6))


def test_the_worked_example_adds_up() -> None:
    # (8 + 8·2 + 0 + 0 + 8·0.1) / (1 + 1) = 12.4;  (24.8) / 4 = 6.2
    assert cost_of(STAKE, CostWeights()).total == 12_400
    assert cost_of(replace(STAKE, idle=timedelta(hours=3)), CostWeights()).total == 6_200


def test_without_weights_only_gpus_count() -> None:
    nothing = CostWeights(gpu_hours_lost=0, idle_time=0, priority=0, reclaimed_before=0, time_to_resume=0)
    assert cost_of(STAKE, nothing).total == 8_000


@given(st.integers(0, 64), st.floats(0, 1000), st.floats(0, 1000), st.integers(-1000, 100_000), st.integers(0, 50))
def test_more_of_what_hurts_never_costs_less_and_nothing_is_free(
    gpus: int, worked: float, idle: float, priority: int, reclaimed: int
) -> None:
    stake = SuspensionImpact(
        gpus=gpus,
        worked=timedelta(hours=worked),
        idle=timedelta(hours=idle),
        priority=priority,
        times_reclaimed=reclaimed,
    )
    cost = cost_of(stake, CostWeights()).total
    assert cost >= 1
    assert cost_of(replace(stake, gpus=gpus + 1), CostWeights()).total >= cost
    assert cost_of(replace(stake, worked=stake.worked + timedelta(hours=1)), CostWeights()).total >= cost
    assert cost_of(replace(stake, priority=priority + 1), CostWeights()).total >= cost
    assert cost_of(replace(stake, times_reclaimed=reclaimed + 1), CostWeights()).total >= cost
    assert cost_of(replace(stake, idle=stake.idle + timedelta(hours=1)), CostWeights()).total <= cost


def test_a_cost_says_what_it_is_made_of() -> None:
    assert str(cost_of(STAKE, CostWeights())) == (
        "12.4 = (gpus 8 + gpuHoursLost 16 + timeToResume 0.8) / 2.00 for being idle"
    )
