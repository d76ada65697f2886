"""A signal whose metrics have several units: each metric is read, judged and doubted in its own."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import numpy as np
import pytest
from builders import NOON, TRUST, minutes, pod, policy
from prometheus_server import PrometheusServer, require_prometheus
from scripted_metrics import Metrics, Point, ScriptedSource, Series

from scaler.app.settings.model import SignalSettings
from scaler.decision.sampling import Sampler
from scaler.errors import SourceError
from scaler.idleness.gpu import Signal, Unit
from scaler.idleness.pods import judge
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.idleness.verdict import Busy, Idle, Unknown, Verdict
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import SignalReading, SignalSource

SPAN = minutes(40)
VALUES = (0.0, 0.004, 0.7, 1.0, 70.0, 100.0)
OF_METRIC = {"old_util": Unit.PERCENT, "new_util": Unit.RATIO, "newer_util": Unit.RATIO}


def signal(**metrics: str) -> Signal:
    return SignalSettings.model_validate({"name": "util", "metrics": metrics}).signal()


MIXED = signal(**{name: str(unit) for name, unit in OF_METRIC.items()})


def of(metric: str, value: float, pod_name: str) -> Series:
    labels = {"UUID": f"GPU-{pod_name}", "Hostname": "node-a", "namespace": "demo", "pod": pod_name}
    return Series(metric=metric, labels=labels, value=lambda _: value)


async def taken_in(source: SignalSource, used: Signal) -> Sampler:
    sampler = Sampler(
        source, signals=[used], rules=DEFAULT_RULES, trust=TRUST, overlap=timedelta(0), clock=lambda: NOON
    )
    taken = await sampler.refresh(end=NOON, span=SPAN)
    assert taken.doubt is None
    return sampler


def verdicts(sampler: Sampler, *pods: str) -> Mapping[str, Verdict]:
    """Of pods, each judged by itself."""
    asked = {"policy": policy(), "trust": TRUST, "end": NOON}
    return {name: judge([pod(name)], sampler.history, **asked).verdict for name in pods}


def word(verdict: Verdict) -> str:
    return str(verdict.reason) if isinstance(verdict, Unknown) else type(verdict).__name__


async def judged(used: Signal, *series: Series) -> Mapping[str, str]:
    sampler = await taken_in(ScriptedSource(metrics=Metrics(series=[*series]), clock=lambda: NOON), used)
    return {name: word(each) for name, each in verdicts(sampler, *{x.labels["pod"] for x in series}).items()}


async def test_each_metric_is_judged_as_in_a_signal_of_its_unit_alone() -> None:
    """All in one cluster, each on a GPU of its own: none changes what is said of another."""
    cases = {f"pod-{n}": case for n, case in enumerate(product(OF_METRIC, VALUES))}
    together = await judged(MIXED, *(of(metric, value, name) for name, (metric, value) in cases.items()))
    alone = {
        name: (await judged(Signal(name="util", metrics=(metric,), unit=OF_METRIC[metric]), of(metric, value, name)))
        for name, (metric, value) in cases.items()
    }
    assert together == {name: found[name] for name, found in alone.items()}
    assert {*together.values()} == {"Idle", "Busy", str(UnknownReason.SIGNALS_DISAGREE)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(0.0, 0.0, "Idle", id="both are quiet"),
        pytest.param(0.0, 0.7, "Busy", id="the ratio shows work"),
        pytest.param(70.0, 0.0, "Busy", id="the percentage shows work"),
        pytest.param(0.7, 0.0, "SignalsDisagree", id="a percentage may be a ratio, and another metric is quiet"),
    ],
)
async def test_of_one_gpu_that_both_metrics_show_the_busier_one_counts(old: float, new: float, expected: str) -> None:
    found = await judged(MIXED, of("old_util", old, "worker"), of("new_util", new, "worker"))
    assert found == {"worker": expected}


@pytest.mark.parametrize("above", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("value", [0.004, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("beside", [None, "percent", "ratio"])
async def test_a_ratio_that_is_declared_as_percent_is_never_proof(
    above: float, value: float, beside: str | None
) -> None:
    """Whatever counts as active, and full load too: 1 is 1 % only where a signal in another unit is quiet as well."""
    used = [signal(util="percent"), *([] if beside is None else [replace(signal(other=beside), name="other")])]
    series = [of(each.metrics[0], 0.0 if n else value, "worker") for n, each in enumerate(used)]
    source = ScriptedSource(metrics=Metrics(series=series), clock=lambda: NOON)
    sampler = Sampler(source, signals=used, rules=DEFAULT_RULES, trust=TRUST, overlap=timedelta(0), clock=lambda: NOON)
    await sampler.refresh(end=NOON, span=SPAN)
    asked = {"trust": TRUST, "end": NOON}
    found = judge([pod("worker")], sampler.history, policy=policy(active_above_ratio=above), **asked).verdict
    is_whole = value == 1 and beside == "ratio" and above > 0.01
    assert isinstance(found, Idle) is is_whole
    rows = np.array(sampler.history.rows_of("demo", "worker"))
    compared = sampler.history.verdicts(rows, above_ratio=above, length=minutes(30), **asked).compared()
    assert bool(compared[0, 0] == 0) is is_whole, "what is compared from tick to tick says the same"


async def test_a_remembered_decision_is_made_anew_by_the_unit_of_the_metric() -> None:
    """What is compared from tick to tick tells a fraction in percent, which is doubted, from one that is a ratio."""
    series = [of("old_util", 0.4, "percent"), of("new_util", 0.004, "ratio")]
    sampler = await taken_in(ScriptedSource(metrics=Metrics(series=series), clock=lambda: NOON), MIXED)
    rows = np.array([sampler.history.rows_of("demo", name)[0] for name in ("percent", "ratio")])
    asked = {"above_ratio": 0.01, "length": minutes(30), "trust": TRUST, "end": NOON}
    compared = sampler.history.verdicts(rows, **asked).compared()
    assert [type(each) for each in verdicts(sampler, "percent", "ratio").values()] == [Unknown, Idle]
    assert compared[0, 0] != compared[1, 0]


async def test_a_unit_that_cannot_be_read_leaves_a_doubt_about_all() -> None:
    class Half(ScriptedSource):
        async def read(self, used: Signal, **span: Any) -> Any:
            if used.unit is Unit.RATIO and used.name == "util":
                raise SourceError("503", transient=True)
            return await super().read(used, **span)

    source = Half(metrics=Metrics(series=[of("old_util", 0.0, "worker")]), clock=lambda: NOON)
    sampler = Sampler(
        source, signals=[MIXED], rules=DEFAULT_RULES, trust=TRUST, overlap=timedelta(0), clock=lambda: NOON
    )
    taken = await sampler.refresh(end=NOON, span=SPAN)
    assert taken.doubt == Unknown(reason=UnknownReason.SOURCE_UNAVAILABLE, message="util: 503")
    assert not sampler.is_backfilled


# --------------------------------------------------------------------------------------------------- a real Prometheus


class AtNoon:
    """The server's samples, without its clock, which is not that of the test."""

    def __init__(self, source: PrometheusSource) -> None:
        self._source = source

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        return (await self._source.read(signal, start=start, end=end))._replace(server_time=None)


