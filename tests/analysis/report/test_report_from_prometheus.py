"""Reports from a real Prometheus that was filled with known series, minute by minute: exact numbers.

A team that holds two GPUs idle for a day holds 2 × 24 = 48 GPU-hours idle.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from analysis.report.recorded_days import Process, RecordedDays
from prometheus_server import PrometheusServer, require_prometheus
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.own_metrics import OwnMetrics
from scaler_analysis.report.periods import MINUTE, Period, range_until
from scaler_analysis.report.reader import ReportReader
from scaler_analysis.report.summary import ReportRow, UsageReport, summarized

from scaler.reporting.page.fleet_history import read_fleet
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource

pytestmark = [pytest.mark.prometheus]

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
DAY = 1440
TEAM = {"workload_namespace": "team-a", "cluster_queue": "research", "model": "H100"}
IDLE = {**TEAM, "state": "Idle"}
NOTHING = OwnMetrics()


@pytest.fixture(scope="module", autouse=True)
def _prometheus() -> None:
    require_prometheus()


@asynccontextmanager
async def asked(folder: Path, days: RecordedDays) -> AsyncIterator[PrometheusSource]:
    server = PrometheusServer(folder, flags=["--storage.tsdb.retention.time=10y"])
    server.backfill(days.openmetrics)
    with server:
        source = PrometheusSource(PrometheusConfig(url=server.url))
        try:
            yield source
        finally:
            await source.close()


async def report(
    source: PrometheusSource, since: int, until: int, by: GroupBy = GroupBy.TEAM, own: OwnMetrics = NOTHING
) -> UsageReport:
    """Of the time between two days after the begin."""
    whole = range_until(BEGIN + timedelta(days=until), timedelta(days=until - since))
    return summarized(await ReportReader(source, own, at_once=4).read(whole, now=whole.end), whole, by)


async def reported(folder: Path, days: RecordedDays, since: int, until: int, by: GroupBy = GroupBy.TEAM) -> UsageReport:
    async with asked(folder, days) as source:
        return await report(source, since, until, by)


def hours(rows: Iterable[ReportRow]) -> Mapping[tuple[str, ...], float]:
    return {each.name: round(each.idle_hours, 1) for each in rows}


def holds(process: Process, gpus: int, minutes: Iterable[int], labels: Mapping[str, str] = IDLE) -> None:
    """GPUs in that state at these minutes; the counter begins with the first one."""
    for number, minute in enumerate(minutes, 1):
        process.shows("gpu_seconds_total", labels, minute, 60 * gpus * number)


# ----------------------------------------------------------------------------------------------------------- counters


async def test_two_idle_gpus_for_two_days_are_96_gpu_hours(tmp_path: Path) -> None:
    days, minutes = RecordedDays(BEGIN), range(-120, 2 * DAY + 1)
    holds(days.process("a", minutes, leads=minutes), 2, minutes)
    found = await reported(tmp_path, days, 0, 2)
    assert hours(found.rows) == {("team-a",): 96.0}
    assert found.gaps == []
    assert found.known == timedelta(days=2)


async def test_another_leader_continues_with_counters_of_its_own(tmp_path: Path) -> None:
    days, minutes = RecordedDays(BEGIN), range(-120, 2 * DAY + 1)
    first, later = range(-120, DAY + 700), range(DAY + 700, 2 * DAY + 1)
    a, b = days.process("a", minutes, leads=first), days.process("b", minutes, leads=later)
    holds(a, 2, first)
    for minute in later:  # it does not lead, and shows what it has counted
        a.shows("gpu_seconds_total", IDLE, minute, 60 * 2 * len(first))
    holds(b, 2, later)
    # Of more than three days each day is one period.
    assert hours((await reported(tmp_path, days, 0, 4)).rows) == {("team-a",): 96.0}


async def test_a_process_that_starts_anew_counts_from_0_again(tmp_path: Path) -> None:
    days, minutes = RecordedDays(BEGIN), range(-120, 2 * DAY + 1)
    process = days.process("a", minutes, leads=minutes)
    holds(process, 2, range(-120, DAY + 700))
    holds(process, 2, range(DAY + 700, 2 * DAY + 1))
    assert hours((await reported(tmp_path, days, 0, 4)).rows) == {("team-a",): 96.0}


async def test_the_first_event_of_a_series_counts(tmp_path: Path) -> None:
    days, minutes = RecordedDays(BEGIN), range(-120, 4 * DAY + 1)
    process = days.process("a", minutes, leads=minutes)
    reason = {"workload_namespace": "team-a", "reason": "GPUsIdle"}
    holds(process, 2, minutes)
    process.counts(
        "suspensions_total", reason, lambda minute: 1 if minute < 2 * DAY else 3, minutes=range(900, 4 * DAY + 1)
    )
    process.counts("regrets_total", reason, lambda _: 1, minutes=range(2 * DAY + 20, 4 * DAY + 1))
    row = (await reported(tmp_path, days, 0, 4)).rows[0]
    assert round(row.suspensions or 0, 1) == 3
    assert row.regrets == 1
    assert row.resumptions == 0


async def test_so_does_that_of_a_process_that_started_within_the_time(tmp_path: Path) -> None:
    days, minutes = RecordedDays(BEGIN), range(500, 2 * DAY + 1)
    process = days.process("a", minutes, leads=minutes, started=499)
    process.counts(
        "suspensions_total", {"workload_namespace": "team-a", "reason": "GPUsIdle"}, lambda _: 1, minutes=minutes
    )
    assert (await reported(tmp_path, days, 0, 2)).rows[0].suspensions == 1


async def test_what_was_counted_before_prometheus_has_anything_is_not_of_this_time(tmp_path: Path) -> None:
    """It scraped a process for the first time that has counted for long; so it looks where its retention ends."""
    days, minutes = RecordedDays(BEGIN), range(2 * DAY + 60, 4 * DAY + 1)
    process = days.process("a", minutes, leads=minutes, started=-100 * DAY)
    process.counts("gpu_seconds_total", IDLE, lambda minute: 9e9 + 120 * minute, minutes=minutes)
    process.counts(
        "suspensions_total", {"workload_namespace": "team-a", "reason": "GPUsIdle"}, lambda _: 7000, minutes=minutes
    )
    found = await reported(tmp_path, days, 0, 4)
    assert hours(found.rows) == {("team-a",): pytest.approx(2 * 47, abs=0.1)}
    assert found.rows[0].suspensions == 0
    assert found.gaps == [Period(BEGIN, BEGIN + (2 * DAY + 60) * MINUTE)]


# --------------------------------------------------------------------------------------------------------------- gaps


async def test_what_was_not_scraped_is_a_gap_and_so_is_a_time_without_a_leader(tmp_path: Path) -> None:
    days = RecordedDays(BEGIN)
    scraped = [*range(-120, DAY), *range(DAY + 300, 4 * DAY + 1)]
    led = [each for each in scraped if not 2 * DAY <= each < 2 * DAY + 90]
    holds(days.process("a", scraped, leads=led), 2, led)
    gaps = (await reported(tmp_path, days, 0, 4)).gaps
    # Prometheus takes a sample for the newest one for five minutes.
    lookback = 5
    assert gaps == [
        Period(BEGIN + (DAY + lookback) * MINUTE, BEGIN + (DAY + 300) * MINUTE),
        Period(BEGIN + 2 * DAY * MINUTE, BEGIN + (2 * DAY + 90) * MINUTE),
    ]


async def test_a_process_without_a_lease_shows_everything_and_leaves_no_gap(tmp_path: Path) -> None:
    days, minutes = RecordedDays(BEGIN), range(-60, DAY + 1)
    process = Process(days, {"job": "scaler"})
    for minute in minutes:
        process.shows("build_info", {}, minute, 1)
    holds(process, 1, minutes)
    found = await reported(tmp_path, days, 0, 1)
    assert found.gaps == []
    assert hours(found.rows) == {("team-a",): 24.0}


async def test_where_there_is_nothing_nothing_is_known(tmp_path: Path) -> None:
    days = RecordedDays(BEGIN)
    days.sample("up", {}, 0, 1)
    found = await reported(tmp_path, days, 0, 4)
    assert (found.rows, found.known) == ([], timedelta(0))
    assert found.total.idle_cost is None


# ---------------------------------------------------------------------------------------------- several clusters


async def test_two_clusters_in_one_prometheus_are_kept_apart(tmp_path: Path) -> None:
    minutes = range(-120, 2 * DAY + 1)
    one, other = RecordedDays(BEGIN, {"cluster": "one"}), RecordedDays(BEGIN, {"cluster": "other"})
    for days, gpus in ((one, 2), (other, 5)):
        process = days.process("scaler-0", minutes, leads=minutes)
        holds(process, gpus, minutes)
        for minute in range(2 * DAY - 400, 2 * DAY + 1):
            process.shows("gpus", {**IDLE, "reason": ""}, minute, gpus)
            process.shows(
                "workload_idle_seconds", {"workload_namespace": "team-a", "kind": "Job", "name": "j"}, minute, gpus
            )
    for name, lines in other.lines.items():
        one.lines[name] += lines
    async with asked(tmp_path, one) as source:
        for cluster, gpus in (("one", 2), ("other", 5)):
            own, end = OwnMetrics(matchers={"cluster": cluster}), BEGIN + timedelta(days=2)
            assert hours((await report(source, 0, 2, own=own)).rows) == {("team-a",): gpus * 48.0}
            samples = await read_fleet(
                source, own.matchers, end=end, span=timedelta(hours=6), step=timedelta(minutes=3)
            )
            assert {each.gpus["Idle"] for each in samples} == {gpus}
        assert hours((await report(source, 0, 2)).rows) == {("team-a",): 7 * 48.0}
        assert (await report(source, 0, 2, own=OwnMetrics(matchers={"cluster": "third"}))).known == timedelta(0)


# ------------------------------------------------------------------------------------------------------- all the rest


@pytest.fixture
def full() -> RecordedDays:
    """A day of two teams. Team b gives 4 GPUs to a gang of team a for half of it."""
    days, minutes = RecordedDays(BEGIN), range(-120, DAY + 1)
    process = days.process("a", minutes, leads=minutes)
    other = {"workload_namespace": "team-b", "cluster_queue": "shared", "model": "A100"}
    holds(process, 2, minutes)
    holds(process, 6, minutes, {**TEAM, "state": "Busy"})
    holds(process, 3, minutes, {**other, "state": "HeldIdle"})
    holds(process, 1, minutes, {**other, "state": "Unknown"})
    given = {"from_namespace": "team-b", "workload_namespace": "team-a", "cluster_queue": "research"}
    process.counts("given_gpus_total", given, lambda _: 4, minutes=range(720, DAY + 1))
    process.counts("given_gpu_seconds_total", given, lambda minute: 240 * (minute - 719), minutes=range(720, DAY + 1))
    suspended = {"workload_namespace": "team-b", "cluster_queue": "shared"}
    process.counts(
        "reclaimed_gpu_seconds_total", suspended, lambda minute: 240 * (minute - 719), minutes=range(720, DAY + 1)
    )
    cost = {**TEAM, "currency": "EUR"}
    process.counts("idle_cost_total", cost, lambda minute: 8 * (minute + 121) / 60, minutes=minutes)
    process.counts(
        "unpriced_idle_gpu_seconds_total", {"model": "A100"}, lambda minute: 180 * (minute + 121), minutes=minutes
    )
    waits = {"60.0": 1, "900.0": 9, "3600.0": 9, "+Inf": 10}
    for bound, count in waits.items():
        labels = {"cluster_queue": "research", "le": bound}
        process.counts(
            "admission_wait_seconds_bucket", labels, lambda _, count=count: count, minutes=range(60, DAY + 1)
        )  # type: ignore[misc]
    process.counts(
        "admission_wait_seconds_sum", {"cluster_queue": "research"}, lambda _: 12_000, minutes=range(60, DAY + 1)
    )
    workload = {
        "workload_namespace": "team-a",
        "cluster_queue": "research",
        "kind": "ScalableWorkload",
        "name": "train",
    }
    for minute in minutes:
        process.shows("gpu_hour_price", {"model": "H100", "currency": "EUR"}, minute, 4)
        process.shows("regret_window_seconds", {}, minute, 1800)
        process.shows("hidden_workloads", {"verdict": "Idle"}, minute, 2)
        process.shows("workload_gpus", {**workload, "state": "Busy"}, minute, 6)
        if minute >= 720:
            process.shows("workload_gpus", {**workload, "state": "Idle"}, minute, 2)
            process.shows("workload_idle_seconds", workload, minute, 60 * (minute - 719))
    return days


async def test_by_team(full: RecordedDays, tmp_path: Path) -> None:
    found = await reported(tmp_path, full, 0, 1)
    b, a = found.rows
    assert [a.name, b.name] == [("team-a",), ("team-b",)]
    assert [round(each, 1) for each in (a.held_hours, a.idle_hours, a.unknown_hours)] == [192, 48, 0]
    assert [round(each, 1) for each in (b.held_hours, b.idle_hours, b.unknown_hours)] == [96, 72, 24]
    assert {name: round(cost, 1) for name, cost in (a.idle_cost or {}).items()} == {"EUR": 192}
    assert b.idle_cost is None
    assert [round(each or 0, 1) for each in (a.got_hours, a.given_hours, b.got_hours, b.given_hours)] == [
        48.1,
        0,
        0,
        48.1,
    ]
    assert [round(each or 0, 1) for each in (a.suspended_hours, b.suspended_hours)] == [0, 48.1]
    assert (a.waiting, a.energy_kwh, a.longest_idle) == (None, None, None)


async def test_of_all(full: RecordedDays, tmp_path: Path) -> None:
    found = await reported(tmp_path, full, 0, 1)
    assert [(each.from_namespace, each.namespace, each.gpus, round(each.hours)) for each in found.transfers] == [
        ("team-b", "team-a", 4, 48)
    ]
    assert found.regret_within == timedelta(minutes=30)
    assert {model: round(hours) for model, hours in found.unpriced_hours.items()} == {"A100": 72}
    assert round(found.total.held_hours) == 288
    assert found.hidden_workloads == 2


async def test_by_queue_with_waiting_times(full: RecordedDays, tmp_path: Path) -> None:
    rows = {each.name[0]: each for each in (await reported(tmp_path, full, 0, 1, GroupBy.QUEUE)).rows}
    waiting = rows["research"].waiting
    assert waiting is not None
    assert (round(waiting.count), waiting.mean, waiting.most) == (10, timedelta(minutes=20), timedelta(minutes=15))
    assert rows["shared"].waiting is None
    assert (rows["shared"].given_hours, rows["shared"].suspensions) == (None, None)


async def test_by_model(full: RecordedDays, tmp_path: Path) -> None:
    rows = (await reported(tmp_path, full, 0, 1, GroupBy.MODEL)).rows
    assert hours(rows) == {("A100",): 72.0, ("H100",): 48.0}
    assert all(each.suspended_hours is None for each in rows)


async def test_by_workload(full: RecordedDays, tmp_path: Path) -> None:
    rows = (await reported(tmp_path, full, 0, 1, GroupBy.WORKLOAD)).rows
    assert [each.name for each in rows] == [("team-a", "research", "ScalableWorkload", "train")]
    # Six GPUs all day, and two more for half of it.
    assert [round(rows[0].held_hours, 1), round(rows[0].idle_hours, 1)] == [168, 24]
    assert rows[0].longest_idle == timedelta(hours=12, minutes=1)


# ------------------------------------------------------------------------------------------------------------- energy


def of_gpu(uuid: str, pod: str, namespace: str) -> dict[str, str]:
    exporter = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x", "modelName": "NVIDIA H100"}
    return {**exporter, "UUID": uuid, **({"exported_namespace": namespace, "exported_pod": pod} if pod else {})}


@pytest.mark.parametrize("metric", ["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"])
async def test_energy_is_that_of_the_pods_that_held_the_gpus(tmp_path: Path, metric: str) -> None:
    """A GPU of team-a takes 500 W all day, one that no pod holds 50 W. A partitioned one (MIG) is left out."""
    days, minutes = RecordedDays(BEGIN), range(-120, DAY + 1)
    process = days.process("a", minutes, leads=minutes)
    holds(process, 1, minutes)
    instance = {**of_gpu("C", "p", "team-a"), "GPU_I_ID": "1"}
    for labels, watts in ((of_gpu("A", "p", "team-a"), 500), (of_gpu("B", "", ""), 50), (instance, 9999)):
        for minute in minutes:
            millijoules = watts * 1000.0 * 60 * (minute + 200)
            days.sample(metric, labels, minute, watts if "POWER" in metric else millijoules)
            days.sample(metric, {**labels, "job": "again"}, minute, watts if "POWER" in metric else millijoules)
    async with asked(tmp_path, days) as source:
        by_team, by_model = await report(source, 0, 1), await report(source, 0, 1, GroupBy.MODEL)
    assert round(by_team.rows[0].energy_kwh or 0, 2) == 12.0
    assert round(by_team.total.energy_kwh or 0, 2) == 13.2
    assert {each.name: round(each.energy_kwh or 0, 2) for each in by_model.rows} == {
        ("NVIDIA-H100",): 13.2,
        ("H100",): 0,
    }
