"""A plan that was granted: what is to be done about it now, from what is observed of its victims and its gang?

A plan becomes *grants*, one on each victim's ScalableWorkload. A grant suspends nobody by itself: the scaler answers
inactive while the grant stands and its own verdict is still Idle, KEDA brings replicas to 0 at its own pace, and only
when all victims of the plan are asked to be at 0 are they deactivated, back to back. Until then nothing has been lost,
and a victim that is used again calls everything off at no cost.

Laws:

* Whole or nothing: no victim is deactivated before every one of them is asked to be at 0 and idle by its own verdict.
* Freed quota is anybody's. So nothing lies between the first deactivation and the last but the calls themselves.
* After the first deactivation the plan goes on: pods are being killed already, and to turn back now loses both the
  running jobs and the gang. But whoever works is left alone, even then.
* What cannot be known changes nothing: while nobody can say what a victim does, it is neither deactivated nor let go.
* A grant ends: by its gang being admitted, by being called off, or by its time running out. That counts anew from every
  deactivation, so that the gang has its time, and a victim that cannot be deactivated keeps nobody suspended for ever.

| gang     | victims                                          | course                               |
|----------|--------------------------------------------------|--------------------------------------|
| admitted | some have given                                  | finish, sparing those who have not   |
| reserved | some have given                                  | watch, sparing those who have not    |
| either   | none has given                                   | release (NotNeeded)                  |
| gone     | –                                                | release (GangGone)                   |
| waiting  | none deactivated, one is missing or busy         | release (VictimBusy)                 |
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
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Seeks(StrEnum):
    """What a plan frees for its gang."""

    QUOTA = "Quota"
    NODES = "Nodes"
    """Places on nodes: the gang holds its quota, and our AdmissionCheck holds it back until it can start whole."""


class GangState(StrEnum):
    """How far the gang is that a plan is for. One that seeks nodes holds its quota all the time: for it `Waiting` means
    that our check holds it back, and `Admitted` that the check has let it go."""

    WAITING = "Waiting"
    RESERVED = "Reserved"
    ADMITTED = "Admitted"
    GONE = "Gone"
    """Deleted, finished, deactivated, or without the quota that it had: nobody waits any more."""


class Course(StrEnum):
    """What to do about a plan."""

    WAIT = "Wait"
    COMMIT = "Commit"
    WATCH = "Watch"
    RECONSIDER = "Reconsider"
    RELEASE = "Release"
    FINISH = "Finish"


class Ending(StrEnum):
    """Why a plan is called off or looked at again."""

    NONE = ""
    GANG_GONE = "GangGone"
    VICTIM_BUSY = "VictimBusy"
    VICTIM_WOKE = "VictimWoke"
    GRANT_EXPIRED = "GrantExpired"
    NOT_RESERVED = "NotReserved"
    NO_LONGER_HOLDS = "PlanNoLongerHolds"
    NOT_NEEDED = "NotNeeded"
    """The gang got its quota without them."""
    WAS_TAKEN = "FreedQuotaTaken"
    NODES_TAKEN = "FreedNodesTaken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What stands in the status of every victim of one plan, the same on each."""

    plan: str
    """Its id: the same plan made twice is the same grant."""
    gang: str
    """`namespace/name` of the Workload it is for."""
    gang_uid: str
    victims: tuple[str, ...]
    """`namespace/name` of all its ScalableWorkloads."""
    granted_at: datetime
    expires_at: datetime
    """Not after `granted_at`: it was withdrawn."""
    seeks: Seeks = Seeks.QUOTA
    check: str = ""
    """Name of the AdmissionCheck that holds the gang back, of one that seeks nodes."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether it takes nobody any more. It stays for a moment all the same: an answer of 0 that was given while it
        stood may still be on its way, and without any grant that 0 would be somebody's wish."""
        return self.expires_at <= self.granted_at

    @property
    def words(self) -> str:
        return f"plan {self.plan} for Workload {self.gang}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One victim as observed."""

    key: str
    desired_replicas: int
    is_idle: bool
    """By its own verdict now; what cannot be known is not idle."""
    is_deactivated: bool
    """Its Workload is inactive, and by us."""
    is_missing: bool = False
    is_unknown: bool = False
    """Nobody can say now whether it is idle."""
    was_set_back: bool = False
    """It was at 0 for the plan, and somebody has asked for it again."""
    was_deactivated: bool = False
    """For this plan, whatever became of it since."""

    @property
    def is_wanted_at_zero(self) -> bool:
        return not self.is_missing and self.desired_replicas == 0

    @property
    def is_ready(self) -> bool:
        """Whether it may be deactivated as soon as all others may."""
        return self.is_wanted_at_zero and self.is_idle and not self.was_set_back

    @property
    def stays(self) -> bool:
        """Whether it is deactivated, and nobody asks for it."""
        return self.is_deactivated and self.is_wanted_at_zero

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
class Move:
    """The course, and why where it is not obvious."""

    course: Course
    ending: Ending = Ending.NONE
    about: tuple[str, ...] = ()
    """On whose account: victims that are busy, woke, or were never brought to 0."""


