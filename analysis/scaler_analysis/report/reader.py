"""Reads periods from Prometheus: a few queries at a time, each about one period, none twice about one that is over.

Laws:

* A period is read as a whole or not at all: where one query fails, so does the report. What is missing is no 0.
* Before anything else it is asked when the scaler was scraped at all and a replica led. Of other times nothing is
  known, and the report says so; where there is nothing of a period, nothing more is asked about it.
* So many queries at once, each within the timeout of the settings.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite

from scaler.samples.prometheus import PrometheusSource
from scaler.samples.promql import range_duration
from scaler_analysis.report.measures import LabelValues, Measure, PeriodFacts, every_minute
from scaler_analysis.report.own_metrics import OwnMetrics
from scaler_analysis.report.periods import Period, gaps_in, periods_of

_SETTLED_AFTER = timedelta(minutes=10)
"""How long after its end a period may still get samples."""
_MOST_KEPT = 100


class ReportReader:
    def __init__(self, source: PrometheusSource, own: OwnMetrics, *, at_once: int) -> None:
        self.own = own
        self._source = source
        self._at_once = at_once
        self._kept: dict[Period, PeriodFacts] = {}

    async def read(
        self, whole: Period, *, now: datetime, read: Callable[[int, int], None] | None = None
    ) -> list[PeriodFacts]:
        """What its periods show, in order. `read` is called after each with how many there are. Raises: SourceError."""
        periods, slots, facts = periods_of(whole), asyncio.Semaphore(self._at_once), list[PeriodFacts]()
        for number, period in enumerate(periods, 1):
            facts.append(await self._period(period, now, slots))
            if read is not None:
                read(number, len(periods))
        return facts

    async def _period(self, period: Period, now: datetime, slots: asyncio.Semaphore) -> PeriodFacts:
        if period in self._kept:
            return self._kept[period]
        facts = await self._asked(period, slots)
        if now - period.end >= _SETTLED_AFTER and period.is_round:
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[period] = facts
        return facts

    async def _asked(self, period: Period, slots: asyncio.Semaphore) -> PeriodFacts:
        led = await self._source.ranges(every_minute(self.own.led, period), at=period.end)
        known = [datetime.fromtimestamp(at_s, UTC) for series in led for at_s, _ in series.samples()]
        gaps = gaps_in(period, known)
        if not known:
            return PeriodFacts(period=period, gaps=gaps)
        scraped = f"group by (job) (last_over_time({self.own.of('build_info')}[{range_duration(period.length)}]))"
        jobs = {each.labels.get("job", "") for each in await self._source.demand(scraped, at=period.end)}
        measures: list[Measure] = [each for each in Measure if each is not Measure.POWER]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {each: group.create_task(self._value(each, period, jobs, slots)) for each in measures}
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled by it
        values: dict[Measure, Mapping[LabelValues, float]] = {each: task.result() for each, task in tasks.items()}
        if not values[Measure.ENERGY]:
            values[Measure.POWER] = await self._value(Measure.POWER, period, jobs, slots)
        return PeriodFacts(period=period, gaps=gaps, values=values)

    async def _value(
        self, measure: Measure, period: Period, jobs: set[str], slots: asyncio.Semaphore
    ) -> Mapping[LabelValues, float]:
        async with slots:
            found = await self._source.demand(measure.promql(self.own, period, jobs), at=period.end)
        return {
            tuple(each.labels.get(name, "") for name in measure.labels): each.value
            for each in found
            if isfinite(each.value)
        }
