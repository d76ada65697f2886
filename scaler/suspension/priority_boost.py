"""Which priority boost shall a Workload have now whose policy is `reclaim: PriorityBoost`?

Kueue adds the boost to the Workload's priority wherever it compares priorities: in its queues, and when it selects
Workloads to preempt. A negative one on an idle Workload makes Kueue preempt it before any other, by Kueue's own rules.

Laws:

* Only Idle is boosted. What is not known stays as it is for a while, and then counts as work that could not be seen.
* A Workload that Kueue has preempted keeps its boost while it waits: no work of it is known. Without
  it an older Workload would take its quota back at once where the ClusterQueue preempts `LowerOrNewerEqualPriority`
  (seen on a running Kueue), grow idle, be preempted again, and every time a gang that works would pay for it.
* A boost that another client wrote is not changed.

What is wanted (the first line that holds):

| the Workload, its decisions                        | what  |
|----------------------------------------------------|-------|
| one of its triggers has another policy             | CLEAR |
| deactivated                                        | CLEAR |
| finished                                           | LEAVE |
| kept, or requested by its owner or a demand query  | CLEAR |
| not admitted, or being evicted                     | LEAVE |
| idle by all of its triggers                        | SET   |
| busy, starting, warming up, only observed          | CLEAR |
| unknown, for less than PATIENCE                    | LEAVE |
| unknown for longer                                 | CLEAR |

What is done about it:

| the boost that it has now             | SET     | LEAVE   | CLEAR   |
|---------------------------------------|---------|---------|---------|
| none                                  | write   | –       | –       |
| this scaler's                         | – [1]   | –       | remove  |
| another client's                      | –       | –       | –       |
| another client's replaced this one's  | release | release | release |
| this scaler's, but removed by hand    | –       | –       | release |

[1] It is written anew where the settings say another number. To release ownership is to remove its annotation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from scaler.decision.decision import Active, Decision
from scaler.decision.reasons import DecisionReason
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Reclaim
from scaler.idleness.verdict import Unknown
from scaler.targets.target_state import ObservedWorkload

PATIENCE = timedelta(minutes=5)
"""How long a boost outlives the last verdict: longer than a metrics source takes to restart. After that it may have
been at work for that long, unseen, and would be preempted for being idle."""


class BoostSwitch(StrEnum):
    """Whether something is used that may or may not be there."""

    AUTO = "auto"
    """The boost is on where the feature gate is found to be."""
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityBoost:
    """The boost of idle workloads whose policy is `reclaim: PriorityBoost`."""

    enabled: BoostSwitch = BoostSwitch.AUTO
    """Kueue reads the annotation only with its feature gate `PriorityBoost`, which is off by default."""
    value: int = -1000
    """The number that is added to the Workload's priority while it is idle; below 0."""


class BoostIntent(StrEnum):
    SET = "Set"
    LEAVE = "Leave"
    CLEAR = "Clear"


class BoostOwner(StrEnum):
    """The owner of a Workload's boost."""

    NONE = "None"
    US = "Us"
    OTHER = "Other"
    REPLACED = "Replaced"
    """Another client's, and this scaler's annotation is still there."""
    TAKEN_OFF = "TakenOff"
    """This scaler's annotation is still there, and no boost."""


