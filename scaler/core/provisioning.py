"""ProvisioningRequests of one gang × the gang × the policy × now → the one thing to do next.

An autoscaler is asked for nodes by a ProvisioningRequest. It cannot be asked twice with the same object, so that every
attempt is a new one. Those that have failed stay until the gang starts: they are where the attempts are counted.

Laws:

* Nothing is asked for without a reservation, for a gang that fits without it, or while a plan frees GPUs for it.
* At most one request is open (new, accepted or provisioned) at a time: what is in the way is removed first.
* Attempts count from 1 without gaps and never go down while one is remembered, and there are never more than
  `retry.limit` + 1.
* The same objects give the same step, whatever this process remembers: a restart changes nothing.
* What has started is left alone: a booking that expires, a failure and a deletion mean nothing any more. Only capacity
  that is revoked does.

A gang that waits, by its newest request:

| request                          | gang fits   | is being served | lacks nodes  |
|----------------------------------|-------------|-----------------|--------------|
| one is being deleted             | WAIT        | WAIT            | WAIT         |
| one was made for something else  | REMOVE      | REMOVE          | REMOVE       |
| none                             | NOTHING     | WAIT            | CREATE 1     |
| new or accepted                  | WAIT        | WAIT            | WAIT         |
| provisioned for the gang         | PROVISIONED | PROVISIONED     | PROVISIONED  |
| provisioned for what was missing | PROVISIONED | WAIT            | WAIT         |
| lost, pause not over             | NOTHING     | BACK_OFF        | BACK_OFF     |
| lost, pause over                 | NOTHING     | WAIT            | CREATE n + 1 |
| lost, limit reached              | NOTHING     | WAIT            | AT_LIMIT     |

"Lost" is failed, booking expired, or capacity revoked. "Being served": a plan is being carried out for it, or the time
that the policy leaves to reuse is not over. "Something else": another reservation, class or other parameters.

A gang that has started keeps the request that its pods consume. All others are removed, also one that is still open:
that is how a request is withdrawn, after what got free was used and not before, so that nothing flaps. (`withdraw:
Never` lets open ones be.) A gang that is gone (evicted, finished, deactivated) keeps none.

Worked example, limit 2, base 60 s: attempt 1 fails at 12:00:00 → BACK_OFF until 12:01:00 → CREATE 2, fails at 12:05:00
→ BACK_OFF until 12:07:00 → CREATE 3, fails → AT_LIMIT: 3 > 2.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.core.gate_policy import Amount, AtLimit, OnCapacityRevoked, ProvisioningPolicy, Withdraw

_SILENCE = timedelta(minutes=5)
"""After so long without a sign of an autoscaler, its absence is the likely reason and is named."""
_EXPECTED_FOR = timedelta(minutes=10)
"""So long after its last sign nodes are counted on. It is the time for which Cluster Autoscaler books."""
_EXPECTED_AT_MOST = timedelta(hours=1)
"""The same where it names a time: it may name a later one again and again."""


class State(StrEnum):
    """What the autoscaler says of a request, the most final condition first."""

    FAILED = "Failed"
    CAPACITY_REVOKED = "CapacityRevoked"
    BOOKING_EXPIRED = "BookingExpired"
    PROVISIONED = "Provisioned"
    ACCEPTED = "Accepted"
    NEW = "New"


LOST = frozenset({State.FAILED, State.CAPACITY_REVOKED, State.BOOKING_EXPIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request was made for. Where one of these is another, the request is of no use."""

    reserved_at: datetime | None
    """When the gang's quota was reserved."""
    assignment: str = ""
    """What was reserved, flavors and counts, in short. Kueue may evict and reserve anew within the same second."""
    provisioning_class: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A ProvisioningRequest as observed."""

    name: str
    uid: str
    attempt: int
    """Counted from 1; 0 where nobody can read it any more, which makes it one for something else."""
    ask: Ask
    state: State
    since: datetime
    """When it got into that state."""
    message: str = ""
    """The autoscaler's own words on that state."""
    reason: str = ""
    """The reason of that condition, for counting."""
    eta: datetime | None = None
    is_ending: bool = False
    """Whether it is being deleted."""

    @property
    def may_book(self) -> bool:
        """Whether capacity may still be booked by it."""
        return self.state in (State.NEW, State.ACCEPTED) and not self.is_ending

    def is_late(self, now: datetime) -> bool:
        """Whether its nodes should be there by now. Queues of clouds take days, and some requests nobody answers:
        what the gang has found meanwhile is not kept from others for as long as that."""
        expected = self.since + _EXPECTED_FOR
        if self.eta is not None:
            expected = min(max(expected, self.eta), self.since + _EXPECTED_AT_MOST)
        return now >= expected


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSetUpdate:
    """What the pods of one PodSet are given, so that they use what a request has booked."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)


class Stage(StrEnum):
    """Where the gang stands, as far as requests depend on it."""

    WAITING = "Waiting"
    """It has its quota, and our check is not Ready."""
    STARTED = "Started"
    """Our check is Ready, or Kueue has admitted it."""
    GONE = "Gone"
    """It has no quota, is evicted, deactivated, finished or deleted, or has our check no more."""


class Need(StrEnum):
    """What a waiting gang lacks, of what the policy provisions for."""

    NOTHING = "Nothing"
    """It fits whole what is free."""
    TIME = "Time"
    """It is being served: capacity is being freed for it, or may still get free."""
    NODES = "Nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The gang as far as its requests depend on it."""

    stage: Stage
    ask: Ask | None = None
    """What would be asked for now; None where the policy asks nobody."""
    missing: int = 0
    """Pods for which no node has room, of those that the policy provisions for."""
    reuse: str = ""
    """The plan that is being carried out for it, in words; empty where there is none."""
    consumes: str = ""
    """The request that its pods consume, by name; empty where it started without one."""

    def need(self, policy: ProvisioningPolicy, now: datetime) -> Need:
        if not self.missing:
            return Need.NOTHING
        return Need.TIME if self.reuse or now < self.reuse_until(policy, now) else Need.NODES

    def reuse_until(self, policy: ProvisioningPolicy, now: datetime) -> datetime:
        reserved_at = self.ask.reserved_at if self.ask and self.ask.reserved_at else now
        return reserved_at + policy.after