def move(grant: Grant, gang: GangState, victims: Sequence[Victim], *, now: datetime) -> Move:
    """What to do about the plan now."""
    match gang:
        case GangState.ADMITTED:
            return _served(Course.FINISH, victims)
        case GangState.RESERVED:
            return _served(Course.WATCH, victims)
        case GangState.GONE:
            return Move(course=Course.RELEASE, ending=Ending.GANG_GONE)
        case GangState.WAITING:
            is_begun = any(victim.is_deactivated for victim in victims)
            return (_begun if is_begun else _not_begun)(grant, victims, now)


def _served(course: Course, victims: Sequence[Victim]) -> Move:
    """The gang has its quota: those who have given nothing are not needed."""
    spared = tuple(victim.key for victim in victims if not victim.has_given)
    if len(spared) == len(victims):
        return Move(course=Course.RELEASE, ending=Ending.NOT_NEEDED)
    return Move(course=course, ending=Ending.NOT_NEEDED, about=spared) if spared else Move(course=course)


def _begun(grant: Grant, victims: Sequence[Victim], now: datetime) -> Move:
    woken = tuple(victim.key for victim in victims if victim.is_lost or _is_set_back(victim, grant, now))
    if woken:
        return Move(course=Course.RECONSIDER, ending=Ending.VICTIM_WOKE, about=woken)
    others = [victim for victim in victims if not victim.is_deactivated]
    if now >= grant.expires_at:
        late = tuple(victim.key for victim in others)
        return Move(course=Course.RECONSIDER, ending=Ending.NOT_RESERVED, about=late)
    if others and all(victim.is_ready for victim in others):
        return Move(course=Course.COMMIT)
    return Move(course=Course.WAIT if others else Course.WATCH)


def _not_begun(grant: Grant, victims: Sequence[Victim], now: datetime) -> Move:
    busy = tuple(victim.key for victim in victims if victim.is_lost)
    if busy:
        return Move(course=Course.RELEASE, ending=Ending.VICTIM_BUSY, about=busy)
    if now >= grant.expires_at:
        late = tuple(victim.key for victim in victims if not (victim.is_wanted_at_zero or victim.was_set_back))
        return Move(course=Course.RELEASE, ending=Ending.GRANT_EXPIRED, about=late)
    woken = tuple(victim.key for victim in victims if victim.was_set_back)
    if woken:
        return Move(course=Course.RELEASE, ending=Ending.VICTIM_WOKE, about=woken)
    if all(victim.is_ready for victim in victims):
        return Move(course=Course.COMMIT)
    return Move(course=Course.WAIT)


def _is_set_back(victim: Victim, grant: Grant, now: datetime) -> bool:
    """Whether somebody has asked for it. Once a grant has run out the scaler itself does."""
    return victim.was_set_back and not victim.is_deactivated and now < grant.expires_at
