"""What shall the priority boost of a Workload be now, of which it is left to Kueue what happens when it is idle?

Kueue adds the boost to the Workload's priority wherever it compares priorities: in its queues, and when it looks for
whom to preempt. A negative one on an idle Workload makes Kueue take it before any other, with its own quota semantics.

Laws:

* Only Idle is boosted. What is not known stays as it is for a while, and then counts as work that could not be seen.
* A Workload that Kueue has preempted keeps its boost while it waits: nobody knows of any work that it would do. Without
  it an older Workload would take its quota back at once where the ClusterQueue preempts `LowerOrNewerEqualPriority`
  (seen on a running Kueue), grow idle, be preempted again, and every time a gang that works would pay for it.
* What somebody else wrote is left alone.

What is wanted (the first line that holds):

| the Workload, its decisions                        | wish  |
|----------------------------------------------------|-------|
| one of its triggers has another policy             | CLEAR |
| deactivated                                        | CLEAR |
| finished                                           | LEAVE |
| kept, or asked for by its owner or a demand query  | CLEAR |
| not admitted, or being evicted                     | LEAVE |
| idle by all of its triggers                        | SET   |
| busy, starting, warming up, only observed          | CLEAR |
| unknown, for less than PATIENCE                    | LEAVE |
| unknown for longer                                 | CLEAR |

What is done about it:

| whose boost it has now                | SET      | LEAVE  | CLEAR  |
|---------------------------------------|----------|--------|--------|
| nobody's                              | write    | –      | –      |
| ours                                  | – [1]    | –      | remove |
| somebody else's                       | –        | –      | –      |
| somebody else's, in the place of ours | disown   | disown | disown |
| ours, but it was taken off by hand    | –        | –      | disown |

[1] It is written anew where the settings say another number. To disown is to take off the note that says it is ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from scaler.core.durations import format_duration
from scaler.core.policy import Reclaim
from scaler.core.reasons import Because
from scaler.core.replicas import Active, Decision, NoAnswer, answer_reason
from scaler.core.suspension import Workload

PATIENCE = timedelta(minutes=5)
"""How long a boost outlives the last verdict: longer than a metrics source takes to restart. After that it may have
been at work for that long, unseen, and would be preempted for being idle."""


class Wish(StrEnum):
    """What is wanted of a Workload's boost."""

    SET = "Set"
    LEAVE = "Leave"
    CLEAR = "Clear"


class Holder(StrEnum):
    """Whose boost it is that a Workload has."""

    NOBODY = "Nobody"
    US = "Us"
    OTHER = "Other"
    REPLACED = "Replaced"
    """Somebody else's, and our note is still there."""
    TAKEN_OFF = "TakenOff"
    """Our note is still there, and no boost."""


