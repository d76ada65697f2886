"""Where does a workload stand between work and suspension? A decision × its warning → one state.

The first row that applies, from above:

| decision                                                   | state      |
|------------------------------------------------------------|------------|
| finished                                                   | none       |
| asked to be at 0, and not there yet                        | Suspending |
| at 0, or deactivated by another client                     | Suspended  |
| a plan takes it                                            | Granted    |
| its answer is not known                                    | Unknown    |
| a wake-up is requested, or it waits, or its pods start     | Waking     |
| excluded                                                   | Excluded   |
| kept, or in demand                                         | Kept       |
| idle, and KEDA gets 0                                      | Suspending |
| idle, mode observe                                         | Observing  |
| quiet, and its owner is warned                             | Warned     |
| quiet for long enough to be told                           | Idle       |
| else                                                       | Busy       |

Every state, what begins it and what may come before it is in `STATES`; the picture in docs/policies.md is made from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from textwrap import shorten
from typing import NamedTuple

import msgspec

from scaler.decision.decision import OF_ALL, Active, Decision, standing_warning
from scaler.decision.target_state import Phase, TargetState
from scaler.decision.workloads import BY_HTTP, BY_LINK, BY_WHEN_FREE, HISTORY_ANNOTATION, WAKE_ANNOTATION
from scaler.idleness.policy import Reclaim
from scaler.idleness.reasons import DecisionReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import UNREADABLE


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """What is to be known of a state."""

    meaning: str
    event: str = ""
    """Reason of the Event that tells of its begin. Empty where another Event of the same moment does."""
    is_warning: bool = False
    after: frozenset[CandidateState] = frozenset(CandidateState)
    """The states that it may follow. Others are seen before it only where nobody looked in between."""
    may_suspend: bool = False
    """Whether KEDA may get 0 in it."""


_S = CandidateState
_QUIET = frozenset({_S.BUSY, _S.IDLE, _S.WARNED, _S.OBSERVING, _S.UNKNOWN, _S.KEPT, _S.EXCLUDED, _S.WAKING})

STATES: Mapping[CandidateState, StateRow] = {
    _S.BUSY: StateRow(meaning="work is seen, or was a moment ago", event="Busy"),
    _S.IDLE: StateRow(
        meaning="its GPUs are quiet; nothing happens yet",
        event="Idle",
        after=_QUIET | {_S.GRANTED},
    ),
    _S.WARNED: StateRow(
        meaning="quiet, and its owner is warned of the suspension",  # SuspendSoon
        after=_QUIET | {_S.GRANTED},
    ),
    _S.GRANTED: StateRow(
        meaning="a plan takes it for a gang that waits",  # the plan's Event
        after=frozenset({_S.IDLE, _S.WARNED, _S.BUSY, _S.UNKNOWN}),
        may_suspend=True,
    ),
    _S.SUSPENDING: StateRow(
        meaning="KEDA gets 0, or it is at 0 and its pods end",  # GPUsIdle, Reclaimed or ScaledToZero
        after=frozenset(CandidateState) - {_S.SUSPENDED},
        may_suspend=True,
    ),
    _S.SUSPENDED: StateRow(
        meaning="its GPUs are free",  # PodsGone
        after=frozenset({_S.SUSPENDING, _S.WAKING}),
        may_suspend=True,
    ),
    _S.WAKING: StateRow(
        meaning="it shall run, and not all of its pods do yet",  # Resumed, WaitingForQuota
        after=frozenset({_S.SUSPENDED, _S.SUSPENDING, _S.BUSY, _S.IDLE, _S.WARNED, _S.UNKNOWN, _S.KEPT, _S.EXCLUDED}),
    ),
    _S.KEPT: StateRow(meaning="kept by its owner or by demand, whatever its GPUs do", event=DecisionReason.KEPT),
    _S.EXCLUDED: StateRow(meaning="excluded by an annotation", event=DecisionReason.EXCLUDED),
    _S.OBSERVING: StateRow(meaning="idle; mode observe only reports it", event=DecisionReason.OBSERVE_ONLY),
    _S.UNKNOWN: StateRow(meaning="not known; it stays as it is", event="Unknown", is_warning=True),
}

_OF_REASON: Mapping[DecisionReason, CandidateState | None] = {
    DecisionReason.FINISHED: None,
    DecisionReason.SUSPENDED: _S.SUSPENDED,
    DecisionReason.RECLAIMED: _S.GRANTED,
    DecisionReason.WAKING: _S.WAKING,
    DecisionReason.STARTING: _S.WAKING,
    DecisionReason.WAITING_FOR_QUOTA: _S.WAKING,
    DecisionReason.WAITING_FOR_CHECKS: _S.WAKING,
    DecisionReason.WAITING_FOR_WORKLOAD: _S.WAKING,
    DecisionReason.EXCLUDED: _S.EXCLUDED,
    DecisionReason.KEPT: _S.KEPT,
    DecisionReason.GPUS_IDLE: _S.SUSPENDING,
    DecisionReason.OBSERVE_ONLY: _S.OBSERVING,
    DecisionReason.WARMING_UP: _S.BUSY,
    DecisionReason.GPUS_BUSY: _S.BUSY,
    DecisionReason.IDLE_NOT_LONG_ENOUGH: _S.BUSY,
    DecisionReason.WARNED: _S.IDLE,
    DecisionReason.BEFORE_SUSPEND: _S.IDLE,
    DecisionReason.BEFORE_SUSPEND_FAILED: _S.IDLE,
    DecisionReason.OUTSIDE_HOURS: _S.IDLE,
    DecisionReason.IDLE_NOT_NEEDED: _S.IDLE,
    DecisionReason.PRIORITY_LOWERED: _S.IDLE,
}
_OF_PHASE: Mapping[Phase, CandidateState] = {
    Phase.SUSPENDING: _S.SUSPENDING,
    Phase.SUSPENDED: _S.SUSPENDED,
    Phase.DEACTIVATED_BY_OTHER: _S.SUSPENDED,
    Phase.HELD: _S.GRANTED,
}
"""Phases that say more than the answer; those of workloads that were asked to be at 0."""


def candidate_state(
    decision: Decision, *, target: TargetState | None = None, warned_at: datetime | None = None
) -> CandidateState | None:
    """The state; None where it has finished.

    `target` is as it is now, where that is known better than when it was decided; `warned_at` is when its owner was
    warned last.
    """
    answer, target = decision.answer, target or decision.target
    if Phase.FINISHED in (target.phase, decision.target.phase) or answer.reason == DecisionReason.FINISHED:
        return None
    is_woken = isinstance(answer, Active) and answer.reason is DecisionReason.WAKING
    is_down = target.desired_replicas == 0 or target.phase is Phase.DEACTIVATED_BY_OTHER
    if target.phase in _OF_PHASE and is_down and not is_woken:
        return _OF_PHASE[target.phase]
    if isinstance(answer, Unknown):
        return _S.UNKNOWN
    is_taken = bool(decision.target.grant) and decision.policy.reclaim is Reclaim.ON_PRESSURE
    if answer.reason is DecisionReason.BEFORE_SUSPEND and is_taken:
        return _S.GRANTED
    state = _OF_REASON[answer.reason]
    if state is _S.BUSY and decision.is_noticeably_quiet:
        state = _S.IDLE
    is_warned = standing_warning(decision, warned_at) is not None
    return _S.WARNED if state is _S.IDLE and is_warned else state


HISTORY = 16
"""Lines that are kept of a workload."""
_LONGEST_MESSAGE = 160


class HistoryLine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A state that a workload entered: when, why, and who asked for it where that is known."""

    at: datetime
    state: str
    reason: str = ""
    message: str = ""
    by: str = ""


