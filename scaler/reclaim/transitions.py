"""A plan that was granted: what is to be done about it now, from what is observed of its victims and its gang?

A plan becomes *grants*, one on each victim's ScalableWorkload. A grant suspends nothing by itself: the scaler answers
inactive while the grant stands and its own verdict is still Idle, KEDA brings replicas to 0 at its own pace, and only
when all victims of the plan are asked to be at 0 are they deactivated, back to back. Until then nothing has been lost,
and a victim that is used again cancels the plan at no cost.

Laws:

* Whole or nothing: no victim is deactivated before every one of them is asked to be at 0 and idle by its own verdict.
* Freed quota is not reserved. So nothing lies between the first deactivation and the last but the calls themselves.
* After the first deactivation the plan goes on: pods are being killed already, and to turn back now loses both the
  running jobs and the gang. But a workload that is not idle keeps running, even then.
* What cannot be known changes nothing: a victim without a verdict is neither deactivated nor released.
* A grant ends: by its gang being admitted, by being cancelled, or by expiring. The time counts anew from every
  deactivation, so that the gang has its time, and no victim stays suspended for ever because another one cannot be.

| gang     | victims                                          | action                               |
|----------|--------------------------------------------------|--------------------------------------|
| admitted | some were deactivated                            | finish, releasing the others         |
| reserved | some were deactivated                            | watch, releasing the others          |
| either   | none was deactivated                             | release (NotNeeded)                  |
| gone     | –                                                | release (GangGone)                   |
| waiting  | none deactivated, one is missing or busy         | release (VictimBusy)                 |
| waiting  | none deactivated, the hook of one has failed     | release (BeforeSuspendFailed)        |
| waiting  | none deactivated, its time is up                 | release (GrantExpired)               |
| waiting  | none deactivated, one was set back to 1          | release (VictimWoke)                 |
| waiting  | some deactivated, one is missing, busy or woken  | reconsider (VictimWoke)              |
| waiting  | some deactivated, its time is up                 | reconsider (NotReserved)             |
| waiting  | all that are not deactivated at 0 and idle       | commit these                         |
| waiting  | all deactivated                                  | watch                                |
| waiting  | otherwise                                        | wait                                 |

To reconsider is to plan again with what is already suspended counting as free: if the gang fits without the victim that
woke, the plan goes on without it; if others can give what is missing, it goes on with them; otherwise the rest is
released.

The ledger says of freed GPUs how many came of which victim, at what stage they are, and what was wasted:

    reclaimable → releasing → available → reserved → admitted

* An entry moves by observed state only: a Workload's conditions and its pods. Nothing we have decided credits quota.
* It moves forward, stage by stage; the time of a stage is when it was first observed, and does not change afterwards.
* GPUs whose pods still end are *releasing*, although Kueue counts their quota as free already.
* What is wasted: GPUs × the time from the first deactivation to the gang's admission, while neither side used them.

Worked example: 4 GPUs, deactivated at 0 s, pods gone at 6 s, reserved at 1 s, admitted at 7 s. Reserved is observed
before available: the entry is Releasing until 6 s, then Reserved. 4 × 7 s = 28 GPU-seconds wasted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.targets.target_state import Grant


class GangState(StrEnum):
    """How far the gang is that a plan is for. One that seeks nodes holds its quota all the time: for it `Waiting` means
    that our check holds it back, and `Admitted` that the check is Ready."""

    WAITING = "Waiting"
    RESERVED = "Reserved"
    ADMITTED = "Admitted"
    GONE = "Gone"
    """Deleted, finished, deactivated, or without the quota that it had: it is not pending any more. Or a remote copy of
    MultiKueue that waits, and this cluster is not nominated for it any more."""


class PlanAction(StrEnum):
    WAIT = "Wait"
    COMMIT = "Commit"
    WATCH = "Watch"
    RECONSIDER = "Reconsider"
    RELEASE = "Release"
    FINISH = "Finish"


class PlanEndReason(StrEnum):
    NONE = ""
    GANG_GONE = "GangGone"
    VICTIM_BUSY = "VictimBusy"
    VICTIM_WOKE = "VictimWoke"
    HOOK_FAILED = "BeforeSuspendFailed"
    """The hook of a victim has failed, and its policy says Hold."""
    GRANT_EXPIRED = "GrantExpired"
    NOT_RESERVED = "NotReserved"
    NO_LONGER_HOLDS = "PlanNoLongerValid"
    NOT_NEEDED = "NotNeeded"
    """The gang got its quota without them."""
    QUOTA_TAKEN = "FreedQuotaTaken"
    NODES_TAKEN = "FreedNodesTaken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    name: str
    """`namespace/name` of its ScalableWorkload."""
    desired_replicas: int
    is_idle: bool
    """Whether its own verdict says so now; what cannot be known is not idle."""
    is_deactivated: bool
    """Its Workload is inactive, and by us."""
    is_missing: bool = False
    is_unknown: bool = False
    """Whether it is idle is not known, or its hook has not ended."""
    has_failed_hook: bool = False
    was_set_back: bool = False
    """It was at 0 for the plan, and was scaled up again."""
    was_deactivated: bool = False
    """Whether it was deactivated for this plan, whatever became of it since."""
    holds_quota: bool = False
    """Whether the condition QuotaReserved of its Workload says so, which Kueue may write late."""
    pods_left: int = 0

    @property
    def is_wanted_at_zero(self) -> bool:
        return not self.is_missing and self.desired_replicas == 0

    @property
    def is_ready(self) -> bool:
        """Whether it may be deactivated as soon as all others may."""
        return self.is_wanted_at_zero and self.is_idle and not self.was_set_back

    @property
    def stays(self) -> bool:
        return self.is_deactivated and self.is_wanted_at_zero

    @property
    def is_willing(self) -> bool:
        """Whether it still holds its quota, and may be suspended."""
        return self.is_idle and not (self.is_deactivated or self.was_set_back)

    @property
    def is_lost(self) -> bool:
        """Whether the plan has to do without it: it has vanished, works, or is to run again."""
        if self.is_missing or self.is_deactivated:
            return not self.stays
        return not (self.is_idle or self.is_unknown)

    @property
    def has_given(self) -> bool:
        return self.is_deactivated or self.was_deactivated


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTransition:
    """What to do, and why where it is not obvious."""

    action: PlanAction
    ending: PlanEndReason = PlanEndReason.NONE
    about: tuple[str, ...] = ()
    """The victims that are the cause: they are busy, woke, or were never brought to 0."""


def next_transition(grant: Grant, gang: GangState, victims: Sequence[Victim], *, now: datetime) -> PlanTransition:
    match gang:
        case GangState.ADMITTED:
            return _served(PlanAction.FINISH, victims)
        case GangState.RESERVED:
            return _served(PlanAction.WATCH, victims)
        case GangState.GONE:
            return PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.GANG_GONE)
        case GangState.WAITING:
            is_begun = any(victim.is_deactivated for victim in victims)
            return (_begun if is_begun else _not_begun)(grant, victims, now)


def _served(action: PlanAction, victims: Sequence[Victim]) -> PlanTransition:
    """The gang has its quota: victims that were not deactivated are not needed."""
    spared = tuple(victim.name for victim in victims if not victim.has_given)
    if len(spared) == len(victims):
        return PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.NOT_NEEDED)
    return PlanTransition(
        action=action, ending=PlanEndReason.NOT_NEEDED if spared else PlanEndReason.NONE, about=spared
    )


def _begun(grant: Grant, victims: Sequence[Victim], now: datetime) -> PlanTransition:
    woken = tuple(victim.name for victim in victims if victim.is_lost or _is_set_back(victim, grant, now))
    if woken:
        return PlanTransition(action=PlanAction.RECONSIDER, ending=PlanEndReason.VICTIM_WOKE, about=woken)
    others = [victim for victim in victims if not victim.is_deactivated]
    if now >= grant.expires_at:
        late = tuple(victim.name for victim in others)
        return PlanTransition(action=PlanAction.RECONSIDER, ending=PlanEndReason.NOT_RESERVED, about=late)
    if others and all(victim.is_ready for victim in others):
        return PlanTransition(action=PlanAction.COMMIT)
    return PlanTransition(action=PlanAction.WAIT if others else PlanAction.WATCH)


def _not_begun(grant: Grant, victims: Sequence[Victim], now: datetime) -> PlanTransition:
    lost = [victim for victim in victims if victim.is_lost]
    if lost:
        is_held = all(victim.has_failed_hook for victim in lost)
        ending = PlanEndReason.HOOK_FAILED if is_held else PlanEndReason.VICTIM_BUSY
        return PlanTransition(action=PlanAction.RELEASE, ending=ending, about=tuple(victim.name for victim in lost))
    if now >= grant.expires_at:
        late = tuple(victim.name for victim in victims if not (victim.is_wanted_at_zero or victim.was_set_back))
        return PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.GRANT_EXPIRED, about=late)
    woken = tuple(victim.name for victim in victims if victim.was_set_back)
    if woken:
        return PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.VICTIM_WOKE, about=woken)
    if all(victim.is_ready for victim in victims):
        return PlanTransition(action=PlanAction.COMMIT)
    return PlanTransition(action=PlanAction.WAIT)


def _is_set_back(victim: Victim, grant: Grant, now: datetime) -> bool:
    """Whether it was scaled up for another reason. Once a grant has expired the scaler itself answers active."""
    return victim.was_set_back and not victim.is_deactivated and now < grant.expires_at


# ---------------------------------------------------------------------------------------------------------- the ledger


class LedgerStage(StrEnum):
    RECLAIMABLE = "Reclaimable"
    """GPUs that are granted, and still held by their idle workload."""
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
    """Whether it holds neither pods nor quota, whatever its own condition says once the gang is admitted."""
    return victim.pods_left == 0 and not (victim.holds_quota and gang is not GangState.ADMITTED)
