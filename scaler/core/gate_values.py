"""What the gate's table is made of: the gang and its entry as observed, what it waits for, and what is to be said."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.core.claims import Verdict
from scaler.core.provisioning import PodSetUpdate

_FIRST_PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(minutes=30)


class State(StrEnum):
    """What our check says. Kueue knows one more, Rejected, which it never does."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"


class Because(StrEnum):
    """Why it says so: the reason of Events and metrics."""

    POLICY_UNUSABLE = "PolicyUnusable"
    PODS_ENDING = "PodsEnding"
    """Pods of those that gave up their quota for the gang, or on the nodes that it needs, have not ended yet."""
    NODES_UNSEEN = "NodesUnseen"
    NODES_LACKING = "NodesLacking"
    """It does not fit what is free, and nothing that ends now changes that."""
    NODES_COMING = "NodesComing"
    """Nodes are being asked for, or are on their way."""
    NODES_LIMIT_REACHED = "NodesLimitReached"
    """It does not fit, and after the last attempt no more nodes are asked for."""
    GANGS_BEFORE = "GangsBefore"
    PODS_COMING = "PodsComing"
    SCATTERED = "OnlyOneWayToFit"
    FITS = "Fits"
    PROVISIONED = "Provisioned"
    """It fits, and a ProvisioningRequest has booked capacity for it."""
    PODS_GONE = "PodsGone"
    """Nothing but the end of pods was waited for."""
    RUNS_ELSEWHERE = "RunsElsewhere"
    ADMITTED_BEFORE = "AdmittedBefore"
    """It was running when the check was added to its queue."""
    YIELDS = "Yields"
    NODES_REVOKED = "NodesRevoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Our element of `status.admissionChecks`, as observed."""

    state: str
    message: str = ""
    since: datetime | None = None
    updates: tuple[PodSetUpdate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """That the Workload gave its quota back on account of our check, as noted on it."""

    to: str
    """The plan or whoever else it was for."""
    at: datetime
    times: int = 1
    reserved_at: datetime | None = None
    """When the quota was reserved that it gave back; None where nobody noted that."""

    @property
    def until(self) -> datetime:
        """When it may do so again: 1, 2, 4 … and then always 30 minutes after it has."""
        doublings = min(self.times - 1, 10)
        return self.at + min(_FIRST_PAUSE * (1 << doublings), _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A Workload with our check, as far as the check depends on it."""

    key: str
    """`namespace/name`."""
    uid: str
    reserved_at: datetime | None
    """When its quota was reserved; None while it has none."""
    admitted: bool = False
    evicted: bool = False
    active: bool = True
    finished: bool = False
    is_sent_back: bool = False
    """Whether another check has said Retry or Rejected: Kueue takes its quota, at once or after the delay asked for."""
    entry: Entry | None = None
    yielded: Yielded | None = None
    """The last time; None where it never has."""

    @property
    def is_yielding(self) -> bool:
        """Whether it is noted that it gives back the very quota that it still has: somebody died before saying so."""
        return (
            self.yielded is not None and self.reserved_at is not None and self.yielded.reserved_at == self.reserved_at
        )

    @property
    def is_held(self) -> bool:
        """Whether the check has a say in it: it has quota, and may start."""
        return self.reserved_at is not None and self.active and not (self.evicted or self.finished)

    @property
    def waits(self) -> bool:
        """Whether it waits for the check, and would use what it is promised."""
        is_pending = self.entry is not None and self.entry.state == State.PENDING
        return self.is_held and is_pending and not (self.admitted or self.is_sent_back)

    def may_yield(self, now: datetime) -> bool:
        """Whether it has rested since it last gave its quota back, or has said that it gives back what it has."""
        return self.yielded is None or self.yielded.until <= now or self.is_yielding

    @property
    def was_let_go(self) -> bool:
        """Whether its pods may come at any moment, or are there."""
        is_ready = self.entry is not None and self.entry.state == State.READY
        return self.is_held and (self.admitted or is_ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Pods of one Workload that have not ended yet."""

    owner: str
    """`namespace/name`, or whatever is known of it."""
    pods: int
    overdue: int = 0
    """How many of them should have ended long ago, and may never end."""
    since: datetime | None = None
    """When they were told to."""

    @property
    def is_overdue(self) -> bool:
        """Whether none is left but those that should have ended long ago."""
        return self.overdue >= self.pods

    @property
    def words(self) -> str:
        since = f" (told to end at {self.since:%H:%M:%S} UTC)" if self.since else ""
        some = "" if self.is_overdue else f"{self.overdue} of "
        overdue = f", {some}which should have ended long ago" if self.overdue else ""
        return f"{self.pods} pod{'' if self.pods == 1 else 's'} of {self.owner}{since}{overdue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How asking for nodes stands, in one word and many."""

    message: str = ""
    """Empty where nobody is asked."""
    is_booked: bool = False
    """Whether a request has booked capacity for the gang."""
    is_coming: bool = False
    is_late: bool = False
    """Whether those that are coming should be there by now, and are not counted on any more."""
    open_since: datetime | None = None
    """When the request was made that may still book capacity for it; None where there is none."""
    updates: tuple[PodSetUpdate, ...] = ()
    """What its pods are given to use what was booked."""
    is_yielding: bool = False
    """Whether no more is asked for, and the gang shall give its quota to whoever can use it."""
    is_revoked: bool = False
    is_at_limit: bool = False
    """Whether no more is asked for, whatever is done about it."""


NOBODY_ASKED = Nodes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the gang waits for, as seen now."""

    problem: str = ""
    """Why nobody can follow the policy of its check."""
    endings: Sequence[Ending] = ()
    """Pods of those that gave up their quota for it. None where the policy does not wait for them."""
    requires_fit: bool = True
    runs_elsewhere: bool = False
    """Whether another cluster runs it (MultiKueue)."""
    blind: str = ""
    """Why nobody sees what nodes have free."""
    verdict: Verdict | None = None
    """Of who is promised what; None where nobody was asked."""
    came_at: datetime | None = None
    """When the last of its places came, of those that came after the request was made that is open for it; None where
    it has none of these."""
    in_the_way: Sequence[Ending] = ()
    """Pods that end on the nodes where it will fit."""
    nodes: Nodes = NOBODY_ASKED
    plan: str = ""
    """What is being done to free GPUs for it, in words."""
    wanted_by: str = ""
    """Another Workload that would get quota if the gang gave its own back; empty where there is none."""
    note: str = ""
    """What of its pods' demands is not counted when it is asked whether it fits, in words."""

    @property
    def awaited(self) -> Sequence[Ending]:
        """Those of the endings that it waits for, whatever nodes have free.

        Where it has to fit, pods that may never end are not: what they hold is no room. Nothing else stands for them
        where it need not.
        """
        return [each for each in self.endings if not (self.requires_fit and each.is_overdue)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the entry is to say."""

    state: State
    because: Because
    message: str
    updates: tuple[PodSetUpdate, ...] = ()

    def is_said_by(self, entry: Entry | None) -> bool:
        """Whether the entry says just this."""
        return entry is not None and (entry.state, entry.message, entry.updates) == (
            self.state,
            self.message,
            self.updates,
        )


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing is to be said."""

    why: str
