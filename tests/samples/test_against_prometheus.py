"""The source against a real Prometheus."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from http_stub import HttpStub, Reply
from prometheus_server import PrometheusServer, require_prometheus, static_scrape

from scaler.idleness.gpu import Signal, Unit
from scaler.idleness.relabel import DEFAULT_RULES, relabel
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import RawSeries, ReadError, SignalReading

pytestmark = pytest.mark.prometheus

END = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
END_S = END.timestamp()
UTIL = Signal(name="gpu_util", metrics=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"), unit=Unit.PERCENT)
OLD_NAME = Signal(name="gpu_util", metrics=("DCGM_FI_DEV_GPU_UTIL",), unit=Unit.PERCENT)
STRANGE = 'a"} or vector(1) #\\ é'
PODS = ("train-0", "train-00", "train.0", "train-1")
MANY = 300
"""Series of the metric `many`, one sample each; more than the server's limit of samples."""


def line(metric: str, value: float, before_end_s: float, **labels: str) -> str:
    pairs = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    return f"{metric}{{{pairs}}} {value} {END_S - before_end_s:.3f}"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


HISTORY = "\n".join(
    [
        # Sampled every 30 s until 10 min before the end, then a hole, then twice within a second.
        *(line("DCGM_FI_DEV_GPU_UTIL", 10, before, gpu="0", cluster="x") for before in range(1800, 570, -30)),
        line("DCGM_FI_DEV_GPU_UTIL", 97.25, 0.75, gpu="0", cluster="x"),
        line("DCGM_FI_DEV_GPU_UTIL", 0, 0, gpu="0", cluster="x"),
        line("DCGM_FI_DEV_GPU_UTIL", 5, 60, gpu="1", cluster=STRANGE),
        line("DCGM_FI_DEV_GPU_UTIL_RATIO", 50, 60, gpu="2", cluster="x"),
        line("DCGM_FI_DEV_GPU_UTILITY", 1, 60, gpu="3", cluster="x"),
        *(line("many", 1, 30, n=str(n)) for n in range(MANY)),
        *(line("DCGM_FI_DEV_GPU_UTIL", 7, 1500, gpu="8", exported_namespace="team-a", exported_pod=x) for x in PODS),
        *(line("DCGM_FI_DEV_GPU_UTIL_RATIO", 8, 1500, gpu="9", namespace="team-a", pod=x) for x in PODS),
        *(line("idle_gpu_scaler_gpus", 4, 600, state="Busy", workload_namespace=x) for x in "ab"),
    ]
)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    require_prometheus()
    server = PrometheusServer(
        tmp_path_factory.mktemp("prometheus"), flags=["--query.max-samples=250"], route_prefix="behind/a/path"
    )
    server.backfill(HISTORY)
    with server:
        yield server


@asynccontextmanager
async def source(url: str, **settings: Any) -> AsyncIterator[PrometheusSource]:
    opened = PrometheusSource(PrometheusConfig(url=url, **{"timeout": timedelta(seconds=5), **settings}))
    try:
        yield opened
    finally:
        await opened.close()


def by_gpu(reading: SignalReading) -> dict[str, list[tuple[float, float]]]:
    """(seconds before the end, value) of each GPU's samples."""
    return {
        series.labels()["gpu"]: [(round(END_S - at, 3), value) for at, value in series.samples()]
        for series in reading.series
    }


async def test_samples_are_raw_and_holes_stay_holes(prometheus: PrometheusServer) -> None:
    async with source(prometheus.url) as opened:
        found = by_gpu(await opened.read(OLD_NAME, start=END - timedelta(minutes=30), end=END))
    # (start, end]: the sample exactly 1800 s before the end is out, so 1770, 1740 … 600 make 40.
    assert found["0"] == [*((float(before), 10.0) for before in range(1770, 570, -30)), (0.75, 97.25), (0.0, 0.0)]
    assert len(found["0"]) == 42
    assert found["1"] == [(60.0, 5.0)]


async def test_old_and_new_names_come_together_and_others_do_not(prometheus: PrometheusServer) -> None:
    async with source(f"{prometheus.url}/") as opened:
        assert set(by_gpu(await opened.read(UTIL, start=END - timedelta(minutes=2), end=END))) == {"0", "1", "2"}


async def test_matchers_reach_the_server_as_they_are_written(prometheus: PrometheusServer) -> None:
    async with source(prometheus.url, matchers={"cluster": STRANGE}) as opened:
        assert set(by_gpu(await opened.read(UTIL, start=END - timedelta(minutes=2), end=END))) == {"1"}


