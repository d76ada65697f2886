"""What do the states of a workload and the reasons of decisions mean? Two tables; who asks about one reads its row.

A new reason is a word of `DecisionReason`, its row in `REASONS`, the gate that answers with it, and a line in the docs.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from scaler.idleness.reasons import check_complete


class CandidateState(StrEnum):
    """`status.state` of a ScalableWorkload."""

    BUSY = "Busy"
    IDLE = "Idle"
    WARNED = "Warned"
    GRANTED = "Granted"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    WAKING = "Waking"
    KEPT = "Kept"
    EXCLUDED = "Excluded"
    OBSERVING = "Observing"
    UNKNOWN = "Unknown"


class DecisionReason(StrEnum):
    """Why a decision is 1 or 0: which of them when is said by `GATES`."""

    GPUS_IDLE = "GPUsIdle"
    GPUS_BUSY = "GPUsBusy"
    IDLE_NOT_LONG_ENOUGH = "IdleNotLongEnough"
    WARMING_UP = "WarmingUp"
    STARTING = "Starting"
    PODS_NOT_RUNNING = "PodsNotRunning"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_CHECKS = "WaitingForAdmissionChecks"
    WAITING_FOR_WORKLOAD = "WaitingForWorkload"
    KEPT = "Kept"
    EXCLUDED = "Excluded"
    WAKING = "Waking"
    SET_BACK = "SetBack"
    OBSERVE_ONLY = "ObserveOnly"
    WARNED = "Warned"
    BEFORE_SUSPEND = "BeforeSuspend"
    BEFORE_SUSPEND_FAILED = "BeforeSuspendFailed"
    OUTSIDE_HOURS = "OutsideHours"
    IDLE_NOT_NEEDED = "IdleNotNeeded"
    PRIORITY_LOWERED = "PriorityLowered"
    RECLAIMED = "Reclaimed"
    SUSPENDED = "Suspended"
    FINISHED = "Finished"


@dataclass(frozen=True, slots=True)
class ReasonRow:
    state: CandidateState | None
    """The state of a workload with such an answer; None where nothing is to be decided any more."""
    also: Set[CandidateState] = frozenset()
    """States that such an answer may be of, besides."""
    tells_time: bool = False
    """Whether its message changes with the time alone."""
    quiet_so_far: bool = False
    """Whether its quiet goes on to count, so that it is foreseeable when the answer turns 0."""
    warns: bool = False
    """Whether a warning is given with it, or stands."""
    holds: bool = False
    """Whether it is not suspended whatever its GPUs do, so that no warning takes from a budget."""
    found_idle: bool = False
    """Whether it is suspended for being idle."""
    frees: bool = False
    """Whether its GPUs are given away: those of a lowered priority are the ones that Kueue preempts first."""
    of_plans: bool = False
    """Whether it is idle by its own verdict, and a plan's to take."""
    of_hook: bool = False
    """Whether its message holds what a hook has said."""
    prospect: str = ""
    """What would suspend it, in short, where no time is foreseeable."""
    next: str = ""
    """What happens if nothing changes, where the reason alone says so."""
    advice: str = ""
    """What helps, where its owner has to mend something."""


_S = CandidateState

