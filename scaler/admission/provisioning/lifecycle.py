"""ProvisioningRequests of one gang × the gang × the policy × now → the next step.

A ProvisioningRequest requests nodes of an autoscaler. An object is good for one attempt only, so that every attempt is
a new one. Failed ones stay until the gang starts: they are the record of attempts.

Laws:

* No nodes are requested without a reservation, for a gang that fits without it, or while a plan frees GPUs for it.
* At most one request is open at a time (new, accepted, or provisioned and not late): what is in the way is removed
  first.
* Attempts count from 1 without gaps and never go down while one is remembered, and there are never more than
  `retry.limit` + 1.
* The same objects give the same step, whatever this process remembers: a restart changes nothing.
* After the gang has started an expired booking, a failure or a deletion changes nothing. Only revoked capacity does.

A gang that waits, by its newest request:

| request                          | gang fits   | is being served | lacks nodes  |
|----------------------------------|-------------|-----------------|--------------|
| one is being deleted             | WAIT        | WAIT            | WAIT         |
| one was made for something else  | REMOVE      | REMOVE          | REMOVE       |
| none                             | NOTHING     | WAIT            | CREATE 1     |
| new or accepted                  | WAIT        | WAIT            | WAIT         |
| provisioned for the gang         | PROVISIONED | PROVISIONED     | PROVISIONED  |
| provisioned for what was missing | PROVISIONED | WAIT            | WAIT         |
| provisioned, late, pause over    | PROVISIONED | PROVISIONED     | CREATE n + 1 |
| lost, pause not over             | NOTHING     | BACK_OFF        | BACK_OFF     |
| lost, pause over                 | NOTHING     | WAIT            | CREATE n + 1 |
| lost, limit reached              | NOTHING     | WAIT            | AT_LIMIT     |

"Lost" is failed, booking expired, or capacity revoked. A provisioned request is late ten minutes after it was
provisioned: Cluster Autoscaler books for that time. Where the gang lacks nodes then, a node was lost before the gang
started, and not every autoscaler says so: it counts as lost. "Being served": a plan is being carried out for it, or the
time that the policy leaves to reuse is not over. "Something else": another reservation, class or other parameters.

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

from scaler.admission.policy import ProvisioningPolicy

_SILENCE = timedelta(minutes=5)
"""The time without a condition after which a missing autoscaler is the likely cause, and the message says so."""
_EXPECTED_FOR = timedelta(minutes=10)
"""The time after the last condition for which nodes are expected. Cluster Autoscaler books for as long."""
_EXPECTED_AT_MOST = timedelta(hours=1)
"""How long one with an ETA is expected, which may be postponed again and again."""


class RequestState(StrEnum):
    """The condition of a request, the most final one first."""

    FAILED = "Failed"
    CAPACITY_REVOKED = "CapacityRevoked"
    BOOKING_EXPIRED = "BookingExpired"
    PROVISIONED = "Provisioned"
    ACCEPTED = "Accepted"
    NEW = "New"


LOST = frozenset({RequestState.FAILED, RequestState.CAPACITY_REVOKED, RequestState.BOOKING_EXPIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """What a request was made for. Where one of these is another, the request is of no use."""

    reserved_at: datetime | None
    """When the gang's quota was reserved."""
    assignment: str = ""
    """What was reserved, flavors and counts, in short. Kueue may evict and reserve anew within the same second."""
    provisioning_class: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSetPatch:
    """What the pods of one PodSet are given, so that they use what a request has booked."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """A ProvisioningRequest as observed."""

    name: str
    uid: str
    attempt: int
    """The number of the attempt from 1 on; 0 where it cannot be read, which makes it one for something else."""
    spec: RequestSpec
    state: RequestState
    since: datetime
    """When it got into that state."""
    message: str = ""
    """The autoscaler's message."""
    reason: str = ""
    """The reason of that condition, for counting."""
    eta: datetime | None = None
    created_at: datetime | None = None
    is_ending: bool = False
    """Whether it is being deleted."""
    updates: tuple[PodSetPatch, ...] = ()
    """What the gang's pods get to use a request that is provisioned."""
    left_out: tuple[str, ...] = ()
    """What could not be given to them, and why."""

    @property
    def may_book(self) -> bool:
        """Whether capacity may still be booked by it."""
        return self.state in (RequestState.NEW, RequestState.ACCEPTED) and not self.is_ending

    def is_late(self, now: datetime) -> bool:
        """Whether its nodes are overdue. Queues of clouds take days, and some requests are never accepted: the places
        that the gang has found meanwhile are not kept from others for as long as that."""
        expected = self.since + _EXPECTED_FOR
        if self.eta is not None:
            expected = min(max(expected, self.eta), self.since + _EXPECTED_AT_MOST)
        return now >= expected


