"""A plan that was granted: what is to be done about it now, from what is observed of its victims and its gang?

A plan becomes *grants*, one on each victim's ScalableWorkload. A grant suspends nobody by itself: the scaler answers
inactive while the grant stands and its own verdict is still Idle, KEDA brings replicas to 0 at its own pace, and only
when all victims of the plan are asked to be at 0 are they deactivated, back to back. Until then nothing has been lost,
and a victim that is used again calls everything off at no cost.

Laws:

* Whole or nothing: no victim is deactivated before every one of them is asked to be at 0 and idle by its own verdict.
* Freed quota is anybody's. So nothing lies between the first deactivation and the last but the calls themselves.
* After the first deactivation the plan goes on: pods are being killed already, and to turn back now loses both the
  running jobs and the gang.
* A grant ends: by its gang being admitted, by being called off, or by its time running out.

| gang     | victims                                       | course                               |
|----------|-----------------------------------------------|--------------------------------------|
| admitted | –                                             | finish                               |
| reserved | –                                             | watch                                |
| gone     | –                                             | release (GangGone)                   |
| waiting  | some deactivated, all wanted at 0             | commit the others                    |
| waiting  | some deactivated, another is wanted again     | reconsider (VictimWoke)              |
| waiting  | all deactivated, its time is not up           | watch                                |
| waiting  | all deactivated, its time is up               | reconsider (NotReserved)             |
| waiting  | none deactivated, one is missing or not idle  | release (VictimBusy)                 |
| waiting  | none deactivated, its time is up              | release (GrantExpired)               |
| waiting  | none deactivated, all at 0                    | commit                               |
| waiting  | none deactivated, not all at 0                | wait                                 |

To reconsider is to plan again with what is already suspended counting as free: if the gang fits without the victim that
woke, the plan goes on without it; otherwise the rest is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class GangState(StrEnum):
    """How far the gang is that a plan is for."""

    WAITING = "Waiting"
    RESERVED = "Reserved"
    ADMITTED = "Admitted"
    GONE = "Gone"
    """Deleted, finished or deactivated: nobody waits any more."""


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
    WAS_TAKEN = "FreedQuotaTaken"


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

    @property
    def is_wanted_at_zero(self) -> bool:
        return not self.is_missing and self.desired_replicas == 0


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
            return Move(course=Course.FINISH)
        case GangState.RESERVED:
            return Move(course=Course.WATCH)
        case GangState.GONE:
            return Move(course=Course.RELEASE, ending=Ending.GANG_GONE)
        case GangState.WAITING:
            is_begun = any(victim.is_deactivated for victim in victims)
            return (_begun if is_begun else _not_begun)(grant, victims, now)


def _begun(grant: Grant, victims: Sequence[Victim], now: datetime) -> Move:
    woken = tuple(victim.key for victim in victims if not victim.is_wanted_at_zero)
    if woken:
        return Move(course=Course.RECONSIDER, ending=Ending.VICTIM_WOKE, about=woken)
    if not all(victim.is_deactivated for victim in victims):
        return Move(course=Course.COMMIT)
    if now >= grant.expires_at:
        return Move(course=Course.RECONSIDER, ending=Ending.NOT_RESERVED)
    return Move(course=Course.WATCH)


def _not_begun(grant: Grant, victims: Sequence[Victim], now: datetime) -> Move:
    busy = tuple(victim.key for victim in victims if victim.is_missing or not victim.is_idle)
    if busy:
        return Move(course=Course.RELEASE, ending=Ending.VICTIM_BUSY, about=busy)
    if now >= grant.expires_at:
        late = tuple(victim.key for victim in victims if not victim.is_wanted_at_zero)
        return Move(course=Course.RELEASE, ending=Ending.GRANT_EXPIRED, about=late)
    if all(victim.is_wanted_at_zero for victim in victims):
        return Move(course=Course.COMMIT)
    return Move(course=Course.WAIT)