REASONS: Mapping[str, ReasonRow] = {
    DecisionReason.GPUS_IDLE: ReasonRow(
        _S.SUSPENDING, also={_S.GRANTED, _S.SUSPENDED}, warns=True, found_idle=True, frees=True, prospect="now"
    ),
    DecisionReason.GPUS_BUSY: ReasonRow(_S.BUSY, quiet_so_far=True, warns=True),
    DecisionReason.IDLE_NOT_LONG_ENOUGH: ReasonRow(
        _S.BUSY, also={_S.IDLE, _S.WARNED}, tells_time=True, quiet_so_far=True, warns=True
    ),
    DecisionReason.WARMING_UP: ReasonRow(_S.BUSY, tells_time=True, quiet_so_far=True),
    DecisionReason.STARTING: ReasonRow(_S.WAKING),
    DecisionReason.PODS_NOT_RUNNING: ReasonRow(
        _S.UNKNOWN, advice="see kubectl describe pod; until they run their GPUs are held, and unused"
    ),
    DecisionReason.WAITING_FOR_QUOTA: ReasonRow(_S.WAKING),
    DecisionReason.WAITING_FOR_CHECKS: ReasonRow(_S.WAKING),
    DecisionReason.WAITING_FOR_WORKLOAD: ReasonRow(_S.WAKING),
    DecisionReason.KEPT: ReasonRow(_S.KEPT, quiet_so_far=True, holds=True, prospect="not while kept"),
    DecisionReason.EXCLUDED: ReasonRow(_S.EXCLUDED, holds=True, prospect="not while excluded"),
    DecisionReason.WAKING: ReasonRow(_S.WAKING),
    DecisionReason.SET_BACK: ReasonRow(
        _S.KEPT,
        quiet_so_far=True,
        holds=True,
        prospect="not while left alone",
        advice="let that client leave replicas alone, or exclude the workload (idlegpu.io/exclude)",
    ),
    DecisionReason.OBSERVE_ONLY: ReasonRow(_S.OBSERVING, holds=True, prospect="not in mode Observe"),
    DecisionReason.WARNED: ReasonRow(_S.IDLE, quiet_so_far=True, warns=True),
    DecisionReason.BEFORE_SUSPEND: ReasonRow(
        _S.IDLE,
        also={_S.GRANTED},
        warns=True,
        of_hook=True,
        next="Once its hook has ended the answer turns inactive, if its GPUs stay quiet.",
    ),
    DecisionReason.BEFORE_SUSPEND_FAILED: ReasonRow(
        _S.IDLE,
        holds=True,
        of_hook=True,
        next="It stays at 1 until its hook runs again and succeeds; after work, or later.",
    ),
    DecisionReason.OUTSIDE_HOURS: ReasonRow(_S.IDLE, quiet_so_far=True, warns=True),
    DecisionReason.IDLE_NOT_NEEDED: ReasonRow(_S.IDLE, warns=True, of_plans=True, prospect="when a gang needs it"),
    DecisionReason.PRIORITY_LOWERED: ReasonRow(_S.IDLE, warns=True, frees=True, prospect="when Kueue preempts it"),
    DecisionReason.RECLAIMED: ReasonRow(
        _S.GRANTED, also={_S.SUSPENDING, _S.SUSPENDED}, warns=True, found_idle=True, frees=True, of_plans=True
    ),
    DecisionReason.SUSPENDED: ReasonRow(_S.SUSPENDED, also={_S.SUSPENDING}),
    DecisionReason.FINISHED: ReasonRow(None, next="Nothing: the workload has finished."),
}
FOUND_IDLE: frozenset[str] = frozenset(reason for reason, row in REASONS.items() if row.found_idle)
_NO_ANSWER = ReasonRow(_S.UNKNOWN)


