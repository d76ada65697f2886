"""A gang with reserved quota × what it waits for → the state of our admission check.

Kueue reserves quota while the pods that used it before still terminate, and does not check whether nodes have free
capacity. The check stays Pending until all pods of the gang can start.

Laws:

* The state is never Rejected: that deactivates the Workload for good.
* Nothing is written for a Workload without a reservation, or one that is evicted, deactivated or finished: Kueue never
  resets a Retry of that moment, and does not reconcile the Workload again.
* A missing entry is not added: Kueue adds it, up to a second after it has reserved the quota.
* Ready is final, whatever happens to nodes and policies afterwards. The one exception: the provider revokes the nodes.
* A gang that waits stays Pending and keeps its quota. Retry releases the quota only where another Workload is admitted
  with it, and at growing intervals: without one, Kueue reserves the quota again four times a second.
* A victim's pod that is long past its deadline may never terminate. Where the gang has to fit, the check does not wait
  for that pod: what it holds is not free. Where the gang need not fit, the check waits, since nothing else accounts for
  the pod.
* Nodes that register while the request is open are most likely those that were requested, although the autoscaler may
  not have said so yet. The gang waits for that, so that its pods consume the booking; after a minute the nodes are used
  like any others.
* A remote copy of MultiKueue becomes Ready like any other gang, wherever it fits. For one that does not, nodes are
  requested only where this cluster is nominated for it.
* Unknown is not yes: where node capacity is not known, or the policy cannot be used, the state is Pending.

The first row that holds:

| the Workload                                  | its entry       | observed                          | state          |
|-----------------------------------------------|-----------------|-----------------------------------|----------------|
| finished, deactivated, evicted, without quota | any             | –                                 | nothing        |
| with quota                                    | none            | –                                 | nothing        |
| with quota                                    | Retry, Rejected | Kueue acts on it                  | nothing        |
| with quota                                    | Pending         | another check: Retry or Rejected  | nothing        |
| with quota                                    | Ready           | its nodes are revoked             | Retry          |
| with quota                                    | Ready           | –                                 | nothing        |
| admitted                                      | Pending         | –                                 | Ready          |
| with quota                                    | Pending         | the policy cannot be used         | Pending        |
| with quota                                    | Pending         | pods of its victims terminate     | Pending        |
| with quota                                    | Pending         | it runs on another cluster        | Ready          |
| with quota                                    | Pending         | it need not fit                   | Ready          |
| with quota                                    | Pending         | node capacity is not known        | Pending        |
| with quota                                    | Pending         | its places may be booked yet      | Pending        |
| with quota                                    | Pending         | it has places for all of its pods | Ready          |
| with quota                                    | Pending         | it is to yield, and may           | Retry          |
| with quota                                    | Pending         | –                                 | Pending        |

A check that is added to a ClusterQueue in use gives every running Workload an entry: hence "admitted".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.admission.provisioning.lifecycle import NO_STEP, PodSetPatch, ProvisioningStep, ReservationStage, StepKind
from scaler.placement.requests import Blocked, Fits, Insufficient, PlacementResult

LONGEST_MESSAGE = 32_768
"""Characters that Kueue's definition allows."""
_SHOWN = 3
"""Workloads that a message names."""
_BOOKED_WITHIN = timedelta(minutes=1)
"""How long after nodes have registered the gang waits for the request that they were most likely added for: autoscalers
reconcile every ten seconds or so."""
_FIRST_PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(minutes=30)


