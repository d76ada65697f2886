"""How fast are KEDA's calls answered at 5,000 ScaledObjects, and what do its streams cost?

    uv run python -m benchmarks.rpc [--seconds 5] [--json]

The real server runs in a process of its own, pinned to one core where there are two; the load comes from this one.
Calls go round the ScaledObjects in KEDA's order (GetMetricSpec, GetMetrics, IsActive), each with 12 metadata entries,
all over one connection, as KEDA does it.

Meanwhile it ticks every other second at 10,000 GPUs, whose samples come over HTTP from a third process, and serves
/metrics with all series of 5,000 workloads every second.

* Closed loop: 50 clients that ask again as soon as they are answered. It shows how much the server can do.
* Open loop: 1,500 calls a second at random instants (a Poisson process), which is KEDA with 5,000 running
  ScaledObjects. A latency counts from when its call was *meant* to start: if the server stalls, the calls that queue
  up behind the stall count too. The same again while 5,000 StreamIsActive streams are open.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import structlog
from aiohttp import ClientSession
from rich.console import Console
from rich.table import Table

from benchmarks.scale import FIRST_TICK, INTERVAL, SOURCES, Fleet, cluster_of, evaluator_of
from benchmarks.scrape import rows_of
from scaler.app.process import tune_process
from scaler.clock import Turns
from scaler.decision.evaluation import Evaluator
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.server import ExternalScalerServer, ServerConfig
from scaler.reporting.http import HttpServer, Views
from scaler.reporting.metric_declarations import Gauge, set_series
from scaler.reporting.metrics import Metrics

SCALED_OBJECTS = 5_000
GPUS = 10_000
CLIENTS = 50
OPEN_LOOP_RPS = 1_500
TARGET_RPS = 4_000
TARGET_P99_MS = 20.0

METADATA = {
    "scalerAddress": "idle-gpu-scaler.gpu-system.svc.cluster.local:9090",
    "enableTLS": "true",
    "unsafeSsl": "false",
    "idleAfter": "30m",
    "warmUp": "10m",
    "activeAbove": "1%",
    "gpus": "quorum:0.8",
    "mode": "enforce",
    "keepUntil": "2026-12-01T18:00:00Z",
    "team": "vision",
    "costCentre": "4711",
    "ticket": "GPU-1234",
}


def names() -> Iterator[tuple[str, str]]:
    for index in range(SCALED_OBJECTS):
        yield f"team-{index % 100}", f"raycluster-{index}"


# The server's process


async def serve() -> None:
    """Print the ports of gRPC and HTTP, and serve until standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    fleet = Fleet(GPUS, SCALED_OBJECTS)
    tune_process()
    async with SOURCES["HTTP"](fleet, []) as source:
        evaluator = evaluator_of(cluster_of(fleet, METADATA), source, fleet)
        await evaluator.tick(FIRST_TICK)
        gc.freeze()
        server = ExternalScalerServer(ServerConfig(addresses=("127.0.0.1:0",)), evaluator.decision_cache)
        nothing: dict[str, Any] = {"unhealthy": list, "unready": list, "overview": list, "queries": None}
        metrics = Metrics()
        page = HttpServer("127.0.0.1:0", metrics, Views(explain=lambda _namespace, _name: None, **nothing))
        print(await server.start(), await page.start(), flush=True)
        ticking = asyncio.create_task(tick(evaluator, metrics))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        ticking.cancel()
        evaluator.decision_cache.close()
        await server.drain(timedelta(seconds=10))
        await page.stop()


async def tick(evaluator: Evaluator, metrics: Metrics) -> None:
    """Every other second, and all metrics of single workloads set anew: far more often than a scaler does it."""
    shown = [
        (metric, dict.fromkeys(rows_of(each.labels, SCALED_OBJECTS), 1.0))
        for each in metrics.declared
        if isinstance(metric := metrics.made[each.name], Gauge) and "name" in each.labels
    ]
    for count in itertools.count(1):
        await asyncio.sleep(2)
        await evaluator.tick(FIRST_TICK + count * INTERVAL)
        turns = Turns()
        for gauge, rows in shown:
            set_series(gauge, rows)
            await turns.give_way()


class ServerProcess:
    """The server, seen from outside."""

    def __init__(self, event_loop: str) -> None:
        command = [sys.executable, "-m", "benchmarks.rpc", "--serve", event_loop]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "ServerProcess":
        assert self._process.stdout
        grpc_port, http_port = map(int, self._process.stdout.readline().split())
        self.address, self.page = f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}/metrics"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=15)

    def cpu_s(self) -> float:
        """Processor time used so far, user and system."""
        after_name = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# The load


