"""The ledger of freed GPUs: how many of which victim, at what stage they are, how long it took, what was wasted.

    reclaimable → releasing → available → reserved → admitted

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

from scaler.reclaim.transitions import GangState, Victim


class LedgerStage(StrEnum):
    """Where freed GPUs are."""

    RECLAIMABLE = "Reclaimable"
    """Granted, and still held by their idle workload."""
    RELEASING = "Releasing"
    AVAILABLE = "Available"
    RESERVED = "Reserved"
    ADMITTED = "Admitted"
    CANCELLED = "Cancelled"

    @property
    def is_final(self) -> bool:
        return self in {LedgerStage.ADMITTED, LedgerStage.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """What one victim gives to one plan."""

    plan: str
    gang: str
    gpus: int
    stage: LedgerStage = LedgerStage.RECLAIMABLE
    reclaimable_at: datetime
    releasing_at: datetime | None = None
    available_at: datetime | None = None
    reserved_at: datetime | None = None
    admitted_at: datetime | None = None
    ended_at: datetime | None = None
    """When it was cancelled."""

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


def advance(entry: LedgerEntry, victim: Victim, gang: GangState, *, now: datetime) -> LedgerEntry:
    """The entry after what was observed now.

    Kueue admits the gang while pods of the victim still end: what the gang cannot use yet is not its own.
    """
    if entry.stage.is_final:
        return entry
    if victim.is_deactivated and entry.releasing_at is None:
        entry = replace(entry, stage=LedgerStage.RELEASING, releasing_at=now)
    if entry.releasing_at is not None and entry.available_at is None and _is_free(victim, gang):
        entry = replace(entry, stage=LedgerStage.AVAILABLE, available_at=now)
    if gang in {GangState.RESERVED, GangState.ADMITTED} and entry.reserved_at is None:
        entry = replace(entry, reserved_at=now)
    if entry.reserved_at is not None and entry.available_at is not None and entry.stage is LedgerStage.AVAILABLE:
        entry = replace(entry, stage=LedgerStage.RESERVED)
    is_over = gang is GangState.ADMITTED and not (victim.is_deactivated and victim.pods_left)
    return replace(entry, stage=LedgerStage.ADMITTED, admitted_at=now) if is_over else entry


def closed(entry: LedgerEntry, victim: Victim, *, now: datetime) -> LedgerEntry:
    """The entry once the gang is admitted and the plan ends, even where pods of the victim are still there."""
    moved = advance(entry, victim, GangState.ADMITTED, now=now)
    return moved if moved.stage.is_final else replace(moved, stage=LedgerStage.ADMITTED, admitted_at=now)


def reopened(entry: LedgerEntry, *, plan: str) -> LedgerEntry:
    """The entry as it goes on with another plan for the same gang: what was freed stays freed, and counts from then."""
    stage = LedgerStage.RECLAIMABLE if entry.releasing_at is None else LedgerStage.RELEASING
    if entry.available_at is not None:
        stage = LedgerStage.AVAILABLE if entry.reserved_at is None else LedgerStage.RESERVED
    return replace(entry, plan=plan, stage=stage, ended_at=None)


def _is_free(victim: Victim, gang: GangState) -> bool:
    """Once the gang is admitted the victim holds no quota, whatever its own condition still says."""
    return victim.pods_left == 0 and not (victim.holds_quota and gang is not GangState.ADMITTED)
