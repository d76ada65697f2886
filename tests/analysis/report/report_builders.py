"""Facts of periods, and a source of them, without a Prometheus."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scaler_analysis.report.measures import LabelValues, Measure, PeriodFacts
from scaler_analysis.report.own_metrics import OwnMetrics
from scaler_analysis.report.periods import DAY, Period

from scaler.errors import SourceError
from scaler.samples.source import RawSeries, VectorSample

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


# ------------------------------------------------------------------------------------------ in place of Prometheus


class _Samples:
    """One series."""

    key = b""

    def __init__(self, labels: Mapping[str, str], samples: Sequence[tuple[float, float]]) -> None:
        self._labels, self._samples = dict(labels), samples

    def labels(self) -> dict[str, str]:
        return self._labels

    def samples(self) -> Sequence[tuple[float, float]]:
        return self._samples


def _metric_in(promql: str) -> str:
    found = re.search(r"(idle_gpu_scaler|DCGM_FI)_\w+", promql)
    assert found is not None, promql
    return found.group()


_MEASURES = {_metric_in(each.promql(OwnMetrics(), day(0), {"x"})): each for each in Measure}


@dataclass
class ScriptedReports:
    """Answers as a Prometheus with the same values in every period, in which a replica led all the time."""

    values: Mapping[Measure, Mapping[LabelValues, float]] = field(default_factory=lambda: two_teams().values)
    hangs: bool = False
    error: str = ""
    asked: list[str] = field(default_factory=list)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        await self._is_asked(promql)
        if promql.startswith("group by (job)"):
            return [VectorSample({"job": "scaler"}, 1)]
        measure = _MEASURES[_metric_in(promql)]
        found = self.values.get(measure, {})
        return [VectorSample(dict(zip(measure.labels, each, strict=True)), value) for each, value in found.items()]

    async def ranges(self, promql: str, *, at: datetime) -> Sequence[RawSeries]:
        await self._is_asked(promql)
        begin, step = re.findall(r"\[(\d+)s:(\w+)\]", promql)[0]
        seconds = 60 if step == "1m" else int(step[:-1])
        end = at.timestamp()
        times = [end - n * seconds for n in range(int(begin) // seconds, 0 if "offset" in promql else -1, -1)]
        if "build_info" in promql:
            return [_Samples({}, [(each, 1) for each in times])]
        states = {"Busy": 20, "HeldIdle": 12, "Idle": 4} if "sum by (state)" in promql else {"": 6}
        return [_Samples({"state": name}, [(each, gpus) for each in times]) for name, gpus in states.items()]

    async def _is_asked(self, promql: str) -> None:
        self.asked.append(promql)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise SourceError(self.error, transient=True)
