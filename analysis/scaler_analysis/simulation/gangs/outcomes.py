"""What came of one policy: when each job was admitted, what was suspended and why, and what GPUs did all the time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob


class GangPolicy(StrEnum):
    NONE = "none"
    """A policy that suspends nothing."""
    ALWAYS = "always"
    """Idle workloads are suspended as with `reclaim: Always`."""
    ON_PRESSURE = "on-pressure"
    """Idle workloads are suspended as with `reclaim: OnPressure`."""


class GpuCount(NamedTuple):
    """GPUs from that instant until the next count."""

    at: datetime
    held: int
    worked: int
    freed: int
    """The GPUs of sessions that are suspended and have not come back."""
    waiting: int
    """The GPUs that waiting Workloads ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSuspension:
    job: str
    gpus: int
    at: datetime
    beneficiary: str = ""
    """The gang whose plan suspended it; empty where time alone did."""
    wanted_at: datetime | None = None
    """When its pause was over; None where it ended in it."""
    resumed_at: datetime | None = None
    """When it got its quota back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    job: SimulatedJob
    admitted_at: datetime
    """When it was admitted for the first time."""
    ended_at: datetime

    @property
    def waited(self) -> timedelta:
        return self.admitted_at - self.job.created


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRun:
    policy: GangPolicy
    quota: int
    """GPUs of all ClusterQueues."""
    outcomes: tuple[JobOutcome, ...]
    """What came of each job, in the order of their creation."""
    suspensions: tuple[SessionSuspension, ...]
    """All suspensions, in the order in which they began."""
    counts: tuple[GpuCount, ...]
    plans: int = 0
    """The plans that the planner granted."""
    plans_ended: Mapping[str, int]
    """Why those ended by which no workload was suspended, and how many."""