@asynccontextmanager
async def prometheus(folder: Any, *series: Series) -> AsyncIterator[SignalSource]:
    require_prometheus()
    server = PrometheusServer(folder)
    begin_s, end_s = (NOON - SPAN - minutes(2)).timestamp(), NOON.timestamp()
    server.backfill(
        "\n".join(_line(Point(x.metric, x.labels, *each)) for x in series for each in x.samples(begin_s, end_s))
    )
    with server:
        source = PrometheusSource(PrometheusConfig(url=server.url, timeout=timedelta(seconds=10)))
        try:
            yield AtNoon(source)
        finally:
            await source.close()


def _line(point: Point) -> str:
    labels = ",".join(f'{name}="{text}"' for name, text in point.labels.items())
    return f"{point.metric}{{{labels}}} {point.value} {point.at_s:.3f}"


@pytest.mark.prometheus
async def test_the_pages_of_two_exporters_are_read_from_a_prometheus_in_their_units(tmp_path: Any) -> None:
    """NVML's percentages beside another vendor's ratios, as a fleet of both shows them."""
    vendors = signal(DCGM_FI_DEV_GPU_UTIL="percent", hw_gpu_utilization_ratio="ratio")
    series = (
        of("DCGM_FI_DEV_GPU_UTIL", 70, "percent-busy"),
        of("DCGM_FI_DEV_GPU_UTIL", 0, "percent-idle"),
        of("DCGM_FI_DEV_GPU_UTIL", 0.7, "percent-doubted"),
        of("hw_gpu_utilization_ratio", 0.7, "ratio-busy"),
        of("hw_gpu_utilization_ratio", 0.004, "ratio-idle"),
    )
    async with prometheus(tmp_path, *series) as source:
        sampler = await taken_in(source, vendors)
    found = verdicts(sampler, *(x.labels["pod"] for x in series))
    assert {name: type(each) for name, each in found.items()} == {
        "percent-busy": Busy,
        "percent-idle": Idle,
        "percent-doubted": Unknown,
        "ratio-busy": Busy,
        "ratio-idle": Idle,
    }
