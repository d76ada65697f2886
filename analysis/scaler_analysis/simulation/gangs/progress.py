"""How far one job of a trace has come."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob


class JobStage(StrEnum):
    CREATED = "Created"
    WAITING = "Waiting"
    """It waits for quota; a session that comes back also for KEDA."""
    RESUMING = "Resuming"
    """The job is admitted again after a suspension; its GPUs do not work yet."""
    WORKING = "Working"
    IDLE = "Idle"
    SUSPENDED = "Suspended"
    """It is in the pause in which it was suspended."""
    ENDED = "Ended"


HOLDING = (JobStage.RESUMING, JobStage.WORKING, JobStage.IDLE)
"""Stages in which it holds its GPUs."""


@dataclass(slots=True)
class JobProgress:
    job: SimulatedJob
    stage: JobStage = JobStage.CREATED
    stages: int = 0
    """How many it has been through: what was due in an earlier one is not due any more."""
    next_span: int = 0
    admitted_at: datetime | None = None
    """When it was admitted for the first time."""
    running_since: datetime = field(init=False)
    """When it was last admitted."""
    span_ends: datetime = field(init=False)
    idle_since: datetime = field(init=False)
    """The time since which its pause counts."""
    ended_at: datetime = field(init=False)
    suspension: int = -1
    """The number of its last one."""
    times_reclaimed: int = 0
    """How often plans have suspended it."""

    def __post_init__(self) -> None:
        self.running_since = self.span_ends = self.idle_since = self.ended_at = self.job.created

    @property
    def has_no_span_left(self) -> bool:
        return self.next_span == len(self.job.spans)
