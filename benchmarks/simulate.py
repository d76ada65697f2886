"""How long does a simulation of a month take, and how much memory? Made samples, straight into a recording or as CSV.

uv run python -m benchmarks.simulate --gpus 1000 --days 30 --idle-after 30m,60m
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from scaler_analysis.simulation.processes import replay_in_parallel
from scaler_analysis.simulation.published_rules import RULES
from scaler_analysis.simulation.recordings.past_samples import PastSamples, include
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.replay import PolicyCase, ReplayConfig, resolved
from scaler_analysis.simulation.study import CURVE

from scaler.idleness.durations import format_duration, parse_duration
from scaler.idleness.gpu import DEFAULT_SIGNALS, GpuId, GpuSeries, Unit, identify
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.relabel import DEFAULT_RULES, relabel
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from prometheus_server import PrometheusServer

BEGIN_S = 1_700_000_400
HOURS = 24


def work(gpus: int, days: int, chance: np.random.Generator) -> np.ndarray:
    """Which GPUs are at work in each minute: spells whose lengths are spread like those of notebooks and jobs."""
    at_work = np.zeros((gpus, days * 24 * 60), np.bool_)
    for gpu in range(gpus):
        lengths = np.exp(chance.normal(3.0, 1.5, days * 200)).astype(int) + 1
        ends = np.minimum(np.cumsum(lengths), at_work.shape[1])
        for begin, end in zip(ends[:-1:2], ends[1::2], strict=False):
            at_work[gpu, begin:end] = True
    return at_work


def record(recording: Recording, gpus: int, days: int) -> None:
    """Every GPU with its own offset, an hour at a time, two signals; one series in a hundred loses samples."""
    chance = np.random.default_rng(13)
    at_work, offsets = work(gpus, days, chance), chance.uniform(0, 30, gpus)
    series = {
        signal.name: np.array(
            [
                recording.position(
                    signal.name,
                    GpuSeries(gpu=GpuId(device=f"GPU-{n}"), namespace=f"team-{n % 20}", pod=f"pod-{n}", model="H100"),
                )
                for n in range(gpus)
            ]
        )
        for signal in DEFAULT_SIGNALS
    }
    for hour in range(days * HOURS):
        at_s = (BEGIN_S + 3600 * hour + 30 * np.arange(120)[:, None] + offsets[None, :]).ravel()
        is_at_work = np.repeat(at_work[:, 60 * hour : 60 * hour + 60].T, 2, axis=0).ravel()
        for signal in DEFAULT_SIGNALS:
            scale = 100.0 if signal.unit is Unit.PERCENT else 1.0
            values = np.where(is_at_work, chance.uniform(0.2, 0.9, len(at_s)), 0.0) * scale
            kept = chance.random(len(at_s)) > 0.001
            recording.add(signal, np.tile(series[signal.name], 120)[kept], at_s[kept], values[kept])
    recording.flush()


def openmetrics(gpus: int, days: int, begin_s: int) -> Iterator[str]:
    """Samples of that kind as text, with the labels that dcgm-exporter gives."""
    at_work = work(gpus, days, np.random.default_rng(13))
    for signal in DEFAULT_SIGNALS:
        for n in range(gpus):
            labels = (
                f'exported_namespace="team-{n % 20}",exported_pod="pod-{n}",namespace="gpu-operator",'
                f'pod="dcgm-{n // 8}",UUID="GPU-{n:08x}-5f0c-11ee-9a3c-0242ac120002",gpu="{n % 8}",'
                f'Hostname="node-{n // 8}",modelName="NVIDIA H100 80GB HBM3",instance="10.0.{n // 256}.{n % 256}:9400"'
            )
            values = np.repeat(at_work[n], 2) * (61 if signal.unit is Unit.PERCENT else 0.61)
            for sample, value in enumerate(values.tolist()):
                yield f"{signal.metrics[0]}{{{labels}}} {value:g} {begin_s + 30 * sample + n % 30}"


async def read_from_prometheus(recording: Recording, gpus: int, days: int) -> None:
    end_s = int(time.time()) // 3600 * 3600 - 3600
    begin_s = end_s - 86_400 * days
    server = PrometheusServer(recording.folder / "prometheus", flags=["--storage.tsdb.retention.time=90d"])
    server.backfill("\n".join(openmetrics(gpus, days, begin_s)))
    begin, end = (datetime.fromtimestamp(each, UTC) for each in (begin_s, end_s))
    with server:
        source = PrometheusSource(PrometheusConfig(url=server.url, timeout=timedelta(minutes=2)))
        past = PastSamples(source, recording.folder, DEFAULT_SIGNALS, interval=timedelta(seconds=30))
        began = time.perf_counter()
        parts = await past.parts(begin, end)
        await past.fetch(parts)
        print(f"read {len(parts)} parts in {time.perf_counter() - began:.0f} s")
        await source.close()
    include(parts, recording, lambda labels: identify(relabel(labels, DEFAULT_RULES) or {}))


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--gpus", type=int, default=1000)
    flags.add_argument("--days", type=int, default=30)
    flags.add_argument("--idle-after", default="30m,60m")
    flags.add_argument("--curve", action="store_true", help="published rules and the curve of windows as well")
    flags.add_argument("--prometheus", action="store_true", help="read the samples from one")
    given = flags.parse_args()
    windows = dict.fromkeys((*map(parse_duration, given.idle_after.split(",")), *(CURVE if given.curve else ())))
    cases = [
        PolicyCase(name=format_duration(each), policy_of=lambda _, each=each: Policy(idle_after=each))
        for each in windows
    ]
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(folder=Path(folder))
        began = time.perf_counter()
        if given.prometheus:
            asyncio.run(read_from_prometheus(recording, given.gpus, given.days))
        else:
            record(recording, given.gpus, given.days)
        recorded = time.perf_counter()
        print(f"{recording.samples:,} samples, recorded in {recorded - began:.0f} s")
        config = ReplayConfig(
            signals=DEFAULT_SIGNALS, trust=Trust(), tick=timedelta(seconds=15), rule_signal="gpu_util"
        )
        concrete = resolved(recording, cases, config)
        found = replay_in_parallel(recording, concrete, config, rules=RULES if given.curve else ())
        print(f"replayed in {time.perf_counter() - recorded:.0f} s")
    for case in (*found.cases, *found.rules):
        totals = case.total(found.workloads)
        print(
            f"{case.name}: freed {totals.freed_ratio:.1%}, {totals.suspensions:,} suspensions, "
            f"unknown {totals.unknown:.0f} h"
        )
    for who, name in ((resource.RUSAGE_SELF, "this process"), (resource.RUSAGE_CHILDREN, "its child")):
        used = resource.getrusage(who)
        print(f"{name}: {used.ru_maxrss / 1024:.0f} MiB, {used.ru_utime + used.ru_stime:.0f} s of a processor")


if __name__ == "__main__":
    main()