class Step(StrEnum):
    """What is done to the Workload."""

    WRITE = "Write"
    REMOVE = "Remove"
    DISOWN = "Disown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boost:
    """The boost as it stands on a Workload."""

    holder: Holder = Holder.NOBODY
    value: str = ""
    """As it is written; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desire:
    """What is wanted, and why, in words that continue `its boost is removed because …`."""

    wish: Wish
    why: str


_STEPS = {
    (Holder.NOBODY, Wish.SET): Step.WRITE,
    (Holder.US, Wish.CLEAR): Step.REMOVE,
    (Holder.REPLACED, Wish.SET): Step.DISOWN,
    (Holder.REPLACED, Wish.LEAVE): Step.DISOWN,
    (Holder.REPLACED, Wish.CLEAR): Step.DISOWN,
    (Holder.TAKEN_OFF, Wish.CLEAR): Step.DISOWN,
}


def step(now: Boost, wish: Wish, *, value: int) -> Step | None:
    """The one thing to do, where there is one; `value` is the boost of an idle Workload."""
    if (now.holder, wish) == (Holder.US, Wish.SET) and now.value != str(value):
        return Step.WRITE
    return _STEPS.get((now.holder, wish))


def desire(
    workload: Workload, decisions: Sequence[Decision], *, doubt: str = "", unknown_for: timedelta = timedelta(0)
) -> Desire:
    """What is wanted of the Workload's boost.

    `doubt` is why the decisions are not to be believed, `unknown_for` how long nothing has been known of it.
    """
    if not is_left_to_kueue(decisions):
        return Desire(wish=Wish.CLEAR, why="its policy is not (any more) to be left to Kueue")
    if not workload.active:
        return Desire(wish=Wish.CLEAR, why="it is deactivated, and shall come back as itself")
    if workload.finished:
        return Desire(wish=Wish.LEAVE, why="it has finished")
    if asked_for := next(filter(None, map(_asked_for, decisions)), ""):
        return Desire(wish=Wish.CLEAR, why=asked_for)
    if workload.eviction_reason or not workload.admitted:
        return Desire(wish=Wish.LEAVE, why="it waits for quota, and nobody asks for it")
    return _by_verdict(decisions, doubt, unknown_for)


def is_left_to_kueue(decisions: Sequence[Decision]) -> bool:
    """Whether every trigger leaves it to Kueue what becomes of it when idle."""
    return bool(decisions) and all(each.policy.reclaim is Reclaim.PRIORITY_BOOST for each in decisions)


def is_any_left_to_kueue(decisions: Iterable[Decision]) -> bool:
    """Whether one trigger does."""
    return any(each.policy.reclaim is Reclaim.PRIORITY_BOOST for each in decisions)


def is_unknown(decisions: Sequence[Decision]) -> bool:
    """Whether no trigger knows of work, and one does not know of idleness either."""
    return any(isinstance(each.answer, NoAnswer) for each in decisions) and all(map(_may_be_idle, decisions))


def _may_be_idle(decision: Decision) -> bool:
    return isinstance(decision.answer, NoAnswer) or _is_idle(decision)


def _is_idle(decision: Decision) -> bool:
    return isinstance(decision.answer, Active) and decision.answer.because is Because.LEFT_TO_KUEUE


def _asked_for(decision: Decision) -> str:
    """Who wants it to run, in words; empty where nobody has said so."""
    standing, keep_until = decision.standing, decision.policy.keep_until
    if keep_until is not None and decision.decided_at < keep_until:
        return f"it is kept until {keep_until.isoformat()}"
    wish = standing.demand or standing.wake_wish
    return f"it is asked for: {wish}" if wish else ""


def _by_verdict(decisions: Sequence[Decision], doubt: str, unknown_for: timedelta) -> Desire:
    if not all(map(_may_be_idle, decisions)):
        work = next(each for each in decisions if not _may_be_idle(each))
        return Desire(wish=Wish.CLEAR, why=f"{answer_reason(work.answer)}: {work.answer.message}")
    if not doubt and not is_unknown(decisions):
        return Desire(wish=Wish.SET, why=decisions[0].answer.message)
    unknown = doubt or next(each.answer.message for each in decisions if isinstance(each.answer, NoAnswer))
    if unknown_for < PATIENCE:
        return Desire(wish=Wish.LEAVE, why=unknown)
    return Desire(wish=Wish.CLEAR, why=f"nothing is known of it for {format_duration(PATIENCE)}: {unknown}")


# ----------------------------------------------------------------------------------------------- whether Kueue reads it


class Gate(StrEnum):
    """Whether Kueue reads the annotation."""

    ON = "On"
    OFF = "Off"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFinding:
    """What was found about Kueue's feature gate, and what to do where it is not on."""

    gate: Gate
    message: str = ""


HOW_TO_SWITCH_ON = (
    "start Kueue's manager with the feature gate PriorityBoost=true (--feature-gates, or featureGates of its "
    "configuration; alpha since 0.17), or choose another reclaim policy"
)


def cannot_be_boosted(target: str) -> str:
    """Why `reclaim: PriorityBoost` does nothing for a target that is no ScalableWorkload, and what to write."""
    return (
        f"'reclaim: PriorityBoost' does nothing for {target}: what is boosted is the Kueue Workload of a "
        "ScalableWorkload, and it is none; scale a ScalableWorkload, or write 'reclaim: Always'"
    )
