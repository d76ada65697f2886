"""The report on the page: for one who may see some namespaces, while it is read, and where there is none."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from analysis.report.report_builders import ScriptedReports, two_teams
from builders import NOON
from page_builders import PageSite
from reporting.page.test_page import serving
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.measures import Measure
from scaler_analysis.report.page import PageReports, ReportChoice

from scaler.errors import QueryError
from scaler.samples.prometheus import PrometheusSource

WEEK = ReportChoice(since=timedelta(days=7), by=GroupBy.TEAM)


class VirtualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> object:
        return NOON


def reports(
    source: PrometheusSource | None, clock: VirtualClock | None = None, *, patience_s: float = 3.0
) -> PageReports:
    used: Any = clock or VirtualClock()
    return PageReports(source=source, matchers={"cluster": "prod"}, clock=used, patience_s=patience_s)


async def test_the_page_shows_what_the_verb_shows() -> None:
    async with serving(PageSite(reports=ScriptedReports())) as client:
        html = (await client.get("/report?since=30d&by=queue")).html
    for words in (
        "01 Nov 2026 12:00",
        "01 Dec 2026 12:00",
        ">research<",
        "Who gave GPUs to whom",
        'class="fill-HeldIdle"',
    ):
        assert words in html


async def test_of_one_namespace_only_its_own_numbers_are_shown() -> None:
    async with serving(PageSite(reports=ScriptedReports())) as client:
        html = (await client.get("/report?namespace=team-a")).html
    main = html[html.index("<main") : html.index("</main>")]
    assert "team-a" in main
    # Who may see both is told who gave, and nothing else of it.
    assert main.count("team-b") == 1
    assert "How long Workloads waited" not in main


async def test_who_may_see_one_namespace_sees_no_name_of_another() -> None:
    for choice in (WEEK, replace(WEEK, namespace="team-a"), replace(WEEK, by=GroupBy.QUEUE)):
        view, _ = await reports(ScriptedReports()).read(choice, NOON, frozenset({"team-a"}))
        assert view is not None
        assert "team-b" not in repr(view)
        assert "prod" not in repr(view)
    view, _ = await reports(ScriptedReports()).read(replace(WEEK, namespace="team-b"), NOON, frozenset({"team-a"}))
    assert view is not None
    assert (view.rows, view.transfers, view.report.total.held_hours) == ([], [], 0)


async def test_without_prometheus_it_says_what_it_needs() -> None:
    async with serving(PageSite()) as client:
        assert "A report needs Prometheus: prometheus.url" in (await client.get("/report")).text


@pytest.mark.parametrize("query", [{"since": "2d"}, {"by": "user"}, {"since": ""}, {"since": "7d\n"}])
def test_what_there_is_not_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(QueryError, match="write one of"):
        ReportChoice.of(query)


async def test_what_takes_long_is_said_to_be_read_and_nobody_waits() -> None:
    view, problem = await reports(ScriptedReports(hangs=True), patience_s=0.01).read(WEEK, NOON, None)
    assert (view, problem) == (None, "Prometheus is being asked: 0 of ? parts of the time are read.")


async def test_while_one_is_read_no_other_of_the_same_length_is_begun() -> None:
    source = ScriptedReports(hangs=True)
    found = reports(source, patience_s=0.01)
    for number in range(4):
        await found.read(WEEK, NOON + timedelta(minutes=10 * number), None)
    assert len(source.asked) == 1


async def test_a_failure_is_said_and_tried_again_after_a_while() -> None:
    source, clock = ScriptedReports(error="503 at http://secret"), VirtualClock()
    found = reports(source, clock)
    for _ in range(3):
        assert await found.read(WEEK, NOON, None) == (
            None,
            "Prometheus did not answer in time. It is asked again soon.",
        )
    assert len(source.asked) == 1
    clock.seconds += 21
    source.error = ""
    view, _ = await found.read(WEEK, NOON, None)
    assert view is not None


async def test_whoever_looks_it_is_read_once_and_days_that_are_over_are_kept() -> None:
    source, clock = ScriptedReports(), VirtualClock()
    found = reports(source, clock)
    await asyncio.gather(*(found.read(WEEK, NOON + timedelta(seconds=each), None) for each in range(5)))
    once = len(source.asked)
    assert len({*source.asked}) >= 20
    for by in GroupBy:
        await found.read(ReportChoice(since=WEEK.since, by=by), NOON + timedelta(minutes=4), frozenset({"team-a"}))
    # Only the chart of team-a, for each grouping: two queries.
    assert {each for each in source.asked[once:] if "team-a" not in each} == set()
    asked = len(source.asked)
    await found.read(WEEK, NOON + timedelta(minutes=4), None)
    assert len(source.asked) == asked
    await found.read(WEEK, NOON + timedelta(minutes=10), None)
    again = [each for each in source.asked[asked:] if "build_info" in each]
    # The first period and the last one are others now: two queries each.
    assert len(again) == 4


async def test_queries_are_made_one_after_the_other_and_carry_the_matchers() -> None:
    at_once: list[int] = []

    class Counted(ScriptedReports):
        under_way = 0

        async def _is_asked(self, promql: str) -> None:
            self.under_way += 1
            await asyncio.sleep(0)
            at_once.append(self.under_way)
            self.under_way -= 1
            await super()._is_asked(promql)

    source = Counted(values={**two_teams().values, Measure.ENERGY: {}})
    view, _ = await reports(source).read(WEEK, NOON, None)
    assert view is not None
    assert max(at_once[:-2]) == 1  # but for the two of the chart
    assert all('cluster="prod"' in each for each in source.asked)
