"""How long does a scrape of /metrics take, and how long does it block the event loop?

    uv run python -m benchmarks.scrape [--workloads 5000] [--scrapes 10] [--json]

Every metric of single workloads has all of its series, new ones before every scrape, as after a tick. The page comes
from the server of the program over HTTP, as OpenMetrics, which Prometheus asks for; the client is another process.

* A scrape: processor time of the server, and what the client waited for the whole page.
* A stall is how much processor time passed between two turns of a task that wants one every millisecond.

`--json` prints one object, of pages as they are: `seconds`, `cpu_seconds`, `stall_worst_ms`, `series`, `page_mb`.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from time import perf_counter, process_time
from typing import Any

from aiohttp import ClientSession
from rich.console import Console
from rich.table import Table

from benchmarks.scale import machine
from benchmarks.watch import TARGET_STALL_MS, Stalls
from scaler.reporting.http import HttpServer, Views
from scaler.reporting.metric_declarations import Gauge, set_series
from scaler.reporting.metrics import Metrics

TARGET_MS = 100.0
ACCEPT = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5"
SETTLED_S = 0.3
"""The pause between two scrapes."""
VALUES = {
    "state": ("Busy", "Idle", "Unknown"),
    "signal": ("gr_engine_active", "gpu_util"),
    "answer": ("inactive",),
    "reason": ("GpusIdle",),
}
"""The values of the labels that tell series of one workload apart."""


def show(metrics: Metrics, workloads: int, tick: int) -> int:
    """How many series are shown: of every metric of single workloads, for all of them."""
    shown = 0
    for each in metrics.declared:
        metric = metrics.made[each.name]
        if isinstance(metric, Gauge) and "name" in each.labels:
            rows = {row: tick + place / 7 for place, row in enumerate(rows_of(each.labels, workloads))}
            set_series(metric, rows)
            shown += len(rows)
    return shown


def rows_of(labels: tuple[str, ...], workloads: int) -> list[tuple[str, ...]]:
    rows = [(f"team-{n % 200}", f"queue-{n % 50}", "ScalableWorkload", f"training-run-{n}") for n in range(workloads)]
    found: list[tuple[str, ...]] = list(rows)
    for label in labels[4:]:
        found = [(*row, value) for row in found for value in VALUES[label]]
    return found


async def serve(workloads: int) -> None:
    """Prints the port; then, for every line of input, updates and prints what happened until the next."""
    metrics = Metrics()
    nothing: dict[str, Any] = {"unhealthy": list, "unready": list, "overview": list, "queries": None}
    server = HttpServer("127.0.0.1:0", metrics, Views(explain=lambda _namespace, _name: None, **nothing))
    print(await server.start(), flush=True)
    tick, shown = 1, show(metrics, workloads, 1)
    while await asyncio.to_thread(sys.stdin.readline):
        stalls, cpu_s = Stalls(), process_time()
        watching = asyncio.create_task(stalls.watch())
        await asyncio.to_thread(sys.stdin.readline)
        watching.cancel()
        print(json.dumps({"cpu_s": process_time() - cpu_s, "stall_s": stalls.longest_s, "series": shown}), flush=True)
        tick += 1
        show(metrics, workloads, tick)


async def measure(workloads: int, scrapes: int, encoding: str) -> dict[str, float]:
    """`encoding`: what the client accepts."""
    command = [sys.executable, "-m", "benchmarks.scrape", "--workloads", str(workloads), "--serve"]
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/metrics"
        headers = {"Accept": ACCEPT, "Accept-Encoding": encoding}
        found, seconds, size = [], [], 0
        async with ClientSession(auto_decompress=False) as session:
            for _ in range(scrapes):
                print(file=server.stdin, flush=True)
                await asyncio.sleep(SETTLED_S)
                started = perf_counter()
                async with session.get(url, headers=headers) as answer:
                    size = len(await answer.read())
                seconds.append(perf_counter() - started)
                print(file=server.stdin, flush=True)
                found.append(json.loads(server.stdout.readline()))
                await asyncio.sleep(SETTLED_S)
        server.stdin.close()
    return {
        "seconds": round(statistics.median(seconds), 4),
        "cpu_seconds": round(statistics.median(each["cpu_s"] for each in found), 4),
        "stall_worst_ms": round(1000 * max(each["stall_s"] for each in found), 1),
        "series": found[-1]["series"],
        "page_mb": round(size / 1e6, 2),
    }


def report(results: Mapping[str, Mapping[str, float]], workloads: int) -> Table:
    table = Table(title=f"/metrics with all metrics of {workloads:,} workloads", title_justify="left")
    for each in ("", "target", *results):
        table.add_column(each, justify="right" if each else "left")
    rows = {
        "a scrape, median: ms": (f"< {TARGET_MS:.0f}", "seconds", 1000),
        "  processor time of it: ms": ("", "cpu_seconds", 1000),
        "  longest stall meanwhile: ms": (f"< {TARGET_STALL_MS:.0f}", "stall_worst_ms", 1),
        "series": ("", "series", 1),
        "page: MB": ("", "page_mb", 1),
    }
    for title, (target, key, factor) in rows.items():
        table.add_row(title, target, *(f"{factor * each[key]:,.4g}" for each in results.values()))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=5_000)
    parser.add_argument("--scrapes", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.workloads))
        return
    encodings = {"as it is": "identity"} | ({} if arguments.json else {"compressed": "gzip"})
    results = {
        name: asyncio.run(measure(arguments.workloads, arguments.scrapes, encoding))
        for name, encoding in encodings.items()
    }
    if arguments.json:
        print(json.dumps(results["as it is"]))
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report(results, arguments.workloads))
    console.print(machine(), highlight=False)


if __name__ == "__main__":
    main()
