"""The ledger of freed GPUs: who gave how many, where they are now, who got them, how long it took, what was wasted.

    reclaimable → releasing → available → reserved → admitted
                                  └────→ taken (by somebody else)

Laws:

* An entry moves by observed state only: a Workload's conditions and its pods. Nothing we have decided credits quota.
* It moves forward, stage by stage; the time of a stage is when it was first observed, and does not change afterwards.
* GPUs whose pods still end are *releasing*, although Kueue counts their quota as free already.
* What is wasted: GPUs × the time from the first deactivation to the gang's admission, while neither side used them.

Worked example: 4 GPUs, deactivated at 0 s, pods gone at 6 s, reserved at 1 s, admitted at 7 s. Reserved is seen before
available: the entry is Releasing until 6 s, then Reserved. 4 × 7 s = 28 GPU-seconds wasted.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum


class Stage(StrEnum):
    """Where freed GPUs are."""

    RECLAIMABLE = "Reclaimable"
    """Granted, and still held by their idle workload."""
    RELEASING = "Releasing"
    AVAILABLE = "Available"
    RESERVED = "Reserved"
    ADMITTED = "Admitted"
    TAKEN = "Taken"
    CANCELLED = "Cancelled"

    @property
    def is_final(self) -> bool:
        return self in {Stage.ADMITTED, Stage.TAKEN, Stage.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is observed about one victim and the gang at one instant."""

    is_deactivated: bool
    holds_quota: bool
    """By its own condition QuotaReserved."""
    pods_left: int
    gang_reserved: bool = False
    gang_admitted: bool = False
    taken_by: str = ""
    """A third Workload that got a piece of what was freed."""
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one victim gives to one plan."""

    plan: str
    gang: str
    gpus: int
    stage: Stage = Stage.RECLAIMABLE
    reclaimable_at: datetime
    releasing_at: datetime | None = None
    available_at: datetime | None = None
    reserved_at: datetime | None = None
    admitted_at: datetime | None = None
    ended_at: datetime | None = None
    """When it was taken or cancelled."""
    taken_by: str = ""

    @property
    def took(self) -> timedelta | None:
        """From the grant to the gang's admission."""
        return self.admitted_at - self.reclaimable_at if self.admitted_at else None

    @property
    def wasted_gpu_seconds(self) -> float | None:
        """Unused GPU time of a hand-over that has ended, well or not; None where nothing was given up yet."""
        end = self.admitted_at or self.ended_at
        if end is None or self.releasing_at is None:
            return None
        return self.gpus * (end - self.releasing_at).total_seconds()


def advance(entry: Entry, sight: Sight, *, now: datetime) -> Entry:
    """The entry after what was observed now."""
    if entry.stage.is_final:
        return entry
    if sight.is_cancelled:
        return replace(entry, stage=Stage.CANCELLED, ended_at=now)
    if sight.is_deactivated and entry.releasing_at is None:
        entry = replace(entry, stage=Stage.RELEASING, releasing_at=now)
    if entry.releasing_at is not None and entry.available_at is None and _is_free(sight):
        entry = replace(entry, stage=Stage.AVAILABLE, available_at=now)
    if sight.gang_reserved and entry.reserved_at is None:
        entry = replace(entry, reserved_at=now)
    if entry.reserved_at is not None and entry.available_at is not None and entry.stage is Stage.AVAILABLE:
        entry = replace(entry, stage=Stage.RESERVED)
    return _ended(entry, sight, now)


def reopened(entry: Entry, *, plan: str) -> Entry:
    """The entry as it goes on with another plan for the same gang: what was freed stays freed, and counts from then.

    That a third one took a piece has been told; what becomes of the GPUs in the end is open again.
    """
    stage = Stage.RECLAIMABLE if entry.releasing_at is None else Stage.RELEASING
    if entry.available_at is not None:
        stage = Stage.AVAILABLE if entry.reserved_at is None else Stage.RESERVED
    return replace(entry, plan=plan, stage=stage, ended_at=None, taken_by="")


def _is_free(sight: Sight) -> bool:
    return not sight.holds_quota and sight.pods_left == 0


def _ended(entry: Entry, sight: Sight, now: datetime) -> Entry:
    if sight.gang_admitted:
        return replace(entry, stage=Stage.ADMITTED, admitted_at=now)
    if sight.taken_by and not sight.gang_reserved:
        return replace(entry, stage=Stage.TAKEN, ended_at=now, taken_by=sight.taken_by)
    return entry
