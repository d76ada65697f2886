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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Any

from scaler_analysis.simulation.gangs.outcomes import GangRun, GpuCount
from scaler_analysis.simulation.outcome import SOON, WITHIN_AN_HOUR

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """How long so many waited; all zero where there are none."""

    number: int
    mean: timedelta
    p50: timedelta
    p95: timedelta

    @staticmethod
    def of(times: Iterable[timedelta]) -> "WaitTimes":
        waits = sorted(times)
        mean = sum(waits, timedelta(0)) / max(1, len(waits))
        return WaitTimes(number=len(waits), mean=mean, p50=_percentile(waits, 50), p95=_percentile(waits, 95))


def _percentile(ordered: Sequence[timedelta], percent: int) -> timedelta:
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    policy: str
    worked_ratio: float
    held_ratio: float
    gang_waits: WaitTimes
    job_waits: WaitTimes
    suspensions: int
    returns_soon: int
    """Suspensions whose pause was over within 15 min."""
    returns_later: int
    """Suspensions whose pause was over within an hour, those within 15 min among them."""
    resume_waits: WaitTimes
    """How long sessions waited for their quota after a pause was over."""
    freed_gpu_hours: float
    given_gpu_hours: float
    plans: int
    plans_ended: Mapping[str, int]
    """Why those ended by which nothing was suspended."""
    ended_at: datetime
    """When the last job ended."""
    series: tuple[dict[str, Any], ...]
    """Means of spans of time, as JSON: worked and held of the quota, and the GPUs that waiting Workloads asked for."""


def report_of(run: GangRun, *, points: int = 200) -> PolicyReport:
    """`points` is how many the series has."""
    begin, end = run.outcomes[0].job.created, run.outcomes[-1].job.created
    worked, held = (_gpu_time(run, attrgetter(each), end) for each in ("worked", "held"))
    freed = _gpu_time(run, attrgetter("freed"))
    given = _gpu_time(run, lambda count: max(0, count.held + count.freed - run.quota))
    total = run.quota * (end - begin)
    returns = [each.wanted_at - each.at for each in run.suspensions if each.wanted_at is not None]
    return PolicyReport(
        policy=run.policy,
        worked_ratio=worked / total if total else 0.0,
        held_ratio=held / total if total else 0.0,
        gang_waits=WaitTimes.of(each.waited for each in run.outcomes if each.job.is_gang),
        job_waits=WaitTimes.of(each.waited for each in run.outcomes),
        suspensions=len(run.suspensions),
        returns_soon=sum(each <= SOON for each in returns),
        returns_later=sum(each <= WITHIN_AN_HOUR for each in returns),
        resume_waits=WaitTimes.of(
            each.resumed_at - each.wanted_at for each in run.suspensions if each.wanted_at and each.resumed_at
        ),
        freed_gpu_hours=freed / _HOUR,
        given_gpu_hours=given / _HOUR,
        plans=run.plans,
        plans_ended=run.plans_ended,
        ended_at=max(each.ended_at for each in run.outcomes),
        series=tuple(_series(run, begin, (end - begin) / points, points)) if end > begin else (),
    )


def _gpu_time(run: GangRun, value: Callable[[GpuCount], int], end: datetime | None = None) -> timedelta:
    """GPUs × time, until that end where one is given."""
    until = run.counts[-1].at if end is None else end
    spans = ((count, min(after.at, until) - count.at) for count, after in pairwise(run.counts) if count.at < until)
    return sum((value(count) * span for count, span in spans), timedelta(0))


# ----------------------------------------------------------------------------------------------------------- series


def _series(run: GangRun, begin: datetime, width: timedelta, points: int) -> Iterator[dict[str, Any]]:
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


# ------------------------------------------------------------------------------------------------------------- JSON


def as_json(report: PolicyReport, price_per_gpu_hour: float | None = None) -> dict[str, Any]:
    """What `--json` prints of one policy. Times are in seconds, ratios of the quota."""
    return {
        "policy": report.policy,
        "workedRatio": report.worked_ratio,
        "heldRatio": report.held_ratio,
        "gangWaitSeconds": _waits_json(report.gang_waits),
        "jobWaitSeconds": _waits_json(report.job_waits),
        "suspensions": report.suspensions,
        "returnsWithin15m": report.returns_soon,
        "returnsWithin60m": report.returns_later,
        "resumeWaitSeconds": _waits_json(report.resume_waits),
        "freedGpuHours": report.freed_gpu_hours,
        "givenGpuHours": report.given_gpu_hours,
        **({} if price_per_gpu_hour is None else {"givenCost": report.given_gpu_hours * price_per_gpu_hour}),
        "plans": report.plans,
        "plansEnded": dict(report.plans_ended),
        "endedAt": report.ended_at.isoformat(),
        "series": [*report.series],
    }


def _waits_json(waits: WaitTimes) -> dict[str, float]:
    return {
        "number": waits.number,
        "mean": waits.mean.total_seconds(),
        "p50": waits.p50.total_seconds(),
        "p95": waits.p95.total_seconds(),
    }
