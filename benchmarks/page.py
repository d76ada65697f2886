"""How long does the page take, and how long does it block the event loop, with thousands of workloads?

    uv run python -m benchmarks.page [--workloads 5000] [--json]

A server in this process with decisions in memory (tests/page_builders.py), half of them on idle workloads in a hundred
namespaces. Each page is asked for once to warm up, then again after evaluations that changed every tenth decision.
A stall is how much later than asked a task came back that slept for a millisecond at a time: what a KEDA call that came
in meanwhile would have waited for.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.scale import machine
from scaler.app.process import tune_process

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
PATHS = (
    "/",
    "/workloads",
    "/workloads?state=Candidates&page=2",
    "/reallocations",
    "/policies/all",
    "/workloads/team-1/w-1",
)
ROUNDS = 5


def site(count: int) -> Any:
    from builders import at
    from page_builders import KEPT, NOT_NEEDED, QUIET, SUSPENDED, WORKS, PageSite

    one = PageSite()
    given = {"plan": "p", "workload": "team-1/gang", "gpus": 2, "stage": "Admitted"}
    for number in range(count):
        answer = (WORKS, QUIET, KEPT, NOT_NEEDED, SUSPENDED)[number % 5]
        is_quiet, is_up = answer in (QUIET, KEPT, NOT_NEEDED), answer is not SUSPENDED
        one.workload(
            f"team-{number % 100}",
            f"w-{number}",
            answer,
            gpus=2,
            idle_since=at(-1200 - number % 600) if is_quiet else None,
            desired=int(is_up),
            attached_by="ClusterIdlePolicy/all",
            **({} if is_up else {"reallocation": given}),
        )
    one.policy("all", mode="Enforce")
    for minute in range(-355, 1):
        one.remember(60 * minute, Busy=count + minute % 7, Idle=count // 2)
    return one


class Stalls:
    def __init__(self) -> None:
        self.worst = 0.0

    async def watch(self) -> None:
        while True:
            began = perf_counter()
            await asyncio.sleep(0.001)
            self.worst = max(self.worst, perf_counter() - began - 0.001)


async def measured(count: int) -> list[dict[str, Any]]:
    tune_process()
    one, stalls, rows = site(count), Stalls(), []
    async with one.serving() as url, aiohttp.ClientSession() as session:
        watching = asyncio.create_task(stalls.watch())
        for path in PATHS:
            times: list[tuple[float, float, float]] = []
            for number in range(ROUNDS + 1):
                for key in [*one.entries][number % 10 :: 10]:
                    one.workload(*key, gpus=2)
                one.page._rendered.clear()
                one.publish()
                await asyncio.sleep(0.2)
                stalls.worst, began, worked = 0.0, perf_counter(), process_time()
                async with session.get(url + path) as got:
                    size = len(await got.read())
                times.append((perf_counter() - began, process_time() - worked, stalls.worst))
            wall, cpu, stall = (sorted(each)[ROUNDS // 2] for each in zip(*times[1:], strict=True))
            rows.append(
                {
                    "path": path,
                    "ms": round(1000 * wall, 1),
                    "cpu_ms": round(1000 * cpu, 1),
                    "stall_ms": round(1000 * stall, 1),
                    "kilobytes": size // 1000,
                }
            )
        watching.cancel()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(measured(arguments.workloads))
    if arguments.json:
        print(json.dumps(rows))
        return
    table = Table("page", "ms", "cpu ms", "stall ms", "kB", title=f"{arguments.workloads:,} workloads; {machine()}")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