def history_of(annotations: Mapping[str, str]) -> list[HistoryLine]:
    """Of a ScaledObject whose target has no status of ours; empty where it cannot be read.

    Whoever may annotate the ScaledObject may write it: a line without a zone in its time is left out.
    """
    try:
        lines = msgspec.json.decode(annotations.get(HISTORY_ANNOTATION) or "[]", type=list[HistoryLine])
    except UNREADABLE:
        return []
    return [line for line in lines if line.at.tzinfo is not None]


def suspended_at(history: Sequence[HistoryLine], *, is_down: bool) -> datetime | None:
    """When it was suspended last; of one that `is_down`, this time. None where that is not told, or not yet."""
    for line in reversed(history):
        if line.state in _DOWN:
            return line.at
        if is_down and line.state in _UP:
            return None
    return None


_DOWN = frozenset({CandidateState.SUSPENDING, CandidateState.SUSPENDED})
_UP = frozenset({CandidateState.BUSY, CandidateState.IDLE, CandidateState.WARNED, CandidateState.OBSERVING})


class WakeCause(StrEnum):
    """What a suspended workload came back for."""

    ANNOTATION = "Annotation"
    LINK = "Link"
    """In a message to its owner."""
    HTTP = "HTTP"
    WHEN_FREE = "WhenFree"
    DEMAND = "Demand"
    SCHEDULE = "Schedule"
    OTHER = "Other"
    """`kubectl scale`, another trigger of KEDA's, or its own switch."""