class ReservationStage(StrEnum):
    """The stage of the gang, as far as requests depend on it."""

    WAITING = "Waiting"
    """It has its quota, and our check is not Ready."""
    STARTED = "Started"
    """Our check is Ready, or Kueue has admitted it."""
    GONE = "Gone"
    """It has no quota, is evicted, deactivated, finished or deleted, or has our check no more."""


class NodeNeed(StrEnum):
    """What a waiting gang lacks, of what the policy provisions for."""

    NOTHING = "Nothing"
    """It fits whole what is free."""
    TIME = "Time"
    """Capacity is being freed for it, or may still become free."""
    NODES = "Nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningInputs:
    """The Workload as far as its requests depend on it."""

    stage: ReservationStage
    spec: RequestSpec | None = None
    """What would be requested now; None where the policy requests no nodes."""
    covered: tuple[str, ...] = ()
    """PodSets that the policy provisions for."""
    missing: int = 0
    """Pods that fit no node, of those that the policy provisions for."""
    reuse: str = ""
    """The reclaim plan for it, in words; empty where there is none."""
    consumes: str = ""
    """The request that its pods consume, by name; empty where it started without one."""

    def lacking(self, missing: Mapping[str, int], reuse: str) -> "ProvisioningInputs":
        """The inputs where so many pods of each PodSet fit no node, and that is done to free GPUs."""
        return replace(self, missing=sum(missing.get(name, 0) for name in self.covered), reuse=reuse)

    def need(self, policy: ProvisioningPolicy, now: datetime) -> NodeNeed:
        if not self.missing:
            return NodeNeed.NOTHING
        return NodeNeed.TIME if self.reuse or now < self.reuse_until(policy, now) else NodeNeed.NODES

    def reuse_until(self, policy: ProvisioningPolicy, now: datetime) -> datetime:
        reserved_at = self.spec.reserved_at if self.spec and self.spec.reserved_at else now
        return reserved_at + policy.after


class StepKind(StrEnum):
    """What to do, or what the state is."""

    NOTHING = "Nothing"
    """No request has to be changed at the moment."""
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
    """The gang has started and its nodes are revoked: it has to be evicted."""
    REMOVE = "Remove"
    """Delete these requests."""
    STUCK = "Stuck"
    """Nodes are missing and cannot be requested; the message says why. Never from this table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningStep:
    """The next thing to do."""

    kind: StepKind
    message: str = ""
    attempt: int = 0
    until: datetime | None = None
    """When a pause ends or, of an accepted request, when nodes are expected."""
    request: ObservedRequest | None = None
    """The one that this is about."""
    remove: tuple[ObservedRequest, ...] = ()
    is_yielding: bool = False
    """Whether a gang at the limit releases its quota."""
    is_late: bool = False
    """Whether nodes that were requested should be there by now, and are not counted on any more."""
    patches: tuple[PodSetPatch, ...] = ()
    """What the pods get to use what was provisioned. Only of PROVISIONED."""

    @property
    def is_booked(self) -> bool:
        """Whether a request has booked capacity for the Workload."""
        return self.kind is StepKind.PROVISIONED

    @property
    def is_coming(self) -> bool:
        """Whether nodes were requested, or are in this step, and may still come."""
        return self.is_booked or self.kind is StepKind.CREATE or (self.kind is StepKind.WAIT and bool(self.request))

    @property
    def open_since(self) -> datetime | None:
        """When the request was made that may still book capacity; None where there is none."""
        return self.request.created_at if self.request is not None and self.request.may_book else None


NO_STEP = ProvisioningStep(kind=StepKind.NOTHING)


class _Progress(StrEnum):
    """How far the newest request has come, by what has to be done next."""

    NONE = "None"
    OPEN = "Open"
    BOOKED = "Booked"
    """A request has provisioned nodes for the whole gang."""
    ADDED = "Added"
    """A request has provisioned what was missing; whether the gang fits is another question."""
    RESTING = "Resting"
    """Lost, pause not over."""
    LOST = "Lost"
    SPENT = "Spent"
    """Lost, and the last one."""


_WAITING: Mapping[_Progress, Mapping[NodeNeed, StepKind]] = {
    progress: dict(zip((NodeNeed.NOTHING, NodeNeed.TIME, NodeNeed.NODES), row, strict=True))
    for progress, row in {
        _Progress.NONE: (StepKind.NOTHING, StepKind.WAIT, StepKind.CREATE),
        _Progress.OPEN: (StepKind.WAIT, StepKind.WAIT, StepKind.WAIT),
        _Progress.BOOKED: (StepKind.PROVISIONED, StepKind.PROVISIONED, StepKind.PROVISIONED),
        _Progress.ADDED: (StepKind.PROVISIONED, StepKind.WAIT, StepKind.WAIT),
        _Progress.RESTING: (StepKind.NOTHING, StepKind.BACK_OFF, StepKind.BACK_OFF),
        _Progress.LOST: (StepKind.NOTHING, StepKind.WAIT, StepKind.CREATE),
        _Progress.SPENT: (StepKind.NOTHING, StepKind.WAIT, StepKind.AT_LIMIT),
    }.items()
}


def next_step(
    gang: ProvisioningInputs, requests: Sequence[ObservedRequest], policy: ProvisioningPolicy | None, now: datetime
) -> ProvisioningStep:
    """The one thing to do about the gang's requests. Units: `now` and all times are aware."""
    match gang.stage:
        case ReservationStage.GONE:
            return _remove(requests, "the gang has no quota any more") or NO_STEP
        case ReservationStage.STARTED:
            return _of_started(gang, requests, policy)
    if policy is None or gang.spec is None:
        return _remove(requests, "the policy requests no nodes") or NO_STEP
    step = _of_waiting(gang, requests, policy, now)
    return replace(step, is_late=step.request is not None and step.request.is_late(now))


