"""Facts of periods without a Prometheus."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from scaler.reporting.report.measures import LabelValues, Measure
from scaler.reporting.report.periods import DAY, Period
from scaler.reporting.report.reader import PeriodFacts

BEGIN = datetime(2026, 11, 29, tzinfo=UTC)
HOUR_S = 3600.0


def day(number: int) -> Period:
    return Period(BEGIN + number * DAY, BEGIN + (number + 1) * DAY)


WEEKEND = Period(BEGIN, BEGIN + 3 * DAY)


def facts(
    number: int, values: Mapping[Measure, Mapping[LabelValues, float]], *, gaps: Sequence[Period] = ()
) -> PeriodFacts:
    """Of the day with that number."""
    return PeriodFacts(period=day(number), gaps=gaps, values=values)


def two_teams(number: int = 0) -> PeriodFacts:
    """team-b gave to team-a; only H100 have a price."""
    return facts(
        number,
        {
            Measure.GPU_SECONDS: {
                ("team-a", "research", "H100", "Busy"): 20 * HOUR_S,
                ("team-a", "research", "H100", "Idle"): 4 * HOUR_S,
                ("team-b", "shared", "A100", "HeldIdle"): 12 * HOUR_S,
            },
            Measure.IDLE_COST: {("team-a", "research", "H100", "EUR"): 16.8},
            Measure.UNPRICED_IDLE_SECONDS: {("A100",): 12 * HOUR_S},
            Measure.RECLAIMED_GPU_SECONDS: {("team-b", "shared"): 6 * HOUR_S},
            Measure.GIVEN_GPU_SECONDS: {("team-b", "team-a", "research"): 5 * HOUR_S},
            Measure.GIVEN_GPUS: {("team-b", "team-a", "research"): 2},
            Measure.SUSPENSIONS: {("team-b", "GPUsIdle"): 3.002},
            Measure.REGRETS: {("team-b", "GPUsIdle"): 1},
            Measure.WAITS: {("research", "60.0"): 1, ("research", "+Inf"): 2},
            Measure.WAIT_SECONDS: {("research",): 7260},
            Measure.PRICE: {("H100", "EUR"): 4.2},
            Measure.REGRET_WINDOW: {(): 1800},
            Measure.HIDDEN_WORKLOADS: {("Idle",): 7},
            Measure.ENERGY: {("team-b", "gpu-operator", "A100"): 3.6e9 * 2},
        },
    )
