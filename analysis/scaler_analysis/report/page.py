"""The report on the page: the same numbers as the verb's, read in the background, and shown when they are there.

Laws:

* Samples come first: one query at a time, and one report, whoever looks. Days that are over are kept.
* Nobody waits for long: what takes longer is said to be being read, with how much of it is there.
* It is read for the whole cluster once; each looker sees the namespaces that the page shows to them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import structlog

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.errors import QueryError, SourceError
from scaler.idleness.durations import format_duration
from scaler.reporting.page.fleet_chart import FleetSample
from scaler.reporting.page.fleet_history import read_fleet
from scaler.samples.prometheus import PrometheusSource
from scaler_analysis.document import TEMPLATES
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.measures import PeriodFacts
from scaler_analysis.report.own_metrics import OwnMetrics
from scaler_analysis.report.periods import DAY, Period
from scaler_analysis.report.reader import ReportReader
from scaler_analysis.report.summary import summarized
from scaler_analysis.report.view import TITLES, ReportView, chart_step, view_of

log = structlog.get_logger(__name__)

SPANS = (DAY, 7 * DAY, 30 * DAY)
_USUAL = 7 * DAY
_ROUND = timedelta(minutes=5)
"""What the end of a report is rounded to: for so long the same one is shown."""
_AGAIN_AFTER_S = 20.0
"""When a report that could not be read is read again."""
_MOST_VIEWS = 64
_MOST_ROWS = 200
_NO_PROMETHEUS = "A report needs Prometheus: prometheus.url of the settings, and a job that scrapes every replica."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChoice:
    """Which report is asked for."""

    since: timedelta
    by: GroupBy
    namespace: str = ""
    """The one that it is about; empty: all."""

    @classmethod
    def of(cls, query: Mapping[str, str], namespace: str = "") -> "ReportChoice":
        """Raises: QueryError for what there is not."""
        spans = {format_duration(each): each for each in SPANS}
        since, by = query.get("since", format_duration(_USUAL)), query.get("by", GroupBy.TEAM)
        if since not in spans:
            raise QueryError(f"since={since[:20]!r}: write one of {', '.join(spans)}", status=400)
        if by not in [*GroupBy]:
            raise QueryError(f"by={by[:20]!r}: write one of {', '.join(GroupBy)}", status=400)
        return cls(since=spans[since], by=GroupBy(by), namespace=namespace)


@dataclass(slots=True)
class _Reading:
    whole: Period
    task: "asyncio.Task[Sequence[PeriodFacts] | None]"
    begun: float
    done: int = 0
    of: int = 0


@dataclass(kw_only=True)
class PageReports:
    source: PrometheusSource | None
    matchers: Mapping[str, str]
    """What the series of this scaler's own metrics carry there."""
    templates: ClassVar[Path] = TEMPLATES
    clock: Clock = SYSTEM_CLOCK
    patience_s: float = 3.0
    """How long one who looks waits."""
    _reader: ReportReader | None = field(default=None, init=False)
    _readings: dict[timedelta, _Reading] = field(default_factory=dict, init=False)
    """The latest of each length."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _views: dict[tuple[Period, ReportChoice, frozenset[str] | None], ReportView] = field(
        default_factory=dict, init=False
    )

    async def context(
        self, query: Mapping[str, str], namespace: str, at: datetime, namespaces: frozenset[str] | None
    ) -> Mapping[str, Any]:
        """What the template shows. Raises: QueryError."""
        choice = ReportChoice.of(query, namespace)
        view, problem = await self.read(choice, at, namespaces)
        title = TITLES[choice.by]
        return {
            "choice": choice, "spans": SPANS, "groups": [*GroupBy], "title": title, "view": view, "problem": problem,
        }  # fmt: skip

    async def read(
        self, choice: ReportChoice, at: datetime, namespaces: frozenset[str] | None
    ) -> tuple[ReportView | None, str]:
        """The report for one who may see these namespaces, None: all; or why there is none yet."""
        if self.source is None:
            return None, _NO_PROMETHEUS
        end = at - (at - at.replace(hour=0, minute=0, second=0, microsecond=0)) % _ROUND
        reading = self._reading(self.source, Period(end - choice.since, end))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience_s):
                await asyncio.shield(reading.task)
        if not reading.task.done():
            return None, f"Prometheus is being asked: {reading.done} of {reading.of or '?'} parts of the time are read."
        facts, whole = reading.task.result(), reading.whole
        if facts is None:
            return None, "Prometheus did not answer in time. It is asked again soon."
        return await self._view(self.source, facts, whole, choice, namespaces), ""

    async def _view(
        self,
        source: PrometheusSource,
        facts: Sequence[PeriodFacts],
        whole: Period,
        choice: ReportChoice,
        namespaces: frozenset[str] | None,
    ) -> ReportView:
        """The view, made in a thread: many tenants over many days take a while, in which KEDA is answered."""
        key = whole, choice, namespaces
        if key in self._views:
            return self._views[key]
        shown = namespaces
        if choice.namespace:
            shown = frozenset({choice.namespace} & (namespaces if namespaces is not None else {choice.namespace}))
        samples = await self._chart(source, whole, shown)

        def made() -> ReportView:
            report = summarized(facts, whole, choice.by, namespaces=namespaces, about=choice.namespace)
            matchers = self.matchers if namespaces is None else {}
            return view_of(report, matchers, samples or (), most_rows=_MOST_ROWS)

        view = await asyncio.to_thread(made)
        self._views = {each: kept for each, kept in self._views.items() if each[0].end >= whole.end}
        if samples is not None and len(self._views) < _MOST_VIEWS:
            self._views[key] = view
        return view

    def _reading(self, source: PrometheusSource, whole: Period) -> _Reading:
        """The one of that length that is under way, or the one of that time; a failed one is tried again."""
        now, found = self.clock.monotonic(), self._readings.get(whole.length)
        if found is not None and not found.task.done():
            return found
        if found is not None and found.whole == whole and not (_failed(found) and now - found.begun >= _AGAIN_AFTER_S):
            return found
        task = asyncio.create_task(self._read(source, whole), name="report of the page")
        made = self._readings[whole.length] = _Reading(whole, task, now)
        return made

    async def _read(self, source: PrometheusSource, whole: Period) -> Sequence[PeriodFacts] | None:
        """The facts of the periods; None where Prometheus does not answer."""
        self._reader = self._reader or ReportReader(source, OwnMetrics(matchers=self.matchers), at_once=1)

        def read(done: int, of: int) -> None:
            reading = self._readings[whole.length]
            reading.done, reading.of = done, of

        async with self._turn:
            try:
                return await self._reader.read(whole, now=self.clock.now(), read=read)
            except SourceError as error:
                log.warning("report of the page not read", error=str(error))
                return None

    async def _chart(
        self, source: PrometheusSource, whole: Period, namespaces: frozenset[str] | None
    ) -> Sequence[FleetSample] | None:
        """The samples of the chart; None where Prometheus does not answer."""
        try:
            async with asyncio.timeout(self.patience_s):
                return await read_fleet(
                    source,
                    self.matchers,
                    end=whole.end,
                    span=whole.length,
                    step=chart_step(whole),
                    namespaces=namespaces,
                )
        except (SourceError, TimeoutError):
            return None


def _failed(reading: _Reading) -> bool:
    return reading.task.exception() is not None or reading.task.result() is None