class Kind(StrEnum):
    """What to do, or what is the matter."""

    NOTHING = "Nothing"
    """Provisioning has no say in this gang at the moment."""
    CREATE = "Create"
    """Make the request of that attempt."""
    WAIT = "Wait"
    PROVISIONED = "Provisioned"
    """The gang may start, on what the request has booked."""
    BACK_OFF = "BackOff"
    """Wait until the pause after a lost request is over."""
    AT_LIMIT = "AtLimit"
    """No more requests are made; the policy says whether the gang keeps its quota."""
    REVOKED = "Revoked"
    """The gang has started and its nodes are taken away: it has to be evicted."""
    REMOVE = "Remove"
    """Delete these requests."""
    STUCK = "Stuck"
    """Nodes are missing and cannot be asked for; the message says why. Never from this table: only acting shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next thing to do."""

    kind: Kind
    message: str = ""
    attempt: int = 0
    until: datetime | None = None
    """When a pause ends or, of an accepted request, when nodes are expected."""
    request: Request | None = None
    """The one that this is about."""
    remove: tuple[Request, ...] = ()
    is_yielding: bool = False
    """Whether a gang at the limit gives its quota back."""
    is_late: bool = False
    """Whether nodes that were asked for should be there by now."""


class _Standing(StrEnum):
    """How the newest request stands, by what follows from it."""

    NONE = "None"
    OPEN = "Open"
    BOOKED = "Booked"
    """Provisioned for the whole gang."""
    ADDED = "Added"
    """Provisioned for what was missing; whether the gang fits is another question."""
    RESTING = "Resting"
    """Lost, pause not over."""
    LOST = "Lost"
    SPENT = "Spent"
    """Lost, and the last one."""