def _remove(requests: Iterable[ObservedRequest], why: str) -> ProvisioningStep | None:
    """The step that removes those that are not on their way out; None where there are none."""
    doomed = tuple(sorted((each for each in requests if not each.is_ending), key=lambda each: each.name))
    if not doomed:
        return None
    names = ", ".join(each.name for each in doomed)
    return ProvisioningStep(kind=StepKind.REMOVE, message=f"removing ProvisioningRequest {names}: {why}", remove=doomed)


# ------------------------------------------------------------------------------------------------------ it has started


def _of_started(
    gang: ProvisioningInputs, requests: Sequence[ObservedRequest], policy: ProvisioningPolicy | None
) -> ProvisioningStep:
    consumed = next((each for each in requests if each.name == gang.consumes), None)
    if consumed and consumed.state is RequestState.CAPACITY_REVOKED and not consumed.is_ending and _evicts(policy):
        message = f"its nodes are revoked: {_words(consumed)}"
        return ProvisioningStep(kind=StepKind.REVOKED, message=message, attempt=consumed.attempt, request=consumed)
    keeps_open = policy is not None and not policy.withdraws
    others = (each for each in requests if each is not consumed and not (keeps_open and each.state not in LOST))
    return _remove(others, "the gang has started without it") or ProvisioningStep(
        kind=StepKind.NOTHING, request=consumed
    )


def _evicts(policy: ProvisioningPolicy | None) -> bool:
    """Whether a revocation evicts, as without a policy: pods that come later wait for nodes while the others run."""
    return policy is None or policy.evicts_on_revocation


# ----------------------------------------------------------------------------------------------------------- it waits


def _of_waiting(
    gang: ProvisioningInputs, requests: Sequence[ObservedRequest], policy: ProvisioningPolicy, now: datetime
) -> ProvisioningStep:
    useless = [each for each in requests if each.spec != gang.spec or each.attempt < 1]
    if removal := _remove(useless, "it was made for another reservation, or by another policy"):
        return removal
    ending = next((each for each in requests if each.is_ending), None)
    if ending:
        return ProvisioningStep(
            kind=StepKind.WAIT, message=f"waits until ProvisioningRequest {ending.name} is gone", request=ending
        )
    newest = max(requests, key=lambda each: (each.attempt, each.name), default=None)
    older = [each for each in requests if each is not newest and each.state not in LOST]
    if removal := _remove(older, "a later attempt has taken its place"):
        return removal
    need = gang.need(policy, now)
    kind = _WAITING[_progress_of(newest, need, policy, now)][need]
    return _detailed(kind, gang, newest, policy, now)


