"""What is known of one period. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from scaler_analysis.report.measures import LabelValues, Measure
from scaler_analysis.report.periods import Period


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodFacts:
    period: Period
    gaps: Sequence[Period]
    """When nothing is known."""
    values: Mapping[Measure, Mapping[LabelValues, float]] = field(default_factory=dict)

    @property
    def known(self) -> timedelta:
        return self.period.length - sum((each.length for each in self.gaps), timedelta(0))
