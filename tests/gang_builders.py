"""Small worlds of jobs in virtual time: `work(60, idle=120)` works for an hour and is idle for two."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from scaler_analysis.simulation.gangs.course import simulate_gangs
from scaler_analysis.simulation.gangs.outcomes import GangPolicy, GangRun, JobOutcome
from scaler_analysis.simulation.gangs.pressure_plans import GangTimes
from scaler_analysis.simulation.gangs.simulated_job import DEFAULT_QUEUE, SimulatedJob

START = datetime(2026, 12, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMES = GangTimes(idle_after=timedelta(minutes=30))


def at(minutes: float) -> datetime:
    return START + minutes * MINUTE


def minutes_of(duration: timedelta) -> float:
    return duration / MINUTE


def job(
    name: str, *spans: float, gpus: int = 4, created: float = 0, queue: str = DEFAULT_QUEUE, priority: int = 0
) -> SimulatedJob:
    """`spans` are minutes of work, idleness, work, and so on."""
    return SimulatedJob(
        name=name,
        created=at(created),
        gpus=gpus,
        spans=tuple(span * MINUTE for span in spans),
        queue=queue,
        priority=priority,
    )


def run(
    *jobs: SimulatedJob,
    policy: GangPolicy | str,
    quota: int | Mapping[str, int] = 4,
    times: GangTimes = TIMES,
) -> GangRun:
    given = {DEFAULT_QUEUE: quota} if isinstance(quota, int) else quota
    ordered = sorted(jobs, key=lambda each: (each.created, each.name))
    return simulate_gangs(ordered, given, GangPolicy(policy), times)


def outcome(of: GangRun, name: str) -> JobOutcome:
    return next(each for each in of.outcomes if each.job.name == name)


def waited(of: GangRun, name: str) -> float:
    """In minutes."""
    return minutes_of(outcome(of, name).waited)


def ended(of: GangRun, name: str) -> float:
    """In minutes from the start."""
    return minutes_of(outcome(of, name).ended_at - START)