class CheckState(StrEnum):
    """The state of our check. Kueue has one more, Rejected, which is never set."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"


class CheckReason(StrEnum):
    """Why: the reason of Events and metrics."""

    POLICY_UNUSABLE = "PolicyUnusable"
    PODS_ENDING = "PodsEnding"
    """Pods of Workloads that released quota for the gang, or on nodes that it needs, have not terminated yet."""
    NODE_CAPACITY_UNKNOWN = "NodeCapacityUnknown"
    NODES_LACKING = "NodesLacking"
    """It does not fit the free capacity, and no pod that terminates now changes that."""
    NODES_COMING = "NodesComing"
    """Nodes are requested, and not ready yet."""
    NODES_LIMIT_REACHED = "NodesLimitReached"
    """It does not fit, and after the last attempt no more nodes are requested."""
    RESERVED_FOR_EARLIER = "ReservedForEarlierWorkload"
    PODS_COMING = "PodsComing"
    NOT_GUARANTEED = "PlacementNotGuaranteed"
    FITS = "Fits"
    PROVISIONED = "Provisioned"
    """It fits, and a ProvisioningRequest has booked capacity for it."""
    PODS_GONE = "PodsGone"
    """The policy waits only for pods to terminate."""
    RUNS_ELSEWHERE = "RunsElsewhere"
    ADMITTED_BEFORE = "AdmittedBefore"
    """It was running when the check was added to its queue."""
    REMOTE_COPY = "RemoteCopy"
    """It does not fit, is a remote copy of MultiKueue, and this cluster is not nominated for it."""
    YIELDS = "Yields"
    NODES_REVOKED = "NodesRevoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEntry:
    """Our element of `status.admissionChecks`, as observed."""

    state: str
    message: str = ""
    since: datetime | None = None
    updates: tuple[PodSetPatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """The last time that the Workload released its quota because of our check, from its annotation."""

    to: str
    """The Workload that it was for."""
    at: datetime
    times: int = 1
    reserved_at: datetime | None = None
    """When the quota that it released was reserved; None where the annotation does not say."""

    @property
    def until(self) -> datetime:
        """When it may yield again: after 1, 2, 4 … and at most 30 minutes."""
        doublings = min(self.times - 1, 10)
        return self.at + min(_FIRST_PAUSE * (1 << doublings), _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedWorkload:
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
    """Whether another check is Retry or Rejected: Kueue releases its quota, at once or after the requested delay."""
    entry: CheckEntry | None = None
    yielded: Yielded | None = None
    """How it has released its quota before; None where it never has."""

    @property
    def is_yielding(self) -> bool:
        """Whether the annotation names the reservation that it still has: a process died before it wrote Retry."""
        return (
            self.yielded is not None and self.reserved_at is not None and self.yielded.reserved_at == self.reserved_at
        )

    @property
    def is_held(self) -> bool:
        """Whether the check applies: it has quota, and may start."""
        return self.reserved_at is not None and self.active and not (self.evicted or self.finished)

    @property
    def waits(self) -> bool:
        """Whether it waits for the check, and would use what is reserved for it."""
        is_pending = self.entry is not None and self.entry.state == CheckState.PENDING
        return self.is_held and is_pending and not (self.admitted or self.is_sent_back)

    def may_yield(self, now: datetime) -> bool:
        """Whether its pause since the last time is over, or its annotation says already that it releases this quota."""
        return self.yielded is None or self.yielded.until <= now or self.is_yielding

    @property
    def is_released(self) -> bool:
        """Whether its pods may be created at any moment, or exist."""
        is_ready = self.entry is not None and self.entry.state == CheckState.READY
        return self.is_held and (self.admitted or is_ready)

    @property
    def stage(self) -> ReservationStage:
        """The stage for its ProvisioningRequests. Kueue removes and re-adds entries; that alone changes nothing."""
        if not self.is_held:
            return ReservationStage.GONE
        return ReservationStage.STARTED if self.is_released else ReservationStage.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminatingPods:
    """Pods of one Workload that have not terminated yet."""

    owner: str
    """`namespace/name`, or what is known of it."""
    pods: int
    overdue: int = 0
    """How many of them are long past their deadline, and may never terminate."""
    since: datetime | None = None
    """When the Workload was suspended or evicted."""

    @property
    def is_stuck(self) -> bool:
        """Whether all that are left are long past their deadline."""
        return self.overdue >= self.pods

    @property
    def words(self) -> str:
        since = f" (terminating since {self.since:%H:%M:%S} UTC)" if self.since else ""
        some = "" if self.is_stuck else f"{self.overdue} of "
        overdue = f", {some}long past the termination deadline" if self.overdue else ""
        return f"{self.pods} pod{'' if self.pods == 1 else 's'} of {self.owner}{since}{overdue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInputs:
    """What the gang waits for, as observed."""

    problem: str = ""
    """Why the policy of its check cannot be used."""
    terminating: Sequence[TerminatingPods] = ()
    """Pods of Workloads that released quota for it. Empty where the policy does not wait for them."""
    requires_fit: bool = True
    runs_elsewhere: bool = False
    """Whether another cluster runs it (MultiKueue)."""
    capacity_unknown: str = ""
    """Why node capacity is not known."""
    verdict: PlacementResult | None = None
    """Whether it fits; None where that was not computed."""
    came_at: datetime | None = None
    """When the last of its nodes got ready, of those created after the request that is open for it; None where it has
    none of these."""
    in_the_way: Sequence[TerminatingPods] = ()
    """Pods that terminate on the nodes where it will fit."""
    provisioning: ProvisioningStep = NO_STEP
    plan: str = ""
    """The plan that frees GPUs for it, in words."""
    remote_copy: str = ""
    """Why no workload is suspended and no node is requested for it, of a remote copy; empty where that may be."""
    wanted_by: str = ""
    """Another Workload that is admitted if the gang releases its quota; empty where there is none."""
    note: str = ""
    """Which demands of its pods are not considered, in words."""

    @property
    def awaited(self) -> Sequence[TerminatingPods]:
        """The terminating pods that it waits for, whatever nodes have free.

        Where it has to fit it does not wait for stuck pods: what they hold is not free. Where it need not fit it does,
        since nothing else accounts for them.
        """
        return [each for each in self.terminating if not (self.requires_fit and each.is_stuck)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """What is to be written to the entry."""

    state: CheckState
    because: CheckReason
    message: str
    updates: tuple[PodSetPatch, ...] = ()

    def equals(self, entry: CheckEntry | None) -> bool:
        """Whether the entry is this already."""
        return entry is not None and (entry.state, entry.message, entry.updates) == (
            self.state,
            self.message,
            self.updates,
        )


@dataclass(frozen=True, slots=True)
class NoChange:
    """A check with nothing to be written."""

    why: str


# ------------------------------------------------------------------------------------------------------------ the table


def decide(gang: ReservedWorkload, inputs: CheckInputs, now: datetime) -> CheckChange | NoChange:
    """The state of the check of this gang."""
    reason = _not_applicable(gang)
    if reason:
        return NoChange(reason)
    if gang.is_released:
        return _of_released(gang, inputs)
    if gang.is_sent_back:
        return NoChange("another check releases its quota")
    return _fitted(_of_waiting(gang, inputs, now))


def _not_applicable(gang: ReservedWorkload) -> str:
    """Why nothing may be written; empty where something may."""
    if not gang.is_held:
        return "it is finished" if gang.finished else "it has no quota that it may use"
    if gang.entry is None:
        return "Kueue has not added the entry yet"
    if gang.entry.state not in (CheckState.PENDING, CheckState.READY):
        return f"Kueue acts on {gang.entry.state}"
    return ""


def _of_released(gang: ReservedWorkload, inputs: CheckInputs) -> CheckChange | NoChange:
    if gang.entry is not None and gang.entry.state == CheckState.PENDING:
        return CheckChange(
            state=CheckState.READY,
            because=CheckReason.ADMITTED_BEFORE,
            message="was admitted before the check was added",
        )
    if inputs.provisioning.kind is StepKind.REVOKED:
        message = inputs.provisioning.message or "its nodes are revoked"
        return CheckChange(state=CheckState.RETRY, because=CheckReason.NODES_REVOKED, message=message)
    return NoChange("its check is Ready")


def _of_waiting(gang: ReservedWorkload, inputs: CheckInputs, now: datetime) -> CheckChange:
    if inputs.problem:
        return _waits(CheckReason.POLICY_UNUSABLE, inputs.problem)
    if inputs.awaited:
        return _waits(CheckReason.PODS_ENDING, f"waits for {_listed(inputs.awaited)}")
    if inputs.runs_elsewhere:
        return _ready(CheckReason.RUNS_ELSEWHERE, "no pod terminates for it here, and it runs on another cluster")
    if not inputs.requires_fit:
        return _ready(CheckReason.PODS_GONE, "all pods of Workloads that released quota for it have terminated")
    answer = _of_unplaced(gang, inputs, now)
    is_judged = inputs.note and answer.because not in (CheckReason.NODE_CAPACITY_UNKNOWN, CheckReason.YIELDS)
    return replace(answer, message=f"{answer.message}; {inputs.note}") if is_judged else answer


def _of_unplaced(gang: ReservedWorkload, inputs: CheckInputs, now: datetime) -> CheckChange:
    if inputs.capacity_unknown or inputs.verdict is None:
        return _waits(
            CheckReason.NODE_CAPACITY_UNKNOWN,
            f"node capacity not available: {inputs.capacity_unknown or 'not read yet'}",
        )
    if isinstance(inputs.verdict, Fits):
        return _to_be_booked(inputs.verdict, inputs, now) or _placed(inputs.verdict, inputs.provisioning)
    if _may_yield(gang, inputs, now):
        message = f"releases its quota for {inputs.wanted_by}: {inputs.provisioning.message}"
        return CheckChange(state=CheckState.RETRY, because=CheckReason.YIELDS, message=message)
    return _not_placed(inputs, inputs.verdict)


def _may_yield(gang: ReservedWorkload, inputs: CheckInputs, now: datetime) -> bool:
    return inputs.provisioning.is_yielding and bool(inputs.wanted_by) and gang.may_yield(now)


def _to_be_booked(verdict: Fits, inputs: CheckInputs, now: datetime) -> CheckChange | None:
    """Waits until its request books its nodes; None where it does not wait for that."""
    if inputs.came_at is None or inputs.provisioning.is_booked or now >= inputs.came_at + _BOOKED_WITHIN:
        return None
    until = f"until {inputs.came_at + _BOOKED_WITHIN:%H:%M:%S} UTC waits for its request to book the new nodes"
    return _waits(CheckReason.NODES_COMING, f"{verdict.message}; {until}: {inputs.provisioning.message}")


def _placed(verdict: Fits, provisioning: ProvisioningStep) -> CheckChange:
    updates = _with_pins(provisioning.patches, verdict)
    if provisioning.is_booked:
        return _ready(CheckReason.PROVISIONED, f"{verdict.message}; {provisioning.message or 'provisioned'}", updates)
    return _ready(CheckReason.FITS, verdict.message, updates)


def _not_placed(inputs: CheckInputs, verdict: Blocked | Insufficient) -> CheckChange:
    message = verdict.message
    if inputs.in_the_way:
        message += f": {_listed(inputs.in_the_way)}"
    if inputs.plan:
        message += f"; {inputs.plan}"
    if inputs.provisioning.message and isinstance(verdict, Insufficient):
        message += f"; {inputs.provisioning.message}"
    if isinstance(verdict, Blocked):
        return _waits(CheckReason(verdict.why), message)
    if inputs.terminating:
        message += f"; does not wait for {_listed(inputs.terminating)}"
    if inputs.remote_copy:
        return _waits(CheckReason.REMOTE_COPY, f"{message}; {inputs.remote_copy}")
    return _waits(_why_lacking(inputs.provisioning), message)


def _why_lacking(provisioning: ProvisioningStep) -> CheckReason:
    if provisioning.is_coming:
        return CheckReason.NODES_COMING
    return CheckReason.NODES_LIMIT_REACHED if provisioning.kind is StepKind.AT_LIMIT else CheckReason.NODES_LACKING


def _waits(because: CheckReason, message: str) -> CheckChange:
    return CheckChange(state=CheckState.PENDING, because=because, message=message)


def _ready(because: CheckReason, message: str, updates: tuple[PodSetPatch, ...] = ()) -> CheckChange:
    return CheckChange(state=CheckState.READY, because=because, message=message, updates=updates)


def _fitted(answer: CheckChange) -> CheckChange:
    """The answer with a message that is not too long for the API."""
    if len(answer.message) <= LONGEST_MESSAGE:
        return answer
    return replace(answer, message=answer.message[: LONGEST_MESSAGE - 1] + "…")


def _with_pins(updates: Iterable[PodSetPatch], verdict: Fits) -> tuple[PodSetPatch, ...]:
    """What pods are given, and the labels that pin them to their nodes. What is selected already is not changed."""
    found = {each.name: each for each in updates}
    for pod_set, pin in verdict.pins.items():
        given = found.get(pod_set, PodSetPatch(name=pod_set))
        found[pod_set] = replace(given, node_selector={pin.label: pin.value, **given.node_selector})
    return tuple(found[name] for name in sorted(found))


def _listed(terminating: Sequence[TerminatingPods]) -> str:
    more = len(terminating) - _SHOWN
    listed = ", ".join(each.words for each in terminating[:_SHOWN])
    return f"{listed} and {sum(each.pods for each in terminating[_SHOWN:])} more" if more > 0 else listed
