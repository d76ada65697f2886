"""Prometheus gets the same number of queries for one ScaledObject and for two thousand, counted where they arrive."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from builders import at, minutes
from loops_builders import Inhabitant, World, deployment, gang
from scripted_metrics import GPU_UTIL, GR_ENGINE_ACTIVE, Metrics, gpu
from scripted_prometheus import ScriptedPrometheus

from scaler.decision.decision import Inactive
from scaler.idleness.gpu import ENERGY
from scaler.idleness.policy import Overrides
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import VectorSample
from scaler.samples.wake_queries import WakeQuery

SHORT = {"idleAfter": "1m", "warmUp": "0s"}
"""Few samples, so that thousands of GPUs are quickly served."""
DEFAULTS = Overrides(idle_after=minutes(1))
DEMAND = "sum by (namespace, scaledobject) (queued_jobs)"


@asynccontextmanager
async def world_of(count: int) -> AsyncIterator[tuple[World, list[str]]]:
    """So many ScaledObjects, half of them over Deployments, and the queries that arrive because of them."""
    inhabitants: list[Inhabitant] = [
        (gang(f"target-{n}", gpus=1, metadata=SHORT) if n % 2 else deployment(f"target-{n}", metadata=SHORT))
        for n in range(count)
    ]
    metrics = Metrics(series=[series for n in range(count) for series in gpu(f"GPU-{n}", pod=f"target-{n}-pod")])
    metrics.demands[DEMAND] = [
        VectorSample({"namespace": "demo", "scaledobject": f"target-{n}"}, float(not n)) for n in range(count)
    ]
    arrived: list[str] = []
    with ScriptedPrometheus(metrics, clock=lambda: world.now) as prometheus:
        source = PrometheusSource(PrometheusConfig(url=prometheus.url, timeout=minutes(1), attempts=1))
        world = World(
            inhabitants,
            lambda _: source,
            interval=minutes(0.25),
            defaults=DEFAULTS,
            wake_queries=(WakeQuery(name="queued", promql=DEMAND),),
        )
        try:
            yield world, arrived
        finally:
            await source.close()
            arrived += [query.promql.partition("[")[0] for query in prometheus.queries]


@pytest.mark.parametrize("count", [1, 200, pytest.param(2_000, marks=pytest.mark.slow)])
async def test_a_minute_of_ticks_asks_once_per_query_and_tick(count: int) -> None:
    async with world_of(count) as (world, arrived):
        for seconds in (0, 15, 30, 45):
            await world.tick(at(seconds))
        answers = world.answers()
    assert len(answers) == count
    assert sum(isinstance(answer, Inactive) for answer in answers.values()) == count - 1, "one is in demand"
    assert _by_metric(arrived) == {GR_ENGINE_ACTIVE: 4, GPU_UTIL: 4, ENERGY.metrics[0]: 4, DEMAND: 4}


def _by_metric(queries: Sequence[str]) -> Counter[str]:
    """Selectors differ by the metric that they begin with or name first."""
    known = (GR_ENGINE_ACTIVE, GPU_UTIL, ENERGY.metrics[0])
    return Counter(next((name for name in known if name in query), query) for query in queries)