class Return(NamedTuple):
    """A suspended workload that runs again."""

    cause: WakeCause
    after: timedelta
    """From when the leader saw the request until it ran."""


def return_of(history: Sequence[HistoryLine]) -> Return | None:
    """What the last line of the history ends; None where that is no return."""
    known = [line for line in history if line.state != _S.UNKNOWN and line.at.tzinfo is not None]
    if len(known) < 3 or known[-1] is not history[-1] or known[-1].state in (_S.WAKING, *_DOWN):
        return None
    *_, down, waking, running = known
    if down.state not in _DOWN or waking.state != _S.WAKING:
        return None
    return Return(_cause(waking), max(timedelta(0), running.at - waking.at))


def _cause(waking: HistoryLine) -> WakeCause:
    asked = waking.message if waking.reason == DecisionReason.WAKING else ""
    if WAKE_ANNOTATION in asked:
        return next((cause for cause, is_it in _BY.items() if is_it(waking.by)), WakeCause.ANNOTATION)
    return next((cause for word, cause in _WORDS.items() if word in asked), WakeCause.OTHER)


_BY: Mapping[WakeCause, Callable[[str], bool]] = {
    WakeCause.LINK: lambda by: by.startswith(BY_LINK),
    WakeCause.HTTP: lambda by: by.endswith(BY_HTTP),
    WakeCause.WHEN_FREE: lambda by: by.endswith(BY_WHEN_FREE),
}
_WORDS = {"demand query": WakeCause.DEMAND, "wakeAt": WakeCause.SCHEDULE}


def next_line(
    before: HistoryLine | None,
    decision: Decision | None,
    *,
    target: TargetState | None = None,
    warned_at: datetime | None = None,
    by: str = "",
    now: datetime,
) -> HistoryLine | None:
    """What is to be added to its history; None where it is in the state of its last line, or nothing is known.

    A warning that is given again is a line of its own: its owner is told of that. What runs after a suspension was
    woken, however quickly: that is the first line, and the state that it is in the next one.
    """
    if decision is None or decision.answer.reason in OF_ALL:
        return None
    state = candidate_state(decision, target=target, warned_at=warned_at)
    if before is not None and before.state == _S.SUSPENDED and state in _AFTER_WAKING:
        state = _S.WAKING
    is_told = before is not None and before.state == state and not (state is _S.WARNED and _is_older(before, warned_at))
    if state is None or is_told:
        return None
    answer, asked = decision.answer, state in _ASKED_FOR
    return HistoryLine(
        at=now.replace(microsecond=0),
        state=str(state),
        reason=str(answer.reason),
        message=shorten(answer.message, _LONGEST_MESSAGE, placeholder=" …"),
        by=by if asked else "",
    )


_AFTER_WAKING = _UP | {_S.KEPT, _S.EXCLUDED}


def _is_older(line: HistoryLine, warned_at: datetime | None) -> bool:
    """A line whose time has no zone is older than anything."""
    return warned_at is not None and (line.at.tzinfo is None or line.at < warned_at)


_ASKED_FOR = frozenset({CandidateState.KEPT, CandidateState.EXCLUDED, CandidateState.WAKING})
