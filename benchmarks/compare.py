"""How long does `simulate --compare` take where Workloads wait all the time? Made Workloads, each with its pauses.

    uv run python -m benchmarks.compare [--gpus 1000] [--days 30] [--kind stay --kind turnover] [--write FOLDER]

* stay: as many pods of one GPU as there are GPUs, all the time; the quota is 2.5 % short of that.
* turnover: jobs of 1 to 32 GPUs for hours to days, of which three in ten are sessions with pauses. One is created
  whenever fewer than 30 wait, where what is idle for long gives its GPUs back: under `none` many more wait.

Times are those of one processor. `--write` writes each load as the CSV that `--workloads` reads, and what comes of it.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from math import exp
from pathlib import Path

from scaler_analysis.simulation.gangs.course import simulate_gangs
from scaler_analysis.simulation.gangs.idle_mix import IdleMix, SpanLengths
from scaler_analysis.simulation.gangs.outcomes import GangPolicy
from scaler_analysis.simulation.gangs.pressure_plans import GangTimes
from scaler_analysis.simulation.gangs.report import Json, report_of
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WAITING = 30
GPUS, WEIGHTS = (1, 2, 4, 8, 16, 32), (50, 15, 15, 14, 4, 2)


def spans(chance: random.Random, length_s: float, work: SpanLengths, idle: SpanLengths) -> tuple[timedelta, ...]:
    """The spans by turns, the first of them work, until the length is reached."""
    found, left = list[timedelta](), timedelta(seconds=max(1, round(length_s)))
    while left:
        span = min(left, (idle if len(found) % 2 else work).draw(chance))
        found.append(span)
        left -= span
    return tuple(found)


def stay(gpus: int, days: int, chance: random.Random) -> Iterator[SimulatedJob]:
    """Spells as in `benchmarks.simulate`."""
    length = SpanLengths(median=timedelta(minutes=20), sigma=1.5)
    for n in range(gpus):
        begin_s = n * 7 % 3600
        yield SimulatedJob(
            name=f"pod-{n:04}",
            created=BEGIN + begin_s * SECOND,
            gpus=1,
            spans=spans(chance, 86_400 * days - begin_s, length, length),
        )


def turnover(gpus: int, days: int, chance: random.Random) -> Iterator[SimulatedJob]:
    mix, end_s = IdleMix(), 86_400.0 * days
    free, ends, waiting = gpus, list[tuple[float, int]](), list[SimulatedJob]()
    at_s, number = 0.0, 0
    while at_s < end_s:
        while len(waiting) < WAITING:
            job = _job(number, at_s + chance.uniform(0, 60), chance, mix)
            waiting.append(job)
            yield job
            number += 1
        for job in list(waiting):
            if job.gpus <= free:
                waiting.remove(job)
                free -= job.gpus
                heappush(ends, (at_s + _held_s(job), job.gpus))
        if len(waiting) == WAITING:
            at_s, given = heappop(ends)
            free += given


def _job(number: int, at_s: float, chance: random.Random, mix: IdleMix) -> SimulatedJob:
    gpus = chance.choices(GPUS, WEIGHTS)[0]
    length_s = min(20 * 86_400, 3600 * exp(chance.gauss(1.8, 1.2)))
    is_session = gpus <= mix.max_gpus and chance.random() < mix.share_ratio
    found = spans(chance, length_s, mix.work, mix.idle) if is_session else (round(length_s) * SECOND,)
    return SimulatedJob(name=f"job-{number:05}", created=BEGIN + round(at_s) * SECOND, gpus=gpus, spans=found)


def _held_s(job: SimulatedJob) -> float:
    """The time for which it holds its GPUs where a pause of more than 35 min gives them back."""
    idle_s = sum(min(each.total_seconds(), 2100) for each in job.spans[1::2])
    return sum(each.total_seconds() for each in job.spans[::2]) + idle_s


LOADS: Mapping[str, tuple[Callable[[int, int, random.Random], Iterator[SimulatedJob]], float]] = {
    "stay": (stay, 0.975),
    "turnover": (turnover, 1.0),
}
"""The loads, and the share of the GPUs that is their quota."""


def csv_of(jobs: Sequence[SimulatedJob]) -> Iterator[str]:
    yield "created,name,gpus,seconds,spans"
    for job in jobs:
        lengths = " ".join(f"{each.total_seconds():.0f}" for each in job.spans)
        seconds = job.duration.total_seconds()
        yield f"{job.created.timestamp():.0f},{job.name},{job.gpus},{seconds:.0f},{lengths}"


def run(jobs: Sequence[SimulatedJob], quota: Mapping[str, int], policy: GangPolicy) -> Json:
    began = time.process_time()
    found = simulate_gangs(jobs, quota, policy, GangTimes(idle_after=timedelta(minutes=30)))
    simulated = time.process_time()
    report = report_of(found)
    print(
        f"  {policy}: {simulated - began:.1f} s, and {time.process_time() - simulated:.1f} s for the report; "
        f"{len(found.counts):,} instants, {report['suspensions']:,} suspensions, {report['plans']:,} plans",
        flush=True,
    )
    return report


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--gpus", type=int, default=1000)
    flags.add_argument("--days", type=int, default=30)
    flags.add_argument("--kind", action="append", choices=LOADS)
    flags.add_argument("--policy", action="append", type=GangPolicy, choices=list(GangPolicy))
    flags.add_argument("--write", type=Path)
    given = flags.parse_args()
    for kind in given.kind or LOADS:
        make, share = LOADS[kind]
        jobs = sorted(make(given.gpus, given.days, random.Random(13)), key=lambda job: (job.created, job.name))
        quota = {"default": round(share * given.gpus)}
        print(f"{kind}: {len(jobs):,} Workloads, {sum(len(each.spans) for each in jobs):,} spans, {quota} GPUs")
        name = f"{kind}-{given.gpus}-{given.days}"
        if given.write:
            (given.write / f"{name}.csv").write_text("\n".join(csv_of(jobs)) + "\n", encoding="utf-8")
        for policy in given.policy or GangPolicy:
            report = run(jobs, quota, policy)
            if given.write:
                answer = json.dumps(report, indent=1)
                (given.write / f"{name}-{policy}.json").write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