Call = Callable[[], Awaitable[Any]]

SERVICE = "/externalscaler.ExternalScaler/"


def calls(channel: grpc.aio.Channel) -> Iterator[Call]:
    """KEDA's polls of all ScaledObjects, for ever. Requests are encoded beforehand: the client is not under test."""
    spec: Any = channel.unary_unary(f"{SERVICE}GetMetricSpec")
    metrics: Any = channel.unary_unary(f"{SERVICE}GetMetrics")
    is_active: Any = channel.unary_unary(f"{SERVICE}IsActive")
    refs = [reference(*name) for name in names()]
    requests = [pb.GetMetricsRequest(scaledObjectRef=ref, metricName="gpu-in-use") for ref in refs]
    polls = [
        (ref.SerializeToString(), request.SerializeToString()) for ref, request in zip(refs, requests, strict=True)
    ]
    for ref, request in cycle(polls):
        yield partial(spec, ref)
        yield partial(metrics, request)
        yield partial(is_active, ref)


def reference(namespace: str, name: str) -> Any:
    return pb.ScaledObjectRef(name=name, namespace=namespace, scalerMetadata=METADATA)


async def closed_loop(load: Iterator[Call], seconds: float) -> list[float]:
    """The latency of every call that the clients got answered in this time."""
    latencies: list[float] = []
    until = perf_counter() + seconds

    async def client() -> None:
        while (started := perf_counter()) < until:
            await next(load)()
            latencies.append(perf_counter() - started)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return latencies


async def open_loop(load: Iterator[Call], seconds: float) -> list[float]:
    """The latencies of calls that start when they are due, however the earlier ones fare."""
    rng = random.Random(2_026)
    count = round(OPEN_LOOP_RPS * seconds)
    first = perf_counter() + 0.1

    async def timed(call: Call, due: float) -> float:
        await call()
        return perf_counter() - due

    tasks = []
    for offset, call in zip(accumulate(rng.expovariate(OPEN_LOOP_RPS) for _ in range(count)), load, strict=False):
        if (early := first + offset - perf_counter()) > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.create_task(timed(call, first + offset)))
    return await asyncio.gather(*tasks)


