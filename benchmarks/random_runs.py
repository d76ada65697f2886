"""Does admission keep its laws in 10,000 random runs? The runs of tests/sim/random_runs.py, as many as one likes.

    uv run python -m benchmarks.random_runs [--runs 10000] [--seed 0] [--jobs 2]

A run is a small cluster in virtual time: the sandbox's Kueue, Job controller and RayCluster operator, our
AdmissionCheck and provisioning, nodes of 4 and 8 GPUs, a scheduler that puts pods wherever there is room, up to eight
gangs; pods that end slowly, evictions, preemptions, deletions, restarts and deaths of our process, refused and lost
API calls, requests that fail, expire and are revoked. The laws are in tests/sim/admission_laws.py. A run that breaks
one is told as a story; `--seed N --runs 1` tells it again. Runs are shared out over `--jobs` processes.
"""

import argparse
import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import structlog
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.scale import machine

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
AT_ONCE = 50
STORIES = 3
"""Broken runs that are told in full."""


ADMISSION = "sim.random_runs"
"""The module that plays a run of admission."""


def played(seeds: Iterable[int], module: str = ADMISSION) -> tuple[list[Any], float]:
    """What came of these runs of that module, and the seconds of processor time that they took."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    play = import_module(module).play

    async def all_of_them() -> list[Any]:
        return [await play(seed) for seed in seeds]

    began = process_time()
    return asyncio.run(all_of_them()), process_time() - began


def shared_out(
    seeds: range, jobs: int, module: str = ADMISSION, *, at_once: int = AT_ONCE
) -> Iterator[tuple[list[Any], float]]:
    batches = [seeds[at : at + at_once] for at in range(0, len(seeds), at_once)]
    play = partial(played, module=module)
    if jobs == 1:
        yield from map(play, batches)
        return
    # What comes back is unpickled here: its module has to be there.
    import_module(module)
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, batches)


def counted(outcomes: Iterable[Any]) -> Counter[str]:
    """What happened in them, by what it is called in the report."""
    counts: Counter[str] = Counter()
    for each in outcomes:
        env = each.env
        traits = {
            "strict: no machine is lost, every gang is sure of its places": not env.is_shaky,
            "parts take turns in any order, copies lag": env.hurries,
            "gangs are pinned to nodes": env.pins,
            "another AdmissionCheck beside ours": env.second_check,
            "nodes are asked for": env.provisions,
            "priorities, with preemption": env.preempts,
            "API calls fail, our process dies": env.fault_rates.deadly > 0,
        }
        counts.update(["runs", *(name for name, holds in traits.items() if holds)])
        counts["gangs that started"] += each.started
        counts["deaths of our process in the middle of a look"] += each.deaths
        counts["pods without a node in shaky runs"] += each.strandings
        counts["broken laws"] += bool(each.broken)
    return counts


def main() -> None:
    play_all(__doc__ or "", runs=10_000, laws="admission", count=counted)


def play_all(
    description: str,
    *,
    runs: int,
    laws: str,
    count: Callable[[Iterable[Any]], Counter[str]],
    module: str = ADMISSION,
    at_once: int = AT_ONCE,
) -> None:
    """Plays as many runs of the module as the command line says, and reports. Ends the process."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow by number")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the runs")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    counts: Counter[str] = Counter()
    broken: list[Any] = []
    seconds, began = 0.0, perf_counter()
    with Progress(console=console, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("runs", total=len(seeds))
        for outcomes, took in shared_out(seeds, arguments.jobs, module, at_once=at_once):
            counts += count(outcomes)
            for each in (each for each in outcomes if each.broken):
                broken.append(each)
                console.print(f"run {each.seed}: {each.broken}", markup=False, highlight=False)
            seconds += took
            progress.advance(bar, len(outcomes))
    report(console, counts, broken, laws)
    each_ms, wall_s = 1000 * seconds / len(seeds), perf_counter() - began
    console.print(f"{each_ms:.0f} ms of processor time a run, {seconds:.0f} s in all, {wall_s:.0f} s by the clock")
    console.print(machine(), highlight=False)
    sys.exit(1 if broken else 0)


def report(console: Console, counts: Counter[str], broken: list[Any], laws: str) -> None:
    table = Table(show_header=False)
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    for each in broken[:STORIES]:
        console.print(str(each), markup=False, highlight=False)
    verdict = f"broken in {len(broken)}" if broken else "held in all"
    console.print(f"laws of {laws}: {verdict} of {counts['runs']:,} runs")


if __name__ == "__main__":
    main()