def row_of(reason: str) -> ReasonRow:
    """The row of a decision's reason; of one not to know, from which nothing else follows, that of no answer."""
    return REASONS.get(reason, _NO_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """What is to be known of a state."""

    meaning: str
    reason: DecisionReason | None = None
    """What its line in a history says where it was found from something else than the answer, which may still be of the
    state before; None where it is the answer's own."""
    event: str = ""
    """Reason of the Event that tells of its begin. Empty where another Event of the same moment does."""
    is_warning: bool = False
    after: frozenset[CandidateState] = frozenset(CandidateState)
    """The states that it may follow. Others are seen before it only where nobody looked in between."""
    may_suspend: bool = False
    """Whether KEDA may get 0 in it."""


_QUIET = frozenset({_S.BUSY, _S.IDLE, _S.WARNED, _S.OBSERVING, _S.UNKNOWN, _S.KEPT, _S.EXCLUDED, _S.WAKING})

STATES: Mapping[CandidateState, StateRow] = {
    _S.BUSY: StateRow(meaning="work is seen, or was a moment ago", event="Busy"),
    _S.IDLE: StateRow(
        meaning="its GPUs are quiet; nothing happens yet",
        reason=DecisionReason.IDLE_NOT_LONG_ENOUGH,
        event="Idle",
        after=_QUIET | {_S.GRANTED},
    ),
    _S.WARNED: StateRow(
        meaning="quiet, and its owner is warned of the suspension",  # SuspendSoon
        reason=DecisionReason.WARNED,
        after=_QUIET | {_S.GRANTED},
    ),
    _S.GRANTED: StateRow(
        meaning="a plan takes it for a gang that waits",  # the plan's Event
        reason=DecisionReason.RECLAIMED,
        after=frozenset({_S.IDLE, _S.WARNED, _S.BUSY, _S.UNKNOWN}),
        may_suspend=True,
    ),
    _S.SUSPENDING: StateRow(
        meaning="KEDA gets 0, or it is at 0 and its pods end",  # GPUsIdle, Reclaimed or ScaledToZero
        reason=DecisionReason.SUSPENDED,
        after=frozenset(CandidateState) - {_S.SUSPENDED},
        may_suspend=True,
    ),
    _S.SUSPENDED: StateRow(
        meaning="its GPUs are free",  # PodsGone
        reason=DecisionReason.SUSPENDED,
        after=frozenset({_S.SUSPENDING, _S.WAKING}),
        may_suspend=True,
    ),
    _S.WAKING: StateRow(
        meaning="it shall run, and not all of its pods do yet",  # Resumed, WaitingForQuota
        reason=DecisionReason.WAKING,
        after=frozenset({_S.SUSPENDED, _S.SUSPENDING, _S.BUSY, _S.IDLE, _S.WARNED, _S.UNKNOWN, _S.KEPT, _S.EXCLUDED}),
    ),
    _S.KEPT: StateRow(
        meaning="kept by its owner, by demand, or by a client that starts it again and again, whatever its GPUs do",
        event=DecisionReason.KEPT,
    ),
    _S.EXCLUDED: StateRow(meaning="excluded by an annotation", event=DecisionReason.EXCLUDED),
    _S.OBSERVING: StateRow(meaning="idle; mode observe only reports it", event=DecisionReason.OBSERVE_ONLY),
    _S.UNKNOWN: StateRow(meaning="not known; it stays as it is", event="Unknown", is_warning=True),
}

check_complete(DecisionReason, REASONS)
check_complete(CandidateState, STATES)


class SuspensionEventReason(StrEnum):
    """Reasons of Events on ScalableWorkloads, Workloads and ScaledObjects, beside the reasons of decisions."""

    SCALED_TO_ZERO = "ScaledToZero"
    """The Workload is deactivated: a client other than this scaler set replicas to 0."""
    RESUMED = "Resumed"
    """The Workload is activated again."""
    SUSPEND_SOON = "SuspendSoon"
    """A warning before the suspension, with its time."""
    HOOK_SUCCEEDED = "BeforeSuspendSucceeded"
    """The hook of its policy has ended, and it may be suspended."""
    HOOK_FAILED = "BeforeSuspendFailed"
    HOOK_TIMED_OUT = "BeforeSuspendTimedOut"
    HOOK_OUTDATED = "BeforeSuspendOutdated"
    """Work was seen while the hook ran: its workload keeps running."""
    KEEP_REFUSED = "KeepRefused"
    """An annotation by which its owner keeps it has no effect: the policy allows no more."""
    PODS_GONE = "PodsGone"
    """The last pod of a suspended Workload has ended: its GPUs are free."""
    RUNNING = "Running"
    DEACTIVATED_BY_OTHER = "DeactivatedByOther"
    """Another client deactivated the Workload; it is not activated again without a wake-up."""
    PRIORITY_BOOSTED = "PriorityBoosted"
    PRIORITY_BOOST_REMOVED = "PriorityBoostRemoved"
    PRIORITY_BOOST_RELEASED = "PriorityBoostReleased"
    """Another client changed the priority boost."""
    PRIORITY_BOOST_OFF = "PriorityBoostOff"
    """Kueue does not read priority boosts."""
    PRIORITY_BOOST_UNKNOWN = "PriorityBoostUnknown"
    """Whether Kueue reads priority boosts is unknown."""
    BOOSTED_BY_OTHER = "BoostedByOther"
    """The Workload is idle and carries a priority boost of another client."""
    CANNOT_BE_BOOSTED = "CannotBeBoosted"
    """The policy needs a priority boost, and the scale target is no ScalableWorkload."""