async def open_streams(channel: grpc.aio.Channel) -> Sequence[Any]:
    """One stream per ScaledObject, each of which has said its first value."""
    stream: Any = channel.unary_stream(f"{SERVICE}StreamIsActive")
    opened = [stream(reference(*name).SerializeToString()) for name in names()]
    await asyncio.gather(*(call.read() for call in opened))
    return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run with one event loop showed. Latencies in seconds."""

    closed: list[float]
    closed_s: float
    cpu_s: float
    open: list[float]
    open_with_streams: list[float]
    streams_s: float
    resident_before_mb: float
    resident_with_streams_mb: float


async def scrape(url: str) -> None:
    """Every second, as no Prometheus does it."""
    async with ClientSession(auto_decompress=False) as session:  # what unpacks would stop the calls
        while True:
            async with session.get(url) as answer:
                await answer.read()
            await asyncio.sleep(1)


async def measure(server: ServerProcess, seconds: float) -> Result:
    scraping = asyncio.create_task(scrape(server.page))
    async with grpc.aio.insecure_channel(server.address) as channel:
        load = calls(channel)
        await closed_loop(load, min(1.0, seconds))  # warm-up
        cpu_s, started = server.cpu_s(), perf_counter()
        closed = await closed_loop(load, seconds)
        closed_s, cpu_s = perf_counter() - started, server.cpu_s() - cpu_s
        opened = await open_loop(load, seconds)

        resident_mb, started = server.resident_mb(), perf_counter()
        streams = await open_streams(channel)
        streams_s = perf_counter() - started
        with_streams = await open_loop(load, seconds)
        result = Result(
            closed=closed,
            closed_s=closed_s,
            cpu_s=cpu_s,
            open=opened,
            open_with_streams=with_streams,
            streams_s=streams_s,
            resident_before_mb=resident_mb,
            resident_with_streams_mb=server.resident_mb(),
        )
        assert not any(stream.done() for stream in streams), "a stream ended by itself"
        for stream in streams:
            stream.cancel()
    assert not scraping.done(), "no page was served"
    scraping.cancel()
    return result


# The report


def percentile_ms(latencies: list[float], share: float) -> float:
    return sorted(latencies)[min(len(latencies) - 1, int(len(latencies) * share))] * 1000


def three(latencies: list[float]) -> str:
    return " / ".join(f"{percentile_ms(latencies, share):.2f}" for share in (0.5, 0.99, 0.999))


def headroom(value: float) -> str:
    return f"[{'green' if value >= 1 else 'red'}]{value:.1f}× headroom[/]"


def report(results: dict[str, Result]) -> Table:
    table = Table(title=f"External scaler at {SCALED_OBJECTS:,} ScaledObjects", title_justify="left")
    table.add_column("")
    table.add_column("target", justify="right")
    rows: list[tuple[str, str, Callable[[Result], str]]] = [
        (f"closed loop, {CLIENTS} clients: RPC/s", f"≥ {TARGET_RPS:,}", lambda r: f"{len(r.closed) / r.closed_s:,.0f}"),
        ("", "", lambda r: headroom(len(r.closed) / r.closed_s / TARGET_RPS)),
        ("  p50 / p99 / p99.9 ms", "", lambda r: three(r.closed)),
        ("  server's CPU µs per RPC", "", lambda r: f"{r.cpu_s / len(r.closed) * 1e6:.0f}"),
        (
            f"open loop, {OPEN_LOOP_RPS:,} RPC/s: p50 / p99 / p99.9 ms",
            f"p99 < {TARGET_P99_MS:.0f}",
            lambda r: three(r.open),
        ),
        ("", "", lambda r: headroom(TARGET_P99_MS / percentile_ms(r.open, 0.99))),
        (
            f"same with {SCALED_OBJECTS:,} streams open",
            f"p99 < {TARGET_P99_MS:.0f}",
            lambda r: three(r.open_with_streams),
        ),
        ("", "", lambda r: headroom(TARGET_P99_MS / percentile_ms(r.open_with_streams, 0.99))),
        (f"opening {SCALED_OBJECTS:,} streams: s", "", lambda r: f"{r.streams_s:.2f}"),
        (
            "  resident MB before → with them",
            "",
            lambda r: f"{r.resident_before_mb:.0f} → {r.resident_with_streams_mb:.0f}",
        ),
        (
            "  KB per stream",
            "",
            lambda r: f"{(r.resident_with_streams_mb - r.resident_before_mb) / SCALED_OBJECTS * 1000:.0f}",
        ),
    ]
    for event_loop in results:
        table.add_column(event_loop, justify="right")
    for label, target, cell in rows:
        table.add_row(label, target, *(cell(result) for result in results.values()))
    return table


def as_json(result: Result) -> dict[str, float]:
    return {
        "closed_loop_rps": round(len(result.closed) / result.closed_s),
        "p99_ms": round(percentile_ms(result.open, 0.99), 2),
        "p99_with_streams_ms": round(percentile_ms(result.open_with_streams, 0.99), 2),
    }


def machine() -> str:
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("model name")]
    pinned = "server pinned to one of them" if len(os.sched_getaffinity(0)) > 1 else "shared by server and load"
    return (
        f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores ({pinned}), "
        f"Python {platform.python_version()}, grpcio {grpc.__version__}"
    )


# The two processes


def event_loops() -> list[str]:
    return ["asyncio", "uvloop"] if find_spec("uvloop") else ["asyncio"]


def run(main: Any, event_loop: str) -> Any:
    with asyncio.Runner(loop_factory=import_module(event_loop).new_event_loop) as runner:
        return runner.run(main)


def pin(*, server: bool) -> None:
    """Give the server the first core and the load the others, where there are others."""
    first, *others = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, {first} if server else set(others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each of the three measurements")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--serve", choices=("asyncio", "uvloop"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        pin(server=True)
        run(serve(), arguments.serve)
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    description, results = machine(), {}
    # With 5,000 streams of its own the load would stop for 50 ms now and then, and blame the server.
    gc.disable()
    for event_loop in event_loops():
        with ServerProcess(event_loop) as server:
            results[event_loop] = run(measure(server, arguments.seconds), event_loops()[-1])
    if arguments.json:
        print(json.dumps({event_loop: as_json(result) for event_loop, result in results.items()}))
        return
    console.print(report(results))
    console.print(description, highlight=False)


if __name__ == "__main__":
    main()
