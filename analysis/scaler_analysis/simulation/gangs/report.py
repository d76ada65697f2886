"""What does each policy give, in numbers? From the course of things to a table, JSON, and series for a picture.

* Utilisation counts from the first job's creation to the last one's, which is the same time under every policy: GPU
  time that worked, and that was held, of what the quota has. After it the cluster only runs empty.
* Waiting times are those until a job was admitted for the first time, of all jobs. A gang needs several GPUs. A
  percentile is the smallest of the times that at least so many jobs do not exceed.
* A return within 15 min is a suspension after which the pause went on for no longer than that: it is regretted.
* Freed is the GPU time from a suspension until the pause was over. Given is that part of it without which those that
  held GPUs at that time had not all had room: what is held and what is freed, less the quota.

Worked example: of 8 GPUs 4 are freed for an hour, and 6 are held: 2 GPU-hours are given, and 2 were free for nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Any

from scaler_analysis.simulation.gangs.outcomes import GangRun, GpuCount
from scaler_analysis.simulation.outcome import SOON, WITHIN_AN_HOUR

Json = dict[str, Any]

_HOUR = timedelta(hours=1)


def wait_times(times: Iterable[timedelta]) -> Json:
    """How long so many waited, in seconds; all 0 where there are none."""
    waits = sorted(times)
    mean = sum(waits, timedelta(0)) / max(1, len(waits))
    shown = {"mean": mean, "p50": _percentile(waits, 50), "p95": _percentile(waits, 95)}
    return {"number": len(waits), **{name: each.total_seconds() for name, each in shown.items()}}


def _percentile(ordered: Sequence[timedelta], percent: int) -> timedelta:
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else timedelta(0)


def report_of(run: GangRun, *, price_per_gpu_hour: float | None = None, points: int = 200) -> Json:
    """What `--json` prints of one policy, and the table is made of. Times are in seconds, ratios of the quota.

    `points` is how many the series has: means of spans of time, worked and held, and the GPUs that waiting Workloads
    asked for.
    """
    begin, end = run.outcomes[0].job.created, run.outcomes[-1].job.created
    worked, held = (_gpu_time(run, attrgetter(each), end) for each in ("worked", "held"))
    freed = _gpu_time(run, attrgetter("freed"))
    given = _gpu_time(run, lambda count: max(0, count.held + count.freed - run.quota)) / _HOUR
    total = run.quota * (end - begin)
    returns = [each.wanted_at - each.at for each in run.suspensions if each.wanted_at is not None]
    resumed = [(each.wanted_at, each.resumed_at) for each in run.suspensions if each.wanted_at and each.resumed_at]
    return {
        "policy": run.policy,
        "workedRatio": worked / total if total else 0.0,
        "heldRatio": held / total if total else 0.0,
        "gangWaitSeconds": wait_times(each.waited for each in run.outcomes if each.job.is_gang),
        "jobWaitSeconds": wait_times(each.waited for each in run.outcomes),
        "suspensions": len(run.suspensions),
        "returnsWithin15m": sum(each <= SOON for each in returns),
        "returnsWithin60m": sum(each <= WITHIN_AN_HOUR for each in returns),
        "resumeWaitSeconds": wait_times(resumed_at - wanted_at for wanted_at, resumed_at in resumed),
        "freedGpuHours": freed / _HOUR,
        "givenGpuHours": given,
        **({} if price_per_gpu_hour is None else {"givenCost": given * price_per_gpu_hour}),
        "plans": run.plans,
        "plansEnded": dict(run.plans_ended),
        "endedAt": max(each.ended_at for each in run.outcomes).isoformat(),
        "series": [*_series(run, begin, (end - begin) / points, points)] if end > begin else [],
    }


def _gpu_time(run: GangRun, value: Callable[[GpuCount], int], end: datetime | None = None) -> timedelta:
    """GPUs × time, until that end where one is given."""
    until = run.counts[-1].at if end is None else end
    spans = ((count, min(after.at, until) - count.at) for count, after in pairwise(run.counts) if count.at < until)
    return sum((value(count) * span for count, span in spans), timedelta(0))


# ----------------------------------------------------------------------------------------------------------- series


def _series(run: GangRun, begin: datetime, width: timedelta, points: int) -> Iterator[Json]:
    held, worked, waiting = ([timedelta(0)] * points for _ in range(3))
    for place, count, span in _pieces(run.counts, begin, width, points):
        held[place] += count.held * span
        worked[place] += count.worked * span
        waiting[place] += count.waiting * span
    for place in range(points):
        yield {
            "at": (begin + place * width).isoformat(),
            "workedRatio": worked[place] / (run.quota * width),
            "heldRatio": held[place] / (run.quota * width),
            "waitingGpus": waiting[place] / width,
        }


def _pieces(
    counts: Sequence[GpuCount], begin: datetime, width: timedelta, points: int
) -> Iterator[tuple[int, GpuCount, timedelta]]:
    """Every count, cut where a point of the series begins."""
    for count, after in pairwise(counts):
        at, place = count.at, (count.at - begin) // width
        while at < after.at and place < points:
            until = min(after.at, begin + (place + 1) * width)
            yield place, count, until - at
            at, place = until, place + 1