def _progress_of(
    newest: ObservedRequest | None, need: NodeNeed, policy: ProvisioningPolicy, now: datetime
) -> _Progress:
    if newest is None:
        return _Progress.NONE
    is_provisioned = newest.state is RequestState.PROVISIONED
    if is_provisioned and not (need is NodeNeed.NODES and newest.is_late(now)):
        return _Progress.ADDED if policy.only_missing else _Progress.BOOKED
    if not (is_provisioned or newest.state in LOST):
        return _Progress.OPEN
    is_last = not policy.retry.allows_another_after(newest.attempt)
    # A gang that yields rests first, too: if its requests fail at once, it would come and go without a pause.
    rests = policy.yields_at_limit or not is_last
    if rests and now < _pause_ends(newest, policy):
        return _Progress.RESTING
    return _Progress.SPENT if is_last else _Progress.LOST


def _pause_ends(lost: ObservedRequest, policy: ProvisioningPolicy) -> datetime:
    at = lost.since if lost.state in LOST else lost.since + _EXPECTED_FOR
    return at + policy.retry.pause_after(lost.attempt)


def _detailed(
    kind: StepKind, gang: ProvisioningInputs, newest: ObservedRequest | None, policy: ProvisioningPolicy, now: datetime
) -> ProvisioningStep:
    if kind is StepKind.CREATE:
        attempt = newest.attempt + 1 if newest else 1
        message = f"requesting nodes of class {policy.provisioning_class}, attempt {attempt}"
        return ProvisioningStep(kind=kind, message=message, attempt=attempt)
    if newest is None or (kind is StepKind.WAIT and newest.state in LOST):
        return _waits_for_reuse(gang, policy, now) if kind is StepKind.WAIT else ProvisioningStep(kind=kind)
    match kind:
        case StepKind.WAIT:
            return _waiting_for(newest, now)
        case StepKind.BACK_OFF:
            return _back_off(newest, policy)
        case StepKind.AT_LIMIT:
            return _at_limit(newest, policy)
    message = newest.message if kind is StepKind.PROVISIONED else ""
    return ProvisioningStep(kind=kind, message=message, attempt=newest.attempt, request=newest)


def _back_off(lost: ObservedRequest, policy: ProvisioningPolicy) -> ProvisioningStep:
    until = _pause_ends(lost, policy)
    follows = "next attempt" if policy.retry.allows_another_after(lost.attempt) else "releases its quota"
    message = f"attempt {lost.attempt} was lost ({_words(lost)}); {follows} at {until:%H:%M:%S} UTC"
    return ProvisioningStep(kind=StepKind.BACK_OFF, message=message, attempt=lost.attempt, until=until, request=lost)


def _at_limit(lost: ObservedRequest, policy: ProvisioningPolicy) -> ProvisioningStep:
    is_yielding = policy.yields_at_limit
    follows = (
        "releases its quota once another Workload can use it"
        if is_yielding
        else "keeps its quota and waits for capacity; to start again, delete its ProvisioningRequests"
    )
    message = f"attempt {lost.attempt} was the last and was lost ({_words(lost)}); {follows}"
    return ProvisioningStep(
        kind=StepKind.AT_LIMIT, message=message, attempt=lost.attempt, request=lost, is_yielding=is_yielding
    )


def _waiting_for(request: ObservedRequest, now: datetime) -> ProvisioningStep:
    match request.state:
        case RequestState.PROVISIONED:
            message = f"nodes were added by {request.name}; waits until the gang fits whole"
        case RequestState.NEW if now - request.since >= _SILENCE:
            # The message has a time and no duration, which would change it, and cause a write, at every tick.
            message = (
                f"no autoscaler has accepted {request.name} since {request.since:%H:%M:%S} UTC; "
                f"is there one for class {request.spec.provisioning_class}?"
            )
        case _:
            message = request.message or f"waits until an autoscaler accepts {request.name}"
    return ProvisioningStep(
        kind=StepKind.WAIT, message=message, attempt=request.attempt, until=request.eta, request=request
    )


def _waits_for_reuse(gang: ProvisioningInputs, policy: ProvisioningPolicy, now: datetime) -> ProvisioningStep:
    if gang.reuse:
        return ProvisioningStep(
            kind=StepKind.WAIT, message=f"waits for freed GPUs before it requests nodes: {gang.reuse}"
        )
    until = gang.reuse_until(policy, now)
    message = f"waits for free capacity; requests nodes at {until:%H:%M:%S} UTC"
    return ProvisioningStep(kind=StepKind.WAIT, message=message, until=until)


def _words(request: ObservedRequest) -> str:
    if request.state is RequestState.PROVISIONED:
        return "Provisioned, and its nodes are missing"
    return f"{request.state}: {request.message}" if request.message else str(request.state)