_WAITING: Mapping[_Standing, Mapping[Need, Kind]] = {
    standing: dict(zip((Need.NOTHING, Need.TIME, Need.NODES), row, strict=True))
    for standing, row in {
        _Standing.NONE: (Kind.NOTHING, Kind.WAIT, Kind.CREATE),
        _Standing.OPEN: (Kind.WAIT, Kind.WAIT, Kind.WAIT),
        _Standing.BOOKED: (Kind.PROVISIONED, Kind.PROVISIONED, Kind.PROVISIONED),
        _Standing.ADDED: (Kind.PROVISIONED, Kind.WAIT, Kind.WAIT),
        _Standing.RESTING: (Kind.NOTHING, Kind.BACK_OFF, Kind.BACK_OFF),
        _Standing.LOST: (Kind.NOTHING, Kind.WAIT, Kind.CREATE),
        _Standing.SPENT: (Kind.NOTHING, Kind.WAIT, Kind.AT_LIMIT),
    }.items()
}


def next_step(gang: Gang, requests: Sequence[Request], policy: ProvisioningPolicy | None, now: datetime) -> Step:
    """The one thing to do about the gang's requests. Units: `now` and all times are aware."""
    match gang.stage:
        case Stage.GONE:
            return _remove(requests, "the gang does not hold quota any more") or Step(kind=Kind.NOTHING)
        case Stage.STARTED:
            return _of_started(gang, requests, policy)
    if policy is None or gang.ask is None:
        return _remove(requests, "the policy asks nobody for nodes") or Step(kind=Kind.NOTHING)
    step = _of_waiting(gang, requests, policy, now)
    return replace(step, is_late=step.request is not None and step.request.is_late(now))


def _remove(requests: Iterable[Request], why: str) -> Step | None:
    """The step that removes those that are not on their way out; None where there are none."""
    doomed = tuple(sorted((each for each in requests if not each.is_ending), key=lambda each: each.name))
    if not doomed:
        return None
    names = ", ".join(each.name for each in doomed)
    return Step(kind=Kind.REMOVE, message=f"removing ProvisioningRequest {names}: {why}", remove=doomed)


# ------------------------------------------------------------------------------------------------------ it has started


def _of_started(gang: Gang, requests: Sequence[Request], policy: ProvisioningPolicy | None) -> Step:
    consumed = next((each for each in requests if each.name == gang.consumes), None)
    if consumed and consumed.state is State.CAPACITY_REVOKED and not consumed.is_ending and _evicts(policy):
        message = f"its nodes are taken away: {_words(consumed)}"
        return Step(kind=Kind.REVOKED, message=message, attempt=consumed.attempt, request=consumed)
    keeps_open = policy is not None and policy.withdraw is Withdraw.NEVER
    others = (each for each in requests if each is not consumed and not (keeps_open and each.state not in LOST))
    return _remove(others, "the gang has started without it") or Step(kind=Kind.NOTHING, request=consumed)


def _evicts(policy: ProvisioningPolicy | None) -> bool:
    """Without a word of the policy's it does: the pods that come after are half a gang that waits for nodes."""
    return policy is None or policy.on_capacity_revoked is OnCapacityRevoked.EVICT


# ----------------------------------------------------------------------------------------------------------- it waits


def _of_waiting(gang: Gang, requests: Sequence[Request], policy: ProvisioningPolicy, now: datetime) -> Step:
    useless = [each for each in requests if each.ask != gang.ask or each.attempt < 1]
    if removal := _remove(useless, "it was made for another reservation, or by another policy"):
        return removal
    ending = next((each for each in requests if each.is_ending), None)
    if ending:
        return Step(kind=Kind.WAIT, message=f"waits until ProvisioningRequest {ending.name} is gone", request=ending)
    newest = max(requests, key=lambda each: (each.attempt, each.name), default=None)
    older = [each for each in requests if each is not newest and each.state not in LOST]
    if removal := _remove(older, "a later attempt has taken its place"):
        return removal
    need = gang.need(policy, now)
    kind = _WAITING[_standing_of(newest, policy, now)][need]
    return _detailed(kind, gang, newest, policy, now)


