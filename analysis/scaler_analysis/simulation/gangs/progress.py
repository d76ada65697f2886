"""How far one job of a trace has come."""

from datetime import datetime
from enum import StrEnum

from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob


class JobStage(StrEnum):
    CREATED = "Created"
    WAITING = "Waiting"
    """For quota; for a session that comes back also for KEDA."""
    RESUMING = "Resuming"
    """Admitted again after a suspension; its GPUs do not work yet."""
    WORKING = "Working"
    IDLE = "Idle"
    SUSPENDED = "Suspended"
    """In the pause in which it was suspended."""
    ENDED = "Ended"


HOLDING = (JobStage.RESUMING, JobStage.WORKING, JobStage.IDLE)
"""Stages in which it holds its GPUs."""


class JobProgress:
    __slots__ = (
        "admitted_at",
        "ended_at",
        "idle_since",
        "job",
        "next_span",
        "running_since",
        "span_ends",
        "stage",
        "stages",
        "suspension",
        "times_reclaimed",
    )

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.stage = JobStage.CREATED
        self.stages = 0
        """How many it has been through: what was due in an earlier one is not due any more."""
        self.next_span = 0
        self.admitted_at: datetime | None = None
        """For the first time."""
        self.running_since = job.created
        """Since it was last admitted."""
        self.span_ends = job.created
        self.idle_since = job.created
        """Since when its pause counts."""
        self.ended_at = job.created
        self.suspension = -1
        """Number of its last one."""
        self.times_reclaimed = 0
        """How often plans have suspended it."""

    @property
    def has_no_span_left(self) -> bool:
        return self.next_span == len(self.job.spans)