class BoostStep(StrEnum):
    WRITE = "Write"
    REMOVE = "Remove"
    RELEASE_OWNERSHIP = "ReleaseOwnership"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boost:
    holder: BoostOwner = BoostOwner.NONE
    value: str = ""
    """The value as it is written; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredBoost:
    """What is wanted, and why, in words that continue `its boost is removed because …`."""

    intent: BoostIntent
    why: str


_STEPS = {
    (BoostOwner.NONE, BoostIntent.SET): BoostStep.WRITE,
    (BoostOwner.US, BoostIntent.CLEAR): BoostStep.REMOVE,
    (BoostOwner.REPLACED, BoostIntent.SET): BoostStep.RELEASE_OWNERSHIP,
    (BoostOwner.REPLACED, BoostIntent.LEAVE): BoostStep.RELEASE_OWNERSHIP,
    (BoostOwner.REPLACED, BoostIntent.CLEAR): BoostStep.RELEASE_OWNERSHIP,
    (BoostOwner.TAKEN_OFF, BoostIntent.CLEAR): BoostStep.RELEASE_OWNERSHIP,
}


def step(now: Boost, intent: BoostIntent, *, value: int) -> BoostStep | None:
    """The one thing to do, where there is one; `value` is the boost of an idle Workload."""
    if (now.holder, intent) == (BoostOwner.US, BoostIntent.SET) and now.value != str(value):
        return BoostStep.WRITE
    return _STEPS.get((now.holder, intent))


def desire(
    workload: ObservedWorkload, decisions: Sequence[Decision], *, doubt: str = "", unknown_for: timedelta = timedelta(0)
) -> DesiredBoost:
    """What is wanted of the Workload's boost.

    `doubt` is why the decisions are not to be believed, `unknown_for` how long nothing has been known of it.
    """
    if not uses_priority_boost(decisions):
        return DesiredBoost(intent=BoostIntent.CLEAR, why="its policy is not reclaim: PriorityBoost any more")
    if not workload.active:
        return DesiredBoost(intent=BoostIntent.CLEAR, why="it is deactivated")
    if workload.finished:
        return DesiredBoost(intent=BoostIntent.LEAVE, why="it has finished")
    if asked_for := next(filter(None, map(_requested_by, decisions)), ""):
        return DesiredBoost(intent=BoostIntent.CLEAR, why=asked_for)
    if workload.eviction_reason or not workload.admitted:
        return DesiredBoost(intent=BoostIntent.LEAVE, why="it waits for quota; no wake-up requested")
    return _by_verdict(decisions, doubt, unknown_for)


def uses_priority_boost(decisions: Sequence[Decision]) -> bool:
    """Whether every trigger leaves it to Kueue what becomes of it when idle."""
    return bool(decisions) and all(each.policy.reclaim is Reclaim.PRIORITY_BOOST for each in decisions)


def is_unknown(decisions: Sequence[Decision]) -> bool:
    """Whether no trigger knows of work, and one does not know of idleness either."""
    return any(isinstance(each.answer, Unknown) for each in decisions) and all(map(_may_be_idle, decisions))


def _may_be_idle(decision: Decision) -> bool:
    return isinstance(decision.answer, Unknown) or _is_idle(decision)


def _is_idle(decision: Decision) -> bool:
    return isinstance(decision.answer, Active) and decision.answer.reason is DecisionReason.PRIORITY_LOWERED


def _requested_by(decision: Decision) -> str:
    """What requests it to run, in words; empty where nothing does."""
    target, keep_until = decision.target, decision.policy.keep_until
    if keep_until is not None and decision.decided_at < keep_until:
        return f"it is kept until {keep_until.isoformat()}"
    if isinstance(decision.answer, Active) and decision.answer.reason is DecisionReason.EXCLUDED:
        return f"it is {decision.answer.message}"
    request = target.demand or (target.wake_request.words if target.wake_request is not None else "")
    return f"it is requested by {request}" if request else ""


def _by_verdict(decisions: Sequence[Decision], doubt: str, unknown_for: timedelta) -> DesiredBoost:
    if not all(map(_may_be_idle, decisions)):
        work = next(each for each in decisions if not _may_be_idle(each))
        return DesiredBoost(intent=BoostIntent.CLEAR, why=f"{work.answer.reason}: {work.answer.message}")
    if not doubt and not is_unknown(decisions):
        return DesiredBoost(intent=BoostIntent.SET, why=decisions[0].answer.message)
    unknown = doubt or next(each.answer.message for each in decisions if isinstance(each.answer, Unknown))
    if unknown_for < PATIENCE:
        return DesiredBoost(intent=BoostIntent.LEAVE, why=unknown)
    return DesiredBoost(
        intent=BoostIntent.CLEAR, why=f"nothing is known of it for {format_duration(PATIENCE)}: {unknown}"
    )
