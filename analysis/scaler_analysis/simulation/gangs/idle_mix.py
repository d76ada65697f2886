"""Which jobs of a trace are sessions that sit idle in between? A synthetic mix: traces of jobs do not say it.

Laws:

* Of the jobs with at most `max_gpus` GPUs a share are sessions: of people, with a notebook or a development pod. All
  others work from their start to their end.
* A session takes as long as the trace says, and its GPUs work and are idle by turns in that time, at work first.
* Spans are drawn from log-normal distributions: most pauses are short, and a few take the night. With the defaults a
  pause takes 20 min in the median and 92 min on average, a time of work 30 min and 49 min.
* What is drawn for a job depends on the seed and the name of the job alone: not on other jobs, nor on any policy.

Worked example: a session of 60 min for which 25, 20 and 40 min are drawn has the spans 25 (work), 20 (idle), 15 (work).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from math import log
from random import Random

from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLengths:
    """A log-normal distribution."""

    median: timedelta
    sigma: float
    """The standard deviation of the logarithm: 0 is always the median, 1.75 has a mean of 4.6 medians."""

    def draw(self, random: Random) -> timedelta:
        """A span in whole seconds, and at least one."""
        seconds = random.lognormvariate(log(self.median.total_seconds()), self.sigma)
        return timedelta(seconds=max(1, round(seconds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleMix:
    share_ratio: float = 0.3
    """The share of sessions among the jobs that are small enough."""
    max_gpus: int = 8
    """What one node has: people do not work interactively on several."""
    work: SpanLengths = SpanLengths(median=timedelta(minutes=30), sigma=1.0)
    idle: SpanLengths = SpanLengths(median=timedelta(minutes=20), sigma=1.75)


def with_sessions(jobs: Iterable[SimulatedJob], mix: IdleMix, *, seed: int) -> tuple[SimulatedJob, ...]:
    """The jobs, some of them with idle spans. One that has several spans already stays as it is."""
    return tuple(_mixed(job, mix, Random(f"{seed}/{job.name}")) for job in jobs)  # noqa: S311 - not for secrets


def _mixed(job: SimulatedJob, mix: IdleMix, random: Random) -> SimulatedJob:
    is_session = random.random() < mix.share_ratio and job.gpus <= mix.max_gpus and len(job.spans) == 1
    return replace(job, spans=tuple(_spans(job.duration, mix, random))) if is_session else job


def _spans(left: timedelta, mix: IdleMix, random: Random) -> Iterator[timedelta]:
    works = True
    while left:
        span = min(left, (mix.work if works else mix.idle).draw(random))
        yield span
        left, works = left - span, not works