async def test_ranges_work_below_a_second(prometheus: PrometheusServer) -> None:
    async with source(prometheus.url) as opened:
        for milliseconds, expected in ((750, [(0.0, 0.0)]), (751, [(0.75, 97.25), (0.0, 0.0)])):
            start = END - timedelta(milliseconds=milliseconds)
            assert by_gpu(await opened.read(UTIL, start=start, end=END)) == {"0": expected}


async def test_demand_is_a_vector_at_its_time(prometheus: PrometheusServer) -> None:
    async with source(prometheus.url) as opened:
        demand = await opened.demand('sum by (gpu) (DCGM_FI_DEV_GPU_UTIL{cluster="x"}) > 90', at=END)
        earlier = await opened.demand("DCGM_FI_DEV_GPU_UTIL > 90", at=END - timedelta(milliseconds=1))
    assert demand == []
    assert [(element.labels["gpu"], element.value) for element in earlier] == [("0", 97.25)]


async def test_ranges_of_an_expression_are_its_values_over_time(prometheus: PrometheusServer) -> None:
    async with source(prometheus.url) as opened:
        found = await opened.ranges("sum by (state) (idle_gpu_scaler_gpus)[20m:1m]", at=END)
        nothing = await opened.ranges("sum (there_is_none)[20m:1m]", at=END)
    [busy] = found
    assert busy.labels() == {"state": "Busy"}
    # A sample counts for five minutes; whether to the end of the last one depends on the generation.
    shown = [(END_S - at, value) for at, value in busy.samples()]
    assert shown[:5] == [(before, 8.0) for before in range(600, 300, -60)]
    assert len(shown) <= 6
    assert nothing == []


async def test_signals_of_some_pods_are_those_of_no_other(prometheus: PrometheusServer) -> None:
    async with source(prometheus.url) as opened:
        span = timedelta(minutes=29)
        queries = opened.query_of_pods(UTIL, namespace="team-a", pods=["train.0", "train-1"], span=span)
        found = [series for each in queries for series in await opened.ranges(each, at=END)]
    by_pod = {(each.labels()["gpu"], each.labels().get("exported_pod") or each.labels()["pod"]) for each in found}
    assert by_pod == {(gpu, pod) for gpu in "89" for pod in ("train.0", "train-1")}


@pytest.mark.parametrize(
    ("promql", "words"),
    [("up{", "400 bad_data: .*parse error"), ("many", "422 execution: query processing would load too many samples")],
)
async def test_a_refused_query_is_reported_in_the_servers_words_and_not_repeated(
    prometheus: PrometheusServer, promql: str, words: str
) -> None:
    async with source(prometheus.url) as opened:
        with pytest.raises(ReadError, match=words) as refused:
            await opened.demand(promql, at=END)
    assert not refused.value.transient


"""bcrypt of PASSWORD, of the least cost so that tests are fast."""


async def test_a_series_that_ends_leaves_no_sample_behind(tmp_path: Path) -> None:
    """An exporter stops listing a GPU: Prometheus marks the series stale, and a range selector shows no NaN for it."""
    require_prometheus()
    page = b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",namespace="team-a",pod="train-0"} 42\n'
    listed = [b"".join(page % gpu for gpu in (0, 1))]
    with HttpStub(lambda _: Reply(listed[0], headers={"Content-Type": "text/plain"})) as exporter:
        scrape = static_scrape("dcgm", exporter.address, interval="100ms")
        scrape["static_configs"][0]["labels"] = {"namespace": "gpu-operator", "pod": "dcgm-exporter-1"}
        with PrometheusServer(tmp_path / "scraping", [scrape]) as server:
            async with source(server.url) as opened:
                await until(lambda found: len(found) == 2, opened)
                listed[0] = page % 0
                vanished = time.time()
                found = await until(lambda found: last_at(found, "0") > vanished + 0.3, opened)
    assert {value for series in found.values() for _, value in series.samples()} == {42.0}
    assert last_at(found, "1") <= vanished + 0.1
    times = [at for at, _ in found["0"].samples()]
    assert times == sorted(set(times))
    workloads = [relabel(series.labels(), DEFAULT_RULES) for series in found.values()]
    assert {(labels["namespace"], labels["pod"]) for labels in workloads if labels} == {("team-a", "train-0")}


def last_at(found: dict[str, RawSeries], gpu: str) -> float:
    return found[gpu].samples()[-1][0]


async def until(done: Callable[[dict[str, RawSeries]], bool], opened: PrometheusSource) -> dict[str, RawSeries]:
    """The series of the last minute by GPU, as soon as they are as wanted."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        now = datetime.now(UTC)
        reading = await opened.read(UTIL, start=now - timedelta(minutes=1), end=now)
        found = {series.labels()["gpu"]: series for series in reading.series}
        if done(found):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("the series never became as wanted")