def _standing_of(newest: Request | None, policy: ProvisioningPolicy, now: datetime) -> _Standing:
    if newest is None:
        return _Standing.NONE
    if newest.state is State.PROVISIONED:
        return _Standing.ADDED if policy.amount is Amount.MISSING else _Standing.BOOKED
    if newest.state not in LOST:
        return _Standing.OPEN
    is_last = not policy.retry.allows_another_after(newest.attempt)
    # One that yields rests first, too: else a gang whose requests fail at once would come and go without pause.
    rests = policy.at_limit is AtLimit.YIELD or not is_last
    if rests and now < _pause_ends(newest, policy):
        return _Standing.RESTING
    return _Standing.SPENT if is_last else _Standing.LOST


def _pause_ends(lost: Request, policy: ProvisioningPolicy) -> datetime:
    return lost.since + policy.retry.pause_after(lost.attempt)


def _detailed(kind: Kind, gang: Gang, newest: Request | None, policy: ProvisioningPolicy, now: datetime) -> Step:
    if kind is Kind.CREATE:
        attempt = newest.attempt + 1 if newest else 1
        message = f"asking {policy.provisioning_class} for nodes, attempt {attempt}"
        return Step(kind=kind, message=message, attempt=attempt)
    if newest is None or (kind is Kind.WAIT and newest.state in LOST):
        return _being_served(gang, policy, now) if kind is Kind.WAIT else Step(kind=kind)
    match kind:
        case Kind.WAIT:
            return _waiting_for(newest, now)
        case Kind.BACK_OFF:
            return _back_off(newest, policy)
        case Kind.AT_LIMIT:
            return _at_limit(newest, policy)
    message = newest.message if kind is Kind.PROVISIONED else ""
    return Step(kind=kind, message=message, attempt=newest.attempt, request=newest)


def _back_off(lost: Request, policy: ProvisioningPolicy) -> Step:
    until = _pause_ends(lost, policy)
    follows = "asks again" if policy.retry.allows_another_after(lost.attempt) else "gives its quota back"
    message = f"attempt {lost.attempt} was lost ({_words(lost)}); {follows} at {until:%H:%M:%S} UTC"
    return Step(kind=Kind.BACK_OFF, message=message, attempt=lost.attempt, until=until, request=lost)


def _at_limit(lost: Request, policy: ProvisioningPolicy) -> Step:
    is_yielding = policy.at_limit is AtLimit.YIELD
    follows = (
        "gives its quota back to whoever can use it"
        if is_yielding
        else "keeps its quota and waits for capacity; to let it ask again, delete its ProvisioningRequests"
    )
    message = f"attempt {lost.attempt} was the last and was lost ({_words(lost)}); {follows}"
    return Step(kind=Kind.AT_LIMIT, message=message, attempt=lost.attempt, request=lost, is_yielding=is_yielding)


def _waiting_for(request: Request, now: datetime) -> Step:
    match request.state:
        case State.PROVISIONED:
            message = f"nodes were added by {request.name}; waits until the gang fits whole"
        case State.NEW if now - request.since >= _SILENCE:
            # Told as an instant: a duration would be news, and a write, at every look.
            message = (
                f"no autoscaler has answered {request.name} since {request.since:%H:%M:%S} UTC; "
                f"is there one for class {request.ask.provisioning_class}?"
            )
        case _:
            message = request.message or f"waits for an autoscaler's answer to {request.name}"
    return Step(kind=Kind.WAIT, message=message, attempt=request.attempt, until=request.eta, request=request)


def _being_served(gang: Gang, policy: ProvisioningPolicy, now: datetime) -> Step:
    if gang.reuse:
        return Step(kind=Kind.WAIT, message=f"waits for freed GPUs before it asks for nodes: {gang.reuse}")
    until = gang.reuse_until(policy, now)
    message = f"waits for capacity to get free; asks for nodes at {until:%H:%M:%S} UTC"
    return Step(kind=Kind.WAIT, message=message, until=until)


def _words(request: Request) -> str:
    return f"{request.state}: {request.message}" if request.message else str(request.state)
