"""What the GPUs of one workload showed: from memory, from Prometheus, and never of another workload."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, SCALED_OBJECT, TARGET, TRUST, at, decision, every, history, pod, record, series
from hypothesis import given
from hypothesis import strategies as st
from scripted_metrics import Metrics, ScriptedSource

from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation
from scaler.decision.sampling import Sampler
from scaler.errors import SourceError
from scaler.idleness.gpu import DEFAULT_SIGNALS, Signal, Unit
from scaler.idleness.policy import Overrides
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.reporting.page.signal_history import PodMemory, SignalHistory, SignalHistoryReader
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource

HOUR = timedelta(hours=1)


def sampler(span: timedelta = HOUR, signals: Sequence[Signal] = DEFAULT_SIGNALS) -> Sampler:
    source = ScriptedSource(metrics=Metrics(series=[]), clock=lambda: NOON)
    made = Sampler(source, signals=signals, rules=DEFAULT_RULES, trust=TRUST, overlap=timedelta(0))
    made.history = history(span=span, signals=signals)
    return made


def entry(*pods: str, is_judged: bool = True) -> EvaluatedScaledObject:
    found = decision() if is_judged else replace(decision(), verdict=None)
    return EvaluatedScaledObject(target=TARGET, triggers={Overrides(): found}, pods=[pod(each) for each in pods])


async def read(one: Sampler, *pods: str, source: Any = None, memory: PodMemory | None = None) -> SignalHistory:
    reader = SignalHistoryReader(one, memory or PodMemory(), source)
    return await reader.read(SCALED_OBJECT, entry(*pods, is_judged=bool(pods)), NOON - HOUR, NOON)


# ------------------------------------------------------------------------------------------------------------- memory


async def test_of_several_gpus_the_highest_sample_and_that_of_the_quietest_are_told() -> None:
    one = sampler()
    record(one.history, series("GPU-0"), every(30, start=-3600, end=0, ratio=0.8))
    record(one.history, series("GPU-1"), every(30, start=-3600, end=0, ratio=0.1))
    found = await read(one, "worker-0")
    assert found.source == "samples in this process's memory"
    assert [(each.name, each.gpus) for each in found.tracks] == [("gr_engine_active", 2), ("gpu_util", 2)]
    shown = {(round(each.low_ratio, 6), round(each.high_ratio, 6)) for each in found.tracks[0].bins}
    assert shown == {(0.1, 0.8)}


async def test_times_without_samples_are_missing() -> None:
    one = sampler()
    record(one.history, series(), [*every(30, start=-3600, end=-1800), *every(30, start=-600, end=0)])
    bins = (await read(one, "worker-0")).tracks[0].bins
    assert not [each for each in bins if at(-1790) < each.begin < at(-660)]
    assert {each.begin < at(-1800) for each in bins} == {True, False}


async def test_a_sample_that_is_late_by_less_than_an_interval_makes_no_hole() -> None:
    one = sampler()
    jittered = [(at_s + (7 if n % 2 else 0), ratio) for n, (at_s, ratio) in enumerate(every(30, start=-3600, end=-10))]
    record(one.history, series(), jittered)
    assert len((await read(one, "worker-0")).tracks[0].bins) == 60  # an hour in parts of a minute


@given(st.lists(st.floats(-7200, 0), max_size=40))
def test_no_part_of_the_time_is_outside_of_it_whatever_came_when(seconds: list[float]) -> None:
    one = sampler()
    record(one.history, series(), [(NOON.timestamp() + each, 0.5) for each in sorted(seconds)])
    for each in asyncio.run(read(one, "worker-0")).tracks:
        assert all(NOON - HOUR <= part.begin < part.end <= NOON + timedelta(seconds=1) for part in each.bins)


async def test_pods_of_others_are_not_shown() -> None:
    one = sampler()
    record(one.history, series(pod="worker-9"), every(30, start=-600, end=0, ratio=1))
    record(one.history, series(namespace="other"), every(30, start=-600, end=0, ratio=1))
    assert (await read(one, "worker-0")).tracks == []


async def test_one_that_is_suspended_is_shown_as_it_was_before() -> None:
    one, memory = sampler(), PodMemory()
    record(one.history, series(), every(30, start=-3600, end=-1800, ratio=0.5))
    memory.look(Evaluation.of({SCALED_OBJECT: entry("worker-0", "worker-1")}, at=at(-1800)))
    # Pods end one after the other, and are not judged any more.
    memory.look(Evaluation.of({SCALED_OBJECT: entry("worker-1", is_judged=False)}, at=at(-1700)))
    memory.look(Evaluation.of({SCALED_OBJECT: entry(is_judged=False)}, at=at(-1600)))
    found = await read(one, memory=memory)
    assert found.source == "samples in this process's memory of the pods that it had last"
    assert found.tracks[0].bins[-1].end <= at(-1740)


async def test_one_that_came_back_with_other_pods_is_shown_with_both() -> None:
    one, memory = sampler(), PodMemory()
    record(one.history, series(pod="worker-0"), every(30, start=-3600, end=-1800, ratio=0.5))
    record(one.history, series(pod="worker-1"), every(30, start=-600, end=0, ratio=0.25))
    for seconds, pod_name in ((-1800, "worker-0"), (-600, "worker-1")):
        memory.look(Evaluation.of({SCALED_OBJECT: entry(pod_name)}, at=at(seconds)))
    found = await read(one, "worker-1", memory=memory)
    assert found.source == "samples in this process's memory"
    assert [each.high_ratio for each in found.tracks[0].bins[:: len(found.tracks[0].bins) - 1]] == [0.5, 0.25]


async def test_pods_are_not_remembered_without_end() -> None:
    memory = PodMemory()
    for number in range(200):
        memory.look(Evaluation.of({SCALED_OBJECT: entry(f"worker-{number}")}, at=NOON))
    names = memory.of(SCALED_OBJECT, entry())
    assert (len(names), names[0]) == (64, "worker-199")


async def test_what_is_gone_is_forgotten() -> None:
    memory = PodMemory()
    memory.look(Evaluation.of({SCALED_OBJECT: entry("worker-0")}, at=NOON))
    memory.look(Evaluation.of({}, at=NOON))
    assert memory.of(SCALED_OBJECT, entry()) == ()
    found = await read(sampler(), memory=memory)
    assert found.source.endswith("; it has no pods, and which it had is not known")


# --------------------------------------------------------------------------------------------------------- Prometheus


class Made:
    key = b""

    def __init__(self, value: float, **labels: str) -> None:
        self._value, self._labels = value, labels

    def labels(self) -> dict[str, str]:
        return self._labels

    def samples(self) -> Sequence[tuple[float, float]]:
        return [(NOON.timestamp() + 30 * n, self._value) for n in range(-100, 1)]


class Prometheus:
    """The queries of the real one, and these answers."""

    def __init__(self, *found: Made, error: str = "") -> None:
        self._real = PrometheusSource(PrometheusConfig(url="http://localhost:9"))
        self._found, self._error = found, error
        self.query_of_pods = self._real.query_of_pods
        self.asked: list[str] = []

    async def ranges(self, promql: str, *, at: object) -> Sequence[Made]:
        self.asked.append(promql)
        if self._error:
            raise SourceError(self._error, transient=True)
        return [] if "UTIL" in promql.partition("{")[0] else self._found


OURS = {"exported_namespace": "demo", "exported_pod": "worker-0", "UUID": "GPU-0"}


async def test_prometheus_has_the_hours_that_memory_does_not() -> None:
    prometheus = Prometheus(Made(0.3, **OURS))
    found = await read(sampler(), "worker-0", source=prometheus)
    assert found.source == "samples in Prometheus"
    assert found.tracks[0].gpus == 1
    assert {each.high_ratio for each in found.tracks[0].bins} == {0.3}
    assert prometheus.asked[0] == (
        '{__name__=~"DCGM_FI_PROF_GR_ENGINE_ACTIVE|DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",'
        'exported_namespace="demo",exported_pod=~"worker-0"}[3600s]'
    )
    assert 'namespace="demo",pod=~"worker-0"}' in prometheus.asked[1]


@pytest.mark.parametrize(
    "labels",
    [
        {**OURS, "exported_namespace": "other"},
        {**OURS, "exported_pod": "worker-00"},
        {"namespace": "demo", "pod": "worker-0", "exported_namespace": "other", "exported_pod": "x", "UUID": "GPU-0"},
        {"UUID": "GPU-0"},
    ],
)
async def test_what_the_query_brings_counts_only_if_it_is_of_the_workload(labels: dict[str, str]) -> None:
    found = await read(sampler(), "worker-0", source=Prometheus(Made(0.3, **labels)))
    assert [each.bins for each in found.tracks] == [[], []]


async def test_each_metric_is_shown_in_its_own_unit() -> None:
    units = (Unit.PERCENT, Unit.RATIO)
    one = sampler(signals=[Signal(name="util", metrics=("OLD", "NEW"), unit=Unit.PERCENT, units=units)])
    for name, value in (("OLD", 40.0), ("NEW", 0.4)):
        found = await read(one, "worker-0", source=Prometheus(Made(value, **OURS, __name__=name)))
        assert {each.high_ratio for each in found.tracks[0].bins} == {0.4}, name


async def test_blanks_are_no_samples() -> None:
    found = await read(sampler(), "worker-0", source=Prometheus(Made(float("nan"), **OURS)))
    assert [each.bins for each in found.tracks] == [[], []]


async def test_without_an_answer_of_prometheus_memory_is_shown() -> None:
    one = sampler()
    record(one.history, series(), every(30, start=-600, end=0, ratio=0.5))
    found = await read(one, "worker-0", source=Prometheus(error="503"))
    assert found.source == "samples in this process's memory"
    assert found.tracks[0].bins


async def test_names_of_pods_are_no_expressions() -> None:
    prometheus = Prometheus()
    await read(sampler(), 'a.b"} or up #', source=prometheus)
    assert r'exported_pod=~"a\\.b\"\\} or up #"' in prometheus.asked[0]
