"""Where the states of the fleet come from: Prometheus, or the memory of this process, which says so."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest
from builders import NOON, at

from scaler.errors import SourceError
from scaler.reporting.page.fleet_history import FleetHistoryReader, FleetMemory
from scaler.reporting.usage.gpu_states import GpuState, GpuStatus
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner
from scaler.samples.source import RawSeries

MINUTE = timedelta(minutes=1)


def usage(seconds: float, *held: tuple[str, GpuState, int]) -> FleetUsage:
    gpus = Counter({(GpuOwner(name, "queue", "A100"), GpuStatus(state)): count for name, state, count in held})
    return FleetUsage(at=at(seconds), gpus=gpus)


class Made:
    """One series."""

    key = b""

    def __init__(self, labels: dict[str, str], *samples: tuple[float, float]) -> None:
        self._labels, self._samples = labels, samples

    def labels(self) -> dict[str, str]:
        return self._labels

    def samples(self) -> Sequence[tuple[float, float]]:
        return [(NOON.timestamp() + seconds, value) for seconds, value in self._samples]


class Prometheus:
    """Answers with the series of the query that begins so, and remembers what it was asked."""

    def __init__(self, *, hangs: bool = False, error: str = "", **series: Sequence[RawSeries]) -> None:
        self._series, self._hangs, self._error = series, hangs, error
        self.asked: list[str] = []

    async def ranges(self, promql: str, *, at: object) -> Sequence[RawSeries]:
        self.asked.append(promql)
        if self._hangs:
            await asyncio.Event().wait()
        if self._error:
            raise SourceError(self._error, transient=True)
        return self._series["held" if "state" in promql else "at_zero"]


class VirtualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def memory(*usages: FleetUsage) -> FleetMemory:
    made = FleetMemory(interval=MINUTE)
    for each in usages:
        made.add(each, {})
    return made


TWO_TEAMS = memory(usage(0, ("team-a", GpuState.BUSY, 3), ("team-b", GpuState.IDLE, 5)))


# ------------------------------------------------------------------------------------------------------------- memory


async def test_without_prometheus_it_is_what_the_process_has_seen() -> None:
    found = await FleetHistoryReader(TWO_TEAMS, None).read(NOON)
    assert found.source == "seen by this process since it started"
    assert [(each.at, each.gpus) for each in found.samples] == [(NOON, {"Busy": 3, "Idle": 5})]


@pytest.mark.parametrize(
    ("namespaces", "gpus"), [({"team-a"}, {"Busy": 3}), ({"team-b", "team-x"}, {"Idle": 5}), (set(), {})]
)
async def test_of_some_namespaces_only_theirs_count(namespaces: set[str], gpus: dict[str, float]) -> None:
    found = await FleetHistoryReader(TWO_TEAMS, None).read(NOON, namespaces)
    assert [each.gpus for each in found.samples] == [gpus]


async def test_suspended_gpus_count_beside_those_that_are_held() -> None:
    made = FleetMemory(interval=MINUTE)
    made.add(usage(0, ("team-a", GpuState.BUSY, 1)), {("team-a", "q"): 2, ("team-a", "r"): 3})
    assert made.samples(None)[0].gpus == {"Busy": 1, "Suspended": 5}


def test_it_looks_no_more_often_than_is_due() -> None:
    made = memory(usage(0, ("a", GpuState.BUSY, 1)), usage(30, ("a", GpuState.BUSY, 2)), usage(60))
    assert [each.at for each in made.samples(None)] == [at(0), at(60)]
    assert not made.is_due(at(119))
    assert made.is_due(at(120))


def test_samples_become_rarer_until_they_reach_back_for_six_hours_and_then_old_ones_go() -> None:
    made = FleetMemory(interval=timedelta(seconds=15))
    for number in range(4 * 60 * 8):  # eight hours
        made.add(usage(15 * number, ("a", GpuState.BUSY, 1)), {})
    samples = made.samples(None)
    assert len(samples) <= 360
    assert samples[-1].at - samples[0].at >= timedelta(hours=5, minutes=58)
    assert samples[-1].at >= at(8 * 3600 - 60)


def test_namespaces_beyond_the_limit_are_counted_together() -> None:
    made = FleetMemory(interval=MINUTE, namespaces=2)
    made.add(usage(0, *((name, GpuState.BUSY, 1) for name in "abcd")), {})
    assert made.samples(None)[0].gpus == {"Busy": 4}
    assert made.samples(["(others)"])[0].gpus == {"Busy": 2}


# --------------------------------------------------------------------------------------------------------- Prometheus


HELD = [Made({"state": "Busy"}, (-180, 4), (0, 5)), Made({"state": "Idle"}, (0, 2)), Made({"state": "<b>"}, (0, 9))]
AT_ZERO = [Made({}, (0, 8))]


async def test_prometheus_has_the_hours_before_this_process() -> None:
    prometheus = Prometheus(held=HELD, at_zero=AT_ZERO)
    found = await FleetHistoryReader(TWO_TEAMS, prometheus).read(NOON)
    assert found.source == "metrics of the scaler in Prometheus"
    assert [(each.at, each.gpus) for each in found.samples] == [
        (at(-180), {"Busy": 4}),
        (at(0), {"Busy": 5, "Idle": 2, "Suspended": 8}),
    ]
    assert prometheus.asked == [
        "sum by (state) (idle_gpu_scaler_gpus)[21600s:180s]",
        "sum (idle_gpu_scaler_suspended_gpus)[21600s:180s]",
    ]


async def test_clusters_in_one_prometheus_are_not_added_up() -> None:
    prometheus = Prometheus(held=HELD, at_zero=AT_ZERO)
    reader = FleetHistoryReader(TWO_TEAMS, prometheus, matchers={"cluster": "prod"})
    await reader.read(NOON, {"team-b"})
    chosen = '{workload_namespace=~"team-b",cluster="prod"}'
    assert prometheus.asked == [
        f"sum by (state) (idle_gpu_scaler_gpus{chosen})[21600s:180s]",
        f"sum (idle_gpu_scaler_suspended_gpus{chosen})[21600s:180s]",
    ]


async def test_of_some_namespaces_it_is_asked_for_theirs_and_no_name_becomes_an_expression() -> None:
    prometheus = Prometheus(held=HELD, at_zero=AT_ZERO)
    await FleetHistoryReader(TWO_TEAMS, prometheus).read(NOON, {"team-b", 'a"} or vector(1) #', ".*"})
    assert prometheus.asked[0].startswith('sum by (state) (idle_gpu_scaler_gpus{workload_namespace=~"team-b"})[')
    assert (await FleetHistoryReader(TWO_TEAMS, prometheus).read(NOON, {".*"})).samples[0].gpus == {}
    assert len(prometheus.asked) == 2


@pytest.mark.parametrize(
    ("prometheus", "why"),
    [
        (Prometheus(error="503"), "Prometheus did not answer in time"),
        (Prometheus(held=[], at_zero=[]), "Prometheus has no metrics of this scaler"),
    ],
)
async def test_where_prometheus_has_nothing_memory_is_shown_and_why(prometheus: Prometheus, why: str) -> None:
    found = await FleetHistoryReader(TWO_TEAMS, prometheus).read(NOON)
    assert found.source == f"seen by this process since it started; {why}"
    assert found.samples[0].gpus == {"Busy": 3, "Idle": 5}


async def test_it_is_asked_once_in_a_while_whoever_looks() -> None:
    prometheus, clock = Prometheus(held=HELD, at_zero=AT_ZERO), VirtualClock()
    reader = FleetHistoryReader(TWO_TEAMS, prometheus, clock=clock)  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.gather(reader.read(NOON), reader.read(NOON))
    assert len(prometheus.asked) == 2  # one for each metric
    clock.seconds += 21
    await reader.read(NOON)
    assert len(prometheus.asked) == 4
